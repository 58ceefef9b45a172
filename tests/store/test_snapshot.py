"""A database copied as it was at one moment, and an empty one filled with the copy."""

from datetime import UTC, datetime
from itertools import count

import pytest

from gateway.errors import Invalid
from gateway.store import schema
from gateway.store.audit import SqlAudit
from gateway.store.snapshot import fill, snapshot
from tests.contracts.databases import a_store

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
