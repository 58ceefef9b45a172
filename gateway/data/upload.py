"""Turns an uploaded file into the partitions that components read.

Rows keep their cells to the letter; only the form is normalised: UTF-8, comma, ``\\n``, quotes where needed. Each
partition begins with the header. A row goes to ``crc32(match id) % partitions``, without a match id to
``crc32(row number) % partitions``, so the same id of two parties' equally partitioned tables has the same number.
"""

import csv
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from gateway.data.dataset_ids import Buckets, IdCheck
from gateway.data.dataset_reader import Findings, Lines, check_header, rows
from gateway.data.dataset_upload import SID, Upload
from gateway.data.storage import PARTITION

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
