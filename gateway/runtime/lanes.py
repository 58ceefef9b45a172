"""Threads for calls to peers and to the engine, and the order of their work."""

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from gateway.runtime.workloads import Workloads

log = structlog.get_logger(__name__)

Work = Callable[[], None]

NEW_JOB = 1 << 30  # priority of calls for new jobs, whose results clients wait for
# Threads of a lane whose work never waits; more would only compete for the interpreter.
_COMPUTING_THREADS = 2
_IDLE_TIME = 30.0  # seconds after which a thread without work ends; the next work starts another


class Lanes:
    """Queues of work with threads of their own, by name (a peer, the engine).

    A peer that hangs delays only the calls in its own lane.

    Within a lane jobs take turns, higher priorities first, and no job occupies more than half of
    the threads, so that a job with a thousand calls hardly delays other jobs. Calls for new jobs
    get at most every second turn, so that a burst of new jobs and the jobs under way cannot starve
    each other. While a small job has work, a large one has one thread per lane (see `Workloads`).

    While jobs are being submitted, other work has one thread per lane: clients wait for their
    responses, and the jobs under way still go on.
    """

    def __init__(
        self,
        threads: int = 8,
        own_lane: str = "",
        idle_time: float = _IDLE_TIME,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``threads``: the most threads of a lane; each ends after ``idle_time`` without work.

        ``clock`` returns seconds.

        ``own_lane`` names the lane of calls to this node itself, which has fewer threads: its calls
        compute and never wait. Empty: there is no such lane.
        """
        self._threads = threads
        self._own_lane = own_lane
        self._idle_time = idle_time
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}
        self._submissions = _Submissions()
        self._workloads = Workloads(clock)
        self._closed = False

    @contextmanager
    def submission(self) -> Iterator[None]:
        """Limit other work to one thread per lane until this job has been submitted."""
        self._submissions.begin()
        try:
            yield
        finally:
            if self._submissions.end():
                self._wake_all()

    def submit(
        self,
        lane: str,
        work: Work,
        job: str = "",
        priority: int = 0,
    ) -> None:
        """Queue work in a lane, behind earlier work of the same job and priority.

        Work without a job counts as that of one job, "". After `close` the work is dropped.
        """
        with self._lock:
            if self._closed:
                return
            if lane not in self._lanes:
                self._lanes[lane] = _Lane(
                    lane,
                    self._threads_of(lane),
                    self._submissions,
                    self._workloads,
                    self._idle_time,
                )
            target = self._lanes[lane]
        target.put(job, work, priority)

    def _threads_of(self, lane: str) -> int:
        """Return how many threads a lane may have."""
        if lane == self._own_lane:
            return _COMPUTING_THREADS
        return self._threads

    def queued(self, lane: str, job: str) -> int:
        """Return the number of works of a job that wait for their turn in a lane."""
        with self._lock:
            target = self._lanes.get(lane)
        if target is None:
            return 0
        return target.queued(job)

    def close(self, *, wait: bool = True) -> None:
        """Drop the queued work; with ``wait``, return only once the running work has ended."""
        with self._lock:
            self._closed = True
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.close(wait)

    def _wake_all(self) -> None:
        """Let the idle threads of all lanes look for work again."""
        with self._lock:
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.wake()


class _Submissions:
    """Counts the jobs that are being submitted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def begin(self) -> None:
        """Count one job more."""
        with self._lock:
            self._count += 1

    def end(self) -> bool:
        """Count one less; return whether it was the last."""
        with self._lock:
            self._count -= 1
            return self._count == 0

    @property
    def under_way(self) -> bool:
        """Whether any job is being submitted."""
        return self._count > 0


@dataclass(frozen=True)
class _Turn:
    """Work that a thread has taken, and its job."""

    job: str
    work: Work
    is_for_new_job: bool


class _Lane:
    """The queues and threads of one lane."""

    def __init__(
        self,
        name: str,
        max_threads: int,
        submissions: _Submissions,
        workloads: Workloads,
        idle_time: float,
    ) -> None:
        self._name = name
        self._submissions = submissions
        self._workloads = workloads
        self._idle_time = idle_time
        self._max_threads = max_threads
        self._share = max(max_threads // 2, 1)  # threads that one job may occupy
        self._condition = threading.Condition()
        self._queues: dict[int, OrderedDict[str, deque[Work]]] = {}  # by priority and job
        self._queued = 0  # works in all queues
        self._running: Counter[str] = Counter()  # works by job
        self._running_for_old_jobs = 0  # works that are not for new jobs
        self._threads: list[threading.Thread] = []
        self._idle_threads = 0
        self._last_priority = 0  # priority of the last turn
        self._closed = False

    def put(
        self,
        job: str,
        work: Work,
        priority: int,
    ) -> None:
        """Queue work of a job; start a thread if too few are idle and another one is allowed."""
        with self._condition:
            if self._closed:
                return
            jobs = self._queues.setdefault(priority, OrderedDict())
            jobs.setdefault(job, deque()).append(work)
            self._queued += 1
            self._workloads.add(job)
            has_enough_idle_threads = self._idle_threads >= self._queued
            if has_enough_idle_threads or len(self._threads) >= self._max_threads:
                self._condition.notify()
                return
            thread = threading.Thread(
                target=self._run,
                name=f"lane-{self._name}-{len(self._threads)}",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()  # before `close` can wait for its end

    def queued(self, job: str) -> int:
        """Return how many works of a job wait for their turn."""
        with self._condition:
            return sum(len(jobs.get(job, ())) for jobs in self._queues.values())

    def wake(self) -> None:
        """Let idle threads look again for work that may begin."""
        with self._condition:
            self._condition.notify_all()

    def close(self, wait: bool) -> None:
        """Drop the queued work and end the threads; with ``wait``, return once they have ended."""
        with self._condition:
            self._closed = True
            self._queues.clear()
            self._condition.notify_all()
        if not wait:
            return
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join()

    def _run(self) -> None:
        """Do work until there is none for a while; the function of each thread."""
        while True:
            turn = self._wait_for_turn()
            if turn is None:
                return
            try:
                turn.work()
            except Exception:
                log.exception("work in a lane failed", lane=self._name)
            with self._condition:
                self._workloads.remove(turn.job)
                self._running -= Counter({turn.job: 1})  # keeps only positive counts
                if not turn.is_for_new_job:
                    self._running_for_old_jobs -= 1
                if self._queued and self._idle_threads:
                    self._condition.notify()  # the job may no longer have to yield

    def _wait_for_turn(self) -> _Turn | None:
        """Wait for work and take it.

        Returns None when the thread has to end: the lane is closed, or has had no work for a while.
        """
        is_idle = False
        with self._condition:
            self._idle_threads += 1
            try:
                while not self._closed:
                    turn = self._take_next()
                    if turn is not None:
                        return turn
                    if is_idle and not self._queued:
                        self._threads.remove(threading.current_thread())
                        return None
                    is_idle = not self._condition.wait(self._idle_time)
                return None
            finally:
                self._idle_threads -= 1

    def _take_next(self) -> _Turn | None:
        """Take the next work; return None if no queued work may begin now.

        Work has to wait while its job occupies as many threads as it may. While jobs are being
        submitted, work of other jobs also has to wait for the one thread that it may use.
        """
        for priority in sorted(self._queues, key=self._rank, reverse=True):
            job = self._first_below_share(self._queues[priority])
            if job is None:
                continue
            if priority != NEW_JOB and self._running_for_old_jobs and self._submissions.under_way:
                continue
            self._last_priority = priority
            return self._take(priority, job)
        return None

    def _rank(self, priority: int) -> int:
        """Return the rank of a priority; new jobs rank lowest if they had the last turn."""
        if priority == NEW_JOB and self._last_priority == NEW_JOB:
            return -NEW_JOB
        return priority

    def _first_below_share(self, jobs: Iterable[str]) -> str | None:
        """Return the first job that may occupy another thread; None if there is none."""
        for job in jobs:
            if self._running[job] < self._limit(job):
                return job
        return None

    def _limit(self, job: str) -> int:
        """Return how many threads a job may occupy now."""
        if self._workloads.must_yield(job):
            return 1
        return self._share

    def _take(self, priority: int, job: str) -> _Turn:
        """Take the next work of a job out of its queue. The caller has the lock."""
        jobs = self._queues[priority]
        works = jobs[job]
        turn = _Turn(job, works.popleft(), is_for_new_job=priority == NEW_JOB)
        self._queued -= 1
        self._running[job] += 1
        if not turn.is_for_new_job:
            self._running_for_old_jobs += 1
        if works:
            jobs.move_to_end(job)  # the other jobs have their turns first
        else:
            del jobs[job]
        if not jobs:
            del self._queues[priority]
        return turn
