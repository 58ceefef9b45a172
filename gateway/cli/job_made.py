"""A job that a command has just made: its id, what is odd about it, and where a refused one is kept."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.cli.client import CallFailed, Client, segment
from gateway.cli.console import say
from gateway.text import counted

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
