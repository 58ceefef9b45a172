"""What time it is at the database."""

import sqlalchemy as sa

from gateway.store.store import Store


def database_time(store: Store) -> float:
    """Return seconds since 1970. For databases with a clock of their own: SQLite has none."""
    with store.read() as connection:
        return float(connection.execute(sa.select(sa.func.unix_timestamp(sa.func.now(6)))).scalar_one())
