"""A job whose record cannot be read ends as ABNORMAL; the node starts, and all others go on."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from engines.base import Missing
from gateway.bootstrap.node import Gateway
from gateway.errors import Unreadable
from gateway.store import schema
from tests.contracts.apis import serving
from tests.core.test_shells import submit
from tests.e2e.nodes import wait_for
from tests.inprocess import ask, running, settings

IMAGE = "example:1.0.0"


def test_a_job_that_cannot_be_read_ends_and_the_node_goes_on(tmp_path: Path) -> None:
    engine = {"kind": "process", "process": {"images": {IMAGE: {"command": ["/bin/sleep", "100"]}}}}
    with serving(Gateway(settings(tmp_path, engine=engine))) as node:  # its containers outlive it
        broken, fine = (submit(node).json()["data"]["job_id"] for _ in range(2))
        for job_id in (broken, fine):
            wait_for(lambda job_id=job_id: _started(node, job_id), 20, 0.02, "its containers are up")
        (name, *_) = (run.name for run in node.store.local_jobs.get(broken).runs)
    url = f"sqlite:///{tmp_path / 'gateway.db'}"
    with sa.create_engine(url).begin() as connection:
        for t in (schema.job, schema.local_job):
            connection.execute(t.update().where(t.c.job_id == broken).values(state='{"status": "NOWHERE"}'))
    with running(tmp_path, engine=engine) as node:
        with pytest.raises(Unreadable) as caught:
            node.store.local_jobs.get(broken)
        assert caught.value.reason == "ABNORMAL"
        wait_for(lambda: _status(node.store, broken) == ("FINISHED", "FAILED"), 30, 0.05, "it has ended")
        wait_for(lambda: node.engine.probe(name) == Missing(), 30, 0.05, "its container is removed")
        told = {e.event: e.detail for e in node.store.timeline(broken)}
        assert told["job ABNORMAL"]["reason"] == "ABNORMAL" and broken in told["job ABNORMAL"]["message"]
        assert str(node.store.jobs.get(fine).status) == "RUNNING"
        answer = ask(node, "operator", "GET", "/v1/platform/schedule/job/status_all", params={"job_id": broken})
        assert answer.status_code == 200 and answer.json()["code"] in (404, 409)
        assert ask(node, "operator", "GET", "/v1/platform/schedule/job/query_job_list").json()["code"] == 0
        assert ask(node, "operator", "GET", "/api/v1/gc").status_code == 200
        node.coordinator.stop_job(fine, "", "")
        wait_for(lambda: node.store.local_jobs.get(fine).closed, 30, 0.05, "the other one ends as ever")


def _started(node: Gateway, job_id: str) -> bool:
    runs = node.store.local_jobs.get(job_id).runs
    return bool(runs) and all(run.started_at for run in runs)


def _status(store: object, job_id: str) -> tuple[str, str]:
    t = schema.job
    with store.read() as connection:  # type: ignore[attr-defined]
        row = connection.execute(sa.select(t.c.status, t.c.outcome).where(t.c.job_id == job_id)).one()
    return str(row.status), str(row.outcome)
