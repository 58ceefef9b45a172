"""Settings seen from outside: which start a node, and how it listens then."""

import os
import re
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml
from structlog.testing import capture_logs

from engines.base import EngineDown
from engines.docker import ContainerdEngine
from gateway.bootstrap import engine_parts, parts
from gateway.bootstrap.node import Gateway, check_route_file
from gateway.config.loader import load
from gateway.config.schema.listeners import Listener
from gateway.container_listener import ContainerListener
from gateway.errors import EngineFailed, Invalid
from gateway.http.listening_file import claim
from gateway.http.listening_file import serving as served_from
from gateway.http.server import bound, port_of
from tests import forks
from tests.builders import raising
from tests.e2e.nodes import Federation
from tests.inprocess import ME, Node, ask, running, serving
from tests.plain import NO_TLS

CONTROL = "/v1/interconn/schedule"
PLATFORM = "/v1/platform/schedule"
CHANNEL = "/v1/interconn/chan"


def command(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``bfia-gateway`` to its end."""
    return forks.run(arguments, env=os.environ | (env or {}))


def refusal(
    configuration: Any,
    home: Path,
    env: dict[str, str] | None = None,
) -> str:
    """Start a node with a wrong configuration; return its error output."""
    file = home / "broken.yml"
    file.write_text(yaml.safe_dump(configuration))
    process = command("serve", "--config", str(file), env=env)
    assert process.returncode == 2
    assert process.stdout == ""
    assert "Traceback" not in process.stderr
    assert sorted(path.name for path in home.iterdir()) == ["broken.yml"], "something was written"
    return process.stderr


# ---------------------------------------------------------------- refusals


def test_everything_that_is_wrong_is_told_at_once_with_its_path(tmp_path):
    configuration = {
        "node": {"id": "has space"},
        "listen": {
            "peer": {"bind": "nonsense", "advertise": "ftp://x"},
            "extra": 1,
        },
        "storage": {"url": "s3://bucket"},
        "engine": {"kind": "yarn"},
        "auth": {"mode": "maybe"},
        "limits": {"cpu": -1, "typo": 3},
        "unheard_of": True,
    }
    environment = {"BFIA_GATEWAY__ENGIN__KIND": "process", "BFIA_GATEWAY__LIMITS__CPU": "-2"}
    message = refusal(configuration, tmp_path, environment)
    first, *problems = message.splitlines()
    assert first == f"{tmp_path / 'broken.yml'} cannot be used (INVALID):"
    paths = set()
    for line in problems:
        problem = re.sub(r"^ *(broken\.yml:\d+: )?", "", line)
        paths.add(problem.partition(": ")[0])
    assert paths == {
        "BFIA_GATEWAY__ENGIN__KIND",
        "node.id",
        "listen.peer.bind",
        "listen.peer.advertise",
        "listen.extra",
        "storage.url",
        "engine.kind",
        "auth.mode",
        "BFIA_GATEWAY__LIMITS__CPU",
        "limits.typo",
        "unheard_of",
    }
    written = (tmp_path / "broken.yml").read_text().splitlines()
    for text, path in (
        ("  id: has space", "node.id"),
        ("  typo: 3", "limits.typo"),
        ("unheard_of: true", "unheard_of"),
    ):
        assert f"broken.yml:{written.index(text) + 1}: {path}: " in message


def a_node(**listeners: str) -> dict[str, Any]:
    """Return the settings of a node; listeners have free ports unless an address is named."""
    binds = dict.fromkeys(("peer", "container", "operator"), "127.0.0.1:0") | listeners
    return {
        "node": {"id": ME},
        "listen": {name: {"bind": bind} for name, bind in binds.items()},
        "engine": {"kind": "process"},
    }


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::]:0"])
def test_operators_without_a_token_only_on_loopback(tmp_path, bind):
    assert "auth.mode" in refusal(a_node(operator=bind), tmp_path)


def test_an_address_that_is_taken(tmp_path):
    file = tmp_path / "node.yml"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        file.write_text(yaml.safe_dump(a_node(peer=address)))
        process = command("serve", "--config", str(file))
    assert process.returncode == 2
    assert "Traceback" not in process.stderr
    assert "Errno" not in process.stderr
    assert f"cannot listen on {address}" in process.stderr
    assert f"change listen in {file}" in process.stderr


def test_the_environment_goes_over_the_file(tmp_path, monkeypatch):
    file = tmp_path / "node.yml"
    file.write_text(
        yaml.safe_dump(a_node() | {"engine": {"kind": "docker"}, "limits": {"body_bytes": 1000}})
    )
    monkeypatch.setenv("BFIA_GATEWAY__ENGINE__KIND", "process")
    monkeypatch.setenv("BFIA_GATEWAY__LIMITS__BODY_BYTES", "2000")
    with serving(Node(load(file))) as node:
        assert (
            ask(node, "operator", "GET", "/health/ready").json()["checks"]["engine"]["kind"]
            == "process"
        )
        create = f"{PLATFORM}/job/create_all"
        assert ask(node, "operator", "POST", create, content=b" " * 1500).status_code == 200
        assert ask(node, "operator", "POST", create, content=b" " * 2500).status_code == 413


# ---------------------------------------------------------------- listeners

OF_CONTAINERS = (f"{PLATFORM}/task/callback", f"{CHANNEL}/push", f"{CHANNEL}/pop")
OF_PEERS = f"{CONTROL}/job/create"
OF_OPERATORS = f"{PLATFORM}/job/create_all"


def serves(node: Gateway, listener: str, path: str) -> bool:
    return ask(node, listener, "POST", path, json={}).status_code != 404


def test_three_listeners_each_with_its_own_paths(tmp_path):
    with running(tmp_path) as node:
        for path in OF_CONTAINERS:
            assert serves(node, "container", path)
            assert not serves(node, "peer", path)
        assert serves(node, "peer", OF_PEERS)
        assert not serves(node, "container", OF_PEERS)


def test_one_port_serves_peers_and_containers(tmp_path):
    free = {"bind": "127.0.0.1:0"}
    with running(
        tmp_path,
        listen={
            "peer": free,
            "operator": free,
            "container": None,
        },
    ) as node:
        assert "container" not in node.addresses()
        assert all(serves(node, "peer", path) for path in (*OF_CONTAINERS, OF_PEERS))
        assert not serves(node, "peer", OF_OPERATORS)


def test_a_node_stops_cleanly_while_its_events_are_followed(tmp_path):
    with Federation(tmp_path, [ME], {"kind": "process"}) as nodes:
        node = nodes[ME]
        path = f"{node.operator}/api/v1/events?follow=1"
        with httpx.stream(
            "GET",
            path,
            trust_env=False,
            verify=NO_TLS,
            timeout=120,
        ) as response:
            lines = response.iter_lines()
            assert next(lines) == "event: connected"
            node.stop()
            assert [line for line in lines if line.startswith("event: ")] == []
        assert " stopped " in node.log()
        assert "[error" not in node.log()


# ---------------------------------------------------------------- missing at the start


@pytest.mark.parametrize(
    ("bridge", "reason"),
    [
        pytest.param("192.0.2.1", "CREATE_FAILED", id="no address of this machine"),
        pytest.param("127.0.0.1", "PORT_IN_USE", id="port in use"),
    ],
)
def test_a_bridge_that_cannot_be_listened_on_is_named(bridge, reason, monkeypatch):
    engine = ContainerdEngine("n", "i")
    monkeypatch.setattr(engine, "network_id", lambda: "n1")
    monkeypatch.setattr(engine, "gateway_address", lambda: bridge)
    with closing(bound("127.0.0.2:0")) as first_socket:
        listener = container_listener(engine, "127.0.0.2:0", first_socket)
        other_socket = bound(f"127.0.0.1:{port_of(first_socket)}")
        with closing(other_socket), pytest.raises(EngineFailed) as refused:
            listener.base_url()
    assert refused.value.reason == reason


def test_a_gateway_starts_although_isolation_cannot_be_checked(monkeypatch):
    engine = ContainerdEngine("n", "i")
    monkeypatch.setattr(engine, "isolation", raising(EngineDown("away")))
    with closing(bound("127.0.0.1:0")) as first_socket, capture_logs() as log:
        container_listener(engine, "127.0.0.1:0", first_socket)._log_isolation()
    assert [entry["event"] for entry in log] == ["isolation of containers cannot be checked"]


def container_listener(engine, address: str, first_socket: socket.socket) -> ContainerListener:
    return ContainerListener(engine, Listener(bind=address), first_socket, lambda _: None)


def test_an_unusable_database_file_and_a_missing_library_are_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    settings: Any = SimpleNamespace(
        database=SimpleNamespace(url=f"sqlite:///{tmp_path}/file/node.db")
    )
    with pytest.raises(Invalid, match=r"database\.url: cannot be used: ") as refused:
        parts.lock_database(settings)
    assert refused.value.reason == "DATABASE_UNUSABLE"

    monkeypatch.setitem(sys.modules, "engines.kubernetes", None)
    with pytest.raises(Invalid, match=r"pip install 'bfia-gateway\[k8s\]'"):
        engine_parts._kubernetes(settings, settings, "i")


def test_a_start_waits_for_a_route_file_that_another_gateway_edits(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)

    class EditedRoutes:
        """A route file whose edit ends with the first reload."""

        rival = "the other"
        problems = ()

        def reload(self) -> None:
            self.rival = ""

    routes: Any = EditedRoutes()
    check_route_file(routes)
    assert routes.rival == ""


def test_nothing_serves_from_a_folder_whose_gateway_has_ended(tmp_path):
    with closing(bound("127.0.0.1:0")) as sock, claim(tmp_path, [sock]):
        assert served_from(tmp_path) is not None
    assert served_from(tmp_path) is None


def test_a_gateway_that_listens_at_a_name_is_recognised_by_its_address(tmp_path, monkeypatch):
    addresses = {"bank-peers": "127.0.0.1", "127.0.0.1": "127.0.0.1"}
    monkeypatch.setattr(socket, "gethostbyname", addresses.__getitem__)
    with closing(bound("127.0.0.1:0")) as sock, claim(tmp_path, [sock]):
        gateway = served_from(tmp_path)
        assert gateway is not None
        assert gateway.uses(f"bank-peers:{port_of(sock)}")
        assert not gateway.uses(f"bank-peers:{port_of(sock) + 1}")
