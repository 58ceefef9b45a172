"""What a participating node does next with a job and its runs, and how an event changes them.

The shape is that of `gateway.domain.scheduling.machine`: `agenda`, `plan`, `next_due`, `step`, `apply`.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from operator import is_
from typing import assert_never

from gateway.domain import approval, models
from gateway.domain import run as domain_run
from gateway.domain.execution import messages, runs
from gateway.domain.run import LocalJob, Run, StopRequest
from gateway.domain.spec import Call, CallState, Ending, Failure, NodeId, changed, is_own
from gateway.domain.states import (
    JOB,
    RUN,
    JobStatus,
    Outcome,
    RunStatus,
    TaskStatus,
    ended,
    move,
    replace,
)
from gateway.domain.timeouts import NOW, Due, RunTiming, when_due

ToDo = Iterator[Due[messages.Command]]


def plan(
    local: LocalJob,
    now: datetime,
    timing: RunTiming = RunTiming(),
    owner: str = "",
) -> list[messages.Command]:
    """Return everything that should be done by now; with an owner, nothing about runs of another."""
    return [due.command for due in _mine(local, timing, owner) if due.at <= now]


def next_due(
    local: LocalJob,
    timing: RunTiming = RunTiming(),
    owner: str = "",
) -> datetime | None:
    """Return when there is something to do next, or None when only an event can change the job."""
    return min((due.at for due in _mine(local, timing, owner)), default=None)


def _mine(
    local: LocalJob,
    timing: RunTiming,
    owner: str,
) -> ToDo:
    others = {run.run_id for run in local.runs if owner and run.owner and run.owner != owner}
    elsewhere = bool(owner and local.home and local.home != owner)
    for due in agenda(local, timing):
        if (
            not elsewhere
            if isinstance(due.command, messages.OnJob)
            else due.command.run not in others
        ):
            yield due


def agenda(local: LocalJob, timing: RunTiming) -> ToDo:
    """Yield everything there is to do, each with its earliest time."""
    may_launch = domain_run.may_launch(local)
    wished = local.wish is not None and not local.wish.completed
    if local.wish is not None and local.wish.tries < _WISHES:
        yield from when_due(local.wish, messages.AskStop(), timing.call_deadline)
    if local.inquiry is not None and local.inquiry.tries < _INQUIRIES:
        yield from when_due(local.inquiry, messages.QueryEnding(), timing.call_deadline)
    for run in local.runs:
        if not run.done_with and (run.status is not RunStatus.WAITING or run.run_id in may_launch):
            todo = _of_run(run, timing)  # why a job ends is reported before that its runs have
            yield from (
                due for due in todo if not (wished and isinstance(due.command, messages.Tell))
            )
    if local.approval is not None:
        if (until := approval.lapses_at(local)) is not None:
            yield Due(until, messages.Expire())
        if (confirm := approval.to_confirm(local)) is not None:
            yield from when_due(confirm, messages.Confirm(), timing.call_deadline)
    if (fetching := approval.prepares(local)) is not None:
        yield from when_due(fetching.fetch, messages.Prepare(), timing.prepare_deadline)
    if watched(local):
        yield from _of_scheduler(local, timing)
    if (until := _runs_until(local, timing)) is not None:
        yield Due(until, messages.TimeOut())
    if (
        ended(JOB, local.status)
        and not local.closed
        and all(
            run.over and (not _to_collect(run) or _left_behind(local, run)) for run in local.runs
        )
    ):
        yield from when_due(local.close, messages.Close(), timing.call_deadline)


def _of_run(run: Run, timing: RunTiming) -> ToDo:
    deadline = timing.stop_grace + timing.call_deadline
    match run.status:
        case RunStatus.WAITING:
            yield Due(NOW, messages.Launch(run.run_id))
        case RunStatus.LAUNCHING:
            yield from when_due(run.launch, messages.Launch(run.run_id), timing.launch_deadline)
        case RunStatus.RUNNING if run.exit is not None:
            seen = run.exit.finished_at or run.reported_at or NOW
            yield Due(
                seen + timedelta(seconds=timing.callback_grace), messages.Conclude(run.run_id)
            )
        case RunStatus.RUNNING:
            yield Due(run.probe_at or NOW, messages.Probe(run.run_id))
            if run.reported is not TaskStatus.SUCCESS:
                since, limit = run.away_at, timing.engine_timeout
            else:
                since, limit = run.reported_at, timing.linger
            if since is not None:
                yield Due(since + timedelta(seconds=limit), messages.Conclude(run.run_id))
        case RunStatus.STOPPING:
            yield from when_due(run.stop, messages.StopRun(run.run_id, timing.stop_grace), deadline)
            if run.stop.state is CallState.OK:  # and it could not be seen whether it is gone
                yield Due(run.probe_at or NOW, messages.Probe(run.run_id))
        case RunStatus.SUCCESS | RunStatus.FAILED:
            if _to_collect(run):
                yield from when_due(run.collect, messages.Collect(run.run_id), deadline)
            if run.unsealed:
                yield from when_due(run.seal, messages.Seal(run.run_id), timing.seal_deadline)
        case _:
            assert_never(run.status)
    news = run.reported_status
    worth_telling = news in (TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED)
    if (
        worth_telling
        and run.reporting.status is not news
        and run.reporting.call.tries < timing.tell_tries
    ):
        yield from when_due(
            run.reporting.call, messages.Tell(run.run_id, news), timing.call_deadline
        )


def _left_behind(local: LocalJob, run: Run) -> bool:
    """Whether the run's container is with a gateway that the job has left: it is removed when that one returns."""
    return bool(local.home and run.owner and run.owner != local.home)


def _to_collect(run: Run) -> bool:
    """Whether the engine may still hold something of the run; one that was never launched left nothing."""
    return run.launch.state is not CallState.IDLE and run.collect.state is not CallState.OK


def step(
    local: LocalJob,
    now: datetime,
    timing: RunTiming = RunTiming(),
    owner: str = "",
) -> tuple[LocalJob, list[messages.Action]]:
    """Take every decision that is due and mark every action that is due as started."""
    actions: list[messages.Action] = []
    commands = plan(local, now, timing, owner)
    if any(isinstance(command, messages.Decision) for command in commands):
        for command in commands:
            local = _decided(local, command, now, timing)
        commands = plan(
            local, now, timing, owner
        )  # again: what follows from the decisions is due, too
    for command in commands:
        match command:
            case messages.Conclude() | messages.Expire() | messages.Abandon() | messages.TimeOut():
                continue
            case messages.Probe():
                local = with_run(local, command.run, lambda run: runs.probed(run, now, timing))
            case messages.Launch():
                local = with_run(local, command.run, partial(_launching, now=now))
            case _:
                local = _with_call(local, command, lambda call: call.sent(now))
        actions.append(command)
    return local, actions


def _decided(
    local: LocalJob,
    command: messages.Command,
    now: datetime,
    timing: RunTiming,
) -> LocalJob:
    match command:
        case messages.Conclude():
            return with_run(
                local, command.run, lambda run: runs.conclude(run, now, timing, local.id, last=True)
            )
        case messages.Expire():
            return approval.expired(local, now, _ended_by)
        case messages.Abandon():
            return _abandoned(local, now)
        case messages.TimeOut():
            return _timed_out(local, now, timing)
        case _:
            return local


def _launching(run: Run, now: datetime) -> Run:
    waits = run.status is RunStatus.WAITING
    status = move(RUN, run.status, RunStatus.LAUNCHING) if waits else run.status
    return replace(run, status=status, launch=run.launch.sent(now))


def _with_call(
    local: LocalJob,
    action: messages.Action,
    change: Callable[[Call], Call],
) -> LocalJob:
    if isinstance(action, messages.OnJob):
        return changed(local, action.call, change)
    return with_run(local, action.run, lambda run: changed(run, action.call, change))


def with_run(
    local: LocalJob,
    run_id: str,
    change: Callable[[Run], Run],
    at: datetime | None = None,
) -> LocalJob:
    """Change one run, and write its moves into the timeline."""
    for i, old in enumerate(local.runs):
        if old.run_id != run_id:
            continue
        new = change(old)
        if new is old:
            return local
        local = replace(local, runs=(*local.runs[:i], new, *local.runs[i + 1 :]))
        if new.status is not old.status:
            when = at or new.ended_at or new.launch.sent_at or new.created_at
            detail = new.failure.as_dict() if new.failure else {}
            detail = {
                **detail,
                "task": new.task_name,
                "role": new.party.label,
                "attempt": new.attempt,
            }
            local = local.noted(when, f"run {new.status}", **detail)
        return local
    return local


def apply(
    local: LocalJob,
    event: messages.Event,
    timing: RunTiming = RunTiming(),
) -> LocalJob:
    """Return the job after the event. A late or repeated one changes only the timeline."""
    match event:
        case messages.StopRequested():
            return _stop_asked(local, event)
        case messages.Restarted():
            return _restarted(local, event)
        case messages.OwnerLost():
            return _owner_lost(local, event)
        case messages.Done():
            return _done(local, event, timing)
        case messages.Decided():
            return approval.decided(local, event.approve, event.by, event.words, event.at)
        case messages.Fetching():
            waits = approval.prepares(local)
            return (
                changed(local, "preparation.progress", lambda _: event.progress) if waits else local
            )
        case messages.Prepared():
            return approval.prepared(local, event.failure, event.at)
        case messages.SchedulerAlive():
            return _alive(local, event.at)
        case messages.StoppedHere():
            return _stopped_here(local, event)
        case messages.StopWished():
            return _stop_wished(local, event)
        case messages.Misreported():
            return _misreported(local, event)
        case messages.RunEvent():
            local = with_run(
                local, event.run, lambda run: runs.apply(run, event, timing, local.id), at=event.at
            )
            if isinstance(event, messages.LaunchFailed) and event.engine_message:
                run = next((r for r in local.runs if r.run_id == event.run), None)
                who = {"task": run.task_name, "role": run.party.label} if run else {}
                if run is None or run.over:  # else it is launched again
                    local = local.noted(
                        event.at, "engine message", **who, message=event.engine_message
                    )
            return local
        case _:
            assert_never(event)


def _misreported(local: LocalJob, event: messages.Misreported) -> LocalJob:
    """Warn of a report that was refused: the run counts by its exit code alone."""
    run = next(run for run in local.runs if run.run_id == event.run)
    text = f"task {run.task_name} as {run.party.label} reported the status {event.word!r}, which is none"
    text += " that a container can have: what counts is its exit code"
    if text in local.warnings:
        return local
    local = replace(local, warnings=(*local.warnings, text))
    return local.noted(
        event.at,
        "report refused",
        task=run.task_name,
        role=run.party.label,
        message=text,
    )


def _done(
    local: LocalJob,
    event: messages.Done,
    timing: RunTiming,
) -> LocalJob:
    """Record the end of an action without an event of its own; after a failure it is due again after a pause."""
    action = event.action

    def finished(call: Call) -> Call:
        if call.completed:
            return call  # a repeat that failed takes nothing back
        if event.final:
            return replace(call, state=CallState.OK, message=event.message)
        due = event.at + timing.retry(call.tries - 1, local.id, action)
        return replace(
            call,
            state=CallState.LOST,
            due_at=due,
            message=event.message,
        )

    match action:
        case messages.QueryScheduler():
            return _asked(local, event, timing)
        case messages.Tell(run, status):
            return with_run(local, run, lambda r: runs.reported(r, status, finished))
        case messages.Prepare() if not approval.prepares(local):
            return local
    local = _with_call(_not_finished(local, event), action, finished)
    match action:
        case messages.Close() if event.final:
            return replace(local, closed=True)
        case messages.QueryEnding():
            asked_enough = local.inquiry is not None and local.inquiry.tries >= _INQUIRIES
            if event.final or asked_enough:
                return _with_models(local, event.at)
        case messages.AskStop() if event.final:
            return local.noted(
                event.at, "stop reported", local.spec.scheduler, message=event.message
            )
        case messages.Confirm() if event.final:
            return local.noted(event.at, "decision reported", message=event.message)
        case messages.Collect(run) | messages.StopRun(run) if event.warnings:
            return with_run(local, run, partial(_warned, warnings=event.warnings))
    return local


def _warned(run: Run, warnings: tuple[str, ...]) -> Run:
    return replace(run, warnings=tuple(dict.fromkeys((*run.warnings, *warnings))))


def _not_finished(local: LocalJob, event: messages.Done) -> LocalJob:
    """Note in the timeline that a step of the cleanup failed; the same message once in a row."""
    words = {
        messages.Close: "closing",
        messages.Collect: "removing",
        messages.StopRun: "stopping",
    }
    action = event.action
    if type(action) not in words or event.final or not event.message:
        return local
    run = next((r for r in local.runs if r.run_id == getattr(action, "run", None)), None)
    call: Call = getattr(local if run is None else run, action.call, Call(CallState.OK))
    if call.completed or call.message == event.message:
        return local
    who = {} if run is None else {"task": run.task_name, "role": run.party.label}
    return local.noted(event.at, f"{words[type(action)]} failed", message=event.message, **who)


# The stop, and how the job ended.


def _stop_asked(local: LocalJob, event: messages.StopRequested) -> LocalJob:
    """End the runs of some tasks, or of all and the job with them."""
    stopped = local
    for run in local.runs:
        if event.tasks is None or run.task_name in event.tasks:
            stopped = with_run(
                stopped, run.run_id, lambda r: runs.stopped(r, event.at), at=event.at
            )
    if event.tasks is not None:
        same = stopped.runs == local.runs
        return (
            stopped
            if same
            else stopped.noted(event.at, "task stop asked", event.by, tasks=sorted(event.tasks))
        )
    if ended(JOB, local.status):
        return _explained(stopped, event)
    final = JobStatus.REJECTED if local.status is JobStatus.PENDING else JobStatus.FINISHED
    ending = event.ending or _ending_inferred(local, event)
    stopped = replace(
        stopped,
        status=move(JOB, local.status, final),
        ended_at=event.at,
        ending=ending,
    )
    if (
        event.ending is None
        and final is JobStatus.FINISHED
        and _is_scheduled_by_another(local, event.by)
    ):
        stopped = replace(stopped, inquiry=Call(due_at=event.at + _INQUIRY_PAUSE))
    else:
        stopped = _with_models(stopped, event.at)
    return stopped.noted(
        event.at, f"job {final} here", event.by, outcome=ending.outcome if ending else ""
    )


def _is_scheduled_by_another(local: LocalJob, sender: NodeId) -> bool:
    return sender == local.spec.scheduler != local.node


def _with_models(local: LocalJob, at: datetime) -> LocalJob:
    """Keep the models of a job that has succeeded."""
    if local.model_saved or not models.saves(local, local.ending):
        return local
    name = models.named(local.spec)
    local = replace(local, model_saved=True)
    return local.noted(at, "model saved", model_id=name.model_id, version=name.version)


def _stop_wished(local: LocalJob, event: messages.StopWished) -> LocalJob:
    if ended(JOB, local.status):
        return local
    request = StopRequest(event.by, event.at) if event.by else None
    return replace(local, stop_request=request)


def _stopped_here(local: LocalJob, event: messages.StoppedHere) -> LocalJob:
    """End the job here without its scheduling node, which learns of it once it answers."""
    text = f"stopped by {local.node} alone: {event.why}"
    ending = Ending(Outcome.STOPPED, event.at, Failure("STOPPED", text, local.node), local.node)
    wish = local.wish if local.wish is not None and not local.wish.completed else Call()
    return _ended_by(replace(local, wish=wish), ending)


def _explained(local: LocalJob, event: messages.StopRequested) -> LocalJob:
    """Take up how the job ended where that arrives only after the stop, as FATE sends it."""
    ending = event.ending
    if ending is None:
        return local
    is_news = may_explain(local, ending.outcome, is_inferred=event.is_inferred)
    local = changed(local, "inquiry", lambda call: replace(call, state=CallState.OK, message=""))
    if not is_news:
        return local if local.inquiry is None else _with_models(local, event.at)
    if (
        local.approval is not None and local.approval.failure is not None
    ):  # it ended by the no from here
        ending = replace(ending, outcome=Outcome.REJECTED, failure=local.approval.failure)
    local = replace(local, ending=ending)
    if local.inquiry is not None:  # it may leave a model only now
        local = _with_models(local, event.at)
    return local.noted(event.at, "job's end explained", event.by, outcome=ending.outcome)


def may_explain(
    local: LocalJob,
    outcome: Outcome,
    *,
    is_inferred: bool = False,
) -> bool:
    """Whether an outcome that comes after the end here is news: that runs were stopped explains nothing.

    ``is_inferred``: it was read off tasks' states. A stop leaves running tasks FAILED at some nodes, so that a
    failure inferred there does not replace a stop.
    """
    ending = local.ending
    if ending is None:
        return outcome is not Outcome.SUCCEEDED or local.is_ending_inferred
    if outcome is ending.outcome:
        return False
    if _task_was_stopped(ending):
        return outcome is not Outcome.SUCCEEDED
    if ending.outcome is Outcome.STOPPED and local.stop_request is not None:
        return outcome is Outcome.SUCCEEDED and local.is_ending_inferred
    if not local.is_ending_inferred or local.own_failure is not None:
        return False
    return ending.outcome is Outcome.SUCCEEDED or outcome is Outcome.SUCCEEDED or not is_inferred


def _task_was_stopped(ending: Ending) -> bool:
    return (
        ending.failure is not None
        and ending.failure.reason == "STOPPED"
        and ending.failure.task != ""
    )


def _ending_inferred(local: LocalJob, event: messages.StopRequested) -> Ending | None:
    """Return how the job ended where the scheduling node does not say; None where nothing tells."""
    request = local.stop_request
    if request is not None and local.status is not JobStatus.PENDING and local.own_failure is None:
        text = f"stopped by {request.by}"
        return Ending(Outcome.STOPPED, request.at, Failure("STOPPED", text, local.node), local.node)
    ending = _ending_by_runs(local, event)
    if ending is not None or local.status is JobStatus.PENDING:
        return ending
    all_over = local.runs != () and all(run.over for run in local.runs)
    if all_over or not _is_scheduled_by_another(local, event.by):
        return None
    failure = Failure("STOPPED", f"stopped by {event.by}, which did not say why", event.by)
    return Ending(Outcome.STOPPED, event.at, failure, event.by)


def _ending_by_runs(local: LocalJob, event: messages.StopRequested) -> Ending | None:
    """Return how the job ended where the scheduling node does not say: what the runs here tell, or nothing.

    The standard has no message for a success; the stop of a job whose every task has succeeded here is one.
    """
    last = {(run.task_name, run.party): run for run in local.runs}.values()
    failed = next((run.failure for run in last if run.failure is not None), None)
    if failed is not None:
        outcome = Outcome.STOPPED if failed.reason == "STOPPED" else Outcome.FAILED
        return Ending(outcome, event.at, failed, event.by)
    complete = {run.task_name for run in last} == {node.name for node in local.spec.dag.nodes}
    return (
        Ending(Outcome.SUCCEEDED, event.at, None, event.by)
        if complete and all(r.over for r in last)
        else None
    )


def _ended_by(local: LocalJob, ending: Ending) -> LocalJob:
    """End the job here, as an operator decided."""
    return _stop_asked(local, messages.StopRequested(ending.at, None, ending, ending.by))


# A gateway that restarts, or is lost.


def _restarted(local: LocalJob, event: messages.Restarted) -> LocalJob:
    """Repeat what a gateway was doing when it exited."""
    if event.owner in ("", local.home) or not local.home:
        for path in ("close", "ask", "wish", "inquiry", "approval.confirm"):
            local = changed(local, path, Call.interrupted)
        if (
            watched(local) and local.ask.state is CallState.IDLE
        ):  # a stop may have been sent meanwhile
            local = replace(local, ask=replace(local.ask, due_at=event.at))
        local = _fetched_again(local)
    owned = event.owner
    return replace(
        local, runs=tuple(runs.interrupted(r) if owned in ("", r.owner) else r for r in local.runs)
    )


def _owner_lost(local: LocalJob, event: messages.OwnerLost) -> LocalJob:
    """Give what a lost gateway had not started to its heir; what it had started has failed with it."""
    for run in local.runs:
        if run.owner == event.owner and not run.over:
            local = with_run(local, run.run_id, lambda r: runs.without_owner(r, event), at=event.at)
    return _fetched_again(replace(local, home=event.heir)) if local.home == event.owner else local


def _fetched_again(local: LocalJob) -> LocalJob:
    """Have images fetched anew: what fetched them ended with its gateway."""
    return (
        changed(local, "preparation.fetch", Call.interrupted) if approval.prepares(local) else local
    )


# What a participating node does when the scheduling node is silent.
#
# After ``RunTiming.orphan`` seconds without a request or a response, and when it has restarted, it asks whether
# the job is still known there, and a tenth of that later again. The job continues where it is known, and ends
# where the scheduling node does not know it, does not respond after a silence, or reports that it has ended.

UNREACHABLE, FORGOT = "SCHEDULER_UNREACHABLE", "SCHEDULER_FORGOT"
_QUERIES = 2
"""requests without a response, after a silence, after which the scheduling node counts as gone"""
_WISHES = 8640
"""tries of a stop that people here wished: about a day"""


_INQUIRIES = 10
"""tries to learn how a job ended from a scheduling node whose stop did not say so"""
_INQUIRY_PAUSE = timedelta(seconds=1)
"""some nodes take in that a job has ended only after every party has answered the stop"""


def watched(local: LocalJob) -> bool:
    """Whether another node's silence matters to the job here."""
    created = local.audit is None or local.audit.created
    return created and not ended(JOB, local.status) and local.spec.scheduler != local.node


def worth_noting(
    local: LocalJob,
    now: datetime,
    limit: float,
) -> bool:
    """Whether a sign of life of the scheduling node has to be stored: it is kept to a tenth of the limit."""
    last = local.last_contact or local.created_at
    return watched(local) and (now - last > timedelta(seconds=limit / 10) or local.ask.tries > 0)


def _of_scheduler(local: LocalJob, timing: RunTiming) -> ToDo:
    ask, last = local.ask, local.last_contact or local.created_at
    if ask.state is CallState.LOST and ask.tries >= _QUERIES:
        yield Due(NOW, messages.Abandon())
    elif ask.state is CallState.SENT and ask.sent_at is not None:
        yield Due(ask.sent_at + timedelta(seconds=timing.call_deadline), messages.QueryScheduler())
    else:
        yield Due(ask.due_at or last + _silence(timing), messages.QueryScheduler())


def _silence(timing: RunTiming) -> timedelta:
    """Return how long no sign of life is none: the last one may be a tenth later than is stored."""
    return timedelta(seconds=timing.orphan * 1.1)


def retry_reports(local: LocalJob, node: NodeId) -> LocalJob:
    """Return the job with every report that the scheduling node did not get due now: it is reachable again."""
    if local.spec.scheduler != node:
        return local
    local = changed(local, "wish", Call.hurried)
    local = changed(local, "inquiry", Call.hurried)
    hurried = tuple(changed(run, "reporting.call", Call.hurried) for run in local.runs)
    return local if all(map(is_, hurried, local.runs)) else replace(local, runs=hurried)


def _asked(
    local: LocalJob,
    event: messages.Done,
    timing: RunTiming,
) -> LocalJob:
    """Record the response of the scheduling node; not ``final``: there was none."""
    if not watched(local):
        return local
    if event.final:
        return _alive(local, event.at)
    pause = timedelta(seconds=timing.orphan / 10)  # a node that is just restarting is not lost
    due = event.at + max(timing.retry(local.ask.tries - 1, local.id, event.action), pause)
    ask = replace(
        local.ask,
        state=CallState.LOST,
        due_at=due,
        message=event.message,
    )
    if event.at < (local.last_contact or local.created_at) + _silence(
        timing
    ):  # as this node has just restarted
        ask = Call(due_at=due)
    local = replace(local, ask=ask)
    by = local.spec.scheduler
    return local.noted(event.at, "scheduling node does not respond", by, message=event.message)


def _alive(local: LocalJob, at: datetime) -> LocalJob:
    """Return the job after a sign of life of the scheduling node: the limit starts again."""
    was_silent = local.ask.message or local.ask.tries > 1
    ask = replace(
        local.ask,
        state=CallState.IDLE,
        due_at=None,
        tries=0,
        message="",
    )
    local = replace(local, last_contact=at, ask=ask)
    return (
        local.noted(at, "scheduling node responds", local.spec.scheduler) if was_silent else local
    )


def _runs_until(local: LocalJob, timing: RunTiming) -> datetime | None:
    """Return when a partner's job has run here for as long as it may; None: no limit, or nothing runs."""
    if (
        timing.partner_job is None
        or local.status is not JobStatus.RUNNING
        or is_own(local.spec, local.node)
    ):
        return None
    first_start = min((run.created_at for run in local.runs), default=None)
    return first_start and first_start + timedelta(seconds=timing.partner_job)


def _timed_out(
    local: LocalJob,
    at: datetime,
    timing: RunTiming,
) -> LocalJob:
    """End a partner's job here, and have its scheduling node end it everywhere."""
    limit = timing.partner_job or 0.0
    text = (
        f"a job of a partner may run at {local.node} for {limit:g} s (limits.partner_job_seconds)"
    )
    ending = Ending(Outcome.FAILED, at, Failure("TIMEOUT", text, local.node), local.node)
    return _ended_by(replace(local, wish=Call()), ending)


def _abandoned(local: LocalJob, at: datetime) -> LocalJob:
    """End the job here without the scheduling node's word."""
    text = f"the scheduling node {local.spec.scheduler} does not answer: {local.ask.message}"
    return _ended_by(
        local, Ending(Outcome.STOPPED, at, Failure(UNREACHABLE, text, local.node), local.node)
    )
