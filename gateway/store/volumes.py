"""The bytes exchanged with each partner, by day."""

from collections.abc import Sequence
from datetime import date

from sqlalchemy import select

from gateway.domain.spec import NodeId
from gateway.domain.volumes import DayVolume, Volume
from gateway.store import schema
from gateway.store.database import InDatabase, increase, repeat_on_conflict

_table = schema.partner_volume


class SqlVolumes(InDatabase):
    """Stores volumes; several gateways add up.

    Implements `gateway.runtime.volume_counter.VolumeStore`.
    """

    def add(self, volumes: Sequence[DayVolume]) -> None:
        """Add each volume to the sum of its partner and day: all volumes or none."""

        def write() -> None:
            with self._database.write() as connection:
                for entry in sorted(volumes, key=_key):  # one order, so that no deadlock arises
                    partner, day = _key(entry)
                    key = {
                        "partner": partner,
                        "day": day,
                    }
                    amounts = {
                        "bytes_in": entry.volume.bytes_in,
                        "bytes_out": entry.volume.bytes_out,
                    }
                    increase(connection, _table, key, amounts)

        repeat_on_conflict(write)

    def since(self, partner: NodeId, day: date) -> Sequence[DayVolume]:
        """Return the volumes of a partner from a day on, by day."""
        query = select(_table)
        query = query.where(
            _table.c.partner == partner,
            _table.c.day >= day.isoformat(),
        )
        query = query.order_by(_table.c.day)
        volumes = []
        for row in self._database.rows(query):
            volume = Volume(row.bytes_in, row.bytes_out)
            volumes.append(DayVolume(row.partner, date.fromisoformat(row.day), volume))
        return volumes

    def delete_before(self, day: date) -> None:
        """Delete the volumes of all earlier days."""
        self._database.execute(_table.delete().where(_table.c.day < day.isoformat()))


def _key(entry: DayVolume) -> tuple[NodeId, str]:
    """Return partner and day as the table has them."""
    return entry.partner, entry.day.isoformat()
