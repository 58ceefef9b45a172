"""What the scheduling node does next, and how an event changes a job.

`agenda` says what there is to do and when; `plan` is the part that is due. `apply` is the only way a job
changes. `step` does both in one step: it marks everything due as sent and returns the requests to make, so
that storing its result is the claim, and two planners on one store never make a request twice.

Three rules keep a task from starting twice: the intent is recorded before the call; a start without a
response is followed by a poll, not by a second start; and the poll is sent only after the call's own
deadline, when the start can no longer be on its way.
"""

from datetime import datetime, timedelta
from typing import TypeVar, assert_never

from gateway.domain import approval, models, quorum, rerun, reservations, retries
from gateway.domain.approval import ApprovalReported
from gateway.domain.job import Job, NodeJob, NodeTask, Suspension, Task
from gateway.domain.scheduling import messages
from gateway.domain.scheduling.agenda import (
    agenda,
    call_of,
    is_claimed,
    needs_stop,
    of_this_attempt,
    with_call,
)
from gateway.domain.spec import UNCERTAIN, Call, CallState, Ending, Failure, NodeId, changed, moment
from gateway.domain.states import (
    JOB,
    TASK,
    JobStatus,
    Outcome,
    TaskStatus,
    ended,
    may,
    move,
    replace,
)
from gateway.domain.timeouts import NOW, Timing, expiry

_MAX_UNKNOWNS = 5
_MAX_DENIALS = 10


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
    requests: list[messages.Request] = []
    commands = plan(job, now, timing)
    if any(isinstance(command, messages.Decision) for command in commands):
        for command in commands:
            job = _decided(job, command, now)
        job = advance(job, now)
        commands = plan(job, now, timing)  # again: after a decision to end, only stops are due
    for request in commands:
        if not isinstance(request, messages.Request):
            continue
        job = with_call(job, request, call_of(job, request).sent(now))
        if isinstance(request, messages.StartTaskAt) and job.tasks[request.task].started_at is None:
            job = job.with_task(replace(job.tasks[request.task], started_at=now))
        requests.append(request)
    return advance(job, now), requests


def _decided(
    job: Job,
    command: messages.Command,
    now: datetime,
) -> Job:
    match command:
        case messages.GiveUp():
            return _given_up(job, command.node, now)
        case messages.Expire() if job.ending is None:
            return approval.silent(job, command.node, now)
        case retries.TryAgain() if job.ending is None:
            return retries.begun_again(job, command.task, now)
        case retries.TimeOut() if job.ending is None and command.task:
            return retries.timed_out(job, command.task, now)
        case retries.TimeOut() if job.ending is None:
            return _ended_as(job, retries.job_timed_out(job, now))
        case _:
            return job


def apply(
    job: Job,
    event: messages.Event,
    timing: Timing = Timing(),
) -> Job:
    """Return the job after the event. A late, repeated or unknown one changes only the timeline."""
    if isinstance(event, messages.Response) and not _awaited(job, event):
        job = job.noted(
            event.at, "late response ignored", event.request.node, request=str(event.request)
        )
        return advance(job, event.at)
    match event:
        case messages.Accepted():
            job = _accepted(job, event, timing)
        case ApprovalReported():
            job = approval.confirmed(job, event)
        case messages.Refused():
            job = _refused(job, event, timing)
        case messages.Lost():
            job = _lost(job, event, timing)
        case messages.Delayed():
            job = _delayed(job, event)
        case messages.TaskUnknown():
            job = _unknown_there(job, event)
        case messages.TaskReported():
            job = _reported(job, event, timing)
        case messages.RoleNotPlayed():
            job = _not_played(job, event)
        case messages.Freed():
            node = reservations.freed(job, event.node, event.at)
            if node is not None:
                job = job.with_node(node).noted(event.at, "resources free", event.node)
        case messages.StopRequested():
            if job.ending is None and not (event.if_waiting and job.status is JobStatus.RUNNING):
                failure = Failure(event.reason, event.message or f"stopped by {event.by}")
                outcome = Outcome.STOPPED if event.reason == "STOPPED" else Outcome.FAILED
                job = _ended_as(job, Ending(outcome, event.at, failure, event.by))
        case messages.TaskStopRequested():
            job = retries.stop(job, event.task, event.by, event.at, event.message)
        case messages.SuspendRequested():
            if job.ending is None and (job.suspended is None) is event.on:
                job = replace(job, suspended=Suspension(event.by, event.at) if event.on else None)
                job = job.noted(event.at, "suspended" if event.on else "resumed", event.by)
        case messages.ParametersAgreed(one, after):
            if (
                job.ending is None
                and len(job.amendments) == after
                and all(job.tasks[name].amendable for name in one.tasks)
            ):
                job = replace(job, amendments=(*job.amendments, one))
                version, tasks = len(job.amendments), list(one.tasks)
                job = job.noted(
                    one.at,
                    "new parameters",
                    one.by,
                    version=version,
                    tasks=tasks,
                    reason=one.reason,
                )
        case _:
            assert_never(event)
    return advance(job, event.at)


# What follows from what is known: ready, running, a task's state, the end.


def advance(job: Job, at: datetime) -> Job:
    """Apply every transition that follows."""
    if ended(JOB, job.status):
        return job
    for name in job.tasks:
        task = job.tasks[name]
        if task.ending is not None or not ended(TASK, task.status):
            job = _advance_task(job, task, at)
    if job.ending is None:
        job = _advance_job(job, at)
    if job.ending is None:
        for node in job.active:  # silence counts only while a request to a node is due
            if node.unreachable_since is not None and not _is_asked(job, node):
                job = job.with_node(replace(node, unreachable_since=None))
    elif all(map(_quiet, job.nodes.values())) and models.may_conclude(job, at):
        final = JobStatus.REJECTED if job.status is JobStatus.PENDING else JobStatus.FINISHED
        tasks = {name: retries.closed(job, task, at) for name, task in job.tasks.items()}
        outcome = job.ending.outcome
        job = replace(
            job,
            status=move(JOB, job.status, final),
            outcome=outcome,
            tasks=tasks,
            ended_at=at,
        )
        job = job.noted(at, f"job {final}", outcome=outcome)
    return job


def _advance_task(
    job: Job,
    task: Task,
    at: datetime,
) -> Job:
    known, task = task, retries.stopped(task)
    job = job if task is known else job.with_task(task)
    new = task.reported
    if (
        task.again_from is not None
        or not task.nodes
        or new is task.status
        or not may(TASK, task.status, new)
    ):
        return job
    if new is TaskStatus.FAILED and retries.is_tried_again(job, task):
        return retries.set_back(job, task, at)
    task = replace(
        task, status=move(TASK, task.status, new), ended_at=at if ended(TASK, new) else None
    )
    if new is TaskStatus.FAILED and task.failure is None:
        task = replace(task, failure=retries.cause(job, task, Failure("FAILED", task=task.name)))
    detail = {**(task.failure.as_dict() if task.failure else {}), "task": task.name}
    job = job.with_task(task).noted(at, f"task {new}", **detail)
    if new is TaskStatus.FAILED and job.ending is None and task.ending is None:
        # a party may end its own part of a job that is being stopped before the stop reaches this node
        stopped = task.failure is not None and task.failure.reason == "STOPPED"
        ending = Ending(Outcome.STOPPED if stopped else Outcome.FAILED, at, task.failure)
        job = quorum.tolerated(job, task, at) or _ended_as(job, ending)
    return job


def _advance_job(job: Job, at: datetime) -> Job:
    for node in job.active:
        if job.ending is None and (failure := _denial(node)) is not None:
            job = _without(job, node, failure, at)
    if job.ending is not None:
        return job
    nodes = job.active
    if job.status is JobStatus.PENDING and all(
        n.create.state is CallState.OK and not n.decides for n in nodes
    ):
        taken_over = rerun.agreed(job, at)
        if isinstance(taken_over, Failure):
            return _ended_as(job, Ending(Outcome.REJECTED, at, taken_over))
        job = taken_over
        left = (task for task in job.tasks.values() if not ended(TASK, task.status))
        ready = {
            task.name: replace(task, status=move(TASK, task.status, TaskStatus.READY))
            for task in left
        }
        job = replace(
            job, status=move(JOB, job.status, JobStatus.READY), tasks={**job.tasks, **ready}
        )
        job = job.noted(at, "job READY")
    if job.status is JobStatus.READY and all(n.start.state is CallState.OK for n in nodes):
        job = replace(job, status=move(JOB, job.status, JobStatus.RUNNING), started_at=at).noted(
            at, "job RUNNING"
        )
    ending = retries.ending_by_tasks(job, at)
    return job if ending is None else _ended_as(job, ending)


def _denial(node: NodeJob) -> Failure | None:
    """Return why a node takes no part; None while it may."""
    for call in (node.create, node.start, node.reservation.apply):
        if call.state is CallState.REFUSED:
            return Failure(call.reason, call.message, node.node)
    if node.consent is not None and node.consent.status is JobStatus.REJECTED:
        return Failure(node.create.reason, node.create.message, node.node)
    return None


def _without(
    job: Job,
    node: NodeJob,
    failure: Failure,
    at: datetime,
) -> Job:
    """Go on without a node that takes no part, or end the job with the state of every party."""
    if (smaller := quorum.exclude(job, node.node, failure, at)) is not None:
        return smaller
    if job.status is JobStatus.PENDING:
        return _ended_as(job, Ending(Outcome.REJECTED, at, failure))
    text = f"not every node started the job: {quorum.in_words(job)}"
    reason = failure.reason if failure.reason == reservations.CANNOT_SCHEDULE else "FAILED_TO_RUN"
    return _ended_as(job, Ending(Outcome.FAILED, at, Failure(reason, text, node.node)))


def _ended_as(job: Job, ending: Ending) -> Job:
    """Record the decision that the job ends; its stops are due from then on."""
    detail = ending.failure.as_dict() if ending.failure else {}
    return replace(job, ending=ending).noted(
        ending.at, f"ending as {ending.outcome}", ending.by, failure=detail
    )


def _quiet(node: NodeJob) -> bool:
    """Whether the end need not wait for this node: it is stopped, has nothing of the job, or does not respond."""
    return (
        not needs_stop(node)
        or node.stop.completed
        or node.stop.state is CallState.LOST
        or (node.unreachable_since is not None and node.create.state is not CallState.SENT)
    )


# A node that does not respond, and one that responds again.


def _is_asked(job: Job, node: NodeJob) -> bool:
    """Whether a request to the node is under way, or comes next.

    Its part of a task may be over while another party's runs for hours, the job may be suspended, or wait for
    resources elsewhere.
    """
    commands = (
        due.command for due in agenda(job, Timing())
    )  # with any timing: when it is due does not matter
    asked = any(
        isinstance(command, messages.Request) and command.node == node.node for command in commands
    )
    return asked or reservations.is_asked(job, node)


def _with_reached(job: Job, node: NodeId) -> Job:
    record = job.nodes[node]
    return (
        job
        if record.unreachable_since is None
        else job.with_node(replace(record, unreachable_since=None))
    )


R = TypeVar("R", NodeJob, NodeTask)


def reached(job: Job, node: NodeId) -> Job:
    """Return the job with every unanswered call to a node due now: it is reachable again."""
    known = job.nodes.get(node)
    if known is None:
        return job
    if (soon := _hurried(known, "create", "start", "stop")) is not known:
        job = job.with_node(soon)
    for task in job.tasks.values():
        part = task.nodes.get(node)
        if part is not None and (sooner := _hurried(part, "start", "poll", "stop")) is not part:
            job = job.with_part(task.name, sooner)
    return job


def _hurried(record: R, *calls: str) -> R:
    for call in calls:
        record = changed(record, call, Call.hurried)
    return record


def _given_up(
    job: Job,
    node: NodeId,
    now: datetime,
) -> Job:
    """Draw the consequence of a node's silence: it is left out where that is allowed, or the job ends."""
    record = job.nodes[node]
    since = record.unreachable_since or now
    if job.status is JobStatus.RUNNING:
        failure = Failure("UNREACHABLE", f"no answer since {moment(since)}", node)
        return (
            job if job.ending is not None else _ended_as(job, Ending(Outcome.FAILED, now, failure))
        )
    path = "create" if job.status is JobStatus.PENDING else "start"
    call: Call = getattr(record, path)
    failure = Failure(call.reason or "PEER_UNREACHABLE", call.message or "no answer", node)
    record = changed(record, path, lambda call: replace(call, reason=failure.reason))
    job = job.with_node(record)
    return job if job.ending is not None else advance(_without(job, record, failure, now), now)


# Responses to requests.


def _awaited(job: Job, event: messages.Response) -> bool:
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
    if isinstance(request, messages.ReserveAt | messages.ReleaseAt) and not isinstance(
        event, messages.Lost
    ):
        return (
            call.tries > 0 and event.at >= sent_at
        )  # what was reserved then may have been released since
    match event:
        case messages.Accepted():
            return call.tries > 0
        case messages.Refused():
            return call.tries > 0 and (
                isinstance(request, messages.PollTaskAt) or not call.completed
            )
        case messages.Lost():
            return under_way
        case messages.TaskUnknown():
            started_at = job.tasks[event.request.task].nodes[request.node].start.sent_at or NOW
            return under_way and sent_at >= started_at
        case _:
            assert_never(event)


def _accepted(
    job: Job,
    event: messages.Accepted,
    timing: Timing,
) -> Job:
    """Record a positive response: the call is settled."""
    request = event.request
    job = _with_reached(job, request.node)
    call = replace(
        call_of(job, request),
        state=CallState.OK,
        due_at=None,
        reason="",
        message="",
    )
    detail: dict[str, object] = {}
    match request:
        case messages.PollTaskAt():
            part = job.tasks[request.task].nodes[request.node]
            news = part.reported_at is not None and part.reported_at >= (call.sent_at or NOW)
            call = replace(
                call, due_at=event.at + _poll_pause(job, part, timing, event.at), tries=0
            )
            part = replace(
                part,
                poll=call,
                polls=part.polls + 1,
                denials=0,
                quiet=0 if news else part.quiet + 1,
            )
            if part.start.state in (CallState.SENT, CallState.LOST):
                part = replace(part, start=replace(part.start, state=CallState.OK))
            return job.with_part(request.task, part)
        case messages.StartTaskAt():
            part = replace(job.tasks[request.task].nodes[request.node], start=call)
            first = Call(due_at=event.at + _poll_pause(job, part, timing, event.at))
            return job.with_part(request.task, replace(part, poll=first))
    job = with_call(job, request, call)
    match request:
        case messages.StopAt():
            return job
        case messages.StopTaskAt():
            detail = {"task": request.task}
        case messages.ReleaseAt():
            late = expiry(call, timing.call_deadline)
            job = job.with_node(reservations.returned(job.nodes[request.node], late))
        case messages.CreateAt() if (added := event.acceptance) is not None:
            job = job.with_node(
                changed(job.nodes[request.node], "reservation.acceptance", lambda _: added)
            )
            if added.waits:
                job = approval.waits(job, request.node, added, event.at)
            detail = {"checks": dict(added.checks)} if added.checks else {}
    return job.noted(event.at, request.name + " accepted", request.node, **detail)


def _refused(
    job: Job,
    event: messages.Refused,
    timing: Timing,
) -> Job:
    """Record a refusal. It fails a task or takes a node out of the job, unless it is retried."""
    request, failure = event.request, event.failure
    job = _with_reached(job, request.node)
    before = call_of(job, request)
    again = (
        {"tries": before.tries}
        if isinstance(request, messages.ReserveAt) and before.tries > 1
        else {}
    )
    if not again or reservations.worth_noting(before, failure, timing):
        job = job.noted(
            event.at, request.name + " refused", request.node, **failure.as_dict(), **again
        )
    call = replace(before, reason=failure.reason, message=failure.message)
    insists = failure.reason in UNCERTAIN  # perhaps it runs on
    match request:
        case messages.PollTaskAt():
            part = job.tasks[request.task].nodes[request.node]
            due = event.at + timing.retry(part.denials, job.id, request)
            call = replace(call, state=CallState.REFUSED, due_at=due)
            part = replace(part, poll=call, denials=part.denials + 1)
            if part.denials < _MAX_DENIALS:
                return job.with_part(request.task, part)
            return _failed_part(
                job, request.task, part, Failure("POLL_REFUSED", failure.message), event.at
            )
        case messages.ReleaseAt():
            return job.with_node(
                reservations.returned(job.nodes[request.node], expiry(call, timing.call_deadline))
            )
        case messages.ReserveAt() if failure.reason == reservations.BUSY:
            job = job.with_node(
                reservations.busy(job.nodes[request.node], failure, event.at, timing)
            )
            return reservations.kept(job, event.at, timing)
        case messages.StartTaskAt():
            part = job.tasks[request.task].nodes[request.node]
            part = replace(part, start=replace(call, state=CallState.REFUSED))
            return _failed_part(job, request.task, part, failure, event.at)
        case messages.StopTaskAt():
            insists = insists and before.tries < _MAX_DENIALS
        case messages.StopAt():
            pass
        case _:
            insists = False
    if insists:
        due = event.at + timing.retry(call.tries - 1, job.id, request)
        return with_call(job, request, replace(call, state=CallState.LOST, due_at=due))
    return with_call(job, request, replace(call, state=CallState.REFUSED))


def _lost(
    job: Job,
    event: messages.Lost,
    timing: Timing,
) -> Job:
    """Record that no response came: the node counts as unreachable, and the call is due again after a pause."""
    request = event.request
    call = call_of(job, request)
    due = event.at + timing.retry(call.tries - 1, job.id, request)
    maybe_there = event.delivered
    if not isinstance(
        request, messages.StartTaskAt
    ):  # which is sent again only after the node did not know it
        maybe_there = maybe_there or call.tries > 1 or isinstance(request, messages.StopAt)
    state = CallState.LOST if maybe_there else CallState.IDLE
    job = with_call(
        job,
        request,
        replace(
            call,
            state=state,
            due_at=due,
            reason=event.reason,
            message=event.message,
        ),
    )
    node = job.nodes[request.node]
    if node.unreachable_since is None and (job.ending is not None or _is_asked(job, node)):
        job = job.with_node(replace(node, unreachable_since=event.at))
        job = job.noted(event.at, "unreachable", request.node, message=event.message)
    if isinstance(request, messages.CreateAt | messages.StartAt) and job.ending is None:
        detail = {
            "tries": call.tries,
            "next": due.isoformat(),
            "message": event.message,
        }
        job = job.noted(event.at, request.name + " not answered", request.node, **detail)
    return job


def _delayed(job: Job, event: messages.Delayed) -> Job:
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
        return with_call(
            job,
            request,
            replace(
                call,
                state=CallState.IDLE,
                sent_at=None,
                tries=call.tries - 1,
            ),
        )
    return with_call(job, request, replace(call, sent_at=event.at))


# What a node says of its part of a task.


def _part_of(
    job: Job,
    task_id: str,
    node: NodeId,
) -> tuple[Task, NodeTask] | None:
    task = next((t for t in job.tasks.values() if t.task_id == task_id), None)
    return (task, task.nodes[node]) if task is not None and node in task.nodes else None


def _not_played(job: Job, event: messages.RoleNotPlayed) -> Job:
    """Take a role out of a node's part of a task, as the node does not play it there."""
    found = _part_of(job, event.task_id, event.node)
    if found is None or event.role not in found[1].roles or len(found[1].roles) == 1:
        return job
    task, part = found
    roles = {role: status for role, status in part.roles.items() if role != event.role}
    job = job.with_part(task.name, replace(part, roles=roles))
    return job.noted(event.at, "role not in this task", event.node, task=task.name, role=event.role)


def _reported(
    job: Job,
    event: messages.TaskReported,
    timing: Timing,
) -> Job:
    """Record the state of a task at a node. A transition that the table does not allow is late and ignored."""
    found = _part_of(job, event.task_id, event.node)
    role = event.role.partition(".")[0]
    if found is None or (role and role not in found[1].roles) or not found[1].start.tries:
        return job.noted(
            event.at, "report ignored", event.node, task=event.task_id, role=event.role
        )
    task, part = found
    job = _with_reached(job, event.node)
    if event.pushed and not job.nodes[event.node].pushes:
        job = job.with_node(replace(job.nodes[event.node], pushes=True))
    late = {"task": task.name, "status": event.status}
    if ended(JOB, job.status):
        return job.noted(event.at, "late report ignored", event.node, **late)
    roles = dict(part.roles)
    for name in (role,) if role else part.roles:
        if may(TASK, roles[name], event.status):
            roles[name] = event.status
        elif roles[name] is not event.status:
            job = job.noted(event.at, "late report ignored", event.node, **late)
    if roles == part.roles:
        return job
    state = part.start.state
    start = part.start if state is CallState.REFUSED else replace(part.start, state=CallState.OK)
    part = replace(
        part,
        roles=roles,
        reported_at=event.at,
        polls=0,
        start=start,
    )
    if part.poll.state is not CallState.SENT:
        part = replace(
            part,
            poll=replace(part.poll, due_at=event.at + _poll_pause(job, part, timing, event.at)),
        )
    job = job.with_part(task.name, part)
    job = job.noted(
        event.at,
        "status reported",
        event.node,
        task=task.name,
        role=role,
        status=event.status,
    )
    if event.status is TaskStatus.FAILED:
        failure = event.failure or Failure(
            "FAILED", "the party reports a failure without a cause; its node has the log"
        )
        job = _because(job, task.name, replace(failure, node=event.node, role=failure.role or role))
    return job


def _poll_pause(
    job: Job,
    part: NodeTask,
    timing: Timing,
    at: datetime,
) -> timedelta:
    """Return the pause before the next poll: it grows while nothing changes; long where states are pushed.

    That a job asks for reports is not enough: some nodes never send any. In the long run a report that was lost
    is noticed when the task was silent for twice as long, and the end of one that is only polled a twentieth late.
    """
    silent = (at - (part.reported_at or part.start.sent_at or at)).total_seconds()
    own = part.node == job.spec.scheduler
    rarest = max(timing.poll_rarely, timing.poll_pushing)
    if job.nodes[part.node].pushes:
        pause, rarest = (
            max(timing.poll_pushing, silent),
            rarest * 10 if own else rarest,
        )  # it stores what it reports
    elif own:
        pause = max(timing.poll_pushing, silent / 20)
    else:
        pause = min(
            timing.poll_first * 2.0 ** min(part.polls, 20), max(timing.poll_max, silent / 20)
        )
    return timedelta(seconds=min(pause, rarest))


def _unknown_there(job: Job, event: messages.TaskUnknown) -> Job:
    """Record that a node does not know a task that it was to start: the start is repeated, a few times."""
    request = event.request
    job = _with_reached(job, request.node)
    task = job.tasks[request.task]
    part = task.nodes[request.node]
    part = replace(part, unknowns=part.unknowns + 1)
    if task.ending is not None or task.again_from is not None:
        if part.there:
            return _failed_part(
                job, task.name, part, Failure("TASK_UNKNOWN", "forgotten there"), event.at
            )
        return job.with_part(
            task.name, replace(part, start=Call(tries=part.start.tries), poll=Call())
        )
    if part.unknowns >= _MAX_UNKNOWNS:
        text = f"the start was sent {part.unknowns} times, and the node does not know the task"
        text += f": {event.message}" if event.message else ""
        return _failed_part(job, task.name, part, Failure("TASK_UNKNOWN", text), event.at)
    part = replace(
        part, start=replace(part.start, state=CallState.IDLE, due_at=event.at), poll=Call()
    )
    job = job.with_part(task.name, part)
    return job.noted(
        event.at,
        "task unknown there, starting again",
        request.node,
        task=task.name,
        message=event.message,
    )


def _failed_part(
    job: Job,
    name: str,
    part: NodeTask,
    failure: Failure,
    at: datetime,
) -> Job:
    """Count a node's part as failed although the node does not say so itself."""
    job = job.with_part(name, replace(part.failed(), reported_at=at))
    return _because(job, name, replace(failure, node=part.node))


def _because(
    job: Job,
    name: str,
    failure: Failure,
) -> Job:
    """Keep why a task fails; the first failure counts."""
    task = job.tasks[name]
    if task.failure is not None:
        return job
    return job.with_task(
        replace(task, failure=retries.cause(job, task, replace(failure, task=name)))
    )


def exclude(
    job: Job,
    request: messages.StartTaskAt,
    at: datetime,
) -> Job:
    """Take a node out of a task in which it has no role; it was asked as the component is unknown here."""
    task = job.tasks[request.task]
    if ended(JOB, job.status) or not of_this_attempt(job, request):
        return job.noted(at, "late response ignored", request.node, request=str(request))
    nodes = {node: part for node, part in task.nodes.items() if node != request.node}
    job = _with_reached(job, request.node).with_task(replace(task, nodes=nodes))
    if not nodes:
        failure = Failure(
            "NO_ROLE_HERE", "no node of the job has a role in this task", task=task.name
        )
        failure = retries.cause(job, task, failure)
        job = job.with_task(
            replace(job.tasks[task.name], status=TaskStatus.FAILED, failure=failure)
        )
        if job.ending is None and task.ending is None:
            job = _ended_as(job, Ending(Outcome.FAILED, at, failure))
    return advance(job.noted(at, "task start not for this node", request.node, task=task.name), at)
