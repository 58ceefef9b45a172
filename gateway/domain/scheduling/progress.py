"""The transitions of a job and its tasks that follow from the recorded responses and reports."""

from datetime import datetime

from gateway.domain import models, quorum, rerun, reservations, retries
from gateway.domain.job import Job, NodeJob, Task
from gateway.domain.records import replace
from gateway.domain.scheduling.agenda import needs_stop, open_requests
from gateway.domain.scheduling.reachability import forget_idle_silence
from gateway.domain.spec import CallState, Ending, Failure, failure_detail
from gateway.domain.states import (
    FINAL_STATUS,
    JOB,
    TASK,
    JobStatus,
    Outcome,
    TaskStatus,
    ended,
    may,
    move,
)

# States of the call of a stop that was tried: it has a response, or the try ended without one.
_STOP_TRIED = (CallState.OK, CallState.REFUSED, CallState.LOST)


def advance(job: Job, at: datetime) -> Job:
    """Return the job after every transition that follows from its record.

    First the tasks move, then the job. A job with an ending is over once it need not wait for any
    node, nor for the models of a training. A job that is over is returned unchanged.
    """
    if ended(JOB, job.status):
        return job
    job = _advance_tasks(job, at)
    if job.ending is None:
        job = _advance_job(job, at)
    if job.ending is None:
        for node in job.active:
            job = forget_idle_silence(job, node, open_requests(job))
        return job
    may_end = all(_lets_job_end(node) for node in _awaited_nodes(job))
    if may_end and models.may_conclude(job, at):
        job = _conclude(job, job.ending.outcome, at)
    return job


def _advance_tasks(job: Job, at: datetime) -> Job:
    """Move every task whose nodes have reported another state, or that is being stopped.

    The failure of a task may end other tasks, so each task is read from the latest job.
    """
    if not job.task_index.unsettled:
        return job
    for name in job.tasks:
        task = job.tasks[name]
        if not task.is_up_to_date:
            job = _advance_task(job, task, at)
    return job


def end_job(job: Job, ending: Ending) -> Job:
    """Record the decision that the job ends; its stops are due from then on."""
    detail = failure_detail(ending.failure)
    job = replace(job, ending=ending)
    return job.with_note(
        ending.at,
        f"ending as {ending.outcome}",
        ending.by,
        failure=detail,
    )


def go_on_without(
    job: Job,
    node: NodeJob,
    failure: Failure,
    at: datetime,
) -> Job:
    """Return the job without a node that does not take part, or ended if it needs the node.

    A job needs a node unless its quorum is met without the node. A PENDING job then ends as
    REJECTED, any other as FAILED.
    """
    smaller_job = quorum.exclude(job, node.node, failure, at)
    if smaller_job is not None:
        return smaller_job
    if job.status is JobStatus.PENDING:
        return end_job(job, Ending(Outcome.REJECTED, at, failure))
    reason = "FAILED_TO_RUN"
    if failure.reason == reservations.CANNOT_SCHEDULE:
        reason = failure.reason
    text = f"not every node started the job: {quorum.in_words(job)}"
    return end_job(
        job,
        Ending(
            Outcome.FAILED,
            at,
            Failure(reason, text, node.node),
        ),
    )


# ---------------------------------------------------------------- tasks


def _advance_task(
    job: Job,
    task: Task,
    at: datetime,
) -> Job:
    """Move a task to the merged state of its nodes' parts.

    A task that fails is retried if that is permitted. A task that waits for its next attempt does
    not move, nor does a task in which no node takes part.
    """
    stopped_task = retries.stopped(task)
    if stopped_task is not task:
        task = stopped_task
        job = job.with_task(task)
    if task.failed_at is not None or not task.nodes:
        return job
    status = task.reported
    if not may(TASK, task.status, status):
        return job  # also if the status is the same: no state has a move to itself
    if status is TaskStatus.FAILED and retries.is_tried_again(job, task):
        return retries.record_failed_attempt(job, task, at)
    return _move_task(job, task, status, at)


def _move_task(
    job: Job,
    task: Task,
    status: TaskStatus,
    at: datetime,
) -> Job:
    """Move a task to a state and note it; its failure is tolerated, or ends the job.

    A failure has no further effect if only this task was stopped, or the job is ending already.
    """
    task = _with_status(job, task, status, at)
    detail = failure_detail(task.failure)
    detail["task"] = task.name
    job = job.with_task(task).with_note(at, f"task {status}", **detail)
    if status is TaskStatus.FAILED and not retries.is_ending(job, task):
        return _after_failure(job, task, at)
    return job


def _with_status(
    job: Job,
    task: Task,
    status: TaskStatus,
    at: datetime,
) -> Task:
    """Return the task moved to a state; one that fails without a recorded cause gets one."""
    status = move(TASK, task.status, status)
    failure = task.failure
    if status is TaskStatus.FAILED and failure is None:
        failure = retries.cause(
            job,
            task,
            Failure("FAILED", task=task.name),
        )
    ended_at = None
    if ended(TASK, status):
        ended_at = at
    return replace(
        task,
        status=status,
        ended_at=ended_at,
        failure=failure,
    )


def _after_failure(
    job: Job,
    task: Task,
    at: datetime,
) -> Job:
    """Return the job after the failure of a task: it goes on if its quorum permits, else it ends.

    The job counts as stopped if a party has stopped its part of the task: the party's report of the
    stopped part arrives before the party's request to stop the job.
    """
    tolerant_job = quorum.tolerate_failure(job, task, at)
    if tolerant_job is not None:
        return tolerant_job
    outcome = Outcome.FAILED
    if task.failure is not None:
        outcome = task.failure.outcome
    return end_job(job, Ending(outcome, at, task.failure))


# ---------------------------------------------------------------- the job


def _advance_job(job: Job, at: datetime) -> Job:
    """Move the job as its nodes and tasks allow: to READY, to RUNNING, or to its end.

    Each step may end the job, after which no further one is taken.
    """
    job = _without_denying_nodes(job, at)
    if job.ending is None:
        job = _make_ready_if_accepted(job, at)
    if job.ending is not None:
        return job
    job = _make_running_if_started(job, at)
    ending = retries.ending_by_tasks(job, at)
    if ending is None:
        return job
    return end_job(job, ending)


def _without_denying_nodes(job: Job, at: datetime) -> Job:
    """Take out the nodes that have refused, until one of them ends the job."""
    for node in job.active:
        failure = _denial(node)
        if job.ending is None and failure is not None:
            job = go_on_without(job, node, failure, at)
    return job


def _make_ready_if_accepted(job: Job, at: datetime) -> Job:
    """Return a PENDING job as READY once every node has accepted it; any other job as it is.

    The job ends instead if it cannot inherit a task of the earlier job. Inherited tasks have ended
    already; all others become READY with the job.
    """
    is_accepted = all(_has_accepted(node) for node in job.active)
    if job.status is not JobStatus.PENDING or not is_accepted:
        return job
    inheriting_job = rerun.decide_inheritance(job, at)
    if isinstance(inheriting_job, Failure):  # the reason why the job cannot inherit
        return end_job(job, Ending(Outcome.REJECTED, at, inheriting_job))
    tasks = dict(inheriting_job.tasks)
    for name, task in inheriting_job.tasks.items():
        if not ended(TASK, task.status):
            tasks[name] = replace(
                task,
                status=move(TASK, task.status, TaskStatus.READY),
            )
    ready_job = replace(
        inheriting_job,
        status=move(JOB, job.status, JobStatus.READY),
        tasks=tasks,
    )
    return ready_job.with_note(at, "job READY")


def _has_accepted(node: NodeJob) -> bool:
    """Return whether the node has accepted the job, and approved it if it has to."""
    return node.create.state is CallState.OK and not node.awaits_approval


def _make_running_if_started(job: Job, at: datetime) -> Job:
    """Return a READY job as RUNNING once every node has started it; any other job as it is."""
    is_started = all(node.start.state is CallState.OK for node in job.active)
    if job.status is not JobStatus.READY or not is_started:
        return job
    status = move(JOB, job.status, JobStatus.RUNNING)
    job = replace(
        job,
        status=status,
        started_at=at,
    )
    return job.with_note(at, "job RUNNING")


def _denial(node: NodeJob) -> Failure | None:
    """Return why a node does not take part in the job; None if it has not refused.

    A node refuses the creation, the start or a reservation, or rejects the job in its approval. The
    reason of a rejection is stored with the call of the creation (`gateway.domain.approval`).
    """
    for call in (node.create, node.start, node.reservation.request):
        if call.state is CallState.REFUSED:
            return Failure(call.reason, call.message, node.node)
    if node.consent_status is JobStatus.REJECTED:
        return Failure(
            node.create.reason,
            node.create.message,
            node.node,
        )
    return None


def _awaited_nodes(job: Job) -> list[NodeJob]:
    """Return the nodes whose stops an ending job waits for.

    A job that has succeeded runs nowhere any more: only this node closes its own part first, and
    the other nodes hear of the end meanwhile.
    """
    nodes = list(job.nodes.values())
    if job.ending is None or job.ending.outcome is not Outcome.SUCCEEDED:
        return nodes
    return [node for node in nodes if node.node == job.spec.scheduler]


def _lets_job_end(node: NodeJob) -> bool:
    """Return whether the end of the job need not wait for this node.

    True if the node needs no stop, or if a try of its stop is over, with a response or without. An
    unreachable node is not waited for either, unless the creation of the job there is under way and
    may still succeed.
    """
    if node.stop.state in _STOP_TRIED or not needs_stop(node):
        return True
    return node.unreachable_since is not None and node.create.state is not CallState.SENT


def has_untried_stops(job: Job) -> bool:
    """Return whether a job that is over has a stop of which not even the first try is over.

    A node that is unreachable does not count, nor does a stop that was tried and is repeated.
    """
    return any(_is_stop_untried(node) for node in job.nodes.values())


def _is_stop_untried(node: NodeJob) -> bool:
    """Return whether the first try of the stop is outstanding at a node that seems to be up."""
    return node.stop.tries <= 1 and not _lets_job_end(node)


def _conclude(
    job: Job,
    outcome: Outcome,
    at: datetime,
) -> Job:
    """Return the job as over: FINISHED, or REJECTED if it was PENDING.

    Its tasks that have begun and not succeeded become FAILED; those that never began stay as they
    are.
    """
    status = FINAL_STATUS[job.status]
    tasks = {name: retries.closed(job, task, at) for name, task in job.tasks.items()}
    job = replace(
        job,
        status=status,
        outcome=outcome,
        tasks=tasks,
        ended_at=at,
    )
    return job.with_note(at, f"job {status}", outcome=outcome)
