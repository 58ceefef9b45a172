"""Turns an uploaded file into the partitions that components read.

Rows keep their cells to the letter; only the form is normalised: UTF-8, comma, ``\\n``, quotes where needed. Each
partition begins with the header. A row goes to ``crc32(match id) % partitions``, without a match id to
``crc32(row number) % partitions``, so the same id of two parties' equally partitioned tables has the same number.
"""

import codecs
import csv
import hashlib
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any

import re2

from gateway.data.buckets import IdCheck
from gateway.data.storage import Parts
from gateway.data.storage import name_rule as name_rule
from gateway.data.table_format import BLOCK, ENCODINGS, UTF8, UTF8_BOM, Format, recognised
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
    storage: str = ""
    """the name of one of the node's storages; empty: the first"""

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


@dataclass(frozen=True)
class Written:
    """What was found in the file while it was written."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    count: int
    """rows, without the header"""
    format: Format
    sent: str
    """sha256 of the file"""
    stored: str
    """sha256 of the table as it is stored; '' where it has several partitions"""


def write_table(file: "BufferedReader[Any]", upload: Upload, parts: Parts, scratch: Path) -> Written:
    """Write the partitions. Raises `Invalid`.

    The file is read once, in blocks of its buffer. A block that is plain, as nearly all are, is stored as it is.
    Generated sids are ``<sid>-<row number>``; the first half follows from the dataset's id and the first block.
    """
    findings = Findings()
    sums, recorded = Sums(), _Recorded(file)
    first_block = hashlib.sha256(file.peek()[:BLOCK]).hexdigest()
    sid = hashlib.sha256(f"{upload.address.dataset_id}\n{first_block}".encode()).hexdigest()[:16]
    form = recognised(file, ENCODINGS.get(upload.encoding.lower(), ""), upload.delimiter)
    lines = Lines(recorded.readline, form.encoding, findings)
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
    ids = IdCheck(scratch)
    types = ColumnTypes(len(columns))
    plain = PlainBlocks(form, id_at)
    divided = upload.partitions > 1 or upload.extend_sid
    out = Partitions(parts, upload.partitions, [SID, *columns] if upload.extend_sid else columns)
    sums.see(recorded.taken(), out.header)

    count = 0
    while True:
        block = file.peek()
        block = block[: block.rfind(b"\n") + 1]
        numbers: Sequence[int]
        if whole := plain.stored(block, types.kinds) if block and count else b"":
            sent = file.read(len(block))
            keys = plain.ids(whole)
            seen = len(keys) or whole.count(b"\n")
            numbers = range(lines.number + 1, lines.number + 1 + seen)
            lines.number += seen
            stored = whole.split(b"\n")[:-1] if divided else []
        else:
            read = list(_until(lines.bytes + len(block), source, lines))
            sent = recorded.taken()
            if not read:
                sums.see(sent, b"")
                break
            good = [(line, row) for line, row in read if len(row) == len(columns)]
            seen = len(read)
            if len(good) < seen:
                for line, row in read:
                    if len(row) != len(columns):
                        rule = f"must have {len(columns)} cells like the first row"
                        findings.add("number of cells", f"file:{line}", rule, len(row))
            numbers, cells = [line for line, _ in good], [row for _, row in good]
            types.see(cells)
            stored = list(map(out.stored, cells))
            if id_at is not None:
                keys = [row[id_at].encode() for row in cells]
                ids.refuse_blank(keys, numbers, findings)
            whole = b"" if divided else b"\n".join([*stored, b""])
        following = range(count + 1, count + 1 + len(stored))
        if id_at is not None:
            crcs = ids.see(keys, numbers)
        else:
            crcs = [zlib.crc32(str(number).encode()) for number in following] if upload.partitions > 1 else []
        if not findings:
            if upload.extend_sid:
                stored = [f"{sid}-{number},".encode() + row for number, row in zip(following, stored, strict=True)]
            if divided:
                whole = out.add(crcs, stored)
            else:
                parts.add(0, whole)
            sums.see(sent, whole)
        count += seen
    if count == 0:
        findings.add("empty", "file", "must have at least one row after the header")
    ids.finish(findings)
    if findings:
        raise findings.error()
    kinds = types.kinds
    if id_at is not None:
        kinds[id_at] = "string"  # an id is a name: as a number 007 would lose its zeros
    if upload.extend_sid:
        columns, kinds = [SID, *columns], ["string", *kinds]
    types_found = tuple(kind or "string" for kind in kinds)
    return Written(
        tuple(columns), types_found, count, form, sums.sent, sums.stored if upload.partitions == 1 else ""
    )


def _until(end: int, source: Iterator[tuple[int, list[str]]], lines: Lines) -> Iterator[tuple[int, list[str]]]:
    """Yield rows, the last of them that which ends at or after a byte."""
    for one in source:
        yield one
        if lines.bytes >= end:
            return


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

    def __init__(self, parts: Parts, count: int, header: Sequence[str]) -> None:
        self._parts = parts
        self._count = count
        self._plain = csv.writer(_Returned(), lineterminator="\n")
        self._quoted = csv.writer(_Returned(), lineterminator="\n", quoting=csv.QUOTE_ALL)
        self.header = self.stored(header) + b"\n"
        for number in range(count):
            parts.add(number, self.header)

    def add(self, crcs: Iterable[int], stored: Sequence[bytes]) -> bytes:
        """Append rows, each to the partition that follows from a checksum; return what one partition got."""
        divided: defaultdict[int, list[bytes]] = defaultdict(list)
        if self._count == 1:
            divided[0] = [*stored]
        else:
            for crc, row in zip(crcs, stored, strict=True):
                divided[crc % self._count].append(row)
        data = b""
        for number, some in divided.items():
            data = b"\n".join([*some, b""])
            self._parts.add(number, data)
        return data

    def stored(self, row: Sequence[str]) -> bytes:
        """Return a row as it is stored, without its line end."""
        text: str = self._plain.writerow(row)
        if "\r" in text:  # the library does not see that this needs quotes
            text = self._quoted.writerow(row)
        return text[:-1].encode()


class Sums:
    """The sha256 of a file and of the table that it becomes, computed once while these do not differ."""

    def __init__(self) -> None:
        self._sent = hashlib.sha256()
        self._stored: Any = None

    def see(self, sent: bytes, stored: bytes) -> None:
        """Take in what was sent next, and what became of it."""
        if self._stored is None and sent != stored:
            self._stored = self._sent.copy()
        self._sent.update(sent)
        if self._stored is not None:
            self._stored.update(stored)

    @property
    def sent(self) -> str:
        """Return the file's, in hex."""
        return self._sent.hexdigest()

    @property
    def stored(self) -> str:
        """Return the table's, in hex."""
        return (self._stored or self._sent).hexdigest()


class _Recorded:
    """A file whose lines are kept until they are taken."""

    def __init__(self, file: "BufferedReader[Any]") -> None:
        self._file = file
        self._kept: list[bytes] = []

    def readline(self, size: int) -> bytes:
        self._kept.append(self._file.readline(size))
        return self._kept[-1]

    def taken(self) -> bytes:
        kept = b"".join(self._kept)
        self._kept.clear()
        return kept


class ColumnTypes:
    """Finds the narrowest of int, float, boolean and string for every column, by blocks of rows."""

    def __init__(self, columns: int) -> None:
        self.kinds = [""] * columns
        """of each column so far; '' where every row was empty"""

    def see(self, block: Sequence[list[str]]) -> None:
        """Take in rows."""
        for at, cells in enumerate(zip(*block, strict=True)):
            if self.kinds[at] != "string":
                self.kinds[at] = _widened(self.kinds[at], [cell for cell in cells if cell])


_EXPRESSIONS = {
    "": "",
    "boolean": "true|false|True|False|TRUE|FALSE",
    "int": "[+-]?[0-9]{1,20}",
    "float": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:nan|NaN|inf)",
}
"""of the cells of a column of a type; fewer than are of it"""
_PLAIN_DELIMITERS = ",;|\t"
_PLAIN_COLUMNS = 1000
_EXPRESSION_BYTES = 64 * 1024 * 1024


class PlainBlocks:
    """Finds the blocks in which each line is a row without quotes whose cells are of the types known so far.

    One expression says so of a whole block: it fits less than the reader of rows takes, and nothing else.
    """

    def __init__(self, form: Format, id_at: int | None) -> None:
        self._form = form
        self._id_at = id_at
        self._kinds: list[str] = []
        self._row: Any = None
        text = b"[^,\\n]*"
        self._ids = re.compile(b"(?:%s,){%d}(%s)[^\\n]*\n" % (text, id_at or 0, text))

    def ids(self, stored: bytes) -> list[bytes]:
        """Return the ids of a block as it is stored; none where the table has none."""
        return self._ids.findall(stored) if self._id_at is not None else []

    def stored(self, block: bytes, kinds: list[str]) -> bytes:
        """Return a block as it is stored; nothing where it is not plain."""
        if self._form.delimiter not in _PLAIN_DELIMITERS or len(kinds) > _PLAIN_COLUMNS or b'"' in block:
            return b""
        if kinds == [""]:  # an empty line makes no row
            return b""
        try:
            if self._form.encoding not in (UTF8, UTF8_BOM):
                block = block.decode(self._form.encoding).encode()
            elif not block.isascii():
                if codecs.BOM_UTF8 in block:
                    return b""
                block.decode()
        except UnicodeDecodeError:
            return b""
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        if kinds != self._kinds:
            self._kinds, self._row = [*kinds], self._expression(kinds)
        if not self._row.fullmatch(block):
            return b""
        if self._form.delimiter != ",":
            block = block.replace(self._form.delimiter.encode(), b",")
        most = csv.field_size_limit() // 2  # a row is shorter than two pieces where each has a line's end
        pieces = range(0, len(block) - most, most)
        return block if all(block.find(b"\n", at, at + most) >= 0 for at in pieces) else b""

    def _expression(self, kinds: list[str]) -> Any:
        text = rf'[^",\n\r\x00{self._form.delimiter}]'
        cells = [f"(?:{_EXPRESSIONS.get(kind, f'{text}+')})" + ("?" if len(kinds) > 1 else "") for kind in kinds]
        if self._id_at is not None:
            cells[self._id_at] = f"{text}*[0-9A-Za-z]{text}*"  # more than blanks
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.max_mem = _EXPRESSION_BYTES
        return re2.compile(f"(?:{re2.escape(self._form.delimiter).join(cells)}\n)+".encode(), options)


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
