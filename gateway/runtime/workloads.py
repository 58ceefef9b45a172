"""How much processor time each job takes, so that heavy jobs yield to light ones."""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

# Seconds of preference after the newest work of a light job. A longer call waits for a slow peer or
# an image, and no longer for this node's processor.
PREFERENCE = 1.0

# Recent processor time in seconds: from which a job is heavy, and above which it makes progress. A
# job that waits for its containers only polls, which takes less.
HEAVY = 0.1
PROGRESS = 0.02
HEAVIER = 2.0  # least ratio of the processor times of a job that yields and the other

# A thread of a job that yields pauses for this multiple of the processor time of its last work,
# times the number of such threads: all of them together take a tenth of the time of one.
PAUSE_FACTOR = 10.0
LONGEST_PAUSE = 0.25  # seconds

_FADE_TIME = 1.0  # seconds in which processor time fades to 1/e of its weight
_KEEP_TIME = 10.0  # seconds for which a job without work is remembered


@dataclass
class _Workload:
    """The works of a job in all lanes. Times are seconds of the clock."""

    first_work: float
    newest_work: float
    running: int = 0  # works that threads do now
    used: float = 0.0  # recent processor time at ``used_at``
    used_at: float = 0.0

    def recent_use(self, now: float) -> float:
        """Return the processor time in seconds, in which older works count less."""
        return self.used * math.exp((self.used_at - now) / _FADE_TIME)

    def is_progressing(self, now: float) -> bool:
        """Return whether the job makes progress, as each new job does."""
        if self.newest_work < now - PREFERENCE:
            return False
        return self.first_work > now - PREFERENCE or self.recent_use(now) > PROGRESS


class Workloads:
    """Counts the works of jobs in all lanes, and the processor time that they take.

    The threads of all lanes compete for the interpreter and the cores: the calls of a heavy job
    slow down those of a light one in other lanes, too. So heavy jobs yield.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` returns seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        # By job, in the order of their newest works
        self._workloads: OrderedDict[str, _Workload] = OrderedDict()
        self._next_cleaning = clock() + _KEEP_TIME

    def add(self, job: str) -> None:
        """Note that a job has new work."""
        with self._lock:
            now = self._clock()
            if now > self._next_cleaning:
                self._forget_old(now)
            self._workload(job).newest_work = now
            self._workloads.move_to_end(job)

    def begin(self, job: str) -> None:
        """Note that a thread begins work of a job."""
        with self._lock:
            self._workload(job).running += 1

    def end(self, job: str) -> None:
        """Note that a thread has ended work of a job."""
        with self._lock:
            self._workload(job).running -= 1

    def note_use(self, job: str, seconds: float) -> None:
        """Add the processor time of a work to that of its job."""
        with self._lock:
            now = self._clock()
            workload = self._workload(job)
            workload.used = workload.recent_use(now) + seconds
            workload.used_at = now

    def must_yield(self, job: str) -> bool:
        """Return whether a job is heavy, and a much lighter one makes progress."""
        with self._lock:
            now = self._clock()
            use = self._workload(job).recent_use(now)
            if use < HEAVY:
                return False
            for other in reversed(self._workloads.values()):
                if other.newest_work < now - PREFERENCE:
                    return False
                if other.recent_use(now) * HEAVIER < use and other.is_progressing(now):
                    return True
            return False

    def pause_after(self, job: str, seconds: float) -> float:
        """Return how many seconds a thread pauses after work with this processor time."""
        if not self.must_yield(job):
            return 0.0
        with self._lock:
            threads = self._workload(job).running
        return min(seconds * threads * PAUSE_FACTOR, LONGEST_PAUSE)

    def _workload(self, job: str) -> _Workload:
        """Return the workload of a job. The caller has the lock."""
        workload = self._workloads.get(job)
        if workload is None:
            now = self._clock()
            workload = _Workload(now, now)
            self._workloads[job] = workload
        return workload

    def _forget_old(self, now: float) -> None:
        """Forget the jobs that have had no work for a while. The caller has the lock."""
        self._next_cleaning = now + _KEEP_TIME
        for job, workload in list(self._workloads.items()):
            if not workload.running and workload.newest_work < now - _KEEP_TIME:
                del self._workloads[job]
