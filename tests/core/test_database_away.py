"""A database that is away for a moment loses nothing, and is named while it is away."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from gateway.errors import DatabaseAway
from gateway.runtime.loop import while_away
from gateway.store.database import connect, opened
from gateway.store.store import Store
from tests.core.test_shells import submit
from tests.e2e.nodes import free_ports, wait_for
from tests.inprocess import ask, running
from tests.memory_engine import MemoryEngine, Script


def test_a_database_that_is_not_there_is_named():
    store = Store(connect(f"mysql+pymysql://a:b@127.0.0.1:{free_ports(1)[0]}/c"))
    for work in (lambda: store.jobs.find("job"), store.installation):
        with pytest.raises(DatabaseAway, match="does not answer"):
            work()
    store.close()


@pytest.mark.mariadb
def test_a_connection_that_breaks_is_named_and_the_next_one_is_new(mariadb_url: str):
    store = Store(opened(mariadb_url))
    with pytest.raises(DatabaseAway), store.write() as connection:
        number = connection.exec_driver_sql("select connection_id()").scalar()
        with store.read() as other:
            other.exec_driver_sql(f"kill {number}")
        connection.exec_driver_sql("select 1")
    assert store.installation()
    store.close()


def test_what_must_not_be_lost_is_done_once_the_database_is_back():
    tries: list[int] = []

    def work() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise DatabaseAway("away")
        return "done"

    assert while_away(work, pause=0.01) == "done" and len(tries) == 3
    with pytest.raises(DatabaseAway):
        while_away(lambda: (_ for _ in ()).throw(DatabaseAway("away")), seconds=0.05, pause=0.01)


def test_a_peer_is_told_to_come_again_and_not_that_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with running(tmp_path) as node:

        def away(job_id: str) -> None:
            raise DatabaseAway("away")

        monkeypatch.setattr(node.store.jobs, "find", away)
        answer = ask(node, "operator", "GET", "/v1/platform/schedule/job/status_all", params={"job_id": "job-1"})
        assert answer.status_code == 503
        assert answer.json()["code"] == 503 and answer.json()["data"]["reason"] == "DATABASE_AWAY"


def test_that_a_container_was_started_is_stored_once_the_database_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It would be started again only after the deadline of a launch, which is two minutes."""
    engines: list[MemoryEngine] = []

    def engine(settings: object, installation: str) -> MemoryEngine:
        node = settings.node.id  # type: ignore[attr-defined]
        engines.append(MemoryEngine(node=node, installation=installation, images={"example:1.0.0": Script(None)}))
        return engines[-1]

    with running(tmp_path, make_engine=engine) as node:
        write, lost = node.store.write, list[int]()

        @contextmanager
        def away_for_a_moment() -> Iterator[sa.Connection]:
            if engines[0].launches and len(lost) < 3:
                lost.append(1)
                raise DatabaseAway("away")
            with write() as connection:
                yield connection

        monkeypatch.setattr(node.store, "write", away_for_a_moment)
        job_id = submit(node).json()["data"]["job_id"]
        wait_for(lambda: "RUNNING" in {str(r.status) for r in node.store.local_jobs.get(job_id).runs}, 60, 0.05)
        assert lost
        engines[0].finish(engines[0].launches[0].name)
