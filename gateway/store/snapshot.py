"""All rows of a database as plain data, and an empty database filled with them.

Both take the values as the database has them, so a copy of SQLite fills a MariaDB as well, and the reverse.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import sqlalchemy as sa

from gateway.domain.problems import Problem
from gateway.errors import Invalid, counted
from gateway.store import schema
from gateway.store.database import Database

Rows = Iterator[dict[str, Any]]
_AT_ONCE = 500
"""rows that one statement inserts"""


@contextmanager
def snapshot(database: Database) -> Iterator[Iterator[tuple[str, Rows]]]:
    """Give each table's name and rows, all as they were at one moment, while a gateway may be writing."""
    with database.read() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN")
        else:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        yield ((table.name, _rows(connection, table)) for table in schema.metadata.sorted_tables)


def _rows(connection: sa.Connection, table: sa.Table) -> Rows:
    query = sa.select(sa.text("*")).select_from(sa.table(table.name))
    for row in connection.execution_options(stream_results=True).execute(query).mappings():
        yield dict(row)


def fill(database: Database, tables: Iterable[tuple[str, Rows]]) -> dict[str, int]:
    """Insert the rows of a snapshot into a database of the same schema; return how many each table got.

    All or nothing. Raises `Invalid` (DATABASE_NOT_EMPTY) where a table has rows already.
    """
    counts: dict[str, int] = {}
    with database.write() as connection:
        _refuse_rows(connection)
        connection.execute(schema.resource_pool.delete())  # a new database has its one row
        for name, rows in tables:
            counts[name] = 0
            while many := list(islice(rows, _AT_ONCE)):
                connection.execute(sa.table(name, *map(sa.column, many[0])).insert(), many)
                counts[name] += len(many)
    return counts


def _refuse_rows(connection: sa.Connection) -> None:
    """Raise `Invalid` where the database has been used."""
    for table in schema.metadata.sorted_tables:
        count = connection.execute(sa.select(sa.func.count()).select_from(table)).scalar() or 0
        if count and table is not schema.resource_pool:
            rule = f"leads to a database in use ({counted(count, 'row')} in {table.name}): name an empty one"
            raise Invalid([Problem("database.url", rule)], reason="DATABASE_NOT_EMPTY")
