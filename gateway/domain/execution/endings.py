"""How a job ends at a participating node: by a stop, by itself, or as people or limits decide."""

from datetime import datetime, timedelta

from gateway.domain import models
from gateway.domain.execution import messages, runs
from gateway.domain.execution.contact import UNREACHABLE
from gateway.domain.run import LocalJob, Run, StopRequest
from gateway.domain.spec import Call, CallState, Ending, Failure, NodeId, changed
from gateway.domain.states import JOB, JobStatus, Outcome, ended, move, replace
from gateway.domain.timeouts import RunTiming

MAX_INQUIRIES = 10  # tries to learn how a job ended from a scheduler whose stop did not say so

# Pause before the first: some nodes record a job's end only after every party answered the stop.
_INQUIRY_PAUSE = timedelta(seconds=1)


def stop(local: LocalJob, event: messages.StopRequested) -> LocalJob:
    """End the runs of some tasks, or of all and the job with them."""
    if event.tasks is not None:
        stopped = _stop_runs(local, event.tasks, event.at)
        if stopped.runs == local.runs:
            return stopped
        return stopped.with_note(event.at, "task stop asked", event.by, tasks=sorted(event.tasks))
    stopped = _stop_runs(local, frozenset(run.task_name for run in local.runs), event.at)
    if ended(JOB, local.status):
        return _explain(stopped, event)
    status = JobStatus.FINISHED
    if local.status is JobStatus.PENDING:
        status = JobStatus.REJECTED
    ending = event.ending
    if ending is None:
        ending = _inferred_ending(local, event)
    stopped = replace(
        stopped,
        status=move(JOB, local.status, status),
        ended_at=event.at,
        ending=ending,
    )
    is_unexplained = event.ending is None and status is JobStatus.FINISHED
    if is_unexplained and _is_scheduled_by_another(local, event.by):
        stopped = replace(stopped, inquiry=Call(due_at=event.at + _INQUIRY_PAUSE))
    else:
        stopped = keep_models(stopped, event.at)
    outcome = ending.outcome if ending else ""
    return stopped.with_note(event.at, f"job {status} here", event.by, outcome=outcome)


def _stop_runs(
    local: LocalJob,
    tasks: frozenset[str],
    at: datetime,
) -> LocalJob:
    for run in local.runs:
        if run.task_name in tasks:
            local = runs.with_run(local, run.run_id, lambda run: runs.stopped(run, at), at=at)
    return local


def _is_scheduled_by_another(local: LocalJob, sender: NodeId) -> bool:
    return sender == local.spec.scheduler and sender != local.node


def keep_models(local: LocalJob, at: datetime) -> LocalJob:
    """Keep the models of a job that has succeeded."""
    if local.model_saved or not models.saves(local, local.ending):
        return local
    name = models.named(local.spec)
    local = replace(local, model_saved=True)
    return local.with_note(at, "model saved", model_id=name.model_id, version=name.version)


# ---------------------------------------------------------------- decisions of this node


def end_here(local: LocalJob, ending: Ending) -> LocalJob:
    """End the job here, whatever its scheduling node knows."""
    return stop(local, messages.StopRequested(ending.at, None, ending, ending.by))


def stop_here(local: LocalJob, event: messages.StoppedHere) -> LocalJob:
    """End the job for people here without its scheduling node, which learns of it once it answers."""
    text = f"stopped by {local.node} alone: {event.why}"
    ending = Ending(Outcome.STOPPED, event.at, Failure("STOPPED", text, local.node), local.node)
    stop_call = local.wish
    if stop_call is None or stop_call.completed:
        stop_call = Call()
    return end_here(replace(local, wish=stop_call), ending)


def record_stop_request(local: LocalJob, event: messages.StopWished) -> LocalJob:
    """Record that people here had the scheduling node stop the job, or that it refused to."""
    if ended(JOB, local.status):
        return local
    request = StopRequest(event.by, event.at) if event.by else None
    return replace(local, stop_request=request)


def time_out(
    local: LocalJob,
    at: datetime,
    timing: RunTiming,
) -> LocalJob:
    """End a partner's job that took too long, and have its scheduling node end it everywhere."""
    limit = timing.partner_job or 0.0
    text = (
        f"a job of a partner may run at {local.node} for {limit:g} s (limits.partner_job_seconds)"
    )
    ending = Ending(Outcome.FAILED, at, Failure("TIMEOUT", text, local.node), local.node)
    return end_here(replace(local, wish=Call()), ending)


def abandon(local: LocalJob, at: datetime) -> LocalJob:
    """End a job whose scheduling node does not respond."""
    text = f"the scheduling node {local.spec.scheduler} does not answer: {local.ask.message}"
    failure = Failure(UNREACHABLE, text, local.node)
    return end_here(local, Ending(Outcome.STOPPED, at, failure, local.node))


# ---------------------------------------------------------------- explanations that come later


def _explain(local: LocalJob, event: messages.StopRequested) -> LocalJob:
    """Take up how the job ended where that arrives only after the stop, as FATE sends it."""
    ending = event.ending
    if ending is None:
        return local
    is_news = may_explain(local, ending.outcome, is_inferred=event.is_inferred)
    was_inquired = local.inquiry is not None
    local = changed(local, "inquiry", lambda call: replace(call, state=CallState.OK, message=""))
    if is_news:
        if local.approval is not None and local.approval.failure is not None:
            # the job ended because this node rejected it
            rejection = local.approval.failure
            ending = replace(ending, outcome=Outcome.REJECTED, failure=rejection)
        local = replace(local, ending=ending)
    if was_inquired:  # only now it is known whether the job leaves a model
        local = keep_models(local, event.at)
    if not is_news:
        return local
    return local.with_note(event.at, "job's end explained", event.by, outcome=ending.outcome)


def may_explain(
    local: LocalJob,
    outcome: Outcome,
    *,
    is_inferred: bool = False,
) -> bool:
    """Return whether an outcome that comes after the end here is news.

    That runs were stopped explains nothing. ``is_inferred``: the outcome was read off tasks' states.
    A stop leaves running tasks FAILED at some nodes, so that a failure inferred there does not
    replace a stop.
    """
    ending = local.ending
    is_success = outcome is Outcome.SUCCEEDED
    if ending is None:
        return not is_success or local.is_ending_inferred
    if outcome is ending.outcome:
        return False
    if _is_task_stop(ending):
        return not is_success
    if ending.outcome is Outcome.STOPPED and local.stop_request is not None:
        return is_success and local.is_ending_inferred
    if not local.is_ending_inferred or local.own_failure is not None:
        return False
    return ending.outcome is Outcome.SUCCEEDED or is_success or not is_inferred


def _is_task_stop(ending: Ending) -> bool:
    failure = ending.failure
    return failure is not None and failure.reason == "STOPPED" and failure.task != ""


# ---------------------------------------------------------------- endings that nobody explained


def _inferred_ending(local: LocalJob, event: messages.StopRequested) -> Ending | None:
    """Return how the job ended where the scheduling node does not say; None where nothing tells."""
    request = local.stop_request
    is_pending = local.status is JobStatus.PENDING
    if request is not None and not is_pending and local.own_failure is None:
        failure = Failure("STOPPED", f"stopped by {request.by}", local.node)
        return Ending(Outcome.STOPPED, request.at, failure, local.node)
    ending = _ending_by_runs(local, event)
    if ending is not None or is_pending:
        return ending
    all_over = local.runs != () and all(run.over for run in local.runs)
    if all_over or not _is_scheduled_by_another(local, event.by):
        return None
    failure = Failure("STOPPED", f"stopped by {event.by}, which did not say why", event.by)
    return Ending(Outcome.STOPPED, event.at, failure, event.by)


def _ending_by_runs(local: LocalJob, event: messages.StopRequested) -> Ending | None:
    """Return the ending that the runs here show; None where they show none.

    The standard has no message for a success; the stop of a job whose every task has succeeded here
    is one.
    """
    latest_runs = _latest_runs(local)
    for run in latest_runs:
        if run.failure is not None:
            outcome = Outcome.FAILED
            if run.failure.reason == "STOPPED":
                outcome = Outcome.STOPPED
            return Ending(outcome, event.at, run.failure, event.by)
    tasks_here = {run.task_name for run in latest_runs}
    tasks = {node.name for node in local.spec.dag.nodes}
    if tasks_here != tasks or not all(run.over for run in latest_runs):
        return None
    return Ending(Outcome.SUCCEEDED, event.at, None, event.by)


def _latest_runs(local: LocalJob) -> list[Run]:
    """Return the latest run of each task and party."""
    return list({(run.task_name, run.party): run for run in local.runs}.values())
