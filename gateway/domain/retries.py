"""What becomes of a task that fails, takes too long or is stopped.

An attempt that failed is stopped at every node. Once it is over at each of them, and no start or stop of it can
still be on its way, the task begins again under a new id: nodes take a known id for one that was started already.
Until the last attempt has failed the task's own state stays what it was: none of the standard's states goes back.

A stop is a decision, made once and kept in `Task.ending`; from then on nothing of the task is started any more,
and whatever else happens to it happens because of the stop. Only a success that was under way still counts.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gateway.domain.dag import downstream
from gateway.domain.job import Attempt, Job, NodeTask, Task
from gateway.domain.settings import JobLimits
from gateway.domain.spec import Call, CallState, Ending, Failure, NodeId
from gateway.domain.states import TASK, JobStatus, Outcome, TaskStatus, ended, may, merge, move
from gateway.domain.timeouts import NOW, Due, Timing, expiry

# The ids of a task's attempts: opaque, or such that they tell the task and the attempt.
#
# Nodes that know a task only by its name and the number of its attempt need the second kind; a job whose first
# attempts have it keeps to it.


def numbered_id(
    job_id: str,
    task: str,
    attempt: int,
) -> str:
    """Return an id made of job, task and attempt."""
    return f"{job_id}_{task}_{attempt}"


def following(
    job_id: str,
    task: str,
    attempt: int,
    before: str,
) -> str:
    """Return the id of an attempt after the one with the id ``before``: of the same kind.

    It is always the same one, so that two planners agree on it.
    """
    if before == numbered_id(job_id, task, attempt - 1):
        return numbered_id(job_id, task, attempt)
    return "task_" + hashlib.sha256(f"{job_id}\n{task}\n{attempt}".encode()).hexdigest()[:32]


_REPEATED = """
    ATTEMPTS_USED_UP COMMAND_NOT_FOUND COMPONENT_UNKNOWN DAEMON_NOT_ALLOWED DATASET_CHANGED DATASET_DISABLED
    DATASET_UNKNOWN DATA_MISSING DIGEST_CHANGED IMAGE_NOT_FOUND INPUT_MISSING INVALID JOB_ENDED JOB_UNKNOWN
    NOT_AUTHORISED NOT_STOPPED NOT_SUPPORTED NO_ROLE_HERE PARAMETERS_CHANGED PROVIDER_RETIRED
    PROVIDER_UNKNOWN PULL_DENIED RESOURCES_NEVER SIGNATURE_ABSENT SIGNATURE_INVALID STOPPED STORAGE_ADDRESSING
    STORAGE_DENIED STORAGE_GONE STORAGE_MISMATCH STORAGE_UNKNOWN TASK_ID_CONFLICT TASK_UNKNOWN VERSION_UNKNOWN
"""
NOT_WORTH_IT = frozenset(_REPEATED.split())
"""Reasons that another attempt would meet again, or that were intended."""


@dataclass(frozen=True)
class TimeOut:
    """Decision: a task, or the whole job (``task`` empty), takes too long."""

    task: str = ""


@dataclass(frozen=True)
class TryAgain:
    """Decision: the next attempt of a task begins."""

    task: str


def decisions(job: Job, timing: Timing) -> Iterator[Due[TimeOut | TryAgain]]:
    """Yield the decisions that time alone brings, each with its moment."""
    rules = job.spec.settings.time_limits
    if rules == JobLimits() or job.status is not JobStatus.RUNNING:
        return
    if rules.job_timeout is not None and job.started_at is not None:
        yield Due(job.started_at + timedelta(seconds=rules.job_timeout), TimeOut())
    for task in job.tasks.values():
        own = rules.of(task.name)
        if ended(TASK, task.status) or task.ending is not None:
            continue
        if task.again_from is None:
            if own.timeout is not None and task.started_at is not None:
                yield Due(task.started_at + timedelta(seconds=own.timeout), TimeOut(task.name))
            continue
        parts = task.nodes.values()
        if all(part.over for part in parts):
            again = task.again_from + timedelta(seconds=own.retry_delay)
            landed = (
                _landed_at(call, timing.call_deadline)
                for part in parts
                for call in (part.start, part.stop)
            )
            yield Due(max([again, *landed]), TryAgain(task.name))
        else:
            given_up = filter(None, (_given_up_at(part, timing.stop_timeout) for part in parts))
            yield from (Due(when, TimeOut(task.name)) for when in given_up)


def _given_up_at(part: NodeTask, timeout: float) -> datetime | None:
    """Return when a node had had time enough to end its part, if it was asked later and has not."""
    if part.over or part.stop.sent_at is None or part.poll.sent_at is None:
        return None
    late = part.stop.sent_at + timedelta(seconds=timeout)
    asked = part.stop.completed and part.poll.state is CallState.OK and part.poll.sent_at >= late
    return late if asked else None


def _landed_at(call: Call, call_deadline: float) -> datetime:
    """Return when a call certainly does not arrive any more; of one that was made twice, the first may be late."""
    return NOW if call.completed and call.tries < 2 else expiry(call, call_deadline)


def is_tried_again(job: Job, task: Task) -> bool:
    """Whether a task that has just failed is to be retried."""
    if job.ending is not None or task.ending is not None or job.status is not JobStatus.RUNNING:
        return False
    reason = task.failure.reason if task.failure else ""
    return (
        task.attempt < job.spec.settings.time_limits.of(task.name).retries
        and reason not in NOT_WORTH_IT
    )


def set_back(
    job: Job,
    task: Task,
    at: datetime,
) -> Job:
    """Record that an attempt has failed and another follows; from now on it is stopped wherever it runs."""
    failure = task.failure or Failure("FAILED", task=task.name)
    detail = {
        **failure.as_dict(),
        "task": task.name,
        "task_id": task.task_id,
        "attempt": task.attempt,
    }
    job = job.with_task(replace(task, again_from=at, failure=failure))
    return job.noted(at, "attempt failed, another follows", **detail)


def timed_out(
    job: Job,
    name: str,
    at: datetime,
) -> Job:
    """Decide that a task takes too long: it is tried again, or fails with all that still runs of it."""
    task = job.tasks[name]
    if task.again_from is not None:
        first = task.failure or Failure("FAILED", task=name)
        text = f"failed ({first.reason} {first.message}) and continues at {_where(task)}"
        failure = replace(first, reason="NOT_STOPPED", message=text)
    else:
        limit = job.spec.settings.time_limits.of(name).timeout or 0.0
        text = f"not over after {limit:g} s" + (f", at {left}" if (left := _where(task)) else "")
        failure = Failure("TIMEOUT", text, task=name)
        task = replace(task, failure=failure)
        if is_tried_again(job, task):
            return set_back(job, task, at)
    nodes = {node: part.failed() for node, part in task.nodes.items()}
    return job.with_task(
        replace(
            task,
            again_from=None,
            failure=failure,
            nodes=nodes,
        )
    )


def job_timed_out(job: Job, at: datetime) -> Ending:
    """Return how a job ends that takes too long."""
    left = [t.name for t in job.tasks.values() if t.status is not TaskStatus.SUCCESS]
    limit = job.spec.settings.time_limits.job_timeout or 0.0
    text = f"not over after {limit:g} s; still to succeed: {', '.join(left[:20])}"
    return Ending(Outcome.FAILED, at, Failure("TIMEOUT", text))


def begun_again(
    job: Job,
    name: str,
    at: datetime,
) -> Job:
    """Begin the next attempt of a task; one that has succeeded everywhere in the meantime has succeeded."""
    task = job.tasks[name]
    if task.reported is TaskStatus.SUCCESS:
        job = job.with_task(replace(task, again_from=None, failure=None))
        return job.noted(at, "success after all", task=name)
    failure = task.failure or Failure("FAILED", task=name)
    past = Attempt(task.attempt, task.task_id, failure, task.started_at, task.again_from)
    number = task.attempt + 1
    again = replace(
        task,
        task_id=following(job.id, name, number, task.task_id),
        attempt=number,
        attempts=(*task.attempts, past),
        again_from=None,
        failure=None,
        started_at=None,
        nodes={
            n: NodeTask(n, dict.fromkeys(part.roles, TaskStatus.PENDING))
            for n, part in task.nodes.items()
        },
    )
    return job.with_task(again).noted(
        at,
        "next attempt",
        task=name,
        task_id=again.task_id,
        attempt=number,
    )


def _where(task: Task) -> str:
    """Name the nodes at which a task is not over, and how it is there."""
    left = {
        n: [s for s in part.roles.values() if not ended(TASK, s)] for n, part in task.nodes.items()
    }
    return ", ".join(f"{node} ({merge(open_)})" for node, open_ in left.items() if open_)


# ---------------------------------------------------------------- stops


def with_endings(
    job: Job,
    names: Iterable[str],
    ending: Ending,
) -> tuple[Job, list[str]]:
    """Return the job with tasks that are to end so, and which these are: some may end already."""
    along = set(names)
    ends = [name for name, task in job.tasks.items() if name in along and task.ending is None]
    tasks = {name: replace(job.tasks[name], ending=ending) for name in ends}
    return replace(job, tasks={**job.tasks, **tasks}), ends


def stop(
    job: Job,
    name: str,
    by: NodeId,
    at: datetime,
    message: str,
) -> Job:
    """Stop a task and all that needs its output; nothing changes where it has ended or is stopping already."""
    root = job.tasks[name]
    if job.ending is not None or root.ending is not None or ended(TASK, root.status):
        return job
    ending = Ending(
        Outcome.STOPPED, at, Failure("STOPPED", message or f"stopped by {by}", task=name), by
    )
    job, names = with_endings(job, downstream(job.spec.dag, [name]), ending)
    return job.noted(at, "task stop asked", by, task=name, tasks=names)


def ending_by_tasks(job: Job, at: datetime) -> Ending | None:
    """Return how the job ends because nothing is left to run; None where something is."""
    tasks = job.tasks.values()
    open_ = [task for task in tasks if task.status is not TaskStatus.SUCCESS]
    if not tasks or any(task.ending is None for task in open_):
        return None
    endings = [task.ending for task in tasks if task.ending is not None] if open_ else []
    stopped = next((ending for ending in endings if ending.outcome is Outcome.STOPPED), None)
    return Ending(Outcome.SUCCEEDED, at) if stopped is None else replace(stopped, at=at)


def cause(
    job: Job,
    task: Task,
    failure: Failure,
) -> Failure:
    """Return why a task fails: the stop, if it or its job is being stopped, else what its node says."""
    if task.ending is not None:
        return task.ending.failure or failure
    if (
        job.ending is not None
        and job.ending.outcome is Outcome.STOPPED
        and job.ending.failure is not None
    ):
        return replace(job.ending.failure, task=task.name)
    return failure


def stopped(task: Task) -> Task:
    """Return a task as its stop leaves it: no attempt follows, and parts that will never start have failed.

    The parts count only of a task that began elsewhere.
    """
    if task.ending is None:
        return task
    if task.again_from is not None:
        task = replace(task, again_from=None, failure=task.ending.failure or task.failure)
    if task.attempt == 0 and not any(part.there for part in task.nodes.values()):
        return task
    return _failed(
        task, [part for part in task.nodes.values() if part.start.state is CallState.IDLE]
    )


def closed(
    job: Job,
    task: Task,
    at: datetime,
) -> Task:
    """Return the task as the end of its job leaves it: what began and has not succeeded has failed, everywhere."""
    parts = task.nodes.values()
    begun = task.attempt > 0 or any(
        part.start.state is not CallState.IDLE or part.there for part in parts
    )
    if task.status is TaskStatus.SUCCESS or not begun:
        return task
    task = _failed(task, parts)
    if not may(TASK, task.status, TaskStatus.FAILED):
        return task
    failure = task.failure or cause(
        job, task, Failure("STOPPED", "stopped with its job", task=task.name)
    )
    return replace(
        task,
        status=move(TASK, task.status, TaskStatus.FAILED),
        ended_at=at,
        failure=failure,
    )


def _failed(task: Task, parts: Iterable[NodeTask]) -> Task:
    nodes = {**task.nodes, **{part.node: part.failed() for part in parts}}
    return task if nodes == task.nodes else replace(task, nodes=nodes)
