"""What the transport's handlers need from the node that they serve."""

from collections.abc import Callable
from dataclasses import dataclass, field

from adapter.bfia.channel.courier import Courier
from adapter.bfia.channel.sessions import Claim
from gateway.broker import Broker
from route_table.model import Route


@dataclass(frozen=True, slots=True)
class Member:
    """The run that a request comes from, and the nodes of its job."""

    run: str
    nodes: frozenset[str]


def _no_other_gateway(session: str) -> Route | None:
    """Return no route: the node has no other gateway."""
    return None


def _any_session(node: str, session: str) -> bool:
    """Accept the messages of any session."""
    return True


def _no_session(claim: Claim) -> str:
    """Return no session: runs are not recognised."""
    return ""


@dataclass(frozen=True)
class ChannelParts:
    """The node's settings, and functions that answer the handlers' questions.

    Functions that may ask a database are called in threads. Their results are cached for a second,
    except for runs that are recognised by their address. The routers' lifespan closes ``courier``;
    without the lifespan, the owner has to close it.
    """

    node: str
    institution: str
    broker: Broker
    # The run of a container's request. Raises NotAllowed for no run, or for the session of another
    # run. May ask a database.
    run_of: Callable[[Claim], Member]
    # The route to a node; answers from memory.
    route_of: Callable[[str], Route | None]
    # Whether messages of a node are accepted. Answers from memory for a node that the headers name,
    # and may ask a database for a node that only the body names.
    known_sender: Callable[[str], bool]
    # Whether the job of a session goes on; None for no known job. May ask a database.
    session_open: Callable[[str], bool | None]
    max_body: int  # bytes
    # Seconds in which a message is sent again to a peer that does not respond
    retry_for: float = 30.0
    stall_for: float = 10.0  # seconds; the longest pause within a body
    # Bytes per second of a large body, while another body waits for its slot
    least_rate: float = 32 * 1024
    unknown_sessions: int = 256  # the most sessions of no known job
    courier: Courier = field(default_factory=Courier)
    # The route to another gateway of this node that has the session. May ask a database.
    elsewhere: Callable[[str], Route | None] = _no_other_gateway
    # Whether a node may bring messages of a session. May ask a database.
    may_bring: Callable[[str, str], bool] = _any_session
    # The session of the run that a refused request comes from, whichever session it named; "" for
    # no run. May ask a database.
    own_session: Callable[[Claim], str] = _no_session
