"""Jobs that go on from earlier work: a task's checkpoint, or finished tasks of an old job.

Version 1.0.0 of the provider is `patient.py`, version 2.0.0 is `stepping.py`.
"""

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapter.bfia.examples import A_PROVIDER
from tests.e2e import jobs
from tests.e2e.jobs import SCHEDULE, component, job_of, limited, patient_nodes, started, status
from tests.e2e.nodes import Federation, Node, process_engine, wait_for

FLOW = {"b": "a", "c": "b"}
REASON = "INHERITANCE_FAILED"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    engine = process_engine("example:1.0.0", command=component("patient.py"))
    engine["process"]["images"]["example:2.0.0"] = {"command": component("stepping.py")}
    engine["process"]["images"]["example:3.0.0"] = {"command": component("counting.py")}
    provider = A_PROVIDER | {
        "version": "2.0.0",
        "metadata": {"base_url": "", "image": "example:2.0.0"},
    }
    caching = copy.deepcopy(A_PROVIDER) | {
        "version": "3.0.0",
        "metadata": {"base_url": "", "image": "example:3.0.0"},
    }
    for side in ("inputData", "outputData"):
        caching["components_description"]["Echo"][side] = [{"name": "counted", "category": "cache"}]
    with patient_nodes(tmp_path_factory.mktemp("nodes"), engine) as federation:
        for node in federation.nodes.values():
            node.register(provider)
            node.register(caching)
        yield federation


def rerun(
    node: Node,
    job_id: str,
    **body: Any,
) -> tuple[int, dict[str, Any]]:
    answer = node.ask("POST", f"/api/v1/jobs/{job_id}/rerun", json=body)
    return answer.status_code, dict(answer.json())


def chain(register: Path) -> Any:
    return job_of(
        register,
        {
            "a": 0,
            "b": 0,
            "c": 0,
        },
        FLOW,
        unique=True,
    )


def containers(register: Path) -> list[str]:
    return sorted(task for task, _ in started(register))


def contents(
    node: Node,
    job_id: str,
    task: str,
) -> dict[str, bytes]:
    """Return a task's outputs of the parties at a node, as its API hands them out."""
    found = {}
    for (name, party, key), _ in node.outputs(job_id).items():
        if name == task:
            found[party] = node.ask(
                "GET", f"/api/v1/jobs/{job_id}/outputs/{task}/{party}/{key}/download"
            ).content
    return found


def of(shown: dict[str, Any], name: str) -> dict[str, Any]:
    return next(t for t in shown["tasks"] if t["task_name"] == name)


def test_a_failed_job_runs_again_from_what_failed_with_other_parameters(two, register):
    guest, host = two[jobs.GUEST], two[jobs.HOST]
    body = chain(register)
    body["config"]["task_params"]["guest"] = {"0": {"b": {"fails": 100}}}
    old = guest.submit(body)
    guest.wait_job(old, 60, outcome="FAILED")
    change = {"guest": {"0": {"b": {"fails": 0}}}}
    code, made = rerun(guest, old, parameters=change)
    assert code == 200
    assert made["from"] == "b"
    assert made["runs"] == ["b", "c"]
    assert made["inherits"] == ["a"]
    new = made["job_id"]
    guest.wait_job(new, 60)
    wait_for(lambda: host.job(new)["status"] == "FINISHED", 30)
    assert containers(register).count("a") == 2, "no container for what is taken over"
    assert {r["task_name"] for node in (guest, host) for r in node.job(new)["runs"]} == {"b", "c"}

    before, shown = status(guest, old), status(guest, new)
    assert status(host, new) == shown
    assert of(shown, "a")["inherited"] == {"job_id": old, "task_id": of(before, "a")["task_id"]}
    assert of(shown, "b")["inherited"] is None
    assert of(shown, "a")["status"] == "SUCCESS"
    assert shown["rerun_of"] == {
        "job_id": old,
        "from": "b",
        "by": jobs.GUEST,
        "changed": ["b"],
    }
    assert guest.job(new)["origin"]["parameters"] == change
    assert host.job(new)["origin"]["parameters"] == {}
    assert before["failed_by"]["reason"] == "EXIT_3", "the old job stays as it ended"
    for node in (guest, host):
        assert contents(node, new, "a") == contents(node, old, "a") != {}
        (b,) = (run for run in node.job(new)["runs"] if run["task_name"] == "b")
        assert [address["namespace"].startswith(old) for address in b["inputs"].values()] == [True]
        (taken,) = node.job(new)["inherited_runs"]
        assert taken["task_name"] == "a"
        assert taken["job_id"] == old
        log = node.ask("GET", taken["log"]).text
        assert "container number 0 of a" in log
    (note,) = (e for e in guest.timeline(old) if e["event"] == "run again as another job")
    assert note["by"] == jobs.GUEST
    assert note["detail"]["new_job"] == new
    assert {
        e["detail"]["from_job"] for e in guest.timeline(new) if e["event"] == "task inherited"
    } == {old}


def test_a_new_job_takes_over_what_is_the_same_in_an_old_one(two, register):
    guest = two[jobs.GUEST]
    old = guest.submit(chain(register))
    guest.wait_job(old, 60)
    body = chain(register)
    body["config"]["task_params"]["common"]["c"]["lasts"] = 0.1
    new = guest.submit(body | {"old_job_id": old})
    guest.wait_job(new, 60)
    shown = status(guest, new)
    assert shown["old_job_id"] == old
    assert shown["rerun_of"] is None
    assert {t["task_name"]: bool(t["inherited"]) for t in shown["tasks"]} == {
        "a": True,
        "b": True,
        "c": False,
    }
    assert "the parameters of guest.0 differ: lasts" in " ".join(shown["warnings"])
    assert [containers(register).count(task) for task in "abc"] == [2, 2, 4]

    same = guest.submit(chain(register) | {"old_job_id": old})
    assert guest.wait_job(same, 60)["progress"] == 100
    assert len(containers(register)) == 8, "a job of which everything is taken over runs nothing"
    none = chain(register) | {"old_job_id": ""}
    guest.wait_job(guest.submit(none), 60)
    assert len(containers(register)) == 14


def test_a_demand_that_cannot_be_met_refuses_the_job_and_says_why(two, register):
    guest, host = two[jobs.GUEST], two[jobs.HOST]
    old = guest.submit(chain(register))
    guest.wait_job(old, 60)
    wait_for(lambda: host.job(old)["status"] == "FINISHED", 30)

    def refused(
        tasks: Any,
        old_job_id: str | None = old,
        **params: Any,
    ) -> str:
        body = chain(register) | {"old_job_id": old_job_id}
        body["config"]["job_params"]["common"]["inherit"] = tasks
        body["config"]["task_params"]["common"]["b"] |= params
        answer = guest.post(f"{SCHEDULE}/job/create_all", body)
        assert answer["code"] != 0, answer
        return f"{answer['data']['reason']} {answer['msg']}"

    assert f"{REASON}" in refused(["a"], "job-none")
    assert "no such job" in refused(["a"], "job-none")
    text = refused(["a", "b"], lasts=0.1)
    assert text.startswith(REASON)
    assert "the parameters of guest.0 differ: lasts" in text

    running = guest.submit(job_of(register, {"z": 30}))
    code, answer = rerun(guest, running, **{"from": "z"})
    assert code == 409
    assert answer["data"]["reason"] == "JOB_NOT_ENDED"
    guest.post(f"{SCHEDULE}/job/stop_all", {"job_id": running})
    guest.wait_job(running, 60, outcome="STOPPED")
    (gone,) = {
        host.storage / o["namespace"] / o["name"]
        for (t, _, _), o in host.outputs(old).items()
        if t == "b"
    }
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    code, answer = rerun(guest, old, **{"from": "c"})
    assert code == 409
    assert answer["data"]["reason"] == REASON
    assert "output data0 of host.0 is gone" in answer["msg"]
    assert jobs.HOST in answer["msg"]

    host.stop()
    image = host.settings["engine"]["process"]["images"]["example:1.0.0"]
    host.settings["engine"]["process"]["images"]["example:1.0.0"] = {
        "command": [image["command"][0], "-B", *image["command"][1:]]
    }
    host.start()
    text = refused(["a"])
    assert text.startswith(REASON)
    assert "the image digest differs" in text
    assert jobs.HOST in text
    listed = guest.get(f"{SCHEDULE}/job/query_job_list")["data"]["job_list"]
    assert set(listed.values()) <= {"FINISHED", "REJECTED"}
    assert len([task for task in containers(register) if task != "z"]) == 6


# ---------------------------------------------------------------- checkpoints


def stepping(**common: Any) -> Any:
    made = job_of(Path("/"), {"first": 0, "steps": 0}, {"steps": "first"})
    for one in made["dag"]["components"]:
        one["version"] = "2.0.0"
    return limited(made, **common)


def begun(
    node: Node,
    job_id: str,
    party: str,
) -> str:
    text = node.ask("GET", f"/api/v1/jobs/{job_id}/outputs/steps/{party}/data0/download").text
    return text.splitlines()[-1]


def test_a_task_that_was_killed_goes_on_in_its_next_attempt(two):
    guest, host = two[jobs.GUEST], two[jobs.HOST]
    job_id = guest.submit(stepping(checkpoints=True, auto_retries=1))
    guest.wait_job(job_id, 120)
    for node in (guest, host):
        runs = [run for run in node.job(job_id)["runs"] if run["task_name"] == "steps"]
        assert [(r["attempt"], r["status"]) for r in runs][-1] == (1, "SUCCESS")
    kills = [
        run["failure"]["reason"]
        for node in (guest, host)
        for run in node.job(job_id)["runs"]
        if run["failure"] is not None
    ]
    assert "EXIT_137" in kills
    assert begun(guest, job_id, "guest.0") == "1,5"


def test_a_job_that_is_run_again_goes_on_from_a_copy(two):
    guest, host = two[jobs.GUEST], two[jobs.HOST]
    old = guest.submit(stepping(checkpoints=True))
    guest.wait_job(old, 120, outcome="FAILED")
    wait_for(lambda: host.job(old)["status"] == "FINISHED", 60)
    before = kept(guest, old) | kept(host, old)
    assert "5" in {text for steps in before.values() for text in steps}
    code, made = rerun(guest, old)
    assert code == 200
    assert made["inherits"] == ["first"]
    guest.wait_job(made["job_id"], 120)
    assert begun(guest, made["job_id"], "guest.0") == "1,5"
    assert kept(guest, old) | kept(host, old) == before, "the old job stays as it ended"


def kept(node: Node, job_id: str) -> dict[str, list[str]]:
    """Return the steps that each party of a job has kept at a node."""
    folders = node.storage.glob(f"{job_id}-*/steps-checkpoint")
    return {f.parent.name: sorted(step.read_text() for step in f.iterdir()) for f in folders}


def test_who_does_not_ask_has_none(two):
    guest = two[jobs.GUEST]
    job_id = guest.submit(stepping())
    guest.wait_job(job_id, 120, outcome="FAILED")  # the component needs the variable
    assert kept(guest, job_id) == {}
    wrong = guest.post("/v1/platform/schedule/job/create_all", stepping(checkpoints="often"))
    assert [p["path"] for p in wrong["data"]["problems"]] == [
        "config.job_params.common.checkpoints"
    ]


# ---------------------------------------------------------------- caches


def counting(**own: Any) -> Any:
    body = jobs.echo_job()
    (one,) = body["dag"]["components"]
    one |= {"version": "3.0.0", "output": [{"type": "cache", "key": "c"}]}
    body["config"]["task_params"] = {
        role: {"0": {one["name"]: where}} for role, where in own.items()
    }
    return body


def test_a_task_starts_from_an_earlier_jobs_cache_if_its_party_says_so(two):
    guest, host = two[jobs.GUEST], two[jobs.HOST]
    body = counting()
    plan = guest.post("/api/v1/jobs/plan", body)
    assert plan["good"] is True
    assert plan["warning_count"] == 0
    first = guest.submit(body)
    guest.wait_job(first, 60)
    cache = "{namespace}#{name}".format(**guest.outputs(first)["echo_1", "guest.0", "c"])
    body = counting(guest={"dataset_id": cache}, host={"dataset_id": ""})
    refused = guest.post("/v1/platform/schedule/job/create_all", body)
    assert refused["data"]["reason"] == "NOT_AUTHORISED", "its node has not granted it to the other"
    place = cache.replace("#", "/")
    assert guest.ask("PUT", f"/api/v1/datasets/{place}/grants/{jobs.HOST}", json={}).is_success
    second = guest.submit(body)
    guest.wait_job(second, 60)
    wait_for(lambda: host.job(second)["status"] == "FINISHED", 30)
    assert contents(guest, first, "echo_1") == {"guest.0": b"1"}
    assert contents(guest, second, "echo_1") == {"guest.0": b"2"}
    assert contents(host, second, "echo_1") == {"host.0": b"1"}, "who names none has none"
    gone = counting(guest={"dataset_id": f"{cache}d"}, host={"dataset_id": ""})
    refused = guest.post("/v1/platform/schedule/job/create_all", gone)
    assert "is not in this node's storage" in refused["msg"]
