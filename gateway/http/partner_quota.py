"""What one partner node may take of this node: requests per minute, and jobs that have not ended."""

import time
from collections.abc import Callable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import Busy, envelope

REASON = "PARTNER_QUOTA"
_MOST_NODES = 10_000
"""buckets that are kept; whoever is named beyond them begins with a full one"""


class QuotaReached(Busy):
    """A partner has used up what it may take here."""

    reason = REASON
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


class PartnerQuota:
    """An ASGI application before another one: refuses the requests of a node that sends too many."""

    def __init__(self, app: ASGIApp, per_minute: int, sender: Callable[[Scope], str | None]) -> None:
        """``sender``: whose request it is; None: it counts against no quota."""
        self._app = app
        self._per_minute = per_minute
        self._bucket = TokenBucket(per_minute)
        self._sender = sender

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 429."""
        if scope["type"] == "http":
            name = self._sender(scope)
            if name is not None and not self._bucket.take(name):
                error = QuotaReached(f"{name} sends more than {self._per_minute} requests a minute")
                await JSONResponse(envelope(error), error.code)(scope, receive, send)
                return
        await self._app(scope, receive, send)
