"""Tasks that have not begun get new parameters at all nodes of the job, or at none."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with jobs.patient_nodes(tmp_path_factory.mktemp("nodes")) as federation:
        yield federation


def running(two: Federation, folder: Path) -> tuple[str, Path]:
    """Return a job of which b and c wait for a, and the file for which a waits."""
    (folder / "register").mkdir()
    go = folder / "go"
    body = jobs.job_of(folder / "register", {"a": 0, "b": 0, "c": 0}, {"b": "a", "c": "b"})
    body["config"]["task_params"]["common"]["a"]["until"] = str(go)
    job_id = two[jobs.GUEST].submit(body)
    wait_for(lambda: len(jobs.started(folder / "register")) == 2)
    return job_id, go


def change(node: Node, job_id: str, parameters: Any, reason: str = "because") -> Any:
    return node.post(f"/api/v1/jobs/{job_id}/parameters", {"parameters": parameters, "reason": reason})


def containers(folder: Path) -> list[str]:
    return sorted(path.name.partition(".0")[0] for path in (folder / "register").iterdir())


def test_a_task_to_come_runs_with_them_at_both_nodes(two: Federation, tmp_path: Path):
    guest, host = two[jobs.GUEST], two[jobs.HOST]
    job_id, go = running(two, tmp_path)
    refused = change(guest, job_id, {"common": {"a": {"lasts": 1}, "z": {}, "b": 5}, "arbiter": {"0": {}}})
    assert [p["path"] for p in refused["data"]["problems"]] == [
        "parameters.common.a",
        "parameters.common.z",
        "parameters.common.b",
        "parameters.arbiter",
    ]
    refused = change(host, job_id, {"common": {"b": {"name": "x"}}})
    assert refused["code"] == 400 and refused["data"]["problems"][0]["path"] == "parameters.common"
    assert guest.job(job_id)["amendments"] == host.job(job_id)["amendments"] == []
    made = change(guest, job_id, {"common": {"b": {"name": "new"}}}, "sooner")
    assert made["version"] == 1, made
    made = change(host, job_id, {"host": {"0": {"c": {"name": "own"}}}}, "ours")
    assert made["version"] == 2, made
    go.touch()
    guest.wait_job(job_id)
    assert containers(tmp_path) == ["a.guest", "a.host", "c.guest", "new.guest", "new.host", "own.host"]
    for node in (guest, host):
        shown = node.job(job_id)
        assert [(one["by"], one["reason"]) for one in shown["amendments"]] == [
            (jobs.GUEST, "sooner"),
            (jobs.HOST, "ours"),
        ]
    assert host.job(job_id)["parameters"]["host.0"]["c"]["name"]["value"] == "own"
    assert guest.job(job_id)["parameters"]["guest.0"]["b"]["name"]["value"] == "new"
    (audited,) = [
        e
        for e in guest.get("/api/v1/audit")["audit"]
        if e["action"].endswith(f"{job_id}/parameters") and e["status"] == 200
    ]
    assert audited["detail"]["reason"] == "sooner"
    assert change(guest, job_id, {"common": {"b": {"name": "x"}}})["data"]["reason"] == "JOB_NOT_RUNNING"
    again = guest.post(f"/api/v1/jobs/{job_id}/rerun", {"from": "c"})
    guest.wait_job(again["job_id"])
    assert again["inherits"] == ["a", "b"] and containers(tmp_path).count("own.host") == 2


def test_a_party_that_refuses_keeps_them_from_all(two: Federation, tmp_path: Path):
    """At the host a person agreed to the job with the parameters that it had."""
    guest, host = two[jobs.GUEST], two[jobs.HOST]
    host.stop()
    host.settings["approval"] = {"mode": "person"}
    host.start()
    try:
        (tmp_path / "register").mkdir()
        go = tmp_path / "go"
        body = jobs.job_of(tmp_path / "register", {"a": 0, "b": 0}, {"b": "a"})
        body["config"]["task_params"]["common"]["a"]["until"] = str(go)
        job_id = guest.submit(body)
        wait_for(lambda: host.get("/api/v1/approvals")["approvals"])
        host.post(f"/api/v1/jobs/{job_id}/approve", {"reason": "read it"})
        wait_for(lambda: len(jobs.started(tmp_path / "register")) == 2)
        refused = change(guest, job_id, {"common": {"b": {"name": "new"}}})
        assert refused["code"] == 403 and jobs.HOST in refused["msg"], refused
        go.touch()
        guest.wait_job(job_id)
        assert containers(tmp_path) == ["a.guest", "a.host", "b.guest", "b.host"]
        assert guest.job(job_id)["amendments"] == host.job(job_id)["amendments"] == []
    finally:
        host.stop()
        del host.settings["approval"]
        host.start()
