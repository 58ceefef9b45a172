"""The pace at which this node and a partner exchange bytes: a token bucket, with turns by session.

Bytes are granted in slices. Among the senders that wait, the next slice goes to the one that has
had the least, and among its sessions likewise. So a session with many messages under way gets no
more than one with a single message, and a sender with many sessions no more than another sender.
Time comes in as an argument: seconds of any steady clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

_SLICES_PER_SECOND = 64  # at least; so 64 messages together wait a second for their turns
_LARGEST_SLICE = 256 * 1024  # bytes; smaller ones would cost more processor time
_BURST_SECONDS = 0.25  # of the rate, that may pass together after an idle time
# Of the rate: the most that bytes which did not wait hold up the others
_MAX_DEBT_SECONDS = 1.0
# Of the rate in the long run: the most that bytes which do not wait take from those that do
_MAX_CHARGED_SHARE = 0.75
# Names whose shares are remembered, besides those that wait; a peer may send any number of them
_MAX_NAMES = 1000
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

    sender: str
    session: str
    size: int


class _Turns:
    """The bytes that each of several names has had, counted from the same origin for all.

    A name that comes back after a pause begins at the position of the turn: a pause earns nothing.
    """

    def __init__(self) -> None:
        self._shares: dict[str, float] = {}
        self._turn = 0.0

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self._shares)

    def join(self, name: str) -> None:
        """Let a name take part, unless it does already."""
        self._shares[name] = max(self.share(name), self._turn)

    def share(self, name: str) -> float:
        """Return the bytes of a name; the smallest number has the next turn."""
        return self._shares.get(name, 0.0)

    def count(self, name: str, size: int) -> None:
        """Count the bytes of a name whose turn it is."""
        self._turn = self.share(name)
        self._shares[name] = self._turn + size

    def keep(self, names: Iterable[str]) -> None:
        """Forget all other names."""
        self._shares = {name: self.share(name) for name in names}


class Pacer:
    """Grants bytes in one direction. It has no clock of its own."""

    def __init__(self, rate: int, now: float) -> None:
        """``rate`` in bytes per second."""
        self.rate = rate
        self._balance = self.burst
        self._chargeable = self._most_charged  # bytes that may still be charged now
        self._filled_at = now
        self._tickets = count(1)
        self._waiting: dict[Ticket, _Slice] = {}  # in the order of their arrival
        self._senders = _Turns()
        self._sessions: dict[str, _Turns] = {}  # of each sender

    def __len__(self) -> int:
        """Return the number of slices that wait."""
        return len(self._waiting)

    @property
    def remembered_names(self) -> int:
        """The number of senders and sessions whose shares are remembered."""
        return len(self._senders) + sum(map(len, self._sessions.values()))

    @property
    def burst(self) -> float:
        """The most bytes that may pass together after an idle time."""
        return self.rate * _BURST_SECONDS

    @property
    def slice_bytes(self) -> int:
        """The most bytes that are granted by one turn."""
        return min(self.rate // _SLICES_PER_SECOND, _LARGEST_SLICE)

    def ask(
        self,
        session: str,
        size: int,
        sender: str = "",
    ) -> Ticket:
        """Let a slice of a session wait for its turn; ``sender``: the node that sends it."""
        if size > self.slice_bytes:
            raise ValueError("a turn has fewer bytes")
        self._senders.join(sender)
        sessions = self._sessions.setdefault(sender, _Turns())
        sessions.join(session)
        ticket = next(self._tickets)
        self._waiting[ticket] = _Slice(sender, session, size)
        self._forget_some(sender)
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """Forget a slice, which may have been granted already."""
        self._waiting.pop(ticket, None)

    def charge(self, size: int, now: float) -> None:
        """Count bytes that do not wait: others wait longer for them, but a second at most.

        However many there are, a part of the rate is left to the bytes that wait.
        """
        self._fill(now)
        charged = min(size, self._chargeable)
        self._chargeable -= charged
        largest_debt = self.rate * _MAX_DEBT_SECONDS
        self._balance = max(self._balance - charged, -largest_debt)

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
            self._senders.count(part.sender, part.size)
            self._sessions[part.sender].count(part.session, part.size)
        if not self._waiting:
            self._senders = _Turns()
            self._sessions.clear()
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

    @property
    def _most_charged(self) -> float:
        """The most bytes that may be charged together after an idle time."""
        return self.burst + self.rate * _MAX_DEBT_SECONDS

    def _fill(self, now: float) -> None:
        """Add the bytes of the time since the last call."""
        seconds = max(now - self._filled_at, 0.0)
        self._filled_at = now
        added = seconds * self.rate
        self._balance = min(self._balance + added, self.burst)
        chargeable = self._chargeable + added * _MAX_CHARGED_SHARE
        self._chargeable = min(chargeable, self._most_charged)

    def _next(self) -> Ticket:
        """Return the first slice of those whose sender and session have had the least."""
        return min(self._waiting, key=self._shares_of)

    def _shares_of(self, ticket: Ticket) -> tuple[float, float]:
        """Return the shares of a slice's sender and session."""
        part = self._waiting[ticket]
        sessions = self._sessions[part.sender]
        return self._senders.share(part.sender), sessions.share(part.session)

    def _forget_some(self, sender: str) -> None:
        """Forget what does not wait, if too many senders, or sessions of a sender, are known."""
        parts = self._waiting.values()
        if len(self._senders) > _MAX_NAMES:
            waiting_senders = {part.sender for part in parts}
            self._senders.keep(waiting_senders)
            self._sessions = {name: self._sessions[name] for name in waiting_senders}
        sessions = self._sessions[sender]
        if len(sessions) > _MAX_NAMES:
            sessions.keep({part.session for part in parts if part.sender == sender})
