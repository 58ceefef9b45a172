"""Connections for links before their proof: limited in all and per client, each for a short time.

Anybody can open such connections. With all places taken, the oldest one makes room: a partner
proves its identity within a few round trips, an attacker never does.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv6Address, ip_address, ip_network

from gateway.links.proof import LinkRefused

PROOF_SECONDS = 10.0  # until the dialling node has proven its identity
MAX_UNPROVEN = 64  # connections before the proof
MAX_UNPROVEN_PER_CLIENT = 8
_IPV6_CLIENT_BITS = 64  # of an address; a client has all addresses of such a network


class UnprovenConnections:
    """The connections before their proof. Belongs to one event loop."""

    def __init__(self) -> None:
        self._by_client: Counter[str] = Counter()
        self._deadlines: list[asyncio.Timeout] = []  # of all connections, the oldest first

    @asynccontextmanager
    async def counted(self, host: str) -> AsyncIterator[None]:
        """Count a connection from a host until its proof.

        Raises `LinkRefused` at the limit of a client, and `TimeoutError` after `PROOF_SECONDS`, or
        earlier if the connection has to make room.
        """
        client = client_of(host)
        if self._by_client[client] >= MAX_UNPROVEN_PER_CLIENT:
            raise LinkRefused("too many links are being opened", "BUSY")
        if len(self._deadlines) >= MAX_UNPROVEN:
            oldest = self._deadlines.pop(0)
            oldest.reschedule(asyncio.get_running_loop().time())
        self._by_client[client] += 1
        try:
            async with asyncio.timeout(PROOF_SECONDS) as deadline:
                self._deadlines.append(deadline)
                try:
                    yield
                finally:
                    self._forget(deadline)
        finally:
            self._by_client[client] -= 1
            self._by_client += Counter()  # forgets the clients without a connection

    def _forget(self, deadline: asyncio.Timeout) -> None:
        """Remove a connection, which may have made room already."""
        if deadline in self._deadlines:
            self._deadlines.remove(deadline)


def client_of(host: str) -> str:
    """Return the client that a host belongs to: an address, or a network of IPv6."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    network = ip_network((address, _IPV6_CLIENT_BITS), strict=False)
    return str(network)
