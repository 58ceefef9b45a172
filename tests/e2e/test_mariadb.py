"""Two nodes, each on a MariaDB database of its own: the user's job, through the death of a gateway."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.contracts.databases import careless_database
from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, process_engine, wait_for
from tests.e2e.test_user_job import check_user_job

pytestmark = [pytest.mark.slow, pytest.mark.mariadb]


@pytest.fixture
def federation(tmp_path: Path, worker_id: str) -> Iterator[Federation]:
    with ExitStack() as stack:
        nodes = Federation(tmp_path, [jobs.GUEST, jobs.HOST], process_engine("unionpay:2.0.0"))
        for side, node in zip(("guest", "host"), nodes.nodes.values(), strict=True):
            node.settings["database"] = {"url": stack.enter_context(careless_database(f"{worker_id}_{side}"))}
        yield stack.enter_context(nodes)


def in_database(node: Node, query: str) -> list[tuple[object, ...]]:
    engine = sa.create_engine(node.settings["database"]["url"])
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(query)]
    finally:
        engine.dispose()


def under_way(node: Node, job_id: str, task: str) -> bool:
    return any(t["name"] == task and t["status"] == "RUNNING" for t in node.job(job_id).get("tasks", []))


def test_the_users_job_through_the_death_of_the_scheduling_node(federation: Federation):
    jobs.prepare(federation, jobs.GUEST, jobs.HOST)
    guest, host = federation[jobs.GUEST], federation[jobs.HOST]
    body = jobs.quick_job(jobs.GUEST, jobs.HOST, depth=5)
    body["flow_id"] = "流程-\U0001f600"  # the database's own character set could not hold it
    job_id = guest.submit(body)
    wait_for(lambda: under_way(guest, job_id, "hetero_secureboost_1"), 60, 0.02)
    guest.kill()
    guest.start()
    check_user_job(guest, host, job_id)
    wait_for(lambda: host.job(job_id)["status"] == "FINISHED", 20)
    for node in (guest, host):
        assert len([e for e in node.timeline(job_id) if e["event"] == "run RUNNING"]) == 2  # none began twice
        assert in_database(node, "select job_id, status, outcome, flow_id from local_job") == [
            (job_id, "FINISHED", "SUCCEEDED", body["flow_id"])
        ]
        assert not list(node.home.rglob("*.db"))
    assert in_database(guest, "select job_id, status, outcome from job") == [(job_id, "FINISHED", "SUCCEEDED")]
    assert in_database(host, "select job_id from job") == []
    assert guest.get("/v1/platform/schedule/job/query_job_list", flow_id=body["flow_id"])["data"] == {
        "job_list": {job_id: "FINISHED"}
    }


def test_a_partner_that_dies_takes_up_its_part(federation: Federation):
    jobs.prepare(federation, jobs.GUEST, jobs.HOST)
    guest, host = federation[jobs.GUEST], federation[jobs.HOST]
    body = jobs.quick_job(jobs.GUEST, jobs.HOST)
    job_id = guest.submit(body)
    wait_for(lambda: under_way(guest, job_id, "intersect_rsa_1"), 60, 0.02)
    host.kill()
    host.start()
    assert guest.wait_job(job_id)["progress"] == 100
    assert len([e for e in host.timeline(job_id) if e["event"] == "run RUNNING"]) == 2
