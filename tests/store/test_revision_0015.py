"""A database made at revision 0015, the baseline, opens: it gets what came later and keeps its rows."""

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
from gateway.store.migrations import versions as versions_of
from gateway.store.repositories import (
    SqlDatasets,
    SqlGrants,
    SqlJobAudits,
    SqlProviders,
    SqlRouteVersions,
    SqlTokens,
)
from gateway.store.serialization import stored_names
from gateway.store.store import Store
from tests.registry.builders import a_provider
from tests.store.test_store import NOW, a_job, a_local_job

RECORDED = Path(__file__).parent / "revision_0015"


def recorded(database_url: str) -> None:
    """Make the database as the code of that revision left it."""
    engine = connect(database_url)
    mariadb = engine.dialect.name != "sqlite"
    files = ["mariadb.sql" if mariadb else "sqlite.sql", "rows.sql"]
    with engine.begin() as connection:
        if mariadb:
            connection.exec_driver_sql("set sql_mode = 'NO_BACKSLASH_ESCAPES'")
        for statement in "".join((RECORDED / name).read_text() for name in files).split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement.replace("%", "%%"))
    engine.dispose()


def described(engine: sa.Engine) -> dict[str, Any]:
    look = sa.inspect(engine)
    found = {}
    for table in look.get_table_names():
        if table == "alembic_version":
            continue
        options = look.get_table_options(table)
        found[table] = {
            "columns": [
                (c["name"], str(c["type"]), c["nullable"]) for c in look.get_columns(table)
            ],
            "key": look.get_pk_constraint(table)["constrained_columns"],
            "unique": sorted(str(u["column_names"]) for u in look.get_unique_constraints(table)),
            "indexes": sorted(
                (str(i["name"]), str(i["column_names"])) for i in look.get_indexes(table)
            ),
            "text": [options.get("mariadb_default charset"), options.get("mariadb_collate")],
        }
    return found


def test_a_database_of_that_revision_gets_the_tables_of_a_new_one(
    database_url: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "gateway")
    recorded(database_url)
    old = connect(database_url)
    before, mariadb = described(old), old.dialect.name != "sqlite"
    migrate(old)
    assert f"schema 0015_exact_audits -> {newest_revision()}" in caplog.messages
    migrated = described(old)
    assert migrated.keys() > before.keys()
    with (
        old.begin() as connection
    ):  # killed before any revision was noted, and MariaDB keeps what was done
        connection.exec_driver_sql("update alembic_version set version_num = '0015_exact_audits'")
        connection.exec_driver_sql(
            "drop index application_due" + (" on application" if mariadb else "")
        )
    migrate(old)
    assert described(old) == migrated
    with old.begin() as connection:
        for table in (*migrated, "alembic_version"):
            connection.exec_driver_sql(f"drop table {table}")
    migrate(old)
    assert described(old) == migrated
    old.dispose()


def test_rows_stored_at_that_revision_are_readable(database_url: str):
    recorded(database_url)
    store = Store(open_database(database_url))
    assert store.jobs.get("job-1") == a_job()
    assert store.local_jobs.get("job-1") == a_local_job()
    assert store.timeline("job-1")[0].detail == {"text": "值"}
    provider = a_provider()
    assert SqlProviders(store).get(provider.key) == provider
    assert [r.author for r in SqlProviders(store).history(provider.key)] == ["ann"]
    dataset = SqlDatasets(store).get("ns", "表")
    assert dataset is not None and (dataset.columns, dataset.created_at) == (("id", "x"), NOW)
    assert [g.node for g in SqlGrants(store).of(Address("ns", "表"))] == ["B"]
    [token] = SqlTokens(store).list()
    assert (token.name, token.role) == ("ann", Role.ADMIN)
    assert SqlRouteVersions(store, "me").newest_number() == 1
    assert SqlJobAudits(store).job_of("B", "q1") == "job-1"
    assert store.scheduler_of("job-1") == "A"
    store.close()


def test_another_revision_is_refused(database_url: str):
    recorded(database_url)
    engine = connect(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("update alembic_version set version_num = '0010_job_audit'")
    with pytest.raises(
        Invalid, match="its schema is 0010_job_audit; this version opens 0015_exact_audits, "
    ):
        open_database(database_url)
    engine.dispose()


def test_no_stored_field_changed_its_name():
    """To rename a field of a stored value give it its old name as ``field(metadata={"stored": "old"})``."""
    then = set((RECORDED / "fields.txt").read_text().split())
    now = {
        path for kind in (Job, LocalJob, PartyModel, Dataset) for path in paths(kind, kind.__name__)
    }
    assert then <= now


def paths(kind: type, path: str) -> Iterator[str]:
    hints = get_type_hints(kind)
    for name, stored in stored_names(kind).items():
        yield f"{path}.{stored}"
        for inner in dataclasses_in(hints[name]):
            yield from paths(inner, f"{path}.{stored}")


def dataclasses_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and is_dataclass(annotation):
        yield annotation
    for argument in get_args(annotation):
        yield from dataclasses_in(argument)


def test_a_revision_spells_its_own_types():
    """Else a change of the schema would change what old revisions make."""
    versions = list(Path(versions_of.__file__).parent.glob("0*.py"))
    assert len(versions) > 5 and not [
        one.name for one in versions if "from gateway" in one.read_text()
    ]
