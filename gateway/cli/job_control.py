"""``bfia-gateway job stop|suspend|approve|plan …``: control of jobs, and dry runs."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from bfia_gateway_client.calls import path_of
from bfia_gateway_client.progress import OVER
from gateway.cli import options
from gateway.cli.client import Client, read_object, who
from gateway.cli.command import Output, command
from gateway.cli.jobs import SCHEDULE, JobFile, TaskOption, commands, job_at
from gateway.cli.language import t
from gateway.cli.output import say
from gateway.cli.tables import Column, Columns, listing
from gateway.cli.values import compact
from gateway.errors import counted

# The standings of a dry run's checks, the worst first.
_STANDINGS = (
    "problem",
    "waits",
    "warning",
    "unknown",
    "ok",
)

Why = Annotated[
    str, typer.Option("--reason", "-m", help="Why; a refusal's goes to every node of the job.")
]


# ---------------------------------------------------------------- stopping


@command(commands, "stop", "job-0123 --task secureboost")
def stop(
    node: Client,
    job_id: options.JobId,
    task: TaskOption = "",
) -> Output:
    """Stop a job at every node, or one task with all that needs its output. A second stop changes
    nothing.
    """
    final_state = _final_state(job_at(node, job_id), task)
    if task:
        subject = f"task {task} of {job_id}"
        node.post(f"{SCHEDULE}/job/stop_task", {"job_id": job_id, "task_name": task})
    else:
        subject = job_id
        node.post(f"{SCHEDULE}/job/stop_all", {"job_id": job_id})
    yield {
        "job_id": job_id,
        "task_name": task,
        "stopped": not final_state,
        "ended": final_state,
    }
    if final_state:
        say(f"{subject} has ended before ({final_state}); there was nothing to stop")
        return
    if not task:
        confirmation = _awaited_confirmation(job_at(node, job_id))
        if confirmation:
            say(f"{subject} is stopped here; the gateway {confirmation}")
            return
    say(f"{subject} is being stopped at every node")


def _awaited_confirmation(job: Mapping[str, Any]) -> str:
    """Return a message with the nodes that have not confirmed a job's stop yet; empty if all
    have.
    """
    waiting = job.get("local_waiting") or {}
    if waiting.get("reason") == "CONFIRMING":
        return str(waiting["message"])
    return ""


def _final_state(job: Mapping[str, Any], task_name: str) -> str:
    """Return the final state of the job, or else of the task; empty if both are under way.

    ``task_name``: empty if only the job matters.
    """
    if job["status"] in OVER:
        return f"{job['status']} {job.get('outcome') or ''}".strip()
    statuses = {task["name"]: str(task["status"]) for task in job["tasks"]}
    status = statuses.get(task_name, "")
    if status in ("SUCCESS", "FAILED"):
        return status
    return ""


@command(commands, "cancel-waiting", "--dry-run")
def cancel_waiting(node: Client, dry_run: options.DryRun = False) -> Output:
    """Stop all jobs that this node schedules and that have no run yet."""
    response = node.post("/api/v1/jobs/cancel-waiting", {"dry_run": dry_run})
    yield response
    verb = "would be cancelled" if dry_run else "cancelled"
    job_ids = response["jobs"]
    say("\n".join([*job_ids, f"{len(job_ids)} {verb}"]))


@command(commands, "suspend", "job-0123")
def suspend(node: Client, job_id: options.JobId) -> Output:
    """Start no further task of a job; running ones end. `job resume` continues it."""
    yield node.post(path_of("jobs", job_id, "suspend"), {})
    say(f"{job_id} starts no further task")


@command(commands, "resume", "job-0123")
def resume(node: Client, job_id: options.JobId) -> Output:
    """Continue a suspended job."""
    yield node.post(path_of("jobs", job_id, "resume"), {})
    say(f"{job_id} continues")


# ---------------------------------------------------------------- approvals


@command(commands, "approvals", options=options.paged())
def approvals(node: Client, **paging: Any) -> Output:
    """List the jobs that wait for a person's approval at this node."""
    response = node.get("/api/v1/approvals", **paging)
    yield response
    columns: Columns = {
        "job": "job_id",
        "requested by": "initiator",
        "submitted by": "submitted_by",
        "as": "roles",
        "components": _of_tasks("component"),
        "image": _of_tasks("image"),
        "dataset": _of_tasks("dataset"),
        "parameters": _parameter_lines,
        "until (UTC)": _approval_deadline,
    }
    title = counted(response["total"], "job waits", "jobs wait")
    listing(response, "approvals", columns, title=title)


def _of_tasks(key: str) -> Column:
    """Return a column for a field of the tasks of a job, each value once."""

    def values(approval: Mapping[str, Any]) -> list[Any]:
        return list(dict.fromkeys(task[key] for task in approval["tasks"] if task[key]))

    return values


def _parameter_lines(approval: Mapping[str, Any]) -> str:
    """Return a line for each task and party with parameters."""
    lines = []
    for task in approval["tasks"]:
        if task["parameters"]:
            parameters = compact(task["parameters"], longest=1000)
            lines.append(f"{task['task']} {task['party']}: {parameters}")
    return "\n".join(lines)


def _approval_deadline(approval: Mapping[str, Any]) -> str:
    """Return the time until which a person may approve a job; empty without a limit."""
    until = (approval["approval"] or {}).get("until")
    return str(until or "")[:19].replace("T", " ")


@command(commands, "approve", 'job-0123 -m "agreed with the data owner"')
def approve(
    node: Client,
    job_id: options.JobId,
    reason: Why = "",
) -> Output:
    """Approve a job at this node."""
    yield from _decide(
        node,
        job_id,
        reason,
        action="approve",
        participle="approved",
    )


@command(commands, "reject", 'job-0123 -m "not agreed"')
def reject(
    node: Client,
    job_id: options.JobId,
    reason: Why = "",
) -> Output:
    """Reject a job at this node; it is then rejected at every node."""
    yield from _decide(
        node,
        job_id,
        reason,
        action="reject",
        participle="rejected",
    )


def _decide(
    node: Client,
    job_id: str,
    reason: str,
    *,
    action: str,
    participle: str,
) -> Output:
    """Approve or reject a job, and print whether that changed anything."""
    response = node.post(
        path_of("jobs", job_id, action),
        {"by": who(), "reason": reason},
    )
    yield response
    if not response["repeated"]:
        say(f"{job_id} is {participle} here")
        return
    by = _earlier_decision(response["approval"] or {})
    say(f"{job_id} was {participle} here before: {by}; nothing was changed")
    if reason:
        say("the new reason was not sent to anybody; the job keeps the first", err=True)


def _earlier_decision(approval: Mapping[str, Any]) -> str:
    """Return who decided before, when and why."""
    decided_at = str(approval.get("decided_at") or "")[:19]
    decision = f"by {approval.get('by') or 'an operator'} at {decided_at} UTC"
    failure = approval.get("failure") or {}
    if failure.get("message"):
        decision += f" ({failure['message']})"
    return decision


# ---------------------------------------------------------------- dry runs


@command(commands, "plan", "examples/first_job.json", timeout=120)
def plan(node: Client, file: JobFile) -> Output:
    """Ask every party what would happen to a job (a dry run), and create nothing.

    Checked are image and digest, data and grants, resources now, the route in both directions, the
    profile, and whether a person has to approve. Exit code 0: no obstacle is known; 1: there is
    one.
    """
    response = node.post("/api/v1/jobs/plan", read_object(file))
    yield response, response["good"]
    for node_plan in response["nodes"]:
        _print_node_plan(node_plan)
        say()
    _print_warnings(response["warnings"])
    say(response["verdict"])
    if str(file) == "-":  # a command cannot read the same input again
        return
    name = shlex.quote(str(file))
    if response["good"]:
        say(f"next: bfia-gateway job submit {name} --watch")
    else:
        say(f"next: mend the problems above, then bfia-gateway job plan {name}")


def _print_warnings(warnings: Sequence[Mapping[str, Any]]) -> None:
    """Print each warning with its nodes and its remedy, and an empty line after the last one."""
    if not warnings:
        return
    say(counted(len(warnings), "warning"))
    for warning in warnings:
        subject = warning["about"] or t(warning["check"])
        say(f"  {subject} ({', '.join(warning['nodes'])})")
        say(f"    {t(warning['cause'])}")
        if warning["remedy"]:
            say(f"    → {t(warning['remedy'])}")
    say()


def _print_node_plan(node_plan: Mapping[str, Any]) -> None:
    """Print the checks at a node, the worst first; warnings are printed for all nodes together."""

    def rank(check: Mapping[str, Any]) -> int:
        return _STANDINGS.index(check["standing"])

    checks = [check for check in node_plan["checks"] if check["standing"] != "warning"]
    checks.sort(key=rank)
    columns: Columns = {
        "check": "check",
        "of": _check_subject,
        "result": _check_result,
        "found": _check_finding,
        "what to do": "remedy",
    }
    parties = ", ".join(node_plan["parties"]) or t("no party")
    listing({"checks": checks}, "checks", columns, title=f"{node_plan['node']} ({parties})")


def _check_subject(check: Mapping[str, Any]) -> str:
    """Return the subject of a check, such as a dataset."""
    return t(check["about"])


def _check_result(check: Mapping[str, Any]) -> str:
    """Return the standing of a check; a problem in upper case."""
    standing = str(check["standing"])
    return "PROBLEM" if standing == "problem" else standing


def _check_finding(check: Mapping[str, Any]) -> str:
    """Return the finding of a check, and its cause if there is one."""
    return "; ".join(filter(None, (check["found"], check["cause"])))
