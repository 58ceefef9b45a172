"""Applications of nodes to each other: for contracts, and for the use of another node's resources.

They are part of the standard's management layer. Every kind takes the same path: a node applies,
the owner approves or rejects, and either of them may terminate. The applicant asks for the state if
no response arrives. A permission also ends at a set time, or after a set number of jobs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from gateway.domain.approval import AuditStatus
from gateway.domain.spec import NodeId
from gateway.domain.states import IllegalMove

APPLIED = AuditStatus.APPLIED
APPROVED = AuditStatus.APPROVED
REJECTED = AuditStatus.REJECTED
TERMINATED = AuditStatus.TERMINATED

# Pauses between calls to the partner: the first one doubles with each try, up to the longest one.
# Both are longer than a call takes, so that no call is repeated while it is under way.
_FIRST_PAUSE = timedelta(seconds=15)
_LONGEST_PAUSE = timedelta(hours=1)
_MAX_DOUBLINGS = 20  # enough to reach the longest pause


class Kind(StrEnum):
    """The subject of an application."""

    CONTRACT = "contract"
    DATASET = "dataset"
    PROJECT = "project"
    FLOW = "flow"
    MODEL = "model"


class Side(StrEnum):
    """The applicant, seen from the node that has the record."""

    MINE = "mine"  # this node has applied
    THEIRS = "theirs"  # the partner has applied, and this node decides


MOVES: Mapping[AuditStatus, frozenset[AuditStatus]] = {
    APPLIED: frozenset({APPROVED, REJECTED, TERMINATED}),
    APPROVED: frozenset({TERMINATED}),
    REJECTED: frozenset({APPLIED}),
    TERMINATED: frozenset(),
}


@dataclass(frozen=True)
class Application:
    """One application, as each of the two nodes records it."""

    kind: Kind
    id: str  # made by the owner for a contract, otherwise by the applicant
    partner: NodeId
    side: Side
    subject: str  # id of the dataset, project, flow or model; for a contract, the partner's id
    request: Mapping[str, Any]  # as it was sent
    at: datetime  # when the node applied
    status: AuditStatus = APPLIED
    by: str = ""  # who changed the status last
    reason: str = ""
    changed_at: datetime | None = None
    expires_at: datetime | None = None
    most_jobs: int | None = None  # jobs that may use the permission; None: any number
    # the permit: at the applicant while it is valid, at the owner until the applicant has it
    token: str = ""
    digest: str = ""  # of the permit that this node checks
    # received, or sent, with an approval: the permit or the owner's credentials
    answer: Mapping[str, Any] = field(default_factory=dict)
    notice: str = ""  # undelivered message to the partner: confirm, terminate
    due_at: datetime | None = None  # next notification or query
    tries: int = 0
    trouble: str = ""  # why the notice could not be delivered
    url: str = ""  # the partner's address; only for contracts
    level: int = 1  # level of this node's permit, as the owner has recorded it
    # for a contract: whether the route that it writes requires signatures of the partner's requests
    signing: str = "required"
    # Public keys that prove the partner's messages about a contract. In a partner's application for
    # a contract: the key that signed it.
    keys: tuple[str, ...] = ()
    number: int = 0  # number of the record in this node's database
    jobs: int = 0  # number of jobs that have used the permission

    def holds(self, now: datetime) -> bool:
        """Return whether the application is approved and has not expired at a time."""
        return self.status is APPROVED and (self.expires_at is None or now < self.expires_at)


def new_application(
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
    """Return a new application.

    If it is this node's own, the partner is asked for its state after a pause.
    """
    application = Application(
        kind,
        id_,
        partner,
        side,
        subject,
        request,
        now,
        expires_at=expires_at,
        most_jobs=most_jobs,
        url=url,
        signing=signing,
    )
    if side is Side.THEIRS:
        return replace(application, by=partner)
    return replace(application, due_at=now + _FIRST_PAUSE)


def again(existing: Application, new: Application) -> Application:
    """Return the record after a partner applied again under the same id.

    The same application changes nothing; a rejected one may be repeated, even with other content.
    Raises `IllegalMove` for other content, and for an application that was terminated.
    """
    if existing.status is REJECTED:
        return replace(new, number=existing.number)
    if existing.request != new.request or existing.status is TERMINATED:
        raise IllegalMove(f"{existing.status} -> {APPLIED}")
    return existing


def record_decision(
    application: Application,
    approve: bool,
    by: str,
    reason: str,
    now: datetime,
    token: str = "",
    digest: str = "",
) -> Application:
    """Return a partner's application after the decision of a person at this node.

    ``token`` is the permit of an approval, ``digest`` its digest. The partner has to be notified.
    Raises `IllegalMove` for this node's own application, and for one that is decided already.
    """
    if application.side is not Side.THEIRS:
        raise IllegalMove(f"{application.partner} decides")
    if approve:
        application = _move(application, APPROVED, by, reason, now)
        application = replace(
            application,
            token=token,
            digest=digest,
        )
    else:
        application = _move(application, REJECTED, by, reason, now)
    return replace(application, notice="confirm", due_at=now)


def confirmed(
    application: Application,
    status: AuditStatus,
    now: datetime,
    reason: str = "",
    **granted: Any,
) -> Application:
    """Return this node's application after the partner's response. Raises `IllegalMove`.

    ``granted`` are new values of its fields. A repeated response changes nothing else; it does not
    change a contract at all, whose route was written by the first response.
    """
    if application.side is not Side.MINE:
        raise IllegalMove(f"{application.partner} has applied")
    if status is not application.status:
        application = _move(application, status, application.partner, reason, now)
        return replace(application, due_at=None, **granted)
    if application.kind is Kind.CONTRACT:
        return application
    return replace(application, **granted)


def terminated(
    application: Application,
    by: str,
    reason: str,
    now: datetime,
    tell: bool,
) -> Application:
    """Return an application after either node has ended it; a rejected one stays so.

    ``tell``: the partner has to be notified.
    """
    if TERMINATED not in MOVES[application.status]:
        return application
    application = _move(application, TERMINATED, by, reason, now)
    application = replace(
        application,
        due_at=None,
        token="",
    )
    if not tell:
        return application
    return replace(application, notice="terminate", due_at=now)


def expired(application: Application, now: datetime) -> Application:
    """Return an application as it is at a time: terminated if it has expired.

    The partner is not notified, as it knows when the application expires.
    """
    if application.status is not APPROVED or application.holds(now):
        return application
    return terminated(
        application,
        "",
        "expired",
        now,
        tell=False,
    )


def delivered(application: Application) -> Application:
    """Return an application after the partner accepted its notice.

    The owner forgets the permit, which the applicant has now.
    """
    application = replace(
        application,
        notice="",
        due_at=None,
        tries=0,
        trouble="",
    )
    if application.side is Side.MINE:
        return application
    return replace(application, token="")


def later(
    application: Application,
    now: datetime,
    trouble: str = "",
) -> Application:
    """Return an application whose partner is called again after a pause.

    The pause doubles with each try. ``trouble`` is why the call has failed.
    """
    pause = _FIRST_PAUSE * 2 ** min(application.tries, _MAX_DOUBLINGS)
    return replace(
        application,
        tries=application.tries + 1,
        due_at=now + min(pause, _LONGEST_PAUSE),
        trouble=trouble,
    )


def next_due(application: Application) -> datetime | None:
    """Return when an application has its next action: a call to the partner, or its expiry.

    None if there is no further action.
    """
    times = []
    awaits_decision = application.side is Side.MINE and application.status is APPLIED
    if application.due_at is not None and (application.notice or awaits_decision):
        times.append(application.due_at)
    if application.expires_at is not None and application.status is APPROVED:
        times.append(application.expires_at)
    return min(times, default=None)


def _move(
    application: Application,
    status: AuditStatus,
    by: str,
    reason: str,
    now: datetime,
) -> Application:
    """Return an application in another state, with nothing left to notify. Raises `IllegalMove`."""
    if status not in MOVES[application.status]:
        raise IllegalMove(f"{application.status} -> {status}")
    return replace(
        application,
        status=status,
        by=by,
        reason=reason,
        changed_at=now,
        notice="",
        tries=0,
        trouble="",
    )
