"""Opens the links of this node's routes with ``dial: out``, and opens them again when they end."""

import asyncio
import logging
import random
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from urllib.parse import urlsplit

from gateway.domain.links.frames import LinkFault
from gateway.domain.spec import NodeId
from gateway.errors import GatewayError
from gateway.identity.keys import KeyPair
from gateway.links.carrier import Carrier, LinkLost
from gateway.links.link import Link, LinkOrigin
from gateway.links.links import Links
from gateway.links.proof import UNPROVEN, LinkRefused, prove_to
from gateway.ports import Clock
from route_table.model import Identity, Route

log = logging.getLogger(__name__)

LINKS_PER_ROUTE = 2  # one goes on while the other is opened again
OPENING_SECONDS = 10.0  # for the connection, TLS and both proofs
_LOOK_SECONDS = 1.0  # between two looks at the route table
_FIRST_PAUSE = 0.5  # seconds before a link is dialled again; half of it is random
_LONGEST_PAUSE = 3.0  # seconds; a partner is back within 5 s of its network


@dataclass(frozen=True)
class DialParts:
    """The node of a `Dialler`, as values and functions."""

    node: NodeId
    routes: Callable[[], Iterable[Route]]  # the routes in force
    key: Callable[[], KeyPair | None]  # None: this node has no key yet
    # Connects to a route's address, perhaps through a proxy; raises OSError
    connect: Callable[[Route], socket.socket]
    tls_context: Callable[[Identity], ssl.SSLContext]
    clock: Clock


class Dialler:
    """Keeps the links of all routes with ``dial: out``."""

    def __init__(self, parts: DialParts, links: Links) -> None:
        self._parts = parts
        self._links = links
        self._tasks: dict[tuple[Route, int], asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Keep the links until this is cancelled."""
        try:
            while True:
                self._follow_routes()
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            for task in self._tasks.values():
                task.cancel()

    def _follow_routes(self) -> None:
        """Begin the links of new routes, and end the links of changed or removed ones.

        A link whose task has failed begins again.
        """
        dialled = filter(_is_dialled, self._parts.routes())
        due = set(product(dialled, range(LINKS_PER_ROUTE)))
        for key in self._tasks.keys() - due:
            self._tasks.pop(key).cancel()
        for key, task in list(self._tasks.items()):
            if task.done():
                log.error("the dialling of a link failed", exc_info=task.exception())
                del self._tasks[key]
        for route, number in due - self._tasks.keys():
            keeping = asyncio.create_task(self._keep(route))
            self._tasks[route, number] = keeping

    async def _keep(self, route: Route) -> None:
        """Open a link again and again, with growing pauses while the partner is away."""
        pause = _FIRST_PAUSE
        last_cause = ""
        while True:
            cause = await self._run_link(route)
            if cause not in ("", last_cause):
                _log_missing_link(route, cause)
            last_cause = cause
            pause = min(2 * pause, _LONGEST_PAUSE)
            if not cause:
                pause = _FIRST_PAUSE
            jitter = random.uniform(0.5, 1.0)
            await asyncio.sleep(pause * jitter)

    async def _run_link(self, route: Route) -> str:
        """Open a link and carry requests until it ends.

        Return the cause if no link could be opened, otherwise "".
        """
        try:
            link = await self._open(route)
        except LinkRefused as error:
            return f"{error.reason}: {error}"
        except (LinkLost, OSError, GatewayError) as error:
            return str(error) or type(error).__name__
        fields = {
            "node": route.node,
            "address": link.origin.address,
        }
        log.info("link opened", extra=fields)
        try:
            await self._links.run(link)
        except (LinkLost, LinkFault) as error:
            log.warning("link ended", extra={**fields, "cause": str(error)})
        return ""

    async def _open(self, route: Route) -> Link:
        """Open a link. Raises `LinkRefused`, `LinkLost`, OSError and `GatewayError`."""
        pair = self._parts.key()
        if pair is None:
            text = "this node has no key pair: bfia-gateway identity rotate makes one"
            raise LinkRefused(text, UNPROVEN)
        async with asyncio.timeout(OPENING_SECONDS):
            reader, writer = await self._connect(route)
            try:
                carrier = await Carrier.open(reader, writer, route.url)
                await prove_to(
                    carrier,
                    self._parts.node,
                    route,
                    pair,
                )
            except BaseException:
                writer.transport.abort()
                raise
        return self._link(route, carrier, writer)

    def _link(
        self,
        route: Route,
        carrier: Carrier,
        writer: asyncio.StreamWriter,
    ) -> Link:
        """Return the link on an opened connection."""
        host, port, *_ = writer.get_extra_info("peername")
        origin = LinkOrigin(
            node=route.node,
            address=f"{host}:{port}",
            dials_out=True,
            since=self._parts.clock(),
            url=route.url,
        )
        return Link(
            carrier,
            origin,
            self._links.serve,
        )

    async def _connect(
        self,
        route: Route,
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the partner's listener. Raises OSError, `GatewayError`."""
        parts = urlsplit(route.url)
        sock = await asyncio.to_thread(self._parts.connect, route)
        if parts.scheme == "http":
            return await asyncio.open_connection(sock=sock)
        return await asyncio.open_connection(
            sock=sock,
            ssl=self._parts.tls_context(route.identity),
            server_hostname=route.server_name or parts.hostname,
        )


def _is_dialled(route: Route) -> bool:
    """Return whether links to a route's node are kept."""
    return route.enabled and route.dial == "out"


def _log_missing_link(route: Route, cause: str) -> None:
    """Log why no link to a route's node could be opened."""
    fields = {
        "node": route.node,
        "cause": cause,
    }
    log.warning("no link", extra=fields)
