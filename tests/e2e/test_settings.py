"""What an admin sets, seen from outside: whole gateways as processes, started with a configuration."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests import forks
from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, example, wait_for
from tests.plain import NO_TLS

pytestmark = pytest.mark.slow

CONTROL, PLATFORM, CHANNEL = "/v1/interconn/schedule", "/v1/platform/schedule", "/v1/interconn/chan"


def command(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``bfia-gateway`` to its end."""
    return forks.run(arguments, env=os.environ | (env or {}))


def refusal(configuration: Any, home: Path, env: dict[str, str] | None = None) -> str:
    """Start a node that cannot start; return what it says."""
    file = home / "broken.yml"
    file.write_text(configuration if isinstance(configuration, str) else yaml.safe_dump(configuration))
    ended = command("serve", "--config", str(file), env=env)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Traceback" not in ended.stderr
    assert sorted(p.name for p in home.iterdir()) == ["broken.yml"]  # nothing was begun
    return ended.stderr


def one_node(home: Path, **settings: Any) -> Node:
    """Return a node that is not started; settings go over the defaults by section."""
    return Federation(home, [jobs.GUEST], {"kind": "process"}, **settings)[jobs.GUEST]


@contextmanager
def started(node: Node) -> Iterator[Node]:
    try:
        node.start()
        yield node
    finally:
        node.stop()


def said(method: str, url: str, **kwargs: Any) -> httpx.Response:
    return httpx.request(method, url, timeout=120, trust_env=False, verify=NO_TLS, **kwargs)


# ---------------------------------------------------------------- what is refused


def test_everything_that_is_wrong_is_told_at_once_with_its_path(tmp_path: Path):
    configuration = {
        "node": {"id": "has space"},
        "listen": {"peer": {"bind": "nonsense", "advertise": "ftp://x"}, "extra": 1},
        "storage": {"url": "s3://bucket"},
        "engine": {"kind": "swarm"},
        "auth": {"mode": "maybe"},
        "limits": {"cpu": -1, "typo": 3},
        "unheard_of": True,
    }
    told = refusal(configuration, tmp_path, {"BFIA_GATEWAY__ENGIN__KIND": "process"})
    first, *rest = told.splitlines()
    assert first == f"{tmp_path / 'broken.yml'} cannot be used (INVALID):"
    assert {line.strip().partition(": ")[0] for line in rest} == {
        "BFIA_GATEWAY__ENGIN__KIND",
        "node.id",
        "listen.peer.bind",
        "listen.peer.advertise",
        "listen.extra",
        "storage.url",
        "engine.kind",
        "auth.mode",
        "limits.cpu",
        "limits.typo",
        "unheard_of",
    }


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::]:0"])
def test_operators_without_a_token_only_on_loopback(tmp_path: Path, bind: str):
    free = {"bind": "127.0.0.1:0"}
    configuration = {
        "node": {"id": jobs.GUEST},
        "listen": {"peer": free, "container": free, "operator": {"bind": bind}},
        "engine": {"kind": "process"},
    }
    assert "auth.mode" in refusal(configuration, tmp_path)


def test_an_address_that_is_taken(tmp_path: Path):
    with started(one_node(tmp_path / "first")) as first:
        second = one_node(tmp_path / "second")
        second.settings["listen"]["peer"] = dict(first.settings["listen"]["peer"])
        second.home.mkdir(parents=True, exist_ok=True)
        (second.home / "node.yml").write_text(yaml.safe_dump(second.settings))
        ended = command("serve", "--config", str(second.home / "node.yml"))
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert first.settings["listen"]["peer"]["bind"] in ended.stderr


# ---------------------------------------------------------------- where settings come from


def test_the_environment_goes_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    node = one_node(tmp_path, limits={"body_bytes": 1000})
    node.settings["engine"] = {"kind": "docker"}
    monkeypatch.setenv("BFIA_GATEWAY__ENGINE__KIND", "process")
    monkeypatch.setenv("BFIA_GATEWAY__NODE__INSTITUTION", "I1")
    monkeypatch.setenv("BFIA_GATEWAY__LIMITS__BODY_BYTES", "2000")
    with started(node):
        assert node.get("/health/ready")["checks"]["engine"]["kind"] == "process"
        create = f"{node.operator}{PLATFORM}/job/create_all"
        assert said("POST", create, content=b" " * 1500).status_code == 200  # the file alone would not take it
        assert said("POST", create, content=b" " * 2500).status_code == 413


# ---------------------------------------------------------------- listeners


def test_three_listeners_each_with_its_own_paths(tmp_path: Path):
    with started(one_node(tmp_path)) as node:
        assert len({node.addresses[name] for name in ("peer", "container", "operator")}) == 3
        for path in (f"{PLATFORM}/task/callback", f"{CHANNEL}/push", f"{CHANNEL}/pop"):
            assert said("POST", node.peer + path, json={}).status_code == 404
            assert said("POST", node.addresses["container"] + path, json={}).status_code != 404
        assert said("POST", f"{node.addresses['container']}{CONTROL}/job/create", json={}).status_code == 404


def test_one_port_serves_peers_and_containers(tmp_path: Path):
    node = one_node(tmp_path)
    node.settings["listen"]["container"] = None
    with started(node):
        assert "container" not in node.addresses
        for path in (
            f"{PLATFORM}/task/callback",
            f"{CHANNEL}/push",
            f"{CHANNEL}/pop",
            f"{CHANNEL}/peek",
            f"{CHANNEL}/release",
            f"{CHANNEL}/invoke",
            f"{CONTROL}/job/create",
        ):
            assert said("POST", node.peer + path, json={}).status_code != 404, path
        for path in (f"{PLATFORM}/job/create_all", "/v2/provider/register"):
            assert said("POST", node.peer + path, json={}).status_code == 404, path


# ---------------------------------------------------------------- authentication


# ---------------------------------------------------------------- routes


# ---------------------------------------------------------------- two nodes, one daemon


def containers(**labels: str) -> dict[str, dict[str, str]]:
    """Return the labels of the containers that have these, by name, of the daemon that both nodes share."""
    filters = [part for k, v in labels.items() for part in ("--filter", f"label=bfia.{k}={v}")]
    listed = subprocess.run(
        ["docker", "ps", "-a", "--format", "{{.Names}}", *filters], capture_output=True, text=True, check=True
    )
    found = {}
    for name in listed.stdout.split():
        shown = subprocess.run(["docker", "inspect", name], capture_output=True, text=True, check=False)
        if shown.returncode == 0:  # it may be gone by now
            (one,) = json.loads(shown.stdout)
            networks = ",".join(one["NetworkSettings"]["Networks"])
            found[name] = one["Config"]["Labels"] | {"networks": networks, "id": one["Id"]}
    return found


@pytest.mark.docker
def test_two_nodes_on_one_daemon_never_see_each_others_containers(tmp_path: Path, reference_image: str):
    """Both run the same job at once; one of them dies and begins anew, and the other's containers go on."""
    with Federation(tmp_path, [jobs.GUEST, jobs.HOST], {"kind": "docker"}) as federation:
        mine, other = federation[jobs.GUEST], federation[jobs.HOST]
        submitted = {}
        for node in (mine, other):
            node.register(example("register_unionpay.json"))
            for role in ("guest", "host"):
                jobs.upload(node, role)
            submitted[node.id] = node.submit(jobs.quick_job(node.id, node.id))

        def up(node: Node) -> dict[str, dict[str, str]]:
            return containers(node=node.id, job=submitted[node.id])

        wait_for(lambda: len(up(mine)) == 2 and len(up(other)) == 2, 60, about="both nodes have containers")
        found = {node.id: up(node) for node in (mine, other)}
        assert not found[mine.id].keys() & found[other.id].keys()
        for part in ("bfia.installation", "networks"):
            kinds = [{labels[part] for labels in found[node].values()} for node in found]
            assert [len(k) for k in kinds] == [1, 1] and not kinds[0] & kinds[1], part

        mine.kill()
        mine.start()
        for node in (mine, other):
            job = node.wait_job(submitted[node.id], 120)
            assert len(job["runs"]) == 4
            begun = [e for e in node.timeline(submitted[node.id]) if e["event"] == "run RUNNING"]
            assert len(begun) == 4, begun
        wait_for(lambda: not up(mine) and not up(other), 30, about="every container is removed by its own node")
