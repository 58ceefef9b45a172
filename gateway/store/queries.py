"""What cleaning asks of the database, and how a job is taken out of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from gateway.domain.spec import Note
from gateway.origin import proven
from gateway.store import schema
from gateway.store.rows import note_row
from gateway.store.store import Store

_OVER = ("FINISHED", "REJECTED")
_MANY = 500
"""values in one ``in (…)``"""
_ROWS = (schema.job, schema.local_job, schema.task, schema.run, schema.submission, schema.job_audit)


@dataclass(frozen=True)
class RunOf:
    """Which job a run belongs to, and whether the engine may still hold it."""

    name: str
    job_id: str
    status: str

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.status in ("SUCCESS", "FAILED")


def runs_named(store: Store, names: Iterable[str]) -> dict[str, RunOf]:
    """Return the runs that are known by these container names."""
    t, wanted, found = schema.run, sorted(set(names)), {}
    with store.read() as connection:
        for start in range(0, len(wanted), _MANY):
            query = sa.select(t.c.name, t.c.job_id, t.c.status).where(t.c.name.in_(wanted[start : start + _MANY]))
            found.update({r.name: RunOf(*r) for r in connection.execute(query)})
    return found


def over_and_created_before(store: Store, moment: datetime) -> list[str]:
    """Return the jobs here that are over and were created before a moment, the oldest first."""
    found: dict[str, float] = {}
    with store.read() as connection:
        for t in (schema.job, schema.local_job):
            query = sa.select(t.c.job_id, t.c.created_at).where(
                t.c.created_at < moment.timestamp(), t.c.status.in_(_OVER)
            )
            found.update({r.job_id: r.created_at for r in connection.execute(query)})
    return sorted(found, key=lambda job_id: found[job_id])


def local_jobs_open_or_created_after(store: Store, moment: datetime) -> list[str]:
    """Return the jobs with a part here that are not over, or were created after a moment."""
    t = schema.local_job
    query = sa.select(t.c.job_id).where(
        sa.or_(t.c.created_at >= moment.timestamp(), t.c.status.not_in(_OVER), t.c.due_at.is_not(None))
    )
    with store.read() as connection:
        return list(connection.execute(query).scalars())


def is_known(store: Store, job_id: str) -> bool:
    """Say whether any table has the job."""
    with store.read() as connection:
        return any(
            connection.execute(sa.select(t.c.job_id).where(t.c.job_id == job_id).limit(1)).first() for t in _ROWS
        )


def waiting(store: Store) -> list[str]:
    """Return the jobs scheduled here of which nothing runs yet, the oldest first."""
    t = schema.job
    query = sa.select(t.c.job_id).where(t.c.status.in_(("PENDING", "READY"))).order_by(t.c.created_at)
    with store.read() as connection:
        return list(connection.execute(query).scalars())


def under_way(store: Store) -> list[tuple[str, str]]:
    """Return (id, status) of the jobs of which something is still to be done here, late calls to others apart."""
    found: dict[str, str] = {}
    with store.read() as connection:
        for t in (schema.local_job, schema.job):
            query = sa.select(t.c.job_id, t.c.status).where(t.c.status.not_in(_OVER)).order_by(t.c.created_at)
            found.update({r.job_id: r.status for r in connection.execute(query)})
        t = schema.local_job
        query = sa.select(t.c.job_id).where(t.c.status.in_(_OVER), t.c.due_at.is_not(None))
        ending = list(connection.execute(query).scalars())
    for job_id in ending:
        local = store.local_jobs.find(job_id)
        if local is not None and not local.closed:
            found.setdefault(job_id, str(local.status))
    return list(found.items())


def local_jobs_naming(store: Store, texts: Iterable[str]) -> list[str]:
    """Return the jobs with a part here in whose record one of the texts stands."""
    t = schema.local_job
    wanted = [t.c.state.contains(text, autoescape=True) for text in sorted(set(texts))]
    if not wanted:
        return []
    with store.read() as connection:
        return list(connection.execute(sa.select(t.c.job_id).where(sa.or_(*wanted))).scalars())


def write_line(
    store: Store, job_id: str, side: str, at: datetime, event: str, by: str, detail: Mapping[str, Any]
) -> None:
    """Add a line to a job's timeline that changes nothing else."""
    with store.write() as connection:
        _line(connection, job_id, side, at, event, by, detail)


def drop_job(store: Store, job_id: str, at: datetime, by: str, detail: Mapping[str, Any]) -> bool:
    """Take a job out of every table; of its timeline only the line that says so is left. False: none was there.

    The line is written before the others go, so that no later entry of any timeline takes an older number.
    """
    with store.write() as connection:
        found = any(
            connection.execute(sa.select(t.c.job_id).where(t.c.job_id == job_id).limit(1)).first() for t in _ROWS
        )
        if not found:
            return False
        line = _line(connection, job_id, "operator", at, "job deleted", by, detail)
        for t in _ROWS:
            connection.execute(t.delete().where(t.c.job_id == job_id))
        t = schema.timeline
        keep = ("job deleted",)
        connection.execute(t.delete().where(t.c.job_id == job_id, t.c.id < line, t.c.event.not_in(keep)))
        return True


def _line(
    connection: sa.Connection,
    job_id: str,
    side: str,
    at: datetime,
    event: str,
    by: str,
    detail: Mapping[str, Any],
) -> int:
    row = note_row(job_id, side, proven(Note(at, event, by, detail)))
    made = connection.execute(schema.timeline.insert().values(**row)).inserted_primary_key
    assert made is not None
    return int(made[0])
