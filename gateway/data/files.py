"""Keeps containers from filling a disk: looks before each start, and at what running ones have written."""

import shutil
import threading
import time
from collections.abc import Callable, Mapping

import structlog

from engines.base import EngineError, NoSpace, Written
from gateway.data.workspace import Unmeasurable, Workspace
from gateway.domain.run import Run
from gateway.domain.spec import Failure

log = structlog.get_logger(__name__)

GIB = 1024**3


_PAUSE = 20
"""times as long as a look took, until the next"""


class DiskWatch:
    """A look at what a run has written is taken every so often: in its mounts, and beside them in its container.

    The size is that of blocks in use, beside the mounts that of files.
    """

    def __init__(
        self,
        workspace: Workspace,
        reserve: int = 0,
        every: float = 10.0,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        files: int = 250_000,
        bounds: Callable[[Run], Mapping[str, float | None]] = lambda run: run.limits,
        written: Callable[[str, int], Written] = lambda name, most: Written(),
    ) -> None:
        """``reserve``: bytes of the storage's disk that no new container may use up. ``every``: seconds.

        ``files``: that a run may make. ``bounds`` tells its limits, ``written`` what it wrote beside its mounts.
        """
        self._workspace = workspace
        self._reserve = reserve
        self._every = every
        self._monotonic = monotonic
        self._files = files
        self._bounds = bounds
        self._written = written
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
        """Return why the run has to end if what it wrote takes more disk, or more files, than it may.

        Its own log files are cut to size before.
        """
        if not self._due(run.name):
            return None
        begun = self._monotonic()
        try:
            self._trim_logs(run)
            return self._too_much(run)
        finally:
            now = self._monotonic()
            self._put_off(run.name, now + max(self._every - (now - begun), _PAUSE * (now - begun)))

    def _too_much(self, run: Run) -> Failure | None:
        limit = self._bounds(run).get("disk")
        who = f"{run.party.label} in task {run.task_name}"
        raised = "resources.disk" if run.limits.get("disk") else "it asked for none: resources.disk of the job"
        may = "it may take any" if limit is None else f"it may take {_gib(limit)} of disk ({raised})"
        try:
            used = self._workspace.used(run, self._files)
        except Unmeasurable:
            return Failure("NO_SPACE", f"{who} made folders in folders too deep to be measured; {may}")
        beside = self._beside(run)
        if used.files + beside.files > self._files:
            text = f"{who} made more than {self._files} files and folders (limits.files)"
            return Failure("NO_SPACE", text)
        size = used.size + beside.size
        if limit is None or size <= limit:
            return None
        return Failure("NO_SPACE", f"what {who} wrote takes {_gib(size)} of disk, {may}")

    def _beside(self, run: Run) -> Written:
        try:
            return self._written(run.name, self._files)
        except EngineError as error:
            log.warning("what a container wrote beside its mounts is not known", run=run.name, cause=str(error))
            return Written()

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

    def _put_off(self, name: str, until: float) -> None:
        with self._lock:
            self._next[name] = until


def _gib(size: float) -> str:
    return f"{size / GIB:.3f} GiB"
