"""Which sessions the transport takes messages for: answers that may block, and sessions of no known job."""

import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from gateway.broker import Broker, BufferFull

K = TypeVar("K", bound=Hashable)
X = TypeVar("X")

_FRESH_SECONDS = 1.0
_MOST = 4096
_IDLE_SECONDS = 600.0
_SHARE = 4
"""one node may have this part, a quarter, of the places of unknown sessions"""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a container's request says of itself: the session that it is for, and its token or else its address."""

    session: str
    token: str = ""
    address: str = ""


class Cache(Generic[K, X]):
    """A cache of answers that may block: each is fetched in a thread and valid for a second."""

    def __init__(self, ask: Callable[[K], X], limiter: CapacityLimiter | None = None) -> None:
        """``limiter`` bounds the threads; None: the default ones."""
        self._ask = ask
        self._limiter = limiter
        self._known: dict[K, tuple[float, X]] = {}

    async def __call__(self, key: K) -> X:
        """Return the cached answer for a key, or fetch it; a failure is not cached."""
        now = time.monotonic()
        known = self._known.get(key)
        if known is not None and known[0] > now:
            return known[1]
        answer = await anyio.to_thread.run_sync(self._ask, key, limiter=self._limiter)
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[key] = (time.monotonic() + _FRESH_SECONDS, answer)
        return answer


class UnknownSessions:
    """The sessions of the broker that belong to no job known here: a peer may push before our job has started.

    They are few, and no node may have more than its share of them. When their number is reached, those that have
    become known or have ended no longer count, and one that nobody has used for ten minutes is ended.
    """

    def __init__(
        self,
        broker: Broker,
        session_open: Cache[str, bool | None],
        most: int,
    ) -> None:
        self._broker = broker
        self._session_open = session_open
        self._most = most
        self._admitted: dict[str, str] | None = None
        """session -> the node that began it; empty for those found at the start"""

    async def admit(self, session: str, source: str) -> None:
        """Count a new session if it is of no known job. Raises BufferFull if there are too many."""
        if await self._session_open(session) is not None:
            return
        if self._admitted is None:
            self._admitted = dict.fromkeys(self._broker.sessions(), "")
        if self._full(self._admitted, source):
            await self._sort_out(self._admitted)
        if refusal := self._full(self._admitted, source):
            raise BufferFull(refusal)
        self._admitted[session] = source

    def _full(self, admitted: dict[str, str], source: str) -> str:
        """Return which limit another session of this node would exceed; empty for none."""
        share = max(1, self._most // _SHARE)
        if len(admitted) >= self._most:
            return f"{self._most} sessions of no known job are open, which is the limit"
        if Counter(admitted.values())[source] >= share:
            return f"{share} sessions of node {source} and of no known job are open, which is the limit for a node"
        return ""

    async def _sort_out(self, admitted: dict[str, str]) -> None:
        idle = set(self._broker.idle(_IDLE_SECONDS))
        for session in list(admitted):
            known = not self._broker.holds(session) or await self._session_open(session) is not None
            if not known and session in idle:
                await self._broker.end_session(session)
            if known or session in idle:
                admitted.pop(session, None)
