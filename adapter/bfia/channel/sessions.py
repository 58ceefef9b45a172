"""Caches of lookups that may block, and the limit on sessions that belong to no known job."""

import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from gateway.broker import Broker, BufferFull

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_FRESH_SECONDS = 1.0  # how long a cached value is valid
MAX_ENTRIES = 4096  # entries of a cache; a full one is emptied
IDLE_SECONDS = 600.0  # without use; afterwards an unknown session may be ended
_NODE_SHARE = 4  # one node may begin a quarter (1/4) of the unknown sessions


@dataclass(frozen=True, slots=True)
class Claim:
    """What a container's request tells about the run that sends it.

    By it, `run_of` and `own_session` of `ChannelParts` find that run.
    """

    session: str
    token: str = ""
    address: str = ""  # of the caller, if the request has no token


class Cache(Generic[K, V]):
    """A cache of lookups that may block.

    Each lookup runs in a thread, and its result is valid for a second.
    """

    def __init__(
        self,
        fetch: Callable[[K], V],
        limiter: CapacityLimiter | None = None,
    ) -> None:
        """``fetch`` looks up a key; ``limiter`` bounds its threads, None: anyio's default limit."""
        self._fetch = fetch
        self._limiter = limiter
        self._entries: dict[K, tuple[float, V]] = {}  # values with the time at which they expire

    async def __call__(self, key: K) -> V:
        """Return the cached value of a key, or fetch it; a failure is not cached."""
        entry = self._entries.get(key)
        if entry is not None:
            expires_at, value = entry
            if expires_at > time.monotonic():
                return value
        value = await anyio.to_thread.run_sync(
            self._fetch,
            key,
            limiter=self._limiter,
        )
        if len(self._entries) >= MAX_ENTRIES:
            self._entries.clear()
        self._entries[key] = (time.monotonic() + _FRESH_SECONDS, value)
        return value


class UnknownSessions:
    """The sessions of the broker that belong to no known job.

    There are some because a peer may push before this node's part of the job has started. Their
    number is limited, in total and for each node. When a limit is reached, sessions whose job has
    become known, or which have ended, are no longer counted, and sessions without use for ten
    minutes are ended.
    """

    def __init__(
        self,
        broker: Broker,
        session_open: Cache[str, bool | None],
        limit: int,
    ) -> None:
        """``session_open``: as in `ChannelParts`; None for a session of no known job."""
        self._broker = broker
        self._session_open = session_open
        self._limit = limit
        # Session -> the node that began it, "" for sessions that the broker held before the first
        # call of `admit`; the whole dictionary is None before that call.
        self._admitted: dict[str, str] | None = None

    async def admit(self, session: str, source: str) -> None:
        """Count a session that node ``source`` begins, unless the session is of a known job.

        The caller makes sure that the session is new. Raises BufferFull for one too many.
        """
        if await self._is_known(session):
            return
        if self._admitted is None:
            self._admitted = dict.fromkeys(self._broker.sessions(), "")
        if self._exceeded_limit(self._admitted, source):
            await self._drop_stale(self._admitted)
        exceeded = self._exceeded_limit(self._admitted, source)
        if exceeded:
            raise BufferFull(exceeded)
        self._admitted[session] = source

    async def _is_known(self, session: str) -> bool:
        """True if the session belongs to a known job, also to one that has ended."""
        return await self._session_open(session) is not None

    def _exceeded_limit(
        self,
        admitted: dict[str, str],
        source: str,
    ) -> str:
        """Return a text on the limit that a further session of a node would exceed; "" for none."""
        if len(admitted) >= self._limit:
            return f"{self._limit} sessions of no known job are open, which is the limit"
        share = max(1, self._limit // _NODE_SHARE)
        if Counter(admitted.values())[source] >= share:
            return (
                f"{share} sessions of node {source} and of no known job are open, which is the "
                "limit for a node"
            )
        return ""

    async def _drop_stale(self, admitted: dict[str, str]) -> None:
        """Forget the sessions that have ended or become known; end the others without use."""
        idle = set(self._broker.idle_sessions(IDLE_SECONDS))
        for session in list(admitted):
            has_ended = not self._broker.holds(session)
            if has_ended or await self._is_known(session):
                admitted.pop(session, None)
            elif session in idle:
                await self._broker.end_session(session)
                admitted.pop(session, None)
