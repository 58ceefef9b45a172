"""Queries over many jobs: lists, counts, candidates for deletion; and the deletion of a job."""

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

ABNORMAL = "ABNORMAL"  # reason of an abandoned job
_OVER = ("FINISHED", "REJECTED")
WAITING = ("PENDING", "READY")  # states of jobs that have not begun to run
_MANY = 500  # rows per query
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
    """Return the runs with these container names."""
    query = sa.select(*RUN_COLUMNS).where(schema.run.c.name.in_(set(names)))
    return {row.name: KnownRun(*row) for row in store.rows(query)}


def statuses(store: Store, flow_id: str | None) -> dict[str, JobStatus]:
    """Return the state of each job with a record here, newest first.

    The scheduler's record has precedence over the participant's.
    """
    rows = store.rows(_statuses(flow_id is not None), flow=flow_id)
    return {job_id: _STATUSES[status] for job_id, status, _ in rows}


def newest(store: Store, most: int) -> list[str]:
    """Return up to ``most`` jobs with a record here, newest first."""
    return store.values(_statuses(of_a_flow=False).limit(most))


def submitted(store: Store, flow_id: str | None) -> list[tuple[str, NodeId]]:
    """Return (job id, scheduling node) of the jobs submitted here without a record here, newest first."""
    rows = store.rows(_submitted(flow_id is not None), flow=flow_id)
    return [(row.job_id, row.scheduler) for row in rows]


@cache
def _statuses(of_a_flow: bool) -> sa.CompoundSelect[Any]:
    """Build the query; cached, as building it takes longer than running it."""
    job = schema.job.c
    local = schema.local_job.c
    scheduled = sa.select(job.job_id, job.status, job.created_at)
    local_only = sa.select(local.job_id, local.status, local.created_at)
    local_only = local_only.where(local.job_id.not_in(_JOBS))
    if of_a_flow:
        flow: sa.BindParameter[str] = sa.bindparam("flow")
        scheduled = scheduled.where(job.flow_id == flow)
        local_only = local_only.where(local.flow_id == flow)
    return sa.union_all(scheduled, local_only).order_by(sa.desc("created_at"))


@cache
def _submitted(of_a_flow: bool) -> sa.Select[Any]:
    t = schema.submission.c
    query = sa.select(t.job_id, t.scheduler)
    query = query.where(t.job_id.not_in(_JOBS), t.job_id.not_in(_LOCAL_JOBS))
    if of_a_flow:
        query = query.where(t.flow_id == sa.bindparam("flow"))
    return query.order_by(t.created_at.desc())


def over_and_created_before(store: Store, moment: datetime) -> set[str]:
    """Return the finished jobs here that were created before a moment."""
    job_ids: set[str] = set()
    for table in (schema.job, schema.local_job):
        c = table.c
        query = sa.select(c.job_id)
        query = query.where(c.created_at < moment.timestamp(), c.status.in_(_OVER))
        job_ids.update(store.values(query))
    return job_ids


def local_jobs_open_or_created_after(store: Store, moment: datetime) -> list[str]:
    """Return the unfinished jobs with a part here, and those created after a moment."""
    c = schema.local_job.c
    is_recent = c.created_at >= moment.timestamp()
    is_open = sa.or_(c.status.not_in(_OVER), c.due_at.is_not(None))
    return store.values(sa.select(c.job_id).where(sa.or_(is_recent, is_open)))


def is_known(store: Store, job_id: str) -> bool:
    """Return whether any table has the job."""
    with store.read() as connection:
        return _is_known(connection, job_id)


def under_way(store: Store) -> list[tuple[str, str]]:
    """Return (id, status) of the jobs with work left at this node, apart from late calls to others."""
    statuses_by_job: dict[str, str] = {}
    for table in (schema.local_job, schema.job):
        c = table.c
        query = sa.select(c.job_id, c.status).where(c.status.not_in(_OVER)).order_by(c.created_at)
        for row in store.rows(query):
            statuses_by_job[row.job_id] = row.status
    c = schema.local_job.c
    finished_with_due = sa.select(c.job_id).where(c.status.in_(_OVER), c.due_at.is_not(None))
    for job_id in store.values(finished_with_due):
        local = store.local_jobs.find(job_id)
        if local is not None and not local.closed:
            statuses_by_job.setdefault(job_id, str(local.status))
    return list(statuses_by_job.items())


def local_jobs_naming(store: Store, texts: Iterable[str]) -> list[str]:
    """Return the jobs with a part here whose record contains one of the texts."""
    c = schema.local_job.c
    conditions = [c.state.contains(text, autoescape=True) for text in sorted(set(texts))]
    if not conditions:
        return []
    return store.values(sa.select(c.job_id).where(sa.or_(*conditions)))


def drop_job(
    store: Store,
    job_id: str,
    at: datetime,
    by: str,
    detail: Mapping[str, Any],
) -> bool:
    """Delete a job from every table, and its timeline except for a line about the deletion.

    Returns False if the job is unknown. The line is written before the others are deleted, so that
    no later entry of any timeline takes an older number.
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
    """Cursor of a list: the last job of the page before."""

    created_at: float
    """seconds since the epoch"""
    job_id: str


@dataclass(frozen=True)
class Wanted:
    """Filters of a list of jobs; an empty or missing one matches all."""

    statuses: Sequence[str] = ()
    outcomes: Sequence[str] = ()
    flow_id: str | None = None
    partner: NodeId | None = None
    """a node that plays a role in the job"""
    since: datetime | None = None
    before: datetime | None = None


@dataclass(frozen=True)
class Listed:
    """An entry in a list of jobs."""

    job_id: str
    flow_id: str
    status: str
    outcome: str | None
    created_at: datetime
    sides: tuple[str, ...] = ()
    """this node's sides of the job (scheduler, participant); the first one's state is given"""
    ended_at: datetime | None = None
    user: str = ""
    """submitter at this node, if known"""
    progress: int = 0  # per cent


class Page(NamedTuple):
    """Some jobs, newest first."""

    entries: list[Listed]
    next: Place | None
    """cursor of the next page; None on the last one"""


def page(
    store: Store,
    wanted: Wanted,
    limit: int,
    after: Place | None = None,
) -> Page:
    """Return one page of jobs."""
    scheduled = _first(store, _filtered(schema.job, wanted), wanted, limit + 1, after)
    local_only = _filtered(schema.local_job, wanted)
    local_only = local_only.outerjoin(schema.job, schema.job.c.job_id == schema.local_job.c.job_id)
    local_only = local_only.where(schema.job.c.job_id.is_(None))
    if len(scheduled) > limit:  # older jobs of this side belong on a later page
        oldest = scheduled[-1].created_at
        local_only = local_only.where(local_only.selected_columns.created_at >= oldest)
    rows = [("scheduler", row) for row in scheduled]
    for row in _first(store, local_only, wanted, limit + 1, after):
        rows.append(("participant", row))
    rows.sort(key=_newest_first, reverse=True)
    entries = _entries(store, rows[:limit])
    if not entries or len(rows) <= limit:
        return Page(entries, None)
    _, last = rows[limit - 1]
    return Page(entries, Place(last.created_at, last.job_id))


def _newest_first(side_and_row: tuple[str, Any]) -> tuple[float, str]:
    _, row = side_and_row
    return row.created_at, row.job_id


def _entries(store: Store, rows: list[tuple[str, Any]]) -> list[Listed]:
    """Return the entries of a list for rows with their sides."""
    c = schema.local_job.c
    scheduled = [row.job_id for side, row in rows if side == "scheduler"]
    both_sides = set(store.values(sa.select(c.job_id).where(c.job_id.in_(scheduled))))
    details: dict[tuple[str, str], _Details] = {}
    for side in _SIDES:
        job_ids = [row.job_id for row_side, row in rows if row_side == side]
        for job_id, job_details in _details(store, side, job_ids).items():
            details[side, job_id] = job_details
    entries = []
    for side, row in rows:
        sides = (side, "participant") if row.job_id in both_sides else (side,)
        job_details = details.get((side, row.job_id), _Details())
        entry = Listed(
            row.job_id,
            row.flow_id,
            row.status,
            row.outcome,
            as_time(row.created_at),
            sides,
            job_details.ended_at,
            job_details.user,
            job_details.progress,
        )
        entries.append(entry)
    return entries


class _Details(NamedTuple):
    """Fields of a list's entry that only the job's record has."""

    ended_at: datetime | None = None
    user: str = ""
    progress: int = 0  # per cent


def _details(
    store: Store,
    side: str,
    job_ids: list[str],
) -> dict[str, _Details]:
    if not job_ids:
        return {}
    c = _SIDES[side].c
    state = sa.type_coerce(c.state, sa.JSON)
    fields = [state[key].as_string() for key in ("ended_at", "user", "progress")]
    rows = store.rows(sa.select(c.job_id, c.outcome, *fields).where(c.job_id.in_(job_ids)))
    unsuccessful = [job_id for job_id, outcome, *_ in rows if outcome != "SUCCEEDED"]
    progress_by_tasks = _progress(store, unsuccessful)
    details = {}
    for job_id, outcome, ended_at, user, stored_progress in rows:
        progress = 100
        if outcome != "SUCCEEDED":
            progress = progress_by_tasks.get(job_id, int(stored_progress or 0))
        end = datetime.fromisoformat(ended_at) if ended_at else None
        details[job_id] = _Details(end, user or "", progress)
    return details


def _progress(store: Store, job_ids: list[str]) -> dict[str, int]:
    """Return the share of successful tasks in per cent, at most 99."""
    c = schema.task.c
    successful = sa.func.sum(sa.case((c.status == "SUCCESS", 1), else_=0))
    query = sa.select(c.job_id, successful, sa.func.count())
    query = query.where(c.job_id.in_(job_ids)).group_by(c.job_id)
    progress = {}
    for job_id, successes, tasks in store.rows(query):
        progress[job_id] = min(99, 100 * int(successes) // tasks)
    return progress


def _filtered(t: sa.Table, wanted: Wanted) -> sa.Select[Any]:
    query = sa.select(t.c.job_id, t.c.flow_id, t.c.status, t.c.outcome, t.c.created_at)
    if wanted.partner is not None:
        query = query.add_columns(t.c.spec)
    if wanted.statuses:
        query = query.where(t.c.status.in_(wanted.statuses))
    if wanted.outcomes:
        query = query.where(t.c.outcome.in_(wanted.outcomes))
    if wanted.flow_id is not None:
        query = query.where(t.c.flow_id == wanted.flow_id)
    if wanted.partner is not None:  # preselected by text; `_first` checks the parsed spec
        query = query.where(sa.func.instr(t.c.spec, dumps(wanted.partner)) > 0)
    if wanted.since is not None:
        query = query.where(t.c.created_at >= wanted.since.timestamp())
    if wanted.before is not None:
        query = query.where(t.c.created_at < wanted.before.timestamp())
    return query


def _first(
    store: Store,
    query: sa.Select[Any],
    wanted: Wanted,
    count: int,
    after: Place | None,
) -> list[Any]:
    """Return the first rows after a place, of jobs in which the partner takes part by their spec."""
    created = query.selected_columns.created_at
    job_id = query.selected_columns.job_id
    query = query.order_by(created.desc(), job_id.desc())  # the order of the index on the time
    matching: list[Any] = []
    size = count
    while len(matching) < count:
        following = query
        if after is not None:
            same_time = sa.and_(created == after.created_at, job_id < after.job_id)
            following = query.where(sa.or_(created < after.created_at, same_time))
        rows = store.rows(following.limit(size))
        for row in rows:
            if wanted.partner is None or _takes_part(row.spec, wanted.partner):
                matching.append(row)
        if len(rows) < size:
            break
        size = _MANY
        after = Place(rows[-1].created_at, rows[-1].job_id)
    return matching[:count]


def _takes_part(spec: str, node: NodeId) -> bool:
    return any(party.node == node for party in loads(JobSpec, spec).parties)


@dataclass(frozen=True)
class Counts:
    """Jobs, tasks and runs by state."""

    jobs: Mapping[tuple[str, str, str], int]
    """(scheduler or participant, status, outcome or "") -> number"""
    tasks: Mapping[str, int]
    """tasks of unfinished jobs"""
    runs: Mapping[str, int]
    oldest_waiting: float | None
    """creation of the oldest job that waits to run; seconds since the epoch"""


def count(store: Store) -> Counts:
    """Count everything; each query is answered from an index."""
    job = schema.job.c
    task = schema.task.c
    run = schema.run.c
    jobs: dict[tuple[str, str, str], int] = {}
    for side, table in _SIDES.items():
        c = table.c
        query = sa.select(c.status, c.outcome, sa.func.count()).group_by(c.status, c.outcome)
        for status, outcome, number in store.rows(query):
            jobs[side, status, outcome or ""] = number
    tasks = sa.select(task.status, sa.func.count())
    tasks = tasks.join_from(schema.task, schema.job, task.job_id == job.job_id)
    tasks = tasks.where(job.status.not_in(_OVER)).group_by(task.status)
    runs = sa.select(run.status, sa.func.count()).group_by(run.status)
    oldest = store.value(sa.select(sa.func.min(job.created_at)).where(job.status.in_(WAITING)))
    return Counts(
        jobs=jobs,
        tasks=dict(map(tuple, store.rows(tasks))),
        runs=dict(map(tuple, store.rows(runs))),
        oldest_waiting=oldest,
    )


def abandon(
    store: Store,
    side: str,
    job_id: str,
    at: datetime,
    why: str,
) -> list[str]:
    """End a side of a job as FAILED without reading its record; return its containers' names here."""
    table = _SIDES[side]
    is_job = table.c.job_id == job_id
    note = Note(at, "job ABNORMAL", "", {"reason": ABNORMAL, "message": why})
    with store.write() as connection:
        end = table.update().where(is_job, table.c.status.not_in(_OVER))
        end = end.values(status="FINISHED", outcome="FAILED", version=table.c.version + 1)
        ended = connection.execute(end)
        connection.execute(table.update().where(is_job).values(due_at=None))
        if ended.rowcount:
            add_notes(connection, job_id, side, [note])
    if side == "scheduler":
        return []
    return store.values(sa.select(schema.run.c.name).where(schema.run.c.job_id == job_id))


def database_time(store: Store) -> float:
    """Return seconds since the epoch by the database's clock; SQLite has none."""
    return float(store.value(sa.select(sa.func.unix_timestamp(sa.func.now(6)))))
