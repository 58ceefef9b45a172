"""Where a run finds its data and leaves its outputs, seen from the gateway and from inside the container."""

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engines import files as engines_files
from engines import logs as engines_logs
from engines.base import Mount, Written
from gateway.data.remote_storage import Remote
from gateway.domain.problems import name_rule
from gateway.domain.run import Address, Run

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
            shutil.copyfile(entry.path, to, follow_symlinks=False)
            to.chmod(_FILE)


def _stop(error: OSError) -> None:
    raise error


INSIDE = "/bfia/storage"
"""Where a container sees its part of the storage."""

INSIDE_LOG = "/bfia/log"
INSIDE_CHECKPOINT = "/bfia/checkpoint"

_MOST_LOGS = 10_000
"""files and folders of a run's own log folder that are shortened"""


class Unmeasurable(Exception):
    """Folders are nested more deeply than a path can be long."""


@dataclass(frozen=True)
class Placement:
    """One run's view of the storage."""

    storage_url: str
    log_path: str
    mounts: tuple[Mount, ...] = ()
    checkpoint: str = ""
    """the folder for checkpoints, as the run sees it; empty: it has none"""
    reach: tuple[str, ...] = ()
    """``host:port`` of what its storage elsewhere consists of"""


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
    ) -> None:
        """``remote_of`` returns a run's storage elsewhere as the run uses it; with True for a run that begins."""
        self._root = root.absolute()
        self._runs = runs.absolute()
        self._contained = contained
        self._log_bytes = log_bytes
        self._remote_of = remote_of

    def logs(self, run: Run) -> Path:
        """Return the directory in which a run's logs are kept."""
        return self._runs / run.name

    def prepare(self, run: Run) -> Placement:
        """Make the run's directories; return how the run sees them."""
        log = self.logs(run) / "log"
        _closed(log.parent)
        log.mkdir(exist_ok=True)
        self._make_outputs(run, log)
        if run.checkpoint is not None:
            source = self._path(run.checkpoint_from) if run.checkpoint_from else Path(os.devnull)
            copy_checkpoint(source, self._path(run.checkpoint))
        return self.placement(run, begins=True)

    def placement(self, run: Run, *, begins: bool = False) -> Placement:
        """Return how a run sees its places; makes none of them."""
        log = self.logs(run) / "log"
        checkpoint = self._path(run.checkpoint) if run.checkpoint else None
        remote = self._remote_of(run, begins)
        elsewhere, reach = (remote.url(), remote.services) if remote else ("", ())
        if not self._contained:
            return Placement(elsewhere or f"file://{self._root}", str(log), checkpoint=str(checkpoint or ""))
        mounts = [Mount(log, INSIDE_LOG, read_only=False)]
        inputs = [a for a in _here(run.inputs) if self._path(a).exists()]  # an output before it may be missing
        mounts += [Mount(self._path(a), self._inside(a), read_only=True) for a in inputs]
        mounts += [Mount(self._path(a), self._inside(a), read_only=False) for a in _here(run.outputs)]
        if checkpoint is not None:
            mounts.append(Mount(checkpoint, INSIDE_CHECKPOINT, read_only=False))
        inside = INSIDE_CHECKPOINT if checkpoint else ""
        return Placement(elsewhere or f"file://{INSIDE}", INSIDE_LOG, tuple(mounts), inside, reach)

    def _make_outputs(self, run: Run, log: Path) -> None:
        outputs = [self._path(address) for address in _here(run.outputs)]
        if not self._contained:
            self._root.mkdir(parents=True, exist_ok=True)
            return
        log.chmod(0o777)  # the image's own user, whoever that is, writes here
        for path in outputs:
            _closed(path.parent)
            path.mkdir(exist_ok=True)
            path.chmod(0o777)  # as above; the folder around it lets nobody else on this machine in

    def clear(self, run: Run) -> None:
        """Close the run's outputs, delete the empty ones, and shorten log files that are too long."""
        self._shorten_logs(run)
        for address in _here(run.outputs):
            path = self._path(address)
            if self._contained and path.is_dir():
                path.chmod(0o755)  # it is over: whoever reads it later changes nothing
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
                if path.parent != self._root and not any(path.parent.iterdir()):
                    path.parent.rmdir()

    def root(self) -> Path:
        """Return the folder of the storage, or the nearest above it that is there."""
        return next(path for path in (self._root, *self._root.parents) if path.is_dir())

    def used(self, run: Run, most: int) -> Written:
        """Return what a run has written; ``most`` + 1 files are counted. Raises `Unmeasurable`."""
        kept = [run.checkpoint] if run.checkpoint else []
        outputs = {self._path(address) for address in (*_here(run.outputs), *kept)}
        size = files = 0
        for path in (*outputs, self.logs(run) / "log"):
            try:
                more, count = engines_files.size_below(path, most - files)
            except OSError as error:
                raise Unmeasurable from error
            size, files = size + more, files + count
            if files > most:
                break
        return Written(size, files)

    def _shorten_logs(self, run: Run) -> None:
        """Keep both ends of what the run itself wrote to its log folder; what cannot be shortened stays whole."""
        for entry in engines_files.walk(self.logs(run) / "log", _MOST_LOGS):
            with suppress(OSError):
                if entry.is_file(follow_symlinks=False):
                    engines_logs.shorten(Path(entry.path), self._log_bytes)

    def forget(self, run: Run) -> None:
        """Delete a run's logs."""
        engines_files.try_to_remove(self.logs(run))

    def _path(self, address: Address) -> Path:
        folders = address.namespace.split("/") if address.in_place else [address.namespace]
        for name in (*folders, address.name):
            if rule := name_rule(name):  # checked where jobs come in; a path outside the root must be impossible
                raise ValueError(f"{name!r} {rule}")
        return self._root / address.namespace / address.name

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
