"""What the scheduling node does next, and how an event changes a job.

`agenda` lists what there is to do and when; `plan` is the part of it that is due. `apply` is the
only way a job changes. `step` combines both: it marks everything due as sent and returns the
requests to make, so that storing its result is the claim, and two planners on one store never make
a request twice.

Three rules keep a task from starting twice: the intent is recorded before the call; a start without
a response is followed by a poll, not by a second start; and the poll is sent only after the call's
own deadline, when the start can no longer be on its way.
"""

from datetime import datetime
from typing import TypeVar, assert_never

from gateway.domain import approval, reservations, retries
from gateway.domain.approval import ApprovalReported
from gateway.domain.job import Job, NodeJob, NodeTask, Suspension
from gateway.domain.scheduling import messages, reports, responses
from gateway.domain.scheduling.agenda import agenda, call_of, with_call
from gateway.domain.scheduling.progress import advance, end_job, go_on_without
from gateway.domain.spec import Call, Ending, Failure, NodeId, changed, moment
from gateway.domain.states import JobStatus, Outcome, replace
from gateway.domain.timeouts import Timing


def plan(
    job: Job,
    now: datetime,
    timing: Timing = Timing(),
) -> list[messages.Command]:
    """Return everything that should be done by now. Reads nothing else, writes nothing."""
    return [due.command for due in agenda(job, timing) if due.at <= now]


def next_due(job: Job, timing: Timing = Timing()) -> datetime | None:
    """Return when there is something to do next, or None when only an event can change the job."""
    return min((due.at for due in agenda(job, timing)), default=None)


def step(
    job: Job,
    now: datetime,
    timing: Timing = Timing(),
) -> tuple[Job, list[messages.Request]]:
    """Take every decision that is due and mark every request that is due as sent."""
    commands = plan(job, now, timing)
    if any(isinstance(command, messages.Decision) for command in commands):
        for command in commands:
            job = _decide(job, command, now)
        job = advance(job, now)
        commands = plan(job, now, timing)  # again: after a decision to end, only stops are due
    requests = [command for command in commands if isinstance(command, messages.Request)]
    for request in requests:
        job = with_call(job, request, call_of(job, request).sent(now))
        if isinstance(request, messages.StartTaskAt):
            task = job.tasks[request.task]
            if task.started_at is None:
                job = job.with_task(replace(task, started_at=now))
    return advance(job, now), requests


def _decide(
    job: Job,
    command: messages.Command,
    now: datetime,
) -> Job:
    match command:
        case messages.GiveUp():
            return _give_up_node(job, command.node, now)
        case messages.Expire() if job.ending is None:
            return approval.record_silence(job, command.node, now)
        case retries.TryAgain() if job.ending is None:
            return retries.begun_again(job, command.task, now)
        case retries.TimeOut() if job.ending is None and command.task:
            return retries.timed_out(job, command.task, now)
        case retries.TimeOut() if job.ending is None:
            return end_job(job, retries.job_timed_out(job, now))
        case _:
            return job


def _give_up_node(
    job: Job,
    node: NodeId,
    now: datetime,
) -> Job:
    """Go on without a node that was silent for too long, where the job allows it; else end the job."""
    record = job.nodes[node]
    if job.status is JobStatus.RUNNING:
        if job.ending is not None:
            return job
        since = record.unreachable_since or now
        failure = Failure("UNREACHABLE", f"no answer since {moment(since)}", node)
        return end_job(job, Ending(Outcome.FAILED, now, failure))
    path = "create" if job.status is JobStatus.PENDING else "start"
    call: Call = getattr(record, path)
    failure = Failure(call.reason or "PEER_UNREACHABLE", call.message or "no answer", node)
    record = changed(record, path, lambda call: replace(call, reason=failure.reason))
    job = job.with_node(record)
    if job.ending is not None:
        return job
    return advance(go_on_without(job, record, failure, now), now)


# ---------------------------------------------------------------- events


def apply(
    job: Job,
    event: messages.Event,
    timing: Timing = Timing(),
) -> Job:
    """Return the job after the event. A late, repeated or unknown one changes only the timeline."""
    if isinstance(event, messages.Response) and not responses.is_awaited(job, event):
        request = event.request
        job = job.with_note(event.at, "late response ignored", request.node, request=str(request))
    else:
        job = _with_event(job, event, timing)
    return advance(job, event.at)


def _with_event(
    job: Job,
    event: messages.Event,
    timing: Timing,
) -> Job:
    match event:
        case messages.Accepted():
            return responses.accept(job, event, timing)
        case messages.Refused():
            return responses.refuse(job, event, timing)
        case messages.Lost():
            return responses.lose(job, event, timing)
        case messages.Delayed():
            return responses.delay(job, event)
        case messages.TaskUnknown():
            return responses.start_again(job, event)
        case messages.TaskReported():
            return reports.report_status(job, event, timing)
        case messages.RoleNotPlayed():
            return reports.remove_role(job, event)
        case ApprovalReported():
            return approval.record_confirmation(job, event)
        case messages.Freed():
            return _request_again(job, event)
        case messages.StopRequested():
            return _stop(job, event)
        case messages.TaskStopRequested():
            return retries.stop(job, event.task, event.by, event.at, event.message)
        case messages.SuspendRequested():
            return _suspend(job, event)
        case messages.ParametersAgreed():
            return _amend(job, event)
        case _:
            assert_never(event)


def _request_again(job: Job, event: messages.Freed) -> Job:
    """Request a reservation immediately at a node that has capacity again."""
    node = reservations.freed(job, event.node, event.at)
    if node is None:
        return job
    return job.with_node(node).with_note(event.at, "resources free", event.node)


def _stop(job: Job, event: messages.StopRequested) -> Job:
    if job.ending is not None:
        return job
    if event.if_waiting and job.status is JobStatus.RUNNING:
        return job
    failure = Failure(event.reason, event.message or f"stopped by {event.by}")
    outcome = Outcome.STOPPED if event.reason == "STOPPED" else Outcome.FAILED
    return end_job(job, Ending(outcome, event.at, failure, event.by))


def _suspend(job: Job, event: messages.SuspendRequested) -> Job:
    """Suspend the job, or (with ``on`` False) resume it; nothing changes where it is so already."""
    is_suspended = job.suspended is not None
    if job.ending is not None or event.on == is_suspended:
        return job
    if event.on:
        job = replace(job, suspended=Suspension(event.by, event.at))
        return job.with_note(event.at, "suspended", event.by)
    return replace(job, suspended=None).with_note(event.at, "resumed", event.by)


def _amend(job: Job, event: messages.ParametersAgreed) -> Job:
    """Let new parameters hold, unless others did first or one of their tasks has begun."""
    amendment = event.amendment
    if job.ending is not None or len(job.amendments) != event.after:
        return job
    if not all(job.tasks[name].amendable for name in amendment.tasks):
        return job
    job = replace(job, amendments=(*job.amendments, amendment))
    return job.with_note(
        amendment.at,
        "new parameters",
        amendment.by,
        version=len(job.amendments),
        tasks=list(amendment.tasks),
        reason=amendment.reason,
    )


# ---------------------------------------------------------------- a node that responds again


R = TypeVar("R", NodeJob, NodeTask)


def reached(job: Job, node: NodeId) -> Job:
    """Return the job with every unanswered call to a node due now: it is reachable again."""
    record = job.nodes.get(node)
    if record is None:
        return job
    hurried_record = _hurry(record, "create", "start", "stop")
    if hurried_record is not record:
        job = job.with_node(hurried_record)
    for task in job.tasks.values():
        part = task.nodes.get(node)
        if part is None:
            continue
        hurried_part = _hurry(part, "start", "poll", "stop")
        if hurried_part is not part:
            job = job.with_part(task.name, hurried_part)
    return job


def _hurry(record: R, *calls: str) -> R:
    for call in calls:
        record = changed(record, call, Call.hurried)
    return record
