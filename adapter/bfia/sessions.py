"""Which transport sessions are taken: answers remembered for a moment, and a bound on those nobody here knows."""

import time
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from gateway.broker import Broker, BufferFull

X = TypeVar("X")

_FRESH_SECONDS = 1.0
_MOST = 4096
_IDLE_SECONDS = 600.0


class Remembered(Generic[X]):
    """A question that may block, asked in a thread; the answer counts for a second."""

    def __init__(
        self,
        ask: Callable[[str], X],
        clock: Callable[[], float] = time.monotonic,
        limiter: CapacityLimiter | None = None,
    ) -> None:
        """``limiter`` bounds the threads that ask; None: they are those of everybody."""
        self._ask = ask
        self._limiter = limiter
        self._clock = clock
        self._known: dict[str, tuple[float, X]] = {}

    async def __call__(self, key: str) -> X:
        """Return the remembered answer for a key, or ask; a question that raises is not remembered."""
        now = self._clock()
        known = self._known.get(key)
        if known is not None and known[0] > now:
            return known[1]
        answer = await anyio.to_thread.run_sync(self._ask, key, limiter=self._limiter)
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[key] = (self._clock() + _FRESH_SECONDS, answer)
        return answer


class UnknownSessions:
    """The sessions of the broker that belong to no job known here: a peer may push before our job has started.

    They are few. When their number is reached, those that have become known or have ended no longer count, and one
    that nobody has used for ten minutes is ended.
    """

    def __init__(self, broker: Broker, session_open: Remembered[bool | None], most: int) -> None:
        self._broker = broker
        self._session_open = session_open
        self._most = most
        self._admitted: dict[str, None] | None = None

    async def admit(self, session: str) -> None:
        """Takes note of a new session, if it is an unknown one. Raises BufferFull if there are too many."""
        if await self._session_open(session) is not None:
            return
        if self._admitted is None:
            self._admitted = dict.fromkeys(self._broker.sessions())
        if len(self._admitted) >= self._most:
            await self._sort_out(self._admitted)
        if len(self._admitted) >= self._most:
            raise BufferFull(f"{self._most} sessions of no known job are open, which is the limit")
        self._admitted[session] = None

    async def _sort_out(self, admitted: dict[str, None]) -> None:
        idle = set(self._broker.idle(_IDLE_SECONDS))
        for session in list(admitted):
            known = not self._broker.holds(session) or await self._session_open(session) is not None
            if not known and session in idle:
                await self._broker.end_session(session)
            if known or session in idle:
                admitted.pop(session, None)
