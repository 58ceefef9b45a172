"""The scheduling node's side of approvals: nodes that need one before they take part in a job."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gateway.domain.job import GRACE, Acceptance, Consent, Job, NodeJob
from gateway.domain.spec import Call, CallState, Failure, NodeId
from gateway.domain.states import JOB, JobStatus, ended

DEADLINE = 86_400.0
"""seconds for a node that does not report how long it may take"""
TIMEOUT = "APPROVAL_TIMEOUT"


@dataclass(frozen=True)
class ApprovalReported:
    """A node's decision: it takes part, or (with a failure) it does not."""

    node: NodeId
    at: datetime
    failure: Failure | None = None


def waits(job: Job, node: NodeId, acceptance: Acceptance, at: datetime) -> Job:
    """Record that the node accepted the job subject to approval, or was requested to audit it."""
    record = job.nodes[node]
    if job.status is not JobStatus.PENDING:
        return job
    if record.consent is not None:  # its decision came before its response
        agreed = acceptance.asked_only and record.consent.status is JobStatus.READY
        return job.with_node(replace(record, create=Call())) if agreed else job
    seconds = DEADLINE if acceptance.within is None else acceptance.within
    until = at + timedelta(seconds=min(max(seconds, 0.0), 100 * DEADLINE) + GRACE)
    consent = Consent(at, until, asked_only=acceptance.asked_only, waits_for=acceptance.waits_for)
    job, by = job.with_node(replace(record, consent=consent)), consent.decides_by.isoformat()
    if acceptance.waits_for:
        return job.noted(at, "waits for a node to be ready", node, until=by, message=acceptance.waits_for)
    return job.noted(at, "waits for approval", node, until=by)


def confirmed(job: Job, event: ApprovalReported) -> Job:
    """Record a node's decision. It counts once, while the job is PENDING; anything else is only noted."""
    record = job.nodes[event.node]
    status = JobStatus.READY if event.failure is None else JobStatus.REJECTED
    known = record.consent
    if known is not None and known.status is status:
        return job
    over = job.status is not JobStatus.PENDING or job.ending is not None
    if over or (known is not None and known.status is not JobStatus.PENDING):
        return job.noted(event.at, "late answer ignored", event.node, status=status)
    consent = replace(known or Consent(event.at, event.at), status=status)
    create = record.create
    if event.failure is None and consent.asked_only:
        consent, create = replace(consent, asked_only=False), Call()  # only now it is created there
    if event.failure is not None:
        create = replace(
            create, state=CallState.REFUSED, reason=event.failure.reason, message=event.failure.message
        )
    job = job.with_node(replace(record, consent=consent, create=create, unreachable_since=None))
    detail = event.failure.as_dict() if event.failure else {}
    return job.noted(event.at, "approved" if event.failure is None else "rejected", event.node, **detail)


def contradicts(job: Job, event: ApprovalReported) -> str:
    """Return why a decision is too late; empty where it counts, or repeats the earlier one."""
    known = job.nodes[event.node].consent
    reported = JobStatus.READY if event.failure is None else JobStatus.REJECTED
    if known is not None and known.status is reported:
        return ""
    if known is not None and known.status is not JobStatus.PENDING:
        return f"node {event.node} has answered {known.status} before"
    if ended(JOB, job.status) or job.ending is not None:
        return "the job has ended, or is about to"
    if job.status is not JobStatus.PENDING and reported is JobStatus.REJECTED:
        return f"the job is {job.status} already"
    return ""


def is_open(node: NodeJob) -> bool:
    """Whether the node has still to decide."""
    return node.consent is not None and node.consent.status is JobStatus.PENDING


def asks_only(node: NodeJob) -> bool:
    """Whether the job is not created at the node yet, which was only requested to audit it."""
    return node.consent is not None and node.consent.asked_only


def timed_out(job: Job, node: NodeId, now: datetime) -> Job:
    """Count a node that never reported its decision as one that refused."""
    record = job.nodes[node]
    if record.consent is None or not is_open(record):
        return job
    words = f"{node} was asked at {record.consent.asked_at.isoformat()} and has not told whether it takes part"
    # it has accepted the job all the same, and is to be stopped
    create = replace(record.create, reason=TIMEOUT, message=words)
    record = replace(record, consent=replace(record.consent, status=JobStatus.REJECTED), create=create)
    return job.with_node(record).noted(now, "approval timed out", node, message=words)
