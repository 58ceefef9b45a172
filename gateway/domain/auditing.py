"""A job that another node asks about before it creates it here (management layer, job audit).

The question makes the job's record at once, so that rules, people, deadlines and the way a decision is told are
those of every approval; what is missing is only the word that creates the job. Until that comes nothing is held,
nobody is asked whether the job still exists, and an approval that is not used ends with its deadline.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from enum import StrEnum

from gateway.domain import approval
from gateway.domain.approval import Policy, Verdict
from gateway.domain.run import Approval, Audit, LocalJob
from gateway.domain.spec import Ending, Failure, JobSpec
from gateway.domain.states import JOB, JobStatus, Outcome, ended

WITHDRAWN, UNUSED = "AUDIT_WITHDRAWN", "AUDIT_UNUSED"
_PREFIX = "audit_"


class AuditStatus(StrEnum):
    """The words of the management layer."""

    APPLIED = "APPLIED"
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    TERMINATED = "TERMINATED"


def id_for(job_id: str) -> str:
    """Return the id of this node's question about a job; the same whoever of several gateways asks."""
    return _PREFIX + job_id


def job_of(audit_id: str) -> str:
    """Return the job that one of this node's questions is about."""
    return audit_id.removeprefix(_PREFIX)


def asked(local: LocalJob, audit: Audit, policy: Policy, verdict: Verdict, words: str, at: datetime) -> LocalJob:
    """Return a new job as one that was asked about, decided on at once where the rules do so."""
    local = replace(local, audit=audit).noted(at, "asked before creation", local.spec.scheduler, audit=audit.id)
    local = approval.opened(local, policy, words, at)
    return local if verdict is Verdict.ASK else approval.by_rule(local, verdict is Verdict.APPROVE, words, at)


def asked_late(local: LocalJob, audit: Audit, at: datetime) -> LocalJob:
    """Return a job that was created before anybody asked: what was decided on it, or will be, is told as asked."""
    known = local.approval or Approval(at, at, JobStatus.READY, decided_at=at)
    local = replace(local, audit=replace(audit, created=True), approval=known)
    return local.noted(at, "asked after creation", local.spec.scheduler, audit=audit.id)


def unused(local: LocalJob) -> bool:
    """Say whether the job was asked about and has not been created since."""
    return local.audit is not None and not local.audit.created


def is_same(local: LocalJob, spec: JobSpec) -> bool:
    """Say whether a job is the one that was asked about, as far as it concerns this node.

    What is meant for other nodes is left out of the comparison: it may be shown with the question and not later.
    """
    one, other = (replace(s.for_node(local.node), trace_id="") for s in (local.spec, spec))
    return one == other


def created(local: LocalJob, at: datetime, by: str) -> LocalJob:
    """Return the job once it is created."""
    if local.audit is None or local.audit.created or ended(JOB, local.status):
        return local
    local = replace(local, audit=replace(local.audit, created=True), heard_at=at)
    return local.noted(at, f"job {local.status} here", by)


def withdrawal(by: str, at: datetime, told: Ending | None = None) -> Ending:
    """Return how a job ends of which the node that asked thinks better: as it tells, where it tells why."""
    if told is not None and told.failure is not None:
        return told
    return Ending(Outcome.STOPPED, at, Failure(WITHDRAWN, f"{by} does not ask for the job any more", by), by)


def expires_at(local: LocalJob) -> datetime | None:
    """Return when silence ends the job: nobody's decision, or nobody's use of it; None where neither is due."""
    known = local.approval
    if known is not None and known.decided_at is not None and unused(local) and not ended(JOB, local.status):
        return known.decided_at + (known.until - known.since)
    return approval.expires_at(local)


def expired(local: LocalJob, now: datetime, end: Callable[[LocalJob, Ending], LocalJob]) -> LocalJob:
    """Return the job after that silence."""
    if local.status is JobStatus.PENDING:
        return approval.timed_out(local, now)
    text = f"{local.spec.scheduler} has not created the job within the time after which an approval ends"
    return end(local, Ending(Outcome.STOPPED, now, Failure(UNUSED, text, local.node), local.node))


def status(local: LocalJob) -> AuditStatus:
    """Return what has become of the question."""
    decision = local.approval.decision if local.approval else JobStatus.READY
    if decision is JobStatus.REJECTED:
        return AuditStatus.REJECTED
    if ended(JOB, local.status) and (decision is JobStatus.PENDING or unused(local)):
        return AuditStatus.TERMINATED
    return AuditStatus.APPLIED if decision is JobStatus.PENDING else AuditStatus.APPROVED
