"""Where a job keeps what belongs to a request, and how a copy with another record is made."""

from dataclasses import replace
from datetime import datetime
from typing import assert_never

from gateway.domain.job import Job, NodeJob, NodeTask, Task
from gateway.domain.scheduling.commands import (
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
from gateway.domain.spec import UNTOLD, Call, CallState, NodeId
from gateway.domain.states import JobStatus


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
