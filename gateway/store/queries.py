"""Queries over many jobs: lists and counts, what deletion needs to know, and how a job is deleted."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from gateway.auth import proven
from gateway.domain.spec import JobSpec, NodeId, Note
from gateway.domain.states import JobStatus
from gateway.store import schema
from gateway.store.serialization import as_time, dumps, loads
from gateway.store.store import RUN_COLUMNS, KnownRun, Store
from gateway.store.timeline import add_notes

_OVER = ("FINISHED", "REJECTED")
WAITING = ("PENDING", "READY")
"""of which nothing runs yet"""
_MANY = 500
"""rows read in one go"""
_STATUSES = {str(status): status for status in JobStatus}
_JOBS, _LOCAL_JOBS = (sa.select(t.c.job_id) for t in (schema.job, schema.local_job))
_SIDES = {"scheduler": schema.job, "participant": schema.local_job}
_ROWS = (
    schema.job,
    schema.local_job,
    schema.task,
    schema.run,
    schema.submission,
    schema.job_audit,
    schema.application_job,
)


def runs_named(store: Store, names: Iterable[str]) -> dict[str, KnownRun]:
    """Return the runs that are known by these container names."""
    query = sa.select(*RUN_COLUMNS).where(schema.run.c.name.in_(set(names)))
    return {row.name: KnownRun(*row) for row in store.rows(query)}


def statuses(store: Store, flow_id: str | None) -> dict[str, JobStatus]:
    """Return the state of each job with a record here, newest first; who schedules a job knows best."""
    rows = store.rows(_statuses(flow_id is not None), flow=flow_id)
    return {job_id: _STATUSES[status] for job_id, status, _ in rows}


def newest(store: Store, most: int) -> list[str]:
    """Return the newest jobs with a record here, so many at most."""
    return store.values(_statuses(of_a_flow=False).limit(most))


def submitted(store: Store, flow_id: str | None) -> list[tuple[str, NodeId]]:
    """Return (job id, scheduling node) of the jobs submitted here without a record here, newest first."""
    return [
        (row.job_id, row.scheduler)
        for row in store.rows(_submitted(flow_id is not None), flow=flow_id)
    ]


@cache
def _statuses(of_a_flow: bool) -> sa.CompoundSelect[Any]:
    """Build the query once, since that takes longer than its rows."""
    job, local = (
        sa.select(t.c.job_id, t.c.status, t.c.created_at) for t in (schema.job, schema.local_job)
    )
    halves = job, local.where(schema.local_job.c.job_id.not_in(_JOBS))
    flow: sa.BindParameter[str] = sa.bindparam("flow")
    if of_a_flow:
        halves = (
            job.where(schema.job.c.flow_id == flow),
            halves[1].where(schema.local_job.c.flow_id == flow),
        )
    return sa.union_all(*halves).order_by(sa.desc("created_at"))


@cache
def _submitted(of_a_flow: bool) -> sa.Select[Any]:
    t = schema.submission.c
    query = sa.select(t.job_id, t.scheduler).where(
        t.job_id.not_in(_JOBS), t.job_id.not_in(_LOCAL_JOBS)
    )
    query = query.order_by(t.created_at.desc())
    return query.where(t.flow_id == sa.bindparam("flow")) if of_a_flow else query


def over_and_created_before(store: Store, moment: datetime) -> set[str]:
    """Return the jobs here that are over and were created before a moment."""
    found = set[str]()
    for t in (schema.job, schema.local_job):
        old = (t.c.created_at < moment.timestamp(), t.c.status.in_(_OVER))
        found.update(store.values(sa.select(t.c.job_id).where(*old)))
    return found


def local_jobs_open_or_created_after(store: Store, moment: datetime) -> list[str]:
    """Return the jobs with a part here that are not over, or were created after a moment."""
    c = schema.local_job.c
    recent = sa.or_(
        c.created_at >= moment.timestamp(), c.status.not_in(_OVER), c.due_at.is_not(None)
    )
    return store.values(sa.select(c.job_id).where(recent))


def is_known(store: Store, job_id: str) -> bool:
    """Say whether any table has the job."""
    with store.read() as connection:
        return _is_known(connection, job_id)


def under_way(store: Store) -> list[tuple[str, str]]:
    """Return (id, status) of the jobs of which something is still to be done here, late calls to others apart."""
    found: dict[str, str] = {}
    for t in (schema.local_job, schema.job):
        query = (
            sa.select(t.c.job_id, t.c.status)
            .where(t.c.status.not_in(_OVER))
            .order_by(t.c.created_at)
        )
        found.update({r.job_id: r.status for r in store.rows(query)})
    c = schema.local_job.c
    for job_id in store.values(
        sa.select(c.job_id).where(c.status.in_(_OVER), c.due_at.is_not(None))
    ):
        local = store.local_jobs.find(job_id)
        if local is not None and not local.closed:
            found.setdefault(job_id, str(local.status))
    return list(found.items())


def local_jobs_naming(store: Store, texts: Iterable[str]) -> list[str]:
    """Return the jobs with a part here in whose record one of the texts stands."""
    c = schema.local_job.c
    wanted = [c.state.contains(text, autoescape=True) for text in sorted(set(texts))]
    return store.values(sa.select(c.job_id).where(sa.or_(*wanted))) if wanted else []


def drop_job(
    store: Store,
    job_id: str,
    at: datetime,
    by: str,
    detail: Mapping[str, Any],
) -> bool:
    """Delete a job from every table; of its timeline only the line that says so is left. False: none was there.

    The line is written before the others go, so that no later entry of any timeline takes an older number.
    """
    t = schema.timeline
    with store.write() as connection:
        if not _is_known(connection, job_id):
            return False
        add_notes(connection, job_id, "operator", [proven(Note(at, "job deleted", by, detail))])
        for table in _ROWS:
            connection.execute(table.delete().where(table.c.job_id == job_id))
        connection.execute(t.delete().where(t.c.job_id == job_id, t.c.event != "job deleted"))
    for records in (store.jobs, store.local_jobs):
        records.forget([job_id])
    return True


def _is_known(connection: sa.Connection, job_id: str) -> bool:
    queries = (sa.select(t.c.job_id).where(t.c.job_id == job_id).limit(1) for t in _ROWS)
    return any(connection.execute(query).first() for query in queries)


class Place(NamedTuple):
    """The job after which a page begins."""

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
class Listed:
    """A job as lists show it."""

    job_id: str
    flow_id: str
    status: str
    outcome: str | None
    created_at: datetime
    sides: tuple[str, ...] = ()
    """scheduler, participant: what this node is to the job; the state is that of the first"""
    ended_at: datetime | None = None
    user: str = ""
    """who submitted it at this node, where people say who they are"""
    progress: int = 0
    """per cent"""


class Page(NamedTuple):
    """Some jobs, newest first."""

    entries: list[Listed]
    next: Place | None
    """where the next page begins; None on the last one"""


def page(
    store: Store,
    wanted: Wanted,
    limit: int,
    after: Place | None = None,
) -> Page:
    """Return one page of jobs."""
    found: list[Any] = []
    for side, query in _queries(wanted):
        if len(found) > limit:  # older ones of the other side are of a later page
            query = query.where(query.selected_columns.created_at >= found[-1][1].created_at)
        found += _first(store, side, query, wanted, limit + 1, after)
    found.sort(key=lambda r: (r[1].created_at, r[1].job_id), reverse=True)
    shown = found[:limit]
    t = schema.local_job
    scheduled = [r.job_id for side, r in shown if side == "scheduler"]
    both = set(store.values(sa.select(t.c.job_id).where(t.c.job_id.in_(scheduled))))
    more_of = {
        side: _more(store, side, [r.job_id for of, r in shown if of == side]) for side in _SIDES
    }
    entries = [
        Listed(
            r.job_id,
            r.flow_id,
            r.status,
            r.outcome,
            as_time(r.created_at),
            (side, "participant") if r.job_id in both else (side,),
            *more_of[side].get(r.job_id, (None, "", 0)),
        )
        for side, r in shown
    ]
    more = len(found) > limit and bool(shown)
    return Page(entries, Place(shown[-1][1].created_at, shown[-1][1].job_id) if more else None)


def _more(
    store: Store,
    side: str,
    ids: list[str],
) -> dict[str, tuple[datetime | None, str, int]]:
    """Return of jobs when they ended, who submitted them, and their progress in per cent."""
    if not ids:
        return {}
    t, c = _SIDES[side], schema.task.c
    state = sa.type_coerce(t.c.state, sa.JSON)
    texts = [state[key].as_string() for key in ("ended_at", "user", "progress")]
    rows = store.rows(sa.select(t.c.job_id, t.c.outcome, *texts).where(t.c.job_id.in_(ids)))
    open_ = [job_id for job_id, outcome, *_ in rows if outcome != "SUCCEEDED"]
    good = sa.func.sum(sa.case((c.status == "SUCCESS", 1), else_=0))
    counted = (
        sa.select(c.job_id, good, sa.func.count()).where(c.job_id.in_(open_)).group_by(c.job_id)
    )
    done = {job_id: min(99, 100 * int(good) // all_) for job_id, good, all_ in store.rows(counted)}
    return {
        job_id: (
            datetime.fromisoformat(ended) if ended else None,
            user or "",
            100 if outcome == "SUCCEEDED" else done.get(job_id, int(progress or 0)),
        )
        for job_id, outcome, ended, user, progress in rows
    }


def _queries(wanted: Wanted) -> list[tuple[str, sa.Select[Any]]]:
    job, local = schema.job, schema.local_job
    mine = job.c.job_id == local.c.job_id
    return [
        ("scheduler", _narrowed(job, wanted)),
        (
            "participant",
            _narrowed(local, wanted).outerjoin(job, mine).where(job.c.job_id.is_(None)),
        ),
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
    if wanted.partner is not None:  # searched in the database: few jobs are read in vain
        query = query.where(sa.func.instr(t.c.spec, dumps(wanted.partner)) > 0)
    if wanted.since is not None:
        query = query.where(t.c.created_at >= wanted.since.timestamp())
    if wanted.before is not None:
        query = query.where(t.c.created_at < wanted.before.timestamp())
    return query


def _first(
    store: Store,
    side: str,
    query: sa.Select[Any],
    wanted: Wanted,
    count: int,
    after: Place | None,
) -> list[tuple[str, Any]]:
    """Return the first rows after a place; who takes part is decided by the job's specification."""
    created, job_id = query.selected_columns.created_at, query.selected_columns.job_id
    query = query.order_by(created.desc(), job_id.desc())  # in the order of the index on the time
    found: list[tuple[str, Any]] = []
    size = count
    while len(found) < count:
        following = query
        if after is not None:
            same = sa.and_(created == after.created_at, job_id < after.job_id)
            following = query.where(sa.or_(created < after.created_at, same))
        rows = store.rows(following.limit(size))
        found += [
            (side, r) for r in rows if wanted.partner is None or _takes_part(r.spec, wanted.partner)
        ]
        if len(rows) < size:
            break
        size = _MANY
        after = Place(rows[-1].created_at, rows[-1].job_id)
    return found[:count]


def _takes_part(spec: str, node: NodeId) -> bool:
    return any(party.node == node for party in loads(JobSpec, spec).parties)


@dataclass(frozen=True)
class Counts:
    """Jobs, tasks and runs by state."""

    jobs: Mapping[tuple[str, str, str], int]
    """(scheduler or participant, status, outcome or "") -> number"""
    tasks: Mapping[str, int]
    """of jobs that have not ended"""
    runs: Mapping[str, int]
    oldest_waiting: float | None
    """when the oldest job was created that has not begun to run; seconds since the epoch"""


def count(store: Store) -> Counts:
    """Count everything; each query is answered from an index."""
    jobs: dict[tuple[str, str, str], int] = {}
    for side, t in (("scheduler", schema.job), ("participant", schema.local_job)):
        query = sa.select(t.c.status, t.c.outcome, sa.func.count()).group_by(
            t.c.status, t.c.outcome
        )
        jobs |= {
            (side, status, outcome or ""): number for status, outcome, number in store.rows(query)
        }
    c = schema.job.c
    oldest = store.value(sa.select(sa.func.min(c.created_at)).where(c.status.in_(WAITING)))
    of = schema.task.c
    live = sa.select(of.status, sa.func.count()).join_from(
        schema.task, schema.job, of.job_id == c.job_id
    )
    tasks = live.where(c.status.not_in(_OVER)).group_by(of.status)
    runs = sa.select(schema.run.c.status, sa.func.count()).group_by(schema.run.c.status)
    return Counts(
        jobs, dict(map(tuple, store.rows(tasks))), dict(map(tuple, store.rows(runs))), oldest
    )


ABNORMAL = "ABNORMAL"


def abandon(
    store: Store,
    side: str,
    job_id: str,
    at: datetime,
    why: str,
) -> list[str]:
    """End a side of a job as FAILED, by its columns alone; return the names of its containers here."""
    t = schema.job if side == "scheduler" else schema.local_job
    mine = t.c.job_id == job_id
    with store.write() as connection:
        over = {
            "status": "FINISHED",
            "outcome": "FAILED",
            "version": t.c.version + 1,
        }
        changed = connection.execute(
            t.update().where(mine, t.c.status.not_in(_OVER)).values(**over)
        )
        connection.execute(t.update().where(mine).values(due_at=None))
        if changed.rowcount:
            add_notes(
                connection,
                job_id,
                side,
                [Note(at, "job ABNORMAL", "", {"reason": ABNORMAL, "message": why})],
            )
    if side == "scheduler":
        return []
    return store.values(sa.select(schema.run.c.name).where(schema.run.c.job_id == job_id))


def database_time(store: Store) -> float:
    """Return seconds since 1970. For databases with a clock of their own: SQLite has none."""
    return float(store.value(sa.select(sa.func.unix_timestamp(sa.func.now(6)))))
