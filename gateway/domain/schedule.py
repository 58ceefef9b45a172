"""What the scheduling node does next, and how news changes a job.

`agenda` says what there is to do and when; `plan` is the part that is due. `apply` is the only way a job
changes. `step` does both at once: it marks everything due as sent and returns the requests to make, so
that storing its result is the claim, and two planners on one store never make a request twice.

Three rules keep a task from starting twice: the intent is recorded before the call; a start without an
answer is followed by a question, not by a second start; and the question is asked only after the call's
own deadline, when the start can no longer be on its way.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import assert_never

from gateway.domain import abreast, consent, holding, inheriting, quorum, retrying, stopping, trained
from gateway.domain.consent import Confirmed
from gateway.domain.dag import ready
from gateway.domain.model import (
    Acceptance,
    Call,
    CallState,
    Ending,
    Failure,
    Job,
    NodeId,
    NodeJob,
    NodeTask,
    Suspension,
    Task,
)
from gateway.domain.states import JOB, TASK, JobStatus, Outcome, TaskStatus, ended, may, merge, move

NOW = datetime.min.replace(tzinfo=UTC)
"""Stands for "at once" in an agenda."""


@dataclass(frozen=True)
class Timing:
    """How long to wait for what, in seconds."""

    call_deadline: float = 12.0
    """a call without an answer counts as lost after this; longer than any client's own deadline"""
    create_deadline: float = 10.0
    """a node that cannot be reached for this long while a job is created refuses it"""
    start_deadline: float = 60.0
    """the same while a job is started"""
    unreachable_limit: float = 600.0
    """a running job whose node is silent for this long fails"""
    retry_first: float = 0.2
    retry_max: float = 10.0
    poll_first: float = 0.05
    poll_max: float = 2.0
    poll_pushing: float = 2.0
    """pause between polls of a node that reports by itself"""
    abreast: int = 64
    """tasks of one job under way at once"""
    stop_patience: float = 60.0
    """how long a failed attempt may go on at a node that has answered its stop"""
    redeliver_for: float = 86_400.0
    """how long a stop that was not acknowledged is repeated after the end"""

    def retry(self, tries: int) -> timedelta:
        return timedelta(seconds=min(self.retry_first * 2.0 ** min(tries, 20), self.retry_max))


# ---------------------------------------------------------------- commands


@dataclass(frozen=True)
class CreateAt:
    node: NodeId


@dataclass(frozen=True)
class HoldAt:
    """Have a node keep what the job needs there."""

    node: NodeId


@dataclass(frozen=True)
class ReturnAt:
    """Have a node take that back, because another one has too little free."""

    node: NodeId


@dataclass(frozen=True)
class StartAt:
    node: NodeId


@dataclass(frozen=True)
class StartTaskAt:
    node: NodeId
    task: str
    attempt: int = 0


@dataclass(frozen=True)
class PollTaskAt:
    node: NodeId
    task: str
    roles: tuple[str, ...]
    attempt: int = 0


@dataclass(frozen=True)
class StopAt:
    node: NodeId


@dataclass(frozen=True)
class StopTaskAt:
    node: NodeId
    task: str
    attempt: int = 0


@dataclass(frozen=True)
class GiveUp:
    """Not a request: the decision that a node has been silent for too long."""

    node: NodeId


@dataclass(frozen=True)
class Expire:
    """Not a request: the decision that nobody at a node agreed to the job in time."""

    node: NodeId


Request = CreateAt | HoldAt | ReturnAt | StartAt | StartTaskAt | PollTaskAt | StopAt | StopTaskAt
TaskRequest = StartTaskAt | PollTaskAt | StopTaskAt
Decision = GiveUp | Expire | retrying.TimeOut | retrying.TryAgain
Command = Request | Decision


# ---------------------------------------------------------------- events


@dataclass(frozen=True)
class Answered:
    """The node did as asked."""

    request: Request
    at: datetime
    said: Acceptance | None = None
    """beside yes, where a job was to be created"""


@dataclass(frozen=True)
class Denied:
    """The node said no."""

    request: Request
    failure: Failure
    at: datetime


@dataclass(frozen=True)
class Lost:
    """No answer came; ``delivered`` is False when the request certainly never arrived."""

    request: Request
    at: datetime
    delivered: bool
    message: str = ""


@dataclass(frozen=True)
class Delayed:
    """A request claimed then has waited until now for its turn and is sent now, if it is still wanted."""

    request: Request
    claimed: datetime
    at: datetime


@dataclass(frozen=True)
class UnknownThere:
    """The node, asked after its call's deadline, does not know the task."""

    request: PollTaskAt
    at: datetime


@dataclass(frozen=True)
class Heard:
    """News of a task at a node, from its push or from the answer to a poll."""

    task_id: str
    node: NodeId
    role: str
    """empty: all roles of that node"""
    status: TaskStatus
    at: datetime
    failure: Failure | None = None
    pushed: bool = False


@dataclass(frozen=True)
class NotPlayed:
    """The node has the task, but not in this role: it was asked because nobody here knew the component's roles."""

    task_id: str
    node: NodeId
    role: str
    at: datetime


@dataclass(frozen=True)
class Freed:
    """A node has something free again that the job waits for."""

    node: NodeId
    at: datetime


@dataclass(frozen=True)
class StopAsked:
    by: str
    at: datetime
    message: str = ""
    if_waiting: bool = False
    """leave a job alone that runs by now"""


@dataclass(frozen=True)
class SuspendAsked:
    """No further task is to start, or (``on`` False) they may again."""

    by: NodeId
    at: datetime
    on: bool = True


@dataclass(frozen=True)
class TaskStopAsked:
    """A task and everything that needs its output are to stop; what has succeeded stays as it is."""

    task: str
    by: str
    at: datetime
    message: str = ""


Event = (
    Answered
    | Confirmed
    | Denied
    | Lost
    | Delayed
    | UnknownThere
    | Heard
    | NotPlayed
    | Freed
    | StopAsked
    | TaskStopAsked
    | SuspendAsked
)


# ---------------------------------------------------------------- what is due


@dataclass(frozen=True)
class Due:
    at: datetime
    command: Command = field()


def plan(job: Job, now: datetime, timing: Timing = Timing()) -> list[Command]:
    """Return everything that should be done by now. Reads nothing else, writes nothing."""
    return [due.command for due in agenda(job, timing) if due.at <= now]


def next_due(job: Job, timing: Timing = Timing()) -> datetime | None:
    """Return when there is something to do next, or None when only news can change the job."""
    return min((due.at for due in agenda(job, timing)), default=None)


def step(job: Job, now: datetime, timing: Timing = Timing()) -> tuple[Job, list[Request]]:
    """Take every decision that is due and mark every request that is due as sent."""
    requests: list[Request] = []
    commands = plan(job, now, timing)
    if any(isinstance(command, Decision) for command in commands):
        for command in commands:
            job = _decided(job, command, now)
        job = _settle(job, now)
        commands = plan(job, now, timing)  # once more: after a decision to end, only stops are due
    for command in commands:
        match command:
            case GiveUp() | Expire() | retrying.TimeOut() | retrying.TryAgain():
                continue
            case (
                CreateAt()
                | HoldAt()
                | ReturnAt()
                | StartAt()
                | StartTaskAt()
                | PollTaskAt()
                | StopAt()
                | StopTaskAt()
            ):
                call = _call(job, command)
                sent = replace(call, state=CallState.SENT, sent_at=now, due_at=None, tries=call.tries + 1)
                job = _with_call(job, command, sent)
                if isinstance(command, StartTaskAt):
                    job = _begun(job, command.task, now)
                requests.append(command)
            case _:
                assert_never(command)
    return _settle(job, now), requests


def _decided(job: Job, command: Command, now: datetime) -> Job:
    match command:
        case GiveUp():
            return _give_up(job, command.node, now)
        case Expire() if job.ending is None:
            return consent.timed_out(job, command.node, now)
        case retrying.TryAgain() if job.ending is None:
            return retrying.begun_again(job, command.task, now)
        case retrying.TimeOut() if job.ending is None:
            if command.task:
                return retrying.timed_out(job, command.task, now)
            return _end(job, retrying.job_timed_out(job, now))
        case _:
            return job


def agenda(job: Job, timing: Timing) -> Iterator[Due]:
    """Yield everything there is to do, each with its earliest time."""
    if job.ending is not None:
        yield from _stops(job, timing, job.nodes.values())
        return
    yield from _stops(job, timing, [n for n in job.nodes.values() if n.excluded])
    yield from (Due(when, Expire(node)) for when, node in consent.expiries(job))
    for node in quorum.active(job):
        if job.status is JobStatus.PENDING:
            yield from _when_due(node.create, CreateAt(node.node), timing)
            if node.unreachable_since is not None and not node.create.settled:
                yield Due(job.created_at + timedelta(seconds=timing.create_deadline), GiveUp(node.node))
        else:
            if job.status is JobStatus.READY and holding.granted(job):
                yield from _when_due(node.start, StartAt(node.node), timing)
            if node.unreachable_since is not None:
                starting = job.status is JobStatus.READY and node.start.tries > 0
                limit = timedelta(seconds=timing.start_deadline if starting else timing.unreachable_limit)
                yield Due(node.unreachable_since + limit, GiveUp(node.node))
    if job.status is JobStatus.READY:
        yield from _holds(job, timing)
    if job.status is JobStatus.RUNNING:
        yield from _tasks(job, timing)
        for when, decision in retrying.decisions(job, timing.call_deadline, timing.stop_patience):
            yield Due(when, decision)


def _holds(job: Job, timing: Timing) -> Iterator[Due]:
    for turn in holding.turns(job):
        request = ReturnAt(turn.node) if turn.back else HoldAt(turn.node)
        for due in _when_due(turn.call, request, timing):
            yield Due(max(due.at, turn.after or NOW), request)


def _tasks(job: Job, timing: Timing) -> Iterator[Due]:
    done = {t.name for t in job.tasks.values() if t.status is TaskStatus.SUCCESS}
    most = holding.tasks_at_once(job, timing.abreast)
    for name in abreast.within(job, ready(job.spec.dag, done, done), most):
        task = job.tasks[name]
        stopped = task.ending is not None or task.again_from is not None
        for part in task.nodes.values():
            if stopped:
                yield from _task_stop(task, part, timing)
            known = part.status in (TaskStatus.SUCCESS, TaskStatus.FAILED)
            if retrying.over(part) if task.again_from is not None else known:
                continue
            start = part.start
            if start.state is CallState.IDLE:
                held = job.suspended is not None and not task.begun
                if not stopped and not held:
                    yield Due(start.due_at or NOW, StartTaskAt(part.node, name, task.attempt))
                continue
            open_roles = tuple(
                role
                for role, status in part.roles.items()
                if status not in (TaskStatus.SUCCESS, TaskStatus.FAILED)
            )
            poll = PollTaskAt(part.node, name, open_roles, task.attempt)
            asked_late = _expiry(start, timing) if start.state is not CallState.OK else NOW
            for due in _when_due(part.poll, poll, timing):
                yield Due(max(due.at, asked_late), poll)


def _task_stop(task: Task, part: NodeTask, timing: Timing) -> Iterator[Due]:
    """Yield the stop of a task where a start may have arrived, once that start can no longer be on its way."""
    nothing_there = part.start.state in (CallState.IDLE, CallState.REFUSED)
    if nothing_there or part.status is TaskStatus.SUCCESS or (task.ending is None and retrying.over(part)):
        return
    after = NOW if part.start.state is CallState.OK else _expiry(part.start, timing)
    for due in _when_due(part.stop, StopTaskAt(part.node, task.name, task.attempt), timing):
        yield Due(max(due.at, after), due.command)


def _stops(job: Job, timing: Timing, nodes: Iterable[NodeJob]) -> Iterator[Due]:
    for node in nodes:
        if not _needs_stop(node) or node.stop.settled:
            continue
        if job.ended_at is not None and _given_up_redelivery(job, node, timing):
            continue
        under_way = (c for c in _calls_to(job, node) if c.state in (CallState.SENT, CallState.LOST))
        after = max((_expiry(c, timing) for c in under_way), default=NOW)
        for due in _when_due(node.stop, StopAt(node.node), timing):
            yield Due(max(due.at, after), due.command)


def _given_up_redelivery(job: Job, node: NodeJob, timing: Timing) -> bool:
    last = node.stop.sent_at
    return (
        last is not None
        and job.ended_at is not None
        and last - job.ended_at > timedelta(seconds=timing.redeliver_for)
    )


def _needs_stop(node: NodeJob) -> bool:
    """A node that never got the job, or refused it, holds nothing that a stop could end."""
    never_sent = node.create.state is CallState.IDLE
    return not never_sent and node.create.state is not CallState.REFUSED


def _calls_to(job: Job, node: NodeJob) -> Iterator[Call]:
    yield node.create
    yield node.start
    for task in job.tasks.values():
        if part := task.nodes.get(node.node):
            yield part.start


def _when_due(call: Call, command: Command, timing: Timing) -> Iterator[Due]:
    match call.state:
        case CallState.IDLE | CallState.LOST:
            yield Due(call.due_at or NOW, command)
        case CallState.SENT:
            yield Due(_expiry(call, timing), command)
        case CallState.OK | CallState.REFUSED:
            if isinstance(command, PollTaskAt):
                yield Due(call.due_at or NOW, command)
        case _:
            assert_never(call.state)


def _expiry(call: Call, timing: Timing) -> datetime:
    """After this a call without a recorded answer can no longer be on its way."""
    if call.sent_at is None:
        return NOW
    return call.sent_at + timedelta(seconds=timing.call_deadline)


# ---------------------------------------------------------------- what news changes


def apply(job: Job, event: Event, timing: Timing = Timing()) -> Job:
    """Return the job after the event. News that is late, repeated or foreign changes nothing but the timeline."""
    match event:
        case Answered() | Denied() | Lost() | UnknownThere() if not _awaited(job, event):
            job = job.noted(event.at, "late answer ignored", event.request.node, request=str(event.request))
        case Answered():
            job = _answered(job, event, timing)
        case Confirmed():
            job = consent.confirmed(job, event)
        case Denied():
            job = _denied(job, event, timing)
        case Lost():
            job = _lost(job, event, timing)
        case Delayed():
            job = _delayed(job, event)
        case UnknownThere():
            job = _unknown_there(job, event)
        case Heard():
            job = _heard(job, event, timing)
        case NotPlayed():
            job = _not_played(job, event)
        case Freed():
            node = holding.freed(job, event.node, event.at)
            if node is not None:
                job = _with_node(job, node).noted(event.at, "resources free", event.node)
        case StopAsked():
            if job.ending is None and not (event.if_waiting and job.status is JobStatus.RUNNING):
                failure = Failure("STOPPED", event.message or f"stopped by {event.by}")
                job = _end(job, Ending(Outcome.STOPPED, event.at, failure, event.by))
        case TaskStopAsked():
            job = stopping.ask(job, event.task, event.by, event.at, event.message)
        case SuspendAsked():
            job = _suspend(job, event)
        case _:
            assert_never(event)
    return _settle(job, event.at)


def _awaited(job: Job, event: Answered | Denied | Lost | UnknownThere) -> bool:
    """Whether the answer can still say something: its call was made, and nothing newer was learned since.

    A call that was accepted may have been made twice; that one of the two got lost, or was refused as a repeat,
    takes nothing back. The converse does: a node that accepts after all has to be stopped.
    """
    request = event.request
    if isinstance(request, TaskRequest) and not _of_this_attempt(job, request):
        return False
    call = _call(job, request)
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


def _answered(job: Job, event: Answered, timing: Timing) -> Job:
    request = event.request
    job = _reached(job, request.node)
    call = replace(_call(job, request), state=CallState.OK, due_at=None, reason="", message="")
    if isinstance(request, PollTaskAt):
        part = job.tasks[request.task].nodes[request.node]
        news = part.heard_at is not None and part.heard_at >= (call.sent_at or NOW)
        call = replace(call, due_at=event.at + _pause(job, part, timing), tries=0)
        part = replace(part, poll=call, polls=part.polls + 1, denials=0, quiet=0 if news else part.quiet + 1)
        if part.start.state in (CallState.SENT, CallState.LOST):
            part = replace(part, start=replace(part.start, state=CallState.OK))
        return _with_part(job, request.task, part)
    job = _with_call(job, request, call)
    if isinstance(request, CreateAt) and event.said is not None:
        job = _with_node(job, holding.accepted(job.nodes[request.node], event.said))
        if event.said.waits:
            job = consent.waits(job, request.node, event.said.within, event.at)
    if isinstance(request, ReturnAt):
        job = _with_node(job, holding.returned(job.nodes[request.node], _expiry(call, timing)))
    if isinstance(request, StartTaskAt):
        part = job.tasks[request.task].nodes[request.node]
        first = Call(due_at=event.at + _pause(job, part, timing))
        return _with_part(job, request.task, replace(part, poll=first))
    if isinstance(request, StopTaskAt):
        return job.noted(event.at, _NAMES[StopTaskAt] + " accepted", request.node, task=request.task)
    if not isinstance(request, StopAt):
        job = job.noted(event.at, _NAMES[type(request)] + " accepted", request.node)
    return job


def _denied(job: Job, event: Denied, timing: Timing) -> Job:
    request, failure = event.request, event.failure
    job = _reached(job, request.node)
    job = job.noted(event.at, _NAMES[type(request)] + " refused", request.node, **failure.as_dict())
    call = replace(_call(job, request), reason=failure.reason, message=failure.message)
    if isinstance(request, PollTaskAt):
        part = job.tasks[request.task].nodes[request.node]
        call = replace(call, state=CallState.REFUSED, due_at=event.at + timing.retry(part.denials))
        part = replace(part, poll=call, denials=part.denials + 1)
        if part.denials < _MAX_DENIALS:
            return _with_part(job, request.task, part)
        refused = Failure("POLL_REFUSED", failure.message)
        return _failed_part(job, request.task, part, refused, event.at)
    if isinstance(request, ReturnAt):
        return _with_node(job, holding.returned(job.nodes[request.node], _expiry(call, timing)))
    if isinstance(request, HoldAt) and failure.reason == holding.BUSY:
        return _with_node(job, holding.busy(job.nodes[request.node], failure, event.at))
    if isinstance(request, StopAt) and failure.reason == "INTERNAL":  # it wanted to, and could not
        return _with_call(
            job, request, replace(call, state=CallState.LOST, due_at=event.at + timing.retry(call.tries - 1))
        )
    job = _with_call(job, request, replace(call, state=CallState.REFUSED))
    if isinstance(request, StartTaskAt):
        part = job.tasks[request.task].nodes[request.node]
        job = _failed_part(job, request.task, part, failure, event.at)
    return job


def exclude(job: Job, request: StartTaskAt, at: datetime) -> Job:
    """Take a node out of a task: it was asked only because nobody here knew the component's roles."""
    task = job.tasks[request.task]
    if ended(JOB, job.status) or not _of_this_attempt(job, request):
        return job.noted(at, "late answer ignored", request.node, request=str(request))
    nodes = {node: part for node, part in task.nodes.items() if node != request.node}
    job = _with_task(_reached(job, request.node), replace(task, nodes=nodes))
    if not nodes:
        failure = Failure("NO_ROLE_HERE", "no node of the job has a role in this task", task=task.name)
        failure = stopping.cause(job, task, failure)
        job = _with_task(job, replace(job.tasks[task.name], status=TaskStatus.FAILED, failure=failure))
        if job.ending is None and task.ending is None:
            job = _end(job, Ending(Outcome.FAILED, at, failure))
    return _settle(job.noted(at, "task start not for this node", request.node, task=task.name), at)


def _lost(job: Job, event: Lost, timing: Timing) -> Job:
    request = event.request
    node = job.nodes[request.node]
    if node.unreachable_since is None:
        job = _with_node(job, replace(node, unreachable_since=event.at))
        job = job.noted(event.at, "unreachable", request.node, message=event.message)
    call = _call(job, request)
    due = event.at + timing.retry(call.tries - 1)
    if isinstance(request, StartTaskAt):
        maybe_there = event.delivered  # it is sent again only after the node did not know it
    else:
        maybe_there = event.delivered or call.tries > 1 or isinstance(request, StopAt)
    state = CallState.LOST if maybe_there else CallState.IDLE
    if isinstance(request, CreateAt | StartAt) and job.ending is None:
        detail = {"tries": call.tries, "next": due.isoformat(), "message": event.message}
        job = job.noted(event.at, _NAMES[type(request)] + " without an answer", request.node, **detail)
    return _with_call(job, request, replace(call, state=state, due_at=due, message=event.message))


def _delayed(job: Job, event: Delayed) -> Job:
    request = event.request
    if not is_claimed(job, request, event.claimed):
        return job
    call = _call(job, request)
    over = job.ending is not None
    if isinstance(request, StartTaskAt):
        task = job.tasks[request.task]
        over = over or task.ending is not None or task.again_from is not None
    if over:  # it never left this node
        return _with_call(job, request, replace(call, state=CallState.IDLE, sent_at=None, tries=call.tries - 1))
    return _with_call(job, request, replace(call, sent_at=event.at))


def is_claimed(job: Job, request: Request, at: datetime) -> bool:
    """Say whether a request is still the one that was claimed at that moment, unanswered and not made anew."""
    if isinstance(request, TaskRequest) and not _of_this_attempt(job, request):
        return False
    call = _call(job, request)
    return call.state is CallState.SENT and call.sent_at == at


def _unknown_there(job: Job, event: UnknownThere) -> Job:
    request = event.request
    job = _reached(job, request.node)
    part = job.tasks[request.task].nodes[request.node]
    part = replace(part, unknowns=part.unknowns + 1)
    if job.tasks[request.task].ending is not None or job.tasks[request.task].again_from is not None:
        if stopping.is_there(part):
            return _failed_part(job, request.task, part, Failure("TASK_UNKNOWN", "forgotten there"), event.at)
        return _with_part(job, request.task, replace(part, start=Call(tries=part.start.tries), poll=Call()))
    if part.unknowns >= _MAX_UNKNOWNS:
        text = f"the node was told {part.unknowns} times to start the task and does not know it"
        failure = Failure("TASK_UNKNOWN", text)
        return _failed_part(job, request.task, part, failure, event.at)
    part = replace(part, start=replace(part.start, state=CallState.IDLE, due_at=event.at), poll=Call())
    job = _with_part(job, request.task, part)
    return job.noted(event.at, "task unknown there, starting again", request.node, task=request.task)


def _failed_part(job: Job, name: str, part: NodeTask, failure: Failure, at: datetime) -> Job:
    """Count a node's part as failed although the node does not say so itself."""
    roles = {r: s if ended(TASK, s) else TaskStatus.FAILED for r, s in part.roles.items()}
    job = _with_part(job, name, replace(part, roles=roles, heard_at=at))
    task = job.tasks[name]
    if task.failure is None:
        failure = stopping.cause(job, task, replace(failure, node=part.node, task=name))
        job = _with_task(job, replace(task, failure=failure))
    return job


def _not_played(job: Job, event: NotPlayed) -> Job:
    task = next((t for t in job.tasks.values() if t.task_id == event.task_id), None)
    part = task.nodes.get(event.node) if task else None
    if task is None or part is None or event.role not in part.roles or len(part.roles) == 1:
        return job
    roles = {role: status for role, status in part.roles.items() if role != event.role}
    job = _with_part(job, task.name, replace(part, roles=roles))
    return job.noted(event.at, "role not in this task", event.node, task=task.name, role=event.role)


def _heard(job: Job, event: Heard, timing: Timing) -> Job:
    task = next((t for t in job.tasks.values() if t.task_id == event.task_id), None)
    part = task.nodes.get(event.node) if task else None
    role = event.role.partition(".")[0]
    if task is None or part is None or (role and role not in part.roles) or not part.start.tries:
        return job.noted(event.at, "report ignored", event.node, task=event.task_id, role=event.role)
    node = job.nodes[event.node]
    job = _reached(job, event.node)
    if event.pushed and not node.pushes:
        job = _with_node(job, replace(job.nodes[event.node], pushes=True))
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
    part = replace(part, roles=roles, heard_at=event.at, polls=0, start=start)
    if part.poll.state is not CallState.SENT:
        part = replace(part, poll=replace(part.poll, due_at=event.at + _pause(job, part, timing)))
    job = _with_part(job, task.name, part)
    job = job.noted(event.at, "heard", event.node, task=task.name, role=role, status=event.status)
    if event.status is TaskStatus.FAILED and task.failure is None:
        failure = event.failure or Failure("FAILED", "the party reports a failure")
        failure = replace(failure, node=event.node, task=task.name, role=failure.role or role)
        failure = stopping.cause(job, task, failure)
        job = _with_task(job, replace(job.tasks[task.name], failure=failure))
    return job


def _pause(job: Job, part: NodeTask, timing: Timing) -> timedelta:
    """Return how long to wait before asking again: growing while there is no news, long where news is pushed."""
    pushing = job.spec.by_callback or job.nodes[part.node].pushes or part.node == job.spec.scheduler
    if pushing:
        return timedelta(seconds=timing.poll_pushing)
    return timedelta(seconds=min(timing.poll_first * 2.0 ** min(part.polls, 20), timing.poll_max))


# ---------------------------------------------------------------- what follows by itself


def _settle(job: Job, at: datetime) -> Job:
    """Draw every conclusion that the facts allow: ready, running, a task's state, the end."""
    if ended(JOB, job.status):
        return job
    for name in job.tasks:
        task = job.tasks[name]
        if task.ending is not None or not ended(TASK, task.status):
            job = _settle_task(job, task, at)
    if job.ending is None:
        job = _settle_open(job, at)
    if job.ending is not None and all(map(_quiet, job.nodes.values())) and trained.may_conclude(job, at):
        job = _conclude(job, job.ending, at)
    return job


def _settle_task(job: Job, task: Task, at: datetime) -> Job:
    known, task = task, stopping.without_rest(retrying.called_off(task))
    if task is not known:
        job = _with_task(job, task)
    if task.again_from is not None:
        return job
    new = merge(part.status for part in task.nodes.values())
    if not task.nodes or new is task.status or not may(TASK, task.status, new):
        return job
    if new is TaskStatus.FAILED and retrying.wanted(job, task):
        return retrying.set_back(job, task, at)
    over = ended(TASK, new)
    task = replace(task, status=move(TASK, task.status, new), ended_at=at if over else None)
    if new is TaskStatus.RUNNING and task.started_at is None:
        task = replace(task, started_at=at)
    if new is TaskStatus.FAILED and task.failure is None:
        task = replace(task, failure=stopping.cause(job, task, Failure("FAILED", task=task.name)))
    detail = {**(task.failure.as_dict() if task.failure else {}), "task": task.name}
    job = _with_task(job, task).noted(at, f"task {new}", **detail)
    if new is TaskStatus.FAILED and job.ending is None and task.ending is None:
        job = quorum.tolerated(job, task, at) or _end(job, Ending(Outcome.FAILED, at, task.failure))
    return job


def _settle_open(job: Job, at: datetime) -> Job:
    for node in job.nodes.values():
        if job.ending is None and node.excluded is None and (failure := _refused(node)) is not None:
            job = _without(job, node, failure, at)
    if job.ending is not None:
        return job
    nodes = quorum.active(job)
    accepted = all(n.create.state is CallState.OK and not consent.is_open(n) for n in nodes)
    if job.status is JobStatus.PENDING and accepted:
        taken_over = inheriting.agreed(job, at)
        if isinstance(taken_over, Failure):
            return _end(job, Ending(Outcome.REJECTED, at, taken_over))
        job = taken_over
        tasks = {name: _made_ready(task) for name, task in job.tasks.items()}
        job = replace(job, status=move(JOB, job.status, JobStatus.READY), tasks=tasks).noted(at, "job READY")
    if job.status is JobStatus.READY and all(n.start.state is CallState.OK for n in nodes):
        job = replace(job, status=move(JOB, job.status, JobStatus.RUNNING), started_at=at).noted(at, "job RUNNING")
    if job.tasks and all(t.status is TaskStatus.SUCCESS for t in job.tasks.values()):
        return _end(job, Ending(Outcome.SUCCEEDED, at))
    stopped = stopping.ending_by_tasks(job, at)
    return job if stopped is None else _end(job, stopped)


def _made_ready(task: Task) -> Task:
    if ended(TASK, task.status):
        return task
    return replace(task, status=move(TASK, task.status, TaskStatus.READY))


def _refused(node: NodeJob) -> Failure | None:
    """Return why a node takes no part; None while it may."""
    for call in (node.create, node.start, node.holding.apply):
        if call.state is CallState.REFUSED:
            return Failure(call.reason, call.message, node.node)
    if node.consent is not None and node.consent.status is JobStatus.REJECTED:
        return Failure(node.create.reason, node.create.message, node.node)
    return None


def _without(job: Job, node: NodeJob, failure: Failure, at: datetime) -> Job:
    """Go on without a node that takes no part, or end the job, telling how every party stands to it."""
    if (smaller := quorum.exclude(job, node.node, failure, at)) is not None:
        return smaller
    if job.status is JobStatus.PENDING:
        return _end(job, Ending(Outcome.REJECTED, at, failure))
    text = f"not every node started the job: {quorum.in_words(job)}"
    return _end(job, Ending(Outcome.FAILED, at, Failure("FAILED_TO_RUN", text, node.node)))


def _suspend(job: Job, event: SuspendAsked) -> Job:
    if job.ending is not None or ended(JOB, job.status) or (job.suspended is not None) is event.on:
        return job
    suspended = Suspension(event.by, event.at) if event.on else None
    return replace(job, suspended=suspended).noted(event.at, "suspended" if event.on else "resumed", event.by)


def _end(job: Job, ending: Ending) -> Job:
    detail = ending.failure.as_dict() if ending.failure else {}
    return replace(job, ending=ending).noted(ending.at, f"ending as {ending.outcome}", ending.by, failure=detail)


def _quiet(node: NodeJob) -> bool:
    """Whether the end need not wait for this node: it is stopped, holds nothing, or does not answer."""
    return (
        not _needs_stop(node)
        or node.stop.settled
        or node.stop.state is CallState.LOST
        or (node.unreachable_since is not None and node.create.state is not CallState.SENT)
    )


def _conclude(job: Job, ending: Ending, at: datetime) -> Job:
    final = JobStatus.REJECTED if job.status is JobStatus.PENDING else JobStatus.FINISHED
    tasks = {name: stopping.closed(job, task, at) for name, task in job.tasks.items()}
    job = replace(job, status=move(JOB, job.status, final), outcome=ending.outcome, tasks=tasks, ended_at=at)
    return job.noted(at, f"job {final}", outcome=ending.outcome)


def _give_up(job: Job, node: NodeId, now: datetime) -> Job:
    record = job.nodes[node]
    if record.excluded is not None:
        return job
    since = record.unreachable_since or now
    if job.status is JobStatus.RUNNING:
        failure = Failure("UNREACHABLE", f"no answer since {since.isoformat()}", node)
        return job if job.ending is not None else _end(job, Ending(Outcome.FAILED, now, failure))
    creating = job.status is JobStatus.PENDING
    call = record.create if creating else record.start
    failure = Failure("PEER_UNREACHABLE", call.message or "no answer", node)
    call = replace(call, reason=failure.reason)
    record = replace(record, create=call) if creating else replace(record, start=call)
    job = _with_node(job, record)
    return job if job.ending is not None else _settle(_without(job, record, failure, now), now)


# ---------------------------------------------------------------- what the timeline tells of calls


def tries_of(job: Job, request: Request) -> int:
    """Return how often this request has been made."""
    return _call(job, request).tries


def quiet_polls(job: Job, request: PollTaskAt) -> int:
    """Return how many questions about a task have brought no news since the last one that did."""
    part = job.tasks[request.task].nodes.get(request.node)
    return part.quiet if part else 0


# ---------------------------------------------------------------- small changes

_MAX_UNKNOWNS = 5
_MAX_DENIALS = 10

_NAMES = {
    CreateAt: "create",
    HoldAt: "resources",
    ReturnAt: "return of resources",
    StartAt: "start",
    StartTaskAt: "task start",
    PollTaskAt: "task poll",
    StopAt: "stop",
    StopTaskAt: "task stop",
}


def _of_this_attempt(job: Job, request: TaskRequest) -> bool:
    task = job.tasks[request.task]
    return request.attempt == task.attempt and request.node in task.nodes


def _reached(job: Job, node: NodeId) -> Job:
    record = job.nodes[node]
    if record.unreachable_since is None:
        return job
    return _with_node(job, replace(record, unreachable_since=None))


def _begun(job: Job, task: str, now: datetime) -> Job:
    record = job.tasks[task]
    return _with_task(job, replace(record, started_at=record.started_at or now))


def _call(job: Job, request: Request) -> Call:
    match request:
        case CreateAt():
            return job.nodes[request.node].create
        case HoldAt():
            return job.nodes[request.node].holding.apply
        case ReturnAt():
            return job.nodes[request.node].holding.give_back
        case StartAt():
            return job.nodes[request.node].start
        case StopAt():
            return job.nodes[request.node].stop
        case StartTaskAt():
            return job.tasks[request.task].nodes[request.node].start
        case PollTaskAt():
            return job.tasks[request.task].nodes[request.node].poll
        case StopTaskAt():
            return job.tasks[request.task].nodes[request.node].stop
        case _:
            assert_never(request)


def _with_call(job: Job, request: Request, call: Call) -> Job:
    match request:
        case CreateAt():
            return _with_node(job, replace(job.nodes[request.node], create=call))
        case HoldAt():
            node = job.nodes[request.node]
            return _with_node(job, replace(node, holding=replace(node.holding, apply=call)))
        case ReturnAt():
            node = job.nodes[request.node]
            return _with_node(job, replace(node, holding=replace(node.holding, give_back=call)))
        case StartAt():
            return _with_node(job, replace(job.nodes[request.node], start=call))
        case StopAt():
            return _with_node(job, replace(job.nodes[request.node], stop=call))
        case StartTaskAt():
            part = job.tasks[request.task].nodes[request.node]
            return _with_part(job, request.task, replace(part, start=call))
        case PollTaskAt():
            part = job.tasks[request.task].nodes[request.node]
            return _with_part(job, request.task, replace(part, poll=call))
        case StopTaskAt():
            part = job.tasks[request.task].nodes[request.node]
            return _with_part(job, request.task, replace(part, stop=call))
        case _:
            assert_never(request)


def _with_node(job: Job, node: NodeJob) -> Job:
    return replace(job, nodes={**job.nodes, node.node: node})


def _with_task(job: Job, task: Task) -> Job:
    return replace(job, tasks={**job.tasks, task.name: task})


def _with_part(job: Job, task: str, part: NodeTask) -> Job:
    record = job.tasks[task]
    return _with_task(job, replace(record, nodes={**record.nodes, part.node: part}))
