"""Which tasks take too long, and what becomes of an attempt that failed while another one is left.

An attempt that failed is stopped at every node. Once it is over at each of them, and no start or stop of it can
still be on its way, the task begins again under a new id: nodes take a known id for one that was started already.
Until the last attempt has failed the task's own state stays what it was: none of the standard's states goes back.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from gateway.domain.job import Attempt, Job, NodeTask, Task
from gateway.domain.spec import Call, CallState, Ending, Failure
from gateway.domain.states import TASK, JobStatus, Outcome, TaskStatus, ended, merge

# The ids of a task's attempts: opaque, or such that they tell the task and the attempt.
#
# Nodes that know a task only by its name and the number of its attempt need the second kind; a job whose first
# attempts have it keeps to it.


def telling(job_id: str, task: str, attempt: int) -> str:
    """Return an id that tells what it is the id of."""
    return f"{job_id}_{task}_{attempt}"


def following(job_id: str, task: str, attempt: int, before: str) -> str:
    """Return the id of an attempt after the one with the id ``before``: of the same kind.

    It is always the same one, so that two planners agree on it.
    """
    if before == telling(job_id, task, attempt - 1):
        return telling(job_id, task, attempt)
    return "task_" + hashlib.sha256(f"{job_id}\n{task}\n{attempt}".encode()).hexdigest()[:32]


NOT_WORTH_IT = frozenset(
    {
        "COMMAND_NOT_FOUND",
        "COMPONENT_UNKNOWN",
        "DATASET_DISABLED",
        "IMAGE_NOT_FOUND",
        "INPUT_MISSING",
        "INVALID",
        "JOB_ENDED",
        "JOB_UNKNOWN",
        "NOT_AUTHORISED",
        "NOT_STOPPED",
        "NO_ROLE_HERE",
        "PROVIDER_RETIRED",
        "PROVIDER_UNKNOWN",
        "PULL_DENIED",
        "RESOURCES_NEVER",
        "SIGNATURE_INVALID",
        "SIGNATURE_ABSENT",
        "STOPPED",
        "TASK_ID_CONFLICT",
        "TASK_UNKNOWN",
        "VERSION_UNKNOWN",
    }
)
"""Reasons that another attempt would meet again, or that were intended."""


@dataclass(frozen=True)
class TimeOut:
    """Not a request: the decision that a task, or the whole job (``task`` empty), takes too long."""

    task: str = ""


@dataclass(frozen=True)
class TryAgain:
    """Not a request: the decision that the next attempt of a task begins."""

    task: str


Decision = TimeOut | TryAgain

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def decisions(job: Job, call_deadline: float, timeout: float) -> Iterator[tuple[datetime, Decision]]:
    """Yield the decisions that time alone brings, each with its moment.

    ``call_deadline``: seconds after which a call can no longer be on its way. ``timeout``: seconds that an
    attempt may go on at a node which has answered its stop.
    """
    rules = job.spec.time_limits
    if rules.none or job.status is not JobStatus.RUNNING:
        return
    if rules.job_timeout is not None and job.started_at is not None:
        yield job.started_at + timedelta(seconds=rules.job_timeout), TimeOut()
    for task in job.tasks.values():
        if ended(TASK, task.status) or task.ending is not None:
            continue
        if task.again_from is None:
            limit = rules.of(task.name).timeout
            if limit is not None and task.started_at is not None:
                yield task.started_at + timedelta(seconds=limit), TimeOut(task.name)
            continue
        parts = task.nodes.values()
        if all(map(over, parts)):
            again = task.again_from + timedelta(seconds=rules.of(task.name).retry_delay)
            calls = [call for part in parts for call in (part.start, part.stop)]
            yield max([again, *(_landed(call, call_deadline) for call in calls)]), TryAgain(task.name)
        else:
            yield from ((when, TimeOut(task.name)) for part in parts if (when := _goes_on(part, timeout)))


def _goes_on(part: NodeTask, timeout: float) -> datetime | None:
    """Return when a node had had time enough to end its part, if it was asked later and has not."""
    if over(part) or part.stop.sent_at is None or part.poll.sent_at is None:
        return None
    late = part.stop.sent_at + timedelta(seconds=timeout)
    asked = part.stop.completed and part.poll.state is CallState.OK and part.poll.sent_at >= late
    return late if asked else None


def over(part: NodeTask) -> bool:
    """Say whether nothing of the attempt is left at a node: it ended there, or certainly never began."""
    return part.start.state is CallState.IDLE or all(ended(TASK, status) for status in part.roles.values())


def _landed(call: Call, call_deadline: float) -> datetime:
    """Return when a call certainly does not arrive any more; of one that was made twice, the first may be late."""
    if call.sent_at is None or (call.completed and call.tries < 2):
        return _LONG_AGO
    return call.sent_at + timedelta(seconds=call_deadline)


def wanted(job: Job, task: Task) -> bool:
    """Whether a task that has just failed is to be retried."""
    if job.ending is not None or task.ending is not None or job.status is not JobStatus.RUNNING:
        return False
    reason = task.failure.reason if task.failure else ""
    return task.attempt < job.spec.time_limits.of(task.name).retries and reason not in NOT_WORTH_IT


def set_back(job: Job, task: Task, at: datetime) -> Job:
    """Record that an attempt has failed and another follows; from now on it is stopped wherever it runs."""
    failure = task.failure or Failure("FAILED", task=task.name)
    changed = replace(task, again_from=at, failure=failure)
    detail = {**failure.as_dict(), "task": task.name, "task_id": task.task_id, "attempt": task.attempt}
    return job.with_task(changed).noted(at, "attempt failed, another follows", **detail)


def called_off(task: Task) -> Task:
    """Return a task that waits for its next attempt as a stop leaves it: there is none any more."""
    if task.again_from is None or task.ending is None:
        return task
    return replace(task, again_from=None, failure=task.ending.failure or task.failure)


def timed_out(job: Job, name: str, at: datetime) -> Job:
    """Decide that a task takes too long: it is tried again, or fails with all that still runs of it."""
    task = job.tasks[name]
    if task.again_from is not None:
        first = task.failure or Failure("FAILED", task=name)
        text = f"failed ({first.reason} {first.message}) and goes on all the same at {_where(task)}"
        failure = replace(first, reason="NOT_STOPPED", message=text)
    else:
        limit = job.spec.time_limits.of(name).timeout or 0.0
        text = f"not over after {limit:g} s" + (f", at {left}" if (left := _where(task)) else "")
        failure = Failure("TIMEOUT", text, task=name)
        task = replace(task, failure=failure)
        if wanted(job, task):
            return set_back(job, task, at)
    nodes = {node: part.failed() for node, part in task.nodes.items()}
    return job.with_task(replace(task, again_from=None, failure=failure, nodes=nodes))


def job_timed_out(job: Job, at: datetime) -> Ending:
    """Return how a job ends that takes too long."""
    left = [t.name for t in job.tasks.values() if t.status is not TaskStatus.SUCCESS]
    text = (
        f"not over after {job.spec.time_limits.job_timeout or 0.0:g} s; still to succeed: {', '.join(left[:20])}"
    )
    return Ending(Outcome.FAILED, at, Failure("TIMEOUT", text))


def begun_again(job: Job, name: str, at: datetime) -> Job:
    """Begin the next attempt of a task; one that has succeeded everywhere in the meantime has succeeded."""
    task = job.tasks[name]
    if task.reported is TaskStatus.SUCCESS:
        job = job.with_task(replace(task, again_from=None, failure=None))
        return job.noted(at, "success after all", task=name)
    failure = task.failure or Failure("FAILED", task=name)
    past = Attempt(task.attempt, task.task_id, failure, task.started_at, task.again_from)
    number = task.attempt + 1
    changed = replace(
        task,
        task_id=following(job.id, name, number, task.task_id),
        attempt=number,
        attempts=(*task.attempts, past),
        again_from=None,
        failure=None,
        started_at=None,
        nodes={n: NodeTask(n, dict.fromkeys(part.roles, TaskStatus.PENDING)) for n, part in task.nodes.items()},
    )
    return job.with_task(changed).noted(at, "next attempt", task=name, task_id=changed.task_id, attempt=number)


def _where(task: Task) -> str:
    """Name the nodes at which a task is not over, and how it is there."""
    left = {n: [s for s in part.roles.values() if not ended(TASK, s)] for n, part in task.nodes.items()}
    return ", ".join(f"{node} ({merge(open_)})" for node, open_ in left.items() if open_)
