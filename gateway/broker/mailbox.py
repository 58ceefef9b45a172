"""The order of messages: which one a reader gets next. Pure, in memory, nothing waits here."""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from gateway.errors import Busy, Conflict


@dataclass(slots=True)
class Stored:
    """One message on disk. ``number`` is its place in the order of arrival within its session.

    ``offset`` is where the payload starts in the journal, or None when it lies in a file of its own;
    ``payload`` is the cached copy, if there is one.
    """

    number: int
    topic: str
    source: str
    run: str | None
    sequence: str | None
    size: int
    """bytes of the payload"""
    offset: int | None
    payload: bytes | None = None
    record: int = 0
    """bytes of its record in the journal, with the payload if it lies there"""


class Mailbox:
    """The unread messages of one topic, in lanes by (source, pushing run) so that a run can pass over its own."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, str | None], deque[Stored]] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def put(self, stored: Stored) -> None:
        """Appends a message that has just arrived."""
        self._lanes.setdefault((stored.source, stored.run), deque()).append(stored)

    def put_back(self, stored: Stored) -> None:
        """Returns a message to its old place in the order."""
        lane = self._lanes.setdefault((stored.source, stored.run), deque())
        place = next((i for i, other in enumerate(lane) if other.number > stored.number), len(lane))
        lane.insert(place, stored)

    def take(self, source: str | None, run: str | None) -> Stored | None:
        """Removes the oldest message of that source (None: of any), except what the reading run pushed itself."""
        heads = [(lane[0].number, key) for key, lane in self._lanes.items() if _may_read(key, source, run)]
        if not heads:
            return None
        _, key = min(heads, key=lambda head: head[0])
        stored = self._lanes[key].popleft()
        if not self._lanes[key]:
            del self._lanes[key]
        return stored

    def clear(self, run: str | None) -> list[Stored]:
        """Removes and returns everything that the given run could still read here."""
        keys = [key for key in self._lanes if _may_read(key, None, run)]
        return [stored for key in keys for stored in self._lanes.pop(key)]

    def all(self) -> list[Stored]:
        """Returns every unread message, lane by lane."""
        return [stored for lane in self._lanes.values() for stored in lane]


def _may_read(lane: tuple[str, str | None], source: str | None, run: str | None) -> bool:
    lane_source, lane_run = lane
    return (source is None or lane_source == source) and (run is None or lane_run != run)


KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """What one node's broker may hold. Bytes count payloads that are not yet delivered; times are in seconds.

    ``inline_bytes`` divides small from large: a small payload lies in its session's journal and may be cached
    in memory, a large one has a file of its own, is written and read in a thread and is never cached.
    A journal longer than ``compact_bytes`` is rewritten once half of it is of no use or, where more than
    ``rewrite_bytes`` of it are still needed, fifteen sixteenths.
    ``kept_messages`` and ``kept_bytes`` bound, per reader, the responses kept for a repeated pop; they do not
    count against the capacity for new messages. ``repeats`` bounds the pushes of a session that are remembered
    in order to recognise a repeat.
    """

    message_bytes: int = 256 * MIB
    session_bytes: int = 1 * GIB
    session_messages: int = 100_000
    total_bytes: int = 16 * GIB
    sessions: int = 4096
    cache_bytes: int = 64 * MIB
    inline_bytes: int = 256 * KIB
    compact_bytes: int = 16 * MIB
    rewrite_bytes: int = 4 * MIB
    kept_messages: int = 16
    kept_bytes: int = 64 * MIB
    repeats: int = 65_536
    pop_seconds: float = 300.0
    remember_ended: float = 1800.0


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a reader gets it; ``session`` and ``number`` name it for `Broker.delivered` and `returned`."""

    payload: bytes
    source: str
    topic: str
    session: str
    number: int


class Usage(NamedTuple):
    """What the broker holds just now: sessions, messages not yet delivered, and the bytes of their payloads."""

    sessions: int
    messages: int
    bytes: int


class BufferFull(Busy):
    """There is no capacity for the message now; nothing of it was stored. Retry later."""

    reason = "BUFFER_FULL"


class SessionReleased(Conflict):
    """The session's job has ended: its messages are deleted and no more are accepted."""

    reason = "SESSION_RELEASED"
