"""The second vendor's image by itself, written from the component layer alone, against a channel of the test."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import docker
import pytest
from docker.errors import NotFound
from docker.models.containers import Container

from provider_registry.registration import provider_from_request

IMAGE_FOLDER = Path(__file__).resolve().parents[1] / "images" / "shell_vendor"
BASE = os.environ.get("BFIA_TEST_BASE_IMAGE", "bfia-base:py311")
NODES = {"guest.0": "JG0100001100000010", "host.0": "JG0100002200000020"}
OK = "E0000000000"

pytestmark = [pytest.mark.docker, pytest.mark.slow]

Call = tuple[str, dict[str, str], dict[str, Any]]


@dataclass
class FakeNode:
    """A gateway's container listener, as far as an algorithm sees one: the channel and the callback."""

    pop_field: str = "content"
    refuse_pushes: int = 0
    """answer so many pushes with "buffer full" first"""
    push_code: str = OK
    calls: list[Call] = field(default_factory=list)
    _queues: dict[tuple[str, str], deque[str]] = field(default_factory=lambda: defaultdict(deque))
    _news: threading.Condition = field(default_factory=threading.Condition)

    def answer(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        with self._news:
            self.calls.append((path, headers, body))
            operation = path.partition("?")[0].rpartition("/")[2]
            if operation == "callback":
                return {"code": 0, "msg": "success", "data": {}}
            key = (headers["x-ptp-session-id"], body["topic"])
            if operation == "push":
                if self.refuse_pushes:
                    self.refuse_pushes -= 1
                    return {"code": "E0000000700", "message": "buffer full"}
                if self.push_code == OK:
                    self._queues[key].append(body["payload"])
                    self._news.notify_all()
                return {"code": self.push_code, "message": "as the test wants it"}
            assert operation == "pop"
            self._news.wait_for(lambda: self._queues[key], body["timeout"] / 1000)
            content = self._queues[key].popleft() if self._queues[key] else ""
            return {"metadata": {}, self.pop_field: content, "code": OK, "message": "success"}

    def of(self, operation: str) -> list[Call]:
        return [c for c in self.calls if c[0].partition("?")[0].endswith(f"/{operation}")]

    def statuses(self, role: str) -> list[str]:
        return [body["status"] for _, _, body in self.of("callback") if body["role"] == role]


@dataclass(frozen=True)
class Party:
    """One run: what it is told and what it may write."""

    label: str
    home: Path
    environment: dict[str, str]

    @property
    def counts(self) -> dict[str, int]:
        return dict(json.loads((self.home / "job-1" / f"{self.label}-report0" / "data_0").read_text()))

    @property
    def copy(self) -> Path:
        return self.home / "job-1" / f"{self.label}-data0"


Listening = Callable[[FakeNode, str], str]


@pytest.fixture
def listening() -> Iterator[Listening]:
    """Start a fake node on an address; tell where it listens."""
    servers: list[ThreadingHTTPServer] = []

    def start(node: FakeNode, address: str) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                headers = {name.lower(): value for name, value in self.headers.items()}
                answer = json.dumps(node.answer(self.path, headers, body)).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer((address, 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"{address}:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.DockerClient]:
    client = docker.from_env(timeout=60)
    yield client
    client.close()


@pytest.fixture(scope="module")
def image(engine: docker.DockerClient) -> str:
    """The image, built from the base that needs no registry."""
    tag = json.loads((IMAGE_FOLDER / "register.json").read_text())["metadata"]["image"]
    engine.images.build(path=str(IMAGE_FOLDER), tag=tag, buildargs={"BASE": BASE}, rm=True)
    return str(tag)


@pytest.fixture
def bridge(engine: docker.DockerClient) -> Iterator[tuple[str, str]]:
    """A network of this test, and the host's address on it."""
    network = engine.networks.create(f"bfia-test-{uuid4().hex[:12]}", driver="bridge")
    network.reload()
    try:
        yield str(network.name), str(network.attrs["IPAM"]["Config"][0]["Gateway"])
    finally:
        network.remove()


def table(place: Path, parts: list[str], columns: list[str], count: int | None) -> None:
    """Lay a table down; without a count there is no metadata."""
    place.mkdir(parents=True)
    for number, text in enumerate(parts):
        (place / f"data_{number}").write_text(text, encoding="utf-8")
    if count is not None:
        described: dict[str, Any] = {"namespace": place.parent.name, "name": place.name, "count": count}
        described |= {"partitions": len(parts), "column_info": [{"name": c, "type": "string"} for c in columns]}
        (place / "metadata").write_text(json.dumps(described, indent=1), encoding="utf-8")


def a_party(label: str, home: Path, transport: str, storage: str, **parameters: str) -> Party:
    role = label.partition(".")[0]
    environment = {
        "system.storage": storage,
        "system.callback": f"http://{transport}/v1/platform/schedule/task/callback?run=run-{role}",
        "system.transport": transport,
        "config.self_role": label,
        "config.task_id": "task_0123456789abcdef",
        "config.session_id": "session_job-1",
        "config.trace_id": "trace-1",
        "config.token": f"run-{role}",
        "config.log.path": "/bfia/log",
        **{f"config.node_id.{other}": node for other, node in NODES.items()},
        **{f"config.inst_id.{other}": node for other, node in NODES.items()},
        "runtime.component.name": "Echo",
        "runtime.component.input.table": json.dumps({"namespace": "space", "name": f"table-{role}"}),
        "runtime.component.output.copy": json.dumps({"namespace": "job-1", "name": f"{label}-data0"}),
        "runtime.component.output.counts": json.dumps({"namespace": "job-1", "name": f"{label}-report0"}),
        **{f"runtime.component.parameter.{name}": value for name, value in parameters.items()},
    }
    return Party(label, home, environment)


def both(home: Path, transport: str, storage: str, **parameters: str) -> list[Party]:
    """The guest has 3 rows in two parts, each with the header; the host 2 rows with it once, quoted."""
    table(home / "space" / "table-guest", ["id,y\na,1\nb,0\n", "id,y\nc,1\n"], ["id", "y"], 3)
    table(home / "space" / "table-host", ['"id";"金额"\r\n"a";5\r\n', '"d";7\r\n'], ["id", "金额"], 2)
    return [a_party(label, home, transport, storage, **parameters) for label in NODES]


def launch(engine: docker.DockerClient, image: str, network: str, party: Party) -> Container:
    """Start a container as a gateway does: no rights, a read-only root, only its own places mounted."""
    volumes = {str(party.home / "log"): {"bind": "/bfia/log", "mode": "rw"}}
    (party.home / "log").mkdir(exist_ok=True)
    (party.home / "log").chmod(0o777)
    for name, value in party.environment.items():
        kind = name.rpartition(".")[0]
        if kind in ("runtime.component.input", "runtime.component.output"):
            address = json.loads(value)
            place = party.home / address["namespace"] / address["name"]
            if kind.endswith("output"):
                place.mkdir(parents=True, exist_ok=True)
                place.chmod(0o777)
            inside = f"/bfia/storage/{address['namespace']}/{address['name']}"
            volumes[str(place)] = {"bind": inside, "mode": "rw" if kind.endswith("output") else "ro"}
    return engine.containers.create(
        image,
        environment=party.environment,
        volumes=volumes,
        network=network,
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
    )


@pytest.fixture
def run(engine: docker.DockerClient, image: str, bridge: tuple[str, str]) -> Iterator[Callable[..., list[int]]]:
    """Run parties side by side to their ends; return their exit codes."""
    containers: list[Container] = []

    def start(parties: list[Party]) -> list[int]:
        begun = [launch(engine, image, bridge[0], party) for party in parties]
        containers.extend(begun)
        for container in begun:
            container.start()
        return [int(container.wait(timeout=60)["StatusCode"]) for container in begun]

    yield start
    for container in containers:
        with contextlib.suppress(NotFound):
            container.remove(force=True)


def logs_of(engine: docker.DockerClient, network: str) -> str:
    found = engine.containers.list(all=True, ignore_removed=True, filters={"network": network})
    return "\n".join(c.logs().decode(errors="replace") for c in found)


def test_registration_is_free_of_problems_and_warnings() -> None:
    provider = provider_from_request(json.loads((IMAGE_FOLDER / "register.json").read_text()))
    assert provider.name == "shellworks" and not provider.warnings


@pytest.mark.parametrize("pop_field", ["content", "payload"])
def test_two_containers_learn_each_others_row_counts(
    pop_field: str,
    run: Callable[[list[Party]], list[int]],
    listening: Listening,
    bridge: tuple[str, str],
    engine: docker.DockerClient,
    tmp_path: Path,
) -> None:
    node = FakeNode(pop_field=pop_field, refuse_pushes=1)
    guest, host = both(tmp_path, listening(node, bridge[1]), "file:///bfia/storage")

    assert run([guest, host]) == [0, 0], logs_of(engine, bridge[0])

    assert guest.counts == {"rows": 3, "peer_rows": 2} and host.counts == {"rows": 2, "peer_rows": 3}
    for party in (guest, host):
        source = tmp_path / "space" / f"table-{party.label.partition('.')[0]}"
        for part in ("data_0", "data_1"):
            assert (party.copy / part).read_bytes() == (source / part).read_bytes()
        copied, original = (json.loads((p / "metadata").read_text()) for p in (party.copy, source))
        assert copied["column_info"] == original["column_info"]
        assert (copied["name"], copied["count"], copied["partitions"]) == (party.copy.name, original["count"], 2)
        assert "done" in (tmp_path / "log" / f"echo-{party.label}.log").read_text()
    for role in ("guest", "host"):
        assert node.statuses(role) == ["RUNNING", "SUCCESS"]
    assert all(body["task_id"] == "task_0123456789abcdef" for _, _, body in node.of("callback"))
    assert {path.partition("?")[2] for path, _, _ in node.of("callback")} == {"run=run-guest", "run=run-host"}


@pytest.mark.parametrize(
    ("parts", "count", "rows"),
    [
        (["id,x\n1,2\n3,4\n"], None, 2),
        (["id,x\n1,2\n", "id,x\n\n", "id,x\n3,4\n"], 2, 2),
        (["id,x\n1,2\n", "3,4"], 2, 2),
        (["1,2\n3,4\n"], 2, 2),
        (["id,x\r\n"], 0, 0),
        ([""], 0, 0),
    ],
    ids=["no metadata", "header everywhere", "header once", "no header", "header only", "empty"],
)
def test_rows_are_counted_whatever_the_form(
    parts: list[str],
    count: int | None,
    rows: int,
    run: Callable[[list[Party]], list[int]],
    listening: Listening,
    bridge: tuple[str, str],
    tmp_path: Path,
) -> None:
    node = FakeNode()
    transport = listening(node, bridge[1])
    table(tmp_path / "space" / "table-guest", parts, ["id", "x"], count)
    table(tmp_path / "space" / "table-host", ["id\n"], ["id"], 0)
    parties = [a_party(label, tmp_path, transport, "file:///bfia/storage") for label in NODES]
    assert run(parties) == [0, 0]
    assert parties[0].counts == {"rows": rows, "peer_rows": 0}


def test_channel_calls_carry_the_headers_and_the_json_form(
    run: Callable[[list[Party]], list[int]], listening: Listening, bridge: tuple[str, str], tmp_path: Path
) -> None:
    node = FakeNode()
    run(both(tmp_path, listening(node, bridge[1]), "file:///bfia/storage"))

    own = {"run-guest": NODES["guest.0"], "run-host": NODES["host.0"]}
    pushed = {}
    for path, headers, body in [*node.of("push"), *node.of("pop")]:
        assert headers["content-type"] == "application/json"
        assert headers["x-ptp-session-id"] == "session_job-1" and headers["x-ptp-trace-id"] == "trace-1"
        assert headers["x-ptp-tech-provider-code"] == "shellworks"
        here = own[headers["x-ptp-token"]]
        if path.endswith("/push"):
            assert headers["x-ptp-target-node-id"] in set(own.values()) - {here}
            pushed[here] = base64.b64decode(body["payload"], validate=True)
        else:
            assert headers["x-ptp-target-node-id"] == here
    assert pushed == {NODES["guest.0"]: b"3", NODES["host.0"]: b"2"}


def test_a_failure_that_is_asked_for_is_told_and_is_the_exit_code(
    run: Callable[[list[Party]], list[int]], listening: Listening, bridge: tuple[str, str], tmp_path: Path
) -> None:
    node = FakeNode()
    guest, _ = both(tmp_path, listening(node, bridge[1]), "file:///bfia/storage", fail="7")
    assert run([guest]) == [7]
    assert node.statuses("guest") == ["RUNNING", "FAILED"] and not node.of("push")


def test_a_silent_run_calls_nobody_back(
    run: Callable[[list[Party]], list[int]], listening: Listening, bridge: tuple[str, str], tmp_path: Path
) -> None:
    node = FakeNode()
    parties = both(tmp_path, listening(node, bridge[1]), "file:///bfia/storage", silent="True")
    assert run(parties) == [0, 0]
    assert parties[0].counts == {"rows": 3, "peer_rows": 2} and not node.of("callback")


@pytest.mark.parametrize("cause", ["no message comes", "the node is not known"])
def test_a_run_without_its_peer_fails(
    cause: str,
    run: Callable[[list[Party]], list[int]],
    listening: Listening,
    bridge: tuple[str, str],
    engine: docker.DockerClient,
    tmp_path: Path,
) -> None:
    node = FakeNode(push_code=OK if cause == "no message comes" else "E0000000618")
    guest, _ = both(tmp_path, listening(node, bridge[1]), "file:///bfia/storage", patience="1")
    assert run([guest]) == [1]
    assert node.statuses("guest") == ["RUNNING", "FAILED"]
    assert NODES["host.0"] in logs_of(engine, bridge[0])
    assert not (guest.copy / "data_0").exists()


def test_a_missing_variable_is_named(
    run: Callable[[list[Party]], list[int]],
    listening: Listening,
    bridge: tuple[str, str],
    engine: docker.DockerClient,
    tmp_path: Path,
) -> None:
    guest, _ = both(tmp_path, listening(FakeNode(), bridge[1]), "file:///bfia/storage")
    del guest.environment["config.session_id"]
    assert run([guest]) == [2]
    assert "config.session_id is not set" in logs_of(engine, bridge[0])


def test_the_script_runs_as_a_process_too(listening: Listening, tmp_path: Path) -> None:
    busybox = shutil.which("busybox")
    assert busybox is not None, "the suite's services bring busybox"
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "wget", "awk", "sed", "tr", "base64", "cat", "date", "mkdir", "sleep"):
        (tools / name).symlink_to(busybox)
    home = tmp_path / "storage"
    node = FakeNode()
    parties = both(home, listening(node, "127.0.0.1"), f"file://{home}")
    # plain files are tables as well
    for role, text in (("guest", "id,x\n1,2\n"), ("host", "id\n1\n2\n3\n4\n")):
        shutil.rmtree(home / "space" / f"table-{role}")
        (home / "space" / f"table-{role}").write_text(text)
    started = [
        subprocess.Popen(
            [str(tools / "sh"), str(IMAGE_FOLDER / "run.sh")],
            env=party.environment | {"PATH": str(tools), "config.log.path": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for party in parties
    ]
    said = [process.communicate(timeout=60)[0].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert parties[0].counts == {"rows": 1, "peer_rows": 4} and parties[1].counts == {"rows": 4, "peer_rows": 1}
    assert (parties[0].copy / "data_0").read_text() == "id,x\n1,2\n"
