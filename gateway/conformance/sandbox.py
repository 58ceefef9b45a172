"""Runs a component in a sandbox, once per trial, and writes down what is seen of it."""

import asyncio
import csv
import io
import json
import os
import random
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from secrets import randbelow
from typing import Any, Self, TypeVar, cast
from uuid import uuid4

from anyio import CapacityLimiter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapter.bfia import envelope, platform
from adapter.bfia.channel import router
from adapter.bfia.channel.courier import Courier, PeerRoute
from adapter.bfia.channel.router import Member
from adapter.bfia.environment import environment, session_id
from engines.base import Engine, EngineError, Exited, LaunchSpec, Limits, labels
from engines.docker import ContainerdEngine
from engines.files import is_folder, walk
from gateway.broker import Broker
from gateway.conformance.evidence import Heard, Said, Spoken, Trace, Written
from gateway.data.datasets import Datasets
from gateway.data.storage import FileStorage
from gateway.data.upload import Upload
from gateway.data.workspace import Workspace
from gateway.domain.dag import ComponentRef, Dag, DagNode
from gateway.domain.datasets import MemoryDatasets
from gateway.domain.run import Address, LocalJob, Run
from gateway.domain.spec import JobSpec, Party
from gateway.domain.states import JobStatus
from gateway.errors import GatewayError, NotFound
from gateway.http.app import Mounted, create_app
from gateway.http.server import bound, port_of, serve
from gateway.ports import Callback, Limiters, OwnRuns, Site
from provider_registry.model import Component, Parameter

X = TypeVar("X")

CALLBACK = "/v1/platform/schedule/task/callback"
CHANNEL = "/v1/interconn/chan/"
OPERATIONS = ("push", "pop", "peek", "release")
_LARGEST_ANSWER = 65536


class Ear:
    """What is heard of one party. Used by the event loop and by threads."""

    def __init__(self, run: str) -> None:
        """``run`` is what the query of its callback's address says."""
        self._run = run
        self._lock = threading.Lock()
        self._said: list[Said] = []
        self._refused: list[str] = []
        self._spoken: list[Spoken] = []
        self._strange: list[str] = []
        self.first = threading.Event()
        """set once anything was heard"""
        self.listens = 0
        """callbacks that have come and are not written down yet; the event loop's"""

    @property
    def heard(self) -> Heard:
        """All that was heard so far."""
        with self._lock:
            return Heard(tuple(self._said), tuple(self._refused), tuple(self._spoken), tuple(self._strange))

    def callback(self, said: Callback) -> None:
        """Take in a callback that was read. Raises `NotFound` where it is another run's."""
        if said.run_id not in ("", self._run):
            raise NotFound("that run is not known here", reason="RUN_UNKNOWN")
        own = said.run_id == self._run
        word = Said(str(said.status), said.task_id, said.role, own, said.result_code)
        self._note(self._said, word)

    def refused(self, words: str) -> None:
        """Take in a callback that could not be read, and why."""
        self._note(self._refused, words)

    def spoken(self, word: Spoken) -> None:
        """Take in a call to the channel."""
        self._note(self._spoken, word)

    def strange(self, what: str) -> None:
        """Take in a request that no component has to make."""
        self._note(self._strange, what)

    def _note(self, heard: list[X], one: X) -> None:
        with self._lock:
            heard.append(one)
        self.first.set()


class Tap:
    """Lets requests through and tells the ear of them."""

    def __init__(self, app: ASGIApp, ear: Ear) -> None:
        self._app = app
        self._ear = ear

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell the ear of a request and let it through; a callback is answered here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = str(scope["path"])
        if path == CALLBACK:
            await self._callback(scope, receive, send)
            return
        operation = path.removeprefix(CHANNEL)
        if path.startswith(CHANNEL) and operation in OPERATIONS:
            said = {k.decode("latin-1").replace("_", "-"): v.decode("latin-1") for k, v in scope["headers"]}
            token = said.get("x-ptp-token", "")
            self._ear.spoken(Spoken(operation, said.get("x-ptp-session-id", ""), token))
        elif operation != "invoke":  # that is how its partners' gateways reach this one
            self._ear.strange(f"{scope['method']} {path}"[:200])
        await self._app(scope, receive, send)

    async def _callback(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = bytearray()

        async def listening(message: Message) -> None:
            if message["type"] == "http.response.body" and len(answer) < _LARGEST_ANSWER:
                answer.extend(message.get("body", b""))
            await send(message)

        self._ear.listens += 1
        try:
            await self._app(scope, receive, listening)
            if words := _refusal(bytes(answer)):
                self._ear.refused(words)
        finally:
            self._ear.listens -= 1


def _refusal(answer: bytes) -> str:
    """Return the words of an answer that refuses; empty for one that does not."""
    try:
        said = json.loads(answer)
    except ValueError:
        return "no answer could be given"
    return "" if said.get("code") == 0 else str(said.get("msg") or said.get("message") or said)[:500]


_LARGEST_BODY = 1 << 20
_LARGEST_MESSAGE = 256 << 20
_PATIENCE = 30.0
_ROUNDS = 20
"""turns of the loop, of which a request needs five to be with its application"""
_building = threading.Lock()
"""held while applications are made: the framework changes the process's filters of warnings for that moment, and
trials run side by side"""


@dataclass(frozen=True)
class Station:
    """One party's gateway."""

    party: str
    node: str
    run: str
    """what the query of its callback's address says"""
    token: str
    ear: Ear


class Loopback:
    """Serves the stations on one address while it is open. A context."""

    def __init__(self, stations: Mapping[str, Station], host: str, folder: Path) -> None:
        """``stations`` by node. Raises `OSError` if nothing can listen on ``host``."""
        self._stations = stations
        self._folder = folder
        self._sockets: dict[str, socket.socket] = {}
        try:
            for node in stations:
                self._sockets[node] = bound(f"{host}:0")
        except OSError:
            self._close()
            raise
        self._bases = {node: f"{host}:{port_of(sock)}" for node, sock in self._sockets.items()}
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="loopback", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._up.wait(_PATIENCE):
            raise OSError("the sandbox's channel does not come up")
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_PATIENCE)
        self._close()

    @property
    def ports(self) -> list[int]:
        """The stations' ports."""
        return [port_of(sock) for sock in self._sockets.values()]

    def transport(self, node: str) -> str:
        """Return host:port of a node's gateway."""
        return self._bases[node]

    def callback(self, node: str) -> str:
        """Return the address that a node's run is told for its callbacks."""
        return f"http://{self._bases[node]}{CALLBACK}?run={self._stations[node].run}"

    def settle(self, node: str) -> None:
        """Wait until a node has heard every callback that has come: its sender may be gone before that."""
        assert self._loop is not None
        settled = self._settled(self._stations[node].ear)
        try:
            asyncio.run_coroutine_threadsafe(settled, self._loop).result(_PATIENCE)
        except RuntimeError:  # it serves nobody any more
            settled.close()
        except TimeoutError:
            return

    async def _settled(self, ear: Ear) -> None:
        for _ in range(_ROUNDS):  # each takes in what has come: a connection, then what it says, then who answers
            await asyncio.sleep(0)
        while ear.listens:
            await asyncio.sleep(0.005)

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        brokers = {node: Broker(self._folder / node) for node in self._stations}
        couriers = {node: Courier() for node in self._stations}
        for broker in brokers.values():
            broker.recover()
        with _building:
            apps = {node: self._application(node, brokers[node], couriers[node]) for node in self._stations}
        try:
            sockets = {node: [sock] for node, sock in self._sockets.items()}
            await serve(apps, sockets, self._up.set, self._stopping)
        finally:
            for courier in couriers.values():
                await courier.close()
            for broker in brokers.values():
                broker.close()

    def _application(self, node: str, broker: Broker, courier: Courier) -> ASGIApp:
        station = self._stations[node]
        parts = router.ChannelParts(
            node=node,
            institution=node,
            broker=broker,
            run_of=lambda claim: Member(station.run, frozenset(self._bases)),  # what it sent wrong is judged later
            route_of=lambda other: PeerRoute(f"http://{self._bases[other]}") if other in self._bases else None,
            known_sender=lambda sender: sender in self._bases,
            session_open=lambda session: True,
            max_body=_LARGEST_MESSAGE,
            courier=courier,
        )
        limiters = Limiters(CapacityLimiter(4), CapacityLimiter(1), CapacityLimiter(4))  # news in their order
        runs = cast(OwnRuns, station.ear)  # of which the container's path asks for the callback only
        callbacks = platform.Callbacks(runs, limiters)
        app = create_app(
            "conformance",
            [
                Mounted(platform.container_router(callbacks), _LARGEST_BODY),
                Mounted(router.container_router(parts), None),
                Mounted(router.peer_router(parts), None),
            ],
        )
        envelope.install(app)
        return Tap(envelope.TooLargeInEnvelope(app), station.ear)

    def _close(self) -> None:
        for sock in self._sockets.values():
            sock.close()


ROWS = 60
ID, LABEL = "id", "y"
UNKNOWN = "conformance_unknown"
"""a parameter that no description names"""


def table(role: str) -> bytes:
    """Return a table as CSV: the same ids for every role; a guest's has a label that the columns hint at."""
    chance = random.Random(role)
    header = [ID, *([LABEL] if role == "guest" else []), *(f"{role}_x{n}" for n in range(3))]
    out = io.StringIO()
    out.write(",".join(header) + "\n")
    for row in range(ROWS):
        label = row % 2
        cells = [f"{chance.gauss(label, 1.0):.4f}" for _ in range(3)]
        out.write(",".join([f"u{row:04d}", *([str(label)] if role == "guest" else []), *cells]) + "\n")
    return out.getvalue().encode()


def store(storage: FileStorage, address: Address, role: str, content: bytes) -> None:
    """Put a table where a run finds it, as an upload to a gateway does. Raises `Invalid` if it is none."""
    header = content.partition(b"\n")[0].decode("utf-8-sig", "replace").strip().split(",")
    upload = Upload(
        address,
        label_name=LABEL if LABEL in header else "",
        match_id_name=header[0],
    )
    datasets = Datasets(storage, MemoryDatasets())
    reception = datasets.receive()
    try:
        reception.write(content)
        datasets.upload_from_file(upload, reception, f"{role}.csv")
    finally:
        reception.close()
    for path in storage.path(address).iterdir():
        path.chmod(0o644)
    storage.path(address).chmod(0o755)


def store_as_it_is(storage: FileStorage, address: Address, content: bytes) -> None:
    """Put a file where a run finds it as the only part of its input."""
    folder = storage.path(address)
    folder.mkdir(parents=True)
    part = folder / "data_0"
    part.write_bytes(content)
    part.chmod(0o644)
    folder.chmod(0o755)


def required(component: Component, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all given values, and made-up ones for further parameters that must be there."""
    made = {p.name: _made_up(p) for p in component.parameters if not p.optional and p.name not in given}
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
    number: float | None = 1
    if parameter.validator is not None and parameter.validator.pattern is None:
        lower, upper = parameter.validator.lower, parameter.validator.upper
        number = lower if lower is not None else upper if upper is not None else 1
        if lower is not None and upper is not None:
            number = (lower + upper) / 2
    if kind in ("int", "integer"):
        return int(number or 0)
    if kind in ("float", "number", "double"):
        return float(number or 0)
    if kind in ("bool", "boolean"):
        return False
    return {} if kind == "object" else "conformance"


_LARGEST = 64 << 20
"""bytes of an output whose form is looked at"""


def looked_at(storage: FileStorage, component: Component, outputs: Mapping[str, Address]) -> dict[str, Written]:
    """Look at each output."""
    formats = {o.name: (o.formats[0].lower() if o.formats else "") for o in component.outputs}
    return {
        name: Written(True, _form(storage, address, formats[name])) if storage.exists(address) else Written(False)
        for name, address in outputs.items()
    }


def files(storage: FileStorage) -> frozenset[Path]:
    """Return every file of the storage, and whatever else is no folder."""
    return frozenset(Path(e.path) for e in walk(storage.root) if not is_folder(e))


def files_in(folder: Path) -> tuple[str, ...]:
    """Return the files below a folder that a component filled, by their paths in it; none without it."""
    return tuple(sorted(os.path.relpath(entry.path, folder) for entry in walk(folder) if _is_file(entry)))


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # such as a link whose path is too long
        return False


def strays(storage: FileStorage, before: Set[Path], belongs: Iterable[Address]) -> tuple[str, ...]:
    """Return every file of the storage that was not there before and lies at none of these addresses."""
    kept = {storage.path(address) for address in belongs}
    new = [path for path in files(storage) - before if kept.isdisjoint((path, *path.parents))]
    return tuple(sorted(str(path.relative_to(storage.root)) for path in new))


def stamps(storage: FileStorage, addresses: Iterable[Address]) -> dict[Address, str | None]:
    """Return what changes where the data at an address changes; None where there is none."""
    return {a: storage.checksum(a) if storage.exists(a) else None for a in addresses}


def _form(storage: FileStorage, address: Address, expected: str) -> str:
    """Say what is wrong with an output's form; empty for nothing."""
    try:
        size, _ = storage.stamp(address)
        if size == 0:
            return "is empty"
        storage.metadata(address)
        if size > _LARGEST:
            return ""
        content = b"".join(storage.stream(address))
    except GatewayError as error:
        return f"cannot be read: {error.message}"
    if expected == "json":
        try:
            json.loads(content)
        except (ValueError, RecursionError) as error:
            return f"is no JSON: {error}"
    if expected == "csv":
        try:
            header = next(csv.reader(io.StringIO(content.decode("utf-8-sig"))), [])
        except (csv.Error, UnicodeDecodeError) as error:
            return f"is no CSV in UTF-8: {error}"
        if not any(header):
            return "has no header line"
    return ""


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
                store(storage, address, run.party.role, content)
            else:
                store_as_it_is(storage, address, content)
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
