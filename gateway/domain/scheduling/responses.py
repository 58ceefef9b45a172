"""What the responses of nodes, and their absence, change in a job."""

from datetime import datetime
from typing import assert_never

from gateway.domain import approval, reservations, retries
from gateway.domain.job import Job
from gateway.domain.scheduling import messages
from gateway.domain.scheduling.agenda import call_of, is_claimed, of_this_attempt, with_call
from gateway.domain.scheduling.progress import advance, end_job, has_due_request
from gateway.domain.scheduling.reports import fail_part, mark_reached, poll_pause
from gateway.domain.spec import UNCERTAIN, Call, CallState, Ending, Failure
from gateway.domain.states import JOB, Outcome, TaskStatus, ended, replace
from gateway.domain.timeouts import NOW, Timing, expiry

_MAX_UNKNOWNS = 5  # starts of a task that its node does not know afterwards
_MAX_DENIALS = 10  # refused polls, or stops of a task refused for a reason that leaves it open


def is_awaited(job: Job, event: messages.Response) -> bool:
    """Return whether a response still counts: its call was made, and nothing newer is known.

    A call that was accepted may have been made twice; that one of the two got lost, or was refused
    as a repeat, takes nothing back. The converse does: a node that accepts after all has to be
    stopped.
    """
    request = event.request
    if isinstance(request, messages.TaskRequest) and not of_this_attempt(job, request):
        return False
    call = call_of(job, request)
    sent_at = call.sent_at or NOW
    is_reservation = isinstance(request, messages.ReserveAt | messages.ReleaseAt)
    if is_reservation and not isinstance(event, messages.Lost):
        # an older grant may have been released since
        return call.tries > 0 and event.at >= sent_at
    # a late loss may be that of an earlier try, and a poll may have been sent before the last start
    is_under_way = call.state is CallState.SENT and event.at >= sent_at
    match event:
        case messages.Accepted():
            return call.tries > 0
        case messages.Refused():
            may_be_refused = isinstance(request, messages.PollTaskAt) or not call.completed
            return call.tries > 0 and may_be_refused
        case messages.Lost():
            return is_under_way
        case messages.TaskUnknown():
            start = job.tasks[event.request.task].nodes[request.node].start
            return is_under_way and sent_at >= (start.sent_at or NOW)
        case _:
            assert_never(event)


# ---------------------------------------------------------------- accepted


def accept(
    job: Job,
    event: messages.Accepted,
    timing: Timing,
) -> Job:
    """Record a positive response: the call is settled."""
    request = event.request
    job = mark_reached(job, request.node)
    call = replace(call_of(job, request), state=CallState.OK, due_at=None, reason="", message="")
    match request:
        case messages.PollTaskAt():
            return _with_poll_answered(job, request, call, event.at, timing)
        case messages.StartTaskAt():
            part = replace(job.tasks[request.task].nodes[request.node], start=call)
            first_poll = Call(due_at=event.at + poll_pause(job, part, timing, event.at))
            return job.with_part(request.task, replace(part, poll=first_poll))
    job = with_call(job, request, call)
    detail: dict[str, object] = {}
    match request:
        case messages.StopAt():
            return job
        case messages.StopTaskAt():
            detail["task"] = request.task
        case messages.ReleaseAt():
            last_arrival = expiry(call, timing.call_deadline)
            job = job.with_node(reservations.returned(job.nodes[request.node], last_arrival))
        case messages.CreateAt():
            acceptance = event.acceptance
            if acceptance is not None:
                node = job.nodes[request.node]
                reservation = replace(node.reservation, acceptance=acceptance)
                job = job.with_node(replace(node, reservation=reservation))
                if acceptance.waits:
                    job = approval.record_condition(job, request.node, acceptance, event.at)
                if acceptance.checks:
                    detail["checks"] = dict(acceptance.checks)
    return job.with_note(event.at, request.name + " accepted", request.node, **detail)


def _with_poll_answered(
    job: Job,
    request: messages.PollTaskAt,
    call: Call,
    at: datetime,
    timing: Timing,
) -> Job:
    part = job.tasks[request.task].nodes[request.node]
    brought_news = part.reported_at is not None and part.reported_at >= (call.sent_at or NOW)
    due = at + poll_pause(job, part, timing, at)
    start = part.start
    if start.state in (CallState.SENT, CallState.LOST):
        start = replace(start, state=CallState.OK)
    part = replace(
        part,
        start=start,
        poll=replace(call, due_at=due, tries=0),
        polls=part.polls + 1,
        denials=0,
        quiet=0 if brought_news else part.quiet + 1,
    )
    return job.with_part(request.task, part)


# ---------------------------------------------------------------- refused


def refuse(
    job: Job,
    event: messages.Refused,
    timing: Timing,
) -> Job:
    """Record a refusal. It fails a task or takes a node out of the job, unless it is retried."""
    request, failure = event.request, event.failure
    job = mark_reached(job, request.node)
    old_call = call_of(job, request)
    job = _note_refusal(job, event, old_call, timing)
    call = replace(old_call, reason=failure.reason, message=failure.message)
    is_uncertain = failure.reason in UNCERTAIN
    match request:
        case messages.PollTaskAt():
            return _poll_refused(job, request, call, event.at, timing)
        case messages.StartTaskAt():
            part = job.tasks[request.task].nodes[request.node]
            part = replace(part, start=replace(call, state=CallState.REFUSED))
            return fail_part(job, request.task, part, failure, event.at)
        case messages.ReleaseAt():
            last_arrival = expiry(call, timing.call_deadline)
            return job.with_node(reservations.returned(job.nodes[request.node], last_arrival))
        case messages.ReserveAt() if failure.reason == reservations.BUSY:
            node = reservations.busy(job.nodes[request.node], failure, event.at, timing)
            return reservations.kept(job.with_node(node), event.at, timing)
        case messages.StopTaskAt():
            is_repeated = is_uncertain and old_call.tries < _MAX_DENIALS
        case messages.StopAt():
            is_repeated = is_uncertain
        case _:
            is_repeated = False
    if not is_repeated:
        return with_call(job, request, replace(call, state=CallState.REFUSED))
    due = event.at + timing.retry(call.tries - 1, job.id, request)
    return with_call(job, request, replace(call, state=CallState.LOST, due_at=due))


def _note_refusal(
    job: Job,
    event: messages.Refused,
    call: Call,
    timing: Timing,
) -> Job:
    """Write a refusal into the timeline; one of a reservation that repeats itself ever more rarely."""
    request, failure = event.request, event.failure
    detail = failure.as_dict()
    if isinstance(request, messages.ReserveAt) and call.tries > 1:
        if not reservations.worth_noting(call, failure, timing):
            return job
        detail["tries"] = call.tries
    return job.with_note(event.at, request.name + " refused", request.node, **detail)


def _poll_refused(
    job: Job,
    request: messages.PollTaskAt,
    call: Call,
    at: datetime,
    timing: Timing,
) -> Job:
    """Poll once more after a pause; after too many refusals the node's part has failed."""
    part = job.tasks[request.task].nodes[request.node]
    due = at + timing.retry(part.denials, job.id, request)
    call = replace(call, state=CallState.REFUSED, due_at=due)
    part = replace(part, poll=call, denials=part.denials + 1)
    if part.denials < _MAX_DENIALS:
        return job.with_part(request.task, part)
    return fail_part(job, request.task, part, Failure("POLL_REFUSED", call.message), at)


# ---------------------------------------------------------------- lost, delayed, unknown


def lose(
    job: Job,
    event: messages.Lost,
    timing: Timing,
) -> Job:
    """Record that no response came: the node is unreachable, and the call is due after a pause."""
    request = event.request
    call = call_of(job, request)
    due = event.at + timing.retry(call.tries - 1, job.id, request)
    may_have_arrived = event.delivered
    if not isinstance(request, messages.StartTaskAt):
        # (a start is sent again only after the node did not know the task)
        may_have_arrived |= call.tries > 1 or isinstance(request, messages.StopAt)
    lost_call = replace(
        call,
        state=CallState.LOST if may_have_arrived else CallState.IDLE,
        due_at=due,
        reason=event.reason,
        message=event.message,
    )
    job = with_call(job, request, lost_call)
    node = job.nodes[request.node]
    is_silence_new = node.unreachable_since is None
    if is_silence_new and (job.ending is not None or has_due_request(job, node)):
        job = job.with_node(replace(node, unreachable_since=event.at))
        job = job.with_note(event.at, "unreachable", request.node, message=event.message)
    if isinstance(request, messages.CreateAt | messages.StartAt) and job.ending is None:
        detail = {"tries": call.tries, "next": due.isoformat(), "message": event.message}
        job = job.with_note(event.at, request.name + " not answered", request.node, **detail)
    return job


def delay(job: Job, event: messages.Delayed) -> Job:
    """Move a claimed request to the moment at which it is sent; withdraw it where it is obsolete."""
    request = event.request
    if not is_claimed(job, request, event.claimed):
        return job
    call = call_of(job, request)
    is_obsolete = job.ending is not None
    if isinstance(request, messages.StartTaskAt):
        task = job.tasks[request.task]
        is_obsolete |= task.ending is not None or task.again_from is not None
    if is_obsolete:  # it never left this node
        withdrawn = replace(call, state=CallState.IDLE, sent_at=None, tries=call.tries - 1)
        return with_call(job, request, withdrawn)
    return with_call(job, request, replace(call, sent_at=event.at))


def start_again(job: Job, event: messages.TaskUnknown) -> Job:
    """Repeat the start of a task that its node does not know, a few times at most."""
    request = event.request
    job = mark_reached(job, request.node)
    task = job.tasks[request.task]
    part = task.nodes[request.node]
    part = replace(part, unknowns=part.unknowns + 1)
    if task.ending is not None or task.again_from is not None:
        if part.there:
            failure = Failure("TASK_UNKNOWN", "forgotten there")
            return fail_part(job, task.name, part, failure, event.at)
        part = replace(part, start=Call(tries=part.start.tries), poll=Call())
        return job.with_part(task.name, part)
    if part.unknowns >= _MAX_UNKNOWNS:
        text = f"the start was sent {part.unknowns} times, and the node does not know the task"
        if event.message:
            text += f": {event.message}"
        return fail_part(job, task.name, part, Failure("TASK_UNKNOWN", text), event.at)
    start = replace(part.start, state=CallState.IDLE, due_at=event.at)
    job = job.with_part(task.name, replace(part, start=start, poll=Call()))
    detail = {"task": task.name, "message": event.message}
    return job.with_note(event.at, "task unknown there, starting again", request.node, **detail)


# ---------------------------------------------------------------- a node without a role in a task


def exclude(
    job: Job,
    request: messages.StartTaskAt,
    at: datetime,
) -> Job:
    """Take a node out of a task in which it plays no role.

    It was requested to start the task because the component is unknown here.
    """
    task = job.tasks[request.task]
    if ended(JOB, job.status) or not of_this_attempt(job, request):
        return job.with_note(at, "late response ignored", request.node, request=str(request))
    nodes = {node: part for node, part in task.nodes.items() if node != request.node}
    job = mark_reached(job, request.node).with_task(replace(task, nodes=nodes))
    if not nodes:
        text = "no node of the job has a role in this task"
        failure = retries.cause(job, task, Failure("NO_ROLE_HERE", text, task=task.name))
        failed_task = replace(job.tasks[task.name], status=TaskStatus.FAILED, failure=failure)
        job = job.with_task(failed_task)
        if job.ending is None and task.ending is None:
            job = end_job(job, Ending(Outcome.FAILED, at, failure))
    return advance(
        job.with_note(at, "task start not for this node", request.node, task=task.name), at
    )
