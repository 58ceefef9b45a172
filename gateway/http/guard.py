"""Before the operators' listener: who sends a request, whether its role allows it, and the audit of changes."""

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import anyio.to_thread
import structlog
from anyio import CapacityLimiter
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.auth import Access, Identity, Role, Unauthenticated, allowed, may
from gateway.errors import GatewayError, NotAllowed
from gateway.http.app import refusal
from gateway.http.audit import Record
from gateway.runtime.context import acting

log = structlog.get_logger(__name__)

_OPEN = ("/health/live", "/health/ready", "/docs")
"""without a token; the page holds nothing of this node, and asks for a token before it shows the description"""
_READS = ("GET", "HEAD", "OPTIONS")
_CACHE_SECONDS = 2.0
"""how long an identity is cached; so long a revoked token may still work"""
_MOST_CACHED = 1000
_LOCAL = Identity("operator", Role.ADMIN)
"""the sender where no token is needed: whoever is on this machine"""


class Guard:
    """An ASGI application before another one. ``access`` None: no token is needed."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access | None,
        record: Record,
        clock: Callable[[], datetime],
        limiter: CapacityLimiter,
        signed: Callable[[Mapping[str, str], str], Identity | None] = lambda *_: None,
        elsewhere: Callable[[str, GatewayError, int], JSONResponse | None] = lambda *_: None,
    ) -> None:
        """``signed`` returns who signed a request without a token, by its headers and, of a read, its path and
        query; it may block. ``elsewhere`` words a refusal on another protocol's paths as that does."""
        self._app = app
        self._access = access
        self._record = record
        self._clock = clock
        self._limiter = limiter
        self._signed = signed
        self._elsewhere = elsewhere
        self._cache: dict[str, tuple[float, Identity]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if its sender may make it, and record what it changed."""
        if scope["type"] != "http" or scope["path"] in _OPEN:
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        try:
            identity = await self._identity(scope)
            state["asker"] = identity.name
            if not may(identity.role, scope["method"], scope["path"]):
                roles = " or ".join(allowed(scope["method"], scope["path"]))
                text = f"{identity.name} is {identity.role}; {scope['method']} {scope['path']} needs {roles}"
                raise NotAllowed(text)
        except GatewayError as error:
            state["refused"] = error
            headers = {"www-authenticate": "Bearer"} if isinstance(error, Unauthenticated) else None
            response = self._elsewhere(scope["path"], error, error.code) or refusal(error, headers)
            await response(scope, receive, send)
            return
        state["operator"] = identity.name if self._access else ""
        state["role"] = str(identity.role)
        if scope["method"] in _READS:
            await self._app(scope, receive, send)
            return
        with acting(state["operator"]):
            await self._audited(identity.name, scope, receive, send)

    async def _identity(self, scope: Scope) -> Identity:
        access = self._access
        if access is None:
            return _LOCAL
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        kind, _, token = headers.get("authorization", "").partition(" ")
        token = token.strip() if kind.lower() == "bearer" else ""
        if not token:
            signer = await anyio.to_thread.run_sync(self._signed, headers, _read(scope), limiter=self._limiter)
            if signer is not None:
                return signer
        cached = self._cache.get(token)
        if cached is not None and time.monotonic() - cached[0] < _CACHE_SECONDS:
            return cached[1]
        identity = await anyio.to_thread.run_sync(access.identify, token, limiter=self._limiter)
        if len(self._cache) >= _MOST_CACHED:
            self._cache.clear()
        self._cache[token] = (time.monotonic(), identity)
        return identity

    async def _audited(self, who: str, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        state["audited"] = True
        status = 500

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        at = self._clock()
        try:
            await self._app(scope, receive, note_status)
        finally:
            ids = {key: state[key] for key in ("asked", "answered") if state.get(key)}
            detail = {**ids, **dict(state.get("audit") or {})}
            refused: GatewayError | None = state.get("refused")
            if refused is not None:
                detail["refused"] = f"{refused.reason}: {refused.message}"[:500]
            code = None if refused is None else refused.code
            action = f"{scope['method']} {scope['path']}"
            with anyio.CancelScope(shield=True):
                work = partial(self._write, who, action, at, status, code, detail)
                await anyio.to_thread.run_sync(work, limiter=self._limiter)

    def _write(self, who: str, action: str, at: datetime, *result: Any) -> None:
        try:
            self._record(at, who, action, *result)
        except Exception:
            log.exception("a change is not in the audit log", who=who, action=action, status=result[0])


def _read(scope: Scope) -> str:
    """Return method, path and query of a request that changes nothing; empty for any other."""
    if scope["method"] not in _READS:
        return ""
    return f"{scope['method']} {scope['path']}?{scope.get('query_string', b'').decode('latin-1')}"
