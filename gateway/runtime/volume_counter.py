"""Counts the bytes exchanged with each partner in memory, and writes them now and then."""

from collections.abc import Callable, Container, Mapping, Sequence
from datetime import date, timedelta
from threading import Lock
from typing import Protocol

from gateway.domain.spec import NodeId
from gateway.domain.volumes import DayVolume, RecentVolumes, Volume
from gateway.ports import Clock

KEPT_DAYS = 400  # about 13 months: a month can be compared with the same one a year before
_Day = tuple[NodeId, date]


class VolumeStore(Protocol):
    """The volumes in the database, which all gateways of the node share."""

    def add(self, volumes: Sequence[DayVolume]) -> None:
        """Add each volume to the sum of its partner and day."""

    def since(self, partner: NodeId, day: date) -> Sequence[DayVolume]:
        """Return the volumes of a partner from a day on."""

    def delete_before(self, day: date) -> None:
        """Delete the volumes of all earlier days."""


class VolumeCounter:
    """Counts by partner and day (UTC); safe to use from several threads.

    A partner without an entry in the route table counts under the default entry, so that unknown
    peers cannot make the counter grow.
    """

    def __init__(
        self,
        node: NodeId,
        entries: Callable[[], Container[NodeId]],
        default_entry: str,
        store: VolumeStore,
        clock: Clock,
    ) -> None:
        """``node`` is this node, which is not counted; ``entries`` returns the routes in force."""
        self._node = node
        self._entries = entries
        self._default_entry = default_entry
        self._store = store
        self._clock = clock
        self._lock = Lock()
        self._unsaved: dict[_Day, Volume] = {}
        self._since_start: dict[NodeId, Volume] = {}
        self._deleted_on: date | None = None  # day of the last deletion of old days

    def add(self, partner: NodeId, volume: Volume) -> None:
        """Count the bytes of an exchange with a partner."""
        name = self.entry_of(partner)
        if not name:
            return
        key = (name, self._clock().date())
        with self._lock:
            self._unsaved[key] = self._unsaved.get(key, Volume()) + volume
            self._since_start[name] = self._since_start.get(name, Volume()) + volume

    def entry_of(self, partner: NodeId) -> str:
        """Return the entry of the route table that applies to a partner; "" for none."""
        entries = self._entries()
        if partner == self._node:
            return ""
        if partner in entries:
            return partner
        if self._default_entry in entries:
            return self._default_entry
        return ""

    def since_start(self) -> Mapping[NodeId, Volume]:
        """Return the volume of each partner since this process started."""
        with self._lock:
            return dict(self._since_start)

    def recent(self, partner: NodeId) -> RecentVolumes:
        """Return the volumes of a partner.

        The bytes of this gateway count immediately, other gateways' once they are saved.
        """
        today = self._clock().date()
        first_day = today.replace(day=1)
        with self._lock:
            unsaved = _day_volumes(self._unsaved)
        days = [day for day in unsaved if day.partner == partner and day.day >= first_day]
        days += self._store.since(partner, first_day)
        of_today = Volume()
        of_month = Volume()
        for day in days:
            of_month += day.volume
            if day.day == today:
                of_today += day.volume
        return RecentVolumes(of_today, of_month)

    def save(self) -> None:
        """Write the bytes counted since the last time, and delete old days once a day.

        If the database is away, the bytes are kept for the next time, and the error is raised.
        """
        with self._lock:
            volumes = self._unsaved
            self._unsaved = {}
        if volumes:
            self._write(volumes)
        today = self._clock().date()
        if self._deleted_on != today:
            self._store.delete_before(today - timedelta(days=KEPT_DAYS))
            self._deleted_on = today

    def _write(self, volumes: Mapping[_Day, Volume]) -> None:
        """Add volumes to the database; keep them in memory if that fails."""
        try:
            self._store.add(_day_volumes(volumes))
        except BaseException:
            with self._lock:
                for key, volume in volumes.items():
                    self._unsaved[key] = self._unsaved.get(key, Volume()) + volume
            raise


def _day_volumes(volumes: Mapping[_Day, Volume]) -> list[DayVolume]:
    return [DayVolume(partner, day, volume) for (partner, day), volume in volumes.items()]
