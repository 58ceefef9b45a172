"""What there is to do for a job at a participating node, and when."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import assert_never

from gateway.domain import approval
from gateway.domain import run as domain_run
from gateway.domain.execution import messages
from gateway.domain.execution.contact import (
    MAX_QUERIES,
    silence_limit,
    watched,
)
from gateway.domain.execution.endings import MAX_INQUIRIES
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import CallState, is_own
from gateway.domain.states import JOB, JobStatus, RunStatus, TaskStatus, ended
from gateway.domain.timeouts import NOW, Due, RunTiming, when_due

ToDo = Iterator[Due[messages.Command]]

_MAX_STOP_TRIES = 8640  # tries of a stop that people here asked for: about a day


def agenda(local: LocalJob, timing: RunTiming) -> ToDo:
    """Yield everything there is to do, each with its earliest time."""
    if local.wish is not None and local.wish.tries < _MAX_STOP_TRIES:
        yield from when_due(local.wish, messages.AskStop(), timing.call_deadline)
    if local.inquiry is not None and local.inquiry.tries < MAX_INQUIRIES:
        yield from when_due(local.inquiry, messages.QueryEnding(), timing.call_deadline)
    yield from _of_runs(local, timing)
    yield from _of_approval(local, timing)
    if watched(local):
        yield from _of_scheduler(local, timing)
    runs_until = _runs_until(local, timing)
    if runs_until is not None:
        yield Due(runs_until, messages.TimeOut())
    if _may_close(local):
        yield from when_due(local.close, messages.Close(), timing.call_deadline)


def _of_runs(local: LocalJob, timing: RunTiming) -> ToDo:
    may_launch = domain_run.may_launch(local)
    # why a job ends is reported before the end of its runs
    asks_stop = local.wish is not None and not local.wish.completed
    for run in local.runs:
        if run.done_with:
            continue
        if run.status is RunStatus.WAITING and run.run_id not in may_launch:
            continue
        yield from _of_run(run, timing)
        if not asks_stop:
            yield from _reports(run, timing)


def _of_run(run: Run, timing: RunTiming) -> ToDo:
    match run.status:
        case RunStatus.WAITING:
            yield Due(NOW, messages.Launch(run.run_id))
        case RunStatus.LAUNCHING:
            yield from when_due(run.launch, messages.Launch(run.run_id), timing.launch_deadline)
        case RunStatus.RUNNING:
            yield from _of_running(run, timing)
        case RunStatus.STOPPING:
            deadline = timing.stop_grace + timing.call_deadline
            yield from when_due(run.stop, messages.StopRun(run.run_id, timing.stop_grace), deadline)
            if run.stop.state is CallState.OK:  # and it could not be seen whether it is gone
                yield Due(run.probe_at or NOW, messages.Probe(run.run_id))
        case RunStatus.SUCCESS | RunStatus.FAILED:
            if _awaits_collection(run):
                deadline = timing.stop_grace + timing.call_deadline
                yield from when_due(run.collect, messages.Collect(run.run_id), deadline)
            if run.unsealed:
                yield from when_due(run.seal, messages.Seal(run.run_id), timing.seal_deadline)
        case _:
            assert_never(run.status)


def _of_running(run: Run, timing: RunTiming) -> ToDo:
    if run.exit is not None:
        exited_at = run.exit.finished_at or run.reported_at or NOW
        grace = timedelta(seconds=timing.callback_grace)
        yield Due(exited_at + grace, messages.Conclude(run.run_id))
        return
    yield Due(run.probe_at or NOW, messages.Probe(run.run_id))
    if run.reported is TaskStatus.SUCCESS:
        since, limit = run.reported_at, timing.linger
    else:
        since, limit = run.away_at, timing.engine_timeout
    if since is not None:
        yield Due(since + timedelta(seconds=limit), messages.Conclude(run.run_id))


def _reports(run: Run, timing: RunTiming) -> ToDo:
    """Yield the report of a run's state that the scheduling node does not have yet."""
    status = run.reported_status
    if status not in (TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED):
        return
    if run.reporting.status is status or run.reporting.call.tries >= timing.tell_tries:
        return
    report = messages.Tell(run.run_id, status)
    yield from when_due(run.reporting.call, report, timing.call_deadline)


def _of_approval(local: LocalJob, timing: RunTiming) -> ToDo:
    if local.approval is not None:
        lapses_at = approval.lapses_at(local)
        if lapses_at is not None:
            yield Due(lapses_at, messages.Expire())
        confirmation = approval.pending_confirmation(local)
        if confirmation is not None:
            yield from when_due(confirmation, messages.Confirm(), timing.call_deadline)
    preparation = approval.pending_preparation(local)
    if preparation is not None:
        yield from when_due(preparation.fetch, messages.Prepare(), timing.prepare_deadline)


def _of_scheduler(local: LocalJob, timing: RunTiming) -> ToDo:
    query = local.ask
    if query.state is CallState.LOST and query.tries >= MAX_QUERIES:
        yield Due(NOW, messages.Abandon())
    elif query.state is CallState.SENT and query.sent_at is not None:
        deadline = timedelta(seconds=timing.call_deadline)
        yield Due(query.sent_at + deadline, messages.QueryScheduler())
    else:
        last_contact = local.last_contact or local.created_at
        due = query.due_at or last_contact + silence_limit(timing)
        yield Due(due, messages.QueryScheduler())


def _runs_until(local: LocalJob, timing: RunTiming) -> datetime | None:
    """Return when a partner's job has run here for as long as it may; None without such a limit."""
    if timing.partner_job is None or not local.runs:
        return None
    if local.status is not JobStatus.RUNNING or is_own(local.spec, local.node):
        return None
    first_start = min(run.created_at for run in local.runs)
    return first_start + timedelta(seconds=timing.partner_job)


def _may_close(local: LocalJob) -> bool:
    """Return whether the job has ended here and none of its runs keeps anything."""
    if not ended(JOB, local.status) or local.closed:
        return False
    return not any(_is_in_use(local, run) for run in local.runs)


def _is_in_use(local: LocalJob, run: Run) -> bool:
    if not run.over:
        return True
    return _awaits_collection(run) and not _is_elsewhere(local, run)


def _is_elsewhere(local: LocalJob, run: Run) -> bool:
    """Return whether the run's container is with a gateway that the job has left.

    That gateway removes it when it returns.
    """
    return bool(local.home and run.owner and run.owner != local.home)


def _awaits_collection(run: Run) -> bool:
    """Return whether the engine may still hold something of the run: it was launched once."""
    return run.launch.state is not CallState.IDLE and run.collect.state is not CallState.OK
