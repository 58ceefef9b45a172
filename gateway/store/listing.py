"""Jobs as lists show them: those that this node schedules and those it takes part in, each once, newest first."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from gateway.domain.spec import JobSpec, NodeId
from gateway.store import schema
from gateway.store.rows import as_time
from gateway.store.serialization import dumps, loads
from gateway.store.store import Store

_AT_A_TIME = 500


class Place(NamedTuple):
    """Behind which job a page begins."""

    created_at: float
    """seconds since the epoch"""
    job_id: str


@dataclass(frozen=True)
class Wanted:
    """Which jobs; what is empty or None leaves them all."""

    statuses: Sequence[str] = ()
    outcomes: Sequence[str] = ()
    flow_id: str | None = None
    partner: NodeId | None = None
    """a node that plays a role in the job"""
    since: datetime | None = None
    before: datetime | None = None


@dataclass(frozen=True)
class Entry:
    """A job in a list."""

    job_id: str
    flow_id: str
    status: str
    outcome: str | None
    created_at: datetime
    sides: tuple[str, ...]
    """scheduler, participant: what this node is to the job; the state is that of the first"""


class Page(NamedTuple):
    """Some jobs, newest first."""

    entries: list[Entry]
    next: Place | None
    """where the next page begins; None on the last one"""


def page(store: Store, wanted: Wanted, limit: int, after: Place | None = None) -> Page:
    """Return one page of jobs."""
    found: list[Any] = []
    with store.read() as connection:
        for side, query in _queries(wanted):
            found += _first(connection, side, query, wanted, limit + 1, after)
        found.sort(key=lambda r: (r[1].created_at, r[1].job_id), reverse=True)
        shown = found[:limit]
        both = _taking_part(connection, [r.job_id for side, r in shown if side == "scheduler"])
    entries = [
        Entry(
            r.job_id,
            r.flow_id,
            r.status,
            r.outcome,
            as_time(r.created_at),
            (side, "participant") if r.job_id in both else (side,),
        )
        for side, r in shown
    ]
    more = len(found) > limit and bool(shown)
    return Page(entries, Place(shown[-1][1].created_at, shown[-1][1].job_id) if more else None)


def _queries(wanted: Wanted) -> list[tuple[str, sa.Select[Any]]]:
    job, local = schema.job, schema.local_job
    mine = job.c.job_id == local.c.job_id
    return [
        ("scheduler", _narrowed(job, wanted)),
        ("participant", _narrowed(local, wanted).outerjoin(job, mine).where(job.c.job_id.is_(None))),
    ]


def _narrowed(t: sa.Table, wanted: Wanted) -> sa.Select[Any]:
    columns = [t.c.job_id, t.c.flow_id, t.c.status, t.c.outcome, t.c.created_at]
    query = sa.select(*columns, *([t.c.spec] if wanted.partner is not None else []))
    if wanted.statuses:
        query = query.where(t.c.status.in_(wanted.statuses))
    if wanted.outcomes:
        query = query.where(t.c.outcome.in_(wanted.outcomes))
    if wanted.flow_id is not None:
        query = query.where(t.c.flow_id == wanted.flow_id)
    if wanted.partner is not None:  # the database looks for the word: few jobs are handed over in vain
        query = query.where(sa.func.instr(t.c.spec, dumps(wanted.partner)) > 0)
    if wanted.since is not None:
        query = query.where(t.c.created_at >= wanted.since.timestamp())
    if wanted.before is not None:
        query = query.where(t.c.created_at < wanted.before.timestamp())
    return query


def _first(
    connection: sa.Connection, side: str, query: sa.Select[Any], wanted: Wanted, count: int, after: Place | None
) -> list[tuple[str, Any]]:
    """Return the first rows behind a place; who takes part is looked up in the job, piece by piece."""
    created, job_id = query.selected_columns.created_at, query.selected_columns.job_id
    query = query.order_by(
        created.desc(), job_id.desc()
    )  # both alike: the index on the time has them in that order
    found: list[tuple[str, Any]] = []
    at_once = count if wanted.partner is None else max(count, _AT_A_TIME)
    while len(found) < count:
        behind = query
        if after is not None:
            same = sa.and_(created == after.created_at, job_id < after.job_id)
            behind = query.where(sa.or_(created < after.created_at, same))
        rows = connection.execute(behind.limit(at_once)).all()
        found += [(side, r) for r in rows if wanted.partner is None or _takes_part(r.spec, wanted.partner)]
        if len(rows) < at_once:
            break
        after = Place(rows[-1].created_at, rows[-1].job_id)
    return found[:count]


def _takes_part(spec: str, node: NodeId) -> bool:
    return node in spec and any(party.node == node for party in loads(JobSpec, spec).parties)


def _taking_part(connection: sa.Connection, jobs: Sequence[str]) -> set[str]:
    t = schema.local_job
    return set(connection.execute(sa.select(t.c.job_id).where(t.c.job_id.in_(jobs))).scalars())
