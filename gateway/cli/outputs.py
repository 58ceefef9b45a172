"""``bfia-gateway job outputs|download|report|archive|delete …``: results of a job's runs."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bfia_gateway_client.calls import path_of
from bfia_gateway_client.errors import harmless
from gateway.cli import options
from gateway.cli.client import DEFAULT_CONFIG, EXIT_BAD_INPUT, CallFailed, Client, connect
from gateway.cli.command import Output, command, save, whole_id
from gateway.cli.jobs import PartyOption, commands, job_at, run_of
from gateway.cli.language import t
from gateway.cli.output import print_json, say, warn
from gateway.cli.tables import Columns, listing, table
from gateway.cli.values import amount, compact, size
from gateway.domain.dag import group
from gateway.errors import NotServed, counted

_ROW_LIMIT = 20  # rows of a report's table that are printed
_VALUE_LIMIT = 3  # in the list of reports: values of one report, and likewise tables
_COLUMN_LIMIT = 8  # columns of an output in the table of metadata
_LARGEST_BUNDLE = 16 * 1024 * 1024  # bytes of the signed documents in a job's archive
# Group of an output's type -> extension of its file
_EXTENSIONS = {
    "data": ".csv",
    "metric": ".json",
    "model": ".model",
}
# Result of a check of signed documents (None: undecidable) -> its word in the table
_VERDICTS = {
    True: "good",
    False: "DIFFERS",
    None: "unknown",
}

TaskArgument = Annotated[str, typer.Argument(help="Name of the task in the flow.")]


@command(commands, "outputs", "job-0123")
def outputs(node: Client, job_id: options.JobId) -> Output:
    """List the outputs of a job's runs at this node: tables, models, reports."""
    response = node.get(path_of("jobs", job_id, "outputs"))
    yield response
    columns: Columns = {
        "task": "task",
        "party": "party",
        "key": "key",
        "is the": "output",
        "there": "there",
        "content": _output_value,
    }
    title = f"outputs of {job_id} here"
    listing(response, "outputs", columns, title=title, dispensable=("content",))


def _output_value(output: Mapping[str, Any]) -> str:
    """Return the value of a small output; empty for all others."""
    if output["value"] is None:
        return ""
    return compact(output["value"])


@command(commands, "download", "job-0123 intersect train_data -o common.csv")
def download(
    node: Client,
    job_id: options.JobId,
    task: TaskArgument,
    key: Annotated[str, typer.Argument(help="Key of the output in the flow.")],
    party: PartyOption = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; default: key and extension."),
    ] = None,
    force: options.Force = False,
) -> Output:
    """Save one output."""
    label = party or str(run_of(job_at(node, job_id), task, party="", option="")["party"])
    path = path_of("jobs", job_id, "outputs", task, label, key)
    if output is None:
        kind = group(node.get(path, rows=1)["type"])
        output = Path(key + _EXTENSIONS[kind])
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
    """Write a zip of all that this node knows of a job: configuration, environment, logs, timeline,
    reports.

    Secrets are masked; SHA256SUMS lists every file.
    """
    target = output or Path(f"{Path(job_id).name}.zip")
    yield from save(node, path_of("jobs", job_id, "archive"), target, force)


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
    """Compare the job that its initiator signed with the runs of this node. Exit code 1: something
    differs.

    Compare the id of the key that signed with the partner's (`identity show`, `route history`).
    """
    # Inside this command, ``verify`` is the function that compares the documents.
    from gateway.jobs.bundle_document import FILE, verify

    bundle = _load_bundle(job, config, url)
    try:
        findings = [vars(finding) for finding in verify(bundle)]
        job_id, node_id = bundle["job_id"], bundle["node"]
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise CallFailed(f"{FILE} of {job} cannot be read", EXIT_BAD_INPUT) from error
    # None: nothing to compare, or not comparable; such a finding does no harm.
    good = all(finding["good"] is not False for finding in findings)
    result = {
        "job_id": job_id,
        "node": node_id,
        "good": good,
        "findings": findings,
    }
    yield result, good
    columns: Columns = {
        "": _verdict,
        "check": "check",
        "found": _finding_text,
    }
    title = f"what was signed of {job_id}, and what ran at {node_id}"
    listing({"findings": findings}, "findings", columns, title=title)


def _verdict(finding: Mapping[str, Any]) -> str:
    """Return whether a part of the job is as its initiator signed it, as a word."""
    return _VERDICTS[finding["good"]]


def _finding_text(finding: Mapping[str, Any]) -> str:
    """Return a finding in the language in use."""
    return t(finding["text"])


def _load_bundle(job: str, config: Path, url: str) -> Any:
    """Return the signed documents of a job. Raises `CallFailed`.

    ``job``: the path of an archive of the job, or the job's id at a node, which may be shortened.
    """
    if Path(job).is_file():
        return _archived_bundle(job)
    with connect(config, url) as node:
        return node.get(path_of("jobs", whole_id(node, job), "bundle"))


def _archived_bundle(archive_path: str) -> Any:
    """Return the signed documents in a job's archive. Raises `CallFailed`."""
    from gateway.jobs.bundle_document import FILE

    try:
        with zipfile.ZipFile(archive_path) as archive, archive.open(FILE) as file:
            return json.loads(file.read(_LARGEST_BUNDLE))
    except (zipfile.BadZipFile, KeyError, ValueError, RecursionError) as error:
        text = f"{archive_path} is not the archive of a job that ran here"
        raise CallFailed(text, EXIT_BAD_INPUT) from error


@command(commands, "reports", "job-0123")
def reports(node: Client, job_id: options.JobId) -> Output:
    """List the reports of a job's runs at this node, and warnings about their outputs."""
    response = node.get(path_of("jobs", job_id, "reports"))
    yield response

    def summary(entry: Mapping[str, Any]) -> str:
        return _report_summary(node, entry)

    columns: Columns = {
        "task": "task",
        "party": "party",
        "key": "key",
        "is the": "output",
        "reports": summary,
    }
    listing(response, "reports", columns, title=f"reports of {job_id} here")
    for entry in response["warnings"]:
        warn([f"{entry['task']} {entry['party']}: {entry['warning']}"])


def _report_summary(node: Client, entry: Mapping[str, Any]) -> str:
    """Return the first values of a report and its first tables, or why there are none."""
    if not entry["there"]:
        return "not there"
    report = node.get(str(entry["url"]))
    if report["problem"]:
        return str(report["problem"])
    texts = []
    for name, value in list(report["values"].items())[:_VALUE_LIMIT]:
        texts.append(f"{name} {_plain(value)}")
    for series in report["series"][:_VALUE_LIMIT]:
        rows = counted(len(series["points"]), "row")
        texts.append(f"{series['name'] or 'a table'} of {rows}")
    return ", ".join(texts)


@command(commands, "report", "job-0123 secureboost report0")
def report(
    node: Client,
    job_id: options.JobId,
    task: TaskArgument,
    key: Annotated[str, typer.Argument(help="Key of the report in the flow.")],
    party: PartyOption = "",
    as_json: options.AsJson = False,
) -> None:
    """Show a report: its values and the first rows of its tables."""
    entry = _select_report(node, job_id, task, key, party)
    report = node.get(entry["url"])
    if as_json:
        print_json(report)
    else:
        _print_report(report)


def _select_report(
    node: Client,
    job_id: str,
    task: str,
    key: str,
    party: str,
) -> Mapping[str, Any]:
    """Return the one report of a task with this key, in the list of reports.

    An empty party matches all parties. Raises `CallFailed`, which lists the choices, if no report
    or several match.
    """
    entries: list[Mapping[str, Any]] = node.get(path_of("jobs", job_id, "reports"))["reports"]
    matches = []
    for entry in entries:
        is_report = entry["task"] == task and entry["key"] == key
        if is_report and party in ("", entry["party"]):
            matches.append(entry)
    if len(matches) == 1:
        return matches[0]
    choices = [f"{entry['task']} {entry['key']} --party {entry['party']}" for entry in entries]
    what = "more than one report" if matches else "no report"
    text = f"{what} here matches; there are: {', '.join(choices) or 'none'}"
    raise CallFailed(text, EXIT_BAD_INPUT)


def _print_report(report: Mapping[str, Any]) -> None:
    """Print the values of a report and the first rows of its tables.

    Raises `CallFailed` if it is unreadable.
    """
    if report["problem"]:
        raise CallFailed(f"the report {report['problem']}")
    if report["values"]:
        rows = [[name, _plain(value)] for name, value in report["values"].items()]
        table("", ["value", ""], rows)
    for series in report["series"]:
        _print_series(series)


def _print_series(series: Mapping[str, Any]) -> None:
    """Print the first rows of a report's table, and how many more there are."""
    rows = [list(map(_plain, point)) for point in series["points"][:_ROW_LIMIT]]
    table(series["name"], list(series["columns"]), rows)
    # "left_out": how many rows the node did not send.
    hidden = len(series["points"]) - len(rows) + series["left_out"]
    if hidden:
        say(f"and {counted(hidden, 'row')} more: --json shows them")


def _plain(value: Any) -> str:
    """Return a value of a report as text; numbers have up to six digits."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


@command(commands, "metadata", "job-0123 intersect host.0")
def metadata(
    node: Client,
    job_id: options.JobId,
    task: TaskArgument,
    party: Annotated[
        str, typer.Argument(help="Whose: host.0, or host for all parties of that role.")
    ],
    key: Annotated[
        str, typer.Argument(help="Key of one output in the flow; default: all of the task.")
    ] = "",
) -> Output:
    """Show the metadata of a task's outputs: columns, rows, size; at a partner if granted to this
    node.

    Never their content. There its admin grants an output as a dataset: data grant NAMESPACE#NAME
    THIS-NODE.
    """
    parts = [task, party]
    if key:
        parts.append(key)
    response = node.get(path_of("jobs", job_id, "metadata", *parts))
    yield response
    columns: Columns = {
        "key": "key",
        "type": "type",
        "rows": _row_count,
        "size": _size,
        "columns": _column_names,
        "dataset id": _dataset_id,
    }
    listing(response, "outputs", columns, title=f"outputs of {task} at {party}")


def _row_count(output: Mapping[str, Any]) -> Any:
    """Return the number of rows; empty for an output that is not stored."""
    return output["count"] if output["there"] else ""


def _size(output: Mapping[str, Any]) -> str:
    """Return the size; empty for an output that is not stored."""
    return amount(output["bytes"]) if output["there"] else ""


def _dataset_id(output: Mapping[str, Any]) -> str:
    """Return the dataset id of an output, by which the admin of its node can grant it."""
    return f"{output['namespace']}#{output['name']}"


def _column_names(output: Mapping[str, Any]) -> str:
    """Return the first columns of an output with their types, or that it is not stored."""
    if not output["there"]:
        return "not there"
    names = [f"{column['name']} {column['type']}".strip() for column in output["columns"]]
    text = ", ".join(names[:_COLUMN_LIMIT])
    hidden = len(names) - _COLUMN_LIMIT
    if hidden > 0:
        text += f" and {hidden} more"
    return text


# ---------------------------------------------------------------- deleting


@command(commands, "delete", "job-0123 --dry-run", timeout=120)
def delete(
    node: Client,
    job_id: options.JobId,
    only_here: Annotated[
        bool, typer.Option("--here", help="Only at this node; the others get no request.")
    ] = False,
    reason: Annotated[str, typer.Option(help="Kept in the line that is left of the job.")] = "",
    dry_run: options.DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: options.AsJson = False,
) -> Output:
    """Delete an ended job with its logs and outputs here, and its outputs at every other node of
    it.

    Exit code 1: refused, or a node does not respond (then nothing was deleted here: try again), or
    one that refuses keeps its part while the others delete theirs; the table shows it. A node
    without this request (it is not part of the standard) keeps its part, too, and does not fail.
    """
    if not (yes or dry_run or as_json):
        where = "" if only_here else ", at every node of it"
        typer.confirm(
            harmless(t(f"Delete {job_id} for good{where}?")),
            abort=True,
            err=True,
        )
    response = node.delete(
        path_of("jobs", job_id),
        here=only_here,
        reason=reason,
        dry_run=dry_run,
    )
    yield response, _is_deleted_elsewhere(response)
    _print_deleted(response, dry_run)
    _print_other_nodes(response, dry_run)


def _is_deleted_elsewhere(response: Mapping[str, Any]) -> bool:
    """Return whether all other nodes delete their part.

    A node without this request keeps its part; that does not count as a failure.
    """
    other_nodes = response["nodes"] or {}
    return all(part["reason"] in ("", NotServed.reason) for part in other_nodes.values())


def _print_other_nodes(response: Mapping[str, Any], dry_run: bool) -> None:
    """Print for each other node that was asked whether it deletes its part."""
    other_nodes = response["nodes"] or {}
    rows = [[name, t(_deletion(part, dry_run))] for name, part in other_nodes.items()]
    if rows:
        table("other nodes", ["node", "deleted"], rows)


def _deletion(part: Mapping[str, Any], dry_run: bool) -> str:
    """Return whether another node deletes its part of a job; ``part`` is that node's response."""
    if part["reason"]:  # why the node does not delete it
        return f"no: {part['reason']} {part['message']}"
    return "would be" if dry_run else "yes"


@command(commands, "clean", "job-0123 intersect_rsa_1 --dry-run", timeout=120)
def clean(
    node: Client,
    job_id: options.JobId,
    task: Annotated[str, typer.Argument(help="The task's name in the flow, or its id.")],
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Its reports, not its tables and models.")
    ] = False,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="At every node of the job, not only at this one.")
    ] = False,
    dry_run: options.DryRun = False,
) -> Output:
    """Delete the outputs, or the metrics, of one task of an ended job: here, or at all its nodes.

    Exit code 1: refused, or with --everywhere a node does not respond or refuses. A node without
    this request (it is not part of the standard) keeps its outputs; the table shows it.
    """
    content = "metrics" if metrics else "outputs"
    path = path_of("jobs", job_id, "tasks", task, "outputs")
    response = node.delete(
        path,
        content=content,
        everywhere=everywhere,
        dry_run=dry_run,
    )
    yield response, _is_deleted_elsewhere(response)
    _print_deleted(response, dry_run)
    _print_other_nodes(response, dry_run)


def _print_deleted(response: Mapping[str, Any], dry_run: bool) -> None:
    """Print the deleted items of a job, or for a dry run the items that would be deleted."""
    items = response["items"]
    if not items:
        say("nothing to delete")
        return
    verb = "would be deleted" if dry_run else "deleted"
    title = f"{verb}: {counted(len(items), 'item')}, {amount(response['bytes'])}"
    columns: Columns = {
        "kind": "kind",
        "name": "name",
        "size": size("bytes"),
    }
    listing(response, "items", columns, title=title)
