"""Why a job or a run has not ended at a participating node, since when, and its next check.

Of several reasons only the one that has to be resolved first is returned.
`gateway.domain.waiting` has the view of the scheduling node.
"""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from gateway.domain import approval
from gateway.domain import run as domain_run
from gateway.domain.execution import machine
from gateway.domain.execution.agenda import agenda
from gateway.domain.execution.contact import last_contact, silence_matters
from gateway.domain.run import LocalJob, Preparation, Run
from gateway.domain.spec import Call, CallState, moment
from gateway.domain.states import JOB, JobStatus, RunStatus, ended
from gateway.domain.timeouts import RunTiming
from gateway.domain.waiting import (
    UNREACHABLE,
    Waiting,
    displayable_due,
    earliest_dues,
    with_next_check,
)

# Reasons that this node knows for certain, even if the scheduling node cannot be asked.
DECIDED_HERE = frozenset({"APPROVAL", "PREPARING", "CONFIRMING", "CLEANING"})

# ---------------------------------------------------------------- jobs


def of_local(local: LocalJob, timing: RunTiming) -> Waiting | None:
    """Return the reason why a job waits at a participating node.

    None once it has ended and released everything.
    """
    due = machine.next_due(local, timing)
    if ended(JOB, local.status):
        waiting = _of_ended_local(local, is_released=due is None)
    else:
        waiting = _of_open_local(local)
    return with_next_check(waiting, displayable_due(due, local.created_at))


def _of_ended_local(local: LocalJob, *, is_released: bool) -> Waiting | None:
    """Return the reason for a job that has ended here: reports or cleanups that are still open.

    ``is_released``: no action is planned for the job any more. None if no report or cleanup is
    open.
    """
    scheduler = local.spec.scheduler
    since = local.ended_at or local.created_at
    confirm = approval.pending_confirmation(local)
    if confirm is not None:
        return Waiting(
            reason="CONFIRMING",
            message=f"reports to {scheduler} what was decided here",
            since=confirm.sent_at or local.created_at,
        )
    if is_released:
        return None
    stop_call = local.stop_call
    if stop_call is not None and not stop_call.completed:
        return Waiting(
            reason="CONFIRMING",
            message=f"reports to {scheduler} that the job was stopped here; it has not answered",
            since=stop_call.sent_at or since,
        )
    if local.closed:
        return None
    return Waiting(
        reason="CLEANING",
        message="its runs are being ended and removed",
        since=since,
    )


def _of_open_local(local: LocalJob) -> Waiting:
    """Return the reason for a job that goes on here.

    The reasons in their order: a silent scheduling node, a pull of images that waits for no person
    any more, the decision of a person here, and the job's own state.
    """
    if silence_matters(local) and _scheduler_is_silent(local.ask):
        since = last_contact(local)
        return Waiting(
            reason=UNREACHABLE,
            message=f"nothing received from {local.spec.scheduler} since {moment(since)}",
            since=since,
        )
    pull = approval.pending_preparation(local)
    if pull is not None and pull.agreed:  # agreed: no person has to approve the job any more
        return _of_pull(pull)
    decision = local.approval
    if decision is not None and local.status is JobStatus.PENDING:
        return Waiting(
            reason="APPROVAL",
            message=f"waits for approval here until {moment(decision.until)}",
            since=decision.since,
        )
    if local.status is JobStatus.READY:
        return _of_ready_local(local)
    return _of_running_local(local)


def _of_pull(pull: Preparation) -> Waiting:
    """Return the reason for a job whose images are being pulled, with the progress of the pull."""
    images = ", ".join(pull.images)
    progress = pull.progress or "begins"
    return Waiting(
        reason="PREPARING",
        message=f"fetches {images} until {moment(pull.until)}: {progress}",
        since=pull.since,
    )


def _scheduler_is_silent(query: Call) -> bool:
    """Return whether ``query`` was sent to the scheduling node and has had no response so far."""
    is_unanswered = query.state in (CallState.SENT, CallState.LOST)
    return is_unanswered and query.tries > 0


def _of_ready_local(local: LocalJob) -> Waiting:
    """Return the reason for an accepted job: its scheduling node has to create it, or to start it.

    A job is approved before its creation if the scheduling node asked for an audit first. The time
    counts from the approval, or from the job's creation if the job needed no approval.
    """
    scheduler = local.spec.scheduler
    since = local.created_at
    if local.approval is not None and local.approval.decided_at is not None:
        since = local.approval.decided_at
    if approval.is_unused(local):
        return Waiting(
            reason="CREATION",
            message=f"approved; {scheduler} has not created the job yet",
            since=since,
        )
    return Waiting(
        reason="START",
        message=f"the start by {scheduler}",
        since=since,
    )


def _of_running_local(local: LocalJob) -> Waiting:
    """Return the reason for a running job: its runs here, or the next task of this node.

    The time counts from the creation of the oldest run that is not over.
    """
    runs = [run for run in local.runs if not run.over]
    if not runs:
        return _of_idle_local(local)
    names = ", ".join(dict.fromkeys(run.task_name for run in runs))
    return Waiting(
        reason="RUNNING",
        message=f"{names} under way",
        since=min(run.created_at for run in runs),
    )


def _of_idle_local(local: LocalJob) -> Waiting:
    """Return the reason for a running job without a run here: this node waits for its next task.

    The time counts from the end of the last run, or from the job's creation if none has run.
    """
    since = max(
        (run.ended_at for run in local.runs if run.ended_at),
        default=local.created_at,
    )
    return Waiting(
        reason="NEXT_TASK",
        message=f"{local.spec.scheduler} has nothing for this node just now",
        since=since,
    )


# ---------------------------------------------------------------- runs


def of_runs(
    local: LocalJob,
    timing: RunTiming,
    queued_runs: Collection[str] = (),
) -> dict[str, Waiting | None]:
    """Return the reason why each run waits, by run id; None for an ended run.

    ``queued_runs`` are the ids of runs whose launch is queued behind launches of other jobs. A run
    without a next check of its own gets the time of the job's earliest action.
    """
    dues = earliest_dues(agenda(local, timing), "run")
    first_due = displayable_due(
        min(dues.values(), default=None),
        local.created_at,
    )
    reasons: dict[str, Waiting | None] = {}
    for run in local.runs:
        waiting = _of_run(local, run, dues.get(run.run_id))
        is_queued = run.run_id in queued_runs and run.status is RunStatus.LAUNCHING
        if is_queued and waiting is not None:
            waiting = replace(
                waiting,
                reason="TURN",
                message="containers of other jobs are started first",
            )
        reasons[run.run_id] = with_next_check(waiting, first_due)
    return reasons


def _of_run(
    local: LocalJob,
    run: Run,
    due: datetime | None,
) -> Waiting | None:
    """Return the reason for one run by its state; None if it has ended.

    ``due`` is the time of the next step planned for the run; None if no step is planned.
    """
    due = displayable_due(due, run.created_at)
    texts = {
        RunStatus.LAUNCHING: "its container is being started",
        RunStatus.RUNNING: _running_text(run),
        RunStatus.STOPPING: "its container is being stopped",
    }
    times = {
        RunStatus.LAUNCHING: run.launch.sent_at,
        RunStatus.RUNNING: run.started_at,
        RunStatus.STOPPING: run.stop_at,
    }
    if run.status is RunStatus.WAITING:
        return _of_waiting_run(local, run, due)
    if run.status not in texts:
        return None
    return Waiting(
        reason=run.status.value,  # the reason has the name of the status
        message=texts[run.status],
        since=times[run.status] or run.created_at,
        next_check=due,
    )


def _of_waiting_run(
    local: LocalJob,
    run: Run,
    due: datetime | None,
) -> Waiting:
    """Return the reason why a run is not launched: a shortage in the job's pool, if there is one.

    Otherwise its launch is about to follow. A run with a due launch (``due``) has no shortage.
    """
    shortage = ""
    if due is None:
        shortage = domain_run.waits_for(local, run)
    if shortage:
        return Waiting(
            reason="RESOURCES",
            message=shortage,
            since=run.created_at,
        )
    return Waiting(
        reason="LAUNCH",
        message="its container is to be started",
        since=run.created_at,
        next_check=due,
    )


def _running_text(run: Run) -> str:
    """Describe the last news of a running container: its engine's silence, or its last report."""
    if run.away_at is not None:
        return f"its engine has not answered since {moment(run.away_at)}"
    reported_status = run.container_report.status
    if reported_status:
        return f"it reported {reported_status}"
    return "it has not reported yet"
