"""What looks odd in a table that is stored all the same: said at its upload, with the line and an example."""

import re
from collections import defaultdict
from collections.abc import Sequence

from gateway.errors import shorten

Row = tuple[int, list[str]]
"""the number of the line at which a row begins, and its cells"""

_LOOKED_AT = 20  # rows in which cells with several values are looked for
_LONGEST_LOOKED_AT = 10_000  # characters of a cell
_FEW = 50  # one text among so many numbers is odd
_MOST_LINES = 3  # lines of which each gets a warning of its own
_MOST_COLUMNS = 5  # names in one warning
_LONGEST_CELL = 60  # characters of an example
_TOTAL = re.compile(r"(grand )?totals?:?|sum:?|合计|总计|小计", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
_PAIR = r"[\w.\-]+:[+-]?[0-9][0-9.eE+-]*"
_PAIRS = re.compile(rf"(?:[^\s:;]+ )?{_PAIR}(?:[ ;]{_PAIR})+[ ;]?")


class TableWarnings:
    """Collects what is odd in the rows of one table as they are read."""

    def __init__(self, columns: Sequence[str], match_id_at: int | None = None) -> None:
        """``match_id_at``: the column of the match ids, which are names even where most are numbers."""
        self._columns = columns
        self._match_id_at = match_id_at
        self._separator = "," * (len(columns) - 1)
        self._rows = 0
        self._blank_rows = 0
        self._first_blank_line = 0
        self._pairs: tuple[int, str] | None = None
        self._decimal_comma: tuple[int, str] | None = None
        self._text_by_line: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
        self._last_row: Row = (0, [])

    def see_rows(
        self,
        rows: Sequence[Row],
        kinds_before: Sequence[str],
        kinds: Sequence[str],
    ) -> None:
        """Take in rows, with the columns' types before them and with them."""
        if not rows:
            return
        for line, row in rows:
            if len(row) > 1 and not any(row):
                self._see_blank(line)
        if self._rows < _LOOKED_AT:
            self._look_into_cells(rows[: _LOOKED_AT - self._rows])
        for at, kind in enumerate(kinds):
            if (
                kind == "string"
                and kinds_before[at] in ("", "int", "float")
                and at != self._match_id_at
            ):
                self._look_for_text(at, rows)
        self._rows += len(rows)
        self._last_row = rows[-1]

    def see_plain(
        self,
        block: bytes,
        first_line: int,
        count: int,
    ) -> None:
        """Take in rows as they are stored, which are of the types known before."""
        blank_line = self._separator.encode() + b"\n"
        if self._separator and (b"\n" + blank_line in block or block.startswith(blank_line)):
            for number, row in enumerate(block.split(b"\n")):
                if row == blank_line[:-1]:
                    self._see_blank(first_line + number)
        self._rows += count
        last = block[:-1].rpartition(b"\n")[2].decode(errors="replace")
        self._last_row = (first_line + count - 1, last.split(","))

    def _see_blank(self, line: int) -> None:
        self._first_blank_line = self._first_blank_line or line
        self._blank_rows += 1

    def _look_into_cells(self, rows: Sequence[Row]) -> None:
        for line, row in rows:
            for cell in row:
                if len(cell) > _LONGEST_LOOKED_AT:
                    continue
                if self._pairs is None and _PAIRS.fullmatch(cell.strip()):
                    self._pairs = (line, cell)
                if self._decimal_comma is None and _DECIMAL_COMMA.fullmatch(cell.strip()):
                    self._decimal_comma = (line, cell)

    def _look_for_text(self, at: int, rows: Sequence[Row]) -> None:
        """Find the first text of a column of numbers. What begins with a digit may be a name, such as 1100101X."""
        texts = [(line, row[at]) for line, row in rows if row[at] and not _is_number(row[at])]
        numbers = self._rows + sum(1 for _, row in rows if row[at]) - len(texts)
        is_few = len(texts) * _FEW <= numbers or (len(texts) == 1 and numbers > 1)
        if not texts or not is_few:
            return
        line, cell = texts[0]
        if not cell.strip()[:1].isdigit():
            self._text_by_line[line].append((self._columns[at], _quoted(cell)))

    def texts(
        self,
        kinds: Sequence[str],
        *,
        has_header: bool,
        whole: bool = True,
    ) -> list[str]:
        """Return what is odd of all that was seen, for people. ``whole``: that is all of the table."""
        found = []
        numeric = [
            name
            for name, kind in zip(self._columns, kinds, strict=True)
            if kind in ("int", "float") and _is_number(name)
        ]
        if has_header and numeric:
            found.append(
                f"line 1 has numbers where names of columns belong, such as {_quoted(numeric[0])}: if the file "
                "has no header, upload it again with head: false (--no-head)"
            )
        header_pairs = [name for name in self._columns if _PAIRS.fullmatch(name.strip())]
        if has_header and header_pairs:
            self._pairs = (1, header_pairs[0])
        if self._pairs is not None:
            line, cell = self._pairs
            found.append(
                f"line {line} has a cell with several values, {_quoted(cell)}: such cells (tag:value, svmlight) "
                "are stored as text; for components that read numbers, give each value a column of its own"
            )
        if self._decimal_comma is not None:
            line, cell = self._decimal_comma
            found.append(
                f"line {line} has a number with a decimal comma, {_quoted(cell)}: such cells are stored as text. "
                "Write decimal points, and upload again"
            )
        for line, odd_cells in sorted(self._text_by_line.items())[:_MOST_LINES]:
            names = shorten(", ".join(name for name, _ in odd_cells[:_MOST_COLUMNS]), 300)
            found.append(
                f"line {line} has text, such as {odd_cells[0][1]}, where nearly all rows have numbers, in "
                f"the columns {names}: they are text now. Is it a second header, a total or a missing value? "
                "Delete it, and upload again"
            )
        if self._blank_rows:
            found.append(
                f"rows that are empty in every column: {self._blank_rows}, the first in line "
                f"{self._first_blank_line}; they are stored as rows. If a spreadsheet left them, delete them, and "
                "upload again"
            )
        line, row = self._last_row
        if whole and line not in self._text_by_line and _is_total(row):
            cell = next(cell for cell in row if cell)
            found.append(
                f"the last row, line {line}, looks like a total or a note ({_quoted(cell)}): it is stored as a "
                "row. If it is not data, delete it, and upload again"
            )
        return found


def _is_total(row: Sequence[str]) -> bool:
    cells = [cell.strip() for cell in row if cell.strip()]
    if not cells:
        return False
    is_lone_text = len(cells) == 1 and len(row) > 2 and not _is_number(cells[0])
    return is_lone_text or any(_TOTAL.fullmatch(cell) for cell in cells)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _quoted(cell: str) -> str:
    """Return a cell as an example: short, and without control characters."""
    plain = "".join(
        c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cell[: _LONGEST_CELL + 1]
    )
    return repr(shorten(plain, _LONGEST_CELL))
