"""Use cases of applications: receiving them, applying with partners, deciding, delivering, ending.

An approval has an effect, such as a route or a grant, and the end of the application undoes it.
Both happen before the new state is stored. If the process dies in between, the effect is repeated,
as the stored state has not changed; so every effect is idempotent.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
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
    UPDATE,
    Application,
    Kind,
    Side,
)
from gateway.domain.approval import AuditStatus
from gateway.domain.attestation import AttestationPolicy
from gateway.domain.attestation_policies import Contradiction
from gateway.domain.permit_scope import UNLIMITED, beyond
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId
from gateway.domain.states import IllegalMove
from gateway.errors import (
    Busy,
    Conflict,
    GatewayError,
    Invalid,
    NotAllowed,
    NotFound,
    PeerUnreachable,
    shorten,
)
from gateway.jobs.contract_inbox import ContractInbox, too_many_applications
from gateway.jobs.contract_proof import ContractProof, Signature, check_signed
from gateway.ports import Clock
from gateway.runtime.lanes import Lanes
from gateway.runtime.loop import Loop
from gateway.store.applications import SqlApplications

log = structlog.get_logger(__name__)

# Writes a change into the audit log. Takes the partner ("" for this gateway itself), the text of
# the event, and details.
WriteAudit = Callable[[NodeId, str, Mapping[str, Any]], None]
ApplicationChange = Callable[[Application], Application]

MAX_OF_PARTNER = 200  # undecided applications of one partner, at most
_MAX_TROUBLE = 1000  # characters of a failed call's message that are stored
_GRANT_REVOKED = "the grant of the dataset was revoked"  # reason of a permit's end
_AUDITED = (
    "status",
    "expires_at",
    "most_jobs",
    "url",
    "tee_approved",
)  # fields in the audit log of a change


@dataclass(frozen=True)
class PartnerAnswer:
    """A partner's answer to an application of this node."""

    status: AuditStatus  # the standard has the same states for applications and for audits of jobs
    # Values for fields of the `Application`: permit, end of validity, number of jobs.
    granted: Mapping[str, Any]
    # For a contract, the partner's credentials: auth_credential, auth_type.
    credentials: Mapping[str, Any]
    key: str = ""  # the public key in the credentials, in the form of routes


class Calls(Protocol):
    """Requests to partners about applications.

    Each raises `PeerUnreachable`, or the partner's refusal as a `GatewayError`.
    """

    def partner_keys(
        self,
        new: Application,
        key: str,
    ) -> tuple[str, ...]:
        """Return the public keys that have to sign the partner's answers about a contract.

        ``key`` is the partner's key, or the key's id, that a person has compared. Raises `Invalid`
        if it is empty and the partner has to sign.
        """

    def apply(self, new: Application) -> str:
        """Send an application; return its id. The id of a contract is chosen by the partner."""

    def deliver(self, application: Application) -> None:
        """Send the application's notice to the partner."""

    def query(self, application: Application) -> PartnerAnswer:
        """Ask for the state of an application of this node."""


class Effect(Protocol):
    """The consequences of an application of one kind; `begin` and `end` may be repeated.

    Their argument ``by`` is the person or the partner that approves or ends the application; empty
    if it ends because it has expired.
    """

    def check(self, new: Application) -> None:
        """Raise `GatewayError` for an application that could not be approved.

        Without an override all applications are accepted.
        """
        return

    def lapsed(self, application: Application) -> Sequence[Application]:
        """Return the approved applications without an effect that its approval would revive.

        Empty without an override.
        """
        return ()

    def begin(self, application: Application, by: str) -> None:
        """Put an approval into effect. Raises `Invalid` or `NotFound` if that is impossible."""

    def end(
        self,
        application: Application,
        by: str,
        *,
        last: bool,
    ) -> None:
        """Undo the effect. ``last``: no other application for the same subject is in force now."""


class Applications:
    """The applications between this node and its partners.

    The argument ``signature`` of methods for partners is that of a message about a contract; None
    for messages about other kinds, whose signatures are not checked here.
    """

    def __init__(
        self,
        store: SqlApplications,
        effects: Mapping[Kind, Effect],
        calls: Calls,
        lanes: Lanes,
        write_audit: WriteAudit,
        clock: Clock,
        keys_of: Callable[[NodeId], Sequence[str]],
        verifier_problems: Callable[[AttestationPolicy], Sequence[Problem]],
    ) -> None:
        """``effects`` has no entry for a kind without consequences.

        ``write_audit`` is called with changes by partners; changes by people are audited elsewhere.

        ``keys_of`` returns the public keys in the route of a node. ``verifier_problems`` returns
        why this node can verify no report of a policy.
        """
        self.store = store
        self._verifier_problems = verifier_problems
        self._effects = effects
        self._calls = calls
        self._lanes = lanes
        self._write_audit = write_audit
        self._clock = clock
        self._inbox = ContractInbox(store, keys_of)
        self._proof = ContractProof(keys_of)
        self.loop = Loop(
            "applications",
            self.advance,
            store.due,
            clock=clock,
            workers=1,
        )

    # -------------------------------------------------- for partners

    def contract_with(
        self,
        partner: NodeId,
        contract_id: str | None = None,
    ) -> Application:
        """Return the contract of an id, or any contract in force with a partner if the id is None.

        Raises `NotFound` if the contract of the id is not in force; without an id, `NotAllowed` if
        no contract is in force.
        """
        now = self._clock()
        if contract_id is None:
            return self._any_contract_with(partner, now)
        for side in Side:
            contract = self.store.find(side, partner, Kind.CONTRACT, contract_id)
            if contract is not None and contract.holds(now):
                return contract
        raise NotFound(
            "no contract of that id is in force with this node", reason="CONTRACT_UNKNOWN"
        )

    def _any_contract_with(self, partner: NodeId, now: datetime) -> Application:
        """Return the stored contract in force with a partner. Raises `NotAllowed` (NO_CONTRACT)."""
        contract = self.store.contract(partner, now)
        if contract is None:
            text = f"no contract with {partner} is in force"
            refusal = NotAllowed(text, reason="NO_CONTRACT")
            refusal.node = partner
            raise refusal
        return contract

    def receive_contract(self, new: Application, address: str) -> Application:
        """Store an application for a contract; its sender may be a node without a route.

        ``address`` is the sender's IP address. A repetition returns the stored application. Raises
        `Busy`.
        """
        return self._inbox.receive(new, address)

    def receive(self, new: Application) -> Application:
        """Store an application of a partner; a repetition returns the stored one.

        Raises `Conflict` for an id that the partner has used for something else, `Busy`, or the
        refusal of the kind's `Effect`.
        """

        def repeat(current: Application) -> Application:
            return applications.apply_again(current, new)

        stored = self.store.find(
            Side.THEIRS,
            new.partner,
            new.kind,
            new.id,
        )
        if stored is None or stored.status is REJECTED:  # a rejected one may be applied for again
            self._check_acceptable(new)
        if stored is not None:
            return self._change(stored, repeat)
        # `add` returns None if another request has just stored the same id, which this one repeats.
        return self.store.add(new) or self.receive(new)

    def _check_acceptable(self, new: Application) -> None:
        """Raise if an application cannot be approved, or if too many of the partner's wait."""
        effect = self._effects.get(new.kind)
        if effect is not None:
            effect.check(new)
        if self.store.count_undecided(partner=new.partner) >= MAX_OF_PARTNER:
            raise too_many_applications()

    def confirm(
        self,
        kind: Kind,
        id_: str,
        partner: NodeId,
        answer: PartnerAnswer,
        signature: Signature | None = None,
    ) -> None:
        """Record the partner's answer to an application of this node, with its effect.

        Raises `NotFound`, `Conflict`, and `NotAllowed` for an answer without the required
        signature.
        """
        application = self._find(kind, id_, partner, Side.MINE)
        if signature is not None:
            self._proof.check_message(application, signature)
        self._audit_change(application, self._apply_answer(application, answer))

    def end(
        self,
        kind: Kind,
        id_: str,
        partner: NodeId,
        signature: Signature | None = None,
    ) -> None:
        """End an application on the partner's request, whichever side had applied.

        Raises `NotFound`, `NotAllowed`.
        """
        application = self._find(kind, id_, partner, *Side)
        if signature is not None:
            self._proof.check_message(application, signature)
        awaits_decision = application.side is Side.THEIRS and application.status is APPLIED
        if kind is Kind.CONTRACT and awaits_decision:
            # Deleted, as unknown nodes could otherwise fill the database with ended contracts.
            self.store.drop(application.number)
            return
        self._audit_change(application, self._end_by_partner(application))

    def status(
        self,
        kind: Kind,
        id_: str,
        partner: NodeId,
        signature: Signature | None = None,
    ) -> Application:
        """Return a partner's application in its current state. Raises `NotFound`, `NotAllowed`."""
        application = self._find(kind, id_, partner, Side.THEIRS)
        if signature is not None:
            self._proof.check_message(application, signature)
        return applications.ended_if_expired(application, self._clock())

    def update(
        self,
        partner: NodeId,
        contract_id: str,
        values: Mapping[str, Any],
        key: str,
    ) -> None:
        """Write a partner's new address and key into its contract and route.

        ``values`` are the changed members of the partner's application or answer: ``address``, and
        the credentials with the key. ``key``: the public key in the form of routes.
        """
        contract = self.contract_with(partner, contract_id)
        # The partner's data are in its application, or in its answer to this node's application.
        updated = replace(contract, url=values["address"])
        # The effect reads the new keys from the credentials in ``values`` alone: keys from before
        # may have been replaced in the route since.
        if contract.side is Side.THEIRS:
            changes = replace(updated, request=values)
            updated = replace(updated, request={**contract.request, **values})
        else:
            changes = replace(updated, answer=values)
            updated = replace(updated, answer={**contract.answer, **values})
        self._effects[Kind.CONTRACT].begin(changes, partner)

        def write(current: Application) -> Application:
            return replace(
                current,
                request=updated.request,
                answer=updated.answer,
                url=updated.url,
                keys=(key,),
            )

        self._audit_change(contract, self._change(contract, write))

    # -------------------------------------------------- for people at this node

    def apply_with_partner(self, new: Application, key: str = "") -> Application:
        """Apply with a partner; if the call fails for any reason, the application is not kept.

        ``key``, for a contract, is the partner's public key or the key's id, as compared by a
        person.
        """
        if new.kind is Kind.CONTRACT:  # sent before it is stored, as the partner chooses its id
            new = replace(
                new,
                keys=self._calls.partner_keys(new, key),
            )
            new = replace(new, id=self._calls.apply(new))
            # `add` returns None if the partner has returned the id of a stored application.
            return self.store.add(new) or self._find(new.kind, new.id, new.partner, Side.MINE)
        application = self.store.add(replace(new, id=uuid4().hex))
        assert application is not None, "the id is new"
        try:
            self._calls.apply(application)
        except Exception:
            self.store.drop(application.number)
            raise
        return application

    def decide(
        self,
        number: int,
        approve: bool,
        by: str,
        reason: str,
        **changes: Any,
    ) -> tuple[Application, Application]:
        """Decide on a partner's application; return it before and after the decision.

        ``changes`` are fields that the decision changes, such as the end of the validity; both
        returned records have them. Raises `Conflict` if the application is decided already,
        `Invalid` for a scope beyond the requested one, and the errors of its effect.
        """
        undecided = replace(self.store.get(number), **changes)
        _check_limits(undecided)
        if approve:
            changes["tee_approved"] = self._approved_tee(undecided)
        token = ""  # the permit; a contract has none
        token_digest = ""
        if approve:
            check_signed(undecided)
            if undecided.kind is not Kind.CONTRACT:
                token = secrets.token_urlsafe(32)
                token_digest = digest(token)

        def record(current: Application) -> Application:
            changed = replace(current, **changes)
            return applications.record_decision(
                changed, approve, by, reason, self._clock(), token, token_digest
            )

        # If it is decided already, this raises `Conflict` before any effect.
        _checked(undecided, record)
        if approve:
            self._begin(undecided, by)
        after = self._change(undecided, record)
        self._deliver_soon(after)
        return undecided, after

    def _approved_tee(self, undecided: Application) -> AttestationPolicy | None:
        """Return the attestation reports of a contract's approval; None without any.

        Raises `Invalid` for an approval that contradicts the application, demands reports that this
        node cannot verify, or is for no contract.
        """
        policy = undecided.tee_approved
        if policy is not None and undecided.kind is not Kind.CONTRACT:
            rule = "is only for an application for a contract: leave it out"
            raise Invalid([Problem("tee", rule)])
        approved = applications.approved_tee(undecided, policy)
        if approved is None:
            return None
        if isinstance(approved, Contradiction):
            problems = list(approved.problems)
            for demanded in applications.tee_policies(undecided):
                problems += self._verifier_problems(demanded)
            raise Invalid(problems, reason="TEE_POLICY_CONFLICT")
        not_verifiable = self._verifier_problems(approved)
        if not_verifiable:
            raise Invalid(not_verifiable)
        return approved

    def terminate(
        self,
        number: int,
        by: str,
        reason: str,
    ) -> tuple[Application, Application]:
        """End an application of either side; return it before and after."""
        before = self.store.get(number)
        if before.status in (REJECTED, TERMINATED):
            raise Conflict(f"application {number} is {before.status}", reason="APPLICATION_STATE")
        return before, self._end(before, by, reason, tell=True)

    def end_dataset_permits(
        self,
        dataset_id: str,
        partner: NodeId,
        by: str,
    ) -> None:
        """End a partner's permits for a dataset whose grant was revoked, and tell the partner.

        Its undecided applications stay.
        """
        approved = self.store.list(
            Side.THEIRS,
            Kind.DATASET,
            APPROVED,
            partner,
        )
        for permit in approved:
            if permit.subject == dataset_id:
                self._end(permit, by, _GRANT_REVOKED, tell=True)

    def refresh(self, number: int) -> Application:
        """Deliver a pending notice now, or query the partner's decision if it is not known yet.

        Returns the application. Raises the partner's refusal.
        """
        application = self.store.get(number)
        is_undecided = application.side is Side.MINE and application.status is APPLIED
        if application.notice or is_undecided:
            self._call(application)
        return self.store.get(number)

    def deliver_now(self, number: int) -> None:
        """Deliver a pending notice without waiting for its time; an error is stored with it."""
        application = self.store.get(number)
        if application.notice:
            self._try_call(application)

    # -------------------------------------------------- notices and queries that are due

    def advance(self, number: str) -> None:
        """End an application that has expired, or queue its call to the partner if that is due.

        ``number`` is the number of the application, which is ignored if it was deleted.
        """
        try:
            application = self.store.get(int(number))
        except NotFound:
            return
        now = self._clock()
        if applications.ended_if_expired(application, now) != application:
            self._end(application, "", "expired", tell=False)
        elif application.due_at is not None and application.due_at <= now:
            self._submit_call(application, now)

    def _submit_call(self, application: Application, now: datetime) -> None:
        """Claim a due call and queue it.

        If the application has changed in the meantime, for example because another gateway of the
        node has claimed the call, nothing is queued.
        """
        is_claimed = False

        def claim(current: Application) -> Application:
            nonlocal is_claimed
            is_claimed = current == application
            if not is_claimed:
                return current
            return applications.postpone(current, now, current.trouble)

        claimed = self.store.change(application.number, claim)
        if is_claimed:
            name = f"application {application.number}"
            self._lanes.submit(
                application.partner,
                partial(self._try_call, claimed),
                name,
            )

    def _try_call(self, application: Application) -> None:
        """Make a call and store the error if it fails."""
        try:
            self._call(application)
        except (PeerUnreachable, Busy) as error:
            self._store_trouble(application, error, retry=True)
        except GatewayError as error:
            # A refused decision would be refused again; a query or an update may succeed later.
            self._store_trouble(application, error, retry=application.notice in ("", UPDATE))

    def _call(self, application: Application) -> None:
        """Deliver the notice that is due, or query the partner's decision."""
        if not application.notice:
            answer = self._calls.query(application)
            if answer.status is not APPLIED:
                self._audit_change(application, self._apply_answer(application, answer))
            return
        self._calls.deliver(application)

        def mark_delivered(current: Application) -> Application:
            if not _is_same_step(current, application):
                return current
            return applications.delivered(current, self._clock())

        self.store.change(application.number, mark_delivered)

    def _store_trouble(
        self,
        application: Application,
        error: GatewayError,
        retry: bool,
    ) -> None:
        """Store why a call failed; without ``retry`` only a person can repeat the call."""
        log.warning(
            "a call about an application failed",
            number=application.number,
            partner=application.partner,
            cause=error.reason,
        )
        text = shorten(f"{error.reason}: {error.message}", _MAX_TROUBLE)

        def write(current: Application) -> Application:
            if not _is_same_step(current, application):
                return current
            if retry:
                return replace(current, trouble=text)
            return replace(current, trouble=text, due_at=None)

        self.store.change(application.number, write)

    def _deliver_soon(self, application: Application) -> None:
        """Wake the loop to deliver the notice of an application; without a notice, do nothing."""
        if application.notice:
            self.loop.wake(str(application.number))

    # -------------------------------------------------- changes of state

    def _apply_answer(self, application: Application, answer: PartnerAnswer) -> Application:
        """Change an application of this node by its partner's answer. Raises `Conflict`.

        An approval takes effect before it is stored.
        """
        if answer.status is TERMINATED:
            return self._end_by_partner(application)
        now = self._clock()
        granted = dict(answer.granted)
        # Credentials with a key that was not compared are not stored.
        if answer.credentials and self._proof.is_compared(application, answer.key):
            granted["answer"] = answer.credentials

        def confirm(current: Application) -> Application:
            return applications.confirmed(current, answer.status, now, **granted)

        confirmed = _checked(application, confirm)
        # A repeated approval has no effect: a route that this node has disabled since the first one
        # must stay disabled.
        if answer.status is APPROVED and application.status is not APPROVED:
            self._begin(confirmed, application.partner)
        return self._change(application, confirm)

    def _begin(self, application: Application, by: str) -> None:
        """Put the approval of an application into effect, but of no earlier one that has lapsed."""
        effect = self._effects.get(application.kind)
        if effect is None:
            return
        for lapsed in effect.lapsed(application):
            self._end(lapsed, by, _GRANT_REVOKED, tell=True)
        effect.begin(application, by)

    def _end_by_partner(self, application: Application) -> Application:
        """End an application that its partner has terminated, with its effect."""
        reason = "terminated by the partner"
        return self._end(
            application,
            application.partner,
            reason,
            tell=False,
        )

    def _end(
        self,
        application: Application,
        by: str,
        reason: str,
        tell: bool,
    ) -> Application:
        """End an application and its effect. ``tell``: the partner is notified."""
        now = self._clock()
        effect = self._effects.get(application.kind)
        if application.status is APPROVED and effect is not None:
            effect.end(application, by, last=not self._has_others_in_force(application, now))

        def terminate(current: Application) -> Application:
            if current.status is not application.status:
                return current
            return applications.terminate(current, by, reason, now, tell)

        after = self._change(application, terminate)
        if after.status is APPROVED:
            # Approved in the meantime: that effect has to end as well.
            return self._end(after, by, reason, tell)
        self._deliver_soon(after)
        return after

    def _has_others_in_force(self, application: Application, now: datetime) -> bool:
        """Return whether another application is in force for the same subject.

        Contracts of both sides count, as they have the same route.
        """
        is_contract = application.kind is Kind.CONTRACT
        side: Side | None = application.side
        if is_contract:
            side = None  # either
        for candidate in self.store.list(side, application.kind, APPROVED, application.partner):
            if candidate.number == application.number or not candidate.holds(now):
                continue
            if is_contract or candidate.subject == application.subject:
                return True
        return False

    def _find(
        self,
        kind: Kind,
        id_: str,
        partner: NodeId,
        *sides: Side,
    ) -> Application:
        """Return the partner's or this node's application of an id, as ``sides`` say.

        If both have applied with the id, the earlier one of ``sides`` counts. Raises `NotFound`.
        """
        for side in sides:
            application = self.store.find(side, partner, kind, id_)
            if application is not None:
                return application
        raise NotFound("no application of that id is known here", reason="APPLICATION_UNKNOWN")

    def _change(self, application: Application, change: ApplicationChange) -> Application:
        """Store a change. Raises `Conflict` if the state does not allow it."""

        def checked_change(current: Application) -> Application:
            return _checked(current, change)

        return self.store.change(application.number, checked_change)

    def _audit_change(self, before: Application, after: Application) -> None:
        """Write a change by a partner into the audit log; nothing if nothing has changed."""
        if after == before:
            return
        detail = {
            "before": _audited(before),
            "after": _audited(after),
        }
        self._write_audit(after.partner, "application changed by a partner", detail)


def _audited(application: Application) -> dict[str, Any]:
    """Return the fields of an application for the audit log, with its number, kind and id."""
    fields = {name: getattr(application, name) for name in _AUDITED}
    return {
        "application": application.number,
        "kind": str(application.kind),
        "id": application.id,
        **fields,
    }


def _check_limits(undecided: Application) -> None:
    """Raise `Invalid` for an approval with limits beyond those that a partner has applied for."""
    if undecided.scope == UNLIMITED:
        return
    if undecided.kind is not Kind.DATASET:
        rule = "is only for an application for a dataset: leave it out"
        raise Invalid([Problem("scope", rule, str(undecided.scope))])
    requested = applications.requested_scope(undecided)
    excess = beyond(requested, undecided.scope)
    if excess != UNLIMITED:
        rule = f"must be within the scope that was applied for: {requested}"
        raise Invalid([Problem("scope", rule, str(excess))])


def _checked(application: Application, change: ApplicationChange) -> Application:
    """Return an application after a change. Raises `Conflict` if its state does not allow it."""
    try:
        return change(application)
    except IllegalMove as error:
        text = f"application {application.number} is {application.status}: {error}"
        raise Conflict(text, reason="APPLICATION_STATE") from error


def _is_same_step(current: Application, application: Application) -> bool:
    """Return whether the call about an application still concerns its current state."""
    is_same_message = current.notice == application.notice
    is_same_content = current.announcing == application.announcing
    return current.status is application.status and is_same_message and is_same_content
