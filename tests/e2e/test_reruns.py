"""Jobs that take over finished tasks of earlier ones: run again from a task on, or by ``old_job_id``."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, alive, wait_for
from tests.e2e.test_stop import SCHEDULE, job_of, started, status, two_patient_nodes

FLOW = {"b": "a", "c": "b"}
REASON = "INHERITANCE_FAILED"


@pytest.fixture
def two(tmp_path: Path, register: Path) -> Iterator[Federation]:
    with two_patient_nodes(tmp_path) as federation:
        yield federation
        for _, pid in started(register):
            assert not alive(pid)


def rerun(node: Node, job_id: str, **body: Any) -> tuple[int, dict[str, Any]]:
    answer = node.ask("POST", f"/api/v1/jobs/{job_id}/rerun", json=body)
    return answer.status_code, dict(answer.json())


def chain(register: Path) -> Any:
    return job_of(register, {"a": 0, "b": 0, "c": 0}, FLOW, unique=True)


def containers(register: Path) -> list[str]:
    return sorted(task for task, _ in started(register))


def contents(node: Node, job_id: str, task: str) -> dict[str, bytes]:
    """Return a task's outputs of the parties at a node, as its API hands them out."""
    found = {}
    for (name, party, key), _ in node.outputs(job_id).items():
        if name == task:
            found[party] = node.ask("GET", f"/api/v1/jobs/{job_id}/outputs/{task}/{party}/{key}/download").content
    return found


def of(shown: dict[str, Any], name: str) -> dict[str, Any]:
    return next(t for t in shown["tasks"] if t["task_name"] == name)


def test_a_failed_job_runs_again_from_what_failed_with_other_parameters(two: Federation, register: Path):
    guest, host = two[jobs.GUEST], two[jobs.HOST]
    body = chain(register)
    body["config"]["task_params"]["guest"] = {"0": {"b": {"fails": 100}}}
    old = guest.submit(body)
    guest.wait_job(old, 60, outcome="FAILED")
    change = {"guest": {"0": {"b": {"fails": 0}}}}
    code, made = rerun(guest, old, parameters=change)
    assert (code, made["from"], made["runs"], made["inherits"]) == (200, "b", ["b", "c"], ["a"])
    new = made["job_id"]
    guest.wait_job(new, 60)
    wait_for(lambda: host.job(new)["status"] == "FINISHED", 30)
    assert containers(register).count("a") == 2, "no container for what is taken over"
    assert {r["task_name"] for node in (guest, host) for r in node.job(new)["runs"]} == {"b", "c"}

    before, shown = status(guest, old), status(guest, new)
    assert status(host, new) == shown
    assert of(shown, "a")["inherited"] == {"job_id": old, "task_id": of(before, "a")["task_id"]}
    assert of(shown, "b")["inherited"] is None and of(shown, "a")["status"] == "SUCCESS"
    assert shown["rerun_of"] == {"job_id": old, "from": "b", "by": jobs.GUEST, "changed": ["b"]}
    assert guest.job(new)["origin"]["parameters"] == change and host.job(new)["origin"]["parameters"] == {}
    assert before["failed_by"]["reason"] == "EXIT_3", "the old job stays as it ended"
    for node in (guest, host):
        assert contents(node, new, "a") == contents(node, old, "a") != {}
        (b,) = (run for run in node.job(new)["runs"] if run["task_name"] == "b")
        assert [address["namespace"].startswith(old) for address in b["inputs"].values()] == [True]
        (taken,) = node.job(new)["inherited_runs"]
        assert (taken["task_name"], taken["job_id"]) == ("a", old)
        log = node.ask("GET", taken["log"]).text
        assert "container number 0 of a" in log
    (note,) = (e for e in guest.timeline(old) if e["event"] == "run again as another job")
    assert note["by"] == jobs.GUEST and note["detail"]["new_job"] == new
    assert {e["detail"]["from_job"] for e in guest.timeline(new) if e["event"] == "task inherited"} == {old}


def test_a_new_job_takes_over_what_is_the_same_in_an_old_one(two: Federation, register: Path):
    guest = two[jobs.GUEST]
    old = guest.submit(chain(register))
    guest.wait_job(old, 60)
    body = chain(register)
    body["config"]["task_params"]["common"]["c"]["lasts"] = 0.1
    new = guest.submit(body | {"old_job_id": old})
    guest.wait_job(new, 60)
    shown = status(guest, new)
    assert shown["old_job_id"] == old and shown["rerun_of"] is None
    assert {t["task_name"]: bool(t["inherited"]) for t in shown["tasks"]} == {"a": True, "b": True, "c": False}
    assert "the parameters of guest.0 differ: lasts" in " ".join(shown["warnings"])
    assert [containers(register).count(task) for task in "abc"] == [2, 2, 4]

    same = guest.submit(chain(register) | {"old_job_id": old})
    assert guest.wait_job(same, 60)["progress"] == 100
    assert len(containers(register)) == 8, "a job of which everything is taken over runs nothing"
    none = chain(register) | {"old_job_id": ""}
    guest.wait_job(guest.submit(none), 60)
    assert len(containers(register)) == 14


def test_a_demand_that_cannot_be_met_refuses_the_job_and_says_why(two: Federation, register: Path):
    guest, host = two[jobs.GUEST], two[jobs.HOST]
    old = guest.submit(chain(register))
    guest.wait_job(old, 60)
    wait_for(lambda: host.job(old)["status"] == "FINISHED", 30)

    def refused(tasks: Any, old_job_id: str | None = old, **params: Any) -> str:
        body = chain(register) | {"old_job_id": old_job_id}
        body["config"]["job_params"]["common"]["inherit"] = tasks
        body["config"]["task_params"]["common"]["b"] |= params
        answer = guest.post(f"{SCHEDULE}/job/create_all", body)
        assert answer["code"] != 0, answer
        return f"{answer['data']['reason']} {answer['msg']}"

    assert "names a task that is not in the flow" in refused(["a", "x"])
    assert "needs the output of a: inherit it too" in refused(["b"])
    assert "needs old_job_id" in refused(["a"], None)
    assert "must be a list" in refused("a")
    assert f"{REASON}" in refused(["a"], "job-none") and "no such job" in refused(["a"], "job-none")
    text = refused(["a", "b"], lasts=0.1)
    assert text.startswith(REASON) and "the parameters of guest.0 differ: lasts" in text

    running = guest.submit(job_of(register, {"z": 30}))
    code, answer = rerun(guest, running, **{"from": "z"})
    assert (code, answer["data"]["reason"]) == (409, "JOB_NOT_ENDED")
    guest.post(f"{SCHEDULE}/job/stop_all", {"job_id": running})
    guest.wait_job(running, 60, outcome="STOPPED")
    (gone,) = {host.storage / o["namespace"] / o["name"] for (t, _, _), o in host.outputs(old).items() if t == "b"}
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    code, answer = rerun(guest, old, **{"from": "c"})
    assert (code, answer["data"]["reason"]) == (409, REASON)
    assert "output data0 of host.0 is gone" in answer["msg"] and jobs.HOST in answer["msg"]

    host.stop()
    image = host.settings["engine"]["process"]["images"]["example:1.0.0"]
    host.settings["engine"]["process"]["images"]["example:1.0.0"] = {
        "command": [image["command"][0], "-B", *image["command"][1:]]
    }
    host.start()
    text = refused(["a"])
    assert text.startswith(REASON) and "the image digest differs" in text and jobs.HOST in text
    listed = guest.get(f"{SCHEDULE}/job/query_job_list")["data"]["job_list"]
    assert set(listed.values()) <= {"FINISHED", "REJECTED"}
    assert len([task for task in containers(register) if task != "z"]) == 6
