"""Emptying a node: nothing new is taken, what runs ends or is stopped, the process leaves with code 0."""

import subprocess
from pathlib import Path

import pytest

from gateway.errors import PeerUnreachable, Refused
from gateway.jobs.submission import Drain, Intake
from tests import forks, inprocess
from tests.cleaning.ended import left_behind
from tests.e2e import jobs
from tests.e2e.jobs import job_of, patient_nodes, running
from tests.e2e.nodes import Node, wait_for
from tests.inprocess import ask

CREATE = "/v1/platform/schedule/job/create_all"


def command(node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    return forks.run([*words, "--config", str(node.home / "node.yml")])


@pytest.mark.slow
def test_a_drained_node_lets_its_jobs_end_and_then_exits(tmp_path: Path):
    """What runs ends, or where the node must go is stopped."""
    (register := tmp_path / "register").mkdir()
    with patient_nodes(tmp_path) as two:
        guest, host = two[jobs.GUEST], two[jobs.HOST]

        def submitted(until: Path) -> str:
            job_id = guest.submit(job_of(register, {"first": 0}, until=str(until)))
            wait_for(lambda: len(running(register)) == 2, 60, about="its containers run")
            return job_id

        def refused(at: Node) -> str:
            answer = at.post(CREATE, job_of(register, {"first": 0}))
            assert answer["code"] != 0, answer
            return str(answer["data"]["reason"])

        job_id = submitted(tmp_path / "drained")
        assert command(host, "drain", "--no-wait").returncode == 0
        assert refused(host) == "DRAINING"
        assert refused(guest) == "DRAINING", "a partner of the drained node is told why"
        (tmp_path / "drained").touch()
        guest.wait_job(job_id, 60)
        assert host.process is not None and host.process.wait(60) == 0, host.log()
        host.start()
        assert host.job(job_id)["status"] == "FINISHED"
        job_id = submitted(tmp_path / "never")
        done = command(host, "drain", "--stop")
        assert done.returncode == 0, done.stderr
        assert job_id in done.stdout and "the node has exited" in done.stdout
        assert host.process is not None and host.process.poll() == 0
        guest.wait_job(job_id, 60, "STOPPED")
        assert running(register) == []


def test_a_node_without_jobs_drains_at_once_and_says_so(tmp_path: Path):
    with inprocess.running(tmp_path) as node:
        left: list[bool] = []
        node.drain.on_empty(lambda: left.append(True))
        left_behind(node, "job-old", 5)
        assert ask(node, "operator", "GET", "/api/v1/drain").json()["draining"] is False
        state = ask(node, "operator", "POST", "/api/v1/drain", json={}).json()
        assert (state["draining"], state["running"], state["exit"]) == (True, "wait", True)
        wait_for(lambda: left, 30)
        assert ask(node, "operator", "POST", "/api/v1/undrain").json()["draining"] is False
        wrong = ask(node, "operator", "POST", "/api/v1/drain", json={"running": "kill"})
        assert wrong.status_code < 500 and wrong.json()["code"] != 0


def test_a_job_that_cannot_be_stopped_now_is_stopped_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.jobs.submission.STOP_AGAIN", 0.05)
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
            Intake(drain.draining, lambda node: None).check()
        assert caught.value.reason == "DRAINING"
        drain.close()
