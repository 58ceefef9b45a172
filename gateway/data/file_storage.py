"""``file://`` storage: one folder. Nothing here follows a symbolic link or opens what is not a file.

A plain file ``<root>/<namespace>/<name>`` is read as its own ``data_0``, as some algorithm images write it. A
write is prepared in a folder of its own, wherever it is going: nothing of it is visible before it is whole.
"""

import errno
import fcntl
import json
import os
import secrets
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Self

from engines.files import try_to_remove
from gateway.data.storage import (
    METADATA,
    PARTITION,
    Parts,
    Storage,
    Stored,
    check_names,
    missing,
    taken,
)
from gateway.data.table_search import TableListing, TableSearch
from gateway.domain.run import Address
from gateway.errors import NotFound

FOLDER = ".staging"
"""where a table is written before it is put in place"""
_TARGET = "target"
_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR})


class Buckets:
    """Files of a folder, appended to through one bounded buffer, so that few are open at the same time."""

    def __init__(
        self,
        folder: Path,
        prefix: str,
        budget: int = 8 * 1024 * 1024,
    ) -> None:
        self._folder = folder
        self._prefix = prefix
        self._budget = budget
        self._buffer: defaultdict[int, bytearray] = defaultdict(bytearray)
        self._bytes = 0

    def path(self, number: int) -> Path:
        """Return the file of a bucket; it is there once something was flushed to it."""
        return self._folder / f"{self._prefix}{number}"

    def add(self, number: int, data: bytes) -> None:
        """Append to a file, sooner or later. Raises `OSError`."""
        self._buffer[number] += data
        self._bytes += len(data)
        if self._bytes > self._budget:
            self.finish()

    def finish(self) -> None:
        """Write the whole buffer. Raises `OSError`."""
        for number, data in self._buffer.items():
            with self.path(number).open("ab") as file:
                file.write(data)
        self._buffer.clear()
        self._bytes = 0


class Staging:
    """The folder of one write, of which ``table`` gets published; it is locked while its process lives."""

    def __init__(self, root: Path) -> None:
        base = root / FOLDER
        base.mkdir(
            mode=0o700,
            parents=True,
            exist_ok=True,
        )
        lock = None
        while lock is None:  # else another process took the new folder for a dead one's
            self.folder = base / secrets.token_hex(8)
            self.folder.mkdir()
            lock = _locked(self.folder)
        self._lock = lock
        self.table = self.folder / "new"
        self.table.mkdir()
        self.parts: Parts | None = None
        """what is written elsewhere while it comes, see `Storage.parts`"""
        self.stays = False
        """whether the note of where the table went outlasts this, for what could not be deleted there"""

    def put(
        self,
        target: Path,
        address: Address,
        overwrite: bool,
    ) -> None:
        """Put the table in its place. Raises `Conflict`."""
        self.table.chmod(
            0o755
        )  # containers run as users of their own; the folder above is closed to others
        for file in self.table.iterdir():
            file.chmod(0o644)
        self.note(address)
        while True:  # another write or deletion may come between the steps
            target.parent.mkdir(mode=0o700, exist_ok=True)
            if overwrite:
                with suppress(FileNotFoundError):
                    old = self.folder / "old"
                    try_to_remove(old)
                    target.rename(old)
            try:
                self.table.rename(target)
                return
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
                if not overwrite:
                    raise taken(address) from None

    def note(self, address: Address) -> None:
        """Write down where the table is going, for those who find this folder after its process died."""
        target = [address.namespace, address.name, address.storage]
        (self.folder / _TARGET).write_text(json.dumps(target), encoding="utf-8")

    def take_back(self, target: Path) -> None:
        """Undo `put`: everything is as it was before."""
        target.rename(self.table)
        with suppress(FileNotFoundError):
            (self.folder / "old").rename(target)
        drop_if_empty(target.parent)

    def close(self) -> None:
        """Delete the folder with all that is left in it."""
        for path in [*self.folder.iterdir()] if self.stays else [self.folder]:
            if path.name != _TARGET:
                try_to_remove(path)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def leftovers(root: Path) -> list[str]:
    """Return the names of folders that dead processes left."""
    found = []
    for path in sorted((root / FOLDER).glob("*")):
        if (lock := _locked(path)) is not None:
            os.close(lock)
            found.append(path.name)
    return found


def clear_leftover(
    root: Path,
    name: str,
    elsewhere: Callable[[Address], bool] = lambda target: False,
) -> None:
    """Delete what a dead process left, or complete its replacement; a living one's folder stays as it is.

    ``elsewhere`` deletes what it sent to another storage, and tells whether it did; until then the folder stays.
    """
    folder = root / FOLDER / name
    if (lock := _locked(folder)) is None:
        return
    try:
        target = Address("", "")
        with suppress(OSError, ValueError):
            target = Address(*json.loads((folder / _TARGET).read_text(encoding="utf-8")))
        if target.storage and not elsewhere(target):
            return
        if (
            os.path.lexists(folder / "old") and (folder / "new").is_dir()
        ):  # it died between the two steps
            path = root / target.namespace / target.name
            if not os.path.lexists(path):
                (folder / "new").rename(path)
        try_to_remove(folder)
    finally:
        os.close(lock)


def _locked(folder: Path) -> int | None:
    """Lock a folder; None where another holds it, or deleted it in the meantime."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder.exists():
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def drop_if_empty(folder: Path) -> None:
    """Delete a folder in which nothing is."""
    with suppress(OSError):
        folder.rmdir()


class FileStorage(Storage):
    """Tables, models and reports below one folder. Opening it clears what a dead process was writing."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        for name in leftovers(self.root):
            clear_leftover(self.root, name)

    def path(self, address: Address) -> Path:
        """Return the place of an address. Raises `Invalid` for a name that cannot be a folder's."""
        check_names(address)
        return self.root / address.namespace / address.name

    def files(self, address: Address) -> Mapping[str, Stored]:
        path = self.path(address)
        found = {f"{PARTITION}0": path} if _is_file(path) else {}
        if _is_folder(path):
            found = {name: path / name for name in _names(path)}
        stored = {}
        for name, file in found.items():
            with suppress(OSError, ValueError):  # deleted meanwhile
                status = file.lstat()
                if stat.S_ISREG(status.st_mode):
                    stored[name] = Stored(name, status.st_size, f"{status.st_mtime_ns:x}")
        return stored

    def taken(self, address: Address) -> bool:
        """Tell whether anything but an empty folder lies there. Raises `Invalid`."""
        path = self.path(address)
        return os.path.lexists(path) and not (_is_folder(path) and not _names(path))

    def names(self, namespace: str, storage: str = "") -> list[str]:
        folder = self.root / namespace
        return sorted(_names(folder)) if _is_folder(folder) else []

    def namespaces(self) -> set[str]:
        return {path.name for path in self.root.glob("[!.]*")}

    def find_tables(self, search: TableSearch) -> TableListing:
        """Search for tables; folders that this process may not read count as empty."""
        deadline = search.deadline()
        tables: list[Address] = []
        for address in self._candidates(search):
            if time.monotonic() > deadline:
                return TableListing(tables, is_complete=False)
            if not search.accepts(address) or not self._holds_table(address):
                continue
            if len(tables) == search.max_tables:
                return TableListing(tables, is_complete=False)
            tables.append(address)
        return TableListing(tables, is_complete=True)

    def _candidates(self, search: TableSearch) -> Iterator[Address]:
        for namespace in sorted(self.namespaces()):
            if not search.accepts_namespace(namespace):
                continue
            names = []
            with suppress(OSError):
                names = self.names(namespace)
            for name in names:
                yield Address(namespace, name)

    def _holds_table(self, address: Address) -> bool:
        with suppress(OSError):
            return self.exists(address)
        return False

    def open_file(
        self,
        address: Address,
        name: str,
        start: int = 0,
    ) -> BufferedReader:
        path = self.path(address)
        if _is_file(path) and name == f"{PARTITION}0":
            file = _opened(path, address.dataset_id)
        elif _is_folder(path):
            file = _opened(path / name, address.dataset_id)
        else:
            raise missing(address)
        if start:
            file.seek(start)
        return file

    def staging(self) -> Staging:
        """Begin a write; nothing of it is visible before `published`, nothing is left after its end."""
        return Staging(self.root)

    @contextmanager
    def published(
        self,
        staging: Staging,
        address: Address,
        *,
        overwrite: bool,
    ) -> Iterator[None]:
        target = self.path(address)
        if staging.parts is not None:
            staging.parts.finish()
        staging.put(target, address, overwrite)
        try:
            yield
        except BaseException:
            staging.take_back(target)
            raise

    @contextmanager
    def parts(self, staging: Staging, address: Address) -> Iterator[Parts]:
        staging.parts = Buckets(staging.table, PARTITION)
        yield staging.parts

    def write_metadata(self, address: Address, data: bytes) -> None:
        path = self.path(address)
        if not _is_folder(path):
            raise missing(address)
        with self.staging() as staging:
            new = staging.folder / METADATA
            new.write_bytes(data)
            new.chmod(0o644)
            new.replace(path / METADATA)

    def delete(self, address: Address) -> bool:
        path = self.path(address)
        if not os.path.lexists(path):
            return False
        with self.staging() as staging:
            try:
                path.rename(staging.folder / "deleted")
            except FileNotFoundError:
                return False
        drop_if_empty(path.parent)
        return True


def _names(folder: Path) -> list[str]:
    """List a folder; nothing where it has just been deleted."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _is_file(path: Path) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _opened(path: Path, what: str) -> BufferedReader:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        text = f"{what}: {path.name} cannot be opened ({error.strerror})"
        raise NotFound(text, reason="DATA_MISSING") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotFound(f"{what}: {path.name} is not a file", reason="DATA_MISSING")
    return os.fdopen(handle, "rb")
