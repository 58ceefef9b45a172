"""The reservations of a job at its nodes before it starts: at all of them, or at none.

Nodes are requested one after the other in the order of their ids, whoever schedules, so no two jobs wait for
each other. Where one is busy, what the others granted is released, and all are requested again after a pause or
when that node has capacity. A job that has waited for as long as the ageing limit releases nothing any more: else
others could always be faster at one node while it waits for another.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from operator import attrgetter

from gateway.domain.job import Job, NodeJob, Reservation
from gateway.domain.scheduling import messages
from gateway.domain.spec import Call, CallState, Failure, NodeId, moment
from gateway.domain.states import JobStatus
from gateway.domain.timeouts import NOW, Due, Timing, is_noted, when_due

BUSY = "RESOURCES_BUSY"  # reason of a node that has too little free now
CANNOT_SCHEDULE = "CANNOT_SCHEDULE"  # reason of a job whose node had too little free too often


def granted(job: Job) -> bool:
    """Return whether every node that must reserve something has done so."""
    return all(_has_granted(node) for node in _reserving_nodes(job))


def turns(job: Job, timing: Timing) -> Iterator[Due[messages.Request]]:
    """Yield the next requests while the job is READY."""
    nodes = _reserving_nodes(job)
    waiting = [node for node in nodes if _waits(node.reservation.apply)]
    releasing = [node for node in nodes if _must_release(node, waiting)]
    for node in releasing:
        release = messages.ReleaseAt(node.node)
        yield from when_due(node.reservation.give_back, release, timing.call_deadline)
    missing = [node for node in nodes if not _has_granted(node)]
    if releasing or not missing:
        return
    after = NOW
    for node in waiting:
        after = max(after, node.reservation.apply.due_at or NOW)
    request = messages.ReserveAt(missing[0].node)
    for due in when_due(missing[0].reservation.apply, request, timing.call_deadline):
        yield Due(max(due.at, after), due.command)


def is_asked(job: Job, node: NodeJob) -> bool:
    """Return whether the job waits for a reservation at this node: no other is known to be busy."""
    if job.status is not JobStatus.READY or _has_granted(node):
        return False
    nodes = _reserving_nodes(job)
    for other in nodes:
        if other.node != node.node and other.reservation.apply.reason == BUSY:
            return False
    return node in nodes


def _reserving_nodes(job: Job) -> list[NodeJob]:
    """Return the nodes that must reserve something, in the order in which they are requested."""
    nodes = [node for node in job.active if node.reservation.acceptance.holds]
    return sorted(nodes, key=attrgetter("node"))


def _has_granted(node: NodeJob) -> bool:
    return node.reservation.apply.state is CallState.OK


def _waits(call: Call) -> bool:
    """Return whether the node was busy, or did not respond, at the last request."""
    if call.state is CallState.LOST:
        return True
    return call.state is CallState.IDLE and call.sent_at is not None


def _must_release(node: NodeJob, waiting: Iterable[NodeJob]) -> bool:
    """Return whether the node granted its part in a round in which a later one has to wait."""
    if node.reservation.give_back.state in (CallState.SENT, CallState.LOST):
        return True
    granted_at = node.reservation.apply.sent_at
    if not _has_granted(node) or granted_at is None:
        return False
    for other in waiting:
        refused_at = other.reservation.apply.sent_at
        if refused_at is not None and granted_at <= refused_at:
            return True
    return False


# ---------------------------------------------------------------- what news changes


def worth_noting(
    call: Call,
    failure: Failure,
    timing: Timing,
) -> bool:
    """Whether a busy node is noted in the timeline: one that repeats itself is noted ever more rarely."""
    if timing.hold_tries or (call.reason, call.message) != (failure.reason, failure.message):
        return True
    return is_noted(call.tries)


def busy(
    node: NodeJob,
    failure: Failure,
    at: datetime,
    timing: Timing,
) -> NodeJob:
    """Record that the node has too little free. After enough tries that is a refusal."""
    reservation = node.reservation
    call = reservation.apply
    since = reservation.waiting_since or at
    if 0 < timing.hold_tries <= call.tries:
        text = f"asked {call.tries} times since {moment(since)}, the last answer: {failure.message}"
        call = replace(call, state=CallState.REFUSED, reason=CANNOT_SCHEDULE, message=text)
        return replace(node, reservation=replace(reservation, apply=call, waiting_since=since))
    seconds = min(timing.hold_first * 2.0 ** min(call.tries - 1, 20), timing.hold_most)
    freed_at = reservation.freed_at
    if freed_at is not None and call.sent_at is not None and freed_at >= call.sent_at:
        seconds = 0.0  # it has something free since the request was sent
    call = replace(
        call,
        state=CallState.IDLE,
        due_at=at + timedelta(seconds=seconds),
        reason=failure.reason,
        message=failure.message,
    )
    return replace(node, reservation=replace(reservation, apply=call, waiting_since=since))


def kept(
    job: Job,
    at: datetime,
    timing: Timing,
) -> Job:
    """Let a job that has waited long for a busy node keep what others granted: they are requested once more."""
    nodes = _reserving_nodes(job)
    waiting_since = [
        node.reservation.waiting_since for node in nodes if node.reservation.waiting_since
    ]
    if not waiting_since or at - min(waiting_since) < timedelta(seconds=timing.ageing):
        return job
    for node in nodes:
        if _has_granted(node):
            job = job.with_node(replace(node, reservation=replace(node.reservation, apply=Call())))
    return job


def returned(node: NodeJob, late: datetime) -> NodeJob:
    """Record that the node has no reservation for the job any more.

    After several tries an earlier request may still arrive until ``late``, and would release a new reservation.
    """
    again = Call(due_at=late) if node.reservation.give_back.tries > 1 else Call()
    return replace(
        node,
        reservation=Reservation(
            node.reservation.acceptance, again, waiting_since=node.reservation.waiting_since
        ),
    )


def freed(
    job: Job,
    node: NodeId,
    at: datetime,
) -> NodeJob | None:
    """Return the node, to be requested immediately as it has capacity now; None where the job does not wait."""
    record = job.nodes.get(node)
    if job.status is not JobStatus.READY or record is None:
        return None
    reservation = replace(record.reservation, freed_at=at)
    call = reservation.apply
    if call.state is CallState.SENT:
        return replace(record, reservation=reservation)
    if call.state is not CallState.IDLE or call.due_at is None or call.due_at <= at:
        return None
    return replace(record, reservation=replace(reservation, apply=replace(call, due_at=at)))


def waits_for(job: Job) -> tuple[str, datetime, datetime | None] | None:
    """Return why a READY job waits for resources, since when, and when it tries again.

    None for a job that does not wait.
    """
    if job.status is not JobStatus.READY or job.ending is not None or granted(job):
        return None
    nodes = _reserving_nodes(job)
    for node in nodes:
        call = node.reservation.apply
        if call.message and _waits(call):
            since = node.reservation.waiting_since or call.sent_at or job.created_at
            return call.message, since, call.due_at
    missing = ", ".join(node.node for node in nodes if not _has_granted(node))
    return f"is asking for resources at {missing}", job.created_at, None


# ---------------------------------------------------------------- how many tasks at the same time


def tasks_at_once(job: Job, most: int) -> int:
    """Return how many tasks of the job may be under way: the least that the job and its nodes allow."""
    bounds = [job.spec.settings.task_parallelism]
    for node in job.active:
        bounds.append(node.reservation.acceptance.tasks_at_once)
    return min([most, *(bound for bound in bounds if bound)])
