"""The one place that opens the bytes of tables, models and reports: ``file://`` storage.

Written form: a folder ``<root>/<namespace>/<name>`` with ``data_0``, ``data_1``, … and a JSON file ``metadata``.
Every ``data_<n>`` of a table is a complete CSV file (UTF-8, comma) with the header line of its own, so a
component may read one partition alone or all of them in order. A plain file ``<root>/<namespace>/<name>`` is read
too, as some algorithm images write it.

Outputs are written by other people's images, so nothing here follows a symbolic link or opens what is not a file.
"""

import csv
import errno
import fcntl
import hashlib
import io
import json
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

from pydantic_core import from_json

from engines.files import try_to_remove
from gateway.domain.problems import Problem
from gateway.domain.problems import name_rule as name_rule
from gateway.domain.run import Address, FileSum
from gateway.errors import Conflict, Invalid, NotFound, TooLarge

METADATA = "metadata"
PARTITION = "data_"
LARGEST_JSON = 4 * 1024 * 1024
"""bytes of a report or metadata that are read"""
LARGEST_ROW = 4 * 1024 * 1024
"""characters of one row of a table"""
FOLDER = ".staging"
"""where a table is written before it is put in place"""
_CHUNK = 1024 * 1024
_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR})


class FileStorage:
    """Tables, models and reports below one folder. Opening it clears what a dead process was writing."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        for name in leftovers(self.root):
            clear_leftover(self.root, name)

    # ------------------------------------------------------------ reading

    def path(self, address: Address) -> Path:
        """Return the place of an address. Raises `Invalid` for a name that cannot be a folder's."""
        named = (("namespace", address.namespace), ("name", address.name))
        wrong = [Problem(key, rule, text) for key, text in named if (rule := name_rule(text))]
        if wrong:
            raise Invalid(wrong, reason="NAME_NOT_ALLOWED")
        return self.root / address.namespace / address.name

    def exists(self, address: Address) -> bool:
        """Tell whether data lies there; an empty folder is none, a name that is not allowed names none."""
        try:
            path = self.path(address)
        except Invalid:
            return False
        return _is_file(path) or (_is_folder(path) and _is_file(path / f"{PARTITION}0"))

    def taken(self, address: Address) -> bool:
        """Tell whether anything but an empty folder lies there. Raises `Invalid`."""
        path = self.path(address)
        return os.path.lexists(path) and not (_is_folder(path) and not _names(path))

    def partitions(self, address: Address) -> list[Path]:
        """Return the files of the data, in order. Raises `NotFound` where there are none or one is missing."""
        path = self.path(address)
        if _is_file(path):
            return [path]
        found = []
        for entry in _names(path) if _is_folder(path) else ():
            number = entry.removeprefix(PARTITION)
            if entry == f"{PARTITION}{number}" and number.isascii() and number.isdigit():
                found.append(int(number))
        for expected, there in enumerate(sorted(found)):
            if there != expected:
                raise NotFound(f"{_id(address)} lacks its part {PARTITION}{expected}", reason="DATA_MISSING")
        if not found:
            raise NotFound(f"nothing lies at {_id(address)} in the storage", reason="DATA_MISSING")
        return [path / f"{PARTITION}{number}" for number in range(len(found))]

    def metadata(self, address: Address) -> dict[str, Any]:
        """Return what is known of the data; empty where nothing is. Raises `Invalid`, `TooLarge`."""
        path = self.path(address)
        if not _is_folder(path) or not os.path.lexists(path / METADATA):
            return {}
        value = _json(path / METADATA, f"{_id(address)}/{METADATA}", LARGEST_JSON)
        if not isinstance(value, dict):
            raise Invalid([Problem(f"{_id(address)}/{METADATA}", "must be a JSON object")], reason="DATA_BROKEN")
        return value

    def open_partition(self, address: Address, number: int = 0) -> BinaryIO:
        """Open one file of the data. Raises `NotFound`."""
        return self.open_file(address, f"{PARTITION}{number}")

    def sums(self, address: Address) -> tuple[FileSum, ...]:
        """Fingerprint the data's files, and the metadata where there is some. Raises `NotFound`."""
        names = [f"{PARTITION}{n}" for n in range(len(self.partitions(address)))]
        path = self.path(address)
        if _is_folder(path) and _is_file(path / METADATA):
            names.append(METADATA)
        found = []
        for name in names:
            with self.open_file(address, name) as file:
                digest = hashlib.sha256()
                while data := file.read(_CHUNK):
                    digest.update(data)
                found.append(FileSum(name, file.tell(), digest.hexdigest()))
        return tuple(found)

    def open_file(self, address: Address, name: str) -> BinaryIO:
        """Open ``data_<n>`` or ``metadata``; a plain file is its own ``data_0``. Raises `NotFound`."""
        path = self.path(address)
        if _is_file(path) and name == f"{PARTITION}0":
            return _opened(path, _id(address))
        if not _is_folder(path):
            raise NotFound(f"nothing lies at {_id(address)} in the storage", reason="DATA_MISSING")
        return _opened(path / name, _id(address))

    def read_json(self, address: Address, limit: int = LARGEST_JSON) -> Any:
        """Return a report. Raises `NotFound`, `TooLarge` above ``limit`` bytes, `Invalid` if it is not JSON."""
        return _json(self.partitions(address)[0], _id(address), limit)

    def stream(self, address: Address, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Yield the bytes of all parts, from ``start`` on. Raises `NotFound` before the first byte."""
        left = sys.maxsize if length is None else length
        for part in self.partitions(address):
            with _opened(part, _id(address)) as file:
                size = os.fstat(file.fileno()).st_size
                if start >= size:
                    start -= size
                    continue
                file.seek(start)
                start = 0
                while left > 0 and (data := file.read(min(_CHUNK, left))):
                    left -= len(data)
                    yield data

    def stamp(self, address: Address) -> tuple[int, str]:
        """Return the length of what `stream` yields, and a text that changes with it. Raises `NotFound`."""
        try:
            seen = [part.lstat() for part in self.partitions(address)]
        except FileNotFoundError as error:
            raise NotFound(f"what lay at {_id(address)} was deleted meanwhile", reason="DATA_MISSING") from error
        size = sum(one.st_size for one in seen)
        return size, f"{size:x}-{len(seen):x}-{max(one.st_mtime_ns for one in seen):x}"

    def checksum(self, address: Address) -> str:
        """Return the sha256 of what `stream` yields, in hex. Raises `NotFound`."""
        digest = hashlib.sha256()
        for data in self.stream(address):
            digest.update(data)
        return digest.hexdigest()

    def columns(self, address: Address) -> list[str]:
        """Return the header of a table. Raises `NotFound`, `Invalid` where there is none or no CSV."""
        header = next(self._records(address, 0), None)
        if not header:
            raise Invalid([Problem(_id(address), "has no header line")], reason="DATA_BROKEN")
        return header

    def iter_rows(self, address: Address) -> Iterator[list[str]]:
        """Yield the rows of a table, part by part, without headers. Raises `NotFound`, `Invalid` if no CSV."""
        header = self.columns(address)
        for number in range(len(self.partitions(address))):
            rows = self._records(address, number)
            first = next(rows, header)
            if first != header:
                yield first
            yield from rows

    def _records(self, address: Address, number: int) -> Iterator[list[str]]:
        part = f"{_id(address)}/{PARTITION}{number}"
        with (
            self.open_partition(address, number) as file,
            io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text,
        ):
            lines = _Lines(text, part)
            try:
                for row in csv.reader(lines, strict=True):
                    lines.length = 0
                    if row:
                        yield row
            except (csv.Error, UnicodeDecodeError) as error:
                raise Invalid([Problem(part, "is not CSV in UTF-8", str(error))], reason="DATA_BROKEN") from error

    # ------------------------------------------------------------ writing

    def staging(self) -> "Staging":
        """Begin a write; nothing of it is visible before `published`, nothing is left after its end."""
        return Staging(self.root)

    @contextmanager
    def published(self, staging: "Staging", address: Address, *, overwrite: bool) -> Iterator[None]:
        """Put a table in its place; if the block raises, all is as before. Raises `Conflict`, `Invalid`."""
        target = self.path(address)
        staging.put(target, address, overwrite)
        try:
            yield
        except BaseException:
            staging.take_back(target)
            raise

    def delete(self, address: Address) -> bool:
        """Delete what lies at an address; False where nothing does. Raises `Invalid` for a bad name."""
        path = self.path(address)
        if not os.path.lexists(path):
            return False
        with self.staging() as staging:
            try:
                path.rename(staging.folder / "deleted")
            except FileNotFoundError:
                return False
        _drop_if_empty(path.parent)
        return True


class Staging:
    """The folder of one write, of which ``table`` gets published; it is locked while its process lives."""

    def __init__(self, root: Path) -> None:
        base = root / FOLDER
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = None
        while lock is None:  # else another process took the new folder for a dead one's
            self.folder = base / secrets.token_hex(8)
            self.folder.mkdir()
            lock = _locked(self.folder)
        self._lock = lock
        self.table = self.folder / "new"
        self.table.mkdir()

    def put(self, target: Path, address: Address, overwrite: bool) -> None:
        """Put the table in its place. Raises `Conflict`."""
        self.table.chmod(0o755)  # containers run as users of their own; the folder above is closed to others
        for file in self.table.iterdir():
            file.chmod(0o644)
        (self.folder / "target").write_text(json.dumps([address.namespace, address.name]), encoding="utf-8")
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

    def take_back(self, target: Path) -> None:
        """Undo `put`: everything is as it was before."""
        target.rename(self.table)
        with suppress(FileNotFoundError):
            (self.folder / "old").rename(target)
        _drop_if_empty(target.parent)

    def close(self) -> None:
        """Delete the folder with all that is left in it."""
        try_to_remove(self.folder)
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


def clear_leftover(root: Path, name: str) -> None:
    """Delete what a dead process left, or complete its replacement; a living one's folder stays as it is."""
    folder = root / FOLDER / name
    if (lock := _locked(folder)) is None:
        return
    if os.path.lexists(folder / "old") and (folder / "new").is_dir():  # it died between the two steps
        target = root.joinpath(*json.loads((folder / "target").read_text(encoding="utf-8")))
        if not os.path.lexists(target):
            (folder / "new").rename(target)
    try_to_remove(folder)
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


def _drop_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


class _Lines:
    """The lines of a table. Raises `Invalid` where a row is larger than any that can be uploaded."""

    def __init__(self, text: io.TextIOWrapper, part: str) -> None:
        self._text = text
        self._part = part
        self.length = 0
        """of the row so far; whoever has read the row sets it to 0"""

    def __iter__(self) -> Iterator[str]:
        while line := self._text.readline(LARGEST_ROW + 1):
            self.length += len(line)
            if self.length > LARGEST_ROW:
                rule = f"has a row of more than {LARGEST_ROW} characters"
                raise Invalid([Problem(self._part, rule)], reason="DATA_BROKEN")
            yield line


def taken(address: Address) -> Conflict:
    """Return the refusal to write where something lies."""
    return Conflict(f"{_id(address)} exists; to replace it set overwrite (or drop): true", reason="DATASET_EXISTS")


def _id(address: Address) -> str:
    return f"{address.namespace}#{address.name}"


def _names(folder: Path) -> list[str]:
    """List a folder; nothing where it has just been deleted."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _is_file(path: Path) -> bool:
    return _mode_is(path, stat.S_ISREG)


def _is_folder(path: Path) -> bool:
    return _mode_is(path, stat.S_ISDIR)


def _mode_is(path: Path, kind: Callable[[int], bool]) -> bool:
    try:
        return kind(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def _opened(path: Path, what: str) -> BinaryIO:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        text = f"{what}: {path.name} cannot be opened ({error.strerror})"
        raise NotFound(text, reason="DATA_MISSING") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotFound(f"{what}: {path.name} is not a file", reason="DATA_MISSING")
    return os.fdopen(handle, "rb")


def _json(path: Path, what: str, limit: int) -> Any:
    with _opened(path, what) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise TooLarge(f"{what} has more than {limit} bytes")
    try:
        return from_json(data)
    except ValueError as error:
        raise Invalid([Problem(what, "is not JSON", str(error))], reason="DATA_BROKEN") from error
