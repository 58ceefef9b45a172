"""Jobs are stopped on real nodes: no container is left, and every node says the same of the job."""

import copy
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from adapter.bfia.examples import A_JOB, A_PROVIDER
from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, alive, process_engine, wait_for

SCHEDULE = "/v1/platform/schedule"
STOP, STOP_TASK = f"{SCHEDULE}/job/stop_all", f"{SCHEDULE}/job/stop_task"
DONE = {"code": 0, "msg": "success", "data": {}}
FOR_EVER = 600
PATIENT_ENGINE = process_engine(
    "example:1.0.0", command=[sys.executable, "-I", "-S", str(Path(__file__).with_name("patient.py"))]
)
"""settings of an engine whose one component is `patient.py`"""


@contextmanager
def two_patient_nodes(home: Path) -> Iterator[Federation]:
    """Two nodes whose one component is `patient.py`."""
    with Federation(home, [jobs.GUEST, jobs.HOST], PATIENT_ENGINE) as federation:
        for node in federation.nodes.values():
            node.register(A_PROVIDER)
        yield federation


@pytest.fixture
def two(tmp_path: Path, register: Path) -> Iterator[Federation]:
    with two_patient_nodes(tmp_path) as federation:
        yield federation
        for _, pid in started(register):
            assert not alive(pid)


def job_of(register: Path, lasting: dict[str, float], flow: dict[str, str] | None = None, **more: Any) -> Any:
    """Return a job of tasks that last so many seconds; ``flow`` names whose output a task needs."""
    body = copy.deepcopy(A_JOB)
    component = body["dag"]["components"][0]
    body["dag"]["components"] = [
        component
        | {
            "name": name,
            "input": [{"type": "dataset", "key": f"{flow[name]}.data0"}] if name in (flow or {}) else [],
        }
        for name in lasting
    ]
    body["config"]["initiator"] = {"role": "guest", "node_id": jobs.GUEST}
    body["config"]["role"] = {"guest": [jobs.GUEST], "host": [jobs.HOST]}
    body["config"]["task_params"] = {
        "common": {
            name: {"name": name, "lasts": seconds, "register": str(register)} | more
            for name, seconds in lasting.items()
        }
    }
    return body


def started(register: Path) -> list[tuple[str, int]]:
    """Return task and process id of every container that there ever was."""
    found = [path.name.split(".") for path in register.iterdir()]
    return [(parts[0], int(parts[-1])) for parts in found]


def running(register: Path) -> list[str]:
    return sorted(task for task, pid in started(register) if alive(pid))


def status(node: Node, job_id: str) -> dict[str, Any]:
    return dict(node.get(f"{SCHEDULE}/job/status_all", job_id=job_id)["data"])


def stopped_everywhere(federation: Federation, job_id: str, register: Path) -> dict[str, Any]:
    """Wait until nothing of the job runs anywhere and every node knows its end; return how it is shown."""
    federation[jobs.GUEST].wait_job(job_id, 60, outcome="STOPPED")
    for node in federation.nodes.values():
        wait_for(lambda node=node: node.job(job_id)["status"] in ("FINISHED", "REJECTED"), 30)
        wait_for(
            lambda node=node: all(_over(run) for run in node.job(job_id)["runs"]), 30, about="all runs are over"
        )
    wait_for(lambda: running(register) == [], 30, about="no container is left")
    shown = [status(node, job_id) for node in federation.nodes.values()]
    assert shown[0] == shown[1]
    assert shown[0]["outcome"] == "STOPPED" and shown[0]["failed_by"]["reason"] == "STOPPED"
    for task in shown[0]["tasks"]:
        assert task["status"] in ("READY", "SUCCESS", "FAILED")
        states = {state for roles in task["parties"].values() for state in roles.values()}
        if task["status"] == "FAILED":
            assert task["failed_by"]["reason"] == "STOPPED" and states <= {"FAILED", "SUCCESS"}
    return shown[0]


def _over(run: dict[str, Any]) -> bool:
    return run["status"] in ("SUCCESS", "FAILED")


def states(shown: dict[str, Any]) -> dict[str, str]:
    return {task["task_name"]: task["status"] for task in shown["tasks"]}


@pytest.mark.parametrize("where", [jobs.GUEST, jobs.HOST], ids=["initiator", "partner"])
def test_a_job_is_stopped_from_either_platform_even_where_its_containers_will_not_end(
    two: Federation, register: Path, where: str
):
    body = job_of(register, {"a": FOR_EVER, "b": 0, "c": FOR_EVER}, {"b": "a"}, stubborn=True)
    job_id = two[jobs.GUEST].submit(body)
    wait_for(lambda: running(register) == ["a", "a", "c", "c"], 60)
    assert two[where].post(STOP, {"job_id": job_id}) == DONE
    assert two[where].post(STOP, {"job_id": job_id}) == DONE
    shown = stopped_everywhere(two, job_id, register)
    assert states(shown) == {"a": "FAILED", "b": "READY", "c": "FAILED"}
    assert shown["failed_by"]["message"] == f"stopped by {where}"
    for node in two.nodes.values():
        failures = [run["failure"] for run in node.job(job_id)["runs"]]
        assert {(f["reason"], f["exit_code"]) for f in failures} == {("STOPPED", 137)}
        assert node.post(STOP, {"job_id": job_id}) == DONE
    assert status(two[jobs.GUEST], job_id) == shown


def test_a_stop_is_kept_by_a_scheduling_node_that_dies_and_reaches_a_partner_that_was_down(
    two: Federation, register: Path
):
    guest, host = two[jobs.GUEST], two[jobs.HOST]
    job_id = guest.submit(job_of(register, {"a": FOR_EVER}))
    wait_for(lambda: running(register) == ["a", "a"], 60)
    host.kill()
    assert guest.post(STOP, {"job_id": job_id}) == DONE
    guest.kill()
    guest.start()
    guest.wait_job(job_id, 60, outcome="STOPPED")
    wait_for(lambda: running(register) == ["a"], 30, about="the container of the node that answers is gone")
    host.start()
    stopped_everywhere(two, job_id, register)


def test_a_job_stopped_at_the_partners_platform_while_it_waits_starts_nothing(tmp_path: Path, register: Path):
    federation = Federation(tmp_path, [jobs.GUEST, jobs.HOST], PATIENT_ENGINE)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes requests and never answers
        add_route(federation[jobs.GUEST], jobs.ARBITER, silent.getsockname()[1])
        add_route(federation[jobs.HOST], jobs.ARBITER, silent.getsockname()[1])
        with federation:
            for node in federation.nodes.values():
                node.register(A_PROVIDER)
            guest, host = federation[jobs.GUEST], federation[jobs.HOST]
            body = job_of(register, {"a": 0})
            body["config"]["role"]["arbiter"] = [jobs.ARBITER]
            answers: list[dict[str, Any]] = []
            waiting = Thread(target=lambda: answers.append(guest.post(f"{SCHEDULE}/job/create_all", body)))
            waiting.start()
            listed = f"{SCHEDULE}/job/query_job_list"
            (job_id,) = wait_for(lambda: host.get(listed)["data"]["job_list"], 30, 0.02)
            assert status(guest, job_id)["job_status"] == "PENDING"
            assert host.post(STOP, {"job_id": job_id}) == DONE
            waiting.join(60)
            assert answers[0]["code"] != 0 and answers[0]["data"]["reason"] == "STOPPED"
            job = guest.wait_job(job_id, 30, outcome="STOPPED")
            assert job["status"] == "REJECTED"
            wait_for(lambda: host.job(job_id)["status"] == "REJECTED", 30)
            assert [node.job(job_id)["runs"] for node in (guest, host)] == [[], []]
            assert "job READY" not in [entry["event"] for entry in guest.timeline(job_id)]
    assert started(register) == []


def add_route(node: Node, other: str, port: int) -> None:
    file = node.home / "routes.yml"
    routes = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(routes | {other: {"host": "127.0.0.1", "port": port, "deadline": 2}}))
