"""What becomes of jobs, as events for other programs: read from the timeline, so that none is lost.

An event's number is that of its timeline entry; numbers grow in the order in which things were stored, so a
reader that remembers the last number it dealt with goes on behind it, after any restart.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.domain.events import NAME_OF, entries
from gateway.store import events as stored
from gateway.store.serialization import as_time, loads
from gateway.store.store import Store

_TIMEOUT = 10.0
"""seconds for which a number that is missing is waited for"""


@dataclass(frozen=True)
class Event:
    """One thing that happened to a job at this node, as receivers get it."""

    id: int
    event: str
    """its name"""
    job_id: str
    node: str
    """where it happened"""
    at: str
    side: str
    """scheduler: the node that schedules the job; participant: this node's own part; operator: asked for here"""
    by: str
    status: str
    """the timeline's words"""
    detail: Mapping[str, Any]


@dataclass(frozen=True)
class Page:
    """Some events, and the number behind which to go on."""

    events: tuple[Event, ...]
    next: int


class Feed:
    """Reads events from the timeline in the order of their numbers, and never past one that may still appear.

    With several gateways on one database an entry may become visible after another with a higher number. A gap
    among new numbers is therefore waited for, but not for ever: numbers of writes that failed are never used.
    """

    def __init__(
        self,
        store: Store,
        node: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._node = node
        self._timeout = _TIMEOUT if stored.has_many_writers(store) else 0.0
        self._monotonic = monotonic
        self._seen: deque[tuple[float, int]] = deque(maxlen=1000)

    def newest(self) -> int:
        """Return the number of the newest entry; 0 where there is none."""
        return stored.newest(self._store)

    def after(
        self,
        number: int,
        names: Collection[str] = (),
        job_id: str = "",
        limit: int = 500,
    ) -> Page:
        """Return the events behind a number, oldest first; of some names, or of one job, where that is asked."""
        until = self._certain(number)
        events = tuple(
            Event(
                row.id,
                NAME_OF[row.event],
                row.job_id,
                self._node,
                as_time(row.at).isoformat(),
                row.side,
                row.actor,
                row.event,
                loads(dict, row.detail),
            )
            for row in stored.after(self._store, number, until, entries(names), job_id, limit)
        )
        return Page(events, events[-1].id if len(events) == limit else max(until, number))

    def _certain(self, number: int) -> int:
        """Return the highest number up to which nothing can appear any more."""
        newest, now = self.newest(), self._monotonic()
        if not self._timeout or newest <= number:
            return newest
        if not self._seen or now - self._seen[-1][0] >= 0.2:
            self._seen.append((now, newest))
        old = max((n for t, n in self._seen if now - t >= self._timeout), default=0)
        return stored.until_gap(self._store, max(old, number), newest)
