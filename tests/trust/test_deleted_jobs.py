"""A partner's use of a table stays on record after its job is deleted, at either node."""

from uuid import uuid4

import pytest

from gateway.domain.states import JobStatus
from tests.builders import a_spec
from tests.contracts.apis import two_nodes
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, ask, uploaded

TABLE = "bank#credit"


@pytest.fixture
def world(tmp_path):
    with two_nodes(tmp_path) as world:
        uploaded(world.me, *TABLE.split("#"))
        yield world


@pytest.fixture
def finished_job(world):
    """Give a finished job of `PEER` that has read a table of `ME`."""
    params = {
        "guest": {"0": {"a": {"dataset_id": ""}}},
        "host": {"0": {"a": {"dataset_id": TABLE}}},
    }
    roles = {
        "guest": (PEER,),
        "host": (ME,),
    }
    spec = a_spec(
        "a",
        roles,
        job_id=f"job-{uuid4().hex}",
        task_params=params,
    )
    world.peer.coordinator.submit_job(spec, PEER)
    world.end_all(spec)
    world.wait_status(
        spec.job_id,
        JobStatus.FINISHED,
        world.peer,
    )
    world.closed(
        spec.job_id,
        world.me,
        world.peer,
    )
    return spec


def delete(node, spec):
    """Delete a job as an operator of a node, once its partners have answered the stop."""

    def is_deleted():
        response = ask(node, "operator", "DELETE", f"/api/v1/jobs/{spec.job_id}")
        if response.status_code == 200:
            return True
        assert response.json()["data"]["reason"] == "JOB_NOT_ENDED", response.text
        return False

    wait_for(is_deleted, 60)


def events(node, spec):
    """Return the events in a job's timeline."""
    return [entry.event for entry in node.store.timeline(spec.job_id)]


def recorded_use(world, spec):
    """Return the partner's use of tables according to the audit."""
    query = {
        "action": spec.job_id,
        "who": f"node {PEER}",
    }
    audit = ask(world.me, "operator", "GET", "/api/v1/audit", params=query).json()["audit"]
    [use] = [use for entry in audit for use in entry["detail"].get("used", ())]
    return use


def test_a_job_that_its_partner_deletes_stays_on_record(world, finished_job):
    """Attack: a partner reads a table and deletes the job everywhere."""
    before = world.job_view(finished_job)
    events_before = events(world.me, finished_job)

    delete(world.peer, finished_job)

    assert world.peer.store.jobs.find(finished_job.job_id) is None
    after = world.job_view(finished_job)
    for field in ("initiator", "parties", "parameters", "runs"):
        assert after[field] == before[field], field
    [run] = after["runs"]
    assert ask(world.me, "operator", "GET", run["log"]).status_code == 200
    assert events(world.me, finished_job) == [*events_before, "deleted by a partner"]
    use = recorded_use(world, finished_job)
    assert use["at"]
    expected = {
        "task": "a",
        "party": "host.0",
        "component": "vendor/Thing",
        "version": "1.0.0",
        "tables": [TABLE],
        "attempts": 1,
    }
    assert use.items() >= expected.items()


def test_the_use_of_a_table_stays_on_record_if_its_owner_deletes_the_job(world, finished_job):
    delete(world.peer, finished_job)
    use = recorded_use(world, finished_job)

    delete(world.me, finished_job)

    assert world.me.store.local_jobs.find(finished_job.job_id) is None
    [entry] = world.me.store.timeline(finished_job.job_id)
    assert entry.event == "job deleted"
    assert entry.detail["initiator"] == PEER
    assert entry.detail["used"] == [use]
