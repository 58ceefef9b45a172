"""Standing links and broken ones, as they are shown and shared between a node's gateways."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.domain.spec import NodeId


@dataclass(frozen=True)
class LinkState:
    """A standing link, as it is shown."""

    node: NodeId
    since: datetime
    address: str  # of the other end
    dials_out: bool  # whether this node has dialled
    gateway: str = ""  # URL of this node's gateway at which the link ends; "" for this gateway


@dataclass(frozen=True)
class LinkFailure:
    """Why the last link of a node was refused, could not be opened or has ended."""

    at: datetime
    cause: str


@dataclass(frozen=True)
class NodeLinks:
    """The links of one node at one gateway."""

    standing: Sequence[LinkState] = ()  # the oldest first
    last_failure: LinkFailure | None = None  # None: nothing has failed yet

    @property
    def is_dialled_in(self) -> bool:
        """Whether the node has opened one of the links."""
        return any(not link.dials_out for link in self.standing)


@dataclass(frozen=True)
class GatewayLinks:
    """The links of one node at another gateway of this node."""

    gateway: str  # its name
    url: str  # at which other gateways reach it
    node: NodeId
    links: NodeLinks
