"""A PostgreSQL database of revision 0023, the first one there, is migrated and keeps its rows.

A later revision that creates or changes tables has to do so in PostgreSQL, too.
"""

from pathlib import Path

import pytest

from gateway.store.database import connect, migrate, newest_revision, open_database
from gateway.store.store import Store
from tests.store.test_revision_0015 import describe_tables, drop_tables
from tests.store.test_store import a_job, a_local_job

pytestmark = pytest.mark.postgresql
# A dump as the code of that revision wrote it.
RECORDING = Path(__file__).parent / "revision_0023" / "postgresql.sql"


def test_a_database_of_revision_0023_gets_the_tables_of_a_new_one(postgresql_url):
    load_recording(postgresql_url)
    engine = connect(postgresql_url)

    migrate(engine)
    migrated_tables = describe_tables(engine)
    drop_tables(engine, [*migrated_tables, "alembic_version"])
    migrate(engine)

    assert describe_tables(engine) == migrated_tables
    engine.dispose()


def test_rows_stored_at_revision_0023_are_readable(postgresql_url):
    load_recording(postgresql_url)
    store = Store(open_database(postgresql_url))

    assert store.jobs.get("job-1") == a_job()
    assert store.local_jobs.get("job-1") == a_local_job()
    assert store.timeline("job-1")[0].detail == {"text": "值"}
    assert newest_revision() == revision_of(store)
    store.close()


def load_recording(database_url: str) -> None:
    """Fill an empty database as the code of that revision left it."""
    engine = connect(database_url)
    with engine.begin() as connection:
        for statement in RECORDING.read_text().split(";\n"):
            if statement.strip():
                escaped = statement.replace("%", "%%")
                connection.exec_driver_sql(escaped)
    engine.dispose()


def revision_of(store: Store) -> str:
    with store.read() as connection:
        query = "select version_num from alembic_version"
        return str(connection.exec_driver_sql(query).scalar())
