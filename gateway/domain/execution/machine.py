"""What a participating node does next with the runs of a job, and how news changes them.

The shape is that of `gateway.domain.scheduling.machine`: `plan`, `next_due`, `step`, `apply`.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from gateway.domain import approval, orphans
from gateway.domain.execution.agenda import agenda
from gateway.domain.execution.messages import (
    Abandon,
    Action,
    AskScheduler,
    Broken,
    Close,
    Collect,
    Command,
    Confirm,
    Decided,
    Done,
    Event,
    Expire,
    Fetching,
    Gone,
    HasExited,
    Launch,
    Launched,
    LaunchFailed,
    OwnerLost,
    Prepare,
    Prepared,
    Probe,
    Reported,
    Restarted,
    Seal,
    Sealed,
    Seen,
    StopAsked,
    StopRun,
    Tell,
    Unseen,
    Weigh,
)
from gateway.domain.execution.transitions import (
    abandoned,
    done,
    ended_by,
    heard,
    owner_lost,
    restarted,
    sealed,
    stop_asked,
    weighed,
    with_run,
)
from gateway.domain.run import LocalJob, Run
from gateway.domain.states import RUN, RunStatus, move
from gateway.domain.timeouts import Due, RunTiming, earliest


def plan(local: LocalJob, now: datetime, timing: RunTiming = RunTiming(), owner: str = "") -> list[Command]:
    """Return everything that should be done by now; with an owner, nothing about runs of another one."""
    return [due.command for due in _mine(local, timing, owner) if due.at <= now]


def next_due(local: LocalJob, timing: RunTiming = RunTiming(), owner: str = "") -> datetime | None:
    """Return when there is something to do next, or None when only news can change the job."""
    return earliest(_mine(local, timing, owner))


def _mine(local: LocalJob, timing: RunTiming, owner: str) -> Iterator[Due[Command]]:
    others = {run.run_id for run in local.runs if owner and run.owner and run.owner != owner}
    elsewhere = bool(owner and local.home and local.home != owner)
    for due in agenda(local, timing):
        if isinstance(due.command, _OF_THE_JOB):
            if not elsewhere:
                yield due
        elif due.command.run not in others:
            yield due


_OF_THE_JOB = (Close, Confirm, Prepare, AskScheduler, Expire, Abandon)


def step(
    local: LocalJob, now: datetime, timing: RunTiming = RunTiming(), owner: str = ""
) -> tuple[LocalJob, list[Action]]:
    """Take every decision that is due and mark every action that is due as begun."""
    actions: list[Action] = []
    for command in plan(local, now, timing, owner):
        match command:
            case Weigh():
                local = with_run(local, command.run, lambda run: weighed(run, now, timing, last=True))
            case Launch():
                local = with_run(local, command.run, lambda run: _begin_launch(run, now))
                actions.append(command)
            case Probe():
                later = now + timedelta(seconds=timing.probe_every)
                local = with_run(local, command.run, lambda run, t=later: replace(run, probe_at=t))  # type: ignore[misc]
                actions.append(command)
            case StopRun():
                local = with_run(local, command.run, lambda run: replace(run, stop=run.stop.sent(now)))
                actions.append(command)
            case Collect():
                local = with_run(local, command.run, lambda run: replace(run, collect=run.collect.sent(now)))
                actions.append(command)
            case Seal():
                local = with_run(local, command.run, lambda run: replace(run, seal=run.seal.sent(now)))
                actions.append(command)
            case Tell():
                local = with_run(
                    local,
                    command.run,
                    lambda run: replace(run, told=replace(run.told, call=run.told.call.sent(now))),
                )
                actions.append(command)
            case Close():
                local = replace(local, close=local.close.sent(now))
                actions.append(command)
            case Confirm():
                local = approval.confirming(local, lambda call: call.sent(now))
                actions.append(command)
            case Prepare():
                fetch = approval.to_fetch(local)
                if fetch is not None:
                    local = approval.fetching(local, fetch.sent(now))
                    actions.append(command)
            case AskScheduler():
                local = replace(local, ask=local.ask.sent(now))
                actions.append(command)
            case Expire():
                local = approval.expired(local, now, ended_by)
            case Abandon():
                local = abandoned(local, orphans.UNREACHABLE, local.ask.message, now)
            case _:
                assert_never(command)
    return local, actions


def _begin_launch(run: Run, now: datetime) -> Run:
    status = RunStatus.LAUNCHING
    if run.status is RunStatus.WAITING:
        status = move(RUN, run.status, RunStatus.LAUNCHING)
    return replace(run, status=status, launch=run.launch.sent(now))


def apply(local: LocalJob, event: Event, timing: RunTiming = RunTiming()) -> LocalJob:
    """Return the job after the event. Late or repeated news changes nothing but the timeline."""
    match event:
        case StopAsked():
            return stop_asked(local, event)
        case Restarted():
            return restarted(local, event)
        case OwnerLost():
            return owner_lost(local, event)
        case Done():
            return done(local, event, timing)
        case Sealed():
            return with_run(local, event.run, lambda run: sealed(run, event, timing), at=event.at)
        case Decided():
            return approval.decided(local, event.approve, event.by, event.words, event.at)
        case Fetching():
            return approval.told(local, event.progress)
        case Prepared():
            return approval.finished(local, event.failure, event.at)
        case orphans.Heard():
            return orphans.heard(local, event.at)
        case LaunchFailed() if event.said:
            local = apply(local, replace(event, said=""), timing)
            run = next((r for r in local.runs if r.run_id == event.run), None)
            who = {"task": run.task_name, "role": run.party.label} if run else {}
            return local.noted(event.at, "engine said", **who, message=event.said)
        case Launched() | LaunchFailed() | Seen() | Unseen() | Broken() | HasExited() | Gone() | Reported():
            return with_run(local, event.run, lambda run: heard(run, event, timing), at=event.at)
        case _:
            assert_never(event)
