"""This node's address and key, as its partners know them, and the decision to send an update.

A partner with a contract gets them by ``node/update`` of the management layer.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from gateway.domain.applications import UPDATE, Announcement, Application, Side

_HTTPS = "https://"


@dataclass(frozen=True)
class Identity:
    """This node's present address and key."""

    advertised: str  # ``listen.peer.advertise``; empty: not set
    default_address: str  # the address in applications without one of their own
    key: str  # the public key that signs, in the form of routes


class Step(Enum):
    """The next step for a contract."""

    NONE = "none"  # the partner knows the present values
    RECORD = "record"  # nothing is recorded of a contract: the partner knows the present values
    SEND = "send"  # an update with the present values
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
    address = announced.address
    if announced.follows_setting and identity.advertised:
        address = identity.advertised
    present = replace(
        announced,
        address=address,
        key=identity.key,
        at=None,
    )
    if (announced.address, announced.key) == (present.address, present.key):
        return Decision(Step.NONE)
    if contract.notice not in ("", UPDATE):
        return Decision(Step.LATER)
    obstacle = _obstacle(announced.address, address)
    if obstacle:
        return Decision(Step.BLOCKED, obstacle=obstacle)
    return Decision(Step.SEND, present)


def _first_announcement(
    contract: Application,
    identity: Identity,
) -> Announcement:
    """Return what the partner of a new contract knows.

    The application of this node contains address and key. If the partner has applied, the approval
    contains the key, and the partner knows the address from elsewhere.
    """
    if contract.side is Side.THEIRS:
        return Announcement(identity.advertised, identity.key, follows_setting=True)
    address = str(contract.request.get("address") or "")
    key = str(contract.request.get("auth_credential") or identity.key)
    defaults = (identity.advertised, identity.default_address)
    return Announcement(address, key, follows_setting=address in defaults)


def _obstacle(announced_address: str, address: str) -> str:
    """Return why an address must not be sent to a partner; empty if it may."""
    if not address:
        return "this node's address is not set: set listen.peer.advertise"
    is_weaker = announced_address.lower().startswith(_HTTPS) and not address.lower().startswith(
        _HTTPS
    )
    if is_weaker:
        return f"{address} is not https, which {announced_address} was: not reported to the partner"
    return ""


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
