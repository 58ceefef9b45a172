"""What there is to do for a job at its scheduling node, and when."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import assert_never

from gateway.domain import consent, quorum, reservations, retries
from gateway.domain._memo import remembered
from gateway.domain.dag import ready
from gateway.domain.job import Job, NodeJob, NodeTask, Task
from gateway.domain.scheduling.messages import (
    Command,
    CreateAt,
    Expire,
    GiveUp,
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
from gateway.domain.spec import UNTOLD, Call, CallState, NodeId
from gateway.domain.states import TASK, JobStatus, TaskStatus, ended
from gateway.domain.timeouts import NOW, Timing, expiry


def tries_of(job: Job, request: Request) -> int:
    """Return how often this request has been made."""
    return call_of(job, request).tries


def quiet_polls(job: Job, request: PollTaskAt) -> int:
    """Return how many questions about a task have brought no news since the last one that did."""
    part = job.tasks[request.task].nodes.get(request.node)
    return part.quiet if part else 0


def needs_stop(node: NodeJob) -> bool:
    """Whether the node may keep something of the job.

    It does not where it never got the job or refused it: unless it had agreed before, when it was only asked; may
    have taken it by an earlier try whose answer was lost; or gave an answer that leaves it open.
    """
    agreed = node.consent is not None and node.consent.status is JobStatus.READY
    match node.create.state:
        case CallState.IDLE:
            return agreed
        case CallState.REFUSED if node.consent is not None and not agreed:
            return False  # what it was asked it has answered with no
        case CallState.REFUSED:
            return agreed or node.create.tries > 1 or node.create.reason in UNTOLD
        case _:
            return True


def of_this_attempt(job: Job, request: TaskRequest) -> bool:
    """Whether a request belongs to the task's present attempt, and its node still takes part."""
    task = job.tasks[request.task]
    return request.attempt == task.attempt and request.node in task.nodes


def with_reached(job: Job, node: NodeId) -> Job:
    """Note that a node answers (again)."""
    record = job.nodes[node]
    if record.unreachable_since is None:
        return job
    return with_node(job, replace(record, unreachable_since=None))


def with_begun(job: Job, task: str, now: datetime) -> Job:
    """Note when the task's attempt was first sent to a node."""
    record = job.tasks[task]
    return with_task(job, replace(record, started_at=record.started_at or now))


def call_of(job: Job, request: Request) -> Call:
    """Return the record of this request's call."""
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


def with_call(job: Job, request: Request, call: Call) -> Job:
    """Return the job with another record of this request's call."""
    match request:
        case CreateAt():
            return with_node(job, replace(job.nodes[request.node], create=call))
        case HoldAt():
            node = job.nodes[request.node]
            return with_node(job, replace(node, holding=replace(node.holding, apply=call)))
        case ReturnAt():
            node = job.nodes[request.node]
            return with_node(job, replace(node, holding=replace(node.holding, give_back=call)))
        case StartAt():
            return with_node(job, replace(job.nodes[request.node], start=call))
        case StopAt():
            return with_node(job, replace(job.nodes[request.node], stop=call))
        case StartTaskAt():
            part = job.tasks[request.task].nodes[request.node]
            return with_part(job, request.task, replace(part, start=call))
        case PollTaskAt():
            part = job.tasks[request.task].nodes[request.node]
            return with_part(job, request.task, replace(part, poll=call))
        case StopTaskAt():
            part = job.tasks[request.task].nodes[request.node]
            return with_part(job, request.task, replace(part, stop=call))
        case _:
            assert_never(request)


def with_node(job: Job, node: NodeJob) -> Job:
    """Return the job with another record of one node."""
    return replace(job, nodes={**job.nodes, node.node: node})


def with_task(job: Job, task: Task) -> Job:
    """Return the job with another record of one task."""
    return replace(job, tasks={**job.tasks, task.name: task})


def with_part(job: Job, task: str, part: NodeTask) -> Job:
    """Return the job with another record of one node's part in a task."""
    record = job.tasks[task]
    return with_task(job, replace(record, nodes={**record.nodes, part.node: part}))


# How many tasks of one job are under way at once.
#
# A job of a thousand independent tasks would otherwise fill every lane and engine, and its record would be
# written for all of them at once. Tasks begin in the order of the flow, at all their nodes together, so that no
# two nodes hold different halves of what waits for each other.


def within(job: Job, ready: Iterable[str], most: int) -> Iterator[str]:
    """Yield of the tasks that may run those under way, and as many more as there is room for."""
    names = list(ready)
    room = most - sum(map(_under_way, map(job.tasks.__getitem__, names)))
    for name in names:
        task = job.tasks[name]
        if task.ending is None and not task.begun:
            room -= 1
            if room < 0:
                continue
        yield name


def _under_way(task: Task) -> bool:
    return task.begun and not ended(TASK, task.status)


@dataclass(frozen=True)
class Due:
    """A command and when it is due; `NOW` is at once."""

    at: datetime
    command: Command = field()


def agenda(job: Job, timing: Timing) -> tuple[Due, ...]:
    """Return everything there is to do, each with its earliest time."""
    return remembered(job, "_agenda", timing, lambda: tuple(_of_job(job, timing)))


def _of_job(job: Job, timing: Timing) -> Iterator[Due]:
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
            if job.status is JobStatus.READY and reservations.granted(job):
                yield from _when_due(node.start, StartAt(node.node), timing)
            if node.unreachable_since is not None:
                starting = job.status is JobStatus.READY and node.start.tries > 0
                limit = timedelta(seconds=timing.start_deadline if starting else timing.unreachable_limit)
                yield Due(node.unreachable_since + limit, GiveUp(node.node))
    if job.status is JobStatus.READY:
        yield from _holds(job, timing)
    if job.status is JobStatus.RUNNING:
        yield from _tasks(job, timing)
        for when, decision in retries.decisions(job, timing.call_deadline, timing.stop_patience):
            yield Due(when, decision)


def _holds(job: Job, timing: Timing) -> Iterator[Due]:
    for turn in reservations.turns(job):
        request = ReturnAt(turn.node) if turn.back else HoldAt(turn.node)
        for due in _when_due(turn.call, request, timing):
            yield Due(max(due.at, turn.after or NOW), request)


def _tasks(job: Job, timing: Timing) -> Iterator[Due]:
    done = {t.name for t in job.tasks.values() if t.status is TaskStatus.SUCCESS}
    most = reservations.tasks_at_once(job, timing.abreast)
    held = job.suspended is not None
    beside = "_agenda_held" if held else "_agenda"
    for name in within(job, ready(job.spec.dag, done, done), most):
        task = job.tasks[name]
        yield from remembered(task, beside, timing, lambda t=task: tuple(_of_task(t, held, timing)))  # type: ignore[misc]


def _of_task(task: Task, held: bool, timing: Timing) -> Iterator[Due]:
    """Yield what there is to do for a task; while the job is held, nothing that begins it."""
    stopped = task.ending is not None or task.again_from is not None
    for part in task.nodes.values():
        if stopped:
            yield from _task_stop(task, part, timing)
        known = part.status in (TaskStatus.SUCCESS, TaskStatus.FAILED)
        if retries.over(part) if task.again_from is not None else known:
            continue
        start = part.start
        if start.state is CallState.IDLE:
            if not stopped and (task.begun or not held):
                yield Due(start.due_at or NOW, StartTaskAt(part.node, task.name, task.attempt))
            continue
        open_roles = tuple(
            role for role, status in part.roles.items() if status not in (TaskStatus.SUCCESS, TaskStatus.FAILED)
        )
        poll = PollTaskAt(part.node, task.name, open_roles, task.attempt)
        asked_late = expiry(start, timing) if start.state is not CallState.OK else NOW
        for due in _when_due(part.poll, poll, timing):
            yield Due(max(due.at, asked_late), poll)


def _task_stop(task: Task, part: NodeTask, timing: Timing) -> Iterator[Due]:
    """Yield the stop of a task where a start may have arrived, once that start can no longer be on its way."""
    nothing_there = part.start.state in (CallState.IDLE, CallState.REFUSED)
    if nothing_there or part.status is TaskStatus.SUCCESS or (task.ending is None and retries.over(part)):
        return
    after = NOW if part.start.state is CallState.OK else expiry(part.start, timing)
    for due in _when_due(part.stop, StopTaskAt(part.node, task.name, task.attempt), timing):
        yield Due(max(due.at, after), due.command)


def _stops(job: Job, timing: Timing, nodes: Iterable[NodeJob]) -> Iterator[Due]:
    for node in nodes:
        if not needs_stop(node) or node.stop.settled:
            continue
        if job.ended_at is not None and _given_up_redelivery(job, node, timing):
            continue
        under_way = (c for c in _calls_to(job, node) if c.state in (CallState.SENT, CallState.LOST))
        after = max((expiry(c, timing) for c in under_way), default=NOW)
        for due in _when_due(node.stop, StopAt(node.node), timing):
            yield Due(max(due.at, after), due.command)


def _given_up_redelivery(job: Job, node: NodeJob, timing: Timing) -> bool:
    last = node.stop.sent_at
    return (
        last is not None
        and job.ended_at is not None
        and last - job.ended_at > timedelta(seconds=timing.redeliver_for)
    )


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
            yield Due(expiry(call, timing), command)
        case CallState.OK | CallState.REFUSED:
            if isinstance(command, PollTaskAt):
                yield Due(call.due_at or NOW, command)
        case _:
            assert_never(call.state)
