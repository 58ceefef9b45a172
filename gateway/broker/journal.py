"""One session on disk: an append-only journal of records, and a file for each large payload.

A record is ``kind, head length, body length, crc`` followed by the head (JSON) and the body
(bytes). The crc covers the kind and the head, but not the body. The journal survives a crash of the
process, but not of the machine, as nothing is synced. The only damage of a crash is an incomplete
last record, which is dropped when the journal is read. The names of files never contain text from
other parties; the session's name is in the journal.
"""

import contextlib
import hashlib
import json
import os
import shutil
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

JOURNAL = "journal"  # name of the journal's file
MAX_HEAD_SIZE = 1 << 20  # bytes; a longer head is damage
LEAD = struct.Struct("<BIQI")  # kind, head length, body length, crc
MOST_AHEAD = 15  # parts of an upload that are stored behind a gap
# What an upload has received, after its payload: the offsets of parts behind a gap, each with the
# offset after the part (0, 0: none); and the bytes without a gap.
_PROGRESS = struct.Struct(f"<{2 * MOST_AHEAD}QQ")
RETIRED = ".gone"  # suffix of a folder that is being removed


class Kind(IntEnum):
    """The kind of a record. The numbers are on disk: never reuse one."""

    OPEN = 1  # first record of a journal; head: the session, and the next message's number
    PUSH = 2  # a new message; body: the payload, or empty if the payload has a file of its own
    TAKEN = 3  # a message is in delivery; head: its number, the reader, and the id of the pop
    BACK = 4  # the delivery of a message failed, and the message is unread again
    READ = 5  # numbers of messages that are no longer needed
    SEEN = 6  # second record of a rewritten journal; body: the digests of earlier pushes


# Kind, head and body of a record.
Entry = tuple[Kind, dict[str, Any], bytes]


class Record(NamedTuple):
    """One record, with the place of its body in the journal."""

    kind: Kind
    head: dict[str, Any]
    offset: int  # of the body
    size: int  # bytes of the body


def folder_name(session: str) -> str:
    """Return the name of a session's folder: a hash, so that no session id can choose a path."""
    return hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def read_journal(path: Path) -> tuple[list[Record], int]:
    """Read every complete record; return the records and the size of the file's undamaged part."""
    records: list[Record] = []
    end = 0  # offset at which the last complete record ends
    with path.open("rb") as file:
        length = os.fstat(file.fileno()).st_size
        while True:
            record = _read_record(file, end, length)
            if record is None:
                return records, end
            records.append(record)
            end = record.offset + record.size
            file.seek(end)


def _read_record(
    file: BinaryIO,
    start: int,
    length: int,
) -> Record | None:
    """Read the record at byte ``start`` of a journal of ``length`` bytes, without its body.

    Return None at the end, and for an incomplete or damaged record.
    """
    lead = file.read(LEAD.size)
    if len(lead) < LEAD.size:
        return None
    kind, head_size, body_size, crc = LEAD.unpack(lead)
    offset = start + LEAD.size + head_size
    is_complete = head_size <= MAX_HEAD_SIZE and offset + body_size <= length
    if not is_complete:
        return None
    raw = file.read(head_size)
    if zlib.crc32(raw, kind) != crc or kind not in Kind.__members__.values():
        return None
    return Record(
        Kind(kind),
        json.loads(raw),
        offset,
        body_size,
    )


class Spool:
    """The folder of one session. Every method blocks, noticeably only for large payloads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / JOURNAL
        self.size = 0  # bytes of the journal

    def create(self, session: str) -> None:
        """Create the folder, replacing the remains of an earlier failure, and begin the journal."""
        remove_tree(self._folder)
        self._folder.mkdir(mode=0o700)
        self.size = 0
        self.append(
            Kind.OPEN,
            {"session": session, "next": 0},
        )

    def load(self) -> tuple[list[Record], int]:
        """Read the journal, and cut off a damaged end.

        Return the records, and how many bytes were cut off.
        """
        if not self.path.exists():
            return [], 0
        records, self.size = read_journal(self.path)
        damaged = self.path.stat().st_size - self.size
        if damaged:
            os.truncate(self.path, self.size)
        return records, damaged

    def append(
        self,
        kind: Kind,
        head: dict[str, Any],
        body: bytes = b"",
    ) -> int:
        """Append a record and return the offset of its body.

        On `OSError` the journal is unchanged.
        """
        record = encode(kind, head, body)
        descriptor = os.open(
            self.path,
            os.O_WRONLY | os.O_APPEND | os.O_CREAT,
            0o600,
        )
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
        """Return the body of a record. Raises `OSError` if the journal is too short."""
        with self.path.open("rb") as file:
            payload = os.pread(file.fileno(), size, offset)
        if len(payload) != size:
            raise OSError(f"the journal ends before byte {offset + size}")
        return payload

    def rewrite(
        self,
        entries: Iterable[Entry],
    ) -> list[int]:
        """Replace the journal by a new one with these records; return the offsets of the bodies.

        On `OSError` the journal is unchanged.
        """
        new_path = self.path.with_suffix(".new")
        offsets: list[int] = []
        size = 0
        try:
            with open(new_path, "wb", opener=open_private) as file:
                for kind, head, body in entries:
                    size += file.write(encode(kind, head, body))
                    offsets.append(size - len(body))
            new_path.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                new_path.unlink()
            raise
        self.size = size
        return offsets

    def write_payload(
        self,
        number: int,
        pieces: Iterable[bytes],
        size: int,
    ) -> None:
        """Write the payload of a large message into a file. On failure no file remains."""
        path = self.payload_path(number)
        try:
            with open(path, "wb", buffering=0, opener=open_private) as file:
                file.truncate(size)  # writes are much faster if the file need not grow
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
    ) -> None:
        """Write a part of a payload of ``size`` bytes, at ``offset``.

        ``upload`` is the name of the upload's file. The file has its final size from the beginning,
        as a growing file would take several times as long. So what was received is stored in the
        file, too: see `note_progress`.
        """
        descriptor = os.open(
            self._part_path(upload),
            os.O_WRONLY | os.O_CREAT,
            0o600,
        )
        try:
            os.ftruncate(descriptor, size + _PROGRESS.size)
            os.lseek(descriptor, offset, os.SEEK_SET)
            for piece in pieces:
                _write_all(descriptor, piece)
        finally:
            os.close(descriptor)

    def note_progress(
        self,
        upload: str,
        size: int,
        received: int,
        ahead: Mapping[int, int],
    ) -> None:
        """Store what an upload of ``size`` bytes has received, once its parts are written.

        ``received``: bytes without a gap; ``ahead``: the offset after each part behind a gap, by
        its own offset.
        """
        offsets: list[int] = []
        for begin, end in ahead.items():
            offsets += [begin, end]
        unused = [0] * (2 * MOST_AHEAD - len(offsets))
        descriptor = os.open(self._part_path(upload), os.O_WRONLY)
        try:
            os.lseek(descriptor, size, os.SEEK_SET)
            _write_all(descriptor, _PROGRESS.pack(*offsets, *unused, received))
        finally:
            os.close(descriptor)

    def progress(self, upload: str, size: int) -> tuple[int, dict[int, int]]:
        """Return what an upload of ``size`` bytes has received, as `note_progress` stored it.

        Only parts whose writing was completed count: a process that died while it wrote a part has
        not stored its progress. Return 0 bytes without a file, or if it is for a payload of another
        size.
        """
        try:
            content = self._part_path(upload).open("rb")
        except FileNotFoundError:
            return 0, {}
        with content as file:
            descriptor = file.fileno()
            if os.fstat(descriptor).st_size != size + _PROGRESS.size:
                return 0, {}
            *offsets, received = _PROGRESS.unpack(os.pread(descriptor, _PROGRESS.size, size))
        ahead = dict(zip(offsets[::2], offsets[1::2], strict=True))
        ahead.pop(0, None)  # unused
        return int(received), ahead

    def complete(
        self,
        upload: str,
        number: int,
        size: int,
    ) -> None:
        """Turn a complete upload of ``size`` bytes into the payload of a message."""
        path = self._part_path(upload)
        os.truncate(path, size)
        path.replace(self.payload_path(number))

    def remove_part(self, upload: str) -> None:
        """Delete an upload; a missing one is ignored."""
        with contextlib.suppress(FileNotFoundError):
            self._part_path(upload).unlink()

    def _part_path(self, upload: str) -> Path:
        """Return the file of an upload."""
        return self._folder / f"{upload}.part"

    def remove_payload(self, number: int) -> None:
        """Delete a large payload; a missing one is ignored."""
        with contextlib.suppress(FileNotFoundError):
            self.payload_path(number).unlink()

    def payloads(self) -> tuple[set[int], set[str]]:
        """Return the message number of every payload file, and the name of every upload.

        Remove all other files, such as the remains of an interrupted `rewrite`.
        """
        numbers: set[int] = set()
        uploads: set[str] = set()
        for path in self._folder.iterdir():
            if path.suffix == ".payload":
                numbers.add(int(path.stem))
            elif path.suffix == ".part":
                uploads.add(path.stem)
            elif path.name != JOURNAL:
                path.unlink()
        return numbers, uploads

    def payload_path(self, number: int) -> Path:
        """Return the file of a large payload."""
        return self._folder / f"{number}.payload"

    def retire(self) -> Path:
        """Rename the folder, which is fast, and return its new path for ``remove_tree``.

        From then on, a new session of the same name can use the old path.
        """
        retired = self._folder.with_name(f"{self._folder.name}{RETIRED}")
        shutil.rmtree(retired, ignore_errors=True)
        self._folder.rename(retired)
        return retired


def remove_tree(folder: Path) -> None:
    """Delete a folder and ignore errors; `folders` deletes what remains of a retired folder."""
    shutil.rmtree(folder, ignore_errors=True)


def folders(root: Path) -> Iterator[Path]:
    """Yield the folders of sessions under a root, and delete the retired folders."""
    for path in sorted(root.iterdir()):
        if not path.is_dir():
            continue
        if path.suffix == RETIRED:
            remove_tree(path)
        else:
            yield path


def encode(
    kind: Kind,
    head: dict[str, Any],
    body: bytes,
) -> bytes:
    """Return the bytes of a record. The crc begins with the kind as its initial value."""
    raw = json.dumps(head, separators=(",", ":")).encode("ascii")
    lead = LEAD.pack(
        kind,
        len(raw),
        len(body),
        zlib.crc32(raw, kind),
    )
    return b"".join((lead, raw, body))


def _write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data; one `os.write` may write less."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def open_private(path: str, flags: int) -> int:
    """Open a file that only this user may read: an ``opener`` for `open`."""
    return os.open(path, flags, 0o600)
