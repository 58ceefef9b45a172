"""A job as it is shown, made of the record that this node has."""

from dataclasses import replace

from gateway.domain import quorum, run, waiting
from gateway.domain.execution.transitions import merge_runs
from gateway.domain.job import Job
from gateway.domain.run import LocalJob
from gateway.domain.states import JOB, TaskStatus, ended
from gateway.errors import GatewayError, NotServed
from gateway.ports import JobView, TaskView


def view(job: Job) -> JobView:
    """Return the job as it is shown."""
    reasons = waiting.of_tasks(job)
    return JobView(
        job.id,
        job.status,
        [
            TaskView(
                t.task_id,
                t.name,
                t.status,
                t.failure,
                {n: dict(part.roles) for n, part in t.nodes.items()},
                t.started_at,
                t.attempt,
                t.attempts,
                reasons[t.name],
                t.lineage if t.status is TaskStatus.SUCCESS else None,
            )
            for t in job.tasks.values()
        ],
        job.outcome,
        job.ending.failure if job.ending else None,
        job.progress,
        job.spec.flow_id,
        job.spec.scheduler,
        job.warnings,
        waiting.of_job(job),
        quorum.details(job),
        quorum.failed_tasks(job),
        job.spec.old_job_id,
        job.origin,
    )


def with_ids(found: JobView, local: LocalJob) -> JobView:
    """Give tasks that a peer knows by their names the ids they run under here, and the others their names."""
    by_name = {run.task_name: run.task_id for run in local.runs}
    by_id = {task_id: name for name, task_id in by_name.items()}
    tasks = [
        replace(task, name=by_id[task.task_id])
        if task.task_id in by_id
        else replace(task, task_id=by_name.get(task.task_id, task.task_id))
        for task in found.tasks
    ]
    return replace(found, tasks=tasks)


def unanswered_view(local: LocalJob, error: GatewayError) -> JobView:
    """Return what this node knows of a job whose scheduling node did not tell, and why it did not.

    Nodes that have no such question are never expected to.
    """
    view = local_view(local)
    if isinstance(error, NotServed):
        return view
    text = f"{local.spec.scheduler} did not tell how the job is: {error.message}. This is what is known here"
    view = replace(view, warnings=(*view.warnings, text))
    if ended(JOB, local.status) or view.waiting is None or view.waiting.reason in waiting.DECIDED_HERE:
        return view
    since = local.last_contact or local.created_at
    return replace(view, waiting=replace(view.waiting, reason=waiting.UNREACHABLE, message=text, since=since))


def local_view(local: LocalJob) -> JobView:
    """Return what this node knows of a job by itself, for when the scheduling node does not answer."""
    newest = {run.task_name: local.newest_runs(run.task_name) for run in local.runs}
    tasks = [
        TaskView(runs[0].task_id, name, merge_runs(runs), nodes={local.node: {}}, attempt=runs[0].attempt)
        for name, runs in newest.items()
    ]
    return JobView(
        local.id,
        local.status,
        tasks,
        local.ending.outcome if local.ending else None,
        local.ending.failure if local.ending else None,
        progress=run.of(local),
        flow_id=local.spec.flow_id,
        scheduler=local.spec.scheduler,
        warnings=local.warnings,
        waiting=waiting.of_local(local),
    )
