"""``bfia-gateway job …``: submit a job, watch it, decide on it, stop it."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from bfia_gateway_client.bridge import iterate_blocking
from bfia_gateway_client.calls import next_step_of, path_of
from bfia_gateway_client.errors import harmless
from bfia_gateway_client.progress import OVER, watch_job
from gateway.cli import options
from gateway.cli.client import EXIT_BAD_INPUT, EXIT_FAILED, CallFailed, Client, read_object, who
from gateway.cli.command import (
    Column,
    Columns,
    Output,
    cell,
    command,
    compact,
    lasted,
    listing,
    print_json,
    say,
    short,
    warn,
    when,
)
from gateway.cli.job_notes import warnings
from gateway.cli.job_tree import draw_job
from gateway.cli.language import t
from gateway.data.log_levels import Level
from gateway.errors import counted, near

_SCHEDULE = "/v1/platform/schedule"
_DATASET_ID = r"[^\s'\"（：；]+#[^\s'\"（：；]+"  # in a message, which may be Chinese
_DETAIL_LENGTH = 300  # characters of an event's detail in a timeline
_WATCHED_WARNINGS = 3
# The standings of a dry run's checks, worst first, and their words in the verdict.
_STANDINGS = {
    "problem": "in the way",
    "waits": "to wait for",
    "warning": "to look at",
    "unknown": "unknown",
}

commands = typer.Typer(name="job")

JobFile = Annotated[
    Path, typer.Argument(help="The job as JSON or YAML: dag and config; - reads standard input.")
]
Task = Annotated[str, typer.Option("--task", "-t", help="Name of a task in the flow.")]
Party = Annotated[
    str,
    typer.Option("--party", "-p", help="Which party here, such as guest.0; default: the only one."),
]
Why = Annotated[
    str, typer.Option("--reason", "-m", help="Why; a refusal's goes to every node of the job.")
]


@command(commands, "submit", "examples/create_all_psi_sbt.json --watch")
def submit(
    node: Client,
    file: JobFile,
    watch_it: Annotated[
        bool, typer.Option("--watch", "-w", help="Stay, and show how it goes.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse what would be a warning.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Submit a job; the response comes when every node of it has accepted it. Prints the job's id.

    Warnings go to standard error, such as of an unknown parameter; so does who still has to approve, until when.
    """
    body = read_object(file)
    if strict:
        _set_strict(body)
    job_id = _create_job(node, f"{_SCHEDULE}/job/create_all", body)["data"]["job_id"]
    if not watch_it:
        _print_created(node, {"job_id": job_id}, as_json)
        return
    if not as_json:
        say(job_id)
    watch_until_over(node, job_id, as_json)


@command(commands, "rerun", "job-0123 --from secureboost")
def rerun(
    node: Client,
    job_id: options.JobId,
    start: Annotated[
        str, typer.Option("--from", help="Task to begin with; default: the first that failed.")
    ] = "",
    parameters: Annotated[
        Path | None,
        typer.Option(
            help="JSON or YAML: new values, common: {task: {…}}, role: {index: {task: {…}}}."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Rerun an ended job from a task on, as a new job; what was finished before is taken over. Prints its id.

    Warnings go to standard error, such as of a changed parameter that its component does not have.
    """
    body: dict[str, Any] = {}
    if start:
        body["from"] = start
    if parameters is not None:
        body["parameters"] = read_object(parameters)
    created = _create_job(node, path_of("jobs", job_id, "rerun"), body)
    _print_created(node, created, as_json)


@command(commands, "params", "job-0123 new.yml --reason 'it converges sooner'")
def params(
    node: Client,
    job_id: options.JobId,
    file: Annotated[Path, typer.Argument(help="JSON or YAML in the form of task_params.")],
    reason: Annotated[str, typer.Option(help="Why; every node of the job gets it.")],
) -> Output:
    """Give tasks of a running job that have not begun new parameters, at every node or at none."""
    change = {"parameters": read_object(file), "reason": reason}
    response = node.post(path_of("jobs", job_id, "parameters"), change)
    yield response
    say(f"{job_id} continues with version {response['version']} of its parameters")


def _set_strict(body: dict[str, Any]) -> None:
    """Set ``strict`` in the job's common settings.

    A body whose settings are not an object stays unchanged: the node refuses it.
    """
    settings = body
    for key in ("config", "job_params", "common"):
        settings = settings.setdefault(key, {})
        if not isinstance(settings, dict):
            return
    settings["strict"] = True


def _create_job(node: Client, path: str, body: Mapping[str, Any]) -> Any:
    """Request a new job. Raises `CallFailed`, which names the job if the node keeps the refused one."""
    try:
        return node.post(path, body)
    except CallFailed as error:
        lines = [str(error)]
        kept_id = None
        if isinstance(error.data, Mapping):
            kept_id = error.data.get("job_id")
        if kept_id:
            lines.append(f"It is kept as {kept_id}: bfia-gateway job show {quote(kept_id)}")
            lines += _dataset_hints(node, kept_id)
        raise CallFailed("\n".join(lines), error.code, error.reason, error.data) from None


def _dataset_hints(node: Client, job_id: str) -> list[str]:
    """Return which datasets were probably meant, if this node refused a job for unknown ones.

    There are no hints for datasets of partners.
    """
    try:
        job = job_at(node, job_id)
        failure = job.get("failure") or {}
        dataset_ids = dict.fromkeys(re.findall(_DATASET_ID, str(failure.get("message"))))
        if not dataset_ids or failure.get("node") != job["scheduler"]:
            return []
        page = node.get("/api/v1/datasets", unregistered="false", limit=1000)
    except CallFailed:  # the refusal is printed all the same
        return []
    existing = [dataset["dataset_id"] for dataset in page["datasets"]]
    if dataset_ids.keys() <= set(existing):
        return []
    lines = []
    for dataset_id in dataset_ids:
        suggestion = near(dataset_id, existing)
        if suggestion not in ("", dataset_id):
            lines.append(f"{dataset_id}: did you mean {suggestion}?")
    lines.append("Datasets of this node: bfia-gateway data list")
    return lines


def _print_created(node: Client, created: Mapping[str, Any], as_json: bool) -> None:
    """Print a new job's id on standard output; on standard error its warnings and open approvals."""
    try:
        job = job_at(node, created["job_id"])
    except CallFailed:  # the job exists all the same
        job = {}
    notes = warnings(job)
    waiting = job.get("waiting") or {}
    if waiting.get("reason") == "APPROVAL":
        notes.append(waiting["message"])
    if as_json:
        print_json({**created, "warnings": notes})
    else:
        say(created["job_id"])
        warn(notes)


@command(
    commands, "list", "--outcome FAILED --since 2026-11-01 --limit 50", options=options.paged(20)
)
def list_jobs(
    node: Client,
    status: Annotated[
        str, typer.Option(help="Only in these states, with commas: READY,RUNNING.")
    ] = "",
    outcome: Annotated[
        str, typer.Option(help="Only that ended so: SUCCEEDED, FAILED, STOPPED, REJECTED.")
    ] = "",
    flow: Annotated[str, typer.Option(help="Only jobs of this flow.")] = "",
    partner: Annotated[
        str, typer.Option(help="Only with this node.", autocompletion=options.nodes)
    ] = "",
    since: Annotated[
        str, typer.Option(help="Only created since, UTC: 2026-11-21, 2026-11-21T08:00.")
    ] = "",
    until: Annotated[str, typer.Option(help="Only before that.")] = "",
    **page: Any,
) -> Output:
    """List jobs that this node schedules or takes part in, newest first."""
    page_of_jobs = node.get(
        "/api/v1/jobs",
        status=status,
        outcome=outcome,
        flow_id=flow,
        partner=partner,
        since=since,
        until=until,
        **page,
    )
    yield page_of_jobs
    ids = [job["job_id"] for job in page_of_jobs["jobs"]]
    short_ids = dict(zip(ids, short(ids), strict=True))
    columns: Columns = {
        "job": lambda job: short_ids[job["job_id"]],
        "flow": "flow_id",
        "state": _outcome_or_status,
        "created (UTC)": when("created_at", 16),
        "took": _duration,
        "owner": "user",
        "here": _sides,
    }
    listing(page_of_jobs, "jobs", "job", columns, spare=("here", "owner"))


def _outcome_or_status(job: Mapping[str, Any]) -> str:
    return str(job["outcome"] or job["status"])


def _duration(job: Mapping[str, Any]) -> str:
    return lasted(job["created_at"], job["ended_at"])


def _sides(job: Mapping[str, Any]) -> str:
    return " ".join(map(t, job["sides"]))


@command(commands, "show", "job-0123")
def show_job(node: Client, job_id: options.JobId) -> Output:
    """Show a job: its state, each task at each party, and why it failed or what it waits for."""
    from rich.console import Console

    job = job_at(node, job_id)
    yield job
    Console().print(draw_job(job, advice=_next_steps(node, job)))


def _next_steps(node: Client, job: Mapping[str, Any]) -> list[str]:
    """Return what to do about each reason for which a job failed or waits for an approval."""
    causes: list[Mapping[str, Any] | None] = []
    if job.get("outcome") != "STOPPED":
        causes += [job["failure"], *job.get("refusals", [])]
    for waiting in (job.get("local_waiting"), job.get("waiting")):
        if waiting and waiting["reason"] == "APPROVAL":
            causes.append(waiting)
    by_reason: dict[str, Mapping[str, Any]] = {}
    for cause in filter(None, causes):
        by_reason.setdefault(cause["reason"], cause)
    lines = []
    for reason, cause in by_reason.items():
        try:
            explanation = node.get(path_of("reasons", reason))
        except CallFailed:  # a partner's own reasons are not explained
            continue
        step = next_step_of(explanation["next_step"], job, cause)
        lines.append(f"{t('next step')}: {reason}: {step}")
    return lines


@command(commands, "watch", "job-0123")
def watch(
    node: Client,
    job_id: options.JobId,
    as_json: options.AsJson = False,
) -> None:
    """Show a job while it goes on, also through a restart of the node. Exit code 1: it did not succeed."""
    watch_until_over(node, job_id, as_json)


@command(commands, "timeline", "job-0123")
def timeline(node: Client, job_id: options.JobId) -> Output:
    """Show all that happened to a job here, in its order: the first thing to read when a job surprises."""
    response = node.get(path_of("jobs", job_id, "timeline"))
    yield response
    days = {entry["at"][:10] for entry in response["timeline"]}
    title = job_id
    shown_time = slice(23)
    if len(days) == 1:
        title = f"{job_id}, {days.pop()}"
        shown_time = slice(11, 23)
    columns: Columns = {
        "at (UTC)": lambda entry: entry["at"][shown_time].replace("T", " "),
        "as": lambda entry: t(entry["side"]),
        "what": "event",
        "by": "by",
        "more": _event_detail,
    }
    listing(response, "timeline", "", columns, title)


def _event_detail(entry: Mapping[str, Any]) -> str:
    detail = {key: value for key, value in entry["detail"].items() if value != entry["by"]}
    return cell(readable_detail(detail))[:_DETAIL_LENGTH]


def readable_detail(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event's detail for people, without ids, proofs and the messages of successful calls."""
    readable = {}
    for key, value in detail.items():
        if key in ("trace_id", "task_id"):
            continue
        if key == "attempt":
            if value == 0:
                continue
            value += 1  # people count from 1
        readable[key] = value
    origin = readable.get("origin")
    if origin:
        readable["origin"] = origin.get("from", "")
    if not {"method", "path", "seconds"} <= readable.keys():
        return _with_translated_keys(readable)
    call = _call_summary(readable)
    for key in ("method", "path", "http", "seconds"):
        readable.pop(key, None)
    if readable.get("code") == 0:
        readable.pop("code")
        readable.pop("message", None)
    return call | _with_translated_keys(readable)


def _call_summary(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's method, and the end of its path, HTTP status and duration in one text."""
    facts = ["/".join(detail["path"].split("/")[-2:])]
    if detail.get("http"):
        facts.append(str(detail["http"]))
    facts.append(f"{1000 * detail['seconds']:.0f} ms")
    return {detail["method"]: ", ".join(filter(None, facts))}


def _with_translated_keys(detail: Mapping[str, Any]) -> dict[str, Any]:
    translated = {}
    for key, value in detail.items():
        if isinstance(value, Mapping):
            value = _with_translated_keys(value)
        elif key == "message":
            value = t(value)
        translated[t(key.replace("_", " "))] = value
    return translated


@command(commands, "logs", "job-0123 --task secureboost --level error --follow")
def logs(
    node: Client,
    job_id: options.JobId,
    task: Task = "",
    party: Party = "",
    tail: Annotated[int, typer.Option(min=0, help="Only so many lines at the end; 0: all.")] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run is over.")
    ] = False,
    level: Annotated[
        Level, typer.Option(help="info: warnings, too, and worse; debug: all.")
    ] = Level.DEBUG,
) -> None:
    """Print what a run here wrote.

    A line's level is what it states itself; one without is info on stdout, and error on stderr.
    """
    run = run_of(job_at(node, job_id), task, party)
    query = {"tail": tail or None, "level": level}
    wrote_something = False
    for event, line in _log_events(node, run["log"], follow, query):
        wrote_something = True
        if event != "end":
            typer.echo(harmless(line), err=event == "stderr")  # as written, in no other language
    if not wrote_something:
        text = "wrote no such line"
        if level is Level.DEBUG:
            text = "wrote nothing"
        say(f"{run['party']} of {run['task_name']} ({run['status']}) {text}", err=True)


def _log_events(
    node: Client,
    path: str,
    follow: bool,
    query: Mapping[str, Any],
) -> Iterator[tuple[str, str]]:
    """Yield the stream, if known, and the text of each line; of a followed log also its end."""
    if follow:
        yield from node.events(path, follow=True, **query)
        return
    for line in node.lines(path, **query):
        yield "", line


# ---------------------------------------------------------------- stopping, and what people decide


@command(commands, "stop", "job-0123 --task secureboost")
def stop(
    node: Client,
    job_id: options.JobId,
    task: Task = "",
) -> Output:
    """Stop a job at every node, or one task with all that needs its output. A second stop changes nothing."""
    final_state = _final_state(job_at(node, job_id), task)
    if task:
        subject = f"task {task} of {job_id}"
        node.post(f"{_SCHEDULE}/job/stop_task", {"job_id": job_id, "task_name": task})
    else:
        subject = job_id
        node.post(f"{_SCHEDULE}/job/stop_all", {"job_id": job_id})
    yield {
        "job_id": job_id,
        "task_name": task,
        "stopped": not final_state,
        "ended": final_state,
    }
    if final_state:
        say(f"{subject} has ended before ({final_state}); there was nothing to stop")
        return
    waiting: Mapping[str, Any] = {}
    if not task:
        waiting = job_at(node, job_id).get("local_waiting") or {}
    if waiting.get("reason") == "CONFIRMING":
        say(f"{subject} is stopped here; the gateway {waiting['message']}")
    else:
        say(f"{subject} is being stopped at every node")


def _final_state(job: Mapping[str, Any], task_name: str) -> str:
    """Return the state in which the job, else the task, has ended; empty if neither has."""
    if job["status"] in OVER:
        return f"{job['status']} {job.get('outcome') or ''}".strip()
    for task in job["tasks"]:
        if task["name"] == task_name and task["status"] in ("SUCCESS", "FAILED"):
            return str(task["status"])
    return ""


@command(commands, "cancel-waiting", "--dry-run")
def cancel_waiting(node: Client, dry_run: options.DryRun = False) -> Output:
    """Stop all jobs that this node schedules and of which nothing runs yet."""
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


@command(commands, "approvals", options=options.paged())
def approvals(node: Client, **page: Any) -> Output:
    """List the jobs that wait for a person's approval at this node."""
    response = node.get("/api/v1/approvals", **page)
    yield response
    columns: Columns = {
        "job": "job_id",
        "requested by": "initiator",
        "as": "roles",
        "components": _of_tasks("component"),
        "image": _of_tasks("image"),
        "dataset": _of_tasks("dataset"),
        "parameters": _parameter_lines,
        "until (UTC)": _approval_deadline,
    }
    title = counted(response["total"], "job waits", "jobs wait")
    listing(response, "approvals", "", columns, title)


def _of_tasks(key: str) -> Column:
    """Return a column for a field of the tasks of a job, each value once."""

    def values(approval: Mapping[str, Any]) -> list[Any]:
        return list(dict.fromkeys(task[key] for task in approval["tasks"] if task[key]))

    return values


def _parameter_lines(approval: Mapping[str, Any]) -> str:
    lines = []
    for task in approval["tasks"]:
        if task["parameters"]:
            parameters = compact(task["parameters"], 1000)
            lines.append(f"{task['task']} {task['party']}: {parameters}")
    return "\n".join(lines)


def _approval_deadline(approval: Mapping[str, Any]) -> str:
    until = (approval["approval"] or {}).get("until")
    return str(until or "")[:19].replace("T", " ")


@command(commands, "approve", 'job-0123 -m "agreed with the data owner"')
def approve(
    node: Client,
    job_id: options.JobId,
    reason: Why = "",
) -> Output:
    """Approve a job at this node."""
    yield from _decide(node, job_id, "approve", "approved", reason)


@command(commands, "reject", 'job-0123 -m "not agreed"')
def reject(
    node: Client,
    job_id: options.JobId,
    reason: Why = "",
) -> Output:
    """Reject a job at this node; it is then rejected at every node."""
    yield from _decide(node, job_id, "reject", "rejected", reason)


def _decide(
    node: Client,
    job_id: str,
    action: str,
    participle: str,
    reason: str,
) -> Output:
    response = node.post(path_of("jobs", job_id, action), {"by": who(), "reason": reason})
    yield response
    if not response["repeated"]:
        say(f"{job_id} is {participle} here")
        return
    by = _earlier_decision(response["approval"] or {})
    say(f"{job_id} was {participle} here before: {by}; nothing was changed")
    if reason:
        say("the new reason was not sent to anybody; the job keeps the first", err=True)


def _earlier_decision(approval: Mapping[str, Any]) -> str:
    decided_at = str(approval.get("decided_at") or "")[:19]
    by = f"by {approval.get('by') or 'an operator'} at {decided_at} UTC"
    message = (approval.get("failure") or {}).get("message")
    if message:
        by += f" ({message})"
    return by


@command(commands, "plan", "examples/create_all_psi_sbt.json", timeout=120)
def plan(node: Client, file: JobFile) -> Output:
    """Ask every party what would happen to a job (a dry run), and create nothing.

    Checked are image and digest, data and grants, resources now, the route in both directions, the profile, and
    whether somebody has to approve. Exit code 0: no obstacle is known; 1: there is one.
    """
    response = node.post("/api/v1/jobs/plan", read_object(file))
    yield response, response["good"]
    columns: Columns = {
        "check": "check",
        "of": lambda check: t(check["about"]),
        "result": _check_result,
        "found": _check_finding,
        "what to do": "remedy",
    }
    order = [*_STANDINGS, "ok"]
    for node_plan in response["nodes"]:
        node_plan["checks"].sort(key=lambda check: order.index(check["standing"]))
        parties = ", ".join(node_plan["parties"]) or t("no party")
        listing(node_plan, "checks", "", columns, f"{node_plan['node']} ({parties})")
        say()
    verdict = "nothing stands in the way" if response["good"] else "the job would fail"
    counts = []
    for standing, words in _STANDINGS.items():
        count = response.get(f"{standing}_count")
        if count:
            counts.append(f"{count} {words}")
    if counts:
        verdict += f" ({', '.join(counts)})"
    say(verdict)


def _check_result(check: Mapping[str, Any]) -> str:
    standing = str(check["standing"])
    return "PROBLEM" if standing == "problem" else standing


def _check_finding(check: Mapping[str, Any]) -> str:
    return "; ".join(filter(None, (check["found"], check["cause"])))


# ---------------------------------------------------------------- watching


def watch_until_over(node: Client, job_id: str, as_json: bool) -> None:
    """Show the job until it is over. Raises `typer.Exit` with code 1 if it did not succeed."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    job: Mapping[str, Any] = {}
    console = Console(stderr=as_json)
    with Live(console=console, refresh_per_second=8, transient=as_json) as live:
        try:
            for job, trouble in _looks(node, job_id):
                view = draw_job(job, warning_limit=_WATCHED_WARNINGS)
                if trouble:
                    view = Group(view, Text(trouble, style="yellow"))
                live.update(view)
        except KeyboardInterrupt:
            if not job.get("outcome"):
                of = quote(job_id)
                say(f"the job continues: bfia-gateway job watch {of}, or job stop {of}", err=True)
            raise
    if not console.is_terminal:
        console.print()  # in a pipe the last line is left open
    if as_json:
        print_json(job)
    if job["outcome"] != "SUCCEEDED":
        raise typer.Exit(EXIT_FAILED)


def _looks(node: Client, job_id: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the job until it is over; with a notice while the node is silent, and the job its last state."""

    async def look() -> dict[str, Any]:
        return job_at(node, job_id)

    def print_notice(text: str) -> None:
        say(text, err=True)

    return iterate_blocking(watch_job(look, node.wire.sleep, notice=print_notice))


# ---------------------------------------------------------------- one job


def job_at(node: Client, job_id: str) -> dict[str, Any]:
    """Return a job as a node shows it, each run with its party as a label such as ``guest.0``."""
    job: dict[str, Any] = node.get(path_of("jobs", job_id))
    for run in job["runs"]:
        run["party"] = f"{run['party']['role']}.{run['party']['index']}"
    return job


def run_of(
    job: Mapping[str, Any],
    task: str,
    party: str,
    option: str = "--task ",
) -> dict[str, Any]:
    """Return the newest attempt of the one run that matches; an empty task or party matches all.

    ``option`` precedes a task's name on the command line. Raises `CallFailed`, which lists the choices, if no run
    or several match.
    """
    matches = []
    for run in job["runs"]:
        if task in ("", run["task_name"]) and party in ("", run["party"]):
            matches.append(run)
    run_keys = {(run["task_name"], run["party"]) for run in matches}
    if len(run_keys) == 1:
        return max(matches, key=lambda run: int(run.get("attempt", 0)))
    what = "more than one run" if run_keys else "no run"
    text = f"{what} here matches; there are: {_run_choices(job, task, option)}"
    other_node = _other_node_of(job, party)
    if other_node:
        text += f"; {party} plays at node {other_node}: run the command there"
    raise CallFailed(text, EXIT_BAD_INPUT)


def _run_choices(job: Mapping[str, Any], task: str, option: str) -> str:
    """Return the options for each run of the task; for all runs if it has none."""
    runs = job["runs"]
    choices = [f"--party {run['party']}" for run in runs if run["task_name"] == task]
    if not choices:
        choices = [f"{option}{run['task_name']} --party {run['party']}" for run in runs]
    return ", ".join(dict.fromkeys(choices)) or "none"


def _other_node_of(job: Mapping[str, Any], label: str) -> str:
    """Return the node of a party that has no run at this one, else an empty text."""
    if any(run["party"] == label for run in job["runs"]):
        return ""
    for party in job["parties"]:
        if label == f"{party['role']}.{party['index']}":
            return str(party["node"])
    return ""
