"""Loads and changes the two records of a job in short transactions.

One verb changes state: `Records.update` loads the value, calls the pure change, and writes it under
``WHERE version = :seen``; on a lost race it loads and calls again, which is safe because the change is pure.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from typing import Any, Generic, Literal, TypeVar

import sqlalchemy as sa

from gateway.auth import proven, with_proof
from gateway.domain.job import Job, Task
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import JobSpec
from gateway.domain.states import TaskStatus, replace
from gateway.errors import NotFound, Unreadable
from gateway.store.database import Database, Prepared, repeating
from gateway.store.serialization import dumps, loads, record
from gateway.store.timeline import add_notes, log_notes

UNDER_WAY = ("PENDING", "READY", "RUNNING")
"""listed because what is over is the most, and "not over" would read all of it"""

R = TypeVar("R", Job, LocalJob)
X = TypeVar("X")


def job_unknown(job_id: str) -> NotFound:
    """Return the refusal of a job that is not here, or of whose being here the asking node learns nothing."""
    return NotFound(f"no job {job_id} here", reason="JOB_UNKNOWN")


class Records(Generic[R]):
    """One of the two records per job."""

    def __init__(
        self,
        database: Database,
        table: sa.Table,
        side: str,
        cls: type[R],
        next_due: Callable[..., datetime | None],
        rows: "Rows[R]",
        also: Callable[[sa.Connection, R, R], None] | None = None,
        *,
        alone: bool = False,
    ) -> None:
        """``also`` is called in the transaction of each change; ``alone``: no other process writes here."""
        self._database = database
        self._table = table
        self._side = side
        self._cls: type[R] = cls
        self._next_due = next_due
        self._rows: Rows[R] = rows
        self._also: Callable[[sa.Connection, R, R], None] | None = also
        self._alone = alone
        self._cache: Cache[R] = Cache()
        self._load_query = self._load_statement()
        c = table.c
        under_way = sa.or_(*(c.status == status for status in UNDER_WAY))
        self._count_under_way = Prepared(sa.select(sa.func.count()).where(under_way))
        seen = (("job_id", "seen_id"), ("version", "seen_version"), ("created_at", "seen_created"))
        change = table.update().where(*(c[column] == sa.bindparam(name) for column, name in seen))
        self._change = Prepared(change, ("status", "outcome", "due_at", "version", "state"))

    def add(self, value: R, flow_id: str) -> bool:
        """Store a new record. Returns False, and stores nothing, when the id is there already."""
        value, drops = replace(value, notes=tuple(map(proven, value.notes))), self._cache.drops
        columns, written = self._columns(value, None)
        row: dict[str, Any] = {
            "job_id": value.id,
            "flow_id": flow_id,
            "version": 1,
            "digest": value.digest,
            "spec": dumps(value.spec),
            "created_at": value.created_at.timestamp(),
            **columns,
        }
        try:
            with self._database.write() as connection:
                _statements(self._table)[0].run(connection, row)
                self._rows.write(connection, None, value)
                add_notes(connection, value.id, self._side, value.notes)
        except sa.exc.IntegrityError:
            if self.find(value.id) is None:
                raise
            return False
        sizes = len(row["spec"]), len(row["state"])
        self._cache.put(
            value.id, Entry(1, row["created_at"], replace(value, notes=()), *sizes, written), drops
        )
        log_notes(self._side, value.spec, value.notes)
        return True

    def find(self, job_id: str) -> R | None:
        """Return the record; None where there is none, or none that can be read."""
        try:
            found = self._load(job_id)
        except Unreadable:
            return None
        return found.value if found else None

    def get(self, job_id: str) -> R:
        """Return the record. Raises `NotFound`, and `Unreadable` where it cannot be read."""
        return self._loaded(job_id).value

    def known(self, job_id: str) -> R | None:
        """Return the record as it was last seen here; another gateway may have changed it since."""
        cached = self._cache.get(job_id)
        return cached.value if cached else None

    def next_due(self, value: R) -> datetime | None:
        """Return when there is something to do for a record next: as its last write found, if it is of that."""
        cached = self._cache.get(value.id)
        if cached is not None and cached.value is value and cached.written is not None:
            return cached.written.due
        return self._next_due(value)

    def forget(self, job_ids: Iterable[str]) -> None:
        """Have these records read anew."""
        for job_id in job_ids:
            self._cache.drop(job_id)

    def update(self, job_id: str, change: Callable[[R], R]) -> R:
        """Change a record. Raises `NotFound` and whatever ``change`` raises; then nothing is changed."""
        proved = with_proof(change)
        return self.decide(job_id, lambda value: (proved(value), None))[0]

    def decide(self, job_id: str, change: Callable[[R], tuple[R, X]]) -> tuple[R, X]:
        """Change a record and return what the change decided beside it; it may be called more than once.

        A cached record is changed without loading it first: a write names the version that it was made of, so one
        made of an old version is lost. What would write nothing, or fails, is decided by what is stored.
        """
        cached = found = self._cache.get(job_id)
        if cached is not None:
            try:
                new, extra = change(cached.value)
            except Exception:  # it may come of an old version; if not, it is raised below
                new = cached.value
            if (
                new is not cached.value
                and (kept := repeating(partial(self._save, cached, new))) is not None
            ):
                return kept, extra
        while True:
            found = self._loaded(job_id, found)
            new, extra = change(found.value)
            if new is found.value:
                return new, extra
            if (kept := repeating(partial(self._save, found, new))) is not None:
                return kept, extra

    def due(self, now: datetime, limit: int = 1000) -> list[str]:
        """Return the jobs that have something to do by now, the longest overdue first."""
        c = self._table.c
        query = (
            sa.select(c.job_id).where(c.due_at <= now.timestamp()).order_by(c.due_at).limit(limit)
        )
        return self._database.values(query)

    def in_state(self, *statuses: str) -> list[str]:
        """Return the jobs that are in one of these states, the oldest first."""
        c = self._table.c
        return self._database.values(
            sa.select(c.job_id).where(c.status.in_(statuses)).order_by(c.created_at)
        )

    def unfinished(self) -> Iterable[str]:
        """Return the jobs that news or time can still change."""
        c = self._table.c
        under_way = sa.select(c.job_id).where(c.status.in_(UNDER_WAY))
        return self._database.values(sa.union(under_way, sa.select(c.job_id).where(c.due_at >= 0)))

    def under_way_for(
        self,
        whose: Literal["initiator", "scheduler"],
        node: str,
        most: int,
    ) -> bool:
        """Tell whether at least ``most`` jobs under way have a node as their initiator or scheduling node."""
        if self._database.value(self._count_under_way) < most:
            return False
        c = self._table.c
        under_way = sa.select(sa.func.count()).where(c.status.in_(UNDER_WAY))
        named = sa.func.json_extract(c.spec, f"$.{whose}").in_(
            (node, f'"{node}"')
        )  # MariaDB returns it in quotes
        return bool(self._database.value(under_way.where(named)) >= most)

    def names(self, node: str) -> bool:
        """Tell whether a job that is not over has a party at that node."""
        return any(True for _ in self.under_way_with(node))

    def under_way_with(self, node: str) -> Iterator[str]:
        """Yield the ids of the jobs that are not over and have a party at that node."""
        if not node:
            return
        c = self._table.c
        word = (
            sa.func.instr(c.spec, dumps(node)) > 0
        )  # in the database: to load every job takes far longer
        query = sa.select(c.job_id, c.spec).where(c.status.in_(UNDER_WAY), word)
        for job_id, text in self._database.rows(query):
            if node in loads(JobSpec, text).nodes:
                yield str(job_id)

    def _load_statement(self) -> Prepared:
        """Select a record; state and spec are None where the version is the cached one."""
        c = self._table.c
        same = sa.and_(
            c.version == sa.bindparam("version"), c.created_at == sa.bindparam("created")
        )
        texts = [sa.case((same, None), else_=text).label(text.name) for text in (c.state, c.spec)]
        return Prepared(
            sa.select(c.version, c.created_at, *texts).where(c.job_id == sa.bindparam("job"))
        )

    def _loaded(self, job_id: str, before: "Entry[R] | None" = None) -> "Entry[R]":
        found = self._load(job_id, before)
        if found is None:
            raise job_unknown(job_id)
        return found

    def _load(self, job_id: str, before: "Entry[R] | None" = None) -> "Entry[R] | None":
        """Return the stored record. A cached one is read again only if another process may have changed it.

        ``before``: an earlier version, whose job is not read again: it never changes.
        """
        cached, drops = self._cache.get(job_id), self._cache.drops
        if cached is not None and self._alone:
            return cached
        version, created = (cached.version, cached.created_at) if cached else (None, None)
        row = self._database.first(
            self._load_query,
            job=job_id,
            version=version,
            created=created,
        )
        if row is None:
            if cached is not None:
                self._cache.drop(job_id)
            return None
        if row.state is None and cached is not None:
            return cached
        known = cached or before
        try:
            unchanged = known and known.created_at == row.created_at
            spec = known.value.spec if known and unchanged else loads(JobSpec, row.spec)
            value = loads(self._cls, row.state, spec=spec)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            text = f"the record of job {job_id} cannot be read ({type(error).__name__}: {error})"
            raise Unreadable(text) from error
        entry = Entry(row.version, row.created_at, value, len(row.spec), len(row.state))
        self._cache.put(job_id, entry, drops)
        return entry

    def _save(self, made_of: "Entry[R]", new: R) -> R | None:
        """Write a record made of a stored one. Returns it as it is kept, None where another came first."""
        old, version, drops = made_of.value, made_of.version + 1, self._cache.drops
        kept = replace(new, notes=())
        columns, written = self._columns(kept, made_of.written)
        seen = {
            "seen_id": old.id,
            "seen_version": made_of.version,
            "seen_created": made_of.created_at,
        }
        with self._database.write() as connection:
            done = self._change.run(
                connection,
                {
                    **seen,
                    "version": version,
                    **columns,
                },
            )
            if done.rowcount != 1:
                self._cache.drop(
                    old.id
                )  # or what was changed by hand would be read from it for ever
                return None
            self._rows.write(connection, old, kept)
            if self._also is not None:
                self._also(connection, old, new)
            add_notes(connection, old.id, self._side, new.notes)
        sizes = made_of.spec, len(columns["state"])
        self._cache.put(old.id, Entry(version, made_of.created_at, kept, *sizes, written), drops)
        log_notes(self._side, new.spec, new.notes)
        return kept

    def _columns(self, value: R, before: "_Written | None") -> tuple[dict[str, Any], "_Written"]:
        due = self._next_due(value)
        outcome = (
            value.outcome if isinstance(value, Job) else (value.ending and value.ending.outcome)
        )
        state, parts = record(value, self._rows.field, before.parts if before else {})
        columns = {
            "status": str(value.status),
            "outcome": str(outcome) if outcome else None,
            "due_at": None if due is None else max(due.timestamp(), 0.0) if due.year > 1 else 0.0,
            "state": state,
        }
        return columns, _Written(due, parts)


@dataclass(frozen=True)
class Rows(Generic[R]):
    """The table that repeats a part of a record, so that a task or a run is found by its id."""

    table: sa.Table
    field: str
    """of the record, with its tasks or runs"""
    rows: Callable[[str, Any], Iterator[dict[str, Any]]]

    def write(
        self,
        connection: sa.Connection,
        old: R | None,
        new: R,
    ) -> None:
        """Write the rows of the tasks or runs that changed; the others are the very same values as before."""
        found = (getattr(value, self.field) if value is not None else () for value in (old, new))
        before, after = (
            list(parts.values() if isinstance(parts, Mapping) else parts) for parts in found
        )
        known, left = set(map(id, before)), set(map(id, after))
        key = self.table.primary_key.columns[0]
        rows = {
            row[key.name]: row
            for part in after
            if id(part) not in known
            for row in self.rows(new.id, part)
        }
        if not rows:
            return
        gone = {
            row[key.name]: row
            for part in before
            if id(part) not in left
            for row in self.rows(new.id, part)
        }
        insert, update = _statements(self.table)
        if added := [row for at, row in rows.items() if at not in gone]:
            insert.run(connection, added)
        if changed := [{**row, "at": at} for at, row in rows.items() if gone.get(at, row) != row]:
            update.run(connection, changed)


@cache
def _statements(table: sa.Table) -> tuple[Prepared, Prepared]:
    """Return how rows are added, and changed where their key is ``at``."""
    names, change = (
        table.c.keys(),
        table.update().where(table.primary_key.columns[0] == sa.bindparam("at")),
    )
    return Prepared(table.insert(), names), Prepared(change, names)


def task_rows(job_id: str, task: Task) -> Iterator[dict[str, Any]]:
    """Yield the row of a task, and those of its earlier attempts, which had other ids."""
    common = {"job_id": job_id, "name": task.name}
    yield {
        "task_id": task.task_id,
        "status": str(task.status),
        "attempt": task.attempt,
        **common,
    }
    for past in task.attempts:
        yield {
            "task_id": past.task_id,
            "status": str(TaskStatus.FAILED),
            "attempt": past.number,
            **common,
        }


def run_rows(job_id: str, run: Run) -> Iterator[dict[str, Any]]:
    """Yield the row by which a run is found: by its id, its name, its token, its task."""
    yield {
        "run_id": run.run_id,
        "name": run.name,
        "token": run.token,
        "job_id": job_id,
        "task_id": run.task_id,
        "role": run.party.role,
        "idx": run.party.index,
        "attempt": run.attempt,
        "status": str(run.status),
        "owner": run.owner,
    }


@dataclass(frozen=True)
class _Written:
    """What the write of a record came to, for the next one."""

    due: datetime | None
    """when there is something to do next"""
    parts: Mapping[int, str]
    """texts of its tasks or runs, by their identity"""


@dataclass(frozen=True)
class Entry(Generic[R]):
    """A cached record and its version."""

    version: int
    created_at: float
    """a record that was deleted and made anew begins with version 1 again"""
    value: R
    spec: int
    """characters of its stored job"""
    state: int
    """characters of all else"""
    written: _Written | None = None
    """where this process wrote it"""


class Cache(Generic[R]):
    """The records used last; the database says whether one is current."""

    def __init__(self, capacity: int = 2000, characters: int = 64_000_000) -> None:
        """``characters``: of the stored texts of all of them."""
        self._capacity = capacity
        self._characters = characters
        self._held = 0
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, Entry[R]] = OrderedDict()
        self.drops = 0
        """how often a record was forgotten"""

    def get(self, job_id: str) -> Entry[R] | None:
        """Return a cached record, and keep it for longer."""
        with self._lock:
            if job_id in self._entries:
                self._entries.move_to_end(job_id)
            return self._entries.get(job_id)

    def put(
        self,
        job_id: str,
        entry: Entry[R],
        drops: int,
    ) -> None:
        """Keep a record; an older version never takes a newer one's place.

        ``drops`` is from before it was read or written: if records were forgotten since, it may have been deleted.
        """
        with self._lock:
            known = self._pop(job_id) or entry
            if self.drops != drops:
                return
            newer = known.created_at == entry.created_at and known.version > entry.version
            self._entries[job_id] = kept = known if newer else entry
            self._held += kept.spec + kept.state
            while len(self._entries) > self._capacity or self._held > self._characters:
                self._pop(next(iter(self._entries)))

    def drop(self, job_id: str) -> None:
        """Forget a record."""
        with self._lock:
            self._pop(job_id)
            self.drops += 1

    def _pop(self, job_id: str) -> Entry[R] | None:
        entry = self._entries.pop(job_id, None)
        self._held -= entry.spec + entry.state if entry else 0
        return entry
