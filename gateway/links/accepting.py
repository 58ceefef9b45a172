"""Accepts links at the listener for peers, from nodes whose routes say ``reached: by-link``.

Before it is a link, a connection costs little and lasts a few seconds, see
`gateway.links.unproven`. Other gateways of this node open links here, too, to use the links of a
partner.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from socket import socket
from typing import TYPE_CHECKING, Any

from gateway.domain.links.frames import LinkFault, LinkLost
from gateway.domain.spec import NodeId
from gateway.identity.keys import KeyPair
from gateway.links import proof
from gateway.links.link import Link, LinkOrigin
from gateway.links.links import Links
from gateway.links.proof import LinkRefused
from gateway.links.unproven import UnprovenConnections
from gateway.ports import Clock
from route_table import certificates
from route_table.model import Bearer, Route, RouteTable, Unusable

if TYPE_CHECKING:  # an idle node without links needs no WebSockets, which take 2 MB
    from gateway.links.carrier import Carrier

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0  # between two looks whether a link is still expected
MAX_LINKS_PER_NODE = 16  # two from each of its gateways, and those whose end is not noticed yet


@dataclass(frozen=True)
class AcceptParts:
    """The node of an `Acceptor`, as values and functions."""

    node: NodeId
    gateway: str  # this gateway's name, by which others of the node dial it
    table: Callable[[], RouteTable]  # the one in force
    key: Callable[[], KeyPair | None]  # None: this node has no key yet
    revoked: Callable[[Bearer], bool]  # whether a client's certificate is revoked
    is_own: Callable[[Bearer], bool]  # whether a client's certificate is one of this node
    record_refusal: Callable[[NodeId, str, LinkRefused], None]  # node, address and cause
    # The arrival as its client sent it, perhaps to a reverse proxy
    before_proxy: Callable[["Arrival"], "Arrival"]
    needs_certificate: bool  # whether every link needs a client certificate, as behind a proxy
    clock: Clock


@dataclass(frozen=True)
class Arrival:
    """A connection on which a WebSocket for a link is requested."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: bytes  # of the request, perhaps with bytes after it
    scope: Mapping[str, Any]  # of the request, as in ASGI
    certificates: Sequence[str]  # the client's certificate in PEM form; empty without one

    @property
    def host(self) -> str:
        """Host of the connection's other end; "" if it is not known."""
        host, _ = self.scope["client"] or ("", 0)
        return str(host)

    @property
    def address(self) -> str:
        """Host and port of the connection's other end; port 0 if it is not known."""
        host, port = self.scope["client"] or ("", 0)
        return f"{host}:{port}"


class Acceptor:
    """Accepts links. Belongs to one event loop."""

    def __init__(self, parts: AcceptParts, links: Links) -> None:
        self._parts = parts
        self._links = links
        self._unproven = UnprovenConnections()

    async def serve(self, arrival: Arrival) -> None:
        """Carry a link until its connection ends; close the connection of anything else."""
        arrival = self._parts.before_proxy(arrival)
        try:
            async with self._unproven.counted(arrival.host):
                link, claim = await self._accept(arrival)
            log.info("link accepted", extra=_fields(link.origin))
            await self._run(link, claim)
        except (LinkLost, LinkFault) as error:
            log.info("link ended", extra=_cause(arrival, error))
        except (LinkRefused, TimeoutError) as error:
            log.warning("link refused", extra=_cause(arrival, error))
        finally:
            arrival.writer.transport.abort()

    async def _run(self, link: Link, claim: proof.Claim) -> None:
        """Carry a link as long as its connection lasts and it is expected.

        Raises `LinkLost`, `LinkFault`.
        """
        watching = asyncio.create_task(self._end_when_unexpected(link, claim))
        try:
            if self._is_of_gateway(claim):
                await self._links.hand_over(claim.partner, link)
            else:
                await self._run_of_node(link, claim.node)
        finally:
            watching.cancel()

    async def _run_of_node(self, link: Link, node: NodeId) -> None:
        """Carry a link of another node. Raises `LinkLost`, `LinkFault`."""
        try:
            await self._links.run(link)
        except (LinkLost, LinkFault) as error:
            self._links.note_failure(node, str(error), self._parts.clock())
            raise

    async def _end_when_unexpected(self, link: Link, claim: proof.Claim) -> None:
        """Break off a link once its opening would be refused now."""
        try:
            while True:
                await asyncio.sleep(_LOOK_SECONDS)
                proof.check_key(claim, self._ends(claim, link.origin.certificates))
        except LinkRefused as error:
            fields = {**_fields(link.origin), "cause": str(error)}
            log.warning("link is no longer expected", extra=fields)
        finally:
            link.close()

    async def _accept(self, arrival: Arrival) -> tuple[Link, proof.Claim]:
        """Return the link of a node that has proven its identity, and the proof.

        Raises `LinkRefused`, after telling the node, and `LinkLost`.
        """
        from gateway.links.carrier import Carrier  # noqa: PLC0415 - at the first link

        carrier = await Carrier.accept(arrival.reader, arrival.writer, arrival.head)
        claim = await proof.ask_for_proof(carrier)
        try:
            await self._check(carrier, claim, arrival)
        except LinkRefused as error:
            await self._note_refusal(claim, arrival, error)
            with suppress(LinkLost):
                await proof.refuse(carrier, error)
            raise
        origin = LinkOrigin(
            claim.node,
            arrival.address,
            dials_out=False,
            since=self._parts.clock(),
            url="",
            certificates=tuple(arrival.certificates),
        )
        serve = self._links.serve
        if self._is_of_gateway(claim):
            serve = partial(self._pass_on, claim.partner)
        link = Link(
            carrier,
            origin,
            serve,
        )
        return link, claim

    async def _note_refusal(
        self,
        claim: proof.Claim,
        arrival: Arrival,
        refused: LinkRefused,
    ) -> None:
        """Record a refused link in the audit, and as the last failure of a node with a route."""
        if claim.node in self._parts.table().routes:
            cause = f"{refused.reason}: {refused}"
            self._links.note_failure(claim.node, cause, self._parts.clock())
        await asyncio.to_thread(
            self._parts.record_refusal,
            claim.node,
            arrival.address,
            refused,
        )

    def _pass_on(
        self,
        node: NodeId,
        sock: socket,
        _: LinkOrigin,
    ) -> None:
        """Connect a stream of another gateway of this node with a link that ends here."""
        self._links.pass_on(node, sock)

    async def _check(
        self,
        carrier: "Carrier",
        claim: proof.Claim,
        arrival: Arrival,
    ) -> None:
        """Check the opener of a link, and prove this node's identity. Raises `LinkRefused`."""
        pair = self._key()
        ends = self._ends(claim, arrival.certificates)
        nonce = proof.check_proof(claim, ends)
        # After the proof, so that no unknown peer can use up the links of a node; before this end
        # accepts the link, so that the other one learns the cause.
        self._check_number(claim)
        await proof.accept(
            carrier,
            claim,
            ends,
            nonce,
            pair,
        )

    def _check_number(self, claim: proof.Claim) -> None:
        """Raise `LinkRefused` for too many links of a node, or none for another gateway."""
        if not self._is_of_gateway(claim):
            if self._links.count(claim.node) >= MAX_LINKS_PER_NODE:
                raise LinkRefused("the node has as many links as it may have", "BUSY")
        elif not self._links.count(claim.partner):
            text = f"no link of {claim.partner} ends at this gateway"
            raise LinkRefused(text, proof.NOT_EXPECTED)

    def _is_of_gateway(self, claim: proof.Claim) -> bool:
        """Return whether another gateway of this node opens a link."""
        return claim.node == self._parts.node

    def _key(self) -> KeyPair:
        """Return this node's key pair. Raises `LinkRefused` without one."""
        pair = self._parts.key()
        if pair is None:
            raise LinkRefused("the dialled node has no key yet", proof.NOT_EXPECTED)
        return pair

    def _ends(self, claim: proof.Claim, chain: Sequence[str]) -> proof.Ends:
        """Return the ends of an expected link; ``chain``: the client's certificate, or nothing.

        Raises `LinkRefused` for an unexpected link, and for a certificate of another node.
        """
        if self._is_of_gateway(claim):
            self._check_gateway(claim, chain)
            return proof.between_gateways(
                self._parts.node,
                self._key(),
                claim.gateway,
                claim.partner,
            )
        route = self._expected_route(claim.node)
        self._check_certificate(chain, route.bound_to, route.node)
        return proof.between_nodes(self._parts.node, route)

    def _check_gateway(self, claim: proof.Claim, chain: Sequence[str]) -> None:
        """Raise `LinkRefused` unless another gateway of this node may use links that end here."""
        if claim.gateway != self._parts.gateway:
            text = f"this is another gateway of {self._parts.node}"
            raise LinkRefused(text, proof.NOT_EXPECTED)
        self._expected_route(claim.partner)
        self._check_certificate(chain, self._parts.is_own, self._parts.node)

    def _expected_route(self, node: NodeId) -> Route:
        """Return the entry of a node that is reached by links. Raises `LinkRefused`."""
        route = self._parts.table().routes.get(node)
        if route is None or not route.enabled or route.reached != "by-link":
            text = (
                f"no link of {node} is expected at {self._parts.node}: its entry there needs "
                "reached: by-link"
            )
            raise LinkRefused(text, proof.NOT_EXPECTED)
        return route

    def _check_certificate(
        self,
        chain: Sequence[str],
        is_bound: Callable[[Bearer], bool],
        node: NodeId,
    ) -> None:
        """Raise `LinkRefused` unless the client's certificate is the node's.

        Without a certificate, the node's key is enough if the listener needs none.
        """
        if not chain:
            self._check_needless()
            return
        try:
            certificate = certificates.bearer(chain[0])
        except Unusable as error:
            text = f"the client certificate {error}"
            raise LinkRefused(text, proof.UNPROVEN) from error
        if self._parts.revoked(certificate):
            text = "the client certificate is revoked"
            raise LinkRefused(text, "CERTIFICATE_REVOKED")
        if not is_bound(certificate):
            text = f"the client certificate is not that of {node}"
            raise LinkRefused(text, "CERTIFICATE_MISMATCH")

    def _check_needless(self) -> None:
        """Raise `LinkRefused` if every link needs a client certificate."""
        if self._parts.needs_certificate:
            text = (
                "the link brings no readable client certificate: it has to be opened through the "
                "reverse proxy of the node, which hands the certificate on"
            )
            raise LinkRefused(text, "CERTIFICATE_MISSING")


def _fields(origin: LinkOrigin) -> dict[str, str]:
    """Return the fields of a link in the log."""
    return {"node": origin.node, "address": origin.address}


def _cause(arrival: Arrival, error: Exception) -> dict[str, str]:
    """Return the fields of a connection in the log, with the cause of its end."""
    return {
        "address": arrival.address,
        "cause": str(error) or type(error).__name__,
    }
