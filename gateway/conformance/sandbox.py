"""Runs a component in a sandbox, once per trial, and writes down what is seen of it."""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from secrets import randbelow
from typing import Any
from uuid import uuid4

from adapter.bfia.environment import environment, session_id
from engines.base import Engine, EngineError, Exited, LaunchSpec, Limits
from engines.docker import ContainerdEngine
from engines.naming import labels
from gateway.conformance import samples
from gateway.conformance.evidence import Trace
from gateway.conformance.loopback import Loopback, Station
from gateway.conformance.outputs import files, files_in, looked_at, stamps, strays
from gateway.conformance.tap import Ear
from gateway.data.storage import FileStorage
from gateway.data.workspace import Workspace
from gateway.domain.dag import ComponentRef, Dag, DagNode
from gateway.domain.run import Address, LocalJob, Run
from gateway.domain.spec import JobSpec, Party
from gateway.domain.states import JobStatus
from gateway.ports import Site
from provider_registry.model import Component

NODE = "CONFORMANCE"
"""owner of the sandbox's containers"""
_LOOK_SECONDS = 0.05
_AFTER_A_FAILURE = 5.0
"""seconds that the other parties get to end by themselves once one has failed"""
_STARTED_SECONDS = 5.0
"""how long a run that says nothing is given before it counts as running"""
_TASK = "checked"


@dataclass(frozen=True)
class Patience:
    """How long a trial may take, in seconds."""

    run: float = 300.0
    """for one trial"""
    alone: float = 30.0
    """for parties that are to fail for want of data"""
    grace: float = 10.0
    """between SIGTERM and SIGKILL"""


@dataclass(frozen=True)
class Plan:
    """How one trial is made."""

    parties: tuple[str, ...]
    """which of them are started; the others have a mailbox that takes everything and says nothing"""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    """role -> input's name -> what it holds; an input that is not here is not told to the role"""
    empty: bool = False
    """the inputs' addresses hold nothing"""
    stop: bool = False
    """end it as soon as it runs"""
    linger: float = 0.0
    """seconds that it is left to itself before it is ended, from when it runs"""


class Sandbox:
    """Runs one image's components. Close it: that takes away all that it made."""

    def __init__(
        self, engine: Engine, image: str, installation: str, folder: Path, patience: Patience = Patience()
    ) -> None:
        self._engine = engine
        self.image = image
        self._installation = installation
        self._folder = folder
        self._patience = patience
        self._lock = threading.Lock()
        self._ports: list[int] = []
        self._given_up = threading.Event()

    @property
    def confined(self) -> bool:
        """Whether its runs see no more of the storage than their inputs and outputs."""
        return "mounts" in self._engine.capabilities

    def labels(self) -> Mapping[str, str]:
        """Return the image's labels; none where it is not here, which a trial tells."""
        try:
            return self._engine.image_facts(self.image).labels
        except EngineError:
            return {}

    def give_up(self) -> None:
        """Have every trial under way end soon."""
        self._given_up.set()

    def close(self) -> None:
        """Take the containers and their network away, as far as they go. Raises the first `EngineError`."""
        refused: list[EngineError] = []
        try:
            for found in self._engine.list():
                try:
                    self._engine.remove(found.name)
                except EngineError as error:
                    refused.append(error)
            if isinstance(self._engine, ContainerdEngine) and not refused:
                self._engine.remove_network()
        finally:
            self._engine.close()
        if refused:
            raise refused[0]

    def run(self, component: Component, plan: Plan) -> tuple[Trace, ...]:
        """Make one trial. Raises `OSError` and `EngineError` where the sandbox itself cannot be made."""
        job = f"job-{uuid4().hex}"
        spec = _job(component, job)
        stations = {p.node: _station(p) for p in spec.parties}
        home = self._folder / job
        home.mkdir(parents=True)
        with Loopback(stations, self._host(), home / "channel") as loopback:
            self._open(loopback.ports)
            going = _Going(time.monotonic() + (self._patience.alone if plan.empty else self._patience.run))
            parties = [p for p in spec.parties if p.label in plan.parties]
            with ThreadPoolExecutor(len(parties)) as pool:
                work = [
                    pool.submit(self._party, component, spec, p, stations[p.node], loopback, plan, home, going)
                    for p in parties
                ]
                try:
                    return tuple(w.result() for w in work)
                except BaseException:
                    self.give_up()  # else leaving this block would wait for what still runs
                    raise

    def _host(self) -> str:
        """Return where a trial's gateways listen: not where others may still look for what has ended."""
        if isinstance(self._engine, ContainerdEngine):
            return self._engine.gateway_address()
        return ".".join(["127", *(str(randbelow(200) + 20) for _ in range(3))])

    def _open(self, ports: Sequence[int]) -> None:
        if isinstance(self._engine, ContainerdEngine):
            with self._lock:
                self._ports += ports
                self._engine.close_host(self._ports)

    def _party(
        self,
        component: Component,
        spec: JobSpec,
        party: Party,
        station: Station,
        loopback: Loopback,
        plan: Plan,
        home: Path,
        going: "_Going",
    ) -> Trace:
        run = _run(component, spec, party, station, self.image, plan)
        try:
            storage = self._filled(component, run, plan, home / party.label / "storage")
        except BaseException:
            going.failed()
            raise
        workspace = Workspace(storage.root, home / party.label / "runs", contained=self.confined)
        placement = workspace.prepare(run)
        before, there = stamps(storage, run.inputs.values()), files(storage)
        site = Site(
            placement.storage_url,
            loopback.callback(party.node),
            loopback.transport(party.node),
            placement.log_path,
            {},
        )
        local = LocalJob(spec, party.node, JobStatus.RUNNING, run.created_at, "", runs=(run,))
        launch = LaunchSpec(
            run.name,
            run.image,
            environment(local, run, site),
            labels(NODE, self._installation, spec.job_id, run.task_id, party.role, party.index, 0),
            Limits(),
            tuple(m for m in placement.mounts if m.source.exists()),
        )
        trace = Trace(party.label, run.task_id, session_id(spec.job_id), run.token)
        try:
            self._engine.launch(launch)
            trace = self._until_over(run, station.ear, plan, trace, going)
            loopback.settle(party.node)
            written = self._engine.logs(run.name)
            self._engine.remove(run.name)
        except EngineError as error:
            going.failed()
            return replace(trace, not_started=f"{error.reason}: {error}")
        log = workspace.logs(run) / "log"
        return replace(
            trace,
            heard=station.ear.heard,
            stdout=written.stdout,
            stderr=written.stderr,
            log_files=files_in(log),
            outputs=looked_at(storage, component, run.outputs),
            strays=strays(storage, there, [*run.inputs.values(), *run.outputs.values()]),
            changed=tuple(n for n, a in run.inputs.items() if stamps(storage, [a]) != {a: before.get(a)}),
        )

    def _filled(self, component: Component, run: Run, plan: Plan, root: Path) -> FileStorage:
        root.mkdir(parents=True, exist_ok=True)
        storage = FileStorage(root)
        tables = [one.name for one in component.inputs if one.group == "data"]
        for name, address in () if plan.empty else run.inputs.items():
            content = plan.inputs[run.party.role][name]
            if name in tables:
                samples.store(storage, address, run.party.role, content)
            else:
                samples.store_as_it_is(storage, address, content)
        return storage

    def _until_over(self, run: Run, ear: Ear, plan: Plan, trace: Trace, going: "_Going") -> Trace:
        """Wait for the end of a run, or make it end; say how it did."""
        running_by = time.monotonic() + _STARTED_SECONDS
        while not isinstance(probe := self._engine.probe(run.name), Exited):
            now = time.monotonic()
            if ear.first.is_set():
                running_by = min(running_by, now)
            due = now >= running_by + plan.linger
            if (plan.stop and due) or now > going.until or self._given_up.is_set():
                began = time.monotonic()
                self._engine.stop(run.name, self._patience.grace)
                trace = replace(trace, was_stopped=True, in_time=plan.stop, stop_seconds=time.monotonic() - began)
                probe = self._engine.probe(run.name)
                break
            self._given_up.wait(_LOOK_SECONDS)
        if not isinstance(probe, Exited):
            raise EngineError(f"the run {run.name} is gone")
        if probe.code != 0:
            going.failed()
        return replace(trace, code=probe.code, signal=probe.signal)


class _Going:
    """Until when a trial may go on: shortened once a party has failed, as its partners only wait then."""

    def __init__(self, until: float) -> None:
        self.until = until

    def failed(self) -> None:
        self.until = min(self.until, time.monotonic() + _AFTER_A_FAILURE)


def _station(party: Party) -> Station:
    run = uuid4().hex
    return Station(party.label, party.node, run, uuid4().hex, Ear(run))


def _job(component: Component, job_id: str) -> JobSpec:
    """Return a job with one party per role, each at a node of its own."""
    ref = ComponentRef(component.provider, component.version, component.name)
    parties = tuple(
        Party(role, 0, f"JG{number:04d}1000000{number:04d}{os.urandom(2).hex()}")
        for number, role in enumerate(component.roles, 1)
    )
    return JobSpec(
        job_id=job_id,
        flow_id="",
        dag=Dag((DagNode(_TASK, ref),)),
        parties=parties,
        initiator=parties[0].node,
        initiator_role=parties[0].role,
        scheduler=parties[0].node,
        protocol="bfia",
        trace_id=uuid4().hex,
    )


def _run(component: Component, spec: JobSpec, party: Party, station: Station, image: str, plan: Plan) -> Run:
    task_id = f"task_{spec.job_id.removeprefix('job-')}"
    namespace = f"{spec.job_id}-{party.role}-{party.index}"
    inputs = {name: Address(f"{spec.job_id}-data", name) for name in plan.inputs.get(party.role, ())}
    return Run(
        run_id=station.run,
        token=station.token,
        name=f"bfia-{uuid4().hex[:16]}",
        task_id=task_id,
        task_name=_TASK,
        party=party,
        component=spec.dag.nodes[0].component,
        image=image,
        created_at=datetime.now(UTC),
        parameters=plan.parameters,
        inputs=inputs,
        outputs={o.name: Address(namespace, f"{task_id}-{o.name}") for o in component.outputs},
        roles=component.roles,
    )
