"""What the answers to our own requests change, and what their absence does."""

from dataclasses import replace
from datetime import datetime
from typing import assert_never

from gateway.domain import consent, reservations, stopping
from gateway.domain.job import Job, NodeTask
from gateway.domain.scheduling.commands import (
    NAMES,
    CreateAt,
    HoldAt,
    PollTaskAt,
    Request,
    ReturnAt,
    StartAt,
    StartTaskAt,
    StopAt,
    StopTaskAt,
    TaskRequest,
)
from gateway.domain.scheduling.messages import Answered, Delayed, Denied, Lost, UnknownThere
from gateway.domain.scheduling.records import (
    call_of,
    of_this_attempt,
    with_call,
    with_node,
    with_part,
    with_reached,
    with_task,
)
from gateway.domain.scheduling.reports import pause
from gateway.domain.scheduling.settling import ended_as, settled
from gateway.domain.scheduling.silence import is_asked
from gateway.domain.spec import UNTOLD, Call, CallState, Ending, Failure
from gateway.domain.states import JOB, TASK, Outcome, TaskStatus, ended
from gateway.domain.timeouts import NOW, Timing, expiry

_MAX_UNKNOWNS = 5
_MAX_DENIALS = 10


def awaited(job: Job, event: Answered | Denied | Lost | UnknownThere) -> bool:
    """Whether the answer can still say something: its call was made, and nothing newer was learned since.

    A call that was accepted may have been made twice; that one of the two got lost, or was refused as a repeat,
    takes nothing back. The converse does: a node that accepts after all has to be stopped.
    """
    request = event.request
    if isinstance(request, TaskRequest) and not of_this_attempt(job, request):
        return False
    call = call_of(job, request)
    sent_at = call.sent_at or NOW
    # recorded late, a loss may be that of an earlier try, and a question may have been put before the last start
    under_way = call.state is CallState.SENT and event.at >= sent_at
    if isinstance(request, HoldAt | ReturnAt) and not isinstance(event, Lost):
        return call.tries > 0 and event.at >= sent_at  # what was held then may have been returned since
    match event:
        case Answered():
            return call.tries > 0
        case Denied():
            return call.tries > 0 and (isinstance(request, PollTaskAt) or not call.settled)
        case Lost():
            return under_way
        case UnknownThere():
            started_at = job.tasks[event.request.task].nodes[request.node].start.sent_at or NOW
            return under_way and sent_at >= started_at
        case _:
            assert_never(event)


def answered(job: Job, event: Answered, timing: Timing) -> Job:
    """Take in a yes: the call is settled, and what it brought is written down."""
    request = event.request
    job = with_reached(job, request.node)
    call = replace(call_of(job, request), state=CallState.OK, due_at=None, reason="", message="")
    if isinstance(request, PollTaskAt):
        part = job.tasks[request.task].nodes[request.node]
        news = part.heard_at is not None and part.heard_at >= (call.sent_at or NOW)
        call = replace(call, due_at=event.at + pause(job, part, timing), tries=0)
        part = replace(part, poll=call, polls=part.polls + 1, denials=0, quiet=0 if news else part.quiet + 1)
        if part.start.state in (CallState.SENT, CallState.LOST):
            part = replace(part, start=replace(part.start, state=CallState.OK))
        return with_part(job, request.task, part)
    job = with_call(job, request, call)
    if isinstance(request, CreateAt) and event.said is not None:
        job = with_node(job, reservations.accepted(job.nodes[request.node], event.said))
        if event.said.waits:
            job = consent.waits(job, request.node, event.said, event.at)
    if isinstance(request, ReturnAt):
        job = with_node(job, reservations.returned(job.nodes[request.node], expiry(call, timing)))
    if isinstance(request, StartTaskAt):
        part = job.tasks[request.task].nodes[request.node]
        first = Call(due_at=event.at + pause(job, part, timing))
        return with_part(job, request.task, replace(part, poll=first))
    if isinstance(request, StopTaskAt):
        return job.noted(event.at, NAMES[StopTaskAt] + " accepted", request.node, task=request.task)
    if not isinstance(request, StopAt):
        said = event.said if isinstance(request, CreateAt) else None
        detail = {"checks": dict(said.checks)} if said and said.checks else {}
        job = job.noted(event.at, NAMES[type(request)] + " accepted", request.node, **detail)
    return job


def denied(job: Job, event: Denied, timing: Timing) -> Job:
    """Take in a no. It fails a task or takes a node out of the job, unless it can be asked again."""
    request, failure = event.request, event.failure
    job = with_reached(job, request.node)
    before = call_of(job, request)
    again = {"tries": before.tries} if isinstance(request, HoldAt) and before.tries > 1 else {}
    if not again or reservations.worth_noting(before, failure, timing):
        job = job.noted(event.at, NAMES[type(request)] + " refused", request.node, **failure.as_dict(), **again)
    call = replace(before, reason=failure.reason, message=failure.message)
    if isinstance(request, PollTaskAt):
        part = job.tasks[request.task].nodes[request.node]
        call = replace(
            call, state=CallState.REFUSED, due_at=event.at + timing.retry(part.denials, job.id, request)
        )
        part = replace(part, poll=call, denials=part.denials + 1)
        if part.denials < _MAX_DENIALS:
            return with_part(job, request.task, part)
        refused = Failure("POLL_REFUSED", failure.message)
        return _failed_part(job, request.task, part, refused, event.at)
    if isinstance(request, ReturnAt):
        return with_node(job, reservations.returned(job.nodes[request.node], expiry(call, timing)))
    if isinstance(request, HoldAt) and failure.reason == reservations.BUSY:
        job = with_node(job, reservations.busy(job.nodes[request.node], failure, event.at, timing))
        return reservations.kept(job, event.at, timing)
    insists = isinstance(request, StopAt) or (isinstance(request, StopTaskAt) and before.tries < _MAX_DENIALS)
    if insists and failure.reason in UNTOLD:  # perhaps it runs on
        return with_call(
            job,
            request,
            replace(call, state=CallState.LOST, due_at=event.at + timing.retry(call.tries - 1, job.id, request)),
        )
    job = with_call(job, request, replace(call, state=CallState.REFUSED))
    if isinstance(request, StartTaskAt):
        part = job.tasks[request.task].nodes[request.node]
        job = _failed_part(job, request.task, part, failure, event.at)
    return job


def exclude(job: Job, request: StartTaskAt, at: datetime) -> Job:
    """Take a node out of a task: it was asked only because nobody here knew the component's roles."""
    task = job.tasks[request.task]
    if ended(JOB, job.status) or not of_this_attempt(job, request):
        return job.noted(at, "late answer ignored", request.node, request=str(request))
    nodes = {node: part for node, part in task.nodes.items() if node != request.node}
    job = with_task(with_reached(job, request.node), replace(task, nodes=nodes))
    if not nodes:
        failure = Failure("NO_ROLE_HERE", "no node of the job has a role in this task", task=task.name)
        failure = stopping.cause(job, task, failure)
        job = with_task(job, replace(job.tasks[task.name], status=TaskStatus.FAILED, failure=failure))
        if job.ending is None and task.ending is None:
            job = ended_as(job, Ending(Outcome.FAILED, at, failure))
    return settled(job.noted(at, "task start not for this node", request.node, task=task.name), at)


def lost(job: Job, event: Lost, timing: Timing) -> Job:
    """Take in that no answer came: the node counts as unreachable, and the call is due again after a pause."""
    request = event.request
    call = call_of(job, request)
    due = event.at + timing.retry(call.tries - 1, job.id, request)
    if isinstance(request, StartTaskAt):
        maybe_there = event.delivered  # it is sent again only after the node did not know it
    else:
        maybe_there = event.delivered or call.tries > 1 or isinstance(request, StopAt)
    state = CallState.LOST if maybe_there else CallState.IDLE
    job = with_call(job, request, replace(call, state=state, due_at=due, message=event.message))
    node = job.nodes[request.node]
    if node.unreachable_since is None and (job.ending is not None or is_asked(job, node)):
        job = with_node(job, replace(node, unreachable_since=event.at))
        job = job.noted(event.at, "unreachable", request.node, message=event.message)
    if isinstance(request, CreateAt | StartAt) and job.ending is None:
        detail = {"tries": call.tries, "next": due.isoformat(), "message": event.message}
        job = job.noted(event.at, NAMES[type(request)] + " without an answer", request.node, **detail)
    return job


def delayed(job: Job, event: Delayed) -> Job:
    """Move the claim of a request to the moment at which it is sent, or take it back where nobody wants it now."""
    request = event.request
    if not is_claimed(job, request, event.claimed):
        return job
    call = call_of(job, request)
    over = job.ending is not None
    if isinstance(request, StartTaskAt):
        task = job.tasks[request.task]
        over = over or task.ending is not None or task.again_from is not None
    if over:  # it never left this node
        return with_call(job, request, replace(call, state=CallState.IDLE, sent_at=None, tries=call.tries - 1))
    return with_call(job, request, replace(call, sent_at=event.at))


def is_claimed(job: Job, request: Request, at: datetime) -> bool:
    """Say whether a request is still the one that was claimed at that moment, unanswered and not made anew."""
    if isinstance(request, TaskRequest) and not of_this_attempt(job, request):
        return False
    call = call_of(job, request)
    return call.state is CallState.SENT and call.sent_at == at


def unknown_there(job: Job, event: UnknownThere) -> Job:
    """Take in that a node does not know a task it was told to start: it is told again, a few times."""
    request = event.request
    job = with_reached(job, request.node)
    part = job.tasks[request.task].nodes[request.node]
    part = replace(part, unknowns=part.unknowns + 1)
    if job.tasks[request.task].ending is not None or job.tasks[request.task].again_from is not None:
        if stopping.is_there(part):
            return _failed_part(job, request.task, part, Failure("TASK_UNKNOWN", "forgotten there"), event.at)
        return with_part(job, request.task, replace(part, start=Call(tries=part.start.tries), poll=Call()))
    if part.unknowns >= _MAX_UNKNOWNS:
        text = f"the node was told {part.unknowns} times to start the task and does not know it"
        failure = Failure("TASK_UNKNOWN", text)
        return _failed_part(job, request.task, part, failure, event.at)
    part = replace(part, start=replace(part.start, state=CallState.IDLE, due_at=event.at), poll=Call())
    job = with_part(job, request.task, part)
    return job.noted(event.at, "task unknown there, starting again", request.node, task=request.task)


def _failed_part(job: Job, name: str, part: NodeTask, failure: Failure, at: datetime) -> Job:
    """Count a node's part as failed although the node does not say so itself."""
    roles = {r: s if ended(TASK, s) else TaskStatus.FAILED for r, s in part.roles.items()}
    job = with_part(job, name, replace(part, roles=roles, heard_at=at))
    task = job.tasks[name]
    if task.failure is None:
        failure = stopping.cause(job, task, replace(failure, node=part.node, task=name))
        job = with_task(job, replace(task, failure=failure))
    return job
