"""Looks up, before a request is handled, the peers that it names and that have no route.

Whether such a node still takes part in a job under way decides what it may do, and in which dialect we respond.
Both are needed on the event loop, where nothing may wait for the database.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass

import anyio.to_thread
from anyio import CapacityLimiter
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import GatewayError
from route_table.model import Route

_CONTROL = frozenset({b"x-source-node-id", b"x-node-id"})
"""in hyphens or underscores"""
_CHANNEL = frozenset({b"x-ptp-source-node-id", b"x-ptp-from-node-id", b"x-ptp-target-node-id"})
"""in any mixture of both"""


@dataclass(frozen=True)
class UnknownPeer:
    """What is known of a node without a route: whether it may still send requests, and which route it had."""

    admitted: bool = False
    route: Route | None = None
    error: GatewayError | None = None
    """why the lookup failed"""


_FOUND: ContextVar[Mapping[str, UnknownPeer] | None] = ContextVar("unknown_peers", default=None)


def unknown_peer(node: str) -> UnknownPeer | None:
    """Return what was found of a node for the request under way; None where it was not looked up."""
    return (_FOUND.get() or {}).get(node)


class PeerLookup:
    """An ASGI application before another one: looks up unknown peers for `unknown_peer`."""

    def __init__(
        self,
        app: ASGIApp,
        is_unknown: Callable[[str], bool],
        look_up: Callable[[str], UnknownPeer],
        limiter: CapacityLimiter,
    ) -> None:
        """``is_unknown`` tells without the database whether ``look_up``, which needs it, has to be called."""
        self._app = app
        self._is_unknown = is_unknown
        self._look_up = look_up
        self._limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look up the unknown peers that a request names, then pass it on."""
        named = _named(scope) if scope["type"] == "http" else set()
        unknown = [node for node in named if self._is_unknown(node)]
        found: Mapping[str, UnknownPeer] = {}
        if unknown:
            found = await anyio.to_thread.run_sync(
                lambda: {node: self._safely(node) for node in unknown}, limiter=self._limiter
            )
        # Set where there is none, too: the requests of a connection may inherit what one before them had found, as
        # the server goes on reading in the context of the request that made it pause.
        before = _FOUND.set(found)
        try:
            await self._app(scope, receive, send)
        finally:
            _FOUND.reset(before)

    def _safely(self, node: str) -> UnknownPeer:
        try:
            return self._look_up(node)
        except GatewayError as error:
            return UnknownPeer(error=error)


def _named(scope: Scope) -> set[str]:
    """Return the nodes that a request's headers name, as they are read: a few, however many headers there are.

    Of one that is repeated the first is read, or none at all.
    """
    found: dict[tuple[bytes, bool], bytes] = {}
    for spelled, value in scope["headers"]:
        name = spelled.replace(b"_", b"-")
        read = name in _CHANNEL or (name in _CONTROL and spelled in (name, name.replace(b"-", b"_")))
        if read and value.strip():
            found.setdefault((name, spelled != name), value)
    return {value.strip().decode("latin-1") for value in found.values()} - {""}
