"""A job that fails says why, at every party alike, and leaves nothing running."""

from typing import Any

import pytest

from tests.e2e import jobs
from tests.e2e.nodes import Federation, process_engine, wait_for


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Federation(
        tmp_path_factory.mktemp("nodes"), [jobs.GUEST, jobs.HOST], process_engine("unionpay:2.0.0")
    ) as federation:
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        yield federation


def failed_by(federation: Federation, job_id: str) -> list[dict[str, Any]]:
    guest, host = federation[jobs.GUEST], federation[jobs.HOST]
    guest.wait_job(job_id, 60, outcome="FAILED")
    wait_for(lambda: host.job(job_id)["status"] == "FINISHED", 10)
    shown = [n.get("/v1/platform/schedule/job/status_all", job_id=job_id)["data"] for n in (guest, host)]
    assert [s["job_status"] for s in shown] == ["FINISHED", "FINISHED"]
    assert [s["outcome"] for s in shown] == ["FAILED", "FAILED"]
    return [s["failed_by"] for s in shown]


def test_a_vendors_exit_code_is_the_reason_at_both_parties(two: Federation):
    body = jobs.user_job(jobs.GUEST, jobs.HOST)
    body["config"]["task_params"]["common"]["intersect_rsa_1"]["id"] = "no_such_column"
    job_id = two[jobs.GUEST].submit(body)
    one, other = failed_by(two, job_id)
    assert one == other
    assert one["task"] == "intersect_rsa_1" and one["role"] in ("guest", "host") and one["node"]
    assert one["reason"].startswith("EXIT_") or one["reason"] == "REPORTED_FAILED"
    for node in two.nodes.values():  # the other party's run was stopped, its logs are there
        assert all(r["status"] == "FAILED" for r in node.job(job_id)["runs"])
        wait_for(lambda node=node: list((node.home / "state" / "runs").glob("*/stdout.log")), 10)


def test_a_partner_that_refuses_is_named_and_the_others_hold_nothing(two: Federation):
    body = jobs.user_job(jobs.GUEST, jobs.HOST)
    body["config"]["task_params"]["host"]["0"]["intersect_rsa_1"]["dataset_id"] = "testspace#missing"
    answer = two[jobs.GUEST].post("/v1/platform/schedule/job/create_all", body)
    assert answer["code"] != 0
    assert jobs.HOST in answer["msg"] and "testspace#missing" in answer["msg"]
    listed = two[jobs.GUEST].get("/v1/platform/schedule/job/query_job_list")["data"]["job_list"]
    (job_id,) = [job for job, status in listed.items() if status == "REJECTED"]
    assert job_id not in two[jobs.HOST].get("/v1/platform/schedule/job/query_job_list")["data"]["job_list"]
    wait_for(lambda: two[jobs.GUEST].job(job_id)["status"] == "REJECTED", 5)
