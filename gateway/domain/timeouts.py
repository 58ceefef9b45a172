"""What both state machines need: how long to wait for what, and when a call is due."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar

from gateway.domain.spec import Call, CallState

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)

NOW = datetime.min.replace(tzinfo=UTC)
"""Stands for "immediately" in an agenda."""


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
    """Yield when a call is to be made; ``repeats``: also after a response. ``deadline`` in seconds."""
    if call.state is CallState.SENT:
        yield Due(expiry(call, deadline), command)
    elif repeats or not call.completed:
        yield Due(call.due_at or NOW, command)


def expiry(call: Call, deadline: float) -> datetime:
    """Return the moment after which an unanswered call can no longer be on its way."""
    return NOW if call.sent_at is None else call.sent_at + timedelta(seconds=deadline)


def is_noted(tries: int) -> bool:
    """Whether a try is written down: the first three, then the fourth, eighth, sixteenth and so on."""
    return tries <= 3 or tries & (tries - 1) == 0


def shortened(
    seconds: float,
    by: float,
    *words: object,
) -> float:
    """Return the pause less a random part of it, at most the share ``by``; the same words give the same part."""
    share = zlib.crc32(repr(words).encode()) / 2**32
    return seconds * (1.0 - by * share)


@dataclass(frozen=True)
class Pauses:
    """The deadline of calls and the pauses between tries, in seconds."""

    call_deadline: float = 12.0
    """a call without a response counts as lost after this; longer than any client's own timeout"""
    retry_first: float = 0.2  # pause after the first failure; it doubles with each
    retry_max: float = 10.0  # the longest such pause
    jitter: float = (
        0.0  # the share of a pause by which it may be shorter, different for each request
    )

    def retry(self, tries: int, *request: object) -> timedelta:
        """Return the pause before the next try: it doubles with each, up to a bound."""
        pause = min(self.retry_first * 2.0 ** min(tries, 20), self.retry_max)
        return timedelta(seconds=shortened(pause, self.jitter, tries, *request))


@dataclass(frozen=True)
class Timing(Pauses):
    """How long the scheduling node waits for what, in seconds."""

    create_deadline: float = (
        10.0  # a node that cannot be reached for this long while a job is created refuses it
    )
    start_deadline: float = 60.0  # the same while a job is started
    unreachable_limit: float = 600.0  # a running job whose node is silent for this long fails
    poll_first: float = 0.05  # pause between the first two polls; it doubles while there is no news
    poll_max: float = (
        2.0  # the longest such pause, until a twentieth of the time without news is longer
    )
    poll_pushing: float = (
        2.0  # first pause of a node that reports by itself; then as long as there was no news
    )
    poll_rarely: float = 60.0  # the longest pause of both: a task that runs for hours costs little
    abreast: int = 64  # tasks of one job under way at the same time
    hold_first: float = (
        0.5  # pause before a node that had too little free is asked again; it doubles each time
    )
    hold_most: float = (
        30.0  # the longest such pause; a node of ours says by itself when it has something free
    )
    hold_tries: int = 0  # how often one node is asked before the job ends; 0: as long as it takes
    ageing: float = 600.0
    """a job that has waited for resources for this long keeps what it is granted until it has everything"""
    stop_timeout: float = (
        60.0  # how long a failed attempt may go on at a node that has answered its stop
    )
    redeliver_for: float = (
        86_400.0  # how long a stop that was not acknowledged is repeated after the end
    )


@dataclass(frozen=True)
class RunTiming(Pauses):
    """How long a participating node waits for what, in seconds."""

    launch_deadline: float = 120.0
    """a launch without a recorded end is repeated after this; it is idempotent by name"""
    probe_every: float = 5.0  # safety net; an exit is normally reported by the engine
    probe_rarely: float = 60.0
    """longest pause between probes that are stored, which doubles; those between write only what is new"""
    callback_grace: float = (
        1.0  # an exit with code 0 waits this long for a report that is still on its way
    )
    silence_fails: bool = False
    """an exit with code 0 and all outputs, but without a report, is a failure and no success"""
    linger: float = 30.0  # a container that reported success may take this long to exit
    stop_grace: float = 5.0  # between asking a container to end and killing it
    engine_timeout: float = 60.0  # a run fails when the engine has not answered for this long
    seal_deadline: float = (
        600.0  # reading a model's files is repeated after this; it changes nothing
    )
    prepare_deadline: float = 100_000.0
    """fetching keeps its own deadlines; a gateway that takes over or restarts does not wait for this one"""
    tell_tries: int = (
        40  # not seconds: how often a state is reported before the scheduling node has to ask
    )
    partner_job: float | None = None  # how long a job of a partner may run; None: no limit
    orphan: float = 660.0
    """a scheduling node that sends nothing for this long is asked whether it still has the job"""
