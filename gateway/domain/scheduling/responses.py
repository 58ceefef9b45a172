"""The changes of a job by the responses of nodes, and by their absence."""

from datetime import datetime
from typing import Any

from gateway.domain import approval, reservations, retries
from gateway.domain.job import Acceptance, Job, NodeTask, Task
from gateway.domain.records import replace
from gateway.domain.scheduling import messages
from gateway.domain.scheduling.agenda import (
    arrived_by,
    call_of,
    is_claimed,
    of_this_attempt,
    open_requests,
    with_call,
)
from gateway.domain.scheduling.progress import advance, end_job
from gateway.domain.scheduling.reachability import mark_reached, mark_unreachable
from gateway.domain.scheduling.reports import fail_part, poll_pause
from gateway.domain.spec import UNCERTAIN, Call, CallState, Ending, Failure, NodeId
from gateway.domain.states import JOB, Outcome, TaskStatus, ended
from gateway.domain.timeouts import EARLIEST, Timing, expiry

# Number of starts after which a node's part of a task fails if the node still does not know it.
_MAX_UNKNOWNS = 5
# Number of refused polls in a row after which a node's part of a task fails. Also the number of
# tries after which a task's stop is given up, if its refusals leave open whether the task is
# stopped.
_MAX_DENIALS = 10


def is_awaited(job: Job, event: messages.Response) -> bool:
    """Return whether a response still changes the job: its call was made, and has no newer result.

    A request may have been sent twice. If one try was accepted, the loss or refusal of the other
    try does not count. But an acceptance counts even after a refusal or loss: the node then has the
    job, which has to be stopped there.
    """
    request = event.request
    if isinstance(request, messages.TaskRequest) and not of_this_attempt(job, request):
        return False
    call = call_of(job, request)
    if isinstance(event, messages.Lost | messages.TaskUnknown):
        return _concerns_current_try(job, event, call)
    if call.tries == 0:
        return False
    if isinstance(request, messages.ReserveAt | messages.ReleaseAt):
        # the response to an earlier try may be about a reservation that was released since
        return event.at >= _sent_at(call)
    if isinstance(event, messages.Accepted):
        return True
    # A refusal of a poll always counts: polls are repeated, and the recorded response may be that
    # of another poll.
    return isinstance(request, messages.PollTaskAt) or not call.completed


def _concerns_current_try(
    job: Job,
    event: messages.Lost | messages.TaskUnknown,
    call: Call,
) -> bool:
    """Return whether an event is about the current try of a call, which is under way.

    The event is a missing response, or the response to a poll that the node does not know its task.
    An event from before the call was last sent is about an earlier try, and does not count.
    """
    if call.state is not CallState.SENT or event.at < _sent_at(call):
        return False
    if isinstance(event, messages.Lost):
        return True
    if event.claimed not in (None, call.sent_at):
        return False
    # the node can know the task only if the poll was sent after the last start
    poll = event.request
    start = job.tasks[poll.task].nodes[poll.node].start
    return _sent_at(call) >= _sent_at(start)


def _sent_at(call: Call) -> datetime:
    """Return when a call was made last; `EARLIEST` if it never was."""
    return call.sent_at or EARLIEST


# ---------------------------------------------------------------- accepted


def accept(
    job: Job,
    event: messages.Accepted,
    timing: Timing,
) -> Job:
    """Record a positive response: the call is completed.

    The response is noted in the timeline, except for polls, starts of tasks and stops of the job.
    The note of a task's stop has the name of the task. The note of a creation has the checks that
    the node has reported.
    """
    request = event.request
    job = mark_reached(job, request.node)
    call = replace(
        call_of(job, request),
        state=CallState.OK,
        due_at=None,
        reason="",
        message="",
    )
    match request:
        case messages.PollTaskAt():
            return _accept_poll(job, request, call, event.at, timing)
        case messages.StartTaskAt():
            return _accept_task_start(job, request, call, event.at, timing)
        case messages.StopAt():
            return with_call(job, request, call)
    job = with_call(job, request, call)
    detail: dict[str, Any] = {}
    match request:
        case messages.ReleaseAt():
            job = _record_release(job, request, call, timing)
        case messages.StopTaskAt():
            detail["task"] = request.task
        case messages.CreateAt() if event.acceptance is not None:
            job = _accept_creation(job, request.node, event.acceptance, event.at)
            if event.acceptance.checks:
                detail["checks"] = dict(event.acceptance.checks)
    title = request.name + " accepted"
    return job.with_note(event.at, title, request.node, **detail)


def _accept_task_start(
    job: Job,
    request: messages.StartTaskAt,
    call: Call,
    at: datetime,
    timing: Timing,
) -> Job:
    """Record that a node has accepted its part of a task; it is polled from now on."""
    part = replace(
        job.tasks[request.task].nodes[request.node],
        start=call,
    )
    first_poll = Call(due_at=at + poll_pause(job, part, timing, at))
    return job.with_part(request.task, replace(part, poll=first_poll))


def _record_release(
    job: Job,
    request: messages.ReleaseAt,
    call: Call,
    timing: Timing,
) -> Job:
    """Record that a node has released its reservation, which may then be requested again.

    A refused release has the same effect: the node has no reservation to release.
    """
    # Until this time a copy of the release may still arrive at the node.
    last_release_arrival = expiry(call, timing.call_deadline)
    node = reservations.without_reservation(job.nodes[request.node], last_release_arrival)
    return job.with_node(node)


def _accept_creation(
    job: Job,
    node: NodeId,
    acceptance: Acceptance,
    at: datetime,
) -> Job:
    """Record the conditions under which a node has accepted the job: reservation and approval.

    ``Acceptance.waits`` says that the node decides on the job only later.
    """
    record = job.nodes[node]
    reservation = replace(record.reservation, acceptance=acceptance)
    job = job.with_node(replace(record, reservation=reservation))
    if not acceptance.waits:
        return job
    return approval.record_conditional_acceptance(job, node, acceptance, at)


def _accept_poll(
    job: Job,
    request: messages.PollTaskAt,
    call: Call,
    at: datetime,
    timing: Timing,
) -> Job:
    """Record that a poll was answered, and plan the next one.

    The state in the response was recorded before, as an event of its own: the poll brought news if
    the last report is not older than the poll. The response shows that the start of the task has
    arrived, even if the start had no response. The tries of the next poll count from 0.
    """
    part = job.tasks[request.task].nodes[request.node]
    brought_news = part.reported_at is not None and part.reported_at >= _sent_at(call)
    polls_without_news = 0
    if not brought_news:
        polls_without_news = part.polls_without_news + 1
    start = part.start
    if start.state in (CallState.SENT, CallState.LOST):
        start = replace(start, state=CallState.OK)
    due = at + poll_pause(job, part, timing, at)
    part = replace(
        part,
        start=start,
        poll=replace(
            call,
            due_at=due,
            tries=0,
        ),
        polls=part.polls + 1,
        denials=0,
        polls_without_news=polls_without_news,
    )
    return job.with_part(request.task, part)


# ---------------------------------------------------------------- refused


def refuse(
    job: Job,
    event: messages.Refused,
    timing: Timing,
) -> Job:
    """Record a refusal: the request counts as refused or is repeated, or its task fails.

    `progress` takes a node with a refused request out of the job. Three kinds of requests are
    repeated: polls, reservations at a busy node, and stops whose refusal leaves open whether the
    node has stopped. A refused release counts as accepted.
    """
    request = event.request
    failure = event.failure
    job = mark_reached(job, request.node)
    old_call = call_of(job, request)
    job = _note_refusal(job, event, old_call, timing)
    call = replace(
        old_call,
        reason=failure.reason,
        message=failure.message,
    )
    match request:
        case messages.PollTaskAt():
            return _refuse_poll(job, request, call, event.at, timing)
        case messages.StartTaskAt():
            return _refuse_task_start(job, request, call, event)
        case messages.ReleaseAt():
            return _record_release(job, request, call, timing)
        case messages.ReserveAt() if failure.reason == reservations.BUSY:
            node = reservations.after_busy_response(
                job.nodes[request.node],
                failure,
                event.at,
                timing,
            )
            return reservations.keep_if_aged(job.with_node(node), event.at, timing)
    if not _is_stop_repeated(request, call):
        return with_call(job, request, replace(call, state=CallState.REFUSED))
    due = event.at + timing.retry(
        call.tries - 1,
        job.id,
        request,
    )
    return with_call(
        job,
        request,
        replace(
            call,
            # As for a lost request: it may have had an effect, and is made again when it is due.
            state=CallState.LOST,
            due_at=due,
        ),
    )


def _is_stop_repeated(request: messages.Request, call: Call) -> bool:
    """Return whether a refused request is a stop that has to be repeated.

    A stop is repeated if the reason of the refusal leaves open whether the node has stopped. The
    stop of a task is given up after `_MAX_DENIALS` tries.
    """
    if call.reason not in UNCERTAIN:
        return False
    if isinstance(request, messages.StopTaskAt):
        return call.tries < _MAX_DENIALS
    return isinstance(request, messages.StopAt)


def _refuse_task_start(
    job: Job,
    request: messages.StartTaskAt,
    call: Call,
    event: messages.Refused,
) -> Job:
    """Fail a node's part of a task that the node has refused to start."""
    part = job.tasks[request.task].nodes[request.node]
    part = replace(
        part,
        start=replace(call, state=CallState.REFUSED),
    )
    return fail_part(
        job,
        request.task,
        part,
        event.failure,
        event.at,
    )


def _note_refusal(
    job: Job,
    event: messages.Refused,
    call: Call,
    timing: Timing,
) -> Job:
    """Write a refusal into the timeline; repeated refusals of a reservation less and less often.

    ``call`` is the request's call before this refusal.
    """
    request = event.request
    failure = event.failure
    detail = failure.as_dict()
    if isinstance(request, messages.ReserveAt) and call.tries > 1:
        if not reservations.is_worth_noting(call, failure, timing):
            return job
        detail["tries"] = call.tries
    return job.with_note(event.at, request.name + " refused", request.node, **detail)


def _refuse_poll(
    job: Job,
    request: messages.PollTaskAt,
    call: Call,
    at: datetime,
    timing: Timing,
) -> Job:
    """Poll once more after a pause; after too many refusals the node's part has failed."""
    part = job.tasks[request.task].nodes[request.node]
    due = at + timing.retry(part.denials, job.id, request)
    call = replace(
        call,
        state=CallState.REFUSED,  # a poll is repeated even in this state
        due_at=due,
    )
    part = replace(
        part,
        poll=call,
        denials=part.denials + 1,
    )
    if part.denials < _MAX_DENIALS:
        return job.with_part(request.task, part)
    return fail_part(
        job,
        request.task,
        part,
        Failure("POLL_REFUSED", call.message),
        at,
    )


# ---------------------------------------------------------------- lost, delayed, unknown


def lose(
    job: Job,
    event: messages.Lost,
    timing: Timing,
) -> Job:
    """Record that no response came: the node is unreachable, and the call is due after a pause.

    Only a lost creation or start of the job is noted.
    """
    request = event.request
    call = call_of(job, request)
    due = event.at + timing.retry(
        call.tries - 1,
        job.id,
        request,
    )
    state = CallState.IDLE
    if _may_have_arrived(event, call):
        state = CallState.LOST
    lost_call = replace(
        call,
        state=state,
        due_at=due,
        reason=event.reason,
        message=event.message,
    )
    job = with_call(job, request, lost_call)
    job = mark_unreachable(job, event, open_requests(job))
    is_shown = isinstance(request, messages.CreateAt | messages.StartAt)
    if not is_shown or job.ending is not None:
        return job
    detail = {
        "tries": call.tries,
        "next": due.isoformat(),
        "message": event.message,
    }
    return job.with_note(event.at, request.name + " not answered", request.node, **detail)


def _may_have_arrived(event: messages.Lost, call: Call) -> bool:
    """Return whether a request without a response may have reached its node, in any of its tries.

    Earlier tries to start a task do not count: a start is repeated only after the node did not know
    the task. The stop of a job counts even if it was certainly not delivered: as a lost request, it
    lets the job end without this node.
    """
    if event.delivered:
        return True
    if isinstance(event.request, messages.StartTaskAt):
        return False
    return call.tries > 1 or isinstance(event.request, messages.StopAt)


def delay(job: Job, event: messages.Delayed) -> Job:
    """Record when a claimed request is really sent; withdraw the request if it is obsolete.

    A withdrawn request was not sent, so its try does not count. Once the job is ending, every
    delayed request is withdrawn, even a stop; the next step claims those again that are needed.
    """
    request = event.request
    if not is_claimed(job, request, event.claimed):
        return job
    call = call_of(job, request)
    is_obsolete = job.ending is not None
    if isinstance(request, messages.StartTaskAt):
        is_obsolete |= job.tasks[request.task].is_stopping
    if not is_obsolete:
        return with_call(job, request, replace(call, sent_at=event.at))
    withdrawn = replace(
        call,
        state=CallState.IDLE,
        sent_at=None,
        tries=call.tries - 1,
    )
    return with_call(job, request, withdrawn)


def start_again(
    job: Job,
    event: messages.TaskUnknown,
    timing: Timing,
) -> Job:
    """Repeat the start of a task that its node does not know.

    A lost start that may still arrive is not repeated: the node is polled again once it cannot
    arrive any more. After `_MAX_UNKNOWNS` such responses the node's part of the task fails. The
    start of a task that is being stopped is not repeated.
    """
    request = event.request
    job = mark_reached(job, request.node)
    task = job.tasks[request.task]
    part = task.nodes[request.node]
    last_arrival = arrived_by(part, timing)
    if _sent_at(part.poll) < last_arrival:
        next_poll = Call(due_at=last_arrival)
        return job.with_part(task.name, replace(part, poll=next_poll))
    part = replace(
        part,
        unknowns=part.unknowns + 1,
    )
    if task.is_stopping:
        return _forget_start(job, task, part, event.at)
    if part.unknowns >= _MAX_UNKNOWNS:
        text = f"the start was sent {part.unknowns} times, and the node does not know the task"
        if event.message:
            text += f": {event.message}"
        return fail_part(
            job,
            task.name,
            part,
            Failure("TASK_UNKNOWN", text),
            event.at,
        )
    start = replace(
        part.start,
        state=CallState.IDLE,
        due_at=event.at,
    )
    job = job.with_part(
        task.name,
        replace(
            part,
            start=start,
            poll=Call(),
        ),
    )
    detail = {
        "task": task.name,
        "message": event.message,
    }
    return job.with_note(event.at, "task unknown there, starting again", request.node, **detail)


def _forget_start(
    job: Job,
    task: Task,
    part: NodeTask,
    at: datetime,
) -> Job:
    """Record that a node does not know a task that is being stopped.

    Either the start never arrived, or the node has forgotten a task that it had accepted, which is
    a failure.
    """
    if part.is_accepted:
        failure = Failure("TASK_UNKNOWN", "forgotten there")
        return fail_part(job, task.name, part, failure, at)
    part = replace(
        part,
        start=Call(tries=part.start.tries),  # the tries stay for `Task.begun`
        poll=Call(),
    )
    return job.with_part(task.name, part)


# ---------------------------------------------------------------- a node without a role in a task


def exclude_from_task(
    job: Job,
    request: messages.StartTaskAt,
    at: datetime,
) -> Job:
    """Take a node out of a task in which it plays no role.

    `gateway.jobs.scheduler` calls this when the node refuses to start the task with the reason
    NO_ROLE_HERE. The node was requested to start it because the roles of the component are unknown
    here.
    """
    task = job.tasks[request.task]
    if ended(JOB, job.status) or not of_this_attempt(job, request):
        return job.with_note(
            at,
            "late response ignored",
            request.node,
            request=str(request),
        )
    nodes = dict(task.nodes)
    del nodes[request.node]
    job = mark_reached(job, request.node)
    job = job.with_task(replace(task, nodes=nodes))
    if not nodes:
        job = _fail_without_nodes(job, task, at)
    job = job.with_note(
        at,
        "task start not for this node",
        request.node,
        task=task.name,
    )
    return advance(job, at)


def _fail_without_nodes(
    job: Job,
    task: Task,
    at: datetime,
) -> Job:
    """Fail a task in which no node plays a role, and end the job.

    ``task`` is its record from before its last node was taken out. The failure does not end a job
    that is ending already, or whose task was being stopped.
    """
    text = "no node of the job has a role in this task"
    failure = retries.cause(
        job,
        task,
        Failure("NO_ROLE_HERE", text, task=task.name),
    )
    failed_task = replace(
        job.tasks[task.name],
        status=TaskStatus.FAILED,
        failure=failure,
    )
    job = job.with_task(failed_task)
    if retries.is_ending(job, task):
        return job
    return end_job(job, Ending(Outcome.FAILED, at, failure))
