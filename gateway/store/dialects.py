"""How the kinds of databases differ: connections, codes of errors, locks and snapshots.

SQL that differs within a query is in `gateway.store.functions`.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import Any

import sqlalchemy as sa

from gateway.domain.problems import Problem
from gateway.errors import Invalid, TooLarge

SQLITE = "sqlite"
POSTGRESQL = "postgresql"

_SQLITE_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=NORMAL",
    "busy_timeout=10000",
    "foreign_keys=ON",
)
# Codes of errors: numbers of MariaDB and MySQL, states (texts) of PostgreSQL.
# These mean: the server stops, cannot be reached, or has closed the connection. The driver of MySQL
# has 0 for a connection that was closed before, the driver of PostgreSQL no state ("").
_AWAY_CODES = (
    *(1053, 1927, 2002, 2003, 2006, 2013, 0),
    *("57P01", "57P02", "57P03", "53300", "08000", "08003", "08006", "08001", "08004", ""),
)
# deadlock; row changed since it was read
_CONFLICT_CODES = (1213, 1020, "40P01", "40001")
_LOCK_TIMEOUT_STATE = "55P03"
# PostgreSQL's driver has no state for a refused connection, so the server's text has to do. A text
# in another language counts as a server that is away.
_STATES_OF_REFUSALS = {
    "password authentication failed": "28P01",
    "no password supplied": "28P01",
    'FATAL:  role "': "28P01",
    'FATAL:  database "': "3D000",
    "no pg_hba.conf entry": "28000",
    "permission denied for database": "42501",
}
_WRONG_PASSWORD = "correct user or password in database.url"
_MISSING_DATABASE = "create that database, or correct its name in database.url"
_OWNER = "make the user of database.url the owner of that database, or correct the address"
# Advice for a database that cannot be used, by the code of the error.
_NEXT_STEPS: Mapping[object, str] = {
    1044: "grant the user of database.url all privileges on that database, or correct the address",
    1045: _WRONG_PASSWORD,
    1049: _MISSING_DATABASE,
    "28P01": _WRONG_PASSWORD,
    "28000": "permit this machine and user in the server's pg_hba.conf",
    "3D000": _MISSING_DATABASE,
    "42501": _OWNER,
}
_SERVER_STATUS_IN_TRANSACTION = 1  # bit of the status of a server of MySQL

_MIGRATION_LOCK = "bfia_gateway_migration"
_MIGRATION_LOCK_NUMBER = 0x62666961_67617465  # the same lock at PostgreSQL
_MIGRATION_LOCK_TIMEOUT = 60  # seconds
_CONNECT_TIMEOUT = "10"  # seconds; the driver of MySQL has the same limit

# What installs a missing module, if that is not the package of its name. psycopg names no module if
# it finds no library of PostgreSQL.
_INSTALLABLE = dict.fromkeys(("psycopg", None), "'bfia-gateway[postgres]'")


# ------------------------------------------------------------ connections


def connect(url: str) -> sa.Engine:
    """Create the pool of connections to a database.

    The pool has six connections: more transactions at the same time are slower. Raises `Invalid` if
    the package of the driver is not installed.
    """
    options: dict[str, Any] = {
        "pool_size": 6,
        "max_overflow": 0,
        "pool_timeout": 60,  # seconds to wait for a connection
    }
    address = sa.make_url(url)
    kind = address.get_backend_name()
    if kind != SQLITE:
        options |= {
            "pool_recycle": 600,  # seconds after which a connection is replaced
            "pool_pre_ping": True,
        }
    if kind == POSTGRESQL and "connect_timeout" not in address.query:
        address = address.update_query_dict({"connect_timeout": _CONNECT_TIMEOUT})
    try:
        engine = sa.create_engine(address, **options)
    except ImportError as error:
        raise driver_missing("database.url", "DATABASE_UNUSABLE", error) from error
    sa.event.listen(engine, "connect", _PREPARATIONS[kind])
    return engine


def driver_missing(
    path: str,
    reason: str,
    error: ImportError,
) -> Invalid:
    """Return the refusal of an address whose driver is not installed; ``path``: the setting."""
    install = _INSTALLABLE.get(error.name, error.name)
    rule = f"needs a driver that cannot be loaded ({error}): pip install {install}"
    return Invalid([Problem(path, rule)], reason=reason)


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Set up a new connection to SQLite."""
    # Transactions are begun by `Database.write`: the driver would begin too late for a write lock.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in _SQLITE_PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _prepare_mysql(connection: Any, _record: Any) -> None:
    """Set up a new connection to MariaDB or MySQL.

    From then on the connection checks the size of each statement against the server's limit, and
    rolls back only a transaction that was begun.
    """
    # Autocommit stays on, and `Database.write` begins each transaction by a statement. To switch
    # autocommit for each read would cost four requests to the server.
    connection.autocommit(True)
    connection.rollback = partial(_rollback_if_begun, connection, connection.rollback)
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        max_packet = int(cursor.fetchone()[0])
    connection.query = partial(_query_within_limit, max_packet, connection.query)


def _query_within_limit(
    max_packet: int,
    query: Callable[..., int],
    text: str | bytes,
    **options: Any,
) -> int:
    """Send a statement; raise `TooLarge` if it is larger than the server's limit.

    Without this check the server would close the connection, as if the server had gone away.
    """
    if 4 * len(text) >= max_packet:  # UTF-8 takes at most four bytes per character
        encoded = text.encode() if isinstance(text, str) else text
        size = len(encoded)
        if size >= max_packet:
            raise TooLarge(
                f"it has {size} bytes to be stored; "
                f"max_allowed_packet of the database is {max_packet}"
            )
    return query(text, **options)


def _rollback_if_begun(
    connection: Any,
    rollback: Callable[[], None],
) -> None:
    """Roll back a transaction, if there is one: after a read this saves a request to the server."""
    if connection.server_status & _SERVER_STATUS_IN_TRANSACTION:
        rollback()


def _prepare_postgresql(connection: Any, _record: Any) -> None:
    """Set up a new connection to PostgreSQL.

    Raises `ValueError` for a database that cannot store every character.
    """
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in ("UTF8", "UTF-8"):
        raise ValueError(f"its encoding is {encoding}: create it with ENCODING 'UTF8'")
    connection.autocommit = True  # for the same reason as with MySQL
    connection.adapters.register_dumper(str, _text_dumper())


@cache
def _text_dumper() -> type:
    """Return the class that writes texts for the driver of PostgreSQL, which is loaded by then.

    NUL, the only character that PostgreSQL's texts cannot have, becomes the replacement character.
    """
    usual_dumper: Any = sys.modules["psycopg.types.string"].StrDumperUnknown

    class Dumper(usual_dumper):  # type: ignore[misc]
        def dump(self, obj: str) -> Any:
            return super().dump(without_nul(obj))

    return Dumper


def without_nul(text: str) -> str:
    """Return a text as PostgreSQL stores it."""
    return text.replace("\0", "\ufffd")


_PREPARATIONS = {
    SQLITE: _prepare_sqlite,
    "mysql": _prepare_mysql,
    "mariadb": _prepare_mysql,
    POSTGRESQL: _prepare_postgresql,
}


# ------------------------------------------------------------ errors


def error_code(error: BaseException | None) -> object:
    """Return the server's code of a database error: a number, or a state of PostgreSQL.

    With SQLite it is the message. None for an error without a driver's error in it.
    """
    driver_error: Any = getattr(error, "orig", None)
    if is_of_postgresql(driver_error):
        return driver_error.sqlstate or _state_of_refusal(str(driver_error))
    arguments = getattr(driver_error, "args", ())
    return next(iter(arguments), None)


def is_of_postgresql(driver_error: object) -> bool:
    """Return whether an error comes from the driver of PostgreSQL."""
    return type(driver_error).__module__.partition(".")[0] == "psycopg"


def _state_of_refusal(text: str) -> str:
    """Return the state for the text of a refused connection; "" for a server that is away."""
    for phrase, state in _STATES_OF_REFUSALS.items():
        if phrase in text:
            return state
    return ""


def is_away(error: sa.exc.DBAPIError) -> bool:
    """Return whether an error means that no database responds."""
    return error.connection_invalidated or error_code(error) in _AWAY_CODES


def is_conflict(error: sa.exc.DBAPIError) -> bool:
    """Return whether a transaction failed only because of another one."""
    return error_code(error) in _CONFLICT_CODES


def advice_for(error: BaseException | None) -> str | None:
    """Return the step that helps with an error of the server; None if there is no special one."""
    return _NEXT_STEPS.get(error_code(error))


# ------------------------------------------------------------ locks and snapshots


def migration(connection: sa.Connection) -> AbstractContextManager[None]:
    """Begin the transaction of a migration, under a lock that other gateways wait for.

    For servers: a writer of SQLite has the database to itself. Raises `TimeoutError`.
    """
    if connection.dialect.name == POSTGRESQL:
        return _migration_at_postgresql(connection)
    return _migration_at_mysql(connection)


@contextmanager
def _migration_at_mysql(connection: sa.Connection) -> Iterator[None]:
    """Hold a lock, as statements that change tables end a transaction."""
    name = {"name": _MIGRATION_LOCK}  # the parameters of both statements
    get_lock = sa.text(f"select get_lock(:name, {_MIGRATION_LOCK_TIMEOUT})")
    if not connection.execute(get_lock, name).scalar():
        raise _lock_timeout()
    try:
        connection.exec_driver_sql("BEGIN")
        yield
        connection.commit()
    finally:
        connection.execute(sa.text("select release_lock(:name)"), name)
        connection.commit()


@contextmanager
def _migration_at_postgresql(connection: sa.Connection) -> Iterator[None]:
    """Hold a lock until the transaction ends, which is rolled back after an error."""
    connection.exec_driver_sql("BEGIN")
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_MIGRATION_LOCK_TIMEOUT}s'")
    try:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK_NUMBER})")
    except sa.exc.OperationalError as error:
        if error_code(error) == _LOCK_TIMEOUT_STATE:
            raise _lock_timeout() from error
        raise
    yield
    connection.commit()


def _lock_timeout() -> TimeoutError:
    """Return the error for a lock of migrations that is not released."""
    return TimeoutError(
        f"another gateway holds the migration lock for more than {_MIGRATION_LOCK_TIMEOUT} s"
    )


def begin_snapshot(connection: sa.Connection) -> None:
    """Begin a transaction that sees the database as it is now, whatever others write."""
    for statement in _SNAPSHOTS[connection.dialect.name]:
        connection.exec_driver_sql(statement)


_MYSQL_SNAPSHOT = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT",
)
_SNAPSHOTS = {
    SQLITE: ("BEGIN",),
    "mysql": _MYSQL_SNAPSHOT,
    "mariadb": _MYSQL_SNAPSHOT,
    POSTGRESQL: ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",),
}
