"""Warnings about unusual rows of an uploaded table, which is stored anyway.

Each has the number of a line and an example.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from gateway.errors import shorten

Row = tuple[int, list[str]]  # the number of its first line, and its cells

_SAMPLE_ROWS = 20  # first rows, which are searched for cells with several values
_LONGEST_SEARCHED = 10_000  # characters of a cell
_FEW = 50  # a text among more numbers than this in its column is unusual
_MOST_LINES = 3  # with a warning each
_MOST_COLUMNS = 5  # names in one warning
_LONGEST_CELL = 60  # characters of an example
_LONGEST_NAMES = 300  # characters of the names in one warning
_TOTAL = re.compile(r"(grand )?totals?:?|sum:?|合计|总计|小计", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
_PAIR = r"[\w.\-]+:[+-]?[0-9][0-9.eE+-]*"
_PAIRS = re.compile(rf"(?:[^\s:;]+ )?{_PAIR}(?:[ ;]{_PAIR})+[ ;]?")


class TableWarnings:
    """Collects the warnings about one table while its rows are read."""

    def __init__(
        self,
        columns: Sequence[str],
        match_id_at: int | None = None,
    ) -> None:
        """Begin a table.

        ``match_id_at`` is the index of the match ids' column; None without one. Its ids are text
        even if most of them look like numbers.
        """
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
        """Inspect the next rows; ``kinds`` are the columns' types with them, and before them."""
        if not rows:
            return
        for line, row in rows:
            is_blank = len(row) > 1 and not any(row)
            if is_blank:
                self._see_blank(line)
        self._search_cells(rows[: max(0, _SAMPLE_ROWS - self._rows)])
        for index in self._columns_that_became_text(kinds_before, kinds):
            self._look_for_text(index, rows)
        self._rows += len(rows)
        self._last_row = rows[-1]

    def _columns_that_became_text(
        self, kinds_before: Sequence[str], kinds: Sequence[str]
    ) -> Iterator[int]:
        """Yield the indexes of columns in which text follows numbers; never the match ids'."""
        for index, (kind_before, kind) in enumerate(zip(kinds_before, kinds, strict=True)):
            became_text = kind == "string" and kind_before in ("", "int", "float")
            if became_text and index != self._match_id_at:
                yield index

    def see_plain(
        self,
        block: bytes,
        first_line: int,
        count: int,
    ) -> None:
        """Inspect the next rows in stored form.

        Their cells have the types that the columns had before.
        """
        blank_row = self._separator.encode()
        if self._separator and b"\n" + blank_row + b"\n" in b"\n" + block:
            for number, row in enumerate(block.split(b"\n")):
                if row == blank_row:
                    self._see_blank(first_line + number)
        self._rows += count
        last = block[:-1].rpartition(b"\n")[2].decode(errors="replace")
        self._last_row = (first_line + count - 1, last.split(","))

    def _see_blank(self, line: int) -> None:
        """Count a row that is empty in every column."""
        self._first_blank_line = self._first_blank_line or line
        self._blank_rows += 1

    def _search_cells(self, rows: Sequence[Row]) -> None:
        """Search rows for the first cell with several values and the first decimal comma."""
        for line, row in rows:
            for cell in row:
                if len(cell) <= _LONGEST_SEARCHED:
                    self._search_cell(line, cell)

    def _search_cell(self, line: int, cell: str) -> None:
        """Note a cell with several values or a decimal comma, if it is the first one."""
        text = cell.strip()
        if self._pairs is None and _PAIRS.fullmatch(text):
            self._pairs = (line, cell)
        if self._decimal_comma is None and _DECIMAL_COMMA.fullmatch(text):
            self._decimal_comma = (line, cell)

    def _look_for_text(
        self,
        index: int,
        rows: Sequence[Row],
    ) -> None:
        """Note the first text in a column of numbers, if texts are few there.

        A text that begins with a digit is not noted: 1100101X may be an id.
        """
        cells = [(line, row[index]) for line, row in rows if row[index]]
        texts = [(line, cell) for line, cell in cells if not _is_number(cell)]
        numbers = self._rows + len(cells) - len(texts)
        if not _are_few(len(texts), numbers):
            return
        line, cell = texts[0]
        if not cell.strip()[:1].isdigit():
            self._text_by_line[line].append((self._columns[index], _quoted(cell)))

    def texts(
        self,
        kinds: Sequence[str],
        *,
        has_header: bool,
        is_complete: bool = True,
    ) -> list[str]:
        """Return the warnings about all rows seen, for people.

        - ``kinds``: the types of the columns
        - ``has_header``: the column names are those of the file's first line
        - ``is_complete``: all rows were seen, so that the last one is the table's end
        """
        if has_header:
            header_pairs = [name for name in self._columns if _PAIRS.fullmatch(name.strip())]
            if header_pairs:
                self._pairs = (1, header_pairs[0])
        warnings: list[str] = []
        if has_header:
            warnings += self._numbers_in_header(kinds)
        warnings += self._odd_cells()
        warnings += self._texts_among_numbers()
        warnings += self._blank()
        if is_complete:
            warnings += self._total()
        return warnings

    def _numbers_in_header(self, kinds: Sequence[str]) -> Iterator[str]:
        """Warn of the first number among the names of columns of numbers."""
        for name, kind in zip(self._columns, kinds, strict=True):
            if kind in ("int", "float") and _is_number(name):
                yield (
                    f"line 1 has numbers where names of columns belong, such as {_quoted(name)}: "
                    "if the file has no header, upload it again with head: false (--no-head)"
                )
                return

    def _odd_cells(self) -> Iterator[str]:
        if self._pairs is not None:
            line, cell = self._pairs
            yield (
                f"line {line} has a cell with several values, {_quoted(cell)}: such cells "
                "(tag:value, svmlight) are stored as text; for components that read numbers, give "
                "each value a column of its own"
            )
        if self._decimal_comma is not None:
            line, cell = self._decimal_comma
            yield (
                f"line {line} has a number with a decimal comma, {_quoted(cell)}: such cells are "
                "stored as text. Write decimal points, and upload again"
            )

    def _texts_among_numbers(self) -> Iterator[str]:
        """Warn of the first lines with text in columns of numbers."""
        for line, odd_cells in sorted(self._text_by_line.items())[:_MOST_LINES]:
            columns = [name for name, _ in odd_cells[:_MOST_COLUMNS]]
            names = shorten(", ".join(columns), _LONGEST_NAMES)
            _, example = odd_cells[0]
            yield (
                f"line {line} has text, such as {example}, where nearly all rows have numbers, in "
                f"the columns {names}: they are text now. Is it a second header, a total or a "
                "missing value? Delete it, and upload again"
            )

    def _blank(self) -> Iterator[str]:
        """Warn of rows that are empty in every column."""
        if self._blank_rows:
            yield (
                f"rows that are empty in every column: {self._blank_rows}, the first in line "
                f"{self._first_blank_line}; they are stored as rows. If a spreadsheet left them, "
                "delete them, and upload again"
            )

    def _total(self) -> Iterator[str]:
        """Warn of a last row that looks like a total, unless its line has a warning already."""
        line, row = self._last_row
        if line not in self._text_by_line and _is_total(row):
            cell = next(cell for cell in row if cell)
            yield (
                f"the last row, line {line}, looks like a total or a note ({_quoted(cell)}): it is "
                "stored as a row. If it is not data, delete it, and upload again"
            )


def _is_total(row: Sequence[str]) -> bool:
    """Return whether a row has a word for a total, or nothing but one text in several columns."""
    cells = [cell.strip() for cell in row if cell.strip()]
    if not cells:
        return False
    is_lone_cell = len(cells) == 1 and len(row) > 2
    if is_lone_cell and not _is_number(cells[0]):
        return True
    return any(_TOTAL.fullmatch(cell) for cell in cells)


def _are_few(texts: int, numbers: int) -> bool:
    """Return whether a column's texts, at least one, are unusual among its numbers."""
    if not texts:
        return False
    is_lone = texts == 1 and numbers > 1
    return is_lone or texts * _FEW <= numbers


def _is_number(cell: str) -> bool:
    """Return whether Python reads a cell as a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _quoted(cell: str) -> str:
    """Return a cell as an example: short, and without control characters."""
    printable = replace_unprintable(cell[: _LONGEST_CELL + 1])
    return repr(shorten(printable, _LONGEST_CELL))


def replace_unprintable(text: str) -> str:
    """Return a text with a replacement character for each control character."""
    if text.isprintable():
        return text
    return "".join(map(_printable_character, text))


def _printable_character(character: str) -> str:
    """Return a character, or the replacement character for one that cannot be printed."""
    if character.isprintable():
        return character
    return "\N{REPLACEMENT CHARACTER}"
