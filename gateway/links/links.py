"""The links of this gateway, and the sockets over them. Thread-safe."""

import asyncio
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import Protocol

from gateway.domain.links.states import GatewayLinks, LinkFailure, LinkState, NodeLinks
from gateway.domain.spec import NodeId
from gateway.links.link import Link, LinkOrigin
from route_table.model import NO_IDENTITY, Identity, link_url

_DOUBTFUL_SECONDS = 3.0  # of silence, after which another link of the same node is preferred

# The address that links serve: the URL of a route, and its way there.
Address = tuple[str, Identity]


class NoLink(ConnectionRefusedError):
    """No link stands, and the node has no address."""


class Connector(Protocol):
    """Opens connections over links; `Links` is one."""

    def connect(
        self,
        url: str,
        identity: Identity = NO_IDENTITY,
    ) -> socket.socket | None:
        """Return a connection over a link to a route's URL; None to dial the URL instead.

        ``identity`` is the route's way to the URL: no link that was opened another way is used.
        Raises `NoLink` for a URL that can only be reached by a link while none stands.
        """

    def of(self, node: NodeId) -> NodeLinks:
        """Return the links of a node at all gateways of this one."""


class WithoutLinks:
    """The `Connector` of a process that has no links."""

    def connect(
        self,
        url: str,
        identity: Identity = NO_IDENTITY,
    ) -> socket.socket | None:
        """Return None: every URL is dialled."""
        _check_dialled(url)
        return None

    def of(self, node: NodeId) -> NodeLinks:
        """Return that there are no links."""
        return NodeLinks()


class Links:
    """The standing links of this gateway, and the known links at the node's other gateways."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By the address that they serve; empty once the last one has ended. A link to another
        # gateway of this node serves the address of the node whose links end there.
        self._links: defaultdict[Address, list[Link]] = defaultdict(list)
        # Connections that are on their way to a link: they count as its streams already
        self._coming = Counter[Link]()
        # Links from other gateways of this node, by the node whose links they use
        self._handovers: defaultdict[NodeId, list[Link]] = defaultdict(list)
        self._failures: dict[NodeId, LinkFailure] = {}  # the last one of each node
        self._elsewhere: Sequence[GatewayLinks] = ()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serve: Callable[[socket.socket, LinkOrigin], None] | None = None
        self.changed = asyncio.Event()  # set when a link has begun or ended

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

    async def run(self, link: Link, identity: Identity = NO_IDENTITY) -> None:
        """Offer a link for requests as long as its connection lasts.

        ``identity``: the way by which this node has dialled. Raises `LinkLost`, `LinkFault`.
        """
        url = link.origin.url or link_url(link.origin.node)
        address = _address(url, identity)
        with self._lock:
            self._links[address].append(link)
        self.changed.set()
        try:
            await link.run()
        finally:
            with self._lock:
                self._links[address].remove(link)
            self._end_useless_handovers(link.origin.node)
            self.changed.set()

    async def hand_over(self, node: NodeId, link: Link) -> None:
        """Carry a link from another gateway of this node, which uses the links of ``node`` here.

        Raises `LinkLost`, `LinkFault`.
        """
        with self._lock:
            self._handovers[node].append(link)
        try:
            await link.run()
        finally:
            with self._lock:
                self._handovers[node].remove(link)

    def pass_on(self, node: NodeId, sock: socket.socket) -> None:
        """Connect a stream of another gateway of this node with a link of ``node``.

        It is closed if no link of that node ends here.
        """
        links = self._ending_here(node)
        with self._lock:
            link = self._best(links)
        if link is None:
            sock.close()
        else:
            link.adopt(sock)

    def connect(
        self,
        url: str,
        identity: Identity = NO_IDENTITY,
    ) -> socket.socket | None:
        """Return a connection over a link, see `Connector`.

        Of several links, one with a recent sign of life is used, rather one that ends here than one
        at another gateway; of those, the one with the fewest streams, and the newest of equal ones.
        """
        with self._lock:
            link = self._best(self._links.get(_address(url, identity), ()))
            if link is not None:
                self._coming[link] += 1
        if link is None or self._loop is None:
            _check_dialled(url)
            return None
        ours, theirs = socket.socketpair()
        try:
            self._loop.call_soon_threadsafe(self._adopt, link, theirs)
        except RuntimeError:  # the event loop is closed: this process is about to end
            ours.close()
            theirs.close()
            _check_dialled(url)
            return None
        return ours

    def _adopt(self, link: Link, sock: socket.socket) -> None:
        """Open a stream for the other end of a connection."""
        with self._lock:
            self._coming[link] -= 1
            if not self._coming[link]:
                del self._coming[link]
        link.adopt(sock)

    def states(self) -> list[LinkState]:
        """Return the standing links that end at this gateway."""
        return [_state(link.origin) for link in self._all() if not link.origin.gateway]

    def of(self, node: NodeId) -> NodeLinks:
        """Return the links of a node at all gateways of this one, the oldest first.

        Links to which another gateway was dialled count only while this one can use them.
        """
        links_here = self.here().get(node, NodeLinks())
        standing = list(links_here.standing)
        failures = [links_here.last_failure]
        usable_gateways = set()
        for link in self._all():
            if link.origin.node == node:
                usable_gateways.add(link.origin.gateway)
        for elsewhere in self._elsewhere:
            if elsewhere.node != node:
                continue
            failures.append(elsewhere.links.last_failure)
            is_usable = elsewhere.gateway in usable_gateways
            if is_usable or not elsewhere.links.is_dialled_in:
                for state in elsewhere.links.standing:
                    state_elsewhere = replace(
                        state,
                        gateway=elsewhere.url,
                    )
                    standing.append(state_elsewhere)
        return NodeLinks(sorted(standing, key=_since), _latest(failures))

    def here(self) -> Mapping[NodeId, NodeLinks]:
        """Return the links that end at this gateway, by node; also of nodes whose links failed."""
        standing = defaultdict(list)
        for state in self.states():
            standing[state.node].append(state)
        nodes = standing.keys() | self._failures.keys()
        links = {}
        for node in nodes:
            links[node] = NodeLinks(
                standing[node],
                self._failures.get(node),
            )
        return links

    def set_elsewhere(self, elsewhere: Sequence[GatewayLinks]) -> None:
        """Set the links that end at other gateways of this node."""
        self._elsewhere = elsewhere

    def note_failure(
        self,
        node: NodeId,
        cause: str,
        at: datetime,
    ) -> None:
        """Note why a link of a node was refused, could not be opened or has ended.

        Call it only for nodes with a route, so that their number is limited.
        """
        self._failures[node] = LinkFailure(at, cause)

    def count(self, node: NodeId) -> int:
        """Return the number of standing links that a node has opened at this gateway."""
        return len(self._ending_here(node))

    def close(self) -> None:
        """Break off all links; call it on their event loop."""
        with self._lock:
            handovers = list(chain.from_iterable(self._handovers.values()))
        for link in [*self._all(), *handovers]:
            link.close()

    def _all(self) -> list[Link]:
        """Return all links by which this gateway sends requests."""
        with self._lock:
            return list(chain.from_iterable(self._links.values()))

    def _ending_here(self, node: NodeId) -> list[Link]:
        """Return the links that a node has opened at this gateway."""
        with self._lock:
            links = list(self._links.get(_address(link_url(node)), ()))
        return [link for link in links if not link.origin.gateway]

    def _best(self, links: Sequence[Link]) -> Link | None:
        """Return the best of the links to one address, the newest of equal ones; None without any.

        The caller holds the lock.
        """
        return max(
            reversed(links),
            key=self._merit,
            default=None,
        )

    def _merit(self, link: Link) -> tuple[bool, bool, int]:
        """Return the rank of a link: the higher, the rather it is used."""
        silence = time.monotonic() - link.last_received
        is_recent = silence < _DOUBTFUL_SECONDS
        ends_here = not link.origin.gateway
        streams = link.streams + self._coming[link]
        return is_recent, ends_here, -streams

    def _end_useless_handovers(self, node: NodeId) -> None:
        """Break off the links from other gateways once no link of a node ends here."""
        if self._ending_here(node):
            return
        with self._lock:
            handovers = list(self._handovers[node])
        for link in handovers:
            link.close()


def _address(url: str, identity: Identity = NO_IDENTITY) -> Address:
    """Return the address by which links are looked up."""
    if url.startswith(link_url("")):
        return url, NO_IDENTITY
    if url.startswith("http:"):
        return url, identity.without_tls()
    return url, identity


def _since(state: LinkState) -> datetime:
    """Return since when a link stands."""
    return state.since


def _latest(failures: Sequence[LinkFailure | None]) -> LinkFailure | None:
    """Return the latest of several failures; None without any."""
    return max(
        filter(None, failures),
        key=_failed_at,
        default=None,
    )


def _failed_at(failure: LinkFailure) -> datetime:
    """Return the time of a failure."""
    return failure.at


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
