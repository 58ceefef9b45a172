"""Writes into the audit who was refused: no token or a wrong one, no right, an unknown node, a way not passed on.
Of a known node every refusal is written, such as that of a job, and with which job it was.

Who asks is not proven, so that a flood must cost little: the same refusal is written once a minute, with how often
it came since; of different ones some are written each minute, and with the next one the number of the others.
"""

import json
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import anyio.to_thread
import structlog
from anyio import CapacityLimiter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.auth import origin
from gateway.errors import GatewayError
from gateway.ports import Clock, as_mapping

log = structlog.get_logger(__name__)

MOST = 20
"""different refusals written in one minute"""
_KEPT = 1000
"""different refusals whose repetitions are counted"""
_EVERY = timedelta(minutes=1)
_STATUSES = (401, 403)
_CODES = (b'{"code":401', b'{"code":403', b'{"code":"E0000000403"', b'{"code":"E0000000618"')
"""how answers begin that say so with HTTP 200"""
_LONGEST = 16 * 1024
_WAITS = "RESOURCES_BUSY"
"""the reason that means: not yet"""

Add = Callable[[datetime, str, str, int, int | None, Mapping[str, Any]], None]


class Refusals:
    """Keeps count of refusals and writes some of them down. Safe to use from several threads."""

    def __init__(self, add: Add, clock: Clock) -> None:
        self._add = add
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, ...], tuple[datetime, int]] = {}
        self._minute = clock()
        self._written = 0
        self._others = 0

    def due(self, *key: str) -> Callable[[str, str, int, Mapping[str, Any]], None] | None:
        """Count a refusal; where it is to be written, return what does that. Quick: touches no database."""
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
        more = {name: str(count) for name, count in (("repeated", repeated), ("others", others)) if count}

        proof = origin().detail()

        def write(who: str, action: str, code: int, detail: Mapping[str, Any]) -> None:
            self._write(now, who, action, code, {**proof, **detail, **more})

        return write

    def _write(self, at: datetime, who: str, action: str, code: int, detail: Mapping[str, Any]) -> None:
        log.warning("refused", who=who, action=action, **{k: v for k, v in detail.items() if k != "message"})
        try:
            self._add(at, who, action, code, code, detail)
        except Exception as error:  # the refusal stands, whether the database is there or not
            log.warning("a refusal is not in the audit", cause=str(error)[:500])


class RefusalsNoted:
    """An ASGI application before another one: notes each of its answers that says who may not."""

    def __init__(
        self,
        app: ASGIApp,
        refusals: Refusals,
        claimed: Callable[[Scope], str],
        limiter: CapacityLimiter,
        partners: tuple[Callable[[str], bool], Refusals] | None = None,
    ) -> None:
        """``claimed``: which node a request says that it comes from.

        ``partners``: which nodes are known, and what counts their refusals, so that others cannot crowd them out.
        """
        self._app = app
        self._partners = partners
        self._refusals = refusals
        self._claimed = claimed
        self._limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on, and note the answer if it is a refusal."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, first = 0, True

        async def watched(message: Message) -> None:
            nonlocal status, first
            await send(message)
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body" and first:
                first = False
                body = message.get("body", b"")
                if status in _STATUSES or body.startswith(_CODES) or self._partner(scope) or _denied(scope):
                    await self._note(scope, status, bytes(body[:_LONGEST]))

        await self._app(scope, receive, watched)

    def _partner(self, scope: Scope) -> str:
        """Return the known node whose request was refused by what its path decides; empty for all else."""
        refused = (scope.get("state") or {}).get("refused")
        if self._partners is None or refused is None or refused.code >= 500 or refused.reason == _WAITS:
            return ""
        node = origin().node or self._claimed(scope)
        return node if node and self._partners[0](node) else ""

    async def _note(self, scope: Scope, status: int, body: bytes) -> None:
        state = scope.get("state") or {}
        if state.get("audited"):  # it asked for a change: that is written down, whatever came of it
            return
        partner = self._partner(scope)
        refused: GatewayError | None = state.get("refused")
        code, reason, words = _said(body) if refused is None else (refused.code, refused.reason, refused.message)
        asker = state.get("asker", "")
        node = "" if asker else partner or self._claimed(scope)
        who = asker or (f"node {node}"[:255] if node else "somebody")
        came_from = str((scope.get("client") or ("",))[0])
        asked = state.get("asked") or {}
        if partner and self._partners is not None:
            write = self._partners[1].due(who, came_from, reason, scope["path"], *asked.values())
        else:
            write = self._refusals.due(who, came_from, reason)
        if write is None:
            return
        number = status if status in _STATUSES else code
        action = f"{scope['method']} {scope['path']}"[:500]
        detail = {"reason": reason, "from": came_from, "message": words[:500]} | (
            {"asked": asked} if asked else {}
        )
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(lambda: write(who, action, number, detail), limiter=self._limiter)


def _denied(scope: Scope) -> bool:
    """Say whether a path has denied a request, in whatever words its protocol has for that."""
    refused = (scope.get("state") or {}).get("refused")
    return refused is not None and refused.code in _STATUSES


def _said(body: bytes) -> tuple[int, str, str]:
    """Return code, reason and text of a refusal."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        said = None
    envelope = as_mapping(said)
    text = str(envelope.get("msg") or envelope.get("message") or "")
    code = envelope.get("code")
    reason = str(
        as_mapping(envelope.get("data")).get("reason") or (code if isinstance(code, str) else "") or "REFUSED"
    )
    return code if isinstance(code, int) else 403, reason[:100], text


_FORBIDDEN = 403


class RelayAudit:
    """Safe to use from several threads."""

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals

    def refused(self, source: str, target: str, reason: str, words: str) -> None:
        """Note a refusal; how many there were since the last entry is told with the next."""
        write = self._refusals.due("relay", source, target, reason)
        if write is not None:
            detail = {"reason": reason, "target": target[:255], "message": words[:1000]}
            write(f"node {source or '(none named)'}"[:255], "relay", _FORBIDDEN, detail)

    def denied(self, scope: Scope, claims: str, reason: str, words: str) -> None:
        """Note a request that claimed to come from nodes for which it may not speak."""
        came_from = str((scope.get("client") or ("",))[0])
        write = self._refusals.due("peer", claims, came_from, reason)
        if write is not None:
            detail = {"reason": reason, "from": came_from, "message": words[:1000]}
            write(
                f"node {claims or '(none named)'}"[:255],
                f"{scope['method']} {scope['path']}"[:500],
                _FORBIDDEN,
                detail,
            )
