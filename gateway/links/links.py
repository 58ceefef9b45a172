"""The links of this gateway, and the sockets over them. Thread-safe."""

import asyncio
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Protocol

from gateway.domain.spec import NodeId
from gateway.links.link import Link, LinkOrigin
from route_table.model import link_url

_DOUBTFUL_SECONDS = 3.0  # of silence, after which another link of the same node is preferred


class NoLink(ConnectionRefusedError):
    """No link stands, and the node has no address."""


@dataclass(frozen=True)
class LinkState:
    """A standing link, as it is shown."""

    node: NodeId
    since: datetime
    address: str  # of the other end
    dials_out: bool  # whether this node has dialled


class Connector(Protocol):
    """Opens connections over links; `Links` is one."""

    def connect(
        self,
        url: str,
    ) -> socket.socket | None:
        """Return a connection over a link to a route's URL; None to dial the URL instead.

        Raises `NoLink` for a URL that can only be reached by a link while none stands.
        """

    def of(self, node: NodeId) -> list[LinkState]:
        """Return the standing links of a node; [] if there are none."""


class WithoutLinks:
    """The `Connector` of a process that has no links."""

    def connect(
        self,
        url: str,
    ) -> socket.socket | None:
        """Return None: every URL is dialled."""
        _check_dialled(url)
        return None

    def of(self, node: NodeId) -> list[LinkState]:
        """Return []: there are no links."""
        return []


class Links:
    """The standing links of this gateway."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By the URL of the route that they serve; empty once the last one has ended
        self._links: defaultdict[str, list[Link]] = defaultdict(list)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serve: Callable[[socket.socket, LinkOrigin], None] | None = None

    def serve_with(
        self,
        serve: Callable[[socket.socket, LinkOrigin], None],
    ) -> None:
        """Serve the streams of other nodes by a function; call it on the event loop of all links.

        No link is opened or accepted before.
        """
        self._loop = asyncio.get_running_loop()
        self._serve = serve

    def serve(self, sock: socket.socket, origin: LinkOrigin) -> None:
        """Serve a stream that another node has opened."""
        assert self._serve is not None
        self._serve(sock, origin)

    async def run(self, link: Link) -> None:
        """Offer a link for requests as long as its connection lasts.

        Raises `LinkLost`, `LinkFault`.
        """
        key = link.origin.url or link_url(link.origin.node)
        with self._lock:
            self._links[key].append(link)
        try:
            await link.run()
        finally:
            with self._lock:
                self._links[key].remove(link)

    def connect(
        self,
        url: str,
    ) -> socket.socket | None:
        """Return a connection over a link, see `Connector`.

        Of several links, the newest one with a recent sign of life is used.
        """
        link = self._usable(url)
        if link is None or self._loop is None:
            _check_dialled(url)
            return None
        ours, theirs = socket.socketpair()
        self._loop.call_soon_threadsafe(link.adopt, theirs)
        return ours

    def states(self) -> list[LinkState]:
        """Return the standing links."""
        return [_state(link.origin) for link in self._all()]

    def of(self, node: NodeId) -> list[LinkState]:
        """Return the standing links of a node, the oldest first; [] if there are none."""
        return [state for state in self.states() if state.node == node]

    def count(self, node: NodeId) -> int:
        """Return the number of standing links that a node has opened."""
        directions = [state.dials_out for state in self.of(node)]
        return directions.count(False)

    def close(self) -> None:
        """Break off all links; call it on their event loop."""
        for link in self._all():
            link.close()

    def _all(self) -> list[Link]:
        """Return all standing links."""
        with self._lock:
            return list(chain.from_iterable(self._links.values()))

    def _usable(self, url: str) -> Link | None:
        """Return the best link for a URL; None if none stands."""
        with self._lock:
            links = list(self._links.get(url, ()))
        if not links:
            return None
        recent = list(filter(_is_recent, links))
        candidates = recent or links
        return candidates[-1]


def _is_recent(link: Link) -> bool:
    """Return whether a link has given a sign of life recently."""
    return time.monotonic() - link.last_received < _DOUBTFUL_SECONDS


def _state(origin: LinkOrigin) -> LinkState:
    """Return a link as it is shown."""
    return LinkState(
        node=origin.node,
        since=origin.since,
        address=origin.address,
        dials_out=origin.dials_out,
    )


def _check_dialled(url: str) -> None:
    """Raise `NoLink` for a URL that cannot be dialled."""
    if url.startswith(link_url("")):
        raise NoLink("no link of the node stands: it has to dial in (dial: out in its route)")
