"""kill -9 of a node in the middle of a job: it is started again, and the job ends as it would have."""

from pathlib import Path

import pytest

from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, process_engine, wait_for

TASKS = ("intersect_rsa_1", "hetero_secureboost_1")


def events(node: Node, job_id: str, name: str) -> list[str]:
    """Return when the node recorded this."""
    return [e["at"] for e in node.timeline(job_id) if e["event"] == name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "victim", "event", "times"),
    [
        ("process", jobs.GUEST, "model saved", 1),
        ("process", jobs.HOST, "run SUCCESS", 2),
        pytest.param("docker", jobs.GUEST, "run RUNNING", 1, marks=pytest.mark.docker),
        pytest.param("docker", jobs.HOST, "run RUNNING", 2, marks=pytest.mark.docker),
    ],
)
def test_a_killed_node_takes_up_where_it_was(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str, victim: str, event: str, times: int
):
    """Nothing is started twice, and the model is saved once at every party before the job is FINISHED."""
    if engine == "docker":
        request.getfixturevalue("reference_image")
    settings = {"kind": "docker"} if engine == "docker" else process_engine("unionpay:2.0.0")
    with Federation(tmp_path, [jobs.GUEST, jobs.HOST], settings) as federation:
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        guest = federation[jobs.GUEST]
        job_id = guest.submit(jobs.quick_job(jobs.GUEST, jobs.HOST))
        wait_for(lambda: len(events(federation[victim], job_id, event)) == times, 90, 0.01, f"{event} at {victim}")
        federation[victim].kill()
        federation[victim].start()
        assert guest.wait_job(job_id, 120)["progress"] == 100
        (finished,) = events(guest, job_id, "job FINISHED")
        for node in federation.nodes.values():
            assert len(events(node, job_id, "run RUNNING")) == len(node.job(job_id)["runs"]) == len(TASKS)
            (saved,) = events(node, job_id, "model saved")
            (model,) = node.get("/api/v1/models")["models"]
            assert saved <= finished and model["version"] == job_id
            assert node.get(model["url"], verify="1")["damage"] == []


@pytest.mark.slow
def test_a_job_is_there_after_a_kill_right_after_the_response(tmp_path: Path):
    with Federation(tmp_path, [jobs.GUEST, jobs.HOST], process_engine("unionpay:2.0.0")) as federation:
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        guest = federation[jobs.GUEST]
        job_id = guest.submit(jobs.quick_job(jobs.GUEST, jobs.HOST))
        guest.kill()
        guest.start()
        guest.wait_job(job_id, 120)
