"""``bfia-gateway job approve|suspend|rerun|delete|plan …``: what people decide on jobs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.client import Client, JobId, segment
from gateway.cli.command import After, AsJson, DryRun, Force, Limit, Output, command
from gateway.cli.console import Columns, amount, listing, say, size, table
from gateway.cli.inputs import new_file, read_object, who
from gateway.cli.jobs import JobFile, commands, create, print_created
from gateway.errors import NotServed, counted

Reason = Annotated[str, typer.Option("--reason", "-m", help="Why; a refusal's goes to every node of the job.")]


@command(commands, "approvals")
def approvals(node: Client, after: After = "", limit: Limit = 100) -> Output:
    """List the jobs that wait for a person's approval at this node.

    Example: bfia-gateway job approvals
    """
    found = node.get("/api/v1/approvals", after=after, limit=limit)
    yield found
    columns: Columns = {"job": "job_id", "requested by": "initiator", "as": "roles", "components": "components"}
    until = {"until (UTC)": lambda one: ((one["approval"] or {}).get("until") or "")[:19].replace("T", " ")}
    title = counted(found["total"], "job waits", "jobs wait")
    listing(found, "approvals", "", {**columns, **until}, title)


@command(commands, "approve")
def approve(node: Client, job_id: JobId, reason: Reason = "") -> Output:
    """Approve a job at this node.

    Example: bfia-gateway job approve job-0123456789abcdef0123456789abcdef -m "agreed with the data's owner"
    """
    yield from _decide(node, job_id, "approve", "approved", reason)


@command(commands, "reject")
def reject(node: Client, job_id: JobId, reason: Reason = "") -> Output:
    """Reject a job at this node; it is then rejected at every node.

    Example: bfia-gateway job reject job-0123456789abcdef0123456789abcdef -m "not agreed"
    """
    yield from _decide(node, job_id, "reject", "rejected", reason)


def _decide(node: Client, job_id: str, name: str, done: str, reason: str) -> Output:
    found = node.post(f"/api/v1/jobs/{segment(job_id)}/{name}", {"by": who(), "reason": reason})
    yield found
    if not found["repeated"]:
        say(f"{job_id} is {done} here")
        return
    say(f"{job_id} was {done} here before: {_earlier(found['approval'] or {})}; nothing was changed")
    if reason:
        say("the new reason was not sent to anybody; the job keeps the first", err=True)


def _earlier(approval: Mapping[str, Any]) -> str:
    """Return who decided, when, and the words of a refusal."""
    words = (approval.get("failure") or {}).get("message", "")
    by = f"by {approval.get('by') or 'an operator'} at {str(approval.get('decided_at') or '')[:19]} UTC"
    return f"{by} ({words})" if words else by


@command(commands, "suspend")
def suspend(node: Client, job_id: JobId) -> Output:
    """Start no further task of a job; running ones end. `job resume` continues it.

    Example: bfia-gateway job suspend job-0123456789abcdef0123456789abcdef
    """
    yield node.post(f"/api/v1/jobs/{segment(job_id)}/suspend", {})
    say(f"{job_id} starts no further task")


@command(commands, "resume")
def resume(node: Client, job_id: JobId) -> Output:
    """Continue a suspended job.

    Example: bfia-gateway job resume job-0123456789abcdef0123456789abcdef
    """
    yield node.post(f"/api/v1/jobs/{segment(job_id)}/resume", {})
    say(f"{job_id} goes on")


@command(commands, "rerun")
def rerun(
    node: Client,
    job_id: JobId,
    start: Annotated[str, typer.Option("--from", help="Task to begin with; default: the first that failed.")] = "",
    parameters: Annotated[
        Path | None,
        typer.Option(help="JSON or YAML: new values, common: {task: {…}}, role: {index: {task: {…}}}."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rerun an ended job from a task on, as a new job; what was finished before is taken over. Prints its id.

    Warnings go to standard error, such as of a changed parameter that its component does not have.

    Example: bfia-gateway job rerun job-0123456789abcdef0123456789abcdef --from secureboost
    """
    body: dict[str, Any] = {"from": start} if start else {}
    if parameters is not None:
        body["parameters"] = read_object(parameters)
    print_created(node, create(node, f"/api/v1/jobs/{segment(job_id)}/rerun", body), as_json)


@command(commands, "delete", timeout=120)
def delete(
    node: Client,
    job_id: JobId,
    here: Annotated[bool, typer.Option("--here", help="Only at this node; the others are not asked.")] = False,
    reason: Annotated[str, typer.Option(help="Kept in the line that is left of the job.")] = "",
    dry_run: DryRun = False,
) -> Output:
    """Delete an ended job with its logs and outputs, at every node of it.

    Exit code 1: refused, or a node does not respond (then nothing was deleted here: try again), or one that
    refuses keeps its part while the others delete theirs; the table shows it. A node without this request (it is
    not part of the standard) keeps its part, too, and does not fail.

    Example: bfia-gateway job delete job-0123 --dry-run
    """
    found = node.delete(f"/api/v1/jobs/{segment(job_id)}", here=here, reason=reason, dry_run=dry_run)
    others = found["nodes"] or {}
    yield found, all(at["reason"] in ("", NotServed.reason) for at in others.values())
    _deleted(found, dry_run)
    done = "would be" if dry_run else "yes"
    rows = [[name, f"no: {at['reason']} {at['message']}" if at["reason"] else done] for name, at in others.items()]
    if rows:
        table("other nodes", ["node", "deleted"], rows)


@command(commands, "clean")
def clean(
    node: Client,
    job_id: JobId,
    task: Annotated[str, typer.Argument(help="The task's name in the flow, or its id.")],
    metrics: Annotated[bool, typer.Option("--metrics", help="Its reports, not its tables and models.")] = False,
    dry_run: DryRun = False,
) -> Output:
    """Delete the outputs, or the metrics, that one task of an ended job left at this node.

    Example: bfia-gateway job clean job-0123 intersect_rsa_1 --dry-run
    """
    path = f"/api/v1/jobs/{segment(job_id)}/tasks/{segment(task)}/outputs"
    found = node.delete(path, content="metrics" if metrics else "outputs", dry_run=dry_run)
    yield found
    _deleted(found, dry_run)


def _deleted(found: Mapping[str, Any], dry_run: bool) -> None:
    items = found["items"]
    if not items:
        say("nothing to delete")
        return
    done = "would be deleted" if dry_run else "deleted"
    title = f"{done}: {counted(len(items), 'item')}, {amount(found['bytes'])}"
    listing(found, "items", "", {"kind": "kind", "name": "name", "size": size("bytes")}, title)


@command(commands, "cancel-waiting")
def cancel_waiting(node: Client, dry_run: DryRun = False) -> Output:
    """Stop all jobs that this node schedules and of which nothing runs yet.

    Example: bfia-gateway job cancel-waiting --dry-run
    """
    found = node.post("/api/v1/jobs/cancel-waiting", {"dry_run": dry_run})
    yield found
    done = "would be cancelled" if dry_run else "cancelled"
    say("\n".join([*found["jobs"], f"{len(found['jobs'])} {done}"]))


@command(commands, "archive", timeout=600)
def archive(
    node: Client,
    job_id: JobId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default: <job>.zip")
    ] = None,
    force: Force = False,
) -> None:
    """Write a zip of all that this node knows of a job: configuration, environment, logs, timeline, reports.

    Secrets are masked; SHA256SUMS lists every file.

    Example: bfia-gateway job archive job-0123 -o job.zip
    """
    target = output or Path(f"{job_id}.zip")
    new_file(target, force)
    length = node.download(f"/api/v1/jobs/{segment(job_id)}/archive", target)
    say(f"wrote {target}, {amount(length)}")


@command(commands, "plan", timeout=120)
def plan(node: Client, file: JobFile) -> Output:
    """Ask every party what would happen to a job (a dry run), and create nothing.

    Checked are image and digest, data and grants, resources now, the route in both directions, the profile, and
    whether somebody has to approve. Exit code 0: no obstacle is known; 1: there is one.

    Example: bfia-gateway job plan examples/create_all_psi_sbt.json
    """
    found = node.post("/api/v1/jobs/plan", read_object(file))
    yield found, found["good"]
    columns: Columns = {
        "what": "check",
        "of": "about",
        "result": _standing,
        "found": _cause,
        "what to do": "remedy",
    }
    for one in found["nodes"]:
        listing(one, "checks", "", columns, f"{one['node']} ({', '.join(one['parties']) or 'no party'})")
        say()
    say(_summary(found))


def _standing(check: Mapping[str, Any]) -> str:
    return "PROBLEM" if check["standing"] == "problem" else str(check["standing"])


def _cause(check: Mapping[str, Any]) -> str:
    return "; ".join(filter(None, (check["found"], check["cause"])))


_STANDINGS = {"problem": "in the way", "waits": "to wait for", "warning": "to look at", "unknown": "unknown"}


def _summary(found: Mapping[str, Any]) -> str:
    counts = [f"{found[f'{s}_count']} {words}" for s, words in _STANDINGS.items() if found.get(f"{s}_count")]
    verdict = "nothing stands in the way" if found["good"] else "the job would fail"
    return verdict + (f" ({', '.join(counts)})" if counts else "")
