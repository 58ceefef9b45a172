"""The gateways that share this database: who was heard of when, and what belongs to whom.

Times are the database's own, so that the clocks of several machines need not agree.
"""

from dataclasses import dataclass

import sqlalchemy as sa

from gateway.domain.states import RunStatus
from gateway.store import tables
from gateway.store.database import repeating
from gateway.store.store import Store

_OVER = (RunStatus.SUCCESS, RunStatus.FAILED)


@dataclass(frozen=True)
class KnownGateway:
    """A gateway on this database; ``silent`` is how many seconds ago it was last heard of."""

    owner: str
    url: str
    silent: float


class Gateways:
    """Reads and writes the list of gateways."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def beat(self, owner: str, url: str) -> None:
        """Write down that this gateway is alive, and where the others reach it."""
        t = tables.gateway

        def write() -> None:
            with self._store.write() as connection:
                now = _now(connection)
                known = connection.execute(t.update().where(t.c.owner == owner).values(url=url, seen_at=now))
                if not known.rowcount:
                    connection.execute(t.insert().values(owner=owner, url=url, seen_at=now))

        repeating(write)

    def known(self) -> list[KnownGateway]:
        """Return every gateway that was ever heard of."""
        t = tables.gateway
        with self._store.read() as connection:
            now = connection.execute(sa.select(_now(connection))).scalar_one()
            return [KnownGateway(r.owner, r.url, now - r.seen_at) for r in connection.execute(sa.select(t))]

    def jobs_of(self, owner: str) -> list[str]:
        """Return the jobs with runs of this gateway that are not over."""
        t = tables.run
        query = sa.select(t.c.job_id).where(t.c.owner == owner, t.c.status.not_in(_OVER)).distinct()
        with self._store.read() as connection:
            return list(connection.execute(query).scalars())


def _now(connection: sa.Connection) -> sa.ColumnElement[float]:
    if connection.dialect.name == "sqlite":
        return sa.literal_column("((julianday('now') - 2440587.5) * 86400.0)", sa.Double())
    return sa.literal_column("(unix_timestamp(now(6)) + 0e0)", sa.Double())
