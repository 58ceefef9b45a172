"""This node's address and key, as its partners know them, and the decision to tell a partner.

A partner with a contract is told by ``node/update`` of the management layer.
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
    TELL = "tell"
    KEEP = "keep"  # the values have changed, and must not be told (`Decision.obstacle`)
    LATER = "later"  # another message to the partner comes first


@dataclass(frozen=True)
class Decision:
    """The step for a contract."""

    step: Step
    announcement: Announcement | None = None  # of RECORD and TELL
    obstacle: str = ""  # of KEEP: why the partner is not told


def decide(
    contract: Application,
    identity: Identity,
) -> Decision:
    """Decide whether the partner of a contract in force has to be told this node's identity.

    A contract whose application had an address of its own keeps it. An address that is not https is
    not told to a partner that has an https address.
    """
    known = contract.announced
    if known is None:
        return Decision(Step.RECORD, _first_announcement(contract, identity))
    address = known.address
    if known.follows_setting and identity.advertised:
        address = identity.advertised
    present = replace(
        known,
        address=address,
        key=identity.key,
        at=None,
    )
    if (known.address, known.key) == (present.address, present.key):
        return Decision(Step.NONE)
    if contract.notice not in ("", UPDATE):
        return Decision(Step.LATER)
    obstacle = _obstacle(known.address, address)
    if obstacle:
        return Decision(Step.KEEP, obstacle=obstacle)
    return Decision(Step.TELL, present)


def _first_announcement(
    contract: Application,
    identity: Identity,
) -> Announcement:
    """Return what the partner of a new contract knows.

    The application of this node has told address and key. If the partner has applied, the approval
    has told it the key, and it knows the address from elsewhere.
    """
    if contract.side is Side.THEIRS:
        return Announcement(identity.advertised, identity.key, follows_setting=True)
    address = str(contract.request.get("address") or "")
    key = str(contract.request.get("auth_credential") or identity.key)
    defaults = (identity.advertised, identity.default_address)
    return Announcement(address, key, follows_setting=address in defaults)


def _obstacle(known_address: str, address: str) -> str:
    """Return why an address must not be told; empty if it may."""
    if not address:
        return "this node's address is not set: set listen.peer.advertise"
    is_weaker = known_address.lower().startswith(_HTTPS) and not address.lower().startswith(_HTTPS)
    if is_weaker:
        return f"{address} is not https, which {known_address} was: the partner is not told"
    return ""


def told(
    contract: Application,
    announcement: Announcement,
    now: datetime,
) -> Application:
    """Return a contract whose partner is to be told; unchanged if that is under way."""
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


def not_told(contract: Application, trouble: str = "") -> Application:
    """Return a contract whose partner is not to be told (any more).

    ``trouble`` is why the partner is not told; empty if it knows the present values.
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
