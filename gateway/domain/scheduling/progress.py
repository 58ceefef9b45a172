"""What follows for a job from what is known: states of tasks and of the job, its end."""

from datetime import datetime

from gateway.domain import models, quorum, rerun, reservations, retries
from gateway.domain.job import Job, NodeJob, Task
from gateway.domain.scheduling import messages
from gateway.domain.scheduling.agenda import agenda, needs_stop
from gateway.domain.spec import CallState, Ending, Failure
from gateway.domain.states import (
    JOB,
    TASK,
    JobStatus,
    Outcome,
    TaskStatus,
    ended,
    may,
    move,
    replace,
)
from gateway.domain.timeouts import Timing


def advance(job: Job, at: datetime) -> Job:
    """Return the job after every transition that follows from its record."""
    if ended(JOB, job.status):
        return job
    for name in job.tasks:
        task = job.tasks[name]
        if task.ending is not None or not ended(TASK, task.status):
            job = _advance_task(job, task, at)
    if job.ending is None:
        job = _advance_job(job, at)
    if job.ending is None:
        return _forget_idle_silence(job)
    if all(_lets_job_end(node) for node in job.nodes.values()) and models.may_conclude(job, at):
        job = _conclude(job, job.ending.outcome, at)
    return job


def end_job(job: Job, ending: Ending) -> Job:
    """Record the decision that the job ends; its stops are due from then on."""
    detail = ending.failure.as_dict() if ending.failure else {}
    job = replace(job, ending=ending)
    return job.with_note(ending.at, f"ending as {ending.outcome}", ending.by, failure=detail)


def go_on_without(
    job: Job,
    node: NodeJob,
    failure: Failure,
    at: datetime,
) -> Job:
    """Return the job without a node that takes no part; ended where it needs the node."""
    smaller_job = quorum.exclude(job, node.node, failure, at)
    if smaller_job is not None:
        return smaller_job
    if job.status is JobStatus.PENDING:
        return end_job(job, Ending(Outcome.REJECTED, at, failure))
    reason = "FAILED_TO_RUN"
    if failure.reason == reservations.CANNOT_SCHEDULE:
        reason = failure.reason
    text = f"not every node started the job: {quorum.in_words(job)}"
    return end_job(job, Ending(Outcome.FAILED, at, Failure(reason, text, node.node)))


def has_due_request(job: Job, node: NodeJob) -> bool:
    """Return whether a request to the node is under way, or comes next.

    There may be none: its part of a task is over while another party's runs for hours, the job is
    suspended, or waits for resources elsewhere.
    """
    for due in agenda(job, Timing()):  # any timing will do: the moments do not matter
        if isinstance(due.command, messages.Request) and due.command.node == node.node:
            return True
    return reservations.is_asked(job, node)


# ---------------------------------------------------------------- tasks


def _advance_task(
    job: Job,
    task: Task,
    at: datetime,
) -> Job:
    stopped_task = retries.stopped(task)
    if stopped_task is not task:
        task = stopped_task
        job = job.with_task(task)
    status = task.reported
    if task.again_from is not None or not task.nodes:
        return job
    if status is task.status or not may(TASK, task.status, status):
        return job
    if status is TaskStatus.FAILED and retries.is_tried_again(job, task):
        return retries.set_back(job, task, at)
    task = _with_status(job, task, status, at)
    detail = task.failure.as_dict() if task.failure else {}
    detail["task"] = task.name
    job = job.with_task(task).with_note(at, f"task {status}", **detail)
    if status is TaskStatus.FAILED and job.ending is None and task.ending is None:
        return _after_failure(job, task, at)
    return job


def _with_status(
    job: Job,
    task: Task,
    status: TaskStatus,
    at: datetime,
) -> Task:
    status = move(TASK, task.status, status)
    failure = task.failure
    if status is TaskStatus.FAILED and failure is None:
        failure = retries.cause(job, task, Failure("FAILED", task=task.name))
    ended_at = at if ended(TASK, status) else None
    return replace(task, status=status, ended_at=ended_at, failure=failure)


def _after_failure(
    job: Job,
    task: Task,
    at: datetime,
) -> Job:
    """Return the job after the failure of a task: it goes on where it tolerates that, else it ends."""
    tolerant_job = quorum.tolerated(job, task, at)
    if tolerant_job is not None:
        return tolerant_job
    outcome = Outcome.FAILED
    # a party may end its part of a job that is being stopped before this node learns of the stop
    if task.failure is not None and task.failure.reason == "STOPPED":
        outcome = Outcome.STOPPED
    return end_job(job, Ending(outcome, at, task.failure))


# ---------------------------------------------------------------- the job


def _advance_job(job: Job, at: datetime) -> Job:
    for node in job.active:
        failure = _denial(node)
        if job.ending is None and failure is not None:
            job = go_on_without(job, node, failure, at)
    if job.ending is not None:
        return job
    if job.status is JobStatus.PENDING and all(_has_accepted(node) for node in job.active):
        job = _make_ready(job, at)
        if job.ending is not None:
            return job
    if job.status is JobStatus.READY and all(_has_started(node) for node in job.active):
        status = move(JOB, job.status, JobStatus.RUNNING)
        job = replace(job, status=status, started_at=at).with_note(at, "job RUNNING")
    ending = retries.ending_by_tasks(job, at)
    if ending is None:
        return job
    return end_job(job, ending)


def _has_accepted(node: NodeJob) -> bool:
    return node.create.state is CallState.OK and not node.decides


def _has_started(node: NodeJob) -> bool:
    return node.start.state is CallState.OK


def _make_ready(job: Job, at: datetime) -> Job:
    """Return the job that every node has accepted as READY; ended where it cannot inherit a task."""
    inheriting_job = rerun.agreed(job, at)
    if isinstance(inheriting_job, Failure):
        return end_job(job, Ending(Outcome.REJECTED, at, inheriting_job))
    job = inheriting_job
    tasks = dict(job.tasks)
    for name, task in job.tasks.items():
        if not ended(TASK, task.status):
            tasks[name] = replace(task, status=move(TASK, task.status, TaskStatus.READY))
    job = replace(job, status=move(JOB, job.status, JobStatus.READY), tasks=tasks)
    return job.with_note(at, "job READY")


def _denial(node: NodeJob) -> Failure | None:
    """Return why a node takes no part; None while it may."""
    for call in (node.create, node.start, node.reservation.apply):
        if call.state is CallState.REFUSED:
            return Failure(call.reason, call.message, node.node)
    if node.consent is not None and node.consent.status is JobStatus.REJECTED:
        return Failure(node.create.reason, node.create.message, node.node)
    return None


def _forget_idle_silence(job: Job) -> Job:
    """Return the job with no node counted as silent that nothing is requested of."""
    for node in job.active:
        if node.unreachable_since is not None and not has_due_request(job, node):
            job = job.with_node(replace(node, unreachable_since=None))
    return job


def _lets_job_end(node: NodeJob) -> bool:
    """Return whether the end need not wait for this node: stopped, unconcerned or unreachable."""
    if not needs_stop(node) or node.stop.completed or node.stop.state is CallState.LOST:
        return True
    return node.unreachable_since is not None and node.create.state is not CallState.SENT


def _conclude(
    job: Job,
    outcome: Outcome,
    at: datetime,
) -> Job:
    status = JobStatus.FINISHED
    if job.status is JobStatus.PENDING:
        status = JobStatus.REJECTED
    job = replace(
        job,
        status=move(JOB, job.status, status),
        outcome=outcome,
        tasks={name: retries.closed(job, task, at) for name, task in job.tasks.items()},
        ended_at=at,
    )
    return job.with_note(at, f"job {status}", outcome=outcome)
