"""What the paths for peers say and hear: answers from what is known here, and FATE's words into ours."""

from datetime import UTC, datetime
from typing import Any, TypeVar

from adapter.fate import wire
from adapter.fate.keys import key_of
from adapter.fate.requests import Asker
from adapter.fate.reruns import number_of
from adapter.fate.said import failure_of
from adapter.fate.states import OUR_OUTCOME, REASONS, JobWord, TaskWord, job_word
from gateway.domain.job import Acceptance
from gateway.domain.outward import told
from gateway.domain.problems import Problem
from gateway.domain.run import LocalJob
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import TaskStatus
from gateway.errors import GatewayError, Invalid, NotFound
from gateway.ports import TaskNews

W = TypeVar("W", JobWord, TaskWord)

_TRIES = 3
"""how many versions FATE may leave out: it counts on where a party could not be told of one"""


def accepted(said: Acceptance) -> dict[str, Any]:
    """Return what a gateway like this one reads beside yes."""
    found: dict[str, Any] = {} if said.inherited is None else {"inherited": list(said.inherited)}
    return found | ({"waits": True, "within": said.within} if said.waits else {})


def check_task(local: LocalJob, name: str) -> None:
    """Raise `NotFound` for a task that the flow does not have."""
    if local.spec.dag.get(name) is None:
        raise NotFound(f"job {local.id} has no task {name or '(its id does not tell)'}", reason="TASK_UNKNOWN")


def not_started(local: LocalJob, job_id: str, name: str, version: int, error: GatewayError) -> TaskNews:
    """Tell of a version of a task that was not started here: it waits, or was taken over; else raise."""
    check_task(local, name)
    if any(run.task_name == name for run in local.inherited) and name in (local.can_inherit or ()):
        return TaskNews(TaskStatus.SUCCESS)
    ids = {run.task_id for run in local.runs if run.task_name == name}
    last = max((key_of(found).version for found in ids), default=-1)
    if not last < version <= max(last, _TRIES * number_of(local, job_id)) + _TRIES:
        raise error
    return TaskNews(TaskStatus.PENDING)


def collected(
    body: wire.Task, word: TaskWord, news: TaskNews, local: LocalJob | None, task_id: str
) -> dict[str, Any]:
    """Return what a FATE site collects of a task at one party: its state, and times in milliseconds."""
    role = body.role.partition(".")[0]
    runs = local.runs_of(task_id, role) if local is not None else ()
    begun = _ms(min((run.started_at for run in runs if run.started_at), default=None))
    ended = _ms(max((run.ended_at for run in runs if run.ended_at), default=None))
    over = word not in (TaskWord.WAITING, TaskWord.RUNNING)
    data: dict[str, Any] = {
        "job_id": body.job_id,
        "role": body.role,
        "party_id": body.party_id,
        "task_id": body.task_id,
        "task_version": body.task_version,
        "status": str(word),
        "party_status": str(word),
        "start_time": begun,
        "end_time": ended if over else None,
        "update_time": ended or begun,
        "elapsed": ended - begun if over and ended is not None and begun is not None else None,
    }
    if over and news.failure is not None:
        data["failed_by"] = told(news.failure.as_dict())
    return data


def _ms(moment: datetime | None) -> int | None:
    """Return milliseconds since 1970."""
    return None if moment is None else round(moment.timestamp() * 1000)


def end_of(word: JobWord | None, failed_by: Any, who: Asker, local: LocalJob) -> Ending | None:
    """Return the end that is told; FATE does not say why a job failed: what failed here is then the reason."""
    if word is None or word not in OUR_OUTCOME:
        return None
    failure = failure_of(failed_by)
    if failure is None and word in (JobWord.FAILED, JobWord.TIMEOUT):
        last = {(run.task_name, run.party): run for run in local.runs}.values()
        failure = next((run.failure for run in last if run.failure and run.failure.reason != "STOPPED"), None)
    if failure is None and word is not JobWord.SUCCESS:
        failure = Failure(REASONS[word], f"{who.node} says that the job is {word}", who.node)
    return Ending(OUR_OUTCOME[word], datetime.now(UTC), failure, who.node)


def word_in(words: type[W], text: str) -> W:
    """Read a state. Raises `Invalid` (STATUS_UNKNOWN) with the words there are."""
    try:
        return words(text)
    except ValueError:
        problem = Problem("status", f"must be one of {', '.join(words)}", text)
        raise Invalid([problem], reason="STATUS_UNKNOWN") from None


def shown(local: LocalJob) -> str:
    """Return FATE's word for how a job is at this node."""
    outcome = local.ending.outcome if local.ending else None
    return job_word(local.status, outcome, local.ending.failure if local.ending else None)
