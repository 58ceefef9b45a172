"""Views of a job for people and peers: as its scheduling node knows it, and as a party knows it."""

from dataclasses import replace

from gateway.domain import local_waiting, quorum, run, waiting
from gateway.domain.execution.contact import last_contact
from gateway.domain.execution.runs import merge_runs
from gateway.domain.job import Job, Task
from gateway.domain.run import LocalJob, Run
from gateway.domain.states import JOB, JobStatus, TaskStatus, ended
from gateway.domain.timeouts import RunTiming, Timing
from gateway.errors import GatewayError, NotServed
from gateway.ports import JobView, TaskView


def view(job: Job, timing: Timing) -> JobView:
    """Return the view of a job that is scheduled here."""
    reasons = waiting.of_tasks(job, timing)
    failure = None
    if job.ending is not None:
        failure = job.ending.failure
    return JobView(
        job_id=job.id,
        status=job.status,
        tasks=[_task_view(task, reasons[task.name]) for task in job.tasks.values()],
        outcome=job.outcome,
        failure=failure,
        progress=job.progress,
        flow_id=job.spec.flow_id,
        scheduler=job.spec.scheduler,
        warnings=job.warnings,
        waiting=waiting.of_job(job, timing),
        parties=quorum.details(job),
        tolerated=quorum.tolerated_failures(job),
        old_job_id=job.spec.old_job_id,
        origin=job.origin,
    )


def _task_view(task: Task, waits_for: waiting.Waiting | None) -> TaskView:
    """Return the view of a task; ``waits_for``: why it has not ended yet."""
    inherited = None
    if task.status is TaskStatus.SUCCESS:  # before that it is open whether the task is inherited
        inherited = task.lineage
    return TaskView(
        task_id=task.task_id,
        name=task.name,
        status=task.status,
        failure=task.failure,
        nodes={node: dict(node_task.roles) for node, node_task in task.nodes.items()},
        since=task.started_at,
        attempt=task.attempt,
        attempts=task.attempts,
        waiting=waits_for,
        inherited=inherited,
    )


def with_local(
    reported: JobView,
    local: LocalJob,
    seconds_since_asked: float = 0.0,
) -> JobView:
    """Complete the scheduling node's view of a job with this node's own part.

    ``seconds_since_asked``: seconds since the scheduling node was asked.
    """
    completed = replace(
        reported,
        tasks=_completed_tasks(reported, local),
        scheduler=reported.scheduler or local.spec.scheduler,
        flow_id=reported.flow_id or local.spec.flow_id,
    )
    if ended(JOB, completed.status):
        return _with_local_ending(completed, local)
    if completed.waiting is None:
        return replace(
            completed,
            waiting=_waiting_for_scheduler(completed, local, seconds_since_asked),
        )
    return completed


def _completed_tasks(reported: JobView, local: LocalJob) -> list[TaskView]:
    """Return the reported tasks with this node's part, and with both id and name.

    Some peers report a task only by its name, some only by its id. In both cases ``task_id`` and
    ``name`` of the reported task are the same text. The runs here have both.
    """
    ids_by_name = {run.task_name: run.task_id for run in local.runs}
    names_by_id = {task_id: name for name, task_id in ids_by_name.items()}
    tasks = []
    for task in reported.tasks:
        if task.task_id in names_by_id:
            task = replace(
                task,
                name=names_by_id[task.task_id],
            )
        else:
            task = replace(
                task,
                task_id=ids_by_name.get(task.task_id, task.task_id),  # it may be a name
            )
        tasks.append(_with_own_part(task, local))
    return tasks


def _with_own_part(task: TaskView, local: LocalJob) -> TaskView:
    """Return a task with this node's part, unless the scheduling node reports that part.

    A failed task without a reported failure gets the failure of the runs here.
    """
    own_part = _own_part(local, task.name)
    if own_part is None or local.node in task.nodes:
        return task
    failure = task.failure
    if failure is None and task.status is TaskStatus.FAILED:
        failure = own_part.failure
    return replace(task, nodes={**task.nodes, **own_part.nodes}, failure=failure)


def _with_local_ending(reported: JobView, local: LocalJob) -> JobView:
    """Return an ended job with the ending that is recorded here.

    Another outcome that the scheduling node reports takes precedence, unless it was only inferred.
    """
    ending = local.ending
    if ending is None:
        return reported
    if reported.outcome in (None, ending.outcome):
        failure = reported.failure or ending.failure
        return replace(
            reported,
            outcome=ending.outcome,
            failure=failure,
        )
    if reported.is_inferred:
        return replace(
            reported,
            outcome=ending.outcome,
            failure=ending.failure,
        )
    return reported


def _waiting_for_scheduler(
    reported: JobView,
    local: LocalJob,
    seconds_since_asked: float,
) -> waiting.Waiting | None:
    """Return that a job waits for its scheduling node.

    None for a job that has not started here, and during a run here, as it does not wait then.
    ``seconds_since_asked``: seconds since that node was asked.
    """
    if local.status in (JobStatus.PENDING, JobStatus.READY):
        return None
    if not all(run.over for run in local.runs):
        return None
    node = local.spec.scheduler
    text = f"waits for {node}, asked {seconds_since_asked:.0f} s ago, says {reported.status}"
    if reported.never_ends_callback_jobs and local.spec.settings.by_callback:
        text += (
            "; it is known never to end a job with sync_type: callback: stop this one, and use poll"
        )
    ends = [run.ended_at for run in local.runs if run.ended_at]
    return waiting.Waiting(
        "NEXT_TASK",
        text,
        max(ends, default=local.created_at),
    )


def _own_part(local: LocalJob, task: str) -> TaskView | None:
    """Return a task as the runs of its newest attempt here show it; None if it has not run here."""
    runs = local.newest_runs(task)
    if not runs:
        return None
    by_role: dict[str, list[Run]] = {}
    for task_run in runs:
        by_role.setdefault(task_run.party.role, []).append(task_run)
    nodes = {local.node: {role: merge_runs(of_role) for role, of_role in by_role.items()}}
    failures = [task_run.failure for task_run in runs if task_run.failure]
    return TaskView(
        task_id=runs[0].task_id,
        name=task,
        status=merge_runs(runs),
        failure=next(iter(failures), None),
        nodes=nodes,
        attempt=runs[0].attempt,
    )


def unanswered_view(
    local: LocalJob,
    error: GatewayError,
    timing: RunTiming,
) -> JobView:
    """Return this node's own view of a job, and why its scheduling node's view is missing.

    The cause becomes the reason for waiting if the job waits for the scheduling node, otherwise a
    warning. It is not mentioned if the scheduling node does not serve the status at all.
    """
    own_view = local_view(local, timing)
    if isinstance(error, NotServed):
        return own_view
    text = (
        f"{local.spec.scheduler} did not tell how the job is: {error.message}. "
        "This is what is known here"
    )
    waits_for = own_view.waiting
    if (
        waits_for is None
        or waits_for.reason in local_waiting.DECIDED_HERE
        or ended(JOB, local.status)
    ):
        return replace(own_view, warnings=(*own_view.warnings, text))
    waits_for = replace(
        waits_for,
        reason=waiting.UNREACHABLE,
        message=text,
        since=last_contact(local),
    )
    return replace(own_view, waiting=waits_for)


def local_view(local: LocalJob, timing: RunTiming) -> JobView:
    """Return this node's own view of a job, without its scheduling node's."""
    names = dict.fromkeys(run.task_name for run in local.runs)
    parts = [_own_part(local, name) for name in names]
    outcome = None
    failure = local.own_failure
    if local.ending is not None:
        outcome = local.ending.outcome
        failure = local.ending.failure
    return JobView(
        job_id=local.id,
        status=local.status,
        tasks=[part for part in parts if part is not None],
        outcome=outcome,
        failure=failure,
        progress=run.progress_of(local),
        flow_id=local.spec.flow_id,
        scheduler=local.spec.scheduler,
        warnings=local.warnings,
        waiting=local_waiting.of_local(local, timing),
    )
