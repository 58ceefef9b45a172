"""``bfia-gateway job approvals|approve|reject|suspend|resume|rerun``: what people decide on jobs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.client import (
    DEFAULT_CONFIG,
    AsJson,
    Config,
    Url,
    connect,
    read_object,
    reporting,
    segment,
    show,
    table,
)
from gateway.cli.completing import JobId
from gateway.cli.console import say
from gateway.cli.inputs import who
from gateway.cli.job_made import made, told, warnings_after
from gateway.cli.paging import PAGE, After, Limit, print_more
from gateway.text import counted

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
