"""Connections for links before their proof: limited in all and per client, each for a short time.

Anybody can open such connections. At a limit, an old one makes room: a partner proves its identity
within a few round trips, an attacker never does. It is the oldest one of the client with the most
connections, so that a client with many takes no place of a client with few, and that an unknown
peer behind the same load balancer as a partner does not keep the partner away.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv6Address, ip_address, ip_network

PROOF_SECONDS = 10.0  # until the dialling node has proven its identity
MAX_UNPROVEN = 64  # connections before the proof
MAX_UNPROVEN_PER_CLIENT = 8
_IPV6_CLIENT_BITS = 64  # of an address; a client has all addresses of such a network


class UnprovenConnections:
    """The connections before their proof. Belongs to one event loop."""

    def __init__(self) -> None:
        # The deadlines of each client's connections, the oldest first
        self._deadlines: defaultdict[str, list[asyncio.Timeout]] = defaultdict(list)

    @asynccontextmanager
    async def counted(self, host: str) -> AsyncIterator[None]:
        """Count a connection from a host until its proof.

        Raises `TimeoutError` after `PROOF_SECONDS`, or earlier if the connection has to make room.
        """
        client = client_of(host)
        self._make_room(client)
        async with asyncio.timeout(PROOF_SECONDS) as deadline:
            self._deadlines[client].append(deadline)
            try:
                yield
            finally:
                self._forget(client, deadline)

    def _make_room(self, client: str) -> None:
        """End a connection if no further one of a client has a place."""
        if self._count(client) >= MAX_UNPROVEN_PER_CLIENT:
            self._end_oldest(client)
            return
        clients = list(self._deadlines)
        total = sum(map(self._count, clients))
        if total < MAX_UNPROVEN:
            return
        largest = max(clients, key=self._count)
        self._end_oldest(largest)

    def _count(self, client: str) -> int:
        """Return the number of a client's connections."""
        deadlines = self._deadlines.get(client, ())
        return len(deadlines)

    def _end_oldest(self, client: str) -> None:
        """End the oldest connection of a client."""
        oldest = self._deadlines[client][0]
        self._forget(client, oldest)
        if oldest.expired():  # its end has begun already
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        oldest.reschedule(now)

    def _forget(self, client: str, deadline: asyncio.Timeout) -> None:
        """Remove a connection, which may have made room already."""
        deadlines = self._deadlines[client]
        if deadline in deadlines:
            deadlines.remove(deadline)
        if not deadlines:  # also a client without any other connection
            del self._deadlines[client]


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
