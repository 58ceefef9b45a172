"""What the scheduling node does next, and how news changes a job.

`agenda` says what there is to do and when; `plan` is the part that is due. `apply` is the only way a job
changes. `step` does both at once: it marks everything due as sent and returns the requests to make, so
that storing its result is the claim, and two planners on one store never make a request twice.

Three rules keep a task from starting twice: the intent is recorded before the call; a start without an
answer is followed by a question, not by a second start; and the question is asked only after the call's
own deadline, when the start can no longer be on its way.
"""

from dataclasses import replace
from datetime import datetime
from typing import assert_never

from gateway.domain import consent, reservations, retries, stopping
from gateway.domain.consent import Confirmed
from gateway.domain.job import Job
from gateway.domain.scheduling.agenda import agenda, call_of, with_call
from gateway.domain.scheduling.messages import (
    Answered,
    Command,
    Decision,
    Delayed,
    Denied,
    Event,
    Expire,
    Freed,
    GiveUp,
    Heard,
    Lost,
    NotPlayed,
    Request,
    StartTaskAt,
    StopAsked,
    SuspendAsked,
    TaskStopAsked,
    UnknownThere,
)
from gateway.domain.scheduling.transitions import (
    answered,
    awaited,
    delayed,
    denied,
    ended_as,
    given_up,
    heard,
    lost,
    not_played,
    settled,
    unknown_there,
    with_suspension,
)
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JobStatus, Outcome
from gateway.domain.timeouts import Timing, earliest


def plan(job: Job, now: datetime, timing: Timing = Timing()) -> list[Command]:
    """Return everything that should be done by now. Reads nothing else, writes nothing."""
    return [due.command for due in agenda(job, timing) if due.at <= now]


def next_due(job: Job, timing: Timing = Timing()) -> datetime | None:
    """Return when there is something to do next, or None when only news can change the job."""
    return earliest(agenda(job, timing))


def step(job: Job, now: datetime, timing: Timing = Timing()) -> tuple[Job, list[Request]]:
    """Take every decision that is due and mark every request that is due as sent."""
    requests: list[Request] = []
    commands = plan(job, now, timing)
    if any(isinstance(command, Decision) for command in commands):
        for command in commands:
            job = _decided(job, command, now)
        job = settled(job, now)
        commands = plan(job, now, timing)  # once more: after a decision to end, only stops are due
    for request in commands:
        if not isinstance(request, Request):
            continue
        job = with_call(job, request, call_of(job, request).sent(now))
        if isinstance(request, StartTaskAt):
            task = job.tasks[request.task]
            job = job.with_task(replace(task, started_at=task.started_at or now))
        requests.append(request)
    return settled(job, now), requests


def _decided(job: Job, command: Command, now: datetime) -> Job:
    match command:
        case GiveUp():
            return given_up(job, command.node, now)
        case Expire() if job.ending is None:
            return consent.timed_out(job, command.node, now)
        case retries.TryAgain() if job.ending is None:
            return retries.begun_again(job, command.task, now)
        case retries.TimeOut() if job.ending is None:
            if command.task:
                return retries.timed_out(job, command.task, now)
            return ended_as(job, retries.job_timed_out(job, now))
        case _:
            return job


def apply(job: Job, event: Event, timing: Timing = Timing()) -> Job:
    """Return the job after the event. News that is late, repeated or foreign changes nothing but the timeline."""
    match event:
        case Answered() | Denied() | Lost() | UnknownThere() if not awaited(job, event):
            job = job.noted(event.at, "late answer ignored", event.request.node, request=str(event.request))
        case Answered():
            job = answered(job, event, timing)
        case Confirmed():
            job = consent.confirmed(job, event)
        case Denied():
            job = denied(job, event, timing)
        case Lost():
            job = lost(job, event, timing)
        case Delayed():
            job = delayed(job, event)
        case UnknownThere():
            job = unknown_there(job, event)
        case Heard():
            job = heard(job, event, timing)
        case NotPlayed():
            job = not_played(job, event)
        case Freed():
            node = reservations.freed(job, event.node, event.at)
            if node is not None:
                job = job.with_node(node).noted(event.at, "resources free", event.node)
        case StopAsked():
            if job.ending is None and not (event.if_waiting and job.status is JobStatus.RUNNING):
                failure = Failure("STOPPED", event.message or f"stopped by {event.by}")
                job = ended_as(job, Ending(Outcome.STOPPED, event.at, failure, event.by))
        case TaskStopAsked():
            job = stopping.ask(job, event.task, event.by, event.at, event.message)
        case SuspendAsked():
            job = with_suspension(job, event)
        case _:
            assert_never(event)
    return settled(job, event.at)
