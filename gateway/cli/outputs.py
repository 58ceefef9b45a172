"""``bfia-gateway job reports`` and ``job report``: what runs here reported, as tables and as a picture."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_BAD_INPUT,
    AsJson,
    CallFailed,
    Client,
    Config,
    Force,
    JobId,
    Url,
    amount,
    connect,
    fitting,
    jobs,
    reporting,
    segment,
    show,
    table,
)
from gateway.cli.console import say
from gateway.cli.inputs import new_file
from gateway.errors import counted

_ROWS = 20
"""rows of a table that are shown"""
_VALUES = 3
"""values that stand in the list of reports"""


def add(commands: typer.Typer) -> None:
    """Add the commands to those of jobs."""
    commands.command("reports")(reports)
    commands.command("report")(report)


def reports(job_id: JobId, config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False) -> None:
    """List what a job's runs here reported, and what is odd about what they left.

    Example: bfia-gateway job reports job-0123456789abcdef0123456789abcdef
    """
    with reporting(as_json), connect(config, url) as node:
        found = node.get(f"/api/v1/jobs/{segment(job_id)}/reports")
        if as_json:
            show(found)
            return
        rows = [[r["task"], r["party"], r["key"], r["output"], _gist(node, r)] for r in found["reports"]]
        table(f"reports of {job_id} here", ["task", "party", "key", "is the", "says"], rows)
        for warning in found["warnings"]:
            say(f"warning: {warning['task']} {warning['party']}: {warning['warning']}", err=True)


def report(
    job_id: JobId,
    task: Annotated[str, typer.Argument(help="Name of the task in the flow.")],
    key: Annotated[str, typer.Argument(help="Key of the report in the flow.")],
    party: Annotated[
        str, typer.Option("--party", "-p", help="Whose, such as guest.0; default: the only one here.")
    ] = "",
    plot: Annotated[
        Path | None, typer.Option("--plot", "-o", help="Draw it into this file (SVG; browsers show it).")
    ] = None,
    force: Force = False,
    series: Annotated[
        str | None, typer.Option("--series", help="Draw this table of it, or values; default: the first.")
    ] = None,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Show a report: its values and the first rows of its tables; with --plot as a picture too.

    Example: bfia-gateway job report job-0123456789abcdef0123456789abcdef secureboost report0 --plot loss.svg
    """
    with reporting(as_json), connect(config, url) as node:
        if series is not None and plot is None:
            raise CallFailed("--series says what to draw: name a file with --plot too", EXIT_BAD_INPUT)
        if plot is not None:
            with fitting():
                new_file(plot, force)
        address = _address(node, job_id, task, key, party)
        found = node.get(address)
        if as_json:
            show(found)
        else:
            _print(found)
        if plot is not None:
            size = node.download(f"{address}/plot", plot, series=series)
            say(f"{plot}: {amount(size)}", err=as_json)


def _address(node: Client, job_id: str, task: str, key: str, party: str) -> str:
    """Return where a report is read. Raises `CallFailed` where it is not clear which one is meant."""
    known = node.get(f"/api/v1/jobs/{segment(job_id)}/reports")["reports"]
    fits = [r for r in known if (r["task"], r["key"]) == (task, key) and party in ("", r["party"])]
    if len(fits) != 1:
        there = ", ".join(f"{r['task']} {r['key']} --party {r['party']}" for r in known) or "none"
        what = "no report here is" if not fits else "more than one report here is"
        raise CallFailed(f"{what} meant by that; there are: {there}", EXIT_BAD_INPUT)
    return str(fits[0]["url"])


def _print(found: Mapping[str, Any]) -> None:
    if found["problem"]:
        raise CallFailed(f"the report {found['problem']}")
    if found["values"]:
        table("", ["value", ""], [[name, _shown(value)] for name, value in found["values"].items()])
    for series in found["series"]:
        rows = [[_shown(cell) for cell in point] for point in series["points"][:_ROWS]]
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


_SHOWN = 8
"""columns that a line names"""


def add_metadata(commands: typer.Typer) -> None:
    """Add the command to those of jobs."""
    commands.command("metadata")(metadata)


def metadata(
    job_id: Annotated[str, typer.Argument(help="The job's id.", autocompletion=jobs)],
    task: Annotated[str, typer.Argument(help="Name of the task in the flow.")],
    party: Annotated[str, typer.Argument(help="Whose: host.0, or host for all parties of that role.")],
    key: Annotated[str, typer.Argument(help="Key of one output in the flow; default: all of the task.")] = "",
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Show what a task's outputs are like: columns, rows, size; at a partner what it has granted to this node.

    Never what is in them. There its admin grants an output as a dataset: data grant NAMESPACE#NAME THIS-NODE.

    Example: bfia-gateway job metadata job-0123456789abcdef0123456789abcdef intersect host.0
    """
    path = f"/api/v1/jobs/{segment(job_id)}/metadata/{segment(task)}/{segment(party)}"
    with reporting(as_json), connect(config, url) as node:
        found = node.get(f"{path}/{segment(key)}" if key else path)
        if as_json:
            show(found)
            return
        title = f"outputs of {task} at {party}"
        table(title, ["key", "type", "rows", "size", "columns", "dataset id"], [_row(o) for o in found["outputs"]])


def _row(one: dict[str, Any]) -> list[str]:
    if not one["there"]:
        return [one["key"], one["type"], "", "", "not there", f"{one['namespace']}#{one['name']}"]
    names = [f"{c['name']} {c['type']}".strip() for c in one["columns"]]
    more = len(names) - _SHOWN + one["more_columns"]
    said = ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    rows = "" if one["count"] is None else str(one["count"])
    return [one["key"], one["type"], rows, amount(one["bytes"]), said, f"{one['namespace']}#{one['name']}"]
