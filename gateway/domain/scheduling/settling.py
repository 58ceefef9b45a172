"""What follows from the facts by itself: ready, running, a task's state, the end."""

from dataclasses import replace
from datetime import datetime

from gateway.domain import consent, inheritance, models, quorum, reservations, retries, stopping
from gateway.domain._memo import remembered
from gateway.domain.job import Job, NodeJob, Suspension, Task
from gateway.domain.scheduling.messages import SuspendAsked
from gateway.domain.scheduling.records import needs_stop, with_node, with_task
from gateway.domain.scheduling.silence import forgiven
from gateway.domain.spec import CallState, Ending, Failure, NodeId
from gateway.domain.states import JOB, TASK, JobStatus, Outcome, TaskStatus, ended, may, merge, move


def settled(job: Job, at: datetime) -> Job:
    """Draw every conclusion that the facts allow: ready, running, a task's state, the end."""
    if ended(JOB, job.status):
        return job
    for name in job.tasks:
        task = job.tasks[name]
        if task.ending is not None or not ended(TASK, task.status):
            job = _settle_task(job, task, at)
    if job.ending is None:
        job = _settle_open(job, at)
    if job.ending is None:
        job = forgiven(job)
    elif all(map(_quiet, job.nodes.values())) and models.may_conclude(job, at):
        job = _conclude(job, job.ending, at)
    return job


def _says_nothing_new(task: Task) -> bool:
    """Say whether nothing follows from the task's facts, whatever else is known of its job."""
    if task.ending is not None or task.again_from is not None:
        return False
    new = merge(part.status for part in task.nodes.values())
    return not task.nodes or new is task.status or not may(TASK, task.status, new)


def _settle_task(job: Job, task: Task, at: datetime) -> Job:
    if remembered(task, "_settled", None, lambda: _says_nothing_new(task)):
        return job
    known, task = task, stopping.without_rest(retries.called_off(task))
    if task is not known:
        job = with_task(job, task)
    if task.again_from is not None:
        return job
    new = merge(part.status for part in task.nodes.values())
    if not task.nodes or new is task.status or not may(TASK, task.status, new):
        return job
    if new is TaskStatus.FAILED and retries.wanted(job, task):
        return retries.set_back(job, task, at)
    over = ended(TASK, new)
    task = replace(task, status=move(TASK, task.status, new), ended_at=at if over else None)
    if new is TaskStatus.RUNNING and task.started_at is None:
        task = replace(task, started_at=at)
    if new is TaskStatus.FAILED and task.failure is None:
        task = replace(task, failure=stopping.cause(job, task, Failure("FAILED", task=task.name)))
    detail = {**(task.failure.as_dict() if task.failure else {}), "task": task.name}
    job = with_task(job, task).noted(at, f"task {new}", **detail)
    if new is TaskStatus.FAILED and job.ending is None and task.ending is None:
        job = quorum.tolerated(job, task, at) or ended_as(
            job, Ending(stopping.outcome(task.failure), at, task.failure)
        )
    return job


def _settle_open(job: Job, at: datetime) -> Job:
    for node in job.nodes.values():
        if job.ending is None and node.excluded is None and (failure := _refused(node)) is not None:
            job = _without(job, node, failure, at)
    if job.ending is not None:
        return job
    nodes = quorum.active(job)
    accepted = all(n.create.state is CallState.OK and not consent.is_open(n) for n in nodes)
    if job.status is JobStatus.PENDING and accepted:
        taken_over = inheritance.agreed(job, at)
        if isinstance(taken_over, Failure):
            return ended_as(job, Ending(Outcome.REJECTED, at, taken_over))
        job = taken_over
        tasks = {name: _made_ready(task) for name, task in job.tasks.items()}
        job = replace(job, status=move(JOB, job.status, JobStatus.READY), tasks=tasks).noted(at, "job READY")
    if job.status is JobStatus.READY and all(n.start.state is CallState.OK for n in nodes):
        job = replace(job, status=move(JOB, job.status, JobStatus.RUNNING), started_at=at).noted(at, "job RUNNING")
    if job.tasks and all(t.status is TaskStatus.SUCCESS for t in job.tasks.values()):
        return ended_as(job, Ending(Outcome.SUCCEEDED, at))
    stopped = stopping.ending_by_tasks(job, at)
    return job if stopped is None else ended_as(job, stopped)


def _made_ready(task: Task) -> Task:
    if ended(TASK, task.status):
        return task
    return replace(task, status=move(TASK, task.status, TaskStatus.READY))


def _refused(node: NodeJob) -> Failure | None:
    """Return why a node takes no part; None while it may."""
    for call in (node.create, node.start, node.holding.apply):
        if call.state is CallState.REFUSED:
            return Failure(call.reason, call.message, node.node)
    if node.consent is not None and node.consent.status is JobStatus.REJECTED:
        return Failure(node.create.reason, node.create.message, node.node)
    return None


def _without(job: Job, node: NodeJob, failure: Failure, at: datetime) -> Job:
    """Go on without a node that takes no part, or end the job, telling how every party stands to it."""
    if (smaller := quorum.exclude(job, node.node, failure, at)) is not None:
        return smaller
    if job.status is JobStatus.PENDING:
        return ended_as(job, Ending(Outcome.REJECTED, at, failure))
    text = f"not every node started the job: {quorum.in_words(job)}"
    reason = failure.reason if failure.reason == reservations.CANNOT_SCHEDULE else "FAILED_TO_RUN"
    return ended_as(job, Ending(Outcome.FAILED, at, Failure(reason, text, node.node)))


def with_suspension(job: Job, event: SuspendAsked) -> Job:
    """Hold back all further task starts, or let them go on."""
    if job.ending is not None or ended(JOB, job.status) or (job.suspended is not None) is event.on:
        return job
    suspended = Suspension(event.by, event.at) if event.on else None
    return replace(job, suspended=suspended).noted(event.at, "suspended" if event.on else "resumed", event.by)


def ended_as(job: Job, ending: Ending) -> Job:
    """Write down the decision that the job ends; its stops are due from then on."""
    detail = ending.failure.as_dict() if ending.failure else {}
    return replace(job, ending=ending).noted(ending.at, f"ending as {ending.outcome}", ending.by, failure=detail)


def _quiet(node: NodeJob) -> bool:
    """Whether the end need not wait for this node: it is stopped, holds nothing, or does not answer."""
    return (
        not needs_stop(node)
        or node.stop.settled
        or node.stop.state is CallState.LOST
        or (node.unreachable_since is not None and node.create.state is not CallState.SENT)
    )


def _conclude(job: Job, ending: Ending, at: datetime) -> Job:
    final = JobStatus.REJECTED if job.status is JobStatus.PENDING else JobStatus.FINISHED
    tasks = {name: stopping.closed(job, task, at) for name, task in job.tasks.items()}
    job = replace(job, status=move(JOB, job.status, final), outcome=ending.outcome, tasks=tasks, ended_at=at)
    return job.noted(at, f"job {final}", outcome=ending.outcome)


def given_up(job: Job, node: NodeId, now: datetime) -> Job:
    """Draw the consequence of a node's silence: it is left out where that is allowed, or the job ends."""
    record = job.nodes[node]
    if record.excluded is not None:
        return job
    since = record.unreachable_since or now
    if job.status is JobStatus.RUNNING:
        failure = Failure("UNREACHABLE", f"no answer since {since.isoformat()}", node)
        return job if job.ending is not None else ended_as(job, Ending(Outcome.FAILED, now, failure))
    creating = job.status is JobStatus.PENDING
    call = record.create if creating else record.start
    failure = Failure("PEER_UNREACHABLE", call.message or "no answer", node)
    call = replace(call, reason=failure.reason)
    record = replace(record, create=call) if creating else replace(record, start=call)
    job = with_node(job, record)
    return job if job.ending is not None else settled(_without(job, record, failure, now), now)
