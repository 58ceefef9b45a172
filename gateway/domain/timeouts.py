"""Deadlines, pauses and due times of calls, for scheduling and for execution."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar

from gateway.domain.spec import Call, CallState

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)

EARLIEST = datetime.min.replace(tzinfo=UTC)  # due immediately; before any other time
# How many first tries of a call are all noted; of the later ones, the 4th, 8th, 16th and so on are.
_NOTED_TRIES = 3
_MAX_DOUBLINGS = 20  # doublings of a pause, enough to reach any `Pauses.retry_max`


@dataclass(frozen=True)
class Due(Generic[C_co]):
    """A command and when it is due."""

    at: datetime
    command: C_co


def when_due(
    call: Call,
    command: C,
    deadline: float,
    *,
    repeats: bool = False,
) -> Iterator[Due[C]]:
    """Yield when a call has to be made, or nothing once it has a response.

    A call under way is due when it counts as lost, ``deadline`` seconds after it was sent. With
    ``repeats`` a call with a response is due again.
    """
    if call.state is CallState.SENT:
        yield Due(expiry(call, deadline), command)
    elif repeats or not call.completed:
        yield Due(call.due_at or EARLIEST, command)


def expiry(call: Call, deadline: float) -> datetime:
    """Return the time after which a call without a response counts as lost.

    `EARLIEST` if it was never sent.
    """
    if call.sent_at is None:
        return EARLIEST
    return call.sent_at + timedelta(seconds=deadline)


def time_after(start: datetime | None, seconds: float | None) -> datetime | None:
    """Return the time that is ``seconds`` after a start.

    None if there is no start yet, or no limit of time.
    """
    if start is None or seconds is None:
        return None
    return start + timedelta(seconds=seconds)


def due_if_set(at: datetime | None, command: C) -> Iterator[Due[C]]:
    """Yield a command that is due at a time; nothing if the time is None."""
    if at is not None:
        yield Due(at, command)


def is_noted(tries: int) -> bool:
    """Return whether the try with the number ``tries`` is written to the timeline.

    The first three tries are, then the 4th, 8th, 16th and so on.
    """
    is_power_of_two = tries & (tries - 1) == 0
    return tries <= _NOTED_TRIES or is_power_of_two


def shortened(
    seconds: float,
    by: float,
    *words: object,
) -> float:
    """Return a pause of ``seconds``, shortened by a share of it between 0 and ``by``.

    The share is pseudo-random: it depends on nothing but ``words``.
    """
    share = zlib.crc32(repr(words).encode()) / 2**32
    return seconds * (1.0 - by * share)


@dataclass(frozen=True)
class Pauses:
    """The deadline of calls and the pauses between tries, in seconds."""

    # a call without a response counts as lost after this; longer than any client's own timeout
    call_deadline: float = 12.0
    retry_first: float = 0.2  # pause after the first failure; it doubles with each further one
    retry_max: float = 10.0  # the longest such pause
    # the share of a pause by which it may be shorter, different for each request
    jitter: float = 0.0

    def retry(self, tries: int, *request: object) -> timedelta:
        """Return the pause before the next try: it doubles with each try, up to `retry_max`.

        ``tries`` is the number of failures before the last one, 0 after the first. ``request``
        identifies the request for the jitter.
        """
        pause = min(self.retry_first * 2.0 ** min(tries, _MAX_DOUBLINGS), self.retry_max)
        return timedelta(seconds=shortened(pause, self.jitter, tries, *request))


@dataclass(frozen=True)
class Timing(Pauses):
    """Deadlines and pauses of the scheduling node, in seconds."""

    # a node that cannot be reached for this long while a job is created counts as refusing it,
    # unless its route has a limit of its own
    create_deadline: float = 10.0
    start_deadline: float = 60.0  # the same limit while a job is started
    unreachable_limit: float = 600.0  # a running job whose node is silent for this long fails
    poll_first: float = 0.05  # pause between the first two polls; it doubles while there is no news
    # the pause stops doubling here; then it is a twentieth of the time without news, if that is
    # longer
    poll_max: float = 2.0
    # first pause between polls of a node that reports by itself; each further one equals the time
    # without news
    poll_pushing: float = 2.0
    # upper bound of the pauses between polls above, so that a task of hours costs few polls
    poll_rarely: float = 60.0
    abreast: int = 64  # not seconds: tasks of one job that may be under way at the same time
    # pause before a node without enough free resources is asked again; it doubles each time
    hold_first: float = 0.5
    # the longest such pause; a node with this gateway also reports when it has capacity
    hold_most: float = 30.0
    # not seconds: requests to one busy node before the job ends; 0: no bound
    hold_tries: int = 0
    # a job that has waited for resources for this long keeps the reservations that it has, and
    # waits for the rest
    ageing: float = 600.0
    # how long a node that acknowledged the stop of a failed attempt may still report it as running
    stop_timeout: float = 60.0
    # how long a stop that was not acknowledged is repeated after the end of the job
    redeliver_for: float = 86_400.0


@dataclass(frozen=True)
class RunTiming(Pauses):
    """Deadlines and pauses of a participating node, in seconds."""

    # a launch without a recorded end is repeated after this; it is idempotent by name
    launch_deadline: float = 120.0
    # shortest pause between probes of a container, in case the engine does not report its exit
    probe_every: float = 5.0
    # longest such pause; up to this it is as long as the container has run so far
    probe_rarely: float = 60.0
    # an exit with code 0 waits this long for a report that is still on its way
    callback_grace: float = 1.0
    # not seconds: whether an exit with code 0 and all outputs, but without a report, is a failure
    silence_fails: bool = False
    linger: float = 30.0  # a container that has reported success may take this long to exit
    stop_grace: float = 5.0  # between asking a container to end and killing it
    engine_timeout: float = 60.0  # a run fails when the engine has not answered for this long
    # sealing (reading a model's files) is repeated after this; repeating is harmless
    seal_deadline: float = 600.0
    # the preparation of a job, which fetches its images, is repeated after this: practically
    # unlimited, as fetching has its own deadlines; after a restart or a takeover the images are
    # fetched again without waiting for this
    prepare_deadline: float = 100_000.0
    # not seconds: how often a state is reported before the scheduling node has to ask
    tell_tries: int = 40
    partner_job: float | None = None  # how long a job of a partner may run; None: no limit
    # a scheduling node that sends nothing for this long is asked whether it still has the job
    orphan: float = 660.0
