"""Tables as CSV: one text when written, one or several partitions when read."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any

from refvendor.contract import StorageFailed, Table

LARGEST_CELL = 2**27  # characters
MOST_PROBLEMS_SHOWN = 20


def table_to_text(table: Table) -> str:
    """Return a table as CSV."""
    rows = [table.header, *table.rows]
    # The writer does not quote a carriage return, but the reader ends a line at one.
    has_carriage_return = any("\r" in cell for row in rows for cell in row)
    text = io.StringIO()
    writer = csv.writer(
        text,
        lineterminator="\n",
        quoting=csv.QUOTE_ALL if has_carriage_return else csv.QUOTE_MINIMAL,
    )
    writer.writerows(rows)
    return text.getvalue()


def texts_to_table(
    texts: Sequence[str],
    label: str,
) -> Table:
    """Read the partitions of a table; each may repeat the header, or only the first has it.

    Raises `StorageFailed` with the problems of all lines; ``label`` names the table in the message.
    """
    csv.field_size_limit(LARGEST_CELL)
    reader = TableReader()
    for number, text in enumerate(texts):
        reader.add_partition(number, text)
    if not reader.header:
        reader.problems.append("has no header line")
    if reader.problems:
        message = f"{label}: {'; '.join(reader.problems[:MOST_PROBLEMS_SHOWN])}"
        hidden = len(reader.problems) - MOST_PROBLEMS_SHOWN
        if hidden > 0:
            message += f" and {hidden} more"
        raise StorageFailed(message)
    return Table(
        header=reader.header,
        rows=reader.rows,
    )


class TableReader:
    """Joins the partitions of a table and collects the problems with their lines."""

    def __init__(self) -> None:
        self.header: list[str] = []
        self.rows: list[list[str]] = []
        self.problems: list[str] = []

    def add_partition(self, number: int, text: str) -> None:
        """Add the rows of a partition, without empty lines."""
        reader = csv.reader(
            io.StringIO(text, newline=""),
            strict=True,
        )
        is_first = True
        try:
            for row in reader:
                if row:
                    self._add_row(row, is_first, f"partition {number} line {reader.line_num}")
                    is_first = False
        except csv.Error as error:
            self.problems.append(f"partition {number} line {reader.line_num} is not CSV ({error})")

    def _add_row(
        self,
        row: list[str],
        is_first: bool,
        position: str,
    ) -> None:
        repeats_header = is_first and row == self.header
        if not self.header:
            self.header = row
        elif repeats_header:
            return
        elif len(row) != len(self.header):
            self.problems.append(f"{position} has {len(row)} cells instead of {len(self.header)}")
        else:
            self.rows.append(row)


def column_type(cells: Sequence[str]) -> str:
    """Return the narrowest of int, float, boolean and string that fits every cell that is not
    empty.
    """
    filled = [cell for cell in cells if cell]
    if not filled:
        return "string"
    if all(cell.lower() in ("true", "false") for cell in filled):
        return "boolean"
    if _all_parse(filled, int):
        return "int"
    if _all_parse(filled, float):
        return "float"
    return "string"


def _all_parse(
    cells: Sequence[str],
    parse: Callable[[str], Any],
) -> bool:
    """True if a function accepts every cell."""
    try:
        for cell in cells:
            parse(cell)
    except ValueError:
        return False
    return True
