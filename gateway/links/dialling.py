"""Opens the links of this node's routes with ``dial: out``, and opens them again when they end."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

from gateway.domain.spec import NodeId
from gateway.identity.keys import KeyPair
from gateway.links import proof
from gateway.links.keeping import Keeper
from gateway.links.link import Link, LinkOrigin
from gateway.links.links import Links
from gateway.links.opening import OPENING_ERRORS, Ways, cause_of, open_carrier, require_key
from gateway.ports import Clock
from route_table.model import Route

log = logging.getLogger(__name__)

LINKS_PER_ROUTE = 2  # one goes on while the other is opened again
_LOOK_SECONDS = 1.0  # between two looks at the route table

# A route, and the number of one of its links.
_Key = tuple[Route, int]


@dataclass(frozen=True)
class DialParts:
    """The node of a `Dialler`, as values and functions."""

    node: NodeId
    routes: Callable[[], Iterable[Route]]  # the routes in force
    key: Callable[[], KeyPair | None]  # None: this node has no key yet
    ways: Ways
    clock: Clock


class Dialler:
    """Keeps the links of all routes with ``dial: out``."""

    def __init__(self, parts: DialParts, links: Links) -> None:
        self._parts = parts
        self._links = links
        self._keeper: Keeper[_Key] = Keeper(self._run_link)
        self._causes: dict[NodeId, str] = {}  # the last logged one of each node without a link

    async def run(self) -> None:
        """Keep the links until this is cancelled."""
        try:
            while True:
                dialled = filter(_is_dialled, self._parts.routes())
                due = set(product(dialled, range(LINKS_PER_ROUTE)))
                self._keeper.follow(due, _have_same_route)
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._keeper.close()

    async def _run_link(self, key: _Key, wake_others: Callable[[], None]) -> bool:
        """Open a link and carry requests until it ends; return whether it was open."""
        route, _ = key
        try:
            link = await self._open(route)
        except OPENING_ERRORS as error:
            self._note_missing(route, cause_of(error))
            return False
        self._causes.pop(route.node, None)
        wake_others()
        fields = {
            "node": route.node,
            "address": link.origin.address,
        }
        log.info("link opened", extra=fields)
        try:
            await self._links.run(link, route.identity)
        except OPENING_ERRORS as error:
            cause = cause_of(error)
            self._links.note_failure(route.node, cause, self._parts.clock())
            log.warning("link ended", extra={**fields, "cause": cause})
        return True

    async def _open(self, route: Route) -> Link:
        """Open a link. Raises the `OPENING_ERRORS`."""
        carrier, address = await open_carrier(
            self._parts.ways,
            route,
            proof.between_nodes(self._parts.node, route),
            require_key(self._parts.key()),
        )
        origin = LinkOrigin(
            node=route.node,
            address=address,
            dials_out=True,
            since=self._parts.clock(),
            url=route.url,
        )
        return Link(
            carrier,
            origin,
            self._links.serve,
        )

    def _note_missing(self, route: Route, cause: str) -> None:
        """Note why no link to a route's node could be opened; log each cause once."""
        if self._causes.get(route.node) == cause:
            return
        self._links.note_failure(route.node, cause, self._parts.clock())
        self._causes[route.node] = cause
        fields = {"node": route.node, "cause": cause}
        log.warning("no link", extra=fields)


def _is_dialled(route: Route) -> bool:
    """Return whether links to a route's node are kept."""
    return route.enabled and route.dial == "out"


def _have_same_route(key: _Key, second_key: _Key) -> bool:
    """Return whether two links lead to the same address."""
    return key[0] == second_key[0]
