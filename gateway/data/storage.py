"""The port to where tables, models and reports lie, and what is read from every kind of storage in the same way.

Written form: a folder ``<namespace>/<name>`` with ``data_0``, ``data_1``, … and a JSON file ``metadata``.
Every ``data_<n>`` of a table is a complete CSV file (UTF-8, comma) with the header line of its own, so a
component may read one partition alone or all of them in order. ``data_0`` is
written last: what lacks it is not there.

Outputs are written by other people's images, so nothing of their form is taken for granted.
"""

import hashlib
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
LARGEST_JSON = 4 * 1024 * 1024
"""bytes of a report or metadata that are read"""
CHUNK = 1024 * 1024
"""bytes that are read or sent in one piece"""
_LOOK = 64 * CHUNK
"""bytes of a file that are fingerprinted until `Storage.sums` looks whether to go on"""


class Stored(NamedTuple):
    """A file of an address."""

    name: str
    size: int
    """bytes"""
    stamp: str
    """changes with the file"""


class Parts(Protocol):
    """The files ``data_0`` … of a table that is being written."""

    def add(self, number: int, data: bytes) -> None:
        """Append to one of them, sooner or later."""

    def finish(self) -> None:
        """Write what is left."""


class Storage(ABC):
    """Tables, models and reports by their addresses."""

    # ------------------------------------------------------------ what each kind does in its own way

    @abstractmethod
    def files(self, address: Address) -> Mapping[str, Stored]:
        """Return what lies at an address, by its name; empty where nothing does. Raises `Invalid`."""

    @abstractmethod
    def open_file(
        self,
        address: Address,
        name: str,
        start: int = 0,
    ) -> BufferedReader:
        """Open ``data_<n>`` or ``metadata`` at a byte. Raises `NotFound`."""

    @abstractmethod
    def names(self, namespace: str, storage: str = "") -> list[str]:
        """Return the names in a namespace; empty where there is none."""

    @abstractmethod
    def namespaces(self) -> set[str]:
        """Return every namespace in which something may lie."""

    @abstractmethod
    def published(
        self,
        staging: "Staging",
        address: Address,
        *,
        overwrite: bool,
    ) -> AbstractContextManager[None]:
        """Put a table in its place; if the block raises, all is as before. Raises `Conflict`, `Invalid`."""

    @abstractmethod
    def parts(self, staging: "Staging", address: Address) -> AbstractContextManager[Parts]:
        """Begin to write what `published` then finishes; if the block raises, nothing is left."""

    @abstractmethod
    def write_metadata(self, address: Address, data: bytes) -> None:
        """Replace the metadata of a table in one step. Raises `NotFound` where nothing lies."""

    @abstractmethod
    def delete(self, address: Address) -> bool:
        """Delete what lies at an address; False where nothing does. Raises `Invalid` for a bad name."""

    def taken(self, address: Address) -> bool:
        """Tell whether anything lies there. Raises `Invalid`."""
        return bool(self.files(address))

    # ------------------------------------------------------------ what follows

    def exists(self, address: Address) -> bool:
        """Tell whether data lies there; a name that is not allowed names none."""
        if address.in_place:
            return bool(self._in_place(address))
        return not wrong_names(address) and f"{PARTITION}0" in self.files(address)

    def size(self, address: Address) -> int:
        """Return the bytes of all that lies at an address."""
        return sum(file.size for file in self.files(address).values())

    def partitions(self, address: Address) -> list[Stored]:
        """Return the files of the data, in order. Raises `NotFound` where there are none or one is missing."""
        if address.in_place:
            if not (lying := self._in_place(address)):
                raise missing(address)
            return lying
        files = self.files(address)
        found = sorted(number for name in files if (number := number_of(name)) is not None)
        for expected, there in enumerate(found):
            if there != expected:
                raise NotFound(
                    f"{address.dataset_id} lacks its part {PARTITION}{expected}",
                    reason="DATA_MISSING",
                )
        if not found:
            raise missing(address)
        return [files[f"{PARTITION}{number}"] for number in found]

    def _in_place(self, address: Address) -> list[Stored]:
        """Return the files of a table that was registered where it lies, but hidden and empty ones."""
        files = self.files(address).values()
        shown = [
            file
            for file in files
            if file.size and file.name != METADATA and file.name[0] not in "._"
        ]
        return sorted(
            shown,
            key=lambda file: (number_of(file.name) is None, number_of(file.name) or 0, file.name),
        )

    def metadata(self, address: Address) -> dict[str, Any]:
        """Return what is known of the data; empty where nothing is. Raises `Invalid`, `TooLarge`."""
        if METADATA not in self.files(address):
            return {}
        what = f"{address.dataset_id}/{METADATA}"
        value = self._json(address, METADATA, what, LARGEST_JSON)
        if not isinstance(value, dict):
            raise Invalid([Problem(what, "must be a JSON object")], reason="DATA_BROKEN")
        return value

    def sums(
        self, address: Address, look: Callable[[int], None] = lambda size: None
    ) -> tuple[FileSum, ...]:
        """Fingerprint the data's files, and the metadata where there is some. Raises `NotFound`.

        ``look`` gets the size of each file before it is read, and 0 now and then; what it raises ends the reading.
        """
        found = []
        for part in (
            *self.partitions(address),
            *(f for f in self.files(address).values() if f.name == METADATA),
        ):
            look(part.size)
            with self.open_file(address, part.name) as file:
                digest = hashlib.sha256()
                while file.tell() < part.size and (data := file.read(CHUNK)):
                    digest.update(data)
                    if file.tell() % _LOOK == 0:
                        look(0)
                found.append(FileSum(part.name, file.tell(), digest.hexdigest()))
        return tuple(found)

    def read_json(self, address: Address, limit: int = LARGEST_JSON) -> Any:
        """Return a report. Raises `NotFound`, `TooLarge` above ``limit`` bytes, `Invalid` if it is not JSON."""
        first = self.partitions(address)[0]
        return self._json(address, first.name, address.dataset_id, limit)

    def _json(
        self,
        address: Address,
        name: str,
        what: str,
        limit: int,
    ) -> Any:
        with self.open_file(address, name) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise TooLarge(f"{what} has more than {limit} bytes")
        try:
            return from_json(data)
        except ValueError as error:
            raise Invalid(
                [Problem(what, "is not JSON", str(error))], reason="DATA_BROKEN"
            ) from error

    def stream(
        self,
        address: Address,
        start: int = 0,
        length: int | None = None,
    ) -> Iterator[bytes]:
        """Yield the bytes of all parts, a table's as one with one header. Raises `NotFound` at the first."""
        left = sys.maxsize if length is None else length
        for part in self._parts(address):
            if start >= part.size:
                start -= part.size
                continue
            if left <= 0:
                return
            with self.open_file(address, part.name, part.skipped + start) as file:
                read = file.read1  # what opening has read, then past the buffer
                while left > 0 and (data := read(min(CHUNK, left))):
                    left -= len(data)
                    yield data
                    read = file.raw.read
            start = 0
            if part.ended and left > 0:
                left -= 1
                yield b"\n"

    def stamp(self, address: Address) -> tuple[int, str]:
        """Return the length of what `stream` yields, and a text that changes with it. Raises `NotFound`."""
        parts = self._parts(address)
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()
        return sum(part.size for part in parts), digest[:32]

    def checksum(self, address: Address) -> str:
        """Return the sha256 of what `stream` yields, in hex. Raises `NotFound`."""
        digest = hashlib.sha256()
        for data in self.stream(address):
            digest.update(data)
        return digest.hexdigest()

    def _parts(self, address: Address) -> list["_Part"]:
        """Return the parts as `stream` gives them: a header once, each row in a line of its own."""
        parts = self.partitions(address)
        if len(parts) == 1 or not self._is_table(address):
            return [_Part(part.name, part.size, part.stamp) for part in parts]
        with self.open_file(address, parts[0].name) as file:
            header = _header_line(file)
        found = []
        for number, part in enumerate(parts):
            skipped = 0
            if number:
                with self.open_file(address, part.name) as file:
                    skipped = len(header) if file.read(len(header)) == header else 0
            ended = False
            if part is not parts[-1] and part.size:
                with self.open_file(address, part.name, part.size - 1) as file:
                    ended = file.read(1) != b"\n"
            found.append(_Part(part.name, part.size - skipped + ended, part.stamp, skipped, ended))
        return found

    def _is_table(self, address: Address) -> bool:
        if address.in_place:
            return True
        try:
            known = self.metadata(address)
        except (Invalid, TooLarge):
            return False
        return known.get("file_type") == "csv" or bool(known.get("column_info"))

    def columns(self, address: Address) -> list[str]:
        """Return the header of a table. Raises `NotFound`, `Invalid` where there is none or no CSV."""
        header = next(self._records(address, self.partitions(address)[0].name), None)
        if not header:
            raise Invalid([Problem(address.dataset_id, "has no header line")], reason="DATA_BROKEN")
        return header

    def iter_rows(self, address: Address) -> Iterator[list[str]]:
        """Yield the rows of a table, part by part, without headers. Raises `NotFound`, `Invalid` if no CSV."""
        header = self.columns(address)
        for part in self.partitions(address):
            rows = self._records(address, part.name)
            first = next(rows, header)
            if first != header:
                yield first
            yield from rows

    def _records(self, address: Address, name: str) -> Iterator[list[str]]:
        findings = Findings()
        with self.open_file(address, name) as file:
            for _, row in rows(
                Lines(file, UTF8, findings, f"{address.dataset_id}/{name}"), ",", findings
            ):
                if findings:
                    break
                yield row
        if findings:
            raise findings.error("DATA_BROKEN")


class _Part(NamedTuple):
    """A file of an address as `Storage.stream` gives it."""

    name: str
    size: int
    """bytes that are given"""
    stamp: str
    skipped: int = 0
    """bytes of a header that was given before"""
    ended: bool = False
    """whether a line end is given after it, which it lacks"""


def _header_line(file: BufferedReader) -> bytes:
    """Read the first line of a table; empty where a quote in it never closes."""
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
    """Return n of ``data_<n>``, None for another name."""
    text = name.removeprefix(PARTITION)
    return int(text) if name == f"{PARTITION}{text}" and text.isascii() and text.isdigit() else None


def taken(address: Address) -> Conflict:
    """Return the refusal to write where something lies."""
    return Conflict(
        f"{address.dataset_id} exists; to replace it set overwrite (or drop): true",
        reason="DATASET_EXISTS",
    )


def missing(address: Address) -> NotFound:
    """Return the refusal to read where nothing lies."""
    return NotFound(f"nothing lies at {address.dataset_id} in the storage", reason="DATA_MISSING")


def wrong_names(address: Address) -> list[Problem]:
    """Find what forbids an address to be a folder's."""
    folders = address.namespace.split("/") if address.in_place else [address.namespace]
    named = (*(("namespace", folder) for folder in folders), ("name", address.name))
    return [Problem(key, rule, text) for key, text in named if (rule := name_rule(text))]


def check_names(address: Address) -> None:
    """Raise `Invalid` for an address that cannot be a folder's."""
    if wrong := wrong_names(address):
        raise Invalid(wrong, reason="NAME_NOT_ALLOWED")
