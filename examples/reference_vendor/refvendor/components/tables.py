"""Turns the text of an input table into ids, numbers and classes.

Messages name columns and counts, never a value: they are shown outside this party.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from refvendor.arrays import Floats
from refvendor.contract import BadParameters, Table

# Cells, in lower case, that mean a missing value.
MISSING_WORDS = {"", "na", "nan", "null", "none"}
# The pairs of numbers that may denote the two classes.
CLASS_PAIRS = (
    {0.0, 1.0},
    {-1.0, 1.0},
)


@dataclass(frozen=True)
class NumericColumn:
    """The cells of a column as numbers."""

    numbers: Floats  # NaN for missing and invalid cells
    invalid: int  # number of cells that are neither a finite number nor missing

    @property
    def missing(self) -> int:
        """Number of NaN cells."""
        return int(np.isnan(self.numbers).sum())


def shape_problems(table: Table) -> list[str]:
    """Return what makes a table unusable whatever its columns mean."""
    problems = []
    if not table.rows:
        problems.append("train_data: has no rows")
    uneven = sum(len(row) != len(table.header) for row in table.rows)
    if uneven:
        problems.append(f"train_data: {uneven} rows do not have {len(table.header)} cells")
    return problems


def raise_problems(problems: Sequence[str]) -> None:
    """Raise one `BadParameters` with all problems; do nothing without any."""
    if problems:
        raise BadParameters("; ".join(problems))


def column_of(
    table: Table,
    name: str,
) -> list[str]:
    """Return the cells of a column. Raises `ValueError` if the table does not have it."""
    place = table.header.index(name)
    return [row[place] for row in table.rows]


def unique_ids(
    table: Table,
    column: str,
) -> list[str]:
    """Return the ids of all rows. Raises `BadParameters` if one occurs twice."""
    ids = column_of(table, column)
    repeated = len(ids) - len(set(ids))
    if repeated:
        raise BadParameters(f"id: {repeated} rows repeat another row's id in {column!r}")
    return ids


def parse_numbers(cells: Sequence[str]) -> NumericColumn:
    """Read cells as numbers; infinite ones are invalid."""
    numbers = np.full(len(cells), np.nan)
    invalid = 0
    for place, cell in enumerate(cells):
        text = cell.strip()
        if text.lower() in MISSING_WORDS:
            continue
        number = _finite_number(text)
        if number is None:
            invalid += 1
        else:
            numbers[place] = number
    return NumericColumn(numbers, invalid)


def parse_classes(column: NumericColumn) -> Floats | None:
    """Return 1.0 for the positive class and 0.0 for the other.

    None if a cell is missing or invalid, or if the numbers are not exactly one of the pairs in
    `CLASS_PAIRS`.
    """
    if column.invalid or column.missing:
        return None
    if set(column.numbers.tolist()) not in CLASS_PAIRS:
        return None
    classes: Floats = (column.numbers > 0).astype(np.float64)
    return classes


def _finite_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
