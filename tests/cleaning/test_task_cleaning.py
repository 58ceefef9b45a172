"""Deleting the outputs of one task of an ended job at every node of the job."""

import pytest

from gateway.domain.states import JobStatus
from tests.cleaning.ended import are_stored, left_behind, run_job, run_left_behind
from tests.cleaning.test_delete import OUTSIDER, delete, events_of, set_status
from tests.e2e.jobs import PATIENT_ENGINE
from tests.inprocess import ME, PEER, pair
from tests.world import UNREACHABLE, NodeSetup

# Its partners do not respond.
NODE = NodeSetup(routes={PEER: UNREACHABLE, OUTSIDER: UNREACHABLE})


def request_cleaning(node, partner, job_id, **fields):
    """Have a partner request the deletion of a task's outputs; return the response's body."""
    headers = {
        "x-source-node-id": partner,
        "x-target-node-id": ME,
    }
    response = node.post(
        "/v1/interconn/schedule/task/clean",
        {"job_id": job_id, "task_name": "a", **fields},
        listener="peer",
        headers=headers,
    )
    return response.json()


def stored_outputs(node, job_id):
    """Return the folders of a job's outputs in a node's storage."""
    return list(node.storage.root.glob(f"{job_id}*/*"))


def test_a_task_is_cleaned_at_every_node_of_its_job(tmp_path):
    with pair(tmp_path, engine=PATIENT_ENGINE) as (scheduler, participant):
        job_id = run_job(tmp_path / "register", scheduler, participant)
        outputs = f"{job_id}/tasks/first/outputs"

        refused = delete(participant, outputs, everywhere=1)["nodes"][ME]
        dry_run = delete(scheduler, outputs, everywhere=1, dry_run=1)
        assert refused["reason"] == "NOT_AUTHORISED"
        assert dry_run["nodes"] == {PEER: {"deleted": False, "reason": "", "message": ""}}
        assert stored_outputs(scheduler, job_id)

        cleaned = delete(scheduler, outputs, everywhere=1)

        assert cleaned["nodes"] == {PEER: {"deleted": True, "reason": "", "message": ""}}
        for node in (scheduler, participant):
            assert stored_outputs(node, job_id) == []
            assert node.store.record(job_id)


def test_nothing_is_cleaned_while_a_node_is_unreachable(node):
    run = run_left_behind(node, "job-silent", 5)

    refusal = delete(node, "job-silent/tasks/a/outputs", 503, everywhere=1)

    assert refusal["data"]["nodes"][PEER]["reason"] == "PEER_UNREACHABLE"
    assert all(are_stored(node, run))


def test_a_task_of_a_running_or_an_unknown_job_is_not_cleaned(node):
    run = run_left_behind(node, "job-runs", 5)

    delete(node, "job-runs/tasks/none/outputs", 404, everywhere=1)
    delete(node, "job-none/tasks/a/outputs", 404, everywhere=1)
    set_status(node, "job-runs", JobStatus.RUNNING)
    refusal = delete(node, "job-runs/tasks/a/outputs", 409, everywhere=1)

    assert refusal["data"]["reason"] == "JOB_NOT_ENDED"
    assert all(are_stored(node, run))


@pytest.mark.parametrize(
    ("content", "remaining"),
    [("outputs", 1), ("metrics", 2)],
)
def test_a_partner_that_schedules_the_job_may_clean_its_tasks(node, content, remaining):
    job_id = f"job-of-partner-{content}"
    (run,) = left_behind(node, job_id, 5, scheduler=PEER).runs

    assert request_cleaning(node, PEER, job_id, content=content, dry_run=True)["code"] == 0
    assert all(are_stored(node, run))

    for _ in range(2):  # a repeated request changes nothing
        assert request_cleaning(node, PEER, job_id, content=content)["code"] == 0
        assert are_stored(node, run).count(True) == remaining
        assert events_of(node, job_id) == [("outputs deleted", PEER)]
    audited = node.get("/api/v1/audit").json()["audit"]
    assert sum(f"outputs of job {job_id} deleted" in entry["action"] for entry in audited) == 1


def test_a_partner_that_does_not_schedule_the_job_may_not_clean_it(node):
    (run,) = left_behind(node, "job-ours", 5).runs

    response = request_cleaning(node, PEER, "job-ours")
    assert response["data"]["reason"] == "NOT_AUTHORISED"

    # An outsider learns nothing: same response for an existing job and for an unknown one.
    for job_id in ("job-ours", "job-none"):
        assert request_cleaning(node, OUTSIDER, job_id)["code"] == 0
    assert all(are_stored(node, run))


def test_an_unknown_content_is_refused(node):
    response = request_cleaning(node, PEER, "job-x", content="everything")
    assert "content" in response["msg"]
