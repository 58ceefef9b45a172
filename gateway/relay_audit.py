"""Writes into the audit that a request was not passed on."""

from gateway.refusals import Refusals

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
