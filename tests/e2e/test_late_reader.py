"""What a party sent is there until every party of the job here has ended."""

import copy
import sys
from pathlib import Path

import pytest

from adapter.bfia.examples import A_JOB, A_PROVIDER
from tests.e2e import jobs
from tests.e2e.nodes import Federation, process_engine, wait_for


@pytest.mark.slow
def test_a_sender_that_exits_right_after_its_push_loses_nothing(tmp_path: Path):
    may_read = tmp_path / "may-read"
    script = Path(__file__).with_name("late_reader.py")
    engine = process_engine("example:1.0.0", command=[sys.executable, str(script)])
    with Federation(tmp_path, [jobs.GUEST, jobs.HOST], engine) as federation:
        for node in federation.nodes.values():
            node.register(A_PROVIDER)
        body = copy.deepcopy(A_JOB)
        body["dag"]["components"][0]["output"] = []
        body["config"]["role"] = {"guest": [jobs.GUEST], "host": [jobs.HOST]}
        body["config"]["task_params"] = {"common": {"echo_1": {"may_read": str(may_read)}}}
        guest, host = federation[jobs.GUEST], federation[jobs.HOST]
        job_id = guest.submit(body)
        wait_for(
            lambda: [(r["status"], bool(r["ended_at"])) for r in guest.job(job_id)["runs"]] == [("SUCCESS", True)]
        )
        wait_for(lambda: [r["status"] for r in host.job(job_id)["runs"]] == ["RUNNING"])
        assert host.get("/health/ready")["checks"]["channel"]["messages"] == 1
        may_read.touch()
        guest.wait_job(job_id, 60)
        for node in (guest, host):  # and then all of it is given back
            wait_for(lambda node=node: node.get("/health/ready")["checks"]["channel"]["messages"] == 0, 15)
