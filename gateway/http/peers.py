"""Before the application for peers: which peers a request names, for whom it may speak, and how many it may send.

This node's own id is never accepted from a peer: only the operators' listener acts for this node's platform.
Where peers show certificates (``listen.peer.tls.client_ca``), the certificate has to be bound to each node that
the request claims to come from, by the route of that node, or of the next hop to it.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
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
from route_table import certificates
from route_table.model import Bearer, Route, RouteTable, UnknownNode, Unusable

_STATE = "speaks_for"
_HELLO = "/v1/interconn/schedule/node/hello"
"""answers only who this node is, by which a node notices a route that leads to itself"""
_CONTROL = frozenset({b"x-source-node-id", b"x-node-id"})
"""in hyphens or underscores"""
_CHANNEL = frozenset({b"x-ptp-source-node-id", b"x-ptp-from-node-id", b"x-ptp-target-node-id"})
"""in any mixture of both"""
QUOTA = "PARTNER_QUOTA"
_MOST_NODES = 10_000
"""buckets that are kept; whoever is named beyond them begins with a full one"""


@dataclass(frozen=True)
class UnknownPeer:
    """What is known of a node without an enabled entry of its own."""

    admitted: bool = False
    """whether it takes part in a job under way, and may do what its part needs"""
    route: Route | None = None
    """how it is reached"""
    former: Route | None = None
    """the entry that it had, by which what it sends is proven while its jobs go on"""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """by job: its public keys, as the signed job has them"""
    error: GatewayError | None = None
    """why the lookup failed"""


_FOUND: ContextVar[Mapping[str, UnknownPeer] | None] = ContextVar("unknown_peers", default=None)


def unknown_peer(node: str) -> UnknownPeer | None:
    """Return what was found of a node for the request under way; None where it was not looked up."""
    return (_FOUND.get() or {}).get(node)


def with_lookup(
    app: ASGIApp,
    is_unknown: Callable[[str], bool],
    look_up: Callable[[str], UnknownPeer],
    limiter: CapacityLimiter,
) -> ASGIApp:
    """Look up, before another application, the unknown peers that a request names, for `unknown_peer`.

    What such a node may do, and in which dialect we respond, is needed on the event loop, where nothing may wait.
    ``is_unknown`` tells without the database whether ``look_up``, which needs it, has to be called.
    """

    def found(nodes: list[str]) -> dict[str, UnknownPeer]:
        peers = {}
        for node in nodes:
            try:
                peers[node] = look_up(node)
            except GatewayError as error:
                peers[node] = UnknownPeer(error=error)
        return peers

    async def served(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        unknown = [node for node in _named(scope) if is_unknown(node)]
        peers = await anyio.to_thread.run_sync(found, unknown, limiter=limiter) if unknown else {}
        # Set where there is none, too: the requests of a connection may inherit what one before them had found, as
        # the server goes on reading in the context of the request that made it pause.
        before = _FOUND.set(peers)
        try:
            await app(scope, receive, send)
        finally:
            _FOUND.reset(before)

    return served


def _named(scope: Scope) -> set[str]:
    """Return the nodes that a request's headers name, as they are read: a few, however many headers there are.

    Of one that is repeated the first is read, or none at all.
    """
    found: dict[tuple[bytes, bool], str] = {}
    for spelled, value in scope["headers"]:
        name = spelled.replace(b"_", b"-")
        read = name in _CHANNEL or (
            name in _CONTROL and spelled in (name, name.replace(b"-", b"_"))
        )
        if read and (
            text := value.decode("latin-1").strip()
        ):  # as the sender is read: bytes keep more blanks
            found.setdefault((name, spelled != name), text)
    return set(found.values())


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
    open: frozenset[str] = frozenset()
    """paths that serve unknown nodes: no certificate is bound to one yet"""

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
        if self.handed_on(scope) and not certificate.bears.isdisjoint(
            self.own | {self.node.lower()}
        ):
            return
        if scope["path"] in self.open and claims.isdisjoint(self.table().routes):
            return
        if claims:
            wrong = [node for node in claims if not self._bound(node, certificate)]
        else:
            wrong = (
                []
                if any(self._bound(node, certificate) for node in self.table().routes)
                else ["any node"]
            )
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
    """Return the certificate that a request's client showed; None where it showed none. Raises `NotAllowed`."""
    pem = _certificate(scope)
    try:
        return certificates.bearer(pem) if pem else None
    except Unusable as error:
        raise NotAllowed(
            f"the client certificate {error}", reason="CERTIFICATE_MISMATCH"
        ) from error


def shows_certificate(scope: Scope) -> bool:
    """Whether a request's client showed a certificate, which the listener has verified."""
    return bool(_certificate(scope))


def _certificate(scope: Scope) -> str:
    """Return the certificate of a request's connection in PEM form; empty where there is none."""
    extensions: Mapping[str, Any] = scope.get("extensions") or {}
    return next(iter((extensions.get("tls") or {}).get("client_cert_chain") or ()), "")


def check_claim(scope: Scope, node: str) -> None:
    """Raise `NotAllowed` unless a request may speak for a node that only its body names."""
    check = (scope.get("state") or {}).get(_STATE)
    if check is not None:
        check([node])


def with_identity(
    app: ASGIApp,
    identity: PeerIdentity,
    claimed: Callable[[Scope], frozenset[str]],
    unknown: Callable[[Scope], None],
    denied: Callable[[Scope, GatewayError], Response],
    noted: Callable[[Scope, str, GatewayError], None],
    limiter: CapacityLimiter,
) -> ASGIApp:
    """Deny, before another application, requests that claim what they may not; before their bodies are read.

    ``claimed``: the nodes that headers name as the sender; ``unknown`` raises `NotAllowed` for one that needs a
    known sender and names none; ``denied`` makes the response; ``noted`` writes into the audit what was claimed
    and why it was denied, in a thread of ``limiter``.
    """

    async def served(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        claims = claimed(scope)
        try:
            identity.check(scope, claims)
            unknown(scope)
        except (
            GatewayError
        ) as error:  # also one of the database, which tells whether the sender is known
            if isinstance(error, NotAllowed):
                await anyio.to_thread.run_sync(
                    noted, scope, ", ".join(sorted(claims)), error, limiter=limiter
                )
            await denied(scope, error)(scope, receive, send)
            return
        scope.setdefault("state", {})[_STATE] = lambda nodes: identity.check(scope, nodes)
        await app(scope, receive, send)

    return served


def noting_origin(app: ASGIApp) -> ASGIApp:
    """Note the origin of each request, before another application."""

    async def served(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        pem = _certificate(scope)
        before = ORIGIN.set(
            RequestOrigin((scope.get("client") or ("",))[0], *(_read(pem) if pem else ("", "")))
        )
        try:
            await app(scope, receive, send)
        finally:
            ORIGIN.reset(before)

    return served


@lru_cache(maxsize=256)
def _read(pem: str) -> tuple[str, str]:
    certificate = x509.load_pem_x509_certificate(pem.encode("ascii"))
    return certificate.subject.rfc4514_string(), certificate.fingerprint(SHA256()).hex()


class QuotaReached(Busy):
    """A partner has used up what it may take here: requests per minute, or jobs that have not ended."""

    reason = QUOTA
    code = 429


class TokenBucket:
    """Holds so many tokens for each name and refills them within a minute. Used on the event loop only."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = float(per_minute)
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> bool:
        """Take a token; False: none is left."""
        now = self._clock()
        left, at = self._left.get(name, (self._most, now))
        left = min(self._most, left + (now - at) * self._most / 60)
        if name not in self._left and len(self._left) >= _MOST_NODES:
            self._left.clear()
        self._left[name] = (left - 1 if left >= 1 else left, now)
        return left >= 1


def with_quota(
    app: ASGIApp,
    per_minute: int,
    sender: Callable[[Scope], str | None],
) -> ASGIApp:
    """Refuse, before another application, the requests of a node that sends too many.

    ``sender``: whose request it is; None: it counts against no quota.
    """
    bucket = TokenBucket(per_minute)

    async def served(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            name = sender(scope)
            if name is not None and not bucket.take(name):
                raise QuotaReached(f"{name} sends more than {per_minute} requests a minute")
        except (
            GatewayError
        ) as error:  # also one of the database, which tells whether the sender is known
            await refusal(error, scope)(scope, receive, send)
            return
        await app(scope, receive, send)

    return served
