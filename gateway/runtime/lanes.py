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
# Threads for a lane whose work never waits; more would only compete for the interpreter.
_COMPUTING_THREADS = 2
_IDLE_TIME = 30.0  # seconds after which a thread without work ends; the next work starts another


class Lanes:
    """Queues of work by name (a peer, the engine), each with a number of threads at most.

    A peer that hangs delays only the calls in its own lane.

    Within a lane jobs take turns, higher priorities first, and no job occupies more than half of
    the threads, so that a job with a thousand calls hardly delays other jobs. Calls for new jobs
    get at most every second turn, so that a burst of new jobs and the jobs under way cannot starve
    each other. While a light job makes progress, a heavy one has one thread per lane, which pauses
    after each work (see `Workloads`).

    While jobs are being submitted, other work has one thread per lane: clients wait for their
    responses, and the jobs under way still go on.

    All lanes share their threads. A thread that ends its work by submitting further work does that
    itself (see `carrying_on`), as handing it to another thread costs more than a small step.
    """

    def __init__(
        self,
        threads: int = 8,
        own_lane: str = "",
        idle_time: float = _IDLE_TIME,
        clock: Callable[[], float] = time.monotonic,
        processor_time: Callable[[], float] = time.thread_time,
    ) -> None:
        """``threads``: the most threads for a lane; each ends after ``idle_time`` without work.

        ``clock`` returns seconds, and ``processor_time`` those of the calling thread.

        ``own_lane`` names the lane of calls to this node itself, which has fewer threads: its calls
        compute and never wait. Empty: there is no such lane.
        """
        self._max_threads = threads
        self._own_lane = own_lane
        self._idle_time = idle_time
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}
        self._threads: list[_Thread] = []
        self._idle: list[_Thread] = []  # the one that worked last is the last
        self._this_thread = threading.local()  # ``thread``: the `_Thread`, in threads of lanes
        self._submissions = _Submissions()
        self._workloads = Workloads(clock)
        self._processor_time = processor_time
        self._closed = False
        self._closing = threading.Event()  # ends the pauses of threads

    @contextmanager
    def submission(self) -> Iterator[None]:
        """Limit other work to one thread per lane until this job has been submitted."""
        self._submissions.begin()
        try:
            yield
        finally:
            if self._submissions.end():
                self._begin_all()

    @contextmanager
    def carrying_on(self) -> Iterator[None]:
        """Let this thread do the first work that is submitted in the block, after its present one.

        For the last step of a work, after which the thread has nothing to do. Outside the threads
        of lanes this has no effect.
        """
        thread = self._current_thread()
        if thread is None:
            yield
            return
        thread.carries_on = True
        try:
            yield
        finally:
            thread.carries_on = thread.lane.name == self._own_lane

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
        thread = self._current_thread()
        with self._lock:
            if self._closed:
                return
            target = self._lane(lane)
            target.put(job, work, priority)
            if thread is not None and thread.carries_on and thread.next_lane is None:
                thread.next_lane = target
            else:
                self._begin(target)

    def _current_thread(self) -> "_Thread | None":
        """Return the thread of these lanes that calls; None for any other thread."""
        thread: _Thread | None = getattr(self._this_thread, "thread", None)
        return thread

    def _lane(self, name: str) -> "_Lane":
        """Return a lane, created at its first use."""
        if name not in self._lanes:
            max_threads = self._max_threads
            if name == self._own_lane:
                max_threads = _COMPUTING_THREADS
            self._lanes[name] = _Lane(
                name,
                max_threads,
                self._submissions,
                self._workloads,
            )
        return self._lanes[name]

    def queued(self, lane: str, job: str) -> int:
        """Return the number of works of a job that wait for their turn in a lane."""
        with self._lock:
            target = self._lanes.get(lane)
            if target is None:
                return 0
            return target.queued(job)

    def close(self, *, wait: bool = True) -> None:
        """Drop the queued work; with ``wait``, return only once the running work has ended."""
        self._closing.set()
        with self._lock:
            self._closed = True
            self._lanes.clear()
            threads = list(self._threads)
            for thread in self._idle:
                thread.has_turn.release()
        if not wait:
            return
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    # ------------------------------------------------------------ threads

    def _begin_all(self) -> None:
        """Begin the queued work of all lanes that may begin now."""
        with self._lock:
            for lane in self._lanes.values():
                self._begin(lane)

    def _begin(self, lane: "_Lane") -> None:
        """Give threads the queued work of a lane that may begin now. The caller has the lock."""
        while True:
            turn = lane.take_next()
            if turn is None:
                return
            self._give(lane, turn)

    def _give(self, lane: "_Lane", turn: "_Turn") -> None:
        """Let an idle thread, or a new one, do work. The caller has the lock."""
        if self._idle:
            thread = self._idle.pop()
            thread.take(lane, turn)
            thread.has_turn.release()
            return
        thread = _Thread(self._run)
        thread.take(lane, turn)
        self._threads.append(thread)
        thread.start()  # before `close` can wait for its end

    def _run(self) -> None:
        """Do work until there is none for a while; the function of each thread."""
        thread = threading.current_thread()
        assert isinstance(thread, _Thread)
        self._this_thread.thread = thread
        while thread.turn is not None:
            lane = thread.lane
            turn = thread.turn
            thread.carries_on = lane.name == self._own_lane
            begin = self._processor_time()
            try:
                turn.work()
            except Exception:
                log.exception("work in a lane failed", lane=lane.name)
            self._pause(turn.job, self._processor_time() - begin)
            if not self._take_another(thread, lane, turn):
                self._wait_for_turn(thread)

    def _pause(self, job: str, seconds: float) -> None:
        """Pause after work with this processor time if its job has to yield."""
        self._workloads.note_use(job, seconds)
        pause = self._workloads.pause_after(job, seconds)
        if pause:
            self._closing.wait(pause)

    def _take_another(
        self,
        thread: "_Thread",
        lane: "_Lane",
        turn: "_Turn",
    ) -> bool:
        """Let a thread that has ended a turn take further work; False if it is idle now.

        Other threads get the rest of the work that may begin now.
        """
        with self._lock:
            lane.end(turn)
            thread.turn = None
            lanes = [lane]
            if thread.next_lane is not None and thread.next_lane is not lane:
                lanes.insert(0, thread.next_lane)
            thread.next_lane = None
            if not self._closed:
                for candidate in lanes:
                    if thread.turn is None:
                        thread.take(candidate, candidate.take_next())
                    self._begin(candidate)
            if thread.turn is None:
                self._idle.append(thread)
            return thread.turn is not None

    def _wait_for_turn(self, thread: "_Thread") -> None:
        """Wait until an idle thread gets work; without any for a while, its turn stays None."""
        if self._closed or thread.has_turn.acquire(timeout=self._idle_time):
            return
        with self._lock:
            if thread.turn is None:
                self._idle.remove(thread)
                self._threads.remove(thread)
            else:  # it was given at this moment
                thread.has_turn.acquire()


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


class _Thread(threading.Thread):
    """A thread of all lanes, named after the lane of its last work."""

    lane: "_Lane"  # of its last work

    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__(target=run, daemon=True)
        self.turn: _Turn | None = None  # its present work; None: it is idle
        self.has_turn = threading.Lock()  # released once an idle thread has a turn
        self.has_turn.acquire()
        self.carries_on = False  # whether it does the next submitted work itself
        self.next_lane: _Lane | None = None  # the lane of its next work

    def take(self, lane: "_Lane", turn: _Turn | None) -> None:
        """Have this work as the next turn, if there is any."""
        if turn is None:
            return
        self.lane = lane
        self.name = f"lane-{lane.name}"
        self.turn = turn


class _Lane:
    """The queues of one lane, and what runs of it. Callers have the lock of all lanes."""

    def __init__(
        self,
        name: str,
        max_threads: int,
        submissions: _Submissions,
        workloads: Workloads,
    ) -> None:
        self.name = name
        self._submissions = submissions
        self._workloads = workloads
        self._max_threads = max_threads
        self._share = max(max_threads // 2, 1)  # threads that one job may occupy
        self._queues: dict[int, OrderedDict[str, deque[Work]]] = {}  # by priority and job
        self._running: Counter[str] = Counter()  # works by job
        self._threads = 0  # threads at work for this lane
        self._running_for_old_jobs = 0  # works for jobs other than new ones
        self._last_priority = 0  # priority of the last turn

    def put(
        self,
        job: str,
        work: Work,
        priority: int,
    ) -> None:
        """Queue work of a job."""
        jobs = self._queues.setdefault(priority, OrderedDict())
        jobs.setdefault(job, deque()).append(work)
        self._workloads.add(job)

    def queued(self, job: str) -> int:
        """Return how many works of a job wait for their turn."""
        return sum(len(jobs.get(job, ())) for jobs in self._queues.values())

    def end(self, turn: _Turn) -> None:
        """Count work as done."""
        self._workloads.end(turn.job)
        self._threads -= 1
        self._running -= Counter({turn.job: 1})  # keeps only positive counts
        if not turn.is_for_new_job:
            self._running_for_old_jobs -= 1

    def take_next(self) -> _Turn | None:
        """Take the next work; return None if no queued work may begin now.

        Work has to wait while all threads of the lane work, or its job occupies as many as it may.
        While jobs are being submitted, work of other jobs also has to wait for the one thread that
        it may use.
        """
        if self._threads >= self._max_threads:
            return None
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
        """Take the next work of a job out of its queue."""
        jobs = self._queues[priority]
        works = jobs[job]
        turn = _Turn(job, works.popleft(), is_for_new_job=priority == NEW_JOB)
        self._threads += 1
        self._running[job] += 1
        self._workloads.begin(job)
        if not turn.is_for_new_job:
            self._running_for_old_jobs += 1
        if works:
            jobs.move_to_end(job)  # the other jobs have their turns first
        else:
            del jobs[job]
        if not jobs:
            del self._queues[priority]
        return turn
