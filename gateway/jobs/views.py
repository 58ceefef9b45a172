"""Views of a job for people and peers: what the scheduling node knows, and what a party knows by itself."""

from dataclasses import replace

from gateway.domain import quorum, run, waiting
from gateway.domain.execution.runs import merge_runs
from gateway.domain.job import Job
from gateway.domain.run import LocalJob, Run
from gateway.domain.states import JOB, JobStatus, TaskStatus, ended
from gateway.domain.timeouts import RunTiming, Timing
from gateway.errors import GatewayError, NotServed
from gateway.ports import JobView, TaskView


def view(job: Job, timing: Timing) -> JobView:
    """Return the view of a job."""
    reasons = waiting.of_tasks(job, timing)
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
        waiting.of_job(job, timing),
        quorum.details(job),
        quorum.failed_tasks(job),
        job.spec.old_job_id,
        job.origin,
    )


def with_local(
    found: JobView,
    local: LocalJob,
    asked_before: float = 0.0,
) -> JobView:
    """Add what this node knows of its own part, and of the job where the scheduling node leaves that out.

    Tasks that a peer knows by their names get the ids they run under here, and the others their names.
    ``asked_before``: seconds since the scheduling node was asked.
    """
    by_name = {run.task_name: run.task_id for run in local.runs}
    by_id = {task_id: name for name, task_id in by_name.items()}
    tasks = []
    for task in found.tasks:
        if task.task_id in by_id:
            task = replace(task, name=by_id[task.task_id])
        else:
            task = replace(task, task_id=by_name.get(task.task_id, task.task_id))
        if (own := _own_part(local, task.name)) is not None and local.node not in task.nodes:
            why = task.failure or (own.failure if task.status is TaskStatus.FAILED else None)
            task = replace(task, nodes={**task.nodes, **own.nodes}, failure=why)
        tasks.append(task)
    found = replace(found, tasks=tasks, scheduler=found.scheduler or local.spec.scheduler)
    ending = local.ending
    if ending is not None and ended(JOB, found.status):
        if found.outcome in (None, ending.outcome):
            found = replace(found, outcome=ending.outcome, failure=found.failure or ending.failure)
        elif found.is_inferred:
            found = replace(found, outcome=ending.outcome, failure=ending.failure)
    if found.waiting is None and not ended(JOB, found.status):
        found = replace(found, waiting=_waiting_for_scheduler(found, local, asked_before))
    return replace(found, flow_id=found.flow_id or local.spec.flow_id)


def _waiting_for_scheduler(
    found: JobView,
    local: LocalJob,
    asked_before: float,
) -> waiting.Waiting | None:
    """Return what a job waits for whose part here is done, for now or for good; None while a run goes on."""
    if local.status in (JobStatus.PENDING, JobStatus.READY) or any(
        not run.over for run in local.runs
    ):
        return None
    node = local.spec.scheduler
    text = f"waits for {node}, asked {asked_before:.0f} s ago, says {found.status}"
    if found.ends_no_callback_job and local.spec.settings.by_callback:
        text += (
            "; it is known never to end a job with sync_type: callback: stop this one, and use poll"
        )
    since = max((run.ended_at for run in local.runs if run.ended_at), default=local.created_at)
    return waiting.Waiting("NEXT_TASK", text, since)


def _own_part(local: LocalJob, task: str) -> TaskView | None:
    """Return a task as this node knows it by itself; None where it has not run here."""
    runs = local.newest_runs(task)
    if not runs:
        return None
    by_role: dict[str, list[Run]] = {}
    for one in runs:
        by_role.setdefault(one.party.role, []).append(one)
    nodes = {local.node: {role: merge_runs(those) for role, those in by_role.items()}}
    failure = next((one.failure for one in runs if one.failure), None)
    return TaskView(
        runs[0].task_id, task, merge_runs(runs), failure, nodes, attempt=runs[0].attempt
    )


def unanswered_view(
    local: LocalJob,
    error: GatewayError,
    timing: RunTiming,
) -> JobView:
    """Return what this node knows of a job whose scheduling node did not tell, and why it did not.

    Nodes that have no such question are never expected to.
    """
    view = local_view(local, timing)
    if isinstance(error, NotServed):
        return view
    text = f"{local.spec.scheduler} did not tell how the job is: {error.message}. This is what is known here"
    if (
        ended(JOB, local.status)
        or view.waiting is None
        or view.waiting.reason in waiting.DECIDED_HERE
    ):
        return replace(view, warnings=(*view.warnings, text))
    since = local.last_contact or local.created_at
    return replace(
        view,
        waiting=replace(
            view.waiting,
            reason=waiting.UNREACHABLE,
            message=text,
            since=since,
        ),
    )


def local_view(local: LocalJob, timing: RunTiming) -> JobView:
    """Return what this node knows of a job by itself, for when the scheduling node does not answer."""
    names = dict.fromkeys(run.task_name for run in local.runs)
    tasks = [part for name in names if (part := _own_part(local, name)) is not None]
    failure = local.ending.failure if local.ending else local.own_failure
    return JobView(
        local.id,
        local.status,
        tasks,
        local.ending.outcome if local.ending else None,
        failure,
        progress=run.of(local),
        flow_id=local.spec.flow_id,
        scheduler=local.spec.scheduler,
        warnings=local.warnings,
        waiting=waiting.of_local(local, timing),
    )
