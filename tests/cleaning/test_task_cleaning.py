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


def request_cleaning(
    node,
    partner,
    job_id,
    **fields,
):
    """Have a partner request the deletion of a task's outputs; return the response's body."""
    headers = {
        "x-source-node-id": partner,
        "x-target-node-id": ME,
    }
    response = node.post(
        "/v1/interconn/schedule/task/clean",
        {
            "job_id": job_id,
            "task_name": "a",
            **fields,
        },
        listener="peer",
        headers=headers,
    )
    return response.json()


def clean(
    node,
    job_id,
    status=200,
    task="a",
    **query,
):
    """Delete the outputs of a task at every node of its job; return the response's body."""
    path = f"{job_id}/tasks/{task}/outputs"
    return delete(
        node,
        path,
        status,
        everywhere=1,
        **query,
    )


def stored_outputs(node, job_id):
    """Return the folders of a job's outputs in a node's storage."""
    return list(node.storage.root.glob(f"{job_id}*/*"))


def test_a_task_is_cleaned_at_every_node_of_its_job(tmp_path):
    with pair(tmp_path, engine=PATIENT_ENGINE) as (scheduler, participant):
        job_id = run_job(tmp_path / "register", scheduler, participant)

        by_participant = clean(participant, job_id, task="first")
        dry_run = clean(
            scheduler,
            job_id,
            task="first",
            dry_run=1,
        )
        assert by_participant["nodes"][ME]["reason"] == "NOT_AUTHORISED"
        assert dry_run["nodes"][PEER] == {
            "deleted": False,
            "reason": "",
            "message": "",
        }
        assert stored_outputs(scheduler, job_id)

        cleaned = clean(scheduler, job_id, task="first")

        assert cleaned["nodes"][PEER]["deleted"]
        for node in (scheduler, participant):
            assert stored_outputs(node, job_id) == []
            assert node.store.record(job_id)


def test_nothing_is_cleaned_while_a_node_is_unreachable(node):
    run = run_left_behind(node, "job-silent", 5)

    refusal = clean(node, "job-silent", 503)

    result = refusal["data"]["nodes"][PEER]
    assert result["reason"] == "PEER_UNREACHABLE"
    assert all(are_stored(node, run))


def test_a_task_of_a_running_or_an_unknown_job_is_not_cleaned(node):
    run = run_left_behind(node, "job-runs", 5)

    clean(node, "job-runs", 404, task="none")
    clean(node, "job-none", 404)
    set_status(node, "job-runs", JobStatus.RUNNING)
    refusal = clean(node, "job-runs", 409)

    assert refusal["data"]["reason"] == "JOB_NOT_ENDED"
    assert all(are_stored(node, run))


@pytest.mark.parametrize(
    ("content", "remaining"),
    [("outputs", 1), ("metrics", 2)],
)
def test_a_partner_that_schedules_the_job_may_clean_its_tasks(node, content, remaining):
    job_id = f"job-of-partner-{content}"
    local = left_behind(
        node,
        job_id,
        5,
        scheduler=PEER,
    )
    (run,) = local.runs

    response = request_cleaning(
        node,
        PEER,
        job_id,
        content=content,
        dry_run=True,
    )
    assert response["code"] == 0
    assert all(are_stored(node, run))

    for _ in range(2):  # a repeated request changes nothing
        response = request_cleaning(
            node,
            PEER,
            job_id,
            content=content,
        )
        assert response["code"] == 0
        stored = are_stored(node, run)
        assert stored.count(True) == remaining
        assert events_of(node, job_id) == [("outputs deleted", PEER)]
    audit = node.get("/api/v1/audit").json()["audit"]
    actions = [entry["action"] for entry in audit]
    assert actions.count(f"outputs of job {job_id} deleted by a partner") == 1


def test_a_partner_that_does_not_schedule_the_job_may_not_clean_it(node):
    run = run_left_behind(node, "job-ours", 5)

    response = request_cleaning(node, PEER, "job-ours")
    assert response["data"]["reason"] == "NOT_AUTHORISED"

    # An outsider learns nothing: same response for an existing job and for an unknown one.
    for job_id in ("job-ours", "job-none"):
        response = request_cleaning(node, OUTSIDER, job_id)
        assert response["code"] == 0
    assert all(are_stored(node, run))


def test_an_unknown_content_is_refused(node):
    response = request_cleaning(
        node,
        PEER,
        "job-x",
        content="everything",
    )
    assert "content" in response["msg"]
