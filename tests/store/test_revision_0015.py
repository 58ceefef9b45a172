"""A database of revision 0015, the baseline, is migrated when it is opened and keeps its rows."""

from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import sqlalchemy as sa

from gateway.auth import Role
from gateway.domain.datasets import Dataset
from gateway.domain.job import Job
from gateway.domain.models import PartyModel
from gateway.domain.run import Address, LocalJob
from gateway.errors import Invalid
from gateway.store.database import connect, migrate, newest_revision, open_database
from gateway.store.migrations import versions as migrations
from gateway.store.providers import SqlProviders
from gateway.store.queries import JobFilter, page
from gateway.store.repositories import (
    SqlDatasets,
    SqlGrants,
    SqlJobAudits,
    SqlRouteVersions,
    SqlTokens,
)
from gateway.store.serialization import flat_parts, stored_names
from gateway.store.store import Store
from tests.registry.builders import a_provider
from tests.store.test_store import NOW, a_job, a_local_job

# Dumps of a database, and the names of its stored fields, as the code of that revision wrote them.
RECORDINGS = Path(__file__).parent / "revision_0015"


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param(
            "mariadb",
            marks=pytest.mark.mariadb,
        ),
    ]
)
def database_url(request, tmp_path):
    """An empty database of each kind that could be used at that revision."""
    if request.param == "mariadb":
        return request.getfixturevalue("mariadb_url")
    return f"sqlite:///{tmp_path / 'test.db'}"


def test_a_database_of_that_revision_gets_the_tables_of_a_new_one(database_url, caplog):
    caplog.set_level("INFO", "gateway")
    load_recording(database_url)
    engine = connect(database_url)
    old_tables = describe_tables(engine)

    migrate(engine)
    migrated_tables = describe_tables(engine)
    assert f"schema 0015_exact_audits -> {newest_revision()}" in caplog.messages
    assert migrated_tables.keys() > old_tables.keys()

    undo_part_of_migration(engine)
    migrate(engine)
    assert describe_tables(engine) == migrated_tables

    drop_tables(engine, [*migrated_tables, "alembic_version"])
    migrate(engine)
    assert describe_tables(engine) == migrated_tables
    engine.dispose()


def test_rows_stored_at_that_revision_are_readable(database_url):
    load_recording(database_url)
    store = Store(open_database(database_url))

    assert store.jobs.get("job-1") == a_job()
    assert store.local_jobs.get("job-1") == a_local_job()
    filters = JobFilter(text="job-1")  # found by words, which the migration writes
    [entry] = page(store, filters, limit=10).entries
    assert entry.job_id == "job-1"
    assert store.timeline("job-1")[0].detail == {"text": "值"}
    assert store.scheduler_of("job-1") == "A"

    provider = a_provider()
    assert SqlProviders(store).get(provider.key) == provider
    [revision] = SqlProviders(store).history(provider.key)
    assert revision.author == "ann"

    dataset = SqlDatasets(store).get("ns", "表")
    assert dataset is not None
    assert dataset.columns == ("id", "x")
    assert dataset.created_at == NOW
    [grant] = SqlGrants(store).of(Address("ns", "表"))
    assert grant.node == "B"

    [token] = SqlTokens(store).list()
    assert token.name == "ann"
    assert token.role == Role.ADMIN
    assert SqlRouteVersions(store, "me").newest_number() == 1
    assert SqlJobAudits(store).job_of("B", "q1") == "job-1"
    store.close()


def test_another_revision_is_refused(database_url):
    load_recording(database_url)
    engine = connect(database_url)
    set_revision(engine, "0010_job_audit")

    message = "its schema is 0010_job_audit; this version opens 0015_exact_audits, "
    with pytest.raises(Invalid, match=message):
        open_database(database_url)
    engine.dispose()


def test_no_stored_field_changed_its_name():
    """A renamed field keeps its old name as ``field(metadata={"stored": "old"})``."""
    recorded_fields = set((RECORDINGS / "fields.txt").read_text().split())
    current_fields = set()
    for cls in (Job, LocalJob, PartyModel, Dataset):
        current_fields.update(field_paths(cls, cls.__name__))

    assert recorded_fields <= current_fields


def test_a_revision_spells_its_own_types():
    """With types of the schema, a change of the schema would change what old revisions create."""
    revisions = list(Path(migrations.__file__).parent.glob("0*.py"))
    dependent = [file.name for file in revisions if "from gateway" in file.read_text()]

    assert len(revisions) > 5
    assert dependent == []


def load_recording(database_url: str) -> None:
    """Fill an empty database as the code of that revision left it."""
    engine = connect(database_url)
    kind = "sqlite" if engine.dialect.name == "sqlite" else "mariadb"
    script = (RECORDINGS / f"{kind}.sql").read_text() + (RECORDINGS / "rows.sql").read_text()
    with engine.begin() as connection:
        if kind == "mariadb":
            connection.exec_driver_sql("set sql_mode = 'NO_BACKSLASH_ESCAPES'")
        for statement in script.split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement.replace("%", "%%"))
    engine.dispose()


def undo_part_of_migration(engine: sa.Engine) -> None:
    """Leave the database as a migration killed before it noted any revision.

    MariaDB keeps the changes of such a migration, as it cannot roll back changes of tables.
    """
    set_revision(engine, "0015_exact_audits")
    statement = "drop index application_due"
    if engine.dialect.name != "sqlite":
        statement += " on application"
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)


def set_revision(
    engine: sa.Engine,
    revision: str,
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"update alembic_version set version_num = '{revision}'")


def drop_tables(
    engine: sa.Engine,
    names: list[str],
) -> None:
    with engine.begin() as connection:
        for name in names:
            connection.exec_driver_sql(f"drop table {name}")


def describe_tables(engine: sa.Engine) -> dict[str, Any]:
    """Return the definition of each table except Alembic's own, by name."""
    inspector = sa.inspect(engine)
    names = set(inspector.get_table_names()) - {"alembic_version"}
    return {name: describe_table(inspector, name) for name in names}


def describe_table(
    inspector: sa.Inspector,
    table: str,
) -> dict[str, Any]:
    columns = []
    for column in inspector.get_columns(table):
        columns.append((column["name"], str(column["type"]), column["nullable"]))
    indexes = []
    for index in inspector.get_indexes(table):
        indexes.append((str(index["name"]), str(index["column_names"])))
    unique = [str(each["column_names"]) for each in inspector.get_unique_constraints(table)]
    options = inspector.get_table_options(table)
    return {
        "columns": columns,
        "key": inspector.get_pk_constraint(table)["constrained_columns"],
        "unique": sorted(unique),
        "indexes": sorted(indexes),
        "charset": options.get("mariadb_default charset"),
        "collation": options.get("mariadb_collate"),
    }


def field_paths(
    cls: type,
    path: str,
) -> Iterator[str]:
    """Yield the paths of the stored fields of a dataclass and of the dataclasses in it."""
    for part_class in flat_parts(cls).values():
        yield from field_paths(part_class, path)
    hints = get_type_hints(cls)
    for name, stored_name in stored_names(cls).items():
        field_path = f"{path}.{stored_name}"
        yield field_path
        for inner in dataclasses_in(hints[name]):
            yield from field_paths(inner, field_path)


def dataclasses_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and is_dataclass(annotation):
        yield annotation
    for argument in get_args(annotation):
        yield from dataclasses_in(argument)
