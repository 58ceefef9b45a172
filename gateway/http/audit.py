"""Writes refused requests into the audit log: without a valid token, a role, or a known node; a known node's all.

The sender is not proven, so a flood must cost little: the same refusal is written once a minute, with how often
it came since; of different ones some are written each minute, and with the next one the number of the others.
"""

import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import anyio.to_thread
import structlog
from anyio import CapacityLimiter
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.auth import origin
from gateway.errors import GatewayError
from gateway.ports import Clock

log = structlog.get_logger(__name__)

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
        more = {name: str(count) for name, count in (("repeated", repeated), ("others", others)) if count}

        proof = origin().detail()

        def write(who: str, action: str, code: int, detail: Mapping[str, Any]) -> None:
            full = {**proof, **detail, **more}
            shown = {k: v for k, v in full.items() if k != "message"}
            log.warning("refused", who=who, action=action, **shown)
            try:
                self._add(now, who, action, code, code, full)
            except Exception as error:  # the refusal stands, whether the database is there or not
                log.warning("a refusal is not in the audit", cause=str(error)[:500])

        return write

    def relay(self, source: str, target: str, reason: str, message: str) -> None:
        """Note a request from one node to another that is not passed on."""
        if write := self.due("relay", source, target, reason):
            write(
                _node(source), "relay", 403, {"reason": reason, "target": target[:255], "message": message[:1000]}
            )

    def denied(self, scope: Scope, claims: str, error: GatewayError) -> None:
        """Note a request that claimed to come from nodes for which it may not speak."""
        address = _address(scope)
        if write := self.due("peer", claims, address, error.reason):
            detail = {"reason": error.reason, "from": address, "message": error.message[:1000]}
            write(_node(claims), _action(scope), 403, detail)


def noting_refusals(
    app: ASGIApp,
    refusals: Refusals,
    claimed: Callable[[Scope], str],
    limiter: CapacityLimiter,
    partners: tuple[Callable[[str], bool], Refusals] | None = None,
) -> ASGIApp:
    """Note, after another application, the requests whose state says ``refused``.

    ``claimed``: which node a request says that it comes from. ``partners``: which nodes are known, and what counts
    their refusals, so that others cannot crowd them out.
    """

    def partner(scope: Scope, refused: GatewayError) -> str:
        """Return the known node that was refused, "" for others and for what may succeed later."""
        if partners is None or refused.code >= 500 or refused.reason == _BUSY:
            return ""
        node = origin().node or claimed(scope)
        return node if node and partners[0](node) else ""

    async def note(scope: Scope, state: Mapping[str, Any], refused: GatewayError) -> None:
        known = partner(scope, refused)
        if not known and refused.code not in _DENIED:
            return
        user = state.get("asker", "")
        node = "" if user else known or claimed(scope)
        who = user or (f"node {node}"[:255] if node else "somebody")
        address = _address(scope)
        asked = state.get("asked") or {}
        if known and partners is not None:
            write = partners[1].due(who, address, refused.reason, scope["path"], *asked.values())
        else:
            write = refusals.due(who, address, refused.reason)
        if write is None:
            return
        detail: dict[str, Any] = {"reason": refused.reason, "from": address, "message": refused.message[:500]}
        detail |= {"asked": asked} if asked else {}
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(write, who, _action(scope), refused.code, detail, limiter=limiter)

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        finally:
            state = scope.get("state") or {}
            if "refused" in state and "audited" not in state:  # a change is in the audit with its result
                await note(scope, state, state["refused"])

    return served


def _address(scope: Scope) -> str:
    return str((scope.get("client") or ("",))[0])


def _action(scope: Scope) -> str:
    return f"{scope['method']} {scope['path']}"[:500]


def _node(name: str) -> str:
    return f"node {name or '(none named)'}"[:255]
