"""The copy of a job that people change and submit as a new one."""

import copy
from dataclasses import replace
from typing import Any

from adapter.bfia.examples import A_JOB, A_PROVIDER
from gateway.auth import Role
from gateway.domain.job import Job
from gateway.domain.spec import Amendment
from gateway.domain.states import JobStatus, Outcome
from tests.builders import T0, a_job, a_spec
from tests.cleaning.ended import a_job_over, left_behind
from tests.inprocess import ME, PEER, Node, token_of
from tests.world import NodeSetup

TOKEN = "0123456789abcdef0123"
NODE = NodeSetup(token=TOKEN, providers=[A_PROVIDER])
CREATE_ALL = "/v1/platform/schedule/job/create_all"
ROLES = {
    "guest": (ME,),
    "host": (PEER,),
}


def copied(node: Node, job_id: str) -> dict[str, Any]:
    """Return the copy of a job with its notes."""
    response = node.get(f"/api/v1/jobs/{job_id}/copy", token=TOKEN)
    assert response.status_code == 200, response.text
    fields: dict[str, Any] = response.json()
    return fields


def a_scheduled_job(
    job_id: str,
    dag: str,
    **changes: Any,
) -> Job:
    """Build an ended job of a guest here and a host elsewhere; ``changes``: fields of its spec."""
    spec = a_spec(dag, ROLES, job_id=job_id, **changes)
    job = a_job(spec.dag, JobStatus.FINISHED, spec=spec)
    return replace(job, outcome=Outcome.STOPPED, ended_at=T0)


def test_a_copy_is_the_body_that_submitted_the_job(node):
    body = copy.deepcopy(A_JOB)
    body["config"]["initiator"]["node_id"] = ME
    body["config"]["role"] = {
        "guest": [ME],
        "host": [ME],
    }
    parameters = {"echo_1": {"text": "中文"}}
    body["config"]["task_params"]["host"] = {"0": parameters}
    submitted = node.post(CREATE_ALL, body, token=TOKEN)
    job_id = submitted.json()["data"]["job_id"]

    copy_of_job = copied(node, job_id)

    job = copy_of_job["job"]
    # The node has added its own defaults.
    settings = job["config"]["job_params"]["common"]
    assert settings["sync_type"] == "poll"
    job["config"]["job_params"] = body["config"]["job_params"]
    assert job == body
    assert copy_of_job["left_out"] == []
    assert copy_of_job["foreign_parties"] == []


def test_a_copy_has_the_changes_made_under_way_but_nothing_inherited(node):
    job = a_scheduled_job(
        "job-amended",
        "a -> b",
        job_params={"common": {"inherit": ["a"]}},
        task_params={"common": {"b": {"trees": 5, "depth": 2}}},
        old_job_id="job-older",
    )
    changes = {"common": {"b": {"trees": 9}}}
    amendment = Amendment(
        "1",
        changes,
        ME,
        "sooner",
        T0,
    )
    amended = replace(job, amendments=(amendment,))
    node.store.jobs.add(amended, "flow")

    body = copied(node, "job-amended")["job"]

    config = body["config"]
    assert config["task_params"]["common"]["b"] == {
        "trees": 9,
        "depth": 2,
    }
    assert config["job_params"] == {"common": {}}
    assert "old_job_id" not in body
    assert "job_id" not in body


def test_a_copy_lacks_secrets_and_says_which(node):
    """Attack: a user of this node reads the password in the job of another person."""
    parameters = {
        "database": {
            "password": "hunter2",
            "rows": 5,
        },
        "source": "https://ann:hunter2@bank/table",
    }
    job = a_scheduled_job(
        "job-secret",
        "c",
        task_params={"common": {"c": parameters}},
    )
    node.store.jobs.add(job, "flow")

    copy_of_job = copied(node, "job-secret")

    assert "hunter2" not in str(copy_of_job)
    config = copy_of_job["job"]["config"]
    copied_parameters = config["task_params"]["common"]["c"]
    assert copied_parameters == {"database": {"rows": 5}}
    path = "config.task_params.common.c"
    assert copy_of_job["left_out"] == [
        f"{path}.database.password",
        f"{path}.source",
    ]


def test_a_partner_copies_a_job_as_its_initiator_and_learns_its_gaps(node):
    ended = a_job_over("job-theirs", 60.0, scheduler=PEER)
    spec = replace(
        ended.spec,
        initiator=PEER,
        initiator_role="host",
        task_params={"host": {"0": {}}},
    )
    theirs = replace(ended, spec=spec)
    node.store.local_jobs.add(theirs, "flow")

    copy_of_job = copied(node, "job-theirs")

    config = copy_of_job["job"]["config"]
    assert config["initiator"] == {
        "role": "guest",
        "node_id": ME,
    }
    assert copy_of_job["foreign_parties"] == ["host.0"]


def test_a_viewer_gets_no_copy(node):
    left_behind(node, "job-viewed", 60.0)
    viewer = token_of(node, Role.VIEWER)

    response = node.get("/api/v1/jobs/job-viewed/copy", token=viewer)

    assert response.status_code == 403
