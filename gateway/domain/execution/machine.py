"""What a participating node does next with a job and its runs, and how an event changes them.

The shape is that of `gateway.domain.scheduling.machine`: `plan`, `next_due`, `step`, `apply`.
"""

from collections.abc import Callable
from datetime import datetime
from typing import assert_never

from gateway.domain import approval
from gateway.domain.execution import contact, endings, messages, runs
from gateway.domain.execution.agenda import ToDo, agenda
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Call, CallState, changed
from gateway.domain.states import RUN, RunStatus, move, replace
from gateway.domain.timeouts import RunTiming

# The cleanups whose failure is noted in the timeline, and what it calls them.
_CLEANUPS: dict[type, str] = {
    messages.Close: "closing",
    messages.Collect: "removing",
    messages.StopRun: "stopping",
}


def plan(
    local: LocalJob,
    now: datetime,
    timing: RunTiming = RunTiming(),
    owner: str = "",
) -> list[messages.Command]:
    """Return everything that should be done by now; with an owner, only what is that gateway's."""
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
    """Yield the part of the agenda that one of several gateways sees to; all with an empty owner."""
    foreign_runs = set()
    for run in local.runs:
        if owner and run.owner and run.owner != owner:
            foreign_runs.add(run.run_id)
    is_foreign_job = bool(owner and local.home and local.home != owner)
    for due in agenda(local, timing):
        if isinstance(due.command, messages.OnJob):
            is_foreign = is_foreign_job
        else:
            is_foreign = due.command.run in foreign_runs
        if not is_foreign:
            yield due


def step(
    local: LocalJob,
    now: datetime,
    timing: RunTiming = RunTiming(),
    owner: str = "",
) -> tuple[LocalJob, list[messages.Action]]:
    """Take every decision that is due and mark every action that is due as started."""
    commands = plan(local, now, timing, owner)
    if any(isinstance(command, messages.Decision) for command in commands):
        for command in commands:
            local = _decide(local, command, now, timing)
        commands = plan(local, now, timing, owner)  # again: with what follows from the decisions
    actions: list[messages.Action] = []
    for command in commands:
        match command:
            case messages.Conclude() | messages.Expire() | messages.Abandon() | messages.TimeOut():
                continue
            case messages.Probe():
                local = runs.with_run(local, command.run, lambda run: runs.probed(run, now, timing))
            case messages.Launch():
                local = runs.with_run(local, command.run, lambda run: _launching(run, now))
            case _:
                local = _with_call(local, command, lambda call: call.sent(now))
        actions.append(command)
    return local, actions


def _decide(
    local: LocalJob,
    command: messages.Command,
    now: datetime,
    timing: RunTiming,
) -> LocalJob:
    match command:
        case messages.Conclude():
            return runs.with_run(
                local,
                command.run,
                lambda run: runs.conclude(run, now, timing, local.id, last=True),
            )
        case messages.Expire():
            return approval.expire(local, now, endings.end_here)
        case messages.Abandon():
            return endings.abandon(local, now)
        case messages.TimeOut():
            return endings.time_out(local, now, timing)
        case _:
            return local


def _launching(run: Run, now: datetime) -> Run:
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
    return runs.with_run(local, action.run, lambda run: changed(run, action.call, change))


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
            if approval.pending_preparation(local) is None:
                return local
            return changed(local, "preparation.progress", lambda _: event.progress)
        case messages.Prepared():
            return approval.record_preparation(local, event.failure, event.at)
        case messages.Misreported():
            return _warn_of_report(local, event)
        case messages.RunEvent():
            return _with_run_event(local, event, timing)
        case _:
            assert_never(event)


def _with_run_event(
    local: LocalJob,
    event: messages.OfRun,
    timing: RunTiming,
) -> LocalJob:
    local = runs.with_run(
        local, event.run, lambda run: runs.apply(run, event, timing, local.id), at=event.at
    )
    if not isinstance(event, messages.LaunchFailed) or not event.engine_message:
        return local
    run = _run_of(local, event.run)
    if run is None:
        return local.with_note(event.at, "engine message", message=event.engine_message)
    if not run.over:  # it is launched again
        return local
    detail = {"task": run.task_name, "role": run.party.label, "message": event.engine_message}
    return local.with_note(event.at, "engine message", **detail)


def _run_of(local: LocalJob, run_id: str | None) -> Run | None:
    for run in local.runs:
        if run.run_id == run_id:
            return run
    return None


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
    detail = {"task": run.task_name, "role": run.party.label, "message": text}
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

    def finish_call(call: Call) -> Call:
        if call.completed:
            return call  # a repeat that failed takes nothing back
        if event.final:
            return replace(call, state=CallState.OK, message=event.message)
        due = event.at + timing.retry(call.tries - 1, local.id, event.action)
        return replace(call, state=CallState.LOST, due_at=due, message=event.message)

    match event.action:
        case messages.QueryScheduler():
            return contact.record_query(local, event, timing)
        case messages.Tell(run_id, status):
            return runs.with_run(local, run_id, lambda run: runs.reported(run, status, finish_call))
        case messages.Prepare() if approval.pending_preparation(local) is None:
            return local
    local = _note_failed_cleanup(local, event)
    local = _with_call(local, event.action, finish_call)
    return _after_action(local, event)


def _after_action(local: LocalJob, event: messages.Done) -> LocalJob:
    """Return the job with what follows from the end of an action."""
    match event.action:
        case messages.Close() if event.final:
            return replace(local, closed=True)
        case messages.QueryEnding():
            inquiry = local.inquiry
            is_last = inquiry is not None and inquiry.tries >= endings.MAX_INQUIRIES
            if event.final or is_last:
                return endings.keep_models(local, event.at)
        case messages.AskStop() if event.final:
            scheduler = local.spec.scheduler
            return local.with_note(event.at, "stop reported", scheduler, message=event.message)
        case messages.Confirm() if event.final:
            return local.with_note(event.at, "decision reported", message=event.message)
        case messages.Collect(run_id) | messages.StopRun(run_id) if event.warnings:
            return runs.with_run(local, run_id, lambda run: runs.with_warnings(run, event.warnings))
    return local


def _note_failed_cleanup(local: LocalJob, event: messages.Done) -> LocalJob:
    """Note in the timeline that a step of the cleanup failed; the same message once in a row."""
    action = event.action
    cleanup = _CLEANUPS.get(type(action))
    if cleanup is None or event.final or not event.message:
        return local
    run = _run_of(local, getattr(action, "run", None))
    record = local if run is None else run
    call: Call = getattr(record, action.call, Call(CallState.OK))
    if call.completed or call.message == event.message:
        return local
    detail = {"message": event.message}
    if run is not None:
        detail |= {"task": run.task_name, "role": run.party.label}
    return local.with_note(event.at, f"{cleanup} failed", **detail)


# ---------------------------------------------------------------- a gateway that restarts, or is lost


def _restart(local: LocalJob, event: messages.Restarted) -> LocalJob:
    """Repeat what a gateway was doing when it exited."""
    if event.owner in ("", local.home) or not local.home:
        for path in ("close", "ask", "wish", "inquiry", "approval.confirm"):
            local = changed(local, path, Call.interrupted)
        if contact.watched(local) and local.ask.state is CallState.IDLE:
            # a stop may have been sent meanwhile
            local = replace(local, ask=replace(local.ask, due_at=event.at))
        local = _fetch_again(local)
    interrupted_runs = []
    for run in local.runs:
        is_owned = event.owner in ("", run.owner)
        interrupted_runs.append(runs.interrupted(run) if is_owned else run)
    return replace(local, runs=tuple(interrupted_runs))


def _move_to_heir(local: LocalJob, event: messages.OwnerLost) -> LocalJob:
    """Give the heir what a lost gateway had not started; what it had started has failed with it."""
    for run in local.runs:
        if run.owner == event.owner and not run.over:
            local = runs.with_run(
                local, run.run_id, lambda run: runs.without_owner(run, event), at=event.at
            )
    if local.home != event.owner:
        return local
    return _fetch_again(replace(local, home=event.heir))


def _fetch_again(local: LocalJob) -> LocalJob:
    """Have images fetched anew: the gateway that fetched them has exited."""
    if approval.pending_preparation(local) is None:
        return local
    return changed(local, "preparation.fetch", Call.interrupted)
