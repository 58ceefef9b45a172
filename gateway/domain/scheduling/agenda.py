"""What there is to do for a job at its scheduling node, and when."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

from gateway.domain import reservations, retries
from gateway.domain.dag import ready
from gateway.domain.job import Job, NodeJob, NodeTask, Task
from gateway.domain.scheduling import messages
from gateway.domain.spec import UNCERTAIN, Call, CallState, changed
from gateway.domain.states import TASK, JobStatus, TaskStatus, ended
from gateway.domain.timeouts import NOW, Due, Timing, expiry, when_due

ToDo = Iterator[Due[messages.Command]]


def agenda(job: Job, timing: Timing) -> ToDo:
    """Yield everything there is to do, each with its earliest time."""
    if job.ending is not None:
        yield from _stops(job, timing, job.nodes.values())
        return
    yield from _stops(job, timing, [n for n in job.nodes.values() if n.excluded])
    for node in job.active:
        yield from _of_node(job, node, timing)
    if job.status is JobStatus.READY:
        yield from reservations.turns(job, timing)
    if job.status is JobStatus.RUNNING:
        yield from _tasks(job, timing)
        yield from retries.decisions(job, timing)


def _of_node(
    job: Job,
    node: NodeJob,
    timing: Timing,
) -> ToDo:
    if node.consent is not None and node.decides:  # its silence counts as a refusal
        yield Due(node.consent.until, messages.Expire(node.node))
    if job.status is JobStatus.PENDING:
        yield from when_due(node.create, messages.CreateAt(node.node), timing.call_deadline)
        if node.unreachable_since is not None and not node.create.completed:
            yield Due(
                job.created_at + timedelta(seconds=timing.create_deadline),
                messages.GiveUp(node.node),
            )
        return
    if job.status is JobStatus.READY and reservations.granted(job):
        yield from when_due(node.start, messages.StartAt(node.node), timing.call_deadline)
    if node.unreachable_since is not None:
        starting = job.status is JobStatus.READY and node.start.tries > 0
        limit = timedelta(seconds=timing.start_deadline if starting else timing.unreachable_limit)
        yield Due(node.unreachable_since + limit, messages.GiveUp(node.node))


def _tasks(job: Job, timing: Timing) -> ToDo:
    done = {t.name for t in job.tasks.values() if t.status is TaskStatus.SUCCESS}
    most = reservations.tasks_at_once(job, timing.abreast)
    for name in within(job, ready(job.spec.dag, done, done), most):
        yield from _of_task(job.tasks[name], job.suspended is not None, timing)


def within(
    job: Job,
    ready: Iterable[str],
    most: int,
) -> Iterator[str]:
    """Yield of the tasks that may run those under way, and as many more as there is capacity for.

    Tasks start in the order of the flow, at all their nodes together: no two nodes then hold different halves of
    tasks that wait for each other.
    """
    tasks = [job.tasks[name] for name in ready]
    left = most - sum(task.begun and not ended(TASK, task.status) for task in tasks)
    for task in tasks:
        if task.ending is None and not task.begun:
            left -= 1
            if left < 0:
                continue
        yield task.name


def _of_task(
    task: Task,
    suspended: bool,
    timing: Timing,
) -> ToDo:
    """Yield what there is to do for a task; while the job is suspended, nothing that begins it."""
    stopped = task.ending is not None or task.again_from is not None
    for part in task.nodes.values():
        if stopped:
            yield from _task_stop(task, part, timing)
        known = ended(TASK, part.status)
        if part.over if task.again_from is not None else known:
            continue
        start = part.start
        if start.state is CallState.IDLE:
            if not stopped and (task.begun or not suspended):
                yield Due(
                    start.due_at or NOW, messages.StartTaskAt(part.node, task.name, task.attempt)
                )
            continue
        open_roles = tuple(role for role, status in part.roles.items() if not ended(TASK, status))
        poll = messages.PollTaskAt(part.node, task.name, open_roles, task.attempt)
        after = NOW if start.state is CallState.OK else expiry(start, timing.call_deadline)
        yield from _not_before(after, when_due(part.poll, poll, timing.call_deadline, repeats=True))


def _task_stop(
    task: Task,
    part: NodeTask,
    timing: Timing,
) -> ToDo:
    """Yield the stop of a task where a start may have arrived, once that start can no longer be on its way."""
    nothing_there = part.start.state in (CallState.IDLE, CallState.REFUSED)
    if nothing_there or part.status is TaskStatus.SUCCESS or (task.ending is None and part.over):
        return
    after = NOW if part.start.state is CallState.OK else expiry(part.start, timing.call_deadline)
    stop = messages.StopTaskAt(part.node, task.name, task.attempt)
    yield from _not_before(after, when_due(part.stop, stop, timing.call_deadline))


def _stops(
    job: Job,
    timing: Timing,
    nodes: Iterable[NodeJob],
) -> ToDo:
    for node in nodes:
        last, over = node.stop.sent_at, job.ended_at
        given_up = (
            last is not None
            and over is not None
            and last - over > timedelta(seconds=timing.redeliver_for)
        )
        if given_up or node.stop.completed or not needs_stop(node):
            continue
        parts = (task.nodes[node.node] for task in job.tasks.values() if node.node in task.nodes)
        calls = (node.create, node.start, *(part.start for part in parts))
        under_way = (call for call in calls if call.state in (CallState.SENT, CallState.LOST))
        after = max((expiry(c, timing.call_deadline) for c in under_way), default=NOW)
        yield from _not_before(
            after, when_due(node.stop, messages.StopAt(node.node), timing.call_deadline)
        )


def _not_before(after: datetime, todo: ToDo) -> ToDo:
    yield from (Due(max(due.at, after), due.command) for due in todo)


def needs_stop(node: NodeJob) -> bool:
    """Whether the node may keep something of the job.

    It does not where it never got the job or refused it: unless it had agreed before, when only asked; may have
    accepted an earlier try whose response was lost; or gave a response that leaves it open.
    """
    agreed = node.consent is not None and node.consent.status is JobStatus.READY
    if node.create.state is CallState.IDLE:
        return agreed
    if node.create.state is not CallState.REFUSED:
        return True
    if node.consent is not None:
        return agreed
    return node.create.tries > 1 or node.create.reason in UNCERTAIN


# Calls: where a request is recorded in the job


def call_of(job: Job, request: messages.Request) -> Call:
    """Return the record of this request's call."""
    call: Call = attrgetter(request.call)(_record_of(job, request))
    return call


def may_wait(job: Job, request: messages.Request) -> int:
    """Return how many answers to requests of this kind, of this task where it is about one, may be stored later.

    From all but the last nothing follows; nor from the last to a task's start, at nodes that report by themselves.
    """
    about = job.tasks[request.task] if isinstance(request, messages.TaskRequest) else job
    call = attrgetter(request.call)
    open_ = [record.node for record in about.nodes.values() if call(record).state is CallState.SENT]
    report = all(job.nodes[node].pushes or node == job.spec.scheduler for node in open_)
    return len(open_) - (not (report and isinstance(request, messages.StartTaskAt)))


def with_call(
    job: Job,
    request: messages.Request,
    call: Call,
) -> Job:
    """Return the job with another record of this request's call."""
    record = changed(_record_of(job, request), request.call, lambda _: call)
    return (
        job.with_part(request.task, record)
        if isinstance(request, messages.TaskRequest)
        else job.with_node(record)
    )


def _record_of(job: Job, request: messages.Request) -> Any:
    if isinstance(request, messages.TaskRequest):
        return job.tasks[request.task].nodes[request.node]
    return job.nodes[request.node]


def of_this_attempt(job: Job, request: messages.TaskRequest) -> bool:
    """Whether a request belongs to the task's present attempt, and its node still takes part."""
    task = job.tasks[request.task]
    return request.attempt == task.attempt and request.node in task.nodes


def is_claimed(
    job: Job,
    request: messages.Request,
    at: datetime,
) -> bool:
    """Whether a request is still the one claimed at that moment, unanswered and not repeated."""
    if isinstance(request, messages.TaskRequest) and not of_this_attempt(job, request):
        return False
    call = call_of(job, request)
    return call.state is CallState.SENT and call.sent_at == at


def quiet_polls(job: Job, request: messages.PollTaskAt) -> int:
    """Return how many polls of a task have brought no news since the last one that did."""
    part = job.tasks[request.task].nodes.get(request.node)
    return part.quiet if part else 0
