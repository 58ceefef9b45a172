"""Writes the figures of one run into both READMEs and performance pages, between their marks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.bench.noise import Machine
from tools.bench.pages import TEXTS

# The rows of each printed table, by the name of the table.
PrintedRows = Mapping[str, Sequence[Sequence[Any]]]

# The marks around the figures in a page.
BEGIN = "<!-- make bench ARGS=--readme writes what follows -->\n"
END = "<!-- until here -->\n"
# Tables whose figures the pages contain.
NEEDED = (
    "makespan",
    "fate",
    "create alone",
    "tasks",
    "parties",
    "threads",
    "channel",
    "idle",
    "upload",
    "beside",
    "ended",
    "failover",
)
_IDLE_PROCESSES = 3  # the node with two engines, and FATE-Flow's server
# Names in the pages for the columns of tables, except the first one: `_by_first_column` adds its
# values to them.
_COLUMNS = {
    "makespan": ("poll", "callback", "bare", "host", "ratio", "to_host"),
    "fate": ("rate", "median", "fate_rate", "fate_median", "by_fate", "refused"),
    "create alone": ("alone_rate", "alone_median", "pair_rate", "pair_median", "share"),
    "tasks": ("tasks_time", "per_task", "growth"),
    "channel": ("push", "push_rate", "relay_rate", "push_share"),
}
# The same for tables with one row.
_SINGLE_ROWS = {
    "upload": ("upload", "upload_time", "upload_rate", "grown"),
    "beside": ("tasks", "alone", "together", "beside", "large"),
    "ended": ("ended", "without", "with", "slower"),
}


class Missing(Exception):
    """A part was not measured, or a page has no place for the figures."""


def write(
    root: Path,
    machine: Machine,
    printed: PrintedRows,
) -> None:
    """Write the figures into the pages. Raises `Missing`, before any page has changed."""
    missing = [name for name in NEEDED if not printed.get(name)]
    if missing:
        raise Missing(f"not measured: {', '.join(missing)}")
    values = figures(printed)
    values["machine"] = machine.english
    values["machine_zh"] = machine.chinese
    contents = {}
    for name, text in TEXTS.items():
        page = root / name
        contents[page] = replaced(page, text.format_map(values))
    for page, content in contents.items():
        page.write_text(content, encoding="utf-8")


def replaced(page: Path, text: str) -> str:
    """Return a page with the text between its marks. Raises `Missing` without marks."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise Missing(f"{page.name} has no place for the figures")
    return before + BEGIN + text + END + after


def figures(printed: PrintedRows) -> dict[str, str]:
    """Return the figures by their names in the pages."""
    values: dict[str, Any] = {
        **_failover_figures(printed["failover"]),
        **_idle_figures(printed["idle"]),
        **_thread_figures(printed["threads"]),
        **_party_figures(printed["parties"]),
    }
    for name, columns in _COLUMNS.items():
        values |= _by_first_column(printed[name], columns)
    for name, columns in _SINGLE_ROWS.items():
        values |= zip(columns, printed[name][0], strict=True)
    values["push_time"] = _inverse(values["push_share 64 MiB"])
    return {name: str(value) for name, value in values.items()}


def _by_first_column(
    rows: Sequence[Sequence[Any]],
    columns: Sequence[str],
) -> dict[str, Any]:
    """Return the figures of a table, such as ``rate 8`` in the row of eight clients."""
    values = {}
    for first, *cells in rows:
        for column, cell in zip(columns, cells, strict=True):
            values[f"{column} {first}"] = cell
    return values


def _thread_figures(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return the counts of a job at the scheduling node, and at the one that takes part."""
    values = {}
    for prefix, row in zip(("scheduler", "participant"), rows, strict=True):
        _, futex_calls, _, transactions, statements, *_ = row
        values[f"{prefix}_futex"] = futex_calls
        values[f"{prefix}_transactions"] = transactions
        values[f"{prefix}_statements"] = statements
    return values


def _party_figures(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return the figures by the number of parties, behind a line and at nodes of this machine."""
    values = {}
    for kind, parties, submission, submission_growth, job, job_growth in rows:
        place = "line" if "line" in kind else "here"
        values[f"{place}_create {parties}"] = submission
        values[f"{place}_create_growth {parties}"] = submission_growth
        values[f"{place}_job {parties}"] = job
        values[f"{place}_job_growth {parties}"] = job_growth
    return values


def _idle_figures(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return memory and threads of the idle processes. Raises `Missing` without FATE-Flow's."""
    if len(rows) < _IDLE_PROCESSES:
        raise Missing("not measured: FATE-Flow's server; make setup installs it")
    node, docker, fate_flow = rows
    return {
        "memory": node[1],
        "threads": node[2],
        "docker_memory": docker[1],
        "docker_threads": docker[2],
        "fate_flow_memory": fate_flow[1],
        "fate_flow_threads": fate_flow[2],
        "memory_ratio": f"{_number(node[1]) / _number(fate_flow[1]):.2f}",
    }


def _failover_figures(rows: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return the shortest and the longest failover; a row is a text such as ``2.1 s``."""
    times = sorted((row[0] for row in rows), key=_number)
    return {
        "failover": times[0],
        "failover_worst": times[-1],
    }


def _number(text: str) -> float:
    """Return the number before a unit."""
    return float(text.split()[0])


def _inverse(ratio: str) -> str:
    return f"{1 / float(ratio):.2f}"
