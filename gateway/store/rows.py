"""The rows that stand beside the records of jobs: of tasks, of runs, of the timeline."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from gateway.domain.job import Job, Task
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Note
from gateway.domain.states import TaskStatus
from gateway.store.serialization import dumps


def note_row(job_id: str, side: str, note: Note) -> dict[str, Any]:
    """Return a timeline's line as a row; texts are cut to the columns."""
    return {
        "job_id": job_id,
        "side": side,
        "at": note.at.timestamp() if note.at.year > 1 else 0.0,
        "event": note.event[:255],
        "actor": note.by[:255],
        "detail": dumps(note.detail),
    }


def tasks_of(job: Job) -> Iterable[Task]:
    """Return what has rows of its own in a scheduler's record."""
    return job.tasks.values()


def task_rows(job_id: str, task: Task) -> Iterator[dict[str, Any]]:
    """Yield the row of a task, and those of its earlier attempts, which had other ids."""
    number, status = task.attempt, str(task.status)
    yield {"task_id": task.task_id, "job_id": job_id, "name": task.name, "status": status, "attempt": number}
    for past in task.attempts:
        status = str(TaskStatus.FAILED)
        yield {
            "task_id": past.task_id,
            "job_id": job_id,
            "name": task.name,
            "status": status,
            "attempt": past.number,
        }


def runs_of(local: LocalJob) -> Iterable[Run]:
    """Return what has rows of its own in a participant's record."""
    return local.runs


def run_rows(job_id: str, run: Run) -> Iterator[dict[str, Any]]:
    """Yield the row by which a run is found: by its id, its name, its token, its task."""
    yield {
        "run_id": run.run_id,
        "name": run.name,
        "token": run.token,
        "job_id": job_id,
        "task_id": run.task_id,
        "role": run.party.role,
        "idx": run.party.index,
        "attempt": run.attempt,
        "status": str(run.status),
        "owner": run.owner,
    }


def as_time(seconds: float) -> datetime:
    """Return the time that a column holds as seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC)
