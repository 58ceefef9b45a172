"""Checks for whom a request at the peer listener may speak, before its body is read.

This node's own id is never accepted from a peer: only the operators' listener acts for this node's platform.
Where peers show certificates (``listen.peer.tls.client_ca``), the certificate has to be bound to each node that
the request claims to come from, by the route of that node, or of the next hop to it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
from anyio import CapacityLimiter
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import GatewayError, NotAllowed
from route_table import certificates
from route_table.model import Bearer, Route, RouteTable, UnknownNode

_STATE = "speaks_for"
_HELLO = "/v1/interconn/schedule/node/hello"
"""answers only who this node is, by which a node notices a route that leads to itself"""


@dataclass(frozen=True)
class PeerIdentity:
    """Validates which nodes a request may speak for.

    ``table`` gives the routes in force, ``former`` the route that a node without one had, where it still takes
    part in a job; ``revoked`` tells whether a certificate is revoked; ``handed_on`` whether another gateway
    of this node passes the request on, whose certificate may then be this node's (``own``, its key's pin).
    """

    node: str
    table: Callable[[], RouteTable]
    former: Callable[[str], Route | None]
    revoked: Callable[[Bearer], bool] = lambda _: False
    handed_on: Callable[[Scope], bool] = lambda _: False
    own: frozenset[str] = frozenset()

    def check(self, scope: Scope, claimed: Iterable[str]) -> None:
        """Raise `NotAllowed` unless a request may speak for every node that it claims to come from.

        OWN_NODE_ID, CERTIFICATE_REVOKED, CERTIFICATE_MISMATCH.
        """
        claims = set(claimed)
        if self.node in claims and scope["path"] != _HELLO:
            text = f"{self.node} is this node's own id; a peer sends its own in x-source-node-id"
            raise NotAllowed(text, reason="OWN_NODE_ID")
        certificate = shown(scope)
        if certificate is None:
            return
        if self.revoked(certificate):
            raise NotAllowed("the client certificate is revoked", reason="CERTIFICATE_REVOKED")
        if self.handed_on(scope) and not certificate.bears.isdisjoint(self.own | {self.node.lower()}):
            return
        if claims:
            wrong = [node for node in claims if not self._bound(node, certificate)]
        else:
            wrong = [] if any(self._bound(node, certificate) for node in self.table().routes) else ["any node"]
        if wrong:
            text = f"the client certificate is not that of {', '.join(sorted(wrong))[:300]}"
            raise NotAllowed(text, reason="CERTIFICATE_MISMATCH")

    def _bound(self, node: str, certificate: Bearer) -> bool:
        """Tell whether a certificate may speak for a node: its own, or that of the next hop to it."""
        table = self.table()
        try:
            resolved: Route | None = table.resolve(node)
        except UnknownNode:
            resolved = self.former(node)
        own = table.routes.get(node)
        routes = [resolved, own if own is not None and own.enabled and own.via is None else None]
        return any(route is not None and route.bound_to(certificate) for route in routes)


def shown(scope: Scope) -> Bearer | None:
    """Return the certificate that the client of a request showed; None where it showed none."""
    extensions: Mapping[str, Any] = scope.get("extensions") or {}
    chain = (extensions.get("tls") or {}).get("client_cert_chain") or ()
    return certificates.bearer(chain[0]) if chain else None


def check_claim(scope: Scope, node: str) -> None:
    """Raise `NotAllowed` unless a request may speak for a node that only its body names."""
    check = (scope.get("state") or {}).get(_STATE)
    if check is not None:
        check([node])


class PeersChecked:
    """An ASGI application before the one for peers that denies requests that claim what they may not."""

    def __init__(
        self,
        app: ASGIApp,
        identity: PeerIdentity,
        claimed: Callable[[Scope], frozenset[str]],
        unknown: Callable[[Scope], None],
        denied: Callable[[Scope, GatewayError], Response],
        noted: Callable[[Scope, str, GatewayError], None],
        limiter: CapacityLimiter,
    ) -> None:
        """``claimed``: the nodes that headers name as the sender; ``unknown`` raises `NotAllowed` for one that
        needs a known sender and names none; ``denied`` makes the response.

        ``noted`` writes into the audit what was claimed and why it was denied; called in a thread of ``limiter``.
        """
        self._app = app
        self._identity = identity
        self._claimed = claimed
        self._unknown = unknown
        self._denied = denied
        self._noted = noted
        self._limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on what may be, and deny the rest."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        claims = self._claimed(scope)
        try:
            self._identity.check(scope, claims)
            self._unknown(scope)
        except NotAllowed as found:
            error = found
            words = ", ".join(sorted(claims))
            await anyio.to_thread.run_sync(lambda: self._noted(scope, words, error), limiter=self._limiter)
            await self._denied(scope, error)(scope, receive, send)
            return
        scope.setdefault("state", {})[_STATE] = lambda nodes: self._identity.check(scope, nodes)
        await self._app(scope, receive, send)
