"""Stands before the operators' listener: asks who it is, lets through what the role may do, notes changes."""

import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Protocol

import anyio.to_thread
import structlog
from anyio import CapacityLimiter
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.auth import Access, Identity, NotLetIn, Role, allowed, may
from gateway.errors import GatewayError, NotAllowed
from gateway.runtime.context import acting

log = structlog.get_logger(__name__)

_OPEN = ("/health/live", "/health/ready", "/docs")
"""without a token; the page holds nothing of this node, and asks for a token before it shows the description"""
_LOOKS = ("GET", "HEAD", "OPTIONS")
_REMEMBERED = 2.0
"""seconds for which an identity is not looked up again; so long a revoked token may still work"""
_MOST_REMEMBERED = 1000
_HEAD = 4096
"""bytes of a request and of an answer in which ids, and the envelope's code, are looked for"""
_IDS = ("job_id", "task_id", "task_name", "flow_id", "namespace", "name", "version")
_ENVELOPE = re.compile(r"""\{"code":-?\d+,"(?:msg|message)":"((?:[^"\\]|\\u[0-9a-fA-F]{4}|\\["\\/bfnrt])*)""")
"""the words of an answer that is longer than what is looked at"""
_NOBODY = Identity("operator", Role.ADMIN)
"""who asks where no token is needed: whoever is on this machine"""


class Record(Protocol):
    """Writes one change down."""

    def __call__(
        self, at: datetime, who: str, action: str, status: int, code: int | None, detail: Mapping[str, Any]
    ) -> None:
        """Write down who did what, the answer's HTTP status, and the code in its body."""


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
        """``signed`` tells who signed a request without a token, by its headers and, of a look, its question;
        None: nobody did. It may wait. ``elsewhere`` words a refusal on another protocol's paths as that does."""
        self._app = app
        self._access = access
        self._record = record
        self._clock = clock
        self._limiter = limiter
        self._signed = signed
        self._elsewhere = elsewhere
        self._known: dict[str, tuple[float, Identity]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through if its asker may make it, and note what it changed."""
        if scope["type"] != "http" or scope["path"] in _OPEN:
            await self._app(scope, receive, send)
            return
        try:
            identity = await self._identity(scope)
            scope.setdefault("state", {})["asker"] = identity.name  # for the audit, should it be refused
            if not may(identity.role, scope["method"], scope["path"]):
                roles = " or ".join(allowed(scope["method"], scope["path"]))
                text = f"{identity.name} is {identity.role}; {scope['method']} {scope['path']} needs {roles}"
                raise NotAllowed(text)
        except GatewayError as error:
            answer = self._elsewhere(scope["path"], error, error.code) or _refused(error)
            await answer(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["operator"] = identity.name if self._access else ""
        state["role"] = str(identity.role)
        if scope["method"] in _LOOKS:
            await self._app(scope, receive, send)
            return
        with acting(state["operator"]):
            await self._audited(identity.name, scope, receive, send)

    async def _identity(self, scope: Scope) -> Identity:
        access = self._access
        if access is None:
            return _NOBODY
        said = next((v.decode("latin-1") for k, v in scope["headers"] if k == b"authorization"), "")
        text = said[7:].strip() if said[:7].lower() == "bearer " else ""
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]} if not text else {}
        if headers:
            work = partial(self._signed, headers, _look(scope))
            if (signer := await anyio.to_thread.run_sync(work, limiter=self._limiter)) is not None:
                return signer
        known = self._known.get(text)
        if known is not None and time.monotonic() - known[0] < _REMEMBERED:
            return known[1]
        identity = await anyio.to_thread.run_sync(lambda: access.identify(text), limiter=self._limiter)
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[text] = (time.monotonic(), identity)
        return identity

    async def _audited(self, who: str, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["audited"] = True
        status = 500
        head, asked = bytearray(), bytearray()

        async def heard() -> Message:
            message = await receive()
            if message["type"] == "http.request" and len(asked) < _HEAD:
                asked.extend(message.get("body", b"")[: _HEAD - len(asked)])
            return message

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body" and len(head) < _HEAD:
                head.extend(message.get("body", b"")[: _HEAD - len(head)])
            await send(message)

        at = self._clock()
        try:
            await self._app(scope, heard, watched)
        finally:
            action = f"{scope['method']} {scope['path']}"
            detail = {**_ids(bytes(asked), bytes(head)), **dict(scope["state"].get("audit") or {})}
            if words := _refusal(status, bytes(head)):
                detail["refused"] = words
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(
                    lambda: self._write(at, who, action, status, _code(bytes(head)), detail), limiter=self._limiter
                )

    def _write(
        self, at: datetime, who: str, action: str, status: int, code: int | None, detail: Mapping[str, Any]
    ) -> None:
        try:
            self._record(at, who, action, status, code, detail)
        except Exception:
            log.exception("a change could not be written down", who=who, action=action, status=status)


def _look(scope: Scope) -> str:
    """Return what a request that changes nothing asks: method, path and query; empty for any other."""
    if scope["method"] not in _LOOKS:
        return ""
    return f"{scope['method']} {scope['path']}?{scope.get('query_string', b'').decode('latin-1')}"


def _ids(asked: bytes, answered: bytes) -> dict[str, Any]:
    """Return what a short request names, and what its answer does: paths of the standard do not tell a job."""
    found = {"asked": _named(_read(asked)), "answered": _named(_read(answered))}
    return {key: names for key, names in found.items() if names}


def _named(said: Any) -> dict[str, Any]:
    if not isinstance(said, Mapping):
        return {}
    data = said.get("data")
    inner = {**said, **data} if isinstance(data, Mapping) else said  # FATE's tell the job beside the data
    return {key: inner[key] for key in _IDS if isinstance(inner.get(key), str) and len(inner[key]) <= 200}


def _read(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _refusal(status: int, head: bytes) -> str:
    """Return why a change was not made, as the beginning of the answer says it; empty where it was."""
    if status < 400 and _code(head) in (None, 0, 200):
        return ""
    said = _read(head)
    text = (said.get("msg") or said.get("message")) if isinstance(said, Mapping) else _words(head)
    return str(text or "")[:500]


def _words(head: bytes) -> str:
    """Return the words of an envelope, as far as the beginning of an answer holds them."""
    found = _ENVELOPE.match(head.decode("utf-8", "ignore"))
    return str(json.loads(f'"{found[1]}"', strict=False)) if found else ""


def _code(head: bytes) -> int | None:
    """Return the code of an envelope at the beginning of an answer, None where there is none."""
    text = head.decode("utf-8", "replace")
    if not text.startswith('{"code":'):
        return None
    try:
        code, _ = json.JSONDecoder().raw_decode(text, len('{"code":'))
    except ValueError:
        return None
    return code if isinstance(code, int) else None


def _refused(error: GatewayError) -> JSONResponse:
    body = {"code": error.code, "msg": f"{error.reason}: {error.message}", "data": {"reason": error.reason}}
    headers = {"www-authenticate": "Bearer"} if isinstance(error, NotLetIn) else None
    return JSONResponse(body, status_code=error.code, headers=headers)
