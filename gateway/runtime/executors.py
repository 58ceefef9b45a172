"""A few threads per peer and for the engine, shared fairly by the jobs that have work for them."""

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)

Work = Callable[[], None]


class Lanes:
    """Lanes by name (a peer, the engine), so that whoever hangs delays only what is meant for it.

    Within a lane every job has its turn, and none holds more than half of the threads: one with a thousand calls
    to make hardly delays another.
    """

    def __init__(self, threads: int = 8) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}
        self._closed = False

    def submit(self, lane: str, work: Work, job: str = "") -> None:
        """Have the work done in a lane, after what the same job left there before."""
        with self._lock:
            if self._closed:
                return
            if lane not in self._lanes:
                self._lanes[lane] = _Lane(lane, self._threads)
            found = self._lanes[lane]
        found.put(job, work)

    def close(self, *, wait: bool = True) -> None:
        """Let the work in hand end, and wait for that unless told not to; drop the rest."""
        with self._lock:
            self._closed = True
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.close(wait)


class _Lane:
    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._share = max(most // 2, 1)
        self._condition = threading.Condition()
        self._waiting: OrderedDict[str, deque[Work]] = OrderedDict()
        self._busy: Counter[str] = Counter()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._left = 0
        self._closed = False

    def put(self, job: str, work: Work) -> None:
        with self._condition:
            if self._closed:
                return
            self._waiting.setdefault(job, deque()).append(work)
            self._left += 1
            if self._idle >= self._left or len(self._threads) >= self._most:
                self._condition.notify()
                return
            name = f"lane-{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
        thread.start()

    def close(self, wait: bool) -> None:
        with self._condition:
            self._closed = True
            self._waiting.clear()
            self._condition.notify_all()
        for thread in self._threads if wait else ():
            if thread is not threading.current_thread():
                thread.join()

    def _run(self) -> None:
        while (found := self._next()) is not None:
            job, work = found
            try:
                work()
            except Exception:
                log.exception("work in a lane failed", lane=self._name)
            with self._condition:
                self._busy[job] -= 1
                if not self._busy[job]:
                    del self._busy[job]

    def _next(self) -> tuple[str, Work] | None:
        with self._condition:
            self._idle += 1
            try:
                while not self._closed:
                    job = next((name for name in self._waiting if self._busy[name] < self._share), None)
                    if job is not None:
                        return job, self._take(job)
                    self._condition.wait()
                return None
            finally:
                self._idle -= 1

    def _take(self, job: str) -> Work:
        works = self._waiting[job]
        work = works.popleft()
        self._busy[job] += 1
        if works:
            self._waiting.move_to_end(job)  # behind the others
        else:
            del self._waiting[job]
        self._left -= 1
        return work
