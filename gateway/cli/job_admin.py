"""``bfia-gateway job approvals|approve|reject|suspend|resume|rerun``: what people decide on jobs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_FAILED,
    AsJson,
    Config,
    Force,
    JobId,
    Url,
    amount,
    connect,
    fitting,
    read_object,
    reporting,
    segment,
    show,
    table,
)
from gateway.cli.console import PAGE, After, Limit, print_more, say
from gateway.cli.inputs import new_file, who
from gateway.cli.jobs import made, told, warnings_after
from gateway.errors import NotServed, counted

Reason = Annotated[str, typer.Option("--reason", "-m", help="Why; a refusal's goes to every node of the job.")]


def add(app: typer.Typer) -> None:
    """Add the commands to those of jobs."""
    app.command("approvals")(approvals)
    app.command("approve")(approve)
    app.command("reject")(reject)
    app.command("suspend")(suspend)
    app.command("resume")(resume)
    app.command("rerun")(rerun)


def approvals(
    after: After = "",
    limit: Limit = PAGE,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """List the jobs that wait for a person at this node.

    Example: bfia-gateway job approvals
    """
    with reporting(as_json), connect(config, url) as node:
        found = node.get("/api/v1/approvals", after=after or None, limit=limit)
        if as_json:
            show(found)
            return
        rows = [
            [a["job_id"], a["initiator"], ", ".join(a["roles"]), ", ".join(a["components"]), _until(a["approval"])]
            for a in found["approvals"]
        ]
        table(
            counted(found["total"], "job waits", "jobs wait"),
            ["job", "asked by", "as", "components", "until (UTC)"],
            rows,
        )
        print_more(found)


def approve(
    job_id: JobId, reason: Reason = "", config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False
) -> None:
    """Agree to a job at this node.

    Example: bfia-gateway job approve job-0123456789abcdef0123456789abcdef -m "agreed with the data's owner"
    """
    _decide(job_id, "approve", "approved", reason, config, url, as_json)


def reject(
    job_id: JobId, reason: Reason = "", config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False
) -> None:
    """Refuse a job at this node; it is then rejected at every node.

    Example: bfia-gateway job reject job-0123456789abcdef0123456789abcdef -m "not agreed"
    """
    _decide(job_id, "reject", "rejected", reason, config, url, as_json)


def suspend(job_id: JobId, config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False) -> None:
    """Start no further task of a job; what runs, ends. `job resume` goes on.

    Example: bfia-gateway job suspend job-0123456789abcdef0123456789abcdef
    """
    _ask(job_id, "suspend", "starts no further task", {}, config, url, as_json)


def resume(job_id: JobId, config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False) -> None:
    """Go on with a suspended job.

    Example: bfia-gateway job resume job-0123456789abcdef0123456789abcdef
    """
    _ask(job_id, "resume", "goes on", {}, config, url, as_json)


def rerun(
    job_id: JobId,
    start: Annotated[str, typer.Option("--from", help="Task to begin with; default: the first that failed.")] = "",
    parameters: Annotated[
        Path | None,
        typer.Option(
            "--parameters", help="JSON or YAML: new values, common: {task: {…}}, role: {index: {task: {…}}}."
        ),
    ] = None,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Run an ended job again from a task on, as a new job; what was finished before is taken over. Prints its id.

    What is odd about it goes to standard error, such as a changed parameter that its component does not have.

    Example: bfia-gateway job rerun job-0123456789abcdef0123456789abcdef --from secureboost
    """
    with reporting(as_json), connect(config, url) as node:
        body: dict[str, Any] = {"from": start} if start else {}
        if parameters is not None:
            body["parameters"] = read_object(parameters)
        found = made(node, f"/api/v1/jobs/{segment(job_id)}/rerun", body)
        odd = warnings_after(node, found["job_id"])
        show({**found, "warnings": odd}) if as_json else told(found["job_id"], odd)


def _decide(job_id: str, word: str, done: str, reason: str, config: Config, url: str, as_json: bool) -> None:
    with reporting(as_json), connect(config, url) as node:
        said = {"by": who(), "reason": reason}
        found = node.post(f"/api/v1/jobs/{segment(job_id)}/{word}", said)
        if as_json:
            show(found)
        elif found["repeated"]:
            say(f"{job_id} was {done} here before: {_earlier(found['approval'] or {})}; nothing was changed")
            if reason:
                say("the reason given now was not told to anybody; the job keeps the first", err=True)
        else:
            say(f"{job_id} is {done} here")


def _ask(job_id: str, word: str, done: str, body: dict[str, str], config: Config, url: str, as_json: bool) -> None:
    with reporting(as_json), connect(config, url) as node:
        found = node.post(f"/api/v1/jobs/{segment(job_id)}/{word}", body)
        show(found) if as_json else say(f"{job_id} {done}")


def _earlier(approval: dict[str, Any]) -> str:
    """Say who decided, when, and of a refusal its words."""
    words = (approval.get("failure") or {}).get("message", "")
    told = f"by {approval.get('by') or 'an operator'} at {str(approval.get('decided_at') or '')[:19]} UTC"
    return f"{told} ({words})" if words else told


def _until(approval: dict[str, str] | None) -> str:
    return str((approval or {}).get("until") or "")[:19]


DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list what would be done.")]


def add_cleaning(app: typer.Typer) -> None:
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


_MARKS = {"ok": "ok", "warning": "warning", "waits": "waits", "problem": "PROBLEM", "unknown": "unknown"}
_PATIENCE = 120.0
"""seconds for the answer: every node is asked, and its route is tried in both directions"""


def add_planning(commands: typer.Typer) -> None:
    """Add the command to those of jobs."""
    commands.command("plan")(plan)


def plan(
    file: Annotated[Path, typer.Argument(help="The job as JSON or YAML: dag and config; - reads standard input.")],
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Ask every party what would happen to a job, and create nothing.

    Looked at are image and digest, data and grants, resources now, the route in both directions, the profile, and
    whether somebody has to agree. Exit code 0: nothing is known to stand in the way; 1: something does.

    Example: bfia-gateway job plan examples/create_all_psi_sbt.json
    """
    with reporting(as_json), connect(config, url, timeout=_PATIENCE) as node:
        found = node.post("/api/v1/jobs/plan", read_object(file))
        if as_json:
            show(found)
        else:
            _print(found)
        if not found["good"]:
            raise typer.Exit(EXIT_FAILED)


def _print(found: dict[str, Any]) -> None:
    for one in found["nodes"]:
        parties = ", ".join(one["parties"]) or "no party"
        rows = [
            [
                c["check"],
                c["about"],
                _MARKS.get(c["standing"], c["standing"]),
                "; ".join(filter(None, (c["found"], c["cause"]))),
                c["remedy"],
            ]
            for c in one["checks"]
        ]
        table(f"{one['node']} ({parties})", ["what", "of", "result", "found", "what to do"], rows)
        say("")
    say(_summary(found))


def _summary(found: dict[str, Any]) -> str:
    counts = [
        f"{found[f'{standing}_count']} {words}"
        for standing, words in (
            ("problem", "in the way"),
            ("waits", "to wait for"),
            ("warning", "to look at"),
            ("unknown", "not told"),
        )
        if found.get(f"{standing}_count")
    ]
    return ("nothing stands in the way" if found["good"] else "the job would fail") + (
        f" ({', '.join(counts)})" if counts else ""
    )
