"""Events: read from the timeline in order, from any number on, and never past one that may still appear."""

from pathlib import Path

import pytest

from gateway.domain.events import table
from gateway.events import Feed
from gateway.store import queries, schema
from gateway.store.database import opened
from gateway.store.store import Store
from tests.builders import T0

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(database_url: str):
    store = Store(opened(database_url))
    yield store
    store.close()


def happen(store: Store, *lines: str, job: str = "job-1") -> None:
    for line in lines:
        queries.write_line(store, job, "scheduler", T0, line, "n1", {"task": "a"})


def names(page) -> list[str]:
    return [e.name for e in page.events]


def test_events_come_in_order_and_from_any_number_on(store: Store):
    feed = Feed(store)
    happen(store, "job PENDING", "heard", "job READY", "job RUNNING", "task RUNNING", "heard", "task SUCCESS")
    happen(store, "job FINISHED")
    page = feed.after(0)
    assert names(page) == ["created", "ready", "started", "task_started", "task_ended", "finished"]
    assert page.next == feed.newest() == 8
    assert names(feed.after(page.events[3].id)) == ["task_ended", "finished"]
    assert feed.after(page.next).events == ()
    few = feed.after(0, limit=2)
    assert names(few) == ["created", "ready"] and few.next == few.events[-1].id
    assert names(feed.after(0, ("finished", "created"))) == ["created", "finished"]
    happen(store, "job PENDING", job="job-2")
    assert [e.job_id for e in feed.after(0, job_id="job-2").events] == ["job-2"]


def test_numbers_go_on_after_a_job_was_deleted(store: Store):
    """Else a reader that has come to the newest would miss what takes the same number again."""
    feed = Feed(store)
    happen(store, "job PENDING", "job FINISHED")
    store.add_submission("job-1", "flow", "n1", T0)
    read = feed.after(0).next
    assert queries.drop_job(store, "job-1", T0, "operator", {})
    happen(store, "job PENDING", job="job-2")
    assert [(e.name, e.job_id) for e in feed.after(read).events] == [("deleted", "job-1"), ("created", "job-2")]


def test_a_gap_among_new_numbers_is_waited_for_but_not_for_ever(store: Store):
    now = [100.0]
    feed = Feed(store, timeout=10.0, monotonic=lambda: now[0])
    feed._timeout = 10.0  # as with a database that many write to
    happen(store, *["job PENDING"] * 5)
    assert feed.after(0).next == 5
    with store.write() as connection:
        connection.execute(schema.timeline.delete().where(schema.timeline.c.id == 3))
    feed = Feed(store, monotonic=lambda: now[0])
    feed._timeout = 10.0
    assert feed.after(0).next == 2, "number 3 may be another's that is about to appear"
    with store.write() as connection:
        row = {"id": 3, "job_id": "job-late", "side": "scheduler", "at": 0.0, "actor": "", "detail": "{}"}
        connection.execute(schema.timeline.insert().values(event="job FINISHED", **row))
    assert [e.id for e in feed.after(2).events] == [3, 4, 5]
    with store.write() as connection:
        connection.execute(schema.timeline.delete().where(schema.timeline.c.id == 4))
    assert feed.after(3).next == 3
    now[0] += 10.5
    assert feed.after(3).next == 5, "nobody came: the number is not used"


def test_the_document_shows_the_table_of_the_code():
    for name in ("events.md", "events.zh-CN.md"):
        assert table() in (ROOT / "docs" / name).read_text(encoding="utf-8"), name


@pytest.mark.mariadb
def test_what_becomes_visible_late_is_not_passed_over(mariadb_url: str):
    """Of two writers the one with the lower number commits last."""
    store = Store(opened(mariadb_url))
    try:
        feed, start = Feed(store), Feed(store).newest()
        with store.write() as slow:
            row = {"job_id": "job-slow", "side": "scheduler", "at": 0.0, "actor": "", "detail": "{}"}
            slow.execute(schema.timeline.insert().values(event="job PENDING", **row))
            happen(store, "job PENDING", job="job-quick")
            assert feed.newest() > start
            page = feed.after(start)
            assert page.events == () and page.next == start
        assert [e.job_id for e in feed.after(page.next).events] == ["job-slow", "job-quick"]
    finally:
        store.close()
