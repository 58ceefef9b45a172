"""Files and folders of the gateway itself, and the disk that containers must not fill."""

import errno
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import structlog

from engines.base import EngineError, NoSpace, Written
from gateway.data.reading import nearest
from gateway.data.workspace import Unmeasurable, Workspace
from gateway.domain.problems import Problem
from gateway.domain.run import Run
from gateway.domain.spec import Failure
from gateway.errors import Invalid

log = structlog.get_logger(__name__)

GIB = 1024**3


_PAUSE = 20
"""times as long as a measurement took, until the next"""


class DiskWatch:
    """Measures now and then what a run has written: in its mounts, and beside them in its container."""

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
        """``reserve``: bytes that no container may use up; ``every``: seconds; ``files``: that a run may make."""
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
        """Return why the run has to end if what it wrote takes more disk, or more files, than it may."""
        if not self._due(run.name):
            return None
        begun = self._monotonic()
        try:
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


def made(folder: Path, setting: str, mode: int = 0o777) -> None:
    """Make the folder that a setting names, unless it is there. Raises `Invalid` naming the setting."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=mode)
    except OSError as error:
        there = nearest(folder)
        if there.is_dir():
            rule = f"user {os.getuid()} cannot make it in {there}: {error.strerror}; grant that, or choose"
        else:
            rule = f"cannot be a folder: {there} is a file; choose"
        problem = Problem(setting, f"{rule} another {setting}", str(folder))
        raise Invalid([problem], reason="FOLDER_UNUSABLE") from error


_SAMPLE = b"\0" * 64 * 1024
"""more than a full disk has left in blocks that are in use; a folder can be made on many a full disk"""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def full(error: OSError) -> bool:
    """Tell whether space was lacking, and not a permission."""
    return error.errno in _FULL


def try_to_write(folder: Path) -> None:
    """Write some bytes that are thrown away. Raises `OSError`."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(_SAMPLE)
        file.flush()


def check_storage(staging: Callable[[], AbstractContextManager[object]], root: Path, reserve: int) -> None:
    """Check that a task could begin here and write its outputs. Raises `OSError`, `NoSpace`."""
    with staging():
        try_to_write(root)
    if reserve > 0 and shutil.disk_usage(nearest(root)).free < reserve:
        raise NoSpace("its disk has less free than limits.storage_reserve_bytes")
