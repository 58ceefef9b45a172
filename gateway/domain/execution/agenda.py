"""The due actions and decisions of a participating node for a job, each with its time."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import assert_never

from gateway.domain import approval
from gateway.domain import run as domain_run
from gateway.domain.execution.contact import MAX_QUERIES, silence_limit, watched
from gateway.domain.execution.endings import MAX_INQUIRIES
from gateway.domain.execution.messages import (
    Abandon,
    AskStop,
    Close,
    Collect,
    Command,
    Conclude,
    Confirm,
    Expire,
    Launch,
    Prepare,
    Probe,
    QueryEnding,
    QueryScheduler,
    Seal,
    StopRun,
    Tell,
    TimeOut,
)
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import CallState, is_own
from gateway.domain.states import JOB, JobStatus, RunStatus, TaskStatus, ended
from gateway.domain.timeouts import NOW, Due, RunTiming, when_due

ToDo = Iterator[Due[Command]]

# How often a silent scheduling node is asked for a stop that people here requested: a day at the
# longest pause (10 s).
_MAX_STOP_TRIES = 8640

# States of a run that are reported to the scheduling node; it expects no report of earlier ones.
_REPORTED_STATES = (TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED)


def agenda(local: LocalJob, timing: RunTiming) -> ToDo:
    """Yield every action and decision that is open, each with its earliest time."""
    yield from _questions_to_scheduler(local, timing)
    yield from _of_runs(local, timing)
    yield from _of_approval(local, timing)
    if watched(local):
        yield from _of_scheduler(local, timing)
    runs_until = _runs_until(local, timing)
    if runs_until is not None:
        yield Due(runs_until, TimeOut())
    if _may_close(local):
        yield from when_due(local.close, Close(), timing.call_deadline)


def _questions_to_scheduler(local: LocalJob, timing: RunTiming) -> ToDo:
    """Yield the requests to the scheduling node that follow from the end of the job here.

    If this node ended its part alone, the scheduling node is asked to stop the job everywhere. If
    the stop of the scheduling node did not say how the job ended, it is asked how.
    """
    if local.wish is not None and local.wish.tries < _MAX_STOP_TRIES:
        yield from when_due(local.wish, AskStop(), timing.call_deadline)
    if local.inquiry is not None and local.inquiry.tries < MAX_INQUIRIES:
        yield from when_due(local.inquiry, QueryEnding(), timing.call_deadline)


# ---------------------------------------------------------------- runs


def _of_runs(local: LocalJob, timing: RunTiming) -> ToDo:
    """Yield the steps and reports of all runs.

    A run that waits for resources of the job's pool is not launched yet. While a stop has still to
    be reported, no state of a run is reported: the scheduling node has to learn why the job ends
    before it learns of the failures that follow.
    """
    may_launch = domain_run.may_launch(local)
    is_stop_unreported = local.wish is not None and not local.wish.completed
    for run in local.runs:
        awaits_pool = run.status is RunStatus.WAITING and run.run_id not in may_launch
        if run.done_with or awaits_pool:
            continue
        yield from _of_run(run, timing)
        if not is_stop_unreported:
            yield from _reports(run, timing)


def _of_run(run: Run, timing: RunTiming) -> ToDo:
    """Yield the next steps of a run with its container: launch, inspect, stop or clean up.

    A launch without an end is due again after ``launch_deadline`` seconds.
    """
    match run.status:
        case RunStatus.WAITING:
            yield Due(NOW, Launch(run.run_id))
        case RunStatus.LAUNCHING:
            yield from when_due(
                run.launch,
                Launch(run.run_id),
                timing.launch_deadline,
            )
        case RunStatus.RUNNING:
            yield from _of_running(run, timing)
        case RunStatus.STOPPING:
            yield from _of_stopping(run, timing)
        case RunStatus.SUCCESS | RunStatus.FAILED:
            yield from _of_ended(run, timing)
        case _:
            assert_never(run.status)


def _of_running(run: Run, timing: RunTiming) -> ToDo:
    """Yield the inspections of a running container, and when the run ends without further news.

    After the exit a report may still be on its way for ``callback_grace`` seconds.
    """
    if run.exit is not None:
        exited_at = run.exit.finished_at or run.reported_at or NOW
        grace = timedelta(seconds=timing.callback_grace)
        yield Due(exited_at + grace, Conclude(run.run_id))
        return
    yield Due(run.probe_at or NOW, Probe(run.run_id))
    gives_up_at = _gives_up_at(run, timing)
    if gives_up_at is not None:
        yield Due(gives_up_at, Conclude(run.run_id))


def _gives_up_at(run: Run, timing: RunTiming) -> datetime | None:
    """Return when a running container is not waited for any longer; None if there is no limit.

    A container that reported its success has ``linger`` seconds to exit. A container whose engine
    is silent has ``engine_timeout`` seconds from the beginning of the silence.
    """
    if run.reported is TaskStatus.SUCCESS:
        since = run.reported_at
        limit = timing.linger
    else:
        since = run.away_at
        limit = timing.engine_timeout
    if since is None:
        return None
    return since + timedelta(seconds=limit)


def _of_stopping(run: Run, timing: RunTiming) -> ToDo:
    """Yield the stop of a container, and after it inspections until the container is gone."""
    deadline = timing.stop_grace + timing.call_deadline
    stop = StopRun(run.run_id, timing.stop_grace)
    yield from when_due(run.stop, stop, deadline)
    if run.stop.state is CallState.OK:
        yield Due(run.probe_at or NOW, Probe(run.run_id))


def _of_ended(run: Run, timing: RunTiming) -> ToDo:
    """Yield the removal of an ended run's container, and the fingerprinting of its model."""
    if _awaits_collection(run):
        deadline = timing.stop_grace + timing.call_deadline
        yield from when_due(run.collect, Collect(run.run_id), deadline)
    if run.unsealed:
        yield from when_due(
            run.seal,
            Seal(run.run_id),
            timing.seal_deadline,
        )


def _reports(run: Run, timing: RunTiming) -> ToDo:
    """Yield the report of a run's state that the scheduling node does not have yet.

    It is given up after ``tell_tries`` tries; the scheduling node then learns the state by a poll.
    """
    status = run.reported_status
    if status not in _REPORTED_STATES:
        return
    reporting = run.reporting
    is_delivered = reporting.status is status
    if is_delivered or reporting.call.tries >= timing.tell_tries:
        return
    report = Tell(run.run_id, status)
    yield from when_due(reporting.call, report, timing.call_deadline)


# ---------------------------------------------------------------- the job


def _of_approval(local: LocalJob, timing: RunTiming) -> ToDo:
    """Yield what the approval of the job needs.

    These are the deadline of the decision, its report to the scheduling node, and the pull of
    images before the job is accepted.
    """
    if local.approval is not None:
        lapses_at = approval.lapses_at(local)
        if lapses_at is not None:
            yield Due(lapses_at, Expire())
        confirmation = approval.pending_confirmation(local)
        if confirmation is not None:
            yield from when_due(confirmation, Confirm(), timing.call_deadline)
    preparation = approval.pending_preparation(local)
    if preparation is not None:
        yield from when_due(preparation.fetch, Prepare(), timing.prepare_deadline)


def _of_scheduler(local: LocalJob, timing: RunTiming) -> ToDo:
    """Yield the next query of a scheduling node that is silent, or the end of the job without it.

    The first query is due after the permitted silence. A query without a response is repeated;
    after `MAX_QUERIES` of them the job ends here.
    """
    query = local.ask
    if query.state is CallState.LOST and query.tries >= MAX_QUERIES:
        yield Due(NOW, Abandon())
        return
    if query.state is CallState.SENT and query.sent_at is not None:
        due = query.sent_at + timedelta(seconds=timing.call_deadline)
    else:
        last_contact = local.last_contact or local.created_at
        due = query.due_at or last_contact + silence_limit(timing)
    yield Due(due, QueryScheduler())


def _runs_until(local: LocalJob, timing: RunTiming) -> datetime | None:
    """Return when a partner's job has run here for as long as it may; None without such a limit.

    The time counts from its first run here. A job of this node's own has no limit.
    """
    if timing.partner_job is None or not local.runs:
        return None
    if local.status is not JobStatus.RUNNING or is_own(local.spec, local.node):
        return None
    first_start = min(run.created_at for run in local.runs)
    return first_start + timedelta(seconds=timing.partner_job)


def _may_close(local: LocalJob) -> bool:
    """Return whether the job has to be closed: it has ended here, and no run is in use.

    False once it is closed.
    """
    if not ended(JOB, local.status) or local.closed:
        return False
    return not any(_is_in_use(local, run) for run in local.runs)


def _is_in_use(local: LocalJob, run: Run) -> bool:
    """Return whether a run still uses resources of the job here: it goes on, or has a container.

    The container of another gateway, which has lost the job to this one, does not count: that
    gateway removes it when it returns.
    """
    if not run.over:
        return True
    is_elsewhere = bool(local.home and run.owner and run.owner != local.home)
    return _awaits_collection(run) and not is_elsewhere


def _awaits_collection(run: Run) -> bool:
    """Return whether the engine may still hold a container or logs of the run.

    It may once the run was launched, until both are collected.
    """
    return run.launch.state is not CallState.IDLE and run.collect.state is not CallState.OK
