"""Lets every gateway of a node call a partner whose links end at another one of them.

Each gateway stores which links end at it, and keeps a connection to each other gateway for each
partner whose links end there. Such a connection is a link itself, opened at the listener for peers
and proven by the node's own key. Its streams go on over the partner's link.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gateway.domain.links.states import GatewayLinks, NodeLinks
from gateway.domain.spec import NodeId
from gateway.errors import GatewayError
from gateway.identity.keys import KeyPair
from gateway.links import proof
from gateway.links.keeping import Keeper
from gateway.links.link import Link, LinkOrigin
from gateway.links.links import Links
from gateway.links.opening import OPENING_ERRORS, Ways, cause_of, open_carrier, require_key
from gateway.ports import Clock
from route_table.model import Route, RouteTable, link_url

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # between two looks at the links of other gateways
_OPENINGS = 4  # connections that are opened at the same time; fewer than an address may

# The name and the URL of another gateway, and the node whose links end there.
_Key = tuple[str, str, NodeId]


class Board(Protocol):
    """Where the gateways of a node store which links end at each of them."""

    def clear(self) -> None:
        """Remove the links of an earlier process of this gateway."""

    def publish(self, links: Mapping[NodeId, NodeLinks]) -> None:
        """Replace the links of this gateway, by node."""

    def elsewhere(self) -> Sequence[GatewayLinks]:
        """Return the links at the other running gateways."""


@dataclass(frozen=True)
class SharingParts:
    """The gateway of a `Sharing`, as values and functions."""

    node: NodeId
    table: Callable[[], RouteTable]  # the one in force
    key: Callable[[], KeyPair | None]  # None: this node has no key yet
    route_to: Callable[[str], Route | None]  # the route to another gateway, by its URL
    ways: Ways
    clock: Clock
    is_alone: bool  # whether the node has one gateway, as with an SQLite database


class Sharing:
    """Keeps the connections to other gateways at which links end."""

    def __init__(
        self,
        parts: SharingParts,
        links: Links,
        board: Board,
    ) -> None:
        self._parts = parts
        self._links = links
        self._board = board
        self._published: Mapping[NodeId, NodeLinks] = {}
        self._keeper: Keeper[_Key] = Keeper(self._run_link)
        self._causes: dict[_Key, str] = {}  # why a connection cannot be opened, as last logged
        self._openings = asyncio.Semaphore(_OPENINGS)
        self._elsewhere: Sequence[GatewayLinks] = ()
        self._is_away = False  # whether the last exchange with the board failed

    async def run(self) -> None:
        """Share the links until this is cancelled."""
        await self._try(self._board.clear)
        try:
            while True:
                self._links.changed.clear()
                if self._has_links():
                    await self._exchange()
                await self._wait()
        finally:
            self._keeper.close()

    def _has_links(self) -> bool:
        """Return whether a route has links, or had some at this gateway."""
        routes = self._parts.table().routes.values()
        return bool(self._published) or any(route.dial or route.reached for route in routes)

    async def _wait(self) -> None:
        """Wait for a change at this gateway, or for the next look at the others."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._links.changed.wait()
        except TimeoutError:
            return

    async def _exchange(self) -> None:
        """Store this gateway's links if they have changed, and follow the other gateways' links."""
        links = self._links.here()
        if links != self._published and await self._try(partial(self._board.publish, links)):
            self._published = links
        if self._parts.is_alone:
            return
        await self._try(self._read)
        due = set(map(_key, filter(self._is_usable, self._elsewhere)))
        self._keeper.follow(due, _have_same_gateway)

    def _read(self) -> None:
        """Read the links of the other gateways."""
        self._elsewhere = self._board.elsewhere()
        self._links.set_elsewhere(self._elsewhere)

    async def _try(self, call: Callable[[], None]) -> bool:
        """Call a function of the board in a thread; return whether the board responds."""
        try:
            await asyncio.to_thread(call)
        except GatewayError as error:
            if not self._is_away:
                log.warning("links are not shared", extra={"cause": error.message})
            self._is_away = True
            return False
        self._is_away = False
        return True

    def _is_usable(self, elsewhere: GatewayLinks) -> bool:
        """Return whether this gateway uses links at another one."""
        route = self._parts.table().routes.get(elsewhere.node)
        is_reached_by_link = route is not None and route.enabled and route.reached == "by-link"
        return is_reached_by_link and elsewhere.links.is_dialled_in

    async def _run_link(self, key: _Key, wake_others: Callable[[], None]) -> bool:
        """Open a connection to another gateway, and carry requests until it ends."""
        gateway, url, node = key
        fields = {"node": node, "gateway": url}
        try:
            async with self._openings:
                link = await self._open(gateway, url, node)
        except OPENING_ERRORS as error:
            self._note_missing(key, cause_of(error))
            return False
        self._causes.pop(key, None)
        wake_others()
        log.info("links at another gateway can be used", extra=fields)
        try:
            await self._links.run(link)
        except OPENING_ERRORS as error:
            log.info(
                "links at another gateway are lost",
                extra={**fields, "cause": cause_of(error)},
            )
        return True

    def _note_missing(self, key: _Key, cause: str) -> None:
        """Note why links at another gateway cannot be used; log each cause once."""
        if self._causes.get(key) == cause:
            return
        self._causes[key] = cause
        _, url, node = key
        text = f"links at this node's gateway {url} cannot be used: {cause}"
        self._links.note_failure(node, text, self._parts.clock())
        log.warning(text, extra={"node": node})

    async def _open(
        self,
        gateway: str,
        url: str,
        node: NodeId,
    ) -> Link:
        """Open a connection to another gateway. Raises the `OPENING_ERRORS`."""
        route = self._parts.route_to(url)
        assert route is not None  # there is a URL
        pair = require_key(self._parts.key())
        carrier, address = await open_carrier(
            self._parts.ways,
            route,
            proof.between_gateways(self._parts.node, pair, gateway, node),
            pair,
        )
        origin = LinkOrigin(
            node=node,
            address=address,
            dials_out=True,
            since=self._parts.clock(),
            url=link_url(node),
            gateway=gateway,
        )
        return Link(
            carrier,
            origin,
            _refuse_stream,
        )


def _key(elsewhere: GatewayLinks) -> _Key:
    """Return the key of the connection to another gateway."""
    return elsewhere.gateway, elsewhere.url, elsewhere.node


def _have_same_gateway(key: _Key, second_key: _Key) -> bool:
    """Return whether two connections lead to the same gateway."""
    return key[:2] == second_key[:2]


def _refuse_stream(sock: socket.socket, _: LinkOrigin) -> None:
    """Close a stream: another gateway opens none."""
    sock.close()
