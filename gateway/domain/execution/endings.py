"""How a job ends at a participating node: by a stop, by itself, or as people or limits decide."""

from datetime import datetime, timedelta

from gateway.domain import models
from gateway.domain.execution import conclusions, messages, runs
from gateway.domain.execution.contact import UNREACHABLE
from gateway.domain.records import replace
from gateway.domain.run import LocalJob, Run, StopRequest, latest_runs
from gateway.domain.spec import Call, CallState, Ending, Failure, NodeId, changed
from gateway.domain.states import FINAL_STATUS, JOB, JobStatus, Outcome, ended
from gateway.domain.timeouts import RunTiming

# Largest number of inquiries about one job. An inquiry asks the scheduling node how the job ended,
# after a stop that did not say so.
MAX_INQUIRIES = 10

# Pause before the first inquiry, as some nodes record the end of a job only after every party has
# responded to the stop.
_INQUIRY_PAUSE = timedelta(seconds=1)


def stop(local: LocalJob, event: messages.StopRequested) -> LocalJob:
    """End the runs of the event's ``tasks``; if these are None, end all runs and the job.

    A stop that arrives after the job has ended here may still explain how the job ended.
    """
    if event.tasks is not None:
        return _stop_tasks(local, event.tasks, event)
    every_task = frozenset(run.task_name for run in local.runs)
    stopped = _stop_runs(local, every_task, event.at)
    if ended(JOB, local.status):
        return _explain(stopped, event)
    return _end(stopped, local, event)


def _stop_tasks(
    local: LocalJob,
    tasks: frozenset[str],
    event: messages.StopRequested,
) -> LocalJob:
    """End the runs of some tasks; the job goes on. A repeated stop is not noted again."""
    stopped = _stop_runs(local, tasks, event.at)
    if stopped.runs == local.runs:
        return stopped
    return stopped.with_note(
        event.at,
        "task stop asked",
        event.by,
        tasks=sorted(tasks),
    )


def _stop_runs(
    local: LocalJob,
    tasks: frozenset[str],
    at: datetime,
) -> LocalJob:
    """Return the job with every run of these tasks ending."""

    def stop_run(run: Run) -> Run:
        return runs.stop(run, at)

    for run in local.runs:
        if run.task_name in tasks:
            local = runs.with_run(
                local,
                run.run_id,
                stop_run,
                at=at,
            )
    return local


def _end(
    stopped: LocalJob,
    before: LocalJob,
    event: messages.StopRequested,
) -> LocalJob:
    """End the job: FINISHED, or REJECTED if it was PENDING.

    ``stopped`` is the job with its runs stopped already, ``before`` the job with its runs as they
    were: these show how the job ended if the stop does not say so.
    """
    status = FINAL_STATUS[before.status]
    ending = event.ending
    if ending is None:
        ending = _inferred_ending(before, event)
    ended_job = replace(
        stopped,
        status=status,
        ended_at=event.at,
        ending=ending,
    )
    ended_job = _inquire_or_keep_models(ended_job, event)
    outcome = ""
    if ending is not None:
        outcome = ending.outcome
    return ended_job.with_note(
        event.at,
        f"job {status} here",
        event.by,
        outcome=outcome,
    )


def _inquire_or_keep_models(local: LocalJob, event: messages.StopRequested) -> LocalJob:
    """Plan an inquiry to the scheduling node if its stop did not say how the job ended.

    Without an inquiry the ending is final, so the job's models are kept now. With an inquiry they
    are kept only after its response.
    """
    is_unexplained = event.ending is None and local.status is JobStatus.FINISHED
    if is_unexplained and _is_scheduled_by_another(local, event.by):
        return replace(
            local,
            inquiry=Call(due_at=event.at + _INQUIRY_PAUSE),
        )
    return keep_models(local, event.at)


def _is_scheduled_by_another(local: LocalJob, sender: NodeId) -> bool:
    """Return whether ``sender`` is the job's scheduling node, and not this node itself."""
    return sender == local.spec.scheduler and sender != local.node


def keep_models(local: LocalJob, at: datetime) -> LocalJob:
    """Keep the models of a job that has succeeded; any other job stays as it is."""
    if local.model_saved or not models.leaves_model(local, local.ending):
        return local
    name = models.model_version(local.spec)
    local = replace(local, model_saved=True)
    return local.with_note(
        at,
        "model saved",
        model_id=name.model_id,
        version=name.version,
    )


# ---------------------------------------------------------------- decisions of this node


def end_here(local: LocalJob, ending: Ending) -> LocalJob:
    """End the job here by a decision of this node, whatever the scheduling node does."""
    event = messages.StopRequested(
        at=ending.at,
        tasks=None,  # the whole job
        ending=ending,
        by=ending.by,
    )
    return stop(local, event)


def stop_here(local: LocalJob, event: messages.StoppedHere) -> LocalJob:
    """End the job for people here, without its scheduling node, which does not respond.

    Once the scheduling node responds, it is asked to stop the job everywhere. A request that is
    still open, from an earlier stop by people here, goes on.
    """
    text = f"stopped by {local.node} alone: {event.why}"
    ending = Ending(
        Outcome.STOPPED,
        event.at,
        Failure("STOPPED", text, local.node),
        local.node,
    )
    stop_call = local.stop_call
    if stop_call is None or stop_call.completed:
        stop_call = Call()
    return end_here(replace(local, stop_call=stop_call), ending)


def record_stop_request(local: LocalJob, event: messages.StopAskedHere) -> LocalJob:
    """Record that people here asked the scheduling node to stop the job, or that it was refused.

    The request explains the stop that the scheduling node then sends. A refusal, which is an event
    with an empty ``by``, removes the request.
    """
    if ended(JOB, local.status):
        return local
    request = None
    if event.by:
        request = StopRequest(event.by, event.at)
    return replace(local, stop_request=request)


def time_out(
    local: LocalJob,
    at: datetime,
    timing: RunTiming,
) -> LocalJob:
    """End a partner's job that took too long, and have its scheduling node end it everywhere."""
    limit = timing.partner_job or 0.0  # never None here: the decision is due only with a limit
    text = (
        f"a job of a partner may run at {local.node} for {limit:g} s (limits.partner_job_seconds)"
    )
    ending = Ending(
        Outcome.FAILED,
        at,
        Failure("TIMEOUT", text, local.node),
        local.node,
    )
    return end_here(replace(local, stop_call=Call()), ending)


def abandon(local: LocalJob, at: datetime) -> LocalJob:
    """End a job whose scheduling node does not respond.

    The message of the failure has the error of the last query to the scheduling node.
    """
    text = f"the scheduling node {local.spec.scheduler} does not answer: {local.ask.message}"
    failure = Failure(UNREACHABLE, text, local.node)
    return end_here(
        local,
        Ending(Outcome.STOPPED, at, failure, local.node),
    )


# ---------------------------------------------------------------- explanations that come later


def _explain(local: LocalJob, event: messages.StopRequested) -> LocalJob:
    """Record an explanation of the ending that arrives only after the stop, as FATE sends it.

    The explanation replaces the recorded ending if `may_replace_ending` permits that. It also
    completes an open inquiry, after which it is certain whether the job leaves a model.
    """
    ending = event.ending
    if ending is None:
        return local
    is_news = may_replace_ending(
        local,
        ending.outcome,
        is_inferred=event.is_inferred,
    )
    was_inquired = local.inquiry is not None
    local = changed(local, "inquiry", _completed)
    if is_news:
        ending = _with_rejection(local, ending)
        local = replace(local, ending=ending)
    if was_inquired:
        local = keep_models(local, event.at)
    if not is_news:
        return local
    return local.with_note(
        event.at,
        "job's end explained",
        event.by,
        outcome=ending.outcome,
    )


def _completed(call: Call) -> Call:
    """Return the call as completed: its response has arrived."""
    return replace(
        call,
        state=CallState.OK,
        message="",
    )


def _with_rejection(local: LocalJob, ending: Ending) -> Ending:
    """Return the ending as a rejection if this node has rejected the job; else as it is."""
    if local.approval is None or local.approval.failure is None:
        return ending
    return replace(
        ending,
        outcome=Outcome.REJECTED,
        failure=local.approval.failure,
    )


def may_replace_ending(
    local: LocalJob,
    outcome: Outcome,
    *,
    is_inferred: bool = False,
) -> bool:
    """Return whether an outcome that comes after the end of the job here replaces the recorded one.

    That depends on the recorded ending:

    - no ending: any failure or stop replaces it; a success only if the ending is still inferred;
    - an ending with the same outcome is kept;
    - the stop of a single task: any other outcome but a success replaces it, as the stop of a task
      does not explain the end of the job;
    - a stop that people here requested: only a success replaces it, while the ending is inferred;
    - an ending that the scheduling node has reported, or a failure of the job's own runs, is final;
    - any other ending was inferred here, and is replaced.

    ``is_inferred``: the new outcome was inferred from states of tasks. At some nodes a stop leaves
    running tasks FAILED, so an inferred failure does not replace a stop.
    """
    ending = local.ending
    is_success = outcome is Outcome.SUCCEEDED
    if ending is None:
        return not is_success or local.is_ending_inferred
    if outcome is ending.outcome:
        return False
    failure = ending.failure
    if failure is not None and failure.task and failure.outcome is Outcome.STOPPED:
        return not is_success
    if ending.outcome is Outcome.STOPPED and local.stop_request is not None:
        return is_success and local.is_ending_inferred
    is_final = not local.is_ending_inferred or local.own_failure is not None
    if is_final:
        return False
    return not is_inferred or Outcome.SUCCEEDED in (outcome, ending.outcome)


# ---------------------------------------------------------------- endings without an explanation


def _inferred_ending(local: LocalJob, event: messages.StopRequested) -> Ending | None:
    """Return how the job ended, as its stop does not say so; None if nothing shows the ending.

    The first of these that applies decides: people here had the job stopped, and no run of the job
    has failed by itself; the runs show the ending; the scheduling node has stopped a job whose runs
    were not over.
    """
    request = local.stop_request
    is_pending = local.status is JobStatus.PENDING
    if request is not None and not is_pending and local.own_failure is None:
        failure = Failure("STOPPED", f"stopped by {request.by}", local.node)
        return Ending(Outcome.STOPPED, request.at, failure, local.node)
    ending = _ending_by_runs(local, event)
    if ending is not None or is_pending:
        return ending
    return _ending_by_scheduler(local, event)


def _ending_by_scheduler(local: LocalJob, event: messages.StopRequested) -> Ending | None:
    """Return the ending of a job that its scheduling node has stopped before its runs were over.

    None if all runs were over, or another node or this node itself sent the stop.
    """
    all_over = local.runs != () and all(run.over for run in local.runs)
    if all_over or not _is_scheduled_by_another(local, event.by):
        return None
    failure = Failure("STOPPED", f"stopped by {event.by}, which did not say why", event.by)
    return Ending(Outcome.STOPPED, event.at, failure, event.by)


def _ending_by_runs(local: LocalJob, event: messages.StopRequested) -> Ending | None:
    """Return the ending that the runs here show; None if they show none.

    The job has ended with the first failure among the latest runs: as STOPPED if that run was
    stopped, else as FAILED. A run that is still being stopped has a failure already. The job has
    succeeded if every task of the flow has succeeded here: the only message of the standard after
    the success of a job is the stop.
    """
    newest_runs = latest_runs(local.runs)
    for run in newest_runs:
        failure = conclusions.failure_of(run)
        if failure is not None:
            return Ending(failure.outcome, event.at, failure, event.by)
    tasks_here = {run.task_name for run in newest_runs}
    tasks = {node.name for node in local.spec.dag.nodes}
    if tasks_here != tasks or not all(run.over for run in newest_runs):
        return None
    return Ending(Outcome.SUCCEEDED, event.at, None, event.by)
