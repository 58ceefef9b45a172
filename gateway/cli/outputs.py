"""``bfia-gateway job reports|report|metadata``: what a job's runs reported and left."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.client import EXIT_BAD_INPUT, CallFailed, Client, JobId, segment
from gateway.cli.command import AsJson, Force, Output, command
from gateway.cli.console import Columns, amount, listing, print_json, say, table, warn
from gateway.cli.inputs import new_file
from gateway.cli.jobs import Party, TaskName, commands
from gateway.errors import counted

_ROWS = 20
"""rows of a table that are shown"""
_VALUES = 3
"""values of a report in the list of reports"""
_COLUMNS = 8
"""columns of an output that are named"""


@command(commands, "reports")
def reports(node: Client, job_id: JobId) -> Output:
    """List what a job's runs here reported, and warnings about what they left.

    Example: bfia-gateway job reports job-0123456789abcdef0123456789abcdef
    """
    found = node.get(f"/api/v1/jobs/{segment(job_id)}/reports")
    yield found
    columns: Columns = {"task": "task", "party": "party", "key": "key", "is the": "output"}
    listing(
        found, "reports", "", {**columns, "reports": lambda one: _gist(node, one)}, f"reports of {job_id} here"
    )
    warn(f"{one['task']} {one['party']}: {one['warning']}" for one in found["warnings"])


@command(commands, "report")
def report(
    node: Client,
    job_id: JobId,
    task: TaskName,
    key: Annotated[str, typer.Argument(help="Key of the report in the flow.")],
    party: Party = "",
    plot: Annotated[
        Path | None, typer.Option("--plot", "-o", help="Draw it into this file (SVG; browsers show it).")
    ] = None,
    force: Force = False,
    series: Annotated[
        str | None, typer.Option(help="Draw this table of it, or values; default: the first.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a report: its values and the first rows of its tables; with --plot as a picture too.

    Example: bfia-gateway job report job-0123456789abcdef0123456789abcdef secureboost report0 --plot loss.svg
    """
    if series is not None and plot is None:
        raise CallFailed("--series selects what to draw: name a file with --plot too", EXIT_BAD_INPUT)
    if plot is not None:
        new_file(plot, force)
    address = _address(node, job_id, task, key, party)
    found = node.get(address)
    if as_json:
        print_json(found)
    else:
        _print(found)
    if plot is not None:
        say(f"{plot}: {amount(node.download(f'{address}/plot', plot, series=series))}", err=as_json)


def _address(node: Client, job_id: str, task: str, key: str, party: str) -> str:
    """Return where a report is read. Raises `CallFailed` where it is not clear which one is meant."""
    known = node.get(f"/api/v1/jobs/{segment(job_id)}/reports")["reports"]
    fits = [r for r in known if (r["task"], r["key"]) == (task, key) and party in ("", r["party"])]
    if len(fits) != 1:
        there = ", ".join(f"{r['task']} {r['key']} --party {r['party']}" for r in known) or "none"
        what = "no report" if not fits else "more than one report"
        raise CallFailed(f"{what} here matches; there are: {there}", EXIT_BAD_INPUT)
    return str(fits[0]["url"])


def _print(found: Mapping[str, Any]) -> None:
    if found["problem"]:
        raise CallFailed(f"the report {found['problem']}")
    if found["values"]:
        table("", ["value", ""], [[name, _shown(value)] for name, value in found["values"].items()])
    for series in found["series"]:
        rows = [[_shown(value) for value in point] for point in series["points"][:_ROWS]]
        table(series["name"], list(series["columns"]), rows)
        more = len(series["points"]) - len(rows) + series["left_out"]
        if more:
            say(f"and {counted(more, 'row')} more: --json or --plot FILE shows them")


def _gist(node: Client, listed: Mapping[str, Any]) -> str:
    """Return the first values of a report and its tables."""
    if not listed["there"]:
        return "not there"
    found = node.get(str(listed["url"]))
    if found["problem"]:
        return str(found["problem"])
    words = [f"{name} {_shown(value)}" for name, value in list(found["values"].items())[:_VALUES]]
    words += [f"{s['name'] or 'a table'} of {counted(len(s['points']), 'row')}" for s in found["series"][:_VALUES]]
    return ", ".join(words)


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


@command(commands, "metadata")
def metadata(
    node: Client,
    job_id: JobId,
    task: TaskName,
    party: Annotated[str, typer.Argument(help="Whose: host.0, or host for all parties of that role.")],
    key: Annotated[str, typer.Argument(help="Key of one output in the flow; default: all of the task.")] = "",
) -> Output:
    """Show the metadata of a task's outputs: columns, rows, size; at a partner if granted to this node.

    Never their content. There its admin grants an output as a dataset: data grant NAMESPACE#NAME THIS-NODE.

    Example: bfia-gateway job metadata job-0123456789abcdef0123456789abcdef intersect host.0
    """
    path = f"/api/v1/jobs/{segment(job_id)}/metadata/{segment(task)}/{segment(party)}"
    found = node.get(f"{path}/{segment(key)}" if key else path)
    yield found
    columns: Columns = {
        "key": "key",
        "type": "type",
        "rows": lambda one: one["count"] if one["there"] else "",
        "size": lambda one: amount(one["bytes"]) if one["there"] else "",
        "columns": _columns,
        "dataset id": lambda one: f"{one['namespace']}#{one['name']}",
    }
    listing(found, "outputs", "", columns, f"outputs of {task} at {party}")


def _columns(one: Mapping[str, Any]) -> str:
    if not one["there"]:
        return "not there"
    names = [f"{c['name']} {c['type']}".strip() for c in one["columns"]]
    more = len(names) - _COLUMNS + one["more_columns"]
    return ", ".join(names[:_COLUMNS]) + (f" and {more} more" if more > 0 else "")
