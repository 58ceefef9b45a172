"""``bfia-gateway job …``: submit a job, watch it, decide on it, stop it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from bfia_gateway_client.calls import each, next_step_of, path_of
from bfia_gateway_client.errors import harmless
from bfia_gateway_client.progress import OVER, looks
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
from gateway.cli.job_notes import away, in_short, last_lines, lineage, on_channel, warnings
from gateway.cli.language import t
from gateway.data.log_levels import Level
from gateway.errors import counted, near

_SCHEDULE = "/v1/platform/schedule"
_DATASET = r"[^\s'\"（：；]+#[^\s'\"（：；]+"
"""a dataset's id in a message, which may be Chinese"""

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
        _be_strict(body)
    made = _created(node, f"{_SCHEDULE}/job/create_all", body)["data"]
    if not watch_it:
        _print_created(node, {"job_id": made["job_id"]}, as_json)
        return
    if not as_json:
        say(made["job_id"])
    _watch(node, made["job_id"], as_json)


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
    body: dict[str, Any] = {"from": start} if start else {}
    if parameters is not None:
        body["parameters"] = read_object(parameters)
    _print_created(node, _created(node, path_of("jobs", job_id, "rerun"), body), as_json)


@command(commands, "params", "job-0123 new.yml --reason 'it converges sooner'")
def params(
    node: Client,
    job_id: options.JobId,
    file: Annotated[Path, typer.Argument(help="JSON or YAML in the form of task_params.")],
    reason: Annotated[str, typer.Option(help="Why; every node of the job gets it.")],
) -> Output:
    """Give tasks of a running job that have not begun new parameters, at every node or at none."""
    made = node.post(
        path_of("jobs", job_id, "parameters"), {"parameters": read_object(file), "reason": reason}
    )
    yield made
    say(f"{job_id} continues with version {made['version']} of its parameters")


def _be_strict(body: dict[str, Any]) -> None:
    """Set ``strict`` of the common settings; a body with no place for it stays as given, and is refused."""
    for key in ("config", "job_params", "common"):
        body = body.setdefault(key, {})
        if not isinstance(body, dict):
            return
    body["strict"] = True


def _created(
    node: Client,
    path: str,
    body: Mapping[str, Any],
) -> Any:
    """Request a new job; a refusal names the job where one is kept. Raises `CallFailed`."""
    try:
        return node.post(path, body)
    except CallFailed as error:
        kept = error.data.get("job_id") if isinstance(error.data, Mapping) else None
        lines = (
            [f"It is kept as {kept}: bfia-gateway job show {quote(kept)}", *_meant(node, kept)]
            if kept
            else []
        )
        raise CallFailed(
            "\n".join([str(error), *lines]), error.code, error.reason, error.data
        ) from None


def _meant(node: Client, job_id: str) -> list[str]:
    """Return which of its datasets were probably meant, where this node refused others. Partners get none."""
    with suppress(CallFailed):  # the refusal is printed all the same
        job = job_at(node, job_id)
        failure = job.get("failure") or {}
        named = dict.fromkeys(re.findall(_DATASET, str(failure.get("message"))))
        if named and failure.get("node") == job["scheduler"]:
            there = [
                one["dataset_id"] for one in node.get("/api/v1/datasets", limit=1000)["datasets"]
            ]
            hints = [
                f"{one}: did you mean {meant}?"
                for one in named
                if (meant := near(one, there)) not in ("", one)
            ]
            return (
                [*hints, "Datasets of this node: bfia-gateway data list"]
                if set(named) - set(there)
                else []
            )
    return []


def _print_created(
    node: Client,
    made: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Print a new job's id alone on standard output; its warnings, and who has to approve, on standard error."""
    try:
        job = job_at(node, made["job_id"])
    except CallFailed:  # the job exists all the same
        job = {}
    waiting = job.get("waiting") or {}
    notes = [*warnings(job), *([waiting["message"]] if waiting.get("reason") == "APPROVAL" else [])]
    if as_json:
        print_json({**made, "warnings": notes})
    else:
        say(made["job_id"])
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
    narrow = {
        "status": status,
        "outcome": outcome,
        "flow_id": flow,
        "partner": partner,
    }
    found = node.get(
        "/api/v1/jobs",
        since=since,
        until=until,
        **narrow,
        **page,
    )
    yield found
    whole = [job["job_id"] for job in found["jobs"]]
    ids = dict(zip(whole, short(whole), strict=True))
    columns: Columns = {
        "job": lambda job: ids[job["job_id"]],
        "flow": "flow_id",
        "state": lambda job: job["outcome"] or job["status"],
        "created (UTC)": when("created_at", 16),
        "took": lambda job: lasted(job["created_at"], job["ended_at"]),
        "owner": "user",
        "here": lambda job: " ".join(map(t, job["sides"])),
    }
    listing(found, "jobs", "job", columns, spare=("here", "owner"))


@command(commands, "show", "job-0123")
def show_job(node: Client, job_id: options.JobId) -> Output:
    """Show a job: its state, each task at each party, and why it failed or what it waits for."""
    from rich.console import Console

    job = job_at(node, job_id)
    yield job
    failures = [job["failure"], *job.get("refusals", [])] if job.get("outcome") != "STOPPED" else []
    advice = []
    waits = [
        one
        for key in ("local_waiting", "waiting")
        if (one := job.get(key)) and one["reason"] == "APPROVAL"
    ]
    first: dict[str, Mapping[str, Any]] = {}
    for one in filter(None, [*failures, *waits]):
        first.setdefault(one["reason"], one)
    for reason, failure in first.items():
        with suppress(CallFailed):  # a reason of a partner's own is not explained
            step = next_step_of(node.get(path_of("reasons", reason))["next_step"], job, failure)
            advice.append(f"{t('next step')}: {reason}: {step}")
    Console().print(_tree(job, advice=advice))


@command(commands, "watch", "job-0123")
def watch(
    node: Client,
    job_id: options.JobId,
    as_json: options.AsJson = False,
) -> None:
    """Show a job while it goes on, also through a restart of the node. Exit code 1: it did not succeed."""
    _watch(node, job_id, as_json)


@command(commands, "timeline", "job-0123")
def timeline(node: Client, job_id: options.JobId) -> Output:
    """Show all that happened to a job here, in its order: the first thing to read when a job surprises."""
    found = node.get(path_of("jobs", job_id, "timeline"))
    yield found
    days = {entry["at"][:10] for entry in found["timeline"]}
    title, at = (
        (f"{job_id}, {days.pop()}", slice(11, 23)) if len(days) == 1 else (job_id, slice(23))
    )
    columns: Columns = {
        "at (UTC)": lambda e: e["at"][at].replace("T", " "),
        "as": lambda e: t(e["side"]),
        "what": "event",
        "by": "by",
        "more": lambda e: cell(_readable({k: v for k, v in e["detail"].items() if v != e["by"]}))[
            :300
        ],
    }
    listing(found, "timeline", "", columns, title)


def _readable(detail: dict[str, Any]) -> dict[str, Any]:
    """Return what people read of an event's detail: --json has ids, proofs and successful answers too."""
    detail = {
        k: v
        for k, v in detail.items()
        if k not in ("trace_id", "task_id") and [k, v] != ["attempt", 0]
    }
    if "attempt" in detail:
        detail["attempt"] += 1  # people count from 1
    if origin := detail.get("origin"):
        detail["origin"] = origin.get("from", "")
    if not {"method", "path", "seconds"} <= detail.keys():
        return _keys(detail)
    path = "/".join(detail.pop("path").split("/")[-2:])
    took = f"{1000 * detail.pop('seconds'):.0f} ms"
    called = {
        detail.pop("method"): ", ".join(str(v) for v in (path, detail.pop("http", None), took) if v)
    }
    if detail.get("code") == 0:
        detail = {k: v for k, v in detail.items() if k not in ("code", "message")}
    return called | _keys(detail)


def _keys(detail: Mapping[str, Any]) -> dict[str, Any]:
    texts = {key: t(one) for key, one in detail.items() if key == "message"}
    inner = {key: _keys(one) for key, one in detail.items() if isinstance(one, Mapping)}
    return {
        t(key.replace("_", " ")): one
        for key, one in {
            **detail,
            **texts,
            **inner,
        }.items()
    }


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
    followed = node.events(run["log"], follow=True, **query)
    event = None
    for event, line in (
        followed if follow else (("", line) for line in node.lines(run["log"], **query))
    ):
        if event != "end":
            typer.echo(
                harmless(line), err=event == "stderr"
            )  # as it was written, in no other language
    if event is None:
        text = "wrote nothing" if level is Level.DEBUG else "wrote no such line"
        say(f"{run['party']} of {run['task_name']} ({run['status']}) {text}", err=True)


# ---------------------------------------------------------------- stopping, and what people decide


@command(commands, "stop", "job-0123 --task secureboost")
def stop(
    node: Client,
    job_id: options.JobId,
    task: Task = "",
) -> Output:
    """Stop a job at every node, or one task with all that needs its output. A second stop changes nothing."""
    job = job_at(node, job_id)
    states = [
        t["status"]
        for t in job["tasks"]
        if t["name"] == task and t["status"] in ("SUCCESS", "FAILED")
    ]
    ended = (
        f"{job['status']} {job.get('outcome') or ''}".strip()
        if job["status"] in OVER
        else "".join(states)
    )
    body = {"job_id": job_id, "task_name": task} if task else {"job_id": job_id}
    node.post(f"{_SCHEDULE}/job/{'stop_task' if task else 'stop_all'}", body)
    yield {
        "job_id": job_id,
        "task_name": task,
        "stopped": not ended,
        "ended": ended,
    }
    what = f"task {task} of {job_id}" if task else job_id
    if ended:
        say(f"{what} has ended before ({ended}); there was nothing to stop")
        return
    waiting = {} if task else job_at(node, job_id).get("local_waiting") or {}
    if waiting.get("reason") == "CONFIRMING":
        say(f"{what} is stopped here; the gateway {waiting['message']}")
    else:
        say(f"{what} is being stopped at every node")


@command(commands, "cancel-waiting", "--dry-run")
def cancel_waiting(node: Client, dry_run: options.DryRun = False) -> Output:
    """Stop all jobs that this node schedules and of which nothing runs yet."""
    found = node.post("/api/v1/jobs/cancel-waiting", {"dry_run": dry_run})
    yield found
    done = "would be cancelled" if dry_run else "cancelled"
    say("\n".join([*found["jobs"], f"{len(found['jobs'])} {done}"]))


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
    found = node.get("/api/v1/approvals", **page)
    yield found
    columns: Columns = {
        "job": "job_id",
        "requested by": "initiator",
        "as": "roles",
        "components": _of_tasks("component"),
        "image": _of_tasks("image"),
        "dataset": _of_tasks("dataset"),
        "parameters": lambda one: "\n".join(
            f"{of['task']} {of['party']}: {compact(of['parameters'], 1000)}"
            for of in one["tasks"]
            if of["parameters"]
        ),
        "until (UTC)": lambda one: str((one["approval"] or {}).get("until") or "")[:19].replace(
            "T", " "
        ),
    }
    listing(found, "approvals", "", columns, counted(found["total"], "job waits", "jobs wait"))


def _of_tasks(key: str) -> Column:
    return lambda one: list(dict.fromkeys(task[key] for task in one["tasks"] if task[key]))


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
    name: str,
    done: str,
    reason: str,
) -> Output:
    found = node.post(path_of("jobs", job_id, name), {"by": who(), "reason": reason})
    yield found
    if not found["repeated"]:
        say(f"{job_id} is {done} here")
        return
    before = found["approval"] or {}
    by = f"by {before.get('by') or 'an operator'} at {str(before.get('decided_at') or '')[:19]} UTC"
    if words := (before.get("failure") or {}).get("message"):
        by += f" ({words})"
    say(f"{job_id} was {done} here before: {by}; nothing was changed")
    if reason:
        say("the new reason was not sent to anybody; the job keeps the first", err=True)


@command(commands, "plan", "examples/create_all_psi_sbt.json", timeout=120)
def plan(node: Client, file: JobFile) -> Output:
    """Ask every party what would happen to a job (a dry run), and create nothing.

    Checked are image and digest, data and grants, resources now, the route in both directions, the profile, and
    whether somebody has to approve. Exit code 0: no obstacle is known; 1: there is one.
    """
    found = node.post("/api/v1/jobs/plan", read_object(file))
    yield found, found["good"]
    columns: Columns = {
        "check": "check",
        "of": lambda c: t(c["about"]),
        "result": lambda c: "PROBLEM" if c["standing"] == "problem" else c["standing"],
        "found": lambda c: "; ".join(filter(None, (c["found"], c["cause"]))),
        "what to do": "remedy",
    }
    words = {
        "problem": "in the way",
        "waits": "to wait for",
        "warning": "to look at",
        "unknown": "unknown",
    }
    order = [*words, "ok"]
    for one in found["nodes"]:
        one["checks"].sort(key=lambda c: order.index(c["standing"]))
        listing(
            one,
            "checks",
            "",
            columns,
            f"{one['node']} ({', '.join(one['parties']) or t('no party')})",
        )
        say()
    counts = [
        f"{found[f'{s}_count']} {text}" for s, text in words.items() if found.get(f"{s}_count")
    ]
    verdict = "nothing stands in the way" if found["good"] else "the job would fail"
    say(verdict + (f" ({', '.join(counts)})" if counts else ""))


# ---------------------------------------------------------------- watching


def _watch(
    node: Client,
    job_id: str,
    as_json: bool,
) -> None:
    """Show the job until it is over. Leaves with exit code 1 where it has not succeeded."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    job: Mapping[str, Any] = {}
    with Live(
        console=Console(stderr=as_json),
        refresh_per_second=8,
        transient=as_json,
    ) as live:
        try:
            for job, trouble in _looks(node, job_id):
                tree = _tree(job, most_warnings=3)
                live.update(Group(tree, Text(trouble, style="yellow")) if trouble else tree)
        except KeyboardInterrupt:
            if not job.get("outcome"):
                of = quote(job_id)
                say(f"the job continues: bfia-gateway job watch {of}, or job stop {of}", err=True)
            raise
    if not live.console.is_terminal:
        live.console.print()  # in a pipe the last line is left open
    if as_json:
        print_json(job)
    if job["outcome"] != "SUCCEEDED":
        raise typer.Exit(EXIT_FAILED)


def _looks(node: Client, job_id: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the job until it is over; with a notice where that is its last known state, as the node is silent."""

    async def look() -> dict[str, Any]:
        return job_at(node, job_id)

    return each(looks(look, node.wire.sleep, notice=lambda text: say(text, err=True)))


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
    """Return the newest attempt of the one run that is meant; ``option`` is how the command is given the task.

    Raises `CallFailed` where it is not clear, with what to add.
    """
    fits = [r for r in job["runs"] if task in ("", r["task_name"]) and party in ("", r["party"])]
    names = {(r["task_name"], r["party"]) for r in fits}
    if len(names) != 1:
        of_task = [f"--party {r['party']}" for r in job["runs"] if task == r["task_name"]]
        known = of_task or [f"{option}{r['task_name']} --party {r['party']}" for r in job["runs"]]
        what = "no run" if not names else "more than one run"
        there = ", ".join(dict.fromkeys(known)) or "none"
        text = f"{what} here matches; there are: {there}"
        here = party in (r["party"] for r in job["runs"])
        if other := [
            p["node"] for p in job["parties"] if party == f"{p['role']}.{p['index']}" and not here
        ]:
            text += f"; {party} plays at node {other[0]}: run the command there"
        raise CallFailed(text, EXIT_BAD_INPUT)
    return max(fits, key=lambda run: int(run.get("attempt", 0)))


_NOT_BEGUN = {"PENDING", "READY"}
"""states of a task that, once its job has ended, says no more than that it never began"""
_STYLE = {
    "SUCCESS": "green",
    "RUNNING": "yellow",
    "FAILED": "red",
    "STOPPED": "red",
}


def _tree(
    job: Mapping[str, Any],
    *,
    most_warnings: int | None = None,
    advice: Sequence[str] = (),
) -> Any:
    """Draw tasks by parties, the progress, and what is to be known."""
    from rich.console import Group, RenderableType
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    def text(words: str, style: str = "") -> Text:
        return Text(harmless(words), style=style)

    roles: dict[str, list[str]] = {}
    for party in job["parties"]:
        roles.setdefault(party["node"], []).append(party["role"])
    cells = Table(box=None, pad_edge=False)
    for heading in (
        t("task"),
        *(f"{node} ({', '.join(names)})" for node, names in roles.items()),
        "",
    ):
        cells.add_column(text(heading), overflow="fold")
    for task in job["tasks"]:
        states = []
        stopped = (task.get("failure") or {}).get("reason") == "STOPPED"
        for node in roles:
            by_role = {
                r: "STOPPED" if stopped and s == "FAILED" else s
                for r, s in task["nodes"].get(node, {}).items()
            }
            same = set(by_role.values())
            if job.get("outcome"):
                same, by_role = (
                    same - _NOT_BEGUN,
                    {r: s for r, s in by_role.items() if s not in _NOT_BEGUN},
                )
            state = (
                next(iter(same))
                if len(same) == 1
                else " ".join(f"{r} {s}" for r, s in by_role.items())
            )
            states.append(text(state or "–", _STYLE.get(state, "dim")))
        cells.add_row(
            text(task["name"]), *states, text("" if _is_cause(task, job) else t(_why(task)), "dim")
        )
    line = Table.grid(padding=(0, 1))
    state = " ".join(dict.fromkeys(filter(None, (job["status"], job.get("outcome")))))
    goes_on = job["progress"] and job.get("outcome") in (None, "SUCCEEDED")
    bar = (
        [
            ProgressBar(
                total=100,
                completed=job["progress"],
                width=40,
            )
        ]
        if goes_on
        else []
    )
    line.add_row(*bar, text(f"{state}, {job['progress']} %"))
    parts: list[RenderableType] = [
        text(t(f"{job['job_id']}, scheduled by {job['scheduler']}"), "bold")
    ]
    parts += [text(t(about), "dim") for about in _begun(job)] + [cells, line]
    for one in job.get("refusals") or [job]:
        if why := _why({"failure": one} if one is not job else job):
            parts.append(text(t(why), "red" if job.get("failure") else "dim"))
    parts += [*map(text, advice)]
    parts += [text(t(line), "dim") for line in (*lineage(job), *on_channel(job), *away(job))]
    parts += [text(line, "dim") for line in last_lines(job)]
    parts += [
        text(t(line), "yellow") for line in in_short(warnings(job), job["job_id"], most_warnings)
    ]
    return Group(*parts)


def _begun(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield whose job it is, when it was created, and how long it has run."""
    if created := job.get("created_at"):
        ended = job.get("ended_at")
        took = lasted(created if ended else job.get("started_at"), ended)
        took = f", {'took' if ended else 'running for'} {took}" if took else ""
        owner = job.get("user") or job.get("initiator") or ""
        yield f"of {owner}, created {created[:19].replace('T', ' ')} UTC{took}"


def _is_cause(task: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """Tell whether a task failed of what the job failed of, which is shown once, below."""
    mine, whole = task.get("failure") or {}, job.get("failure") or {}
    return bool(mine) and (mine["reason"], mine["message"]) == (
        whole.get("reason"),
        whole.get("message"),
    )


def _why(what: Mapping[str, Any]) -> str:
    """Return why something failed, or what it waits for."""
    if failure := what.get("failure"):
        where = " ".join(f"{t(k)} {failure[k]}" for k in ("task", "role", "node") if failure.get(k))
        message, before = failure["message"], ""
        while message != before:  # as it was at each node that passed it on
            before = message
            message = message.removeprefix(f"{failure.get('node')}: ").removeprefix(
                f"{failure['reason']}: "
            )
        message = message.replace(f" {failure['reason']}: ", " ")
        return ": ".join(
            filter(None, (failure["reason"] + (f" ({where})" if where else ""), message))
        )
    waiting = what.get("waiting") or {}
    if waiting.get("reason") == "JOB":  # its message names what the job waits for
        return str(waiting["message"]).rpartition(": ")[2]
    return ": ".join(str(waiting[k]) for k in ("reason", "message") if waiting.get(k))
