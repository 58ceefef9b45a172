"""Loads and changes the two records of a job in short transactions.

One verb changes state: `Records.update` loads the value, calls the pure change, and writes it under
``WHERE version = :seen``; on a lost race it loads and calls again, which is safe because the change is pure.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, Generic, Literal, TypeVar

import sqlalchemy as sa

from gateway.domain.job import Job
from gateway.domain.run import LocalJob
from gateway.domain.spec import JobSpec
from gateway.errors import NotFound, Unreadable
from gateway.origin import proven, with_proof
from gateway.store import statements
from gateway.store.announcing import announce
from gateway.store.database import Database, repeating
from gateway.store.rows import as_time, note_row
from gateway.store.seen import Entry, Seen
from gateway.store.serialization import dumps, loads, record
from gateway.store.statements import JobStatements, RowStatements

R = TypeVar("R", Job, LocalJob)
X = TypeVar("X")


@dataclass(frozen=True)
class Listed:
    """A job as lists show it."""

    job_id: str
    flow_id: str
    status: str
    outcome: str | None
    created_at: datetime


class Records(Generic[R]):
    """One of the two records per job."""

    def __init__(
        self,
        database: Database,
        table: sa.Table,
        side: str,
        cls: type[R],
        next_due: Callable[..., datetime | None],
        parts: Callable[[R], Iterable[Any]],
        rows: Callable[[str, Any], Iterator[dict[str, Any]]],
        row_table: sa.Table,
        also: Callable[[sa.Connection, R, R], None] | None = None,
    ) -> None:
        self._database = database
        self._table = table
        self._side = side
        self._cls: type[R] = cls
        self._next_due = next_due
        self._parts: Callable[[R], Iterable[Any]] = parts
        self._rows: Callable[[str, Any], Iterator[dict[str, Any]]] = rows
        self._also: Callable[[sa.Connection, R, R], None] | None = also
        self._statements = JobStatements(table)
        self._row_statements = RowStatements(row_table)
        self._seen: Seen[R] = Seen()

    def add(self, value: R, flow_id: str) -> bool:
        """Store a new record. Returns False, and stores nothing, when the id is there already."""
        value = replace(value, notes=tuple(map(proven, value.notes)))
        row = {
            "job_id": value.id,
            "flow_id": flow_id,
            "version": 1,
            "digest": value.digest,
            "spec": dumps(value.spec),
            "created_at": value.created_at.timestamp(),
            **self._columns(value),
        }
        try:
            with self._database.write() as connection:
                connection.execute(self._statements.add, row)
                self._write_rows(connection, None, value)
                self._write_notes(connection, value)
        except sa.exc.IntegrityError:
            if self.find(value.id) is None:
                raise
            return False
        announce(self._side, value.spec, value.notes)
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
        found = self._load(job_id)
        if found is None:
            raise NotFound(f"no job {job_id} here", reason="JOB_UNKNOWN")
        return found.value

    def update(self, job_id: str, change: Callable[[R], R]) -> R:
        """Change a record. Raises `NotFound` and whatever ``change`` raises; then nothing is changed."""
        proved = with_proof(change)
        return self.decide(job_id, lambda value: (proved(value), None))[0]

    def decide(self, job_id: str, change: Callable[[R], tuple[R, X]]) -> tuple[R, X]:
        """Change a record and return what the change decided beside it; it may be called more than once.

        What is known here is changed without asking for it: a write names the version that it was made of, so one
        made of an old version is lost. What would write nothing, or fails, is judged by what is stored.
        """
        known = self._seen.get(job_id)
        if known is not None:
            try:
                new, extra = change(known.value)
            except Exception:  # it may come of an old version; if not, it is raised below
                new = known.value
            if new is not known.value and (kept := repeating(partial(self._save, known, new))) is not None:
                return kept, extra
        while True:
            found = self._load(job_id)
            if found is None:
                raise NotFound(f"no job {job_id} here", reason="JOB_UNKNOWN")
            new, extra = change(found.value)
            if new is found.value:
                return new, extra
            if (kept := repeating(partial(self._save, found, new))) is not None:
                return kept, extra

    def due(self, now: datetime, limit: int = 1000) -> list[str]:
        """Return the jobs that have something to do by now, the longest overdue first."""
        with self._database.read() as connection:
            asked = {"now": now.timestamp(), "most": limit}
            return list(connection.execute(self._statements.due, asked).scalars())

    def list(
        self, flow_id: str | None = None, limit: int | None = None, status: str | None = None
    ) -> list[Listed]:
        """Return the jobs, newest first; with ``status`` those that are in it."""
        t = self._table
        query = sa.select(t.c.job_id, t.c.flow_id, t.c.status, t.c.outcome, t.c.created_at)
        query = query.order_by(t.c.created_at.desc()).limit(limit)
        if flow_id is not None:
            query = query.where(t.c.flow_id == flow_id)
        if status is not None:
            query = query.where(t.c.status == status)
        with self._database.read() as connection:
            return [
                Listed(r.job_id, r.flow_id, r.status, r.outcome, as_time(r.created_at))
                for r in connection.execute(query)
            ]

    def unfinished(self) -> Iterable[str]:
        """Return the jobs that news or time can still change."""
        with self._database.read() as connection:
            return list(connection.execute(self._statements.unfinished).scalars())

    def under_way_for(self, whose: Literal["initiator", "scheduler"], node: str, most: int) -> bool:
        """Tell whether so many jobs that have not ended have a node as their initiator or scheduling node."""
        c = self._table.c
        under_way = sa.select(sa.func.count()).where(c.status.in_(statements.UNDER_WAY))
        told = sa.func.json_extract(c.spec, f"$.{whose}")  # MariaDB returns it in quotes
        with self._database.read() as connection:
            if connection.execute(under_way).scalar_one() < most:
                return False
            return connection.execute(under_way.where(told.in_((node, f'"{node}"')))).scalar_one() >= most

    def names(self, node: str) -> bool:
        """Tell whether a job that is not over has a party at that node."""
        if not node:
            return False
        with self._database.read() as connection:
            specs = connection.execute(self._statements.under_way_naming, {"word": dumps(node)}).scalars()
            return any(node in _spec(text).nodes for text in specs)

    def _load(self, job_id: str) -> Entry[R] | None:
        """Return a record as it is stored. What is known here is read only if it changed."""
        known = self._seen.get(job_id)
        asked = {
            "job": job_id,
            "version": known.version if known else None,
            "created": known.created_at if known else None,
        }
        with self._database.read() as connection:
            row = connection.execute(self._statements.load, asked).first()
        if row is None:
            self._seen.drop(job_id)
            return None
        if row.state is None and known is not None:
            return known
        try:
            value = loads(self._cls, row.state, spec=_spec(row.spec))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            text = f"the record of job {job_id} cannot be read ({type(error).__name__}: {error})"
            raise Unreadable(text) from error
        entry = Entry(row.version, row.created_at, value, len(row.state))
        self._seen.put(job_id, entry)
        return entry

    def _save(self, made_of: Entry[R], new: R) -> R | None:
        """Write a record made of a stored one. Returns it as it is kept, None where another came first."""
        old, version = made_of.value, made_of.version + 1
        kept = replace(new, notes=())
        columns = self._columns(kept)
        written = {"job": old.id, "seen": made_of.version, "created": made_of.created_at, "new_version": version}
        written |= {f"new_{name}": column for name, column in columns.items()}
        with self._database.write() as connection:
            done = connection.execute(self._statements.save, written)
            if done.rowcount != 1:
                return None
            self._write_rows(connection, old, kept)
            if self._also is not None:
                self._also(connection, old, new)
            self._write_notes(connection, new)
        self._seen.put(old.id, Entry(version, made_of.created_at, kept, len(columns["state"])))
        announce(self._side, new.spec, new.notes)
        return kept

    def _columns(self, value: R) -> dict[str, Any]:
        due = self._next_due(value)
        outcome = value.outcome if isinstance(value, Job) else (value.ending and value.ending.outcome)
        return {
            "status": str(value.status),
            "outcome": str(outcome) if outcome else None,
            "due_at": None if due is None else max(due.timestamp(), 0.0) if due.year > 1 else 0.0,
            "state": record(value),
        }

    def _write_rows(self, connection: sa.Connection, old: R | None, new: R) -> None:
        """Write the rows of the tasks or runs that changed; the others are the very same values as before."""
        before, after = (list(self._parts(value)) if value is not None else [] for value in (old, new))
        known, left = set(map(id, before)), set(map(id, after))
        key = self._row_statements.key
        rows = {row[key]: row for part in after if id(part) not in known for row in self._rows(new.id, part)}
        if not rows:
            return
        gone = {row[key]: row for part in before if id(part) not in left for row in self._rows(new.id, part)}
        if added := [row for at, row in rows.items() if at not in gone]:
            connection.execute(self._row_statements.add, added)
        for at, row in rows.items():
            if gone.get(at, row) != row:
                connection.execute(self._row_statements.change, {"row_key": at, **row})

    def _write_notes(self, connection: sa.Connection, value: R) -> None:
        if not value.notes:
            return
        notes = [note_row(value.id, self._side, note) for note in value.notes]
        connection.execute(statements.ADD_NOTES, notes)


@lru_cache(maxsize=4096)
def _spec(text: str) -> JobSpec:
    return loads(JobSpec, text)
