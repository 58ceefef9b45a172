"""Outages of the database: named, waited for, and nothing that must not be lost is lost."""

from contextlib import contextmanager

import pytest
from structlog.testing import capture_logs

from gateway.bootstrap import parts
from gateway.errors import DatabaseAway
from gateway.runtime.loop import wait_for_database
from gateway.store.database import connect, open_database
from gateway.store.store import Store
from tests.builders import raising
from tests.core.example_jobs import IMAGE, PLATFORM, submit_job
from tests.e2e.nodes import free_ports, wait_for
from tests.memory_engine import Script
from tests.world import NodeSetup

NODE = NodeSetup()


@pytest.fixture
def unreachable_url():
    """The address of a database where nothing listens."""
    [port] = free_ports(1)
    return f"mysql+pymysql://a:b@127.0.0.1:{port}/c"


def test_a_database_that_does_not_answer_is_named(unreachable_url):
    store = Store(connect(unreachable_url))

    with pytest.raises(DatabaseAway, match="does not answer"):
        store.jobs.find("job")
    with pytest.raises(DatabaseAway, match="does not answer"):
        store.installation()
    store.close()


def test_a_node_waits_for_its_database_and_says_so(unreachable_url):
    pauses = []

    def connect_after_70_pauses():
        if len(pauses) < 70:
            open_database(unreachable_url)
        return "connected"

    with capture_logs() as log:
        assert parts.connect_when_ready(connect_after_70_pauses, pauses.append) == "connected"

    warnings = [line for line in log if line["event"].startswith("nothing is served")]
    assert len(pauses) == 70
    assert len(warnings) == 2, f"the second after a minute: {log}"
    assert "refused" in warnings[0]["cause"]


@pytest.mark.mariadb
def test_a_connection_that_breaks_is_named_and_the_next_one_is_new(mariadb_url):
    store = Store(open_database(mariadb_url))

    with pytest.raises(DatabaseAway), store.write() as connection:
        number = connection.exec_driver_sql("select connection_id()").scalar()
        with store.read() as second_connection:
            second_connection.exec_driver_sql(f"kill {number}")
        connection.exec_driver_sql("select 1")

    assert store.installation()
    store.close()


@pytest.mark.postgresql
def test_a_session_that_the_server_ends_is_named_and_the_next_one_is_new(postgresql_url):
    store = Store(open_database(postgresql_url))

    with pytest.raises(DatabaseAway), store.write() as connection:
        number = connection.exec_driver_sql("select pg_backend_pid()").scalar()
        with store.read() as second_connection:
            second_connection.exec_driver_sql(f"select pg_terminate_backend({number}, 5000)")
        connection.exec_driver_sql("select 1")

    assert store.installation()
    store.close()


class Work:
    """Work that fails without the database some times, then succeeds."""

    def __init__(self, failures):
        self.failures = failures
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.calls <= self.failures:
            raise DatabaseAway("away")
        return "done"


def test_work_that_must_not_be_lost_is_repeated_until_the_database_is_back():
    work = Work(failures=2)

    assert wait_for_database(work, pause=0.01) == "done"
    assert work.calls == 3


def test_work_is_not_repeated_for_ever_without_the_database():
    work = Work(failures=float("inf"))

    with pytest.raises(DatabaseAway):
        wait_for_database(
            work,
            seconds=0.05,
            pause=0.01,
        )


def test_requests_get_503_while_the_database_is_away(node, monkeypatch):
    monkeypatch.setattr(
        node.store.jobs,
        "find",
        raising(DatabaseAway("away")),
    )

    response = node.get(
        f"{PLATFORM}/status_all",
        params={"job_id": "job-1"},
    )

    assert response.status_code == 503
    assert response.json()["code"] == 503
    assert response.json()["data"]["reason"] == "DATABASE_AWAY"


def test_the_start_of_a_container_is_stored_once_the_database_is_back(world, monkeypatch):
    """A lost start would be repeated only after the deadline of a launch, which is two minutes."""
    node = world.node(scripts={IMAGE: Script(None)})
    usual_write = node.store.write
    failures = []

    @contextmanager
    def write():
        if node.engine.launches and len(failures) < 3:
            failures.append("away")
            raise DatabaseAway("away")
        with usual_write() as connection:
            yield connection

    monkeypatch.setattr(node.store, "write", write)
    job_id = submit_job(node)

    def is_running():
        statuses = {str(run.status) for run in node.store.local_jobs.get(job_id).runs}
        return "RUNNING" in statuses

    wait_for(is_running, 60, 0.05)
    assert failures
    node.engine.finish(node.engine.launches[0].name)
