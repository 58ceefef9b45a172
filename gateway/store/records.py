"""Loads and changes the two records of a job in short transactions.

One verb changes state: `Records.update` loads the value, calls the pure change, and writes it under
``WHERE version = :seen``; on a lost race it loads and calls again, which is safe because the change is pure.
"""

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, Generic, Literal, TypeVar

import sqlalchemy as sa
import structlog

from gateway.auth import proven, with_proof
from gateway.domain import models
from gateway.domain.job import Job
from gateway.domain.models import Kept, PartyModel
from gateway.domain.run import LocalJob
from gateway.domain.spec import JobSpec, Note
from gateway.errors import NotFound, Unreadable
from gateway.store import schema
from gateway.store.database import Database, repeating
from gateway.store.serialization import as_time, dumps, loads, note_row, record

# The statements that every step of every job makes, built once.
#
# Building a statement costs several times what the database takes to answer it.

OVER = ("FINISHED", "REJECTED")
UNDER_WAY = ("PENDING", "READY", "RUNNING")
"""asked for by name: what is over is the most, and "not over" would read all of it"""


class JobStatements:
    """Those of one of the two tables of jobs."""

    def __init__(self, table: sa.Table) -> None:
        c = table.c
        job = c.job_id == sa.bindparam("job")
        same = sa.and_(c.version == sa.bindparam("version"), c.created_at == sa.bindparam("created"))
        self.load = sa.select(
            c.version,
            c.created_at,
            sa.case((same, None), else_=c.state).label("state"),
            sa.case((same, None), else_=c.spec).label("spec"),
        ).where(job)
        """``version`` and ``created`` are what is known of it: the same is not read again"""
        self.save = (
            table.update()
            .where(job, c.version == sa.bindparam("seen"), c.created_at == sa.bindparam("created"))
            .values(
                {name: sa.bindparam(f"new_{name}") for name in ("version", "status", "outcome", "due_at", "state")}
            )
        )
        self.add = table.insert()
        self.due = (
            sa.select(c.job_id)
            .where(c.due_at <= sa.bindparam("now"))
            .order_by(c.due_at)
            .limit(sa.bindparam("most", type_=sa.Integer))
        )
        self.under_way_naming = sa.select(c.spec).where(
            c.status.in_(UNDER_WAY), sa.func.instr(c.spec, sa.bindparam("word", type_=sa.Text)) > 0
        )
        """the database looks for the word: to hand over every job would take a thousand times as long"""
        self.unfinished = sa.union(
            sa.select(c.job_id).where(c.status.in_(UNDER_WAY)), sa.select(c.job_id).where(c.due_at >= 0)
        )


class RowStatements:
    """Those of a table that repeats a part of a job's record."""

    def __init__(self, table: sa.Table) -> None:
        key = table.primary_key.columns[0]
        self.key = str(key.name)
        self.add = table.insert()
        self.change = (
            table.update()
            .where(key == sa.bindparam("row_key"))
            .values({c.name: sa.bindparam(c.name) for c in table.columns})
        )


def _by(column: str, table: sa.Table, *wanted: str) -> sa.Select[Any]:
    return sa.select(*(table.c[name] for name in wanted)).where(table.c[column] == sa.bindparam("key"))


ADD_NOTES = schema.timeline.insert()
JOB_OF_TASK = _by("task_id", schema.task, "job_id")
LOCAL_JOB_OF_TASK = _by("task_id", schema.run, "job_id").limit(1)
JOB_OF_RUN = _by("run_id", schema.run, "job_id")
RUN_OF_TOKEN = _by("token", schema.run, "job_id", "run_id")
JOB_OF_CONTAINER = _by("name", schema.run, "job_id", "run_id")
PROVIDER = _by("provider_key", schema.provider, "document")


def _last_revision(*conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    t = schema.provider_revision
    own = t.c.provider_key == sa.bindparam("key")
    return sa.select(t).where(own, *conditions).order_by(t.c.number.desc()).limit(1)


_REVISED = schema.provider_revision.c
REVISED = _last_revision().with_only_columns(_REVISED.number, _REVISED.at)
REVISION_THEN = _last_revision(_REVISED.at <= sa.bindparam("moment"))


# Says in the log what was written into the timelines: one line per note, under the job's trace id.
#
# A run's token is the container's credential; wherever a text shows one, asterisks stand in its place.

log = structlog.get_logger(__name__)

TOLD = (
    "task",
    "tasks",
    "task_id",
    "role",
    "status",
    "attempt",
    "outcome",
    "reason",
    "exit_code",
    "node",
    "message",
    "path",
    "code",
    "said",
    "seconds",
)
"""what of a note's detail a log line tells; the timeline has all of it"""
LONGEST_TEXT = 500
_TOKEN = re.compile(r"[0-9a-fA-F]{64,}|(?<![\w-])[0-9a-fA-F]{32}(?![\w-])")
"""both kinds of a run; ids of jobs, tasks and traces have a word before their digits"""


def announce(side: str, spec: JobSpec, notes: Iterable[Note]) -> None:
    """Log the notes of a job; whatever goes wrong with that is let go, for they are stored already."""
    for note in notes:
        try:
            told = {"job": spec.job_id, "side": side, "by": note.by, "trace_id": spec.trace_id}
            log.info(note.event, **_main(note.detail), **told)
        except Exception:  # a full disk or a closed stream must not undo what was decided
            return


def without_tokens(text: str) -> str:
    """Return the text with asterisks in place of whatever looks like a run's token."""
    return _TOKEN.sub("***", text)


def _main(detail: Mapping[str, Any]) -> dict[str, Any]:
    failure = detail.get("failure")
    fields = {**(failure if isinstance(failure, Mapping) else {}), **detail}
    return {name: _shown(fields[name]) for name in TOLD if fields.get(name) not in (None, "", ())}


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = without_tokens(", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…"


# Keeps records as they were last read or written here, so that an unchanged one is not read as text again.
#
# Only a memory aid: whoever uses an entry asks the database first whether its version is still the newest.

V = TypeVar("V")


@dataclass(frozen=True)
class Entry(Generic[V]):
    """A record and the version at which it was so; ``size`` is in characters of its text."""

    version: int
    created_at: float
    """a record that was deleted and made anew begins with version 1 again"""
    value: V
    size: int


class Seen(Generic[V]):
    """The records used last, up to so many characters of their texts."""

    def __init__(self, room: int = 64 * 1024**2) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, Entry[V]] = OrderedDict()
        self._used = 0

    def get(self, job_id: str) -> Entry[V] | None:
        """Return what is remembered, and remember it for longer; None: nothing."""
        with self._lock:
            entry = self._entries.get(job_id)
            if entry is not None:
                self._entries.move_to_end(job_id)
            return entry

    def put(self, job_id: str, entry: Entry[V]) -> None:
        """Keep a record; an older version never takes a newer one's place."""
        with self._lock:
            known = self._entries.get(job_id)
            if known is not None and known.created_at == entry.created_at and known.version > entry.version:
                return
            self._forget(job_id)
            self._entries[job_id] = entry
            self._used += entry.size
            while self._used > self._room and len(self._entries) > 1:
                self._forget(next(iter(self._entries)))

    def drop(self, job_id: str) -> None:
        """Forget a record."""
        with self._lock:
            self._forget(job_id)

    def _forget(self, job_id: str) -> None:
        entry = self._entries.pop(job_id, None)
        if entry is not None:
            self._used -= entry.size


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
        under_way = sa.select(sa.func.count()).where(c.status.in_(UNDER_WAY))
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
        connection.execute(ADD_NOTES, notes)


@lru_cache(maxsize=4096)
def _spec(text: str) -> JobSpec:
    return loads(JobSpec, text)


def publish(connection: sa.Connection, old: LocalJob | None, new: LocalJob) -> None:
    """Store what a job leaves, in the write that says it has succeeded; a version that is there stays as it is."""
    if not new.model_saved or (old is not None and old.model_saved):
        return
    t = schema.model
    for model in models.left_by(new):
        here = (
            one_version(model.model_id, model.version)
            & (t.c.role == model.party.role)
            & (t.c.idx == model.party.index)
        )
        if connection.execute(sa.select(t.c.job_id).where(here)).first() is None:
            connection.execute(t.insert().values(**row_of(Kept(model))))
        else:
            log.warning("the model was there before", job=new.id, model_id=model.model_id, version=model.version)


def one_version(model_id: str, version: str) -> sa.ColumnElement[bool]:
    """Return the condition for all parties' parts of one version of a model."""
    return (schema.model.c.model_id == model_id) & (schema.model.c.version == version)


def row_of(kept: Kept) -> dict[str, Any]:
    """Return a party's model as a row; one whose time is not known counts as made now."""
    model = kept.model
    return {
        "model_id": model.model_id,
        "version": model.version,
        "role": model.party.role,
        "idx": model.party.index,
        "job_id": model.job_id,
        "created_at": model.created_at.timestamp() if model.created_at.year > 1 else time.time(),
        "deployed_at": kept.deployed_at,
        "granted": dumps(list(kept.granted)),
        "document": dumps(model),
    }


def kept_of(row: Any) -> Kept:
    """Return a row as a party's model."""
    return Kept(
        loads(PartyModel, row.document),
        row.deployed_at,
        tuple(loads(list, row.granted)),
    )
