"""How many of what there are: for monitoring."""

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from gateway.store import schema
from gateway.store.store import Store


@dataclass(frozen=True)
class Counts:
    """Jobs, tasks and runs by state."""

    jobs: Mapping[tuple[str, str, str], int]
    """(scheduler or participant, status, outcome or "") -> number"""
    tasks: Mapping[str, int]
    runs: Mapping[str, int]
    oldest_waiting: float | None
    """when the oldest job was created that has not begun to run; seconds since the epoch"""


def count(store: Store) -> Counts:
    """Count everything; each query is answered from an index."""
    jobs: dict[tuple[str, str, str], int] = {}
    with store.read() as connection:
        for side, t in (("scheduler", schema.job), ("participant", schema.local_job)):
            query = sa.select(t.c.status, t.c.outcome, sa.func.count()).group_by(t.c.status, t.c.outcome)
            for status, outcome, number in connection.execute(query):
                jobs[side, status, outcome or ""] = number
        waiting = sa.select(sa.func.min(schema.job.c.created_at)).where(
            schema.job.c.status.in_(("PENDING", "READY"))
        )
        oldest = connection.execute(waiting).scalar()
        return Counts(jobs, _by_status(connection, schema.task), _by_status(connection, schema.run), oldest)


def _by_status(connection: sa.Connection, t: sa.Table) -> dict[str, int]:
    query = sa.select(t.c.status, sa.func.count()).group_by(t.c.status)
    return {row[0]: row[1] for row in connection.execute(query)}
