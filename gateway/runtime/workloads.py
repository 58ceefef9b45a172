"""How much work each job has, so that large jobs yield to small ones."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

# Most works of a small job: a call to each of ten parties.
SMALL = 10

# Seconds of preference after the newest work of a small job. A longer call waits for a slow peer or
# an image, and no longer for this node's processor.
PREFERENCE = 1.0


@dataclass
class _Workload:
    """The works of a job that are queued or running."""

    works: int
    added_at: float  # time of the newest work, in seconds of the clock


class Workloads:
    """Counts the works of jobs in all lanes.

    The threads of all lanes compete for the interpreter and the cores: the calls of a large job
    slow down those of a small one in other lanes, too. So large jobs yield.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` returns seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._workloads: dict[str, _Workload] = {}  # by job

    def add(self, job: str) -> None:
        """Count one more work of a job."""
        with self._lock:
            workload = self._workloads.setdefault(job, _Workload(0, 0.0))
            workload.works += 1
            workload.added_at = self._clock()

    def remove(self, job: str) -> None:
        """Count one work less."""
        with self._lock:
            workload = self._workloads[job]
            workload.works -= 1
            if not workload.works:
                del self._workloads[job]

    def must_yield(self, job: str) -> bool:
        """Return whether a job is large and a small one has had new work within `PREFERENCE`."""
        with self._lock:
            if not self._is_large(job):
                return False
            earliest = self._clock() - PREFERENCE
            return any(
                workload.works <= SMALL and workload.added_at > earliest
                for workload in self._workloads.values()
            )

    def _is_large(self, job: str) -> bool:
        """Return whether a job has more works than a small one. The caller has the lock."""
        workload = self._workloads.get(job)
        return workload is not None and workload.works > SMALL
