"""Which of FATE's signatures were heard: none covers what is asked, so each is good for one request."""

import threading
import time
from collections.abc import Callable
from itertools import takewhile

VALID_MS = 60_000
"""how far a signed request's time may be from this machine's"""

First = Callable[[str, str, float], str]
"""Told a signature, a request's fingerprint and for how many seconds to remember it: which request came first."""


class Heard:
    """Remembers signatures for as long as they hold; safe to use from several threads."""

    def __init__(self, first: First = lambda _, request, __: request) -> None:
        """``first`` asks what the other gateways of this node have heard; it may wait for a database."""
        self._first = first
        self._lock = threading.Lock()
        self._used: dict[str, tuple[float, str]] = {}
        """signature -> until when it holds, by `time.monotonic`, and the request that came with it first"""

    def fits(self, signature: str, request: str) -> bool:
        """Return whether a signature is new here, or came with the same request before; note it."""
        now, holds = time.monotonic(), 2 * VALID_MS / 1000
        with self._lock:
            for old in list(takewhile(lambda known: self._used[known][0] < now, self._used)):
                del self._used[old]
            known = self._used.get(signature)
        first = known[1] if known is not None else self._first(signature, request, holds)
        with self._lock:
            return self._used.setdefault(signature, (now + holds, first))[1] == request
