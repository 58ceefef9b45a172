"""Reads the rows of a query from a foreign database as a CSV file; changes nothing there."""

import csv
import io
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.store.database import cause_of
from gateway.store.dialects import driver_missing


@dataclass(frozen=True)
class _Kind:
    """How a kind of database is read, and nothing written to it."""

    # Statements before the query; with them the server refuses to write.
    read_only: tuple[str, ...] = ("SET TRANSACTION READ ONLY",)
    options: Mapping[str, object] = field(default_factory=dict)  # of a connection


_MYSQL = _Kind(
    ("SET SESSION TRANSACTION READ ONLY", "COMMIT"),
    # Send no file of this machine to the server, whatever the address says.
    {"local_infile": False},
)
# PostgreSQL's driver begins the transaction, and takes the query as one statement because it
# declares a cursor for it.
_KINDS = {
    "mysql+pymysql": _MYSQL,
    "mariadb+pymysql": _MYSQL,
    "postgresql+psycopg": _Kind(),
    "oracle+oracledb": _Kind(),
    "dm+dmPython": _Kind(),
}
DRIVERS = tuple(_KINDS)
_UNUSABLE = "SOURCE_UNUSABLE"
# SQLAlchemy has the dialects of all others itself.
_NEEDS_DIALECT = "needs the package dmSQLAlchemy, with which SQLAlchemy reads that database"
_SELECT = re.compile(r"\s*(select|with)\b", re.IGNORECASE)
_ROWS = 100  # rows in memory at the same time
# The driver raises TypeError for an unknown option, RuntimeError if the server requests a file.
_CONNECT_ERRORS = (sa.exc.SQLAlchemyError, TypeError, ValueError, OSError, RuntimeError)
_QUERY_ERRORS = (sa.exc.SQLAlchemyError, RuntimeError)


class Source:
    """A foreign database. Every method may raise `Invalid`, whose text never has the password.

    ``from None`` keeps the cause, which may have the password, out of tracebacks.
    """

    def __init__(
        self,
        url: str,
        password: str,
    ) -> None:
        address = _parse_address(url)
        self.name = address.set(query={}).render_as_string()  # without options, for messages
        self._url = address.set(password=password or None)
        self._kind = _KINDS[address.drivername]

    @contextmanager
    def selected(self, query: str) -> Iterator["CsvRows"]:
        """Yield the rows of a query as a CSV file; rows are fetched as the file is read."""
        if not _SELECT.match(query):
            raise _wrong("query", "must be one SELECT")
        # The result has to be closed before the connection, which cannot close amid rows.
        with self._connect() as connection, closing(self._execute(connection, query)) as result:
            yield CsvRows(result)

    def _connect(self) -> sa.Connection:
        """Return a connection to the foreign database. Raises `Invalid` if that fails."""
        try:
            engine = sa.create_engine(
                self._url,
                poolclass=sa.NullPool,
                connect_args=self._kind.options,
            )
            return engine.connect()
        except ImportError as error:
            raise driver_missing("from", _UNUSABLE, error) from None
        except sa.exc.NoSuchModuleError:
            raise _wrong("from", _NEEDS_DIALECT) from None
        except _CONNECT_ERRORS as error:
            rule = (
                f"{self.name} cannot be used: {cause_of(error)}; compare address, user and password"
            )
            raise _wrong("from", rule) from None

    def _execute(
        self,
        connection: sa.Connection,
        query: str,
    ) -> sa.CursorResult[Any]:
        """Run a query in a transaction that cannot write. Raises `Invalid`."""
        options = {
            "no_parameters": True,
            "stream_results": True,
            "max_row_buffer": _ROWS,
        }
        with _query_errors_as_invalid():
            for statement in self._kind.read_only:
                connection.exec_driver_sql(statement)
            return connection.exec_driver_sql(
                query,
                execution_options=options,
            )


def _parse_address(url: str) -> sa.URL:
    """Return the address of a source. Raises `Invalid`."""
    try:
        address = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        rule = f"must be an address such as {DRIVERS[0]}://user@host:3306/database"
        raise _wrong("from", rule) from None
    if address.drivername not in DRIVERS:
        schemes = ", ".join(f"{driver}://" for driver in DRIVERS)
        raise _wrong("from", f"must begin with one of {schemes}")
    if address.password is not None:
        raise _wrong("from", "must not hold a password, which others on this machine could see")
    return address


class CsvRows(io.RawIOBase):
    """Rows as a binary CSV file: in UTF-8, with commas and a header; NULL is an empty cell."""

    def __init__(
        self,
        result: sa.CursorResult[Any],
    ) -> None:
        self._chunks = _csv_chunks(result)
        self._pending = b""  # the rest of the current chunk

    def readinto(self, buffer: Any, /) -> int:
        """Read at most as many bytes as the buffer has; return how many, 0 at the end of the file.

        Raises `Invalid`.
        """
        if not self._pending:
            self._pending = next(self._chunks, b"")
        size = min(
            len(buffer),
            len(self._pending),
        )
        buffer[:size] = self._pending[:size]
        self._pending = self._pending[size:]
        return size


def _csv_chunks(result: sa.CursorResult[Any]) -> Iterator[bytes]:
    """Yield the CSV text of the rows, a chunk per `_ROWS` rows. Raises `Invalid`."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    with _query_errors_as_invalid():
        columns = list(result.keys())
        writer.writerow(columns)
        for rows in result.partitions(_ROWS):
            for row in rows:
                _check_plain(columns, row)
                writer.writerow(row)
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode()  # the header if there are no rows; else empty, as at the end


def _check_plain(
    columns: list[str],
    row: sa.Row[Any],
) -> None:
    """Raise `Invalid` for a row with a binary value, or one of several parts."""
    for column, value in zip(columns, row, strict=True):
        if isinstance(value, bytes):
            rule = f"column {column} holds bytes; select hex({column}) or text instead"
            raise _wrong("query", rule)
        if isinstance(value, (dict, list, tuple)):  # JSON and arrays of PostgreSQL
            rule = f"column {column} holds several values; select a text or one of them instead"
            raise _wrong("query", rule)


@contextmanager
def _query_errors_as_invalid() -> Iterator[None]:
    """Raise `Invalid` for an error of the query."""
    try:
        yield
    except _QUERY_ERRORS as error:
        rule = f"failed: {cause_of(error)}; try it in a client of the database"
        raise _wrong("query", rule) from None


def _wrong(field: str, rule: str) -> Invalid:
    """Return the error for a field that breaks a rule: ``from`` (the address) or ``query``."""
    return Invalid(
        [Problem(field, rule)],
        reason=_UNUSABLE,
    )
