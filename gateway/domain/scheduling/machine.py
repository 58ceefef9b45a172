"""What the scheduling node does next, and how an event changes a job.

`agenda` lists the open requests and decisions with their times; `plan` is the due part of it.
`apply` changes a job by an event. `step` changes it as time passes: it takes the due decisions,
marks the due requests as sent, and returns these requests. Storing the result of `step` claims the
requests, so that two planners on one store never make a request twice.

Three rules keep a task from starting twice: the intent is recorded before the call; a start without
a response is followed by a poll, not by a second start; and the poll is sent only after the
deadline of the start's call, when the start can no longer be on its way.
"""

from datetime import datetime
from typing import TypeVar, assert_never

from gateway.domain import approval, reservations, retries
from gateway.domain.approval import ApprovalReported
from gateway.domain.job import Job, NodeJob, NodeTask, Suspension, Task
from gateway.domain.records import replace
from gateway.domain.scheduling import messages, reports, responses
from gateway.domain.scheduling.agenda import agenda, call_of, with_call
from gateway.domain.scheduling.progress import advance, end_job, go_on_without
from gateway.domain.scheduling.reachability import silence_failure
from gateway.domain.spec import Call, Ending, Failure, NodeId, changed
from gateway.domain.states import JobStatus, Outcome
from gateway.domain.timeouts import Timing


def plan(
    job: Job,
    now: datetime,
    timing: Timing = Timing(),
) -> list[messages.Command]:
    """Return every command that is due by now. A pure function of its arguments."""
    return [due.command for due in agenda(job, timing) if due.at <= now]


def next_due(
    job: Job,
    timing: Timing = Timing(),
) -> datetime | None:
    """Return when the next command is due; None if only an event can change the job."""
    return min((due.at for due in agenda(job, timing)), default=None)


def step(
    job: Job,
    now: datetime,
    timing: Timing = Timing(),
) -> tuple[Job, list[messages.Request]]:
    """Take every due decision and mark every due request as sent; return the job and the requests.

    The requests are planned after the decisions: if a decision ends the job, only stops are made.
    """
    commands = plan(job, now, timing)
    decisions = [command for command in commands if isinstance(command, messages.Decision)]
    if decisions:
        for decision in decisions:
            job = _decide(job, decision, now)
        job = advance(job, now)
        commands = plan(job, now, timing)
    requests = [command for command in commands if isinstance(command, messages.Request)]
    for request in requests:
        job = _mark_sent(job, request, now)
    return advance(job, now), requests


def _mark_sent(
    job: Job,
    request: messages.Request,
    now: datetime,
) -> Job:
    """Record that a request is made now.

    An attempt of a task begins with the first request to start the task at a node.
    """
    job = with_call(
        job,
        request,
        call_of(job, request).sent(now),
    )
    if not isinstance(request, messages.StartTaskAt):
        return job
    task = job.tasks[request.task]
    if task.started_at is not None:
        return job
    return job.with_task(replace(task, started_at=now))


def _decide(
    job: Job,
    decision: messages.Decision,
    now: datetime,
) -> Job:
    """Return the job after a decision that has become due, without an event.

    If an earlier one of several due decisions has ended the job, the later ones change nothing,
    except that `_give_up_node` records why a node did not respond.
    """
    if isinstance(decision, messages.GiveUp):
        return _give_up_node(job, decision.node, now)
    if job.ending is not None:
        return job
    match decision:
        case messages.Expire(node):
            return approval.record_silence(job, node, now)
        case retries.TryAgain(task):
            return retries.begin_again(job, task, now)
        case retries.TimeOut(""):  # the job as a whole
            return end_job(job, retries.ending_by_timeout(job, now))
        case retries.TimeOut(task):
            return retries.time_out(job, task, now)
        case _:
            assert_never(decision)


def _give_up_node(
    job: Job,
    node: NodeId,
    now: datetime,
) -> Job:
    """Give up a node that was silent for too long (`gateway.domain.scheduling.reachability`).

    A running job fails. A job that is still being created or started goes on without the node if
    its quorum permits, and otherwise ends; the reason is stored with the creation or start that had
    no response, even if the job is ending already.
    """
    record = job.nodes[node]
    failure = silence_failure(job, record, now)
    if job.status is JobStatus.RUNNING:
        if job.ending is not None:
            return job
        return end_job(job, Ending(Outcome.FAILED, now, failure))
    if job.status is JobStatus.PENDING:
        call = replace(record.create, reason=failure.reason)
        record = replace(record, create=call)
    else:
        call = replace(record.start, reason=failure.reason)
        record = replace(record, start=call)
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
    """Return the job after the event and the transitions that follow from it.

    An event that is late, repeated or about an unknown task changes at most the timeline.
    """
    if isinstance(event, messages.Response) and not responses.is_awaited(job, event):
        request = event.request
        job = job.with_note(
            event.at,
            "late response ignored",
            request.node,
            request=str(request),
        )
    else:
        job = _with_event(job, event, timing)
    return advance(job, event.at)


def _with_event(
    job: Job,
    event: messages.Event,
    timing: Timing,
) -> Job:
    """Return the job after an event, without the transitions that `advance` then makes."""
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
            return responses.start_again(job, event, timing)
        case messages.TaskReported():
            return reports.record_status(job, event, timing)
        case messages.RoleNotPlayed():
            return reports.remove_role(job, event)
        case ApprovalReported():
            return approval.record_confirmation(job, event)
        case messages.Freed():
            return _request_again(job, event)
        case messages.StopRequested():
            return _stop(job, event)
        case messages.TaskStopRequested():
            return retries.stop(
                job,
                event.task,
                event.by,
                event.at,
                event.message,
            )
        case messages.SuspendRequested():
            return _suspend(job, event)
        case messages.ParametersAgreed():
            return _amend(job, event)
        case _:
            assert_never(event)


def _request_again(job: Job, event: messages.Freed) -> Job:
    """Request a reservation immediately at a node that has capacity again.

    A job that does not wait for the node stays as it is.
    """
    node = reservations.with_request_due(job, event.node, event.at)
    if node is None:
        return job
    return job.with_node(node).with_note(event.at, "resources free", event.node)


def _stop(job: Job, event: messages.StopRequested) -> Job:
    """Decide that the job ends; only the first such decision counts.

    The outcome is STOPPED for the reason STOPPED. With any other reason, something has failed at
    the node that requests the stop, and the outcome is FAILED. With ``if_waiting`` a running job is
    not ended.
    """
    if job.ending is not None:
        return job
    if event.if_waiting and job.status is JobStatus.RUNNING:
        return job
    failure = Failure(event.reason, event.message or f"stopped by {event.by}")
    ending = Ending(failure.outcome, event.at, failure, event.by)
    return end_job(job, ending)


def _suspend(job: Job, event: messages.SuspendRequested) -> Job:
    """Suspend the job, or resume it if ``event.on`` is False.

    A repeated request changes nothing.
    """
    is_suspended = job.suspended is not None
    if job.ending is not None or event.on == is_suspended:
        return job
    if event.on:
        job = replace(
            job,
            suspended=Suspension(event.by, event.at),
        )
        return job.with_note(event.at, "suspended", event.by)
    return replace(job, suspended=None).with_note(event.at, "resumed", event.by)


def _amend(job: Job, event: messages.ParametersAgreed) -> Job:
    """Put new parameters of some tasks into force.

    Nothing changes if one of the tasks has begun, or if another amendment came into force after the
    nodes were asked (``after`` is the number of amendments at that time).
    """
    amendment = event.amendment
    is_outdated = len(job.amendments) != event.after
    if job.ending is not None or is_outdated:
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


R = TypeVar("R", NodeJob, NodeTask)  # the record of one node's part in the job, or in one task


def retry_now(job: Job, node: NodeId) -> Job:
    """Return the job after a node responds again: calls to it that wait for a retry are due now.

    So are polls and the job's stop if they are under way: they may have got lost without an error,
    which their callers notice only at their deadlines, and it is harmless to send them twice.

    Calls about reservations keep their pauses. The node's silence is ended elsewhere
    (`reachability.mark_reached`). The same object is returned if no call changes, so that nothing
    has to be stored.
    """
    record = job.nodes.get(node)
    if record is None:
        return job
    hurried_record = _hurry(record, "create", "start", "stop")
    hurried_record = changed(hurried_record, "stop", Call.interrupted)
    if hurried_record is not record:
        job = job.with_node(hurried_record)
    for task in job.tasks.values():
        job = _hurry_part(job, task, node)
    return job


def _hurry_part(
    job: Job,
    task: Task,
    node: NodeId,
) -> Job:
    """Return the job with the waiting calls of a node's part of a task due now."""
    part = task.nodes.get(node)
    if part is None:
        return job
    hurried_part = _hurry(part, "start", "poll", "stop")
    hurried_part = changed(hurried_part, "poll", Call.interrupted)
    if hurried_part is part:
        return job
    return job.with_part(task.name, hurried_part)


def _hurry(record: R, *calls: str) -> R:
    """Return a node's record with these calls due now if they wait for a retry.

    ``calls`` are names of fields. The record itself is returned if no call changes.
    """
    for call in calls:
        record = changed(record, call, Call.hurried)
    return record
