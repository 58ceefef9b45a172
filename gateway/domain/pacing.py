"""The pace at which this node and a partner exchange bytes: a token bucket, with turns by session.

Bytes are granted in slices. Among the sessions that wait, the next slice goes to the one that has
had the least, so a session with many messages under way gets no more than one with a single
message. Time comes in as an argument: seconds of any steady clock.
"""

from dataclasses import dataclass
from itertools import count

_SLICES_PER_SECOND = 64  # at least; so 64 messages together wait a second for their turns
_LARGEST_SLICE = 256 * 1024  # bytes; smaller ones would cost more processor time
_BURST_SECONDS = 0.25  # of the rate, that may pass together after an idle time
# Of the rate: the most that bytes which did not wait hold up the others
_MAX_DEBT_SECONDS = 1.0
_SHORTEST_PAUSE = 0.001  # seconds; timers are not more exact

Ticket = int  # number of a slice that waits for its turn


@dataclass(frozen=True)
class PaceState:
    """What a pace does at the moment."""

    limit: int  # bytes per second
    bytes_per_second: int  # over the last seconds
    waiting: int  # messages that wait for their turn
    waited_seconds: float  # of all messages together, since the start of this process


@dataclass(frozen=True)
class _Slice:
    """Bytes of a session that wait for their turn."""

    session: str
    size: int


class Pacer:
    """Grants bytes in one direction. It has no clock of its own."""

    def __init__(self, rate: int, now: float) -> None:
        """``rate`` in bytes per second."""
        self.rate = rate
        self._balance = self.burst
        self._filled_at = now
        self._tickets = count(1)
        self._waiting: dict[Ticket, _Slice] = {}  # in the order of their arrival
        # Bytes that each session has had, counted from the same origin for all. A session that
        # comes back after a pause begins at the position of the turn: a pause earns nothing.
        self._shares: dict[str, float] = {}
        self._turn = 0.0

    def __len__(self) -> int:
        """Return the number of slices that wait."""
        return len(self._waiting)

    @property
    def burst(self) -> float:
        """The most bytes that may pass together after an idle time."""
        return self.rate * _BURST_SECONDS

    @property
    def slice_bytes(self) -> int:
        """The most bytes that are granted by one turn."""
        return min(self.rate // _SLICES_PER_SECOND, _LARGEST_SLICE)

    def ask(self, session: str, size: int) -> Ticket:
        """Let a slice of a session wait for its turn."""
        if size > self.slice_bytes:
            raise ValueError("a turn has fewer bytes")
        share = self._shares.get(session, 0.0)
        self._shares[session] = max(share, self._turn)
        ticket = next(self._tickets)
        self._waiting[ticket] = _Slice(session, size)
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """Forget a slice, which may have been granted already."""
        self._waiting.pop(ticket, None)

    def charge(self, size: int, now: float) -> None:
        """Count bytes that do not wait: others wait longer for them, but a second at most."""
        self._fill(now)
        largest_debt = self.rate * _MAX_DEBT_SECONDS
        self._balance = max(self._balance - size, -largest_debt)

    def grant(self, now: float) -> list[Ticket]:
        """Return the slices whose turn it is now, in their order."""
        self._fill(now)
        granted = []
        while self._waiting:
            ticket = self._next()
            part = self._waiting[ticket]
            if self._balance < self._needed(part):
                break
            del self._waiting[ticket]
            granted.append(ticket)
            self._balance -= part.size
            self._turn = self._shares[part.session]
            self._shares[part.session] += part.size
        if not self._waiting:
            self._shares.clear()
            self._turn = 0.0
        return granted

    def pause(self) -> float | None:
        """Return the seconds from the last grant to the next one; None if nothing waits."""
        if not self._waiting:
            return None
        part = self._waiting[self._next()]
        missing = self._needed(part) - self._balance
        return max(missing / self.rate, _SHORTEST_PAUSE)

    def _needed(self, part: _Slice) -> float:
        """Return the balance at which a slice may pass: after a cut of the rate, a full burst."""
        return min(part.size, self.burst)

    def _fill(self, now: float) -> None:
        """Add the bytes of the time since the last call."""
        seconds = max(now - self._filled_at, 0.0)
        self._filled_at = now
        self._balance = min(self._balance + seconds * self.rate, self.burst)

    def _next(self) -> Ticket:
        """Return the first slice of the waiting session with the smallest share."""
        return min(self._waiting, key=self._share_of)

    def _share_of(self, ticket: Ticket) -> float:
        """Return the share of a slice's session."""
        return self._shares[self._waiting[ticket].session]
