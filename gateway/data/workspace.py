"""The folders and mounts of a run, and the limits of the disk that containers must not fill."""

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from engines import files as engines_files
from engines import logs as engines_logs
from engines.base import DiskUse, EngineError, Mount, NoSpace
from gateway.data.reading import nearest_existing
from gateway.data.remote import Remote
from gateway.data.storage import check_names
from gateway.domain.problems import Problem
from gateway.domain.resources import is_site_default
from gateway.domain.run import Address, Run
from gateway.domain.spec import Failure
from gateway.errors import Invalid

log = structlog.get_logger(__name__)

# Paths in a container: of the storage, and of the run's log files and checkpoints.
INSIDE = "/bfia/storage"
INSIDE_LOG = "/bfia/log"
INSIDE_CHECKPOINT = "/bfia/checkpoint"

# Modes of a copied checkpoint: the next container may run as another user.
_FOLDER_MODE = 0o777
_FILE_MODE = 0o666
_MAX_LOG_ENTRIES = 10_000  # entries of a run's log folder that are visited to shorten log files
GIB = 1024**3
PAUSE_FACTOR = 20  # least pause between two measurements, in durations of the one before
# Written to find out whether a disk is full: more bytes than fit into blocks that are in use
# already. Making a folder instead would prove nothing, as it succeeds on some full disks.
_SAMPLE = b"\0" * 64 * 1024
# Errors of a full disk or an exhausted quota.
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True)
class Placement:
    """One run's view of the storage and of its own folders.

    All paths are as the run sees them, except the sources of the mounts. A "storage elsewhere" is
    any storage other than the node's folder, such as S3 or HDFS.
    """

    storage_url: str
    log_path: str
    mounts: tuple[Mount, ...] = ()
    checkpoint: str = ""  # folder for checkpoints; empty: none
    checkpoint_at: Address | None = None  # address of its checkpoints in a storage elsewhere
    reach: tuple[str, ...] = ()  # ``host:port`` of the services of its storage elsewhere
    # folders in the container that its engine makes there, and deletes with the run
    private_folders: tuple[str, ...] = ()


def _no_remote(run: Run, begins: bool) -> None:
    """Return None: the data of every run is in the node's folder."""


def _copy_nothing(source: Address, target: Address) -> None:
    """Copy nothing, for a node without storages elsewhere."""


class Workspace:
    """Prepares and clears the folders of runs.

    - Contained runs (in containers) get their inputs read-only and their own outputs read-write,
      never the storage's root.
    - Other runs (of the process engine) see the root, with the gateway's own rights.

    Data in a storage elsewhere is read and written by the run itself.
    """

    def __init__(
        self,
        root: Path,
        runs: Path,
        *,
        contained: bool,
        log_bytes: int = 32 * 1024**2,
        remote_of: Callable[[Run, bool], Remote | None] = _no_remote,
        without_runs_folder: Collection[str] = (),
        copy: Callable[[Address, Address], None] = _copy_nothing,
    ) -> None:
        """Take two folders of this machine.

        - ``root``: the storage's folder
        - ``runs``: the folder for the logs of runs
        - ``contained``: whether runs are in containers
        - ``without_runs_folder``: names of the engines whose machines do not see ``runs``
        - ``log_bytes``: most bytes kept of each log file that an ended run wrote
        - ``remote_of``: returns a run's storage elsewhere with credentials for it, or None; the
          second argument is True if the run begins
        - ``copy``: copies data from one address of a storage elsewhere to another one, unless the
          target exists
        """
        self.root = root.absolute()
        self._runs = runs.absolute()
        self._contained = contained
        self._log_bytes = log_bytes
        self._remote_of = remote_of
        self._without_runs_folder = without_runs_folder
        self._copy = copy

    def logs(self, run: Run) -> Path:
        """Return the folder of a run's logs: of its output, and of its log files."""
        return self._runs / run.name

    def _log_folder(self, run: Run) -> Path:
        """Return the folder inside `logs` for the log files that the run itself writes."""
        return self.logs(run) / "log"

    def prepare(self, run: Run) -> Placement:
        """Make the run's folders; return how the run sees them."""
        log_folder = self._log_folder(run)
        _make_private(log_folder.parent)
        log_folder.mkdir(exist_ok=True)
        self._make_outputs(run, log_folder)
        self._prepare_checkpoint(run)
        return self.placement(run, begins=True)

    def _make_outputs(self, run: Run, log_folder: Path) -> None:
        """Make the folders that a contained run writes to, open to the user of its image.

        Any other run makes the folders of its outputs itself; only the root is made for it.
        """
        if not self._contained:
            self.root.mkdir(parents=True, exist_ok=True)
            return
        # The private folder above each of these keeps the users of this machine out.
        log_folder.chmod(0o777)
        for address in _local(run.data.outputs):
            path = self._path(address)
            _make_private(path.parent)
            path.mkdir(exist_ok=True)
            path.chmod(0o777)

    def _prepare_checkpoint(self, run: Run) -> None:
        """Make the run's folder for checkpoints, if its checkpoints are in the node's folder.

        If the run continues an earlier job, it gets a copy of that job's checkpoint, also in a
        storage elsewhere.
        """
        checkpoint = run.data.checkpoint
        old_checkpoint = run.data.checkpoint_from
        if checkpoint is None:
            return
        if checkpoint.storage:
            if old_checkpoint is not None:
                self._copy(old_checkpoint, checkpoint)
            return
        source = None
        if old_checkpoint is not None:
            source = self._path(old_checkpoint)
        copy_checkpoint(source, self._path(checkpoint))

    def placement(
        self,
        run: Run,
        *,
        begins: bool = False,
    ) -> Placement:
        """Return how a run sees its folders, without making any.

        ``begins``: whether the run begins now; it is passed on to ``remote_of``.
        """
        remote = self._remote_of(run, begins)
        if self._contained:
            return self._contained_placement(run, remote)
        url = f"file://{self.root}"
        if remote is not None:
            url = remote.url()
        checkpoint = self._checkpoint_folder(run)
        return Placement(url, str(self._log_folder(run)), checkpoint=str(checkpoint or ""))

    def _contained_placement(self, run: Run, remote: Remote | None) -> Placement:
        """Return the placement of a run in a container.

        ``remote`` is the run's storage elsewhere; None for the node's folder.
        """
        url = f"file://{INSIDE}"
        reach: tuple[str, ...] = ()
        if remote is not None:
            url = remote.url()
            reach = remote.services
        checkpoint_at = run.data.checkpoint
        if checkpoint_at is not None and not checkpoint_at.storage:
            checkpoint_at = None  # its checkpoints are in the node's folder, which is mounted
        return Placement(
            storage_url=url,
            log_path=INSIDE_LOG,
            mounts=tuple(self._mounts(run)),
            checkpoint=INSIDE_CHECKPOINT if self._checkpoint_folder(run) else "",
            checkpoint_at=checkpoint_at,
            reach=reach,
            private_folders=() if self._shares_logs(run) else (INSIDE_LOG,),
        )

    def _mounts(self, run: Run) -> list[Mount]:
        """Return the mounts of a container: its log, inputs, outputs and checkpoints."""
        mounts = []
        if self._shares_logs(run):
            mounts.append(Mount(self._log_folder(run), INSIDE_LOG, read_only=False))
        # An input that is the output of an earlier task may be missing.
        inputs = [address for address in _local(run.data.inputs) if self._path(address).exists()]
        mounts += [self._mount(address, read_only=True) for address in inputs]
        mounts += [self._mount(address, read_only=False) for address in _local(run.data.outputs)]
        checkpoint = self._checkpoint_folder(run)
        if checkpoint is not None:
            mounts.append(Mount(checkpoint, INSIDE_CHECKPOINT, read_only=False))
        return mounts

    def _mount(self, address: Address, *, read_only: bool) -> Mount:
        """Return the mount of an address in the node's folder.

        Its path in the container has the same namespace and name.
        """
        inside = f"{INSIDE}/{address.namespace}/{address.name}"
        return Mount(
            self._path(address),
            inside,
            read_only=read_only,
        )

    def _shares_logs(self, run: Run) -> bool:
        """Return whether the run's engine sees the folder of the runs on this machine.

        Without it the log files stay in the container, and are deleted with it.
        """
        return run.engine not in self._without_runs_folder

    def _checkpoint_folder(self, run: Run) -> Path | None:
        """Return the folder of a run's checkpoints.

        Returns None for a run without checkpoints, or with checkpoints in a storage elsewhere.
        """
        checkpoint = run.data.checkpoint
        if checkpoint is None or checkpoint.storage:
            return None
        return self._path(checkpoint)

    def clear(self, run: Run) -> None:
        """After a run's end, protect its outputs, delete empty ones, and shorten long log files."""
        for entry in engines_files.walk(self._log_folder(run), _MAX_LOG_ENTRIES):
            with suppress(OSError):  # a file that cannot be shortened stays
                if entry.is_file(follow_symlinks=False):
                    engines_logs.shorten(Path(entry.path), self._log_bytes)
        for address in _local(run.data.outputs):
            self._protect_output(self._path(address))

    def _protect_output(self, path: Path) -> None:
        """Take write access to an output from the user of a run's image; delete an empty output.

        With the last output of a namespace, the namespace is deleted.
        """
        if not path.is_dir():
            return
        if self._contained:
            path.chmod(0o755)
        if any(path.iterdir()):
            return
        path.rmdir()
        if path.parent != self.root and not any(path.parent.iterdir()):
            path.parent.rmdir()

    def used(self, run: Run, max_files: int) -> DiskUse:
        """Return the size and number of a run's files; counting stops after ``max_files`` + 1.

        Raises `OSError` if folders are nested so deeply that a path is too long.
        """
        data = run.data
        paths = [self._path(address) for address in _local(data.outputs)]
        if data.checkpoint:
            # Checkpoints in a storage elsewhere have no folder at this path: their size is 0.
            paths.append(self._path(data.checkpoint))
        paths.append(self._log_folder(run))
        size = 0
        files = 0
        for path in dict.fromkeys(paths):  # each path once, in this order
            path_size, path_files = engines_files.size_below(path, max_files - files)
            size += path_size
            files += path_files
            if files > max_files:
                break
        return DiskUse(size, files)

    def _path(self, address: Address) -> Path:
        """Return the path of an address in the node's folder.

        Raises `Invalid` for names that could lead outside of the root.
        """
        check_names(address)
        return self.root / address.namespace / address.name


def _make_private(folder: Path) -> None:
    """Make a folder that only the gateway may enter, as the parent of folders that engines mount.

    A folder that exists keeps its mode.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)


def _local(addresses: Mapping[str, Address]) -> list[Address]:
    """Return the addresses in the node's folder, each once, without any in storages elsewhere."""
    local = [address for address in addresses.values() if not address.storage]
    return list(dict.fromkeys(local))


# ---------------------------------------------------------------- checkpoints


def copy_checkpoint(source: Path | None, target: Path) -> None:
    """Copy a checkpoint's files and folders, without links, unless the target exists.

    The target is an empty folder if ``source`` is None or not a folder. Raises `OSError`.
    """
    if target.exists():
        return
    partial_copy = target.with_name(f".{target.name}.part")
    engines_files.try_to_remove(partial_copy)
    partial_copy.mkdir(parents=True)
    if source is not None and source.is_dir() and not source.is_symlink():
        _copy_tree(source, partial_copy)
    partial_copy.chmod(_FOLDER_MODE)
    partial_copy.rename(target)


def _copy_tree(source: Path, target: Path) -> None:
    """Copy the content of a folder into another one, with modes that let every user write it.

    Links and special files are left out. Raises `OSError`.
    """
    for entry in engines_files.walk(source, on_error=_raise):
        path = target / Path(entry.path).relative_to(source)
        if entry.is_dir(follow_symlinks=False):
            path.mkdir()
            path.chmod(_FOLDER_MODE)
        elif entry.is_file(follow_symlinks=False):
            with open(entry.path, "rb", opener=_open_no_link) as old, path.open("xb") as new:
                _copy_data(old.fileno(), new.fileno())
            path.chmod(_FILE_MODE)


def _raise(error: OSError) -> None:
    """Raise an error, which a walk through folders would ignore."""
    raise error


def _open_no_link(path: str, flags: int) -> int:
    """Open a file, as an opener of `open`, unless it has just been replaced by a link.

    If it was replaced by a pipe, this does not wait for the pipe's writer.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _copy_data(old: int, new: int) -> None:
    """Copy a file's data between two open files; its holes stay holes.

    Holes take no disk space, so no limit of disk space counts them. Filled with zeros, they could
    fill the disk.
    """
    begin = 0
    end = os.fstat(old).st_size
    os.truncate(new, end)
    while begin < end:
        try:
            begin = os.lseek(old, begin, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole remains
                return
            raise
        hole = os.lseek(old, begin, os.SEEK_HOLE)
        begin = _copy_range(old, new, begin, hole)


def _copy_range(
    old: int,
    new: int,
    begin: int,
    end: int,
) -> int:
    """Copy the bytes from ``begin`` to ``end`` between two open files.

    Returns the position after the last byte, less than ``end`` if the old file became shorter.
    """
    os.lseek(new, begin, os.SEEK_SET)
    while begin < end:
        sent = os.sendfile(new, old, begin, end - begin)
        if not sent:
            break
        begin += sent
    return begin


# ---------------------------------------------------------------- the disk


def _no_disk_use(name: str, max_files: int) -> DiskUse:
    """Return that nothing is used: a run of the process engine has no container."""
    return DiskUse()


def _limits_of(run: Run) -> Mapping[str, float | None]:
    """Return the limits that were granted to a run, by kind of resource; None: unlimited."""
    return run.limits


class DiskWatch:
    """Measures at intervals the disk space of each run: in its mounts and inside its container."""

    def __init__(
        self,
        workspace: Workspace,
        reserve: int = 0,
        every: float = 10.0,
        *,
        files: int = 250_000,
        bounds: Callable[[Run], Mapping[str, float | None]] = _limits_of,
        written: Callable[[str, int], DiskUse] = _no_disk_use,
    ) -> None:
        """Watch the runs of a workspace.

        - ``reserve``: bytes of the storage's disk that runs must leave free
        - ``every``: least number of seconds from one measurement of a run to the next
        - ``files``: most files and folders of a run
        - ``bounds``: returns the limits of a run, by kind of resource; None: unlimited
        - ``written``: is called with a run's name and a number of files at which counting may end;
          returns the use inside the run's container
        """
        self._workspace = workspace
        self._reserve = reserve
        self._every = every
        self._files = files
        self.bounds = bounds
        self._written = written
        self._next: dict[str, float] = {}  # time of the next measurement, by run

    def check_room(self, run: Run) -> None:
        """Check that the storage's disk has the space granted to a run, besides the reserve.

        Raises `NoSpace`.
        """
        reserve = max(self._reserve, 0)
        granted = int(run.limits.get("disk") or 0)
        if not reserve and not granted:
            return
        free = shutil.disk_usage(nearest_existing(self._workspace.root)).free
        if free >= reserve + granted:
            return
        text = f"the storage has {_gib(free)} free"
        if granted:
            setting = _disk_setting(run)
            text += f", {run.party.label} was granted {_gib(granted)} of it ({setting})"
        if reserve:
            text += f", and {_gib(reserve)} are kept back (limits.storage_reserve_bytes)"
        # A smaller request helps only if the reserve itself is free.
        remedy = "ask for less" if free >= reserve else "or lower the reserve"
        raise NoSpace(f"{text}: delete data, {remedy}")

    def excess(self, run: Run) -> Failure | None:
        """Return the failure of a run that has written more bytes or files than allowed.

        Returns None if it has not, or if it was measured a short time ago.
        """
        start = time.monotonic()
        if start < self._next.get(run.name, 0.0):
            return None
        try:
            return self._measure(run)
        finally:
            self._schedule_next(run, start)

    def _schedule_next(self, run: Run, start: float) -> None:
        """Note when to measure a run again, after a measurement that began at ``start``.

        The next measurement begins at least ``every`` seconds after ``start``. After a long
        measurement there is a pause, `PAUSE_FACTOR` times as long.
        """
        now = time.monotonic()
        duration = now - start
        pause = max(self._every - duration, PAUSE_FACTOR * duration)
        # Times in the past have no effect. They are removed so that no ended run stays here.
        upcoming = {name: moment for name, moment in self._next.items() if moment > now}
        self._next = {**upcoming, run.name: now + pause}

    def _measure(self, run: Run) -> Failure | None:
        """Measure a run; return the failure if it has written too much."""
        limit = self.bounds(run).get("disk")
        who = f"{run.party.label} in task {run.task_name}"
        allowance = _allowance(run, limit)
        try:
            in_mounts = self._workspace.used(run, self._files)
        except OSError:
            text = f"{who} made folders in folders too deep to be measured; {allowance}"
            return Failure("NO_SPACE", text)
        in_container = self._written_in_container(run)
        if in_mounts.files + in_container.files > self._files:
            text = f"{who} made more than {self._files} files and folders"
            return Failure("NO_SPACE", text)
        size = in_mounts.size + in_container.size
        if limit is None or size <= limit:
            return None
        return Failure("NO_SPACE", f"what {who} wrote takes {_gib(size)} of disk, {allowance}")

    def _written_in_container(self, run: Run) -> DiskUse:
        """Return the use inside a run's container; 0 if its engine fails to report the use."""
        try:
            return self._written(run.name, self._files)
        except EngineError as error:
            log.warning(
                "what a container wrote beside its mounts is not known",
                run=run.name,
                cause=str(error),
            )
            return DiskUse()


def _allowance(run: Run, limit: float | None) -> str:
    """Return the disk space that a run may take, as the end of a message.

    ``limit`` is the number of bytes; None means no limit.
    """
    if limit is None:
        return "it may take any"
    return f"it may take {_gib(limit)} of disk ({_disk_setting(run)})"


def _disk_setting(run: Run) -> str:
    """Return the setting that limits the disk space of a run, as a text in parentheses."""
    is_default = is_site_default(run.limit_origins.get("disk", ""))
    if run.limits.get("disk") and not is_default:
        return "resources.disk"
    return "the node's limit, as the job sets no resources.disk"


def _gib(size: float) -> str:
    """Return a number of bytes in GiB."""
    return f"{size / GIB:.3f} GiB"


# ---------------------------------------------------------------- the node's folders


def make_folder(
    folder: Path,
    setting: str,
    mode: int = 0o777,
) -> None:
    """Make the folder of a setting unless it exists. Raises `Invalid` naming the setting."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=mode)
    except OSError as error:
        existing = nearest_existing(folder)
        if existing.is_dir():
            rule = (
                f"user {os.getuid()} cannot make it in {existing}: {error.strerror}; "
                f"grant that, or choose another {setting}"
            )
        else:
            rule = f"cannot be a folder: {existing} is a file; choose another {setting}"
        problem = Problem(setting, rule, str(folder))
        raise Invalid([problem], reason="FOLDER_UNUSABLE") from error


def is_disk_full(error: OSError) -> bool:
    """Return whether an error means a full disk or an exhausted quota."""
    return error.errno in _NO_SPACE


def try_to_write(folder: Path) -> None:
    """Write some bytes to a temporary file in a folder. Raises `OSError`."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(_SAMPLE)
        file.flush()


def check_storage(
    staging: Callable[[], AbstractContextManager[object]],
    root: Path,
    reserve: int,
) -> None:
    """Check that a task could begin here and write its outputs.

    - ``staging``: begins a write as an upload does; it is only tried here, and discarded
    - ``root``: the storage's folder
    - ``reserve``: bytes of the folder's disk that must be free

    Raises `OSError`, `NoSpace`.
    """
    with staging():
        try_to_write(root)
    if reserve > 0 and shutil.disk_usage(nearest_existing(root)).free < reserve:
        raise NoSpace("its disk has less free than limits.storage_reserve_bytes")
