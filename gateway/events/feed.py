"""Events of jobs for other programs, read from the timeline so that none is lost.

An event's number is the number of its timeline entry. Numbers grow in the order of storing, so a
reader that remembers the last number it has read continues after that number, even after a restart.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.domain.events import NAME_OF, entry_names
from gateway.store import events as stored
from gateway.store.serialization import as_time, loads
from gateway.store.store import Store

_GAP_TIMEOUT = 10.0  # seconds to wait for a missing number
_OBSERVATION_INTERVAL = 0.2  # least seconds between two observations
_MAX_OBSERVATIONS = 1000  # kept observations, which span far more than `_GAP_TIMEOUT`


@dataclass(frozen=True)
class Event:
    """An event of a job at this node, as receivers get it."""

    id: int  # number of its timeline entry
    event: str  # name of the event, such as "finished"
    job_id: str
    node: str  # id of this node
    at: str  # ISO 8601
    # "scheduler": the event belongs to this node's record as the job's scheduler; "participant": to
    # its record as a party; "operator": an operator of this node has acted.
    side: str
    by: str  # who caused the event; may be empty
    status: str  # name of the timeline entry, such as "job FINISHED"
    detail: Mapping[str, Any]


@dataclass(frozen=True)
class Page:
    """Some events, and the number after which the next page begins."""

    events: tuple[Event, ...]
    next: int


@dataclass(frozen=True)
class _Observation:
    """The number of the newest entry at some time."""

    time: float  # monotonic
    newest: int


class Feed:
    """Reads events in the order of their numbers, and never past a number that may still appear.

    With several gateways on one database an entry may become visible after another one with a
    higher number. The feed therefore waits for missing numbers for some seconds; numbers of failed
    writes stay missing forever.
    """

    def __init__(
        self,
        store: Store,
        node: str,
        monotonic: Callable[[], float] = time.monotonic,
        gap_timeout: float | None = None,
    ) -> None:
        """``gap_timeout``: seconds to wait for missing numbers.

        None: 0 for SQLite, where no number appears late, otherwise `_GAP_TIMEOUT`.
        """
        if gap_timeout is None:
            gap_timeout = 0.0
            if stored.has_many_writers(store):
                gap_timeout = _GAP_TIMEOUT
        self._store = store
        self._node = node
        self._timeout = gap_timeout
        self._monotonic = monotonic
        self._observations: deque[_Observation] = deque(maxlen=_MAX_OBSERVATIONS)

    def newest(self) -> int:
        """Return the number of the newest entry, 0 if there is none."""
        return stored.newest_number(self._store)

    def after(
        self,
        number: int,
        names: Collection[str] = (),
        job_id: str = "",
        limit: int = 500,
    ) -> Page:
        """Return the events after a number, oldest first.

        Only events of these names and of this job are returned; empty ``names`` or an empty
        ``job_id`` selects all.
        """
        until = self._highest_final(number)
        rows = stored.after(
            self._store,
            number,
            until,
            entry_names(names),
            job_id,
            limit,
        )
        events = tuple(self._event(row) for row in rows)
        if len(events) == limit:  # perhaps there are more events up to ``until``
            return Page(events, events[-1].id)
        return Page(events, max(until, number))

    def _event(self, row: Any) -> Event:
        """Return the event of a timeline entry."""
        return Event(
            id=row.id,
            event=NAME_OF[row.event],
            job_id=row.job_id,
            node=self._node,
            at=as_time(row.at).isoformat(),
            side=row.side,
            by=row.actor,
            status=row.event,
            detail=loads(dict, row.detail),
        )

    def _highest_final(self, number: int) -> int:
        """Return the highest number up to which no entry can appear any more.

        ``number`` is the last number that the reader has read. Numbers that already existed
        ``gap_timeout`` seconds ago are final, even the missing ones. After them, numbers are final
        up to the first missing one.
        """
        newest = self.newest()
        if not self._timeout or newest <= number:
            return newest
        now = self._monotonic()
        self._observe(now, newest)
        final = number
        for observation in tuple(self._observations):  # other threads may append
            if now - observation.time >= self._timeout:
                final = max(final, observation.newest)
        return stored.until_gap(self._store, final, newest)

    def _observe(self, now: float, newest: int) -> None:
        """Remember the newest number, unless the last observation is recent."""
        if self._observations:
            last = self._observations[-1]
            if now - last.time < _OBSERVATION_INTERVAL:
                return
        self._observations.append(_Observation(now, newest))
