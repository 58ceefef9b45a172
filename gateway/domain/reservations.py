"""The reservations of a job at its nodes before it starts: at all of them, or at none.

Every scheduling node sends its requests to one node after the other, in the order of their ids, so
that no two jobs wait for each other. If a node is busy, the reservations at the other nodes are
released. The round begins again after a pause, or when the busy node has capacity. A job that has
waited for as long as the ageing limit keeps its reservations, or it could starve: whenever one node
has capacity, other jobs could be faster at another node.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter

from gateway.domain.job import Job, NodeJob, Reservation
from gateway.domain.scheduling import messages
from gateway.domain.spec import Call, CallState, Failure, NodeId, moment
from gateway.domain.states import JobStatus
from gateway.domain.timeouts import EARLIEST, Due, Timing, is_noted, when_due

# Reason of a node's refusal to reserve resources because too few of them are free now.
BUSY = "RESOURCES_BUSY"
# Reason of the failure of a job after a node has refused with `BUSY` too often.
CANNOT_SCHEDULE = "CANNOT_SCHEDULE"
# Largest number of doublings of the pause: enough to reach any bound in `Timing`, and too few for a
# float overflow.
_MAX_DOUBLINGS = 20


@dataclass(frozen=True)
class Shortage:
    """Why a job waits for resources, and since when."""

    message: str
    since: datetime
    # when the busy node is requested again; None while a request is under way
    next_try: datetime | None = None


def has_all_reservations(job: Job) -> bool:
    """Return whether every node that must reserve resources has done so.

    True for a job without such a node.
    """
    return not _missing_nodes(_reserving_nodes(job))


def next_requests(
    job: Job,
    timing: Timing,
) -> Iterator[Due[messages.Request]]:
    """Yield the next requests to nodes while the job is READY: releases, or one reservation.

    All releases of a failed round come first. If none is left, the first node without a reservation
    is requested to reserve.
    """
    nodes = _reserving_nodes(job)
    failed_nodes = [node for node in nodes if _has_failed(node.reservation.request)]
    releasing = [node for node in nodes if _must_release(node, failed_nodes)]
    for node in releasing:
        release = messages.ReleaseAt(node.node)
        yield from when_due(node.reservation.give_back, release, timing.call_deadline)
    missing = _missing_nodes(nodes)
    if missing and not releasing:
        yield from _next_request(missing[0], failed_nodes, timing)


def _next_request(
    node: NodeJob,
    failed_nodes: Iterable[NodeJob],
    timing: Timing,
) -> Iterator[Due[messages.Request]]:
    """Yield the request to a node, not before the pauses of all failed nodes are over.

    ``failed_nodes`` were busy, or did not respond, at their last request.
    """
    after = EARLIEST
    for failed_node in failed_nodes:
        after = max(after, failed_node.reservation.request.due_at or EARLIEST)
    request = messages.ReserveAt(node.node)
    for due in when_due(node.reservation.request, request, timing.call_deadline):
        yield Due(max(due.at, after), due.command)


def is_requested_at(job: Job, node: NodeJob) -> bool:
    """Return whether the job waits for a reservation at this node.

    False while another node is busy: that node has to have capacity first.
    """
    if job.status is not JobStatus.READY:
        return False
    nodes = _reserving_nodes(job)
    busy_nodes = {record.node for record in nodes if record.reservation.request.reason == BUSY}
    is_another_busy = not busy_nodes <= {node.node}
    return node in _missing_nodes(nodes) and not is_another_busy


def _reserving_nodes(job: Job) -> list[NodeJob]:
    """Return the nodes that must reserve resources, in the order in which they are requested.

    Excluded nodes reserve nothing.
    """
    nodes = [node for node in job.active if node.reservation.acceptance.holds]
    return sorted(nodes, key=attrgetter("node"))


def _missing_nodes(nodes: Iterable[NodeJob]) -> list[NodeJob]:
    """Return the nodes that have not reserved their part for the job yet, in the same order."""
    return [node for node in nodes if not _has_granted(node)]


def _has_granted(node: NodeJob) -> bool:
    """Return whether the node has reserved its part for the job."""
    return node.reservation.request.state is CallState.OK


def _has_failed(call: Call) -> bool:
    """Return whether a node was busy, or did not respond, at its last request (``call``).

    False before the first request, and while any request is under way.
    """
    # A call that was sent is IDLE again once the node was busy, or if it was not delivered.
    is_paused = call.state is CallState.IDLE and call.sent_at is not None
    return is_paused or call.state is CallState.LOST


def _must_release(node: NodeJob, failed_nodes: Iterable[NodeJob]) -> bool:
    """Return whether a node has to release its reservation.

    True while the release is under way, and if the round of the reservation has failed: one of
    ``failed_nodes``, which were busy or did not respond, was requested after this node.
    """
    if node.reservation.give_back.state in (CallState.SENT, CallState.LOST):
        return True
    granted_request_sent_at = node.reservation.request.sent_at
    if not _has_granted(node) or granted_request_sent_at is None:
        return False
    times = [failed_node.reservation.request.sent_at or EARLIEST for failed_node in failed_nodes]
    return max(times, default=EARLIEST) >= granted_request_sent_at


# ---------------------------------------------------------------- responses of nodes


def is_worth_noting(
    call: Call,
    failure: Failure,
    timing: Timing,
) -> bool:
    """Return whether the response of a busy node is noted in the timeline.

    A response that repeats the last one is noted ever more rarely, unless the tries are bounded:
    then there are few notes anyway.
    """
    is_repetition = call.reason == failure.reason and call.message == failure.message
    are_tries_bounded = timing.hold_tries > 0
    if are_tries_bounded or not is_repetition:
        return True
    return is_noted(call.tries)


def after_busy_response(
    node: NodeJob,
    failure: Failure,
    at: datetime,
    timing: Timing,
) -> NodeJob:
    """Return the node after it had too few free resources: it is requested again after a pause.

    After ``hold_tries`` tries the node counts as refusing; 0 means that there is no such bound.
    """
    reservation = node.reservation
    call = reservation.request
    since = reservation.waiting_since or at
    is_last_try = 0 < timing.hold_tries <= call.tries
    if is_last_try:
        text = f"asked {call.tries} times since {moment(since)}, the last answer: {failure.message}"
        call = replace(
            call,
            state=CallState.REFUSED,
            reason=CANNOT_SCHEDULE,
            message=text,
        )
    else:
        call = replace(
            call,
            state=CallState.IDLE,
            due_at=at + _pause(reservation, timing),
            reason=failure.reason,
            message=failure.message,
        )
    reservation = replace(
        reservation,
        request=call,
        waiting_since=since,
    )
    return replace(node, reservation=reservation)


def _pause(reservation: Reservation, timing: Timing) -> timedelta:
    """Return the pause before a busy node is requested again: doubled each time, up to a bound.

    The pause is 0 if the node has reported free capacity since the request was sent.
    """
    call = reservation.request
    freed_at = reservation.freed_at
    sent_at = call.sent_at
    if freed_at is not None and sent_at is not None and freed_at >= sent_at:
        return timedelta()
    doublings = min(call.tries - 1, _MAX_DOUBLINGS)
    pause = min(
        timing.hold_first * 2.0**doublings,
        timing.hold_most,
    )
    return timedelta(seconds=pause)


def keep_if_aged(
    job: Job,
    at: datetime,
    timing: Timing,
) -> Job:
    """Return the job with its reservations kept if it has waited for ``ageing`` seconds.

    The granted reservations are marked as not yet requested: their nodes keep them, and a new
    request confirms them with a newer time, so `_must_release` spares them.
    """
    nodes = _reserving_nodes(job)
    times = [node.reservation.waiting_since for node in nodes]
    waiting_since = list(filter(None, times))
    if not waiting_since or at - min(waiting_since) < timedelta(seconds=timing.ageing):
        return job
    for node in nodes:
        if _has_granted(node):
            reservation = replace(
                node.reservation,
                request=Call(),
            )
            job = job.with_node(replace(node, reservation=reservation))
    return job


def without_reservation(node: NodeJob, late: datetime) -> NodeJob:
    """Return the node without a reservation for the job, after the reservation was released.

    If the release was sent several times, a copy of it may arrive as late as ``late``, and would
    release a new reservation. So the next request is not due before ``late``.
    """
    old = node.reservation
    next_call = Call()
    if old.give_back.tries > 1:
        next_call = Call(due_at=late)
    reservation = Reservation(
        old.acceptance,
        next_call,
        waiting_since=old.waiting_since,
    )
    return replace(node, reservation=reservation)


def with_request_due(
    job: Job,
    node: NodeId,
    at: datetime,
) -> NodeJob | None:
    """Return the node with its request due now, as it has capacity again.

    While a request is under way, only the time of the report is recorded: `_pause` uses it if the
    response is that the node is busy. None if the job does not wait for the node, or its request is
    due already. None, too, if the request was lost: it is repeated at its own time. And None before
    the first request, which may have to wait for a late copy of a release (`without_reservation`).
    """
    record = job.nodes.get(node)
    if job.status is not JobStatus.READY or record is None:
        return None
    reservation = replace(record.reservation, freed_at=at)
    call = reservation.request
    if call.state is CallState.SENT:
        return replace(record, reservation=reservation)
    if call.state is not CallState.IDLE:
        return None
    if call.sent_at is None:
        return None
    is_paused = call.due_at is not None and call.due_at > at
    if not is_paused:
        return None
    reservation = replace(
        reservation,
        request=replace(call, due_at=at),
    )
    return replace(record, reservation=reservation)


def shortage_of(job: Job) -> Shortage | None:
    """Return why a READY job waits for resources; None for a job that does not wait.

    A failed node comes first, then the nodes that have not been requested yet or have not answered.
    """
    if job.status is not JobStatus.READY or job.ending is not None:
        return None
    nodes = _reserving_nodes(job)
    missing = _missing_nodes(nodes)
    if not missing:
        return None
    failed_node = _first_failed(nodes)
    if failed_node is None:
        names = ", ".join(node.node for node in missing)
        return Shortage(
            message=f"is asking for resources at {names}",
            since=job.created_at,
        )
    reservation = failed_node.reservation
    call = reservation.request
    return Shortage(
        message=call.message,
        since=reservation.waiting_since or call.sent_at or job.created_at,
        next_try=call.due_at,
    )


def _first_failed(nodes: Iterable[NodeJob]) -> NodeJob | None:
    """Return the first node whose last request failed and left a message; None without one.

    The message says what was too little, or why no response came.
    """
    for node in nodes:
        call = node.reservation.request
        if call.message and _has_failed(call):
            return node
    return None


# ---------------------------------------------------------------- parallel tasks


def tasks_at_once(job: Job, limit: int) -> int:
    """Return how many tasks of the job may be under way at the same time.

    It is the lowest of these bounds: this node's ``limit``, the job's setting, and the bound that
    each node reported when it accepted the job. A setting or report of None or 0 does not count.
    """
    bounds = [job.spec.settings.task_parallelism]
    bounds += [node.reservation.acceptance.tasks_at_once for node in job.active]
    return min([limit, *filter(None, bounds)])
