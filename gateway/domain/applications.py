"""What nodes apply for (the standard's management layer): contracts, and the use of what another one owns.

Every kind goes the same way: a node applies, the owner approves or rejects, either terminates; the node that has
applied asks for the state where the answer does not come. Times and counts end a permission by themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from gateway.domain.approval import AuditStatus
from gateway.domain.spec import NodeId
from gateway.domain.states import IllegalMove

APPLIED, APPROVED, REJECTED, TERMINATED = AuditStatus
_PAUSE, _LONGEST_PAUSE = timedelta(seconds=15), timedelta(hours=1)
"""longer than a call takes"""


class Kind(StrEnum):
    """What is applied for."""

    CONTRACT = "contract"
    DATASET = "dataset"
    PROJECT = "project"
    FLOW = "flow"
    MODEL = "model"


class Side(StrEnum):
    """Who applied."""

    MINE = "mine"
    THEIRS = "theirs"


MOVES: Mapping[AuditStatus, frozenset[AuditStatus]] = {
    APPLIED: frozenset({APPROVED, REJECTED, TERMINATED}),
    APPROVED: frozenset({TERMINATED}),
    REJECTED: frozenset({APPLIED}),
    TERMINATED: frozenset(),
}


@dataclass(frozen=True)
class Application:
    """One application, as each of the two nodes keeps it."""

    kind: Kind
    id: str
    """of a contract minted by the owner, else by who applies"""
    partner: NodeId
    side: Side
    subject: str
    """id of the dataset, project, flow or model; of a contract the partner's own"""
    request: Mapping[str, Any]
    """as it was sent"""
    at: datetime
    status: AuditStatus = APPLIED
    by: str = ""
    """who moved it last"""
    reason: str = ""
    changed_at: datetime | None = None
    expires_at: datetime | None = None
    most_jobs: int | None = None
    """jobs that may use it; None: any number"""
    token: str = ""
    """the permit: for as long as it is used, or at the owner until the partner has it"""
    digest: str = ""
    """of the permit that this node checks"""
    answer: Mapping[str, Any] = field(default_factory=dict)
    """what came, or goes, with an approval: the permit or the owner's credentials"""
    notice: str = ""
    """what the partner has still to hear: confirm, terminate"""
    due_at: datetime | None = None
    """when it is notified, or queried, next"""
    tries: int = 0
    trouble: str = ""
    """why it could not be delivered"""
    url: str = ""
    """where the partner is reached; of contracts only, before there is a route"""
    level: int = 1
    """of this node's permit, as its owner has it"""
    signing: str = "required"
    """of the route that a contract writes: whether the partner's requests must be signed"""
    keys: tuple[str, ...] = ()
    """public keys that prove the partner's messages about a contract; of its application: who signed it"""
    number: int = 0
    jobs: int = 0
    """how many have used it"""

    def holds(self, now: datetime) -> bool:
        """Tell whether it is approved and has not expired."""
        return self.status is APPROVED and (self.expires_at is None or now < self.expires_at)


def applied(
    kind: Kind,
    id_: str,
    partner: NodeId,
    side: Side,
    subject: str,
    request: Mapping[str, Any],
    now: datetime,
    expires_at: datetime | None = None,
    most_jobs: int | None = None,
    url: str = "",
    signing: str = "required",
) -> Application:
    """Return a new application; this node asks what became of its own."""
    due = now + _PAUSE if side is Side.MINE else None
    found = Application(
        kind, id_, partner, side, subject, request, now, expires_at=expires_at, due_at=due
    )
    by = partner if side is Side.THEIRS else ""
    return replace(
        found,
        most_jobs=most_jobs,
        url=url,
        signing=signing,
        by=by,
    )


def again(known: Application, new: Application) -> Application:
    """Return what is kept where a partner applies under an id that is known. Raises `IllegalMove`.

    The same once more changes nothing; what was rejected may be applied for again, with other content too.
    """
    if known.status is REJECTED:
        return replace(new, number=known.number)
    if known.request != new.request or known.status is TERMINATED:
        raise IllegalMove(f"{known.status} -> {APPLIED}")
    return known


def decided(
    known: Application,
    approve: bool,
    by: str,
    reason: str,
    now: datetime,
    token: str = "",
    digest: str = "",
) -> Application:
    """Return a partner's application as a person here decided on it. Raises `IllegalMove`."""
    if known.side is not Side.THEIRS:
        raise IllegalMove(f"{known.partner} decides")
    found = _moved(known, APPROVED if approve else REJECTED, by, reason, now)
    found = replace(found, notice="confirm", due_at=now)
    return replace(found, token=token, digest=digest) if approve else found


def confirmed(
    known: Application,
    status: AuditStatus,
    now: datetime,
    reason: str = "",
    **granted: Any,
) -> Application:
    """Return an application of this node with the partner's answer; ``granted``: fields. Raises `IllegalMove`.

    An answer that comes again, as its response was lost, changes only what it grants, and of a contract nothing:
    its route was written by the first one.
    """
    if known.side is not Side.MINE:
        raise IllegalMove(f"{known.partner} has applied")
    if status is known.status:
        return known if known.kind is Kind.CONTRACT else replace(known, **granted)
    return replace(_moved(known, status, known.partner, reason, now), due_at=None, **granted)


def terminated(
    known: Application,
    by: str,
    reason: str,
    now: datetime,
    tell: bool,
) -> Application:
    """Return an application that either ends; what was rejected stays so. ``tell``: the partner has to know."""
    if not MOVES[known.status] & {TERMINATED}:
        return known
    due = now if tell else None
    found = _moved(known, TERMINATED, by, reason, now)
    return replace(
        found,
        notice="terminate" if tell else "",
        due_at=due,
        token="",
    )


def expired(known: Application, now: datetime) -> Application:
    """Return an application as it is now: both sides know when it ends."""
    over = known.status is APPROVED and not known.holds(now)
    return terminated(known, "", "expired", now, tell=False) if over else known


def delivered(known: Application) -> Application:
    """Return an application whose partner has taken a notice; the owner forgets the permit."""
    token = known.token if known.side is Side.MINE else ""
    return replace(
        known,
        notice="",
        due_at=None,
        tries=0,
        trouble="",
        token=token,
    )


def later(
    known: Application,
    now: datetime,
    trouble: str = "",
) -> Application:
    """Return an application whose partner is called again after a pause that grows."""
    pause = min(_PAUSE * 2 ** min(known.tries, 20), _LONGEST_PAUSE)
    return replace(
        known,
        tries=known.tries + 1,
        due_at=now + pause,
        trouble=trouble,
    )


def next_due(known: Application) -> datetime | None:
    """Return when something is to be done about an application."""
    waits = known.notice or (known.side is Side.MINE and known.status is APPLIED)
    times = (
        known.due_at if waits else None,
        known.expires_at if known.status is APPROVED else None,
    )
    return min((at for at in times if at is not None), default=None)


def _moved(
    known: Application,
    status: AuditStatus,
    by: str,
    reason: str,
    now: datetime,
) -> Application:
    if status not in MOVES[known.status]:
        raise IllegalMove(f"{known.status} -> {status}")
    return replace(
        known,
        status=status,
        by=by,
        reason=reason,
        changed_at=now,
        notice="",
        tries=0,
        trouble="",
    )
