"""Accepts links at the listener for peers, from nodes whose routes say ``reached: by-link``.

Before it is a link, a connection costs little and lasts a few seconds; their number is limited, in
all and per address.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from gateway.domain.links.frames import LinkFault
from gateway.domain.spec import NodeId
from gateway.identity.keys import KeyPair
from gateway.links import proof
from gateway.links.carrier import Carrier, LinkLost
from gateway.links.link import Link, LinkOrigin
from gateway.links.links import Links
from gateway.links.proof import LinkRefused
from gateway.ports import Clock
from route_table import certificates
from route_table.model import Bearer, Route, RouteTable, Unusable

log = logging.getLogger(__name__)

PROOF_SECONDS = 10.0  # until the dialling node has proven its identity
MAX_UNPROVEN = 64  # connections before the proof
MAX_UNPROVEN_PER_ADDRESS = 8
_LOOK_SECONDS = 1.0  # between two looks whether a link is still expected
MAX_LINKS_PER_NODE = 16  # two from each of its gateways, and those whose end is not noticed yet


@dataclass(frozen=True)
class AcceptParts:
    """The node of an `Acceptor`, as values and functions."""

    node: NodeId
    table: Callable[[], RouteTable]  # the one in force
    key: Callable[[], KeyPair | None]  # None: this node has no key yet
    revoked: Callable[[Bearer], bool]  # whether a client's certificate is revoked
    record_refusal: Callable[[NodeId, str, LinkRefused], None]  # node, address and cause
    # The client's host before a reverse proxy, from the scope of the request
    host_of: Callable[[Mapping[str, Any]], str]
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
    def address(self) -> str:
        """Host and port of the connection's other end."""
        host, port = self.scope["client"] or ("", 0)
        return f"{host}:{port}"


class Acceptor:
    """Accepts links. Belongs to one event loop."""

    def __init__(self, parts: AcceptParts, links: Links) -> None:
        self._parts = parts
        self._links = links
        self._unproven: Counter[str] = Counter()  # connections before the proof, by host

    async def serve(self, arrival: Arrival) -> None:
        """Carry a link until its connection ends; close the connection of anything else."""
        try:
            host = self._parts.host_of(arrival.scope)
            with self._counted(host):
                async with asyncio.timeout(PROOF_SECONDS):
                    link, claim = await self._accept(arrival)
            log.info("link accepted", extra=_fields(link.origin))
            await self._run(link, claim)
        except (LinkLost, LinkFault) as error:
            log.info("link ended", extra=_cause(arrival, error))
        except (LinkRefused, TimeoutError) as error:
            log.warning("link refused", extra=_cause(arrival, error))
        finally:
            arrival.writer.transport.abort()

    @contextmanager
    def _counted(self, host: str) -> Iterator[None]:
        """Count a connection before its proof. Raises `LinkRefused` at the limit."""
        is_full = self._unproven.total() >= MAX_UNPROVEN
        if is_full or self._unproven[host] >= MAX_UNPROVEN_PER_ADDRESS:
            raise LinkRefused("too many links are being opened", "BUSY")
        self._unproven[host] += 1
        try:
            yield
        finally:
            self._unproven[host] -= 1
            self._unproven += Counter()  # forgets the addresses without a connection

    async def _run(self, link: Link, claim: proof.Claim) -> None:
        """Carry a link as long as its connection lasts and it is expected.

        Raises `LinkLost`, `LinkFault`.
        """
        watching = asyncio.create_task(self._end_when_unexpected(link, claim))
        try:
            await self._links.run(link)
        finally:
            watching.cancel()

    async def _end_when_unexpected(self, link: Link, claim: proof.Claim) -> None:
        """Break off a link once the route in force would refuse its opening."""
        try:
            while True:
                await asyncio.sleep(_LOOK_SECONDS)
                route = self._expected_route(claim.node)
                self._check_certificate(route, link.origin.certificates)
                proof.check_key(claim, route)
        except LinkRefused as error:
            fields = {**_fields(link.origin), "cause": str(error)}
            log.warning("link is no longer expected", extra=fields)
        finally:
            link.close()

    async def _accept(self, arrival: Arrival) -> tuple[Link, proof.Claim]:
        """Return the link of a node that has proven its identity, and the proof.

        Raises `LinkRefused`, after telling the node, and `LinkLost`.
        """
        carrier = await Carrier.accept(arrival.reader, arrival.writer, arrival.head)
        claim = await proof.ask_for_proof(carrier)
        try:
            await self._check(carrier, claim, arrival)
        except LinkRefused as error:
            await asyncio.to_thread(
                self._parts.record_refusal,
                claim.node,
                arrival.address,
                error,
            )
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
        link = Link(
            carrier,
            origin,
            self._links.serve,
        )
        return link, claim

    async def _check(
        self,
        carrier: Carrier,
        claim: proof.Claim,
        arrival: Arrival,
    ) -> None:
        """Check the opener of a link, and prove this node's identity. Raises `LinkRefused`."""
        route = self._expected_route(claim.node)
        self._check_certificate(route, arrival.certificates)
        pair = self._parts.key()
        if pair is None:
            raise LinkRefused("the dialled node has no key yet", proof.NOT_EXPECTED)
        await proof.accept_proof(carrier, self._parts.node, claim, route, pair)
        # Counted last, so that no unknown peer can use up the links of a node.
        if self._links.count(claim.node) >= MAX_LINKS_PER_NODE:
            raise LinkRefused("the node has as many links as it may have", "BUSY")

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

    def _check_certificate(self, route: Route, chain: Sequence[str]) -> None:
        """Raise `LinkRefused` unless the client's certificate, if it showed one, is the node's."""
        if not chain:
            return
        try:
            certificate = certificates.bearer(chain[0])
        except Unusable as error:
            text = f"the client certificate {error}"
            raise LinkRefused(text, proof.UNPROVEN) from error
        if self._parts.revoked(certificate):
            text = "the client certificate is revoked"
            raise LinkRefused(text, "CERTIFICATE_REVOKED")
        if not route.bound_to(certificate):
            text = f"the client certificate is not that of {route.node}"
            raise LinkRefused(text, "CERTIFICATE_MISMATCH")


def _fields(origin: LinkOrigin) -> dict[str, str]:
    """Return the fields of a link in the log."""
    return {
        "node": origin.node,
        "address": origin.address,
    }


def _cause(arrival: Arrival, error: Exception) -> dict[str, str]:
    """Return the fields of a connection in the log, with the cause of its end."""
    return {
        "address": arrival.address,
        "cause": str(error) or type(error).__name__,
    }
