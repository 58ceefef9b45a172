"""Use cases of applications: what partners send, what people here decide, what is delivered and queried then.

What follows from an approval or an end (a route, a grant) is done before the state is stored: it may be repeated,
and a process that dies in between leaves a state that still asks for it.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol
from uuid import uuid4

import structlog

from gateway.auth import digest
from gateway.domain import applications
from gateway.domain.applications import APPLIED, APPROVED, REJECTED, TERMINATED, Application, Kind, Side
from gateway.domain.approval import AuditStatus
from gateway.domain.spec import NodeId
from gateway.domain.states import IllegalMove
from gateway.errors import (
    Busy,
    Conflict,
    GatewayError,
    NotAllowed,
    NotFound,
    PeerUnreachable,
    shorten,
)
from gateway.ports import Clock
from gateway.runtime.lanes import Lanes
from gateway.runtime.loop import Loop
from gateway.store.applications import SqlApplications

log = structlog.get_logger(__name__)

Note = Callable[[NodeId, str, Mapping[str, Any]], None]
"""writes into the audit what a partner, or with "" the gateway itself, has changed"""
MOST_WAITING, MOST_OF_ADDRESS, MOST_OF_PARTNER = 100, 5, 200
"""applications that nobody has decided on: contracts in all, those from one address, all of one partner"""


@dataclass(frozen=True)
class Answer:
    """A partner's answer to an application of this node."""

    status: AuditStatus
    granted: Mapping[str, Any]
    """fields of the `Application`: its permit, until when, how often"""
    credentials: Mapping[str, Any]
    """of a contract's owner: auth_credential, auth_type"""


class Calls(Protocol):
    """Requests to partners about applications. Each raises `PeerUnreachable`, or whatever the partner responds."""

    def apply(self, new: Application) -> str:
        """Send an application; return its id, which of a contract the partner chooses."""

    def deliver(self, known: Application) -> None:
        """Send the notice that is due."""

    def query(self, known: Application) -> Answer:
        """Ask for the state of an application of this node."""


class Effect(Protocol):
    """What follows from an application of one kind; `begin` and `end` may be repeated."""

    def check(self, new: Application) -> None:
        """Raise `GatewayError` for what could not be approved; by default every application is taken."""
        return

    def begin(self, known: Application, by: str) -> None:
        """Do what an approval promises. Raises `Invalid`, `NotFound` where that cannot be done."""

    def end(self, known: Application, by: str, *, last: bool) -> None:
        """Undo it. ``last``: no other application of the partner for the same is in force."""


class Applications:
    """The applications between this node and its partners."""

    def __init__(
        self,
        kept: SqlApplications,
        effects: Mapping[Kind, Effect],
        calls: Calls,
        lanes: Lanes,
        note: Note,
        clock: Clock,
    ) -> None:
        """``note`` writes into the audit what partners change; people's changes are there already."""
        self._note = note
        self.kept = kept
        self._effects = effects
        self._calls = calls
        self._lanes = lanes
        self._clock = clock
        self.loop = Loop("applications", self._advance, kept.due, clock=clock, workers=1)

    # ------------------------------------------------------------ for partners

    def contract_with(self, partner: NodeId, contract_id: str | None = None) -> Application:
        """Return the contract with a node that is in force. Raises `NotAllowed`, or `NotFound` for another id."""
        now = self._clock()
        if contract_id is None:
            if (found := self.kept.contract(partner, now)) is None:
                raise NotAllowed(f"no contract with {partner} is in force", reason="NO_CONTRACT")
            return found
        known = (self.kept.find(side, partner, Kind.CONTRACT, contract_id) for side in Side)
        if (found := next((one for one in known if one and one.holds(now)), None)) is None:
            raise NotFound("no contract of that id is in force with this node", reason="CONTRACT_UNKNOWN")
        return found

    def receive_contract(self, new: Application, address: str) -> Application:
        """Keep a contract that a node applies for, which may be unknown; the same once more is the same."""
        waiting = self.kept.list(Side.THEIRS, Kind.CONTRACT, APPLIED, new.partner)
        if known := next((one for one in waiting if one.request == new.request), None):
            return known
        if (
            self.kept.waiting(address=address) >= MOST_OF_ADDRESS
            or self.kept.waiting(kind=Kind.CONTRACT) >= MOST_WAITING
        ):
            raise Busy("too many applications wait for a decision here", reason="TOO_MANY_APPLICATIONS")
        made = self.kept.add(replace(new, id=uuid4().hex), address)
        assert made is not None
        return made

    def receive(self, new: Application) -> Application:
        """Keep what a partner applies for. Raises `Conflict` for an id that it has used for something else."""
        known = self.kept.find(Side.THEIRS, new.partner, new.kind, new.id)
        if (known is None or known.status is REJECTED) and (effect := self._effects.get(new.kind)):
            effect.check(new)
        if known is not None:
            return self._change(known, lambda known: applications.again(known, new))
        if self.kept.waiting(partner=new.partner) >= MOST_OF_PARTNER:
            raise Busy("too many applications wait for a decision here", reason="TOO_MANY_APPLICATIONS")
        return self.kept.add(new) or self.receive(new)

    def confirm(self, kind: Kind, id_: str, partner: NodeId, answer: Answer) -> None:
        """Take the answer to an application of this node. Raises `NotFound`, `Conflict`."""
        known = self._of(kind, id_, partner, Side.MINE)
        self._noted(known, self._answered(known, answer))

    def end(self, kind: Kind, id_: str, partner: NodeId) -> None:
        """End an application that the partner terminates, whoever of both applied. Raises `NotFound`."""
        known = self._of(kind, id_, partner, *Side)
        if kind is Kind.CONTRACT and (known.side, known.status) == (Side.THEIRS, APPLIED):
            self.kept.drop(known.number)  # or unknown nodes could fill the database by twos
            return
        self._noted(known, self._end(known, partner, "terminated by the partner", tell=False))

    def status(self, kind: Kind, id_: str, partner: NodeId) -> Application:
        """Return an application of a partner, as it is now. Raises `NotFound` for those of others, too."""
        return applications.expired(self._of(kind, id_, partner, Side.THEIRS), self._clock())

    def update(self, partner: NodeId, contract_id: str, values: Mapping[str, Any]) -> None:
        """Take a partner's new address and key into its contract and route."""
        known = self.contract_with(partner, contract_id)
        if known.side is Side.THEIRS:
            changed = replace(known, request={**known.request, **values}, url=values["address"])
        else:
            changed = replace(known, answer={**known.answer, **values}, url=values["address"])
        self._effects[Kind.CONTRACT].begin(changed, partner)
        request, answer, url = changed.request, changed.answer, changed.url
        after = self._change(known, lambda one: replace(one, request=request, answer=answer, url=url))
        self._noted(known, after)

    # ------------------------------------------------------------ for people here

    def ask(self, new: Application) -> Application:
        """Apply with a partner; what it does not take is not kept."""
        if new.kind is Kind.CONTRACT:
            new = replace(new, id=self._calls.apply(new))
            return self.kept.add(new) or self._of(new.kind, new.id, new.partner, Side.MINE)
        made = self.kept.add(replace(new, id=uuid4().hex))
        assert made is not None
        try:
            self._calls.apply(made)
        except Exception:
            self.kept.drop(made.number)
            raise
        return made

    def decide(
        self, number: int, approve: bool, by: str, reason: str, **changes: Any
    ) -> tuple[Application, Application]:
        """Decide on a partner's application; return it before and after. ``changes``: fields that differ."""
        known = replace(self.kept.get(number), **changes)
        token = secrets.token_urlsafe(32) if approve and known.kind is not Kind.CONTRACT else ""

        def change(known: Application) -> Application:
            known = replace(known, **changes)
            hashed = digest(token) if token else ""
            return applications.decided(known, approve, by, reason, self._clock(), token, hashed)

        _changed(known, change)
        if approve and (effect := self._effects.get(known.kind)):
            effect.begin(known, by)
        after = self._change(known, change)
        self._soon(after)
        return known, after

    def terminate(self, number: int, by: str, reason: str) -> tuple[Application, Application]:
        """End an application of either side; return it before and after."""
        known = self.kept.get(number)
        if known.status in (REJECTED, TERMINATED):
            raise Conflict(f"application {number} is {known.status}", reason="APPLICATION_STATE")
        return known, self._end(known, by, reason, tell=True)

    def refresh(self, number: int) -> Application:
        """Deliver a pending notice now, or query the partner's decision. Raises what it responds."""
        known = self.kept.get(number)
        if known.notice or (known.side is Side.MINE and known.status is APPLIED):
            self._call(known)
        return self.kept.get(number)

    # ------------------------------------------------------------ delivering, asking, ending

    def _advance(self, number: str) -> None:
        """Do what is due; calls are made in the lane of their partner."""
        try:
            known = self.kept.get(int(number))
        except NotFound:
            return
        now = self._clock()
        if applications.expired(known, now) != known:
            self._end(known, "", "expired", tell=False)
        elif known.due_at is not None and known.due_at <= now:
            claimed = self.kept.change(known.number, lambda one: _claimed(one, known, now))
            if claimed.tries > known.tries:
                self._lanes.submit(known.partner, lambda: self._try(claimed), f"application {number}")

    def _try(self, known: Application) -> None:
        try:
            self._call(known)
        except (PeerUnreachable, Busy) as error:
            self._not_delivered(known, error, again=True)
        except GatewayError as error:
            self._not_delivered(known, error, again=not known.notice)

    def _call(self, known: Application) -> None:
        if not known.notice:
            answer = self._calls.query(known)
            if answer.status is not APPLIED:
                self._noted(known, self._answered(known, answer))
            return
        self._calls.deliver(known)
        self.kept.change(known.number, lambda one: applications.delivered(one) if _same(one, known) else one)

    def _not_delivered(self, known: Application, error: GatewayError, again: bool) -> None:
        log.warning(
            "a partner did not take a notice", number=known.number, partner=known.partner, cause=error.reason
        )
        text = shorten(f"{error.reason}: {error.message}", 1000)

        def change(one: Application) -> Application:
            if not _same(one, known):
                return one
            return replace(one, trouble=text, due_at=one.due_at if again else None)  # a person may try again

        self.kept.change(known.number, change)

    def _answered(self, known: Application, answer: Answer) -> Application:
        now = self._clock()
        if answer.status is TERMINATED:
            return self._end(known, known.partner, "terminated by the partner", tell=False)

        def change(one: Application) -> Application:
            more = dict(answer.granted) | ({"answer": answer.credentials} if answer.credentials else {})
            return applications.confirmed(one, answer.status, now, **more)

        will_be = _changed(known, change)
        # once only: an answer that comes again must not enable a route that people here have disabled since
        new = answer.status is APPROVED and known.status is not APPROVED
        if new and (effect := self._effects.get(known.kind)):
            effect.begin(will_be, known.partner)
        return self._change(known, change)

    def _end(self, known: Application, by: str, reason: str, tell: bool) -> Application:
        now = self._clock()
        if known.status is APPROVED and (effect := self._effects.get(known.kind)):
            effect.end(known, by, last=not self._others(known, now))

        def change(one: Application) -> Application:
            return applications.terminated(one, by, reason, now, tell) if one.status is known.status else one

        after = self._change(known, change)
        if after.status is APPROVED:  # meanwhile: what follows from that ends too
            return self._end(after, by, reason, tell)
        self._soon(after)
        return after

    def _others(self, known: Application, now: datetime) -> list[Application]:
        """Return what else is in force for the same; contracts of either side are for the same route."""
        contract = known.kind is Kind.CONTRACT
        found = self.kept.list(None if contract else known.side, known.kind, APPROVED, known.partner)
        same = (one for one in found if contract or one.subject == known.subject)
        return [one for one in same if one.number != known.number and one.holds(now)]

    def _noted(self, before: Application, after: Application) -> None:
        if after != before:
            about = {"application": after.number, "kind": str(after.kind), "id": after.id}
            old, new = (
                about | {n: getattr(one, n) for n in ("status", "expires_at", "most_jobs", "url")}
                for one in (before, after)
            )
            self._note(after.partner, "application changed by a partner", {"before": old, "after": new})

    def _soon(self, known: Application) -> None:
        if known.notice:
            self.loop.wake(str(known.number))

    def _of(self, kind: Kind, id_: str, partner: NodeId, *sides: Side) -> Application:
        found = (self.kept.find(side, partner, kind, id_) for side in sides)
        if (known := next(filter(None, found), None)) is None:
            raise NotFound("no application of that id is known here", reason="APPLICATION_UNKNOWN")
        return known

    def _change(self, known: Application, change: Callable[[Application], Application]) -> Application:
        return self.kept.change(known.number, lambda one: _changed(one, change))


def _changed(known: Application, change: Callable[[Application], Application]) -> Application:
    """Return an application after a change. Raises `Conflict` where that is not possible."""
    try:
        return change(known)
    except IllegalMove as error:
        text = f"application {known.number} is {known.status}: {error}"
        raise Conflict(text, reason="APPLICATION_STATE") from error


def _claimed(one: Application, known: Application, now: datetime) -> Application:
    """Return an application whose call this gateway makes; unchanged where another one has begun it."""
    return applications.later(one, now, one.trouble) if one == known else one


def _same(one: Application, known: Application) -> bool:
    return (one.status, one.notice) == (known.status, known.notice)
