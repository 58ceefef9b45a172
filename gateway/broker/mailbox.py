"""The unread messages of one topic."""

import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from gateway.broker.received import Number


@dataclass(slots=True)
class StoredMessage:
    """One message on disk."""

    topic: str
    source: str
    run: str | None  # the run of this node that pushed it; None: another node
    # Identifies the message within its source and topic; None: repeats cannot be recognised.
    sequence: str | None
    size: int  # bytes of the payload
    sender_number: Number | None = None  # given by the sender, which uses it once; None: none
    number: int = -1  # its place in the session's order of arrival; -1 before it has one
    offset: int | None = None  # start of the payload in the journal; None: the payload has a file
    payload: bytes | None = None  # the cached payload; None if it is not cached
    record_size: int = 0  # bytes of its record in the journal, including a payload there
    # Monotonic time of the arrival, or of loading a message that an earlier process stored.
    arrival: float = field(default_factory=time.monotonic)


# Source and pushing run of the messages in a lane.
LaneKey = tuple[str, str | None]


class Mailbox:
    """The unread messages of one topic.

    They are in lanes by source and pushing run, so that a reading run can skip its own messages.
    """

    def __init__(self) -> None:
        self._lanes: dict[LaneKey, deque[StoredMessage]] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def put(self, stored: StoredMessage) -> None:
        """Append a new message."""
        self._lane_of(stored).append(stored)

    def put_back(self, stored: StoredMessage) -> None:
        """Return a message to its old place, before all messages with higher numbers."""
        lane = self._lane_of(stored)
        for index, message in enumerate(lane):
            if message.number > stored.number:
                lane.insert(index, stored)
                return
        lane.append(stored)

    def take(
        self,
        sources: Collection[str] | None,
        run: str | None,
    ) -> StoredMessage | None:
        """Remove and return the oldest message that a run may read; None if there is none.

        - ``sources``: only messages of these sources; None: of all sources
        - ``run``: the reading run, which does not read its own messages; None for a reader that
          does not name its run, and may read the messages of every run
        """
        lanes = self._readable_lanes(sources, run)
        if not lanes:
            return None
        key = min(lanes, key=self._first_number)
        lane = self._lanes[key]
        stored = lane.popleft()
        if not lane:
            del self._lanes[key]
        return stored

    def clear(self, run: str | None) -> list[StoredMessage]:
        """Remove and return all messages that a run may read; ``run`` is as in `take`."""
        messages: list[StoredMessage] = []
        for lane in self._readable_lanes(None, run):
            messages += self._lanes.pop(lane)
        return messages

    def all(self) -> list[StoredMessage]:
        """Return every unread message, lane by lane. May be called from another thread."""
        messages: list[StoredMessage] = []
        for lane in list(self._lanes.values()):
            messages += lane
        return messages

    def _lane_of(self, stored: StoredMessage) -> deque[StoredMessage]:
        """Return the lane of a message; a new lane for its first message."""
        return self._lanes.setdefault(
            (stored.source, stored.run),
            deque(),
        )

    def _first_number(self, lane: LaneKey) -> int:
        """Return the number of the oldest message of a lane."""
        return self._lanes[lane][0].number

    def _readable_lanes(
        self,
        sources: Collection[str] | None,
        run: str | None,
    ) -> list[LaneKey]:
        """Return the lanes of these sources (None: all) that a run may read."""
        return [lane for lane in self._lanes if _may_read(lane, sources, run)]


def _may_read(
    lane: LaneKey,
    sources: Collection[str] | None,
    run: str | None,
) -> bool:
    """True if a run may read a lane.

    ``run`` is None for a reader that does not name its run and may read the lanes of all runs.
    """
    lane_source, lane_run = lane
    if sources is not None and lane_source not in sources:
        return False
    return run is None or lane_run != run
