"""The gateways that share this database: who was heard of when, and what belongs to whom.

Times are the database's own, so that the clocks of several machines need not agree. Beside them stands what time
it was by the gateway's clock, for nobody but its own next process.
"""

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from gateway.domain.states import RunStatus
from gateway.store import schema
from gateway.store.database import repeating
from gateway.store.rows import as_time
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

    def beat(self, owner: str, url: str, at: datetime) -> float:
        """Write down that this gateway is alive, where the others reach it, and what time it is by its clock.

        Returns how many seconds it had been silent for until then; 0 the first time.
        """
        t = schema.gateway
        said = {"url": url, "own_time": at.timestamp()}

        def write() -> float:
            with self._store.write() as connection:
                now = _now(connection)
                silent = connection.execute(sa.select(now - t.c.seen_at).where(t.c.owner == owner)).scalar()
                if silent is None:
                    connection.execute(t.insert().values(owner=owner, **said, seen_at=now))
                else:
                    connection.execute(t.update().where(t.c.owner == owner).values(**said, seen_at=now))
                return float(silent or 0.0)

        return repeating(write)

    def known(self) -> list[KnownGateway]:
        """Return every gateway that was ever heard of."""
        t = schema.gateway
        with self._store.read() as connection:
            now = connection.execute(sa.select(_now(connection))).scalar_one()
            return [KnownGateway(r.owner, r.url, now - r.seen_at) for r in connection.execute(sa.select(t))]

    def last_time(self, owner: str) -> datetime | None:
        """Return what time it was by that gateway's clock when it last wrote; None where it has not said."""
        t = schema.gateway
        with self._store.read() as connection:
            found = connection.execute(sa.select(t.c.own_time).where(t.c.owner == owner)).scalar()
        return None if found is None else as_time(found)

    def jobs_of(self, owner: str) -> list[str]:
        """Return the jobs with runs of this gateway that are not over."""
        t = schema.run
        query = sa.select(t.c.job_id).where(t.c.owner == owner, t.c.status.not_in(_OVER)).distinct()
        with self._store.read() as connection:
            return list(connection.execute(query).scalars())

    def jobs_at(self, owner: str) -> list[str]:
        """Return the jobs whose home is this gateway and that are not done with. Reads each of those under way."""
        jobs = self._store.local_jobs
        found = ((job_id, jobs.find(job_id)) for job_id in jobs.unfinished())
        return [job_id for job_id, local in found if local is not None and local.home == owner]


def _now(connection: sa.Connection) -> sa.ColumnElement[float]:
    if connection.dialect.name == "sqlite":
        return sa.literal_column("((julianday('now') - 2440587.5) * 86400.0)", sa.Double())
    return sa.literal_column("(unix_timestamp(now(6)) + 0e0)", sa.Double())
