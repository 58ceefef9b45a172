"""Makes changes to one record that come at the same time in one write.

Each write of a large record costs far more than one change. Whoever comes while another writes leaves the change
and waits for a turn; whoever gets the turn makes all that were left, decides once, and stores once.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from gateway.auth import with_proof
from gateway.errors import DatabaseAway

R = TypeVar("R")
X = TypeVar("X")

Change = Callable[[R], R]
Decide = Callable[[R], tuple[R, X]]


class _Entry(Generic[R]):
    def __init__(self, change: Change[R]) -> None:
        self.change = change
        self.done = False
        self.result: R | None = None
        self.error: BaseException | None = None


class _Queue(Generic[R]):
    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.entries: deque[_Entry[R]] = deque()
        self.users = 0


class Turns(Generic[R, X]):
    """The turns of each key's writers.

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
                if not entry.done:
                    self._make(key, queue)
        finally:
            with self._lock:
                queue.users -= 1
                if not queue.users:
                    self._queues.pop(key, None)
        if entry.error is not None:
            raise entry.error
        assert entry.result is not None
        return entry.result

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
            return self._decide(record)

        try:
            record, decided = self._store(key, all_of_them)
            self._then(record, decided)
        except BaseException as error:
            for entry in entries:
                entry.error = entry.error or error
        else:
            for entry in entries:
                entry.result = record
        finally:
            for entry in entries:
                entry.done = True


def while_away(work: Callable[[], X], seconds: float = 20.0, pause: float = 0.2) -> X:
    """Do the work again until the database answers. Raises `DatabaseAway` if it does not in so many seconds."""
    end = time.monotonic() + seconds
    while True:
        try:
            return work()
        except DatabaseAway:
            if time.monotonic() + pause > end:
                raise
            time.sleep(pause)
