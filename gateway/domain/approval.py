"""Who agrees to a job at a participating node: by rule at once, or a person before a deadline.

Rules are matched against every piece of the job here: a task at a party, with its component and its own dataset.
The first rule that matches a piece decides on it; a piece that no rule matches has to be asked for. One piece that
is rejected rejects the job, and one that has to be asked for makes the job wait.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase

from gateway.domain.dag import DagNode
from gateway.domain.parameters import data_location
from gateway.domain.run import Approval, Audit, LocalJob, Preparation
from gateway.domain.spec import Call, CallState, Ending, Failure, JobSpec, NodeId
from gateway.domain.states import JOB, JobStatus, Outcome, ended, move

REJECTED, NOT_AUTHORISED, TIMEOUT = "APPROVAL_REJECTED", "NOT_AUTHORISED", "APPROVAL_TIMEOUT"
LATE = "PULL_TIMEOUT"
"""reason of a job whose images did not come in time"""

CREATE, START = "create", "start"
"""what is asked for: that a job is taken here, or that it, or a task of it, begins"""

_MOST_TRIES = 8640
"""of telling the decision: a day at the longest pause"""


class Verdict(StrEnum):
    """What is decided about a job, or a piece of it."""

    APPROVE = "approve"
    REJECT = "reject"
    ASK = "ask"


class Mode(StrEnum):
    """Who decides where no rule does."""

    OFF = "off"
    """every job of a known node is taken, unless a rule rejects it"""
    RULES = "rules"
    """the rules decide, and a person where they say so or say nothing"""
    PERSON = "person"
    """a person decides on every job that no rule rejects"""


@dataclass(frozen=True)
class Piece:
    """One task at one party here. ``dataset`` is empty where the task has no data of its own."""

    source: NodeId
    component: str
    """``provider/name``"""
    dataset: str
    role: str
    command: str = CREATE


@dataclass(frozen=True)
class Rule:
    """Patterns in which ``*`` stands for anything, and what is decided where all of them match."""

    decide: Verdict
    source: str = "*"
    component: str = "*"
    dataset: str = "*"
    role: str = "*"
    command: str = "*"

    def matches(self, piece: Piece) -> bool:
        """Tell whether all its patterns match."""
        return all(
            fnmatchcase(getattr(piece, name), getattr(self, name))
            for name in ("source", "component", "dataset", "role", "command")
        )


@dataclass(frozen=True)
class Policy:
    """What a node's admin has set. ``deadline`` is in seconds."""

    mode: Mode = Mode.OFF
    deadline: float = 86_400.0
    rules: tuple[Rule, ...] = ()


RolesOf = Callable[[DagNode], Iterable[str] | None]
"""roles that take part in a task; None where the component is not known"""


def pieces(
    spec: JobSpec, node: NodeId, source: NodeId, roles_of: RolesOf, command: str = CREATE
) -> Iterator[Piece]:
    """Yield what the job wants of this node; ``command`` is `CREATE` or `START`."""
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


def judge(policy: Policy, wanted: Iterable[Piece], *, own: bool = False) -> tuple[Verdict, str]:
    """Return what the policy says of a job, and which piece of it, by which rule, made it so.

    ``own``: this node's own platform handed the job in, so that nobody is asked unless a rule says so.
    """
    verdict, words = Verdict.APPROVE, ""
    other = Rule(Verdict.APPROVE if own else Verdict.ASK)
    for piece in wanted:
        number, rule = next(((i, r) for i, r in enumerate(policy.rules) if r.matches(piece)), (None, other))
        data = f" on {piece.dataset}" if piece.dataset else ""
        by = "no rule decides on" if number is None else f"approval.rules[{number}] says {rule.decide} to"
        said = f"{by} {piece.component} as {piece.role}{data} for {piece.source}"
        if rule.decide is Verdict.REJECT:
            return Verdict.REJECT, said
        if rule.decide is Verdict.ASK and verdict is Verdict.APPROVE:
            verdict, words = Verdict.ASK, said
    if policy.mode is Mode.OFF:
        return Verdict.APPROVE, ""
    if policy.mode is Mode.PERSON and not own:
        return Verdict.ASK, "every job is decided on by a person here"
    return verdict, words


def opened(local: LocalJob, policy: Policy, words: str, at: datetime) -> LocalJob:
    """Return a new job as one that waits for a person."""
    until = at + timedelta(seconds=policy.deadline)
    local = replace(local, status=JobStatus.PENDING, approval=Approval(at, until))
    return local.noted(at, "approval asked", until=until.isoformat(), message=words)


def decided(local: LocalJob, approve: bool, by: str, words: str, at: datetime) -> LocalJob:
    """Return the job after a person's decision; nothing changes where it was made before, or the job has ended."""
    reason = f"{by or 'an operator'} at {local.node} refused" + (f": {words}" if words else "")
    failure = None if approve else Failure(REJECTED, reason, local.node)
    if prepares(local) and local.preparation and local.approval and (approve or local.preparation.agreed):
        if local.preparation.agreed:
            return local  # that was decided before
        until = max(local.approval.until, local.preparation.until)
        known = replace(local.approval, by=by, decided_at=at, until=until)
        local = replace(local, approval=known, preparation=replace(local.preparation, agreed=True))
        return local.noted(at, "approved, its images are still being fetched", by, message=words)
    return concluded(local, approve, by, failure, words, at)


def by_rule(local: LocalJob, approve: bool, words: str, at: datetime) -> LocalJob:
    """Return the job after the node's rules decided on it, where that is to be told as a person's decision is."""
    text = f"node {local.node} does not take part: {words}"
    failure = None if approve else Failure(NOT_AUTHORISED, text, local.node)
    return concluded(local, approve, "", failure, words, at)


def timed_out(local: LocalJob, now: datetime) -> LocalJob:
    """Return the job after nobody decided in time, or what it needs did not come."""
    since = local.approval.since.isoformat() if local.approval else ""
    if prepares(local) and local.preparation and local.preparation.agreed:
        text = f"{', '.join(local.preparation.images)} not here by {now.isoformat()}: {local.preparation.progress}"
        return concluded(local, False, "", Failure(LATE, text, local.node), text, now)
    failure = Failure(TIMEOUT, f"nobody at {local.node} decided on the job, which asked at {since}", local.node)
    return concluded(local, False, "", failure, failure.message, now)


def prepares(local: LocalJob) -> bool:
    """Say whether something is still being fetched for a job that waits here."""
    known = local.preparation
    return known is not None and local.status is JobStatus.PENDING and not known.fetch.settled


def asks_person(local: LocalJob) -> bool:
    """Say whether somebody has still to agree to the job here."""
    agreed = local.preparation is not None and local.preparation.agreed
    return local.approval is not None and local.status is JobStatus.PENDING and not agreed


def concluded(
    local: LocalJob, approve: bool, by: str, failure: Failure | None, words: str, at: datetime
) -> LocalJob:
    """Return the job as READY or REJECTED, which is then told; nothing changes where that was done before."""
    if local.approval is None or local.status is not JobStatus.PENDING:
        return local
    status = JobStatus.READY if approve else JobStatus.REJECTED
    approval = replace(local.approval, decision=status, by=by, failure=failure, decided_at=at)
    local = replace(local, status=move(JOB, local.status, status), approval=approval)
    if not approve:
        local = replace(local, ended_at=at)
    event = "approved" if approve else "rejected by a person" if by or words != "" else "rejected"
    if failure is not None and failure.reason == NOT_AUTHORISED:
        event = "rejected by rule"
    if failure is not None and failure.reason == TIMEOUT:
        event = "approval timed out"
    if local.preparation is not None and by == "":
        event = "ready to take part" if approve else "not ready to take part"
    return local.noted(at, event, by, message=words).noted(at, f"job {status} here")


def expires_at(local: LocalJob) -> datetime | None:
    """Return when silence becomes a refusal; None where nobody is asked any more."""
    return local.approval.until if local.approval and local.status is JobStatus.PENDING else None


def to_confirm(local: LocalJob) -> Call | None:
    """Return the call that tells the decision, as far as it has come; None where there is nothing to tell."""
    approval = local.approval
    if approval is None or approval.decision is JobStatus.PENDING or approval.confirm.state is CallState.OK:
        return None
    overtaken = approval.decision is JobStatus.READY and (
        ended(JOB, local.status) or local.status is JobStatus.RUNNING
    )
    return None if overtaken or approval.confirm.tries >= _MOST_TRIES else approval.confirm


def confirming(local: LocalJob, change: Callable[[Call], Call]) -> LocalJob:
    """Return the job with the call that tells the decision changed."""
    if local.approval is None:
        return local
    return replace(local, approval=replace(local.approval, confirm=change(local.approval.confirm)))


# A job that another node asks about before it creates it here (management layer, job audit).
#
# The question makes the job's record at once, so that rules, people, deadlines and the way a decision is told are
# those of every approval; what is missing is only the word that creates the job. Until that comes nothing is held,
# nobody is asked whether the job still exists, and an approval that is not used ends with its deadline.

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
    local = opened(local, policy, words, at)
    return local if verdict is Verdict.ASK else by_rule(local, verdict is Verdict.APPROVE, words, at)


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


def lapses_at(local: LocalJob) -> datetime | None:
    """Return when silence ends the job: nobody's decision, or nobody's use of it; None where neither is due."""
    known = local.approval
    if known is not None and known.decided_at is not None and unused(local) and not ended(JOB, local.status):
        return known.decided_at + (known.until - known.since)
    return expires_at(local)


def expired(local: LocalJob, now: datetime, end: Callable[[LocalJob, Ending], LocalJob]) -> LocalJob:
    """Return the job after that silence."""
    if local.status is JobStatus.PENDING:
        return timed_out(local, now)
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


# What a participating node fetches before it says that a job is READY: images that are not here and may be had.
#
# To the scheduling node this looks like the wait for a person: the creation is answered PENDING, and the word
# follows once everything is here, or cannot be had. Where a person has to agree as well, both have to be done.


def with_preparation(local: LocalJob, images: Mapping[str, str], seconds: float, at: datetime) -> LocalJob:
    """Return a new job as one that waits for its images, for so many seconds at most; without any, as it is."""
    if not images:
        return local
    from_person = local.status is JobStatus.PENDING
    until = at + timedelta(seconds=seconds)
    preparation = Preparation(dict(images), at, until, agreed=not from_person)
    local = replace(local, preparation=preparation)
    if not from_person:
        local = replace(local, status=JobStatus.PENDING, approval=Approval(at, until))
    return local.noted(at, "images are fetched", images=sorted(images), until=until.isoformat())


def told(local: LocalJob, progress: str) -> LocalJob:
    """Note how far the fetching has come; nothing changes once it is over."""
    if not prepares(local) or local.preparation is None:
        return local
    return replace(local, preparation=replace(local.preparation, progress=progress))


def finished(local: LocalJob, failure: Failure | None, at: datetime) -> LocalJob:
    """Return the job once everything is here, or (with a failure) cannot be had."""
    if not prepares(local) or local.preparation is None:
        return local
    state = CallState.REFUSED if failure else CallState.OK
    fetch = replace(local.preparation.fetch, state=state, due_at=None)
    local = replace(local, preparation=replace(local.preparation, fetch=fetch))
    seconds = round((at - local.preparation.since).total_seconds(), 1) if local.preparation else 0.0
    if failure is not None:
        local = local.noted(at, "images not fetched", **failure.as_dict())
        return concluded(local, False, "", replace(failure, node=local.node), failure.message, at)
    local = local.noted(at, "images fetched", seconds=seconds)
    if not local.preparation or not local.preparation.agreed:
        return local  # a person has still to agree
    known = local.approval
    return concluded(local, True, known.by if known else "", None, "", at)


def alone(local: LocalJob) -> bool:
    """Say whether the job waits, or waited, for its images and for no person."""
    known = local.preparation
    return known is not None and known.agreed and (local.approval is None or not local.approval.by)


def to_fetch(local: LocalJob) -> Call | None:
    """Return the fetching as far as it has come; None where there is nothing to fetch."""
    return local.preparation.fetch if prepares(local) and local.preparation else None


def fetching(local: LocalJob, fetch: Call) -> LocalJob:
    """Return the job with the fetching as it is now."""
    return replace(local, preparation=replace(local.preparation, fetch=fetch)) if local.preparation else local


_PATTERNS = ("source", "component", "dataset", "role", "command")


def idle(policy: Policy) -> Iterator[tuple[int, str]]:
    """Yield the number of each such rule, and why it never counts."""
    for number, rule in enumerate(policy.rules):
        earlier = next((i for i, other in enumerate(policy.rules[:number]) if _covers(other, rule)), None)
        if earlier is not None:
            yield number, f"approval.rules[{earlier}] comes first and matches all that it matches"
        elif rule.decide is Verdict.REJECT or any(r.decide is Verdict.REJECT for r in policy.rules[number + 1 :]):
            continue  # what it matches is kept from a later refusal
        elif policy.mode is Mode.OFF:
            yield number, f"{rule.decide} changes nothing while approval.mode is off"
        elif rule.command == START:
            yield number, f"{rule.decide} changes nothing about a start, of which only a reject counts"


def _covers(one: Rule, other: Rule) -> bool:
    return all(getattr(one, name) in ("*", getattr(other, name)) for name in _PATTERNS)
