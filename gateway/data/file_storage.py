"""The storage in a folder of this machine (``file://``).

No symbolic link is followed, and only regular files are opened. A plain file
``<root>/<namespace>/<name>`` is read as its own ``data_0``, as some algorithm images write it.
Every write is prepared in a separate folder and becomes visible in one step.
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

from engines.files import remove, try_to_remove
from gateway.data.storage import (
    METADATA,
    PARTITION,
    Parts,
    Storage,
    Stored,
    check_names,
    missing_error,
    taken_error,
)
from gateway.data.table_search import TableListing, TableSearch
from gateway.domain.run import Address
from gateway.errors import NotFound

STAGING_FOLDER = ".staging"  # parent of the folders in which writes are prepared
_TARGET = "target"  # file in such a folder that names the address of the write
# Errors of renaming a folder to a path that exists.
_TAKEN_ERRORS = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR})


class BufferedParts:
    """The partitions of a table in a folder, which are written through one bounded buffer.

    So at most one file is open at a time. ``budget`` is the size of the buffer in bytes.
    """

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
        self._buffered_bytes = 0

    def path(self, number: int) -> Path:
        """Return the path of a partition, which exists once the buffer wrote bytes to it."""
        return self._folder / f"{self._prefix}{number}"

    def add(self, number: int, data: bytes) -> None:
        """Append to a partition through the buffer, which is written when it is full.

        Raises `OSError`.
        """
        self._buffer[number] += data
        self._buffered_bytes += len(data)
        if self._buffered_bytes > self._budget:
            self.finish()

    def finish(self) -> None:
        """Write the whole buffer; further bytes may follow.

        Raises `OSError`.
        """
        for number, data in self._buffer.items():
            with self.path(number).open("ab") as file:
                file.write(data)
        self._buffer.clear()
        self._buffered_bytes = 0


class Staging:
    """The folder in which one write is prepared; its subfolder `table` is published.

    The folder is locked until `close` or the end of the process, so that other processes recognise
    the folders of dead processes.
    """

    def __init__(self, root: Path) -> None:
        base = root / STAGING_FOLDER
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = None
        while lock is None:  # another process may clear the new folder before it is locked
            self.folder = base / secrets.token_hex(8)
            self.folder.mkdir()
            lock = _lock_folder(self.folder)
        self._lock = lock
        self.table = self.folder / "new"
        self.table.mkdir()
        # The writer of the partitions, see `Storage.parts`; None: all files are put into ``table``.
        self.parts: Parts | None = None
        # True: files that this write sent to a storage elsewhere (S3, HDFS) could not be deleted.
        # The folder then stays with the note of the target, from which `gc` deletes them later.
        self.stays = False

    def put(
        self,
        target: Path,
        address: Address,
        overwrite: bool,
    ) -> None:
        """Move the table to its target; with ``overwrite``, an existing one is moved away.

        Raises `Conflict` if there is a table, and no ``overwrite``.
        """
        # Containers read the table as other users. The folder of the namespace keeps the users of
        # this machine out.
        self.table.chmod(0o755)
        for file in self.table.iterdir():
            file.chmod(0o644)
        self.note(address)
        while True:  # another write or deletion may come between the steps
            target.parent.mkdir(mode=0o700, exist_ok=True)
            if overwrite:
                with suppress(FileNotFoundError):
                    old = self.folder / "old"  # it may exist from an earlier turn
                    try_to_remove(old)
                    target.rename(old)
            try:
                self.table.rename(target)
                return
            except FileNotFoundError:  # the empty folder of the namespace was just deleted
                continue
            except OSError as error:
                if error.errno not in _TAKEN_ERRORS:
                    raise
                if not overwrite:
                    raise taken_error(address) from None
                # Another write was faster: its table is moved away in the next turn.

    def note(self, address: Address) -> None:
        """Note the target of the write, so that the write can be cleared after its process died.

        The note is read by `clear_leftover`.
        """
        target = [address.namespace, address.name, address.storage]
        (self.folder / _TARGET).write_text(json.dumps(target), encoding="utf-8")

    def take_back(self, target: Path) -> None:
        """Undo `put`: move the new table back to this folder, and the replaced one to the target.

        Between the two steps there is no table at the target.
        """
        target.rename(self.table)
        with suppress(FileNotFoundError):
            (self.folder / "old").rename(target)
        drop_if_empty(target.parent)

    def close(self) -> None:
        """Delete the folder and release its lock.

        With `stays`, the folder and its note of the target stay.
        """
        if self.stays:
            for path in list(self.folder.iterdir()):
                if path.name != _TARGET:
                    try_to_remove(path)
        else:
            try_to_remove(self.folder)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def leftovers(root: Path) -> list[str]:
    """Return the names of the folders that dead processes left, sorted.

    A folder that can be locked belongs to no living process.
    """
    names = []
    for path in sorted((root / STAGING_FOLDER).glob("*")):
        lock = _lock_folder(path)
        if lock is not None:
            os.close(lock)
            names.append(path.name)
    return names


def _nothing_deleted(_target: Address) -> bool:
    """Return False: this caller cannot delete anything in storages elsewhere."""
    return False


def clear_leftover(
    root: Path,
    name: str,
    delete_elsewhere: Callable[[Address], bool] = _nothing_deleted,
) -> None:
    """Delete the folder that a dead process left.

    If the process died while it replaced a table, the new table is put in its place first. The
    folder of a living process stays. ``delete_elsewhere`` deletes the files that the process
    sent to another storage, and returns whether it succeeded; until then the folder stays, too.
    """
    folder = root / STAGING_FOLDER / name
    lock = _lock_folder(folder)
    if lock is None:
        return
    try:
        target = _read_target(folder)
        if target.storage and not delete_elsewhere(target):
            return
        # Without a noted target this path is the root itself, which exists: nothing is moved.
        _complete_replacement(folder, root / target.namespace / target.name)
        try_to_remove(folder)
    finally:
        os.close(lock)


def _read_target(folder: Path) -> Address:
    """Return the target that was noted in a folder.

    Without a readable note, the write had not begun: the result is an address of empty names.
    """
    with suppress(OSError, ValueError):
        return Address(*json.loads((folder / _TARGET).read_text(encoding="utf-8")))
    return Address("", "")


def _complete_replacement(folder: Path, path: Path) -> None:
    """Put the new table in its place if the process died after it had moved the old one away.

    ``folder``: the folder of the write; ``path``: the target of the write.
    """
    new = folder / "new"
    was_replacing = os.path.lexists(folder / "old") and new.is_dir()
    if was_replacing and not os.path.lexists(path):
        new.rename(path)


def _lock_folder(folder: Path) -> int | None:
    """Lock a folder and return its descriptor; None if another process holds or has deleted it.

    The lock ends when the descriptor is closed, also by the end of the process.
    """
    try:
        lock = os.open(
            folder,
            os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC,
        )
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder.exists():  # else it was deleted between the opening and the lock
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def drop_if_empty(folder: Path) -> None:
    """Delete a folder if it is empty.

    Another process may fill or delete it at the same time.
    """
    with suppress(OSError):
        folder.rmdir()


class FileStorage(Storage):
    """Tables, models and reports below one folder.

    Opening it clears unfinished writes of dead processes.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        for name in leftovers(self.root):
            clear_leftover(self.root, name)

    def path(self, address: Address) -> Path:
        """Return the path of an address. Raises `Invalid` for a name that cannot be a folder's."""
        check_names(address)
        return self.root / address.namespace / address.name

    def files(self, address: Address) -> Mapping[str, Stored]:
        """Return the regular files at an address by name; a plain file is called ``data_0``.

        Links, pipes and folders are left out. Raises `Invalid`.
        """
        stored = {}
        for name, path in self._paths(address).items():
            with suppress(OSError, ValueError):  # deleted in the meantime
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    stored[name] = Stored(name, status.st_size, f"{status.st_mtime_ns:x}")
        return stored

    def _paths(self, address: Address) -> Mapping[str, Path]:
        """Return the paths at an address by their names; a plain file is called ``data_0``.

        Empty if the address has nothing, or is a link.
        """
        path = self.path(address)
        if _is_folder(path):
            return {name: path / name for name in _names(path)}
        if _is_file(path):
            return {f"{PARTITION}0": path}
        return {}

    def taken(self, address: Address) -> bool:
        """Return whether there is anything but an empty folder at an address. Raises `Invalid`."""
        path = self.path(address)
        if _is_folder(path):
            return bool(_names(path))
        return os.path.lexists(path)

    def names(
        self,
        namespace: str,
        storage: str = "",
    ) -> list[str]:
        """Return the names in a namespace, sorted.

        A namespace that is a link counts as missing. ``storage`` is not used, as this is a single
        storage: see `Storage.names`.
        """
        folder = self.root / namespace
        if not _is_folder(folder):
            return []
        return sorted(_names(folder))

    def entries(self, address: Address) -> list[str]:
        """Return the names of all entries of an address's folder, sorted; empty without a folder.

        A folder that is a link counts as missing. Raises `Invalid`.
        """
        folder = self.path(address)
        if not _is_folder(folder):
            return []
        return sorted(_names(folder))

    def delete_entry(self, address: Address, name: str) -> None:
        """Delete a file, a link or a folder in an address's folder. Raises `Invalid`, `OSError`."""
        if name not in self.entries(address):
            return
        path = self.path(address) / name
        if _is_folder(path):
            remove(path)
        else:
            path.unlink(missing_ok=True)

    def namespaces(self) -> set[str]:
        """Return the names of all entries of the root that are not hidden.

        The folder of unfinished writes is hidden.
        """
        return {path.name for path in self.root.glob("[!.]*")}

    def find_tables(self, search: TableSearch) -> TableListing:
        """Search for tables within the search's bounds.

        Folders that this process may not read count as empty.
        """
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
        """Yield the addresses in the searched namespaces; unreadable folders have none."""
        for namespace in sorted(self.namespaces()):
            if not search.accepts_namespace(namespace):
                continue
            names = []
            with suppress(OSError):
                names = self.names(namespace)
            for name in names:
                yield Address(namespace, name)

    def _holds_table(self, address: Address) -> bool:
        """Return whether there is a table at an address.

        False if that cannot be read.
        """
        with suppress(OSError):
            return self.exists(address)
        return False

    def open_file(
        self,
        address: Address,
        name: str,
        start: int = 0,
    ) -> BufferedReader:
        """Open a file of an address, positioned at the byte ``start``.

        Raises `NotFound` if there is no such file, or a link in its place.
        """
        path = self.path(address)
        if _is_file(path) and name == f"{PARTITION}0":
            file = _open_regular(path, address.dataset_id)
        elif _is_folder(path):
            file = _open_regular(path / name, address.dataset_id)
        else:
            raise missing_error(address)
        if start:
            file.seek(start)
        return file

    def staging(self) -> Staging:
        """Begin a write, which is visible only after `published`, and leaves nothing without it."""
        return Staging(self.root)

    @contextmanager
    def published(
        self,
        staging: Staging,
        address: Address,
        *,
        overwrite: bool,
    ) -> Iterator[None]:
        """Move a staged table to its place.

        If the block raises, it is moved back, and so is a table that it replaced. Raises
        `Conflict`.
        """
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
    def parts(
        self,
        staging: Staging,
        address: Address,
    ) -> Iterator[Parts]:
        """Begin a table whose partitions are written to the staging folder.

        `published` writes the bytes that are then still in their buffer.
        """
        staging.parts = BufferedParts(staging.table, PARTITION)
        yield staging.parts

    def write_metadata(self, address: Address, data: bytes) -> None:
        """Replace the metadata of a table in one step: the new file is renamed.

        Raises `NotFound` without a table.
        """
        path = self.path(address)
        if not _is_folder(path):
            raise missing_error(address)
        with self.staging() as staging:
            new = staging.folder / METADATA
            new.write_bytes(data)
            new.chmod(0o644)
            new.replace(path / METADATA)

    def delete(self, address: Address) -> bool:
        """Delete all files at an address, and the namespace if it is empty then.

        The folder is moved away first, so that no half deleted table is visible. Returns False if
        there is nothing.
        """
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
    """Return the names in a folder; empty if it has just been deleted."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _is_file(path: Path) -> bool:
    """Return whether a path is a file and no symbolic link.

    A link could lead to a file outside of the storage.
    """
    return os.path.isfile(path) and not os.path.islink(path)


def _is_folder(path: Path) -> bool:
    """Return whether a path is a folder and no symbolic link.

    A link could lead to a folder outside of the storage.
    """
    return os.path.isdir(path) and not os.path.islink(path)


def _open_regular(path: Path, label: str) -> BufferedReader:
    """Open a regular file. Raises `NotFound`, in whose text ``label`` names the data.

    It does not wait for a pipe's writer (O_NONBLOCK), nor follow a link (O_NOFOLLOW).
    """
    try:
        handle = os.open(
            path,
            os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
        )
    except OSError as error:
        text = f"{label}: {path.name} cannot be opened ({error.strerror})"
        raise NotFound(text, reason="DATA_MISSING") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotFound(f"{label}: {path.name} is not a file", reason="DATA_MISSING")
    return os.fdopen(handle, "rb")
