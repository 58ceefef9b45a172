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
            limit = timedelta(seconds=timing.create_deadline)
            yield Due(job.created_at + limit, messages.GiveUp(node.node))
        return
    if job.status is JobStatus.READY and reservations.granted(job):
        yield from when_due(node.start, messages.StartAt(node.node), timing.call_deadline)
    if node.unreachable_since is not None:
        seconds = timing.unreachable_limit
        if job.status is JobStatus.READY and node.start.tries > 0:
            seconds = timing.start_deadline
        yield Due(node.unreachable_since + timedelta(seconds=seconds), messages.GiveUp(node.node))


def _tasks(job: Job, timing: Timing) -> ToDo:
    tasks = job.tasks.values()
    done = {task.name for task in tasks if task.status is TaskStatus.SUCCESS}
    ready_tasks = ready(job.spec.dag, done, done)
    is_suspended = job.suspended is not None
    for name in within(job, ready_tasks, reservations.tasks_at_once(job, timing.abreast)):
        yield from _of_task(job.tasks[name], is_suspended, timing)


def within(
    job: Job,
    ready: Iterable[str],
    most: int,
) -> Iterator[str]:
    """Yield the tasks under way, and as many more of those that may run as there is capacity for.

    Tasks start in the order of the flow, at all their nodes together: no two nodes then hold
    different halves of tasks that wait for each other.
    """
    tasks = [job.tasks[name] for name in ready]
    under_way = [task for task in tasks if task.begun and not ended(TASK, task.status)]
    capacity = most - len(under_way)
    for task in tasks:
        is_new = task.ending is None and not task.begun
        if is_new:
            capacity -= 1
        if not is_new or capacity >= 0:
            yield task.name


def _of_task(
    task: Task,
    suspended: bool,
    timing: Timing,
) -> ToDo:
    """Yield the requests about a task; while the job is suspended, none that begins it."""
    is_stopped = task.ending is not None or task.again_from is not None
    may_start = not is_stopped and (task.begun or not suspended)
    for part in task.nodes.values():
        if is_stopped:
            yield from _task_stop(task, part, timing)
        is_over = ended(TASK, part.status) if task.again_from is None else part.over
        if is_over:
            continue
        if part.start.state is not CallState.IDLE:
            yield from _task_poll(task, part, timing)
        elif may_start:
            start = messages.StartTaskAt(part.node, task.name, task.attempt)
            yield Due(part.start.due_at or NOW, start)


def _task_poll(
    task: Task,
    part: NodeTask,
    timing: Timing,
) -> ToDo:
    open_roles = tuple(role for role, status in part.roles.items() if not ended(TASK, status))
    poll = messages.PollTaskAt(part.node, task.name, open_roles, task.attempt)
    polls = when_due(part.poll, poll, timing.call_deadline, repeats=True)
    yield from _not_before(_arrived_by(part, timing), polls)


def _task_stop(
    task: Task,
    part: NodeTask,
    timing: Timing,
) -> ToDo:
    """Yield the stop of a task where a start may have arrived, once it can no longer be on its way."""
    if part.start.state in (CallState.IDLE, CallState.REFUSED):
        return
    if part.status is TaskStatus.SUCCESS or (task.ending is None and part.over):
        return
    stop = messages.StopTaskAt(part.node, task.name, task.attempt)
    stops = when_due(part.stop, stop, timing.call_deadline)
    yield from _not_before(_arrived_by(part, timing), stops)


def _arrived_by(part: NodeTask, timing: Timing) -> datetime:
    """Return when the start of a node's part can no longer be on its way."""
    if part.start.state is CallState.OK:
        return NOW
    return expiry(part.start, timing.call_deadline)


def _stops(
    job: Job,
    timing: Timing,
    nodes: Iterable[NodeJob],
) -> ToDo:
    """Yield the stop of the job at nodes, once no other call to them can be on its way."""
    for node in nodes:
        if node.stop.completed or not needs_stop(node) or _is_given_up(job, node, timing):
            continue
        calls = [node.create, node.start]
        for task in job.tasks.values():
            if node.node in task.nodes:
                calls.append(task.nodes[node.node].start)
        after = NOW
        for call in calls:
            if call.state in (CallState.SENT, CallState.LOST):
                after = max(after, expiry(call, timing.call_deadline))
        stops = when_due(node.stop, messages.StopAt(node.node), timing.call_deadline)
        yield from _not_before(after, stops)


def _is_given_up(
    job: Job,
    node: NodeJob,
    timing: Timing,
) -> bool:
    """Return whether the stop of an ended job was repeated for long enough."""
    if node.stop.sent_at is None or job.ended_at is None:
        return False
    return node.stop.sent_at - job.ended_at > timedelta(seconds=timing.redeliver_for)


def _not_before(after: datetime, todo: ToDo) -> ToDo:
    for due in todo:
        yield Due(max(due.at, after), due.command)


def needs_stop(node: NodeJob) -> bool:
    """Return whether the node may keep something of the job.

    It does not if it never got the job or refused it: unless it had agreed before, in an audit; may
    have accepted an earlier try whose response was lost; or gave a response that leaves it open.
    """
    agreed = node.consent is not None and node.consent.status is JobStatus.READY
    match node.create.state:
        case CallState.IDLE:
            return agreed
        case CallState.REFUSED if node.consent is not None:
            return agreed
        case CallState.REFUSED:
            return node.create.tries > 1 or node.create.reason in UNCERTAIN
        case _:
            return True


# ---------------------------------------------------------------- the record of a request's call


def call_of(job: Job, request: messages.Request) -> Call:
    """Return the record of this request's call."""
    call: Call = attrgetter(request.call)(_record_of(job, request))
    return call


def may_wait(job: Job, request: messages.Request) -> int:
    """Return how many responses to requests of this kind may be stored later.

    Nothing follows from all but the last; nor from the last to a task's start, at nodes that report
    by themselves. For a request about a task, only requests about the same task count.
    """
    records: Iterable[NodeJob | NodeTask] = job.nodes.values()
    if isinstance(request, messages.TaskRequest):
        records = job.tasks[request.task].nodes.values()
    call = attrgetter(request.call)
    nodes = [record.node for record in records if call(record).state is CallState.SENT]
    all_report = all(job.nodes[node].pushes or node == job.spec.scheduler for node in nodes)
    if isinstance(request, messages.StartTaskAt) and all_report:
        return len(nodes)
    return len(nodes) - 1


def with_call(
    job: Job,
    request: messages.Request,
    call: Call,
) -> Job:
    """Return the job with another record of this request's call."""
    record = changed(_record_of(job, request), request.call, lambda _: call)
    if isinstance(request, messages.TaskRequest):
        return job.with_part(request.task, record)
    return job.with_node(record)


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
    """Return the number of polls of a task without news since the last one that brought any."""
    part = job.tasks[request.task].nodes.get(request.node)
    if part is None:
        return 0
    return part.quiet
