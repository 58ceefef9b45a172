"""``bfia-gateway job delete|clean|cancel-waiting|archive``: what is taken away of jobs, what is kept."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.client import (
    DEFAULT_CONFIG,
    AsJson,
    Config,
    Force,
    Url,
    amount,
    connect,
    fitting,
    reporting,
    segment,
    show,
    table,
)
from gateway.cli.completing import JobId
from gateway.cli.console import say
from gateway.cli.inputs import new_file
from gateway.errors import NotServed
from gateway.text import counted

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list what would be done.")]


def add(app: typer.Typer) -> None:
    """Add the commands to those of jobs."""
    app.command("delete")(delete)
    app.command("clean")(clean)
    app.command("cancel-waiting")(cancel_waiting)
    app.command("archive")(archive)


def delete(
    job_id: JobId,
    here: Annotated[bool, typer.Option("--here", help="Only at this node; the others are not asked.")] = False,
    reason: Annotated[str, typer.Option(help="Kept in the line that is left of the job.")] = "",
    dry_run: DryRun = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Delete an ended job with its logs and outputs, at every node of it.

    Exit code 1: refused, or a node does not answer (then nothing was deleted here: ask again), or one that says
    no keeps its part while the others delete theirs; the table tells. One that knows no such request (it is not
    part of the standard) keeps its part, too, and is no failure.

    Example: bfia-gateway job delete job-0123 --dry-run
    """
    with reporting(as_json), connect(config, url, timeout=120) as node:
        path = f"/api/v1/jobs/{segment(job_id)}"
        found = node.delete(path, here=here, reason=reason or None, dry_run=dry_run)
        nodes = found["nodes"] or {}
        if as_json:
            show(found)
        else:
            _items(found, dry_run)
            if nodes:
                rows = [[name, _ending(at, dry_run)] for name, at in nodes.items()]
                table("other nodes", ["node", "deleted"], rows)
        if any(at["reason"] not in ("", NotServed.reason) for at in nodes.values()):
            raise typer.Exit(1)


def clean(
    job_id: JobId,
    task: Annotated[str, typer.Argument(help="The task's name in the flow, or its id.")],
    metrics: Annotated[bool, typer.Option("--metrics", help="Its reports, not its tables and models.")] = False,
    dry_run: DryRun = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Delete the outputs, or the metrics, that one task of an ended job left at this node.

    Example: bfia-gateway job clean job-0123 intersect_rsa_1 --dry-run
    """
    with reporting(as_json), connect(config, url) as node:
        path = f"/api/v1/jobs/{segment(job_id)}/tasks/{segment(task)}/outputs"
        found = node.delete(path, content="metrics" if metrics else "outputs", dry_run=dry_run)
        if as_json:
            show(found)
        else:
            _items(found, dry_run)


def cancel_waiting(
    dry_run: DryRun = False, config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False
) -> None:
    """Stop all jobs that this node schedules and of which nothing runs yet.

    Example: bfia-gateway job cancel-waiting --dry-run
    """
    with reporting(as_json), connect(config, url) as node:
        found = node.post("/api/v1/jobs/cancel-waiting", {"dry_run": dry_run})
        if as_json:
            show(found)
            return
        done = "would be cancelled" if dry_run else "cancelled"
        say("\n".join([*found["jobs"], f"{len(found['jobs'])} {done}"]))


def archive(
    job_id: JobId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default: <job>.zip")
    ] = None,
    force: Force = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
) -> None:
    """Write a zip of all that this node knows of a job: configuration, environment, logs, timeline, reports.

    Secrets are masked; SHA256SUMS lists every file.

    Example: bfia-gateway job archive job-0123 -o job.zip
    """
    target = output or Path(f"{job_id}.zip")
    with reporting(), connect(config, url, timeout=600) as node:
        with fitting():
            new_file(target, force)
        size = node.download(f"/api/v1/jobs/{segment(job_id)}/archive", target)
        say(f"wrote {target}, {amount(size)}")


def _items(found: dict[str, Any], dry_run: bool) -> None:
    items = found["items"]
    if not items:
        say("nothing to delete")
        return
    rows = [[i["kind"], i["name"], amount(i["bytes"])] for i in items]
    done = "would be deleted" if dry_run else "deleted"
    table(f"{done}: {counted(len(items), 'thing')}, {amount(found['bytes'])}", ["kind", "name", "size"], rows)


def _ending(at: dict[str, Any], dry_run: bool) -> str:
    if at["reason"]:
        return f"no: {at['reason']} {at['message']}"
    return "would be" if dry_run else "yes"
