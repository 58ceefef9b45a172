"""Turns an uploaded file into the partitions that components read.

Rows keep their cells to the letter; only the form is normalised: UTF-8, comma, ``\\n``, quotes where needed. Each
partition begins with the header. A row goes to ``crc32(match id) % partitions``, without a match id to
``crc32(row number) % partitions``, so the same id of two parties' equally partitioned tables has the same number.
"""

import csv
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from gateway.data.buckets import Buckets, IdCheck
from gateway.data.storage import PARTITION
from gateway.data.storage import name_rule as name_rule
from gateway.data.table_format import ENCODINGS, Format, recognised
from gateway.data.table_reader import Findings, Lines, rows
from gateway.domain.problems import Problem
from gateway.domain.run import Address
from gateway.errors import Invalid, shorten

MAX_PARTITIONS = 1024
MOST_COLUMNS = 100_000
LARGEST_NAMESPACE = 128
"""bytes; names may have what a file name may have"""
SID = "sid"
"""name of the column that ``extend_sid`` adds"""


def namespace_rule(text: str) -> str | None:
    """Return the rule that a dataset's namespace breaks, None where it is fine."""
    if "#" in text:
        return "must not hold #, which separates namespace and name in a dataset id"
    return name_rule(text, LARGEST_NAMESPACE)


def delimiter_rule(text: str) -> str | None:
    """Return the rule that a delimiter breaks, None where it is fine."""
    if len(text) != 1:
        return "must be one character"
    if text in '"\r\n\0\ufeff' or "\ud800" <= text <= "\udfff":
        return "must not be a quote, a line end or a character that no text holds"
    return None


def encoding_rule(text: str) -> str | None:
    """Return the rule that the name of an encoding breaks, None where it is fine."""
    return None if text.lower() in ENCODINGS else f"must be one of {', '.join(ENCODINGS)}"


def meta_rule(meta: Mapping[str, Any]) -> str | None:
    """Return the rule that free metadata breaks, None where it can be kept as JSON."""
    try:
        size = len(json.dumps(meta, allow_nan=False, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return "must not hold broken Unicode"
    except (ValueError, TypeError, RecursionError):
        return "must be a JSON object without NaN, not nested too deeply"
    return None if size <= 65536 else "must not be longer than 65536 bytes as JSON"


def text_rule(text: str) -> str | None:
    """Return the rule that free text breaks, None where it can be kept."""
    if any("\ud800" <= c <= "\udfff" for c in text):
        return "must not hold broken Unicode"
    return None if len(text) <= 65536 else "must not be longer than 65536 characters"


@dataclass(frozen=True)
class Upload:
    """A table to be stored. Raises `Invalid` with every problem when it cannot be."""

    address: Address
    head: bool = True
    """the first line names the columns; without it they are called x0, x1, …"""
    partitions: int = 1
    extend_sid: bool = False
    delimiter: str = ""
    """empty: what the first line shows"""
    encoding: str = ""
    """empty: what the beginning of the file shows"""
    label_name: str = ""
    match_id_name: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """further keys of ``meta``, kept as they are"""
    description: str = ""
    overwrite: bool = False

    def __post_init__(self) -> None:
        checks: list[tuple[str, str | None, Any]] = [
            ("namespace", namespace_rule(self.address.namespace), self.address.namespace),
            ("name", name_rule(self.address.name), self.address.name),
            ("meta.delimiter", self.delimiter and delimiter_rule(self.delimiter), self.delimiter),
            ("meta.encoding", self.encoding and encoding_rule(self.encoding), self.encoding),
            ("meta", meta_rule(self.extra), self.extra),
            ("description", text_rule(self.description), self.description),
        ]
        if not 1 <= self.partitions <= MAX_PARTITIONS:
            checks.append(("partitions", f"must be from 1 to {MAX_PARTITIONS}", self.partitions))
        wrong = [Problem(path, rule, got) for path, rule, got in checks if rule]
        if wrong:
            raise Invalid(wrong)

    @property
    def meta(self) -> dict[str, Any]:
        """Return the metadata as it was asked for."""
        named = {"label_name": self.label_name, "match_id_name": self.match_id_name}
        return {**self.extra, **{k: v for k, v in named.items() if v}}


_BLOCK_ROWS = 4096
_BLOCK_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Written:
    """What was found in the file while it was written."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    count: int
    """rows, without the header"""
    format: Format


def write_table(file: BinaryIO, size: int, upload: Upload, sid: str, table: Path, scratch: Path) -> Written:
    """Write the partitions into a folder; generated sids are ``<sid>-<row number>``. Raises `Invalid`."""
    findings = Findings()
    form = recognised(file, ENCODINGS.get(upload.encoding.lower(), ""), upload.delimiter)
    lines = Lines(file, form.encoding, findings)
    source = rows(lines, form.delimiter, findings)
    first = next(source, None)
    if first is None:
        if not findings:
            findings.add("empty", "file", "must not be empty")
        raise findings.error()
    if upload.head:
        columns = first[1]
    else:
        columns = [f"x{i}" for i in range(len(first[1]))]
        source = chain([first], source)
    check_header(columns, upload, findings)
    id_at = columns.index(upload.match_id_name) if upload.match_id_name in columns else None
    ids = IdCheck(scratch, size)
    types = ColumnTypes(len(columns))
    out = Partitions(table, upload.partitions, [SID, *columns] if upload.extend_sid else columns)

    count = 0
    width = len(columns)
    for line, row in source:
        count += 1
        if len(row) != width:
            rule = f"must have {width} cells like the first row"
            findings.add("number of cells", f"file:{line}", rule, len(row))
            continue
        if id_at is None:
            crc = zlib.crc32(str(count).encode())
        else:
            crc = ids.see(row[id_at], line, findings)
        if not findings:
            types.see(row, lines.row_bytes)
            out.add(crc % upload.partitions, [f"{sid}-{count}", *row] if upload.extend_sid else row)
    if count == 0:
        findings.add("empty", "file", "must have at least one row after the header")
    ids.finish(findings)
    if findings:
        raise findings.error()
    out.finish()
    kinds = types.finish()
    if id_at is not None:
        kinds[id_at] = "string"  # an id is a name: as a number 007 would lose its zeros
    if upload.extend_sid:
        columns, kinds = [SID, *columns], ["string", *kinds]
    return Written(tuple(columns), tuple(kinds), count, form)


def check_header(columns: Sequence[str], upload: Upload, findings: Findings) -> None:
    """Find what is wrong with the names of the columns, and names in ``meta`` that are not among them."""
    if len(columns) > MOST_COLUMNS:
        findings.add("header", "file:1", f"must have at most {MOST_COLUMNS} columns", len(columns))
        raise findings.error()
    seen: set[str] = set()
    for at, name in enumerate(columns, 1):
        if not name.strip() or not name.isprintable():
            findings.add("header", "file:1", f"column {at} must have a printable name", name)
        elif name in seen:
            findings.add("header", "file:1", f"column {at} must not have the name of another column", name)
        seen.add(name)
    shown = shorten(", ".join(columns), 1000)
    for key, name in (("label_name", upload.label_name), ("match_id_name", upload.match_id_name)):
        if name and name not in seen:
            findings.add("meta", f"meta.{key}", f"must name a column of the file; its columns are {shown}", name)
    if upload.label_name and upload.label_name == upload.match_id_name:
        findings.add("meta", "meta.label_name", "must not be the column of match_id_name", upload.label_name)
    if upload.extend_sid and SID in seen:
        findings.add("meta", "extend_sid", f"must be false for a file that has a column {SID} already", True)


class Partitions:
    """The files ``data_0`` … of one table, each with the header."""

    def __init__(self, table: Path, count: int, header: Sequence[str]) -> None:
        self._files = Buckets(table, PARTITION)
        self._plain = csv.writer(_Returned(), lineterminator="\n")
        self._quoted = csv.writer(_Returned(), lineterminator="\n", quoting=csv.QUOTE_ALL)
        head = self._text(header)
        for number in range(count):
            self._files.path(number).write_bytes(head)

    def add(self, number: int, row: Sequence[str]) -> None:
        """Append a row to the partition of that number."""
        self._files.add(number, self._text(row))

    def finish(self) -> None:
        """Write out what is still in memory."""
        self._files.flush()

    def _text(self, row: Sequence[str]) -> bytes:
        text: str = self._plain.writerow(row)
        if "\r" in text:  # the library does not see that this needs quotes
            text = self._quoted.writerow(row)
        return text.encode()


class ColumnTypes:
    """Finds the narrowest of int, float, boolean and string for every column, by blocks of rows."""

    def __init__(self, columns: int) -> None:
        self._kinds: list[str] = [""] * columns
        self._block: list[list[str]] = []
        self._bytes = 0

    def see(self, row: list[str], size: int) -> None:
        """Take in a row that has ``size`` bytes."""
        self._block.append(row)
        self._bytes += size
        if self._bytes >= _BLOCK_BYTES or len(self._block) >= _BLOCK_ROWS:
            self._narrow()

    def finish(self) -> list[str]:
        """Return the type of each column; one that is empty in every row is a string."""
        self._narrow()
        return [kind or "string" for kind in self._kinds]

    def _narrow(self) -> None:
        for at, cells in enumerate(zip(*self._block, strict=True)):
            if self._kinds[at] != "string":
                self._kinds[at] = _widened(self._kinds[at], [cell for cell in cells if cell])
        self._block = []
        self._bytes = 0


def _widened(kind: str, cells: list[str]) -> str:
    """Return the type that fits these cells and those seen before, which were of type ``kind`` ('' for none)."""
    if not cells:
        return kind
    if kind in ("", "boolean") and all(cell in _BOOLEANS for cell in cells):
        return "boolean"
    if kind == "boolean" or "_" in "".join(cells):  # 1_000 is a number in this language only
        return "string"
    if kind in ("", "int") and _all(int, cells):
        return "int"
    return "float" if _all(float, cells) else "string"


_BOOLEANS = frozenset({"true", "false", "True", "False", "TRUE", "FALSE"})


def _all(parse: type[int] | type[float], cells: list[str]) -> bool:
    try:
        for _ in map(parse, cells):
            pass
    except ValueError:
        return False
    return True


class _Returned:
    """A file whose `write` returns the text, which makes `csv.writer.writerow` return it."""

    def write(self, text: str) -> str:
        return text
