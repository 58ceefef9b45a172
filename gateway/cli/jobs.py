"""``bfia-gateway job …``: submit a job, list and show jobs, watch them."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import Annotated, Any

import typer

from bfia_gateway_client.bridge import iterate_blocking
from bfia_gateway_client.calls import next_step_of, path_of
from bfia_gateway_client.progress import watch_job
from gateway.cli import options
from gateway.cli.client import EXIT_BAD_INPUT, EXIT_FAILED, CallFailed, Client, read_object
from gateway.cli.command import Output, command
from gateway.cli.job_notes import warnings
from gateway.cli.job_tree import draw_job
from gateway.cli.language import t
from gateway.cli.output import print_json, say, warn
from gateway.cli.tables import Columns, listing
from gateway.cli.values import elapsed, short, when
from gateway.errors import counted, near

SCHEDULE = "/v1/platform/schedule"  # path of the standard's calls on the operator listener
# Pattern of a dataset id in a message; the message may be Chinese.
_DATASET_ID = r"[^\s'\"（：；]+#[^\s'\"（：；]+"
_WATCHED_WARNINGS = 3  # warnings that are shown while a job is watched
commands = typer.Typer(name="job")

JobFile = Annotated[
    Path, typer.Argument(help="The job as JSON or YAML: dag and config; - reads standard input.")
]
TaskOption = Annotated[str, typer.Option("--task", "-t", help="Name of a task in the flow.")]
PartyOption = Annotated[
    str,
    typer.Option("--party", "-p", help="Which party here, such as guest.0; default: the only one."),
]


@command(commands, "submit", "examples/first_job.json --watch")
def submit(
    node: Client,
    file: JobFile,
    watch_it: Annotated[
        bool, typer.Option("--watch", "-w", help="Stay, and show how it goes.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse what would be a warning.")
    ] = False,
    key: Annotated[
        str,
        typer.Option(
            help=(
                "A key of your choice: with the same key and file, a repeated submission creates "
                "no second job."
            )
        ),
    ] = "",
    as_json: options.AsJson = False,
) -> None:
    """Submit a job; the response comes when every node of it has accepted it. Prints the job's id.

    Standard error gets the warnings, for example about an unknown parameter, and who still has to
    approve and by when.
    """
    body = read_object(file)
    if strict:
        _set_strict(body)
    headers = {}
    if key:
        headers["Idempotency-Key"] = key
    response = _create_job(node, f"{SCHEDULE}/job/create_all", body, headers)
    job_id = response["data"]["job_id"]
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
    """Rerun an ended job from a task on, as a new job that reuses the results of finished tasks.
    Prints its id.

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
    """Change the parameters of tasks that have not begun, in a running job: at every node or at
    none.
    """
    change = {"parameters": read_object(file), "reason": reason}
    response = node.post(path_of("jobs", job_id, "parameters"), change)
    yield response  # what `--json` prints; without it, the rest runs and prints for people
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


def _create_job(
    node: Client,
    path: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Request a new job.

    Raises `CallFailed`, which names the job if the node keeps the refused one.
    """
    try:
        return node.call("POST", path, body, headers=headers)
    except CallFailed as error:
        lines = [str(error)]
        job_id = None
        if isinstance(error.data, Mapping):
            job_id = error.data.get("job_id")
        if job_id:
            lines.append(f"It is kept as {job_id}: bfia-gateway job show {quote(job_id)}")
            lines += _dataset_hints(node, job_id)
        raise CallFailed("\n".join(lines), error.code, error.reason, error.data) from None


def _dataset_hints(node: Client, job_id: str) -> list[str]:
    """Return lines with suggestions for the unknown dataset ids for which this node refused a job.

    There are none if a partner refused it.
    """
    try:
        job = job_at(node, job_id)
        failure = job.get("failure") or {}
        # A dict as an ordered set: each id once, in the order of the message.
        dataset_ids = dict.fromkeys(re.findall(_DATASET_ID, str(failure.get("message"))))
        # The job was submitted to this node, so this node is the scheduler.
        failed_here = failure.get("node") == job["scheduler"]
        if not dataset_ids or not failed_here:
            return []
        page = node.get("/api/v1/datasets", unregistered="false", limit=1000)
    except CallFailed:  # the refusal is printed all the same
        return []
    existing = [dataset["dataset_id"] for dataset in page["datasets"]]
    if dataset_ids.keys() <= set(existing):  # the job was refused for another cause
        return []
    lines = []
    for dataset_id in dataset_ids:
        suggestion = near(dataset_id, existing)
        if suggestion not in ("", dataset_id):
            lines.append(f"{dataset_id}: did you mean {suggestion}?")
    lines.append("Datasets of this node: bfia-gateway data list")
    return lines


def _print_created(
    node: Client,
    created: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Print a new job's id on standard output, its warnings and awaited approvals on standard
    error; with ``as_json`` all of it on standard output, with the fields of ``created``.
    """
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
    commands,
    "list",
    "--outcome FAILED --since 2026-11-01 --limit 50",
    options=options.paged(limit=20),
)
def list_jobs(
    node: Client,
    status: Annotated[
        str, typer.Option(help="Only in these states, with commas: READY,RUNNING.")
    ] = "",
    outcome: Annotated[
        str, typer.Option(help="Only jobs with this outcome: SUCCEEDED, FAILED, STOPPED, REJECTED.")
    ] = "",
    flow: Annotated[str, typer.Option(help="Only jobs of this flow.")] = "",
    partner: Annotated[
        str, typer.Option(help="Only with this node.", autocompletion=options.nodes)
    ] = "",
    since: Annotated[
        str, typer.Option(help="Only created since, UTC: 2026-11-21, 2026-11-21T08:00.")
    ] = "",
    until: Annotated[str, typer.Option(help="Only before this time, UTC.")] = "",
    text: Annotated[
        str, typer.Option(help="Only with this text in id, flow, owner, nodes or components.")
    ] = "",
    user: Annotated[str, typer.Option(help="Only of this owner.")] = "",
    component: Annotated[
        str, typer.Option(help="Only with this component: name, or provider/name.")
    ] = "",
    reason: Annotated[str, typer.Option(help="Only failed for this reason.")] = "",
    **paging: Any,
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
        text=text,
        user=user,
        component=component,
        reason=reason,
        **paging,
    )
    yield page_of_jobs
    ids = [job["job_id"] for job in page_of_jobs["jobs"]]
    short_ids = dict(zip(ids, short(ids), strict=True))

    def short_id(job: Mapping[str, Any]) -> Any:
        return short_ids[job["job_id"]]

    columns: Columns = {
        "job": short_id,
        "flow": "flow_id",
        "state": _outcome_or_status,
        "created (UTC)": when("created_at", length=16),
        "took": _duration,
        "owner": "user",
        "here": _sides,
    }
    listing(
        page_of_jobs,
        "jobs",
        columns,
        noun="job",
        dispensable=("here", "owner"),
    )


def _outcome_or_status(job: Mapping[str, Any]) -> str:
    """Return the outcome of a job, its status before it has ended.

    A success of which this node's runs have warnings has their number, such as "SUCCEEDED, 1
    warning".
    """
    state = str(job["outcome"] or job["status"])
    count = job.get("warning_count", 0)
    if count and job["outcome"] == "SUCCEEDED":
        state += f", {counted(count, 'warning')}"
    return state


def _duration(job: Mapping[str, Any]) -> str:
    """Return the time from a job's creation to its end, or until now."""
    return elapsed(job["created_at"], job["ended_at"])


def _sides(job: Mapping[str, Any]) -> str:
    """Return this node's parts in a job, such as scheduler and participant."""
    return " ".join(map(t, job["sides"]))


@command(commands, "show", "job-0123")
def show_job(node: Client, job_id: options.JobId) -> Output:
    """Show a job: its state, each task at each party, and why it failed or waits."""
    from rich.console import Console

    job = job_at(node, job_id)
    yield job
    Console().print(draw_job(job, advice=_next_steps(node, job)))


def _next_steps(
    node: Client,
    job: Mapping[str, Any],
) -> list[str]:
    """Return the next step for each reason for which a job failed or waits for an approval.

    Of several steps, each names its reason; the lines above show the only one anyway.
    """
    lines = []
    causes = _causes_by_reason(job)
    for reason, cause in causes.items():
        try:
            explanation = node.get(path_of("reasons", reason))
        except CallFailed:  # a partner's own reasons are not explained
            continue
        step = next_step_of(explanation["next_step"], job, cause)
        about = f"{reason}: " if len(causes) > 1 else ""
        lines.append(f"{t('next step')}: {about}{node.with_addresses(step)}")
    return lines


def _causes_by_reason(job: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return, for each reason, the job's first failure, refusal or pending approval with it.

    Failures and refusals of a stopped job are left out: they follow from the stop.
    """
    causes: list[Mapping[str, Any] | None] = []
    if job.get("outcome") != "STOPPED":
        causes += [job["failure"], *job.get("refusals", [])]
    waits = [job.get("local_waiting"), job.get("waiting")]
    causes += [waiting for waiting in waits if waiting and waiting["reason"] == "APPROVAL"]
    by_reason: dict[str, Mapping[str, Any]] = {}
    for cause in filter(None, causes):
        by_reason.setdefault(cause["reason"], cause)
    return by_reason


@command(commands, "watch", "job-0123")
def watch(
    node: Client,
    job_id: options.JobId,
    as_json: options.AsJson = False,
) -> None:
    """Show a job while it goes on, also through a restart of the node. Exit code 1: it did not
    succeed.
    """
    watch_until_over(node, job_id, as_json)


# ---------------------------------------------------------------- watching


def watch_until_over(node: Client, job_id: str, as_json: bool) -> None:
    """Show the job until it is over. Raises `typer.Exit` with code 1 if it did not succeed."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    job: Mapping[str, Any] = {}
    console = Console(stderr=as_json)  # standard output then has nothing but the JSON
    with Live(console=console, refresh_per_second=8, transient=as_json) as live:
        try:
            for job, notice in _states_until_over(node, job_id):
                view = draw_job(job, warning_limit=_WATCHED_WARNINGS)
                if notice:
                    view = Group(view, Text(notice, style="yellow"))
                live.update(view)
        except KeyboardInterrupt:
            if not job.get("outcome"):
                argument = quote(job_id)
                say(
                    f"the job continues: bfia-gateway job watch {argument}, or job stop {argument}",
                    err=True,
                )
            raise
    if not console.is_terminal:
        console.print()  # rich does not end the last line of a live view in a pipe
    if as_json:
        print_json(job)
    if job["outcome"] != "SUCCEEDED":
        raise typer.Exit(EXIT_FAILED)


def _states_until_over(
    node: Client,
    job_id: str,
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the job as the node shows it and an empty text, again and again until the job ends.

    While the node does not respond, yield the last state of the job and a notice. Before the first
    state, the notice is printed instead.
    """

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
        run["party"] = party_label(run["party"])
    return job


def party_label(party: Mapping[str, Any]) -> str:
    """Return a party as people write it: ``guest.0``."""
    return f"{party['role']}.{party['index']}"


def run_of(
    job: Mapping[str, Any],
    task: str,
    party: str,
    option: str = "--task ",
) -> dict[str, Any]:
    """Return the newest attempt of the run of a task at a party.

    An empty task or party matches all. Raises `CallFailed`, which lists the choices, if no run or
    several match. ``option``: the text before the name of a task in these choices, as the user
    types it; empty if the command takes the task as an argument.
    """
    # Each attempt of a run is an entry of its own.
    attempts = [run for run in job["runs"] if _matches(run, task, party)]
    run_keys = {(run["task_name"], run["party"]) for run in attempts}
    if len(run_keys) == 1:
        return max(attempts, key=_attempt_number)
    what = "more than one run" if run_keys else "no run"
    text = f"{what} here matches; there are: {_run_choices(job, task, option)}"
    other_node = _other_node_of(job, party)
    if other_node:
        text += f"; {party} plays at node {other_node}: run the command there"
    raise CallFailed(text, EXIT_BAD_INPUT)


def _matches(
    run: Mapping[str, Any],
    task: str,
    party: str,
) -> bool:
    """True for a run of the task and the party; an empty one matches all."""
    return task in ("", run["task_name"]) and party in ("", run["party"])


def _attempt_number(run: Mapping[str, Any]) -> int:
    """Return the number of an attempt, from 0; nodes of earlier versions do not send it."""
    return int(run.get("attempt", 0))


def _run_choices(
    job: Mapping[str, Any],
    task: str,
    option: str,
) -> str:
    """Return the options for each run of the task; for all runs if the task has none."""
    runs = job["runs"]
    choices = [f"--party {run['party']}" for run in runs if run["task_name"] == task]
    if not choices:
        choices = [f"{option}{run['task_name']} --party {run['party']}" for run in runs]
    return ", ".join(dict.fromkeys(choices)) or "none"


def _other_node_of(job: Mapping[str, Any], label: str) -> str:
    """Return the node of a party that plays at another node than this one, else an empty text."""
    takes_part = job.get("local_status") is not None
    # A node that takes part shows the parameters of its own parties alone.
    if takes_part and label in job["parameters"]:
        return ""
    nodes = {party_label(party): str(party["node"]) for party in job["parties"]}
    return nodes.get(label, "")
