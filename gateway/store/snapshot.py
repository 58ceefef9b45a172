"""Copies all rows of a database as plain data, and fills an empty database with them.

Values are copied as the database has them, so a copy can fill a database of any kind.
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
from gateway.store.dialects import POSTGRESQL, begin_snapshot

_ROWS_PER_INSERT = 500  # rows inserted by one statement

TableRows = Iterator[dict[str, Any]]


@contextmanager
def snapshot(database: Database) -> Iterator[Iterator[tuple[str, TableRows]]]:
    """Yield the name and the rows of each table as of one moment, even while a gateway writes.

    The rows of a table are read only as they are taken from its iterator, which must be exhausted
    before the next table is taken.
    """
    with database.read() as connection:
        begin_snapshot(connection)
        yield ((table.name, _rows(connection, table)) for table in schema.metadata.sorted_tables)


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
        if connection.dialect.name == POSTGRESQL:
            _continue_numbers(connection)
    return counts


def _insert(
    connection: sa.Connection,
    name: str,
    rows: TableRows,
) -> int:
    """Insert the rows of a table; return their number."""
    count = 0
    booleans = _boolean_columns(name)
    while batch := list(islice(rows, _ROWS_PER_INSERT)):
        for row in batch:
            # SQLite and MariaDB have numbers, which PostgreSQL refuses.
            row.update({column: bool(row[column]) for column in booleans})
        columns: list[Any] = [sa.column(column) for column in batch[0]]
        connection.execute(sa.table(name, *columns).insert(), batch)
        count += len(batch)
    return count


def _boolean_columns(name: str) -> list[str]:
    """Return the names of a table's columns of truth values; none of them may be null."""
    if name not in schema.metadata.tables:
        return []
    columns = schema.metadata.tables[name].columns
    return [column.name for column in columns if isinstance(column.type, sa.Boolean)]


def _continue_numbers(connection: sa.Connection) -> None:
    """Let PostgreSQL number new rows after the inserted ones; other databases do so by themselves.

    Otherwise it would begin with 1 again.
    """
    for table in schema.metadata.sorted_tables:
        column = table.autoincrement_column
        if column is None:
            continue
        sequence = func.pg_get_serial_sequence(table.name, column.name)
        newest = select(func.coalesce(func.max(column), 0)).scalar_subquery()
        connection.execute(select(func.setval(sequence, newest + 1, False)))


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
