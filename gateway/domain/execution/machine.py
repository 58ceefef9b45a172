"""What a participating node does next with a job and its runs, and how an event changes them.

The shape is that of `gateway.domain.scheduling.machine`: `plan`, `next_due`, `step`, `apply`.
"""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import assert_never

from gateway.domain import approval
from gateway.domain.execution import contact, endings, messages, runs
from gateway.domain.execution.agenda import ToDo, agenda
from gateway.domain.records import replace
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Call, CallState, changed
from gateway.domain.states import RUN, RunStatus, move
from gateway.domain.timeouts import RunTiming

# The cleanups whose failure is noted in the timeline, and their names there.
_CLEANUPS: dict[type, str] = {
    messages.Close: "closing",
    messages.Collect: "removing",
    messages.StopRun: "stopping",
}

# The calls of a job that a gateway repeats after a restart.
_CALLS_OF_JOB = ("close", "ask", "wish", "inquiry", "approval.confirm")


# ---------------------------------------------------------------- planning


def plan(
    local: LocalJob,
    now: datetime,
    timing: RunTiming = RunTiming(),
    owner: str = "",
) -> list[messages.Command]:
    """Return everything that should be done by now; with an owner, only that gateway's share."""
    return [due.command for due in _agenda_of(local, timing, owner) if due.at <= now]


def next_due(
    local: LocalJob,
    timing: RunTiming = RunTiming(),
    owner: str = "",
) -> datetime | None:
    """Return when there is something to do next, or None when only an event can change the job."""
    return min((due.at for due in _agenda_of(local, timing, owner)), default=None)


def _agenda_of(
    local: LocalJob,
    timing: RunTiming,
    owner: str,
) -> ToDo:
    """Yield the part of the agenda that one of several gateways sees to.

    With an empty owner that is all of it. The gateway in ``LocalJob.home`` acts for the job as a
    whole, the one in ``Run.owner`` for a run; any gateway may where these are empty.
    """
    if not owner:
        yield from agenda(local, timing)
        return
    run_owners = {run.run_id: run.owner for run in local.runs}
    for due in agenda(local, timing):
        responsible = local.home
        if not isinstance(due.command, messages.OnJob):
            responsible = run_owners[due.command.run]
        if responsible in ("", owner):
            yield due


def _run_of(local: LocalJob, run_id: str | None) -> Run | None:
    """Return the job's run with this id, if there is one."""
    for run in local.runs:
        if run.run_id == run_id:
            return run
    return None


# ---------------------------------------------------------------- acting on the plan


def step(
    local: LocalJob,
    now: datetime,
    timing: RunTiming = RunTiming(),
    owner: str = "",
) -> tuple[LocalJob, list[messages.Action]]:
    """Take every due decision and mark every due action as started.

    The caller stores the job, then carries out the actions. They are planned after the decisions,
    so that what follows from a decision, such as the stop of containers, is among them.
    """
    commands = plan(local, now, timing, owner)
    decisions = [command for command in commands if isinstance(command, messages.Decision)]
    if decisions:
        for decision in decisions:
            local = _decide(local, decision, now, timing)
        commands = plan(local, now, timing, owner)
    actions = [command for command in commands if isinstance(command, messages.Action)]
    for action in actions:
        local = _mark_started(local, action, now, timing)
    return local, actions


def _decide(
    local: LocalJob,
    decision: messages.Decision,
    now: datetime,
    timing: RunTiming,
) -> LocalJob:
    """Return the job after a decision that time alone has brought."""
    match decision:
        case messages.Conclude(run_id):
            end_run = partial(
                runs.conclude,
                now=now,
                timing=timing,
                job_id=local.id,
                last=True,
            )
            return runs.with_run(local, run_id, end_run)
        case messages.Expire():
            return approval.expire(local, now, endings.end_here)
        case messages.Abandon():
            return endings.abandon(local, now)
        case messages.TimeOut():
            return endings.time_out(local, now, timing)
        case _:
            assert_never(decision)


def _mark_started(
    local: LocalJob,
    action: messages.Action,
    now: datetime,
    timing: RunTiming,
) -> LocalJob:
    """Record that an action begins now: its call is SENT, or the run's next inspection put off."""
    match action:
        case messages.Probe(run_id):
            probe = partial(runs.probed, now=now, timing=timing)
            return runs.with_run(local, run_id, probe)
        case messages.Launch(run_id):
            return runs.with_run(local, run_id, partial(_launching, now=now))
        case _:
            return _with_call(local, action, partial(Call.sent, now=now))


def _launching(run: Run, now: datetime) -> Run:
    """Return a run whose launch begins now, for the first time or once more."""
    status = run.status
    if status is RunStatus.WAITING:
        status = move(RUN, status, RunStatus.LAUNCHING)
    return replace(run, status=status, launch=run.launch.sent(now))


def _with_call(
    local: LocalJob,
    action: messages.Action,
    change: Callable[[Call], Call],
) -> LocalJob:
    """Change the record of an action's call, in the job or in the run that it is about."""
    if isinstance(action, messages.OnJob):
        return changed(local, action.call, change)

    def change_run(run: Run) -> Run:
        return changed(run, action.call, change)

    return runs.with_run(local, action.run, change_run)


# ---------------------------------------------------------------- events


def apply(
    local: LocalJob,
    event: messages.Event,
    timing: RunTiming = RunTiming(),
) -> LocalJob:
    """Return the job after the event. A late or repeated one changes only the timeline."""
    match event:
        case messages.StopRequested():
            return endings.stop(local, event)
        case messages.StoppedHere():
            return endings.stop_here(local, event)
        case messages.StopWished():
            return endings.record_stop_request(local, event)
        case messages.SchedulerAlive():
            return contact.record_contact(local, event.at)
        case messages.Restarted():
            return _restart(local, event)
        case messages.OwnerLost():
            return _move_to_heir(local, event)
        case messages.Done():
            return _finish(local, event, timing)
        case messages.Decided():
            return approval.record_decision(local, event.approve, event.by, event.words, event.at)
        case messages.Fetching():
            return _record_fetch_progress(local, event)
        case messages.Prepared():
            return approval.record_preparation(local, event.failure, event.at)
        case messages.Misreported():
            return _warn_of_report(local, event)
        case messages.RunEvent():
            return _with_run_event(local, event, timing)
        case _:
            assert_never(event)


def _record_fetch_progress(local: LocalJob, event: messages.Fetching) -> LocalJob:
    """Record how far the images have come that the job waits for; ignored once it does not wait."""
    if approval.pending_preparation(local) is None:
        return local

    def show_progress(_: str) -> str:
        return event.progress

    return changed(local, "preparation.progress", show_progress)


def _with_run_event(
    local: LocalJob,
    event: messages.OfRun,
    timing: RunTiming,
) -> LocalJob:
    """Return the job after news of one run.

    The engine's own message on a launch that failed for good goes into this node's timeline only,
    not into the failure that every party sees.
    """
    change = partial(runs.apply, event=event, timing=timing, job_id=local.id)
    local = runs.with_run(local, event.run, change, at=event.at)
    if not isinstance(event, messages.LaunchFailed) or not event.engine_message:
        return local
    run = _run_of(local, event.run)
    if run is None:
        return local.with_note(event.at, "engine message", message=event.engine_message)
    is_launched_again = not run.over
    if is_launched_again:
        return local
    detail = {**_place_of(run), "message": event.engine_message}
    return local.with_note(event.at, "engine message", **detail)


def _place_of(run: Run) -> dict[str, str]:
    """Return task and role of a run, as notes in the timeline name them."""
    return {"task": run.task_name, "role": run.party.label}


def _warn_of_report(local: LocalJob, event: messages.Misreported) -> LocalJob:
    """Warn of a report that was refused: the run counts by its exit code alone."""
    run = _run_of(local, event.run)
    assert run is not None  # the report came with the run's token
    text = (
        f"task {run.task_name} as {run.party.label} reported the status {event.word!r}, "
        "which is none that a container can have: what counts is its exit code"
    )
    if text in local.warnings:
        return local
    local = replace(local, warnings=(*local.warnings, text))
    detail = {**_place_of(run), "message": text}
    return local.with_note(event.at, "report refused", **detail)


# ---------------------------------------------------------------- the end of an action


def _finish(
    local: LocalJob,
    event: messages.Done,
    timing: RunTiming,
) -> LocalJob:
    """Record the end of an action without an event of its own.

    After a failure the action is due again after a pause.
    """
    finish_call = partial(_finished_call, event=event, timing=timing, job_id=local.id)
    match event.action:
        case messages.QueryScheduler():
            return contact.record_query(local, event, timing)
        case messages.Tell(run_id, status):
            report = partial(runs.reported, status=status, done=finish_call)
            return runs.with_run(local, run_id, report)
        case messages.Prepare() if approval.pending_preparation(local) is None:
            return local
    local = _note_failed_cleanup(local, event)
    local = _with_call(local, event.action, finish_call)
    return _after_action(local, event)


def _finished_call(
    call: Call,
    event: messages.Done,
    timing: RunTiming,
    job_id: str,
) -> Call:
    """Return an action's call after its end: OK, or due again after a pause.

    A completed call stays as it is: the failure of a repeat takes nothing back.
    """
    if call.completed:
        return call
    if event.final:
        return replace(call, state=CallState.OK, message=event.message)
    due = event.at + timing.retry(call.tries - 1, job_id, event.action)
    return replace(call, state=CallState.LOST, due_at=due, message=event.message)


def _after_action(local: LocalJob, event: messages.Done) -> LocalJob:
    """Return the job with the consequences of the end of an action."""
    match event.action:
        case messages.Close() if event.final:
            return replace(local, closed=True)
        case messages.QueryEnding():
            return _after_inquiry(local, event)
        case messages.AskStop() if event.final:
            scheduler = local.spec.scheduler
            return local.with_note(event.at, "stop reported", scheduler, message=event.message)
        case messages.Confirm() if event.final:
            return local.with_note(event.at, "decision reported", message=event.message)
        case messages.Collect(run_id) | messages.StopRun(run_id) if event.warnings:
            warn = partial(runs.with_warnings, warnings=event.warnings)
            return runs.with_run(local, run_id, warn)
    return local


def _after_inquiry(local: LocalJob, event: messages.Done) -> LocalJob:
    """Keep the models of the job once its ending is known, or is not asked for any more."""
    inquiry = local.inquiry
    is_last_try = inquiry is not None and inquiry.tries >= endings.MAX_INQUIRIES
    if not event.final and not is_last_try:
        return local
    return endings.keep_models(local, event.at)


def _note_failed_cleanup(local: LocalJob, event: messages.Done) -> LocalJob:
    """Note in the timeline that a step of the cleanup failed; the same message once in a row."""
    action = event.action
    cleanup = _CLEANUPS.get(type(action))
    if cleanup is None or event.final or not event.message:
        return local
    run = _run_of(local, getattr(action, "run", None))
    record = run or local
    call: Call = getattr(record, action.call, Call(CallState.OK))
    if call.completed or call.message == event.message:
        return local
    detail = {"message": event.message}
    if run is not None:
        detail |= _place_of(run)
    return local.with_note(event.at, f"{cleanup} failed", **detail)


# ---------------------------------------------------------------- a gateway that restarts, or is lost


def _restart(local: LocalJob, event: messages.Restarted) -> LocalJob:
    """Repeat what a gateway was doing when it exited: for the job, and for the runs that it owns.

    Without an owner in the event that is the only gateway, which had everything.
    """
    had_job = event.owner in ("", local.home) or not local.home
    if had_job:
        local = _repeat_calls_of_job(local, event.at)
    restarted_runs = []
    for run in local.runs:
        if event.owner in ("", run.owner):
            run = runs.interrupted(run)
        restarted_runs.append(run)
    return replace(local, runs=tuple(restarted_runs))


def _repeat_calls_of_job(local: LocalJob, at: datetime) -> LocalJob:
    """Return the job with the calls due now that a gateway had under way when it exited.

    The scheduling node is asked whether it still has the job, as it may have sent a stop while the
    gateway was down.
    """
    for path in _CALLS_OF_JOB:
        local = changed(local, path, Call.interrupted)
    if contact.watched(local) and local.ask.state is CallState.IDLE:
        local = replace(local, ask=replace(local.ask, due_at=at))
    return _fetch_again(local)


def _move_to_heir(local: LocalJob, event: messages.OwnerLost) -> LocalJob:
    """Give the heir the runs that a lost gateway had not started; its other runs have failed with it."""
    leave_owner = partial(runs.without_owner, event=event)
    for run in local.runs:
        if run.owner == event.owner and not run.over:
            local = runs.with_run(local, run.run_id, leave_owner, at=event.at)
    if local.home != event.owner:
        return local
    return _fetch_again(replace(local, home=event.heir))


def _fetch_again(local: LocalJob) -> LocalJob:
    """Have images fetched again, as the gateway that fetched them has exited."""
    if approval.pending_preparation(local) is None:
        return local
    return changed(local, "preparation.fetch", Call.interrupted)
