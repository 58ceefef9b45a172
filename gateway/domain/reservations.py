"""The reservations of a job at its nodes before it starts: at all of them, or at none.

Nodes are requested one after the other in the order of their ids, whoever schedules, so no two jobs wait for
each other. Where one is busy, what the others granted is released, and all are requested again after a pause or
when that node has capacity. A job that has waited for as long as the ageing limit releases nothing any more: else
others could always be faster at one node while it waits for another.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from gateway.domain.job import Job, NodeJob, Reservation
from gateway.domain.scheduling import messages
from gateway.domain.spec import Call, CallState, Failure, NodeId, moment
from gateway.domain.states import JobStatus
from gateway.domain.timeouts import NOW, Due, Timing, is_noted, when_due

BUSY = "RESOURCES_BUSY"
"""reason of a node that has too little free now"""
CANNOT_SCHEDULE = "CANNOT_SCHEDULE"
"""reason of a job for which a node had too little free too often"""


def granted(job: Job) -> bool:
    """Whether every node that must reserve something has done so."""
    return all(n.reservation.apply.state is CallState.OK for n in _holding(job))


def turns(job: Job, timing: Timing) -> Iterator[Due[messages.Request]]:
    """Yield the next requests while the job is READY."""
    nodes = _holding(job)
    waiting = [n for n in nodes if _waits(n.reservation.apply)]
    back = [n for n in nodes if _gives_back(n, waiting)]
    for node in back:
        yield from when_due(
            node.reservation.give_back, messages.ReleaseAt(node.node), timing.call_deadline
        )
    asked = next((n for n in nodes if n.reservation.apply.state is not CallState.OK), None)
    if asked is None or back:
        return
    after = max(
        (n.reservation.apply.due_at for n in waiting if n.reservation.apply.due_at), default=NOW
    )
    for due in when_due(
        asked.reservation.apply, messages.ReserveAt(asked.node), timing.call_deadline
    ):
        yield Due(max(due.at, after), due.command)


def is_asked(job: Job, node: NodeJob) -> bool:
    """Whether the job waits for a reservation at this node: no other is known to be busy."""
    if job.status is not JobStatus.READY or node.reservation.apply.state is CallState.OK:
        return False
    others = [n.reservation.apply for n in _holding(job) if n.node != node.node]
    return node in _holding(job) and not any(call.reason == BUSY for call in others)


def _holding(job: Job) -> list[NodeJob]:
    wanted = (
        n for n in job.nodes.values() if n.reservation.acceptance.holds and n.excluded is None
    )
    return sorted(wanted, key=lambda n: n.node)


def _waits(call: Call) -> bool:
    """Whether the node was busy, or did not respond, at the last request."""
    return call.state is CallState.LOST or (
        call.state is CallState.IDLE and call.sent_at is not None
    )


def _gives_back(node: NodeJob, waiting: Iterable[NodeJob]) -> bool:
    """Whether the node granted its part in a round in which a later one has to wait."""
    apply = node.reservation.apply
    if node.reservation.give_back.state in (CallState.SENT, CallState.LOST):
        return True
    began = apply.sent_at
    return apply.state is CallState.OK and any(
        began is not None
        and w.reservation.apply.sent_at is not None
        and began <= w.reservation.apply.sent_at
        for w in waiting
    )


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
    call = node.reservation.apply
    since = node.reservation.waiting_since or at
    if 0 < timing.hold_tries <= call.tries:
        text = f"asked {call.tries} times since {moment(since)}, the last answer: {failure.message}"
        call = replace(
            call,
            state=CallState.REFUSED,
            reason=CANNOT_SCHEDULE,
            message=text,
        )
        return replace(node, reservation=replace(node.reservation, apply=call, waiting_since=since))
    pause = timedelta(
        seconds=min(timing.hold_first * 2.0 ** min(call.tries - 1, 20), timing.hold_most)
    )
    freed = node.reservation.freed_at
    if freed is not None and call.sent_at is not None and freed >= call.sent_at:
        pause = timedelta()  # it has something free since it was asked
    call = replace(
        call,
        state=CallState.IDLE,
        due_at=at + pause,
        reason=failure.reason,
        message=failure.message,
    )
    return replace(node, reservation=replace(node.reservation, apply=call, waiting_since=since))


def kept(
    job: Job,
    at: datetime,
    timing: Timing,
) -> Job:
    """Let a job that has waited long for a busy node keep what others granted: they are requested once more."""
    since = [
        n.reservation.waiting_since
        for n in _holding(job)
        if n.reservation.waiting_since is not None
    ]
    if not since or at - min(since) < timedelta(seconds=timing.ageing):
        return job
    granted = [n for n in _holding(job) if n.reservation.apply.state is CallState.OK]
    anew = {n.node: replace(n, reservation=replace(n.reservation, apply=Call())) for n in granted}
    return replace(job, nodes={**job.nodes, **anew}) if anew else job


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
    held = replace(record.reservation, freed_at=at)
    if held.apply.state is CallState.SENT:
        return replace(record, reservation=held)
    if (
        held.apply.state is not CallState.IDLE
        or held.apply.due_at is None
        or held.apply.due_at <= at
    ):
        return None
    return replace(record, reservation=replace(held, apply=replace(held.apply, due_at=at)))


def waits_for(job: Job) -> tuple[str, datetime, datetime | None] | None:
    """Return why a READY job waits for resources, since when, and when it tries again; None where it does not."""
    if job.status is not JobStatus.READY or job.ending is not None or granted(job):
        return None
    for node in _holding(job):
        call = node.reservation.apply
        if call.message and _waits(call):
            since = node.reservation.waiting_since or call.sent_at or job.created_at
            return call.message, since, call.due_at
    open_ = ", ".join(
        n.node for n in _holding(job) if n.reservation.apply.state is not CallState.OK
    )
    return f"is asking for resources at {open_}", job.created_at, None


# ---------------------------------------------------------------- how many tasks at the same time


def tasks_at_once(job: Job, most: int) -> int:
    """Return how many tasks of the job may be under way: the least that the job and its nodes allow."""
    bounds = (
        job.spec.settings.task_parallelism,
        *(n.reservation.acceptance.tasks_at_once for n in job.nodes.values() if not n.excluded),
    )
    return min([most, *(b for b in bounds if b)])
