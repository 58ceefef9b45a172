"""Use cases of applications: what partners send, what people here decide, what is delivered and queried then.

What follows from an approval or an end (a route, a grant) is done before the state is stored: it may be repeated,
and a process that dies in between leaves a state that still asks for it.
"""

import ipaddress
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol
from uuid import uuid4

import structlog

from gateway.auth import digest
from gateway.domain import applications
from gateway.domain.applications import (
    APPLIED,
    APPROVED,
    REJECTED,
    TERMINATED,
    Application,
    Kind,
    Side,
)
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
    key: str = ""
    """the public key in them, as routes hold it"""


class Signature(Protocol):
    """The signature of the request under way."""

    @property
    def present(self) -> bool:
        """Whether the request has one in this gateway's form."""

    def check(self, keys: Sequence[str]) -> None:
        """Raise `NotAllowed` unless one of these public keys has signed the request."""


class Calls(Protocol):
    """Requests to partners about applications. Each raises `PeerUnreachable`, or whatever the partner responds."""

    def partner_keys(self, new: Application, key: str) -> tuple[str, ...]:
        """Return the public keys that have to sign the partner's answers about a contract.

        ``key``: the key, or its id, as a person has compared it. Raises `Invalid` where none is known and the
        partner has to sign.
        """

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

    def end(
        self,
        known: Application,
        by: str,
        *,
        last: bool,
    ) -> None:
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
        keys_of: Callable[[NodeId], Sequence[str]],
    ) -> None:
        """``note`` writes into the audit what partners change; people's changes are there already.

        ``keys_of`` returns the public keys in the route of a node.
        """
        self._note = note
        self._keys_of = keys_of
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
                lacking = NotAllowed(
                    f"no contract with {partner} is in force", reason="NO_CONTRACT"
                )
                lacking.node = partner
                raise lacking
            return found
        known = (self.kept.find(side, partner, Kind.CONTRACT, contract_id) for side in Side)
        if (found := next((one for one in known if one and one.holds(now)), None)) is None:
            raise NotFound(
                "no contract of that id is in force with this node", reason="CONTRACT_UNKNOWN"
            )
        return found

    def receive_contract(self, new: Application, address: str) -> Application:
        """Keep a contract that a node applies for, which may be unknown; the same once more is the same.

        It is the same only if the same key has signed it: nobody else gets its id.
        """
        waiting = self.kept.list(Side.THEIRS, Kind.CONTRACT, APPLIED, new.partner)
        for known in waiting if new.keys else ():
            if (known.request, known.keys) == (new.request, new.keys):
                return known
        is_partner = set(new.keys) & set(self._keys_of(new.partner))
        if is_partner and len(waiting) < MOST_OF_ADDRESS:
            address = ""
        else:
            self._make_room(address)
        made = self.kept.add(replace(new, id=uuid4().hex), address)
        assert made is not None
        return made

    def _make_room(self, address: str) -> None:
        """Raise `Busy` where no further contract of an unknown node may wait for a decision.

        Once all places are taken, the newest application of the network that has most gives way to one of a
        network that has fewer: nobody takes all places from a few networks.
        """
        full = Busy(
            "too many applications wait for a decision here", reason="TOO_MANY_APPLICATIONS"
        )
        if self.kept.waiting(address=address) >= MOST_OF_ADDRESS:
            raise full
        by_network: dict[str, list[int]] = {}
        waiting = self.kept.waiting_by_address(Kind.CONTRACT)
        if len(waiting) < MOST_WAITING:
            return
        for number, sender in waiting.items():
            by_network.setdefault(network_of(sender), []).append(number)
        largest = max(by_network.values(), key=len)
        if len(largest) <= len(by_network.get(network_of(address), ())) + 1:
            raise full
        log.warning("an application gives way to one from another network", number=max(largest))
        self.kept.drop(max(largest))

    def receive(self, new: Application) -> Application:
        """Keep what a partner applies for. Raises `Conflict` for an id that it has used for something else."""
        known = self.kept.find(Side.THEIRS, new.partner, new.kind, new.id)
        if known is None or known.status is REJECTED:
            if effect := self._effects.get(new.kind):
                effect.check(new)
            if self.kept.waiting(partner=new.partner) >= MOST_OF_PARTNER:
                raise Busy(
                    "too many applications wait for a decision here", reason="TOO_MANY_APPLICATIONS"
                )
        if known is not None:
            return self._change(known, lambda known: applications.again(known, new))
        return self.kept.add(new) or self.receive(new)

    def confirm(
        self,
        kind: Kind,
        id_: str,
        partner: NodeId,
        answer: Answer,
        signature: Signature | None = None,
    ) -> None:
        """Take the answer to an application of this node. Raises `NotFound`, `Conflict`, `NotAllowed`."""
        known = self._of(kind, id_, partner, Side.MINE)
        if signature is not None:
            self._check_proof(known, signature)
        self._noted(known, self._answered(known, answer))

    def end(
        self,
        kind: Kind,
        id_: str,
        partner: NodeId,
        signature: Signature | None = None,
    ) -> None:
        """End an application that the partner terminates, whoever applied. Raises `NotFound`, `NotAllowed`."""
        known = self._of(kind, id_, partner, *Side)
        if signature is not None:
            self._check_proof(known, signature)
        if kind is Kind.CONTRACT and (known.side, known.status) == (Side.THEIRS, APPLIED):
            self.kept.drop(known.number)  # or unknown nodes could fill the database by twos
            return
        self._noted(known, self._end(known, partner, "terminated by the partner", tell=False))

    def status(
        self,
        kind: Kind,
        id_: str,
        partner: NodeId,
        signature: Signature | None = None,
    ) -> Application:
        """Return a partner's application as it is now. Raises `NotFound` for those of others, `NotAllowed`."""
        known = self._of(kind, id_, partner, Side.THEIRS)
        if signature is not None:
            self._check_proof(known, signature)
        return applications.expired(known, self._clock())

    def proving_keys(self, known: Application) -> Sequence[str]:
        """Return the public keys that prove a partner's messages about a contract: its route's, if there are."""
        return self._keys_of(known.partner) or known.keys

    def update(
        self,
        partner: NodeId,
        contract_id: str,
        values: Mapping[str, Any],
        key: str,
    ) -> None:
        """Take a partner's new address and key into its contract and route; ``key``: as routes hold it."""
        known = self.contract_with(partner, contract_id)
        if known.side is Side.THEIRS:
            changed = replace(known, request={**known.request, **values}, url=values["address"])
        else:
            changed = replace(known, answer={**known.answer, **values}, url=values["address"])
        self._effects[Kind.CONTRACT].begin(changed, partner)
        request, answer, url = changed.request, changed.answer, changed.url
        after = self._change(
            known,
            lambda one: replace(
                one,
                request=request,
                answer=answer,
                url=url,
                keys=(key,),
            ),
        )
        self._noted(known, after)

    # ------------------------------------------------------------ for people here

    def ask(self, new: Application, key: str = "") -> Application:
        """Apply with a partner; what it does not take is not kept.

        ``key``: of a contract, the partner's public key or its id, as a person has compared it.
        """
        if new.kind is Kind.CONTRACT:
            new = replace(new, keys=self._calls.partner_keys(new, key))
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
        self,
        number: int,
        approve: bool,
        by: str,
        reason: str,
        **changes: Any,
    ) -> tuple[Application, Application]:
        """Decide on a partner's application; return it before and after. ``changes``: fields that differ."""
        known = replace(self.kept.get(number), **changes)
        if approve:
            _check_signed(known)
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

    def terminate(
        self,
        number: int,
        by: str,
        reason: str,
    ) -> tuple[Application, Application]:
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
                self._lanes.submit(
                    known.partner, lambda: self._try(claimed), f"application {number}"
                )

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
        self.kept.change(
            known.number, lambda one: applications.delivered(one) if _same(one, known) else one
        )

    def _not_delivered(
        self,
        known: Application,
        error: GatewayError,
        again: bool,
    ) -> None:
        log.warning(
            "a partner did not take a notice",
            number=known.number,
            partner=known.partner,
            cause=error.reason,
        )
        text = shorten(f"{error.reason}: {error.message}", 1000)

        def change(one: Application) -> Application:
            if not _same(one, known):
                return one
            return replace(
                one, trouble=text, due_at=one.due_at if again else None
            )  # a person may try again

        self.kept.change(known.number, change)

    def _answered(self, known: Application, answer: Answer) -> Application:
        now = self._clock()
        if answer.status is TERMINATED:
            return self._end(known, known.partner, "terminated by the partner", tell=False)

        more = dict(answer.granted)
        if answer.credentials and self._is_compared(known, answer):
            more["answer"] = answer.credentials

        def change(one: Application) -> Application:
            return applications.confirmed(one, answer.status, now, **more)

        will_be = _changed(known, change)
        # once only: an answer that comes again must not enable a route that people here have disabled since
        new = answer.status is APPROVED and known.status is not APPROVED
        if new and (effect := self._effects.get(known.kind)):
            effect.begin(will_be, known.partner)
        return self._change(known, change)

    def _check_proof(self, known: Application, signature: Signature) -> None:
        """Raise `NotAllowed` unless a message about a contract is signed by a key that was compared before.

        A partner whose product does not sign is one for which a person said so (``signing``).
        """
        keys = self.proving_keys(known)
        if known.side is Side.THEIRS and not keys:
            return  # its application was not signed either: the id of the contract is all that it has
        if known.signing == "off" or (
            known.signing == "accepted" and not (keys and signature.present)
        ):
            return
        signature.check(keys)

    def _is_compared(self, known: Application, answer: Answer) -> bool:
        """Tell whether the key in a partner's answer was compared. Raises `Conflict` where another one was.

        A product that does not sign may bring a key that nobody has compared: it is not kept.
        """
        keys = self.proving_keys(known)
        if known.kind is Kind.CONTRACT and keys and answer.key not in keys:
            text = f"the answer of {known.partner} brings another key than the one that was compared before"
            raise Conflict(text, reason="KEY_NOT_COMPARED")
        return known.kind is not Kind.CONTRACT or bool(keys)

    def _end(
        self,
        known: Application,
        by: str,
        reason: str,
        tell: bool,
    ) -> Application:
        now = self._clock()
        if known.status is APPROVED and (effect := self._effects.get(known.kind)):
            effect.end(known, by, last=not self._others(known, now))

        def change(one: Application) -> Application:
            return (
                applications.terminated(one, by, reason, now, tell)
                if one.status is known.status
                else one
            )

        after = self._change(known, change)
        if after.status is APPROVED:  # meanwhile: what follows from that ends too
            return self._end(after, by, reason, tell)
        self._soon(after)
        return after

    def _others(self, known: Application, now: datetime) -> list[Application]:
        """Return what else is in force for the same; contracts of either side are for the same route."""
        contract = known.kind is Kind.CONTRACT
        found = self.kept.list(
            None if contract else known.side, known.kind, APPROVED, known.partner
        )
        same = (one for one in found if contract or one.subject == known.subject)
        return [one for one in same if one.number != known.number and one.holds(now)]

    def _noted(self, before: Application, after: Application) -> None:
        if after != before:
            about = {
                "application": after.number,
                "kind": str(after.kind),
                "id": after.id,
            }
            old, new = (
                about | {n: getattr(one, n) for n in ("status", "expires_at", "most_jobs", "url")}
                for one in (before, after)
            )
            self._note(
                after.partner, "application changed by a partner", {"before": old, "after": new}
            )

    def _soon(self, known: Application) -> None:
        if known.notice:
            self.loop.wake(str(known.number))

    def _of(
        self,
        kind: Kind,
        id_: str,
        partner: NodeId,
        *sides: Side,
    ) -> Application:
        found = (self.kept.find(side, partner, kind, id_) for side in sides)
        if (known := next(filter(None, found), None)) is None:
            raise NotFound("no application of that id is known here", reason="APPLICATION_UNKNOWN")
        return known

    def _change(
        self, known: Application, change: Callable[[Application], Application]
    ) -> Application:
        return self.kept.change(known.number, lambda one: _changed(one, change))


def network_of(address: str) -> str:
    """Return the network of an address that one institution or provider has: /24, of IPv6 /48."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    ip = getattr(ip, "ipv4_mapped", None) or ip
    bits = 24 if ip.version == 4 else 48
    return str(ipaddress.ip_network((ip, bits), strict=False))


def _check_signed(known: Application) -> None:
    """Raise `Conflict` for a contract whose applicant is to sign, and has not signed even its application."""
    if known.kind is Kind.CONTRACT and known.signing == "required" and not known.keys:
        text = (
            f"application {known.number} is not signed by its key, so anybody can have sent it, with another "
            f"address: have {known.partner} apply anew, or compare key and address and approve with --signing off"
        )
        raise Conflict(text, reason="APPLICATION_NOT_SIGNED")


def _changed(known: Application, change: Callable[[Application], Application]) -> Application:
    """Return an application after a change. Raises `Conflict` where that is not possible."""
    try:
        return change(known)
    except IllegalMove as error:
        text = f"application {known.number} is {known.status}: {error}"
        raise Conflict(text, reason="APPLICATION_STATE") from error


def _claimed(
    one: Application,
    known: Application,
    now: datetime,
) -> Application:
    """Return an application whose call this gateway makes; unchanged where another one has begun it."""
    return applications.later(one, now, one.trouble) if one == known else one


def _same(one: Application, known: Application) -> bool:
    return (one.status, one.notice) == (known.status, known.notice)
