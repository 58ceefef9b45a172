"""A loop that advances what is due. It and `gateway.runtime.executors` hold the only waiting in the core.

`Loop` knows keys (job ids) and when each is due next. A key is advanced by one worker at a time; a wake that
comes meanwhile makes it be advanced once more. Every second it asks the store what is due, which is how
work left behind by a dead process is found.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import structlog

from gateway.errors import DatabaseAway

log = structlog.get_logger(__name__)

Failed = Callable[[str, Exception, int], None]
"""called with a key, the error, and how often in a row it could not be advanced"""

_MOST_FAILING = 10_000
"""keys whose failures in a row are counted"""


class Loop:
    """Advances keys when they are due. ``advance(key)`` returns when the key is due next, or None."""

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
        self._heap: list[tuple[float, int, str]] = []
        self._order = itertools.count()
        self._soonest: dict[str, float] = {}
        self._busy: set[str] = set()
        self._failures: dict[str, dict[bool, int]] = {}
        """key -> how often in a row it could not be advanced: by an error of its own, and because of an outage"""
        self._failed = failed
        self._again: set[str] = set()
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin the workers, and the look at the store every second."""
        self._threads = [
            threading.Thread(target=self._work, name=f"{self._name}-{i}", daemon=True)
            for i in range(self._workers)
        ]
        self._threads.append(threading.Thread(target=self._tick, name=f"{self._name}-tick", daemon=True))
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
            heapq.heappush(self._heap, (when, next(self._order), key))
            self._condition.notify_all()

    def _tick(self) -> None:
        while True:
            try:
                for key in self._overdue(self._clock()):
                    self.wake(key)
            except Exception:
                log.exception("cannot ask what is due", loop=self._name)
            if self._stopping.wait(self._every):
                return

    def _work(self) -> None:
        while (key := self._next()) is not None:
            try:
                due = self._advance(key)
                self._failures.pop(key, None)
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
        """Tell of an advance that raised; it is made again when the store next says that it is due."""
        own = not isinstance(error, DatabaseAway)
        counts = self._failures.setdefault(key, {})
        times = counts[own] = counts.get(own, 0) + 1
        if len(self._failures) > _MOST_FAILING:  # some may have ended at another gateway
            self._failures.pop(next(iter(self._failures)), None)
        if times & (times - 1) == 0:  # the first time, the second, the fourth: not every second for ever
            log.exception("cannot advance", loop=self._name, key=key, times=times)
        try:
            if own:
                self._failed(key, error, times)
        except Exception:
            log.exception("cannot tell that an advance failed", loop=self._name, key=key)

    def _next(self) -> str | None:
        with self._condition:
            while not self._stopping.is_set():
                now = time.monotonic()
                if not self._heap or self._heap[0][0] > now:
                    self._condition.wait(self._heap[0][0] - now if self._heap else None)
                    continue
                when, _, key = heapq.heappop(self._heap)
                if self._soonest.get(key) != when:
                    continue  # woken earlier meanwhile: another entry stands for it
                del self._soonest[key]
                if key in self._busy:
                    self._again.add(key)
                    continue
                self._busy.add(key)
                if self._heap:  # whoever waits waits for what this worker now takes: let it look at the rest
                    self._condition.notify()
                return key
        return None
