"""Opens the connection of a link, and proves both identities on it."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.domain.links.frames import LinkFault, LinkLost
from gateway.errors import GatewayError
from gateway.identity.keys import KeyPair
from gateway.links.proof import UNPROVEN, Ends, LinkRefused, prove_to
from route_table.model import Identity, Route

if TYPE_CHECKING:  # an idle node without links needs no WebSockets, which take 2 MB
    from gateway.links.carrier import Carrier

# Limit of each step of an opening: TLS, the WebSocket, the proofs. A line with a round trip of 1 s
# passes, and a step that hangs does not outlast the network's return for long.
STEP_SECONDS = 4.0
# Errors of an opening, or of the end of a link.
OPENING_ERRORS = (LinkRefused, LinkLost, LinkFault, OSError, GatewayError)


@dataclass(frozen=True)
class Ways:
    """How this process connects to an address."""

    # Connects to a route's address, perhaps through a proxy; raises OSError
    connect: Callable[[Route], socket.socket]
    tls_context: Callable[[Identity], ssl.SSLContext]


async def open_carrier(
    ways: Ways,
    route: Route,
    ends: Ends,
    pair: KeyPair,
) -> tuple["Carrier", str]:
    """Open a link at a route's address; return its carrier, and host and port of the other end.

    Raises `LinkRefused`, `LinkLost`, OSError and `GatewayError`.
    """
    from gateway.links.carrier import Carrier  # noqa: PLC0415 - at the first link

    reader, writer = await _connect(ways, route)
    try:
        async with asyncio.timeout(STEP_SECONDS):
            carrier = await Carrier.open(reader, writer, route.url)
        async with asyncio.timeout(STEP_SECONDS):
            await prove_to(carrier, ends, pair)
    except BaseException:
        writer.transport.abort()
        raise
    host, port, *_ = writer.get_extra_info("peername")
    return carrier, f"{host}:{port}"


def require_key(pair: KeyPair | None) -> KeyPair:
    """Return this node's key pair. Raises `LinkRefused` without one."""
    if pair is None:
        text = "this node has no key pair: bfia-gateway identity rotate makes one"
        raise LinkRefused(text, UNPROVEN)
    return pair


def cause_of(error: BaseException) -> str:
    """Return why a link could not be opened, or has ended, as text."""
    text = str(error) or type(error).__name__
    if isinstance(error, LinkRefused):
        return f"{error.reason}: {text}"
    if isinstance(error, TimeoutError) and not str(error):
        return "the other end does not answer in time"
    return text


async def _connect(
    ways: Ways,
    route: Route,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a route's address. Raises OSError, `GatewayError`."""
    parts = urlsplit(route.url)
    sock = await asyncio.to_thread(ways.connect, route)
    if parts.scheme == "http":
        return await asyncio.open_connection(sock=sock)
    return await asyncio.open_connection(
        sock=sock,
        ssl=ways.tls_context(route.identity),
        server_hostname=route.server_name or parts.hostname,
        ssl_handshake_timeout=STEP_SECONDS,
    )
