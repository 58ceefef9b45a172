"""The execution of one trial: each party's run, from its launch to its end, and its trace."""

import math
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from adapter.bfia.environment import environment, session_id
from engines.base import EngineError, Exited, LaunchSpec, labels
from gateway.conformance.evidence import Trace, is_waiting
from gateway.conformance.loopback import Loopback
from gateway.conformance.outputs import (
    beginning,
    checksums,
    files_in,
    format_problem,
    stored_files,
    strays,
)
from gateway.conformance.plans import Plan
from gateway.conformance.sample_input import LABEL_COLUMN
from gateway.conformance.stations import Station
from gateway.data.combined_storage import Storages
from gateway.data.datasets import Datasets
from gateway.data.file_storage import FileStorage
from gateway.data.upload import Upload
from gateway.data.workspace import Placement, Workspace
from gateway.domain.datasets import MemoryDatasets
from gateway.domain.run import Address, LocalJob, Run, RunData, Software
from gateway.domain.spec import JobSpec, Party
from gateway.domain.states import JobStatus
from gateway.ports import Site
from provider_registry.model import Component

if TYPE_CHECKING:
    from gateway.conformance.sandbox import Sandbox

PROBE_SECONDS = 0.05  # between two looks at a run
# Seconds until the running parties are stopped, after one party failed, or after one ended and all
# others wait for messages.
SECONDS_AFTER_END = 5.0
STARTED_SECONDS = 5.0  # after which a silent run counts as running


class Deadline:
    """The end of a trial, shared by its parties."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def shorten(self) -> None:
        """Leave at most `SECONDS_AFTER_END`: partners of a failed party can only wait for it."""
        self._end = min(self._end, time.monotonic() + SECONDS_AFTER_END)

    def is_over(self, now: float) -> bool:
        """Return whether a time of `time.monotonic` is after the end."""
        return now > self._end


@dataclass
class TrialExecution:
    """One run of a component by all parties of a plan."""

    sandbox: "Sandbox"
    component: Component
    spec: JobSpec
    plan: Plan
    loopback: Loopback
    home: Path  # folder for the files of the trial
    running: dict[str, Station]  # by party; a party that ends is removed
    deadline: Deadline

    def run_party(self, party: Party, station: Station) -> Trace:
        """Run one party and return the observations.

        Raises `OSError` if its folders cannot be made, `Invalid` for an invalid table.
        """
        run = self._new_run(party, station)
        home = self.home / party.label
        try:
            storage = self._fill_storage(run, home / "storage")
        except BaseException:
            self.deadline.shorten()
            raise
        workspace = Workspace(
            storage.root,
            home / "runs",
            contained=self.sandbox.confined,
        )
        placement = workspace.prepare(run)
        data = run.data
        inputs_before = checksums(storage, data.inputs)
        files_before = stored_files(storage)
        trace = Trace(
            party.label,
            task_id=run.task_id,
            session=session_id(self.spec.job_id),
            token=run.token,
            node=party.node,
        )
        try:
            self.sandbox.engine.launch(self._launch_spec(run, placement))
        except EngineError as error:
            self.deadline.shorten()
            return replace(trace, not_started=f"{error.reason}: {error}")
        try:
            trace = self._follow_container(run, station, trace)
        except EngineError as error:
            self.deadline.shorten()
            trace = replace(trace, engine_failure=f"{error.reason}: {error}")
        inputs_after = checksums(storage, data.inputs)
        changed = [name for name in data.inputs if inputs_before[name] != inputs_after[name]]
        addresses = [*data.inputs.values(), *data.outputs.values()]
        trace = replace(
            trace,
            requests=station.requests,
            log_files=files_in(workspace.logs(run) / "log"),
            strays=strays(storage, files_before, addresses),
            changed=tuple(changed),
        )
        return self._with_outputs(trace, storage, data.outputs)

    def _follow_container(
        self,
        run: Run,
        station: Station,
        trace: Trace,
    ) -> Trace:
        """Wait for the end of a launched run, and remove it. Raises `EngineError`."""
        engine = self.sandbox.engine
        trace = self._wait_for_end(run, station, trace)
        self.loopback.await_callbacks(run.party.node)
        logs = engine.logs(run.name)
        engine.remove(run.name)
        return replace(
            trace,
            stdout=logs.stdout,
            stderr=logs.stderr,
        )

    def _with_outputs(
        self,
        trace: Trace,
        storage: FileStorage,
        outputs: Mapping[str, Address],
    ) -> Trace:
        """Return a trace with the observations of its outputs, which are given by name."""
        described = {output.name: output for output in self.component.outputs}
        problems = {}
        beginnings = {}
        missing = []
        for name, address in outputs.items():
            if storage.exists(address):
                problems[name] = format_problem(storage, address, described[name])
                beginnings[name] = beginning(storage, address)
            else:
                missing.append(name)
        return replace(
            trace,
            outputs=problems,
            missing=tuple(missing),
            beginnings=beginnings,
        )

    # -------------------------------------------------------- preparation

    def _new_run(self, party: Party, station: Station) -> Run:
        """Return a party's run, with addresses for the plan's inputs and for all outputs.

        The run's id and token are the ones that the station expects.
        """
        job_id = self.spec.job_id
        task = self.spec.dag.nodes[0]
        task_id = f"task_{job_id.removeprefix('job-')}"
        namespace = f"{job_id}-{party.role}-{party.index}"
        outputs = {}
        for output in self.component.outputs:
            outputs[output.name] = Address(namespace, f"{task_id}-{output.name}")
        inputs = {}
        for name in self.plan.inputs.get(party.role, ()):
            inputs[name] = Address(f"{job_id}-data", name)
        software = Software(
            component=task.component,
            image=self.sandbox.image,
            roles=self.component.roles,
        )
        data = RunData(
            parameters={**self.plan.parameters, **self.plan.of_roles.get(party.role, {})},
            inputs=inputs,
            outputs=outputs,
        )
        return Run(
            run_id=station.run,
            token=station.token,
            name=f"bfia-{uuid4().hex[:16]}",
            task_id=task_id,
            task_name=task.name,
            party=party,
            software=software,
            created_at=datetime.now(UTC),
            data=data,
        )

    def _fill_storage(self, run: Run, root: Path) -> FileStorage:
        """Return a new storage with the inputs of a run. Raises `Invalid` for an invalid table."""
        root.mkdir(parents=True, exist_ok=True)
        storage = FileStorage(root)
        if self.plan.empty:
            return storage
        datasets = Datasets(Storages(storage), MemoryDatasets())
        tables = {data.name for data in self.component.inputs if data.group == "data"}
        for name, address in run.data.inputs.items():
            content = self.plan.inputs[run.party.role][name]
            folder = storage.path(address)
            if name in tables:
                _store_table(datasets, address, content, f"{run.party.role}.csv")
            else:
                folder.mkdir(parents=True)
                (folder / "data_0").write_bytes(content)
            # The container may run as any user.
            for path in folder.iterdir():
                path.chmod(0o644)
            folder.chmod(0o755)
        return storage

    def _launch_spec(self, run: Run, placement: Placement) -> LaunchSpec:
        """Return the specification to launch a run, with its environment variables and limits.

        The addresses of the channel and the callback are the ones of the party's own gateway.
        """
        party = run.party
        institutions = {
            partner.node: f"institution-of-{partner.role}" for partner in self.spec.parties
        }
        site = Site(
            storage_url=placement.storage_url,
            callback_url=self.loopback.callback(party.node),
            transport=self.loopback.transport(party.node),
            log_path=placement.log_path,
            institution_of=institutions,
        )
        job = LocalJob(
            self.spec,
            party.node,
            JobStatus.RUNNING,
            run.created_at,
            digest="",
            runs=(run,),
        )
        run_labels = labels(
            node=self.sandbox.owner,
            installation=self.sandbox.installation,
            job=self.spec.job_id,
            task=run.task_id,
            role=party.role,
            index=party.index,
            attempt=0,
        )
        # An input that is not stored (`Plan.empty`) has no folder that could be mounted.
        mounts = tuple(mount for mount in placement.mounts if mount.source.exists())
        variables = environment(job, run, site)
        return LaunchSpec(
            run.name,
            run.software.image,
            environment=variables,
            labels=run_labels,
            limits=self.sandbox.limits,
            mounts=mounts,
        )

    # -------------------------------------------------------- the end of a run

    def _wait_for_end(
        self,
        run: Run,
        station: Station,
        trace: Trace,
    ) -> Trace:
        """Wait until a run exits, or stop it; return how it ended.

        Raises `EngineError` for a lost run.
        """
        engine = self.sandbox.engine
        stop_decision = _StopDecision(self, station.first)
        probe = engine.probe(run.name)
        while not isinstance(probe, Exited):
            now = time.monotonic()
            if stop_decision.is_due(now):
                engine.stop(run.name, self.sandbox.timeouts.grace)
                seconds = time.monotonic() - now
                trace = replace(
                    trace,
                    was_stopped=True,
                    stop_seconds=seconds,
                )
                probe = engine.probe(run.name)
                break
            self.sandbox.given_up.wait(PROBE_SECONDS)
            probe = engine.probe(run.name)
        if not isinstance(probe, Exited):
            raise EngineError(f"the run {run.name} is gone")
        del self.running[trace.party]
        if probe.code != 0:
            self.deadline.shorten()
        return replace(
            trace,
            code=probe.code,
            signal=probe.signal,
            oom_killed=probe.oom_killed,
        )

    def longest_wait(self) -> float:
        """Return the seconds for which all running parties may wait for messages.

        Infinite while one of them does not wait. Less once a party has ended: it sends no more.
        """
        stations = list(self.running.values())
        if not all(is_waiting(station.requests) for station in stations):
            return math.inf
        if len(stations) < len(self.plan.parties):
            return SECONDS_AFTER_END
        return self.sandbox.timeouts.all_wait


class _StopDecision:
    """Decides when to stop one party's run."""

    def __init__(self, execution: TrialExecution, first_request: threading.Event) -> None:
        self._execution = execution
        self._first_request = first_request
        # A time of `time.monotonic` at which the party has started, at the latest.
        self._started_by = time.monotonic() + STARTED_SECONDS
        # The time, by the same clock, since when all parties wait; infinite while one does not.
        self._all_wait_since = math.inf

    def is_due(self, now: float) -> bool:
        """Return whether to stop the run now; ``now`` is a time of `time.monotonic`.

        It is stopped if the plan says so, the trial's time is over, all parties have waited too
        long, or the sandbox gives up.
        """
        execution = self._execution
        longest_wait = execution.longest_wait()
        self._note_state(now, longest_wait)
        stop_at = self._started_by + execution.plan.linger
        reasons = [
            execution.sandbox.given_up.is_set(),
            execution.deadline.is_over(now),
            now > self._all_wait_since + longest_wait,
            execution.plan.stop and now >= stop_at,
        ]
        return any(reasons)

    def _note_state(self, now: float, longest_wait: float) -> None:
        """Note the party's start at its first request, and since when all parties wait.

        ``longest_wait``: see `TrialExecution.longest_wait`.
        """
        if self._first_request.is_set():
            self._started_by = min(self._started_by, now)
        if math.isinf(longest_wait):
            self._all_wait_since = math.inf
        else:
            self._all_wait_since = min(self._all_wait_since, now)


def _store_table(
    datasets: Datasets,
    address: Address,
    content: bytes,
    file_name: str,
) -> None:
    """Store a CSV table as an upload does; its first column holds the ids. Raises `Invalid`."""
    first_line = content.partition(b"\n")[0]
    header = first_line.decode("utf-8-sig", "replace").strip().split(",")
    label = ""
    if LABEL_COLUMN in header:
        label = LABEL_COLUMN
    upload = Upload(
        address,
        delimiter=",",
        label_name=label,
        match_id_name=header[0],
    )
    with closing(datasets.receive()) as reception:
        reception.write(content)
        datasets.upload_from_file(upload, reception, file_name)
