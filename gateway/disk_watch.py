"""Keeps containers from filling the storage: looks before each start, and at what running ones have written."""

import shutil
import threading
import time
from collections.abc import Callable

import structlog

from engines.base import NoSpace
from gateway.domain.local_job import Run
from gateway.domain.model import Failure
from gateway.workspace import Unmeasurable, Workspace

log = structlog.get_logger(__name__)

GIB = 1024**3


class DiskWatch:
    """A look at a run's outputs is taken every so often; the size is that of blocks in use."""

    def __init__(
        self,
        workspace: Workspace,
        reserve: int = 0,
        every: float = 10.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``reserve``: bytes of the storage's disk that no new container may use up. ``every``: seconds."""
        self._workspace = workspace
        self._reserve = reserve
        self._every = every
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._next: dict[str, float] = {}

    def check_room(self, run: Run) -> None:
        """Raise `NoSpace` if the storage is nearly full, or has less left than the run was granted."""
        reserve, granted = max(self._reserve, 0), int(run.limits.get("disk") or 0)
        if not reserve and not granted:
            return
        free = shutil.disk_usage(self._workspace.root()).free
        if free >= reserve + granted:
            return
        text = f"the storage has {_gib(free)} free"
        if granted:
            text += f", {run.party.label} was granted {_gib(granted)} of it (resources.disk)"
        if reserve:
            text += f", and {_gib(reserve)} are kept back (limits.storage_reserve_bytes)"
        raise NoSpace(f"{text}: delete data, {'ask for less' if free >= reserve else 'or lower the reserve'}")

    def over(self, run: Run) -> Failure | None:
        """Return why the run has to end if what it wrote takes more disk than it was granted.

        Its own log files are cut to size before.
        """
        if not self._due(run.name):
            return None
        self._trim_logs(run)
        limit = run.limits.get("disk")
        if limit is None:
            return None
        who = f"{run.party.label} in task {run.task_name}"
        try:
            used = self._workspace.used(run)
        except Unmeasurable:
            text = f"{who} made folders in folders too deep to be measured; it may take {_gib(limit)} of disk"
            return Failure("NO_SPACE", f"{text} (resources.disk)")
        if used <= limit:
            return None
        text = f"what {who} wrote takes {_gib(used)} of disk, it may take {_gib(limit)} (resources.disk)"
        return Failure("NO_SPACE", text)

    def _trim_logs(self, run: Run) -> None:
        try:
            given_back = self._workspace.trim_logs(run)
        except Exception as error:  # whatever it was: what the container wrote is measured all the same
            log.error("log files of a container were not cut to size", run=run.name, exc_info=error)
            return
        if given_back:
            log.info(
                "log files of a container are too long", run=run.name, task=run.task_name, given_back=given_back
            )

    def _due(self, name: str) -> bool:
        now = self._monotonic()
        with self._lock:
            if now < self._next.get(name, 0.0):
                return False
            self._next = {n: t for n, t in self._next.items() if t > now}
            self._next[name] = now + self._every
            return True


def _gib(size: float) -> str:
    return f"{size / GIB:.3f} GiB"
