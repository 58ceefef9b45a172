"""Malicious and malformed requests get FATE's envelope with a stable reason and change nothing."""

import json
from itertools import count
from typing import Any

import pytest

from adapter.fate.signing import Signatures
from gateway.config.schema.partners import FateApp, FateSite
from gateway.domain.states import JobStatus
from tests.adapter.fate.flowing import FATE, PATHS, SIGNS, Flow, dag, party, task
from tests.contracts.apis import THIRD, World
from tests.inprocess import ME, PEER, STRANGER

_job_numbers = count(202411220101020000000)
BY_PEER = {"x-source-node-id": PEER}
BY_STRANGER = {"x-source-node-id": STRANGER}
BY_THIRD = {"x-source-node-id": THIRD}
# Every command on an existing job, with its fields besides the names of job, task and party.
COMMANDS: dict[str, dict[str, Any]] = {
    "/partner/job/status/update": {"status": "canceled"},
    "/partner/job/update": {"progress": 50.0},
    "/partner/job/resource/apply": {},
    "/partner/job/resource/return": {},
    "/partner/job/start": {},
    "/partner/job/stop": {},
    "/partner/task/resource/apply": {"task_version": 0},
    "/partner/task/resource/return": {"task_version": 0},
    "/partner/task/start": {"task_version": 0},
    "/partner/task/collect": {"task_version": 0},
    "/partner/task/status/update": {
        "task_version": 0,
        "status": "failed",
    },
    "/partner/task/stop": {"task_version": 0},
    "/partner/task/rerun": {
        "task_version": 0,
        "new_version": 1,
    },
}
# FATE's own nodes answer these commands with success if there is nothing to act on.
SUCCESS_WITHOUT_EFFECT = ("/partner/job/stop", "/partner/task/rerun")
MALFORMED_BODIES = (
    b"[]",
    b"null",
    b'{"job_id": "1"',
    b"\xff\xfe",
    b"[" * 50_000,
    b'{"job_id": NaN}',
)
# More values than a gateway accepts in one request.
MANY_TASKS = {str(number): {} for number in range(9_000)}


@pytest.fixture
def new_job() -> str:
    """The id of a job that does not exist."""
    return str(next(_job_numbers))


@pytest.fixture(scope="module")
def running_job(flow: Flow, world: World) -> str:
    """A job that FATE schedules and that runs its only task at this node, the host."""
    job = str(next(_job_numbers))
    flow.do(job, "job/create", "job/start", "task/start")
    world.run(job, "a", "host.0")
    return job


def state_of(
    world: World,
    job: str,
) -> dict[str, Any]:
    """Return everything of a job that a command can change."""
    local = world.local(job)
    return {
        "status": local.status,
        "ending": local.ending,
        "pool": local.pool,
        "runs": [(run.run_id, run.status) for run in local.runs],
    }


def check_refusal(
    response: dict[str, Any],
    reason: str,
) -> None:
    """Fail unless a response is FATE's envelope of a refusal with this reason."""
    assert response["data"]["reason"] == reason
    assert set(response) == {"code", "message", "data"}
    assert response["code"] not in (0, 500)
    assert response["message"].startswith(reason)


@pytest.mark.parametrize("path", COMMANDS)
def test_commands_of_other_nodes_than_the_scheduler_are_refused(path, flow, world, running_job):
    before = state_of(world, running_job)
    body = {**task(job=running_job), **COMMANDS[path]}

    check_refusal(flow.post(path, body, **BY_PEER), "JOB_UNKNOWN")
    check_refusal(flow.post(path, body, **BY_STRANGER), "NOT_AUTHORISED")

    assert state_of(world, running_job) == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": "guest"},
        {"role": "arbiter"},
        {"role": "host.7"},
        {"party_id": FATE},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", COMMANDS)
def test_commands_to_roles_of_other_nodes_have_no_effect(path, wrong, flow, world, running_job):
    before = state_of(world, running_job)
    body = {**task(job=running_job), **COMMANDS[path], **wrong}

    response = flow.post(path, body)

    succeeds_without_effect = path in SUCCESS_WITHOUT_EFFECT and response["code"] == 0
    if not succeeds_without_effect:
        assert response["data"]["reason"] == "JOB_UNKNOWN"
    assert state_of(world, running_job) == before


def a_dag_with(**fields: Any) -> dict[str, Any]:
    """Return the field ``dag`` of a job, with some of its fields changed."""
    return {"dag": {**dag()["dag"], **fields}}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"role": "guest"}, "ROLE_UNKNOWN"),
        ({"party_id": FATE}, "ROLE_UNKNOWN"),
        ({"job_id": "../../etc"}, "INVALID"),
        ({"job_id": "1_2/3"}, "INVALID"),
        (a_dag_with(parties=[]), "NOT_A_PARTY"),
        (a_dag_with(parties=[{"role": "host", "party_id": [STRANGER]}]), "NOT_A_PARTY"),
        (a_dag_with(tasks={}), "INVALID"),
        ({"dag": dag(STRANGER)["dag"]}, "NOT_AUTHORISED"),
    ],
)
def test_a_job_that_this_node_cannot_join_leaves_nothing(changes, reason, flow, world, new_job):
    body = {**dag(), **party(new_job), **changes}

    response = flow.post("/partner/job/create", body)

    assert response["code"] == 1002 or reason == "INVALID"
    check_refusal(response, reason)
    assert world.me.store.local_jobs.find(body["job_id"]) is None


def checked_fields(path: str) -> set[str]:
    """Return the fields of a request to this path that the test below makes wrong."""
    if path == "/scheduler/job/create":
        return {"dag"}
    if path == "/partner/job/create":
        return {"dag", "job_id"}
    return {"job_id"}


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        7,
        True,
        [{"a": [None]}],
    ],
    ids=str,
)
@pytest.mark.parametrize("path", PATHS)
def test_all_values_of_the_wrong_type_are_reported_together(path, wrong, flow):
    fields = checked_fields(path)
    body = {
        **dag(),
        **task(),
        "status": "running",
        "new_version": 1,
        **dict.fromkeys(fields, wrong),
    }

    response = flow.post(path, body)

    check_refusal(response, "INVALID")
    reported = {problem["path"] for problem in response["data"]["problems"]}
    assert reported >= fields


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_is_no_json_object_is_refused(path, flow):
    headers = {"content-type": "application/json"}

    for content in MALFORMED_BODIES:
        response = flow.request(
            path,
            content=content,
            headers=headers,
        )

        assert response.status_code == 200
        check_refusal(response.json(), "INVALID")


def test_unknown_and_malformed_versions_of_a_task_change_nothing(flow, world, running_job):
    for version in (9, 999_999):
        assert flow.code("/partner/task/start", task(version, "a", running_job)) == 2001
    before = state_of(world, running_job)

    # The current version runs, so nothing is started a second time.
    assert flow.code("/partner/task/start", task(0, "a", running_job)) == 0
    for version in (-1, 10**9, "0x1", 1.5, None):
        body = task(0, "a", running_job) | {"task_version": version}
        check_refusal(flow.post("/partner/task/start", body), "INVALID")

    assert state_of(world, running_job) == before


def test_only_the_scheduling_node_may_rerun_an_ended_job(flow, world, new_job):
    flow.do(new_job, "job/create", "job/start", "job/status/update failed")
    rerun = party(new_job, status="waiting")

    check_refusal(flow.post("/partner/job/status/update", rerun, **BY_PEER), "JOB_UNKNOWN")

    assert world.me.store.local_jobs.find(f"{new_job}-r1") is None


def test_a_partner_that_uses_the_id_of_a_rerun_gains_no_other_job(flow, world, new_job):
    """Attack: another node creates a job with the id that the next rerun would get."""
    flow.do(new_job, "job/create", "job/start", "job/status/update failed")
    foreign_job = {**dag(PEER), **party(f"{new_job}-r1")}
    assert flow.code("/partner/job/create", foreign_job, **BY_PEER) == 0

    response = flow.post("/partner/job/start", party(new_job))

    assert response["data"]["reason"] == "JOB_ENDED"
    assert world.local(f"{new_job}-r1").status is JobStatus.READY


@pytest.fixture
def scheduled_job(flow: Flow, world: World) -> str:
    """A running job that `PEER` has submitted for this node to schedule."""
    job: str = flow.post("/scheduler/job/create", dag(ME), **BY_PEER)["job_id"]
    world.run(job, "a", "guest.0", world.peer)
    return job


def test_a_node_that_is_no_party_cannot_submit_a_job(flow):
    check_refusal(flow.post("/scheduler/job/create", dag(ME), **BY_THIRD), "NOT_AUTHORISED")


def test_reports_and_commands_on_jobs_of_others_are_refused(flow, world, scheduled_job):
    valid = task(
        job=scheduled_job,
        role="guest",
        party_id=PEER,
        status="success",
    )

    for changes, sender in (
        ({}, THIRD),  # no party of the job
        ({"party_id": THIRD}, THIRD),
        ({"party_id": ME}, PEER),  # in the name of another party
        ({"task_version": 4}, PEER),
        ({"task_id": f"{scheduled_job}_b"}, PEER),
        ({"status": "ready"}, PEER),
    ):
        body = valid | changes
        response = flow.post("/scheduler/task/report", body, **{"x-source-node-id": sender})
        assert response["code"] != 0, (changes, sender)
        assert response["data"]["reason"] in (
            "NOT_AUTHORISED",
            "JOB_UNKNOWN",
            "TASK_UNKNOWN",
            "STATUS_UNKNOWN",
        )
    # A report on roles that the sender does not play is accepted and ignored.
    for role in ("host", "arbiter"):
        assert flow.code("/scheduler/task/report", valid | {"role": role}, **BY_PEER) == 0
    assert world.job(scheduled_job).tasks["a"].status.value in ("READY", "RUNNING")

    for path in ("/scheduler/job/stop", "/scheduler/job/rerun"):
        response = flow.post(path, {"job_id": scheduled_job}, **BY_THIRD)
        check_refusal(response, "JOB_UNKNOWN")
    assert world.job(scheduled_job).status is JobStatus.RUNNING

    assert flow.code("/scheduler/job/stop", {"job_id": scheduled_job}, **BY_PEER) == 0


def test_a_signature_is_valid_for_one_request_and_its_retry(flow, world, new_job):
    """Attack: path and body are unsigned, so an eavesdropper could reuse it for a minute."""
    signing = Signatures({ME: FateSite(sends=FateApp(app_id="1", app_token="secret"))})
    create = {**dag(SIGNS), **party(new_job)}
    signature = signing.sign(ME, SIGNS)

    for _ in range(2):  # FATE repeats a request without a response
        assert flow.code("/partner/job/create", create, **signature) == 0
    stop = party(new_job)
    check_refusal(flow.post("/partner/job/stop", stop, **signature), "SIGNATURE_USED")

    assert world.local(new_job).status is JobStatus.READY
    assert flow.code("/partner/job/stop", stop, **signing.sign(ME, SIGNS)) == 0


def test_a_body_of_many_values_is_refused_unread(flow):
    body = {**dag(), **party(), "dag": {"tasks": MANY_TASKS}}
    assert len(json.dumps(body)) < 200_000, "refused for its number of values, not its size"

    check_refusal(flow.post("/partner/job/create", body), "INVALID")
