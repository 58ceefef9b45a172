"""Turns an uploaded file into the partitions that components read.

Rows keep their cells to the letter; only the form is normalised: UTF-8, comma, ``\\n``, quotes where needed. Each
partition begins with the header. A row goes to ``crc32(match id) % partitions``, without a match id to
``crc32(row number) % partitions``, so the same id of two parties' equally partitioned tables has the same number.
"""

import csv
import heapq
import json
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from gateway.data.storage import PARTITION
from gateway.data.storage import name_rule as name_rule
from gateway.domain.problems import Problem
from gateway.domain.run import Address
from gateway.errors import Invalid

MAX_PARTITIONS = 1024
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
    delimiter: str = ","
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
            ("meta.delimiter", delimiter_rule(self.delimiter), self.delimiter),
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
        return {**self.extra, "delimiter": self.delimiter, **{k: v for k, v in named.items() if v}}


# Reads an uploaded table row by row, with line numbers, and finds all that is wrong with it.
#
# Memory is bounded whatever the file holds: no line, row or cell is read beyond a limit, and of each kind of
# problem the first few are kept.

LARGEST_ROW = 4 * 1024 * 1024
"""bytes, line ends inside quotes included"""
MOST_COLUMNS = 100_000
SHOWN = 20
"""problems of one kind that are told in full"""
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class Findings:
    """The problems of one table, by kind, in the order in which they were found."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[Problem]] = {}
        self._more: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def add(self, kind: str, path: str, rule: str, got: Any = None) -> None:
        """Take in a problem; beyond the first `SHOWN` of a kind it is only counted."""
        found = self._kinds.setdefault(kind, [])
        if len(found) < SHOWN:
            found.append(Problem(path, _short(rule, 500), _short(got, 120) if isinstance(got, str) else got))
        else:
            self.more(kind, 1)

    def more(self, kind: str, count: int) -> None:
        """Count problems that are not told one by one."""
        if count:
            self._more[kind] = self._more.get(kind, 0) + count

    def error(self) -> Invalid:
        """Return the refusal that tells them all."""
        problems = []
        for kind, found in self._kinds.items():
            problems += found
            if more := self._more.get(kind):
                problems.append(Problem("file", f"{more} more of this kind: {kind}"))
        return Invalid(problems)


def _short(text: str, most: int) -> str:
    """Return what may be shown of a text out of somebody's file: printable, and of a bounded length."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


class Lines:
    """The lines of a file as text, numbered from 1. NUL bytes and what is not UTF-8 are found on the way."""

    def __init__(self, file: BinaryIO, findings: Findings) -> None:
        self._file = file
        self._findings = findings
        self.number = 0
        self.row_bytes = 0
        """bytes read since the reader of rows last set this to 0"""

    def __iter__(self) -> Iterator[str]:
        while raw := self._file.readline(LARGEST_ROW + 1):
            if self.number == 0:
                if raw.startswith(_UTF16):
                    self._findings.add(
                        "encoding",
                        "file:1",
                        "must be UTF-8 text, this looks like UTF-16",
                        raw[:8],
                    )
                    raise self._findings.error()
                raw = raw.removeprefix(_BOM)
            self.number += 1
            self.row_bytes += len(raw)
            if self.row_bytes > LARGEST_ROW:
                rule = f"must have rows of at most {LARGEST_ROW} bytes; is a quote not closed, or is this no CSV?"
                self._findings.add("row size", f"file:{self.number}", rule)
                raise self._findings.error()
            if b"\0" in raw:
                self._findings.add("NUL bytes", f"file:{self.number}", "must not hold NUL bytes", raw[:80])
                raw = raw.replace(b"\0", b"")
            try:
                text = raw.decode()
            except UnicodeDecodeError as error:
                got = raw[max(0, error.start - 10) : error.start + 10]
                rule = f"must be UTF-8 text, byte {error.start + 1} is not{_probably(raw)}"
                self._findings.add("encoding", f"file:{self.number}", rule, got)
                text = raw.decode(errors="replace")
            yield text


def _probably(raw: bytes) -> str:
    """Say in which other encoding a line can be read, and how to change it; empty where that is not clear."""
    try:
        raw.decode("gb18030")
    except UnicodeDecodeError:
        return ""
    return "; it can be read as GBK: iconv -f GB18030 -t UTF-8 OLD.csv > NEW.csv"


def rows(lines: Lines, delimiter: str, findings: Findings) -> Iterator[tuple[int, list[str]]]:
    """Yield every row with the number of the line it begins at; empty lines are none."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        line = lines.number + 1
        lines.row_bytes = 0
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            findings.add("CSV syntax", f"file:{line}", f"must be CSV: {_said(error)}")
            continue
        if row:
            yield line, row


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
    shown = shortened(columns)
    for key, name in (("label_name", upload.label_name), ("match_id_name", upload.match_id_name)):
        if name and name not in seen:
            findings.add("meta", f"meta.{key}", f"must name a column of the file; its columns are {shown}", name)
    if upload.label_name and upload.label_name == upload.match_id_name:
        findings.add("meta", "meta.label_name", "must not be the column of match_id_name", upload.label_name)
    if upload.extend_sid and SID in seen:
        findings.add("meta", "extend_sid", f"must be false for a file that has a column {SID} already", True)


def shortened(names: Iterable[str], limit: int = 1000) -> str:
    """Return names as text, cut where it grows too long."""
    text = ", ".join(names)
    return text if len(text) <= limit else text[:limit] + "…"


def _said(error: csv.Error) -> str:
    text = str(error)
    if "field larger" in text:
        return f"a cell is longer than {csv.field_size_limit()} characters, or a quote is not closed"
    if "new-line character" in text:
        return "lines must end with LF or CR LF, this one has a lone CR outside quotes"
    if "unexpected end of data" in text:
        return "a quote is not closed"
    return text


_DIGEST = 16
_RECORD = struct.Struct(f">{_DIGEST}sQ")
_BYTES_PER_BUCKET = 2 * 1024 * 1024
_MOST_BUCKETS = 4096


class Buckets:
    """Files of a folder, appended to through one bounded buffer, so that many of them need few open files."""

    def __init__(self, folder: Path, prefix: str, budget: int = 8 * 1024 * 1024) -> None:
        self._folder = folder
        self._prefix = prefix
        self._budget = budget
        self._held: defaultdict[int, bytearray] = defaultdict(bytearray)
        self._bytes = 0

    def path(self, number: int) -> Path:
        """Return the file of a bucket; it is there once something was flushed to it."""
        return self._folder / f"{self._prefix}{number}"

    def add(self, number: int, data: bytes) -> None:
        """Append to a file, sooner or later. Raises `OSError`."""
        self._held[number] += data
        self._bytes += len(data)
        if self._bytes > self._budget:
            self.flush()

    def flush(self) -> None:
        """Write all that is held. Raises `OSError`."""
        for number, data in self._held.items():
            with self.path(number).open("ab") as file:
                file.write(data)
        self._held.clear()
        self._bytes = 0


class IdCheck:
    """Takes in ids and their lines; tells at the end which lines repeat an id."""

    def __init__(self, folder: Path, file_size: int) -> None:
        folder.mkdir()
        self._buckets = Buckets(folder, "")
        self._count = max(1, min(_MOST_BUCKETS, file_size // _BYTES_PER_BUCKET))

    def add(self, key: bytes, crc: int, line: int) -> None:
        """Take in an id; ``crc`` is its crc32, which the caller has anyway."""
        digest = blake2b(key, digest_size=_DIGEST).digest()
        self._buckets.add(crc % self._count, _RECORD.pack(digest, line))

    def finish(self, findings: Findings) -> None:
        """Report every line whose id an earlier line has, the first ones in full."""
        self._buckets.flush()
        total = 0

        def counted() -> Iterator[tuple[int, int]]:
            nonlocal total
            for pair in self._repeats():
                total += 1
                yield pair

        first = heapq.nsmallest(SHOWN, counted())
        for line, earlier in first:
            rule = f"must have a match id of its own, it repeats that of line {earlier}"
            findings.add("repeated ids", f"file:{line}", rule)
        findings.more("repeated ids", total - len(first))

    def _repeats(self) -> Iterator[tuple[int, int]]:
        """Yield (line, the first line with the same id)."""
        for number in range(self._count):
            path = self._buckets.path(number)
            if not path.exists():
                continue
            seen: dict[bytes, int] = {}  # bounded by the distinct ids of a bucket, whatever repeats
            for digest, line in _records(path):
                earlier = seen.setdefault(digest, line)
                if earlier != line:
                    yield line, earlier
            path.unlink()


def _records(path: Path) -> Iterator[tuple[bytes, int]]:
    with path.open("rb") as file:
        while data := file.read(_RECORD.size * 4096):
            yield from _RECORD.iter_unpack(data)


_BLOCK_ROWS = 4096
_BLOCK_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Written:
    """What was found in the file while it was written."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    count: int
    """rows, without the header"""


def write_table(file: BinaryIO, size: int, upload: Upload, sid: str, table: Path, scratch: Path) -> Written:
    """Write the partitions into the folder ``table``.

    ``sid`` begins every generated sid: ``<sid>-<row number>``. Raises `Invalid` with all that is wrong with the
    file; ``table`` then holds nothing of use.
    """
    findings = Findings()
    lines = Lines(file, findings)
    source = rows(lines, upload.delimiter, findings)
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
            key = row[id_at].encode()
            crc = zlib.crc32(key)
            ids.add(key, crc, line)
            if not row[id_at].strip():
                findings.add("blank ids", f"file:{line}", "must have a match id", row[id_at])
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
    added = upload.extend_sid
    return Written(
        (SID, *columns) if added else tuple(columns), ("string", *kinds) if added else tuple(kinds), count
    )


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
