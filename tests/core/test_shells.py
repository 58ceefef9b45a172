"""What the shells do where the rules cannot help: bugs, races, several gateways."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from adapter.bfia.examples import A_JOB, A_PROVIDER
from engines.base import ImageMetadata, LaunchSpec
from engines.process.engine import ProcessEngine
from gateway.bootstrap.node import Gateway
from gateway.domain.dag import DagNode
from gateway.domain.execution import machine
from gateway.domain.execution.messages import OwnerLost
from gateway.domain.run import LocalJob, Run
from gateway.domain.states import RunStatus
from gateway.errors import EngineFailed
from gateway.jobs.planner import TaskPlanner
from tests.builders import a_run
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, STRANGER, ask, pair, running

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def submit(node: Gateway, disk: float | None = None) -> httpx.Response:
    assert ask(node, "operator", "POST", "/v2/provider/register", json=A_PROVIDER).is_success
    body = copy.deepcopy(A_JOB)
    if disk is not None:
        for role in ("guest", "host"):
            settings = body["config"].setdefault("job_params", {}).setdefault(role, {}).setdefault("0", {})
            settings["resources"] = {"cpu": -1, "memory": -1, "disk": disk}
    return ask(node, "operator", "POST", "/v1/platform/schedule/job/create_all", json=body)


def test_a_bug_in_an_engine_fails_the_run_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with running(tmp_path) as node:

        def broken(self: ProcessEngine, spec: LaunchSpec) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(ProcessEngine, "launch", broken)
        monkeypatch.setattr(ProcessEngine, "image_digest", lambda self, image: "x")
        monkeypatch.setattr(ProcessEngine, "image_facts", lambda self, image: ImageMetadata())
        job_id = submit(node).json()["data"]["job_id"]
        wait_for(lambda: str(node.store.jobs.get(job_id).status) == "FINISHED", 20)
        assert node.store.jobs.get(job_id).ending.failure.reason == "INTERNAL"


def test_a_second_gateway_on_the_database_leaves_running_runs_alone(tmp_path: Path):
    engine = {"kind": "process", "process": {"images": {"example:1.0.0": {"command": ["/bin/sleep", "60"]}}}}
    with running(tmp_path / "one", engine=engine) as node:
        job_id = submit(node).json()["data"]["job_id"]
        wait_for(lambda: {str(r.status) for r in node.store.local_jobs.get(job_id).runs} == {"RUNNING"}, 15)
        local = node.store.local_jobs.get(job_id)
        assert len({r.owner for r in local.runs}) == 1
        assert machine.plan(local, NOW + timedelta(days=365), owner="another/process") == []


def test_what_others_gave_up_while_this_gateway_was_frozen_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It stops between its claim of the launch and the launch; when it goes on, the run is over."""
    launched: list[LaunchSpec] = []
    monkeypatch.setattr(ProcessEngine, "launch", lambda self, spec: launched.append(spec))
    with running(tmp_path) as node:

        def frozen(self: ProcessEngine, image: str) -> str:
            for job_id in node.store.local_jobs.unfinished():
                if any(r.status is RunStatus.LAUNCHING for r in node.store.local_jobs.get(job_id).runs):
                    node.executor.record(job_id, OwnerLost(node.owner, "other", datetime.now(UTC)))
            return "x"

        monkeypatch.setattr(ProcessEngine, "image_digest", frozen)
        job_id = submit(node).json()["data"]["job_id"]
        wait_for(lambda: str(node.store.jobs.get(job_id).status) == "FINISHED")
        wait_for(lambda: all(r.collect.completed for r in node.store.local_jobs.get(job_id).runs))
    assert launched == []


def test_a_task_begins_where_another_gateway_has_just_begun_one_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    planned = TaskPlanner.runs
    with running(tmp_path) as node:

        def frozen(self: TaskPlanner, local: LocalJob, task: DagNode, task_id: str) -> tuple[Run, ...]:
            found = planned(self, local, task, task_id)
            begun = a_run("z", status=RunStatus.RUNNING, owner="other")
            node.store.local_jobs.update(local.id, lambda job: replace(job, home="other", runs=(begun,)))
            return found

        monkeypatch.setattr(TaskPlanner, "runs", frozen)
        job_id = submit(node).json()["data"]["job_id"]
        wait_for(lambda: len(node.store.local_jobs.get(job_id).runs) > 1)
        local = node.store.local_jobs.get(job_id)
        assert {local.home, *(run.owner for run in local.runs)} == {"other"}


def test_a_job_that_the_scheduling_node_refuses_is_not_listed(tmp_path: Path):
    routes = tmp_path / "a" / "routes.yml"
    with running(tmp_path / "b", PEER) as other:
        routes.parent.mkdir()
        port = other.addresses()["peer"].rpartition(":")[2]
        routes.write_text(f"{PEER}: {{host: 127.0.0.1, port: {port}}}\n{STRANGER}: {{host: 127.0.0.1, port: 1}}\n")
        over = {"node": {"id": ME, "coordinator": PEER}}
        with running(tmp_path / "a", **over) as node:
            body = copy.deepcopy(A_JOB)
            body["config"]["role"]["host"] = [STRANGER]
            answer = ask(node, "operator", "POST", "/v1/platform/schedule/job/create_all", json=body).json()
            assert answer["code"] != 0
            listed = ask(node, "operator", "GET", "/v1/platform/schedule/job/query_job_list").json()
            assert listed["data"]["job_list"] == {}


def test_fifty_identical_posts_make_one_job(tmp_path: Path):
    engine = {"kind": "process", "process": {"images": {"example:1.0.0": {"command": ["/bin/sleep", "60"]}}}}
    with pair(tmp_path, engine=engine) as (node, partner):
        for each in (node, partner):
            submit(each)
        body = copy.deepcopy(A_JOB) | {"job_id": "job-fifty"}
        body["config"] |= {
            "initiator": {"role": "guest", "node_id": PEER},
            "role": {"guest": [PEER], "host": [ME]},
        }
        gate = threading.Barrier(10)

        def post(_: int) -> int:
            gate.wait(60)
            path = "/v1/interconn/schedule/job/create_all"
            headers = {"x-source-node-id": PEER}
            return int(ask(node, "peer", "POST", path, json=body, headers=headers).json()["code"])

        with ThreadPoolExecutor(10) as pool:
            assert set(pool.map(post, range(50))) == {0}
        created = [e for e in node.store.timeline("job-fifty") if e.event == "create accepted"]
        assert len(created) == 2  # one at each party


def test_containers_that_could_not_reach_the_gateway_are_not_started(tmp_path: Path):
    engine = {"kind": "docker", "docker": {"base_url": "tcp://127.0.0.1:1"}}
    with running(tmp_path, engine=engine) as node:
        with pytest.raises(EngineFailed, match="does not answer"):
            node._place()
        job_id = submit(node).json()["data"]["job_id"]
        wait_for(lambda: str(node.store.jobs.get(job_id).status) == "FINISHED", 20)
        assert node.store.jobs.get(job_id).ending.failure.reason == "ENGINE_DOWN"
