"""``bfia-gateway job outputs|download|report|archive|delete …``: what a job's runs reported and left."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bfia_gateway_client.calls import path_of
from bfia_gateway_client.errors import harmless
from gateway.cli import options
from gateway.cli.client import DEFAULT_CONFIG, EXIT_BAD_INPUT, CallFailed, Client, connect, new_file
from gateway.cli.command import (
    Columns,
    Output,
    amount,
    command,
    compact,
    listing,
    print_json,
    save,
    say,
    size,
    table,
    warn,
    whole_id,
)
from gateway.cli.jobs import Party, commands, job_at, run_of
from gateway.cli.language import t
from gateway.domain.dag import group
from gateway.errors import NotServed, counted

_ROWS = 20
"""rows of a table that are shown"""
_VALUES = 3
"""values of a report in the list of reports"""
_COLUMNS = 8
"""columns of an output that are named"""
_LARGEST = 16 * 1024 * 1024
"""bytes of what was signed of a job, as an archive of it has them"""

TaskName = Annotated[str, typer.Argument(help="Name of the task in the flow.")]


@command(commands, "outputs", "job-0123")
def outputs(node: Client, job_id: options.JobId) -> Output:
    """List what a job's runs left here: tables, models, reports."""
    found = node.get(path_of("jobs", job_id, "outputs"))
    yield found
    columns = {
        "task": "task",
        "party": "party",
        "key": "key",
        "is the": "output",
        "there": "there",
    }
    content = {"content": lambda o: "" if o["value"] is None else compact(o["value"])}
    listing(found, "outputs", "", {**columns, **content}, f"outputs of {job_id} here")


@command(commands, "download", "job-0123 intersect train_data -o common.csv")
def download(
    node: Client,
    job_id: options.JobId,
    task: TaskName,
    key: Annotated[str, typer.Argument(help="Key of the output in the flow.")],
    party: Party = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; default: key and extension."),
    ] = None,
    force: options.Force = False,
) -> Output:
    """Save one output."""
    label = party or str(run_of(job_at(node, job_id), task, "", option="")["party"])
    path = path_of("jobs", job_id, "outputs", task, label, key)
    if output is None:
        kind = group(node.get(path, rows=1)["type"])
        output = Path(
            key
            + {
                "data": ".csv",
                "metric": ".json",
                "model": ".model",
            }[kind]
        )
    yield from save(node, f"{path}/download", output, force)


@command(commands, "archive", "job-0123 -o job.zip", timeout=600)
def archive(
    node: Client,
    job_id: options.JobId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default: <job>.zip")
    ] = None,
    force: options.Force = False,
) -> Output:
    """Write a zip of all that this node knows of a job: configuration, environment, logs, timeline, reports.

    Secrets are masked; SHA256SUMS lists every file.
    """
    yield from save(
        node, path_of("jobs", job_id, "archive"), output or Path(f"{Path(job_id).name}.zip"), force
    )


@command(commands, "verify", "job-0123.zip")
def verify(
    job: Annotated[
        str,
        typer.Argument(
            help="The job's id or its beginning, last, or an archive of it; that needs no node."
        ),
    ],
    config: options.Config = DEFAULT_CONFIG,
    url: options.Url = "",
) -> Output:
    """Compare what a job's initiator signed with what this node ran. Exit code 1: something differs.

    Its id tells whose the key is that signed: compare it with the partner's (`identity show`, `route history`).
    """
    from gateway.jobs.bundles import FILE, verified

    if Path(job).is_file():
        try:
            with zipfile.ZipFile(job) as archive, archive.open(FILE) as file:
                found = json.loads(file.read(_LARGEST))
        except (zipfile.BadZipFile, KeyError, ValueError, RecursionError) as error:
            raise CallFailed(
                f"{job} is not the archive of a job that ran here", EXIT_BAD_INPUT
            ) from error
    else:
        with connect(config, url) as node:
            found = node.get(path_of("jobs", whole_id(node, job), "bundle"))
    try:
        findings = [vars(one) for one in verified(found)]
        of, at = found["job_id"], found["node"]
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise CallFailed(f"{FILE} of {job} cannot be read", EXIT_BAD_INPUT) from error
    good = all(one["good"] is not False for one in findings)
    yield (
        {
            "job_id": of,
            "node": at,
            "good": good,
            "findings": findings,
        },
        good,
    )
    words = {
        True: "good",
        False: "DIFFERS",
        None: "unknown",
    }
    columns: Columns = {
        "": lambda one: words[one["good"]],
        "check": "check",
        "found": lambda one: t(one["text"]),
    }
    title = f"what was signed of {of}, and what ran at {at}"
    listing({"findings": findings}, "findings", "", columns, title)


@command(commands, "reports", "job-0123")
def reports(node: Client, job_id: options.JobId) -> Output:
    """List what a job's runs here reported, and warnings about what they left."""
    found = node.get(path_of("jobs", job_id, "reports"))
    yield found
    columns = {
        "task": "task",
        "party": "party",
        "key": "key",
        "is the": "output",
    }
    title = f"reports of {job_id} here"
    listing(found, "reports", "", {**columns, "reports": lambda one: _gist(node, one)}, title)
    warn(f"{one['task']} {one['party']}: {one['warning']}" for one in found["warnings"])


def _gist(node: Client, listed: Mapping[str, Any]) -> str:
    """Return the first values of a report and its tables."""
    if not listed["there"]:
        return "not there"
    found = node.get(str(listed["url"]))
    words = [f"{name} {_shown(value)}" for name, value in list(found["values"].items())[:_VALUES]]
    words += [
        f"{s['name'] or 'a table'} of {counted(len(s['points']), 'row')}"
        for s in found["series"][:_VALUES]
    ]
    return str(found["problem"] or ", ".join(words))


@command(commands, "report", "job-0123 secureboost report0 --plot loss.svg")
def report(
    node: Client,
    job_id: options.JobId,
    task: TaskName,
    key: Annotated[str, typer.Argument(help="Key of the report in the flow.")],
    party: Party = "",
    plot: Annotated[
        Path | None,
        typer.Option("--plot", "-o", help="Draw it into this file (SVG; browsers show it)."),
    ] = None,
    force: options.Force = False,
    series: Annotated[
        str | None, typer.Option(help="Draw this table of it, or values; default: the first.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a report: its values and the first rows of its tables; with --plot as a picture too."""
    if series is not None and plot is None:
        raise CallFailed(
            "--series selects what to draw: name a file with --plot too", EXIT_BAD_INPUT
        )
    if plot is not None:
        new_file(plot, force)
    known = node.get(path_of("jobs", job_id, "reports"))["reports"]
    fits = [r for r in known if (r["task"], r["key"]) == (task, key) and party in ("", r["party"])]
    if len(fits) != 1:
        there = ", ".join(f"{r['task']} {r['key']} --party {r['party']}" for r in known) or "none"
        what = "no report" if not fits else "more than one report"
        raise CallFailed(f"{what} here matches; there are: {there}", EXIT_BAD_INPUT)
    found = node.get(fits[0]["url"])
    if as_json:
        print_json(found)
    else:
        _print_report(found)
    if plot is not None:
        say(
            f"{plot}: {amount(node.download(fits[0]['url'] + '/plot', plot, series=series))}",
            err=as_json,
        )


def _print_report(found: Mapping[str, Any]) -> None:
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


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


@command(commands, "metadata", "job-0123 intersect host.0")
def metadata(
    node: Client,
    job_id: options.JobId,
    task: TaskName,
    party: Annotated[
        str, typer.Argument(help="Whose: host.0, or host for all parties of that role.")
    ],
    key: Annotated[
        str, typer.Argument(help="Key of one output in the flow; default: all of the task.")
    ] = "",
) -> Output:
    """Show the metadata of a task's outputs: columns, rows, size; at a partner if granted to this node.

    Never their content. There its admin grants an output as a dataset: data grant NAMESPACE#NAME THIS-NODE.
    """
    found = node.get(path_of("jobs", job_id, "metadata", task, party, *([key] if key else [])))
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
    more = len(names) - _COLUMNS
    return ", ".join(names[:_COLUMNS]) + (f" and {more} more" if more > 0 else "")


# ---------------------------------------------------------------- deleting


@command(commands, "delete", "job-0123 --dry-run", timeout=120)
def delete(
    node: Client,
    job_id: options.JobId,
    here: Annotated[
        bool, typer.Option("--here", help="Only at this node; the others get no request.")
    ] = False,
    reason: Annotated[str, typer.Option(help="Kept in the line that is left of the job.")] = "",
    dry_run: options.DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: options.AsJson = False,
) -> Output:
    """Delete an ended job with its logs and outputs here, and its outputs at every other node of it.

    Exit code 1: refused, or a node does not respond (then nothing was deleted here: try again), or one that
    refuses keeps its part while the others delete theirs; the table shows it. A node without this request (it is
    not part of the standard) keeps its part, too, and does not fail.
    """
    if not (yes or dry_run or as_json):
        where = "" if here else ", at every node of it"
        typer.confirm(harmless(t(f"Delete {job_id} for good{where}?")), abort=True, err=True)
    found = node.delete(
        path_of("jobs", job_id),
        here=here,
        reason=reason,
        dry_run=dry_run,
    )
    others = found["nodes"] or {}
    yield found, all(at["reason"] in ("", NotServed.reason) for at in others.values())
    _print_deleted(found, dry_run)
    done = "would be" if dry_run else "yes"
    rows = [
        [name, t(f"no: {at['reason']} {at['message']}" if at["reason"] else done)]
        for name, at in others.items()
    ]
    if rows:
        table("other nodes", ["node", "deleted"], rows)


@command(commands, "clean", "job-0123 intersect_rsa_1 --dry-run")
def clean(
    node: Client,
    job_id: options.JobId,
    task: Annotated[str, typer.Argument(help="The task's name in the flow, or its id.")],
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Its reports, not its tables and models.")
    ] = False,
    dry_run: options.DryRun = False,
) -> Output:
    """Delete the outputs, or the metrics, that one task of an ended job left at this node."""
    content = "metrics" if metrics else "outputs"
    found = node.delete(
        path_of("jobs", job_id, "tasks", task, "outputs"), content=content, dry_run=dry_run
    )
    yield found
    _print_deleted(found, dry_run)


def _print_deleted(found: Mapping[str, Any], dry_run: bool) -> None:
    items = found["items"]
    if not items:
        say("nothing to delete")
        return
    title = f"{'would be deleted' if dry_run else 'deleted'}: {counted(len(items), 'item')}, {amount(found['bytes'])}"
    listing(
        found,
        "items",
        "",
        {
            "kind": "kind",
            "name": "name",
            "size": size("bytes"),
        },
        title,
    )
