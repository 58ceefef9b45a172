"""Lists of the node as tables, laid out for the width of the terminal."""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bfia_gateway_client.errors import harmless
from gateway.cli.language import language_in_use, t
from gateway.cli.output import say
from gateway.cli.values import FULL_ID, cell
from gateway.errors import counted
from gateway.language.catalogue import CHINESE

Column = str | Callable[[Any], Any]  # a key of an entry, or a function of it
Columns = Mapping[str, Column]  # by heading

# A width counts positions in a line of the terminal; a Chinese character takes two of them.
_PIPE_WIDTH = 80  # of a table in a pipe, unless COLUMNS is set
_SEPARATOR_WIDTH = 3  # between two columns
_FREE_EDGE = 2  # positions at the right edge of the terminal that no table uses
# A column of Chinese text is not made narrower than this. Such a text has no spaces and may be
# folded anywhere.
_LEAST_CHINESE_WIDTH = 12
# A table of more rows is never printed as a table for each row, which would be hundreds of lines.
_MOST_ROW_TABLES = 3
# Width to which words are folded in such a table, except in its first column: that of a node's id.
_FOLDED_WIDTH = 18
_MOST_NAMES = 6  # of hidden columns that are named
# An ASCII word, or a run of Chinese characters.
_WORD = re.compile("([!-~]+)|([\u2e80-\uffff]+)")
_REMEDY = "what to do"  # heading of the column with remedies
# Headings of columns with texts of this program, which are translated. A first column without a
# heading is one of them.
_TRANSLATED_COLUMNS = frozenset(
    {"state", "until", "result", "seen", "what", "check", _REMEDY, "reports", "digest"}
)
_TROUBLE = ("warning", "failed")  # results that are shown in upper case and in red
# The next step after an empty list, by the list's name.
NEXT_STEPS = {
    "applications": "to apply with a partner: bfia-gateway partner apply --help",
    "approvals": "a job is listed here while it waits for a person at this node",
    "audit": "no change was requested, or none that fits: leave out options to see more",
    "datasets": "none is here, or none that fits; to add one: bfia-gateway data upload --help",
    "grants": "to let a partner use a dataset: bfia-gateway data grant NAMESPACE#NAME NODE",
    "jobs": "none is here, or none that fits; to begin one: bfia-gateway job draft --help",
    "models": (
        "a training leaves its model here when it succeeds; bfia-gateway job list shows the jobs"
    ),
    "outputs": (
        "runs here leave outputs when they succeed; bfia-gateway job show names their states"
    ),
    "providers": (
        "none is registered, or none that fits; to add one: bfia-gateway provider register FILE"
    ),
    "reports": "runs here write reports while they run; bfia-gateway job show names their states",
    "routes": "to add a partner: bfia-gateway partner invite",
    "tokens": "to make one: bfia-gateway token create NAME --role ROLE",
}


@dataclass(frozen=True)
class _ColumnTexts:
    """A column of a table: its heading and one text per row, in the language in use."""

    name: str  # the heading in English
    texts: tuple[str, ...]
    red: frozenset[str] = frozenset()  # texts that are shown in red

    @property
    def heading(self) -> str:
        """Return the heading in the language in use."""
        return harmless(t(self.name))

    @cached_property
    def width(self) -> int:
        """Return the width of the longest line."""
        return max(map(_width_of, self._all_text().split("\n")))

    @cached_property
    def least_width(self) -> int:
        """Return the width that the column keeps when columns are narrowed.

        This is the width of its longest word, but at most `FULL_ID`: longer words are folded. A run
        of Chinese characters counts as a word of at most `_LEAST_CHINESE_WIDTH`.
        """
        longest = 1
        for ascii_word, chinese in _WORD.findall(self._all_text()):
            if ascii_word:
                width = min(len(ascii_word), FULL_ID)
            else:
                width = min(_width_of(chinese), _LEAST_CHINESE_WIDTH)
            longest = max(longest, width)
        return longest

    def _all_text(self) -> str:
        """Return the heading and all texts."""
        return "\n".join([self.heading, *self.texts])


def _width_of(line: str) -> int:
    """Return the width of a line in the terminal."""
    from rich.cells import cell_len

    return cell_len(line)


# ---------------------------------------------------------------- lists and steps


def listing(
    page: Mapping[str, Any],
    key: str,
    columns: Columns,
    *,
    noun: str = "",
    title: str = "",
    dispensable: Sequence[str] = (),
    red: Sequence[str] = (),
) -> None:
    """Print one page of a list as a `table`, and the option for the next page.

    - ``key``: the list's key in the page; an empty list with an entry in `NEXT_STEPS` is replaced
      by that text
    - ``noun``: for one entry of the list; without a ``title``, the number of entries is the title
    - ``dispensable``, ``red``: see `table`
    """
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
    table(title, list(columns), rows, dispensable, red)
    if page.get("next"):
        say(f"more: --after {shlex.quote(str(page['next']))}", err=True)


def _value(entry: Any, column: Column) -> Any:
    """Return the value of a column for an entry."""
    if isinstance(column, str):
        return entry[column]
    return column(entry)


def print_steps(
    title: str,
    steps: list[Mapping[str, Any]],
) -> None:
    """Print the steps of a test as a table; steps not tried after a failure are in one row."""
    rows = []
    not_tried = []
    for step in steps:
        name = t(step["name"])
        finding = step["cause"] or step["found"]
        is_not_tried = step["result"] == "skipped" and not finding
        if is_not_tried:
            not_tried.append(name)
            continue
        duration = f"{step['seconds'] * 1000:.0f} ms"
        rows.append([name, mark(step["result"]), duration, t(finding), t(step["remedy"])])
    if not_tried:
        rows.append([t("not tried"), "–", "", ", ".join(not_tried), ""])
    table(title, ["step", "result", "took", "found", _REMEDY], rows, red=list(map(mark, _TROUBLE)))


def mark(result: str) -> str:
    """Return the result of a step or clause for people; trouble is in upper case."""
    if result == "skipped":
        return "–"
    if result in _TROUBLE:
        return t(result).upper()
    return t(result)


# ---------------------------------------------------------------- tables


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    dispensable: Sequence[str] = (),
    red: Sequence[str] = (),
) -> None:
    """Print a table as wide as the terminal, in a pipe as wide as COLUMNS, without empty columns.

    Long cells are folded between words. If the terminal is too narrow for that, each of at most
    `_MOST_ROW_TABLES` rows becomes a table of its own, without empty cells. With more rows, words
    are folded, too, and the last columns left out. Remedies that do not fit are printed below the
    table, so that commands can be copied whole.

    - ``dispensable``: columns to leave out, in this order, until the rest fits
    - ``red``: texts of cells that a terminal shows in red
    """
    if title:
        say(title)
    filled = _filled_columns(columns, rows, red)
    fitting = _without_dispensable(filled, dispensable)
    printed = _print_columns(fitting)
    hidden = [column.heading for column in filled if column.name not in printed]
    if hidden:
        names = ", ".join(hidden[:_MOST_NAMES])
        if len(hidden) > _MOST_NAMES:
            names += ", …"
        hidden_columns = counted(len(hidden), "column")
        say(f"{hidden_columns} hidden ({names}): a wider terminal or --json shows all", err=True)


def _filled_columns(
    names: Sequence[str],
    rows: Sequence[Sequence[Any]],
    red: Sequence[str],
) -> list[_ColumnTexts]:
    """Return the columns with text; all columns of a table without rows.

    A table without headings has a name and a value in each row; rows without a value are left out.
    """
    texts = [list(map(cell, row)) for row in rows]
    has_headings = any(names)
    if not has_headings:
        texts = [row for row in texts if any(row[1:])]
    columns = []
    for index, name in enumerate(names):
        column_texts = [row[index] for row in texts]
        if _is_translated(name, index):
            column_texts = list(map(t, column_texts))
        is_filled = any(column_texts) or not texts
        if is_filled:
            harmless_texts = tuple(map(harmless, column_texts))
            columns.append(_ColumnTexts(name, harmless_texts, frozenset(red)))
    return columns


def _is_translated(name: str, index: int) -> bool:
    """True for a column of this program's texts, such as a first column without a heading."""
    return name in _TRANSLATED_COLUMNS or (index == 0 and not name)


def _without_dispensable(
    columns: list[_ColumnTexts], dispensable: Sequence[str]
) -> list[_ColumnTexts]:
    """Leave out dispensable columns until the others fit without folding; at least one stays."""
    fitting = columns
    for name in dispensable:
        is_narrow_enough = len(fitting) == 1 or _total_width(fitting) <= _room(fitting)
        if is_narrow_enough:
            break
        fitting = [column for column in fitting if column.name != name]
    return fitting


def _total_width(columns: Sequence[_ColumnTexts]) -> int:
    """Return the width of all columns without separators."""
    return sum(column.width for column in columns)


def _room(columns: Sequence[_ColumnTexts]) -> int:
    """Return the width of the terminal that is available for the texts of the columns."""
    separators = _SEPARATOR_WIDTH * (len(columns) - 1)
    return int(_console().width) - separators - _FREE_EDGE


def _console() -> Any:
    """Return the terminal; for a pipe, one as wide as COLUMNS, else 80 columns."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdecimal():
        console = Console(width=_PIPE_WIDTH)
    return console


# ---------------------------------------------------------------- layout


def _print_columns(columns: Sequence[_ColumnTexts]) -> set[str]:
    """Print columns in one of four layouts; return the names of those that are printed.

    One table, with folded cells if need be; the same with the remedies below it; a table for each
    row, if the columns are too many; or with many rows, a table of the first columns.
    """
    room = _room(columns)
    is_too_wide = _total_width(columns) > room
    for index, column in enumerate(columns):
        if index > 0 and column.name == _REMEDY and _belongs_below(column, is_too_wide):
            # This call does not call itself again: its columns have no remedies.
            without_remedies = [*columns[:index], *columns[index + 1 :]]
            printed = _print_columns(without_remedies)
            _print_remedies(without_remedies, column)
            return printed | {_REMEDY}
    if len(columns) <= 2:  # a table for each row has two columns itself and gains nothing
        _print_grid(columns)
        return {column.name for column in columns}
    widths = _narrowed_widths(columns, room)
    if sum(widths) <= room:
        _print_grid(columns, widths)
    elif len(columns[0].texts) <= _MOST_ROW_TABLES:
        _print_row_tables(columns)
    else:
        return _print_first_columns(columns)
    return {column.name for column in columns}


def _print_first_columns(columns: Sequence[_ColumnTexts]) -> set[str]:
    """Print one table of as many columns as fit with folded words; return their names."""
    fitting = list(columns)
    while True:
        room = _room(fitting)
        widths = _narrowed_widths(fitting, room, _FOLDED_WIDTH)
        if sum(widths) <= room or len(fitting) <= 2:
            _print_grid(fitting, widths)
            return {column.name for column in fitting}
        fitting.pop()


def _belongs_below(remedies: _ColumnTexts, is_too_wide: bool) -> bool:
    """Return whether remedies are printed below the table: if they are too wide, or repeated."""
    texts = [text for text in remedies.texts if text]
    has_repetition = len(set(texts)) < len(texts)
    return bool(texts) and (is_too_wide or has_repetition)


def _print_remedies(columns: Sequence[_ColumnTexts], remedies: _ColumnTexts) -> None:
    """Print each row's remedy after the row's name; equal lines once.

    The name is the text of the first column, and of a second column ``about``.
    """
    name_columns = [columns[0]]
    if len(columns) > 1 and columns[1].name == "about":
        name_columns.append(columns[1])
    colon = "：" if language_in_use() == CHINESE else ": "
    lines: dict[str, None] = {}
    for index, remedy in enumerate(remedies.texts):
        if remedy:
            name = " ".join(column.texts[index] for column in name_columns)
            lines[f"  {' '.join(name.split())}{colon}{remedy}"] = None
    say("what to do:")
    for line in lines:
        say(line)


def _narrowed_widths(
    columns: Sequence[_ColumnTexts],
    room: int,
    longest_word: int = FULL_ID,
) -> list[int]:
    """Return widths whose sum is at most ``room``, or a larger sum if words would be cut.

    The widest columns are narrowed first, down to their least widths. The first column, which
    names the row, keeps up to half of the room. Words beyond ``longest_word`` may be cut.
    """
    widths = [column.width for column in columns]
    least_widths = [min(column.least_width, longest_word) for column in columns]
    least_widths[0] = max(
        least_widths[0],
        min(widths[0], room // 2),
    )
    while sum(widths) > room:
        reducible = [index for index, width in enumerate(widths) if width > least_widths[index]]
        if not reducible:
            break
        widest = max(reducible, key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def _print_row_tables(columns: Sequence[_ColumnTexts]) -> None:
    """Print each row as a table of two columns, the headings and the values."""
    headings = [column.heading for column in columns]
    for number, row in enumerate(_rows(columns)):
        title = " " if number else ""  # an empty line between rows
        table(
            title,
            ["", ""],
            list(zip(headings, row, strict=True)),
            red=list(columns[0].red),
        )


def _print_grid(
    columns: Sequence[_ColumnTexts],
    widths: Sequence[int] | None = None,
) -> None:
    """Print one table; without ``widths`` of the columns, rich narrows the widest ones."""
    from rich.table import Table
    from rich.text import Text

    has_headings = any(column.heading for column in columns)
    grid = Table(show_edge=False, pad_edge=False, show_header=has_headings)
    for index, column in enumerate(columns):
        width = widths[index] if widths else None
        grid.add_column(
            Text(column.heading),
            overflow="fold",
            width=width,
        )
    for row in _rows(columns):
        grid.add_row(*[Text(text, _style_of(text, columns[0].red)) for text in row])
    _console().print(grid)


def _style_of(text: str, red: frozenset[str]) -> str:
    """Return the style of a cell: red for some texts; "" for all others."""
    if text in red:
        return "red"
    return ""


def _rows(columns: Sequence[_ColumnTexts]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table."""
    yield from zip(*(column.texts for column in columns), strict=True)
