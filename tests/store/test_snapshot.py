"""A database copied as it was at one moment, and an empty one filled with the copy."""

from datetime import UTC, datetime
from itertools import count

import pytest

from gateway.errors import Invalid
from gateway.store import schema
from gateway.store.audit import SqlAudit
from gateway.store.snapshot import fill, snapshot
from gateway.store.store import Store
from tests.contracts.databases import a_store

AT = datetime(2026, 1, 1, tzinfo=UTC)


def lines(store: Store) -> int:
    return sum(1 for _ in SqlAudit(store).lines())


def test_rows_written_during_a_copy_are_not_in_it(stores: tuple[Store, Store], tmp_path):
    ours, other = stores
    row = {
        "at": AT,
        "action": "test",
        "status": 200,
        "code": None,
        "detail": {},
        "hash": "",
    }
    with ours.write() as connection:  # more than one statement of a copy inserts
        connection.execute(
            schema.audit.insert(), [row | {"who": f"ann {number} 'ü'"} for number in range(1200)]
        )
    with snapshot(ours) as tables:
        copied = []
        for name, rows in tables:
            if len(copied) == 1:
                SqlAudit(other).add(AT, "bob", "late", 200, None, {})
            copied.append((name, list(rows)))
    assert lines(ours) == 1201 and len(dict(copied)["audit"]) == 1200
    with a_store(f"sqlite:///{tmp_path / 'made.db'}") as made:
        counts = fill(made, ((name, iter(rows)) for name, rows in copied))
        assert counts["audit"] == lines(made) == 1200 and counts["resource_pool"] == 1
        assert [row["who"] for row in SqlAudit(made).lines()][:2] == ["ann 0 'ü'", "ann 1 'ü'"]
        with pytest.raises(Invalid) as caught:
            fill(made, ())
        assert caught.value.reason == "DATABASE_NOT_EMPTY" and lines(made) == 1200


def test_a_failed_copy_leaves_the_database_empty(store: Store):
    def broken():
        yield from ({"id": f"t{n}", "gone": n} for n in count())

    with pytest.raises(Exception, match="gone"):
        fill(store, [("token", broken())])
    with store.read() as connection:
        assert connection.execute(schema.token.select()).first() is None
