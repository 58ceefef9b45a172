"""Warnings about unusual rows of an uploaded table, which is stored anyway.

Each warning has the number of a line, and an example unless the line is blank.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from gateway.errors import shorten

Row = tuple[int, list[str]]  # the number of its first line, and its cells

_SAMPLE_ROWS = 20  # first rows, which are searched for cells with several values
_LONGEST_SEARCHED = 10_000  # characters of a cell that is searched
_NUMBERS_PER_TEXT = 50  # numbers for each text of a column, from which on texts are unusual
_MOST_LINES = 3  # lines with text among numbers that get a warning each
_MOST_COLUMNS = 5  # names in one warning
_LONGEST_CELL = 60  # characters of an example
_LONGEST_NAMES = 300  # characters of the names in one warning
_TOTAL = re.compile(r"(grand )?totals?:?|sum:?|合计|总计|小计", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
# Several tag:value pairs in one cell, perhaps after a label, as in svmlight: ``1 3:0.5 7:1``.
_PAIR = r"[\w.\-]+:[+-]?[0-9][0-9.eE+-]*"
_PAIRS = re.compile(rf"(?:[^\s:;]+ )?{_PAIR}(?:[ ;]{_PAIR})+[ ;]?")
# Types of a column before and after rows with its first text; "" is the type of a column whose
# cells are all empty so far.
_BECAME_TEXT = frozenset({("", "string"), ("int", "string"), ("float", "string")})


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
        self._blank_row = b"," * (len(columns) - 1)  # in stored form
        self._rows = 0  # seen so far
        self._blank_rows = 0
        self._first_blank_line = 0
        # Line and content of the first cell with several values, and of the first decimal comma
        self._pairs: tuple[int, str] | None = None
        self._decimal_comma: tuple[int, str] | None = None
        # Texts in columns of numbers, by line: the name of the column, and the cell as an example
        self._text_by_line: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
        self._last_row: Row = (0, [])

    def see_rows(
        self,
        rows: Sequence[Row],
        kinds_before: Sequence[str],
        kinds: Sequence[str],
    ) -> None:
        """Inspect the next rows.

        ``kinds_before`` and ``kinds`` are the types of the columns before and after these rows. A
        column that becomes text with these rows is searched for the first text among numbers.
        """
        if not rows:
            return
        if len(self._columns) > 1:  # in a table with a single column, an empty row may be data
            self._look_for_blank(rows)
        self._search_cells(rows[: max(0, _SAMPLE_ROWS - self._rows)])
        for index, (before, after) in enumerate(zip(kinds_before, kinds, strict=True)):
            if (before, after) in _BECAME_TEXT and index != self._match_id_at:
                earlier_numbers = 0
                if before:  # "": the column had no cells yet
                    earlier_numbers = self._rows
                self._look_for_text(index, rows, earlier_numbers)
        self._rows += len(rows)
        self._last_row = rows[-1]

    def see_plain(
        self,
        block: bytes,
        first_line: int,
        count: int,
    ) -> None:
        """Inspect the next rows in stored form.

        - ``block``: the rows as bytes, each with its line end
        - ``first_line``: the number of the first row's line
        - ``count``: the number of rows

        Their cells have the types that the columns had before.
        """
        # A fast search in the whole block, as most blocks have no blank row. In a table with a
        # single column, such a row is b"", and does not count.
        if self._blank_row and b"\n" + self._blank_row + b"\n" in b"\n" + block:
            for number, row in enumerate(block.split(b"\n")):
                if row == self._blank_row:
                    self._see_blank(first_line + number)
        self._rows += count
        last = block[:-1].rpartition(b"\n")[2].decode(errors="replace")
        self._last_row = (first_line + count - 1, last.split(","))

    def _look_for_blank(self, rows: Sequence[Row]) -> None:
        """Count the rows that are empty in every column."""
        for line, row in rows:
            if not any(row):
                self._see_blank(line)

    def _see_blank(self, line: int) -> None:
        """Count a row that is empty in every column, and keep the line of the first one."""
        if not self._blank_rows:
            self._first_blank_line = line
        self._blank_rows += 1

    def _search_cells(self, rows: Sequence[Row]) -> None:
        """Search rows for the first cell with several values and the first decimal comma.

        Longer cells than `_LONGEST_SEARCHED` are left out, as a search would take long.
        """
        for line, row in rows:
            for cell in row:
                if len(cell) <= _LONGEST_SEARCHED:
                    self._search_cell(line, cell)

    def _search_cell(self, line: int, cell: str) -> None:
        """Note a cell with several values or a decimal comma, if it is the first one.

        Spaces around its content do not count.
        """
        text = cell.strip()
        if self._pairs is None and _PAIRS.fullmatch(text):
            self._pairs = (line, cell)
        if self._decimal_comma is None and _DECIMAL_COMMA.fullmatch(text):
            self._decimal_comma = (line, cell)

    def _look_for_text(
        self,
        index: int,
        rows: Sequence[Row],
        earlier_numbers: int,
    ) -> None:
        """Note the first text in a column of numbers, if texts are few there.

        - ``index``: the column's index in each row
        - ``earlier_numbers``: in the column before these rows; its empty cells count as numbers

        Texts are few if there are `_NUMBERS_PER_TEXT` numbers for each, or two numbers for a single
        text. If the first text begins with a digit, nothing is noted: 1100101X may be an id.
        """
        cells = [(line, row[index]) for line, row in rows if row[index]]
        texts = [(line, cell) for line, cell in cells if not _is_number(cell)]
        if not texts:
            return
        numbers = earlier_numbers + len(cells) - len(texts)
        is_lone = len(texts) == 1 and numbers >= 2
        if not is_lone and numbers < len(texts) * _NUMBERS_PER_TEXT:
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

        - ``kinds``: the types of the columns after all these rows
        - ``has_header``: the file's first line names the columns
        - ``is_complete``: all rows were seen, so that the last one is the table's end
        """
        warnings: list[str] = []
        if has_header:
            self._search_header()
            warnings += self._numbers_in_header(kinds)
        warnings += self._odd_cells()
        warnings += self._texts_among_numbers()
        warnings += self._blank()
        if is_complete:
            warnings += self._total()
        return warnings

    def _search_header(self) -> None:
        """Note the first column name with several values.

        It replaces a cell noted before, as it is in line 1: the file probably has no header.
        """
        for name in self._columns:
            if _PAIRS.fullmatch(name.strip()):
                self._pairs = (1, name)
                return

    def _numbers_in_header(self, kinds: Sequence[str]) -> Iterator[str]:
        """Warn of the first number among the names of columns of numbers.

        The first line is then probably data.
        """
        for name, kind in zip(self._columns, kinds, strict=True):
            if kind in ("int", "float") and _is_number(name):
                yield (
                    f"line 1 has numbers where names of columns belong, such as {_quoted(name)}: "
                    "if the file has no header, upload it again with head: false (--no-head)"
                )
                return

    def _odd_cells(self) -> Iterator[str]:
        """Warn of the first cell with several values, and of the first decimal comma."""
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
        """Warn of the first lines with text in columns of numbers.

        There is one warning for each line, with the names of its first columns.
        """
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
        """Warn of rows that are empty in every column.

        One warning has their number and the first line.
        """
        if self._blank_rows:
            yield (
                f"rows that are empty in every column: {self._blank_rows}, the first in line "
                f"{self._first_blank_line}; they are stored as rows. If a spreadsheet left them, "
                "delete them, and upload again"
            )

    def _total(self) -> Iterator[str]:
        """Warn of a last row that looks like a total, unless text in its line was noted already.

        Spreadsheets often end with such a row.
        """
        line, row = self._last_row
        if line not in self._text_by_line and _is_total(row):
            cell = next(filter(None, row))
            yield (
                f"the last row, line {line}, looks like a total or a note ({_quoted(cell)}): it is "
                "stored as a row. If it is not data, delete it, and upload again"
            )


def _is_total(row: Sequence[str]) -> bool:
    """Return whether a row has a word for a total, or a text in one column and no other cell.

    In a table with two columns, only the word counts: the other cell may just be missing.
    """
    cells = list(filter(None, map(str.strip, row)))
    if any(map(_TOTAL.fullmatch, cells)):
        return True
    is_lone_cell = len(cells) == 1 and len(row) > 2
    return is_lone_cell and not _is_number(cells[0])


def _is_number(cell: str) -> bool:
    """Return whether Python reads a cell as a number.

    Python allows spaces around it, exponents, infinity and NaN.
    """
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _quoted(cell: str) -> str:
    """Return a cell as an example for a message.

    It is quoted, short, and without characters that cannot be printed.
    """
    printable = replace_unprintable(cell[: _LONGEST_CELL + 1])
    return repr(shorten(printable, _LONGEST_CELL))


def replace_unprintable(text: str) -> str:
    """Return a text in which each character that cannot be printed is replaced.

    Control characters of a table could otherwise change the terminal that shows them.
    """
    characters = list(text)
    for index, character in enumerate(characters):
        if not character.isprintable():
            characters[index] = "\N{REPLACEMENT CHARACTER}"
    return "".join(characters)
