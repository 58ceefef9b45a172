"""Loads and changes the two records of a job in short transactions.

One verb changes state: `Records.update` loads the value, calls the pure change, and writes it under
``WHERE version = :seen``; on a lost race it loads and calls again, which is safe because the change is pure.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar

import sqlalchemy as sa

from gateway.domain.executing import execute
from gateway.domain.executing.timing import Timing as RunTiming
from gateway.domain.job import Job, Task
from gateway.domain.local_job import LocalJob, Run
from gateway.domain.model import JobSpec, Note
from gateway.domain.scheduling import schedule
from gateway.domain.scheduling.timing import Timing
from gateway.domain.states import RunStatus, TaskStatus
from gateway.errors import DatabaseAway, NotFound, Unreadable
from gateway.store import statements, tables
from gateway.store.announcing import announce
from gateway.store.mapping import dumps, loads, record, to_plain
from gateway.store.publishing import publish
from gateway.store.seen import Entry, Seen
from gateway.store.statements import JobStatements, RowStatements

R = TypeVar("R", Job, LocalJob)
X = TypeVar("X")

_open = threading.local()


def outside_transaction() -> None:
    """Refuse to go on while this thread holds a transaction: nothing slow may happen inside one."""
    if getattr(_open, "depth", 0):
        raise RuntimeError("a call to a peer or an engine inside a database transaction")


def connect(url: str, *, connections: int = 6) -> sa.Engine:
    """Open a database. At most ``connections`` threads are in it at once; more only cost time."""
    if url.startswith("sqlite"):
        engine = sa.create_engine(url, pool_size=connections, max_overflow=0, pool_timeout=60)
        sa.event.listen(engine, "connect", _sqlite_connect)
        return engine
    engine = sa.create_engine(
        url, pool_size=connections, max_overflow=0, pool_timeout=60, pool_recycle=600, pool_pre_ping=True
    )
    sa.event.listen(engine, "connect", _mysql_connect)
    return engine


def _sqlite_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # we begin ourselves: the driver would begin too late for a write lock
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=10000", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _mysql_connect(connection: Any, _record: Any) -> None:
    connection.autocommit(True)  # we begin ourselves: to switch it for each read takes four requests to the server
    connection.rollback = partial(_rolled_back, connection, connection.rollback)


def _rolled_back(connection: Any, roll_back: Callable[[], None]) -> None:
    """Roll back what was begun; after a read there is nothing, and to say so would be one more request."""
    if connection.server_status & _IN_TRANSACTION:
        roll_back()


_IN_TRANSACTION = 1
"""the bit of the server's status that says so"""


@contextmanager
def begun(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a transaction that on SQLite holds the write lock from its first moment.

    Said here and not in a listener of the engine's: with one, each statement is announced, reads too, which takes
    twice as long. What is read outside of this stands for itself, statement by statement.
    """
    with engine.begin() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if engine.dialect.name == "sqlite" else "BEGIN")
        yield connection


@contextmanager
def _named() -> Iterator[None]:
    """Tell a database that is away from a statement that is wrong. Raises `DatabaseAway`."""
    try:
        yield
    except (sa.exc.OperationalError, sa.exc.InterfaceError) as error:
        if error.connection_invalidated or getattr(error.orig, "args", ())[:1] in _AWAY:
            raise DatabaseAway(f"the database does not answer: {error.orig}; try again") from error
        raise
    except sa.exc.TimeoutError as error:
        raise DatabaseAway("every connection to the database is in use; try again") from error


_AWAY = ((1053,), (1927,), (2002,), (2003,), (2006,), (2013,), (0,))
"""the server's and the driver's codes for a server that stops, is not there, or went away"""


def repeating(work: Callable[[], X], times: int = 8) -> X:
    """Do one short transaction again when the database chose it to end a deadlock, or another won a race."""
    for left in reversed(range(times)):
        try:
            return work()
        except (sa.exc.OperationalError, sa.exc.IntegrityError) as error:
            lost = isinstance(error, sa.exc.IntegrityError) or getattr(error.orig, "args", ())[:1] in (
                (1213,),
                (1020,),
            )
            if not left or not lost:
                raise
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class TimelineEntry:
    """One written line of a job's timeline."""

    at: datetime
    side: str
    event: str
    by: str
    detail: Mapping[str, Any]


@dataclass(frozen=True)
class LaunchedRun:
    """A run whose container was started and is not known to have ended."""

    name: str
    job_id: str
    task_id: str
    role: str
    index: int
    attempt: int
    status: str


@dataclass(frozen=True)
class Listed:
    """A job as lists show it."""

    job_id: str
    flow_id: str
    status: str
    outcome: str | None
    created_at: datetime


class Store:
    """All that is kept. Every method is one short transaction."""

    def __init__(self, engine: sa.Engine, timing: Timing = Timing(), run_timing: RunTiming = RunTiming()) -> None:
        """The timings are those by which jobs are advanced: when each is due next is stored with it."""
        self._engine = engine
        self._writer: Any = threading.Lock() if engine.dialect.name == "sqlite" else _NoLock()
        self.jobs = Records[Job](
            self,
            tables.job,
            "scheduler",
            Job,
            partial(schedule.next_due, timing=timing),
            _tasks_of,
            _task_rows,
            tables.task,
        )
        self.local_jobs = Records[LocalJob](
            self,
            tables.local_job,
            "participant",
            LocalJob,
            partial(execute.next_due, timing=run_timing),
            _runs_of,
            _run_rows,
            tables.run,
            publish,
        )

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        with _named(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        _open.depth = getattr(_open, "depth", 0) + 1
        try:
            with _named(), self._writer, begun(self._engine) as connection:
                yield connection
        finally:
            _open.depth -= 1

    def in_use(self, node: str) -> bool:
        """Tell whether a job with a party at that node is under way here."""
        return self.jobs.names(node) or self.local_jobs.names(node)

    def close(self) -> None:
        self._engine.dispose()

    def installation(self) -> str:
        """Return the id that was made with this database."""
        with self.write() as connection:
            found = connection.execute(sa.select(tables.installation.c.id)).scalar()
            if found:
                return str(found)
            made = str(uuid.uuid4())
            connection.execute(tables.installation.insert().values(id=made, created_at=time.time()))
            return made

    def job_of_task(self, task_id: str) -> str | None:
        """Return the job that this node schedules and the task belongs to."""
        with self.read() as connection:
            return connection.execute(statements.JOB_OF_TASK, {"key": task_id}).scalar()

    def local_job_of_task(self, task_id: str) -> str | None:
        """Return the job that this node takes part in and the task's runs belong to."""
        with self.read() as connection:
            return connection.execute(statements.LOCAL_JOB_OF_TASK, {"key": task_id}).scalar()

    def job_of_run(self, run_id: str) -> str | None:
        with self.read() as connection:
            return connection.execute(statements.JOB_OF_RUN, {"key": run_id}).scalar()

    def name_of_token(self, token: str) -> str | None:
        """Return the name of the run that has this token on the channel."""
        with self.read() as connection:
            return connection.execute(statements.NAME_OF_TOKEN, {"key": token}).scalar()

    def job_of_container(self, name: str) -> tuple[str, str] | None:
        """Return (job id, run id) of the run whose container has this name."""
        with self.read() as connection:
            row = connection.execute(statements.JOB_OF_CONTAINER, {"key": name}).first()
        return (row.job_id, row.run_id) if row else None

    def launched(self, owner: str) -> list[LaunchedRun]:
        """Return the runs of one owner, or of nobody in particular, that should have a container just now."""
        t = tables.run
        query = sa.select(t.c.name, t.c.job_id, t.c.task_id, t.c.role, t.c.idx, t.c.attempt, t.c.status).where(
            t.c.status.in_((RunStatus.RUNNING, RunStatus.STOPPING)), t.c.owner.in_((owner, ""))
        )
        with self.read() as connection:
            return [LaunchedRun(*row) for row in connection.execute(query)]

    def timeline(self, job_id: str) -> list[TimelineEntry]:
        """Return what happened to a job, oldest first."""
        t = tables.timeline
        with self.read() as connection:
            rows = connection.execute(sa.select(t).where(t.c.job_id == job_id).order_by(t.c.id)).all()
        return [TimelineEntry(as_time(r.at), r.side, r.event, r.actor, loads(dict, r.detail)) for r in rows]

    def note(self, job_id: str, side: str, notes: Sequence[Note]) -> None:
        """Write lines into the timeline of a job of which this node need not have a record."""
        if notes:
            with self.write() as connection:
                connection.execute(statements.ADD_NOTES, [_note_row(job_id, side, note) for note in notes])

    def add_submission(self, job_id: str, flow_id: str, scheduler: str, at: datetime) -> None:
        with self.write() as connection:
            if not connection.execute(
                sa.select(tables.submission.c.job_id).where(tables.submission.c.job_id == job_id)
            ).scalar():
                connection.execute(
                    tables.submission.insert().values(
                        job_id=job_id, flow_id=flow_id, scheduler=scheduler, created_at=at.timestamp()
                    )
                )

    def drop_submission(self, job_id: str) -> None:
        """Forget a job that the scheduling node did not take."""
        with self.write() as connection:
            connection.execute(tables.submission.delete().where(tables.submission.c.job_id == job_id))

    def submissions(self, flow_id: str | None = None) -> list[tuple[str, str]]:
        """Return (job id, scheduling node) of the jobs handed in here, newest first."""
        t = tables.submission
        query = sa.select(t.c.job_id, t.c.scheduler).order_by(t.c.created_at.desc())
        if flow_id is not None:
            query = query.where(t.c.flow_id == flow_id)
        with self.read() as connection:
            return [(r.job_id, r.scheduler) for r in connection.execute(query)]

    def scheduler_of(self, job_id: str) -> str | None:
        t = tables.submission
        with self.read() as connection:
            return connection.execute(sa.select(t.c.scheduler).where(t.c.job_id == job_id)).scalar()


class Records(Generic[R]):
    """One of the two records per job."""

    def __init__(
        self,
        store: Store,
        table: sa.Table,
        side: str,
        cls: type[R],
        next_due: Callable[..., datetime | None],
        parts: Callable[[R], Iterable[Any]],
        rows: Callable[[str, Any], Iterator[dict[str, Any]]],
        row_table: sa.Table,
        also: Callable[[sa.Connection, R, R], None] | None = None,
    ) -> None:
        self._store = store
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
            with self._store.write() as connection:
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
        return self.decide(job_id, lambda value: (change(value), None))[0]

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
        with self._store.read() as connection:
            asked = {"now": now.timestamp(), "most": limit}
            return list(connection.execute(self._statements.due, asked).scalars())

    def list(self, flow_id: str | None = None, limit: int | None = None) -> list[Listed]:
        """Return the jobs, newest first."""
        t = self._table
        query = sa.select(t.c.job_id, t.c.flow_id, t.c.status, t.c.outcome, t.c.created_at)
        query = query.order_by(t.c.created_at.desc()).limit(limit)
        if flow_id is not None:
            query = query.where(t.c.flow_id == flow_id)
        with self._store.read() as connection:
            return [
                Listed(r.job_id, r.flow_id, r.status, r.outcome, as_time(r.created_at))
                for r in connection.execute(query)
            ]

    def unfinished(self) -> Iterable[str]:
        """Return the jobs that news or time can still change."""
        with self._store.read() as connection:
            return list(connection.execute(self._statements.unfinished).scalars())

    def names(self, node: str) -> bool:
        """Tell whether a job that is not over has a party at that node."""
        with self._store.read() as connection:
            specs = connection.execute(self._statements.under_way).scalars()
            return any(node in _spec(text).nodes for text in specs)

    def _load(self, job_id: str) -> Entry[R] | None:
        """Return a record as it is stored. What is known here is read only if it changed."""
        known = self._seen.get(job_id)
        asked = {
            "job": job_id,
            "version": known.version if known else None,
            "created": known.created_at if known else None,
        }
        with self._store.read() as connection:
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
        with self._store.write() as connection:
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
        notes = [_note_row(value.id, self._side, note) for note in value.notes]
        connection.execute(statements.ADD_NOTES, notes)


def _note_row(job_id: str, side: str, note: Note) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "side": side,
        "at": note.at.timestamp() if note.at.year > 1 else 0.0,
        "event": note.event[:255],
        "actor": note.by[:255],
        "detail": dumps(note.detail),
    }


@lru_cache(maxsize=4096)
def _spec(text: str) -> JobSpec:
    return loads(JobSpec, text)


def _tasks_of(job: Job) -> Iterable[Task]:
    return job.tasks.values()


def _task_rows(job_id: str, task: Task) -> Iterator[dict[str, Any]]:
    """Yield the row of a task, and those of its earlier attempts, which had other ids."""
    number, status = task.attempt, str(task.status)
    yield {"task_id": task.task_id, "job_id": job_id, "name": task.name, "status": status, "attempt": number}
    for past in task.attempts:
        status = str(TaskStatus.FAILED)
        yield {
            "task_id": past.task_id,
            "job_id": job_id,
            "name": task.name,
            "status": status,
            "attempt": past.number,
        }


def _runs_of(local: LocalJob) -> Iterable[Run]:
    return local.runs


def _run_rows(job_id: str, run: Run) -> Iterator[dict[str, Any]]:
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


def as_time(seconds: float) -> datetime:
    """Return the time that a column holds as seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC)


class _NoLock:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


__all__ = [
    "LaunchedRun",
    "Listed",
    "Records",
    "Store",
    "TimelineEntry",
    "as_time",
    "connect",
    "outside_transaction",
    "to_plain",
]
