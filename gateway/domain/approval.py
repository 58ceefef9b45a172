"""The approval of a job by a participating node: by rule immediately, or by a person before a deadline.

At the participating node it is an `Approval`, at the scheduling node a `Consent`. Rules are matched against every
piece of the job here: a task at a party, with its component and its own dataset. The first rule that matches a
piece decides on it; a piece that no rule matches needs a person. One rejected piece rejects the job, and one that
needs a person makes the job wait.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase

from gateway.domain.dag import RolesOf
from gateway.domain.job import GRACE, Acceptance, Consent, Job
from gateway.domain.run import Approval, Audit, LocalJob, Preparation
from gateway.domain.spec import (
    Call,
    CallState,
    Ending,
    Failure,
    JobSpec,
    NodeId,
    data_location,
    moment,
)
from gateway.domain.states import JOB, JobStatus, Outcome, ended, move

REJECTED, NOT_AUTHORISED, TIMEOUT = "APPROVAL_REJECTED", "NOT_AUTHORISED", "APPROVAL_TIMEOUT"
LATE = "PULL_TIMEOUT"
"""reason of a job whose images were not pulled in time"""

CREATE, START = "create", "start"
"""what is requested: that a job is accepted here, or that it, or a task of it, starts"""

_MOST_TRIES = 8640
"""of reporting the decision: a day at the longest pause"""


class Verdict(StrEnum):
    """What is decided about a job, or a piece of it."""

    APPROVE = "approve"
    REJECT = "reject"
    ASK = "ask"


class Mode(StrEnum):
    """Who decides where no rule does."""

    OFF = "off"  # every job of a known node is accepted, unless a rule rejects it
    RULES = "rules"  # the rules decide, and a person where they say so or none matches
    PERSON = "person"  # a person decides on every job that no rule rejects


@dataclass(frozen=True)
class Piece:
    """One task at one party here. ``dataset`` is empty where the task has no data of its own."""

    source: NodeId
    component: str  # ``provider/name``
    dataset: str
    role: str
    command: str = CREATE


_PATTERNS = ("source", "component", "dataset", "role", "command")


@dataclass(frozen=True)
class Rule:
    """Patterns with ``*`` as wildcard, and the verdict where all of them match."""

    decide: Verdict
    source: str = "*"
    component: str = "*"
    dataset: str = "*"
    role: str = "*"
    command: str = "*"

    def matches(self, piece: Piece) -> bool:
        """Whether all its patterns match."""
        return all(fnmatchcase(getattr(piece, name), getattr(self, name)) for name in _PATTERNS)


@dataclass(frozen=True)
class Policy:
    """What a node's admin has set. ``deadline`` is in seconds."""

    mode: Mode = Mode.OFF
    deadline: float = 86_400.0
    rules: tuple[Rule, ...] = ()


def pieces(
    spec: JobSpec,
    node: NodeId,
    source: NodeId,
    roles_of: RolesOf,
    command: str = CREATE,
) -> Iterator[Piece]:
    """Yield the pieces of the job at this node; ``command`` is `CREATE` or `START`."""
    for task in spec.dag.nodes:
        roles = roles_of(task)
        name = f"{task.component.provider}/{task.component.name}"
        for party in spec.parties_at(node):
            if roles is None or party.role in roles:
                where = data_location(spec.task_params, party, task.name) or {}
                dataset = where.get("dataset_id") or "#".join(
                    where[k] for k in ("namespace", "name") if k in where
                )
                yield Piece(source, name, dataset, party.role, command)


def judge(
    policy: Policy,
    wanted: Iterable[Piece],
    *,
    own: bool = False,
) -> tuple[Verdict, str]:
    """Return the policy's verdict on a job, and which piece of it, by which rule, decided it.

    ``own``: this node's own platform submitted the job, so that no person is needed unless a rule says so.
    """
    verdict, words = Verdict.APPROVE, ""
    other = Rule(Verdict.APPROVE if own else Verdict.ASK)
    for piece in wanted:
        number, rule = next(
            ((i, r) for i, r in enumerate(policy.rules) if r.matches(piece)), (None, other)
        )
        data = f" on {piece.dataset}" if piece.dataset else ""
        by = (
            "no rule decides on"
            if number is None
            else f"approval.rules[{number}] says {rule.decide} to"
        )
        text = f"{by} {piece.component} as {piece.role}{data} for {piece.source}"
        if rule.decide is Verdict.REJECT:
            return Verdict.REJECT, text
        if rule.decide is Verdict.ASK and verdict is Verdict.APPROVE:
            verdict, words = Verdict.ASK, text
    if policy.mode is Mode.OFF:
        return Verdict.APPROVE, ""
    if policy.mode is Mode.PERSON and not own:
        return Verdict.ASK, "every job is decided on by a person here"
    return verdict, words


def await_person(
    local: LocalJob,
    policy: Policy,
    words: str,
    at: datetime,
) -> LocalJob:
    """Return a new job as one that waits for a person."""
    until = at + timedelta(seconds=policy.deadline)
    local = replace(local, status=JobStatus.PENDING, approval=Approval(at, until))
    return local.noted(at, "approval asked", until=until.isoformat(), message=words)


def record_decision(
    local: LocalJob,
    approve: bool,
    by: str,
    words: str,
    at: datetime,
) -> LocalJob:
    """Return the job after a person's decision; only the first one counts, while the job is PENDING."""
    fetching = pending_preparation(local)
    if fetching and fetching.agreed:
        return local  # that was decided before
    if not approve:
        reason = f"{by or 'an operator'} at {local.node} refused" + (f": {words}" if words else "")
        failure = Failure(REJECTED, reason, local.node)
        return _concluded(local, "rejected by a person", at, failure, by, words)
    if fetching and local.approval:
        until = max(local.approval.until, fetching.until)
        known = replace(
            local.approval,
            by=by,
            decided_at=at,
            until=until,
        )
        local = replace(local, approval=known, preparation=replace(fetching, agreed=True))
        return local.noted(at, "approved, its images are still being fetched", by, message=words)
    return _concluded(local, "approved", at, None, by, words)


def _concluded(
    local: LocalJob,
    event: str,
    at: datetime,
    failure: Failure | None = None,
    by: str = "",
    words: str = "",
) -> LocalJob:
    """Return the job as READY or REJECTED, which is then reported; nothing changes where that was done before."""
    if local.approval is None or local.status is not JobStatus.PENDING:
        return local
    status = JobStatus.READY if failure is None else JobStatus.REJECTED
    approval = replace(
        local.approval,
        decision=status,
        by=by,
        failure=failure,
        decided_at=at,
    )
    local = replace(local, status=move(JOB, local.status, status), approval=approval)
    local = local if failure is None else replace(local, ended_at=at)
    return local.noted(at, event, by, message=words).noted(at, f"job {status} here")


def pending_preparation(local: LocalJob) -> Preparation | None:
    """Return what is still being pulled for a job that waits here; None for nothing."""
    known = local.preparation
    return (
        known if known and local.status is JobStatus.PENDING and not known.fetch.completed else None
    )


def awaits_person(local: LocalJob) -> bool:
    """Whether a person has still to decide on the job here."""
    agreed = local.preparation is not None and local.preparation.agreed
    return local.approval is not None and local.status is JobStatus.PENDING and not agreed


def expires_at(local: LocalJob) -> datetime | None:
    """Return when silence becomes a refusal; None where no decision is awaited."""
    return local.approval.until if local.approval and local.status is JobStatus.PENDING else None


def pending_confirmation(local: LocalJob) -> Call | None:
    """Return the call that reports the decision; None where there is nothing to report."""
    approval = local.approval
    if (
        approval is None
        or approval.decision is JobStatus.PENDING
        or approval.confirm.state is CallState.OK
    ):
        return None
    over = ended(JOB, local.status) or local.status is JobStatus.RUNNING
    overtaken = approval.decision is JobStatus.READY and over
    return None if overtaken or approval.confirm.tries >= _MOST_TRIES else approval.confirm


# Job audit (management layer): another node requests approval before it creates the job here.
#
# The request makes the job's record immediately, so that rules, people, deadlines and reports are those of every
# approval. Until the job is created nothing is reserved, and an approval that is not used expires.

WITHDRAWN, UNUSED = "AUDIT_WITHDRAWN", "AUDIT_UNUSED"
_PREFIX = "audit_"


class AuditStatus(StrEnum):
    """The states of the management layer."""

    APPLIED = "APPLIED"
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    TERMINATED = "TERMINATED"


def id_for(job_id: str) -> str:
    """Return the id of this node's audit of a job; the same from each of several gateways."""
    return _PREFIX + job_id


def job_of(audit_id: str) -> str:
    """Return the job of one of this node's audits."""
    return audit_id.removeprefix(_PREFIX)


def open_audit(
    local: LocalJob,
    audit: Audit,
    policy: Policy,
    verdict: Verdict,
    words: str,
    at: datetime,
) -> LocalJob:
    """Return a new job as one under audit, decided on immediately where the rules do so."""
    local = replace(local, audit=audit).noted(
        at, "asked before creation", local.spec.scheduler, audit=audit.id
    )
    local = await_person(local, policy, words, at)
    if verdict is Verdict.APPROVE:
        return _concluded(local, "approved", at, words=words)
    if verdict is Verdict.REJECT:
        failure = Failure(
            NOT_AUTHORISED, f"node {local.node} does not take part: {words}", local.node
        )
        return _concluded(local, "rejected by rule", at, failure, words=words)
    return local


def audit_existing(
    local: LocalJob,
    audit: Audit,
    at: datetime,
) -> LocalJob:
    """Return a job that was created before its audit: the decision on it is reported to the audit."""
    known = local.approval or Approval(at, at, JobStatus.READY, decided_at=at)
    local = replace(local, audit=replace(audit, created=True), approval=known)
    return local.noted(at, "asked after creation", local.spec.scheduler, audit=audit.id)


def is_unused(local: LocalJob) -> bool:
    """Whether the job was audited and has not been created since."""
    return local.audit is not None and not local.audit.created


def is_same(local: LocalJob, spec: JobSpec) -> bool:
    """Whether a job is the audited one, as far as it concerns this node.

    Entries of other nodes are not compared: they may be sent with the audit and not later.
    """
    one, other = (
        replace(s.for_node(local.node), trace_id="", bundles={}) for s in (local.spec, spec)
    )
    return one == other


def record_creation(
    local: LocalJob,
    at: datetime,
    by: str,
) -> LocalJob:
    """Return the job once it is created."""
    if local.audit is None or local.audit.created or ended(JOB, local.status):
        return local
    local = replace(local, audit=replace(local.audit, created=True), last_contact=at)
    return local.noted(at, f"job {local.status} here", by)


def withdrawal(
    by: str,
    at: datetime,
    reported: Ending | None = None,
) -> Ending:
    """Return how a job ends that the node which asked withdraws: with its reason, if it gives one."""
    if reported is not None and reported.failure is not None:
        return reported
    return Ending(
        Outcome.STOPPED, at, Failure(WITHDRAWN, f"{by} does not ask for the job any more", by), by
    )


def lapses_at(local: LocalJob) -> datetime | None:
    """Return when the job expires: no decision, or no use of it; None where neither is due."""
    known = local.approval
    if (
        known is not None
        and known.decided_at is not None
        and is_unused(local)
        and not ended(JOB, local.status)
    ):
        return known.decided_at + (known.until - known.since)
    return expires_at(local)


def expire(
    local: LocalJob,
    now: datetime,
    end: Callable[[LocalJob, Ending], LocalJob],
) -> LocalJob:
    """Return the job after it was not used or not decided on, or its images were not pulled, in time."""
    if local.status is not JobStatus.PENDING:
        text = f"{local.spec.scheduler} has not created the job within the time after which an approval ends"
        return end(
            local, Ending(Outcome.STOPPED, now, Failure(UNUSED, text, local.node), local.node)
        )
    fetching, event = pending_preparation(local), "not ready to take part"
    if fetching and fetching.agreed:
        text = f"{', '.join(fetching.images)} not here by {moment(now)}: {fetching.progress}"
        return _concluded(local, event, now, Failure(LATE, text, local.node), words=text)
    since = moment(local.approval.since) if local.approval else ""
    text = f"{local.node} did not decide on the job, submitted for approval at {since}, in time"
    event = event if local.preparation else "approval timed out"
    return _concluded(local, event, now, Failure(TIMEOUT, text, local.node), words=text)


def audit_status(local: LocalJob) -> AuditStatus:
    """Return the state of the audit."""
    decision = local.approval.decision if local.approval else JobStatus.READY
    if decision is JobStatus.REJECTED:
        return AuditStatus.REJECTED
    if ended(JOB, local.status) and (decision is JobStatus.PENDING or is_unused(local)):
        return AuditStatus.TERMINATED
    return AuditStatus.APPLIED if decision is JobStatus.PENDING else AuditStatus.APPROVED


# Images that a participating node pulls before a job is READY.
#
# To the scheduling node this looks like an approval: the creation is answered PENDING, and the decision follows
# once everything is here, or cannot be pulled. Where a person has to decide as well, both are needed.


def await_images(
    local: LocalJob,
    images: Mapping[str, str],
    seconds: float,
    at: datetime,
) -> LocalJob:
    """Return a new job as one that waits for its images, for so many seconds at most."""
    if not images:
        return local
    from_person = local.status is JobStatus.PENDING
    until = at + timedelta(seconds=seconds)
    local = replace(local, preparation=Preparation(dict(images), at, until, agreed=not from_person))
    if not from_person:
        local = replace(local, status=JobStatus.PENDING, approval=Approval(at, until))
    return local.noted(at, "images are fetched", images=sorted(images), until=until.isoformat())


def record_preparation(
    local: LocalJob,
    failure: Failure | None,
    at: datetime,
) -> LocalJob:
    """Return the job once everything is here, or (with a failure) cannot be pulled."""
    known = pending_preparation(local)
    if known is None:
        return local
    state = CallState.REFUSED if failure else CallState.OK
    local = replace(
        local, preparation=replace(known, fetch=replace(known.fetch, state=state, due_at=None))
    )
    if failure is not None:
        local = local.noted(at, "images not fetched", **failure.as_dict())
        failure = replace(failure, node=local.node)
        return _concluded(local, "not ready to take part", at, failure, words=failure.message)
    local = local.noted(at, "images fetched", seconds=round((at - known.since).total_seconds(), 1))
    if not known.agreed:
        return local  # a person has still to decide
    by = local.approval.by if local.approval else ""
    return _concluded(local, "approved" if by else "ready to take part", at, by=by)


def awaited_only_images(local: LocalJob) -> bool:
    """Whether the job waits, or waited, for its images and not for a person."""
    known = local.preparation
    return known is not None and known.agreed and (local.approval is None or not local.approval.by)


# The scheduling node's side: nodes that need an approval before they take part in a job.

DEADLINE = 86_400.0
"""seconds for a node that does not report how long it may take"""


@dataclass(frozen=True)
class ApprovalReported:
    """A node's decision: it takes part, or (with a failure) it does not."""

    node: NodeId
    at: datetime
    failure: Failure | None = None

    @property
    def status(self) -> JobStatus:
        """READY or REJECTED."""
        return JobStatus.READY if self.failure is None else JobStatus.REJECTED


def record_condition(
    job: Job,
    node: NodeId,
    acceptance: Acceptance,
    at: datetime,
) -> Job:
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
        return job.noted(
            at, "waits for a node to be ready", node, until=by, message=acceptance.waits_for
        )
    return job.noted(at, "waits for approval", node, until=by)


def record_confirmation(job: Job, event: ApprovalReported) -> Job:
    """Record a node's decision. It counts once, while the job is PENDING; anything else is only noted."""
    record = job.nodes[event.node]
    known, failure = record.consent, event.failure
    if known is not None and known.status is event.status:
        return job
    over = job.status is not JobStatus.PENDING or job.ending is not None
    if over or (known is not None and known.status is not JobStatus.PENDING):
        return job.noted(event.at, "late response ignored", event.node, status=event.status)
    consent = replace(known or Consent(event.at, event.at), status=event.status)
    create = record.create
    if failure is not None:
        create = replace(
            create,
            state=CallState.REFUSED,
            reason=failure.reason,
            message=failure.message,
        )
    elif consent.asked_only:
        consent, create = replace(consent, asked_only=False), Call()  # only now it is created there
    job = job.with_node(
        replace(
            record,
            consent=consent,
            create=create,
            unreachable_since=None,
        )
    )
    detail = failure.as_dict() if failure else {}
    return job.noted(event.at, "rejected" if failure else "approved", event.node, **detail)


def contradicts(job: Job, event: ApprovalReported) -> str:
    """Return why a decision is too late; empty where it counts, or repeats the earlier one."""
    known = job.nodes[event.node].consent
    if known is not None and known.status is event.status:
        return ""
    if known is not None and known.status is not JobStatus.PENDING:
        return f"node {event.node} has answered {known.status} before"
    if ended(JOB, job.status) or job.ending is not None:
        return "the job has ended, or is about to"
    if job.status is not JobStatus.PENDING and event.failure is not None:
        return f"the job is {job.status} already"
    return ""


def record_silence(
    job: Job,
    node: NodeId,
    now: datetime,
) -> Job:
    """Count a node that never reported its decision as one that refused."""
    record = job.nodes[node]
    assert record.consent is not None  # else nothing is due
    words = f"{node} was asked at {moment(record.consent.asked_at)} and has not decided"
    # it has accepted the job all the same, and is to be stopped
    create = replace(record.create, reason=TIMEOUT, message=words)
    record = replace(
        record, consent=replace(record.consent, status=JobStatus.REJECTED), create=create
    )
    return job.with_node(record).noted(now, "approval timed out", node, message=words)


# Rules that never count.


def ineffective_rules(policy: Policy) -> Iterator[tuple[int, str, str]]:
    """Yield the number of each rule that never counts, why, and what to do."""
    for number, rule in enumerate(policy.rules):
        earlier = next(
            (i for i, other in enumerate(policy.rules[:number]) if _covers(other, rule)), None
        )
        if earlier is not None:
            why = f"approval.rules[{earlier}] comes first and matches all that it matches"
            yield number, why, "put it before that rule, or remove it"
        elif rule.decide is Verdict.REJECT or any(
            r.decide is Verdict.REJECT for r in policy.rules[number + 1 :]
        ):
            continue  # what it matches is kept from a later refusal
        elif policy.mode is Mode.OFF:
            why = f"{rule.decide} changes nothing while approval.mode is off"
            yield number, why, "set approval.mode: rules, or remove it"
        elif rule.command == START:
            why = f"{rule.decide} changes nothing about a start, of which only a reject counts"
            yield number, why, "write decide: reject or another command, or remove it"


def _covers(one: Rule, other: Rule) -> bool:
    return all(getattr(one, name) in ("*", getattr(other, name)) for name in _PATTERNS)
