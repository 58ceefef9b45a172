"""Before the listeners: who sends a request to operators' paths, whether its role allows it, and the audit.

The audit holds every change with its result, and refused requests: without a valid token, a role, or a known node;
a known node's all. Their sender is not proven, so a flood must cost little: the same refusal is written once a
minute, with how often it came since; of different ones some each minute, then the number of the others.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import anyio.to_thread
import structlog
from anyio import CapacityLimiter
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.auth import Access, Identity, Role, Unauthenticated, allowed, may, origin
from gateway.errors import GatewayError, NotAllowed, NotFound
from gateway.http.app import refusal
from gateway.ports import Clock
from gateway.runtime.context import acting

log = structlog.get_logger(__name__)

_SESSION = "/api/v1/session"
OIDC = f"{_SESSION}/oidc"
_HEALTH = ("/health", "/health/live", "/health/ready")
_OPEN = (*_HEALTH, "/docs", "/", "/console", f"{_SESSION}/ways", OIDC, f"{OIDC}/callback")
_PAGES = "/console/"
"""these without a token; the pages hold nothing of this node, and ask for a token before they show anything"""
_OF_PEERS = ("/v1/interconn/", "/v2/partner/", "/v2/scheduler/")
BY_PAGE = "x-console"
"""a header that a page of ours sends with each change: a page of another site cannot"""
_READS = ("GET", "HEAD", "OPTIONS")
_CACHE_SECONDS = 2.0
"""how long an identity is cached; so long a revoked token may still work"""
_STREAM_SECONDS = 1.0
"""how long it is cached for streams, which notice half a second later"""
_MOST_CACHED = 1000
_LOCAL = Identity("operator", Role.ADMIN)
"""the sender where no token is needed: whoever is on this machine"""
MOST = 20
"""different refusals written in one minute"""
_KEPT = 1000
"""different refusals whose repetitions are counted"""
_EVERY = timedelta(minutes=1)
_DENIED = (401, 403)
_BUSY = "RESOURCES_BUSY"
"""the reason of a refusal that means: not yet"""

Record = Callable[[datetime, str, str, int, int | None, Mapping[str, Any]], None]
"""writes when who did what, the HTTP status, the code of a refusal, and the detail into the audit log"""


def cookie_name(node: str) -> str:
    """Return the name of the cookie that holds a token: browsers share cookies between the ports of a host."""
    return f"bfia-{hashlib.sha256(node.encode()).hexdigest()[:12]}"


@dataclass
class Guard:
    """An ASGI application before another one."""

    app: ASGIApp
    access: Access | None
    """None: no token is needed"""
    record: Record
    clock: Clock
    limiter: CapacityLimiter
    cookie: str = ""
    """the name of the one in which a browser may send the token"""
    _cache: dict[str, tuple[float, Identity]] = field(default_factory=dict, init=False)

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Pass a request on if its sender may make it, and record what it changed."""
        if scope["path"] in _OPEN or scope["path"].startswith(_PAGES):
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        try:
            identity = await self._identity(scope)
            state["asker"] = identity.name
            if scope["path"].startswith(_OF_PEERS):
                text = (
                    f"no such path on this listener: {scope['path']}; other nodes use listen.peer"
                )
                raise NotFound(text, reason="PATH_UNKNOWN")
            if not may(identity.role, scope["method"], scope["path"]):
                roles = ", ".join(allowed(scope["method"], scope["path"]))
                request = f"{scope['method']} {scope['path']}"
                text = f"{identity.name} has the role {identity.role}; {request} is open to {roles}"
                raise NotAllowed(text)
        except GatewayError as error:
            if not _only_asks(scope, error):
                state["refused"] = error
            headers = {"www-authenticate": "Bearer"} if isinstance(error, Unauthenticated) else None
            await refusal(error, scope, headers)(scope, receive, send)
            return
        state["operator"] = identity.name if self.access else ""
        state["role"] = str(identity.role)
        state["check_again"] = partial(self._check_again, scope)
        if scope["method"] in _READS:
            await self.app(scope, receive, send)
            return
        with acting(state["operator"]):
            await self._audited(identity.name, scope, receive, send)

    async def _identity(self, scope: Scope) -> Identity:
        access = self.access
        if access is None:
            return _LOCAL
        token = self._token(scope, _texts(scope))
        return await self._identified(access, token, _CACHE_SECONDS)

    def _token(self, scope: Scope, headers: Mapping[str, str]) -> str:
        kind, _, token = headers.get("authorization", "").partition(" ")
        token = token.strip() if kind.lower() == "bearer" else ""
        if not token and (scope["method"] in _READS or BY_PAGE in headers):
            token = cookie_parser(headers.get("cookie", "")).get(self.cookie, "")
        return token

    async def _check_again(self, scope: Scope) -> None:
        """Raise `Unauthenticated` once the token of a request that goes on is revoked or has expired."""
        token = self._token(scope, _texts(scope))
        if self.access is not None and token:
            await self._identified(self.access, token, _STREAM_SECONDS)

    async def _identified(
        self,
        access: Access,
        token: str,
        cache_seconds: float,
    ) -> Identity:
        cached = self._cache.get(token)
        if cached is not None and time.monotonic() - cached[0] < cache_seconds:
            return cached[1]
        identity = await anyio.to_thread.run_sync(access.identify, token, limiter=self.limiter)
        if len(self._cache) >= _MOST_CACHED:
            self._cache.clear()
        self._cache[token] = (time.monotonic(), identity)
        return identity

    async def _audited(
        self,
        who: str,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        state = scope["state"]
        state["audited"] = True
        status = 500
        at = self.clock()
        written = False

        async def write() -> None:
            nonlocal written
            written = True
            ids = {key: state[key] for key in ("asked", "answered") if state.get(key)}
            detail = {**ids, **dict(state.get("audit") or {})}
            refused: GatewayError | None = state.get("refused")
            if refused is not None:
                detail["refused"] = f"{refused.reason}: {refused.message}"[:500]
            code = None if refused is None else refused.code
            action = f"{scope['method']} {scope['path']}"
            with anyio.CancelScope(shield=True):
                work = partial(self._write, who, action, at, status, code, detail)
                await anyio.to_thread.run_sync(work, limiter=self.limiter)

        async def send_written(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif not message.get("more_body", False) and not written:
                await write()  # whoever has the whole answer finds the change in the log
            await send(message)

        try:
            await self.app(scope, receive, send_written)
        finally:
            if not written:
                await write()

    def _write(
        self,
        who: str,
        action: str,
        at: datetime,
        *result: Any,
    ) -> None:
        try:
            self.record(at, who, action, *result)
        except Exception:
            log.exception(
                "a change is not in the audit log",
                who=who,
                action=action,
                status=result[0],
            )


def _texts(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _only_asks(scope: Scope, error: GatewayError) -> bool:
    """Tell whether a page asks, without a token, whether its browser has logged in: that is not a trial."""
    return error.reason == "NO_TOKEN" and (scope["method"], scope["path"]) == ("GET", _SESSION)


class Refusals:
    """Counts refusals and writes some of them into the audit log. Safe to use from several threads."""

    def __init__(self, add: Record, clock: Clock) -> None:
        self._add = add
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, ...], tuple[datetime, int]] = {}
        self._minute = clock()
        self._written = 0
        self._others = 0

    def due(self, *key: str) -> Callable[[str, str, int, Mapping[str, Any]], None] | None:
        """Count a refusal; where it is due to be written, return what does so. Does not use the database."""
        key = tuple(part[:255] for part in key)
        now = self._clock()
        with self._lock:
            at, repeated = self._counts.get(key, (None, 0))
            if at is not None and now - at < _EVERY:
                self._counts[key] = (at, repeated + 1)
                return None
            if now - self._minute >= _EVERY:
                self._minute, self._written = now, 0
            if self._written >= MOST:
                self._others += 1
                return None
            self._written += 1
            if len(self._counts) >= _KEPT:
                self._others += sum(count for _, count in self._counts.values())
                self._counts.clear()
            others, self._others = self._others, 0
            self._counts[key] = (now, 0)
        more = {
            name: str(count)
            for name, count in (("repeated", repeated), ("others", others))
            if count
        }

        proof = origin().detail()

        def write(
            who: str,
            action: str,
            code: int,
            detail: Mapping[str, Any],
        ) -> None:
            full = {
                **proof,
                **detail,
                **more,
            }
            shown = {k: v for k, v in full.items() if k != "message"}
            log.warning(
                "refused",
                who=who,
                action=action,
                **shown,
            )
            try:
                self._add(now, who, action, code, code, full)
            except Exception as error:  # the refusal stands, whether the database is there or not
                log.warning("a refusal is not in the audit", cause=str(error)[:500])

        return write

    def relay(
        self,
        source: str,
        target: str,
        reason: str,
        message: str,
    ) -> None:
        """Note a request from one node to another that is not passed on."""
        if write := self.due("relay", source, target, reason):
            write(
                _node(source),
                "relay",
                403,
                {
                    "reason": reason,
                    "target": target[:255],
                    "message": message[:1000],
                },
            )

    def denied(
        self,
        scope: Scope,
        claims: str,
        error: GatewayError,
    ) -> None:
        """Note a request that claimed to come from nodes for which it may not speak."""
        address = address_of(scope)
        if write := self.due("peer", claims, address, error.reason):
            detail = {
                "reason": error.reason,
                "from": address,
                "message": error.message[:1000],
            }
            write(_node(claims), _action(scope), 403, detail)


class Partners(NamedTuple):
    """What counts the refusals of known nodes."""

    knows: Callable[[str], bool]
    of: Callable[[str], Refusals]
    """a node's own, so that no other crowds them out"""
    unproven: Refusals
    """those that only claim to be a known node's, with neither a signature that held nor a certificate"""


def noting_refusals(
    app: ASGIApp,
    refusals: Refusals,
    claimed: Callable[[Scope], str],
    limiter: CapacityLimiter,
    partners: Partners | None = None,
) -> ASGIApp:
    """Note, after another application, the requests whose state says ``refused``.

    ``claimed``: which node a request says that it comes from.
    """

    def partner(scope: Scope, refused: GatewayError) -> str:
        """Return the known node that was refused, "" for others and for what may succeed later."""
        if partners is None or refused.code >= 500 or refused.reason == _BUSY:
            return ""
        node = origin().node or claimed(scope)
        return node if node and partners.knows(node) else ""

    async def note(
        scope: Scope,
        state: Mapping[str, Any],
        refused: GatewayError,
    ) -> None:
        known = partner(scope, refused)
        if not known and refused.code not in _DENIED:
            return
        user = state.get("asker", "")
        node = "" if user else known or claimed(scope)
        who = user or (f"node {node}"[:255] if node else "somebody")
        address = address_of(scope)
        asked = state.get("asked") or {}
        if known and partners is not None:
            counts = (
                partners.of(known) if origin().key or origin().fingerprint else partners.unproven
            )
            write = counts.due(who, address, refused.reason, scope["path"], *asked.values())
        else:
            write = refusals.due(who, address, refused.reason)
        if write is None:
            return
        detail: dict[str, Any] = {
            "reason": refused.reason,
            "from": address,
            "message": refused.message[:500],
        }
        detail |= {"asked": asked} if asked else {}
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(
                write, who, _action(scope), refused.code, detail, limiter=limiter
            )

    async def served(
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            await app(scope, receive, send)
        finally:
            state = scope.get("state") or {}
            if (
                "refused" in state and "audited" not in state
            ):  # a change is in the audit with its result
                await note(scope, state, state["refused"])

    return served


def address_of(scope: Scope) -> str:
    """Return the address from which a request came."""
    return str((scope.get("client") or ("",))[0])


def _action(scope: Scope) -> str:
    return f"{scope['method']} {scope['path']}"[:500]


def _node(name: str) -> str:
    return f"node {name or '(none named)'}"[:255]
