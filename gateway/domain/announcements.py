"""This node's address and keys, as its partners know them, and the decision to send an update.

A partner with a contract gets them by ``node/update`` of the management layer.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from gateway.domain.applications import UPDATE, Announcement, Application, Side

_HTTPS = "https://"


@dataclass(frozen=True)
class Identity:
    """This node's present address and keys."""

    advertised: str  # ``listen.peer.advertise``; empty: not set
    default_address: str  # the address in applications without one of their own
    key: str  # the public key that signs, in the form of routes
    # The public key to which messages for this node are sealed, in the form of routes; empty: none.
    sealing_key: str = ""


class Step(Enum):
    """The next step for a contract."""

    NONE = "none"  # the partner knows the present values
    RECORD = "record"  # note the values that the partner has from the contract; send nothing
    SEND = "send"  # send an update with the present values
    BLOCKED = "blocked"  # the values have changed, and must not be sent (`Decision.obstacle`)
    LATER = "later"  # another message to the partner comes first


@dataclass(frozen=True)
class Decision:
    """The step for a contract."""

    step: Step
    announcement: Announcement | None = None  # of RECORD and SEND
    obstacle: str = ""  # of BLOCKED: why no update is sent


def decide(
    contract: Application,
    identity: Identity,
) -> Decision:
    """Decide whether the partner of a contract in force has to learn this node's identity.

    A contract whose application had an address of its own keeps it. An address that is not https is
    not sent to a partner that has an https address.
    """
    announced = contract.announced
    if announced is None:
        return Decision(Step.RECORD, _first_announcement(contract, identity))
    present = _present_announcement(announced, identity)
    if announced.sealing_key is None:  # recorded by a version that did not record this key
        announced = replace(announced, sealing_key=present.sealing_key)
    if replace(announced, at=None) != present:
        return _update(contract, announced, present)
    if announced != contract.announced:
        return Decision(Step.RECORD, announced)
    return Decision(Step.NONE)


def _present_announcement(announced: Announcement, identity: Identity) -> Announcement:
    """Return what the partner of a contract has to know at present.

    ``announced`` is what it knows: an address for this partner alone stays, and so does the last
    sealing key of a node that has none any more.
    """
    address = announced.address
    if announced.follows_setting and identity.advertised:
        address = identity.advertised
    return replace(
        announced,
        address=address,
        key=identity.key,
        sealing_key=identity.sealing_key or announced.sealing_key,
        at=None,
    )


def _update(
    contract: Application,
    announced: Announcement,
    present: Announcement,
) -> Decision:
    """Decide whether an update can be sent now, as the partner does not know the present values."""
    if contract.notice not in ("", UPDATE):
        return Decision(Step.LATER)
    obstacle = _obstacle(announced.address, present.address)
    if obstacle:
        return Decision(Step.BLOCKED, obstacle=obstacle)
    return Decision(Step.SEND, present)


def _first_announcement(
    contract: Application,
    identity: Identity,
) -> Announcement:
    """Return what the partner of a new contract knows.

    If this node has applied, its application told the partner address and keys. If the partner has
    applied, this node's approval told it the keys; the address is the one to which it has applied.
    """
    sealing_key = identity.sealing_key or None
    if contract.side is Side.THEIRS:
        return Announcement(
            identity.advertised,
            identity.key,
            follows_setting=True,
            sealing_key=sealing_key,
        )
    request = contract.request
    address = str(request.get("address") or "")
    defaults = (identity.advertised, identity.default_address)
    return Announcement(
        address,
        key=str(request.get("auth_credential") or identity.key),
        follows_setting=address in defaults,
        sealing_key=request.get("sealing_key") or sealing_key,
    )


def _obstacle(announced_address: str, address: str) -> str:
    """Return why an address must not be sent to a partner; empty if it may."""
    if not address:
        return "this node's address is not set: set listen.peer.advertise"
    if _is_https(announced_address) and not _is_https(address):
        return f"{address} is not https, which {announced_address} was: not reported to the partner"
    return ""


def _is_https(address: str) -> bool:
    """Return whether an address uses TLS."""
    return address.lower().startswith(_HTTPS)


def with_update(
    contract: Application,
    announcement: Announcement,
    now: datetime,
) -> Application:
    """Return a contract with an update due to its partner; unchanged if that is under way."""
    if contract.notice == UPDATE and contract.announcing == announcement:
        return contract
    return replace(
        contract,
        announcing=announcement,
        notice=UPDATE,
        due_at=now,
        tries=0,
        trouble="",
    )


def without_update(contract: Application, trouble: str = "") -> Application:
    """Return a contract without an update to its partner.

    ``trouble`` is why the partner gets none; empty if it knows the present values.
    """
    if contract.notice not in ("", UPDATE):
        return contract
    return replace(
        contract,
        announcing=None,
        notice="",
        due_at=None,
        trouble=trouble,
    )
