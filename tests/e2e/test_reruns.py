"""Jobs that continue earlier work: a task's checkpoint, or finished tasks of an old job.

Version 1.0.0 of the provider is `patient.py`, 2.0.0 is `stepping.py`, 3.0.0 is `counting.py`.
"""

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapter.bfia.examples import A_PROVIDER
from tests.e2e import jobs
from tests.e2e.jobs import (
    SCHEDULE,
    STOP,
    component,
    job_of,
    limited,
    patient_nodes,
    started,
    status,
)
from tests.e2e.nodes import Federation, Node, process_engine

INHERITANCE_FAILED = "INHERITANCE_FAILED"
CACHE = {
    "name": "counted",
    "category": "cache",
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    engine = process_engine(
        "example:1.0.0",
        command=component("patient.py"),
    )
    engine["process"]["images"]["example:2.0.0"] = {"command": component("stepping.py")}
    engine["process"]["images"]["example:3.0.0"] = {"command": component("counting.py")}
    stepping = a_provider("2.0.0")
    counting = a_provider("3.0.0")
    for direction in ("inputData", "outputData"):
        counting["components_description"]["Echo"][direction] = [CACHE]
    with patient_nodes(tmp_path_factory.mktemp("nodes"), engine) as federation:
        for node in federation.nodes.values():
            node.register(stepping)
            node.register(counting)
        yield federation


def a_provider(version: str) -> Any:
    """Return the registration of a version of the provider."""
    provider = copy.deepcopy(A_PROVIDER)
    provider["version"] = version
    provider["metadata"] = {
        "base_url": "",
        "image": f"example:{version}",
    }
    return provider


@pytest.fixture
def guest(federation: Federation) -> Node:
    return federation[jobs.GUEST]


@pytest.fixture
def host(federation: Federation) -> Node:
    return federation[jobs.HOST]


def rerun(
    node: Node,
    job_id: str,
    **body: Any,
) -> httpx.Response:
    """Run a job again; return the response."""
    return node.ask(
        "POST",
        f"/api/v1/jobs/{job_id}/rerun",
        json=body,
    )


def chain(register: Path) -> Any:
    """Return a job of the chain a, b, c, whose outputs differ from run to run."""
    return job_of(
        register,
        {
            "a": 0,
            "b": 0,
            "c": 0,
        },
        {"b": "a", "c": "b"},
        unique=True,
    )


def run_job(node: Node, body: Any) -> str:
    """Submit a job and wait for its success; return its id."""
    job_id = node.submit(body)
    node.wait_job(job_id, 60)
    return job_id


def wait_until_finished(node: Node, job_id: str) -> None:
    node.wait_status(job_id, "FINISHED", 60)


def tasks_of_containers(register: Path) -> list[str]:
    """Return the task of every container that was started, sorted."""
    return sorted(task for task, _ in started(register))


def output_contents(
    node: Node,
    job_id: str,
    task: str,
) -> dict[str, bytes]:
    """Return a task's outputs by party, as a node's API serves them."""
    contents = {}
    for name, party, key in node.outputs(job_id):
        if name == task:
            path = f"/api/v1/jobs/{job_id}/outputs/{task}/{party}/{key}/download"
            contents[party] = node.ask("GET", path).content
    return contents


def task_of(
    job: dict[str, Any],
    name: str,
) -> dict[str, Any]:
    """Return a task of a job's status."""
    return next(task for task in job["tasks"] if task["task_name"] == name)


# ---------------------------------------------------------------- finished tasks of an old job


def test_a_failed_job_runs_again_from_what_failed_with_other_parameters(guest, host, register):
    body = chain(register)
    body["config"]["task_params"]["guest"] = {"0": {"b": {"fails": 100}}}
    old = guest.submit(body)
    guest.wait_job(old, 60, outcome="FAILED")
    change = {"guest": {"0": {"b": {"fails": 0}}}}

    response = rerun(
        guest,
        old,
        parameters=change,
    )

    assert response.status_code == 200
    assert response.json()["from"] == "b"
    assert response.json()["runs"] == ["b", "c"]
    assert response.json()["inherits"] == ["a"]
    new = response.json()["job_id"]
    guest.wait_job(new, 60)
    wait_until_finished(host, new)
    # An inherited task has no container.
    assert tasks_of_containers(register).count("a") == 2
    for node in (guest, host):
        check_rerun_at_node(node, old, new)
    check_origin(guest, host, old, new)
    assert guest.job(new)["origin"]["parameters"] == change
    # The change of the guest's own parameters stays at the guest.
    assert host.job(new)["origin"]["parameters"] == {}


def check_origin(
    guest: Node,
    host: Node,
    old: str,
    new: str,
) -> None:
    """Check what status and timelines of both jobs say of the rerun."""
    old_job = status(guest, old)
    new_job = status(guest, new)
    assert status(host, new) == new_job
    a = task_of(new_job, "a")
    assert a["inherited"] == {
        "job_id": old,
        "task_id": task_of(old_job, "a")["task_id"],
    }
    assert a["status"] == "SUCCESS"
    assert task_of(new_job, "b")["inherited"] is None
    assert new_job["rerun_of"] == {
        "job_id": old,
        "from": "b",
        "by": jobs.GUEST,
        "changed": ["b"],
    }
    assert old_job["failed_by"]["reason"] == "EXIT_3"  # the old job stays as it ended
    (event,) = jobs.events(guest, old, "run again as another job")
    assert event["by"] == jobs.GUEST
    assert event["detail"]["new_job"] == new
    inherited = jobs.events(guest, new, "task inherited")
    assert {event["detail"]["from_job"] for event in inherited} == {old}


def check_rerun_at_node(
    node: Node,
    old: str,
    new: str,
) -> None:
    """Check runs, outputs and logs of the rerun, which inherits the task a."""
    runs = node.job(new)["runs"]
    assert {run["task_name"] for run in runs} == {"b", "c"}
    contents = output_contents(node, new, "a")
    assert contents
    assert contents == output_contents(node, old, "a")
    (run_of_b,) = [run for run in runs if run["task_name"] == "b"]
    (address,) = run_of_b["inputs"].values()
    assert address["namespace"].startswith(old)
    (inherited_run,) = node.job(new)["inherited_runs"]
    assert inherited_run["task_name"] == "a"
    assert inherited_run["job_id"] == old
    assert "container number 0 of a" in node.ask("GET", inherited_run["log"]).text


def test_a_new_job_takes_over_what_is_the_same_in_an_old_one(guest, register):
    old = run_job(guest, chain(register))
    body = chain(register)
    body["config"]["task_params"]["common"]["c"]["lasts"] = 0.1

    new = run_job(guest, body | {"old_job_id": old})

    job = status(guest, new)
    assert job["old_job_id"] == old
    assert job["rerun_of"] is None
    is_inherited = {task["task_name"]: bool(task["inherited"]) for task in job["tasks"]}
    assert is_inherited == {
        "a": True,
        "b": True,
        "c": False,
    }
    warnings = guest.job(new)["warnings"]
    assert "the parameters of guest.0 differ: lasts" in " ".join(warnings)
    tasks = tasks_of_containers(register)
    assert tasks == ["a", "a", "b", "b", "c", "c", "c", "c"]

    # A job that inherits all tasks runs nothing.
    same = guest.submit(chain(register) | {"old_job_id": old})
    assert guest.wait_job(same, 60)["progress"] == 100
    assert tasks_of_containers(register) == tasks

    # A job without an old one inherits nothing.
    run_job(guest, chain(register) | {"old_job_id": ""})
    assert len(tasks_of_containers(register)) == 14


def refusal(
    guest: Node,
    register: Path,
    old_job_id: str,
    tasks: Any,
    **parameters: Any,
) -> str:
    """Return reason and text of the refusal of a job that must inherit tasks.

    ``parameters`` replace some of the task b's.
    """
    body = chain(register) | {"old_job_id": old_job_id}
    body["config"]["task_params"]["common"]["b"] |= parameters
    response = guest.post(
        f"{SCHEDULE}/job/create_all",
        limited(body, inherit=tasks),
    )
    assert response["code"] != 0, response
    return f"{response['data']['reason']} {response['msg']}"


def delete_output(
    node: Node,
    job_id: str,
    task: str,
) -> None:
    """Delete the only output of a task from a node's storage."""
    outputs = [output for (name, _, _), output in node.outputs(job_id).items() if name == task]
    (path,) = {node.storage / output["namespace"] / output["name"] for output in outputs}
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def change_command(node: Node) -> None:
    """Change the command of the component, which changes the image's digest."""
    node.stop()
    images = node.settings["engine"]["process"]["images"]
    python, *arguments = images["example:1.0.0"]["command"]
    images["example:1.0.0"] = {"command": [python, "-B", *arguments]}
    node.start()


def test_a_demand_that_cannot_be_met_refuses_the_job_and_says_why(guest, host, register):
    old = run_job(guest, chain(register))
    wait_until_finished(host, old)

    text = refusal(guest, register, "job-none", ["a"])
    assert INHERITANCE_FAILED in text
    assert "no such job" in text

    text = refusal(
        guest,
        register,
        old,
        ["a", "b"],
        lasts=0.1,
    )
    assert text.startswith(INHERITANCE_FAILED)
    assert "the parameters of guest.0 differ: lasts" in text

    check_running_job_is_not_rerun(guest, register)

    delete_output(host, old, "b")
    refused = rerun(guest, old, **{"from": "c"})
    assert refused.status_code == 409
    assert refused.json()["data"]["reason"] == INHERITANCE_FAILED
    assert "output data0 of host.0 is gone" in refused.json()["msg"]
    assert jobs.HOST in refused.json()["msg"]

    change_command(host)
    text = refusal(guest, register, old, ["a"])
    assert text.startswith(INHERITANCE_FAILED)
    assert "the image digest differs" in text
    assert jobs.HOST in text

    statuses = guest.get(f"{SCHEDULE}/job/query_job_list")["data"]["job_list"].values()
    assert set(statuses) <= {"FINISHED", "REJECTED"}
    # Nothing ran after the old job.
    tasks = [task for task in tasks_of_containers(register) if task != "z"]
    assert len(tasks) == 6


def check_running_job_is_not_rerun(guest: Node, register: Path) -> None:
    """Check that a job that has not ended cannot be run again; stop it."""
    running = guest.submit(job_of(register, {"z": 30}))
    refused = rerun(guest, running, **{"from": "z"})
    assert refused.status_code == 409
    assert refused.json()["data"]["reason"] == "JOB_NOT_ENDED"
    guest.post(STOP, {"job_id": running})
    guest.wait_job(
        running,
        60,
        outcome="STOPPED",
    )


# ---------------------------------------------------------------- checkpoints


def stepping_job(**common: Any) -> Any:
    """Return a job whose second task is that of `stepping.py`; ``common`` are its parameters."""
    body = job_of(
        Path("/"),
        {"first": 0, "steps": 0},
        {"steps": "first"},
    )
    for task in body["dag"]["components"]:
        task["version"] = "2.0.0"
    return limited(body, **common)


def output_of_steps(
    node: Node,
    job_id: str,
    party: str,
) -> str:
    """Return the last line of the output, which has the step after which the run began."""
    path = f"/api/v1/jobs/{job_id}/outputs/steps/{party}/data0/download"
    return str(node.ask("GET", path).text.splitlines()[-1])


def checkpoints(
    node: Node,
    job_id: str,
) -> dict[str, list[str]]:
    """Return the newest three steps in the checkpoints of a job at a node, by party.

    The node may remove older ones at any time.
    """
    newest = {}
    for folder in node.storage.glob(f"{job_id}-*/steps-checkpoint"):
        steps = sorted(file.read_text() for file in folder.iterdir())
        newest[folder.parent.name] = steps[-3:]
    return newest


def test_a_task_that_was_killed_goes_on_in_its_next_attempt(guest, host):
    job_id = guest.submit(stepping_job(checkpoints=True, auto_retries=1))
    guest.wait_job(job_id, 120)

    failures = []
    for node in (guest, host):
        runs = [run for run in node.job(job_id)["runs"] if run["task_name"] == "steps"]
        assert runs[-1]["attempt"] == 1
        assert runs[-1]["status"] == "SUCCESS"
        failures += [run["failure"]["reason"] for run in runs if run["failure"] is not None]
    assert "EXIT_137" in failures
    assert output_of_steps(guest, job_id, "guest.0") == "1,5"


def test_a_job_that_is_run_again_goes_on_from_a_copy(guest, host):
    old = guest.submit(stepping_job(checkpoints=True))
    guest.wait_job(old, 120, outcome="FAILED")
    wait_until_finished(host, old)
    old_checkpoints = checkpoints(guest, old) | checkpoints(host, old)
    assert any("5" in steps for steps in old_checkpoints.values())

    response = rerun(guest, old)

    assert response.status_code == 200
    assert response.json()["inherits"] == ["first"]
    new = response.json()["job_id"]
    guest.wait_job(new, 120)
    assert output_of_steps(guest, new, "guest.0") == "1,5"
    # The old job stays as it ended.
    assert checkpoints(guest, old) | checkpoints(host, old) == old_checkpoints


def test_a_job_that_requests_no_checkpoints_has_none(guest):
    """A job has checkpoints only if its parameters ask for them."""
    job_id = guest.submit(stepping_job())
    # The component fails without the variable that names its checkpoint folder.
    guest.wait_job(job_id, 120, outcome="FAILED")
    assert checkpoints(guest, job_id) == {}

    refused = guest.post(f"{SCHEDULE}/job/create_all", stepping_job(checkpoints="often"))
    paths = [problem["path"] for problem in refused["data"]["problems"]]
    assert paths == ["config.job_params.common.checkpoints"]


# ---------------------------------------------------------------- caches


def counting_job(**parameters: dict[str, str]) -> Any:
    """Return a job of `counting.py`; ``parameters`` are the roles' own."""
    body = jobs.echo_job()
    (task,) = body["dag"]["components"]
    task["version"] = "3.0.0"
    task["output"] = [{"type": "cache", "key": "c"}]
    task_params = {}
    for role, values in parameters.items():
        task_params[role] = {"0": {task["name"]: values}}
    body["config"]["task_params"] = task_params
    return body


def test_a_task_starts_from_an_earlier_jobs_cache_if_its_party_says_so(guest, host):
    plan = guest.good_plan(counting_job())
    warnings = [
        check["check"]
        for node in plan["nodes"]
        for check in node["checks"]
        if check["standing"] == "warning"
    ]
    assert warnings == ["signature"], "the routes of these nodes say signing: accepted"
    first = run_job(guest, counting_job())
    address = guest.outputs(first)["echo_1", "guest.0", "c"]
    cache = f"{address['namespace']}#{address['name']}"
    body = counting_job(
        guest={"dataset_id": cache},
        host={"dataset_id": ""},
    )

    # A cache is used in jobs with nodes to which its own node has granted it.
    refused = guest.post(f"{SCHEDULE}/job/create_all", body)
    assert refused["data"]["reason"] == "NOT_AUTHORISED"
    grants = f"/api/v1/datasets/{cache.replace('#', '/')}/grants"
    assert guest.ask("PUT", f"{grants}/{jobs.HOST}", json={}).is_success

    second = run_job(guest, body)
    wait_until_finished(host, second)
    assert output_contents(guest, first, "echo_1") == {"guest.0": b"1"}
    assert output_contents(guest, second, "echo_1") == {"guest.0": b"2"}
    # The host names no cache and so has none.
    assert output_contents(host, second, "echo_1") == {"host.0": b"1"}


def test_a_cache_that_does_not_exist_refuses_the_job(guest):
    first = run_job(guest, counting_job())
    address = guest.outputs(first)["echo_1", "guest.0", "c"]
    missing = f"{address['namespace']}#{address['name']}d"
    body = counting_job(
        guest={"dataset_id": missing},
        host={"dataset_id": ""},
    )

    refused = guest.post(f"{SCHEDULE}/job/create_all", body)

    assert "is not in this node's storage" in refused["msg"]
