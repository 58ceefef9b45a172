"""The parts of the measurements, and the tables in Markdown that they print."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Rows = Iterable[list[Any]]
Measure = Callable[[argparse.Namespace], Rows]

# The function that measures a part and prints its tables, by the part's name.
PARTS: dict[str, Callable[[argparse.Namespace], None]] = {}
# The rows of each printed table, by the name of the table.
PRINTED_ROWS: dict[str, list[list[Any]]] = {}


def part(
    name: str,
    title: str,
    headings: Sequence[str],
) -> Callable[[Measure], Measure]:
    """Register a function as a part of one table, whose rows it yields.

    The title may contain options of the command, such as ``{rows}``.
    """

    def register(measure: Measure) -> Measure:
        def run(options: argparse.Namespace) -> None:
            rows = list(measure(options))
            print_table(name, title.format_map(vars(options)), headings, rows)

        PARTS[name] = run
        return measure

    return register


def print_table(
    name: str,
    title: str,
    headings: Sequence[str],
    rows: list[list[Any]],
) -> None:
    """Print a table, and keep its rows; without rows print nothing, as the part has said why."""
    if not rows:
        return
    PRINTED_ROWS[name] = rows
    print(f"**{title}**\n\n| {' | '.join(headings)} |\n|{'---|' * len(headings)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
    print(flush=True)


def milliseconds(seconds: float, digits: int = 0) -> str:
    """Return a time as a table shows it, such as ``12 ms``."""
    return f"{seconds * 1000:.{digits}f} ms"
