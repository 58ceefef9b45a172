"""One session on disk: an append-only journal of records, and a file for each large payload.

A record is ``kind, head length, body length, crc`` followed by the head (JSON) and the body (bytes). The
threat is a crash of the process, not of the machine: nothing is synced, and all that can go wrong is an
incomplete last record, which is dropped when the journal is read. The names of files never contain
anything that came from outside; the session's name is in the journal.
"""

import contextlib
import hashlib
import json
import os
import shutil
import struct
import zlib
from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

_LEAD = struct.Struct("<BIQI")
_COUNT = struct.Struct("<Q")
_MOST_HEAD = 1 << 20
_JOURNAL = "journal"


class Kind(IntEnum):
    """The kind of a record. The numbers are on disk: never reuse one."""

    OPEN = 1  # {session, next}: first record of a journal
    PUSH = 2  # a message came; body is its payload, or empty when it has a file of its own
    TAKEN = 3  # a message is on its way to (reader, pop id)
    BACK = 4  # it did not get there and is unread again
    READ = 5  # messages that are no longer needed
    SEEN = 6  # body: digests of earlier pushes, kept when the journal is rewritten


Entry = tuple[Kind, dict[str, Any], bytes]
"""kind, head and body of a record"""


class Record(NamedTuple):
    """One record: its kind, its head, and where its body lies in the journal."""

    kind: Kind
    head: dict[str, Any]
    offset: int
    size: int


def folder_name(session: str) -> str:
    """Names a session's folder: a hash, so that no session id can choose a path."""
    return hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def read_journal(path: Path) -> tuple[list[Record], int]:
    """Reads every whole record; returns them with the length in bytes of the sound part of the file."""
    records: list[Record] = []
    sound = 0
    with path.open("rb") as file:
        length = os.fstat(file.fileno()).st_size
        while len(lead := file.read(_LEAD.size)) == _LEAD.size:
            kind, head_size, body_size, crc = _LEAD.unpack(lead)
            offset = sound + _LEAD.size + head_size
            if head_size > _MOST_HEAD or offset + body_size > length:
                break
            raw = file.read(head_size)
            if zlib.crc32(raw, kind) != crc or kind not in Kind.__members__.values():
                break
            records.append(Record(Kind(kind), json.loads(raw), offset, body_size))
            sound = offset + body_size
            file.seek(sound)
    return records, sound


class Spool:
    """The folder of one session. Every method blocks; only those on large payloads take noticeable time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / _JOURNAL
        self.size = 0

    def create(self, session: str) -> None:
        """Makes the folder, in place of whatever an earlier failure left there, and begins the journal."""
        remove_tree(self._folder)
        self._folder.mkdir(mode=0o700)
        self.size = 0
        self.append(Kind.OPEN, {"session": session, "next": 0})

    def load(self) -> tuple[list[Record], int]:
        """Reads the journal; returns its records and how many bytes of an incomplete last one were dropped."""
        if not self.path.exists():
            return [], 0
        records, self.size = read_journal(self.path)
        torn = self.path.stat().st_size - self.size
        if torn:
            os.truncate(self.path, self.size)
        return records, torn

    def append(
        self,
        kind: Kind,
        head: dict[str, Any],
        body: bytes = b"",
    ) -> int:
        """Writes one record and returns where its body lies. On OSError the journal is as it was before."""
        record = encoded(kind, head, body)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            try:
                _write_all(descriptor, record)
            except OSError:
                os.ftruncate(descriptor, self.size)
                raise
        finally:
            os.close(descriptor)
        self.size += len(record)
        return self.size - len(body)

    def read(self, offset: int, size: int) -> bytes:
        """Reads the body of a record."""
        with self.path.open("rb") as file:
            payload = os.pread(file.fileno(), size, offset)
        if len(payload) != size:
            raise OSError(f"the journal ends before byte {offset + size}")
        return payload

    def rewrite(self, entries: Iterable[Entry]) -> list[int]:
        """Put a journal of these records in this one's place; return where their bodies lie.

        On OSError the journal is as it was before.
        """
        fresh = self.path.with_suffix(".new")
        bodies: list[int] = []
        size = 0
        try:
            with open(fresh, "wb", opener=opened_private) as file:
                for entry in entries:
                    size += file.write(encoded(*entry))
                    bodies.append(size - len(entry[2]))
            fresh.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise
        self.size = size
        return bodies

    def write_payload(
        self,
        number: int,
        pieces: Iterable[bytes],
        size: int,
    ) -> None:
        """Writes a large payload into its own file. On failure no file is left."""
        path = self.payload_path(number)
        try:
            with open(path, "wb", buffering=0, opener=opened_private) as file:
                file.truncate(
                    size
                )  # a file that does not grow with each write takes them much faster
                for piece in pieces:
                    _write_all(file.fileno(), piece)
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink()
            raise

    def write_part(
        self,
        upload: str,
        offset: int,
        pieces: Iterable[bytes],
        size: int,
        there: int,
    ) -> None:
        """Writes a part of a payload of ``size`` bytes; ``upload`` is a name of our own making.

        Behind those bytes stands how many of them are ``there`` now: the file has its size from the begin, as one
        that grows with each write takes several times as long.
        """
        descriptor = os.open(self._part_path(upload), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, size + _COUNT.size)
            os.lseek(descriptor, offset, os.SEEK_SET)
            for piece in pieces:
                _write_all(descriptor, piece)
            os.lseek(descriptor, size, os.SEEK_SET)
            _write_all(descriptor, _COUNT.pack(there))
        finally:
            os.close(descriptor)

    def part_size(self, upload: str, size: int) -> int:
        """Returns how many bytes of such a payload are there; none if a kill left the file without its count."""
        with contextlib.suppress(FileNotFoundError), self._part_path(upload).open("rb") as file:
            if os.fstat(file.fileno()).st_size == size + _COUNT.size:
                return int(_COUNT.unpack(os.pread(file.fileno(), _COUNT.size, size))[0])
        return 0

    def complete(
        self,
        upload: str,
        number: int,
        size: int,
    ) -> None:
        """Makes a payload that has come wholly that of a message."""
        path = self._part_path(upload)
        os.truncate(path, size)
        path.replace(self.payload_path(number))

    def remove_part(self, upload: str) -> None:
        """Deletes what has come of a payload."""
        with contextlib.suppress(FileNotFoundError):
            self._part_path(upload).unlink()

    def _part_path(self, upload: str) -> Path:
        return self._folder / f"{upload}.part"

    def remove_payload(self, number: int) -> None:
        """Deletes a large payload; it is fine if it is gone already."""
        with contextlib.suppress(FileNotFoundError):
            self.payload_path(number).unlink()

    def payloads(self) -> tuple[set[int], set[str]]:
        """Returns the number of every payload file, and the uploads of which something is there.

        Removes other leftovers.
        """
        found: set[int] = set()
        uploads: set[str] = set()
        for path in self._folder.iterdir():
            if path.suffix == ".payload":
                found.add(int(path.stem))
            elif path.suffix == ".part":
                uploads.add(path.stem)
            elif path.name != _JOURNAL:
                path.unlink()
        return found, uploads

    def payload_path(self, number: int) -> Path:
        """Returns the file of a large payload."""
        return self._folder / f"{number}.payload"

    def retire(self) -> Path:
        """Moves the folder out of the way in one step and returns where it is now, for ``remove_tree``."""
        gone = self._folder.with_name(f"{self._folder.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        self._folder.rename(gone)
        return gone


def remove_tree(folder: Path) -> None:
    """Deletes a retired folder; what resists is left for the next start."""
    shutil.rmtree(folder, ignore_errors=True)


def folders(root: Path) -> Iterator[Path]:
    """Lists the session folders under a root and removes retired ones."""
    for path in sorted(root.iterdir()):
        if path.is_dir() and path.suffix == ".gone":
            remove_tree(path)
        elif path.is_dir():
            yield path


def encoded(
    kind: Kind,
    head: dict[str, Any],
    body: bytes,
) -> bytes:
    """Returns the bytes of a record."""
    raw = json.dumps(head, separators=(",", ":")).encode("ascii")
    return b"".join((_LEAD.pack(kind, len(raw), len(body), zlib.crc32(raw, kind)), raw, body))


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def opened_private(path: str, flags: int) -> int:
    """Opens a file that only this user may read: an ``opener`` for `open`."""
    return os.open(path, flags, 0o600)
