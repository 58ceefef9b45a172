"""Whoever names a node without a route has the database asked about it in a thread, before the answer is made.

Whether such a node still takes part in a job under way decides what it may, and how it is answered. Both are asked
for on the event loop, where nobody may wait for a database.
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
class Seen:
    """What is known of a node without a route: whether it is listened to, and which route it had."""

    admitted: bool = False
    route: Route | None = None
    error: GatewayError | None = None
    """why that cannot be said"""


_SEEN: ContextVar[Mapping[str, Seen] | None] = ContextVar("strangers", default=None)


def seen(node: str) -> Seen | None:
    """Return what was found of a node for the request under way; None where it was not asked for."""
    return (_SEEN.get() or {}).get(node)


class StrangersFirst:
    """An ASGI application before another one that asks about strangers: see `seen`."""

    def __init__(
        self,
        app: ASGIApp,
        is_stranger: Callable[[str], bool],
        look: Callable[[str], Seen],
        limiter: CapacityLimiter,
    ) -> None:
        """``is_stranger`` tells at once whether ``look``, which asks the database, is needed for a node."""
        self._app = app
        self._is_stranger = is_stranger
        self._look = look
        self._limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask about the strangers that a request names, then hand it on."""
        named = _named(scope) if scope["type"] == "http" else set()
        strangers = [node for node in named if self._is_stranger(node)]
        found: Mapping[str, Seen] = {}
        if strangers:
            found = await anyio.to_thread.run_sync(
                lambda: {node: self._safely(node) for node in strangers}, limiter=self._limiter
            )
        # Set where there is none, too: the requests of a connection may inherit what one before them had found, as
        # the server goes on reading in the context of the request that made it pause.
        before = _SEEN.set(found)
        try:
            await self._app(scope, receive, send)
        finally:
            _SEEN.reset(before)

    def _safely(self, node: str) -> Seen:
        try:
            return self._look(node)
        except GatewayError as error:
            return Seen(error=error)


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
