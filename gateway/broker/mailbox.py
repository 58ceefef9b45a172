"""The unread messages of one topic."""

import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(slots=True)
class Stored:
    """One message on disk. ``number`` is its place in the order of arrival within its session.

    ``offset`` is where the payload starts in the journal, or None when it lies in a file of its own;
    ``payload`` is the cached copy, if there is one.
    """

    topic: str
    source: str
    run: str | None
    sequence: str | None
    size: int
    """bytes of the payload"""
    number: int = -1
    offset: int | None = None
    payload: bytes | None = None
    record: int = 0
    """bytes of its record in the journal, with the payload if it lies there"""
    at: float = field(default_factory=time.monotonic)
    """when it came, or was found at the start"""


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

    def take(self, sources: Collection[str] | None, run: str | None) -> Stored | None:
        """Removes the oldest message of these sources (None: of any), except what the reading run pushed."""
        heads = [
            (lane[0].number, key)
            for key, lane in self._lanes.items()
            if _may_read(key, sources, run)
        ]
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
        return [stored for lane in list(self._lanes.values()) for stored in list(lane)]


def _may_read(
    lane: tuple[str, str | None],
    sources: Collection[str] | None,
    run: str | None,
) -> bool:
    lane_source, lane_run = lane
    return (sources is None or lane_source in sources) and (run is None or lane_run != run)
