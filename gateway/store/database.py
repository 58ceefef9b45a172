"""Access to the database: connections, short transactions, migrations, causes of failures."""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from gateway.domain.problems import Problem
from gateway.errors import DatabaseAway, GatewayError, Invalid
from gateway.store import schema
from gateway.store.dialects import (
    SQLITE,
    advice_for,
    connect,
    is_away,
    is_conflict,
    is_of_postgresql,
    migration,
)

X = TypeVar("X")
log = logging.getLogger(__name__)

_CONFLICT_RETRIES = 7  # retries of a transaction before its error is raised
# Errors of opening a database. Wrong options in the URL raise TypeError or ValueError; a lock of
# migrations that is not released raises TimeoutError.
_OPEN_ERRORS = (sa.exc.SQLAlchemyError, sqlite3.Error, TimeoutError, TypeError, ValueError)

_MIGRATIONS = Path(__file__).with_name("migrations")
# The table in which Alembic stores the current revision of the schema.
_VERSION = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column(
        "version_num",
        sa.String(32),
        primary_key=True,
    ),
)

_this_thread = threading.local()  # ``transactions``: how many of them this thread holds


# ------------------------------------------------------------ statements


@dataclass(frozen=True)
class _CompiledStatement:
    """A statement as one dialect's driver takes it."""

    text: str
    parameters: Sequence[tuple[str, Any]]  # name and default, in the order of the text
    positional: bool  # whether the driver takes a tuple of values instead of names

    def bind(
        self,
        values: Mapping[str, Any],
    ) -> Any:
        """Return named values in the form of the driver."""
        if self.positional:
            # A list is faster than a generator, and this runs for each statement.
            return tuple([values.get(name, default) for name, default in self.parameters])
        return {name: values.get(name, default) for name, default in self.parameters}


class Prepared:
    """A statement that is compiled once per dialect, which halves the cost of running it.

    Values are passed to the driver unchanged, so they must be texts, numbers or None.
    """

    def __init__(
        self,
        statement: sa.ClauseElement,
        columns: Iterable[str] | None = None,
    ) -> None:
        """``columns`` are those that an INSERT or UPDATE sets; None for any other statement."""
        self._statement = statement
        self._columns = None if columns is None else list(columns)
        self._by_dialect: dict[str, _CompiledStatement] = {}

    def run(
        self, connection: sa.Connection, values: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> sa.CursorResult[Any]:
        """Run the statement with named values, or once for each row of values."""
        compiled = self._by_dialect.get(connection.dialect.name)
        if compiled is None:
            compiled = self._compile(connection.dialect)
            self._by_dialect[connection.dialect.name] = compiled
        if isinstance(values, Mapping):
            return connection.exec_driver_sql(
                compiled.text,
                compiled.bind(values),
            )
        rows = [compiled.bind(row) for row in values]
        return connection.exec_driver_sql(compiled.text, rows)

    def _compile(self, dialect: sa.Dialect) -> _CompiledStatement:
        """Compile the statement for a dialect."""
        compiled: Any = self._statement.compile(
            dialect=dialect,
            column_keys=self._columns,
        )
        # `positiontup` has the order of the text; it is None for a driver that takes names.
        names = compiled.positiontup or compiled.params
        parameters = [(name, compiled.params[name]) for name in names]
        return _CompiledStatement(compiled.string, parameters, dialect.positional)


Query = sa.Executable | Prepared


def _run(
    connection: sa.Connection,
    query: Query,
    parameters: Mapping[str, Any],
) -> Any:
    """Run a query on a connection, prepared or not."""
    if isinstance(query, Prepared):
        return query.run(connection, parameters)
    return connection.execute(query, parameters)


# ------------------------------------------------------------ reads and transactions


class Database:
    """Reads and short transactions on one database."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        # SQLite permits one writer at a time: the threads of this process wait for this lock.
        self._writer: Any = nullcontext()
        self._begin = "BEGIN"
        if engine.dialect.name == SQLITE:
            self._writer = threading.Lock()
            self._begin = "BEGIN IMMEDIATE"  # takes the write lock

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Yield a connection for reading. Raises `DatabaseAway`."""
        with _raising_away(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Yield a connection in a transaction, which an exception rolls back.

        Raises `DatabaseAway`.
        """
        _this_thread.transactions = _open_transactions() + 1
        try:
            with _raising_away(), self._writer, self._engine.connect() as connection:
                connection.exec_driver_sql(self._begin)
                yield connection
                connection.commit()
        finally:
            _this_thread.transactions -= 1

    def rows(
        self,
        query: Query,
        **parameters: Any,
    ) -> list[Any]:
        """Return the rows of a query."""
        with self.read() as connection:
            return list(_run(connection, query, parameters).all())

    def first(
        self,
        query: Query,
        **parameters: Any,
    ) -> Any:
        """Return the first row of a query, or None."""
        with self.read() as connection:
            return _run(connection, query, parameters).first()

    def values(
        self,
        query: Query,
        **parameters: Any,
    ) -> list[Any]:
        """Return the first column of each row of a query."""
        with self.read() as connection:
            return list(_run(connection, query, parameters).scalars())

    def value(
        self,
        query: Query,
        **parameters: Any,
    ) -> Any:
        """Return the first column of the first row, or None."""
        with self.read() as connection:
            return _run(connection, query, parameters).scalar()

    def text(
        self,
        query: Query,
        **parameters: Any,
    ) -> str | None:
        """Return the first column, a text, of the first row, or None."""
        text: str | None = self.value(query, **parameters)
        return text

    def execute(
        self,
        statement: sa.UpdateBase | Prepared,
        **parameters: Any,
    ) -> int:
        """Run one statement, which commits by itself; return the number of changed rows."""
        with _raising_away(), self._writer, self._engine.connect() as connection:
            return int(_run(connection, statement, parameters).rowcount)

    def insert(
        self,
        table: sa.Table,
        row: Mapping[str, Any],
    ) -> None:
        """Insert a row. Raises `IntegrityError` if its key is taken."""
        self.execute(table.insert().values(**row))

    def put(
        self,
        table: sa.Table,
        key: Mapping[str, Any],
        values: Mapping[str, Any],
    ) -> None:
        """Update the row with this key, or insert the row, in a transaction of its own."""

        def write() -> None:
            with self.write() as connection:
                upsert(connection, table, key, values)

        repeat_on_conflict(write)

    def close(self) -> None:
        """Close the connections."""
        # Threads that still use a connection return it to this pool afterwards.
        sa.event.listen(self._engine.pool, "checkin", _close_returned)
        self._engine.dispose()


class InDatabase:
    """Base class of the repositories."""

    def __init__(self, database: Database) -> None:
        self._database = database


def _close_returned(_: object, record: sa.pool.ConnectionPoolEntry) -> None:
    """Close a connection that is returned after its database was closed."""
    record.invalidate()


def require_no_transaction() -> None:
    """Raise `RuntimeError` if this thread holds a transaction.

    Called before slow calls to peers, engines and receivers of events: transactions must be short.
    """
    if _open_transactions():
        raise RuntimeError("a call to a peer or an engine inside a database transaction")


def _open_transactions() -> int:
    """Return the number of transactions that this thread holds."""
    count: int = getattr(_this_thread, "transactions", 0)
    return count


def upsert(
    connection: sa.Connection,
    table: sa.Table,
    key: Mapping[str, Any],
    values: Mapping[str, Any],
) -> None:
    """Update the row with this key, or insert the row.

    Raises `IntegrityError` if another transaction inserts the row first: see `repeat_on_conflict`.
    """
    has_key = [table.c[name] == value for name, value in key.items()]
    updated = connection.execute(table.update().where(*has_key).values(**values))
    if not updated.rowcount:  # a row that has these values already counts as updated
        connection.execute(table.insert().values(**key, **values))


def increase(
    connection: sa.Connection,
    table: sa.Table,
    key: Mapping[str, Any],
    amounts: Mapping[str, int],
) -> None:
    """Add amounts to columns of the row with this key, or insert the row with the amounts.

    No amount is lost if several transactions do so at the same time. Raises as `upsert` does.
    """
    has_key = [table.c[name] == value for name, value in key.items()]
    sums = {name: table.c[name] + amount for name, amount in amounts.items()}
    updated = connection.execute(table.update().where(*has_key).values(**sums))
    if not updated.rowcount:
        connection.execute(table.insert().values(**key, **amounts))


def repeat_on_conflict(
    work: Callable[[], X],
    retries: int = _CONFLICT_RETRIES,
) -> X:
    """Run a short transaction; repeat it after a deadlock or if another transaction wrote first.

    ``work`` is called at most ``retries + 1`` times; the error of the last call is raised.
    """
    for _ in range(retries):
        try:
            return work()
        except sa.exc.IntegrityError:  # perhaps another transaction has inserted the same key
            continue
        except sa.exc.OperationalError as error:
            if not is_conflict(error):
                raise
    return work()  # the last attempt, whose error is raised


# ------------------------------------------------------------ failures


@contextmanager
def _raising_away() -> Iterator[None]:
    """Turn the errors of a database that does not respond into `DatabaseAway`.

    Other errors, such as those of wrong statements, are raised unchanged.
    """
    try:
        yield
    except (sa.exc.OperationalError, sa.exc.InterfaceError) as error:
        if is_away(error):
            cause = cause_of(error)
            raise DatabaseAway(f"the database does not answer: {cause}; try again") from error
        raise
    except sa.exc.TimeoutError as error:
        raise DatabaseAway("every connection to the database is in use; try again") from error


def cause_of(error: Exception) -> str:
    """Return the driver's message, with the number of the error at the end if it has one."""
    driver_error: Any = getattr(error, "orig", None) or error
    match driver_error.args:
        case (int() as number, str() as text):
            return f"{text} (error {number})"
    text = str(driver_error)
    if not is_of_postgresql(driver_error):
        return text
    summary, _, _ = text.partition("\n")  # lines with details and hints follow
    if driver_error.sqlstate:
        return f"{summary} (error {driver_error.sqlstate})"
    return summary


def next_step(error: GatewayError) -> str:
    """Return the advice for a database that cannot be used; the error's cause has the number."""
    advice = advice_for(error.__cause__)
    return advice or "start the database, or correct database.url"


def _unusable(
    error: Exception,
    url: sa.URL | None = None,
) -> Invalid:
    """Return the refusal of a database; it shows ``url``, if given, without the password."""
    reason = "DATABASE_UNUSABLE"
    if isinstance(error, SchemaTooNew):
        reason = "DATABASE_NEWER"
    address = None
    if url is not None:
        address = url.set(query={}).render_as_string(hide_password=True)
    why = cause_of(error)
    problem = Problem("database.url", f"leads to no usable database: {why}", address)
    return Invalid([problem], reason=reason)


# ------------------------------------------------------------ opening and migration


class SchemaRevisions(NamedTuple):
    """Revisions of the schema: names of migrations."""

    current: str | None  # the database's revision; None: it has no tables yet
    newest: str  # the revision of this version of the gateway

    @property
    def are_compatible(self) -> bool:
        """Whether this version can use the database without a migration."""
        return self.current == self.newest or self.is_newer

    @property
    def is_unknown(self) -> bool:
        """Whether the schema is none that this version makes or migrates."""
        return self.current is not None and self.current not in _revisions()

    @property
    def is_newer(self) -> bool:
        """Whether a newer version has migrated the database, and only added to it.

        The revisions of a hundred only add: 0026 to 0025, but not 0100 (ADR 84).
        """
        if self.current is None or not self.is_unknown:
            return False
        return self.newest < self.current and _hundred(self.current) == _hundred(self.newest)


class SchemaTooNew(ValueError):
    """A newer version has changed the database in a way that this version cannot use."""


def open_database(url: str) -> sa.Engine:
    """Connect to a database and migrate it to the newest schema.

    Raises `Invalid`, whose text has no password, and `DatabaseAway` if nothing responds at the
    address.
    """
    try:
        engine = connect(url)
    except (sa.exc.SQLAlchemyError, ValueError) as error:
        raise _unusable(error) from error
    try:
        with engine.connect():  # opens a connection, which shows errors of the address
            pass
        migrate(engine)
    except _OPEN_ERRORS as error:
        engine.dispose()
        if isinstance(error, sa.exc.OperationalError) and is_away(error):
            cause = cause_of(error)
            raise DatabaseAway(f"no database answers at database.url: {cause}") from error
        raise _unusable(error, engine.url) from error
    return engine


def schema_revisions(url: str) -> SchemaRevisions:
    """Return a database's revision and the newest one, without changing the database.

    Raises `Invalid`.
    """
    newest = newest_revision()
    file = url.removeprefix("sqlite:///")  # the same text as `url` for any other database
    if file != url and not Path(file).exists():  # connecting to SQLite would create the file
        return SchemaRevisions(None, newest)
    try:
        engine = connect(url)
        with engine.connect() as connection:
            current = _current_revision(connection)
    except _OPEN_ERRORS as error:
        raise _unusable(error, sa.make_url(url)) from error
    engine.dispose()
    return SchemaRevisions(current, newest)


def newest_revision() -> str:
    """Return the revision of this version's schema."""
    return _revisions()[-1]


def _revisions() -> list[str]:
    """Return the names of all revisions in order; each is the name of a file without its suffix."""
    return sorted(file.stem for file in (_MIGRATIONS / "versions").glob("[0-9]*.py"))


def _hundred(revision: str) -> str:
    """Return the hundred of a revision's number: "00" of ``0025_partner_volumes``."""
    return revision[:2]


def _current_revision(connection: sa.Connection) -> str | None:
    """Return a database's revision; None if it has no tables yet."""
    if not sa.inspect(connection).has_table(_VERSION.name):
        return None
    return connection.execute(sa.select(_VERSION.c.version_num)).scalar()


def migrate(engine: sa.Engine) -> None:
    """Create the tables or run the missing migrations, under a lock on the database."""
    if engine.dialect.name == SQLITE:
        with Database(engine).write() as connection:
            _upgrade(connection)
        return
    with engine.connect() as connection, migration(connection):
        _upgrade(connection)


def _upgrade(connection: sa.Connection) -> None:
    """Create the tables of an empty database, or run the missing revisions."""
    revisions = SchemaRevisions(_current_revision(connection), newest_revision())
    if revisions.is_newer:
        log.warning(
            "the schema %s is of a newer version; it is used as it is, upgrade this gateway too",
            revisions.current,
        )
    if revisions.are_compatible:
        return
    if revisions.current is None:
        _create_tables(connection)
        return
    _refuse_unknown(revisions)
    _run_migrations(connection)
    log.info("schema %s -> %s", *revisions)


def _refuse_unknown(revisions: SchemaRevisions) -> None:
    """Raise `ValueError` for a schema that this version can neither use nor migrate."""
    if not revisions.is_unknown:
        return
    openable = ", ".join(_revisions())
    text = f"its schema is {revisions.current}; this version opens {openable}"
    if revisions.current is not None and revisions.current > revisions.newest:
        raise SchemaTooNew(text)
    raise ValueError(text)


def _create_tables(connection: sa.Connection) -> None:
    """Create all tables in an empty database, with the single row of the resource pool."""
    if connection.dialect.name in ("mysql", "mariadb"):
        for table in schema.metadata.tables.values():
            table.dialect_kwargs.update(schema.EXACT)
    schema.metadata.create_all(
        connection,
        checkfirst=False,
    )
    pool_row = {
        "id": 1,
        "ignored": 0,
        "repaired": 0,
        "expired": 0,
    }
    connection.execute(schema.resource_pool.insert().values(**pool_row))
    _VERSION.create(connection)
    connection.execute(_VERSION.insert().values(version_num=newest_revision()))


def _run_migrations(connection: sa.Connection) -> None:
    """Migrate a database to the newest revision of the schema."""
    from alembic import command  # noqa: PLC0415 - 11 MB, needed only for a migration
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
