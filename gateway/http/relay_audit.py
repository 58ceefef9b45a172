"""Writes into the audit that a request was not passed on, or was denied for what it claimed."""

from starlette.types import Scope

from gateway.http.audit import Refusals

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
