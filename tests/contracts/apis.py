"""What the two API contract suites run over: two real nodes, and every way to reach the use cases of one.

A further implementation (another protocol's client and router) is one more function in `IMPLEMENTATIONS`; the
suites stay as they are.
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
from tests.inprocess import ME, PEER, STRANGER, Node, ask, serving, settings
from tests.memory_engine import MemoryEngine, Script

THIRD = "JG0100003300000030"
"""a node that has a route, and no part in any job"""

IMAGE = "vendor:1.0.0"


@dataclass(frozen=True)
class Apis:
    """One way to reach a node: its two interfaces as the given node sees them."""

    scheduler: Callable[[NodeId], SchedulerApi]
    participant: Callable[[NodeId], ParticipantApi]


Implementation = Callable[[Gateway, Path], AbstractContextManager[Apis]]


@contextmanager
def local(node: Gateway, _home: Path) -> Iterator[Apis]:
    """The use cases themselves."""
    yield Apis(lambda _: node.coordinator, lambda _: node.participant)


@contextmanager
def bfia(node: Gateway, home: Path) -> Iterator[Apis]:
    """The client and the routers of BFIA, over loopback HTTP."""
    file = home / "routes-to-node.yml"
    file.write_text(yaml.safe_dump({ME: {"url": node.addresses()["peer"], "deadline": 20}}))
    routes, connections = LiveRoutes(file), Connections()
    try:
        yield Apis(
            lambda sender: SchedulerClient(Peer(sender, ME, routes.resolve, connections)),
            lambda sender: ParticipantClient(Peer(sender, ME, routes.resolve, connections)),
        )
    finally:
        connections.close()


@contextmanager
def fate(node: Gateway, home: Path) -> Iterator[Apis]:
    """The client and the routers of FATE's protocol, over loopback HTTP."""
    file = home / "routes-to-node-by-fate.yml"
    file.write_text(
        yaml.safe_dump(
            {
                ME: {
                    "url": node.addresses()["peer"],
                    "deadline": 20,
                    "profile": "fate-partner",
                }
            }
        )
    )
    protocols: list[BfiaProtocol] = []

    def protocol(sender: NodeId) -> FateProtocol:
        standard = BfiaProtocol(sender, LiveRoutes(file))
        protocols.append(standard)
        descriptions = Descriptions(sender, standard, node.registry, {})
        return FateProtocol(
            sender,
            descriptions,
            standard,
            standard.send,
            Signatures({}),
            lambda _: None,
            lambda _: "bfia",
        )

    try:
        yield Apis(
            lambda sender: protocol(sender).scheduler(ME),
            lambda sender: protocol(sender).participant(ME),
        )
    finally:
        for used in protocols:
            used.close()


IMPLEMENTATIONS: dict[str, Implementation] = {
    "local": local,
    "bfia": bfia,
    "fate": fate,
}


@dataclass(frozen=True)
class World:
    """The node under test, `ME`, and another one, `PEER`. Their containers run until a test ends them."""

    me: Gateway
    peer: Gateway
    home: Path

    def local(self, job_id: str) -> LocalJob:
        return self.me.store.local_jobs.get(job_id)

    def job(self, job_id: str) -> Job:
        return self.me.store.jobs.get(job_id)

    def scheduled(self, spec: JobSpec) -> Job:
        """Return a job that `PEER` schedules."""
        return self.peer.store.jobs.get(spec.job_id)

    def decide(
        self,
        spec: JobSpec,
        word: str,
        **said: str,
    ) -> httpx.Response:
        """Approve or reject a job at `ME`, as a person there does."""
        return ask(
            self.me, "operator", "POST", f"/api/v1/jobs/{spec.job_id}/{word}", json=said or None
        )

    def shown(self, spec: JobSpec, node: Gateway | None = None) -> dict[str, Any]:
        """Return a job as a node's operators see it."""
        return dict(ask(node or self.me, "operator", "GET", f"/api/v1/jobs/{spec.job_id}").json())

    def engine(self, node: Gateway | None = None) -> MemoryEngine:
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
        """Return the run of a party once its container is up."""

        def up() -> Run | None:
            local = (node or self.me).store.local_jobs.find(job_id)
            runs = local.runs if local else ()
            return next(
                (
                    r
                    for r in runs
                    if r.task_name == task and r.party.label == label and r.started_at is not None
                ),
                None,
            )

        found: Run = wait_for(up, 20, 0.01, f"{label} of {task} is up")
        return found

    def end(
        self,
        job_id: str,
        task: str,
        label: str,
        code: int = 0,
        node: Gateway | None = None,
    ) -> None:
        """Let a party's container end, after its report where it succeeds; return when the node knows it."""
        node = node or self.me
        run = self.run(job_id, task, label, node)
        if code == 0:
            node.participant.callback(Callback(TaskStatus.SUCCESS, run_id=run.run_id))
        self.engine(node).finish(run.name, code)

        def over() -> bool:
            return next(
                r for r in node.store.local_jobs.get(job_id).runs if r.run_id == run.run_id
            ).over

        wait_for(over, 20, 0.01, f"{label} of {task} is over")

    def end_all(self, spec: JobSpec, task: str = "a") -> None:
        """Let the containers of a task end well at every party."""
        for party in spec.parties:
            self.end(
                spec.job_id, task, party.label, node=self.me if party.node == ME else self.peer
            )

    def wait_status(
        self,
        job_id: str,
        status: JobStatus,
        node: Gateway | None = None,
    ) -> Job:
        """Return the job of a node, which schedules it, once it has a status."""
        jobs = (node or self.me).store.jobs
        wait_for(lambda: jobs.get(job_id).status is status, 60, 0.01, f"{job_id} is {status}")
        return jobs.get(job_id)

    def closed(self, job_id: str, *nodes: Gateway) -> list[LocalJob]:
        """Return what nodes know of a job once nothing of it is left to do there."""
        found = [node.store.local_jobs for node in nodes or (self.me,)]
        for jobs in found:
            wait_for(lambda jobs=jobs: jobs.get(job_id).closed, 60, 0.02, f"{job_id} is closed")
        return [jobs.get(job_id) for jobs in found]

    def stop(self, spec: JobSpec) -> Job:
        """Stop a job at the node that schedules it; return it once it has ended."""
        node = self.me if spec.scheduler == ME else self.peer
        if node.store.jobs.get(spec.job_id).ended_at is None:
            node.coordinator.stop_job(spec.job_id, "", "")
        wait_for(
            lambda: node.store.jobs.get(spec.job_id).ended_at, 60, 0.01, f"{spec.job_id} has ended"
        )
        return node.store.jobs.get(spec.job_id)


def at_once(count: int, work: Callable[[], Any]) -> list[Exception]:
    """Do the same in so many threads that begin together; return what they raised."""
    gate, raised = threading.Barrier(count), list[Exception]()

    def run() -> None:
        gate.wait(60)
        try:
            work()
        except Exception as error:  # the test looks at it
            raised.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return raised


@contextmanager
def two_nodes(
    home: Path,
    *,
    me: Mapping[str, Any] = {},
    peer: Mapping[str, Any] = {},
) -> Iterator[World]:
    """Serve two nodes that know each other and `THIRD`, but not `STRANGER`. ``me``, ``peer``: further settings."""
    over = {ME: {"fate": {"enabled": True}, **me}, PEER: peer}
    engine = MemoryEngine.making({IMAGE: Script(code=None)})
    nodes = {
        node: Node(settings(home / node, node, **over[node]), engine=engine) for node in (ME, PEER)
    }
    routes = {node: {"url": gateway.addresses()["peer"]} for node, gateway in nodes.items()}
    routes[THIRD] = {"host": "127.0.0.1", "port": 9}
    assert STRANGER not in routes
    with ExitStack() as stack:
        for node, gateway in nodes.items():
            others = {n: entry for n, entry in routes.items() if n != node}
            (home / node / "routes.yml").write_text(yaml.safe_dump(others))
            gateway.routes.reload()
            gateway.registry.register(provider_from_request(registration()))
            stack.enter_context(serving(gateway))
        yield World(nodes[ME], nodes[PEER], home)


def refusal(call: Callable[..., Any], *args: Any) -> tuple[str, int]:
    """Return the reason and the code with which a call is refused."""
    with pytest.raises(GatewayError) as caught:
        call(*args)
    return caught.value.reason, caught.value.code


def a_provider_of(name: str, image: str) -> Provider:
    """Return a provider with one component of the same name, for guests and hosts."""
    request = registration()
    described = {
        **request["components_description"]["Thing"],
        "componentName": name,
        "provider": name,
    }
    request |= {"name": name, "metadata": {"base_url": "", "image": image}}
    return provider_from_request(request | {"components_description": {name: described}})


def registration() -> dict[str, Any]:
    """Return a provider: ``Thing`` for guests and hosts, ``Judge`` for arbiters only."""

    def described(name: str, *roles: str) -> dict[str, Any]:
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

    return {
        "name": "vendor",
        "device": "docker",
        "version": "1.0.0",
        "metadata": {"base_url": "", "image": IMAGE},
        "protocol": "bfia",
        "components_description": {
            "Thing": described("Thing", "guest", "host"),
            "Judge": described("Judge", "arbiter"),
        },
    }


def job_audits(node: Gateway) -> JobAudits:
    return JobAudits(
        node.context,
        node.admission,
        node.coordinator,
        node.executor,
        approval_policy(node.settings),
    )
