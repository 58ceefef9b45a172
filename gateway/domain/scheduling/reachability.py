"""The rule by which the scheduling node counts another node of a job as unreachable.

A node is unreachable from the first request without a response (`mark_unreachable`, which records
the time as ``NodeJob.unreachable_since``) until its next response or report (`mark_reached`). A
reported approval ends the silence too (`gateway.domain.approval.record_confirmation`). Silence is
not recorded while no request to the node is open, as no response could end it
(`expects_response`, `forget_idle_silence`).

A node that stays unreachable is given up at the time that `gives_up_at` returns; the limits are
fields of `Timing`. `machine.step` then ends the job, or lets it go on without the node, and
`silence_failure` is the reason.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from gateway.domain import reservations
from gateway.domain.job import Job, NodeJob
from gateway.domain.records import replace
from gateway.domain.scheduling import messages
from gateway.domain.spec import Failure, NodeId, moment
from gateway.domain.states import JobStatus
from gateway.domain.timeouts import Timing

# Reason of the failure of a running job whose node is silent.
UNREACHABLE = "UNREACHABLE"
# Reason of the failure of a job that is being created or started, if the call has no reason.
PEER_UNREACHABLE = "PEER_UNREACHABLE"


# ---------------------------------------------------------------- when a node is unreachable


def mark_unreachable(
    job: Job,
    event: messages.Lost,
    open_requests: Iterable[messages.Request],
) -> Job:
    """Return the job after a request without a response: its node is unreachable from now on.

    A node that is silent already keeps the time of its first missing response. A node without an
    open request is marked only in a job that is ending. ``open_requests``: all of the job's.
    """
    node = job.nodes[event.request.node]
    if node.unreachable_since is not None:
        return job
    if job.ending is None and not expects_response(job, node, open_requests):
        return job
    job = job.with_node(replace(node, unreachable_since=event.at))
    return job.with_note(
        event.at,
        "unreachable",
        node.node,
        message=event.message,
    )


def mark_reached(job: Job, node: NodeId) -> Job:
    """Return the job with a node that has just responded: it is not silent any more."""
    record = job.nodes[node]
    if record.unreachable_since is None:
        return job
    return job.with_node(replace(record, unreachable_since=None))


def expects_response(
    job: Job,
    node: NodeJob,
    open_requests: Iterable[messages.Request],
) -> bool:
    """Return whether a request to the node is under way, or comes next.

    False, for example, while the node's part of a task is over and another node's part runs for
    hours, while the job is suspended, or while the job waits for resources at another node.
    ``open_requests``: all of the job's.
    """
    if any(request.node == node.node for request in open_requests):
        return True
    return reservations.is_requested_at(job, node)


def forget_idle_silence(
    job: Job,
    node: NodeJob,
    open_requests: Iterable[messages.Request],
) -> Job:
    """Return the job in which a node without a request to answer does not count as silent.

    Only a response ends a silence. If no request is open, no response can come: the silence would
    reach its limit and end the job. ``open_requests``: all of the job's.
    """
    if node.unreachable_since is None or expects_response(job, node, open_requests):
        return job
    return job.with_node(replace(node, unreachable_since=None))


# ---------------------------------------------------------------- when a silent node is given up


def gives_up_at(
    job: Job,
    node: NodeJob,
    timing: Timing,
) -> datetime | None:
    """Return when the scheduling node stops waiting for a silent node; None for any other node.

    - While the job is created: `Timing.create_deadline` after the creation of the job, not after
      the first missing response. None once the creation at this node has a response.
    - While the job is started: `Timing.start_deadline` after the first missing response.
    - Otherwise: `Timing.unreachable_limit` after the first missing response.

    The node's own limit (``NodeJob.call_limit``) replaces the first two.
    """
    if node.unreachable_since is None:
        return None
    if job.status is JobStatus.PENDING:
        if node.create.completed:
            return None
        seconds = node.call_limit or timing.create_deadline
        return job.created_at + timedelta(seconds=seconds)
    seconds = timing.unreachable_limit
    if job.status is JobStatus.READY and node.start.tries > 0:
        seconds = node.call_limit or timing.start_deadline
    return node.unreachable_since + timedelta(seconds=seconds)


def silence_failure(
    job: Job,
    node: NodeJob,
    now: datetime,
) -> Failure:
    """Return the reason why a job does without a silent node, or fails because of it.

    While the job is created or started, this is the error of the call without a response.
    """
    if job.status is JobStatus.RUNNING:
        since = node.unreachable_since or now
        return Failure(UNREACHABLE, f"no answer since {moment(since)}", node.node)
    call = node.start
    if job.status is JobStatus.PENDING:
        call = node.create
    reason = call.reason or PEER_UNREACHABLE
    return Failure(reason, call.message or "no answer", node.node)
