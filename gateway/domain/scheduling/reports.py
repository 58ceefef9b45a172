"""The states of tasks as nodes report them, pushed or polled, and the pause before the next poll."""

from datetime import datetime, timedelta

from gateway.domain import retries
from gateway.domain.job import Job, NodeTask, Task
from gateway.domain.scheduling import messages
from gateway.domain.spec import CallState, Failure, NodeId
from gateway.domain.states import JOB, TASK, TaskStatus, ended, may, replace
from gateway.domain.timeouts import Timing


def report_status(
    job: Job,
    event: messages.TaskReported,
    timing: Timing,
) -> Job:
    """Record the state of a task at a node; a transition that the table lacks is late and ignored."""
    role = event.role.partition(".")[0]
    task = _task_at(job, event.task_id, event.node)
    part = task.nodes[event.node] if task is not None else None
    if task is None or part is None or (role and role not in part.roles) or not part.start.tries:
        detail = {"task": event.task_id, "role": event.role}
        return job.with_note(event.at, "report ignored", event.node, **detail)
    job = mark_reached(job, event.node)
    if event.pushed and not job.nodes[event.node].pushes:
        job = job.with_node(replace(job.nodes[event.node], pushes=True))
    late = {"task": task.name, "status": event.status}
    if ended(JOB, job.status):
        return job.with_note(event.at, "late report ignored", event.node, **late)
    roles = dict(part.roles)
    for name in [role] if role else part.roles:
        if may(TASK, roles[name], event.status):
            roles[name] = event.status
        elif roles[name] is not event.status:
            job = job.with_note(event.at, "late report ignored", event.node, **late)
    if roles == part.roles:
        return job
    job = job.with_part(task.name, _with_roles(job, part, roles, event.at, timing))
    detail = {"task": task.name, "role": role, "status": event.status}
    job = job.with_note(event.at, "status reported", event.node, **detail)
    if event.status is not TaskStatus.FAILED:
        return job
    failure = event.failure
    if failure is None:
        text = "the party reports a failure without a cause; its node has the log"
        failure = Failure("FAILED", text)
    failure = replace(failure, node=event.node, role=failure.role or role)
    return _keep_failure(job, task.name, failure)


def remove_role(job: Job, event: messages.RoleNotPlayed) -> Job:
    """Take a role out of a node's part of a task, as the node does not play it there."""
    task = _task_at(job, event.task_id, event.node)
    if task is None:
        return job
    part = task.nodes[event.node]
    if event.role not in part.roles or len(part.roles) == 1:
        return job
    roles = {role: status for role, status in part.roles.items() if role != event.role}
    job = job.with_part(task.name, replace(part, roles=roles))
    return job.with_note(
        event.at, "role not in this task", event.node, task=task.name, role=event.role
    )


def poll_pause(
    job: Job,
    part: NodeTask,
    timing: Timing,
    at: datetime,
) -> timedelta:
    """Return the pause before the next poll: it grows while nothing changes; long where states are pushed.

    A job by callback does not count as pushing by itself, as some nodes never send any report. In
    the long run a lost report is noticed when the task was silent for twice as long, and the end of
    a task that is only polled a twentieth late.
    """
    silent_since = part.reported_at or part.start.sent_at or at
    silence = (at - silent_since).total_seconds()
    is_scheduler = part.node == job.spec.scheduler
    longest = max(timing.poll_rarely, timing.poll_pushing)
    if job.nodes[part.node].pushes:
        pause = max(timing.poll_pushing, silence)
        if is_scheduler:  # its reports are stored directly and cannot get lost
            longest *= 10
    elif is_scheduler:
        pause = max(timing.poll_pushing, silence / 20)
    else:
        doubled = timing.poll_first * 2.0 ** min(part.polls, 20)
        pause = min(doubled, max(timing.poll_max, silence / 20))
    return timedelta(seconds=min(pause, longest))


def fail_part(
    job: Job,
    name: str,
    part: NodeTask,
    failure: Failure,
    at: datetime,
) -> Job:
    """Count a node's part of a task as failed although the node did not report that."""
    job = job.with_part(name, replace(part.failed(), reported_at=at))
    return _keep_failure(job, name, replace(failure, node=part.node))


def mark_reached(job: Job, node: NodeId) -> Job:
    """Return the job with a node that has just responded."""
    record = job.nodes[node]
    if record.unreachable_since is None:
        return job
    return job.with_node(replace(record, unreachable_since=None))


def _task_at(
    job: Job,
    task_id: str,
    node: NodeId,
) -> Task | None:
    """Return the task of this id if the node takes part in it."""
    for task in job.tasks.values():
        if task.task_id == task_id and node in task.nodes:
            return task
    return None


def _with_roles(
    job: Job,
    part: NodeTask,
    roles: dict[str, TaskStatus],
    at: datetime,
    timing: Timing,
) -> NodeTask:
    """Return a node's part of a task with news of its roles; the next poll is put off."""
    start = part.start
    if start.state is not CallState.REFUSED:
        start = replace(start, state=CallState.OK)
    part = replace(part, roles=roles, reported_at=at, polls=0, start=start)
    if part.poll.state is CallState.SENT:
        return part
    due = at + poll_pause(job, part, timing, at)
    return replace(part, poll=replace(part.poll, due_at=due))


def _keep_failure(
    job: Job,
    name: str,
    failure: Failure,
) -> Job:
    """Keep the cause of a task's failure; the first one counts."""
    task = job.tasks[name]
    if task.failure is not None:
        return job
    cause = retries.cause(job, task, replace(failure, task=name))
    return job.with_task(replace(task, failure=cause))
