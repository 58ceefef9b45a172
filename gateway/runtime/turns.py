"""Combines concurrent changes of one record into one write."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import structlog

from gateway.auth import adding_origin
from gateway.errors import DatabaseAway

log = structlog.get_logger(__name__)

R = TypeVar("R")
X = TypeVar("X")

RecordChange = Callable[[R], R]  # returns the changed record
Decide = Callable[[R], tuple[R, X]]  # returns the record after the decisions, and the decisions

MAX_DELAY = 1.0  # seconds after which a deferred change is stored even without another change


class _Pending(Generic[R]):
    """A change that is not stored yet."""

    def __init__(
        self,
        change: RecordChange[R],
        deadline: float | None = None,
    ) -> None:
        self.change = change
        # monotonic time by which a deferred change is stored; None: a caller waits for the change
        self.deadline = deadline
        self.result: R | None = None
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether the change is stored, or has failed."""
        return self.result is not None or self.error is not None


class _Queue(Generic[R]):
    """The pending changes of one record."""

    def __init__(self) -> None:
        self.turn = threading.Lock()  # held while the changes are written
        self.entries: deque[_Pending[R]] = deque()
        self.callers = 0  # callers that wait for their turn, or write


class Turns(Generic[R, X]):
    """Lets the writers of each record take turns; a turn stores all pending changes in one write.

    A write of a large record costs far more than a change. The caller that has the turn makes all
    pending changes, decides once, and stores once.
    """

    def __init__(
        self,
        store: Callable[[str, Decide[R, X]], tuple[R, X]],
        decide: Decide[R, X],
        after_write: Callable[[R, X], None],
    ) -> None:
        """``store(key, change)`` writes a changed record and returns it with the decisions.

        ``decide(record)`` is called after the changes, before the same write;
        ``after_write(record, decisions)`` once after each write.
        """
        self._store = store
        self._decide = decide
        self._after_write = after_write
        self._lock = threading.Lock()
        self._queues: dict[str, _Queue[R]] = {}

    def change(self, key: str, change: RecordChange[R]) -> R:
        """Change a record and return it as stored.

        Raises the errors of the change (other pending changes are stored then), those of the store,
        and those of ``after_write`` (the change is stored then).
        """
        entry = _Pending(adding_origin(change))
        queue = self._join(key, entry)
        try:
            with queue.turn:
                if not entry.is_done:  # otherwise an earlier turn has stored the change
                    self._write(key, queue)
        finally:
            self._leave(key, queue)
        if entry.error is not None:
            raise entry.error
        assert entry.result is not None
        return entry.result

    def _join(self, key: str, entry: _Pending[R]) -> _Queue[R]:
        """Queue a change behind the others of its key, and return the queue."""
        with self._lock:
            queue = self._queues.setdefault(key, _Queue())
            queue.callers += 1
            queue.entries.append(entry)
        return queue

    def _leave(self, key: str, queue: _Queue[R]) -> None:
        """Leave a queue; the last caller to leave removes the queue if it is empty."""
        with self._lock:
            queue.callers -= 1
            if not queue.callers and not queue.entries:
                self._queues.pop(key, None)

    # ------------------------------------------------------------ deferred changes

    def defer(
        self,
        key: str,
        change: RecordChange[R],
        limit: int,
    ) -> bool:
        """Leave a change to the next write, unless ``limit`` changes are deferred already.

        Returns whether the change is deferred.
        """
        deadline = time.monotonic() + MAX_DELAY
        with self._lock:
            queue = self._queues.get(key) or _Queue()
            if len(_deferred(queue)) >= limit:
                return False
            queue.entries.append(_Pending(adding_origin(change), deadline))
            self._queues[key] = queue
        return True

    def pending(self) -> list[str]:
        """Return the keys with pending changes."""
        with self._lock:
            return [key for key, queue in self._queues.items() if queue.entries]

    def seconds_to_write(self, key: str) -> float | None:
        """Return the time left until the oldest deferred change is due; None if there is none."""
        with self._lock:
            queue = self._queues.get(key)
            if queue is None:
                return None
            deferred = _deferred(queue)
        if not deferred:
            return None
        oldest = deferred[0]
        assert oldest.deadline is not None
        return oldest.deadline - time.monotonic()

    # ------------------------------------------------------------ the write

    def _write(self, key: str, queue: _Queue[R]) -> None:
        """Store all pending changes, and give each its result or error."""
        with self._lock:
            entries = list(queue.entries)
            queue.entries.clear()

        def change_and_decide(record: R) -> tuple[R, X]:  # called again after a lost race
            for entry in entries:
                record = _apply(key, entry, record)
            return self._decide(record)

        try:
            record, decisions = self._store(key, change_and_decide)
            self._after_write(record, decisions)
        except BaseException as error:  # `change` raises it to each of the callers
            for entry in entries:
                entry.error = entry.error or error
            if isinstance(error, DatabaseAway):
                self._defer_again(queue, entries)
            return
        for entry in entries:
            entry.result = record

    def _defer_again(
        self,
        queue: _Queue[R],
        entries: list[_Pending[R]],
    ) -> None:
        """Put deferred changes back in front of the changes that came later."""
        deferred = [entry for entry in entries if entry.deadline is not None]
        with self._lock:
            queue.entries.extendleft(reversed(deferred))


def _deferred(queue: _Queue[R]) -> list[_Pending[R]]:
    """Return the changes of a queue that no caller waits for."""
    return [entry for entry in queue.entries if entry.deadline is not None]


def _apply(key: str, entry: _Pending[R], record: R) -> R:
    """Return the record with a change; the unchanged one if the change fails, with its error."""
    entry.error = None
    try:
        return entry.change(record)
    except Exception as error:
        entry.error = error
        if entry.deadline is not None:  # the error is seen only here, as no caller waits
            log.exception("an answer could not be recorded", key=key)
        return record
