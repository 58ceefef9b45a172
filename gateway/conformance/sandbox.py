"""Runs a component in a sandbox, once per trial, and records what it does."""

import csv
import io
import json
import math
import os
import random
import threading
import time
from collections.abc import Iterable, Mapping, Set
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from secrets import randbelow
from typing import Any
from uuid import uuid4

from adapter.bfia.environment import environment, session_id
from engines.base import Engine, EngineError, Exited, LaunchSpec, Limits, labels
from engines.docker import ContainerdEngine
from engines.files import is_folder, walk
from gateway.conformance.evidence import Trace, is_waiting
from gateway.conformance.loopback import Loopback, Station
from gateway.data.combined_storage import Storages
from gateway.data.datasets import Datasets
from gateway.data.file_storage import FileStorage
from gateway.data.upload import Upload
from gateway.data.workspace import Placement, Workspace
from gateway.domain.dag import ComponentRef, Dag, DagNode
from gateway.domain.datasets import MemoryDatasets
from gateway.domain.run import Address, LocalJob, Run
from gateway.domain.spec import JobSpec, Party
from gateway.domain.states import JobStatus
from gateway.errors import GatewayError, counted
from gateway.ports import Site
from provider_registry.model import Component, DataSpec, Parameter

NODE = "CONFORMANCE"
"""owner of the sandbox's containers"""
UNKNOWN = "conformance_unknown"
"""a parameter that no description has"""
_PROBE_SECONDS = 0.05
_AFTER_THE_END = 5.0
"""seconds for the other parties once one has failed, or has ended and all others wait for messages"""
_SIGNAL_SECONDS = 5.0
"""after which a signal is seen that came just before waiting began, which nothing else would end"""
_STARTED_SECONDS = 5.0
"""after which a silent run counts as running"""
_TASK = "checked"
_ROWS = 60
_ID, _LABEL = "id", "y"
_BEGINNING = 2000
"""bytes of an output that are shown"""
_LARGEST = 64 << 20
"""bytes of an output whose format is checked"""


@dataclass(frozen=True)
class Timeouts:
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
    """which of them are started; the others have a mailbox that takes everything and sends nothing"""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    of_roles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """role -> parameters of its own, which go over the common ones"""
    inputs: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    """role -> input's name -> content; the role does not get an input that is missing here"""
    empty: bool = False
    """nothing is stored at the inputs' addresses"""
    stop: bool = False
    """stop it as soon as it runs"""
    linger: float = 0.0
    """seconds from when it runs until it is stopped"""


class Sandbox:
    """Runs one image's components. Closing it removes all that it made."""

    def __init__(
        self,
        engine: Engine,
        image: str,
        installation: str,
        folder: Path,
        timeouts: Timeouts = Timeouts(),
        memory: float = 2.0,
    ) -> None:
        """``memory``: GiB that each party may use, where the engine reports who used more."""
        self.engine = engine
        self.limits = Limits(
            memory=int(memory * 2**30) if "oom_flag" in engine.capabilities else None
        )
        self.image = image
        self.installation = installation
        self.timeouts = timeouts
        self.given_up = threading.Event()
        self._folder = folder
        self._lock = threading.Lock()
        self._ports: list[int] = []

    @property
    def confined(self) -> bool:
        """Whether its runs see no more of the storage than their inputs and outputs."""
        return "mounts" in self.engine.capabilities

    def labels(self) -> Mapping[str, str]:
        """Return the image's labels; none where it is missing, which a trial reports."""
        try:
            return self.engine.image_facts(self.image).labels
        except EngineError:
            return {}

    def give_up(self) -> None:
        """Have every running trial end soon."""
        self.given_up.set()

    def close(self) -> None:
        """Remove the containers and their network. Raises `EngineError`."""
        with closing(self.engine):
            for found in self.engine.list():
                self.engine.remove(found.name)
            if isinstance(self.engine, ContainerdEngine):
                self.engine.remove_network()

    def run(self, component: Component, plan: Plan) -> tuple[Trace, ...]:
        """Make one trial. Raises `OSError` and `EngineError` where the sandbox itself cannot be made."""
        spec = _job(component)
        stations = {
            p.node: Station(p.label, p.node, uuid4().hex, uuid4().hex) for p in spec.parties
        }
        home = self._folder / spec.job_id
        home.mkdir(parents=True)
        with Loopback(stations, self._host(), home / "channel") as loopback:
            self._open_ports(loopback.ports)
            parties = [p for p in spec.parties if p.label in plan.parties]
            running = {p.label: stations[p.node] for p in parties}
            trial = _Trial(self, component, spec, plan, loopback, home, running)
            with ThreadPoolExecutor(len(parties)) as pool:
                try:
                    playing = [pool.submit(trial.play, p, stations[p.node]) for p in parties]
                    while wait(playing, _SIGNAL_SECONDS, FIRST_EXCEPTION).not_done:
                        for one in filter(Future.done, playing):
                            one.result()  # raises what ended it
                    return tuple(one.result() for one in playing)
                except BaseException:
                    self.give_up()  # else leaving this block would wait for what still runs
                    raise

    def _host(self) -> str:
        """Return where a trial's gateways listen: a new address, which nothing of an earlier trial uses."""
        if isinstance(self.engine, ContainerdEngine):
            return self.engine.gateway_address()
        return ".".join(["127", *(str(randbelow(200) + 20) for _ in range(3))])

    def _open_ports(self, ports: list[int]) -> None:
        if isinstance(self.engine, ContainerdEngine):
            with self._lock:
                self._ports += ports
                self.engine.close_host(self._ports)


@dataclass
class _Trial:
    """One component run once, as a plan says, by parties that share a deadline."""

    sandbox: Sandbox
    component: Component
    spec: JobSpec
    plan: Plan
    loopback: Loopback
    home: Path
    running: dict[str, Station]
    """by party, of those that have not ended"""

    def __post_init__(self) -> None:
        timeouts = self.sandbox.timeouts
        self._until = time.monotonic() + (timeouts.alone if self.plan.empty else timeouts.run)

    def play(self, party: Party, station: Station) -> Trace:
        """Run one party and return what was seen of it."""
        run = _run(self.component, self.spec, party, station, self.sandbox.image, self.plan)
        home = self.home / party.label
        try:
            storage = self._filled(run, home / "storage")
        except BaseException:
            self._failed()
            raise
        workspace = Workspace(storage.root, home / "runs", contained=self.sandbox.confined)
        place = workspace.prepare(run)
        before, existing = _checksums(storage, run), _files(storage)
        trace = Trace(party.label, run.task_id, session_id(self.spec.job_id), run.token, party.node)
        engine = self.sandbox.engine
        try:
            engine.launch(self._launch(run, place))
            trace = self._until_over(run, station, trace)
            self.loopback.await_callbacks(party.node)
            written = engine.logs(run.name)
            engine.remove(run.name)
        except EngineError as error:
            self._failed()
            return replace(trace, not_started=f"{error.reason}: {error}")
        after = _checksums(storage, run)
        return replace(
            trace,
            requests=station.requests,
            stdout=written.stdout,
            stderr=written.stderr,
            log_files=files_in(workspace.logs(run) / "log"),
            outputs=_outputs(storage, self.component, run.outputs),
            missing=tuple(name for name, at in run.outputs.items() if not storage.exists(at)),
            strays=_strays(storage, existing, [*run.inputs.values(), *run.outputs.values()]),
            changed=tuple(name for name in run.inputs if before[name] != after[name]),
            shown={
                name: _beginning(storage, at)
                for name, at in run.outputs.items()
                if storage.exists(at)
            },
        )

    def _filled(self, run: Run, root: Path) -> FileStorage:
        root.mkdir(parents=True, exist_ok=True)
        storage = FileStorage(root)
        tables = [one.name for one in self.component.inputs if one.group == "data"]
        datasets = Datasets(Storages(storage), MemoryDatasets())
        for name, address in () if self.plan.empty else run.inputs.items():
            content = self.plan.inputs[run.party.role][name]
            if name in tables:
                header = (
                    content.partition(b"\n")[0].decode("utf-8-sig", "replace").strip().split(",")
                )
                label = _LABEL if _LABEL in header else ""
                upload = Upload(
                    address,
                    delimiter=",",
                    label_name=label,
                    match_id_name=header[0],
                )
                with closing(datasets.receive()) as reception:
                    reception.write(content)
                    datasets.upload_from_file(upload, reception, f"{run.party.role}.csv")
            else:
                storage.path(address).mkdir(parents=True)
                (storage.path(address) / "data_0").write_bytes(content)
            for path in storage.path(address).iterdir():
                path.chmod(0o644)
            storage.path(address).chmod(0o755)
        return storage

    def _launch(self, run: Run, place: Placement) -> LaunchSpec:
        party = run.party
        callback, transport = (
            self.loopback.callback(party.node),
            self.loopback.transport(party.node),
        )
        institutions = {one.node: f"institution-of-{one.role}" for one in self.spec.parties}
        site = Site(place.storage_url, callback, transport, place.log_path, institutions)
        local = LocalJob(self.spec, party.node, JobStatus.RUNNING, run.created_at, "", runs=(run,))
        names = (
            NODE,
            self.sandbox.installation,
            self.spec.job_id,
            run.task_id,
            party.role,
            party.index,
            0,
        )
        mounts = tuple(m for m in place.mounts if m.source.exists())
        limits = self.sandbox.limits
        return LaunchSpec(
            run.name, run.image, environment(local, run, site), labels(*names), limits, mounts
        )

    def _until_over(
        self,
        run: Run,
        station: Station,
        trace: Trace,
    ) -> Trace:
        """Wait until a run exits, or stop it; return how it ended."""
        engine, running_by = self.sandbox.engine, time.monotonic() + _STARTED_SECONDS
        last = math.inf
        while not isinstance(probe := engine.probe(run.name), Exited):
            now = time.monotonic()
            if station.first.is_set():
                running_by = min(running_by, now)
            last = min(last, now + _AFTER_THE_END) if self._in_vain() else math.inf
            due = self.plan.stop and now >= running_by + self.plan.linger
            if due or now > min(self._until, last) or self.sandbox.given_up.is_set():
                engine.stop(run.name, self.sandbox.timeouts.grace)
                seconds = time.monotonic() - now
                trace = replace(trace, was_stopped=True, stop_seconds=seconds)
                probe = engine.probe(run.name)
                break
            self.sandbox.given_up.wait(_PROBE_SECONDS)
        if not isinstance(probe, Exited):
            raise EngineError(f"the run {run.name} is gone")
        del self.running[trace.party]
        if probe.code != 0:
            self._failed()
        return replace(
            trace,
            code=probe.code,
            signal=probe.signal,
            oom_killed=probe.oom_killed,
        )

    def _in_vain(self) -> bool:
        """Tell whether a party has ended, and all others wait for messages."""
        running = list(self.running.values())
        return len(running) < len(self.plan.parties) and all(
            is_waiting(station.requests) for station in running
        )

    def _failed(self) -> None:
        """Shorten the deadline: the partners of a party that failed only wait for it."""
        self._until = min(self._until, time.monotonic() + _AFTER_THE_END)


def _job(component: Component) -> JobSpec:
    ref = ComponentRef(component.provider, component.version, component.name)
    parties = tuple(
        Party(role, 0, f"JG{number:04d}1000000{number:04d}{os.urandom(2).hex()}")
        for number, role in enumerate(component.roles, 1)
    )
    return JobSpec(
        job_id=f"job-{uuid4().hex}",
        flow_id="",
        dag=Dag((DagNode(_TASK, ref),)),
        parties=parties,
        initiator=parties[0].node,
        initiator_role=parties[0].role,
        scheduler=parties[0].node,
        protocol="bfia",
        trace_id=uuid4().hex,
    )


def _run(
    component: Component,
    spec: JobSpec,
    party: Party,
    station: Station,
    image: str,
    plan: Plan,
) -> Run:
    task_id = f"task_{spec.job_id.removeprefix('job-')}"
    namespace = f"{spec.job_id}-{party.role}-{party.index}"
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
        parameters={**plan.parameters, **plan.of_roles.get(party.role, {})},
        inputs={
            name: Address(f"{spec.job_id}-data", name) for name in plan.inputs.get(party.role, ())
        },
        outputs={o.name: Address(namespace, f"{task_id}-{o.name}") for o in component.outputs},
        roles=component.roles,
    )


def table(role: str) -> bytes:
    """Return a table as CSV: the same ids for every role; a guest's has a label that the columns hint at."""
    chance = random.Random(role)
    guest = role == "guest"
    rows = [[_ID, *([_LABEL] if guest else []), *(f"{role}_x{n}" for n in range(3))]]
    for number in range(_ROWS):
        label = number % 2
        values = [f"{chance.gauss(label, 1.0):.4f}" for _ in range(3)]
        rows.append([f"u{number:04d}", *([str(label)] if guest else []), *values])
    return "".join(",".join(row) + "\n" for row in rows).encode()


def required(component: Component, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all given values, and made-up ones for further required parameters."""
    made = {
        p.name: _made_up(p) for p in component.parameters if not p.optional and p.name not in given
    }
    return {**made, **given}


def defaults(component: Component) -> dict[str, Any]:
    """Return the defaults of all parameters that have one."""
    return {p.name: p.default for p in component.parameters if p.default}


def _made_up(parameter: Parameter) -> Any:
    if parameter.default:
        return parameter.default
    if parameter.binding:
        return parameter.binding[0]
    kind = parameter.type.lower()
    number: float = 1
    if parameter.validator is not None and parameter.validator.pattern is None:
        limits = [
            n for n in (parameter.validator.lower, parameter.validator.upper) if n is not None
        ]
        number = sum(limits) / len(limits) if limits else 1
    if kind in ("int", "integer"):
        return int(number)
    if kind in ("float", "number", "double"):
        return float(number)
    if kind in ("bool", "boolean"):
        return False
    return {} if kind == "object" else "conformance"


def files_in(folder: Path) -> tuple[str, ...]:
    """Return the files below a folder that a component filled, by their paths in it; none without it."""
    return tuple(
        sorted(os.path.relpath(entry.path, folder) for entry in walk(folder) if entry.is_file())
    )


def _files(storage: FileStorage) -> frozenset[Path]:
    """Return every file of the storage, and whatever else is not a folder."""
    return frozenset(Path(e.path) for e in walk(storage.root) if not is_folder(e))


def _strays(
    storage: FileStorage,
    before: Set[Path],
    belongs: Iterable[Address],
) -> tuple[str, ...]:
    kept = {storage.path(address) for address in belongs}
    new = [path for path in _files(storage) - before if kept.isdisjoint((path, *path.parents))]
    return tuple(sorted(str(path.relative_to(storage.root)) for path in new))


def _checksums(storage: FileStorage, run: Run) -> dict[str, str | None]:
    return {
        name: storage.checksum(at) if storage.exists(at) else None
        for name, at in run.inputs.items()
    }


def _outputs(
    storage: FileStorage,
    component: Component,
    outputs: Mapping[str, Address],
) -> dict[str, str]:
    described = {o.name: o for o in component.outputs}
    return {
        n: _problem(storage, at, described[n]) for n, at in outputs.items() if storage.exists(at)
    }


def _beginning(storage: FileStorage, address: Address) -> str:
    """Return the first part of an output as text; empty for what cannot be read."""
    try:
        return next(iter(storage.stream(address)), b"")[:_BEGINNING].decode("utf-8", "replace")
    except GatewayError:
        return ""


def _problem(
    storage: FileStorage,
    address: Address,
    described: DataSpec,
) -> str:
    """Return what is wrong with an output's format; empty for nothing."""
    expected = described.formats[0].lower() if described.formats else ""
    try:
        size, _ = storage.stamp(address)
        if size == 0:
            return "is empty"
        metadata = storage.metadata(address)
        if size > _LARGEST:
            return ""
        content = b"".join(storage.stream(address))
    except GatewayError as error:
        return f"cannot be read: {error.message}"
    try:
        if expected == "json":
            json.loads(content)
        if expected == "csv":
            if content.lstrip()[:1] in (b"{", b"[") and _is_json(content):
                return "holds JSON, not CSV"
            rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))
            if not any(next(iter(rows), [])):
                return "has no header line"
            return _unlike(rows, metadata) if described.group == "data" else ""
    except (ValueError, RecursionError, csv.Error) as error:
        return f"is not valid {expected.upper()}: {error}"
    return ""


def _is_json(content: bytes) -> bool:
    try:
        return isinstance(json.loads(content), dict | list)
    except (ValueError, RecursionError):
        return False


def _unlike(rows: list[list[str]], metadata: Mapping[str, Any]) -> str:
    """Return where a table and what its metadata say differ; of several files each has a header."""
    if not metadata:
        return "has no file metadata beside its data"
    header, *others = (row for row in rows if row)
    found = [row for row in others if row != header]
    if wrong := next((n for n, row in enumerate(found, 1) if len(row) != len(header)), 0):
        values, columns = counted(len(found[wrong - 1]), "value"), counted(len(header), "column")
        return f"has {values} in row {wrong} below a header of {columns}"
    if isinstance(count := metadata.get("count"), int) and count != len(found):
        return f"has {counted(len(found), 'row')}, its metadata say count {count}"
    info = metadata.get("column_info") or []
    if not isinstance(info, list) or not all(isinstance(one, dict) and one for one in info):
        return "has metadata whose column_info is not a list of columns"
    named = [str(one.get("name", next(iter(one)))) for one in info]
    if named and named != header:
        return f"has the columns {', '.join(header)}, but its metadata's column_info says {', '.join(named)}"
    return ""
