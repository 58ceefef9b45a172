"""Keeps the pace of each partner: messages wait here for their turns."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from gateway.domain.pacing import Pacer, PaceState, Ticket
from gateway.domain.spec import NodeId

_RECENT_SECONDS = 10  # over which the present rate is measured
_LONGEST_NAME = 200  # characters of a sender or session by which slices take turns


@dataclass(frozen=True)
class PartnerLimit:
    """The limit that applies to a partner."""

    entry: NodeId  # of the route table; partners without an entry of their own share the default's
    rate: int  # bytes per second


# Returns the limit of a partner; None for a partner without one.
LimitOf = Callable[[NodeId], PartnerLimit | None]


def no_limit(partner: NodeId) -> PartnerLimit | None:
    """Return None: no partner has a limit."""
    return None


class Turns(Protocol):
    """Bytes to or from one partner."""

    async def take(self, size: int) -> None:
        """Count bytes, perhaps after a wait until they may pass."""


class Pace:
    """The bytes of one session to or from one partner, which wait for their turns."""

    def __init__(
        self,
        line: "_Line",
        session: str,
        sender: NodeId,
    ) -> None:
        self._line = line
        self._session = session
        self._sender = sender

    @property
    def slice_bytes(self) -> int:
        """The most bytes of one `take`."""
        return self._line.pacer.slice_bytes

    async def take(self, size: int) -> None:
        """Wait until bytes may pass; more than `slice_bytes` wait for several turns."""
        while size > 0:
            part = min(size, self.slice_bytes)
            await self._line.take(self._session, part, self._sender)
            size -= part


class Tally:
    """Bytes to or from one partner that do not wait; they count once they are there."""

    def __init__(self, line: "_Line") -> None:
        self._line = line

    async def take(self, size: int) -> None:
        """Count bytes without a wait."""
        self._line.charge(size)


class PartnerPacing:
    """The pace of all partners in one direction.

    Messages wait on one event loop; `charge` and `states` may be called from any thread.
    """

    def __init__(
        self,
        limit_of: LimitOf = no_limit,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._limit_of = limit_of
        self._monotonic = monotonic
        self._sleep = sleep
        self._lines: dict[NodeId, _Line] = {}

    def of(
        self,
        partner: NodeId,
        session: str,
        sender: NodeId = "",
    ) -> Pace | None:
        """Return the pace of a session; None for a partner without a limit.

        ``sender``: another node whose bytes these are. Senders take turns, and so do the sessions
        of each, as a node may name any number of sessions.
        """
        line = self._line(partner)
        if line is None:
            return None
        return Pace(line, session[:_LONGEST_NAME], sender[:_LONGEST_NAME])

    def tally(self, partner: NodeId) -> Tally | None:
        """Return the count of bytes that do not wait; None for a partner without a limit."""
        line = self._line(partner)
        if line is None:
            return None
        return Tally(line)

    def charge(self, partner: NodeId, size: int) -> None:
        """Count bytes that do not wait, such as those of control requests."""
        line = self._line(partner)
        if line is not None:
            line.charge(size)

    def states(self) -> Mapping[NodeId, PaceState]:
        """Return what the pace of each partner does, by entry of the route table."""
        states = {}
        for entry, line in list(self._lines.items()):
            limit = self._limit_of(entry)
            if limit is not None:
                states[entry] = line.state(limit.rate)
        return states

    def state(self, partner: NodeId) -> PaceState | None:
        """Return what the pace of a partner does; None for a partner without a limit."""
        limit = self._limit_of(partner)
        line = self._line(partner)
        if limit is None or line is None:
            return None
        return line.state(limit.rate)

    def _line(self, partner: NodeId) -> "_Line | None":
        """Return the line of a partner; None for a partner without a limit."""
        limit = self._limit_of(partner)
        if limit is None:
            return None
        line = self._lines.get(limit.entry)
        if line is None:
            line = _Line(limit.rate, self._monotonic, self._sleep)
            line = self._lines.setdefault(limit.entry, line)
        line.set_rate(limit.rate)
        return line


class _Line:
    """The messages of one partner that wait, and the bytes that have passed."""

    def __init__(
        self,
        rate: int,
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.pacer = Pacer(rate, monotonic())
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = Lock()
        self._turns: dict[Ticket, asyncio.Future[None]] = {}
        self._granting: asyncio.Task[None] | None = None
        self._waited_seconds = 0.0
        self._recent = _RecentBytes()

    def set_rate(self, rate: int) -> None:
        """Go on with another rate."""
        with self._lock:
            self.pacer.rate = rate

    async def take(
        self,
        session: str,
        size: int,
        sender: NodeId,
    ) -> None:
        """Wait until a slice may pass."""
        began = self._monotonic()
        turn = asyncio.get_running_loop().create_future()
        with self._lock:
            ticket = self.pacer.ask(
                session,
                min(size, self.pacer.slice_bytes),
                sender,
            )
        self._turns[ticket] = turn
        self._grant()
        if not turn.done() and (self._granting is None or self._granting.done()):
            self._granting = asyncio.create_task(self._keep_granting())
        try:
            await turn
        except asyncio.CancelledError:
            with self._lock:
                self.pacer.withdraw(ticket)
            raise
        finally:
            del self._turns[ticket]
        now = self._monotonic()
        self._waited_seconds += now - began
        with self._lock:
            self._recent.count(size, now)

    def charge(self, size: int) -> None:
        """Count bytes that do not wait."""
        now = self._monotonic()
        with self._lock:
            self.pacer.charge(size, now)
            self._recent.count(size, now)

    def state(self, limit: int) -> PaceState:
        """Return what the pace does now; ``limit`` in bytes per second."""
        with self._lock:
            return PaceState(
                limit,
                self._recent.per_second(self._monotonic()),
                len(self.pacer),
                self._waited_seconds,
            )

    def _grant(self) -> None:
        """Let the slices pass whose turn it is."""
        with self._lock:
            granted = self.pacer.grant(self._monotonic())
        for ticket in granted:
            turn = self._turns[ticket]
            if not turn.done():
                turn.set_result(None)

    async def _keep_granting(self) -> None:
        """Let slices pass until none waits."""
        while True:
            with self._lock:
                pause = self.pacer.pause()
            if pause is None:
                return
            await self._sleep(pause)
            self._grant()


class _RecentBytes:
    """The bytes of the last seconds."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque(maxlen=_RECENT_SECONDS)

    def count(self, size: int, now: float) -> None:
        """Count bytes."""
        second = int(now)
        total = size
        if self._seconds and self._seconds[-1][0] == second:
            _, counted = self._seconds.pop()
            total += counted
        self._seconds.append((second, total))

    def per_second(self, now: float) -> int:
        """Return the present rate."""
        start = int(now) - _RECENT_SECONDS
        return sum(size for second, size in self._seconds if second > start) // _RECENT_SECONDS
