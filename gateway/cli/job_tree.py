"""A job as a terminal shows it: its tasks by party, its progress, and the notes about it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bfia_gateway_client.errors import harmless
from gateway.cli.job_notes import (
    channel_lines,
    last_lines,
    lineage,
    silent_engines,
    warning_lines,
    warnings,
)
from gateway.cli.language import t
from gateway.cli.values import lasted

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

_STYLES = {
    "SUCCESS": "green",
    "RUNNING": "yellow",
    "FAILED": "red",
    "STOPPED": "red",
}
# Once a job has ended, these states of a task only mean that it never began.
_NOT_BEGUN = {"PENDING", "READY"}


def draw_job(
    job: Mapping[str, Any],
    *,
    warning_limit: int | None = None,
    advice: Sequence[str] = (),
) -> "Group":
    """Return a job's tasks by node, its progress, why it failed, ``advice``, and notes."""
    from rich.console import Group

    title = t(f"{job['job_id']}, scheduled by {job['scheduler']}")
    parts: list[RenderableType] = [_text(title, "bold")]
    parts += [_text(t(line), "dim") for line in _ownership(job)]
    parts += [_task_table(job), _progress_line(job)]
    parts += _explanations(job)
    parts += [_text(line) for line in advice]
    for line in (*lineage(job), *channel_lines(job), *silent_engines(job)):
        parts.append(_text(t(line), "dim"))
    parts += [_text(line, "dim") for line in last_lines(job)]
    for line in warning_lines(warnings(job), job["job_id"], warning_limit):
        parts.append(_text(t(line), "yellow"))
    return Group(*parts)


def _text(words: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(harmless(words), style=style)


def _ownership(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield the job's owner, when it was created, and how long it has run."""
    created = job.get("created_at")
    if not created:
        return
    ended = job.get("ended_at")
    if ended:
        duration, verb = lasted(created, ended), "took"
    else:
        duration, verb = lasted(job.get("started_at"), None), "running for"
    took = ""
    if duration:
        took = f", {verb} {duration}"
    owner = job.get("user") or job.get("initiator") or ""
    yield f"of {owner}, created {created[:19].replace('T', ' ')} UTC{took}"


# ---------------------------------------------------------------- tasks and progress


def _task_table(job: Mapping[str, Any]) -> "Table":
    from rich.table import Table

    roles_by_node: dict[str, list[str]] = {}
    for party in job["parties"]:
        roles_by_node.setdefault(party["node"], []).append(party["role"])
    table = Table(box=None, pad_edge=False)
    table.add_column(_text(t("task")), overflow="fold")
    for node, roles in roles_by_node.items():
        table.add_column(_text(f"{node} ({', '.join(roles)})"), overflow="fold")
    table.add_column(_text(""), overflow="fold")
    for task in job["tasks"]:
        states = [_task_state(task, node, job) for node in roles_by_node]
        cells = [_text(state or "–", _STYLES.get(state, "dim")) for state in states]
        reason = ""
        if not _failed_like_its_job(task, job):
            reason = t(_reason_text(task))
        table.add_row(_text(task["name"]), *cells, _text(reason, "dim"))
    return table


def _task_state(task: Mapping[str, Any], node: str, job: Mapping[str, Any]) -> str:
    """Return a task's state at a node, or the state of each role if they differ."""
    stopped = (task.get("failure") or {}).get("reason") == "STOPPED"
    states = {}
    for role, state in task["nodes"].get(node, {}).items():
        if job.get("outcome") and state in _NOT_BEGUN:
            continue
        if stopped and state == "FAILED":
            state = "STOPPED"
        states[role] = state
    if len(set(states.values())) == 1:
        return str(next(iter(states.values())))
    return " ".join(f"{role} {state}" for role, state in states.items())


def _progress_line(job: Mapping[str, Any]) -> "Table":
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    line = Table.grid(padding=(0, 1))
    states = [job["status"], job.get("outcome")]
    state = " ".join(dict.fromkeys(filter(None, states)))
    cells: list[RenderableType] = [_text(f"{state}, {job['progress']} %")]
    if job["progress"] and job.get("outcome") in (None, "SUCCEEDED"):
        cells.insert(0, ProgressBar(total=100, completed=job["progress"], width=40))
    line.add_row(*cells)
    return line


# ---------------------------------------------------------------- failures


def _explanations(job: Mapping[str, Any]) -> Iterator["Text"]:
    """Yield why each node refused the job, else why it failed or what it waits for."""
    style = "dim"
    if job.get("failure"):
        style = "red"
    subjects: list[Mapping[str, Any]] = [job]
    if job.get("refusals"):
        subjects = [{"failure": refusal} for refusal in job["refusals"]]
    for subject in subjects:
        reason = _reason_text(subject)
        if reason:
            yield _text(t(reason), style)


def _failed_like_its_job(task: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """True if the task's failure is the job's own, which is printed once below the table."""
    failure = task.get("failure")
    if not failure:
        return False
    job_failure = job.get("failure") or {}
    return all(failure[key] == job_failure.get(key) for key in ("reason", "message"))


def _reason_text(subject: Mapping[str, Any]) -> str:
    """Return why a job or task failed, else what it waits for, else an empty text."""
    failure = subject.get("failure")
    if failure:
        return _failure_text(failure)
    waiting = subject.get("waiting") or {}
    if waiting.get("reason") == "JOB":  # the message names the cause by itself
        return str(waiting["message"]).rpartition(": ")[2]
    return ": ".join(str(waiting[key]) for key in ("reason", "message") if waiting.get(key))


def _failure_text(failure: Mapping[str, Any]) -> str:
    reason = failure["reason"]
    places = [f"{t(key)} {failure[key]}" for key in ("task", "role", "node") if failure.get(key)]
    heading = reason
    if places:
        heading += f" ({' '.join(places)})"
    message = _without_prefixes(failure["message"], f"{failure.get('node')}: ", f"{reason}: ")
    message = message.replace(f" {reason}: ", " ")
    return ": ".join(filter(None, (heading, message)))


def _without_prefixes(message: str, *prefixes: str) -> str:
    """Remove the prefixes that each node put before the message when it passed it on."""
    while message.startswith(prefixes):
        for prefix in prefixes:
            message = message.removeprefix(prefix)
    return message
