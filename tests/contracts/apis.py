"""The subject of the two API contract suites: two real nodes, and every way to reach one of them.

A further implementation (client and router of another protocol) is one more function in
`IMPLEMENTATIONS`; the suites stay as they are.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from adapter.bfia.client import BfiaProtocol, ParticipantClient, SchedulerClient
from adapter.bfia.connections import Connections
from adapter.bfia.peer import Peer
from adapter.fate.client import FateProtocol
from adapter.fate.dag.description import Descriptions
from adapter.fate.signing import Signatures
from gateway.bootstrap.node import Gateway
from gateway.bootstrap.parts import approval_policy
from gateway.domain.job import Job
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import JobSpec, NodeId
from gateway.domain.states import JobStatus, TaskStatus
from gateway.errors import GatewayError
from gateway.jobs.job_audits import JobAudits
from gateway.ports import Callback, ParticipantApi, SchedulerApi
from provider_registry.model import Provider
from provider_registry.registration import provider_from_request
from route_table.live import LiveRoutes
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, ask, running
from tests.memory_engine import MemoryEngine, Script
from tests.world import write_routes

# A node that has a route and no party in any job.
THIRD = "JG0100003300000030"

IMAGE = "vendor:1.0.0"


@dataclass(frozen=True)
class Apis:
    """One way to reach a node: its two interfaces, for a sender."""

    scheduler: Callable[[NodeId], SchedulerApi]
    participant: Callable[[NodeId], ParticipantApi]


Implementation = Callable[[Gateway, Path], AbstractContextManager[Apis]]


@contextmanager
def local(
    node: Gateway,
    _home: Path,
) -> Iterator[Apis]:
    """Call the use cases themselves."""

    def scheduler(_sender: NodeId) -> SchedulerApi:
        return node.coordinator

    def participant(_sender: NodeId) -> ParticipantApi:
        return node.participant

    yield Apis(scheduler, participant)


@contextmanager
def bfia(
    node: Gateway,
    home: Path,
) -> Iterator[Apis]:
    """Use the client and the routers of BFIA, over loopback HTTP."""
    file = home / "routes-to-node.yml"
    _write_route(file, node)
    routes = LiveRoutes(file)
    connections = Connections()

    def peer(sender: NodeId) -> Peer:
        return Peer(sender, ME, routes.resolve, connections)

    def scheduler(sender: NodeId) -> SchedulerApi:
        return SchedulerClient(peer(sender))

    def participant(sender: NodeId) -> ParticipantApi:
        return ParticipantClient(peer(sender))

    try:
        yield Apis(scheduler, participant)
    finally:
        connections.close()


@contextmanager
def fate(
    node: Gateway,
    home: Path,
) -> Iterator[Apis]:
    """Use the client and the routers of FATE's protocol, over loopback HTTP."""
    file = home / "routes-to-node-by-fate.yml"
    _write_route(file, node, profile="fate-partner")
    standards: list[BfiaProtocol] = []

    def job_of(_job_id: str) -> None:
        return None

    def protocol_of(_job_id: str) -> str:
        return "bfia"

    def protocol(sender: NodeId) -> FateProtocol:
        standard = BfiaProtocol(sender, LiveRoutes(file))
        standards.append(standard)
        return FateProtocol(
            sender,
            Descriptions(sender, standard, node.registry, {}),
            standard,
            standard.send,
            Signatures({}),
            job_of,
            protocol_of,
        )

    def scheduler(sender: NodeId) -> SchedulerApi:
        return protocol(sender).scheduler(ME)

    def participant(sender: NodeId) -> ParticipantApi:
        return protocol(sender).participant(ME)

    try:
        yield Apis(scheduler, participant)
    finally:
        for standard in standards:
            standard.close()


def _write_route(
    file: Path,
    node: Gateway,
    **fields: str,
) -> None:
    """Write a route table with the node alone; ``fields`` are further keys of its route."""
    entry = {
        "url": node.addresses()["peer"],
        "deadline": 20,
        **fields,
    }
    file.write_text(yaml.safe_dump({ME: entry}))


IMPLEMENTATIONS: dict[str, Implementation] = {
    "local": local,
    "bfia": bfia,
    "fate": fate,
}


def _write_needed_outputs(node: Gateway, run: Run) -> None:
    """Write a table of one row to each output of a run that a later task reads."""
    for output in run.data.needed_outputs:
        address = run.data.outputs[output]
        table = node.settings.storage.path / address.namespace / address.name
        table.mkdir(parents=True)
        (table / "data_0").write_text("id,x\n1,2\n")


@dataclass(frozen=True)
class World:
    """The node under test, `ME`, and its partner `PEER`. Containers run until a test ends them."""

    me: Gateway
    peer: Gateway
    home: Path

    def local(self, job_id: str) -> LocalJob:
        """Return the job of `ME` as a participant."""
        return self.me.store.local_jobs.get(job_id)

    def job(self, job_id: str) -> Job:
        """Return a job that `ME` schedules."""
        return self.me.store.jobs.get(job_id)

    def scheduled(self, spec: JobSpec) -> Job:
        """Return a job that `PEER` schedules."""
        return self.peer.store.jobs.get(spec.job_id)

    def decide(
        self,
        spec: JobSpec,
        decision: str,
        **fields: str,
    ) -> httpx.Response:
        """Approve or reject a job at `ME` as one of its operators; ``fields`` are the body."""
        path = f"/api/v1/jobs/{spec.job_id}/{decision}"
        return ask(self.me, "operator", "POST", path, json=fields or None)

    def job_view(
        self,
        spec: JobSpec,
        node: Gateway | None = None,
    ) -> dict[str, Any]:
        """Return a job as the operators of a node (`ME` by default) see it."""
        path = f"/api/v1/jobs/{spec.job_id}"
        return dict(ask(node or self.me, "operator", "GET", path).json())

    def engine(
        self,
        node: Gateway | None = None,
    ) -> MemoryEngine:
        """Return the engine of a node, `ME` by default."""
        engine = (node or self.me).engine
        assert isinstance(engine, MemoryEngine)
        return engine

    def run(
        self,
        job_id: str,
        task: str,
        label: str,
        node: Gateway | None = None,
    ) -> Run:
        """Return the run of a party at a node (`ME` by default) once its container is up."""
        store = (node or self.me).store

        def started_run() -> Run | None:
            job = store.local_jobs.find(job_id)
            if job is None:
                return None
            for run in job.runs:
                is_of_party = run.task_name == task and run.party.label == label
                if is_of_party and run.started_at is not None:
                    return run
            return None

        run: Run = wait_for(started_run, 20, 0.01, f"{label} of {task} is up")
        return run

    def end(
        self,
        job_id: str,
        task: str,
        label: str,
        code: int = 0,
        node: Gateway | None = None,
    ) -> None:
        """Let a party's container exit, and return when the node knows it.

        A container with exit code 0 reports its success first.
        """
        node = node or self.me
        run = self.run(job_id, task, label, node)
        if code == 0:
            node.container_callbacks.record(Callback(TaskStatus.SUCCESS, run_id=run.run_id))
        self.engine(node).finish(run.name, code)

        def is_over() -> bool:
            runs = node.store.local_jobs.get(job_id).runs
            return any(stored.over for stored in runs if stored.run_id == run.run_id)

        wait_for(is_over, 20, 0.01, f"{label} of {task} is over")

    def end_all(
        self,
        spec: JobSpec,
        task: str = "a",
    ) -> None:
        """Let the containers of a task write the outputs that later tasks read, and succeed."""
        for party in spec.parties:
            node = self.me if party.node == ME else self.peer
            run = self.run(spec.job_id, task, party.label, node)
            _write_needed_outputs(node, run)
            self.end(
                spec.job_id,
                task,
                party.label,
                node=node,
            )

    def wait_status(
        self,
        job_id: str,
        status: JobStatus,
        node: Gateway | None = None,
    ) -> Job:
        """Return the job of its scheduling node (`ME` by default) once it has a status."""
        jobs = (node or self.me).store.jobs

        def has_status() -> bool:
            return jobs.get(job_id).status is status

        wait_for(has_status, 60, 0.01, f"{job_id} is {status}")
        return jobs.get(job_id)

    def closed(
        self,
        job_id: str,
        *nodes: Gateway,
    ) -> list[LocalJob]:
        """Return the job of each participant (`ME` by default) once all its work on it is done."""
        closed_jobs = []
        for node in nodes or (self.me,):
            jobs = node.store.local_jobs

            def is_closed(jobs: Any = jobs) -> bool:
                return bool(jobs.get(job_id).closed)

            wait_for(is_closed, 60, 0.02, f"{job_id} is closed")
            closed_jobs.append(jobs.get(job_id))
        return closed_jobs

    def stop(self, spec: JobSpec) -> Job:
        """Stop a job at its scheduling node; return it once it has ended."""
        node = self.me if spec.scheduler == ME else self.peer
        jobs = node.store.jobs
        if jobs.get(spec.job_id).ended_at is None:
            node.coordinator.stop_job(spec.job_id, "", "")

        def has_ended() -> bool:
            return jobs.get(spec.job_id).ended_at is not None

        wait_for(has_ended, 60, 0.01, f"{spec.job_id} has ended")
        return jobs.get(spec.job_id)


def run_in_threads(
    count: int,
    work: Callable[[], Any],
) -> list[Exception]:
    """Call a function in ``count`` threads that start together; return the exceptions raised."""
    gate = threading.Barrier(count)
    errors: list[Exception] = []

    def run() -> None:
        gate.wait(60)
        try:
            work()
        except Exception as error:  # for the test to check
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return errors


@contextmanager
def two_nodes(
    home: Path,
    *,
    me: Mapping[str, Any] = {},
    peer: Mapping[str, Any] = {},
) -> Iterator[World]:
    """Serve two nodes with routes to each other and to `THIRD`, and none to `STRANGER`.

    ``me`` and ``peer`` are further settings of the nodes. A node's files are in ``home / node_id``,
    where a test may put keys before.
    """
    settings = {
        ME: {"fate": {"enabled": True}, **me},
        PEER: peer,
    }
    make_engine = MemoryEngine.making({IMAGE: Script(code=None)})
    with ExitStack() as stack:
        nodes = {}
        for node_id in (ME, PEER):
            node = running(home / node_id, node_id, make_engine, **settings[node_id])
            nodes[node_id] = stack.enter_context(node)
            nodes[node_id].registry.register(provider_from_request(registration()))
        for node_id, partner_id in ((ME, PEER), (PEER, ME)):
            routes = {
                partner_id: {"url": nodes[partner_id].addresses()["peer"]},
                THIRD: {
                    "host": "127.0.0.1",
                    "port": 9,
                },
            }
            write_routes(home / node_id / "routes.yml", routes)
            nodes[node_id].routes.reload()
        yield World(nodes[ME], nodes[PEER], home)


def catch_refusal(call: Callable[..., Any], *args: Any) -> tuple[str, int]:
    """Return the reason and the HTTP status with which a call is refused."""
    with pytest.raises(GatewayError) as caught:
        call(*args)
    return caught.value.reason, caught.value.code


def a_provider_of(name: str, image: str) -> Provider:
    """Return a provider with one component of the same name, for guests and hosts."""
    request = registration()
    component = {
        **request["components_description"]["Thing"],
        "componentName": name,
        "provider": name,
    }
    return provider_from_request(
        {
            **request,
            "name": name,
            "metadata": {
                "base_url": "",
                "image": image,
            },
            "components_description": {name: component},
        }
    )


def registration() -> dict[str, Any]:
    """Return a provider: ``Thing`` for guests and hosts, ``Judge`` for arbiters only."""
    return {
        "name": "vendor",
        "device": "docker",
        "version": "1.0.0",
        "metadata": {
            "base_url": "",
            "image": IMAGE,
        },
        "protocol": "bfia",
        "components_description": {
            "Thing": _component("Thing", "guest", "host"),
            "Judge": _component("Judge", "arbiter"),
        },
    }


def _component(name: str, *roles: str) -> dict[str, Any]:
    """Return the description of a component with one input and one output table."""
    table = {
        "name": "out",
        "description": "a table",
        "category": "dataset",
        "dataFormat": ["csv"],
    }
    return {
        "componentName": name,
        "title": name,
        "provider": "vendor",
        "version": "1.0.0",
        "description": name,
        "roleList": list(roles),
        "desVersion": "1.3.0",
        "storageEngine": ["file"],
        "inputParam": [],
        "inputData": [table],
        "outputData": [table],
        "result": [],
    }


def job_audits(node: Gateway) -> JobAudits:
    """Return the use cases of job audits at a node."""
    return JobAudits(
        node.context,
        node.admission,
        node.coordinator,
        node.executor,
        approval_policy(node.settings),
    )
