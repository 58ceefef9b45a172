"""Loads and changes the two records of a job in short transactions.

All changes go through `Records.decide`: it loads the record, calls the change, and writes the
result under ``WHERE version = :seen``. If another write was first, it loads the record and calls
the change again, which is safe as a change is a function without side effects.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import sqlalchemy as sa
from sqlalchemy import and_, bindparam, func, literal_column, null, or_, select, union_all

from gateway.auth import adding_origin, with_origin
from gateway.domain.job import Job
from gateway.domain.records import replace
from gateway.domain.run import LocalJob
from gateway.domain.spec import JobSpec
from gateway.domain.states import Outcome
from gateway.errors import NotFound, Unreadable
from gateway.store.database import Database, Prepared, repeat_on_conflict
from gateway.store.functions import json_member, position
from gateway.store.job_words import words_of
from gateway.store.part_rows import Rows, statements
from gateway.store.schema import LONGEST_REASON
from gateway.store.serialization import dumps, dumps_record, dumps_without, loads
from gateway.store.timeline import add_notes, log_notes

# The states of active jobs. A query for "not finished" would read all the finished ones.
UNDER_WAY = ("PENDING", "READY", "RUNNING")
MAX_CACHED_RECORDS = 2000  # the largest number of cached records of each side
MAX_CACHED_CHARACTERS = 64_000_000  # the largest size of all stored texts of these records

R = TypeVar("R", Job, LocalJob)
X = TypeVar("X")


def job_unknown(job_id: str) -> NotFound:
    """Return the error for a job without a record, or for one that the sender must not know of."""
    return NotFound(f"no job {job_id} here", reason="JOB_UNKNOWN")


class Records(Generic[R]):
    """The records of one side of the jobs: of the scheduler, or of the participant."""

    def __init__(
        self,
        database: Database,
        table: sa.Table,
        side: str,
        cls: type[R],
        next_due: Callable[..., datetime | None],
        rows: "Rows[R]",
        on_change: Callable[[sa.Connection, R, R], None] | None = None,
        *,
        sole_writer: bool = False,
    ) -> None:
        """Prepare access to the records of one side.

        - ``next_due`` returns the time of a record's next action; None if there is none
        - ``rows``: the table with the rows of the records' tasks or runs
        - ``on_change`` is called with the old and the new record in the transaction of each change,
          but not when a record is added
        - ``sole_writer``: no other process writes the database
        """
        self._database = database
        self._table = table
        self._side = side
        self._cls: type[R] = cls
        self._next_due = next_due
        self._rows: Rows[R] = rows
        self._on_change: Callable[[sa.Connection, R, R], None] | None = on_change
        self._sole_writer = sole_writer
        self._cache: RecordCache[R] = RecordCache(MAX_CACHED_RECORDS, MAX_CACHED_CHARACTERS)
        self._load_query = self._load_statement()
        self._count_under_way = self._count_statement()
        self._change = self._change_statement()

    def add(
        self,
        value: R,
        flow_id: str,
    ) -> bool:
        """Store a new record. Returns False, and stores nothing, if the id has a readable record.

        Raises `sqlalchemy.exc.IntegrityError` if the record of that id is unreadable, or if the new
        record breaks another constraint.
        """
        value = replace(
            value,
            notes=tuple(map(with_origin, value.notes)),
        )
        drops = self._cache.drops  # before the write, see `RecordCache.put`
        columns, written = self._columns(value, None)
        row: dict[str, Any] = {
            "job_id": value.id,
            "flow_id": flow_id,
            "version": 1,
            "digest": value.digest,
            "spec": dumps(value.spec),
            "words": words_of(value.spec, _user(value)),
            "created_at": value.created_at.timestamp(),
            **columns,
        }
        insert, _ = statements(self._table)
        try:
            with self._database.write() as connection:
                insert.run(connection, row)
                self._rows.write(connection, None, value, were_in_rows=False)
                add_notes(
                    connection,
                    value.id,
                    self._side,
                    value.notes,
                )
        except sa.exc.IntegrityError:
            if self.find(value.id) is None:
                raise
            return False
        entry = CachedRecord(
            version=1,
            created_at=row["created_at"],
            value=replace(value, notes=()),
            spec_size=len(row["spec"]),
            state_size=len(row["state"]) + self._rows.size_of(value),
            parts_in_rows=self._rows.hold_parts_of(value),
            written=written,
        )
        self._cache.put(value.id, entry, drops)
        log_notes(self._side, value.spec, value.notes)
        return True

    def find(self, job_id: str) -> R | None:
        """Return the record; None if it is missing or unreadable."""
        try:
            entry = self._load(job_id)
        except Unreadable:
            return None
        if entry is None:
            return None
        return entry.value

    def get(self, job_id: str) -> R:
        """Return the record. Raises `NotFound`, `Unreadable`."""
        return self._load_existing(job_id).value

    def cached(self, job_id: str) -> R | None:
        """Return the cached record, or None; another gateway may have changed it since."""
        entry = self._cache.get(job_id)
        if entry is None:
            return None
        return entry.value

    def next_due(self, value: R) -> datetime | None:
        """Return the time of the next action for a record; None if there is none.

        If ``value`` is the very object that the last write stored, the time is not computed again.
        """
        entry = self._cache.get(value.id)
        if entry is None or entry.value is not value or entry.written is None:
            return self._next_due(value)
        return entry.written.due

    def forget(self, job_ids: Iterable[str]) -> None:
        """Drop these records from the cache: they are read from the database at their next use."""
        for job_id in job_ids:
            self._cache.drop(job_id)

    def update(
        self,
        job_id: str,
        change: Callable[[R], R],
    ) -> R:
        """Change a record.

        Raises `NotFound`, `Unreadable` and the errors of ``change``; then nothing is changed.
        """
        change_with_origin = adding_origin(change)

        def change_without_result(value: R) -> tuple[R, None]:
            return change_with_origin(value), None

        new, _ = self.decide(job_id, change_without_result)
        return new

    def decide(
        self,
        job_id: str,
        change: Callable[[R], tuple[R, X]],
    ) -> tuple[R, X]:
        """Change a record; return the new record and the second value of ``change``.

        ``change`` may be called several times. A cached record is changed without loading it first:
        the write succeeds only if the stored version is still the cached one. If ``change`` fails
        with the cached record, or changes nothing, it is called again with the stored record.
        Raises as `update` does.
        """
        entry = self._cache.get(job_id)
        if entry is not None:
            try:
                new, extra = change(entry.value)
            except Exception:  # perhaps the cached version is stale; otherwise raised again below
                new = entry.value
            if new is not entry.value:
                saved = repeat_on_conflict(partial(self._save, entry, new))
                if saved is not None:
                    return saved, extra
        while True:
            entry = self._load_existing(job_id, entry)
            new, extra = change(entry.value)
            if new is entry.value:
                return new, extra
            saved = repeat_on_conflict(partial(self._save, entry, new))
            if saved is not None:
                return saved, extra

    def due(
        self,
        now: datetime,
        limit: int = 1000,
    ) -> list[str]:
        """Return the ids of jobs whose next action is due, the longest overdue first.

        At most ``limit`` ids are returned.
        """
        c = self._table.c
        query = select(c.job_id).where(c.due_at <= now.timestamp())
        return self._database.values(query.order_by(c.due_at).limit(limit))

    def in_state(self, *statuses: str) -> list[str]:
        """Return the ids of the jobs in one of these states, the oldest first."""
        c = self._table.c
        query = select(c.job_id).where(c.status.in_(statuses))
        return self._database.values(query.order_by(c.created_at))

    def unfinished(self) -> Iterable[str]:
        """Return the ids of the active jobs, and of all other jobs that have a next action.

        The next action need not be due yet.
        """
        c = self._table.c
        under_way = select(c.job_id).where(c.status.in_(UNDER_WAY))
        with_due = select(c.job_id).where(c.due_at >= 0)  # not null; found by the index
        return self._database.values(sa.union(under_way, with_due))

    def has_active_jobs(
        self,
        function: Literal["initiator", "scheduler"],
        node: str,
        at_least: int,
    ) -> bool:
        """Return whether a node has this function in at least that many active jobs."""
        # Fast, from an index: with fewer active jobs of all nodes the jobs need not be read.
        if self._database.value(self._count_under_way) < at_least:
            return False
        c = self._table.c
        query = select(func.count()).where(
            c.status.in_(UNDER_WAY),
            json_member(c.spec, function) == dumps(node),
        )
        count = self._database.value(query)
        return bool(count >= at_least)

    def involves(self, node: str) -> bool:
        """Return whether an active job has a party at that node."""
        return next(self.under_way_with(node), None) is not None

    def under_way_with(self, node: str) -> Iterator[str]:
        """Yield the ids of the active jobs with a party at that node."""
        if not node:  # no party has an empty node id
            return
        c = self._table.c
        # The database preselects by text: to parse every job takes far longer.
        query = select(c.job_id, c.spec).where(
            c.status.in_(UNDER_WAY),
            position(c.spec, dumps(node)) > 0,
        )
        for job_id, text in self._database.rows(query):
            if node in loads(JobSpec, text).nodes:
                yield str(job_id)

    # ------------------------------------------------------------ statements

    def _count_statement(self) -> Prepared:
        """Return the statement that counts the active jobs."""
        c = self._table.c
        is_under_way = or_(*(c.status == status for status in UNDER_WAY))
        return Prepared(select(func.count()).where(is_under_way))

    def _change_statement(self) -> Prepared:
        """Return the statement that updates a record if it still has the version ``old_version``.

        The time of creation tells the job from a later one with the same id.
        """
        c = self._table.c
        update = self._table.update().where(
            c.job_id == bindparam("old_id"),
            c.version == bindparam("old_version"),
            c.created_at == bindparam("old_created"),
        )
        return Prepared(
            update,
            ("status", "outcome", "reason", "due_at", "version", "state"),
        )

    def _load_statement(self) -> Prepared:
        """Return the statement that selects a record by its id, and its tasks or runs in rows.

        The first row is the record's. Its texts are None if the stored version is the one in the
        parameters, the cached one; then no further rows follow. One statement reads all of them, so
        that they are of the same version. It does not sort them: MariaDB would create a temporary
        table on disk for each load.
        """
        c = self._table.c
        is_cached = and_(
            c.version == bindparam("version"),
            c.created_at == bindparam("created"),
        )
        is_job = c.job_id == bindparam("job")
        record = select(
            c.version,
            c.created_at,
            sa.case((is_cached, None), else_=c.state).label("state"),
            sa.case((is_cached, None), else_=c.spec).label("spec"),
            literal_column("-1").label("position"),
        )
        part = self._rows.table.c
        cached = self._table.alias("cached")
        version_is_cached = select(cached.c.job_id).where(
            cached.c.job_id == bindparam("job"),
            cached.c.version == bindparam("version"),
            cached.c.created_at == bindparam("created"),
        )
        parts = select(
            literal_column("0"),
            literal_column("0"),
            part.state,
            null(),
            part.position,
        ).where(
            part.job_id == bindparam("job"),
            part.state.is_not(None),
            ~version_is_cached.exists(),
        )
        return Prepared(union_all(record.where(is_job), parts))

    # ------------------------------------------------------------ loading and saving

    def _load_existing(
        self, job_id: str, before: "CachedRecord[R] | None" = None
    ) -> "CachedRecord[R]":
        """Return the stored record. Raises `NotFound` if there is none."""
        entry = self._load(job_id, before)
        if entry is None:
            raise job_unknown(job_id)
        return entry

    def _load(
        self, job_id: str, before: "CachedRecord[R] | None" = None
    ) -> "CachedRecord[R] | None":
        """Return the stored record; None if there is none.

        No query is made if the record is cached and no other process can have changed it.
        ``before`` is an earlier version of the record, whose spec is used again, as a spec never
        changes. Raises `Unreadable`.
        """
        cached = self._cache.get(job_id)
        drops = self._cache.drops  # before the read, see `RecordCache.put`
        if cached is not None and self._sole_writer:
            return cached
        rows = self._read_rows(job_id, cached)
        if not rows or rows[0].position >= 0:
            if cached is not None:
                self._cache.drop(job_id)
            return None
        row, *part_rows = rows
        if row.state is None and cached is not None:  # the cached version is the stored one
            return cached
        part_texts = [part_row.state for part_row in part_rows]
        earlier = cached or before
        try:
            value = self._parse(row, part_texts, earlier)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            text = f"the record of job {job_id} cannot be read ({type(error).__name__}: {error})"
            raise Unreadable(text) from error
        entry = CachedRecord(
            version=row.version,
            created_at=row.created_at,
            value=value,
            spec_size=len(row.spec),
            state_size=len(row.state) + self._rows.size_of(value),
            parts_in_rows=bool(part_texts),
        )
        self._cache.put(job_id, entry, drops)
        return entry

    def _read_rows(
        self,
        job_id: str,
        cached: "CachedRecord[R] | None",
    ) -> list[Any]:
        """Read a record's row, and then those with its tasks or runs, if it has them in rows.

        Without a record of the job, the first row has a position of 0 or more, if there are rows.
        """
        version = None
        created = None
        if cached is not None:
            version = cached.version
            created = cached.created_at
        rows = self._database.rows(
            self._load_query,
            job=job_id,
            version=version,
            created=created,
        )
        return sorted(rows, key=_position)

    def _parse(
        self,
        row: Any,
        part_texts: Sequence[str],
        earlier: "CachedRecord[R] | None",
    ) -> R:
        """Return the record of a row, with the tasks or runs that are stored in their own rows.

        The spec is taken from an earlier version of the record, unless that is one of another job
        with the same id.
        """
        if earlier is not None and earlier.created_at == row.created_at:
            spec = earlier.value.spec
        else:
            spec = loads(JobSpec, row.spec)
        elsewhere: dict[str, Any] = {"spec": spec}
        if part_texts:
            elsewhere[self._rows.field] = self._rows.load(part_texts)
        return loads(
            self._cls,
            row.state,
            **elsewhere,
        )

    def _save(
        self,
        before: "CachedRecord[R]",
        new: R,
    ) -> R | None:
        """Write the record ``new``, which was computed from the version ``before``.

        Returns the record without its notes, which are now in the timeline; None if another write
        was first.
        """
        old = before.value
        version = before.version + 1
        drops = self._cache.drops  # before the write, see `RecordCache.put`
        saved = replace(new, notes=())
        columns, written = self._columns(saved, before.written)
        parameters = {
            "old_id": old.id,
            "old_version": before.version,
            "old_created": before.created_at,
            "version": version,
            **columns,
        }
        with self._database.write() as connection:
            result = self._change.run(connection, parameters)
            if result.rowcount != 1:
                # Even with a sole writer, a person may have changed the row by hand.
                self._cache.drop(old.id)
                return None
            self._rows.write(
                connection,
                old,
                saved,
                were_in_rows=before.parts_in_rows,
            )
            if self._on_change is not None:
                self._on_change(connection, old, new)
            add_notes(
                connection,
                old.id,
                self._side,
                new.notes,
            )
        entry = CachedRecord(
            version=version,
            created_at=before.created_at,
            value=saved,
            spec_size=before.spec_size,
            state_size=len(columns["state"]) + self._rows.size_of(saved),
            parts_in_rows=self._rows.hold_parts_of(saved),
            written=written,
        )
        self._cache.put(old.id, entry, drops)
        log_notes(self._side, new.spec, new.notes)
        return saved

    def _columns(
        self, value: R, reusable: "_WriteResults | None"
    ) -> tuple[dict[str, Any], "_WriteResults"]:
        """Return the columns that each write changes, and results that the next write can reuse.

        ``reusable``: these results of the previous write; None if there are none.
        """
        due = self._next_due(value)
        outcome = _outcome(value)
        part_texts: Mapping[int, str] = {}
        if reusable is not None:
            part_texts = reusable.part_texts
        if self._rows.hold_parts_of(value):
            state = dumps_without(value, self._rows.field)
        else:
            state, part_texts = dumps_record(value, self._rows.field, part_texts)
        columns = {
            "status": str(value.status),
            "outcome": str(outcome) if outcome else None,
            "reason": _reason(value),
            "due_at": _due_seconds(due),
            "state": state,
        }
        return columns, _WriteResults(due, part_texts)


def _position(row: Any) -> int:
    """Return the position of a row of `Records._load_statement`."""
    return int(row.position)


def _outcome(value: Job | LocalJob) -> Outcome | None:
    """Return the outcome of a job, from either of its records; None while it goes on."""
    if isinstance(value, Job):
        return value.outcome
    if value.ending is None:
        return None
    return value.ending.outcome


def _user(value: Job | LocalJob) -> str:
    """Return the submitter of a job at this node; "" if unknown."""
    if isinstance(value, Job):
        return value.user
    return ""


def _reason(value: Job | LocalJob) -> str | None:
    """Return the reason of a job's failure; None without one."""
    if value.ending is None or value.ending.failure is None:
        return None
    return value.ending.failure.reason[:LONGEST_REASON] or None


def _due_seconds(due: datetime | None) -> float | None:
    """Return a time as seconds since the epoch, 0 for a time before the epoch; None for None."""
    if due is None:
        return None
    if due.year == 1:  # `datetime.min`, which has no timestamp
        return 0.0
    return max(due.timestamp(), 0.0)


@dataclass(frozen=True)
class _WriteResults:
    """Results of writing a record that the next write can reuse."""

    due: datetime | None  # time of the next action
    # JSON of its tasks or runs, by ``id()`` of the objects, which `CachedRecord.value` keeps alive
    part_texts: Mapping[int, str]


@dataclass(frozen=True)
class CachedRecord(Generic[R]):
    """A cached record and its version."""

    version: int
    # seconds since the epoch; tells the job from an earlier, deleted job with the same id
    created_at: float
    value: R
    spec_size: int  # characters of the stored spec
    state_size: int  # characters of the stored state
    parts_in_rows: bool = False  # its tasks or runs are stored in their own rows
    written: _WriteResults | None = None  # None: the record was read, not written by this process

    @property
    def size(self) -> int:
        """Characters of its stored texts."""
        return self.spec_size + self.state_size


class RecordCache(Generic[R]):
    """The recently used records, which may be stale: only the database has the current version."""

    def __init__(
        self,
        capacity: int,
        characters: int,
    ) -> None:
        """``capacity`` limits the records, ``characters`` the size of all their stored texts."""
        self._capacity = capacity
        self._characters = characters
        self._size = 0  # characters of the stored texts of all entries
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, CachedRecord[R]] = OrderedDict()
        self.drops = 0  # number of calls of `drop` so far

    def get(
        self,
        job_id: str,
    ) -> CachedRecord[R] | None:
        """Return a cached record and mark it as recently used; None if it is not cached."""
        with self._lock:
            if job_id in self._entries:
                self._entries.move_to_end(job_id)
            return self._entries.get(job_id)

    def put(
        self,
        job_id: str,
        entry: CachedRecord[R],
        drops: int,
    ) -> None:
        """Cache a record; an older version never replaces a newer one.

        ``drops``: the value of `drops` before the record was read or written. If the value has
        grown since, the record may have been deleted, and no version of it is cached.
        """
        with self._lock:
            present = self._pop(job_id)
            if self.drops != drops:
                return
            if present is not None and _is_newer(present, entry):
                entry = present
            self._entries[job_id] = entry
            self._size += entry.size
            while len(self._entries) > self._capacity or self._size > self._characters:
                oldest = next(iter(self._entries))
                self._pop(oldest)

    def drop(self, job_id: str) -> None:
        """Remove a record from the cache."""
        with self._lock:
            self._pop(job_id)
            self.drops += 1

    def _pop(
        self,
        job_id: str,
    ) -> CachedRecord[R] | None:
        """Remove a record and return it; None if it is not cached. The caller has the lock."""
        entry = self._entries.pop(job_id, None)
        if entry is not None:
            self._size -= entry.size
        return entry


def _is_newer(
    entry: CachedRecord[R],
    than: CachedRecord[R],
) -> bool:
    """Return whether ``entry`` is a later version of the same record as ``than``."""
    is_same_record = entry.created_at == than.created_at
    return is_same_record and entry.version > than.version
