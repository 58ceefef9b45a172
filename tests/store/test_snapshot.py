"""A database copied as it was at one moment, and an empty one filled with the copy."""

import json
from datetime import UTC, datetime
from itertools import count

import pytest

from gateway.domain.spec import Note
from gateway.errors import Invalid
from gateway.store import schema
from gateway.store.applications import SqlApplications
from gateway.store.audit import SqlAudit
from gateway.store.snapshot import fill, snapshot
from tests.builders import a_job
from tests.contracts.databases import a_store
from tests.domain.test_applications import an_application
from tests.store.conftest import delete_rows

AT = datetime(
    2026,
    1,
    1,
    tzinfo=UTC,
)
AUDIT_ROWS = 1200  # more than one statement of a copy inserts


def test_rows_written_during_a_copy_are_not_in_it(stores, tmp_path):
    store, second_store = stores
    insert_audit_rows(store)

    copied_tables = {}
    with snapshot(store) as tables:
        for name, rows in tables:
            if len(copied_tables) == 1:
                SqlAudit(second_store).add(AT, "bob", "late", 200, None, {})
            copied_tables[name] = list(rows)

    assert audit_size(store) == AUDIT_ROWS + 1
    assert len(copied_tables["audit"]) == AUDIT_ROWS

    with a_store(f"sqlite:///{tmp_path / 'copy.db'}") as copy:
        counts = fill(copy, [(name, iter(rows)) for name, rows in copied_tables.items()])

        assert counts["audit"] == AUDIT_ROWS
        assert counts["resource_pool"] == 1
        assert audit_size(copy) == AUDIT_ROWS
        authors = [row["who"] for row in SqlAudit(copy).lines()]
        assert authors[:2] == ["ann 0 'ü'", "ann 1 'ü'"]

        with pytest.raises(Invalid) as refusal:
            fill(copy, ())
        assert refusal.value.reason == "DATABASE_NOT_EMPTY"
        assert audit_size(copy) == AUDIT_ROWS


def test_a_failed_copy_leaves_the_database_empty(store):
    def rows_with_unknown_column():
        for number in count():
            yield {"id": f"t{number}", "no_such_column": number}

    with pytest.raises(Exception, match="no_such_column"):
        fill(store, [("token", rows_with_unknown_column())])

    with store.read() as connection:
        assert connection.execute(schema.token.select()).first() is None


@pytest.mark.mariadb
@pytest.mark.postgresql
def test_a_backup_of_each_kind_fills_a_database_of_each_other_kind(
    tmp_path,
    mariadb_url,
    postgresql_url,
):
    sqlite_url = f"sqlite:///{tmp_path / 'copy.db'}"
    # so that each kind is filled from each other one
    urls = [
        mariadb_url,
        postgresql_url,
        sqlite_url,
        postgresql_url,
        mariadb_url,
        sqlite_url,
    ]
    with a_store(sqlite_url) as store:
        fill_with_examples(store)
        text = backup_text(store)
        original = comparable(text)
        timeline_size = len(store.timeline("job-1"))
        delete_rows(store)
    for url in urls:
        with a_store(url) as store:
            fill(store, tables_of(text))
            text = backup_text(store)
            assert comparable(text) == original, url
            assert store.jobs.get("job-1").id == "job-1"
            assert SqlApplications(store).used_by("job-1") == {1: True}
            note = Note(AT, "restored", "me", {})
            store.note("job-1", "scheduler", [note])
            assert len(store.timeline("job-1")) == timeline_size + 1
            delete_rows(store)


def fill_with_examples(store):
    """Store rows with every type of column: numbers, times, truth values, long texts, null."""
    job = a_job().with_note(AT, "job PENDING", text="值\0")
    assert store.jobs.add(job, "流程")
    application = SqlApplications(store).add(an_application())
    assert SqlApplications(store).use(application, "job-1", permit=True)
    SqlAudit(store).add(AT, "ann", "test", 200, None, {"long": "余" * 100_000})


def backup_text(store):
    """Return the rows of each table as `backup` writes them."""
    lines = {}
    with snapshot(store) as tables:
        for name, rows in tables:
            lines[name] = [json.dumps(row) for row in rows]
    return lines


def comparable(text):
    """Return the rows in one order; in Python the truth values of one kind equal the others' 1."""
    tables = {}
    for name, lines in text.items():
        rows = map(json.loads, lines)
        tables[name] = sorted(rows, key=repr_of_sorted)
    return tables


def repr_of_sorted(row):
    return repr(sorted(row.items()))


def tables_of(text):
    for name, lines in text.items():
        yield name, map(json.loads, lines)


def insert_audit_rows(store):
    rows = []
    for number in range(AUDIT_ROWS):
        row = {
            "at": AT,
            "who": f"ann {number} 'ü'",
            "action": "test",
            "status": 200,
            "code": None,
            "detail": {},
            "hash": "",
        }
        rows.append(row)
    with store.write() as connection:
        connection.execute(schema.audit.insert(), rows)


def audit_size(store):
    return len(list(SqlAudit(store).lines()))
