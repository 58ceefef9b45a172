"""What the scheduling node does next, and how an event changes a job.

`agenda` says what there is to do and when; `plan` is the part that is due. `apply` is the only way a job
changes. `step` does both in one step: it marks everything due as sent and returns the requests to make, so
that storing its result is the claim, and two planners on one store never make a request twice.

Three rules keep a task from starting twice: the intent is recorded before the call; a start without a
response is followed by a poll, not by a second start; and the poll is sent only after the call's own
deadline, when the start can no longer be on its way.
"""

from dataclasses import replace
from datetime import datetime
from typing import assert_never

from gateway.domain import consent, reservations, retries, stopping
from gateway.domain.consent import ApprovalReported
from gateway.domain.job import Job
from gateway.domain.scheduling import messages, transitions
from gateway.domain.scheduling.agenda import agenda, call_of, with_call
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JobStatus, Outcome
from gateway.domain.timeouts import Timing


def plan(job: Job, now: datetime, timing: Timing = Timing()) -> list[messages.Command]:
    """Return everything that should be done by now. Reads nothing else, writes nothing."""
    return [due.command for due in agenda(job, timing) if due.at <= now]


def next_due(job: Job, timing: Timing = Timing()) -> datetime | None:
    """Return when there is something to do next, or None when only an event can change the job."""
    return min((due.at for due in agenda(job, timing)), default=None)


def step(job: Job, now: datetime, timing: Timing = Timing()) -> tuple[Job, list[messages.Request]]:
    """Take every decision that is due and mark every request that is due as sent."""
    requests: list[messages.Request] = []
    commands = plan(job, now, timing)
    if any(isinstance(command, messages.Decision) for command in commands):
        for command in commands:
            job = _decided(job, command, now)
        job = transitions.advance(job, now)
        commands = plan(job, now, timing)  # again: after a decision to end, only stops are due
    for request in commands:
        if not isinstance(request, messages.Request):
            continue
        job = with_call(job, request, call_of(job, request).sent(now))
        if isinstance(request, messages.StartTaskAt):
            task = job.tasks[request.task]
            job = job.with_task(replace(task, started_at=task.started_at or now))
        requests.append(request)
    return transitions.advance(job, now), requests


def _decided(job: Job, command: messages.Command, now: datetime) -> Job:
    match command:
        case messages.GiveUp():
            return transitions.given_up(job, command.node, now)
        case messages.Expire() if job.ending is None:
            return consent.timed_out(job, command.node, now)
        case retries.TryAgain() if job.ending is None:
            return retries.begun_again(job, command.task, now)
        case retries.TimeOut() if job.ending is None:
            if command.task:
                return retries.timed_out(job, command.task, now)
            return transitions.ended_as(job, retries.job_timed_out(job, now))
        case _:
            return job


def apply(job: Job, event: messages.Event, timing: Timing = Timing()) -> Job:
    """Return the job after the event. A late, repeated or unknown one changes only the timeline."""
    match event:
        case messages.Accepted() | messages.Refused() | messages.Lost() | messages.TaskUnknown() if (
            not transitions.awaited(job, event)
        ):
            job = job.noted(event.at, "late answer ignored", event.request.node, request=str(event.request))
        case messages.Accepted():
            job = transitions.answered(job, event, timing)
        case ApprovalReported():
            job = consent.confirmed(job, event)
        case messages.Refused():
            job = transitions.denied(job, event, timing)
        case messages.Lost():
            job = transitions.lost(job, event, timing)
        case messages.Delayed():
            job = transitions.delayed(job, event)
        case messages.TaskUnknown():
            job = transitions.unknown_there(job, event)
        case messages.TaskReported():
            job = transitions.reported(job, event, timing)
        case messages.RoleNotPlayed():
            job = transitions.not_played(job, event)
        case messages.Freed():
            node = reservations.freed(job, event.node, event.at)
            if node is not None:
                job = job.with_node(node).noted(event.at, "resources free", event.node)
        case messages.StopRequested():
            if job.ending is None and not (event.if_waiting and job.status is JobStatus.RUNNING):
                failure = Failure("STOPPED", event.message or f"stopped by {event.by}")
                job = transitions.ended_as(job, Ending(Outcome.STOPPED, event.at, failure, event.by))
        case messages.TaskStopRequested():
            job = stopping.ask(job, event.task, event.by, event.at, event.message)
        case messages.SuspendRequested():
            job = transitions.with_suspension(job, event)
        case _:
            assert_never(event)
    return transitions.advance(job, event.at)
