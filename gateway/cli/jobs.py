"""``bfia-gateway job …``: hand a job in, watch it, see what it wrote and left, stop it."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_NO_ANSWER,
    AsJson,
    CallFailed,
    Client,
    Config,
    Force,
    JobId,
    Url,
    amount,
    connect,
    fitting,
    nodes,
    read_object,
    reporting,
    segment,
    show,
    table,
)
from gateway.cli.console import harmless_in, say
from gateway.cli.inputs import new_file
from gateway.data.log_levels import Level
from gateway.errors import counted

PATIENCE = 300.0
"""seconds for which a node that was there may be silent, such as while it is brought up to date"""
COMING_UP = 30.0
"""seconds for which a node may be silent at the first look: it has just been started, or its address is wrong"""
PAUSE = 0.3
"""seconds between two looks"""
OVER = ("FINISHED", "REJECTED")
_PASSING = ("DATABASE_AWAY",)


def looks(
    ask: Callable[[], dict[str, Any]],
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the job as it is until it is over; with a word where that is how it was, as the node is silent.

    ``tell`` takes what there is to say while nothing was seen yet. Raises `CallFailed` where the node says no, and
    where it is silent for too long.
    """
    known = _first(ask, now, sleep, tell)
    yield known, ""
    since: float | None = None
    while known["status"] not in OVER:
        sleep(PAUSE)
        try:
            known, since, trouble = ask(), None, ""
        except CallFailed as error:
            since = now() if since is None else since
            if not _passes(error) or now() - since >= PATIENCE:
                raise
            trouble = f"the node does not answer now; it is asked again for up to {PATIENCE:g} s"
        yield known, trouble


def _first(
    ask: Callable[[], dict[str, Any]],
    now: Callable[[], float],
    sleep: Callable[[float], None],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    since: float | None = None
    while True:
        try:
            return ask()
        except CallFailed as error:
            if since is None and _passes(error):
                since = now()
                tell(f"{error}; it is asked again for up to {COMING_UP:g} s")
            elif since is None or not _passes(error) or now() - since >= COMING_UP:
                raise
        sleep(PAUSE)


def _passes(error: CallFailed) -> bool:
    return error.code == EXIT_NO_ANSWER or error.reason in _PASSING


_AT_ONCE = 3
"""warnings that are shown of a job that is watched"""


def made(node: Client, path: str, body: Mapping[str, Any]) -> Any:
    """Ask for a new job; return the answer. A refusal names the job where one is kept. Raises `CallFailed`."""
    try:
        return node.post(path, body)
    except CallFailed as error:
        kept = error.data.get("job_id") if isinstance(error.data, Mapping) else None
        if kept:
            text = f"{error}\nIt is kept as {kept}: bfia-gateway job show {kept}"
            raise CallFailed(text, error.code, error.reason, error.data) from None
        raise


def warnings_after(node: Client, job_id: str) -> list[str]:
    """Return what the node warns of, and who has still to agree.

    Nothing where it cannot be asked: the job is made all the same.
    """
    try:
        job = node.get(f"/api/v1/jobs/{segment(job_id)}")
    except CallFailed:
        return []
    waiting = job.get("waiting") or {}
    return [*warnings(job), *([waiting["message"]] if waiting.get("reason") == "APPROVAL" else [])]


def warnings(job: Mapping[str, Any]) -> list[str]:
    """Return the warnings of the scheduling node and of this one, each once."""
    return list(dict.fromkeys([*job.get("warnings", []), *job.get("local_warnings", [])]))


def told(job_id: str, odd: list[str]) -> None:
    """Print the id, for scripts alone on standard output, and what is odd on standard error."""
    say(job_id)
    for warning in odd:
        say(f"warning: {warning}", err=True)


def in_short(odd: Sequence[str], job_id: str) -> list[str]:
    """Return the first warnings as lines, and where the rest is: many of them hide what else there is to see."""
    more = len(odd) - _AT_ONCE
    rest = [f"{counted(more, 'more warning')}: bfia-gateway job show {job_id}"] if more > 0 else []
    return [*(f"warning: {warning}" for warning in odd[:_AT_ONCE]), *rest]


def lineage(job: Mapping[str, Any]) -> str:
    """Say which job this one runs again, and what it takes over; empty where it runs for itself."""
    taken = ", ".join(dict.fromkeys(run["task_name"] for run in job.get("inherited_runs", [])))
    taken = f"; taken over: {taken}" if taken else ""
    origin = job.get("origin")
    if origin:
        changed = f", other parameters for {', '.join(origin['changed'])}" if origin["changed"] else ""
        return f"runs {origin['job_id']} again from {origin['start']}{changed}{taken}"
    return f"continues {job['old_job_id']}{taken}" if job.get("old_job_id") else ""


_LINES = 10
_RUNS = 3
_LONGEST = 300


def last_words(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield the end of what each failed run here wrote, and where the whole is; nothing of a stopped job."""
    if job.get("outcome") == "STOPPED":
        return  # whoever stopped it does not ask why it ended
    failed = [run for run in job["runs"] if run.get("last_lines")][-_RUNS:]
    for run in failed:
        where = f"--task {run['task_name']} --party {run['party']}"
        yield f"last lines of {run['task_name']} as {run['party']} (all: job logs {job['job_id']} {where}):"
        for line in run["last_lines"][-_LINES:]:
            yield "  " + "".join(c if c.isprintable() else " " for c in line[:_LONGEST])


commands = typer.Typer(help="Hand a job in, watch it, see what it wrote and left, stop it.", no_args_is_help=True)

Task = Annotated[str, typer.Option("--task", "-t", help="Name of a task in the flow.")]
Party = Annotated[
    str, typer.Option("--party", "-p", help="Which party here, such as guest.0; default: the only one.")
]


class Stream(StrEnum):
    """One of the two that a container prints to."""

    STDOUT = "stdout"
    STDERR = "stderr"


_SCHEDULE = "/v1/platform/schedule"
_STYLE = {"SUCCESS": "green", "RUNNING": "yellow", "FAILED": "red"}


def add(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="job")


@commands.command("submit")
def submit(
    file: Annotated[Path, typer.Argument(help="The job as JSON or YAML: dag and config; - reads standard input.")],
    watch_it: Annotated[bool, typer.Option("--watch", "-w", help="Stay, and show how it goes.")] = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Hand a job in; the answer comes when every node of it has taken it in. Prints the job's id.

    What is odd about it as this node sees it goes to standard error, such as a parameter that nobody knows; so
    does who has still to agree to it, and until when.

    Example: bfia-gateway job submit examples/create_all_psi_sbt.json --watch
    """
    with reporting(as_json), connect(config, url) as node:
        job_id = str(made(node, f"{_SCHEDULE}/job/create_all", read_object(file))["data"]["job_id"])
        if not watch_it:
            odd = warnings_after(node, job_id)
            show({"job_id": job_id, "warnings": odd}) if as_json else told(job_id, odd)
            return
        if not as_json:
            say(job_id)
        _watch(node, job_id, as_json)


@commands.command("list")
def list_jobs(
    status: Annotated[str, typer.Option(help="Only in these states, with commas: READY,RUNNING.")] = "",
    outcome: Annotated[str, typer.Option(help="Only that ended so: SUCCEEDED, FAILED, STOPPED, REJECTED.")] = "",
    flow: Annotated[str, typer.Option(help="Only jobs of this flow.")] = "",
    partner: Annotated[str, typer.Option(help="Only with this node.", autocompletion=nodes)] = "",
    since: Annotated[
        str, typer.Option(help="Only created then or later, UTC: 2026-11-21, 2026-11-21T08:00.")
    ] = "",
    after: Annotated[str, typer.Option(help="The next page: what the last one ended with.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")] = 20,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """List jobs that this node schedules or takes part in, newest first.

    Example: bfia-gateway job list --outcome FAILED --since 2026-11-01 --limit 50
    """
    asked = {
        "status": status,
        "outcome": outcome,
        "flow_id": flow,
        "partner": partner,
        "since": since,
        "after": after,
    }
    with reporting(as_json), connect(config, url) as node:
        query = {name: value for name, value in asked.items() if value}
        found = node.get("/api/v1/jobs", limit=limit, **query)
        if as_json:
            show(found)
            return
        rows = [
            [j["job_id"], j["flow_id"], j["status"], j["outcome"], j["created_at"][:19], ", ".join(j["sides"])]
            for j in found["jobs"]
        ]
        table(
            counted(len(rows), "job"), ["job", "flow", "status", "outcome", "created (UTC)", "this node is"], rows
        )
        if found["next"]:
            say(f"more: --after {found['next']}", err=True)


@commands.command("show")
def show_job(job_id: JobId, config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False) -> None:
    """Show a job: its state, each task at each party, and why it failed or what it waits for.

    Example: bfia-gateway job show job-0123456789abcdef0123456789abcdef
    """
    with reporting(as_json), connect(config, url) as node:
        job = _job(node, job_id)
        if as_json:
            show(job)
        else:
            _print(_tree(job))


@commands.command("watch")
def watch(job_id: JobId, config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False) -> None:
    """Show a job while it goes on, also through a restart of the node. Exit code 0: it succeeded; 1: it did not.

    Example: bfia-gateway job watch job-0123456789abcdef0123456789abcdef
    """
    with reporting(as_json), connect(config, url) as node:
        _watch(node, job_id, as_json)


@commands.command("stop")
def stop(
    job_id: JobId,
    task: Task = "",
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Stop a job at every node, or one task with all that needs its output. A second stop changes nothing.

    Example: bfia-gateway job stop job-0123456789abcdef0123456789abcdef --task secureboost
    """
    with reporting(as_json), connect(config, url) as node:
        over = _over(_job(node, job_id), task)
        if task:
            node.post(f"{_SCHEDULE}/job/stop_task", {"job_id": job_id, "task_name": task})
        else:
            node.post(f"{_SCHEDULE}/job/stop_all", {"job_id": job_id})
        what = f"task {task} of {job_id}" if task else job_id
        if as_json:
            show({"job_id": job_id, "task_name": task, "stopped": not over, "ended": over})
        elif over:
            say(f"{what} has ended before ({over}); there was nothing to stop")
        else:
            say(f"{what} is being stopped at every node")


@commands.command("timeline")
def timeline(job_id: JobId, config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False) -> None:
    """Show all that happened to a job here, in its order: the first thing to read when a job surprises.

    Example: bfia-gateway job timeline job-0123456789abcdef0123456789abcdef
    """
    with reporting(as_json), connect(config, url) as node:
        found = node.get(f"/api/v1/jobs/{segment(job_id)}/timeline")
        if as_json:
            show(found)
            return
        rows = [[e["at"][:23], e["side"], e["event"], e["by"], _detail(e["detail"])] for e in found["timeline"]]
        table(job_id, ["at (UTC)", "as", "what", "by", "more"], rows)


@commands.command("logs")
def logs(
    job_id: JobId,
    task: Task = "",
    party: Party = "",
    tail: Annotated[int, typer.Option(min=0, help="Only so many lines at the end; 0: all.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run is over.")] = False,
    level: Annotated[Level, typer.Option(help="info: warnings, too, and worse; debug: all.")] = Level.DEBUG,
    stream: Annotated[Stream | None, typer.Option(help="One of the two; without it both.")] = None,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
) -> None:
    """Print what a run here wrote.

    A line's level is what it says of itself; one that says nothing is info on stdout, and error on stderr.

    Example: bfia-gateway job logs job-0123456789abcdef0123456789abcdef --task secureboost --level error --follow
    """
    with reporting(), connect(config, url) as node:
        run = _run(_job(node, job_id), task, party)
        path, wanted = run["log"], {"tail": tail or None, "level": level, "stream": stream}
        if not follow:
            line = None
            for line in node.lines(path, **wanted):
                say(line)
            if line is None:
                text = "wrote nothing" if level is Level.DEBUG and stream is None else "wrote no such line"
                say(f"{run['party']} of {run['task_name']} ({run['status']}) {text}", err=True)
            return
        event = ""
        for line in node.lines(path, follow=1, **wanted):
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            elif line.startswith("data: ") and event != "end":
                say(line.removeprefix("data: "), err=event == "stderr")


@commands.command("outputs")
def outputs(job_id: JobId, config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False) -> None:
    """List what a job's runs left here: tables, models, reports.

    Example: bfia-gateway job outputs job-0123456789abcdef0123456789abcdef
    """
    with reporting(as_json), connect(config, url) as node:
        found = node.get(f"/api/v1/jobs/{segment(job_id)}/outputs")
        if as_json:
            show(found)
            return
        rows = [
            [o["task"], o["party"], o["key"], o["output"], "yes" if o["there"] else "no", _short(o["value"])]
            for o in found["outputs"]
        ]
        table(f"outputs of {job_id} here", ["task", "party", "key", "is the", "there", "content"], rows)


@commands.command("download")
def download(
    job_id: JobId,
    task: Annotated[str, typer.Argument(help="Name of the task.")],
    key: Annotated[str, typer.Argument(help="Key of the output in the flow.")],
    party: Party = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; default: the key.")] = None,
    force: Force = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
) -> None:
    """Save one output.

    Example: bfia-gateway job download job-0123456789abcdef0123456789abcdef intersect train_data -o common.csv
    """
    with reporting(), connect(config, url) as node:
        label = party or str(_run(_job(node, job_id), task, "")["party"])
        target = output or Path(key)
        with fitting():
            new_file(target, force)
        path = f"/api/v1/jobs/{segment(job_id)}/outputs/{segment(task)}/{segment(label)}/{segment(key)}/download"
        size = node.download(path, target)
        say(f"{target}: {amount(size)}")


def _over(job: Mapping[str, Any], task: str) -> str:
    """Return how a job, or one task of it, has ended; empty where it has not."""
    if job["status"] in OVER:
        return f"{job['status']} {job.get('outcome') or ''}".strip()
    states = [t["status"] for t in job["tasks"] if task and t["name"] == task]
    return next((s for s in states if s in ("SUCCESS", "FAILED")), "")


def _job(node: Client, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = node.get(f"/api/v1/jobs/{segment(job_id)}")
    for run in job["runs"]:
        run["party"] = f"{run['party']['role']}.{run['party']['index']}"
    return job


def _run(job: Mapping[str, Any], task: str, party: str) -> dict[str, Any]:
    """Return the one run that is meant, the newest attempt of it. Raises `CallFailed` where that is not clear."""
    fits = [r for r in job["runs"] if (not task or r["task_name"] == task) and (not party or r["party"] == party)]
    names = {(r["task_name"], r["party"]) for r in fits}
    if len(names) != 1:
        known = ", ".join(f"--task {r['task_name']} --party {r['party']}" for r in job["runs"]) or "none"
        what = "no run here is" if not names else "more than one run here is"
        raise CallFailed(f"{what} meant by that; there are: {known}", EXIT_BAD_INPUT)
    return max(fits, key=_attempt)


def _attempt(run: Mapping[str, Any]) -> int:
    return int(run.get("attempt", 0))


def _watch(node: Client, job_id: str, as_json: bool) -> None:
    """Show the job until it is over. Leaves with exit code 1 where it has not succeeded."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    job: Mapping[str, Any] = {}
    with Live(console=Console(stderr=as_json), refresh_per_second=8, transient=as_json) as live:
        try:
            for job, trouble in looks(lambda: _job(node, job_id), tell=lambda text: say(text, err=True)):
                tree = _tree(job, briefly=True)
                live.update(Group(tree, Text(trouble, style="yellow")) if trouble else tree)
        except KeyboardInterrupt:
            if not job or not job["outcome"]:
                say(f"the job goes on: bfia-gateway job watch {job_id}, or job stop {job_id}", err=True)
            raise
    if not live.console.is_terminal:
        live.console.print()  # in a pipe the last line is left open
    if as_json:
        show(job)
    if job["outcome"] != "SUCCEEDED":
        raise typer.Exit(EXIT_FAILED)


def _tree(job: Mapping[str, Any], *, briefly: bool = False) -> Any:
    """Draw tasks by parties, the progress, and what is to be known; ``briefly``: not every warning."""
    from rich.console import Group, RenderableType
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    job = harmless_in(job)
    nodes = list(dict.fromkeys(p["node"] for p in job["parties"]))
    roles = {n: ", ".join(p["role"] for p in job["parties"] if p["node"] == n) for n in nodes}
    cells = Table(box=None, pad_edge=False)
    for heading in ("task", *(f"{node} ({roles[node]})" for node in nodes), ""):
        cells.add_column(Text(heading), overflow="fold")
    for task in job["tasks"]:
        states = []
        for node in nodes:
            by_role = dict(task["nodes"].get(node, {}))
            same = set(by_role.values())
            text = next(iter(same)) if len(same) == 1 else " ".join(f"{r} {s}" for r, s in by_role.items())
            states.append(Text(text or "–", style=_STYLE.get(text, "dim")))
        cells.add_row(Text(task["name"]), *states, Text(_why(task), style="dim"))
    line = Table.grid(padding=(0, 1))
    outcome = f" {job['outcome']}" if job.get("outcome") else ""
    line.add_row(
        ProgressBar(total=100, completed=job["progress"], width=40),
        Text(f"{job['status']}{outcome}, {job['progress']} %"),
    )
    said: list[RenderableType] = [
        Text(f"{job['job_id']}, scheduled by {job['scheduler']}", style="bold"),
        cells,
        line,
    ]
    if why := _why(job):
        said.append(Text(why, style="red" if job.get("failure") else "dim"))
    if before := lineage(job):
        said.append(Text(before, style="dim"))
    said += [Text(line, style="dim") for line in last_words(job)]
    odd = warnings(job)
    lines = in_short(odd, job["job_id"]) if briefly else [f"warning: {one}" for one in odd]
    said += [Text(line, style="yellow") for line in lines]
    return Group(*said)


def _why(what: Mapping[str, Any]) -> str:
    """Say why something failed, or what it waits for where the node tells."""
    failure = what.get("failure")
    if failure:
        where = " ".join(f"{k} {failure[k]}" for k in ("task", "role", "node") if failure.get(k))
        said = f": {failure['message']}" if failure.get("message") else ""
        return f"{failure['reason']}" + (f" ({where})" if where else "") + said
    waiting = what.get("waiting")
    if isinstance(waiting, Mapping):
        return f"{waiting.get('reason')}: {waiting.get('message')}"
    return ""


def _detail(detail: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {_flat(v)}" for k, v in detail.items() if v not in _NOTHING)[:300]


_NOTHING: tuple[Any, ...] = (None, "", {}, [])


def _flat(value: Any) -> str:
    """Return a value of the timeline as people write it."""
    match value:
        case Mapping():
            return "; ".join(f"{k} {_flat(v)}" for k, v in value.items() if v not in _NOTHING)
        case list():
            return ", ".join(map(_flat, value))
        case bool():
            return "yes" if value else "no"
    return str(value)


def _short(value: Any, longest: int = 60) -> str:
    text = "" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _print(what: Any) -> None:
    from rich.console import Console

    Console().print(what)
