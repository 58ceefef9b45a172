"""The parts of the measurements, and the tables in Markdown that they print."""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Rows = Iterable[list[Any]]
Measure = Callable[[argparse.Namespace], Rows]

# The function that measures a part and prints its tables, by the part's name.
PARTS: dict[str, Callable[[argparse.Namespace], None]] = {}
_ROUNDS = 3  # of a measurement without a limit in seconds
_MOST_ROUNDS = 5  # of a measurement, unless ``--rounds`` asks for more
# The rows of each printed table, by the name of the table.
PRINTED_ROWS: dict[str, list[list[Any]]] = {}


def rounds_within(seconds: float, options: argparse.Namespace) -> Iterator[int]:
    """Yield the numbers of the rounds that a measurement may take, from 0.

    There are as many as ``--rounds`` says. Without it there are at most five, as many as fit into
    the seconds, and at least one.
    """
    if options.rounds is not None:
        yield from range(options.rounds)
        return
    start = time.monotonic()
    for number in range(_MOST_ROUNDS):
        yield number
        round_seconds = (time.monotonic() - start) / (number + 1)
        if (number + 2) * round_seconds > seconds:
            return


def rounds_of(options: argparse.Namespace) -> int:
    """Return the number of rounds of a measurement that takes as long as it takes."""
    return int(options.rounds or _ROUNDS)


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
