"""How a peer's answer to ``status_all`` is read; what it does not say is inferred from the states of its tasks."""

from collections.abc import Mapping, Sequence
from typing import Any

from adapter.bfia import translate
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import NotFound, Refused
from gateway.ports import JobView, TaskView, as_mapping


def job_view(job_id: str, data: Mapping[str, Any]) -> JobView:
    """Return what a peer says of a job.

    Raises `NotFound` where its answer, by its code a success, is an empty object: so FATE's nodes say that they do
    not know the job. Raises `Refused` (NO_ENVELOPE) where it says something, and nothing of the job's state.
    """
    if not data:
        raise NotFound(f"job {job_id} is not known there", reason="JOB_UNKNOWN")
    told_states = data.get("status", "")  # null: the job has no tasks yet
    if not data.get("job_status") and not isinstance(told_states, Mapping | None):
        raise Refused(f"a success without a state of job {job_id} was answered", reason="NO_ENVELOPE")
    states = {str(k): translate.heard_status(v) for k, v in as_mapping(told_states).items()}
    status = translate.job_status(str(data.get("job_status") or "")) or status_of(set(states.values()))
    tasks = data.get("tasks")
    told = {str(t.get("task_id")): t for t in (tasks if isinstance(tasks, list) else ()) if isinstance(t, Mapping)}
    word = data.get("outcome")
    outcome = Outcome(word) if isinstance(word, str) and word in Outcome.__members__ else None
    outcome = outcome or outcome_of(status, list(states.values()))
    progress = data.get("progress")
    if not isinstance(progress, int) or isinstance(progress, bool) or not 0 <= progress <= 100:
        progress = progress_of(outcome, list(states.values()))
    return JobView(
        job_id,
        status,
        [_task_view(key, state, told.get(key, {})) for key, state in states.items()],
        outcome,
        translate.failure_of(as_mapping(data.get("failed_by"))),
        progress,
        scheduler=str(data.get("scheduler") or ""),
        waiting=translate.waiting_of(as_mapping(data.get("waiting"))),
        parties=[translate.party_of(p) for p in _entries(data.get("parties"))],
        tolerated=[str(name) for name in _list(data.get("tolerated"))],
        old_job_id=str(data.get("old_job_id") or ""),
        origin=translate.origin(data.get("rerun_of")),
    )


def outcome_of(status: JobStatus, states: Sequence[TaskStatus]) -> Outcome | None:
    """Return how a job ended whose node does not say so; None where its tasks do not tell either."""
    if status is JobStatus.REJECTED:
        return Outcome.REJECTED
    if status is not JobStatus.FINISHED or not states:
        return None
    if TaskStatus.FAILED in states:
        return Outcome.FAILED
    return Outcome.SUCCEEDED if set(states) == {TaskStatus.SUCCESS} else None


def progress_of(outcome: Outcome | None, states: Sequence[TaskStatus]) -> int:
    """Return the progress of a job whose node does not tell it, counted as `gateway.domain.job.Job` does."""
    if outcome is Outcome.SUCCEEDED:
        return 100
    return min(99, 100 * states.count(TaskStatus.SUCCESS) // len(states)) if states else 0


def status_of(found: set[TaskStatus]) -> JobStatus:
    """Return the state of a job whose tasks are in these states."""
    if found <= {TaskStatus.PENDING}:
        return JobStatus.PENDING
    over = found <= {TaskStatus.SUCCESS} or TaskStatus.FAILED in found
    return JobStatus.FINISHED if over else JobStatus.RUNNING


def _task_view(task_id: str, status: TaskStatus, told: Mapping[str, Any]) -> TaskView:
    """Return a task's state, and what else is told of it: name, why it failed, how it is at each party."""
    parties = {
        str(node): {str(role): translate.heard_status(state) for role, state in as_mapping(roles).items()}
        for node, roles in as_mapping(told.get("parties")).items()
    }
    failure = translate.failure_of(as_mapping(told.get("failed_by")))
    past = translate.attempts(told.get("attempts"))
    name = str(told.get("task_name") or task_id)
    why = translate.waiting_of(as_mapping(told.get("waiting")))
    origin = translate.lineage(told.get("inherited"))
    return TaskView(task_id, name, status, failure, parties, None, len(past), past, why, origin)


def _list(said: Any) -> list[Any]:
    return said if isinstance(said, list) else []


def _entries(said: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in _list(said) if isinstance(entry, Mapping)]
