"""The sandbox: containers of one image, which play the parties of a trial."""

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from secrets import randbelow
from uuid import uuid4

from engines.base import Engine, EngineError, Limits
from engines.docker import ContainerdEngine
from gateway.conformance.evidence import Trace
from gateway.conformance.execution import Deadline, TrialExecution
from gateway.conformance.loopback import Loopback
from gateway.conformance.plans import Plan, Timeouts
from gateway.conformance.stations import Station
from gateway.domain.dag import ComponentRef, Dag, DagNode
from gateway.domain.spec import JobSpec, Party
from provider_registry.model import Component

NODE = "CONFORMANCE"  # owner of the sandbox's containers
TASK = "checked"  # name of the only task of a trial
# Seconds of one wait for the parties. Python handles a signal only between two waits.
WAIT_SECONDS = 5.0


class Sandbox:
    """Runs the components of one image, in any number of trials.

    `close` removes the containers of all trials.
    """

    owner = NODE

    def __init__(
        self,
        engine: Engine,
        image: str,
        installation: str,
        folder: Path,
        timeouts: Timeouts = Timeouts(),
        memory: float = 2.0,
    ) -> None:
        """Take an engine and the image.

        - ``installation``: label that tells the sandbox's containers from any others
        - ``folder``: for the files of all trials
        - ``memory``: limit of each party in GiB, used if the engine reports runs that exceed it
        """
        self.engine = engine
        self.limits = Limits()
        if "oom_flag" in engine.capabilities:
            self.limits = Limits(memory=int(memory * 2**30))
        self.image = image
        self.installation = installation
        self.timeouts = timeouts
        self.given_up = threading.Event()  # set by `give_up`
        self._folder = folder
        self._lock = threading.Lock()
        self._ports: list[int] = []

    @property
    def confined(self) -> bool:
        """Whether runs see only their own inputs and outputs of the storage."""
        return "mounts" in self.engine.capabilities

    def labels(self) -> Mapping[str, str]:
        """Return the image's labels; empty for a missing image, which a trial reports."""
        try:
            return self.engine.image_metadata(self.image).labels
        except EngineError:
            return {}

    def give_up(self) -> None:
        """Have every run stopped at its next probe, also runs that start later."""
        self.given_up.set()

    def close(self) -> None:
        """Remove the containers and their network, and close the engine. Raises `EngineError`."""
        with closing(self.engine):
            for container in self.engine.list():
                self.engine.remove(container.name)
            if isinstance(self.engine, ContainerdEngine):
                self.engine.remove_network()

    def run(
        self,
        component: Component,
        plan: Plan,
    ) -> tuple[Trace, ...]:
        """Run one trial; return the trace of each party.

        Raises `OSError` or `EngineError` if the sandbox itself cannot be made, `Invalid` for an
        invalid table.
        """
        spec = _job_spec(component)
        stations = {}
        for party in spec.parties:
            stations[party.node] = Station(
                party.label,
                party.node,
                run=uuid4().hex,
                token=uuid4().hex,
            )
        parties = [party for party in spec.parties if party.label in plan.parties]
        seconds = self.timeouts.run
        if plan.empty:
            seconds = self.timeouts.without_data
        home = self._folder / spec.job_id
        home.mkdir(parents=True)
        with Loopback(stations, self._host(), home / "channel") as loopback:
            self._open_ports(loopback.ports)
            execution = TrialExecution(
                sandbox=self,
                component=component,
                spec=spec,
                plan=plan,
                loopback=loopback,
                home=home,
                running={party.label: stations[party.node] for party in parties},
                deadline=Deadline(seconds),
            )
            return self._run_parties(execution, parties, stations)

    def _run_parties(
        self,
        execution: TrialExecution,
        parties: Sequence[Party],
        stations: Mapping[str, Station],
    ) -> tuple[Trace, ...]:
        """Run the parties at the same time. The first error ends all, and is raised."""
        with ThreadPoolExecutor(len(parties)) as pool:
            try:
                futures = []
                for party in parties:
                    futures.append(pool.submit(execution.run_party, party, stations[party.node]))
                _wait_for_all(futures)
                return tuple(future.result() for future in futures)
            except BaseException:
                self.give_up()  # else leaving this block would wait for the other parties
                raise

    def _host(self) -> str:
        """Return the address for a trial's gateways.

        For containers, it is the address of their network's gateway. Processes get a new loopback
        address in each trial, so that a late request of an earlier one reaches nothing.
        """
        if isinstance(self.engine, ContainerdEngine):
            return self.engine.gateway_address()
        numbers = [str(randbelow(200) + 20) for _ in range(3)]
        return ".".join(["127", *numbers])

    def _open_ports(self, ports: Sequence[int]) -> None:
        """Let containers reach only these ports of this machine, and the ones of earlier trials."""
        if isinstance(self.engine, ContainerdEngine):
            with self._lock:
                self._ports += ports
                self.engine.close_host(self._ports)


def _wait_for_all(futures: Sequence[Future[Trace]]) -> None:
    """Wait for all futures. Raises the exception of the first that fails."""
    pending = set(futures)
    while pending:
        done, pending = wait(
            pending,
            WAIT_SECONDS,
            FIRST_EXCEPTION,
        )
        for future in done:
            future.result()


def _job_spec(component: Component) -> JobSpec:
    """Return a job of one task with a new node for each role."""
    reference = ComponentRef(component.provider, component.version, component.name)
    parties = []
    for number, role in enumerate(component.roles, 1):
        node = f"JG{number:04d}1000000{number:04d}{os.urandom(2).hex()}"
        parties.append(Party(role, 0, node))
    initiator = parties[0]
    return JobSpec(
        job_id=f"job-{uuid4().hex}",
        flow_id="",
        dag=Dag((DagNode(TASK, reference),)),
        parties=tuple(parties),
        initiator=initiator.node,
        initiator_role=initiator.role,
        scheduler=initiator.node,
        protocol="bfia",
        trace_id=uuid4().hex,
    )
