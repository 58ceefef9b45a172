"""What an event changes in a job at its scheduling node: responses, reports, decisions, and what follows."""

from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar, assert_never

from gateway.domain import consent, inheritance, models, quorum, reservations, retries, stopping
from gateway.domain.job import Job, NodeJob, NodeTask, Suspension, Task
from gateway.domain.run import LocalJob, Run
from gateway.domain.scheduling import messages
from gateway.domain.scheduling.agenda import (
    agenda,
    call_of,
    needs_stop,
    of_this_attempt,
    with_call,
)
from gateway.domain.spec import UNCERTAIN, Call, CallState, Ending, Failure, NodeId
from gateway.domain.states import JOB, TASK, JobStatus, Outcome, TaskStatus, ended, may, move
from gateway.domain.timeouts import NOW, Timing, expiry


def with_reached(job: Job, node: NodeId) -> Job:
    """Note that a node responds (again)."""
    record = job.nodes[node]
    return job if record.unreachable_since is None else job.with_node(replace(record, unreachable_since=None))


def not_played(job: Job, event: messages.RoleNotPlayed) -> Job:
    """Take a role out of a node's part of a task, as the node does not play it there."""
    task = next((t for t in job.tasks.values() if t.task_id == event.task_id), None)
    part = task.nodes.get(event.node) if task else None
    if task is None or part is None or event.role not in part.roles or len(part.roles) == 1:
        return job
    roles = {role: status for role, status in part.roles.items() if role != event.role}
    job = job.with_part(task.name, replace(part, roles=roles))
    return job.noted(event.at, "role not in this task", event.node, task=task.name, role=event.role)


def reported(job: Job, event: messages.TaskReported, timing: Timing) -> Job:
    """Record the state of a task at a node. A transition that the table does not allow is late and ignored."""
    task = next((t for t in job.tasks.values() if t.task_id == event.task_id), None)
    part = task.nodes.get(event.node) if task else None
    role = event.role.partition(".")[0]
    if task is None or part is None or (role and role not in part.roles) or not part.start.tries:
        return job.noted(event.at, "report ignored", event.node, task=event.task_id, role=event.role)
    node = job.nodes[event.node]
    job = with_reached(job, event.node)
    if event.pushed and not node.pushes:
        job = job.with_node(replace(job.nodes[event.node], pushes=True))
    if ended(JOB, job.status):
        return job.noted(event.at, "late report ignored", event.node, task=task.name, status=event.status)
    roles = dict(part.roles)
    for name in (role,) if role else tuple(roles):
        if roles[name] is event.status:
            continue
        if may(TASK, roles[name], event.status):
            roles[name] = event.status
        else:
            job = job.noted(event.at, "late report ignored", event.node, task=task.name, status=event.status)
    if roles == part.roles:
        return job
    start = part.start
    if start.state in (CallState.IDLE, CallState.SENT, CallState.LOST):
        start = replace(start, state=CallState.OK)
    part = replace(part, roles=roles, reported_at=event.at, polls=0, start=start)
    if part.poll.state is not CallState.SENT:
        part = replace(part, poll=replace(part.poll, due_at=event.at + pause(job, part, timing)))
    job = job.with_part(task.name, part)
    job = job.noted(event.at, "heard", event.node, task=task.name, role=role, status=event.status)
    if event.status is TaskStatus.FAILED and task.failure is None:
        failure = event.failure or Failure("FAILED", "the party reports a failure")
        failure = replace(failure, node=event.node, task=task.name, role=failure.role or role)
        failure = stopping.cause(job, task, failure)
        job = job.with_task(replace(job.tasks[task.name], failure=failure))
    return job


def pause(job: Job, part: NodeTask, timing: Timing) -> timedelta:
    """Return the pause before the next poll: it grows while nothing changes; long where states are pushed."""
    pushing = job.spec.by_callback or job.nodes[part.node].pushes or part.node == job.spec.scheduler
    if pushing:
        return timedelta(seconds=timing.poll_pushing)
    return timedelta(seconds=min(timing.poll_first * 2.0 ** min(part.polls, 20), timing.poll_max))


R = TypeVar("R", NodeJob, NodeTask)


def reached(job: Job, node: NodeId) -> Job:
    """Return the scheduling node's job with every unanswered call to a node due now: it is reachable again."""
    known = job.nodes.get(node)
    if known is None:
        return job
    nodes, tasks = {**job.nodes, node: _hurried(known)}, dict(job.tasks)
    for name, task in job.tasks.items():
        part = task.nodes.get(node)
        if part is not None and (soon := _hurried(part)) is not part:
            tasks[name] = replace(task, nodes={**task.nodes, node: soon})
    if nodes[node] is known and all(tasks[name] is task for name, task in job.tasks.items()):
        return job
    return replace(job, nodes=nodes, tasks=tasks)


def retry_reports(local: LocalJob, node: NodeId) -> LocalJob:
    """Return a participating node's job with every report that the scheduling node did not get due now."""
    if local.spec.scheduler != node:
        return local
    runs = tuple(map(_telling, local.runs))
    return local if all(a is b for a, b in zip(runs, local.runs, strict=True)) else replace(local, runs=runs)


def _telling(run: Run) -> Run:
    call = _soon(run.reporting.call)
    return run if call is run.reporting.call else replace(run, reporting=replace(run.reporting, call=call))


def _hurried(record: R) -> R:
    changed: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Call) and (soon := _soon(value)) is not value:
            changed[field.name] = soon
    return replace(record, **changed) if changed else record


def _soon(call: Call) -> Call:
    """Return a call that was tried and got no answer as due now; any other as it is."""
    waits = call.state is CallState.LOST or (call.state is CallState.IDLE and call.tries > 0)
    return replace(call, due_at=None) if waits and call.due_at is not None else call


# A node's silence counts only while a request to it is due: its part of a task may be over while another party's
# runs for hours, the job may be suspended, or wait for resources elsewhere.


def is_asked(job: Job, node: NodeJob) -> bool:
    """Say whether a request to the node is under way, or comes next."""
    commands = (due.command for due in agenda(job, Timing()))  # with any timing: when it is due does not matter
    asked = any(isinstance(command, messages.Request) and command.node == node.node for command in commands)
    return asked or reservations.is_asked(job, node)


def forgiven(job: Job) -> Job:
    """Return the job in which no node counts as unreachable to which no request is due."""
    for node in job.active:
        if node.unreachable_since is not None and not is_asked(job, node):
            job = job.with_node(replace(node, unreachable_since=None))
    return job


def advance(job: Job, at: datetime) -> Job:
    """Apply every transition that follows: ready, running, a task's state, the end."""
    if ended(JOB, job.status):
        return job
    for name in job.tasks:
        task = job.tasks[name]
        if task.ending is not None or not ended(TASK, task.status):
            job = _advance_task(job, task, at)
    if job.ending is None:
        job = _advance_job(job, at)
    if job.ending is None:
        job = forgiven(job)
    elif all(map(_quiet, job.nodes.values())) and models.may_conclude(job, at):
        job = _conclude(job, job.ending, at)
    return job


def _advance_task(job: Job, task: Task, at: datetime) -> Job:
    if task.ending is not None:
        known, task = task, stopping.without_rest(retries.called_off(task))
        job = job if task is known else job.with_task(task)
    if task.again_from is not None:
        return job
    new = task.reported
    if not task.nodes or new is task.status or not may(TASK, task.status, new):
        return job
    if new is TaskStatus.FAILED and retries.wanted(job, task):
        return retries.set_back(job, task, at)
    over = ended(TASK, new)
    task = replace(task, status=move(TASK, task.status, new), ended_at=at if over else None)
    if new is TaskStatus.RUNNING and task.started_at is None:
        task = replace(task, started_at=at)
    if new is TaskStatus.FAILED and task.failure is None:
        task = replace(task, failure=stopping.cause(job, task, Failure("FAILED", task=task.name)))
    detail = {**(task.failure.as_dict() if task.failure else {}), "task": task.name}
    job = job.with_task(task).noted(at, f"task {new}", **detail)
    if new is TaskStatus.FAILED and job.ending is None and task.ending is None:
        job = quorum.tolerated(job, task, at) or ended_as(
            job, Ending(stopping.outcome(task.failure), at, task.failure)
        )
    return job


def _advance_job(job: Job, at: datetime) -> Job:
    for node in job.nodes.values():
        if job.ending is None and node.excluded is None and (failure := _refused(node)) is not None:
            job = _without(job, node, failure, at)
    if job.ending is not None:
        return job
    nodes = job.active
    accepted = all(n.create.state is CallState.OK and not consent.is_open(n) for n in nodes)
    if job.status is JobStatus.PENDING and accepted:
        taken_over = inheritance.agreed(job, at)
        if isinstance(taken_over, Failure):
            return ended_as(job, Ending(Outcome.REJECTED, at, taken_over))
        job = taken_over
        tasks = {name: _made_ready(task) for name, task in job.tasks.items()}
        job = replace(job, status=move(JOB, job.status, JobStatus.READY), tasks=tasks).noted(at, "job READY")
    if job.status is JobStatus.READY and all(n.start.state is CallState.OK for n in nodes):
        job = replace(job, status=move(JOB, job.status, JobStatus.RUNNING), started_at=at).noted(at, "job RUNNING")
    if job.tasks and all(t.status is TaskStatus.SUCCESS for t in job.tasks.values()):
        return ended_as(job, Ending(Outcome.SUCCEEDED, at))
    endings = [task.ending for task in job.tasks.values() if task.ending is not None]
    stopped = stopping.ending_by_tasks(job, endings, at) if endings else None
    return job if stopped is None else ended_as(job, stopped)


def _made_ready(task: Task) -> Task:
    if ended(TASK, task.status):
        return task
    return replace(task, status=move(TASK, task.status, TaskStatus.READY))


def _refused(node: NodeJob) -> Failure | None:
    """Return why a node takes no part; None while it may."""
    for call in (node.create, node.start, node.reservation.apply):
        if call.state is CallState.REFUSED:
            return Failure(call.reason, call.message, node.node)
    if node.consent is not None and node.consent.status is JobStatus.REJECTED:
        return Failure(node.create.reason, node.create.message, node.node)
    return None


def _without(job: Job, node: NodeJob, failure: Failure, at: datetime) -> Job:
    """Go on without a node that takes no part, or end the job with the state of every party."""
    if (smaller := quorum.exclude(job, node.node, failure, at)) is not None:
        return smaller
    if job.status is JobStatus.PENDING:
        return ended_as(job, Ending(Outcome.REJECTED, at, failure))
    text = f"not every node started the job: {quorum.in_words(job)}"
    reason = failure.reason if failure.reason == reservations.CANNOT_SCHEDULE else "FAILED_TO_RUN"
    return ended_as(job, Ending(Outcome.FAILED, at, Failure(reason, text, node.node)))


def with_suspension(job: Job, event: messages.SuspendRequested) -> Job:
    """Suspend or resume the start of further tasks."""
    if job.ending is not None or ended(JOB, job.status) or (job.suspended is not None) is event.on:
        return job
    suspended = Suspension(event.by, event.at) if event.on else None
    return replace(job, suspended=suspended).noted(event.at, "suspended" if event.on else "resumed", event.by)


def ended_as(job: Job, ending: Ending) -> Job:
    """Record the decision that the job ends; its stops are due from then on."""
    detail = ending.failure.as_dict() if ending.failure else {}
    return replace(job, ending=ending).noted(ending.at, f"ending as {ending.outcome}", ending.by, failure=detail)


def _quiet(node: NodeJob) -> bool:
    """Whether the end need not wait for this node: it is stopped, has nothing of the job, or does not respond."""
    return (
        not needs_stop(node)
        or node.stop.completed
        or node.stop.state is CallState.LOST
        or (node.unreachable_since is not None and node.create.state is not CallState.SENT)
    )


def _conclude(job: Job, ending: Ending, at: datetime) -> Job:
    final = JobStatus.REJECTED if job.status is JobStatus.PENDING else JobStatus.FINISHED
    tasks = {name: stopping.closed(job, task, at) for name, task in job.tasks.items()}
    job = replace(job, status=move(JOB, job.status, final), outcome=ending.outcome, tasks=tasks, ended_at=at)
    return job.noted(at, f"job {final}", outcome=ending.outcome)


def given_up(job: Job, node: NodeId, now: datetime) -> Job:
    """Draw the consequence of a node's silence: it is left out where that is allowed, or the job ends."""
    record = job.nodes[node]
    if record.excluded is not None:
        return job
    since = record.unreachable_since or now
    if job.status is JobStatus.RUNNING:
        failure = Failure("UNREACHABLE", f"no answer since {since.isoformat()}", node)
        return job if job.ending is not None else ended_as(job, Ending(Outcome.FAILED, now, failure))
    creating = job.status is JobStatus.PENDING
    call = record.create if creating else record.start
    failure = Failure("PEER_UNREACHABLE", call.message or "no answer", node)
    call = replace(call, reason=failure.reason)
    record = replace(record, create=call) if creating else replace(record, start=call)
    job = job.with_node(record)
    return job if job.ending is not None else advance(_without(job, record, failure, now), now)


_MAX_UNKNOWNS = 5
_MAX_DENIALS = 10


def awaited(job: Job, event: messages.Accepted | messages.Refused | messages.Lost | messages.TaskUnknown) -> bool:
    """Whether the response still counts: its call was made, and nothing newer is known.

    A call that was accepted may have been made twice; that one of the two got lost, or was refused as a repeat,
    takes nothing back. The converse does: a node that accepts after all has to be stopped.
    """
    request = event.request
    if isinstance(request, messages.TaskRequest) and not of_this_attempt(job, request):
        return False
    call = call_of(job, request)
    sent_at = call.sent_at or NOW
    # a late loss may be that of an earlier try, and a poll may have been sent before the last start
    under_way = call.state is CallState.SENT and event.at >= sent_at
    if isinstance(request, messages.ReserveAt | messages.ReleaseAt) and not isinstance(event, messages.Lost):
        return call.tries > 0 and event.at >= sent_at  # what was reserved then may have been released since
    match event:
        case messages.Accepted():
            return call.tries > 0
        case messages.Refused():
            return call.tries > 0 and (isinstance(request, messages.PollTaskAt) or not call.completed)
        case messages.Lost():
            return under_way
        case messages.TaskUnknown():
            started_at = job.tasks[event.request.task].nodes[request.node].start.sent_at or NOW
            return under_way and sent_at >= started_at
        case _:
            assert_never(event)


def answered(job: Job, event: messages.Accepted, timing: Timing) -> Job:
    """Record a positive response: the call is settled."""
    request = event.request
    job = with_reached(job, request.node)
    call = replace(call_of(job, request), state=CallState.OK, due_at=None, reason="", message="")
    if isinstance(request, messages.PollTaskAt):
        part = job.tasks[request.task].nodes[request.node]
        news = part.reported_at is not None and part.reported_at >= (call.sent_at or NOW)
        call = replace(call, due_at=event.at + pause(job, part, timing), tries=0)
        part = replace(part, poll=call, polls=part.polls + 1, denials=0, quiet=0 if news else part.quiet + 1)
        if part.start.state in (CallState.SENT, CallState.LOST):
            part = replace(part, start=replace(part.start, state=CallState.OK))
        return job.with_part(request.task, part)
    job = with_call(job, request, call)
    if isinstance(request, messages.CreateAt) and event.acceptance is not None:
        job = job.with_node(reservations.accepted(job.nodes[request.node], event.acceptance))
        if event.acceptance.waits:
            job = consent.waits(job, request.node, event.acceptance, event.at)
    if isinstance(request, messages.ReleaseAt):
        job = job.with_node(reservations.returned(job.nodes[request.node], expiry(call, timing.call_deadline)))
    if isinstance(request, messages.StartTaskAt):
        part = job.tasks[request.task].nodes[request.node]
        first = Call(due_at=event.at + pause(job, part, timing))
        return job.with_part(request.task, replace(part, poll=first))
    if isinstance(request, messages.StopTaskAt):
        return job.noted(event.at, request.name + " accepted", request.node, task=request.task)
    if not isinstance(request, messages.StopAt):
        acceptance = event.acceptance if isinstance(request, messages.CreateAt) else None
        detail = {"checks": dict(acceptance.checks)} if acceptance and acceptance.checks else {}
        job = job.noted(event.at, request.name + " accepted", request.node, **detail)
    return job


def denied(job: Job, event: messages.Refused, timing: Timing) -> Job:
    """Record a refusal. It fails a task or takes a node out of the job, unless it is retried."""
    request, failure = event.request, event.failure
    job = with_reached(job, request.node)
    before = call_of(job, request)
    again = {"tries": before.tries} if isinstance(request, messages.ReserveAt) and before.tries > 1 else {}
    if not again or reservations.worth_noting(before, failure, timing):
        job = job.noted(event.at, request.name + " refused", request.node, **failure.as_dict(), **again)
    call = replace(before, reason=failure.reason, message=failure.message)
    if isinstance(request, messages.PollTaskAt):
        part = job.tasks[request.task].nodes[request.node]
        call = replace(
            call, state=CallState.REFUSED, due_at=event.at + timing.retry(part.denials, job.id, request)
        )
        part = replace(part, poll=call, denials=part.denials + 1)
        if part.denials < _MAX_DENIALS:
            return job.with_part(request.task, part)
        refused = Failure("POLL_REFUSED", failure.message)
        return _failed_part(job, request.task, part, refused, event.at)
    if isinstance(request, messages.ReleaseAt):
        return job.with_node(reservations.returned(job.nodes[request.node], expiry(call, timing.call_deadline)))
    if isinstance(request, messages.ReserveAt) and failure.reason == reservations.BUSY:
        job = job.with_node(reservations.busy(job.nodes[request.node], failure, event.at, timing))
        return reservations.kept(job, event.at, timing)
    insists = isinstance(request, messages.StopAt) or (
        isinstance(request, messages.StopTaskAt) and before.tries < _MAX_DENIALS
    )
    if insists and failure.reason in UNCERTAIN:  # perhaps it runs on
        return with_call(
            job,
            request,
            replace(call, state=CallState.LOST, due_at=event.at + timing.retry(call.tries - 1, job.id, request)),
        )
    job = with_call(job, request, replace(call, state=CallState.REFUSED))
    if isinstance(request, messages.StartTaskAt):
        part = job.tasks[request.task].nodes[request.node]
        job = _failed_part(job, request.task, part, failure, event.at)
    return job


def exclude(job: Job, request: messages.StartTaskAt, at: datetime) -> Job:
    """Take a node out of a task in which it has no role; it was asked as the component is unknown here."""
    task = job.tasks[request.task]
    if ended(JOB, job.status) or not of_this_attempt(job, request):
        return job.noted(at, "late answer ignored", request.node, request=str(request))
    nodes = {node: part for node, part in task.nodes.items() if node != request.node}
    job = with_reached(job, request.node).with_task(replace(task, nodes=nodes))
    if not nodes:
        failure = Failure("NO_ROLE_HERE", "no node of the job has a role in this task", task=task.name)
        failure = stopping.cause(job, task, failure)
        job = job.with_task(replace(job.tasks[task.name], status=TaskStatus.FAILED, failure=failure))
        if job.ending is None and task.ending is None:
            job = ended_as(job, Ending(Outcome.FAILED, at, failure))
    return advance(job.noted(at, "task start not for this node", request.node, task=task.name), at)


def lost(job: Job, event: messages.Lost, timing: Timing) -> Job:
    """Record that no response came: the node counts as unreachable, and the call is due again after a pause."""
    request = event.request
    call = call_of(job, request)
    due = event.at + timing.retry(call.tries - 1, job.id, request)
    if isinstance(request, messages.StartTaskAt):
        maybe_there = event.delivered  # it is sent again only after the node did not know it
    else:
        maybe_there = event.delivered or call.tries > 1 or isinstance(request, messages.StopAt)
    state = CallState.LOST if maybe_there else CallState.IDLE
    job = with_call(job, request, replace(call, state=state, due_at=due, message=event.message))
    node = job.nodes[request.node]
    if node.unreachable_since is None and (job.ending is not None or is_asked(job, node)):
        job = job.with_node(replace(node, unreachable_since=event.at))
        job = job.noted(event.at, "unreachable", request.node, message=event.message)
    if isinstance(request, messages.CreateAt | messages.StartAt) and job.ending is None:
        detail = {"tries": call.tries, "next": due.isoformat(), "message": event.message}
        job = job.noted(event.at, request.name + " without an answer", request.node, **detail)
    return job


def delayed(job: Job, event: messages.Delayed) -> Job:
    """Move the claim of a request to the moment at which it is sent, or withdraw it where it is obsolete."""
    request = event.request
    if not is_claimed(job, request, event.claimed):
        return job
    call = call_of(job, request)
    over = job.ending is not None
    if isinstance(request, messages.StartTaskAt):
        task = job.tasks[request.task]
        over = over or task.ending is not None or task.again_from is not None
    if over:  # it never left this node
        return with_call(job, request, replace(call, state=CallState.IDLE, sent_at=None, tries=call.tries - 1))
    return with_call(job, request, replace(call, sent_at=event.at))


def is_claimed(job: Job, request: messages.Request, at: datetime) -> bool:
    """Whether a request is still the one claimed at that moment, unanswered and not repeated."""
    if isinstance(request, messages.TaskRequest) and not of_this_attempt(job, request):
        return False
    call = call_of(job, request)
    return call.state is CallState.SENT and call.sent_at == at


def unknown_there(job: Job, event: messages.TaskUnknown) -> Job:
    """Record that a node does not know a task that it was to start: the start is repeated, a few times."""
    request = event.request
    job = with_reached(job, request.node)
    part = job.tasks[request.task].nodes[request.node]
    part = replace(part, unknowns=part.unknowns + 1)
    if job.tasks[request.task].ending is not None or job.tasks[request.task].again_from is not None:
        if stopping.is_there(part):
            return _failed_part(job, request.task, part, Failure("TASK_UNKNOWN", "forgotten there"), event.at)
        return job.with_part(request.task, replace(part, start=Call(tries=part.start.tries), poll=Call()))
    if part.unknowns >= _MAX_UNKNOWNS:
        text = f"the node was told {part.unknowns} times to start the task and does not know it"
        failure = Failure("TASK_UNKNOWN", text)
        return _failed_part(job, request.task, part, failure, event.at)
    part = replace(part, start=replace(part.start, state=CallState.IDLE, due_at=event.at), poll=Call())
    job = job.with_part(request.task, part)
    return job.noted(event.at, "task unknown there, starting again", request.node, task=request.task)


def _failed_part(job: Job, name: str, part: NodeTask, failure: Failure, at: datetime) -> Job:
    """Count a node's part as failed although the node does not say so itself."""
    job = job.with_part(name, replace(part.failed(), reported_at=at))
    task = job.tasks[name]
    if task.failure is None:
        failure = stopping.cause(job, task, replace(failure, node=part.node, task=name))
        job = job.with_task(replace(task, failure=failure))
    return job
