"""ASGI middleware of the peers' listener: unknown senders, proof of identity, request quotas.

A peer cannot use this node's own id: requests in this node's name are served by the operators'
listener only. If peers present certificates (``listen.peer.tls.client_ca``), a request's
certificate must be bound to each node that the request claims as its sender. The names
that a node's certificate must bear are in the node's route, or in the route of the next hop to it.
Requests of a node whose route proves nothing are refused.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import anyio.to_thread
from anyio import CapacityLimiter
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.auth import ORIGIN, RequestOrigin
from gateway.errors import Busy, GatewayError, NotAllowed
from gateway.http.app import refusal
from gateway.http.connection import LINK
from gateway.links.link import LinkOrigin
from route_table import certificates
from route_table.model import Bearer, Route, RouteTable, UnknownNode, Unusable
from route_table.proof import mending_command

# Under this key a request's state has the function that checks a sender named only in the body.
_CLAIM_CHECK = "speaks_for"
LINK_MISMATCH = "LINK_MISMATCH"  # see gateway/language/reasons.yml
# Path that returns only this node's id, so that a node which calls itself detects the wrong route.
_HELLO = "/v1/interconn/schedule/node/hello"
# Headers with node ids, spelled with hyphens. Those of control requests may also be spelled with
# underscores only, those of channel messages with hyphens and underscores mixed.
_CONTROL = frozenset({b"x-source-node-id", b"x-node-id"})
_CHANNEL = frozenset({b"x-ptp-source-node-id", b"x-ptp-from-node-id", b"x-ptp-target-node-id"})
QUOTA = "PARTNER_QUOTA"
UNPROVEN = "SENDER_UNPROVEN"
# Names with a bucket, at most. A further name removes all buckets, so that every name starts again
# with a full one.
MAX_BUCKETS = 10_000


@dataclass(frozen=True)
class UnknownPeer:
    """A node without an enabled route of its own.

    - ``admitted``: it takes part in a job under way, and may send the requests of its part
    - ``route``: the route to it, former or default; None without one
    - ``former``: its last enabled route, whose keys prove its requests until its jobs have ended
    - ``keys``: job id -> the node's public keys in the signed job; empty for a node with ``former``
    - ``error``: the error of a failed lookup, after which nothing else is known
    """

    admitted: bool = False
    route: Route | None = None
    former: Route | None = None
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    error: GatewayError | None = None


# The unknown peers of the request under way, by node id.
_LOOKED_UP: ContextVar[Mapping[str, UnknownPeer] | None] = ContextVar(
    "unknown_peers",
    default=None,
)


def unknown_peer(node: str) -> UnknownPeer | None:
    """Return the result of a node's lookup for the request under way; None without one."""
    peers = _LOOKED_UP.get() or {}
    return peers.get(node)


def with_lookup(
    app: ASGIApp,
    is_unknown: Callable[[str], bool],
    look_up: Callable[[str], UnknownPeer],
    limiter: CapacityLimiter,
) -> ASGIApp:
    """Look up the unknown peers that a request names, before the application gets the request.

    `unknown_peer` returns the results. The rights and the profile of such a node are needed on the
    event loop, which must not wait for the database. ``is_unknown`` returns, without the database,
    whether a node has to be looked up; ``look_up`` uses the database.
    """

    def look_up_all(nodes: list[str]) -> dict[str, UnknownPeer]:
        peers = {}
        for node in nodes:
            try:
                peers[node] = look_up(node)
            except GatewayError as error:
                peers[node] = UnknownPeer(error=error)
        return peers

    async def serve(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        unknown_nodes = [node for node in _named_nodes(scope) if is_unknown(node)]
        peers: dict[str, UnknownPeer] = {}
        if unknown_nodes:
            peers = await anyio.to_thread.run_sync(
                look_up_all,
                unknown_nodes,
                limiter=limiter,
            )
        # Also set if there are none: on a kept connection the next request may run in the context
        # of the previous one.
        previous = _LOOKED_UP.set(peers)
        try:
            await app(scope, receive, send)
        finally:
            _LOOKED_UP.reset(previous)

    return serve


def _named_nodes(scope: Scope) -> set[str]:
    """Return the nodes in a request's headers.

    The first one of a repeated header counts, as for the code that reads the sender. So there are
    only a few nodes, however many headers a request has.
    """
    # By the header's name, and whether it is spelled with underscores.
    nodes: dict[tuple[bytes, bool], str] = {}
    for spelling, value in scope["headers"]:
        name = spelling.replace(b"_", b"-")
        if not _names_node(name, spelling):
            continue
        node = value.decode("latin-1").strip()  # removes more kinds of blanks than bytes.strip
        if node:
            nodes.setdefault((name, spelling != name), node)
    return set(nodes.values())


def _names_node(name: bytes, spelling: bytes) -> bool:
    """Return whether a header has a node's id; ``name`` is the spelling in hyphens."""
    if name in _CHANNEL:
        return True
    return name in _CONTROL and spelling in (name, name.replace(b"-", b"_"))


def _never(_: object) -> bool:
    """Return False: the default of a check that a node need not have."""
    return False


def _no_entry(_: object) -> None:
    """Return None: the default of a search in the route table."""


def unproven(route: Route, node: str) -> NotAllowed:
    """Return the refusal of a request whose sender's route proves nothing.

    ``node`` is the refusing node. The text names it, since the sender's users read the text, too.
    """
    text = (
        f"the route of {route.node} has nothing that proves its requests; next step of an admin at "
        f"node {node}: {mending_command(route)}"
    )
    return NotAllowed(text, reason=UNPROVEN)


@dataclass(frozen=True)
class PeerIdentity:
    """Validates which nodes a request may speak for.

    - ``table`` returns the routes in force
    - ``former`` returns the former route of a node that still takes part in a job
    - ``revoked`` returns whether a certificate is revoked
    - ``handed_on`` returns whether a request says that another gateway of this node passes it on;
      its certificate may then be this node's
    - ``needs_certificate``: whether every request needs a client certificate, as behind a proxy
      that hands it on
    - ``is_own`` returns whether a certificate is one of this node
    - ``open_paths``: paths that serve unknown nodes, to which no certificate is bound yet
    - ``unproven_entry`` returns the entry of a node if nothing proves the node's requests; None
      for any other node, also one without an entry, whose rights in a job are checked elsewhere
    """

    node: str
    table: Callable[[], RouteTable]
    former: Callable[[str], Route | None]
    revoked: Callable[[Bearer], bool] = _never
    handed_on: Callable[[Scope], bool] = _never
    needs_certificate: bool = False
    is_own: Callable[[Bearer], bool] = _never
    open_paths: frozenset[str] = frozenset()
    unproven_entry: Callable[[str], Route | None] = _no_entry

    def check(self, scope: Scope, claimed: Iterable[str]) -> None:
        """Raise `NotAllowed` unless a request may speak for all nodes that it claims as its sender.

        Reasons: OWN_NODE_ID, CERTIFICATE_MISSING, CERTIFICATE_REVOKED, CERTIFICATE_MISMATCH,
        LINK_MISMATCH, SENDER_UNPROVEN.
        """
        claims = set(claimed)
        if self.node in claims and scope["path"] != _HELLO:
            text = f"{self.node} is this node's own id; a peer sends its own in x-source-node-id"
            raise NotAllowed(text, reason="OWN_NODE_ID")
        link = link_of(scope)
        certificate = client_certificate(scope)
        if certificate is not None:
            self._check_certificate(scope, claims, certificate)
        elif self.needs_certificate and link is None:
            text = (
                "the request brings no readable client certificate: requests reach this node "
                "through its reverse proxy, which hands the certificate on"
            )
            raise NotAllowed(text, reason="CERTIFICATE_MISSING")
        if link is not None:
            self._check_link(claims, link)
        self._check_routes(scope, claims)

    def _check_link(self, claims: set[str], link: LinkOrigin) -> None:
        """Raise `NotAllowed` unless the node at a link's other end may speak for all claims.

        That is the node itself, or a relay of nodes whose keys prove their requests.
        """
        for node in sorted(claims - {link.node}):
            route = self._resolved(node) or self.former(node)
            is_relayed = route is not None and route.via == link.node
            if route is None or not is_relayed:
                text = f"the link is that of {link.node}, not of {node} or of its next hop"
                raise NotAllowed(text, reason=LINK_MISMATCH)
            if not route.keys:
                raise unproven(route, self.node)

    def _check_routes(self, scope: Scope, claims: set[str]) -> None:
        """Raise `NotAllowed` if the route of a claimed node proves nothing.

        Paths for unknown nodes serve such a node as they serve any other.
        """
        path = scope["path"]
        if path == _HELLO or path in self.open_paths:
            return
        for node in sorted(claims):
            entry = self.unproven_entry(node)
            if entry is not None:
                raise unproven(entry, self.node)

    def _check_certificate(
        self,
        scope: Scope,
        claims: set[str],
        certificate: Bearer,
    ) -> None:
        """Raise `NotAllowed` unless a certificate proves the claims of a request."""
        if self.revoked(certificate):
            raise NotAllowed("the client certificate is revoked", reason="CERTIFICATE_REVOKED")
        if self.handed_on(scope) and self.is_own(certificate):
            return
        is_open_path = scope["path"] in self.open_paths
        if is_open_path and claims.isdisjoint(self.table().routes):
            return
        unproven = self._unproven(claims, certificate)
        if unproven:
            text = f"the client certificate is not that of {', '.join(sorted(unproven))[:300]}"
            raise NotAllowed(text, reason="CERTIFICATE_MISMATCH")

    def _unproven(
        self,
        claims: set[str],
        certificate: Bearer,
    ) -> list[str]:
        """Return the claimed nodes that a certificate does not prove.

        Without claims, the certificate must belong to one of the nodes with a route; otherwise the
        result is the text "any node".
        """
        if claims:
            return [node for node in claims if not self._is_bound(node, certificate)]
        if any(self._is_bound(node, certificate) for node in self.table().routes):
            return []
        return ["any node"]

    def _is_bound(self, node: str, certificate: Bearer) -> bool:
        """Return whether a certificate belongs to a node or to the next hop to it."""
        routes = (self._resolved(node), self.former(node), self._direct_entry(node))
        return any(route.bound_to(certificate) for route in routes if route is not None)

    def _resolved(self, node: str) -> Route | None:
        """Return the route to a node, perhaps the default one; None without one."""
        try:
            return self.table().resolve(node)
        except UnknownNode:
            return None

    def _direct_entry(self, node: str) -> Route | None:
        """Return a node's enabled entry without a next hop; None without one.

        ``node`` may also be ``default``, an entry that `_resolved` does not find. The gateway at
        the address of ``default``, which relays requests, has a certificate, too.
        """
        entry = self.table().routes.get(node)
        if entry is None or not entry.enabled or entry.via is not None:
            return None
        return entry


def client_certificate(scope: Scope) -> Bearer | None:
    """Return the client certificate of a request, if it has one.

    Raises `NotAllowed` for an unusable one.
    """
    pem = _certificate_pem(scope)
    if not pem:
        return None
    try:
        return certificates.bearer(pem)
    except Unusable as error:
        text = f"the client certificate {error}"
        raise NotAllowed(text, reason="CERTIFICATE_MISMATCH") from error


def link_of(scope: Scope) -> LinkOrigin | None:
    """Return the link over which a request came; None for one of a direct connection."""
    link: LinkOrigin | None = (scope.get("extensions") or {}).get(LINK)
    return link


def has_client_certificate(scope: Scope) -> bool:
    """Return whether the node that connects has proven its identity.

    A client certificate, which the listener has verified, or the opening of a link proves it.
    """
    return link_of(scope) is not None or bool(_certificate_pem(scope))


def _certificate_pem(scope: Scope) -> str:
    """Return the client certificate of a request's connection as PEM text; "" without one."""
    extensions: Mapping[str, Any] = scope.get("extensions") or {}
    tls = extensions.get("tls") or {}
    chain = tls.get("client_cert_chain") or [""]
    return str(chain[0])


def check_claim(scope: Scope, node: str) -> None:
    """Raise `NotAllowed` unless a request may speak for a node that only its body names."""
    check = (scope.get("state") or {}).get(_CLAIM_CHECK)
    if check is not None:
        check([node])


def with_identity(
    app: ASGIApp,
    identity: PeerIdentity,
    claimed: Callable[[Scope], frozenset[str]],
    require_known_sender: Callable[[Scope], None],
    denial: Callable[[Scope, GatewayError], Response],
    audit_denial: Callable[[Scope, str, GatewayError], None],
    limiter: CapacityLimiter,
) -> ASGIApp:
    """Deny requests of senders without proof before their bodies are read.

    - ``claimed`` returns the nodes that headers name as the sender
    - ``require_known_sender`` raises `NotAllowed` for a request that needs a known sender and names
      none
    - ``denial`` builds the response
    - ``audit_denial`` records the claimed nodes and the refusal, in a thread of ``limiter``
    """

    async def serve(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        claims = claimed(scope)
        try:
            identity.check(scope, claims)
            require_known_sender(scope)
        except GatewayError as error:  # also raised by the lookup if the database is away
            if isinstance(error, NotAllowed):
                nodes = ", ".join(sorted(claims))
                await anyio.to_thread.run_sync(
                    audit_denial,
                    scope,
                    nodes,
                    error,
                    limiter=limiter,
                )
            response = denial(scope, error)
            await response(scope, receive, send)
            return
        scope.setdefault("state", {})[_CLAIM_CHECK] = partial(
            identity.check,
            scope,
        )
        await app(scope, receive, send)

    return serve


def noting_origin(app: ASGIApp) -> ASGIApp:
    """Set the origin of each request (`gateway.auth.origin`) for the wrapped application."""

    async def serve(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        address = (scope.get("client") or ("",))[0]
        subject = ""
        fingerprint = ""
        pem = _certificate_pem(scope)
        if pem:
            subject, fingerprint = _subject_and_fingerprint(pem)
        previous = ORIGIN.set(
            RequestOrigin(
                address=address,
                certificate=subject,
                fingerprint=fingerprint,
            )
        )
        try:
            await app(scope, receive, send)
        finally:
            ORIGIN.reset(previous)

    return serve


@lru_cache(maxsize=256)
def _subject_and_fingerprint(pem: str) -> tuple[str, str]:
    """Return the subject of a certificate and its SHA-256 fingerprint in hexadecimal digits."""
    certificate = x509.load_pem_x509_certificate(pem.encode("ascii"))
    return certificate.subject.rfc4514_string(), certificate.fingerprint(SHA256()).hex()


class QuotaReached(Busy):
    """A partner has used up its quota here: requests per minute, or unfinished jobs."""

    reason = QUOTA
    code = 429


class TokenBuckets:
    """A bucket of tokens for each name, refilled within a minute. For the event loop only."""

    def __init__(
        self,
        per_minute: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._capacity = float(per_minute)
        self._clock = clock
        # Name -> tokens, time of that count.
        self._buckets: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        """Return the number of names that have a bucket."""
        return len(self._buckets)

    def take(self, name: str) -> bool:
        """Take a token from a name's bucket; return False if the bucket is empty."""
        now = self._clock()
        tokens, counted_at = self._buckets.get(
            name,
            (self._capacity, now),
        )
        tokens += (now - counted_at) * self._capacity / 60
        tokens = min(self._capacity, tokens)
        if name not in self._buckets and len(self._buckets) >= MAX_BUCKETS:
            self._buckets.clear()
        is_allowed = tokens >= 1
        if is_allowed:
            tokens -= 1
        self._buckets[name] = (tokens, now)
        return is_allowed


def with_quota(
    app: ASGIApp,
    per_minute: int,
    sender: Callable[[Scope], str | None],
) -> ASGIApp:
    """Refuse requests above a sender's quota before they reach the wrapped application.

    ``sender`` returns the name that a request counts against, or None if it counts against no
    quota.
    """
    buckets = TokenBuckets(per_minute)

    async def serve(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            name = sender(scope)
            if name is not None and not buckets.take(name):
                raise QuotaReached(f"{name} sends more than {per_minute} requests a minute")
        except GatewayError as error:  # also raised by the lookup if the database is away
            await refusal(error, scope)(scope, receive, send)
            return
        await app(scope, receive, send)

    return serve
