"""Copies all rows of a database as plain data, and fills an empty database with them.

Values are copied as the database has them, so a copy of SQLite can fill a MariaDB and vice versa.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import sqlalchemy as sa
from sqlalchemy import func, select

from gateway.domain.problems import Problem
from gateway.errors import Invalid, counted
from gateway.store import schema
from gateway.store.database import Database

_ROWS_PER_INSERT = 500  # rows inserted by one statement

TableRows = Iterator[dict[str, Any]]


@contextmanager
def snapshot(database: Database) -> Iterator[Iterator[tuple[str, TableRows]]]:
    """Yield the name and the rows of each table as of one moment, even while a gateway writes.

    The rows of a table are read only as they are taken from its iterator, which must be exhausted
    before the next table is taken.
    """
    with database.read() as connection:
        _begin_snapshot(connection)
        yield ((table.name, _rows(connection, table)) for table in schema.metadata.sorted_tables)


def _begin_snapshot(connection: sa.Connection) -> None:
    """Begin a transaction that sees the database as it is now, whatever others write."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN")
        return
    connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    connection.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT")


def _rows(
    connection: sa.Connection,
    table: sa.Table,
) -> TableRows:
    """Yield the rows of a table one after the other, without reading them all into memory."""
    # A table without column types: the values are not converted.
    query = select(sa.text("*")).select_from(sa.table(table.name))
    streaming = connection.execution_options(stream_results=True)
    for row in streaming.execute(query).mappings():
        yield dict(row)


def fill(
    database: Database,
    tables: Iterable[tuple[str, TableRows]],
) -> dict[str, int]:
    """Insert all rows of a snapshot, or none; return the number of rows by table.

    Raises `Invalid` (DATABASE_NOT_EMPTY) if a table has rows already.
    """
    counts: dict[str, int] = {}
    with database.write() as connection:
        _require_empty(connection)
        # Delete the only row that a new database has, because the snapshot has this row, too.
        connection.execute(schema.resource_pool.delete())
        for name, rows in tables:
            counts[name] = _insert(connection, name, rows)
    return counts


def _insert(
    connection: sa.Connection,
    name: str,
    rows: TableRows,
) -> int:
    """Insert the rows of a table; return their number."""
    count = 0
    while batch := list(islice(rows, _ROWS_PER_INSERT)):
        columns: list[Any] = [sa.column(column) for column in batch[0]]
        connection.execute(sa.table(name, *columns).insert(), batch)
        count += len(batch)
    return count


def _require_empty(connection: sa.Connection) -> None:
    """Raise `Invalid` for a database that has been used."""
    for table in schema.metadata.sorted_tables:
        if table is schema.resource_pool:  # even a new database has a row in it
            continue
        query = select(func.count()).select_from(table)
        count = connection.execute(query).scalar()
        if count:
            rule = (
                f"leads to a database in use ({counted(count, 'row')} in {table.name}): "
                "name an empty one"
            )
            raise Invalid(
                [Problem("database.url", rule)],
                reason="DATABASE_NOT_EMPTY",
            )
