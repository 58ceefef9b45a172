"""Emptying a node: nothing new is taken, what runs ends or is stopped, the process leaves with code 0."""

import pytest

from gateway.errors import PeerUnreachable, Refused
from gateway.jobs.drain import Drain
from gateway.jobs.intake import Intake
from tests import inprocess
from tests.cleaning.ended import left_behind
from tests.e2e.nodes import wait_for
from tests.inprocess import ask


def test_a_node_without_jobs_drains_at_once_and_says_so(tmp_path):
    with inprocess.running(tmp_path) as node:
        left: list[bool] = []
        node.drain.on_empty(lambda: left.append(True))
        left_behind(node, "job-old", 5)
        assert ask(node, "operator", "GET", "/api/v1/drain").json()["draining"] is False
        state = ask(node, "operator", "POST", "/api/v1/drain", json={}).json()
        assert state["draining"] is True
        assert state["running"] == "wait"
        assert state["exit"] is True
        wait_for(lambda: left, 30)
        assert ask(node, "operator", "POST", "/api/v1/undrain").json()["draining"] is False
        wrong = ask(node, "operator", "POST", "/api/v1/drain", json={"running": "kill"})
        assert wrong.status_code < 500
        assert wrong.json()["code"] != 0


def test_a_job_that_cannot_be_stopped_now_is_stopped_later(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.jobs.drain.STOP_AGAIN", 0.05)
    monkeypatch.setattr("gateway.store.queries.under_way", lambda store: [("job-1", "RUNNING")])
    asked: list[str] = []

    def stop(job_id: str) -> None:
        asked.append(job_id)
        raise PeerUnreachable("no answer")

    with inprocess.running(tmp_path) as node:
        drain = Drain(node.store, stop, node.clock, 0.02)
        drain.begin(stop=True, leave=True)
        wait_for(lambda: len(asked) >= 3, 30)
        with pytest.raises(Refused) as caught:
            Intake(drain.draining, lambda node: None, lambda node: True).check()
        assert caught.value.reason == "DRAINING"
        drain.close()
