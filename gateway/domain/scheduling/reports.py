"""The states of tasks as nodes report them, pushed or polled, and the pauses between polls."""

from datetime import datetime, timedelta

from gateway.domain import retries
from gateway.domain.job import Job, NodeTask, Task
from gateway.domain.records import replace
from gateway.domain.scheduling import messages
from gateway.domain.scheduling.reachability import mark_reached
from gateway.domain.spec import CallState, Failure, NodeId
from gateway.domain.states import JOB, TASK, TaskStatus, ended, may
from gateway.domain.timeouts import Timing

# Largest number of doublings of the pause between polls; enough to reach any bound in `Timing`.
_MAX_DOUBLINGS = 20


def record_status(
    job: Job,
    event: messages.TaskReported,
    timing: Timing,
) -> Job:
    """Record the state of a task at a node, for one of its roles or for all.

    In three cases the report changes no state, and is just noted: the node was not asked to start
    the task, or does not play the role; the job has ended; or the role is in another state than the
    reported one and has no move to it, so the report is late.
    """
    role = event.role.partition(".")[0]  # without the index: a node has one state for a role
    task = _task_at(job, event.task_id, event.node)
    if task is None or not _may_report(task.nodes[event.node], role):
        detail = {
            "task": event.task_id,
            "role": event.role,
        }
        return job.with_note(event.at, "report ignored", event.node, **detail)
    job = mark_reached(job, event.node)
    if event.pushed:  # not the response to a poll
        job = _mark_pushing(job, event.node)
    if ended(JOB, job.status):
        return _note_late_report(job, task, event)
    return _record_roles(job, task, event, role, timing)


def has_no_consequence(job: Job, event: messages.TaskReported) -> bool:
    """Return whether no request or state follows from a report: one more node runs a running task.

    False for the report that moves the task to RUNNING, and for any end.
    """
    if event.status is not TaskStatus.RUNNING:
        return False
    task = _task_at(job, event.task_id, event.node)
    return task is not None and task.status is TaskStatus.RUNNING


def _record_roles(
    job: Job,
    task: Task,
    event: messages.TaskReported,
    role: str,
    timing: Timing,
) -> Job:
    """Record the reported state of a node's roles, and the cause of a failure.

    The report is late for a role that is in another state and has no move to the reported one. This
    is noted per role; a repeated report is not late.
    """
    part = task.nodes[event.node]
    roles = _moved_roles(part, role, event.status)
    for name in _reported_roles(part, role):
        if roles[name] is not event.status:
            job = _note_late_report(job, task, event)
    if roles == part.roles:
        return job
    job = job.with_part(
        task.name,
        _with_roles(job, part, roles, event.at, timing),
    )
    detail = {
        "task": task.name,
        "role": role,
        "status": event.status,
    }
    job = job.with_note(event.at, "status reported", event.node, **detail)
    if event.status is not TaskStatus.FAILED:
        return job
    return _keep_failure(job, task.name, _reported_failure(event, role))


def _may_report(part: NodeTask, role: str) -> bool:
    """Return whether a node may report on a task: it was asked to start it, and plays the role.

    An empty role means all roles of the node.
    """
    plays_role = role == "" or role in part.roles
    return plays_role and part.start.tries > 0


def _mark_pushing(job: Job, node: NodeId) -> Job:
    """Record that a node pushes its states, so that it is polled less often."""
    record = job.nodes[node]
    if record.pushes:
        return job
    return job.with_node(replace(record, pushes=True))


def _note_late_report(
    job: Job,
    task: Task,
    event: messages.TaskReported,
) -> Job:
    """Note a report that came after the end of the job, or too late for one of the roles.

    The note has the task and the status that the node reported.
    """
    detail = {
        "task": task.name,
        "status": event.status,
    }
    return job.with_note(event.at, "late report ignored", event.node, **detail)


def _reported_roles(part: NodeTask, role: str) -> list[str]:
    """Return the roles that a report is about: all of the node's for an empty role."""
    if role:
        return [role]
    return list(part.roles)


def _moved_roles(
    part: NodeTask,
    role: str,
    status: TaskStatus,
) -> dict[str, TaskStatus]:
    """Return the states of a node's roles after a report.

    A role whose state has no move to the reported one keeps its state.
    """
    reported_roles = _reported_roles(part, role)
    moved_roles = {name: status for name in reported_roles if may(TASK, part.roles[name], status)}
    return {**part.roles, **moved_roles}


def _reported_failure(event: messages.TaskReported, role: str) -> Failure:
    """Return the failure that a node reports, with its node and role.

    A report without a cause gets the cause FAILED.
    """
    failure = event.failure
    if failure is None:
        text = "the party reports a failure without a cause; its node has the log"
        failure = Failure("FAILED", text)
    return replace(failure, node=event.node, role=failure.role or role)


def remove_role(job: Job, event: messages.RoleNotPlayed) -> Job:
    """Take a role out of a node's part of a task, as the node does not play it there.

    The node's last role stays: a part without roles would have no state.
    """
    task = _task_at(job, event.task_id, event.node)
    if task is None:
        return job
    part = task.nodes[event.node]
    if event.role not in part.roles or len(part.roles) == 1:
        return job
    roles = {role: status for role, status in part.roles.items() if role != event.role}
    job = job.with_part(
        task.name,
        replace(part, roles=roles),
    )
    return job.with_note(
        event.at, "role not in this task", event.node, task=task.name, role=event.role
    )


def poll_pause(
    job: Job,
    part: NodeTask,
    timing: Timing,
    at: datetime,
) -> timedelta:
    """Return the pause before the next poll of a node's part of a task.

    The silence is the time since the last report, or since the start. The pause is at most as long
    as the larger of `Timing.poll_rarely` and `Timing.poll_pushing`, and depends on the node:

    - A node that pushes its states is polled after a pause as long as the silence so far: a lost
      report is noticed once the silence has doubled. The scheduling node's own reports cannot get
      lost, so its longest pause is ten times longer.
    - For the scheduling node, before its first report, the pause is a twentieth of the silence.
    - For any other node the pause doubles with each poll at first, then is a twentieth of the
      silence: the end of a long task is noticed after 5 % of its time at the latest.

    ``sync_type: callback`` alone does not make a node count as pushing: some nodes never send a
    report.
    """
    silent_since = part.reported_at or part.start.sent_at or at
    silence = (at - silent_since).total_seconds()
    is_scheduler = part.node == job.spec.scheduler
    longest = max(timing.poll_rarely, timing.poll_pushing)
    if job.nodes[part.node].pushes:
        pause = max(timing.poll_pushing, silence)
        if is_scheduler:
            longest *= 10  # its own reports cannot get lost
    elif is_scheduler:
        pause = max(timing.poll_pushing, silence / 20)
    else:
        doublings = min(part.polls, _MAX_DOUBLINGS)
        doubled = timing.poll_first * 2.0**doublings
        pause = min(doubled, max(timing.poll_max, silence / 20))
    return timedelta(seconds=min(pause, longest))


def fail_part(
    job: Job,
    task_name: str,
    part: NodeTask,
    failure: Failure,
    at: datetime,
) -> Job:
    """Count a node's part of a task as failed although the node did not report that.

    ``failure`` becomes the cause of the task's failure, unless the task has a cause already.
    """
    job = job.with_part(
        task_name,
        replace(part.failed(), reported_at=at),
    )
    return _keep_failure(job, task_name, replace(failure, node=part.node))


def _task_at(
    job: Job,
    task_id: str,
    node: NodeId,
) -> Task | None:
    """Return the task of this id if the node takes part in it; None otherwise."""
    name = job.task_index.by_id.get(task_id)
    if name is None or node not in job.tasks[name].nodes:
        return None
    return job.tasks[name]


def _with_roles(
    job: Job,
    part: NodeTask,
    roles: dict[str, TaskStatus],
    at: datetime,
    timing: Timing,
) -> NodeTask:
    """Return a node's part of a task with new states of its roles; the next poll is postponed.

    The report shows that the start has arrived, even if the response to the start was lost. The
    call of a poll that is under way does not change.
    """
    start = part.start
    if start.state is not CallState.REFUSED:
        start = replace(start, state=CallState.OK)
    part = replace(
        part,
        roles=roles,
        reported_at=at,
        polls=0,
        start=start,
    )
    if part.poll.state is CallState.SENT:
        return part
    due = at + poll_pause(job, part, timing, at)
    return replace(
        part,
        poll=replace(part.poll, due_at=due),
    )


def _keep_failure(
    job: Job,
    task_name: str,
    failure: Failure,
) -> Job:
    """Record the cause of a task's failure unless a cause is recorded: the first one counts."""
    task = job.tasks[task_name]
    if task.failure is not None:
        return job
    cause = retries.cause(
        job,
        task,
        replace(failure, task=task_name),
    )
    return job.with_task(replace(task, failure=cause))
