"""What the transport's handlers need from the node that they serve."""

from collections.abc import Callable
from dataclasses import dataclass, field

from adapter.bfia.channel.courier import Courier
from adapter.bfia.channel.sessions import Claim
from gateway.broker import Broker
from gateway.identity.seals import Seals
from gateway.runtime.pacing import PartnerPacing
from route_table.model import Route


@dataclass(frozen=True, slots=True)
class Member:
    """The run of this node that a request comes from, and the nodes of the run's job."""

    run: str  # the run's name
    nodes: frozenset[str]  # this node among them
    # True while other runs of this node use the session, and once this run has ended: then the job
    # may have begun a further task with the same session.
    shares_session: bool = False


def _no_other_gateway(session: str) -> Route | None:
    """Return no route: the node has no other gateway."""
    return None


def _no_entry(node: str) -> Route | None:
    """Return no entry: no node has public keys here."""
    return None


def _no_nodes(institution: str) -> tuple[str, ...]:
    """Return no node: institutions are not known."""
    return ()


def _any_session(node: str, session: str) -> bool:
    """Accept the messages of any session."""
    return True


def _no_session(claim: Claim) -> str:
    """Return no session: runs are not recognised."""
    return ""


@dataclass(frozen=True)
class ChannelParts:
    """The node's settings, and functions that answer the handlers' questions.

    The name does not mean the parts of a long message. Functions that may ask a database are called
    in threads. Their results are cached for a second, except for runs that are recognised by their
    address. The routers' lifespan closes ``courier``; without the lifespan, the owner has to close
    it.
    """

    node: str
    institution: str
    broker: Broker
    # The run that a container's request comes from, and the nodes of its job. Raises NotAllowed if
    # no run is found, or if the request names a session that is not the run's own. May ask a
    # database.
    run_of: Callable[[Claim], Member]
    # The route to a node; answers from memory.
    route_of: Callable[[str], Route | None]
    # Whether messages of a node are accepted. Answers from memory for a node that the headers name,
    # which the listener has looked up before. May ask a database for one that only the body names.
    known_sender: Callable[[str], bool]
    # True while the job of a session goes on, False once it has ended; None if this node knows no
    # such job. May ask a database.
    session_open: Callable[[str], bool | None]
    max_body: int  # bytes
    # Seconds during which a message is sent again to a peer that does not respond
    retry_for: float = 60.0
    stall_for: float = 10.0  # seconds; the longest pause within a body
    # Bytes per second of a large body, while another body waits for its slot
    least_rate: float = 32 * 1024
    # The pace at which the bodies of each partner are read
    incoming: PartnerPacing = field(default_factory=PartnerPacing)
    unknown_sessions: int = 256  # the most open sessions that belong to no known job
    courier: Courier = field(default_factory=Courier)
    # The route to the gateway of this node that has the session; None if this gateway has it, or
    # none has. May ask a database.
    elsewhere: Callable[[str], Route | None] = _no_other_gateway
    # Seals messages and opens sealed ones; None: this node does neither.
    seals: Seals | None = None
    # The entry with the public keys that sign for a node, and with the seal that its messages need;
    # None without one. Answers from memory.
    sender_route: Callable[[str], Route | None] = _no_entry
    # The other nodes of an institution that have a route here; answers from memory.
    nodes_of: Callable[[str], tuple[str, ...]] = _no_nodes
    # Node, session -> whether the node may bring messages of the session. May ask a database.
    may_bring: Callable[[str, str], bool] = _any_session
    # The session of the run that a refused request comes from, whichever session it named; "" for
    # no run. May ask a database.
    own_session: Callable[[Claim], str] = _no_session
