"""What advances records: a loop over those that are due, turns of those who change one, and the shell of both."""

import heapq
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, Generic, TypeVar

import structlog

from gateway.auth import with_proof
from gateway.domain.job import Job
from gateway.domain.run import LocalJob
from gateway.domain.spec import NodeId, Note
from gateway.domain.states import replace
from gateway.domain.timeouts import is_noted
from gateway.errors import DatabaseAway, GatewayError, NotFound, Unreadable
from gateway.runtime.context import Exchange, NodeContext
from gateway.store.queries import abandon
from gateway.store.records import Records

log = structlog.get_logger(__name__)

R = TypeVar("R")
X = TypeVar("X")
J = TypeVar("J", Job, LocalJob)

Change = Callable[[R], R]
Decide = Callable[[R], tuple[R, X]]
Failed = Callable[[str, Exception, int], None]
"""called with a key, the error, and how often in a row it could not be advanced"""


class Loop:
    """Advances keys (job ids) when they are due. ``advance(key)`` returns when the key is due next, or None.

    A key is advanced by one worker at a time; a wake that comes meanwhile makes it be advanced once more. Every
    second it asks the store what is due, which is how work left behind by a dead process is found.
    """

    def __init__(
        self,
        name: str,
        advance: Callable[[str], datetime | None],
        overdue: Callable[[datetime], Iterable[str]],
        *,
        every: float = 1.0,
        workers: int = 2,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        failed: Failed = lambda key, error, times: None,
    ) -> None:
        """``failed`` is called when an advance raised, unless the database is away."""
        self._name = name
        self._advance = advance
        self._overdue = overdue
        self._every = every
        self._workers = workers
        self._clock = clock
        self._condition = threading.Condition()
        self._heap: list[tuple[float, str]] = []
        self._soonest: dict[str, float] = {}
        self._busy: set[str] = set()
        self._failures: Counter[str] = Counter()
        """how often in a row a key could not be advanced by an error of its own"""
        self._failed = failed
        self._again: set[str] = set()
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin the workers, and the look at the store every second."""
        self._threads = [
            threading.Thread(
                target=self._work,
                name=f"{self._name}-{i}",
                daemon=True,
            )
            for i in range(self._workers)
        ]
        self._threads.append(
            threading.Thread(
                target=self._tick,
                name=f"{self._name}-tick",
                daemon=True,
            )
        )
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let the work in hand end; start nothing new."""
        self._stopping.set()
        with self._condition:
            self._condition.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=10)

    def wake(self, key: str, at: datetime | None = None) -> None:
        """Have the key advanced now, or at the given time."""
        delay = 0.0 if at is None else (at - self._clock()).total_seconds() if at.year > 1 else 0.0
        when = time.monotonic() + max(delay, 0.0)
        with self._condition:
            known = self._soonest.get(key)
            if known is not None and known <= when:
                return
            self._soonest[key] = when
            heapq.heappush(self._heap, (when, key))
            if self._heap[0] == (when, key):  # else a worker wakes before that
                self._condition.notify()

    def _tick(self) -> None:
        away = False
        while True:
            try:
                for key in self._overdue(self._clock()):
                    self.wake(key)
                if away:
                    log.info("the database answers again", loop=self._name)
                away = False
            except DatabaseAway as error:
                if not away:
                    log.warning("the database does not answer", loop=self._name, cause=str(error))
                away = True
            except Exception:
                log.exception("cannot ask what is due", loop=self._name)
            if self._stopping.wait(self._every):
                return

    def _work(self) -> None:
        while (key := self._next()) is not None:
            try:
                due = self._advance(key)
                self._failures.pop(key, None)
            except DatabaseAway:  # logged by the ticks that ask it
                due = None
            except Exception as error:
                self._fail(key, error)
                due = None
            with self._condition:
                self._busy.discard(key)
                again = key in self._again
                self._again.discard(key)
            if again:
                self.wake(key)
            elif due is not None:
                self.wake(key, due)

    def _fail(self, key: str, error: Exception) -> None:
        """Report an advance that raised; it is repeated when the store next says that it is due."""
        self._failures[key] += 1
        if (times := self._failures[key]) & (
            times - 1
        ) == 0:  # the first time, the second, the fourth
            log.exception(
                "cannot advance",
                loop=self._name,
                key=key,
                times=times,
            )
        try:
            self._failed(key, error, times)
        except Exception:
            log.exception("cannot report that an advance failed", loop=self._name, key=key)

    def _next(self) -> str | None:
        with self._condition:
            while not self._stopping.is_set():
                now = time.monotonic()
                if not self._heap or self._heap[0][0] > now:
                    self._condition.wait(self._heap[0][0] - now if self._heap else None)
                    continue
                when, key = heapq.heappop(self._heap)
                if self._soonest.get(key) != when:
                    continue  # woken earlier meanwhile: another entry stands for it
                del self._soonest[key]
                if key in self._busy:
                    self._again.add(key)
                    continue
                self._busy.add(key)
                if self._heap:  # wake another worker for the rest
                    self._condition.notify()
                return key
        return None


_LEFT_FOR = 1.0
"""seconds after which a change that was left is made, if none came with which it could be"""


class _Entry(Generic[R]):
    def __init__(self, change: Change[R], until: float | None = None) -> None:
        self.change = change
        self.until = until
        """by `time.monotonic`: no caller waits, and it is to be made by then; None: a caller waits"""
        self.result: R | None = None
        self.error: BaseException | None = None


class _Queue(Generic[R]):
    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.entries: deque[_Entry[R]] = deque()
        self.users = 0


class Turns(Generic[R, X]):
    """The turns of each key's writers: changes of one record that come at the same time are made in one write.

    Each write of a large record costs far more than one change. Whoever gets the turn makes all changes that were
    left meanwhile, decides once, and stores once.

    ``store(key, change)`` makes a change in one write and returns the record with what was decided beside it;
    ``decide(record)`` follows the changes in the same write; ``then(record, decided)`` is called once per write.
    """

    def __init__(
        self,
        store: Callable[[str, Decide[R, X]], tuple[R, X]],
        decide: Decide[R, X],
        then: Callable[[R, X], None],
    ) -> None:
        self._store = store
        self._decide = decide
        self._then = then
        self._lock = threading.Lock()
        self._queues: dict[str, _Queue[R]] = {}

    def change(self, key: str, change: Change[R]) -> R:
        """Have a change made; return the record as stored. Raises what the change raises: it alone is left out."""
        entry = _Entry(with_proof(change))
        with self._lock:
            queue = self._queues.setdefault(key, _Queue())
            queue.users += 1
            queue.entries.append(entry)
        try:
            with queue.turn:
                if entry.result is None and entry.error is None:
                    self._make(key, queue)
        finally:
            with self._lock:
                queue.users -= 1
                if not queue.users and not queue.entries:
                    self._queues.pop(key, None)
        if entry.error is not None:
            raise entry.error
        assert entry.result is not None
        return entry.result

    def leave(
        self,
        key: str,
        change: Change[R],
        most: int,
    ) -> bool:
        """Leave a change to be made with the next one; False where ``most`` are left already."""
        with self._lock:
            queue = self._queues.get(key) or _Queue()
            if sum(entry.until is not None for entry in queue.entries) >= most:
                return False
            self._queues[key] = queue
            queue.entries.append(_Entry(with_proof(change), time.monotonic() + _LEFT_FOR))
            return True

    def left(self) -> list[str]:
        """Return the keys of which changes are left."""
        with self._lock:
            return [key for key, queue in self._queues.items() if queue.entries]

    def left_for(self, key: str) -> float | None:
        """Return for how many seconds the oldest change that is left may still be; None: there is none."""
        with self._lock:
            queue = self._queues.get(key)
            until = (
                [entry.until for entry in queue.entries if entry.until is not None] if queue else []
            )
        return until[0] - time.monotonic() if until else None

    def _make(self, key: str, queue: _Queue[R]) -> None:
        with self._lock:
            entries = list(queue.entries)
            queue.entries.clear()

        def all_of_them(record: R) -> tuple[R, X]:  # may be called again, after a lost race
            for entry in entries:
                entry.error = None
                try:
                    record = entry.change(record)
                except Exception as error:
                    entry.error = error
                    if entry.until is not None:
                        log.exception("an answer could not be recorded", key=key)
            return self._decide(record)

        try:
            record, decided = self._store(key, all_of_them)
            self._then(record, decided)
        except BaseException as error:
            for entry in entries:
                entry.error = entry.error or error
            if isinstance(error, DatabaseAway):
                with self._lock:
                    queue.entries.extendleft(
                        entry for entry in reversed(entries) if entry.until is not None
                    )
        else:
            for entry in entries:
                entry.result = record


def while_away(
    work: Callable[[], X],
    seconds: float = 20.0,
    pause: float = 0.2,
) -> X:
    """Do the work again until the database answers. Raises `DatabaseAway` if it does not in so many seconds."""
    end = time.monotonic() + seconds
    while True:
        try:
            return work()
        except DatabaseAway:
            if time.monotonic() + pause > end:
                raise
            time.sleep(pause)


_LATE = timedelta(seconds=2)
"""after which a job that is due counts as left behind: the gateway that stored it may only be busy"""
CALLED, STUCK = "request sent", "cannot continue"
"""events of a timeline"""


def with_calls(
    change: Callable[[J], J],
    calls: Sequence[Exchange],
    at: datetime,
    tries: int = 1,
    quiet: Callable[[J], int] | None = None,
    *,
    answered: bool = False,
) -> Callable[[J], J]:
    """Return the change that also notes these calls, before the notes of what followed from them.

    ``answered``: no further try follows, so these calls are noted whatever their number.
    With ``quiet``, for questions, only where the answer has changed something worth a note; it returns how many
    questions before brought no news.
    """

    def changed(record: J) -> J:
        new: J = change(record)
        left_out = (
            len(new.notes) == len(record.notes) if quiet else not (answered or is_noted(tries))
        )
        if not calls or left_out:
            return new
        more: dict[str, int] = {"tries": tries} if tries > 1 else {}
        if quiet and (before := quiet(record)):
            more["quiet_before"] = before
        notes = (*record.notes, *notes_of(calls, at, **more), *new.notes[len(record.notes) :])
        return replace(new, notes=notes)

    return changed


def notes_of(
    calls: Sequence[Exchange],
    at: datetime,
    **more: int | str,
) -> list[Note]:
    """Return one line for each call."""
    return [Note(at, CALLED, call.node, {**asdict(call), **more}) for call in calls]


class Shell(Generic[J, X]):
    """The one way into the records of a side: news is applied and what is due decided in one write, then done.

    The write is the claim on what was decided.
    """

    def __init__(
        self,
        name: str,
        side: str,
        context: NodeContext,
        records: Records[J],
        stuck: Callable[[str], None],
    ) -> None:
        """``side``: ``scheduler`` or ``participant``; ``stuck`` is called with it for a job that cannot go on."""
        self._store = context.store
        self._clock = context.clock
        self._side = side
        self._records: Records[J] = records
        self._stuck = stuck
        self._turns: Turns[J, X] = Turns(records.decide, self._decide, self._begin)
        self.loop = Loop(
            name, self.advance, self._left_behind, clock=context.clock, failed=self._failed
        )

    def _left_behind(self, now: datetime) -> list[str]:
        """Return the jobs that whoever stored them should have advanced by now; several gateways ask."""
        found = self._records.due(now - _LATE)
        self._records.forget(found)  # another gateway may have changed them
        return found

    def _failed(
        self,
        job_id: str,
        error: Exception,
        times: int,
    ) -> None:
        self._stuck(self._side)
        if times == 1:  # of failures in a row the first is written into the job's timeline
            text = f"{type(error).__name__} inside the gateway; it is tried again every second, and the gateway's "
            text += "log tells more"
            detail = {"reason": "INTERNAL", "message": text}
            self._store.note(job_id, self._side, [Note(self._clock(), STUCK, "", detail)])

    def advance(self, job_id: str) -> datetime | None:
        """Do everything that is due for a job; return when it is due next."""
        known, left_for = self._records.known(job_id), self._turns.left_for(job_id)
        if known is not None and (left_for is None or left_for > 0):
            now, due = self._clock(), self._next_due(known)
            if due is None or due > now:  # what it was woken for was done with something else
                flush = now + timedelta(seconds=left_for) if left_for else None
                return min(filter(None, (due, flush)), default=None)
        try:
            return self._next_due(self._turns.change(job_id, lambda record: record))
        except Unreadable as error:
            self._abandon(job_id, error)
            return None
        except NotFound:
            if self._records.find(job_id) is not None:
                raise
            return None  # deleted since it was woken: nothing is left to do

    def record(
        self,
        job_id: str,
        *events: Any,
        allowed: Callable[[J], None] = lambda record: None,
    ) -> J:
        """Take in news of a job and do what follows from it; ``allowed`` raises where that may not be."""
        applied = self._applied(*events)

        def change(record: J) -> J:
            allowed(record)
            return applied(record)

        return self.change(job_id, change)

    def change(self, job_id: str, change: Change[J]) -> J:
        """Change the record of a job and do what follows from it."""
        record = self._turns.change(job_id, change)
        self.watch(record)
        return record

    def record_answer(
        self,
        job_id: str,
        change: Change[J],
        under_way: int,
    ) -> None:
        """Record an answer while ``under_way`` others are to come: with the next of them, or a moment later.

        From an answer that is not the last nothing follows, and each write costs more than all else that a call
        does. A gateway that ends meanwhile makes the call again.
        """
        if self._turns.leave(job_id, change, under_way):
            self.loop.wake(job_id, self._clock() + timedelta(seconds=_LEFT_FOR))
        else:
            while_away(lambda: self.change(job_id, change))

    def record_left(self) -> None:
        """Record every answer that was left."""
        for job_id in self._turns.left():
            with suppress(GatewayError):  # the call is made again
                self._turns.change(job_id, lambda record: record)

    def watch(self, record: J) -> None:
        """Have a job that was stored just now looked at when it is due."""
        if (due := self._next_due(record)) is not None:
            self.loop.wake(record.id, due)

    def healed(self, node: NodeId) -> None:
        """Take up immediately what waits for a node that can be reached again."""
        for job_id in self._records.unfinished():
            with suppress(NotFound):  # deleted meanwhile
                self.change(job_id, lambda record: self._reached(record, node))

    def _applied(self, *events: Any) -> Change[J]:
        return lambda record: reduce(self._apply, events, record)

    def _abandon(self, job_id: str, error: Unreadable) -> None:
        log.error("a job ends as ABNORMAL", job=job_id, cause=error.message)
        self._abandoned(
            job_id, abandon(self._store, self._side, job_id, self._clock(), error.message)
        )

    # ------------------------------------------------------------ what each side has of its own

    def _apply(self, record: J, event: Any) -> J:
        raise NotImplementedError

    def _decide(self, record: J) -> tuple[J, X]:
        raise NotImplementedError

    def _begin(self, record: J, decided: X) -> None:
        raise NotImplementedError

    def _next_due(self, record: J) -> datetime | None:
        return self._records.next_due(record)

    def _reached(self, record: J, node: NodeId) -> J:
        raise NotImplementedError

    def _abandoned(self, job_id: str, containers: list[str]) -> None: ...
