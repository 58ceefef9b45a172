"""What a participating node does next with a job and its runs, and how an event changes them.

The shape is that of `gateway.domain.scheduling.machine`: `plan`, `next_due`, `step`, `apply`.
"""

from collections.abc import Callable
from datetime import datetime
from typing import assert_never

from gateway.domain import approval
from gateway.domain.execution import conclusions, contact, endings, messages, runs
from gateway.domain.execution.agenda import ToDo, agenda
from gateway.domain.records import replace
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Call, CallState, changed
from gateway.domain.states import RUN, RunStatus, move
from gateway.domain.timeouts import RunTiming

# Actions of the cleanup whose failures are noted in the timeline -> their names in it.
_CLEANUPS: dict[type, str] = {
    messages.Close: "closing",
    messages.Collect: "removing",
    messages.StopRun: "stopping",
}

# Paths of the job's calls that a gateway repeats after a restart. The pull of images is repeated by
# `_fetch_again`.
_CALLS_OF_JOB = ("close", "ask", "stop_call", "inquiry", "approval.confirm")


# ---------------------------------------------------------------- planning


def plan(
    local: LocalJob,
    now: datetime,
    timing: RunTiming = RunTiming(),
    owner: str = "",
) -> list[messages.Command]:
    """Return every command that is due by now.

    ``owner`` names one of several gateways of this node: only its commands are returned then.
    """
    return [due.command for due in _agenda_of(local, timing, owner) if due.at <= now]


def next_due(
    local: LocalJob,
    timing: RunTiming = RunTiming(),
    owner: str = "",
) -> datetime | None:
    """Return when the next command is due; None if only an event can change the job.

    ``owner`` is the same as in `plan`.
    """
    return min((due.at for due in _agenda_of(local, timing, owner)), default=None)


def _agenda_of(
    local: LocalJob,
    timing: RunTiming,
    owner: str,
) -> ToDo:
    """Yield the part of the agenda that one of several gateways of this node is responsible for.

    An empty ``owner`` is responsible for all commands. The gateway in ``LocalJob.home`` acts for
    the job as a whole, the gateway in ``Run.owner`` for a run. If the field is empty, any gateway
    may act.
    """
    if not owner:
        yield from agenda(local, timing)
        return
    for due in agenda(local, timing):
        responsible = local.home
        if not isinstance(due.command, messages.OnJob):
            run = local.run(due.command.run)
            assert run is not None  # the agenda has only runs of the job
            responsible = run.owner
        if responsible in ("", owner):
            yield due


# ---------------------------------------------------------------- acting on the plan


def step(
    local: LocalJob,
    now: datetime,
    timing: RunTiming = RunTiming(),
    owner: str = "",
) -> tuple[LocalJob, list[messages.Action]]:
    """Take every due decision and mark every due action as started; return the job and the actions.

    The caller stores the job, then carries out the actions. They are planned after the decisions,
    so that the consequences of a decision, such as the stop of containers, are among them.
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
    """Return the job after a decision that has become due, without an event."""
    match decision:
        case messages.Conclude(run_id):
            return _conclude_run(local, run_id, now, timing)
        case messages.Expire():
            return approval.expire(local, now, endings.end_here)
        case messages.Abandon():
            return endings.abandon(local, now)
        case messages.TimeOut():
            return endings.time_out(local, now, timing)
        case _:
            assert_never(decision)


def _conclude_run(
    local: LocalJob,
    run_id: str,
    now: datetime,
    timing: RunTiming,
) -> LocalJob:
    """Conclude a run whose time for further news is over, and return the job."""

    def conclude(run: Run) -> Run:
        return conclusions.conclude(
            run,
            now,
            timing,
            local.id,
            last=True,
        )

    return runs.with_run(local, run_id, conclude)


def _mark_started(
    local: LocalJob,
    action: messages.Action,
    now: datetime,
    timing: RunTiming,
) -> LocalJob:
    """Record that an action begins now: its call is SENT.

    The inspection of a container has no call: only the time of the next inspection is recorded.
    """

    def inspect(run: Run) -> Run:
        return runs.begin_inspection(run, now, timing)

    def launch(run: Run) -> Run:
        return _launching(run, now)

    def send(call: Call) -> Call:
        return call.sent(now)

    match action:
        case messages.Probe(run_id):
            return runs.with_run(local, run_id, inspect)
        case messages.Launch(run_id):
            return runs.with_run(local, run_id, launch)
        case _:
            return _with_call(local, action, send)


def _launching(run: Run, now: datetime) -> Run:
    """Return a run whose launch begins now, for the first time or once more."""
    status = run.status
    if status is RunStatus.WAITING:
        status = move(RUN, status, RunStatus.LAUNCHING)
    return replace(
        run,
        status=status,
        launch=run.launch.sent(now),
    )


def _with_call(
    local: LocalJob,
    action: messages.Action,
    change: Callable[[Call], Call],
) -> LocalJob:
    """Change the record of an action's call, in the job or in the run that the action is about."""
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
    """Return the job after the event; a late or repeated event changes the timeline at most.

    ``timing`` has the pauses before failed actions are due again.
    """
    match event:
        case messages.StopRequested():
            return endings.stop(local, event)
        case messages.StoppedHere():
            return endings.stop_here(local, event)
        case messages.StopAskedHere():
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
            return approval.record_decision(
                local,
                event.approve,
                event.by,
                event.words,
                event.at,
            )
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
    """Record how far the pull of the job's images has come; ignored if the job waits for none."""
    if approval.pending_preparation(local) is None:
        return local

    def show_progress(_: str) -> str:
        return event.progress

    return changed(local, "preparation.progress", show_progress)


def _with_run_event(
    local: LocalJob,
    event: messages.AnyRunEvent,
    timing: RunTiming,
) -> LocalJob:
    """Return the job after news of one run."""

    def change(run: Run) -> Run:
        return runs.apply(run, event, timing, local.id)

    changed_job = runs.with_run(
        local,
        event.run,
        change,
        at=event.at,
    )
    if isinstance(event, messages.LaunchFailed) and event.engine_message:
        return _note_engine_message(changed_job, event)
    return changed_job


def _note_engine_message(local: LocalJob, event: messages.LaunchFailed) -> LocalJob:
    """Note the engine's own message on a launch that failed for good.

    The message is noted in this node's timeline only: the failure itself, which every party sees,
    does not have it. Nothing is noted if the launch is tried again.
    """
    run = local.run(event.run)
    if run is None:  # without its run, the note has no task and no role
        return local.with_note(
            event.at,
            "engine message",
            message=event.engine_message,
        )
    is_launched_again = not run.over
    if is_launched_again:
        return local
    detail = {**_place_of(run), "message": event.engine_message}
    return local.with_note(event.at, "engine message", **detail)


def _place_of(run: Run) -> dict[str, str]:
    """Return task and role of a run as details of a note in the timeline."""
    return {
        "task": run.task_name,
        "role": run.party.label,
    }


def _warn_of_report(local: LocalJob, event: messages.Misreported) -> LocalJob:
    """Warn of a container's report that was refused because its status is not valid.

    The run is then judged by its exit code alone. The same warning is not repeated.
    """
    run = local.run(event.run)
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
    """Record the end of an action that has no event of its own.

    A failed action is due again after a pause.
    """

    def finish_call(call: Call) -> Call:
        return _finished_call(call, event, timing, local.id)

    match event.action:
        case messages.QueryScheduler():
            return contact.record_query(local, event, timing)
        case messages.Tell():
            return _finish_report(local, event.action, finish_call)
        case messages.Prepare() if approval.pending_preparation(local) is None:
            return local  # the job has ended since, or does not wait for images any more
    noted_job = _note_failed_cleanup(local, event)
    finished_job = _with_call(noted_job, event.action, finish_call)
    return _after_action(finished_job, event)


def _finish_report(
    local: LocalJob,
    action: messages.Tell,
    finish_call: Callable[[Call], Call],
) -> LocalJob:
    """Record the end of a report of a run's state.

    ``finish_call`` returns the call of the report after this try.
    """

    def report(run: Run) -> Run:
        return runs.record_report_try(run, action.status, finish_call)

    return runs.with_run(local, action.run, report)


def _finished_call(
    call: Call,
    event: messages.Done,
    timing: RunTiming,
    job_id: str,
) -> Call:
    """Return the call of an action that has ended: OK if the end is final, else due again later.

    A completed call stays as it is, even if a repetition of the action fails.
    """
    if call.completed:
        return call
    if event.final:
        return replace(
            call,
            state=CallState.OK,
            message=event.message,
        )
    due = event.at + timing.retry(
        call.tries - 1,
        job_id,
        event.action,
    )
    return replace(
        call,
        state=CallState.LOST,
        due_at=due,
        message=event.message,
    )


def _after_action(local: LocalJob, event: messages.Done) -> LocalJob:
    """Return the job with the consequences of the end of an action; most actions have none.

    The failure of an action has consequences in two cases: it was the last inquiry for the job's
    ending, or it came with warnings.
    """

    def warn(run: Run) -> Run:
        return runs.with_warnings(run, event.warnings)

    match event.action:
        case messages.Close() if event.final:
            return replace(local, closed=True)
        case messages.QueryEnding():
            return _after_inquiry(local, event)
        case messages.AskStop() if event.final:
            scheduler = local.spec.scheduler
            return local.with_note(
                event.at,
                "stop reported",
                scheduler,
                message=event.message,
            )
        case messages.Confirm() if event.final:
            return local.with_note(
                event.at,
                "decision reported",
                message=event.message,
            )
        case messages.Collect(run_id) | messages.StopRun(run_id) if event.warnings:
            return runs.with_run(local, run_id, warn)
    return local


def _after_inquiry(local: LocalJob, event: messages.Done) -> LocalJob:
    """Keep the models of the job once the inquiry for its ending is over.

    It is over if the ending is known, or if the last inquiry has failed. In the second case the
    ending stays as it was inferred here.
    """
    inquiry = local.inquiry
    is_last_try = inquiry is not None and inquiry.tries >= endings.MAX_INQUIRIES
    if not event.final and not is_last_try:
        return local
    return endings.keep_models(local, event.at)


def _note_failed_cleanup(local: LocalJob, event: messages.Done) -> LocalJob:
    """Note in the timeline that an action of the cleanup failed.

    Nothing is noted if the message is the same as after the last try.
    """
    action = event.action
    cleanup = _CLEANUPS.get(type(action))
    if cleanup is None or event.final or not event.message:
        return local
    run = local.run(getattr(action, "run", ""))  # `Close` is about no run
    record = run or local
    # If the run does not exist any more, the record is the job's, which has no field of this name.
    # The default, a completed call, then means that no cleanup is open.
    call: Call = getattr(
        record,
        action.call,
        Call(CallState.OK),
    )
    if call.completed or call.message == event.message:
        return local
    detail = {"message": event.message}
    if run is not None:
        detail |= _place_of(run)
    return local.with_note(event.at, f"{cleanup} failed", **detail)


# -------------------------------------------------------------- a gateway that restarts, or is lost


def _restart(local: LocalJob, event: messages.Restarted) -> LocalJob:
    """Repeat the actions that a gateway had under way when it exited, for the job and its runs.

    An empty ``owner`` in the event is the node's only gateway, which acts for the job and all runs.
    """
    # If ``home`` is empty, any gateway may have acted for the job, so this one as well.
    had_job = event.owner in ("", local.home) or not local.home
    if had_job:
        local = _repeat_calls_of_job(local, event.at)
    restarted_runs = []
    for run in local.runs:
        # Unlike ``home``, ``owner`` is empty only if the node has a single gateway.
        if event.owner in ("", run.owner):
            run = runs.resume(run)
        restarted_runs.append(run)
    return replace(local, runs=tuple(restarted_runs))


def _repeat_calls_of_job(local: LocalJob, at: datetime) -> LocalJob:
    """Return the job with all calls due now that were under way when its gateway exited.

    The query whether the scheduling node still has the job is due as well: that node may have sent
    a stop while the gateway was down.
    """
    for path in _CALLS_OF_JOB:
        local = changed(local, path, Call.interrupted)
    if contact.silence_matters(local) and local.ask.state is CallState.IDLE:
        local = replace(
            local,
            ask=replace(local.ask, due_at=at),
        )
    return _fetch_again(local)


def _move_to_heir(local: LocalJob, event: messages.OwnerLost) -> LocalJob:
    """Give the WAITING runs of a lost gateway to another gateway of this node, the heir.

    All other runs of the lost gateway end as failed or stopped. If the lost gateway acted for the
    job as a whole, the heir does so from now on: it repeats calls under way after their deadlines.
    """

    def leave_owner(run: Run) -> Run:
        return runs.leave_gateway(run, event)

    for run in local.runs:
        if run.owner == event.owner and not run.over:
            local = runs.with_run(
                local,
                run.run_id,
                leave_owner,
                at=event.at,
            )
    if local.home != event.owner:
        return local
    return _fetch_again(replace(local, home=event.heir))


def _fetch_again(local: LocalJob) -> LocalJob:
    """Have the job's images pulled again, as the gateway that pulled them has exited.

    A job that does not wait for images stays as it is.
    """
    if approval.pending_preparation(local) is None:
        return local
    return changed(local, "preparation.fetch", Call.interrupted)
