"""The due requests and decisions of a job at its scheduling node, each with its time."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any

from gateway.domain import reservations, retries
from gateway.domain.job import Job, NodeJob, NodeTask, Task
from gateway.domain.scheduling.messages import (
    Command,
    CreateAt,
    Expire,
    GiveUp,
    PollTaskAt,
    Request,
    StartAt,
    StartTaskAt,
    StopAt,
    StopTaskAt,
    TaskRequest,
)
from gateway.domain.scheduling.reachability import gives_up_at
from gateway.domain.spec import UNCERTAIN, Call, CallState, changed
from gateway.domain.states import TASK, JobStatus, Outcome, TaskStatus, ended
from gateway.domain.timeouts import EARLIEST, Due, Timing, due_if_set, expiry, time_after, when_due

ToDo = Iterator[Due[Command]]

# For callers that use only the commands of an agenda: the timing changes nothing but their times.
_ANY_TIMING = Timing()


def agenda(job: Job, timing: Timing) -> ToDo:
    """Yield every request and decision that is open, each with its earliest time.

    Once the job has an ending, only its stops are open. A job that goes on without an excluded node
    is stopped at that node.
    """
    if job.ending is not None:
        yield from _stops(job, timing, job.nodes.values())
        return
    excluded_nodes = [node for node in job.nodes.values() if node.excluded]
    yield from _stops(job, timing, excluded_nodes)
    for node in job.active:
        yield from _of_node(job, node, timing)
    if job.status is JobStatus.READY:
        yield from reservations.next_requests(job, timing)
    if job.status is JobStatus.RUNNING:
        yield from _tasks(job, timing)
        yield from retries.decisions(job, timing)


def open_requests(job: Job) -> Iterator[Request]:
    """Yield the requests of the job that are under way or come next, without their times."""
    for due in agenda(job, _ANY_TIMING):
        if isinstance(due.command, Request):
            yield due.command


def _of_node(
    job: Job,
    node: NodeJob,
    timing: Timing,
) -> ToDo:
    """Yield the creation and the start of the job at a node, and the deadlines of the node.

    Silence counts as a refusal in two cases: the node does not report its decision by its own
    deadline, or it is unreachable for too long (`gateway.domain.scheduling.reachability`).
    """
    consent = node.pending_consent
    if consent is not None:
        yield Due(consent.until, Expire(node.node))
    if job.status is JobStatus.PENDING:
        yield from when_due(
            node.create,
            CreateAt(node.node),
            timing.call_deadline,
        )
    elif job.status is JobStatus.READY and reservations.has_all_reservations(job):
        yield from when_due(
            node.start,
            StartAt(node.node),
            timing.call_deadline,
        )
    give_up_at = gives_up_at(job, node, timing)
    yield from due_if_set(give_up_at, GiveUp(node.node))


# ---------------------------------------------------------------- tasks


def _tasks(job: Job, timing: Timing) -> ToDo:
    """Yield the requests about tasks whose inputs are complete, as many as may run in parallel."""
    is_suspended = job.suspended is not None
    limit = reservations.tasks_at_once(job, timing.abreast)
    for name in within_limit(job, limit):
        yield from _of_task(job.tasks[name], is_suspended, timing)


def within_limit(job: Job, limit: int) -> list[str]:
    """Return the tasks with complete inputs that may have requests now.

    These are the tasks that have begun, and new ones up to ``limit`` tasks under way. The limit
    counts whole tasks, not the parts at each node: otherwise one node could start its part of a
    task and another node its part of a second task, and each would wait for the other for ever.
    """
    index = job.task_index
    under_way = [name for name in index.begun if job.tasks[name].is_under_way]
    capacity = max(limit - len(under_way), 0)
    return [*index.begun, *index.startable[:capacity]]


@dataclass(frozen=True)
class _TaskAgenda:
    """The requests about one version of a task, and the arguments from which they follow."""

    suspended: bool
    timing: Timing
    todo: list[Due[Command]]


def _of_task(
    task: Task,
    suspended: bool,
    timing: Timing,
) -> list[Due[Command]]:
    """Return the requests about a task, which are kept with this version of the task.

    Most tasks stay as they are in a step of the job, so that their requests stay the same.
    """
    latest: _TaskAgenda | None = task.memo.get("agenda")
    if latest is None or latest.timing is not timing or latest.suspended is not suspended:
        todo = list(_requests_of_task(task, suspended, timing))
        latest = _TaskAgenda(suspended, timing, todo)
        task.memo["agenda"] = latest
    return latest.todo


def _requests_of_task(
    task: Task,
    suspended: bool,
    timing: Timing,
) -> ToDo:
    """Yield the requests about a task: the starts, polls and stops of its nodes' parts.

    Each node is requested to start its part, and then polled until the part is over. A task that is
    stopping is not started at further nodes. While the job is ``suspended``, no new task begins.
    """
    may_start = not task.is_stopping and (task.begun or not suspended)
    for part in task.nodes.values():
        if task.is_stopping:
            yield from _task_stop(task, part, timing)
        if _is_over(task, part):
            continue
        if part.start.state is not CallState.IDLE:
            yield from _task_poll(task, part, timing)
        elif may_start:
            start = StartTaskAt(part.node, task.name, task.attempt)
            yield from when_due(part.start, start, timing.call_deadline)


def _is_over(task: Task, part: NodeTask) -> bool:
    """Return whether a node's part needs no further start or poll.

    If the task waits for a retry, nothing of the failed attempt may be left at the node.
    """
    if task.failed_at is not None:
        return part.over
    return ended(TASK, part.status)


def _task_poll(
    task: Task,
    part: NodeTask,
    timing: Timing,
) -> ToDo:
    """Yield the next poll of a node's part, not before the part's start may have arrived.

    The poll asks for the states of the roles that have not ended. Polls are repeated even after a
    response.
    """
    open_roles = tuple(role for role, status in part.roles.items() if not ended(TASK, status))
    poll = PollTaskAt(part.node, task.name, open_roles, task.attempt)
    polls = when_due(
        part.poll,
        poll,
        timing.call_deadline,
        repeats=True,
    )
    yield from _not_before(_first_poll_at(part, timing), polls)


def _first_poll_at(part: NodeTask, timing: Timing) -> datetime:
    """Return when a node's part may be polled first.

    After a connection that broke without a response, that is the pause before a retry: the node
    often has the task. A node that does not know it then may still get the start
    (`responses.start_again`).
    """
    if part.start.state is CallState.LOST:
        return part.start.due_at or EARLIEST
    return arrived_by(part, timing)


def _task_stop(
    task: Task,
    part: NodeTask,
    timing: Timing,
) -> ToDo:
    """Yield the stop of a node's part if a start may have arrived there.

    The stop is due once the start can no longer be on its way. A part that has succeeded is not
    stopped. Of a task that is retried, no part that is over is stopped.
    """
    if part.start.state in (CallState.IDLE, CallState.REFUSED):
        return
    is_retried = task.ending is None
    if part.status is TaskStatus.SUCCESS or (is_retried and part.over):
        return
    stop = StopTaskAt(part.node, task.name, task.attempt)
    stops = when_due(part.stop, stop, timing.call_deadline)
    start_arrived_by = arrived_by(part, timing)
    yield from _not_before(start_arrived_by, stops)


def arrived_by(part: NodeTask, timing: Timing) -> datetime:
    """Return when the start of a node's part is no longer on its way; `EARLIEST` if it has arrived.

    A start without a response may arrive until its deadline, `Timing.call_deadline`, is over.
    """
    if part.start.state is CallState.OK:
        return EARLIEST
    return expiry(part.start, timing.call_deadline)


# ---------------------------------------------------------------- stops


def _stops(
    job: Job,
    timing: Timing,
    nodes: Iterable[NodeJob],
) -> ToDo:
    """Yield the stop of the job at nodes, once no creation or start can still arrive there.

    No stop is yielded for a node that does not have the job, or has ignored its stop for too long.
    """
    for node in nodes:
        if not needs_stop(node) or _is_given_up(job, node, timing):
            continue
        stops = when_due(
            node.stop,
            StopAt(node.node),
            timing.call_deadline,
        )
        last_arrival = _last_arrival(job, node, timing)
        yield from _not_before(last_arrival, stops)


def _last_arrival(
    job: Job,
    node: NodeJob,
    timing: Timing,
) -> datetime:
    """Return the time after which no creation or start can still arrive at the node.

    That concerns the job and its tasks. `EARLIEST` if each of these requests has its response.
    """
    parts = [task.nodes.get(node.node) for task in job.tasks.values()]
    task_starts = [part.start for part in parts if part is not None]
    calls = [
        node.create,
        node.start,
        *task_starts,
    ]
    arrivals = [
        expiry(call, timing.call_deadline)
        for call in calls
        if call.state in (CallState.SENT, CallState.LOST)
    ]
    return max(arrivals, default=EARLIEST)


def _is_given_up(
    job: Job,
    node: NodeJob,
    timing: Timing,
) -> bool:
    """Return whether the stop of an ended job was repeated for `Timing.redeliver_for` seconds.

    False for a job that has not ended, and for a node to which no stop was sent.
    """
    last_repetition = time_after(job.ended_at, timing.redeliver_for)
    if last_repetition is None or node.stop.sent_at is None:
        return False
    return node.stop.sent_at > last_repetition


def _not_before(after: datetime, todo: ToDo) -> ToDo:
    """Yield everything with its time; whatever is due before ``after`` is due at that time."""
    for due in todo:
        yield Due(max(due.at, after), due.command)


def needs_stop(node: NodeJob) -> bool:
    """Return whether the node may have the job, so that the job has to be stopped there.

    A node to which the creation was not sent, or which has refused it, does not have the job. There
    are three exceptions: the node has agreed in an audit or approval; it may have accepted an
    earlier try whose response was lost; or the reason of its refusal leaves open whether it has the
    job.
    """
    create = node.create
    if create.state is CallState.REFUSED and node.consent is None:
        return create.tries > 1 or create.reason in UNCERTAIN
    if create.state in (CallState.IDLE, CallState.REFUSED):
        return node.consent_status is JobStatus.READY
    return True


# ---------------------------------------------------------------- the record of a request's call


def call_of(job: Job, request: Request) -> Call:
    """Return the record of this request's call.

    Raises `KeyError` if the request's node has left the task that the request is about.
    """
    call: Call = attrgetter(request.call)(_record_of(job, request))
    return call


def max_deferred(job: Job, request: Request) -> int:
    """Return how many responses to the outstanding requests of this kind may be stored later.

    They are then stored in one write with the last outstanding response, which alone can move the
    job on and is stored immediately. For a request about a task, only the requests about the same
    task count. The responses to a task's start may all be stored later if all its nodes push their
    states, as they are then not polled soon. The end of a job that has succeeded waits for the stop
    of the scheduling node alone, whose response is stored immediately.
    """
    has_succeeded = job.ending is not None and job.ending.outcome is Outcome.SUCCEEDED
    is_own_stop = isinstance(request, StopAt) and request.node == job.spec.scheduler
    if has_succeeded and is_own_stop:
        return 0
    records: Iterable[NodeJob | NodeTask] = job.nodes.values()
    if isinstance(request, TaskRequest):
        records = job.tasks[request.task].nodes.values()
    call = attrgetter(request.call)
    nodes = [record.node for record in records if call(record).state is CallState.SENT]
    # The scheduling node's own part always pushes its states.
    polled_nodes = [
        node for node in nodes if not job.nodes[node].pushes and node != job.spec.scheduler
    ]
    if isinstance(request, StartTaskAt) and not polled_nodes:
        return len(nodes)
    return len(nodes) - 1


def with_call(
    job: Job,
    request: Request,
    call: Call,
) -> Job:
    """Return the job with ``call`` as the record of this request's call.

    Raises `KeyError` if the request's node has left the task that the request is about.
    """

    def new_call(_: Call) -> Call:
        return call

    record = changed(
        _record_of(job, request),
        request.call,
        new_call,
    )
    if isinstance(request, TaskRequest):
        return job.with_part(request.task, record)
    return job.with_node(record)


def _record_of(job: Job, request: Request) -> Any:
    """Return the record that has the request's call: a node's part in the task or in the job."""
    if isinstance(request, TaskRequest):
        return job.tasks[request.task].nodes[request.node]
    return job.nodes[request.node]


def of_this_attempt(job: Job, request: TaskRequest) -> bool:
    """Return whether a request is about the task's present attempt, at a node of the task."""
    task = job.tasks[request.task]
    return request.attempt == task.attempt and request.node in task.nodes


def is_claimed(
    job: Job,
    request: Request,
    at: datetime,
) -> bool:
    """Return whether a request that was claimed at the time ``at`` is still under way.

    False once the request has a response or was repeated. A request's call records the time of the
    claim as the time of sending.
    """
    if isinstance(request, TaskRequest) and not of_this_attempt(job, request):
        return False
    call = call_of(job, request)
    return call.state is CallState.SENT and call.sent_at == at


def quiet_polls(job: Job, request: PollTaskAt) -> int:
    """Return how many polls in a row of a node's part have brought no news.

    0 if the node does not take part in the task any more.
    """
    part = job.tasks[request.task].nodes.get(request.node)
    if part is None:
        return 0
    return part.polls_without_news
