"""Where a run finds its data and leaves its outputs, and the disk, which containers must not fill."""

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from engines import files as engines_files
from engines import logs as engines_logs
from engines.base import DiskUse, EngineError, Mount, NoSpace
from gateway.data.reading import nearest_existing
from gateway.data.remote_storage import Remote
from gateway.data.storage import check_names
from gateway.domain.problems import Problem
from gateway.domain.run import Address, Run
from gateway.domain.spec import Failure
from gateway.errors import Invalid

_FOLDER, _FILE = 0o777, 0o666
"""the next container may run as another user than the one that wrote them"""


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copy a checkpoint's files and folders, but no links, unless the target is there. Raises OSError."""
    if target.exists():
        return
    part = target.with_name(f".{target.name}.part")
    engines_files.try_to_remove(part)
    part.mkdir(parents=True)
    if source.is_dir() and not source.is_symlink():
        _copy(source, part)
    part.chmod(_FOLDER)
    part.rename(target)


def _copy(source: Path, target: Path) -> None:
    for entry in engines_files.walk(source, on_error=_stop):
        to = target / Path(entry.path).relative_to(source)
        if entry.is_dir(follow_symlinks=False):
            to.mkdir()
            to.chmod(_FOLDER)
        elif entry.is_file(follow_symlinks=False):
            with open(entry.path, "rb", opener=_no_link) as old, to.open("xb") as new:
                _copy_data(old.fileno(), new.fileno())
            to.chmod(_FILE)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _copy_data(old: int, new: int) -> None:
    """Copy what a file holds; its holes, which no limit of the disk has bounded, stay holes."""
    begin, end = 0, os.fstat(old).st_size
    os.truncate(new, end)
    while begin < end:
        try:
            begin = os.lseek(old, begin, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        hole = os.lseek(old, begin, os.SEEK_HOLE)
        os.lseek(new, begin, os.SEEK_SET)
        while begin < hole and (sent := os.sendfile(new, old, begin, hole - begin)):
            begin += sent


def _stop(error: OSError) -> None:
    raise error


INSIDE = "/bfia/storage"
"""Where a container sees its part of the storage."""

INSIDE_LOG = "/bfia/log"
INSIDE_CHECKPOINT = "/bfia/checkpoint"

_MOST_LOGS = 10_000
"""files and folders of a run's own log folder that are shortened"""


@dataclass(frozen=True)
class Placement:
    """One run's view of the storage."""

    storage_url: str
    log_path: str
    mounts: tuple[Mount, ...] = ()
    checkpoint: str = ""
    """the folder for checkpoints, as the run sees it; empty: it has none"""
    checkpoint_at: Address | None = None
    """where they lie at its storage elsewhere, if it has no folder for them"""
    reach: tuple[str, ...] = ()
    """``host:port`` of what its storage elsewhere consists of"""
    own: tuple[str, ...] = ()
    """folders that its engine makes for it alone, for as long as it is there"""


@dataclass(frozen=True)
class Apart:
    """The engines, by their names, whose machines share no folder with this one."""

    storage: frozenset[str] = frozenset()
    """not the storage's, so that data and checkpoints lie elsewhere"""
    runs: frozenset[str] = frozenset()
    """not the runs', so that log files end with the run that wrote them"""


class Workspace:
    """Prepares and clears the places of runs.

    Contained: the container gets its inputs read-only and its own outputs read-write, never the storage's root.
    Not contained (process engine): the run sees the root, with the gateway's own rights.
    What lies at a storage elsewhere, a run reads and writes there itself.
    """

    def __init__(
        self,
        root: Path,
        runs: Path,
        *,
        contained: bool,
        log_bytes: int = 32 * 1024**2,
        remote_of: Callable[[Run, bool], Remote | None] = lambda run, begins: None,
        apart: Apart = Apart(),
        copy: Callable[[Address, Address], None] = lambda source, target: None,
    ) -> None:
        """``remote_of`` returns a run's storage elsewhere as the run uses it; with True for a run that begins.

        ``copy`` copies what lies at a storage elsewhere, unless the target is there.
        """
        self.root = root.absolute()
        self._runs = runs.absolute()
        self._contained = contained
        self._log_bytes = log_bytes
        self._remote_of = remote_of
        self._apart = apart
        self._copy = copy

    def logs(self, run: Run) -> Path:
        """Return the directory in which a run's logs are kept."""
        return self._runs / run.name

    def prepare(self, run: Run) -> Placement:
        """Make the run's directories; return how the run sees them."""
        log = self.logs(run) / "log"
        _closed(log.parent)
        log.mkdir(exist_ok=True)
        self._make_outputs(run, log)
        if self._checkpoint(run) is not None and run.checkpoint is not None:
            source = self._path(run.checkpoint_from) if run.checkpoint_from else Path(os.devnull)
            copy_checkpoint(source, self._path(run.checkpoint))
        elif run.checkpoint and run.checkpoint.storage and run.checkpoint_from:
            self._copy(run.checkpoint_from, run.checkpoint)
        return self.placement(run, begins=True)

    def placement(self, run: Run, *, begins: bool = False) -> Placement:
        """Return how a run sees its places; makes none of them."""
        log = self.logs(run) / "log"
        checkpoint = self._checkpoint(run)
        remote = self._remote_of(run, begins)
        elsewhere, reach = (remote.url(), remote.services) if remote else ("", ())
        if not self._contained:
            return Placement(
                elsewhere or f"file://{self.root}", str(log), checkpoint=str(checkpoint or "")
            )
        no_logs = run.engine in self._apart.runs
        mounts = [] if no_logs else [Mount(log, INSIDE_LOG, read_only=False)]
        inputs = [
            a for a in _here(run.inputs) if self._path(a).exists()
        ]  # an output before it may be missing
        mounts += [Mount(self._path(a), self._inside(a), read_only=True) for a in inputs]
        mounts += [
            Mount(self._path(a), self._inside(a), read_only=False) for a in _here(run.outputs)
        ]
        if checkpoint is not None:
            mounts.append(Mount(checkpoint, INSIDE_CHECKPOINT, read_only=False))
        inside = INSIDE_CHECKPOINT if checkpoint else ""
        own = (INSIDE_LOG,) if no_logs else ()
        checkpoint_at = run.checkpoint if run.checkpoint and run.checkpoint.storage else None
        url = elsewhere or f"file://{INSIDE}"
        return Placement(url, INSIDE_LOG, tuple(mounts), inside, checkpoint_at, reach, own)

    def _checkpoint(self, run: Run) -> Path | None:
        """Return the folder of a run's checkpoints, None where it has none."""
        return (
            self._path(run.checkpoint)
            if run.checkpoint and run.engine not in self._apart.storage
            else None
        )

    def _make_outputs(self, run: Run, log: Path) -> None:
        outputs = [self._path(address) for address in _here(run.outputs)]
        if not self._contained:
            self.root.mkdir(parents=True, exist_ok=True)
            return
        log.chmod(0o777)  # the image's own user, whoever that is, writes here
        for path in outputs:
            _closed(path.parent)
            path.mkdir(exist_ok=True)
            path.chmod(0o777)  # as above; the folder around it lets nobody else on this machine in

    def clear(self, run: Run) -> None:
        """Close the run's outputs, delete the empty ones, and shorten log files that are too long."""
        for entry in engines_files.walk(self.logs(run) / "log", _MOST_LOGS):
            with suppress(OSError):  # what cannot be shortened stays whole
                if entry.is_file(follow_symlinks=False):
                    engines_logs.shorten(Path(entry.path), self._log_bytes)
        for address in _here(run.outputs):
            path = self._path(address)
            if self._contained and path.is_dir():
                path.chmod(0o755)  # it is over: whoever reads it later changes nothing
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
                if path.parent != self.root and not any(path.parent.iterdir()):
                    path.parent.rmdir()

    def used(self, run: Run, most: int) -> DiskUse:
        """Return what a run has written; ``most`` + 1 files are counted.

        Raises `OSError` where folders are nested more deeply than a path can be long.
        """
        kept = [run.checkpoint] if run.checkpoint else []
        outputs = {self._path(address) for address in (*_here(run.outputs), *kept)}
        size = files = 0
        for path in (*outputs, self.logs(run) / "log"):
            more, count = engines_files.size_below(path, most - files)
            size, files = size + more, files + count
            if files > most:
                break
        return DiskUse(size, files)

    def forget(self, run: Run) -> None:
        """Delete a run's logs."""
        engines_files.try_to_remove(self.logs(run))

    def _path(self, address: Address) -> Path:
        check_names(address)  # also where jobs come in; a path outside the root must be impossible
        return self.root / address.namespace / address.name

    @staticmethod
    def _inside(address: Address) -> str:
        return f"{INSIDE}/{address.namespace}/{address.name}"


def _closed(folder: Path) -> None:
    """Make a folder that is the gateway's alone: a container is given what lies in it by the engine."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)


def _here(addresses: Mapping[str, Address]) -> list[Address]:
    return list(dict.fromkeys(address for address in addresses.values() if not address.storage))


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
        *,
        files: int = 250_000,
        bounds: Callable[[Run], Mapping[str, float | None]] = lambda run: run.limits,
        written: Callable[[str, int], DiskUse] = lambda name, most: DiskUse(),
    ) -> None:
        """``reserve``: bytes that no container may use up; ``every``: seconds; ``files``: that a run may make."""
        self._workspace = workspace
        self._reserve = reserve
        self._every = every
        self._files = files
        self.bounds = bounds
        self._written = written
        self._next: dict[str, float] = {}

    def check_room(self, run: Run) -> None:
        """Raise `NoSpace` if the storage is nearly full, or has less left than the run was granted."""
        reserve, granted = max(self._reserve, 0), int(run.limits.get("disk") or 0)
        if not reserve and not granted:
            return
        free = shutil.disk_usage(nearest_existing(self._workspace.root)).free
        if free >= reserve + granted:
            return
        text = f"the storage has {_gib(free)} free"
        if granted:
            text += f", {run.party.label} was granted {_gib(granted)} of it (resources.disk)"
        if reserve:
            text += f", and {_gib(reserve)} are kept back (limits.storage_reserve_bytes)"
        raise NoSpace(
            f"{text}: delete data, {'ask for less' if free >= reserve else 'or lower the reserve'}"
        )

    def over(self, run: Run) -> Failure | None:
        """Return why the run has to end if what it wrote takes more disk, or more files, than it may."""
        begun = time.monotonic()
        if begun < self._next.get(run.name, 0.0):
            return None
        try:
            return self._too_much(run)
        finally:
            now = time.monotonic()
            pause = max(self._every - (now - begun), _PAUSE * (now - begun))
            self._next = {n: t for n, t in self._next.items() if t > now} | {run.name: now + pause}

    def _too_much(self, run: Run) -> Failure | None:
        limit = self.bounds(run).get("disk")
        who = f"{run.party.label} in task {run.task_name}"
        raised = (
            "resources.disk"
            if run.limits.get("disk")
            else "it asked for none: resources.disk of the job"
        )
        may = (
            "it may take any" if limit is None else f"it may take {_gib(limit)} of disk ({raised})"
        )
        try:
            used = self._workspace.used(run, self._files)
        except OSError:
            return Failure(
                "NO_SPACE", f"{who} made folders in folders too deep to be measured; {may}"
            )
        beside = DiskUse()
        try:
            beside = self._written(run.name, self._files)
        except EngineError as error:
            log.warning(
                "what a container wrote beside its mounts is not known",
                run=run.name,
                cause=str(error),
            )
        if used.files + beside.files > self._files:
            text = f"{who} made more than {self._files} files and folders"
            return Failure("NO_SPACE", text)
        size = used.size + beside.size
        if limit is None or size <= limit:
            return None
        return Failure("NO_SPACE", f"what {who} wrote takes {_gib(size)} of disk, {may}")


def _gib(size: float) -> str:
    return f"{size / GIB:.3f} GiB"


def made(
    folder: Path,
    setting: str,
    mode: int = 0o777,
) -> None:
    """Make the folder that a setting names, unless it is there. Raises `Invalid` naming the setting."""
    try:
        folder.mkdir(
            parents=True,
            exist_ok=True,
            mode=mode,
        )
    except OSError as error:
        there = nearest_existing(folder)
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


def check_storage(
    staging: Callable[[], AbstractContextManager[object]],
    root: Path,
    reserve: int,
) -> None:
    """Check that a task could begin here and write its outputs. Raises `OSError`, `NoSpace`."""
    with staging():
        try_to_write(root)
    if reserve > 0 and shutil.disk_usage(nearest_existing(root)).free < reserve:
        raise NoSpace("its disk has less free than limits.storage_reserve_bytes")
