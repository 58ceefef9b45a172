"""Writes into the audit that a request was not passed on: once a minute for each two nodes and reason."""

import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import structlog

from gateway.ports import Clock

log = structlog.get_logger(__name__)

_EVERY = timedelta(minutes=1)
_MOST_KNOWN = 1000
_FORBIDDEN = 403

Add = Callable[[datetime, str, str, int, int | None, Mapping[str, Any]], None]


class RelayAudit:
    """Safe to use from several threads. Who asks is not proven, so that a flood of it must cost little."""

    def __init__(self, add: Add, clock: Clock) -> None:
        self._add = add
        self._clock = clock
        self._lock = threading.Lock()
        self._told: dict[tuple[str, str, str], tuple[datetime, int]] = {}

    def refused(self, source: str, target: str, reason: str, words: str) -> None:
        """Note a refusal; how many there were since the last entry is told with the next."""
        key = (source[:255], target[:255], reason)
        now = self._clock()
        with self._lock:
            at, unsaid = self._told.get(key, (None, 0))
            if at is not None and now - at < _EVERY:
                self._told[key] = (at, unsaid + 1)
                return
            if at is None and len(self._told) >= _MOST_KNOWN:
                self._told = {k: v for k, v in self._told.items() if now - v[0] < _EVERY}
                if len(self._told) >= _MOST_KNOWN:
                    return
            self._told[key] = (now, 0)
        log.warning("not passed on", source=source[:255], target=target[:255], reason=reason, cause=words[:500])
        detail = {"reason": reason, "target": target[:255], "message": words[:1000]}
        if unsaid:
            detail["repeated"] = str(unsaid)
        try:
            self._add(now, f"node {source or '(none named)'}"[:255], "relay", _FORBIDDEN, _FORBIDDEN, detail)
        except Exception as error:  # the refusal stands, whether the database is there or not
            log.warning("a refusal is not in the audit", cause=str(error)[:500])
