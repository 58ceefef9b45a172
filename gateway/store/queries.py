"""Queries over many jobs: lists, counts, candidates for deletion; and the deletion of a job."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import and_, bindparam, func, or_, select, union_all

from gateway.auth import with_origin
from gateway.domain.job import Job
from gateway.domain.run import LocalJob
from gateway.domain.scheduling.progress import has_untried_stops
from gateway.domain.spec import JobSpec, NodeId, Note
from gateway.domain.states import JobStatus
from gateway.ports import JobSelection
from gateway.store import schema
from gateway.store.functions import json_member, now
from gateway.store.job_words import (
    contains_text,
    has_component,
    has_user,
    may_have_component,
    may_have_node,
)
from gateway.store.serialization import as_time, loads
from gateway.store.store import RUN_COLUMNS, KnownRun, Store
from gateway.store.timeline import add_notes

ABNORMAL = "ABNORMAL"  # reason of an abandoned job
WAITING = ("PENDING", "READY")  # states of jobs that have not begun to run
_OVER = ("FINISHED", "REJECTED")  # states of ended jobs
_DELETED = "job deleted"  # the timeline entry of a deletion
_ROWS_PER_QUERY = 500  # rows read at a time in the search for a partner's jobs
_STATUSES = {str(status): status for status in JobStatus}
# Subqueries: the ids of all jobs with a scheduler's record here, and with a participant's record.
_JOBS = select(schema.job.c.job_id)
_LOCAL_JOBS = select(schema.local_job.c.job_id)
_SIDES = {
    "scheduler": schema.job,
    "participant": schema.local_job,
}
# The tables with rows of jobs, apart from the timeline.
_JOB_TABLES = (
    schema.job,
    schema.local_job,
    schema.task,
    schema.run,
    schema.submission,
    schema.job_audit,
    schema.application_job,
)


def runs_named(
    store: Store,
    names: Iterable[str],
) -> dict[str, KnownRun]:
    """Return the runs with these container names."""
    has_name = schema.run.c.name.in_(set(names))
    query = select(*RUN_COLUMNS).where(has_name)
    return {row.name: KnownRun(*row) for row in store.rows(query)}


_ALL_JOBS = JobSelection()


def statuses(store: Store, selection: JobSelection = _ALL_JOBS) -> dict[str, JobStatus]:
    """Return the state of each selected job with a record here, newest first.

    The scheduler's record has precedence over the participant's.
    """
    query = _statuses(
        of_a_flow=selection.flow_id is not None,
        since_a_moment=selection.since is not None,
    )
    rows = store.rows(query.limit(selection.limit), **_bound(selection))
    return {job_id: _STATUSES[status] for job_id, status, _ in rows}


def _bound(selection: JobSelection) -> dict[str, Any]:
    """Return the values of the parameters in the query of a selection."""
    values: dict[str, Any] = {"flow": selection.flow_id}
    if selection.since is not None:
        values["since"] = selection.since.timestamp()
    return values


def newest(
    store: Store,
    limit: int,
) -> list[str]:
    """Return the ids of up to ``limit`` jobs with a record here, newest first."""
    query = _statuses(of_a_flow=False, since_a_moment=False).limit(limit)
    return store.values(query)


def submitted(store: Store, selection: JobSelection = _ALL_JOBS) -> list[tuple[str, NodeId]]:
    """Return (id, scheduling node) of the selected jobs submitted here without a record here.

    The newest jobs come first.
    """
    query = _submitted(
        of_a_flow=selection.flow_id is not None,
        since_a_moment=selection.since is not None,
    )
    rows = store.rows(query.limit(selection.limit), **_bound(selection))
    return [(row.job_id, row.scheduler) for row in rows]


@cache
def _statuses(of_a_flow: bool, since_a_moment: bool) -> sa.CompoundSelect[Any]:
    """Return the query of `statuses`; cached, as building it takes longer than running it."""
    job = schema.job.c
    local = schema.local_job.c
    scheduled = select(
        job.job_id,
        job.status,
        job.created_at,
    )
    local_only = select(
        local.job_id,
        local.status,
        local.created_at,
    )
    local_only = local_only.where(local.job_id.not_in(_JOBS))
    if of_a_flow:
        flow: sa.BindParameter[str] = bindparam("flow")
        scheduled = scheduled.where(job.flow_id == flow)
        local_only = local_only.where(local.flow_id == flow)
    if since_a_moment:
        since: sa.BindParameter[float] = bindparam("since")
        scheduled = scheduled.where(job.created_at >= since)
        local_only = local_only.where(local.created_at >= since)
    return union_all(scheduled, local_only).order_by(sa.desc("created_at"))


@cache
def _submitted(of_a_flow: bool, since_a_moment: bool) -> sa.Select[Any]:
    """Return the query of `submitted`; cached for the same reason as `_statuses`."""
    c = schema.submission.c
    query = select(c.job_id, c.scheduler).where(
        c.job_id.not_in(_JOBS),
        c.job_id.not_in(_LOCAL_JOBS),
    )
    if of_a_flow:
        query = query.where(c.flow_id == bindparam("flow"))
    if since_a_moment:
        query = query.where(c.created_at >= bindparam("since"))
    return query.order_by(c.created_at.desc())


def over_and_created_before(
    store: Store,
    moment: datetime,
) -> set[str]:
    """Return the ids of jobs created before a moment with a FINISHED or REJECTED record here.

    A job with two records counts even if only one of them is over.
    """
    job_ids: set[str] = set()
    for table in (schema.job, schema.local_job):
        c = table.c
        query = select(c.job_id).where(
            c.created_at < moment.timestamp(),
            c.status.in_(_OVER),
        )
        job_ids.update(store.values(query))
    return job_ids


def local_jobs_open_or_created_after(
    store: Store,
    moment: datetime,
) -> list[str]:
    """Return the ids of jobs with a part here that have work left or are newer than a moment."""
    c = schema.local_job.c
    query = select(c.job_id).where(
        or_(
            c.created_at >= moment.timestamp(),
            c.status.not_in(_OVER),
            c.due_at.is_not(None),  # over, but with something left to do here
        )
    )
    return store.values(query)


def is_known(store: Store, job_id: str) -> bool:
    """Return whether any table has the job."""
    with store.read() as connection:
        return _is_known(connection, job_id)


def jobs_with_work_left(store: Store) -> list[tuple[str, str]]:
    """Return (id, status) of the jobs with work left at this node, active or ended.

    An ended job has some until its stop was tried once at each reachable node (ADR 64). Jobs whose
    only work left is to repeat calls (such as stops) to other nodes do not count.
    """
    statuses_by_job: dict[str, str] = {}
    # The scheduler's record comes last, so that its status replaces the participant's.
    for table in (schema.local_job, schema.job):
        c = table.c
        query = select(c.job_id, c.status).where(c.status.not_in(_OVER))
        for row in store.rows(query.order_by(c.created_at)):
            statuses_by_job[row.job_id] = row.status
    for local in _ended_but_open(store):
        statuses_by_job.setdefault(local.id, str(local.status))
    for job in _ended_without_stops(store):
        statuses_by_job[job.id] = str(job.status)
    return list(statuses_by_job.items())


def _ended_but_open(store: Store) -> Iterator[LocalJob]:
    """Yield the ended jobs that are not closed: they still hold something here."""
    for job_id in _ended_but_due(store, schema.local_job):
        local = store.local_jobs.find(job_id)
        if local is not None and not local.closed:
            yield local


def _ended_without_stops(store: Store) -> Iterator[Job]:
    """Yield the ended jobs whose stop this node has yet to try at another node."""
    for job_id in _ended_but_due(store, schema.job):
        job = store.jobs.find(job_id)
        if job is not None and has_untried_stops(job):
            yield job


def _ended_but_due(store: Store, table: sa.Table) -> list[str]:
    """Return the ids of the ended jobs of a table with a next action."""
    query = select(table.c.job_id).where(
        table.c.status.in_(_OVER),
        table.c.due_at.is_not(None),
    )
    return store.values(query)


def local_jobs_naming(
    store: Store,
    texts: Iterable[str],
) -> list[str]:
    """Return the ids of jobs with a part here whose record contains one of the texts."""
    unique_texts = sorted(set(texts))
    if not unique_texts:
        return []
    queries = []
    for table in (schema.local_job, schema.run):  # a large record has its runs in their rows
        conditions = [table.c.state.contains(text, autoescape=True) for text in unique_texts]
        queries.append(select(table.c.job_id).where(or_(*conditions)))
    return store.values(sa.union(*queries))


def drop_job(
    store: Store,
    job_id: str,
    at: datetime,
    by: str,
    detail: Mapping[str, Any],
) -> bool:
    """Delete a job from every table, and its timeline except for lines about deletions.

    Adds a line about this deletion. Returns False if the job is unknown. The new line is written
    before the old lines are deleted. Otherwise the database could give the new line the number of
    the last old line, and readers of the feed, who continue after the last number that they have
    read, would miss the new line.
    """
    note = Note(at, _DELETED, by, detail)
    timeline = schema.timeline
    delete_entries = timeline.delete().where(
        timeline.c.job_id == job_id,
        timeline.c.event != _DELETED,
    )
    with store.write() as connection:
        if not _is_known(connection, job_id):
            return False
        add_notes(connection, job_id, side="operator", notes=[with_origin(note)])
        for table in _JOB_TABLES:
            connection.execute(table.delete().filter_by(job_id=job_id))
        connection.execute(delete_entries)
    store.jobs.forget([job_id])
    store.local_jobs.forget([job_id])
    return True


def _is_known(
    connection: sa.Connection,
    job_id: str,
) -> bool:
    """Return whether any table has a row of the job."""
    for table in _JOB_TABLES:
        query = select(table.c.job_id).filter_by(job_id=job_id).limit(1)
        if connection.execute(query).first():
            return True
    return False


# ------------------------------------------------------------ lists of jobs


class JobCursor(NamedTuple):
    """A position in the list of jobs: the position of the last job on the page before."""

    created_at: float  # seconds since the epoch
    job_id: str


@dataclass(frozen=True)
class JobFilter:
    """Filters of a list of jobs; a filter that is empty or None matches all jobs."""

    statuses: Sequence[str] = ()
    outcomes: Sequence[str] = ()
    flow_id: str | None = None
    partner: NodeId | None = None  # a node with a role in the job
    since: datetime | None = None  # earliest time of creation
    before: datetime | None = None  # the time of creation must be earlier
    text: str = ""  # occurs in the job's id, flow, submitter, nodes or components
    user: str = ""  # submitter at this node
    component: str = ""  # name, or provider/name
    reason: str = ""  # of the failure

    def matches_spec(self, spec_text: str) -> bool:
        """Return whether a stored description has the filters' node and component."""
        spec = loads(JobSpec, spec_text)
        if self.partner is not None and self.partner not in spec.nodes:
            return False
        return not self.component or has_component(spec, self.component)

    @property
    def needs_spec(self) -> bool:
        """Whether only a job's description tells if the job matches."""
        return self.partner is not None or bool(self.component)


@dataclass(frozen=True)
class Listed:
    """An entry in a list of jobs."""

    job_id: str
    flow_id: str
    status: str
    outcome: str | None
    reason: str | None  # of the failure
    created_at: datetime
    # "scheduler", "participant": the sides with a record here; the status is that of the first side
    sides: tuple[str, ...] = ()
    ended_at: datetime | None = None
    user: str = ""  # submitter at this node, if known
    progress: int = 0  # per cent
    warning_count: int = 0  # warnings of its runs at this node, if it has succeeded


class Page(NamedTuple):
    """Some jobs, newest first."""

    entries: list[Listed]
    next: JobCursor | None  # None on the last page


class _SideRow(NamedTuple):
    """A row of a job's record, with the side of the record."""

    side: str
    row: Any


def page(
    store: Store,
    filters: JobFilter,
    limit: int,
    after: JobCursor | None = None,
) -> Page:
    """Return the page of at most ``limit`` jobs that follows a cursor (None: the first page).

    Each query asks for one row more than the page has: an extra row means that a page follows.
    """
    scheduled = _first_rows(
        store,
        _filtered(schema.job, filters),
        filters,
        count=limit + 1,
        after=after,
    )
    query = _without_scheduled(_filtered(schema.local_job, filters))
    if len(scheduled) > limit:  # older jobs of the other side belong on a later page
        oldest = scheduled[-1].created_at
        query = query.where(query.selected_columns.created_at >= oldest)
    local_only = _first_rows(
        store,
        query,
        filters,
        count=limit + 1,
        after=after,
    )
    rows = [_SideRow("scheduler", row) for row in scheduled]
    rows += [_SideRow("participant", row) for row in local_only]
    rows.sort(key=_creation_and_id, reverse=True)
    entries = _entries(store, rows[:limit])
    if not entries or len(rows) <= limit:
        return Page(entries, None)
    last = rows[limit - 1].row
    return Page(
        entries,
        JobCursor(last.created_at, last.job_id),
    )


def _without_scheduled(query: sa.Select[Any]) -> sa.Select[Any]:
    """Restrict a query of participants' records to the jobs that this node does not schedule."""
    job = schema.job.c
    query = query.outerjoin(
        schema.job,
        job.job_id == schema.local_job.c.job_id,
    )
    return query.where(job.job_id.is_(None))


def _creation_and_id(entry: _SideRow) -> tuple[float, str]:
    """Return the key that sorts rows by their time of creation, then by the job's id."""
    return entry.row.created_at, entry.row.job_id


def _entries(
    store: Store,
    rows: list[_SideRow],
) -> list[Listed]:
    """Return the entries of a list of jobs, in the order of the rows."""
    c = schema.local_job.c
    # Only these jobs can have a second record: `page` left it out of the participants' rows.
    scheduled = [row.job_id for side, row in rows if side == "scheduler"]
    query = select(c.job_id).where(c.job_id.in_(scheduled))
    both_sides = set(store.values(query))
    details: dict[tuple[str, str], _Details] = {}
    for side in _SIDES:
        job_ids = [row.job_id for row_side, row in rows if row_side == side]
        for job_id, job_details in _details(store, side, job_ids).items():
            details[side, job_id] = job_details
    succeeded = [row.job_id for _, row in rows if row.outcome == "SUCCEEDED"]
    warning_counts = _warning_counts(store, succeeded)
    entries = []
    for side, row in rows:
        sides: tuple[str, ...] = (side,)
        if row.job_id in both_sides:
            sides = (side, "participant")
        job_details = details.get(
            (side, row.job_id),
            _Details(),
        )
        entry = _entry(row, sides, job_details)
        entries.append(replace(entry, warning_count=warning_counts.get(row.job_id, 0)))
    return entries


def _warning_counts(store: Store, job_ids: list[str]) -> dict[str, int]:
    """Return the number of the runs' warnings by job; jobs without a part here are left out."""
    if not job_ids:
        return {}
    c = schema.local_job.c
    query = select(c.job_id, json_member(c.state, "run_warnings")).where(c.job_id.in_(job_ids))
    return {job_id: _json_value(count) or 0 for job_id, count in store.rows(query)}


class _Details(NamedTuple):
    """The fields of an entry that have no column of their own.

    ``ended_at`` and ``user`` are read from the JSON in ``state``. ``progress`` is 100 after
    success; otherwise it is counted from the tasks, or read from ``state`` if there are none.
    """

    ended_at: datetime | None = None
    user: str = ""
    progress: int = 0  # per cent


def _entry(
    row: Any,
    sides: tuple[str, ...],
    details: _Details,
) -> Listed:
    """Return an entry of the list of jobs."""
    return Listed(
        job_id=row.job_id,
        flow_id=row.flow_id,
        status=row.status,
        outcome=row.outcome,
        reason=row.reason,
        created_at=as_time(row.created_at),
        sides=sides,
        ended_at=details.ended_at,
        user=details.user,
        progress=details.progress,
    )


def _details(
    store: Store,
    side: str,
    job_ids: list[str],
) -> dict[str, _Details]:
    """Return the details of jobs by their ids."""
    if not job_ids:
        return {}
    c = _SIDES[side].c
    query = select(
        c.job_id,
        c.outcome,
        json_member(c.state, "ended_at"),
        json_member(c.state, "user"),
        json_member(c.state, "progress"),
    )
    rows = store.rows(query.where(c.job_id.in_(job_ids)))
    unsuccessful = [row.job_id for row in rows if row.outcome != "SUCCEEDED"]
    progress_by_tasks = _progress(store, unsuccessful)
    details = {}
    for job_id, outcome, *members in rows:
        ended_at, user, stored_progress = map(_json_value, members)
        progress = 100
        if outcome != "SUCCEEDED":
            progress = progress_by_tasks.get(job_id, stored_progress or 0)
        end = datetime.fromisoformat(ended_at) if ended_at else None
        details[job_id] = _Details(end, user or "", progress)
    return details


def _json_value(text: str | None) -> Any:
    """Return the value of a member of a record (`json_member`); None for a missing one."""
    if text is None:
        return None
    return loads(Any, text)


def _progress(
    store: Store,
    job_ids: list[str],
) -> dict[str, int]:
    """Return the share of successful tasks in per cent, by job; jobs without tasks are left out.

    The share is at most 99, as the jobs have not succeeded.
    """
    c = schema.task.c
    successful = func.sum(sa.case((c.status == "SUCCESS", 1), else_=0))
    query = select(
        c.job_id,
        successful,
        func.count(),
    )
    query = query.where(c.job_id.in_(job_ids)).group_by(c.job_id)
    progress = {}
    for job_id, successes, tasks in store.rows(query):
        per_cent = 100 * int(successes) // tasks
        progress[job_id] = min(99, per_cent)
    return progress


def _filtered(
    table: sa.Table,
    filters: JobFilter,
) -> sa.Select[Any]:
    """Build the query for one side's records that match the filters."""
    c = table.c
    query = select(
        c.job_id,
        c.flow_id,
        c.status,
        c.outcome,
        c.reason,
        c.created_at,
    )
    if filters.statuses:
        query = query.where(c.status.in_(filters.statuses))
    if filters.outcomes:
        query = query.where(c.outcome.in_(filters.outcomes))
    if filters.flow_id is not None:
        query = query.where(c.flow_id == filters.flow_id)
    if filters.reason:
        query = query.where(c.reason == filters.reason.upper())
    if filters.text:
        query = query.where(contains_text(table, filters.text))
    if filters.user:
        query = query.where(has_user(table, filters.user))
    if filters.partner is not None:
        query = query.where(may_have_node(table, filters.partner))
    if filters.component:
        query = query.where(may_have_component(table, filters.component))
    if filters.needs_spec:  # preselected by words; `_first_rows` checks the parsed spec
        query = query.add_columns(c.spec)
    if filters.since is not None:
        query = query.where(c.created_at >= filters.since.timestamp())
    if filters.before is not None:
        query = query.where(c.created_at < filters.before.timestamp())
    return query


def _first_rows(
    store: Store,
    query: sa.Select[Any],
    filters: JobFilter,
    count: int,
    after: JobCursor | None,
) -> list[Any]:
    """Return the first ``count`` rows of a query after a cursor; None: from the newest job on.

    Only the jobs are returned whose descriptions match the filters.
    """
    columns = query.selected_columns
    # In the order of the index on the time, so that the database need not sort.
    query = query.order_by(
        columns.created_at.desc(),
        columns.job_id.desc(),
    )
    matching: list[Any] = []
    portion = count
    # The descriptions of some rows with the words do not match: further rows are read, in portions
    # of another size.
    while len(matching) < count:
        following = _after(query, after).limit(portion)
        rows = store.rows(following)
        for row in rows:
            if not filters.needs_spec or filters.matches_spec(row.spec):
                matching.append(row)
        if len(rows) < portion:
            break
        portion = _ROWS_PER_QUERY
        after = JobCursor(
            rows[-1].created_at,
            rows[-1].job_id,
        )
    return matching[:count]


def _after(
    query: sa.Select[Any],
    cursor: JobCursor | None,
) -> sa.Select[Any]:
    """Restrict a query to the jobs after a cursor: older, or as old with a smaller id."""
    if cursor is None:
        return query
    columns = query.selected_columns
    is_older = columns.created_at < cursor.created_at
    is_next_of_same_time = and_(
        columns.created_at == cursor.created_at,
        columns.job_id < cursor.job_id,
    )
    return query.where(or_(is_older, is_next_of_same_time))


# ------------------------------------------------------------ counts


@dataclass(frozen=True)
class Counts:
    """Jobs, tasks and runs by state."""

    jobs: Mapping[tuple[str, str, str], int]  # by side, status, and outcome or ""
    tasks: Mapping[str, int]  # of unfinished jobs
    runs: Mapping[str, int]
    oldest_waiting: float | None  # creation of the oldest waiting job, in seconds since the epoch


def count(store: Store) -> Counts:
    """Return all counts; each query is answered from an index."""
    job = schema.job.c
    oldest = func.min(job.created_at)
    oldest_waiting = select(oldest).where(job.status.in_(WAITING))
    return Counts(
        jobs=_job_counts(store),
        tasks=_task_counts(store),
        runs=_run_counts(store),
        oldest_waiting=store.value(oldest_waiting),
    )


def _job_counts(store: Store) -> dict[tuple[str, str, str], int]:
    """Return the number of jobs by side, status and outcome."""
    counts: dict[tuple[str, str, str], int] = {}
    for side, table in _SIDES.items():
        c = table.c
        query = select(
            c.status,
            c.outcome,
            func.count(),
        )
        for status, outcome, number in store.rows(query.group_by(c.status, c.outcome)):
            counts[side, status, outcome or ""] = number
    return counts


def _task_counts(store: Store) -> dict[str, int]:
    """Return the number of tasks of unfinished jobs by status."""
    job = schema.job.c
    task = schema.task.c
    query = select(task.status, func.count())
    query = query.join_from(
        schema.task,
        schema.job,
        task.job_id == job.job_id,
    )
    query = query.where(job.status.not_in(_OVER)).group_by(task.status)
    return dict(map(tuple, store.rows(query)))


def _run_counts(store: Store) -> dict[str, int]:
    """Return the number of runs here by status."""
    run = schema.run.c
    query = select(run.status, func.count()).group_by(run.status)
    return dict(map(tuple, store.rows(query)))


# ------------------------------------------------------------ repairs


def abandon(
    store: Store,
    side: str,
    job_id: str,
    at: datetime,
    why: str,
) -> list[str]:
    """End a side of a job as FAILED without reading its record, which may be unreadable.

    A side that has ended already keeps its outcome; only its remaining work is dropped. Returns the
    names of the job's containers here if the side is the participant's, else none.
    """
    table = _SIDES[side]
    update = table.update().where(table.c.job_id == job_id)
    end_active = update.where(table.c.status.not_in(_OVER)).values(
        status="FINISHED",
        outcome="FAILED",
        version=table.c.version + 1,
    )
    note = Note(
        at,
        "job ABNORMAL",
        "",
        {"reason": ABNORMAL, "message": why},
    )
    with store.write() as connection:
        ended = connection.execute(end_active)
        connection.execute(update.values(due_at=None))
        if ended.rowcount:
            add_notes(connection, job_id, side, [note])
    if side == "scheduler":
        return []
    query = select(schema.run.c.name).filter_by(job_id=job_id)
    return store.values(query)


def database_time(store: Store) -> float:
    """Return seconds since the epoch by the clock of the database."""
    return float(store.value(select(now())))
