"""What a participating node does next with the runs of a job, and how an event changes them.

The shape is that of `gateway.domain.scheduling.machine`: `plan`, `next_due`, `step`, `apply`.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, assert_never

from gateway.domain import approval, orphans
from gateway.domain.execution import messages, transitions
from gateway.domain.execution.agenda import agenda
from gateway.domain.run import LocalJob, Run
from gateway.domain.states import RUN, RunStatus, move
from gateway.domain.timeouts import Due, RunTiming


def plan(
    local: LocalJob, now: datetime, timing: RunTiming = RunTiming(), owner: str = ""
) -> list[messages.Command]:
    """Return everything that should be done by now; with an owner, nothing about runs of another."""
    return [due.command for due in _mine(local, timing, owner) if due.at <= now]


def next_due(local: LocalJob, timing: RunTiming = RunTiming(), owner: str = "") -> datetime | None:
    """Return when there is something to do next, or None when only an event can change the job."""
    return min((due.at for due in _mine(local, timing, owner)), default=None)


def _mine(local: LocalJob, timing: RunTiming, owner: str) -> Iterator[Due[messages.Command]]:
    others = {run.run_id for run in local.runs if owner and run.owner and run.owner != owner}
    elsewhere = bool(owner and local.home and local.home != owner)
    for due in agenda(local, timing):
        if isinstance(due.command, messages.OnJob):
            if not elsewhere:
                yield due
        elif due.command.run not in others:
            yield due


def step(
    local: LocalJob, now: datetime, timing: RunTiming = RunTiming(), owner: str = ""
) -> tuple[LocalJob, list[messages.Action]]:
    """Take every decision that is due and mark every action that is due as begun."""
    actions: list[messages.Action] = []
    for command in plan(local, now, timing, owner):
        match command:
            case messages.Conclude():
                local = transitions.with_run(
                    local, command.run, lambda run: transitions.conclude(run, now, timing, last=True)
                )
                continue
            case messages.Expire():
                local = approval.expired(local, now, transitions.ended_by)
                continue
            case messages.Abandon():
                local = transitions.abandoned(local, orphans.UNREACHABLE, local.ask.message, now)
                continue
            case messages.Probe():
                again = partial(replace, probe_at=now + timedelta(seconds=timing.probe_every))
                local = transitions.with_run(local, command.run, again)
            case messages.RunAction():
                local = transitions.with_run(local, command.run, partial(_begun, action=command, now=now))
            case messages.Tell():
                local = transitions.with_run(local, command.run, lambda run: _telling(run, now))
            case messages.Close():
                local = replace(local, close=local.close.sent(now))
            case messages.Confirm():
                local = approval.confirming(local, lambda call: call.sent(now))
            case messages.Prepare():
                fetch = approval.to_fetch(local)
                if fetch is None:  # the job has just expired
                    continue
                local = approval.fetching(local, fetch.sent(now))
            case messages.QueryScheduler():
                local = replace(local, ask=local.ask.sent(now))
            case _:
                assert_never(command)
        actions.append(command)
    return local, actions


def _begun(run: Run, action: messages.RunAction, now: datetime) -> Run:
    changed: dict[str, Any] = {action.call: getattr(run, action.call).sent(now)}
    run = replace(run, **changed)
    launches = isinstance(action, messages.Launch) and run.status is RunStatus.WAITING
    return replace(run, status=move(RUN, run.status, RunStatus.LAUNCHING)) if launches else run


def _telling(run: Run, now: datetime) -> Run:
    return replace(run, reporting=replace(run.reporting, call=run.reporting.call.sent(now)))


def apply(local: LocalJob, event: messages.Event, timing: RunTiming = RunTiming()) -> LocalJob:
    """Return the job after the event. A late or repeated one changes only the timeline."""
    match event:
        case messages.StopRequested():
            return transitions.stop_asked(local, event)
        case messages.Restarted():
            return transitions.restarted(local, event)
        case messages.OwnerLost():
            return transitions.owner_lost(local, event)
        case messages.Done():
            return transitions.done(local, event, timing)
        case messages.Sealed():
            return transitions.with_run(
                local, event.run, lambda run: transitions.sealed(run, event, timing), at=event.at
            )
        case messages.Decided():
            return approval.decided(local, event.approve, event.by, event.words, event.at)
        case messages.Fetching():
            return approval.with_pull_progress(local, event.progress)
        case messages.Prepared():
            return approval.finished(local, event.failure, event.at)
        case orphans.SchedulerAlive():
            return orphans.alive(local, event.at)
        case messages.LaunchFailed() if event.engine_message:
            local = apply(local, replace(event, engine_message=""), timing)
            run = next((r for r in local.runs if r.run_id == event.run), None)
            who = {"task": run.task_name, "role": run.party.label} if run else {}
            return local.noted(event.at, "engine said", **who, message=event.engine_message)
        case messages.RunEvent():
            return transitions.with_run(
                local, event.run, lambda run: transitions.apply_to_run(run, event, timing), at=event.at
            )
        case _:
            assert_never(event)
