"""Who agrees to a job at a participating node: by rule at once, or a person before a deadline.

Rules are matched against every piece of the job here: a task at a party, with its component and its own dataset.
The first rule that matches a piece decides on it; a piece that no rule matches has to be asked for. One piece that
is rejected rejects the job, and one that has to be asked for makes the job wait.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase

from gateway.domain.dag import DagNode
from gateway.domain.parameters import data_location
from gateway.domain.run import Approval, LocalJob
from gateway.domain.spec import Call, CallState, Failure, JobSpec, NodeId
from gateway.domain.states import JOB, JobStatus, ended, move

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
