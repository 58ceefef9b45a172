"""Nodes that count what jobs hold of them: asked before the start, at all nodes or at none, returned once."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from engines.base import Capacity
from gateway.bootstrap.node import Gateway
from gateway.domain.resources import GIB
from gateway.domain.run import LocalJob
from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus, RunStatus, TaskStatus
from gateway.errors import Refused
from gateway.ports import Callback
from provider_registry.registration import provider_from_request
from tests.builders import a_spec
from tests.contracts.apis import IMAGE, registration, serving
from tests.e2e.nodes import wait_for
from tests.inprocess import Node, ask, settings
from tests.memory_engine import MemoryEngine, MemoryWorld, Script

A, B, C = "JG0100001100000010", "JG0100002200000020", "JG0100003300000030"
LONG = 180.0


class Nodes:
    """Three nodes whose engines say that they have 24 cores and 64 GiB; containers end when a test says so."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.stack = ExitStack()
        self.nodes: dict[str, Gateway] = {}
        self.jobs = 0

    def start(self, **over: dict[str, Any]) -> None:
        gateways = {
            n: Node(settings(self.home / n, n, **over.get(n, {})), engine=_engine)
            for n in (A, B, C)
        }
        routes = {node: {"url": gateway.addresses()["peer"]} for node, gateway in gateways.items()}
        for node, gateway in gateways.items():
            others = {n: entry for n, entry in routes.items() if n != node}
            (self.home / node / "routes.yml").write_text(yaml.safe_dump(others))
            gateway.routes.reload()
            gateway.registry.register(provider_from_request(registration()))
            self.stack.enter_context(serving(gateway))
        self.nodes = gateways

    def __getitem__(self, node: str) -> Gateway:
        return self.nodes[node]

    def submit(
        self,
        dag: str = "a",
        at_: str = A,
        priority: int = 0,
        common: Any = None,
        **cpu: Any,
    ) -> str:
        """Submit a job of a guest at A and, as they are named, parties ``host`` at B and ``arbiter`` at C."""
        self.jobs += 1
        places = {
            "guest": A,
            "host": B,
            "arbiter": C,
        }
        roles = {role: (places[role],) for role in cpu}
        params: dict[str, Any] = {"common": {"priority": priority} | (common or {})}
        for role, asked in cpu.items():
            resources = asked if isinstance(asked, dict) else {"cpu": asked, "memory": -1}
            params[role] = {"0": {"resources": resources}}
        spec = a_spec(
            dag,
            roles,
            job_id=f"job-{self.jobs}",
            job_params=params,
            scheduler=at_,
            initiator=A,
            initiator_role="guest",
        )
        self.nodes[at_].coordinator.submit_job(spec, at_)
        return spec.job_id

    def local(self, job_id: str, node: str = A) -> LocalJob:
        return self.nodes[node].store.local_jobs.get(job_id)

    def view(self, node: str = A) -> Any:
        return self.nodes[node].resources.view()

    def remaining(self, node: str = A) -> float:
        found = self.view(node)
        held = sum(h["cpu"] for h in found["holders"])
        assert found["total"]["cpu"] - found["remaining"]["cpu"] == found["held"]["cpu"] == held
        return float(found["remaining"]["cpu"])

    def wait(self, what: Callable[[], Any], about: str) -> Any:
        return wait_for(what, LONG, 0.01, about)

    def wait_status(
        self,
        job_id: str,
        status: JobStatus,
        node: str = A,
    ) -> None:
        self.wait(
            lambda: self.nodes[node].store.jobs.get(job_id).status is status,
            f"{job_id} is {status}",
        )

    def running(
        self,
        job_id: str,
        task: str = "a",
        node: str = A,
    ) -> bool:
        return any(
            r.task_name == task and r.status is RunStatus.RUNNING
            for r in self.local(job_id, node).runs
        )

    def end_task(
        self,
        job_id: str,
        task: str,
        *nodes: str,
    ) -> None:
        for node in nodes:
            self.wait(lambda node=node: self.running(job_id, task, node), f"{task} runs at {node}")
            run = next(r for r in self.local(job_id, node).runs if r.task_name == task)
            for address in run.outputs.values():
                table = self.nodes[node].settings.storage.path / address.namespace / address.name
                table.mkdir(parents=True)
                (table / "data_0").write_text("id,x\n1,2\n")
            for _ in range(3):  # it says so more than once
                self.nodes[node].participant.callback(
                    Callback(TaskStatus.SUCCESS, run_id=run.run_id)
                )
            engine = self.nodes[node].engine
            assert isinstance(engine, MemoryEngine)
            engine.finish(run.name, 0)


_worlds: dict[str, MemoryWorld] = {}
"""what runs in the engines, through the death of a gateway"""


def _engine(settings: Any, installation: str) -> MemoryEngine:
    return MemoryEngine(
        node=settings.node.id,
        installation=installation,
        images={IMAGE: Script(code=None)},
        capacity=Capacity(24.0, 64 * GIB),
        world=_worlds.setdefault(str(settings.state_dir), MemoryWorld()),
    )


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes of which each test leaves all free."""
    with three_nodes(tmp_path_factory.mktemp("nodes")) as found:
        yield found


@contextmanager
def three_nodes(home: Path, **over: dict[str, Any]) -> Iterator[Nodes]:
    found = Nodes(home)
    with found.stack:
        found.start(**over)
        yield found


def foreign(cpu: int = 20) -> JobSpec:
    """Return a job that another node schedules, of a party at B."""
    spec = a_spec(
        "a",
        {"host": (B,), "guest": (A,)},
        scheduler=A,
        initiator=A,
        initiator_role="guest",
    )
    return replace(
        spec, job_id=f"job-{uuid4().hex}", job_params={"host": {"0": {"resources": {"cpu": cpu}}}}
    )


def waits_at(
    nodes: Nodes,
    job_id: str,
    node: str,
) -> str:
    """Return why the job waits at the node; empty while it does not."""
    return next((w["reason"] for w in nodes.view(node)["waiting"] if w["job_id"] == job_id), "")


def counts(nodes: Nodes, node: str) -> list[int]:
    view = nodes.view(node)
    return [view[name] for name in ("returns_ignored", "returned_by_reconciler", "expired")]


def events(
    nodes: Nodes,
    job_id: str,
    node: str,
) -> list[str]:
    return [e.event for e in nodes[node].store.timeline(job_id) if e.side == "participant"]


def test_six_tasks_borrow_one_after_the_other_and_everything_is_returned(nodes: Nodes):
    before = [counts(nodes, node) for node in (A, B)]
    job_id = nodes.submit("a -> b -> c -> d -> e -> f", guest=4, host=4)
    for task in "abcdef":
        for node in (A, B):
            nodes.wait(
                lambda node=node, task=task: nodes.running(job_id, task, node),
                f"{task} runs at {node}",
            )
            assert nodes.remaining(node) == 20
            assert nodes.view(node)["holders"][0]["pool"]["remaining"]["cpu"] == 0
        nodes.end_task(job_id, task, A, B)
        for node in (A, B) if task != "f" else ():
            pools = [
                e.detail.get("cpu")
                for e in nodes[node].store.timeline(job_id)
                if e.event == "resources held"
            ]
            assert pools == [4.0]
    nodes.wait_status(job_id, JobStatus.FINISHED)
    for node in (A, B):
        nodes.wait(lambda node=node: nodes.remaining(node) == 24, f"{node} has all of it again")
        nodes.wait(
            lambda node=node: "resources returned" in events(nodes, job_id, node),
            "it is written down",
        )
        assert [e for e in events(nodes, job_id, node) if e.startswith("resources")] == [
            "resources held",
            "resources returned",
        ]
    assert [counts(nodes, node) for node in (A, B)] == before


def test_if_one_of_three_parties_has_too_little_none_keeps_a_reservation(tmp_path: Path):
    patient = {"limits": {"schedule_pause_seconds": 600, "schedule_longest_pause_seconds": 600}}
    with three_nodes(
        tmp_path, **{A: patient}
    ) as nodes:  # it hears that something is free, or never asks again
        none_holds_anything(nodes)


def none_holds_anything(nodes: Nodes) -> None:
    first = nodes.submit(
        arbiter={"cpu": 1, "memory": 60},
        at_=C,
        guest=-1,
    )
    nodes.wait_status(first, JobStatus.RUNNING, C)
    second = nodes.submit(
        guest=4,
        host=4,
        arbiter={"cpu": 1, "memory": 8},
    )
    said = nodes.wait(lambda: waits_at(nodes, second, C), "the job waits")
    assert (
        said
        == f"needs memory 8 GiB on node {C}, free memory 4 GiB, held by job {first} (memory 60 GiB)"
    )
    nodes.wait(lambda: nodes.remaining(A) == nodes.remaining(B) == 24, "nobody else holds anything")
    assert nodes[A].store.jobs.get(second).status is JobStatus.READY

    def standing() -> str:  # between two questions; at each of them it holds for a moment
        return str(
            ask(nodes[A], "operator", "GET", f"/api/v1/jobs/{second}").json()["resources"]["state"]
        )

    nodes.wait(lambda: standing() == "RETURNED", "what the job held here is returned")
    nodes[C].coordinator.stop(first)
    nodes.wait_status(second, JobStatus.RUNNING)
    told = [e for e in nodes[A].store.timeline(second) if e.event == "resources free"]
    assert {e.by for e in told} == {C}
    assert (nodes.remaining(A), nodes.remaining(B), nodes.remaining(C)) == (20, 20, 23)
    nodes[A].coordinator.stop(second)
    nodes.wait(lambda: all(nodes.remaining(n) == 24 for n in (A, B, C)), "all is returned")
    assert all(
        nodes.view(n)["returns_ignored"] == nodes.view(n)["returned_by_reconciler"] == 0
        for n in (A, B, C)
    )


def test_a_scheduling_node_of_the_standard_starts_without_asking_first(nodes: Nodes):
    """It knows nothing of resources: the node holds by itself, or says that it cannot."""
    at_b, first, second = nodes[B].participant, foreign(), foreign()
    for spec in (first, second):
        at_b.create_job(spec, A)
    at_b.start_job(first.job_id, A)
    assert nodes.remaining(B) == 4
    for begin in (
        lambda: at_b.start_job(second.job_id, A),
        lambda: at_b.start_task(second.job_id, f"task_{second.job_id}", "a", A),
    ):
        words = f"needs cpu 20 on node .*, free cpu 4, held by job {first.job_id}"
        with pytest.raises(Refused, match=words) as caught:
            begin()
        assert caught.value.reason == "RESOURCES_BUSY"
    assert nodes.local(second.job_id, B).status is JobStatus.READY
    at_b.stop_job(first.job_id, "", None, A)
    nodes.wait(lambda: nodes.remaining(B) == 24, "it is returned")
    at_b.start_job(second.job_id, A)
    at_b.stop_job(second.job_id, "", None, A)
    nodes.wait(lambda: nodes.remaining(B) == 24, "it is returned")


def test_over_the_wire_held_returned_and_out_of_step(nodes: Nodes):
    spec, ignored = foreign(), counts(nodes, B)[0]
    assert nodes[B].participant.create_job(spec, A).tasks_at_once == 1

    def asked(what: str, sender: str = A) -> Any:
        path, headers = f"/v1/interconn/schedule/job/resource/{what}", {"x-source-node-id": sender}
        return ask(
            nodes[B], "peer", "POST", path, json={"job_id": spec.job_id}, headers=headers
        ).json()

    assert asked("return")["code"] == 0  # without an apply: counted
    assert counts(nodes, B)[0] == ignored + 1
    assert [asked("apply")["code"], asked("apply")["code"], nodes.remaining(B)] == [0, 0, 4]
    assert asked("apply", C)["data"]["reason"] == "JOB_UNKNOWN"
    assert [asked("return")["code"], asked("return")["code"], nodes.remaining(B)] == [0, 0, 24]
    assert counts(nodes, B)[0] == ignored + 2
    asked("apply")
    nodes[B].participant.start_job(spec.job_id, A)
    assert asked("return")["data"]["reason"] == "CONFLICT"
    nodes[B].participant.stop_job(spec.job_id, "", None, A)
    assert asked("apply")["data"]["reason"] == "JOB_ENDED"
    nodes.wait(lambda: nodes.remaining(B) == 24, "it is returned at the end")


def test_a_waiting_job_gets_a_missed_notice_of_free_resources_again(tmp_path: Path):
    patient = {"limits": {"schedule_pause_seconds": 600, "schedule_longest_pause_seconds": 600}}
    with three_nodes(tmp_path, **{A: patient}) as nodes:
        holder = nodes.submit(guest=24)
        nodes.wait_status(holder, JobStatus.RUNNING)
        waiting = nodes.submit(guest=4)
        nodes.wait(lambda: waits_at(nodes, waiting, A), "it waits, and asks again in ten minutes")
        resources, lost = nodes[A].resources, list[str]()
        tell, resources._freed = resources._freed, lost.extend
        nodes[A].coordinator.stop(holder)
        nodes.wait(lambda: waiting in lost, "the word is lost")
        resources._freed = tell
        assert nodes[A].store.jobs.get(waiting).status is JobStatus.READY
        resources.reconcile()
        nodes.wait_status(waiting, JobStatus.RUNNING)


def test_reservations_of_a_job_that_never_starts_are_released_in_time(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
):
    spec, resources, expired = foreign(), nodes[B].resources, counts(nodes, B)[2]
    nodes[B].participant.create_job(spec, A)
    nodes[B].participant.hold(spec.job_id, A)
    resources.reconcile()
    assert nodes.remaining(B) == 4
    monkeypatch.setattr("gateway.jobs.resources.LEASE", timedelta())
    time.sleep(0.01)  # the clock has to move
    resources.reconcile()
    assert (nodes.remaining(B), counts(nodes, B)[2]) == (24, expired + 1)
    nodes[B].participant.start_job(spec.job_id, A)  # it is held again
    resources.reconcile()
    assert nodes.remaining(B) == 4
    nodes[B].participant.stop_job(spec.job_id, "", None, A)
    nodes.wait(lambda: nodes.remaining(B) == 24, "it is returned")


def test_the_sites_default_applies_and_is_recorded_as_such(tmp_path: Path):
    roles = {"arbiter": {"cpu": 0.5}}
    over = {
        n: {"limits": {"cpu": 2, "memory_gib": 1}, "resources": {"roles": roles}} for n in (A, B, C)
    }
    with three_nodes(tmp_path, **over) as nodes:
        job_id = nodes.submit(
            guest={
                "cpu": -1,
                "memory": 3,
                "disk": -1,
            },
            arbiter={},
        )
        nodes.wait(lambda: nodes.running(job_id), "the guest runs")
        (run,) = nodes.local(job_id).runs
        assert (run.limits["cpu"], run.limits["memory"], run.limits["disk"]) == (2, 3 * GIB, None)
        assert run.limit_origins == {
            "cpu": "site default",
            "memory": "guest.0",
            "disk": "the node's bound",
        }
        engine = nodes[A].engine
        assert isinstance(engine, MemoryEngine)
        assert (engine.launches[0].limits.cpu, engine.launches[0].limits.memory) == (2, 3 * GIB)
        assert (nodes.remaining(A), nodes.remaining(C)) == (22, 23.5)
