"""What the nodes tell of their tasks, pushed or asked for."""

from dataclasses import replace
from datetime import timedelta

from gateway.domain import stopping
from gateway.domain.job import Job, NodeTask
from gateway.domain.scheduling.messages import Heard, NotPlayed
from gateway.domain.scheduling.records import with_node, with_part, with_reached, with_task
from gateway.domain.spec import CallState, Failure
from gateway.domain.states import JOB, TASK, TaskStatus, ended, may
from gateway.domain.timeouts import Timing


def not_played(job: Job, event: NotPlayed) -> Job:
    """Take a role out of a node's part of a task, as the node does not play it there."""
    task = next((t for t in job.tasks.values() if t.task_id == event.task_id), None)
    part = task.nodes.get(event.node) if task else None
    if task is None or part is None or event.role not in part.roles or len(part.roles) == 1:
        return job
    roles = {role: status for role, status in part.roles.items() if role != event.role}
    job = with_part(job, task.name, replace(part, roles=roles))
    return job.noted(event.at, "role not in this task", event.node, task=task.name, role=event.role)


def heard(job: Job, event: Heard, timing: Timing) -> Job:
    """Take in the state of a task at a node. What the table of states does not allow is late and ignored."""
    task = next((t for t in job.tasks.values() if t.task_id == event.task_id), None)
    part = task.nodes.get(event.node) if task else None
    role = event.role.partition(".")[0]
    if task is None or part is None or (role and role not in part.roles) or not part.start.tries:
        return job.noted(event.at, "report ignored", event.node, task=event.task_id, role=event.role)
    node = job.nodes[event.node]
    job = with_reached(job, event.node)
    if event.pushed and not node.pushes:
        job = with_node(job, replace(job.nodes[event.node], pushes=True))
    if ended(JOB, job.status):
        return job.noted(event.at, "late report ignored", event.node, task=task.name, status=event.status)
    roles = dict(part.roles)
    for name in (role,) if role else tuple(roles):
        if roles[name] is event.status:
            continue
        if may(TASK, roles[name], event.status):
            roles[name] = event.status
        else:
            job = job.noted(event.at, "late report ignored", event.node, task=task.name, status=event.status)
    if roles == part.roles:
        return job
    start = part.start
    if start.state in (CallState.IDLE, CallState.SENT, CallState.LOST):
        start = replace(start, state=CallState.OK)
    part = replace(part, roles=roles, heard_at=event.at, polls=0, start=start)
    if part.poll.state is not CallState.SENT:
        part = replace(part, poll=replace(part.poll, due_at=event.at + pause(job, part, timing)))
    job = with_part(job, task.name, part)
    job = job.noted(event.at, "heard", event.node, task=task.name, role=role, status=event.status)
    if event.status is TaskStatus.FAILED and task.failure is None:
        failure = event.failure or Failure("FAILED", "the party reports a failure")
        failure = replace(failure, node=event.node, task=task.name, role=failure.role or role)
        failure = stopping.cause(job, task, failure)
        job = with_task(job, replace(job.tasks[task.name], failure=failure))
    return job


def pause(job: Job, part: NodeTask, timing: Timing) -> timedelta:
    """Return how long to wait before asking again: growing while there is no news, long where news is pushed."""
    pushing = job.spec.by_callback or job.nodes[part.node].pushes or part.node == job.spec.scheduler
    if pushing:
        return timedelta(seconds=timing.poll_pushing)
    return timedelta(seconds=min(timing.poll_first * 2.0 ** min(part.polls, 20), timing.poll_max))
