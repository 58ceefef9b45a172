"""kill -9 at the end of a training: the model is saved once at every party, before the job is told FINISHED."""

from pathlib import Path

import pytest

from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, process_engine, wait_for

TREES = "hetero_secureboost_1"


def events(node: Node, job_id: str, name: str) -> list[str]:
    """Return when the node noted this."""
    return [e["at"] for e in node.timeline(job_id) if e["event"] == name]


def reached(node: Node, job_id: str, phase: str) -> bool:
    if phase == "run SUCCESS":
        return len(events(node, job_id, phase)) == 2
    return bool(events(node, job_id, phase))


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["run SUCCESS", "model saved"])
@pytest.mark.parametrize("victim", [jobs.GUEST, jobs.HOST], ids=["scheduler", "partner"])
def test_the_model_is_saved_before_the_end_is_told_whoever_dies_when(tmp_path: Path, victim: str, phase: str):
    with Federation(tmp_path, [jobs.GUEST, jobs.HOST], process_engine("unionpay:2.0.0")) as federation:
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        guest = federation[jobs.GUEST]
        job_id = guest.submit(jobs.quick_job(jobs.GUEST, jobs.HOST))
        wait_for(lambda: reached(federation[victim], job_id, phase), 90, 0.01, f"{phase} at {victim}")
        federation[victim].kill()
        federation[victim].start()
        guest.wait_job(job_id, 120)
        (told,) = events(guest, job_id, "job FINISHED")
        for node in federation.nodes.values():
            (saved,) = events(node, job_id, "model saved")
            assert saved <= told
            (model,) = node.get("/api/v1/models")["models"]
            assert model["version"] == job_id
            assert node.get(model["url"], verify="1")["damage"] == []
            starts = events(node, job_id, "run RUNNING")
            assert len(starts) == 2, starts
