"""What a node sends that is up to no good, or broken: FATE's envelope, a stable reason, and nothing is changed."""

import json
from itertools import count
from typing import Any

import pytest

from adapter.fate.signing import Signatures
from gateway.config.schema import FateApp, FateSite
from gateway.domain.run import LocalJob
from gateway.domain.states import JobStatus
from tests.adapter.fate.flowing import FATE, PATHS, SIGNS, Flow, dag, party, task
from tests.contracts.apis import STRANGER, THIRD, World
from tests.inprocess import ME, PEER

_numbers = count(202411220101020000000)
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
    "/partner/task/status/update": {"task_version": 0, "status": "failed"},
    "/partner/task/stop": {"task_version": 0},
    "/partner/task/rerun": {"task_version": 0, "new_version": 1},
}
"""every command on a job that is here -> what it says beside job, task and party"""
AS_NOTHING = ("/partner/job/stop", "/partner/task/rerun")
"""FATE's nodes answer these with yes where there is nothing to do it to"""


@pytest.fixture(scope="module")
def running(flow: Flow, world: World) -> str:
    """A job of FATE's in which this node is the host, with its one task running."""
    job = str(next(_numbers))
    flow.do(job, "job/create", "job/start", "task/start")
    world.run(job, "a", "host.0")
    return job


def kept(world: World, job: str) -> tuple[JobStatus, Any, Any, Any]:
    local: LocalJob = world.local(job)
    return local.status, local.ending, local.pool, [(run.run_id, run.status) for run in local.runs]


def refused(said: dict[str, Any], reason: str) -> None:
    assert said["data"]["reason"] == reason
    assert set(said) == {"code", "message", "data"}
    assert said["code"] not in (0, 500)
    assert said["message"].startswith(reason)


@pytest.mark.parametrize("path", COMMANDS)
def test_only_the_scheduler_commands_and_only_roles_of_this_node(path, flow, world, running):
    before = kept(world, running)
    body = {**task(job=running), **COMMANDS[path]}
    refused(flow.post(path, body, **{"x-source-node-id": PEER}), "JOB_UNKNOWN")
    refused(flow.post(path, body, **{"x-source-node-id": STRANGER}), "NOT_AUTHORISED")
    for wrong in ({"role": "guest"}, {"role": "arbiter"}, {"role": "host.7"}, {"party_id": FATE}):
        said = flow.post(path, body | wrong)
        if path not in AS_NOTHING or said["code"]:
            assert said["data"]["reason"] == "JOB_UNKNOWN", wrong
    assert kept(world, running) == before


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"role": "guest"}, "ROLE_UNKNOWN"),
        ({"party_id": FATE}, "ROLE_UNKNOWN"),
        ({"job_id": "../../etc"}, "INVALID"),
        ({"job_id": "1_2/3"}, "INVALID"),
        ({"dag": {**dag()["dag"], "parties": []}}, "NOT_A_PARTY"),
        (
            {"dag": {**dag()["dag"], "parties": [{"role": "host", "party_id": [STRANGER]}]}},
            "NOT_A_PARTY",
        ),
        ({"dag": {**dag()["dag"], "tasks": {}}}, "INVALID"),
        ({"dag": dag(STRANGER)["dag"]}, "NOT_AUTHORISED"),
    ],
)
def test_a_job_that_is_not_ours_to_take_leaves_nothing(more, reason, flow, world):
    job = str(next(_numbers))
    said = flow.post("/partner/job/create", {**dag(), **party(job)} | more)
    assert said["code"] == 1002 or reason == "INVALID"
    refused(said, reason)
    assert world.me.store.local_jobs.find(more.get("job_id", job)) is None


@pytest.mark.parametrize("path", PATHS)
def test_all_values_of_the_wrong_type_are_reported_together(path, flow):
    good = {
        **dag(),
        **task(),
        "status": "running",
        "new_version": 1,
    }
    fields = {"dag", "job_id"} & ({"dag"} if path == "/scheduler/job/create" else set(good))
    fields -= set() if path.endswith("job/create") else {"dag"}
    for wrong in ([], 7, True, {"a": [None]}):
        bad = {**good, **dict.fromkeys(fields, wrong if not isinstance(wrong, dict) else [wrong])}
        said = flow.post(path, bad)
        refused(said, "INVALID")
        assert {p["path"] for p in said["data"]["problems"]} >= fields
    for raw in (b"[]", b"null", b'{"job_id": "1"', b"\xff\xfe", b"[" * 50_000, b'{"job_id": NaN}'):
        answer = flow.sent(path, content=raw, headers={"content-type": "application/json"})
        assert answer.status_code == 200
        refused(answer.json(), "INVALID")


def test_versions_that_are_over_change_nothing(flow, world, running):
    for version, name in ((9, "a"), (999_999, "a")):
        assert flow.code("/partner/task/start", task(version, name, running)) == 2001
    before = kept(world, running)
    assert (
        flow.code("/partner/task/start", task(0, "a", running)) == 0
    )  # it runs: nothing is started twice
    for version in (-1, 10**9, "0x1", 1.5, None):
        refused(
            flow.post("/partner/task/start", task(0, "a", running) | {"task_version": version}),
            "INVALID",
        )
    assert kept(world, running) == before


def test_only_the_scheduling_node_may_rerun_an_ended_job(flow, world):
    job = str(next(_numbers))
    flow.do(job, "job/create", "job/start", "job/status/update failed")
    again = party(job, status="waiting")
    refused(
        flow.post("/partner/job/status/update", again, **{"x-source-node-id": PEER}), "JOB_UNKNOWN"
    )
    assert world.me.store.local_jobs.find(f"{job}-r1") is None
    foreign = {
        **dag(PEER),
        **party(f"{job}-r1"),
    }  # another node takes the name of what would follow
    assert flow.code("/partner/job/create", foreign, **{"x-source-node-id": PEER}) == 0
    said = flow.post("/partner/job/start", party(job))
    assert said["data"]["reason"] == "JOB_ENDED"
    assert world.local(f"{job}-r1").status is JobStatus.READY


def test_reports_on_what_is_not_ones_own(flow, world):
    body = dag(ME)
    refused(
        flow.post("/scheduler/job/create", body, **{"x-source-node-id": THIRD}), "NOT_AUTHORISED"
    )
    job = flow.post("/scheduler/job/create", body, **{"x-source-node-id": PEER})["job_id"]
    world.run(job, "a", "guest.0", world.peer)
    mine = task(
        job=job,
        role="guest",
        party_id=PEER,
        status="success",
    )
    for more, sender in (
        ({}, THIRD),  # it has no part in the job
        ({"party_id": THIRD}, THIRD),
        ({"party_id": ME}, PEER),  # it speaks for another
        ({"task_version": 4}, PEER),
        ({"task_id": f"{job}_b"}, PEER),
        ({"status": "ready"}, PEER),
    ):
        said = flow.post("/scheduler/task/report", mine | more, **{"x-source-node-id": sender})
        assert said["code"] != 0, (more, sender)
        assert said["data"]["reason"] in (
            "NOT_AUTHORISED",
            "JOB_UNKNOWN",
            "TASK_UNKNOWN",
            "STATUS_UNKNOWN",
        )
    for role in ("host", "arbiter"):  # that it does not play
        assert (
            flow.code("/scheduler/task/report", mine | {"role": role}, **{"x-source-node-id": PEER})
            == 0
        )
    assert world.job(job).tasks["a"].status.value in ("READY", "RUNNING")
    for path in ("/scheduler/job/stop", "/scheduler/job/rerun"):
        refused(flow.post(path, {"job_id": job}, **{"x-source-node-id": THIRD}), "JOB_UNKNOWN")
    assert world.job(job).status is JobStatus.RUNNING
    assert flow.code("/scheduler/job/stop", {"job_id": job}, **{"x-source-node-id": PEER}) == 0


def test_a_signature_is_valid_for_one_request_and_its_retry(flow, world):
    """It does not cover path and body: who has heard one could say with it whatever it wanted for a minute."""
    job = str(next(_numbers))
    signing = Signatures({ME: FateSite(sends=FateApp(app_id="1", app_token="secret"))})
    create = {**dag(SIGNS), **party(job)}
    first = signing.sign(ME, SIGNS)
    for _ in range(2):  # no answer came: FATE sends the same again
        assert flow.code("/partner/job/create", create, **first) == 0
    refused(flow.post("/partner/job/stop", party(job), **first), "SIGNATURE_USED")
    assert world.local(job).status is JobStatus.READY
    assert flow.code("/partner/job/stop", party(job), **signing.sign(ME, SIGNS)) == 0


def test_a_body_of_many_values_is_refused_unread(flow):
    many = {
        **dag(),
        **party(),
        "dag": {"tasks": {str(n): {} for n in range(9_000)}},
    }
    assert len(json.dumps(many)) < 200_000
    refused(flow.post("/partner/job/create", many), "INVALID")
