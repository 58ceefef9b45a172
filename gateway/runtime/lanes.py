"""Threads for calls to peers and to the engine, and the order of their work."""

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import structlog

log = structlog.get_logger(__name__)

Work = Callable[[], None]

FIRST = 1 << 30  # priority of work that a client waits for
_COMPUTING_THREADS = 2  # of a lane that never waits; more would only compete for the interpreter
_GIVES_WAY = 0.5  # seconds; longest wait of other work for the intake of a job
_RESPONSE = 0.004  # seconds; wait of other work after the intake, until the client has its response
_BURST = 4.0  # seconds since the first of a burst of new jobs; during them other work waits longer


class Lanes:
    """Lanes by name (a peer, the engine): one that hangs delays only its own calls.

    Within a lane every job has its turn, those of higher priority first, and none holds more than half of the
    threads: one with a thousand calls to make hardly delays another. While jobs are being taken in, all other
    work waits until the response is out: for four seconds of a burst, so that clients get their responses before
    the first jobs go on, and for half a second each afterwards.
    """

    def __init__(self, threads: int = 8, own: str = "") -> None:
        """``own``: the lane of calls to this node itself, which compute and never wait."""
        self._threads = threads
        self._own = own
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}
        self._taken_in: dict[object, float] = {}
        """jobs that are being taken in, and until when others wait for that"""
        self._last_taken_in = -_BURST
        self._burst_until = 0.0
        self._closed = False

    @contextmanager
    def taking_in(self) -> Iterator[None]:
        """Have other work wait for this."""
        one, now = object(), time.monotonic()
        with self._lock:
            if now - self._last_taken_in > _GIVES_WAY:
                self._burst_until = now + _BURST
            self._last_taken_in = now
            self._taken_in[one] = now + _GIVES_WAY
        try:
            yield
        finally:
            with self._lock:
                now = time.monotonic()
                last = now + _RESPONSE
                self._taken_in[one] = last
                self._taken_in = {
                    other: until for other, until in self._taken_in.items() if until >= now
                }
                lanes = [] if max(self._taken_in.values()) > last else list(self._lanes.values())
            for lane in lanes:
                lane.go_on()

    def _wait_until(self, since: float) -> float:
        """Return until when what was left here then waits at most."""
        until = max(self._taken_in.copy().values(), default=0.0)
        return min(until, max(since + _GIVES_WAY, self._burst_until))

    def submit(
        self,
        lane: str,
        work: Work,
        job: str = "",
        priority: int = 0,
    ) -> None:
        """Have the work done in a lane, after what the same job left there before with the same priority."""
        with self._lock:
            if self._closed:
                return
            if lane not in self._lanes:
                threads = _COMPUTING_THREADS if lane == self._own else self._threads
                self._lanes[lane] = _Lane(lane, threads, self._wait_until)
            found = self._lanes[lane]
        found.put(job, work, priority)

    def left(self, lane: str, job: str) -> int:
        """Return how many works of a job wait for their turn in a lane."""
        with self._lock:
            found = self._lanes.get(lane)
        return found.left(job) if found else 0

    def close(self, *, wait: bool = True) -> None:
        """Let the work in hand end, and wait for that unless told not to; drop the rest."""
        with self._lock:
            self._closed = True
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.close(wait)


class _Lane:
    def __init__(
        self,
        name: str,
        most: int,
        wait_until: Callable[[float], float],
    ) -> None:
        self._name = name
        self._most = most
        self._wait_until = wait_until
        self._share = max(most // 2, 1)
        self._condition = threading.Condition()
        self._waiting: dict[int, OrderedDict[str, deque[tuple[Work, float]]]] = {}
        """by priority and job, with the time since when"""
        self._busy: Counter[str] = Counter()
        self._threads: list[threading.Thread] = []
        self._last = 0
        """the priority of the work that was begun last"""
        self._idle = 0
        self._left = 0
        self._closed = False

    def left(self, job: str) -> int:
        with self._condition:
            return sum(len(jobs.get(job, ())) for jobs in self._waiting.values())

    def put(
        self,
        job: str,
        work: Work,
        priority: int,
    ) -> None:
        with self._condition:
            works = self._waiting.setdefault(priority, OrderedDict()).setdefault(job, deque())
            works.append((work, time.monotonic()))
            self._left += 1
            if self._idle >= self._left or len(self._threads) >= self._most:
                self._condition.notify()
                return
            name = f"lane-{self._name}-{len(self._threads)}"
            thread = threading.Thread(
                target=self._run,
                name=name,
                daemon=True,
            )
            self._threads.append(thread)
        thread.start()

    def go_on(self) -> None:
        """Have threads look anew for what to do: nothing is to be waited for any more."""
        with self._condition:
            if self._left:
                self._condition.notify(self._left)

    def close(self, wait: bool) -> None:
        with self._condition:
            self._closed = True
            self._waiting.clear()
            self._condition.notify_all()
        for thread in self._threads if wait else ():
            if thread is not threading.current_thread():
                thread.join()

    def _run(self) -> None:
        while True:
            turn = self._next()
            if turn is None:
                return
            job, work = turn
            try:
                work()
            except Exception:
                log.exception("work in a lane failed", lane=self._name)
            with self._condition:
                self._busy -= Counter({job: 1})  # keeps only positive counts

    def _next(self) -> tuple[str, Work] | None:
        """Wait for work; return its job and the work, None once the lane is closed."""
        with self._condition:
            self._idle += 1
            try:
                while not self._closed:
                    turn, pause = self._choose()
                    if turn is not None:
                        return turn
                    self._condition.wait(pause)
                return None
            finally:
                self._idle -= 1

    def _choose(self) -> tuple[tuple[str, Work] | None, float | None]:
        """Return the next turn, or None and the seconds until there may be one (None: until new work)."""
        pauses = []
        for priority in sorted(self._waiting, key=self._rank, reverse=True):
            jobs = self._waiting[priority]
            job = self._first_with_share(jobs)
            if job is None:
                continue
            _, since = jobs[job][0]
            pause = 0.0
            if priority != FIRST:
                pause = self._wait_until(since) - time.monotonic()
            if pause <= 0:
                return (job, self._take(priority, job)), None
            pauses.append(pause)
        return None, min(pauses, default=None)

    def _first_with_share(self, jobs: Iterable[str]) -> str | None:
        """Return the first job that does not occupy its share of the threads."""
        for job in jobs:
            if self._busy[job] < self._share:
                return job
        return None

    def _rank(self, priority: int) -> int:
        """Let work of the priority FIRST have at most every second turn, so that a flood cannot starve the rest."""
        if priority == FIRST and self._last == FIRST:
            return -FIRST
        return priority

    def _take(self, priority: int, job: str) -> Work:
        self._last = priority
        jobs = self._waiting[priority]
        works = jobs[job]
        work, _ = works.popleft()
        self._busy[job] += 1
        if works:
            jobs.move_to_end(job)  # behind the others
        else:
            del jobs[job]
            if not jobs:
                del self._waiting[priority]
        self._left -= 1
        return work
