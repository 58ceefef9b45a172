"""A loop that advances keys, such as job ids, when they are due."""

import heapq
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TypeVar

import structlog

from gateway.errors import DatabaseAway

log = structlog.get_logger(__name__)

X = TypeVar("X")

# Called with a key, the error, and the number of failures in a row.
Failed = Callable[[str, Exception, int], None]

_QUERY = "\0query"  # in place of a key: the regular query; no key contains a zero byte
_STOP_TIMEOUT = 10.0  # seconds that `Loop.stop` waits for each thread


def utc_now() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


class Loop:
    """Advances keys when they are due.

    A key is advanced by one worker at a time; a wake during its advance makes the loop advance it
    again. The loop also asks the store for due keys at intervals, which finds the work of a dead
    process.

    The regular queries run on the workers. A loop without work has a single worker; further ones
    start when all others are busy, so that a slow advance delays neither keys nor queries.
    """

    def __init__(
        self,
        name: str,
        advance: Callable[[str], datetime | None],
        overdue: Callable[[datetime], Iterable[str]],
        *,
        every: float = 1.0,
        workers: int = 2,
        clock: Callable[[], datetime] = utc_now,
        failed: Failed | None = None,
    ) -> None:
        """``advance(key)`` returns when the key is due next, None if only a wake can tell.

        ``overdue(now)`` returns the keys that are due by the store; ``every``: seconds between two
        such queries. ``failed`` is called after an advance that raised, unless the database is
        away.
        """
        self._name = name
        self._advance = advance
        self._overdue = overdue
        self._every = every
        self._workers = workers
        self._clock = clock
        self._failed = failed
        self._condition = threading.Condition()
        self._heap: list[tuple[float, str]] = []  # monotonic time and key
        self._wake_times: dict[str, float] = {}  # the earliest entry of the heap for each key
        self._busy: set[str] = set()
        self._wake_again: set[str] = set()  # woken during their advance
        self._failures: Counter[str] = Counter()  # in a row, by key
        self._is_database_away = False  # whether the last regular query failed
        self._threads: list[threading.Thread] = []  # of the workers
        self._waits: list[float] = []  # monotonic times at which the waiting workers wake
        self._query_time = 0.0  # monotonic time of the next regular query
        self._is_querying = False
        self._stopping = False

    def start(self) -> None:
        """Start the first worker, with a regular query."""
        with self._condition:
            self._query_time = time.monotonic()
            self._add_worker()

    def _add_worker(self) -> None:
        """Start a worker unless all are started. Call it with the condition held."""
        number = len(self._threads)
        if number >= self._workers or self._stopping:
            return
        thread = threading.Thread(
            target=self._work,
            name=f"{self._name}-{number}",
            daemon=True,
        )
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Begin no further advances, and wait until the running ones end, for a limited time."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=_STOP_TIMEOUT)

    def wake(self, key: str, at: datetime | None = None) -> None:
        """Have the key advanced at a time; None: now."""
        wake_time = time.monotonic() + self._seconds_until(at)
        with self._condition:
            earliest = self._wake_times.get(key)
            if earliest is not None and earliest <= wake_time:
                return
            self._wake_times[key] = wake_time
            heapq.heappush(self._heap, (wake_time, key))
            if self._threads:
                self._have_one_waiting()

    def _seconds_until(self, at: datetime | None) -> float:
        """Return the seconds until a time; 0 for None and for a time that has passed."""
        if at is None or at.year == 1:  # `datetime.min`: long overdue
            return 0.0
        return max((at - self._clock()).total_seconds(), 0.0)

    # ------------------------------------------------------------ due keys of the store

    def _wake_overdue(self) -> None:
        """Wake the keys that are due by the store; log an outage of the database once."""
        try:
            for key in self._overdue(self._clock()):
                self.wake(key)
        except DatabaseAway as error:
            if not self._is_database_away:
                log.warning(
                    "the database does not answer",
                    loop=self._name,
                    cause=str(error),
                )
            self._is_database_away = True
        except Exception:
            log.exception("cannot ask what is due", loop=self._name)
        else:
            if self._is_database_away:
                log.info("the database answers again", loop=self._name)
            self._is_database_away = False

    # ------------------------------------------------------------ workers

    def _work(self) -> None:
        """Advance keys until the loop stops; the function of each worker."""
        while True:
            key = self._wait_for_key()
            if key is None:
                return
            if key == _QUERY:
                self._query_regularly()
                continue
            due = self._try_advance(key)
            with self._condition:
                self._busy.discard(key)
                is_woken = key in self._wake_again
                self._wake_again.discard(key)
            if is_woken:
                self.wake(key)
            elif due is not None:
                self.wake(key, due)

    def _query_regularly(self) -> None:
        """Wake the keys that are due by the store, and plan the next query."""
        self._wake_overdue()
        with self._condition:
            self._query_time = time.monotonic() + self._every
            self._is_querying = False

    def _wait_for_key(self) -> str | None:
        """Wait for a due key and mark it as busy; return None when the loop stops.

        Returns `_QUERY` when the regular query is due.
        """
        with self._condition:
            while not self._stopping:
                if self._is_query_due():
                    self._is_querying = True
                    if self._waits:
                        self._have_one_waiting()
                    return _QUERY
                due_time = self._next_due_time()
                if due_time > time.monotonic():
                    self._wait(due_time)
                    continue
                key = self._pop()
                if key is None:
                    continue
                self._have_one_waiting()
                return key
        return None

    def _is_query_due(self) -> bool:
        """Return whether it is time for the regular query, and no worker makes it."""
        return not self._is_querying and time.monotonic() >= self._query_time

    def _next_due_time(self) -> float:
        """Return when a key or the regular query is due; infinity: only a wake will tell.

        Drops the entries in front that were replaced, for which no worker needs to wake.
        """
        while self._heap and self._is_replaced(self._heap[0]):
            heapq.heappop(self._heap)
        due_time = math.inf
        if self._heap:
            due_time = self._heap[0][0]
        if not self._is_querying:
            due_time = min(due_time, self._query_time)
        return due_time

    def _is_replaced(self, entry: tuple[float, str]) -> bool:
        """Return whether a later wake with an earlier time has replaced an entry of the heap."""
        wake_time, key = entry
        return self._wake_times.get(key) != wake_time

    def _have_one_waiting(self) -> None:
        """Have a worker wake when something is due next. Call it with the condition held.

        Nothing is done if one wakes in time anyway: each wake costs a change of threads.
        """
        if not self._waits:
            self._add_worker()
        elif min(self._waits) > self._next_due_time():
            self._condition.notify()

    def _wait(self, due_time: float) -> None:
        """Wait for a wake, or until this monotonic time unless another worker waits for it."""
        seconds = None
        wakes_at = math.inf
        if due_time < min(self._waits, default=math.inf):
            seconds = due_time - time.monotonic()
            wakes_at = due_time
        self._waits.append(wakes_at)
        try:
            self._condition.wait(seconds)
        finally:
            self._waits.remove(wakes_at)

    def _pop(self) -> str | None:
        """Take the first key of the heap; return it, or None if it is being advanced now."""
        _, key = heapq.heappop(self._heap)
        del self._wake_times[key]
        if key in self._busy:
            self._wake_again.add(key)
            return None
        self._busy.add(key)
        return key

    def _try_advance(self, key: str) -> datetime | None:
        """Advance a key and return when it is due next; None if unknown, as after an error.

        After an error, the regular query of the store wakes the key again once it is due.
        """
        try:
            due = self._advance(key)
        except DatabaseAway:  # logged by `_wake_overdue`
            return None
        except Exception as error:
            self._report_failure(key, error)
            return None
        self._failures.pop(key, None)
        return due

    def _report_failure(self, key: str, error: Exception) -> None:
        """Call ``failed`` for a failed advance, and log some of the failures of a key.

        The first, second, fourth, eighth and so on in a row are logged.
        """
        self._failures[key] += 1
        times = self._failures[key]
        is_power_of_two = times & (times - 1) == 0
        if is_power_of_two:
            log.exception(
                "cannot advance",
                loop=self._name,
                key=key,
                times=times,
            )
        if self._failed is None:
            return
        try:
            self._failed(key, error, times)
        except Exception:
            log.exception("cannot report that an advance failed", loop=self._name, key=key)


def wait_for_database(
    work: Callable[[], X],
    seconds: float = 20.0,
    pause: float = 0.2,
) -> X:
    """Run the work, again after each ``pause`` while the database is away; return its result.

    Raises `DatabaseAway` if the database stays away for ``seconds``.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            return work()
        except DatabaseAway:
            if time.monotonic() + pause > end:
                raise
            time.sleep(pause)
