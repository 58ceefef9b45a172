"""How a job and its runs end here on request, and what is said of an end that nobody explains."""

from dataclasses import replace
from datetime import datetime

from gateway.domain import models
from gateway.domain.execution.messages import StopAsked
from gateway.domain.execution.records import with_run
from gateway.domain.execution.transitions import failed, stopped
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JOB, RUN, JobStatus, Outcome, RunStatus, ended, move


def stop_asked(local: LocalJob, event: StopAsked) -> LocalJob:
    """End the runs of some tasks, or of all and the job with them."""
    changed = local
    for run in local.runs:
        if event.tasks is None or run.task_name in event.tasks:
            changed = with_run(changed, run.run_id, lambda r: _stop_run(r, event.at), at=event.at)
    if event.tasks is not None:
        same = changed.runs == local.runs
        return changed if same else changed.noted(event.at, "task stop asked", event.by, tasks=sorted(event.tasks))
    if ended(JOB, local.status):
        return _explained(changed, event)
    final = JobStatus.REJECTED if local.status is JobStatus.PENDING else JobStatus.FINISHED
    ending = event.ending or _ending_by_runs(local, event)
    outcome = ending.outcome if ending else ""
    changed = replace(changed, status=move(JOB, local.status, final), ended_at=event.at, ending=ending)
    if models.saves(changed, ending):
        name = models.named(local.spec)
        changed = replace(changed, model_saved=True)
        changed = changed.noted(event.at, "model saved", model_id=name.model_id, version=name.version)
    return changed.noted(event.at, f"job {final} here", event.by, outcome=outcome)


def _explained(local: LocalJob, event: StopAsked) -> LocalJob:
    """Take up how the job ended where that is told only after the stop, as FATE tells it."""
    ending = event.ending
    if local.ending is not None or ending is None or ending.outcome is Outcome.SUCCEEDED:
        return local
    if local.approval is not None and local.approval.failure is not None:  # it ended by the no from here
        ending = replace(ending, outcome=Outcome.REJECTED, failure=local.approval.failure)
    changed = replace(local, ending=ending)
    return changed.noted(event.at, "job's end explained", event.by, outcome=ending.outcome)


def _ending_by_runs(local: LocalJob, event: StopAsked) -> Ending | None:
    """Return how the job ended where the scheduling node does not say: what the runs here tell, or nothing.

    The standard has no message for a success; the stop of a job whose every task has succeeded here is one.
    """
    last = {(run.task_name, run.party): run for run in local.runs}.values()
    failed = next((run.failure for run in last if run.failure is not None), None)
    if failed is not None:
        return Ending(
            Outcome.STOPPED if failed.reason == "STOPPED" else Outcome.FAILED, event.at, failed, event.by
        )
    complete = {run.task_name for run in last} == {node.name for node in local.spec.dag.nodes}
    return Ending(Outcome.SUCCEEDED, event.at, None, event.by) if complete and all(r.over for r in last) else None


def _stop_run(run: Run, at: datetime) -> Run:
    if run.over or run.stop_at is not None:
        return run
    run = replace(run, stop_at=at)
    if run.status is RunStatus.WAITING or (run.status is RunStatus.RUNNING and run.exit is not None):
        return failed(run, stopped(run), at)
    if run.status is RunStatus.RUNNING:
        return replace(run, status=move(RUN, run.status, RunStatus.STOPPING))
    return run


def ended_by(local: LocalJob, ending: Ending) -> LocalJob:
    """End the job here, as somebody here decided."""
    return stop_asked(local, StopAsked(ending.at, None, ending, ending.by))


def abandoned(local: LocalJob, reason: str, words: str, at: datetime) -> LocalJob:
    """End the job here without the scheduling node's word."""
    text = f"the scheduling node {local.spec.scheduler} does not answer: {words}"
    ending = Ending(Outcome.STOPPED, at, Failure(reason, text, local.node), local.node)
    return stop_asked(local, StopAsked(at, None, ending, local.node))
