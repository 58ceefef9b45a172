"""A job as a terminal shows it: its tasks by party, its progress, and the notes about it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from gateway.cli.values import elapsed

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
# Once a job has ended, these states of a task only mean that it was never started.
_NOT_STARTED = {"PENDING", "READY"}


def draw_job(
    job: Mapping[str, Any],
    *,
    warning_limit: int | None = None,
    advice: Sequence[str] = (),
) -> "Group":
    """Return a job's tasks by node, its progress, why it failed, ``advice``, and notes.

    ``warning_limit``: how many warnings are shown; None: all.
    """
    from rich.console import Group

    title = t(f"{job['job_id']}, scheduled by {job['scheduler']}")
    notes = [*lineage(job), *channel_lines(job), *silent_engines(job)]
    warnings_of_job = warning_lines(warnings(job), job["job_id"], warning_limit)
    return Group(
        _text(title, "bold"),
        *_texts(_ownership(job), "dim"),
        _task_table(job),
        _progress_line(job),
        *_explanations(job),
        *_texts(advice),
        *_texts(map(t, notes), "dim"),
        *_texts(last_lines(job), "dim"),
        *_texts(map(t, warnings_of_job), "yellow"),
    )


def _text(words: str, style: str = "") -> "Text":
    """Return text that does not steer the terminal."""
    from rich.text import Text

    return Text(harmless(words), style=style)


def _texts(lines: Iterable[str], style: str = "") -> list["Text"]:
    """Return lines as texts of one style."""
    return [_text(line, style) for line in lines]


def _ownership(job: Mapping[str, Any]) -> list[str]:
    """Return a line with the job's owner, the time of its creation and its duration.

    A node that does not know the time, as it only takes part in the job, has no such line.
    """
    created = job.get("created_at")
    if not created:
        return []
    owner = job.get("user") or job.get("initiator") or ""
    duration = _duration(job)
    return [t(f"of {owner}, created {created[:19].replace('T', ' ')} UTC{duration}")]


def _duration(job: Mapping[str, Any]) -> str:
    """Return how long the job took, or has been running; an empty text before its start.

    A job that has ended took the time since its creation, including its wait for the start. A job
    that is running has been running since its start.
    """
    if job.get("ended_at"):
        return f", took {elapsed(job['created_at'], job['ended_at'])}"
    running = elapsed(job.get("started_at"), None)
    if running:
        return f", running for {running}"
    return ""


# ---------------------------------------------------------------- tasks and progress


def _task_table(job: Mapping[str, Any]) -> "Table":
    """Return a table with a row per task: its state at each node, and why it failed or waits."""
    from rich.table import Table

    roles_by_node: dict[str, list[str]] = {}
    for party in job["parties"]:
        roles_by_node.setdefault(party["node"], []).append(party["role"])
    table = Table(box=None, pad_edge=False)
    headings = [t("task")]
    headings += [f"{node} ({', '.join(roles)})" for node, roles in roles_by_node.items()]
    for heading in [*headings, ""]:
        table.add_column(_text(heading), overflow="fold")
    for task in job["tasks"]:
        states = [_task_state(task, node, job) for node in roles_by_node]
        reason = "" if _failed_like_its_job(task, job) else t(_reason_text(task))
        table.add_row(_text(task["name"]), *map(_state_text, states), _text(reason, "dim"))
    return table


def _state_text(state: str) -> "Text":
    """Return a state in its colour; a dash for an empty one."""
    return _text(state or "–", _STYLES.get(state, "dim"))


def _task_state(
    task: Mapping[str, Any],
    node: str,
    job: Mapping[str, Any],
) -> str:
    """Return a task's state at a node, or the state of each role if they differ."""
    states = _states_by_role(task, node, job)
    distinct = set(states.values())
    if len(distinct) == 1:
        return distinct.pop()
    return " ".join(f"{role} {state}" for role, state in states.items())


def _states_by_role(
    task: Mapping[str, Any],
    node: str,
    job: Mapping[str, Any],
) -> dict[str, str]:
    """Return a task's states at a node as people see them.

    A stopped task is called STOPPED and not FAILED. In an ended job, parties that were never
    started have no state.
    """
    was_stopped = (task.get("failure") or {}).get("reason") == "STOPPED"
    hidden = _NOT_STARTED if job.get("outcome") else set()
    states = {}
    for role, state in task["nodes"].get(node, {}).items():
        if was_stopped and state == "FAILED":
            states[role] = "STOPPED"
        elif state not in hidden:
            states[role] = str(state)
    return states


def _progress_line(job: Mapping[str, Any]) -> "Table":
    """Return the job's state and percentage, after a bar if the job has progressed and did not
    fail.
    """
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    line = Table.grid(padding=(0, 1))
    states = [job["status"], job.get("outcome")]
    state = " ".join(dict.fromkeys(filter(None, states)))
    cells: list[RenderableType] = [_text(f"{state}, {job['progress']} %")]
    if job["progress"] and job.get("outcome") in (None, "SUCCEEDED"):
        cells.insert(
            0,
            ProgressBar(total=100, completed=job["progress"], width=40),
        )
    line.add_row(*cells)
    return line


# ---------------------------------------------------------------- failures


def _explanations(job: Mapping[str, Any]) -> Iterator["Text"]:
    """Yield each node's refusal of the job; without one, why the job failed or waits."""
    style = "red" if job.get("failure") else "dim"
    reasons = [_failure_text(refusal) for refusal in job.get("refusals") or ()]
    for reason in reasons or [_reason_text(job)]:
        if reason:
            yield _text(t(reason), style)


def _failed_like_its_job(
    task: Mapping[str, Any],
    job: Mapping[str, Any],
) -> bool:
    """True if the task's failure is the job's own, which is printed once below the table."""
    failure = task.get("failure")
    if not failure:
        return False
    job_failure = job.get("failure") or {}
    return all(failure[key] == job_failure.get(key) for key in ("reason", "message"))


def _reason_text(subject: Mapping[str, Any]) -> str:
    """Return the failure of a job or task, else the cause of its waiting, else an empty text."""
    failure = subject.get("failure")
    if failure:
        return _failure_text(failure)
    return _waiting_text(subject.get("waiting") or {})


def _waiting_text(waiting: Mapping[str, Any]) -> str:
    """Return the cause of waiting; an empty text without one."""
    reason = str(waiting.get("reason") or "")
    message = str(waiting.get("message") or "")
    if reason == "JOB":  # a task that waits with its job: "the job waits: APPROVAL"
        return message.rpartition(": ")[2]
    return ": ".join(filter(None, (reason, message)))


def _failure_text(failure: Mapping[str, Any]) -> str:
    """Return a failure's reason, its task, role and node if known, and its message."""
    reason = str(failure["reason"])
    places = [f"{t(key)} {failure[key]}" for key in ("task", "role", "node") if failure.get(key)]
    heading = reason
    if places:
        heading += f" ({' '.join(places)})"
    message = _without_prefixes(failure["message"], f"{failure.get('node')}: ", f"{reason}: ")
    message = message.replace(f" {reason}: ", " ")  # the heading has the reason already
    if message:
        return f"{heading}: {message}"
    return heading


def _without_prefixes(message: str, *prefixes: str) -> str:
    """Remove the prefixes that each node put before the message when it passed it on."""
    while message.startswith(prefixes):
        for prefix in prefixes:
            message = message.removeprefix(prefix)
    return message
