"""How commands print: tables and JSON in which no text of others steers the terminal."""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from gateway.errors import counted

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_WIDE = 10_000
"""columns of a table in a pipe: a row is one line there, for grep and for ids that stay whole"""

Column = str | Callable[[Any], Any]
"""a key of an entry, or a function of it"""
Columns = Mapping[str, Column]
"""by heading"""


def harmless(text: str) -> str:
    """Return text of others without control characters, which would steer a terminal."""
    return _CONTROL.sub("?", text)


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text, `harmless`; with ``err`` to standard error."""
    typer.echo(harmless(text), err=err, nl=nl)


def warn(warnings: Iterable[str]) -> None:
    """Print warnings to standard error."""
    for warning in warnings:
        say(f"warning: {warning}", err=True)


def print_json(value: Any, *, indent: int | None = 2, err: bool = False) -> None:
    """Print JSON; control characters are escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    typer.echo(_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text), err=err)


def listing(found: Mapping[str, Any], key: str, noun: str, columns: Columns, title: str = "") -> None:
    """Print one page of a list as a table, and how to get the next page."""
    entries = found[key]
    if not title:
        total = int(found.get("total", len(entries)))
        title = counted(total, noun) if total == len(entries) else f"{len(entries)} of {counted(total, noun)}"
    rows = [[one[of] if isinstance(of, str) else of(one) for of in columns.values()] for one in entries]
    table(title, list(columns), rows)
    if found.get("next"):
        say(f"more: --after {shlex.quote(str(found['next']))}", err=True)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table. On a terminal long cells are folded; in a pipe a row is one line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    if title:
        say(title)
    made = Table(show_edge=False)
    for column in columns:
        made.add_column(Text(harmless(column)), overflow="fold")
    for row in rows:
        made.add_row(*(Text(harmless(cell(value))) for value in row))
    console.print(made)


def cell(value: Any) -> str:
    """Return a value of JSON as a table shows it."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case list():
            return ", ".join(map(cell, value))
        case Mapping():
            return "; ".join(f"{key} {cell(one)}" for key, one in value.items() if one not in (None, "", {}, []))
    return str(value)


def when(key: str, length: int = 19) -> Column:
    """Return a column for a time: without its zone, to the second or (``length=16``) to the minute."""
    return lambda entry: str(entry[key] or "")[:length].replace("T", " ")


def size(key: str) -> Column:
    """Return a column for an amount of bytes."""
    return lambda entry: amount(entry[key])


def amount(count: int) -> str:
    """Return bytes in words: ``3.4 MiB``."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def compact(value: Any, longest: int = 60) -> str:
    """Return a value as JSON in one line, cut where it is long."""
    text = "–" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def difference(change: Mapping[str, Any]) -> str:
    """Return one change in a line: of a value, or ``+`` or ``-`` for a whole route."""
    before, after = change.get("before"), change.get("after")
    if "node" in change and not change.get("field"):
        return f"{'+' if before is None else '-'}{change['node']}"
    place = ".".join(str(change[key]) for key in ("node", "field", "path") if change.get(key))
    return f"{place}: {compact(before)} → {compact(after)}"


@contextmanager
def transfer(text: str) -> "Iterator[tuple[Progress, TaskID]]":
    """Show a progress bar on standard error, if that is a terminal, while bytes are moved."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress, progress.add_task(harmless(text).replace("[", r"\["), total=None)
