"""Sends partners with a contract this node's new address or keys (``node/update``)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import structlog

from gateway.domain import announcements
from gateway.domain.announcements import Decision, Identity, Step
from gateway.domain.applications import APPROVED, UPDATE, Application, Kind
from gateway.jobs.applications import Applications
from gateway.ports import Clock

log = structlog.get_logger(__name__)

INTERVAL = 30.0  # seconds between two calls of `Announcements.compare`


@dataclass(frozen=True)
class Acknowledgement:
    """What the partner of a contract knows of this node."""

    contract: Application
    is_current: bool  # the partner knows the present address and keys


class Announcements:
    """Compares what partners know with this node's address and keys.

    Contracts are compared at the start and when the key changes. The partners are called by
    `Applications`, which repeats a call until the partner has acknowledged it.
    """

    def __init__(
        self,
        applications: Applications,
        identity: Callable[[], Identity | None],
        forget_previous_key: Callable[[], None],
        clock: Clock,
    ) -> None:
        """``identity`` returns None while this node has no key.

        ``forget_previous_key`` deletes the key from before a rotation. It signs updates to partners
        that do not know the present key yet.
        """
        self._applications = applications
        self._identity = identity
        self._forget_previous_key = forget_previous_key
        self._clock = clock
        self._compared: Identity | None = None  # with which all contracts were compared

    def announce(self) -> list[Acknowledgement]:
        """Send an update now to every partner that does not know the present address and key.

        Returns what each partner knows afterwards.
        """
        identity = self._identity()
        if identity is not None:
            self._compare_all(identity)
        for contract in self._contracts():
            if contract.notice == UPDATE:
                self._applications.deliver_now(contract.number)
        if identity is not None:
            self._forget_unneeded_key(identity)
        return self.list()

    def list(self) -> list[Acknowledgement]:
        """Return what the partner of each contract in force knows; empty without a key."""
        identity = self._identity()
        if identity is None:
            return []
        acknowledgements = []
        for contract in self._contracts():
            step = announcements.decide(contract, identity).step
            is_current = step in (Step.NONE, Step.RECORD)
            acknowledgements.append(Acknowledgement(contract, is_current))
        return acknowledgements

    def compare(self) -> None:
        """Record new contracts, and compare all contracts if the identity has changed."""
        identity = self._identity()
        if identity is None:
            return
        if identity != self._compared:
            self._compare_all(identity)
        else:
            self._record_new(identity)
        self._forget_unneeded_key(identity)

    def _compare_all(self, identity: Identity) -> None:
        """Take the next step for each contract."""
        steps = set()
        for contract in self._contracts():
            decision = announcements.decide(contract, identity)
            steps.add(decision.step)
            self._take_step(contract, decision)
        if Step.LATER not in steps:
            self._compared = identity

    def _record_new(self, identity: Identity) -> None:
        """Record for new contracts that their partners know the present address and key."""
        for contract in self._contracts():
            if contract.announced is None:
                self._take_step(contract, announcements.decide(contract, identity))

    def _take_step(self, contract: Application, decision: Decision) -> None:
        """Store the step for a contract, and have an update delivered."""
        change = partial(
            _with_step,
            decision=decision,
            now=self._clock(),
        )
        changed = self._applications.store.change(contract.number, change)
        if decision.step is Step.SEND:
            log.info("reports this node's address and key", partner=contract.partner)
            self._applications.loop.wake(str(contract.number))
        if changed.trouble and decision.step is Step.BLOCKED:
            log.warning(
                "address and key are not reported", partner=contract.partner, cause=changed.trouble
            )

    def _forget_unneeded_key(self, identity: Identity) -> None:
        """Delete the key from before a rotation once every partner knows the present one."""
        if all(_knows_key(contract, identity) for contract in self._contracts()):
            self._forget_previous_key()

    def _contracts(self) -> Sequence[Application]:
        """Return the contracts in force."""
        now = self._clock()
        approved = self._applications.store.list(
            kind=Kind.CONTRACT,
            status=APPROVED,
        )
        return [contract for contract in approved if contract.holds(now)]


def _with_step(
    contract: Application,
    decision: Decision,
    now: datetime,
) -> Application:
    """Return a contract after a step; unchanged if it has ended, or has another message to send."""
    is_free = contract.notice in ("", UPDATE)
    if contract.status is not APPROVED or not is_free:
        return contract
    match decision.step:
        case Step.RECORD:
            return replace(contract, announced=decision.announcement)
        case Step.SEND:
            assert decision.announcement is not None
            return announcements.with_update(contract, decision.announcement, now)
        case Step.BLOCKED:
            return announcements.without_update(contract, decision.obstacle)
        case Step.NONE if contract.notice == UPDATE or contract.trouble:
            return announcements.without_update(contract)
    return contract


def _knows_key(contract: Application, identity: Identity) -> bool:
    """Return whether the partner of a contract knows the present key."""
    return contract.announced is not None and contract.announced.key == identity.key
