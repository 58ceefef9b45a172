"""What all commands share: how they begin and end; tables and JSON in which no text steers the terminal.

Exit codes: 0 done, 1 failed or refused by the node, 2 bad input or configuration, 3 no response from the
node, 130 interrupted.
"""

import base64
import functools
import hashlib
import inspect
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from bfia_gateway_client.errors import CONTROL, harmless
from bfia_gateway_client.progress import Progress
from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_NO_ANSWER,
    CallFailed,
    Client,
    connect,
    new_file,
)
from gateway.cli.language import spoken, t, translated
from gateway.cli.options import AsJson, Config, Url
from gateway.data.reading import NotFit
from gateway.errors import DatabaseAway, Invalid, counted
from gateway.language.catalogue import CHINESE

_NARROW = 80
"""columns of a table in a pipe, where COLUMNS says nothing else"""

_SHORT, _LONG = 12, 36
"""characters of an id in a list, and of one that a node makes"""
_ID = re.compile(r"(?=\D*\d)[\w#:.-]{8,24},?")
"""words that stay in one line: ids of nodes and jobs, times"""
_WIDE = 12
"""columns that Chinese text in a table keeps; it may be folded anywhere"""

Column = str | Callable[[Any], Any]
"""a key of an entry, or a function of it"""
Columns = Mapping[str, Column]
"""by heading"""


class EngineKind(StrEnum):
    """What runs the algorithms."""

    docker = "docker"
    process = "process"


def say(
    text: str = "",
    *,
    err: bool = False,
    nl: bool = True,
) -> None:
    """Print text, `harmless`; with ``err`` to standard error."""
    typer.echo(harmless(t(text)), err=err, nl=nl)


def warn(warnings: Iterable[str]) -> None:
    """Print warnings to standard error."""
    for warning in warnings:
        say(f"warning: {warning}", err=True)


def print_json(
    value: Any,
    *,
    indent: int | None = 2,
    err: bool = False,
) -> None:
    """Print JSON; control characters are escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    typer.echo(CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text), err=err)


_NEXT = {
    "applications": "to apply with a partner: bfia-gateway partner apply --help",
    "approvals": "a job is listed here while it waits for a person at this node",
    "audit": "no change was requested, or none that fits: leave out options to see more",
    "datasets": "none is here, or none that fits; to add one: bfia-gateway data upload --help",
    "grants": "to let a partner use a dataset: bfia-gateway data grant NAMESPACE#NAME NODE",
    "jobs": "none is here, or none that fits; to begin one: bfia-gateway job draft --help",
    "models": "a training leaves its model here when it succeeds; bfia-gateway job list shows the jobs",
    "outputs": "runs here leave outputs when they succeed; bfia-gateway job show names their states",
    "providers": "none is registered, or none that fits; to add one: bfia-gateway provider register FILE",
    "reports": "runs here write reports while they run; bfia-gateway job show names their states",
    "routes": "to add a partner: bfia-gateway partner invite",
    "tokens": "to make one: bfia-gateway token create NAME --role ROLE",
}
"""what to do next where a list is empty"""


_REMEDY = "what to do"
_WORDED = frozenset(
    {"state", "until", "result", "seen", "what", "check", _REMEDY, "reports", "digest"}
)
"""headings of columns that hold texts of this program; so does a first column without a heading"""


def listing(
    found: Mapping[str, Any],
    key: str,
    noun: str,
    columns: Columns,
    title: str = "",
    spare: Sequence[str] = (),
) -> None:
    """Print one page of a list as a `table`, and how to get the next page; of an empty list what to do next."""
    entries = found[key]
    if not title:
        total = int(found.get("total", len(entries)))
        title = (
            counted(total, noun)
            if total == len(entries)
            else f"{len(entries)} of {counted(total, noun)}"
        )
    rows = [
        [one[of] if isinstance(of, str) else of(one) for of in columns.values()] for one in entries
    ]
    if not rows and key in _NEXT:
        say(title)
        say(_NEXT[key])
        return
    table(title, list(columns), rows, spare)
    if found.get("next"):
        say(f"more: --after {shlex.quote(str(found['next']))}", err=True)


def _spared(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    spare: Sequence[str],
) -> list[str]:
    """Return which columns that hold something are left out, so that the others have room; one is shown always."""
    shown = {name: [cell(row[n]) for row in rows] for n, name in enumerate(columns)}
    widths = {name: 3 + _width([t(name), *of]) for name, of in shown.items() if any(of)}
    spared = list[str]()
    for name in spare:
        if sum(widths.values()) <= _console().width + 1 or len(widths) == 1:
            break
        if widths.pop(name, 0):
            spared.append(name)
    return spared


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    spare: Sequence[str] = (),
) -> None:
    """Print a table as wide as the terminal, in a pipe as COLUMNS says, without columns that hold nothing.

    Long cells are folded, and words stay whole. Where there is too little room for that, each row becomes a table
    of its own, without what is empty. What is to be done stands below, as it may be a command.
    ``spare``: columns to leave out, in this order, until the rest fits.
    """
    from rich.table import Table
    from rich.text import Text

    if spared := _spared(columns, rows, spare):
        kept = [n for n, name in enumerate(columns) if name not in spared]
        table(title, [columns[n] for n in kept], [[row[n] for n in kept] for row in rows])
        say(f"and {counted(len(spared), 'column')} more: --json has all", err=True)
        return
    console = _console()
    if title:
        say(title)
    if not any(columns):
        rows = [row for row in rows if any(map(cell, row[1:]))]
    worded = [name in _WORDED or not (at or name) for at, name in enumerate(columns)]
    lines = [
        [harmless(t(cell(v)) if of else cell(v)) for of, v in zip(worded, row, strict=True)]
        for row in rows
    ]
    filled = [n for n in range(len(columns)) if not lines or any(line[n] for line in lines)]
    shown = [[harmless(t(columns[n])), *(line[n] for line in lines)] for n in filled]
    room = console.width - 3 * len(shown) + 1
    at = columns.index(_REMEDY) if _REMEDY in columns else 0
    advice = [line[at] for line in lines if at and line[at]]
    if advice and (sum(map(_width, shown)) > room or len(set(advice)) < len(advice)):
        table(
            "", [*columns[:at], *columns[at + 1 :]], [[*row[:at], *row[at + 1 :]] for row in rows]
        )
        about = 2 if "about" in columns[1:2] else 1
        say("what to do:")
        named = [" ".join(" ".join(line[:about]).split()) for line in lines]
        for first, remedy in dict.fromkeys(
            (name, line[at]) for name, line in zip(named, lines, strict=True)
        ):
            if remedy:
                say(f"  {' '.join(first.split())}{'：' if spoken() == CHINESE else ': '}{remedy}")
        return
    widths = _widths(shown, room)
    if sum(widths) > room and len(shown) > 2:
        headings, *entries = zip(*shown, strict=True)
        for number, entry in enumerate(entries):
            table(" " if number else "", ["", ""], list(zip(headings, entry, strict=True)))
        return
    made = Table(
        show_edge=False,
        pad_edge=False,
        show_header=any(column[0] for column in shown),
    )
    for column, width in zip(shown, widths, strict=True):
        made.add_column(Text(column[0]), overflow="fold", width=width)
    for row in zip(*(column[1:] for column in shown), strict=True):
        made.add_row(*map(Text, row))
    console.print(made)


def _console() -> Any:
    """Return the terminal, of a pipe one as wide as COLUMNS says."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdecimal():
        console = Console(width=_NARROW)
    return console


def _width(texts: Iterable[str]) -> int:
    from rich.cells import cell_len

    return max(cell_len(line) for text in texts for line in text.split("\n"))


_OWN = frozenset({"somebody", "operator", "file", "invitation accepted"})


def own(text: str) -> str:
    """Return a word that this program keeps in the place of a name or reason; what people wrote is kept."""
    return t(text) if text in _OWN or text.endswith(" (command line)") else text


def print_steps(title: str, steps: list[Mapping[str, Any]]) -> None:
    """Print the steps of a test as a table; those that were not taken, after one failed, in one row."""
    left = [s for s in steps if s["result"] == "skipped" and not s["cause"] and not s["found"]]
    rows = [
        [
            t(s["name"]),
            mark(s["result"]),
            f"{s['seconds'] * 1000:.0f} ms",
            t(s["cause"] or s["found"]),
            t(s["remedy"]),
        ]
        for s in steps
        if s not in left
    ]
    if left:
        rows.append([t("not tried"), "–", "", ", ".join(t(s["name"]) for s in left), ""])
    table(title, ["step", "result", "took", "found", "what to do"], rows)


def mark(result: str) -> str:
    """Return the result of a step or of a clause as people see it: trouble stands out."""
    shown = t(result)
    if result in ("warning", "failed"):
        return shown.upper()
    return "–" if result == "skipped" else shown


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return widths that fit, if any do: the widest columns give first. Of two columns words give, too."""
    from rich.cells import cell_len

    widths = [_width(column) for column in columns]
    ids = [
        [len(w) for text in column[1:] for w in text.split() if _ID.fullmatch(w)]
        for column in columns
    ]
    headings = [
        max([1, *map(cell_len, c[0].split()), *of]) for c, of in zip(columns, ids, strict=True)
    ]
    found = [re.findall("([!-~]+)|([\u2e80-\uffff]+)", "\n".join(column)) for column in columns]
    longest = [
        max((len(w) or min(cell_len(wide), _WIDE) for w, wide in of), default=1) for of in found
    ]
    words = [
        max(min(length, _LONG), heading) for length, heading in zip(longest, headings, strict=True)
    ]
    if len(columns) > 2:  # the first names what the row is about
        words[0] = headings[0] = max(headings[0], min(widths[0], room // 2))
    for least in (words,) if len(columns) > 2 else (words, headings):
        while sum(widths) > room and (
            can := [n for n, width in enumerate(widths) if width > least[n]]
        ):
            widths[max(can, key=widths.__getitem__)] -= 1
    return widths


_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")


def cell(value: Any) -> str:
    """Return a value of JSON as a table shows it."""
    match value:
        case None:
            return ""
        case bool():
            return t("yes" if value else "no")
        case float():
            return f"{value:g}"
        case str() if _TIME.fullmatch(value):
            return f"{value[:19].replace('T', ' ')} UTC"
        case list():
            return ", ".join(map(cell, value))
        case Mapping():
            return "; ".join(
                f"{key} {cell(one)}" for key, one in value.items() if one not in (None, "", {}, [])
            )
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


_IN_SHORT = re.compile(
    "an object with [0-9]+ fields|a list of [0-9]+ values|an integer of many digits"
)
"""what stands for a value that is too long to be shown"""


def compact(value: Any, longest: int = 60) -> str:
    """Return a value as JSON in one line, cut where it is long."""
    text = "–" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    text = t(value) if isinstance(value, str) and _IN_SHORT.fullmatch(value) else text
    return text if len(text) <= longest else text[: longest - 1] + "…"


def difference(change: Mapping[str, Any]) -> str:
    """Return one change in a line: of a value, or ``+`` or ``-`` for a whole route."""
    before, after = change.get("before"), change.get("after")
    if "node" in change and not change.get("field"):
        return f"{'+' if before is None else '-'}{change['node']}"
    place = ".".join(str(change[key]) for key in ("node", "field", "path") if change.get(key))
    if change.get("field") == "keys":
        old, new = map(_key_ids, (before, after))
        return f"{place}: {' '.join([*(f'+{k}' for k in sorted(new - old)), *(f'-{k}' for k in sorted(old - new))])}"
    return f"{place}: {compact(before)} → {compact(after)}"


def _key_ids(keys: Sequence[str] | None) -> set[str]:
    """Return the beginnings of public keys' ids."""
    return {
        f"sha256:{hashlib.sha256(base64.b64decode(key)).hexdigest()[:12]}…" for key in keys or ()
    }


Output = Iterator[Any]
"""What a command yields, once: the value that ``--json`` prints, or a pair of it and whether that is a success.
What it does afterwards prints the same for people."""


def loaded_from(
    group: str,
    *modules: str,
    usual: str = "",
) -> type[TyperGroup]:
    """Return a kind of group: its commands are those of a group that modules of this room fill.

    ``usual``: the command that is meant where none is named.
    """

    class Loading(TyperGroup):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            del self.commands

        @cached_property
        def commands(self) -> Any:  # type: ignore[override]
            filled = [getattr(import_module(f"gateway.cli.{module}"), group) for module in modules]
            return {
                name: translated(one)
                for name, one in typer.main.get_group(filled[0]).commands.items()
            }

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            named = not usual or (
                args and (args[0] in self.commands or args[0] in ctx.help_option_names)
            )
            return super().parse_args(ctx, args if named else [usual, *args])

    return Loading


def command(
    app: typer.Typer,
    name: str,
    example: str = "",
    *,
    timeout: float = 60.0,
    options: Mapping[str, tuple[Any, Any]] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a command; its help is the function's docstring and an example of its arguments.

    Where its first parameter is a `Client`, ``--config`` and ``--url`` are added; where it is a generator, also
    ``--json``. ``options`` (name -> type and default) are passed as further keyword arguments.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        own = [
            p
            for p in inspect.signature(function).parameters.values()
            if p.kind is not p.VAR_KEYWORD
        ]
        needs_node = bool(own) and own[0].annotation is Client
        parameters = {p.name: (p.annotation, p.default) for p in own[needs_node:]}
        parameters |= options or {}
        prints_json = "as_json" not in parameters and inspect.isgeneratorfunction(function)
        if needs_node:
            parameters |= {"config": (Config, DEFAULT_CONFIG), "url": (Url, "")}
        if prints_json:
            parameters["as_json"] = (AsJson, False)

        @functools.wraps(function)
        def run(**given: Any) -> None:
            as_json = given.pop("as_json") if prints_json else given.get("as_json", False)
            with reporting(as_json):
                if not needs_node:
                    _show(function(**given), as_json)
                    return
                with connect(given.pop("config"), given.pop("url"), timeout=timeout) as node:
                    if "job_id" in given:
                        given["job_id"] = whole_id(node, given["job_id"])
                    _show(function(node, **given), as_json)

        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(
                    key, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
                )
                for key, (annotation, default) in parameters.items()
            ]
        )
        run.__annotations__ = {key: annotation for key, (annotation, _) in parameters.items()}
        words = ["Example: bfia-gateway", app.info.name, name, example]
        app.command(
            name,
            help=f"{inspect.cleandoc(function.__doc__ or '')}\n\n{' '.join(filter(None, words))}",
        )(run)
        return function

    return register


def whole_id(node: Client, given: str) -> str:
    """Return the job that the beginning of an id, or ``last``, stands for; others stay as they are."""
    if given != "last" and len(given) >= _LONG:
        return given
    ids: list[str] = []
    with suppress(CallFailed):  # the command itself says what is the matter
        ids = [
            job["job_id"]
            for job in node.get("/api/v1/jobs", limit=1 if given == "last" else 1000)["jobs"]
        ]
    if given == "last" and ids:
        return ids[0]
    fits = [job_id for job_id in ids if job_id.startswith(given)]
    if given in fits or not fits:
        return given
    if len(fits) > 1:
        text = f"{given} may be any of {', '.join(fits[:5])}{', …' if len(fits) > 5 else ''}: write more of it"
        raise CallFailed(text, EXIT_BAD_INPUT, "JOB_AMBIGUOUS")
    return fits[0]


def short(ids: Sequence[str]) -> list[str]:
    """Return ids as lists show them: so much of the beginning as tells them apart."""
    length = next(
        (n for n in range(_SHORT, _LONG) if len({one[:n] for one in ids}) == len(set(ids))), _LONG
    )
    return [one[:length] if len(one) >= _LONG else one for one in ids]


def lasted(since: str | None, until: str | None) -> str:
    """Return how long something took, or takes until now: ``3 min 5 s``."""
    if not since:
        return ""
    end = datetime.fromisoformat(until) if until else datetime.now(UTC)
    seconds = max(int((end - datetime.fromisoformat(since)).total_seconds()), 0)
    units = [
        (seconds // 86400, "d"),
        (seconds % 86400 // 3600, "h"),
        (seconds % 3600 // 60, "min"),
        (seconds % 60, "s"),
    ]
    first = next((n for n, (count, _) in enumerate(units) if count), 3)
    return " ".join(
        f"{count} {unit}" for count, unit in units[first : first + 2] if count or first == 3
    )


def _show(output: Any, as_json: bool) -> None:
    if output is None:
        return
    value, good = next(output), True
    if isinstance(value, tuple):
        value, good = value
    if as_json:
        print_json(value)
    else:
        next(output, None)
    if not good:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def reporting(as_json: bool = False) -> Iterator[None]:
    """Turn a failure into a message on standard error (with ``as_json`` JSON) and the command's exit code."""
    try:
        try:
            yield
        except NotFit as error:
            raise CallFailed(str(error), EXIT_BAD_INPUT) from None
        except Invalid as error:
            raise CallFailed(
                "; ".join(map(str, error.problems)), EXIT_BAD_INPUT, error.reason
            ) from None
        except DatabaseAway as error:
            raise CallFailed(error.message, EXIT_NO_ANSWER, error.reason) from None
    except CallFailed as error:
        if as_json:
            print_json(
                {
                    "error": str(error),
                    "reason": error.reason,
                    "data": error.data,
                },
                indent=None,
                err=True,
            )
        else:
            say(str(error), err=True)
        raise typer.Exit(error.code) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def save(
    node: Client,
    path: str,
    target: Path,
    force: bool,
    **query: Any,
) -> Output:
    """Download into a new file, and print its name and size."""
    new_file(target, force)
    with Progress(f"fetching {target.name}") as shown:
        length = node.download(path, target, shown.moved, **query)
    yield {"file": str(target), "bytes": length}
    say(f"wrote {target} ({amount(length)})")
