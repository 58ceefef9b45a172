"""What an admin sets, seen from outside."""

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
from gateway.config.schema import Listener
from gateway.container_listener import ContainerListener
from gateway.errors import EngineFailed, Invalid
from gateway.http.server import bound, claimed, port_of
from gateway.http.server import serving as served_from
from tests import forks
from tests.e2e.nodes import Federation
from tests.inprocess import ME, Node, ask, running, serving
from tests.plain import NO_TLS

CONTROL, PLATFORM, CHANNEL = "/v1/interconn/schedule", "/v1/platform/schedule", "/v1/interconn/chan"


def command(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``bfia-gateway`` to its end."""
    return forks.run(arguments, env=os.environ | (env or {}))


def refusal(
    configuration: Any,
    home: Path,
    env: dict[str, str] | None = None,
) -> str:
    """Start a node that cannot start; return what it says."""
    file = home / "broken.yml"
    file.write_text(
        configuration if isinstance(configuration, str) else yaml.safe_dump(configuration)
    )
    ended = command("serve", "--config", str(file), env=env)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    assert sorted(p.name for p in home.iterdir()) == ["broken.yml"]  # nothing was begun
    return ended.stderr


# ---------------------------------------------------------------- what is refused


def test_everything_that_is_wrong_is_told_at_once_with_its_path(tmp_path):
    configuration = {
        "node": {"id": "has space"},
        "listen": {"peer": {"bind": "nonsense", "advertise": "ftp://x"}, "extra": 1},
        "storage": {"url": "s3://bucket"},
        "engine": {"kind": "yarn"},
        "auth": {"mode": "maybe"},
        "limits": {"cpu": -1, "typo": 3},
        "unheard_of": True,
    }
    environment = {"BFIA_GATEWAY__ENGIN__KIND": "process", "BFIA_GATEWAY__LIMITS__CPU": "-2"}
    told = refusal(configuration, tmp_path, environment)
    first, *rest = told.splitlines()
    assert first == f"{tmp_path / 'broken.yml'} cannot be used (INVALID):"
    assert {re.sub(r"^ *(broken\.yml:\d+: )?", "", line).partition(": ")[0] for line in rest} == {
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
        assert f"broken.yml:{written.index(text) + 1}: {path}: " in told


def a_node(**listeners: str) -> dict[str, Any]:
    """Return the settings of a node that listens on free ports, except where it is said otherwise."""
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
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        file.write_text(yaml.safe_dump(a_node(peer=address)))
        ended = command("serve", "--config", str(file))
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert "Errno" not in ended.stderr
    assert f"cannot listen on {address}" in ended.stderr
    assert f"change listen in {file}" in ended.stderr


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
OF_PEERS, OF_OPERATORS = f"{CONTROL}/job/create", f"{PLATFORM}/job/create_all"


def serves(
    node: Gateway,
    listener: str,
    path: str,
) -> bool:
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
        ) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: connected"
            node.stop()
            assert [line for line in lines if line.startswith("event: ")] == []
        assert " stopped " in node.log()
        assert "[error" not in node.log()


# ---------------------------------------------------------------- what is not there at the start


def test_a_bridge_that_is_not_here_or_a_port_that_is_taken_is_named(monkeypatch):
    engine = ContainerdEngine("n", "i")
    monkeypatch.setattr(engine, "network_id", lambda: "n1")
    with closing(bound("127.0.0.2:0")) as first:
        door = ContainerListener(engine, Listener(bind="127.0.0.2:0"), first, lambda _: None)
        with closing(bound(f"127.0.0.1:{port_of(first)}")):
            for host, reason in (("192.0.2.1", "CREATE_FAILED"), ("127.0.0.1", "PORT_IN_USE")):
                monkeypatch.setattr(engine, "gateway_address", lambda host=host: host)
                with pytest.raises(EngineFailed) as refused:
                    door.address()
                assert refused.value.reason == reason


def test_isolation_that_cannot_be_checked_keeps_no_gateway_from_its_start(monkeypatch):
    def away() -> None:
        raise EngineDown("away")

    engine = ContainerdEngine("n", "i")
    monkeypatch.setattr(engine, "isolation", away)
    with closing(bound("127.0.0.1:0")) as first, capture_logs() as said:
        ContainerListener(
            engine, Listener(bind="127.0.0.1:0"), first, lambda _: None
        )._log_isolation()
    assert [line["event"] for line in said] == ["isolation of containers cannot be checked"]


def test_an_unusable_database_file_and_a_missing_library_are_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    settings: Any = SimpleNamespace(
        database=SimpleNamespace(url=f"sqlite:///{tmp_path}/file/node.db")
    )
    with pytest.raises(Invalid, match=r"database\.url: cannot be used: ") as refused:
        parts.only_process(settings)
    assert refused.value.reason == "DATABASE_UNUSABLE"
    monkeypatch.setitem(sys.modules, "engines.kubernetes", None)
    with pytest.raises(Invalid, match=r"pip install 'bfia-gateway\[k8s\]'"):
        engine_parts._kubernetes(settings, settings, "i")


def test_a_route_file_that_another_gateway_has_just_edited_is_waited_for(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    routes: Any = SimpleNamespace(rival="the other", problems=())
    routes.reload = lambda: setattr(routes, "rival", "")
    check_route_file(routes)
    assert routes.rival == ""


def test_nothing_serves_from_a_folder_whose_gateway_has_ended(tmp_path):
    with closing(bound("127.0.0.1:0")) as sock, claimed(tmp_path, [sock]):
        assert served_from(tmp_path) is not None
    assert served_from(tmp_path) is None
