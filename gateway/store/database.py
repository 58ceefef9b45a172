"""The way into the database: connections, reads, short transactions, and which failures are whose."""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from gateway.domain.problems import Problem
from gateway.errors import DatabaseAway, GatewayError, Invalid, TooLarge
from gateway.store import schema

X = TypeVar("X")
log = logging.getLogger(__name__)

_open = threading.local()


def outside_transaction() -> None:
    """Refuse to go on while this thread holds a transaction: nothing slow may happen inside one."""
    if getattr(_open, "depth", 0):
        raise RuntimeError("a call to a peer or an engine inside a database transaction")


def connect(url: str) -> sa.Engine:
    """Open a database. At most six threads use it at the same time; more only cost time."""
    pool: dict[str, Any] = {
        "pool_size": 6,
        "max_overflow": 0,
        "pool_timeout": 60,
    }
    if url.startswith("sqlite"):
        engine = sa.create_engine(url, **pool)
        sa.event.listen(engine, "connect", _sqlite_connect)
    else:
        engine = sa.create_engine(
            url,
            **pool,
            pool_recycle=600,
            pool_pre_ping=True,
        )
        sa.event.listen(engine, "connect", _mysql_connect)
    return engine


def _sqlite_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = (
        None  # we begin ourselves: the driver would begin too late for a write lock
    )
    cursor = connection.cursor()
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "busy_timeout=10000",
        "foreign_keys=ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _mysql_connect(connection: Any, _record: Any) -> None:
    connection.autocommit(
        True
    )  # we begin ourselves: to switch it for each read takes four requests to the server
    connection.rollback = partial(_rolled_back, connection, connection.rollback)
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        connection.query = partial(_within, int(cursor.fetchone()[0]), connection.query)


def _within(
    most: int,
    query: Callable[..., int],
    text: str | bytes,
    **options: Any,
) -> int:
    """Send a statement that is not too large: the server would close the connection, as if it went away."""
    if 4 * len(text) >= most:
        size = len(text.encode() if isinstance(text, str) else text)
        if size >= most:
            raise TooLarge(
                f"it has {size} bytes to be stored; max_allowed_packet of the database is {most}"
            )
    return query(text, **options)


def _rolled_back(connection: Any, roll_back: Callable[[], None]) -> None:
    """Roll back what was begun; after a read there is nothing, and to say so would be one more request."""
    if connection.server_status & _IN_TRANSACTION:
        roll_back()


_IN_TRANSACTION = 1
"""the bit of the server's status that says so"""


class Prepared:
    """A statement whose text is made once; its values, texts and numbers, are as the driver has them.

    To run one costs half of what a statement of SQLAlchemy's does.
    """

    def __init__(self, made: sa.ClauseElement, columns: Iterable[str] | None = None) -> None:
        """``columns``: what an INSERT or UPDATE sets."""
        self._made = made
        self._columns = None if columns is None else list(columns)
        self._texts: dict[str, tuple[str, Callable[[Mapping[str, Any]], Any]]] = {}
        """by dialect; with what makes the driver's values of named ones"""

    def run(
        self, connection: sa.Connection, given: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> sa.CursorResult[Any]:
        """Run it with named values, or with each row of some."""
        text, bound = self._texts.get(connection.dialect.name) or self._text(connection.dialect)
        values = bound(given) if isinstance(given, Mapping) else list(map(bound, given))
        return connection.exec_driver_sql(text, values)

    def _text(self, dialect: sa.Dialect) -> tuple[str, Callable[[Mapping[str, Any]], Any]]:
        made: Any = self._made.compile(dialect=dialect, column_keys=self._columns)
        names = [(name, made.params[name]) for name in made.positiontup or made.params]

        def in_order(given: Mapping[str, Any]) -> tuple[Any, ...]:
            return tuple([given.get(*name) for name in names])

        def by_name(given: Mapping[str, Any]) -> dict[str, Any]:
            return {name: given.get(name, fixed) for name, fixed in names}

        found = self._texts[dialect.name] = made.string, in_order if dialect.positional else by_name
        return found


Query = sa.Executable | Prepared


def _run(
    connection: sa.Connection,
    query: Query,
    given: Mapping[str, Any],
) -> Any:
    return (
        query.run(connection, given)
        if isinstance(query, Prepared)
        else connection.execute(query, given)
    )


class Database:
    """Reads and short transactions on one database."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        sqlite = engine.dialect.name == "sqlite"
        self._writer: Any = threading.Lock() if sqlite else nullcontext()
        self._begin = (
            "BEGIN IMMEDIATE" if sqlite else "BEGIN"
        )  # the first holds the write lock from the beginning

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Give a connection for reading. Raises `DatabaseAway`."""
        with _named(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Give a connection in a transaction, which is undone where the block raises. Raises `DatabaseAway`."""
        _open.depth = getattr(_open, "depth", 0) + 1
        try:
            with _named(), self._writer, self._engine.connect() as connection:
                connection.exec_driver_sql(self._begin)
                yield connection
                connection.commit()
        finally:
            _open.depth -= 1

    def rows(self, query: Query, **parameters: Any) -> list[Any]:
        """Return the rows of a query."""
        with self.read() as connection:
            return list(_run(connection, query, parameters).all())

    def first(self, query: Query, **parameters: Any) -> Any:
        """Return the first row of a query; None: there is none."""
        with self.read() as connection:
            return _run(connection, query, parameters).first()

    def values(self, query: Query, **parameters: Any) -> list[Any]:
        """Return the first column of a query."""
        with self.read() as connection:
            return list(_run(connection, query, parameters).scalars())

    def value(self, query: Query, **parameters: Any) -> Any:
        """Return the first column of the first row; None: there is none."""
        with self.read() as connection:
            return _run(connection, query, parameters).scalar()

    def text(self, query: Query, **parameters: Any) -> str | None:
        """Return the first column of the first row where that is a text; None: there is none."""
        found: str | None = self.value(query, **parameters)
        return found

    def execute(self, statement: sa.UpdateBase | Prepared, **parameters: Any) -> int:
        """Make one change; return how many rows it changed."""
        with _named(), self._writer, self._engine.connect() as connection:  # committed by itself
            return int(_run(connection, statement, parameters).rowcount)

    def put(
        self,
        table: sa.Table,
        key: Mapping[str, Any],
        values: Mapping[str, Any],
    ) -> None:
        """Update the row with this key, or insert it, in a transaction of its own."""

        def work() -> None:
            with self.write() as connection:
                upsert(connection, table, key, values)

        repeating(work)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()


class InDatabase:
    """Base of each part of the store: it has the database."""

    def __init__(self, database: Database) -> None:
        self._database = database


def upsert(
    connection: sa.Connection,
    table: sa.Table,
    key: Mapping[str, Any],
    values: Mapping[str, Any],
) -> None:
    """Update the row with this key, or insert it; a race raises `IntegrityError`, see `repeating`."""
    here = sa.and_(*(table.c[name] == value for name, value in key.items()))
    if not connection.execute(table.update().where(here).values(**values)).rowcount:
        connection.execute(table.insert().values(**key, **values))


@contextmanager
def _named() -> Iterator[None]:
    """Tell a database that is away from a statement that is wrong. Raises `DatabaseAway`."""
    try:
        yield
    except (sa.exc.OperationalError, sa.exc.InterfaceError) as error:
        if error.connection_invalidated or getattr(error.orig, "args", ())[:1] in _AWAY:
            raise DatabaseAway(
                f"the database does not answer: {cause_of(error)}; try again"
            ) from error
        raise
    except sa.exc.TimeoutError as error:
        raise DatabaseAway("every connection to the database is in use; try again") from error


_AWAY = ((1053,), (1927,), (2002,), (2003,), (2006,), (2013,), (0,))
"""the server's and the driver's codes for a server that stops, is not there, or went away"""


def repeating(work: Callable[[], X], times: int = 7) -> X:
    """Repeat a short transaction while the database ends it because of a deadlock, or another one won a race."""
    for _ in range(times):
        try:
            return work()
        except sa.exc.IntegrityError:
            pass
        except sa.exc.OperationalError as error:
            if getattr(error.orig, "args", ())[:1] not in ((1213,), (1020,)):
                raise
    return work()


_LOCK = "bfia_gateway_migration"


def opened(url: str) -> sa.Engine:
    """Connect to a database and bring it to the newest schema.

    Raises `Invalid`, without the password, and `DatabaseAway` where nothing answers at the address.
    """
    try:
        engine = connect(url)
    except (sa.exc.SQLAlchemyError, ValueError) as error:
        raise Invalid([_problem(error, None)], reason="DATABASE_UNUSABLE") from error
    try:
        with engine.connect():  # the driver raises TypeError for options that it does not know
            pass
        migrate(engine)
    except (sa.exc.SQLAlchemyError, sqlite3.Error, TimeoutError, TypeError, ValueError) as error:
        engine.dispose()
        if (
            isinstance(error, sa.exc.OperationalError)
            and getattr(error.orig, "args", ())[:1] in _AWAY
        ):
            raise DatabaseAway(f"no database answers at database.url: {cause_of(error)}") from error
        raise Invalid(
            [_problem(error, engine.url.set(query={}))], reason="DATABASE_UNUSABLE"
        ) from error
    return engine


def newest_revision() -> str:
    """Return this version's schema."""
    return _revisions()[-1]


def _revisions() -> list[str]:
    """Return the revisions in order: a file of each bears its name."""
    return sorted(file.stem for file in (_MIGRATIONS / "versions").glob("[0-9]*.py"))


def _current(connection: sa.Connection) -> str | None:
    """Return a database's schema; None: it has none."""
    if not sa.inspect(connection).has_table(_VERSION.name):
        return None
    return connection.execute(sa.select(_VERSION.c.version_num)).scalar()


def revisions(url: str) -> tuple[str | None, str]:
    """Return a database's schema (None: there is none yet) and the newest one. Raises `Invalid`."""
    newest = newest_revision()
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        return None, newest
    try:
        engine = connect(url)
        with engine.connect() as connection:
            current = _current(connection)
        engine.dispose()
    except (sa.exc.SQLAlchemyError, sqlite3.Error, TypeError, ValueError) as error:
        raise Invalid(
            [_problem(error, sa.make_url(url).set(query={}))], reason="DATABASE_UNUSABLE"
        ) from error
    return current, newest


def _problem(error: Exception, url: sa.URL | None) -> Problem:
    shown = url.render_as_string(hide_password=True) if url else None
    return Problem("database.url", f"leads to no usable database: {cause_of(error)}", shown)


def cause_of(error: Exception) -> str:
    """Return what a driver says, its number last."""
    orig = getattr(error, "orig", None) or error
    match orig.args:
        case (int() as number, str() as text):
            return f"{text} (error {number})"
    return str(orig)


_NEXT: dict[object, str] = {
    1044: "grant the user of database.url all privileges on that database, or correct the address",
    1045: "correct user or password in database.url",
    1049: "create that database, or correct its name in database.url",
}


def next_step(error: GatewayError) -> str:
    """Return what to do about a database that cannot be used."""
    number = next(iter(getattr(getattr(error.__cause__, "orig", None), "args", ())), None)
    return _NEXT.get(number, "start the database, or correct database.url")


def migrate(engine: sa.Engine) -> None:
    """Run what is missing of the migrations, under a lock on the database."""
    if engine.dialect.name == "sqlite":
        with Database(engine).write() as connection:
            _upgrade(connection)
        return
    with engine.connect() as connection:
        if not connection.execute(sa.text("select get_lock(:name, 60)"), {"name": _LOCK}).scalar():
            raise TimeoutError("another gateway holds the migration lock for more than 60 s")
        try:
            connection.exec_driver_sql("BEGIN")
            _upgrade(connection)
            connection.commit()
        finally:
            connection.execute(sa.text("select release_lock(:name)"), {"name": _LOCK})
            connection.commit()


def _upgrade(connection: sa.Connection) -> None:
    """Create the tables of an empty database, or run the revisions that an existing one lacks."""
    current = _current(connection)
    if current == newest_revision():
        return
    if current is None:
        schema.metadata.create_all(connection, checkfirst=False)
        connection.execute(
            schema.resource_pool.insert().values(
                id=1,
                ignored=0,
                repaired=0,
                expired=0,
            )
        )
        _VERSION.create(connection)
        connection.execute(_VERSION.insert().values(version_num=newest_revision()))
        return
    if current not in (known := _revisions()):
        raise ValueError(f"its schema is {current}; this version opens {', '.join(known)}")
    from alembic import command  # noqa: PLC0415 - 11 MB that a node without a migration does not need
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    log.info("schema %s -> %s", current, newest_revision())


_MIGRATIONS = Path(__file__).with_name("migrations")
_VERSION = sa.Table(
    "alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True)
)
"""Alembic's own table"""
