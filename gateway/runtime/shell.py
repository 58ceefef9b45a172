"""The shell around the records of jobs: applies events, decides, stores, and acts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, TypeVar

import structlog

from gateway.domain.job import Job
from gateway.domain.records import replace
from gateway.domain.run import LocalJob
from gateway.domain.spec import NodeId, Note
from gateway.domain.timeouts import is_noted
from gateway.errors import GatewayError, NotFound, Unreadable
from gateway.runtime.context import Exchange, NodeContext
from gateway.runtime.loop import Loop, wait_for_database
from gateway.runtime.turns import MAX_DELAY, RecordChange, Turns
from gateway.store.queries import abandon
from gateway.store.records import Records

log = structlog.get_logger(__name__)

ActionsT = TypeVar("ActionsT")  # the actions that a decision claims
J = TypeVar("J", Job, LocalJob)

# A job that is overdue for longer counts as left behind by its gateway, which may be dead; until
# then that gateway may just be busy.
_LEFT_BEHIND_AFTER = timedelta(seconds=2)

# Events of a timeline.
CALLED = "request sent"
STUCK = "cannot continue"


def with_calls(
    change: Callable[[J], J],
    calls: Sequence[Exchange],
    at: datetime,
    tries: int = 1,
    quiet: Callable[[J], int] | None = None,
    *,
    is_final: bool = False,
) -> Callable[[J], J]:
    """Return a change that also notes these calls, before the notes of ``change`` itself.

    The calls are the try with the number ``tries``. ``is_final``: no further try follows, so that
    they are noted even if ``is_noted(tries)`` is False.

    ``quiet`` is passed for a poll; it returns the number of polls without news before this one. A
    poll is noted only if ``change`` writes a note.
    """

    def is_worth_noting(old: J, new: J) -> bool:
        if not calls:
            return False
        if quiet is not None:
            return len(new.notes) != len(old.notes)
        return is_final or is_noted(tries)

    def changed(record: J) -> J:
        new: J = change(record)
        if not is_worth_noting(record, new):
            return new
        details: dict[str, int] = {}
        if tries > 1:
            details["tries"] = tries
        quiet_before = 0
        if quiet is not None:
            quiet_before = quiet(record)
        if quiet_before:
            details["quiet_before"] = quiet_before
        later_notes: tuple[Note, ...] = new.notes[len(record.notes) :]
        notes = (*record.notes, *notes_of(calls, at, **details), *later_notes)
        return replace(new, notes=notes)

    return changed


def notes_of(
    calls: Sequence[Exchange],
    at: datetime,
    **details: int | str,
) -> list[Note]:
    """Return one note for each call."""
    return [Note(at, CALLED, call.node, {**vars(call), **details}) for call in calls]


class Shell(ABC, Generic[J, ActionsT]):
    """The only way to change the records of one side of the jobs.

    Events are applied and the due actions decided in one write; then the actions are carried out.
    The write is the claim on the actions: no other gateway carries them out too.
    """

    def __init__(
        self,
        name: str,
        side: str,
        context: NodeContext,
        records: Records[J],
        stuck: Callable[[str], None],
    ) -> None:
        """``name`` is that of the loop; ``side`` is ``scheduler`` or ``participant``.

        ``stuck(side)`` is called for each failed advance.
        """
        self._store = context.store
        self._clock = context.clock
        self._side = side
        self._records: Records[J] = records
        self._stuck = stuck
        self._turns: Turns[J, ActionsT] = Turns(
            records.decide,
            self._decide,
            self._begin,
        )
        self.loop = Loop(
            name,
            self.advance,
            self._left_behind,
            clock=context.clock,
            failed=self._note_failure,
        )

    # ------------------------------------------------------------ due work

    def advance(self, job_id: str) -> datetime | None:
        """Do everything that is due for a job; return when it is due next, None for never."""
        cached = self._records.cached(job_id)
        if cached is not None:
            now = self._clock()
            next_work = self._next_work(cached, now)
            if next_work is None or next_work > now:  # the due work was done with other work
                return next_work
        try:
            return self._next_due(self._turns.change(job_id, _unchanged))
        except Unreadable as error:
            self._abandon(job_id, error)
            return None
        except NotFound:
            if self._records.find(job_id) is not None:  # something else was not found
                raise
            return None  # the job was deleted since

    def _next_work(self, record: J, now: datetime) -> datetime | None:
        """Return the time of a job's next action or deferred change; None if it has neither."""
        times = []
        due = self._next_due(record)
        if due is not None:
            times.append(due)
        seconds = self._turns.seconds_to_write(record.id)
        if seconds is not None:
            times.append(now + timedelta(seconds=seconds))
        return min(times, default=None)

    def _left_behind(self, now: datetime) -> list[str]:
        """Return the jobs that should have been advanced by now, perhaps by another gateway."""
        job_ids = self._records.due(now - _LEFT_BEHIND_AFTER)
        self._records.forget(job_ids)  # the other gateway may have changed them
        return job_ids

    def _note_failure(
        self,
        job_id: str,
        error: Exception,
        times: int,
    ) -> None:
        """Report a failed advance; of failures in a row, only the first is noted in the timeline.

        ``times`` is the number of failures in a row so far.
        """
        self._stuck(self._side)
        if times > 1:
            return
        text = f"{type(error).__name__} inside the gateway; it is tried again every second, "
        text += "and the gateway's log tells more"
        detail = {"reason": "INTERNAL", "message": text}
        self._store.note(
            job_id,
            self._side,
            [Note(self._clock(), STUCK, "", detail)],
        )

    def _abandon(self, job_id: str, error: Unreadable) -> None:
        """End a job with a record that cannot be read."""
        log.error("a job ends as ABNORMAL", job=job_id, cause=error.message)
        containers = abandon(self._store, self._side, job_id, self._clock(), error.message)
        self._end_containers(job_id, containers)

    # ------------------------------------------------------------ changes

    def record(
        self,
        job_id: str,
        *events: Any,
        allowed: Callable[[J], None] | None = None,
    ) -> J:
        """Apply events to a job and carry out the consequences.

        ``allowed`` raises to refuse the events.
        """
        apply_events = self._change_by(*events)

        def change(record: J) -> J:
            if allowed is not None:
                allowed(record)
            return apply_events(record)

        return self.change(job_id, change)

    def change(self, job_id: str, change: RecordChange[J]) -> J:
        """Change the record of a job and do what follows from the change."""
        record = self._turns.change(job_id, change)
        self.watch(record)
        return record

    def record_response(
        self,
        job_id: str,
        change: RecordChange[J],
        max_deferred: int,
    ) -> None:
        """Record the response to a call, now or later.

        The response is deferred until the next write of the job, for at most `MAX_DELAY` seconds,
        unless ``max_deferred`` responses of the job are deferred already. Often only the last
        of several responses has consequences, and a write costs more than the rest of a call. If
        the gateway ends before the write, the call is repeated.
        """
        if self._turns.defer(job_id, change, max_deferred):
            self.loop.wake(job_id, self._clock() + timedelta(seconds=MAX_DELAY))
        else:
            wait_for_database(partial(self.change, job_id, change))

    def record_deferred(self) -> None:
        """Record every deferred response."""
        for job_id in self._turns.pending():
            self.record_deferred_of(job_id)

    def record_deferred_of(self, job_id: str) -> None:
        """Record the deferred responses of a job, and do what follows from them."""
        with suppress(GatewayError):  # the call will be repeated
            self._turns.change(job_id, _unchanged)

    def watch(self, record: J) -> None:
        """Have the loop advance a job when it is due; its record was just stored."""
        due = self._next_due(record)
        if due is not None:
            self.loop.wake(record.id, due)

    def resume(self, node: NodeId) -> None:
        """Continue the jobs that wait for a node that can be reached again."""
        for job_id in self._records.unfinished():
            with suppress(NotFound):  # the job was deleted since
                self.change(job_id, partial(self._mark_reached, node=node))

    def _change_by(self, *events: Any) -> RecordChange[J]:
        """Return the change that applies events one after the other."""

        def change(record: J) -> J:
            for event in events:
                record = self._apply(record, event)
            return record

        return change

    # ------------------------------------------------------------ implemented by each side

    @abstractmethod
    def _apply(self, record: J, event: Any) -> J:
        """Return the record after an event."""

    @abstractmethod
    def _decide(self, record: J) -> tuple[J, ActionsT]:
        """Return the record with its due actions claimed, and the actions."""

    @abstractmethod
    def _begin(self, record: J, actions: ActionsT) -> None:
        """Carry out actions, after the write that claimed them."""

    def _next_due(self, record: J) -> datetime | None:
        """Return when a job has its next action; None if it has none."""
        return self._records.next_due(record)

    @abstractmethod
    def _mark_reached(self, record: J, node: NodeId) -> J:
        """Return the record after a node responds again: calls that failed to reach it are due."""

    def _end_containers(self, job_id: str, containers: list[str]) -> None:
        """Remove the containers of an abandoned job; the scheduler has none."""


def _unchanged(record: J) -> J:
    """Return a record unchanged."""
    return record
