"""Reads an uploaded table row by row, with line numbers, and finds all that is wrong with it.

Encoding and delimiter are recognised by its beginning, where there is no doubt. Memory is bounded whatever the
file holds: no line, row or cell is read beyond a limit, and of each kind of problem the first few are kept.
"""

import codecs
import csv
import os
import re
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import re2

from gateway.data.table_warnings import TableWarnings
from gateway.domain.problems import Problem
from gateway.errors import Invalid

PARQUET_MAGIC = b"PAR1"
"""with which a file of Parquet begins and ends"""
_ZIP = b"PK\x03\x04"
_EXCEL = "an Excel workbook: save its sheet as CSV there (CSV UTF-8), then upload that file"
_OTHER_FORMS = {
    PARQUET_MAGIC: "Parquet: put it into one of the node's storages, then bfia-gateway data register",
    _ZIP: _EXCEL,
    b"\xd0\xcf\x11\xe0": _EXCEL,
    b"\x1f\x8b": "compressed (gzip): unpack it, then upload what is in it",
}
"""by how such files begin"""
UTF8, GB18030 = "utf-8", "gb18030"
UTF8_BOM = "utf-8-sig"
ENCODINGS = {
    UTF8: UTF8,
    GB18030: GB18030,
    "gbk": GB18030,
    "gb2312": GB18030,
    "big5": "big5",
    "windows-1252": "cp1252",
}
"""by the names that an upload may give; none has a line end inside a character"""
OTHER_ENCODING = f"if it is in another encoding, name it: data upload --encoding (meta.encoding), one of {', '.join(ENCODINGS)}"
_DELIMITERS = {
    ",": "comma",
    ";": "semicolon",
    "\t": "tab",
    "|": "bar",
}
BLOCK = 256 * 1024
"""bytes of a table that are looked at in one piece; by the first of them the encoding is recognised"""
_HEADER = 64 * 1024
"""bytes in which the first line is looked for"""
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_DOUBLE = re.compile(rb"[\x81-\xfe]([\x40-\x7e\x80-\xfe])")
_QUOTED = re.compile('"[^"]*"')
_SEPARATOR_LINE = re.compile('\ufeff?"?sep=([^\r\n"])"?\r?\n', re.IGNORECASE)
LARGEST_ROW = 4 * 1024 * 1024
"""bytes of one row of a table"""
SHOWN = 20
"""problems of one kind that are kept"""
_NAMED = 10
"""lines that are named after the first problem of a kind"""
_BOM = "\ufeff"
_RECORD = struct.Struct("=3q")
"""hash and crc32 of an id, the line that it is in; an id's 96 bits are as good as the id"""
_READ = _RECORD.size * 4096
_BUCKETS = 1024
_BUDGET = 4 * 1024 * 1024


class Format(NamedTuple):
    """The form of a file of CSV."""

    encoding: str
    """as Python calls it"""
    delimiter: str


def recognised(
    file: "BufferedReader[Any]",
    encoding: str = "",
    delimiter: str = "",
) -> Format:
    """Return the form of an unread file; what is given stands. Raises `Invalid` where it is unclear."""
    start = file.peek()[:BLOCK]
    if start.startswith(_UTF16):
        rule = f"must be UTF-8 text, this looks like UTF-16; {OTHER_ENCODING}"
        raise Invalid([Problem("file:1", rule, start[:8])])
    for magic, rule in _OTHER_FORMS.items():
        if start.startswith(magic) and (
            magic != _ZIP or b"xl/" in start or b"[Content_Types]" in start
        ):
            raise Invalid([Problem("file", f"must be CSV, this is {rule}")])
    encoding = encoding or _encoding(start)
    delimiter = delimiter or separator_line(file, encoding)
    return Format(encoding, delimiter or _delimiter(start[:_HEADER].decode(encoding, "replace")))


def separator_line(file: "BufferedReader[Any]", encoding: str) -> str:
    """Return the delimiter that an unread file names in a line ``sep=;`` before its header, as Excel reads it."""
    named = _SEPARATOR_LINE.match(file.peek()[:_HEADER].decode(encoding, "replace"))
    return named[1] if named else ""


def shown(encoding: str) -> str:
    """Return an encoding as people call it."""
    return {UTF8_BOM: "UTF-8 with a byte order mark", "cp1252": "Windows-1252"}.get(
        encoding, encoding.upper()
    )


def _encoding(start: bytes) -> str:
    """Return the encoding of text; UTF-8 where it is none that is known."""
    if start.startswith(codecs.BOM_UTF8):
        return UTF8_BOM
    if not _decodes(start, UTF8) and _decodes(start, GB18030) and _is_chinese(start):
        return GB18030
    return UTF8


def _decodes(start: bytes, encoding: str) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(start, len(start) < BLOCK)
    except UnicodeDecodeError:
        return False
    return True


def _is_chinese(start: bytes) -> bool:
    """Tell GB18030 from Western text, where a letter with an accent mostly has a plain one behind it."""
    seconds: list[bytes] = _DOUBLE.findall(start)
    return 2 * sum(second >= b"\x80" for second in seconds) > len(seconds)


def _delimiter(text: str) -> str:
    """Return what divides the first line; a comma where nothing does. Raises `Invalid` where it is unclear."""
    plain = _QUOTED.sub("", text).removeprefix("\ufeff").lstrip("\r\n")
    header = plain.partition("\n")[0]
    found = [delimiter for delimiter in _DELIMITERS if delimiter in header]
    if len(found) > 1:
        names = " and ".join(_DELIMITERS[one] for one in found)
        rule = f"must be named (--delimiter): the first line has {names}, and each may divide it"
        raise Invalid([Problem("meta.delimiter", rule)])
    return found[0] if found else ","


class Findings:
    """The problems of one table, by kind, in the order in which they were found."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[Problem]] = {}
        self._more: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def add(
        self,
        kind: str,
        path: str,
        rule: str,
        got: Any = None,
    ) -> None:
        """Add a problem; beyond the first `SHOWN` of a kind it is only counted."""
        found = self._kinds.setdefault(kind, [])
        if len(found) < SHOWN:
            found.append(
                Problem(
                    path,
                    _printable(rule, 500),
                    _printable(got, 120) if isinstance(got, str) else got,
                )
            )
        else:
            self.more(kind, 1)

    def more(self, kind: str, count: int) -> None:
        """Count problems that are not listed one by one."""
        if count:
            self._more[kind] = self._more.get(kind, 0) + count

    def error(self, reason: str | None = None) -> Invalid:
        """Return the refusal that lists them all."""
        problems: list[Problem] = []
        for kind, found in self._kinds.items():
            alike = _of_lines(found)
            problems += found[:1] if alike else found
            more = self._more.get(kind, 0) + (len(found) - 1 if alike else 0)
            if more:
                lines = ", ".join(alike[:_NAMED]) + (", …" if more > _NAMED else "")
                where = f", in lines {lines}" if alike else ""
                problems.append(Problem("file", f"{more} more of this kind: {kind}{where}"))
        return Invalid(problems, reason=reason)


def _of_lines(found: Sequence[Problem]) -> list[str]:
    """Return the lines of all but the first problem, if each is in a line of its own."""
    lines = [problem.path.rpartition(":")[2] for problem in found]
    return lines[1:] if len(set(lines)) == len(lines) and all(map(str.isdecimal, lines)) else []


class Lines:
    """The lines of a file as text, numbered from 1. NUL bytes and what does not decode become findings."""

    def __init__(
        self,
        file: BinaryIO,
        encoding: str,
        findings: Findings,
        name: str = "file",
        *,
        keep: bool = False,
    ) -> None:
        """``keep``: for `taken`."""
        self.name = name
        self._file = file
        self._keep = keep
        self._raw: list[bytes] = []
        self._encoding = encoding
        self._findings = findings
        self.held = b""
        """the beginning of the next line, where it was taken from the file already"""
        self.number = 0
        self.bytes = 0
        """read here so far"""
        self.row_bytes = 0
        """bytes read since the reader of rows last set this to 0"""

    def __iter__(self) -> Iterator[str]:
        while raw := self.held + self._file.readline(LARGEST_ROW + 1):
            self.held = b""
            if self._keep:
                self._raw.append(raw)
            self.number += 1
            self.bytes += len(raw)
            self.row_bytes += len(raw)
            if self.row_bytes > LARGEST_ROW:
                rule = f"must have rows of at most {LARGEST_ROW} bytes; is a quote not closed, or is this not CSV?"
                self._findings.add("row size", f"{self.name}:{self.number}", rule)
                raise self._findings.error()
            if b"\0" in raw:
                self._findings.add(
                    "NUL bytes", f"{self.name}:{self.number}", "must not hold NUL bytes", raw[:80]
                )
                raw = raw.replace(b"\0", b"")
            try:
                text = raw.decode(self._encoding)
            except UnicodeDecodeError as error:
                got = raw[max(0, error.start - 10) : error.start + 10]
                rule = f"must be {shown(self._encoding)} text, byte {error.start + 1} is not; {OTHER_ENCODING}"
                self._findings.add("encoding", f"{self.name}:{self.number}", rule, got)
                text = raw.decode(self._encoding, errors="replace")
            yield text.removeprefix(_BOM) if self.number == 1 else text

    def taken(self) -> bytes:
        """Return what was read line by line since this was called last."""
        raw = b"".join(self._raw)
        self._raw.clear()
        return raw


def rows(
    lines: Lines,
    delimiter: str,
    findings: Findings,
) -> Iterator[tuple[int, list[str]]]:
    """Yield every row with the number of the line it begins at; empty lines are skipped.

    After a cell that is too long there are no more rows.
    """
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        line = lines.number + 1
        lines.row_bytes = 0
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            findings.add("CSV syntax", f"{lines.name}:{line}", f"must be CSV: {_explained(error)}")
            if "field larger" in str(
                error
            ):  # a quote that is not closed: what follows cannot be read as rows
                return
            continue
        if row:
            yield line, row


def _explained(error: csv.Error) -> str:
    text = str(error)
    if "field larger" in text:
        return (
            f"a cell is longer than {csv.field_size_limit()} characters, or a quote is not closed"
        )
    if "new-line character" in text:
        return "lines must end with LF or CR LF, this one has a lone CR outside quotes"
    if "unexpected end of data" in text:
        return "a quote is not closed"
    return text


def _printable(text: str, most: int) -> str:
    """Return the beginning of a text from an uploaded file, without control characters."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


class Block(NamedTuple):
    """Some rows that follow each other."""

    sent: bytes
    """as they are in the file"""
    seen: int
    """how many, with those that are wrong"""
    lines: Sequence[int]
    """where each begins that is not wrong"""
    keys: list[bytes]
    """its match id; none where the table has none"""
    plain: bytes = b""
    """all of them as they are stored, or else:"""
    rows: Sequence[list[str]] = ()


class Table:
    """The rows of a table in blocks, and the narrowest of int, float, boolean and string for each column."""

    def __init__(
        self,
        columns: Sequence[str],
        form: Format,
        match_id: str,
        findings: Findings,
    ) -> None:
        self.columns = columns
        self.kinds = [""] * len(columns)
        """of each column so far; '' where every row was empty"""
        self.id_at = columns.index(match_id) if match_id in columns else None
        self.warnings = TableWarnings(columns, self.id_at)
        self._findings = findings
        self._plain = PlainBlocks(form, self.id_at)

    def blocks(
        self,
        file: "BufferedReader[Any]",
        lines: Lines,
        source: Iterator[tuple[int, list[str]]],
    ) -> Iterator[Block]:
        """Yield what is left of a file, whose rows are ``source`` too; the last block has no rows."""
        seen = 1
        while seen:
            ahead = file.peek()
            block = lines.held + ahead[: (end := ahead.rfind(b"\n") + 1)]
            if any(self.kinds) and end and (plain := self._plain.stored(block, self.kinds)):
                keys = self._plain.ids(plain)
                seen = len(keys) or plain.count(b"\n")
                numbers = range(lines.number + 1, lines.number + 1 + seen)
                lines.number += seen
                lines.bytes += len(block)
                lines.held = file.read(len(ahead))[end:]
                self.warnings.see_plain(plain, numbers[0], seen)
                yield Block(block, seen, numbers, keys, plain)
                continue
            read = list(_until(lines.bytes + len(block), source, lines))
            good = [(line, row) for line, row in read if len(row) == len(self.columns)]
            for line, row in read if len(good) < len(read) else ():
                if len(row) != len(self.columns):
                    rule = f"must have {len(self.columns)} cells like the first row"
                    self._findings.add("number of cells", f"{lines.name}:{line}", rule, len(row))
            cells, seen = [row for _, row in good], len(read)
            kinds_before = list(self.kinds)
            for at, column in enumerate(zip(*cells, strict=True)):
                if self.kinds[at] != "string":
                    self.kinds[at] = _widened(self.kinds[at], [cell for cell in column if cell])
            self.warnings.see_rows(good, kinds_before, self.kinds)
            keys = [] if self.id_at is None else [row[self.id_at].encode() for row in cells]
            yield Block(lines.taken(), seen, [line for line, _ in good], keys, rows=cells)


def _until(
    end: int,
    source: Iterator[tuple[int, list[str]]],
    lines: Lines,
) -> Iterator[tuple[int, list[str]]]:
    """Yield rows, the last of them that which ends at or after a byte."""
    for one in source:
        yield one
        if lines.bytes >= end:
            return


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
        self._ids = re.compile(b"\n(?:[^,\\n]*+,){%d}([^,\\n]*+)" % (id_at or 0))

    def ids(self, stored: bytes) -> list[bytes]:
        """Return the ids of a block as it is stored; none where the table has none."""
        return self._ids.findall(b"\n" + memoryview(stored)[:-1]) if self._id_at is not None else []

    def stored(self, block: bytes, kinds: list[str]) -> bytes:
        """Return a block as it is stored; nothing where it is not plain."""
        if (
            self._form.delimiter not in _PLAIN_DELIMITERS
            or len(kinds) > _PLAIN_COLUMNS
            or b'"' in block
        ):
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
        most = (
            csv.field_size_limit() // 2
        )  # a row is shorter than two pieces where each has a line's end
        pieces = range(0, len(block) - most, most)
        return block if all(block.find(b"\n", at, at + most) >= 0 for at in pieces) else b""

    def _expression(self, kinds: list[str]) -> Any:
        text = rf'[^",\n\r\x00{self._form.delimiter}]'
        cells = [
            f"(?:{_EXPRESSIONS.get(kind, f'{text}+')})" + ("?" if len(kinds) > 1 else "")
            for kind in kinds
        ]
        if self._id_at is not None:
            cells[self._id_at] = f"{text}*[0-9A-Za-z]{text}*"  # more than blanks
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.max_mem = _EXPRESSION_BYTES
        return re2.compile(
            f"(?:{re2.escape(self._form.delimiter).join(cells)}\n)+".encode(), options
        )


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


class IdCheck:
    """Finds the lines whose id an earlier line has, with a hash per id on disk, bucket by bucket."""

    def __init__(self, file: Path, remedy: str = "") -> None:
        """``remedy``: what to do about an id that repeats, after a semicolon."""
        self._file = file
        self._remedy = remedy
        self._buffer = [bytearray() for _ in range(_BUCKETS)]
        self._bytes = 0
        self._written: list[array[int]] = []
        """where each bucket ends in the file, for every time that the buffer was written"""

    @staticmethod
    def refuse_blank(
        keys: Sequence[bytes],
        lines: Sequence[int],
        findings: Findings,
    ) -> None:
        """Find rows without an id."""
        for line, key in zip(lines, keys, strict=True):
            if not key.strip() or (key[0] >= 0x80 and not key.decode().strip()):
                findings.add("blank ids", f"file:{line}", "must have a match id", key.decode())

    def see(self, keys: Sequence[bytes], lines: Sequence[int]) -> list[int]:
        """Take in the ids of some lines; return the crc32 of each. Raises `OSError`."""
        crcs, buffer = list(map(zlib.crc32, keys)), self._buffer
        for crc, record in zip(crcs, map(_RECORD.pack, map(hash, keys), crcs, lines), strict=True):
            buffer[crc % _BUCKETS] += record
        self._bytes += _RECORD.size * len(keys)
        if self._bytes > _BUDGET:
            self._write()
        return crcs

    def _write(self) -> None:
        with self._file.open("ab") as file:
            file.writelines(self._buffer)
            end = file.tell() - self._bytes
        self._written.append(array("q", (end := end + len(data) for data in self._buffer)))
        self._buffer = [bytearray() for _ in range(_BUCKETS)]
        self._bytes = 0

    def finish(self, findings: Findings) -> None:
        """Report every line whose id an earlier line has, the first ones in full. Raises `OSError`."""
        total, first = 0, list[tuple[int, int]]()
        with self._file.open("a+b") as file:
            for number in range(_BUCKETS):
                if _all_differ(self._bucket(file, number)):
                    continue
                for pair in _repeats(self._bucket(file, number)):
                    total += 1
                    if len(first) < SHOWN or pair < first[-1]:
                        first = sorted([*first, pair])[:SHOWN]
        for line, earlier in first:
            rule = (
                f"must have a match id of its own, it repeats that of line {earlier}{self._remedy}"
            )
            findings.add("repeated ids", f"file:{line}", rule)
        findings.more("repeated ids", total - len(first))

    def _bucket(self, file: BufferedRandom, number: int) -> Iterator[bytes | bytearray]:
        begin = 0
        for ends in self._written:
            at = ends[number - 1] if number else begin
            while data := os.pread(file.fileno(), min(ends[number] - at, _READ), at):
                at += len(data)
                yield data
            begin = ends[-1]
        yield self._buffer[number]


def _all_differ(records: Iterable[bytes | bytearray]) -> bool:
    """Tell whether no two ids can be the same: their hashes differ, which is compared fast."""
    seen: set[int] = set()
    for data in records:
        (numbers := array("q")).frombytes(data)
        found = set(hashes := numbers[::3])
        if len(found) < len(hashes) or not seen.isdisjoint(found):
            return False
        seen |= found
    return True


def _repeats(records: Iterable[bytes | bytearray]) -> Iterator[tuple[int, int]]:
    """Yield (line, the first line with the same id)."""
    seen: dict[
        tuple[int, int], int
    ] = {}  # bounded by the distinct ids of a bucket, whatever repeats
    for data in records:
        for hashed, crc, line in _RECORD.iter_unpack(data):
            earlier = seen.setdefault((hashed, crc), line)
            if earlier != line:
                yield line, earlier
