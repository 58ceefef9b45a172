"""The due actions and decisions of a participating node for a job, each with its time."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from gateway.domain import approval
from gateway.domain import run as domain_run
from gateway.domain.attestation import report_deadline
from gateway.domain.execution.contact import (
    MAX_QUERIES,
    last_contact,
    silence_limit,
    silence_matters,
)
from gateway.domain.execution.endings import MAX_INQUIRIES
from gateway.domain.execution.messages import (
    Abandon,
    Action,
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
from gateway.domain.spec import Call, CallState, is_own
from gateway.domain.states import JOB, JobStatus, RunStatus, TaskStatus, ended
from gateway.domain.timeouts import (
    EARLIEST,
    Due,
    RunTiming,
    due_if_set,
    expiry,
    time_after,
    when_due,
)

ToDo = Iterator[Due[Command]]

# Largest number of requests to the scheduling node to stop a job that this node has ended alone:
# they last a day at the longest pause (10 s).
_MAX_STOP_TRIES = 8640

# States of a run that are reported to the scheduling node; it expects no report of earlier ones.
_REPORTED_STATES = (TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED)


def agenda(local: LocalJob, timing: RunTiming) -> ToDo:
    """Yield every action and decision that is open, each with its earliest time.

    They are not in the order of their times.
    """
    yield from _requests_after_end(local, timing)
    yield from _of_runs(local, timing)
    yield from _of_approval(local, timing)
    yield from _of_silent_scheduler(local, timing)
    yield from _of_time_limit(local, timing)
    yield from _closing(local, timing)


def _requests_after_end(local: LocalJob, timing: RunTiming) -> ToDo:
    """Yield the requests to the scheduling node that follow from the end of the job here.

    If this node has ended its part alone, the scheduling node is asked to stop the job everywhere
    (``LocalJob.stop_call``). If the scheduling node has stopped the job without its outcome, it is
    asked for the outcome (``LocalJob.inquiry``). Each request is given up after its number of
    tries.
    """
    requests: list[tuple[Call | None, Command, int]] = [
        (local.stop_call, AskStop(), _MAX_STOP_TRIES),
        (local.inquiry, QueryEnding(), MAX_INQUIRIES),
    ]
    for call, request, max_tries in requests:
        if call is not None and call.tries < max_tries:
            yield from when_due(call, request, timing.call_deadline)


# ---------------------------------------------------------------- runs


def _of_runs(local: LocalJob, timing: RunTiming) -> ToDo:
    """Yield the steps and reports of all runs.

    A run that waits for resources of the job's pool is left out.

    While this node still has to ask the scheduling node for a stop, no state of a run is reported:
    the scheduling node has to learn why the job ends before it learns of the failures that follow.
    """
    may_launch = domain_run.may_launch(local)
    is_stop_unreported = local.stop_call is not None and not local.stop_call.completed
    for run in local.open_runs:
        awaits_pool = run.status is RunStatus.WAITING and run.run_id not in may_launch
        if awaits_pool:
            continue
        yield from _of_run(run, timing, may_report=not is_stop_unreported)


@dataclass(frozen=True)
class _RunAgenda:
    """The steps of one version of a run, and the arguments from which they follow."""

    timing: RunTiming
    may_report: bool
    todo: list[Due[Command]]


def _of_run(
    run: Run,
    timing: RunTiming,
    *,
    may_report: bool,
) -> list[Due[Command]]:
    """Return the steps and the report of a run, which are kept with this version of the run.

    Most runs stay as they are in a step of the job, so that their steps stay the same.
    """
    latest: _RunAgenda | None = run.memo.get("agenda")
    if latest is None or latest.timing is not timing or latest.may_report is not may_report:
        todo = list(_STEPS[run.status](run, timing))
        if may_report:
            todo += _reports(run, timing)
        latest = _RunAgenda(timing, may_report, todo)
        run.memo["agenda"] = latest
    return latest.todo


def _of_launching(run: Run, timing: RunTiming) -> ToDo:
    """Yield the launch of a run's container.

    A launch that was never tried is due immediately. A launch whose result is not recorded is due
    again after ``launch_deadline`` seconds.
    """
    yield from when_due(
        run.launch,
        Launch(run.run_id),
        timing.launch_deadline,
    )


def _of_running(run: Run, timing: RunTiming) -> ToDo:
    """Yield the next inspection of a running container, and the time when the run is judged.

    After the container's exit, its report may still arrive for ``callback_grace`` seconds.
    """
    if run.exit is not None:
        exited_at = run.exit.finished_at or run.container_report.at or EARLIEST
        grace = timedelta(seconds=timing.callback_grace)
        yield Due(exited_at + grace, Conclude(run.run_id))
        return
    yield Due(run.probe_at or EARLIEST, Probe(run.run_id))
    gives_up_at = _gives_up_at(run, timing)
    yield from due_if_set(gives_up_at, Conclude(run.run_id))


def _gives_up_at(run: Run, timing: RunTiming) -> datetime | None:
    """Return when a running container is not waited for any longer; None if there is no limit.

    A container that reported its success has ``linger`` seconds to exit. A container whose engine
    is silent has ``engine_timeout`` seconds from the beginning of the silence. A container that has
    to prove its TEE has until the deadline of its attestation report.
    """
    report = run.container_report
    if report.status is TaskStatus.SUCCESS:
        return time_after(report.at, timing.linger)
    limits = (
        time_after(run.away_at, timing.engine_timeout),
        report_deadline(run.attestation, run.started_at),
    )
    return min(filter(None, limits), default=None)


def _of_stopping(run: Run, timing: RunTiming) -> ToDo:
    """Yield the stop of a container, and after it inspections until the container is gone.

    The container has ``stop_grace`` seconds to exit. A stop without a result is repeated
    ``call_deadline`` seconds after that.
    """
    deadline = timing.stop_grace + timing.call_deadline
    stop = StopRun(run.run_id, timing.stop_grace)
    yield from when_due(run.stop, stop, deadline)
    if run.stop.state is CallState.OK:
        yield Due(run.probe_at or EARLIEST, Probe(run.run_id))


def _of_ended(run: Run, timing: RunTiming) -> ToDo:
    """Yield the removal of an ended run's container, and the fingerprinting of its model.

    The removal may have to stop a container that still runs, so it has as much time as a stop. The
    fingerprinting has ``seal_deadline`` seconds.
    """
    if _awaits_collection(run):
        deadline = timing.stop_grace + timing.call_deadline
        yield from when_due(run.collect, Collect(run.run_id), deadline)
    if run.unsealed:
        yield from when_due(
            run.sealing.call,
            Seal(run.run_id),
            timing.seal_deadline,
        )


# The next steps of a run with its container, by the status of the run.
_STEPS: Mapping[RunStatus, Callable[[Run, RunTiming], ToDo]] = {
    RunStatus.WAITING: _of_launching,
    RunStatus.LAUNCHING: _of_launching,
    RunStatus.RUNNING: _of_running,
    RunStatus.STOPPING: _of_stopping,
    RunStatus.SUCCESS: _of_ended,
    RunStatus.FAILED: _of_ended,
}


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
    yield from due_if_set(approval.lapses_at(local), Expire())
    confirmation = approval.pending_confirmation(local)
    if confirmation is not None:
        yield from when_due(confirmation, Confirm(), timing.call_deadline)
    preparation = approval.pending_preparation(local)
    if preparation is not None:
        yield from when_due(preparation.fetch, Prepare(), timing.prepare_deadline)


def _of_silent_scheduler(local: LocalJob, timing: RunTiming) -> ToDo:
    """Yield the next query of a scheduling node that is silent, or the end of the job without it.

    The first query is due after the permitted silence. A query without a response is repeated;
    after `MAX_QUERIES` of them the job ends here. Nothing is yielded if the silence does not matter
    (`silence_matters`).
    """
    if not silence_matters(local):
        return
    query = local.ask
    if query.state is CallState.LOST and query.tries >= MAX_QUERIES:
        yield Due(EARLIEST, Abandon())
        return
    if query.state is CallState.SENT:
        due = expiry(query, timing.call_deadline)
    else:
        due = query.due_at or last_contact(local) + silence_limit(timing)
    yield Due(due, QueryScheduler())


def _of_time_limit(local: LocalJob, timing: RunTiming) -> ToDo:
    """Yield the end of a partner's running job, due when the job has used up its time here.

    The time counts from the job's first run here. Nothing is yielded for a job without a run, for a
    job that this node both submitted and schedules, or without a limit in the node's settings.
    """
    if local.status is not JobStatus.RUNNING or is_own(local.spec, local.node):
        return
    deadline = time_after(local.run_index.first_created_at, timing.partner_job)
    yield from due_if_set(deadline, TimeOut())


def _closing(local: LocalJob, timing: RunTiming) -> ToDo:
    """Yield the close of a job that has ended here, once none of its runs is in use.

    A close without a result is repeated after ``call_deadline`` seconds.
    """
    if not ended(JOB, local.status) or local.closed:
        return
    runs_in_use = [run for run in local.runs if _is_in_use(local, run)]
    if not runs_in_use:
        yield from when_due(
            local.close,
            Close(),
            timing.call_deadline,
        )


def _is_in_use(local: LocalJob, run: Run) -> bool:
    """Return whether a run still uses resources of the job here.

    A run does so while it goes on, and until its container is removed. If the job has moved from a
    lost gateway of this node to another gateway (``LocalJob.home``), containers of the lost gateway
    do not count: the lost gateway removes them when it returns.
    """
    if not run.over:
        return True
    is_elsewhere = local.home != "" and run.owner not in ("", local.home)
    return _awaits_collection(run) and not is_elsewhere


def _awaits_collection(run: Run) -> bool:
    """Return whether the engine may still have a container or logs of the run.

    That is from the first try to launch the run until its logs are saved and its container is
    removed.
    """
    return run.launch.state is not CallState.IDLE and run.collect.state is not CallState.OK


# ---------------------------------------------------------------- successes


def success_can_wait(local: LocalJob, action: Action) -> bool:
    """Return whether nothing follows from the success of an action, so that its write can wait.

    That is so for a report of a run's present state, and for the collection of a run while the job
    goes on here. A run that has moved on since its report is due to be reported again.
    """
    if isinstance(action, Tell):
        statuses = [run.reported_status for run in local.runs if run.run_id == action.run]
        return statuses == [action.status]
    return isinstance(action, Collect) and not ended(JOB, local.status)
