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
from contextlib import contextmanager
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

_PIPE_WIDTH = 80  # columns of a table in a pipe, unless COLUMNS is set
_SHORT_ID, _FULL_ID = 12, 36  # characters of an id in a list, and of a whole one
_UNBREAKABLE = re.compile(r"(?=\D*\d)[\w#:.-]{8,24},?")  # words kept in one line: ids, times
_CHINESE_WIDTH = 12  # columns that Chinese text in a table keeps; it may be folded anywhere
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")
# Placeholders for values that are too long to be shown.
_ABBREVIATION = re.compile(
    "an object with [0-9]+ fields|a list of [0-9]+ values|an integer of many digits"
)
# Words of this program in the place of a name or reason.
_PRODUCT_WORDS = frozenset({"somebody", "operator", "file", "invitation accepted"})
_REMEDY = "what to do"
# Headings of columns whose texts are this program's; so is a first column without a heading.
_TRANSLATED_COLUMNS = frozenset(
    {"state", "until", "result", "seen", "what", "check", _REMEDY, "reports", "digest"}
)
# The next step after an empty list, by the list's name.
NEXT_STEPS = {
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

Column = str | Callable[[Any], Any]  # a key of an entry, or a function of it
Columns = Mapping[str, Column]  # by heading
# The output of a command, a generator. It yields once: the value that ``--json`` prints, or a pair of it and
# whether that is a success. Its further code prints the same for people.
Output = Iterator[Any]


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
    typer.echo(CONTROL.sub(_escape, text), err=err)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def listing(
    page: Mapping[str, Any],
    key: str,
    noun: str,
    columns: Columns,
    title: str = "",
    spare: Sequence[str] = (),
) -> None:
    """Print one page of a list as a `table`, and how to get the next page; for an empty list the next step."""
    entries = page[key]
    if not title:
        total = int(page.get("total", len(entries)))
        title = counted(total, noun)
        if total != len(entries):
            title = f"{len(entries)} of {title}"
    if not entries and key in NEXT_STEPS:
        say(title)
        say(NEXT_STEPS[key])
        return
    rows = []
    for entry in entries:
        rows.append([_value(entry, column) for column in columns.values()])
    table(title, list(columns), rows, spare)
    if page.get("next"):
        say(f"more: --after {shlex.quote(str(page['next']))}", err=True)


def _value(entry: Any, column: Column) -> Any:
    if isinstance(column, str):
        return entry[column]
    return column(entry)


# ---------------------------------------------------------------- tables


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    spare: Sequence[str] = (),
) -> None:
    """Print a table as wide as the terminal, in a pipe as wide as COLUMNS, without empty columns.

    Long cells are folded between words. If the terminal is too narrow for that, each row becomes a table of its
    own, without empty cells. Remedies that do not fit are printed below the table, as they may be commands.
    ``spare``: columns to leave out, in this order, until the rest fits.
    """
    hidden = _columns_to_hide(columns, rows, spare)
    if hidden:
        indexes = [index for index, name in enumerate(columns) if name not in hidden]
        table(title, *_select(columns, rows, indexes))
        say(f"and {counted(len(hidden), 'column')} more: --json has all", err=True)
        return
    if title:
        say(title)
    if not any(columns):
        rows = [row for row in rows if any(map(cell, row[1:]))]
    texts = [_cell_texts(columns, row) for row in rows]
    filled = [i for i in range(len(columns)) if not texts or any(line[i] for line in texts)]
    shown = [[harmless(t(columns[i])), *(line[i] for line in texts)] for i in filled]
    console = _console()
    room = console.width - 3 * len(shown) + 1
    if _REMEDY in columns[1:]:
        index = columns.index(_REMEDY)
        remedies = [line[index] for line in texts if line[index]]
        too_wide = sum(map(_width, shown)) > room
        if remedies and (too_wide or len(set(remedies)) < len(remedies)):
            others = [i for i in range(len(columns)) if i != index]
            table("", *_select(columns, rows, others))
            _print_remedies(columns, texts, index)
            return
    widths = _widths(shown, room)
    if sum(widths) > room and len(shown) > 2:
        _print_row_tables(shown)
    else:
        _print_grid(console, shown, widths)


def _columns_to_hide(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    spare: Sequence[str],
) -> list[str]:
    """Return the filled columns to leave out so that the others have room; at least one stays."""
    widths = {}
    for index, name in enumerate(columns):
        texts = [cell(row[index]) for row in rows]
        if any(texts):
            widths[name] = 3 + _width([t(name), *texts])
    room = _console().width + 1
    hidden = []
    for name in spare:
        if sum(widths.values()) <= room or len(widths) == 1:
            break
        if name in widths:
            del widths[name]
            hidden.append(name)
    return hidden


def _select(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    indexes: Sequence[int],
) -> tuple[list[str], list[list[Any]]]:
    selected_rows = [[row[index] for index in indexes] for row in rows]
    return [columns[index] for index in indexes], selected_rows


def _cell_texts(columns: Sequence[str], row: Sequence[Any]) -> list[str]:
    """Return a row's texts, translated in the columns with this program's words."""
    texts = []
    for index, (name, value) in enumerate(zip(columns, row, strict=True)):
        text = cell(value)
        if name in _TRANSLATED_COLUMNS or (index == 0 and not name):
            text = t(text)
        texts.append(harmless(text))
    return texts


def _print_remedies(columns: Sequence[str], texts: Sequence[Sequence[str]], index: int) -> None:
    """Print each row's remedy behind its name, which are the row's first one or two columns."""
    name_length = 2 if "about" in columns[1:2] else 1
    colon = "：" if spoken() == CHINESE else ": "
    say("what to do:")
    printed = set()
    for line in texts:
        name = " ".join(" ".join(line[:name_length]).split())
        remedy = line[index]
        if remedy and (name, remedy) not in printed:
            printed.add((name, remedy))
            say(f"  {name}{colon}{remedy}")


def _print_row_tables(columns: Sequence[Sequence[str]]) -> None:
    """Print each row as a table of its own: the headings beside the values."""
    headings, *rows = zip(*columns, strict=True)
    for number, row in enumerate(rows):
        title = " " if number else ""
        table(title, ["", ""], list(zip(headings, row, strict=True)))


def _print_grid(console: Any, columns: Sequence[Sequence[str]], widths: Sequence[int]) -> None:
    from rich.table import Table
    from rich.text import Text

    has_headings = any(column[0] for column in columns)
    grid = Table(show_edge=False, pad_edge=False, show_header=has_headings)
    for column, width in zip(columns, widths, strict=True):
        grid.add_column(Text(column[0]), overflow="fold", width=width)
    for row in zip(*(column[1:] for column in columns), strict=True):
        grid.add_row(*map(Text, row))
    console.print(grid)


def _console() -> Any:
    """Return the terminal; for a pipe, one as wide as COLUMNS, else 80 columns."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdecimal():
        console = Console(width=_PIPE_WIDTH)
    return console


def _width(texts: Iterable[str]) -> int:
    from rich.cells import cell_len

    return max(cell_len(line) for text in texts for line in text.split("\n"))


def translate_own(text: str) -> str:
    """Translate a word of this program in the place of a name or reason; texts of people stay."""
    if text in _PRODUCT_WORDS or text.endswith(" (command line)"):
        return t(text)
    return text


def print_steps(title: str, steps: list[Mapping[str, Any]]) -> None:
    """Print the steps of a test as a table; the ones not taken after a failure, in one row."""
    rows, not_tried = [], []
    for step in steps:
        if step["result"] == "skipped" and not step["cause"] and not step["found"]:
            not_tried.append(t(step["name"]))
            continue
        took = f"{step['seconds'] * 1000:.0f} ms"
        finding = t(step["cause"] or step["found"])
        rows.append([t(step["name"]), mark(step["result"]), took, finding, t(step["remedy"])])
    if not_tried:
        rows.append([t("not tried"), "–", "", ", ".join(not_tried), ""])
    table(title, ["step", "result", "took", "found", "what to do"], rows)


def mark(result: str) -> str:
    """Return the result of a step or clause for people: trouble stands out."""
    if result == "skipped":
        return "–"
    if result in ("warning", "failed"):
        return t(result).upper()
    return t(result)


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return widths that fit, if any do: the widest columns are narrowed first, words stay whole.

    Of two columns, words are broken if they have to be.
    """
    widths = [_width(column) for column in columns]
    without_ids = [_least_width(column) for column in columns]
    whole_words = []
    for column, least in zip(columns, without_ids, strict=True):
        whole_words.append(max(min(_longest_word(column), _FULL_ID), least))
    if len(columns) > 2:  # the first column names the row
        without_ids[0] = max(without_ids[0], min(widths[0], room // 2))
        whole_words[0] = without_ids[0]
        return _narrowed(widths, whole_words, room)
    widths = _narrowed(widths, whole_words, room)
    return _narrowed(widths, without_ids, room)


def _narrowed(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Narrow the widest column by one, again and again, until all fit or each has its least width."""
    narrowed = list(widths)
    while sum(narrowed) > room:
        reducible = [i for i, width in enumerate(narrowed) if width > least[i]]
        if not reducible:
            break
        widest = max(reducible, key=narrowed.__getitem__)
        narrowed[widest] -= 1
    return narrowed


def _least_width(column: Sequence[str]) -> int:
    """Return the width of the longest word of the heading, and of the longest id or time."""
    from rich.cells import cell_len

    heading, *texts = column
    least = max([1, *map(cell_len, heading.split())])
    for text in texts:
        for word in text.split():
            if _UNBREAKABLE.fullmatch(word):
                least = max(least, len(word))
    return least


def _longest_word(column: Sequence[str]) -> int:
    from rich.cells import cell_len

    longest = 1
    for ascii_word, wide_text in re.findall("([!-~]+)|([\u2e80-\uffff]+)", "\n".join(column)):
        length = len(ascii_word) or min(cell_len(wide_text), _CHINESE_WIDTH)
        longest = max(longest, length)
    return longest


# ---------------------------------------------------------------- values


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
            return _fields(value)
    return str(value)


def _fields(value: Mapping[str, Any]) -> str:
    """Return an object's fields that are not empty."""
    texts = []
    for key, field in value.items():
        if field not in (None, "", {}, []):
            texts.append(f"{key} {cell(field)}")
    return "; ".join(texts)


def when(key: str, length: int = 19) -> Column:
    """Return a column for a time: without its zone, to the second or (``length=16``) to the minute."""

    def time_of(entry: Mapping[str, Any]) -> str:
        return str(entry[key] or "")[:length].replace("T", " ")

    return time_of


def size(key: str) -> Column:
    """Return a column for an amount of bytes."""

    def amount_of(entry: Mapping[str, Any]) -> str:
        return amount(entry[key])

    return amount_of


def amount(count: int) -> str:
    """Return bytes in words: ``3.4 MiB``."""
    if count < 1024:
        return f"{count:.0f} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} TiB"


def compact(value: Any, longest: int = 60) -> str:
    """Return a value as JSON in one line of at most so many characters."""
    if value is None:
        text = "–"
    elif isinstance(value, str) and _ABBREVIATION.fullmatch(value):
        text = t(value)
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > longest:
        return text[: longest - 1] + "…"
    return text


def difference(change: Mapping[str, Any]) -> str:
    """Return one change in a line: of a value, or ``+`` or ``-`` for a whole route."""
    before, after = change.get("before"), change.get("after")
    if "node" in change and not change.get("field"):
        sign = "+" if before is None else "-"
        return f"{sign}{change['node']}"
    path = ".".join(str(change[key]) for key in ("node", "field", "path") if change.get(key))
    if change.get("field") == "keys":
        old_ids, new_ids = _key_ids(before), _key_ids(after)
        added = [f"+{key_id}" for key_id in sorted(new_ids - old_ids)]
        removed = [f"-{key_id}" for key_id in sorted(old_ids - new_ids)]
        return f"{path}: {' '.join(added + removed)}"
    return f"{path}: {compact(before)} → {compact(after)}"


def _key_ids(keys: Sequence[str] | None) -> set[str]:
    """Return the beginnings of public keys' ids."""
    ids = set()
    for key in keys or ():
        digest = hashlib.sha256(base64.b64decode(key)).hexdigest()
        ids.add(f"sha256:{digest[:12]}…")
    return ids


# ---------------------------------------------------------------- commands


def loaded_from(
    group: str,
    *modules: str,
    default: str = "",
) -> type[TyperGroup]:
    """Return a class of group that imports its commands from modules of this package when they are needed.

    ``default``: the command for a line that names none.
    """

    class Loading(TyperGroup):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            del self.commands

        @cached_property
        def commands(self) -> Any:  # type: ignore[override]
            apps = [getattr(import_module(f"gateway.cli.{module}"), group) for module in modules]
            commands = typer.main.get_group(apps[0]).commands
            return {name: translated(command) for name, command in commands.items()}

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if default and not self._names_command(ctx, args):
                args = [default, *args]
            return super().parse_args(ctx, args)

        def _names_command(self, ctx: Any, args: list[str]) -> bool:
            if not args:
                return False
            return args[0] in self.commands or args[0] in ctx.help_option_names

    return Loading


def command(
    app: typer.Typer,
    name: str,
    example: str = "",
    *,
    timeout: float = 60.0,
    options: Mapping[str, tuple[Any, Any]] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a command; its help is the docstring and an example of its arguments.

    A first parameter of the type `Client` adds ``--config`` and ``--url``, a generator adds ``--json``.
    ``options`` (name -> type and default) are passed as further keyword arguments.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function).parameters.values()
        declared = [p for p in signature if p.kind is not p.VAR_KEYWORD]
        needs_node = bool(declared) and declared[0].annotation is Client
        if needs_node:
            declared = declared[1:]
        parameters = {p.name: (p.annotation, p.default) for p in declared}
        parameters |= options or {}
        prints_json = "as_json" not in parameters and inspect.isgeneratorfunction(function)
        if needs_node:
            parameters |= {"config": (Config, DEFAULT_CONFIG), "url": (Url, "")}
        if prints_json:
            parameters["as_json"] = (AsJson, False)

        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            as_json = arguments.get("as_json", False)
            if prints_json:
                del arguments["as_json"]
            with reporting(as_json):
                if not needs_node:
                    _print_output(function(**arguments), as_json)
                    return
                config, url = arguments.pop("config"), arguments.pop("url")
                with connect(config, url, timeout=timeout) as node:
                    if "job_id" in arguments:
                        arguments["job_id"] = whole_id(node, arguments["job_id"])
                    _print_output(function(node, **arguments), as_json)

        _set_parameters(run, parameters)
        words = ["Example: bfia-gateway", app.info.name, name, example]
        description = inspect.cleandoc(function.__doc__ or "")
        app.command(name, help=f"{description}\n\n{' '.join(filter(None, words))}")(run)
        return function

    return register


def _set_parameters(
    function: Callable[..., None],
    parameters: Mapping[str, tuple[Any, Any]],
) -> None:
    """Give a function the keyword parameters (name -> type and default) that typer reads."""
    signature = []
    for name, (annotation, default) in parameters.items():
        signature.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
            )
        )
    function.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    function.__annotations__ = {name: annotation for name, (annotation, _) in parameters.items()}


def whole_id(node: Client, text: str) -> str:
    """Return the id of the job that the beginning of an id, or ``last``, stands for; else the text itself.

    Raises `CallFailed` if several jobs begin so.
    """
    if text == "last":
        return next(iter(_job_ids(node, limit=1)), text)
    if len(text) >= _FULL_ID:
        return text
    matches = [job_id for job_id in _job_ids(node, limit=1000) if job_id.startswith(text)]
    if text in matches or not matches:
        return text
    if len(matches) == 1:
        return matches[0]
    examples = ", ".join(matches[:5])
    if len(matches) > 5:
        examples += ", …"
    message = f"{text} may be any of {examples}: write more of it"
    raise CallFailed(message, EXIT_BAD_INPUT, "JOB_AMBIGUOUS")


def _job_ids(node: Client, limit: int) -> list[str]:
    """Return the newest jobs' ids; none if the node does not respond: the command itself reports that."""
    try:
        page = node.get("/api/v1/jobs", limit=limit)
    except CallFailed:
        return []
    return [job["job_id"] for job in page["jobs"]]


def short(ids: Sequence[str]) -> list[str]:
    """Shorten ids for a list, to the length that distinguishes them."""
    length = _SHORT_ID
    while length < _FULL_ID and len({job_id[:length] for job_id in ids}) < len(set(ids)):
        length += 1
    return [job_id[:length] if len(job_id) >= _FULL_ID else job_id for job_id in ids]


def lasted(since: str | None, until: str | None) -> str:
    """Return the time between two moments, or until now, in its two largest units: ``3 min 5 s``."""
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
    while len(units) > 1 and units[0][0] == 0:
        units.pop(0)
    texts = [f"{count} {unit}" for count, unit in units[:2] if count]
    return " ".join(texts) or "0 s"


def _print_output(output: Any, as_json: bool) -> None:
    """Print the output of a command that yields one. Raises `typer.Exit` unless it is a success."""
    if output is None:
        return
    value = next(output)
    success = True
    if isinstance(value, tuple):
        value, success = value
    if as_json:
        print_json(value)
    else:
        next(output, None)
    if not success:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def reporting(as_json: bool = False) -> Iterator[None]:
    """Turn a failure into a message on standard error (with ``as_json`` JSON) and the command's exit code.

    Raises `typer.Exit`.
    """
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
            body = {"error": str(error), "reason": error.reason, "data": error.data}
            print_json(body, indent=None, err=True)
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
    with Progress(f"fetching {target.name}") as progress:
        length = node.download(path, target, progress.advance, **query)
    yield {"file": str(target), "bytes": length}
    say(f"wrote {target} ({amount(length)})")
