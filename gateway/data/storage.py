"""The port to the storages of tables, models and reports, and the reading that all kinds share.

Layout: a folder ``<namespace>/<name>`` with ``data_0``, ``data_1``, … and a JSON file ``metadata``.
Every ``data_<n>`` of a table is a complete CSV file (UTF-8, comma) with its own header line, so a
component may read one partition alone or all of them in order. ``data_0`` is written last: a table
without it does not exist.

Outputs are written by vendors' images, so their form is never trusted.
"""

import hashlib
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from io import BufferedReader
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pydantic_core import from_json

from gateway.data.table_format import UTF8
from gateway.data.table_reader import LARGEST_ROW, Findings, Lines, rows
from gateway.domain.problems import Problem, name_rule
from gateway.domain.run import Address, FileSum
from gateway.errors import Conflict, Invalid, NotFound, TooLarge

if TYPE_CHECKING:
    from gateway.data.file_storage import Staging

METADATA = "metadata"
PARTITION = "data_"
_NUMBERED = re.compile(rf"{PARTITION}([0-9]+)")
LARGEST_JSON = 4 * 1024 * 1024  # bytes of a report or metadata that are read
CHUNK = 1024 * 1024  # bytes that are read or sent in one piece
PROGRESS_STEP = 64 * CHUNK  # bytes of a file between two calls of ``progress`` in `Storage.sums`


class Stored(NamedTuple):
    """A file at an address."""

    name: str
    size: int  # bytes
    stamp: str  # changes with the file


class Parts(Protocol):
    """The partitions, files ``data_0`` …, of a table that is being written."""

    def add(self, number: int, data: bytes) -> None:
        """Append to the partition of a number.

        The data may be buffered until `finish`. Raises `OSError`, `StorageFailed`.
        """

    def finish(self) -> None:
        """Write everything that is buffered. Raises `OSError`, `StorageFailed`."""


def _ignore_progress(_size: int) -> None:
    """Do nothing: the caller of `Storage.sums` does not follow its progress."""


class Storage(ABC):
    """Tables, models and reports by their addresses."""

    # ------------------------------------------------------------ implemented by each storage

    @abstractmethod
    def files(self, address: Address) -> Mapping[str, Stored]:
        """Return the files at an address by name; empty if there are none.

        Raises `Invalid` for names that are not allowed.
        """

    @abstractmethod
    def open_file(
        self,
        address: Address,
        name: str,
        start: int = 0,
    ) -> BufferedReader:
        """Open ``data_<n>`` or ``metadata``, positioned at the byte ``start``.

        Raises `NotFound`.
        """

    @abstractmethod
    def names(
        self,
        namespace: str,
        storage: str = "",
    ) -> list[str]:
        """Return the names of the data in a namespace; empty if the namespace does not exist.

        ``storage`` names one of a node's storages; only `Storages`, which has several, uses it.
        """

    @abstractmethod
    def namespaces(self) -> set[str]:
        """Return all namespaces.

        Some may have no data.
        """

    @abstractmethod
    def published(
        self,
        staging: "Staging",
        address: Address,
        *,
        overwrite: bool,
    ) -> AbstractContextManager[None]:
        """Return a context that, on entry, makes a table complete at its address.

        The table consists of the partitions written by `parts`, if any, and of the files in the
        staging folder. If the block raises, the table is removed again. A table at the address is
        replaced if ``overwrite`` is True; otherwise `Conflict` is raised. Also raises `Invalid`.
        """

    @abstractmethod
    def parts(
        self,
        staging: "Staging",
        address: Address,
    ) -> AbstractContextManager[Parts]:
        """Return a context in which a table is written, before `published` completes it.

        If the block raises, nothing of the table stays.
        """

    @abstractmethod
    def write_metadata(self, address: Address, data: bytes) -> None:
        """Replace the metadata of a table in one step. Raises `NotFound` without a table."""

    @abstractmethod
    def delete(self, address: Address) -> bool:
        """Delete all files at an address; return whether there were any.

        Raises `Invalid` for names that are not allowed.
        """

    @abstractmethod
    def entries(self, address: Address) -> list[str]:
        """Return the names of all files and folders directly at an address, sorted.

        Empty if there are none. Raises `Invalid` for names that are not allowed.
        """

    @abstractmethod
    def delete_entry(self, address: Address, name: str) -> None:
        """Delete a file or folder directly at an address; nothing happens if it is missing.

        ``name`` is one that `entries` returns. Raises `Invalid` for names that are not allowed.
        """

    def taken(self, address: Address) -> bool:
        """Return whether there are any files at an address.

        They need not be complete data as for `exists`. Raises `Invalid` for names that are not
        allowed.
        """
        return bool(self.files(address))

    # ------------------------------------------------------------ the same for every storage

    def exists(self, address: Address) -> bool:
        """Return whether there is complete data at an address.

        Data registered in place is complete if it has a file that is not empty. Other data needs
        its first partition, which is written last. False for a name that is not allowed.
        """
        if address.in_place:
            return bool(self._files_in_place(address))
        if wrong_names(address):
            return False
        return f"{PARTITION}0" in self.files(address)

    def size(self, address: Address) -> int:
        """Return the bytes of all files at an address."""
        return sum(file.size for file in self.files(address).values())

    def partitions(self, address: Address) -> list[Stored]:
        """Return the files of the data, without metadata, in order.

        Raises `NotFound` if there are none or one is missing.
        """
        if address.in_place:
            partitions = self._files_in_place(address)
        else:
            partitions = self._numbered_files(address)
        if not partitions:
            raise missing_error(address)
        return partitions

    def _numbered_files(self, address: Address) -> list[Stored]:
        """Return the files ``data_<n>`` by their numbers, which must have no gap.

        Raises `NotFound`.
        """
        numbered = []
        for name, file in self.files(address).items():
            number = number_of(name)
            if number is not None:
                numbered.append((number, file))
        numbered.sort()
        for expected, (number, _) in enumerate(numbered):
            if number != expected:
                text = f"{address.dataset_id} lacks its part {PARTITION}{expected}"
                raise NotFound(text, reason="DATA_MISSING")
        return [file for _, file in numbered]

    def _files_in_place(self, address: Address) -> list[Stored]:
        """Return the files of a table registered in place, in order.

        Hidden files (of other programs), empty files and metadata are no part of the data.
        """
        partitions = []
        for file in self.files(address).values():
            is_hidden = file.name[0] in "._"  # by the conventions of Unix and of Hadoop
            if file.size and file.name != METADATA and not is_hidden:
                partitions.append(file)
        return sorted(partitions, key=_order_of_files)

    def metadata(self, address: Address) -> dict[str, Any]:
        """Return the parsed file ``metadata``; empty without the file.

        Raises `Invalid` if it is not a JSON object, `TooLarge` above `LARGEST_JSON`.
        """
        if METADATA not in self.files(address):
            return {}
        label = f"{address.dataset_id}/{METADATA}"
        document = self._read_json_file(address, METADATA, label, LARGEST_JSON)
        if not isinstance(document, dict):
            raise Invalid(
                [Problem(label, "must be a JSON object")],
                reason="DATA_BROKEN",
            )
        return document

    def sums(
        self,
        address: Address,
        progress: Callable[[int], None] = _ignore_progress,
    ) -> tuple[FileSum, ...]:
        """Return size and sha256 of each file of the data, then of the metadata, if any.

        ``progress`` is called with the size of each file before the file is read. It is also called
        with 0 regularly during the reading, which it may end by raising an exception. Raises
        `NotFound`.
        """
        files = self.partitions(address)
        metadata = self.files(address).get(METADATA)
        if metadata is not None:
            files.append(metadata)
        return tuple(self._sum(address, file, progress) for file in files)

    def _sum(
        self,
        address: Address,
        stored: Stored,
        progress: Callable[[int], None],
    ) -> FileSum:
        """Return size and sha256 of one file.

        ``progress``: see `sums`. Of a file that grows during the reading, up to `CHUNK` bytes
        after its earlier end are read, too; the returned size counts all bytes that were read.
        """
        progress(stored.size)
        digest = hashlib.sha256()
        with self.open_file(address, stored.name) as file:
            while file.tell() < stored.size:
                data = file.read(CHUNK)
                if not data:
                    break
                digest.update(data)
                if file.tell() % PROGRESS_STEP == 0:
                    progress(0)
            return FileSum(
                stored.name,
                file.tell(),
                digest.hexdigest(),
            )

    def read_json(self, address: Address, limit: int = LARGEST_JSON) -> Any:
        """Return a report's JSON value, which is read from its first partition.

        Raises `NotFound`, `TooLarge` above ``limit`` bytes, and `Invalid` if it is not JSON.
        """
        first = self.partitions(address)[0]
        return self._read_json_file(address, first.name, address.dataset_id, limit)

    def _read_json_file(
        self,
        address: Address,
        name: str,
        label: str,
        limit: int,
    ) -> Any:
        """Return the JSON value of a file.

        - ``label``: the file's name in errors
        - ``limit``: the largest size in bytes

        Raises as `read_json`.
        """
        with self.open_file(address, name) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise TooLarge(f"{label} has more than {limit} bytes")
        try:
            return from_json(data)
        except ValueError as error:
            problem = Problem(label, "is not JSON", str(error))
            raise Invalid([problem], reason="DATA_BROKEN") from error

    def stream(
        self,
        address: Address,
        start: int = 0,
        length: int | None = None,
    ) -> Iterator[bytes]:
        """Yield the bytes of all partitions in order; a table's header only once.

        ``start`` and ``length`` select a range of these bytes; a length of None means all. Raises
        `NotFound`, when the first bytes are requested.
        """
        remaining = sys.maxsize if length is None else length
        for segment in self._segments(address):
            if remaining <= 0:
                return
            if start >= segment.size:
                start -= segment.size
                continue
            for data in self._read_segment(address, segment, start, remaining):
                remaining -= len(data)
                yield data
            start = 0

    def _read_segment(
        self,
        address: Address,
        segment: "_Segment",
        start: int,
        length: int,
    ) -> Iterator[bytes]:
        """Yield at most ``length`` bytes of a segment, from its byte ``start`` on."""
        with self.open_file(address, segment.name, segment.skipped + start) as file:
            # The first read empties the buffer that opening has filled; later reads bypass it.
            read = file.read1
            while length > 0:
                data = read(min(CHUNK, length))
                if not data:
                    break
                length -= len(data)
                yield data
                read = file.raw.read
        if segment.lacks_line_end and length > 0:
            yield b"\n"

    def stamp(self, address: Address) -> tuple[int, str]:
        """Return the length of `stream` in bytes, and a text that changes with its content.

        Raises `NotFound`.
        """
        segments = self._segments(address)
        digest = hashlib.sha256(repr(segments).encode()).hexdigest()
        return sum(segment.size for segment in segments), digest[:32]

    def checksum(self, address: Address) -> str:
        """Return the sha256 of `stream` in hex.

        Raises `NotFound`.
        """
        digest = hashlib.sha256()
        for data in self.stream(address):
            digest.update(data)
        return digest.hexdigest()

    def _segments(self, address: Address) -> list["_Segment"]:
        """Return the segments of `stream`: a table's header once, each row on its own line.

        Data in one partition, or other data than a CSV table, is streamed as it is.
        """
        partitions = self.partitions(address)
        if len(partitions) == 1 or not self._is_table(address):
            return [_Segment(file.name, file.size, file.stamp) for file in partitions]
        first = partitions[0]
        last = partitions[-1]
        with self.open_file(address, first.name) as file:
            header = _header_line(file)
        segments = []
        for partition in partitions:
            size = partition.size
            skipped = 0
            if partition != first and self._begins_with(address, partition, header):
                skipped = len(header)
                size -= skipped
            lacks_line_end = partition != last and not self._ends_line(address, partition)
            if lacks_line_end:
                size += 1  # for the line feed that the stream adds
            segments.append(
                _Segment(partition.name, size, partition.stamp, skipped, lacks_line_end)
            )
        return segments

    def _begins_with(
        self,
        address: Address,
        partition: Stored,
        header: bytes,
    ) -> bool:
        """Return whether a partition begins with the header of the first one.

        ``header`` includes the line end.
        """
        with self.open_file(address, partition.name) as file:
            return file.read(len(header)) == header

    def _ends_line(self, address: Address, partition: Stored) -> bool:
        """Return whether a partition ends with a line feed.

        True for an empty partition, which needs none.
        """
        if not partition.size:
            return True
        with self.open_file(address, partition.name, partition.size - 1) as file:
            return file.read(1) == b"\n"

    def _is_table(self, address: Address) -> bool:
        """Return whether data is a CSV table, according to its metadata.

        Data that was registered in place is a table, whatever its metadata says.
        """
        if address.in_place:
            return True
        try:
            metadata = self.metadata(address)
        except (Invalid, TooLarge):
            return False
        return metadata.get("file_type") == "csv" or bool(metadata.get("column_info"))

    def columns(self, address: Address) -> list[str]:
        """Return the names in the header of a table.

        Raises `NotFound`, and `Invalid` if it has no header or is not CSV.
        """
        header = next(
            self._records(
                address,
                self.partitions(address)[0].name,
            ),
            None,
        )
        if not header:
            raise Invalid(
                [Problem(address.dataset_id, "has no header line")],
                reason="DATA_BROKEN",
            )
        return header

    def iter_rows(self, address: Address) -> Iterator[list[str]]:
        """Yield the rows of all partitions of a table, without headers.

        A partition's first row is left out only if it repeats the table's header. Raises
        `NotFound`, and `Invalid` if it is not CSV.
        """
        header = self.columns(address)
        for partition in self.partitions(address):
            records = self._records(address, partition.name)
            first = next(records, header)  # as if an empty partition had only the header
            if first != header:
                yield first
            yield from records

    def _records(
        self,
        address: Address,
        name: str,
    ) -> Iterator[list[str]]:
        """Yield the rows of one partition, header included.

        Raises `Invalid` if it is not CSV, after the rows before the first fault.
        """
        findings = Findings()
        with self.open_file(address, name) as file:
            lines = Lines(file, UTF8, findings, f"{address.dataset_id}/{name}")
            for _, row in rows(lines, ",", findings):
                if findings:
                    break
                yield row
        if findings:
            raise findings.error("DATA_BROKEN")


class _Segment(NamedTuple):
    """A file of an address as a piece of `Storage.stream`."""

    name: str
    size: int  # bytes in the stream
    stamp: str
    skipped: int = 0  # bytes of a repeated header
    lacks_line_end: bool = False  # the stream adds one


def _header_line(file: BufferedReader) -> bytes:
    """Return the header of a table with its line end.

    It is several lines if a quoted name contains line ends. Returns b"" if the header is longer
    than a row may be, or if the file ends inside a quoted name.
    """
    header = bytearray()
    quotes = 0
    while len(header) < LARGEST_ROW:
        line = file.readline(LARGEST_ROW)
        header += line
        quotes += line.count(b'"')
        if quotes % 2 == 0:  # else the line end is inside a quoted name
            return bytes(header)
        if not line:
            break
    return b""


def number_of(name: str) -> int | None:
    """Return n of ``data_<n>``; None for any other name."""
    match = _NUMBERED.fullmatch(name)
    if match is None:
        return None
    return int(match[1])


def _order_of_files(file: Stored) -> tuple[bool, int, str]:
    """Return the sort key of a file: files ``data_<n>`` come first, then the others by name."""
    number = number_of(file.name)
    if number is None:
        return True, 0, file.name
    return False, number, file.name


def taken_error(address: Address) -> Conflict:
    """Return the refusal to write to an address with files.

    It names the setting with which the write would replace them.
    """
    text = f"{address.dataset_id} exists; to replace it set overwrite (or drop): true"
    return Conflict(text, reason="DATASET_EXISTS")


def missing_error(address: Address) -> NotFound:
    """Return the refusal to read from an address without files."""
    return NotFound(f"nothing lies at {address.dataset_id} in the storage", reason="DATA_MISSING")


def wrong_names(address: Address) -> list[Problem]:
    """Return the rules that the namespace and name of an address break as names of folders.

    The namespace of data registered in place may be a path; each folder in the path is checked.
    """
    folders = [address.namespace]
    if address.in_place:
        folders = address.namespace.split("/")
    names = [("namespace", folder) for folder in folders]
    names.append(("name", address.name))
    problems = []
    for key, name in names:
        rule = name_rule(name)
        if rule:
            problems.append(Problem(key, rule, name))
    return problems


def check_names(address: Address) -> None:
    """Raise `Invalid` for an address whose parts cannot be names of folders."""
    problems = wrong_names(address)
    if problems:
        raise Invalid(problems, reason="NAME_NOT_ALLOWED")
