"""The approval of a job by a participating node, and its record at the scheduling node.

The participating node records the approval as an `Approval`, the scheduling node as a `Consent`.
`gateway.domain.approval_rules` decides whether a person has to approve the job.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from gateway.domain.approval_rules import Policy, Verdict
from gateway.domain.job import GRACE, Acceptance, Consent, Job, NodeJob
from gateway.domain.run import Approval, Audit, LocalJob, Preparation
from gateway.domain.spec import (
    Call,
    CallState,
    Ending,
    Failure,
    JobSpec,
    NodeId,
    moment,
)
from gateway.domain.states import JOB, JobStatus, Outcome, ended, move

# Reasons of failures.
REJECTED = "APPROVAL_REJECTED"  # a person has rejected the job
NOT_AUTHORISED = "NOT_AUTHORISED"  # a rule has rejected the job in an audit
TIMEOUT = "APPROVAL_TIMEOUT"  # no person has decided in time
PULL_TIMEOUT = "PULL_TIMEOUT"  # the job's images were not pulled in time
WITHDRAWN = "AUDIT_WITHDRAWN"  # the requesting node has withdrawn the job
UNUSED = "AUDIT_UNUSED"  # the approved job was not created in time

DEADLINE = 86_400.0  # seconds for the decision of a node that reports no deadline of its own
_MAX_DEADLINE = 100 * DEADLINE  # seconds; longest accepted deadline of a node, here 100 days
_MAX_REPORTS = 8640  # tries to report a decision: a day at the longest pause (10 s)
_AUDIT_PREFIX = "audit_"  # begins the ids of this node's audits; the job's id follows


# ---------------------------------------------------------------- the decision of a person


def await_person(
    local: LocalJob,
    policy: Policy,
    explanation: str,
    at: datetime,
) -> LocalJob:
    """Return a new job as PENDING until a person decides, or the policy's deadline passes.

    ``explanation`` says which rule or setting demands the person.
    """
    until = at + timedelta(seconds=policy.deadline)
    local = replace(
        local,
        status=JobStatus.PENDING,
        approval=Approval(at, until),
    )
    return local.with_note(
        at,
        "approval asked",
        until=until.isoformat(),
        message=explanation,
    )


def record_decision(
    local: LocalJob,
    approve: bool,
    by: str,
    comment: str,
    at: datetime,
) -> LocalJob:
    """Return the job after a person's decision.

    A decision counts only if it is the first one and the job is PENDING. An approved job stays
    PENDING until its images are pulled.
    """
    preparation = pending_preparation(local)
    if preparation is not None and preparation.agreed:
        return local  # a person has approved the job before, or none has to
    if not approve:
        text = f"{by or 'an operator'} at {local.node} refused"
        if comment:
            text += f": {comment}"
        failure = Failure(REJECTED, text, local.node)
        return _conclude(
            local,
            "rejected by a person",
            at,
            failure,
            by=by,
            comment=comment,
        )
    if preparation is None or local.approval is None:
        return _conclude(local, "approved", at, by=by, comment=comment)
    # The person has met the deadline of the decision. The time for the pull may end later.
    until = max(local.approval.until, preparation.until)
    decision = replace(
        local.approval,
        by=by,
        decided_at=at,
        until=until,
    )
    local = replace(
        local,
        approval=decision,
        preparation=replace(preparation, agreed=True),
    )
    event = "approved, its images are still being fetched"
    return local.with_note(
        at,
        event,
        by,
        message=comment,
    )


def _conclude(
    local: LocalJob,
    event: str,
    at: datetime,
    failure: Failure | None = None,
    by: str = "",
    comment: str = "",
) -> LocalJob:
    """Return the job as READY or, with a failure, as REJECTED.

    The decision is then due to be reported. A job without an open decision stays as it is. ``by``
    names the person who decided, and is empty if no person did. ``comment`` goes into the timeline.
    """
    if local.approval is None or local.status is not JobStatus.PENDING:
        return local
    ended_at = local.ended_at
    status = JobStatus.READY
    if failure is not None:
        status = JobStatus.REJECTED
        ended_at = at
    decision = replace(
        local.approval,
        decision=status,
        by=by,
        failure=failure,
        decided_at=at,
    )
    local = replace(
        local,
        status=move(JOB, local.status, status),
        approval=decision,
        ended_at=ended_at,
    )
    return local.with_note(at, event, by, message=comment).with_note(at, f"job {status} here")


def awaits_person(local: LocalJob) -> bool:
    """Return whether a person has still to decide on the job at this node.

    False if the job waits only for its images.
    """
    is_agreed = local.preparation is not None and local.preparation.agreed
    return decide_by(local) is not None and not is_agreed


def decide_by(local: LocalJob) -> datetime | None:
    """Return when the open decision on a PENDING job becomes a refusal; None for any other job."""
    if local.approval is None or local.status is not JobStatus.PENDING:
        return None
    return local.approval.until


def pending_confirmation(local: LocalJob) -> Call | None:
    """Return the call that reports the decision to the scheduling node; None if none is due.

    Once the job runs or has ended, an approval is not reported any more, as the scheduling node
    knows of it. A report is given up after `_MAX_REPORTS` tries.
    """
    approval = local.approval
    if approval is None or approval.decision is JobStatus.PENDING:
        return None
    confirm = approval.confirm
    if confirm.state is CallState.OK or confirm.tries >= _MAX_REPORTS:
        return None
    has_advanced = local.status not in (JobStatus.PENDING, JobStatus.READY)
    if approval.decision is JobStatus.READY and has_advanced:
        return None
    return confirm


# ---------------------------------------------------------------- audits (management layer)
#
# Another node requests approval before it creates the job at this node. The request creates the
# job's record immediately, so that rules, people, deadlines and reports are the same as for every
# approval. Until the job is created nothing is reserved, and an approval that is not used expires.


class AuditStatus(StrEnum):
    """The states of an audit or application, in the words of the standard's management layer."""

    APPLIED = "APPLIED"
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    TERMINATED = "TERMINATED"


def audit_id_for(job_id: str) -> str:
    """Return the id of this node's audit of a job; every gateway of the node derives the same."""
    return _AUDIT_PREFIX + job_id


def job_of_audit(audit_id: str) -> str:
    """Return the id of the job that an audit of this node is about."""
    return audit_id.removeprefix(_AUDIT_PREFIX)


def open_audit(
    local: LocalJob,
    audit: Audit,
    policy: Policy,
    verdict: Verdict,
    explanation: str,
    at: datetime,
) -> LocalJob:
    """Return a new job under audit; the verdict decides on it, unless a person has to be asked.

    ``explanation`` names the rule and the piece of the job that led to the verdict.
    """
    local = replace(local, audit=audit)
    local = local.with_note(
        at,
        "asked before creation",
        local.spec.scheduler,
        audit=audit.id,
    )
    local = await_person(local, policy, explanation, at)
    match verdict:
        case Verdict.APPROVE:
            return _conclude(local, "approved", at, comment=explanation)
        case Verdict.REJECT:
            text = f"node {local.node} does not take part: {explanation}"
            failure = Failure(NOT_AUTHORISED, text, local.node)
            return _conclude(
                local,
                "rejected by rule",
                at,
                failure,
                comment=explanation,
            )
        case Verdict.ASK:
            return local


def audit_existing(
    local: LocalJob,
    audit: Audit,
    at: datetime,
) -> LocalJob:
    """Return a job under audit that was created before the audit was requested.

    The past or future decision on the job is reported as the decision of the audit. A job that
    needed no approval counts as approved.
    """
    # A job that needed no approval counts as approved at the moment of the audit.
    approval = local.approval or Approval(
        since=at,
        until=at,
        decision=JobStatus.READY,
        decided_at=at,
    )
    local = replace(
        local,
        audit=replace(audit, created=True, permit=""),
        approval=approval,
    )
    return local.with_note(
        at,
        "asked after creation",
        local.spec.scheduler,
        audit=audit.id,
    )


def issued_permit(local: LocalJob) -> str:
    """Return the token of the permit for an audited job.

    Empty unless the audit was approved, and once the job is created.
    """
    if local.audit is None or audit_status(local) is not AuditStatus.APPROVED:
        return ""
    return local.audit.permit


def is_unused(local: LocalJob) -> bool:
    """Return whether the job was audited and has not been created at this node since."""
    return local.audit is not None and not local.audit.created


def is_same(local: LocalJob, spec: JobSpec) -> bool:
    """Return whether ``spec`` is the audited job, as far as it concerns this node.

    Parameters of other nodes are not compared: they may be sent with the audit and left out later.
    """
    return _comparable(local.spec, local.node) == _comparable(spec, local.node)


def _comparable(spec: JobSpec, node: NodeId) -> JobSpec:
    """Return the part of a job that must not change between its audit and its creation.

    The trace and the bundles may change.
    """
    return replace(
        spec.for_node(node),
        trace_id="",
        bundles={},
    )


def record_creation(
    local: LocalJob,
    at: datetime,
    by: str,
) -> LocalJob:
    """Return an audited job as created at this node.

    A job stays as it is if it was not audited, was created before, or has ended. The creation
    counts as contact with the scheduling node. ``by`` is that node, for the timeline.
    """
    if local.audit is None or local.audit.created or ended(JOB, local.status):
        return local
    local = replace(
        local,
        audit=replace(local.audit, created=True, permit=""),
        last_contact=at,
    )
    return local.with_note(at, f"job {local.status} here", by)


def withdrawal(
    by: str,
    at: datetime,
    reported: Ending | None = None,
) -> Ending:
    """Return the ending of a job that the requesting node withdraws.

    ``by`` is the requesting node. If it has ``reported`` an ending with a failure, that ending is
    returned.
    """
    if reported is not None and reported.failure is not None:
        return reported
    failure = Failure(WITHDRAWN, f"{by} does not ask for the job any more", by)
    return Ending(Outcome.STOPPED, at, failure, by)


def lapses_at(local: LocalJob) -> datetime | None:
    """Return when `expire` is due for the job; None for a job that does not expire.

    An undecided job expires at the deadline of the decision. An approved job that was audited but
    not created has, from its decision on, as much time as there was for the decision.
    """
    approval = local.approval
    if approval is None or approval.decided_at is None:
        return decide_by(local)
    if is_unused(local) and not ended(JOB, local.status):
        return approval.decided_at + (approval.until - approval.since)
    return decide_by(local)


def expire(
    local: LocalJob,
    now: datetime,
    end: Callable[[LocalJob, Ending], LocalJob],
) -> LocalJob:
    """Return the job after a deadline has passed: of its creation, its images, or the decision.

    A job that was approved in an audit and not created is ended by ``end``, which takes the job and
    the ending. If images or a decision are missing, the job is rejected.
    """
    if local.status is not JobStatus.PENDING:
        return _expire_unused(local, now, end)
    preparation = pending_preparation(local)
    if preparation is not None and preparation.agreed:
        return _expire_pull(local, preparation, now)
    since = ""
    if local.approval is not None:
        since = moment(local.approval.since)
    text = f"{local.node} did not decide on the job, submitted for approval at {since}, in time"
    failure = Failure(TIMEOUT, text, local.node)
    return _conclude(
        local,
        "approval timed out",
        now,
        failure,
        comment=text,
    )


def _expire_unused(
    local: LocalJob,
    now: datetime,
    end: Callable[[LocalJob, Ending], LocalJob],
) -> LocalJob:
    """End an approved job that its scheduling node has not created in time."""
    text = (
        f"{local.spec.scheduler} has not created the job "
        "within the time after which an approval ends"
    )
    failure = Failure(UNUSED, text, local.node)
    return end(
        local,
        Ending(Outcome.STOPPED, now, failure, local.node),
    )


def _expire_pull(
    local: LocalJob,
    preparation: Preparation,
    now: datetime,
) -> LocalJob:
    """Reject a job whose images were not pulled in time."""
    images = ", ".join(preparation.images)
    text = f"{images} not here by {moment(now)}: {preparation.progress}"
    failure = Failure(PULL_TIMEOUT, text, local.node)
    return _conclude(
        local,
        "not ready to take part",
        now,
        failure,
        comment=text,
    )


def audit_status(local: LocalJob) -> AuditStatus:
    """Return the state of a job's audit; a job that needed no approval counts as approved.

    The state is TERMINATED if the job ended before the decision, or was approved and ended before
    its creation.
    """
    decision = JobStatus.READY
    if local.approval is not None:
        decision = local.approval.decision
    if decision is JobStatus.REJECTED:
        return AuditStatus.REJECTED
    is_open = decision is JobStatus.PENDING
    if ended(JOB, local.status) and (is_open or is_unused(local)):
        return AuditStatus.TERMINATED
    if is_open:
        return AuditStatus.APPLIED
    return AuditStatus.APPROVED


# ----------------------------------------------------- images that are pulled before a job is READY
#
# The scheduling node sees this wait as an approval: the response to the creation is PENDING, and
# the decision follows once all images are pulled, or the pull of one fails. If a person has to
# decide too, the job needs the person's approval and the images.


def await_images(
    local: LocalJob,
    images: Mapping[str, str],
    seconds: float,
    at: datetime,
) -> LocalJob:
    """Return a new job as PENDING until its images are pulled, for at most this many seconds.

    ``images`` maps each missing image to its engine. A job without missing images stays as it is.
    """
    if not images:
        return local
    needs_person = local.status is JobStatus.PENDING
    until = at + timedelta(seconds=seconds)
    preparation = Preparation(dict(images), at, until, agreed=not needs_person)
    local = replace(local, preparation=preparation)
    if not needs_person:
        local = replace(
            local,
            status=JobStatus.PENDING,
            approval=Approval(at, until),
        )
    return local.with_note(
        at,
        "images are fetched",
        images=sorted(images),
        until=until.isoformat(),
    )


def pending_preparation(local: LocalJob) -> Preparation | None:
    """Return the pull that a PENDING job waits for; None if the job waits for none."""
    preparation = local.preparation
    if preparation is None or preparation.fetch.completed:
        return None
    if local.status is not JobStatus.PENDING:
        return None
    return preparation


def record_preparation(
    local: LocalJob,
    failure: Failure | None,
    at: datetime,
) -> LocalJob:
    """Return the job once all images are pulled or, with a ``failure``, cannot be pulled.

    A job that does not wait for images stays as it is.
    """
    preparation = pending_preparation(local)
    if preparation is None:
        return local
    state = CallState.OK
    if failure is not None:
        state = CallState.REFUSED
    fetch = replace(
        preparation.fetch,
        state=state,
        due_at=None,
    )
    local = replace(
        local,
        preparation=replace(preparation, fetch=fetch),
    )
    if failure is not None:
        return _reject_without_images(local, failure, at)
    seconds = (at - preparation.since).total_seconds()
    local = local.with_note(
        at,
        "images fetched",
        seconds=round(seconds, 1),
    )
    if not preparation.agreed:
        return local  # a person has still to decide
    return _conclude_prepared(local, at)


def _reject_without_images(
    local: LocalJob,
    failure: Failure,
    at: datetime,
) -> LocalJob:
    """Reject a job whose images cannot be pulled."""
    local = local.with_note(at, "images not fetched", **failure.as_dict())
    failure = replace(failure, node=local.node)
    comment = failure.message
    return _conclude(
        local,
        "not ready to take part",
        at,
        failure,
        comment=comment,
    )


def _conclude_prepared(local: LocalJob, at: datetime) -> LocalJob:
    """Accept a job that has its images and on which no person has to decide any more."""
    by = ""
    if local.approval is not None:
        by = local.approval.by
    event = "ready to take part"
    if by:
        event = "approved"
    return _conclude(local, event, at, by=by)


def awaited_only_images(local: LocalJob) -> bool:
    """Return whether the job waits, or has waited, for its images and not for a person.

    False for a job that had no images to pull, and for a job that a person has approved.
    """
    if local.preparation is None or not local.preparation.agreed:
        return False
    return local.approval is None or not local.approval.by


# ---------------------------------------------------------------- the scheduling node's side


@dataclass(frozen=True)
class ApprovalReported:
    """A node's report that it takes part in a job or, with a ``failure``, that it does not."""

    node: NodeId
    at: datetime
    failure: Failure | None = None
    permit: str = ""  # token that the node requires at the creation; empty for none

    @property
    def status(self) -> JobStatus:
        """The node's decision: READY if it takes part, otherwise REJECTED."""
        if self.failure is None:
            return JobStatus.READY
        return JobStatus.REJECTED


def record_conditional_acceptance(
    job: Job,
    node: NodeId,
    acceptance: Acceptance,
    at: datetime,
) -> Job:
    """Record that the node accepted the job subject to approval, or was requested to audit it.

    ``acceptance`` is the node's response. If the node's decision arrived before this response,
    there is nothing to wait for. If that decision approved an audit, the job's creation at the node
    is due now.
    """
    record = job.nodes[node]
    if job.status is not JobStatus.PENDING:
        return job
    if record.consent is not None:
        is_agreed = record.consent.status is JobStatus.READY
        # `asked_only`: the node was requested to audit the job, which is not created there yet.
        if acceptance.asked_only and is_agreed:
            return job.with_node(replace(record, create=Call()))
        return job
    consent = _consent(acceptance, at)
    job = job.with_node(replace(record, consent=consent))
    until = consent.decides_by.isoformat()
    if acceptance.waits_for:
        text = acceptance.waits_for
        return job.with_note(
            at,
            "waits for a node to be ready",
            node,
            until=until,
            message=text,
        )
    return job.with_note(
        at,
        "waits for approval",
        node,
        until=until,
    )


def _consent(acceptance: Acceptance, at: datetime) -> Consent:
    """Return the open approval of a node; its deadline leaves `GRACE` for the node's report."""
    seconds = acceptance.within
    if seconds is None:
        seconds = DEADLINE
    seconds = min(max(seconds, 0.0), _MAX_DEADLINE)
    until = at + timedelta(seconds=seconds + GRACE)
    return Consent(
        asked_at=at,
        until=until,
        asked_only=acceptance.asked_only,
        waits_for=acceptance.waits_for,
    )


def record_confirmation(job: Job, event: ApprovalReported) -> Job:
    """Record a node's decision.

    A decision counts only if it is the first one and the job is PENDING. If the same decision is
    repeated, nothing changes; any other late decision is only noted.
    """
    record = job.nodes[event.node]
    # without a consent, the decision has arrived before the response to the creation
    consent = record.consent or Consent(asked_at=event.at, until=event.at)
    if record.consent_status is event.status:
        return job
    is_decided = consent.status is not JobStatus.PENDING
    if is_decided or job.status is not JobStatus.PENDING or job.ending is not None:
        return job.with_note(
            event.at,
            "late response ignored",
            event.node,
            status=event.status,
        )
    consent = replace(
        consent,
        status=event.status,
        permit=event.permit,
    )
    record = replace(
        record,
        consent=consent,
        unreachable_since=None,
    )
    if event.failure is not None:
        return _record_refusal(job, record, event.failure, event.at)
    if consent.asked_only:  # the node has approved its audit: now the job is created there
        record = replace(
            record,
            consent=replace(consent, asked_only=False),
            create=Call(),
        )
    return job.with_node(record).with_note(event.at, "approved", event.node)


def _record_refusal(
    job: Job,
    record: NodeJob,
    failure: Failure,
    at: datetime,
) -> Job:
    """Record that a node has rejected the job: its creation there counts as refused."""
    create = replace(
        record.create,
        state=CallState.REFUSED,
        reason=failure.reason,
        message=failure.message,
    )
    job = job.with_node(replace(record, create=create))
    return job.with_note(at, "rejected", record.node, **failure.as_dict())


def why_too_late(job: Job, event: ApprovalReported) -> str:
    """Return why a node's decision is refused as too late; empty if it is not refused.

    Two late decisions are not refused, as `record_confirmation` lets them change nothing: the
    repetition of an earlier decision, and an unexpected approval of a job that is READY or RUNNING.
    """
    earlier = job.nodes[event.node].consent_status
    if earlier is event.status:
        return ""
    if earlier not in (None, JobStatus.PENDING):
        return f"node {event.node} has answered {earlier} before"
    if ended(JOB, job.status) or job.ending is not None:
        return "the job has ended, or is about to"
    if event.failure is not None and job.status is not JobStatus.PENDING:
        return f"the job is {job.status} already"
    return ""


def record_silence(
    job: Job,
    node: NodeId,
    now: datetime,
) -> Job:
    """Record that a node has not reported its decision by its deadline: it counts as refusing."""
    record = job.nodes[node]
    assert record.consent is not None  # otherwise nothing is due
    text = f"{node} was asked at {moment(record.consent.asked_at)} and has not decided"
    record = replace(
        record,
        consent=replace(
            record.consent,
            status=JobStatus.REJECTED,
        ),
        # The node has accepted the creation: the call's state stays OK, so that a stop is sent.
        create=replace(
            record.create,
            reason=TIMEOUT,
            message=text,
        ),
    )
    return job.with_node(record).with_note(now, "approval timed out", node, message=text)
