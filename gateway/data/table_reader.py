"""Reads an uploaded table row by row, with line numbers, and collects its problems.

Memory is bounded for any input: lines, rows and cells have limits, and only the first few problems
of each kind are kept.
"""

import codecs
import csv
import re
from collections.abc import Iterator, Sequence
from io import BufferedReader
from typing import Any, BinaryIO, NamedTuple

from gateway.data.table_format import OTHER_ENCODING, UTF8, UTF8_BOM, Format, encoding_name
from gateway.data.table_warnings import TableWarnings, replace_unprintable
from gateway.domain.problems import Problem
from gateway.errors import Invalid

LARGEST_ROW = 4 * 1024 * 1024  # bytes
SHOWN = 20  # problems of one kind that are kept
_LINES_NAMED = 10  # further lines named after the first problem of a kind
_LONGEST_RULE = 500  # characters
_LONGEST_VALUE = 120  # characters of a value in a problem
_BOM = "\ufeff"
_MARK_OF_ANOTHER_ENCODING = (
    "is not UTF-8, but the file begins with a UTF-8 mark (GBK?). Save it again as UTF-8, or remove "
    "the mark and use --encoding gbk"
)

_BOOLEANS = frozenset({"true", "false", "True", "False", "TRUE", "FALSE"})

# For the fast path: the expression of a cell by the type of its column. It matches only cells that
# the reader of rows takes for that type, but not all of them. `PlainBlocks` adds the expression for
# the type string.
_EXPRESSIONS = {
    "": "",  # all cells so far are empty
    "boolean": "true|false|True|False|TRUE|FALSE",
    "int": "[+-]?[0-9]{1,20}",
    "float": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:nan|NaN|inf)",
}
_PLAIN_DELIMITERS = ",;|\t"  # of tables on the fast path
_PLAIN_COLUMNS = 1000  # of the widest table on the fast path
_EXPRESSION_BYTES = 64 * 1024 * 1024  # memory of a compiled expression, at most


# ---------------------------------------------------------------- problems


class Findings:
    """The problems of one table by kind, in the order of their discovery."""

    def __init__(self) -> None:
        self._problems: dict[str, list[Problem]] = {}
        self._further: dict[str, int] = {}  # problems that are only counted, by kind

    def __bool__(self) -> bool:
        return bool(self._problems)

    def add(
        self,
        kind: str,
        path: str,
        rule: str,
        got: Any = None,
    ) -> None:
        """Add a problem; beyond the first `SHOWN` of a kind it is only counted."""
        problems = self._problems.setdefault(kind, [])
        if len(problems) >= SHOWN:
            self.count_further(kind, 1)
            return
        if isinstance(got, str):
            got = _printable(got, _LONGEST_VALUE)
        problems.append(Problem(path, _printable(rule, _LONGEST_RULE), got))

    def count_further(self, kind: str, count: int) -> None:
        """Count further problems of a kind, which are not kept."""
        if count:
            self._further[kind] = self._further.get(kind, 0) + count

    def error(self, reason: str | None = None) -> Invalid:
        """Return the error with all problems, and the number of further ones of each kind."""
        listed: list[Problem] = []
        for kind, problems in self._problems.items():
            listed += self._listed(kind, problems)
        return Invalid(listed, reason=reason)

    def _listed(
        self,
        kind: str,
        problems: Sequence[Problem],
    ) -> list[Problem]:
        """Return the problems of one kind as the error lists them.

        If each is in a line of its own, only the first is listed in full; of the others, only the
        numbers of their lines are listed.
        """
        unlisted = self._further.get(kind, 0)
        further_lines = _further_lines(problems)
        listed = list(problems)
        where = ""
        if further_lines:
            listed = [problems[0]]
            unlisted += len(problems) - 1
            lines = ", ".join(further_lines[:_LINES_NAMED])
            if unlisted > _LINES_NAMED:
                lines += ", …"
            where = f", in lines {lines}"
        if unlisted:
            listed.append(Problem("file", f"{unlisted} more of this kind: {kind}{where}"))
        return listed


def _further_lines(problems: Sequence[Problem]) -> list[str]:
    """Return the lines of all problems but the first, if each has a line of its own; else empty."""
    lines = [problem.path.rpartition(":")[2] for problem in problems]
    if len(set(lines)) < len(lines) or not all(map(str.isdecimal, lines)):
        return []
    return lines[1:]


def _printable(text: str, longest: int) -> str:
    """Return at most ``longest`` characters of a text from an uploaded file.

    Characters that cannot be printed are replaced.
    """
    start = text[: longest + 1]
    printable = replace_unprintable(start)
    if len(printable) > longest:
        return printable[: longest - 1] + "…"
    return printable


# ---------------------------------------------------------------- lines and rows


class Lines:
    """The decoded lines of a file, numbered from 1.

    NUL bytes and bytes that are invalid in the encoding are reported, and left out or replaced.
    """

    def __init__(
        self,
        file: BinaryIO,
        encoding: str,
        findings: Findings,
        name: str = "file",
        *,
        keep: bool = False,
    ) -> None:
        """Begin at a file's position.

        - ``name``: the file's name, for problems
        - ``keep``: keep the raw lines for `take`
        """
        self.name = name
        self.number = 0  # of the line read last
        self.bytes = 0  # read so far
        self.row_bytes = 0  # read of the current row; `rows` resets it before each row
        # Beginning of the next line, already read from the file; `Table.blocks` sets it
        self.pending = b""
        self._file = file
        self._encoding = encoding
        self._findings = findings
        self._keep = keep
        self._raw: list[bytes] = []

    def __iter__(self) -> Iterator[str]:
        """Yield the lines with their line ends. Raises `Invalid` for a row that is too long."""
        while True:
            raw = self.pending + self._file.readline(LARGEST_ROW + 1)
            if not raw:
                return
            self.pending = b""
            if self._keep:
                self._raw.append(raw)
            self.number += 1
            self.bytes += len(raw)
            self.row_bytes += len(raw)
            if self.row_bytes > LARGEST_ROW:
                rule = (
                    f"must have rows of at most {LARGEST_ROW} bytes; "
                    "is a quote not closed, or is this not CSV?"
                )
                self._add("row size", rule)
                raise self._findings.error()
            text = self._decode(raw)
            if self.number == 1:
                text = text.removeprefix(_BOM)
            yield text

    def _decode(self, raw: bytes) -> str:
        """Return the text of the line read last, and report the bytes that are no text."""
        if b"\0" in raw:
            self._add("NUL bytes", "must not hold NUL bytes", raw[:80])
            raw = raw.replace(b"\0", b"")
        try:
            return raw.decode(self._encoding)
        except UnicodeDecodeError as error:
            surroundings = raw[max(0, error.start - 10) : error.start + 10]
            rule = (
                f"must be {encoding_name(self._encoding)} text, byte {error.start + 1} is not; "
                f"{OTHER_ENCODING}"
            )
            if self._encoding == UTF8_BOM:  # an editor has put the mark before text in GBK
                rule = _MARK_OF_ANOTHER_ENCODING
            self._add("encoding", rule, surroundings)
            return raw.decode(self._encoding, errors="replace")

    def _add(
        self,
        kind: str,
        rule: str,
        got: Any = None,
    ) -> None:
        """Report a problem of the line read last."""
        self._findings.add(kind, f"{self.name}:{self.number}", rule, got)

    def take(self) -> bytes:
        """Remove and return the raw lines read since the last call."""
        raw = b"".join(self._raw)
        self._raw.clear()
        return raw


def rows(
    lines: Lines,
    delimiter: str,
    findings: Findings,
) -> Iterator[tuple[int, list[str]]]:
    """Yield every row with the number of its first line; empty lines are left out.

    Rows that are not CSV are reported. An oversized cell ends the rows: it may have a quote that is
    not closed, after which nothing can be read as rows.
    """
    reader = csv.reader(
        lines,
        delimiter=delimiter,
        strict=True,
    )
    while True:
        line = lines.number + 1
        lines.row_bytes = 0
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            findings.add("CSV syntax", f"{lines.name}:{line}", f"must be CSV: {_explained(error)}")
            if "field larger" in str(error):
                return
            continue
        if row:
            yield line, row


def _explained(error: csv.Error) -> str:
    """Return the meaning of an error of Python's reader of CSV.

    An unknown error is returned with its own text.
    """
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


# ---------------------------------------------------------------- blocks


class Block(NamedTuple):
    """Consecutive rows of a table."""

    # About all rows, including those with a wrong number of cells
    sent: bytes  # the rows as in the file; off the fast path, only if `Lines` keeps them
    row_count: int
    # About the rows with the right number of cells
    lines: Sequence[int]  # the first line of each row
    ids: list[bytes]  # the match id of each row; empty for a table without match ids
    # On the fast path, the rows in stored form: UTF-8 with commas and LF; else empty
    plain: bytes = b""
    rows: Sequence[list[str]] = ()  # the cells of each row, off the fast path


class Table:
    """The rows of a table in blocks, and the type of each column.

    A column's type is the narrowest of int, float, boolean and string that fits all its cells read
    so far, or "" while they are all empty.
    """

    def __init__(
        self,
        columns: Sequence[str],
        form: Format,
        match_id: str,
        findings: Findings,
    ) -> None:
        """Begin after the header; ``match_id`` is the name of the ids' column, "" without one."""
        self.columns = columns
        self.kinds = [""] * len(columns)  # the types so far
        self.id_at: int | None = None  # index of the match ids' column
        if match_id in columns:
            self.id_at = columns.index(match_id)
        self.warnings = TableWarnings(columns, self.id_at)
        self._findings = findings
        self._plain = PlainBlocks(form, self.id_at)

    def blocks(
        self,
        file: "BufferedReader[Any]",
        lines: Lines,
        source: Iterator[tuple[int, list[str]]],
    ) -> Iterator[Block]:
        """Yield the rest of a file; the last block is empty.

        ``lines`` and ``source`` are the file's lines and rows. The fast path takes a block from the
        file's buffer, the other path reads it row by row.
        """
        while True:
            ahead = file.peek()  # the bytes in the buffer, which stay there
            end = ahead.rfind(b"\n") + 1
            sent = lines.pending + ahead[:end]  # complete lines
            stored = b""
            if end and any(self.kinds):  # before the first block, no type is known
                stored = self._plain.stored(sent, self.kinds)
            if stored:
                block = self._plain_block(sent, stored, lines)
                lines.pending = file.read(len(ahead))[end:]  # the incomplete line at the end
            else:
                # Nothing was consumed: the same bytes are read row by row, at least one row.
                block = self._read_block(
                    lines.bytes + len(sent),
                    source,
                    lines,
                )
            yield block
            if not block.row_count:
                return

    def _plain_block(
        self,
        sent: bytes,
        stored: bytes,
        lines: Lines,
    ) -> Block:
        """Return a block of the fast path, given its bytes in the file and in stored form."""
        ids = self._plain.ids(stored)
        count = len(ids) or stored.count(b"\n")  # without match ids, ``ids`` is empty
        first_line = lines.number + 1
        lines.number += count
        lines.bytes += len(sent)
        self.warnings.see_plain(stored, first_line, count)
        return Block(
            sent=sent,
            row_count=count,
            lines=range(first_line, first_line + count),
            ids=ids,
            plain=stored,
        )

    def _read_block(
        self,
        end: int,
        source: Iterator[tuple[int, list[str]]],
        lines: Lines,
    ) -> Block:
        """Read rows, up to the one that ends at or after the byte ``end`` of the file."""
        count = 0
        valid = []
        for line, row in _until(end, source, lines):
            count += 1
            if len(row) == len(self.columns):
                valid.append((line, row))
            else:
                rule = f"must have {len(self.columns)} cells like the first row"
                self._findings.add("number of cells", f"{lines.name}:{line}", rule, len(row))
        cells = [row for _, row in valid]
        kinds_before = list(self.kinds)
        self._widen_kinds(cells)
        self.warnings.see_rows(valid, kinds_before, self.kinds)
        ids = []
        if self.id_at is not None:
            ids = [row[self.id_at].encode() for row in cells]
        return Block(
            sent=lines.take(),
            row_count=count,
            lines=[line for line, _ in valid],
            ids=ids,
            rows=cells,
        )

    def _widen_kinds(self, cells: Sequence[list[str]]) -> None:
        """Adapt the types of the columns to further rows."""
        for index, column in enumerate(zip(*cells, strict=True)):
            kind = self.kinds[index]
            if kind != "string":
                self.kinds[index] = _widened(kind, [cell for cell in column if cell])


def _until(
    end: int,
    source: Iterator[tuple[int, list[str]]],
    lines: Lines,
) -> Iterator[tuple[int, list[str]]]:
    """Yield rows up to the one that ends at or after the byte ``end`` of the file.

    ``lines`` counts the bytes that ``source``, the reader of rows, has read.
    """
    for row in source:
        yield row
        if lines.bytes >= end:
            return


def _widened(kind: str, cells: list[str]) -> str:
    """Return the narrowest type of some cells together with earlier ones.

    ``kind`` is the type of the earlier cells, never string; "" if there are none.
    """
    if not cells:
        return kind
    are_booleans = _BOOLEANS.issuperset(cells)
    if kind in ("", "boolean") and are_booleans:
        return "boolean"
    if kind == "boolean":
        return "string"
    return _narrowest_number(
        cells,
        may_be_int=kind in ("", "int"),
    )


def _narrowest_number(
    cells: list[str],
    *,
    may_be_int: bool,
) -> str:
    """Return the narrowest of int, float and string that fits some cells.

    ``may_be_int``: int fits the earlier cells of the column, if there are any.
    """
    if "_" in "".join(cells):  # Python reads 1_000 as a number, other programs do not
        return "string"
    if may_be_int and _parse_all(int, cells):
        return "int"
    if _parse_all(float, cells):
        return "float"
    return "string"


def _parse_all(
    parse: type[int] | type[float],
    cells: list[str],
) -> bool:
    """Return whether Python reads every cell as a number of a type."""
    try:
        for _ in map(parse, cells):
            pass
    except ValueError:
        return False
    return True


class PlainBlocks:
    """The fast path: blocks of lines without quotes, whose cells have the types known so far.

    One expression checks a whole block. The reader of rows accepts every block that it matches.
    """

    def __init__(self, form: Format, id_at: int | None) -> None:
        """Take the format of the file, and the index of the match ids' column, if any."""
        self._form = form
        self._id_at = id_at
        self._kinds: list[str] = []  # the types for which `_rows` was compiled
        self._rows: Any = None  # the expression of one or more rows
        # The expression of a row's id, after the cells before it
        self._ids = re.compile(b"\n(?:[^,\\n]*+,){%d}([^,\\n]*+)" % (id_at or 0))

    def ids(self, stored: bytes) -> list[bytes]:
        """Return the ids of a block in stored form; empty for a table without match ids."""
        if self._id_at is None:
            return []
        # The expression begins with the line feed before a row: one is added before the first row,
        # and the last one, which no row follows, is left out.
        return self._ids.findall(b"\n" + memoryview(stored)[:-1])

    def stored(self, block: bytes, kinds: list[str]) -> bytes:
        """Return a block in stored form; b"" if it does not qualify for the fast path.

        ``kinds`` are the types of the columns.
        """
        delimiter = self._form.delimiter
        is_plain = delimiter in _PLAIN_DELIMITERS and b'"' not in block
        if not is_plain or len(kinds) > _PLAIN_COLUMNS:
            return b""
        block = self._as_utf8(block)  # b"" if invalid, which the expression does not match
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        if kinds != self._kinds:
            self._kinds = [*kinds]
            self._rows = self._expression(kinds)
        if not self._rows.fullmatch(block):
            return b""
        if delimiter != ",":
            block = block.replace(delimiter.encode(), b",")
        if not _has_short_rows(block):
            return b""
        return block

    def _as_utf8(self, block: bytes) -> bytes:
        """Return a block in UTF-8.

        b"" if it is invalid in the file's encoding, or contains a byte order mark.
        """
        try:
            if self._form.encoding not in (UTF8, UTF8_BOM):
                return block.decode(self._form.encoding).encode()
            if block.isascii():
                return block
            block.decode()
        except UnicodeDecodeError:
            return b""
        if codecs.BOM_UTF8 in block:
            return b""
        return block

    def _expression(self, kinds: list[str]) -> Any:
        """Return the compiled expression of one or more rows with columns of these types.

        A cell may be empty, with two exceptions: in the column of the match ids, and in a table of
        one column, where an empty line does not count as a row.
        """
        # Imported late: a node that reads no table does without the library.
        import re2  # noqa: PLC0415

        character = rf'[^",\n\r\x00{self._form.delimiter}]'
        optional = "?" if len(kinds) > 1 else ""
        cells = []
        for kind in kinds:
            cell = _EXPRESSIONS.get(kind, f"{character}+")
            cells.append(f"(?:{cell}){optional}")
        if self._id_at is not None:
            cells[self._id_at] = f"{character}*[0-9A-Za-z]{character}*"  # not blank
        row = re2.escape(self._form.delimiter).join(cells)
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.max_mem = _EXPRESSION_BYTES
        return re2.compile(f"(?:{row}\n)+".encode(), options)


def _has_short_rows(block: bytes) -> bool:
    """Return whether no row can exceed the size limit of cells.

    If each piece of half the limit contains a line end, every row is shorter than two pieces.
    """
    piece = csv.field_size_limit() // 2
    starts = range(0, len(block) - piece, piece)
    return all(block.find(b"\n", start, start + piece) >= 0 for start in starts)
