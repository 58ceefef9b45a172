"""kill -9 of a node in the middle of a job: it is started again and the job ends as it would have."""

from pathlib import Path

import pytest

from tests.e2e import jobs
from tests.e2e.conftest import EngineChoice
from tests.e2e.nodes import Federation, Node, process_engine, wait_for

PHASES = ("intersect_rsa_1", "hetero_secureboost_1")


def running(node: Node, job_id: str, task: str) -> bool:
    found = [t for t in node.job(job_id).get("tasks", []) if t["name"] == task]
    return bool(found) and found[0]["status"] in ("RUNNING", "SUCCESS")


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", [jobs.GUEST, jobs.HOST], ids=["scheduler", "partner"])
def test_a_killed_node_takes_up_where_it_was(engine: EngineChoice, tmp_path: Path, victim: str, phase: str):
    with Federation(tmp_path, [jobs.GUEST, jobs.HOST], engine.settings) as federation:
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        guest = federation[jobs.GUEST]
        job_id = guest.submit(jobs.quick_job(jobs.GUEST, jobs.HOST))
        wait_for(lambda: running(guest, job_id, phase), 30, 0.02)
        federation[victim].kill()
        federation[victim].start()
        job = guest.wait_job(job_id, 120)
        assert job["progress"] == 100
        for node in federation.nodes.values():
            starts = [e for e in node.timeline(job_id) if e["event"] == "run RUNNING"]
            assert len(starts) == len(PHASES), starts
            assert len(node.job(job_id)["runs"]) == len(PHASES)


def test_a_job_is_there_after_a_kill_right_behind_the_answer(tmp_path: Path):
    with Federation(tmp_path, [jobs.GUEST, jobs.HOST], process_engine("unionpay:2.0.0")) as federation:
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        guest = federation[jobs.GUEST]
        job_id = guest.submit(jobs.quick_job(jobs.GUEST, jobs.HOST))
        guest.kill()
        guest.start()
        guest.wait_job(job_id, 120)
