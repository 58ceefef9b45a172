"""The user's own requests, unchanged, from upload to model and reports."""

import json
from pathlib import Path

import pytest

from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, example, process_engine, wait_for

TASKS = {"intersect_rsa_1", "hetero_secureboost_1"}


def check_user_job(guest: Node, host: Node, job_id: str) -> None:
    """Assert what the user is to find after the job: every task SUCCESS, model and reports at both parties."""
    job = guest.wait_job(job_id)
    assert {t["name"]: t["status"] for t in job["tasks"]} == dict.fromkeys(TASKS, "SUCCESS")
    assert job["progress"] == 100
    for node, party in ((guest, "guest.0"), (host, "host.0")):
        outputs = {k: o for k, o in node.outputs(job_id).items() if k[1] == party}
        assert {k[0] for k in outputs} == TASKS
        assert all(o["there"] for o in outputs.values()), outputs
    outputs = guest.outputs(job_id)
    scores = outputs["hetero_secureboost_1", "guest.0", "report1"]["value"]
    assert scores["auc"] > 0.99 and scores["ks"] > 0.9
    assert outputs["hetero_secureboost_1", "guest.0", "model0"]["value"]
    aligned = outputs["intersect_rsa_1", "guest.0", "train_data"]
    meta = json.loads((guest.storage / aligned["namespace"] / aligned["name"] / "metadata").read_text())
    assert meta["count"] == 509


@pytest.mark.slow
@pytest.mark.docker
def test_one_node_plays_both_roles_in_containers(reference_image: str, tmp_path: Path):
    with Federation(tmp_path, [jobs.GUEST], {"kind": "docker"}) as federation:
        node = federation[jobs.GUEST]
        first = node.post("/v2/provider/register", example("register_unionpay.json"))
        second = node.post("/v2/provider/register", example("register_unionpay.json"))
        assert first == {"code": 0, "message": "create success"}
        assert second == {"code": 0, "message": "update success"}
        jobs.upload(node, "guest")
        jobs.upload(node, "host")
        job_id = node.submit(example("create_all_psi_sbt.json"), "/v2/schedule/job/create_all")
        assert node.get("/v1/platform/schedule/job/query_job_list")["data"]["job_list"][job_id] in (
            "READY",
            "RUNNING",
        )
        check_user_job(node, node, job_id)
        status = node.get("/v1/platform/schedule/job/status_all", job_id=job_id)["data"]
        assert status["job_status"] == "FINISHED"
        assert set(status["status"].values()) == {"SUCCESS"}
        warnings = node.job(job_id)["local_warnings"]
        assert any("rsa_params" in w for w in warnings)
        node.post(f"/api/v1/models/JG0100001100000000/{job_id}/deploy", {})
        predicting = node.submit(jobs.predict_job(jobs.GUEST, jobs.GUEST, job_id))
        node.wait_job(predicting)  # its containers read the model through a mount of their own
        assert node.outputs(predicting)["hetero_secureboost_1", "guest.0", "data0"]["there"]


@pytest.mark.slow
def test_two_nodes(tmp_path: Path):
    with Federation(tmp_path, [jobs.GUEST, jobs.HOST], process_engine("unionpay:2.0.0")) as federation:
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        guest, host = federation[jobs.GUEST], federation[jobs.HOST]
        body = jobs.quick_job(jobs.GUEST, jobs.HOST, depth=5)
        job_id = guest.submit(body)
        check_user_job(guest, host, job_id)
        wait_for(lambda: host.job(job_id)["status"] == "FINISHED", 10)
        for node in (guest, host):  # nothing of the job is held any more
            wait_for(lambda node=node: node.get("/health/ready")["checks"]["channel"]["sessions"] == 0, 10)


@pytest.mark.slow
def test_hetero_lr_with_an_arbiter_on_a_third_node(tmp_path: Path):
    nodes = [jobs.GUEST, jobs.HOST, jobs.ARBITER]
    with Federation(tmp_path, nodes, process_engine("unionpay:2.0.0")) as federation:
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        guest = federation[jobs.GUEST]
        job_id = guest.submit(jobs.lr_job(*nodes))
        job = guest.wait_job(job_id)
        by_name = {t["name"]: t for t in job["tasks"]}
        assert set(by_name["hetero_lr_1"]["nodes"]) == set(nodes)
        assert set(by_name["intersect_rsa_1"]["nodes"]) == {jobs.GUEST, jobs.HOST}  # the arbiter has no reader
        assert guest.outputs(job_id)["hetero_lr_1", "guest.0", "report0"]["there"]
