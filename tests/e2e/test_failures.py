"""A job that fails says why, at every party alike, and leaves nothing running."""

from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.e2e import jobs
from tests.e2e.conftest import EngineChoice
from tests.e2e.nodes import Federation, example, process_engine, wait_for


@pytest.fixture
def two(tmp_path: Path) -> Any:
    with Federation(tmp_path, [jobs.GUEST, jobs.HOST], process_engine("unionpay:2.0.0")) as federation:
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


def test_an_image_that_is_not_there(engine: EngineChoice, tmp_path: Path):
    body = example("register_unionpay.json")
    body["metadata"]["image"] = "nobody/nothing:1"
    with Federation(tmp_path, [jobs.GUEST], engine.settings) as federation:
        node = federation[jobs.GUEST]
        node.register(body)
        jobs.upload(node, "guest")
        jobs.upload(node, "host")
        job_id = node.submit(jobs.user_job())
        job = node.wait_job(job_id, 30, outcome="FAILED")
        assert job["failure"]["reason"] == "IMAGE_NOT_FOUND"
        assert "nobody/nothing:1" in job["failure"]["message"]


def test_a_command_that_is_not_there(tmp_path: Path):
    engine = process_engine("unionpay:2.0.0", command=["/no/such/program"])
    with Federation(tmp_path, [jobs.GUEST], engine) as federation:
        jobs.prepare(federation)
        node = federation[jobs.GUEST]
        job = node.wait_job(node.submit(jobs.user_job()), 30, outcome="FAILED")
        assert job["failure"]["reason"] == "COMMAND_NOT_FOUND"


def test_a_daemon_that_is_down(tmp_path: Path):
    engine = {"kind": "docker", "docker": {"base_url": "tcp://127.0.0.1:1"}}
    with Federation(tmp_path, [jobs.GUEST], engine) as federation:
        jobs.prepare(federation)
        node = federation[jobs.GUEST]
        ready = node.get("/health/ready")
        assert not ready["ready"] and "ENGINE_DOWN" in ready["checks"]["engine"]["cause"]
        job = node.wait_job(node.submit(jobs.user_job()), 30, outcome="FAILED")
        assert job["failure"]["reason"] == "ENGINE_DOWN"


def test_refusals_name_everything_at_once_and_leave_nothing(two: Federation):
    guest = two[jobs.GUEST]
    body = jobs.user_job(jobs.GUEST, jobs.HOST)
    body["config"]["role"]["host"] = ["JG0000000000000404"]
    body["dag"]["components"][1]["input"][0]["key"] = "intersect_rsa_1.nothing"
    body["dag"]["components"].append(dict(body["dag"]["components"][0]))
    answer = guest.post("/v1/platform/schedule/job/create_all", body)
    assert answer["code"] == 400
    paths = {p["path"] for p in answer["data"]["problems"]}
    assert paths >= {
        "config.role.host[0]",
        "dag.components[1].input[0].key",
        "dag.components[2].name",
    }
    assert guest.get("/v1/platform/schedule/job/query_job_list")["data"]["job_list"] == {}


def test_an_unknown_node_is_refused_by_name_and_table_version(two: Federation):
    body = jobs.user_job(jobs.GUEST, "JG0000000000000404")
    answer = two[jobs.GUEST].post("/v1/platform/schedule/job/create_all", body)
    assert answer["data"]["reason"] == "NODE_UNKNOWN"
    assert "JG0000000000000404" in answer["msg"] and "version" in answer["msg"]


def test_a_partner_that_refuses_is_named_and_the_others_hold_nothing(two: Federation):
    body = jobs.user_job(jobs.GUEST, jobs.HOST)
    body["config"]["task_params"]["host"]["0"]["intersect_rsa_1"]["dataset_id"] = "testspace#missing"
    answer = two[jobs.GUEST].post("/v1/platform/schedule/job/create_all", body)
    assert answer["code"] != 0
    assert jobs.HOST in answer["msg"] and "testspace#missing" in answer["msg"]
    listed = two[jobs.GUEST].get("/v1/platform/schedule/job/query_job_list")["data"]["job_list"]
    assert set(listed.values()) == {"REJECTED"}
    assert two[jobs.HOST].get("/v1/platform/schedule/job/query_job_list")["data"]["job_list"] == {}
    (job_id,) = listed
    wait_for(lambda: two[jobs.GUEST].job(job_id)["status"] == "REJECTED", 5)


def test_a_dead_partner_is_named(two: Federation):
    two[jobs.HOST].kill()
    answer = two[jobs.GUEST].post("/v1/platform/schedule/job/create_all", jobs.user_job(jobs.GUEST, jobs.HOST))
    assert answer["code"] != 0 and jobs.HOST in answer["msg"]
    assert answer["data"]["reason"] == "PEER_UNREACHABLE"


def test_parameters_that_cannot_be_read_are_refused(two: Federation):
    body = jobs.user_job(jobs.GUEST, jobs.HOST)
    body["config"]["task_params"]["common"]["hetero_secureboost_1"]["num_trees"] = "many"
    answer = two[jobs.GUEST].post("/v1/platform/schedule/job/create_all", body)
    assert answer["code"] != 0 and "num_trees" in answer["msg"]


def test_two_processes_never_share_an_sqlite_file(two: Federation):
    node = two[jobs.GUEST]
    second = forks.run(["serve", "-c", str(node.home / "node.yml")])
    assert second.returncode == 2
    assert "DATABASE_IN_USE" in second.stderr
