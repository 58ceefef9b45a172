"""Drain: the node takes no new jobs, jobs under way end or are stopped, the process leaves."""

import threading

import pytest

from gateway.domain.records import replace
from gateway.domain.spec import Call, CallState, Ending
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import PeerUnreachable, Refused
from gateway.jobs.drain import Drain
from gateway.jobs.intake import Intake
from tests.builders import OK, a_job, at, returning, sent
from tests.cleaning.ended import left_behind
from tests.contracts.databases import a_store
from tests.e2e.nodes import wait_for


def test_a_node_without_jobs_drains_immediately_and_leaves(world):
    node = world.node()
    has_left = threading.Event()
    node.drain.on_empty(has_left.set)
    left_behind(node, "job-old", 5)
    assert node.get("/api/v1/drain").json()["draining"] is False

    state = node.post("/api/v1/drain", {}).json()

    assert state["draining"] is True
    assert state["running"] == "wait"
    assert state["exit"] is True
    assert has_left.wait(30)
    assert node.post("/api/v1/undrain").json()["draining"] is False


@pytest.mark.parametrize(
    ("stop", "unreachable_since", "jobs_left"),
    [
        (Call(), None, ["job-1"]),
        (sent(), None, ["job-1"]),
        (Call(CallState.LOST, at(0), at(60), tries=1), None, []),
        (sent(tries=2), None, []),
        (OK, None, []),
        (Call(), at(0), []),
    ],
    ids=["not sent", "without a response", "lost", "repeated", "answered", "unreachable"],
)
def test_drain_waits_for_the_first_try_of_each_stop(tmp_path, stop, unreachable_since, jobs_left):
    job = a_job(status=JobStatus.RUNNING, a=TaskStatus.SUCCESS)
    told, partner = job.nodes.values()
    nodes = {
        told.node: replace(told, stop=OK),
        partner.node: replace(partner, stop=stop, unreachable_since=unreachable_since),
    }
    ending = Ending(Outcome.SUCCEEDED, at(0))
    job = replace(
        job,
        nodes=nodes,
        status=JobStatus.FINISHED,
        outcome=Outcome.SUCCEEDED,
        ending=ending,
        ended_at=at(0),
    )
    has_left = threading.Event()
    with a_store(f"sqlite:///{tmp_path / 'test.db'}") as store:
        store.jobs.add(job, "flow")
        drain = Drain(store, returning(None), returning(at(1)), 0.02)
        drain.on_empty(has_left.set)

        state = drain.begin(stop_jobs=False, exit_when_empty=True)

        assert [job["job_id"] for job in state["jobs"]] == jobs_left
        if not jobs_left:
            assert has_left.wait(30)
        drain.close()
    assert has_left.is_set() is (not jobs_left)


def test_an_unknown_way_to_drain_is_refused(world):
    node = world.node()
    response = node.post("/api/v1/drain", {"running": "kill"})
    assert response.status_code < 500
    assert response.json()["code"] != 0


def test_a_job_that_cannot_be_stopped_now_is_stopped_later(world, monkeypatch):
    monkeypatch.setattr("gateway.jobs.drain.STOP_AGAIN", 0.05)
    monkeypatch.setattr(
        "gateway.store.queries.jobs_with_work_left",
        returning([("job-1", "RUNNING")]),
    )
    stopped_jobs = []

    def fail_to_stop(job_id):
        stopped_jobs.append(job_id)
        raise PeerUnreachable("no answer")

    def is_stopped_thrice():
        return len(stopped_jobs) >= 3

    node = world.node()
    drain = Drain(
        node.store,
        fail_to_stop,
        node.clock,
        0.02,
    )

    drain.begin(
        stop_jobs=True,
        exit_when_empty=True,
    )

    wait_for(is_stopped_thrice, 30)
    intake = Intake(
        drain.draining,
        returning(None),
        returning(True),
        "bank",
    )
    with pytest.raises(Refused) as refusal:
        intake.check()
    assert refusal.value.reason == "DRAINING"
    drain.close()
