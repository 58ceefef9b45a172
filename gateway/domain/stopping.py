"""What the stop of a task takes with it, and what stopped tasks become.

A stop is a decision, made once and kept in `Task.ending`; from then on nothing of the task is started any more,
and whatever else happens to it happens because of the stop. Only a success that was under way still counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from gateway.domain.dag import downstream
from gateway.domain.job import Job, NodeTask, Task
from gateway.domain.spec import CallState, Ending, Failure, NodeId
from gateway.domain.states import TASK, Outcome, TaskStatus, ended, may, move


def ask(job: Job, name: str, by: NodeId, at: datetime, message: str) -> Job:
    """Stop a task and all that needs its output; nothing changes where it has ended or is stopping already."""
    root = job.tasks[name]
    if job.ending is not None or root.ending is not None or ended(TASK, root.status):
        return job
    failure = Failure("STOPPED", message or f"stopped by {by}", task=name)
    ending = Ending(Outcome.STOPPED, at, failure, by)
    along = downstream(job.spec.dag, [name])
    names = [n for n, task in job.tasks.items() if n in along and task.ending is None]
    tasks = {n: replace(job.tasks[n], ending=ending) for n in names}
    return replace(job, tasks={**job.tasks, **tasks}).noted(at, "task stop asked", by, task=name, tasks=names)


def outcome(failure: Failure | None) -> Outcome:
    """Return how a job ends whose task failed so: a party may end its own part of a job that is being stopped
    before the node that schedules it hears of the stop."""
    return Outcome.STOPPED if failure is not None and failure.reason == "STOPPED" else Outcome.FAILED


def what_is_left(job: Job) -> list[str]:
    """Return the tasks that are still to succeed: those that have not yet, and are not stopped."""
    return [t.name for t in job.tasks.values() if t.ending is None and t.status is not TaskStatus.SUCCESS]


def ending_by_tasks(job: Job, endings: Sequence[Ending], at: datetime) -> Ending | None:
    """Return how the job ends because nothing is left to run and tasks were stopped, or failed and are borne."""
    if what_is_left(job):
        return None
    stopped = next((e for e in endings if e.outcome is Outcome.STOPPED), None)
    return Ending(Outcome.SUCCEEDED, at) if stopped is None else replace(stopped, at=at)


def cause(job: Job, task: Task, failure: Failure) -> Failure:
    """Return why a task fails: the stop, if it or its job is being stopped, else what its node says."""
    if task.ending is not None:
        return task.ending.failure or failure
    if job.ending is not None and job.ending.outcome is Outcome.STOPPED and job.ending.failure is not None:
        return replace(job.ending.failure, task=task.name)
    return failure


def is_there(part: NodeTask) -> bool:
    """Say whether the node has taken the task: it said so, or told how it is."""
    return part.start.state is CallState.OK or any(s is not TaskStatus.PENDING for s in part.roles.values())


def without_rest(task: Task) -> Task:
    """Count as failed what will never start: the parts, not begun, of a stopped task that began elsewhere."""
    never = {n: part for n, part in task.nodes.items() if part.start.state is CallState.IDLE}
    began = task.attempt > 0 or any(map(is_there, task.nodes.values()))
    if not never or not began:
        return task
    return _with_nodes(task, {n: part.failed() for n, part in never.items()})


def closed(job: Job, task: Task, at: datetime) -> Task:
    """Return the task as the end of its job leaves it: what began and has not succeeded has failed, everywhere."""
    begun = any(part.start.state is not CallState.IDLE or is_there(part) for part in task.nodes.values())
    begun = begun or task.attempt > 0
    if task.status is TaskStatus.SUCCESS or not begun:
        return task
    task = _with_nodes(task, {n: part.failed() for n, part in task.nodes.items()})
    if not may(TASK, task.status, TaskStatus.FAILED):
        return task
    failure = task.failure or cause(job, task, Failure("STOPPED", "stopped with its job", task=task.name))
    return replace(task, status=move(TASK, task.status, TaskStatus.FAILED), ended_at=at, failure=failure)


def _with_nodes(task: Task, nodes: Mapping[NodeId, NodeTask]) -> Task:
    nodes = {**task.nodes, **nodes}
    return task if nodes == task.nodes else replace(task, nodes=nodes)
