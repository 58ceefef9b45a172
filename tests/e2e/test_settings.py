"""What an admin sets, seen from outside: whole gateways as processes, started with a configuration."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests import forks
from tests.e2e import jobs
from tests.e2e.nodes import ROOT, Federation, Node, example, free_ports, process_engine, wait_for
from tests.e2e.test_user_job import check_user_job
from tests.plain import NO_TLS

pytestmark = pytest.mark.slow

TOKEN = "a-token-of-more-than-16-characters"
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


@pytest.mark.parametrize("text", ["", "[]", "a: [\x00", "node: !!python/object:os.system {}"])
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str):
    assert "cannot be used (INVALID):" in refusal(text, tmp_path)


def test_a_file_that_is_not_there(tmp_path: Path):
    ended = command("serve", "--config", str(tmp_path / "none.yml"))
    assert ended.returncode == 2 and "none.yml: cannot be read" in ended.stderr


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::]:0"])
def test_operators_without_a_token_only_on_loopback(tmp_path: Path, bind: str):
    free = {"bind": "127.0.0.1:0"}
    configuration = {
        "node": {"id": jobs.GUEST},
        "listen": {"peer": free, "container": free, "operator": {"bind": bind}},
        "engine": {"kind": "process"},
    }
    assert "auth.mode" in refusal(configuration, tmp_path)


def test_a_token_that_anybody_could_guess(tmp_path: Path):
    auth = {"mode": "on", "token": "short"}
    told = refusal({"node": {"id": jobs.GUEST}, "engine": {"kind": "process"}, "auth": auth}, tmp_path)
    assert "auth" in told and "16 characters" in told


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


def test_a_broken_environment_is_refused_like_a_broken_file(tmp_path: Path):
    told = refusal(
        {"node": {"id": jobs.GUEST}, "engine": {"kind": "process"}},
        tmp_path,
        {"BFIA_GATEWAY__LIMITS__CPU": "many", "BFIA_GATEWAY__AUTH__TYPO": "1"},
    )
    assert "limits.cpu: " in told and "auth.typo: " in told.lower()


def test_what_init_writes_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "node.yml"
    ended = command("init", "--node", jobs.GUEST, "--engine", "process", "--output", str(file))
    assert ended.returncode == 0, ended.stderr
    again = command("init", "--node", "other", "--output", str(file))
    assert again.returncode == 2 and str(file) in again.stderr  # nothing is overwritten unasked
    for listener in ("PEER", "CONTAINER", "OPERATOR"):  # the written ports may be in use here
        monkeypatch.setenv(f"BFIA_GATEWAY__LISTEN__{listener}__BIND", "127.0.0.1:0")
    ready = tmp_path / "ready.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli.main", "serve", "-c", str(file), "--ready-file", str(ready)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
    )
    try:
        wait_for(lambda: ready.exists() or process.poll() is not None, 30, about="the node is up")
        assert process.poll() is None, process.stderr and process.stderr.read()
        operator = json.loads(ready.read_text())["operator"]
        assert said("GET", f"{operator}/health/ready").json()["ready"] is True
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert (tmp_path / "var" / "gateway.db").exists()


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


def test_the_users_job_through_one_port(tmp_path: Path):
    federation = Federation(tmp_path, [jobs.GUEST, jobs.HOST], process_engine("unionpay:2.0.0"))
    for node in federation.nodes.values():
        node.settings["listen"]["container"] = None
    with federation:
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        guest, host = federation[jobs.GUEST], federation[jobs.HOST]
        job_id = guest.submit(jobs.quick_job(jobs.GUEST, jobs.HOST, depth=5))
        check_user_job(guest, host, job_id)


# ---------------------------------------------------------------- authentication


def test_with_a_token_every_operators_path_asks_for_it_and_no_other_path(tmp_path: Path):
    with started(one_node(tmp_path, auth={"mode": "on", "token": TOKEN})) as node:
        paths = [
            ("POST", f"{PLATFORM}/job/create_all"),
            ("GET", f"{PLATFORM}/job/status_all"),
            ("GET", f"{PLATFORM}/job/query_job_list"),
            ("POST", "/v2/schedule/job/create_all"),
            ("POST", "/v2/provider/register"),
            ("GET", "/v2/provider/query"),
            ("POST", "/v2/component/upload"),
            ("POST", "/v2/component/upload/file"),
            ("GET", "/api/v1/jobs"),
            ("GET", "/openapi.json"),
            ("POST", "/docs/"),
            ("GET", "/no/such/path"),
        ]
        for method, path in paths:
            for wrong in ({}, {"authorization": f"Bearer {TOKEN}x"}, {"authorization": TOKEN}, {"x-token": TOKEN}):
                answer = said(method, node.operator + path, headers=wrong)
                assert answer.status_code == 401, path
                reason = "TOKEN_UNKNOWN" if wrong.get("authorization", "").startswith("Bearer ") else "NO_TOKEN"
                assert answer.json()["data"] == {"reason": reason} and TOKEN not in answer.text
                assert answer.headers["www-authenticate"] == "Bearer"
            right = said(method, node.operator + path, headers={"authorization": f"Bearer {TOKEN}"})
            assert right.status_code == (404 if path in ("/no/such/path", "/docs/") else 200), path
        for path in ("/health/live", "/health/ready", "/docs"):  # the page asks for the token by itself
            assert said("GET", node.operator + path).status_code == 200
        to_peers = said("POST", f"{node.peer}{CONTROL}/task/poll", json={"task_id": "t", "role": ""})
        to_containers = said(
            "POST",
            f"{node.addresses['container']}{PLATFORM}/task/callback",
            json={"task_id": "t", "status": "FAILED"},
        )
        assert "NO_TOKEN" not in to_peers.text + to_containers.text
        assert to_containers.json()["data"]["reason"] == "TASK_UNKNOWN"
        assert TOKEN not in node.log()


def test_with_a_token_the_operators_may_be_served_anywhere(tmp_path: Path):
    node = one_node(tmp_path, auth={"mode": "on", "token": TOKEN})
    (port,) = free_ports(1)
    node.settings["listen"]["operator"] = {"bind": f"0.0.0.0:{port}"}
    with started(node):
        assert said("GET", f"http://127.0.0.1:{port}/api/v1/jobs").status_code == 401


# ---------------------------------------------------------------- routes


def test_an_edit_of_the_routes_is_in_force_soon_and_a_broken_one_never(tmp_path: Path):
    node = one_node(tmp_path)
    routes = node.home / "routes.yml"
    (port,) = free_ports(1)
    with started(node):

        def checks() -> dict[str, Any]:
            return dict(node.get("/health/ready")["checks"]["routes"])

        def submit() -> dict[str, Any]:
            return node.post(f"{PLATFORM}/job/create_all", jobs.user_job(jobs.GUEST, jobs.HOST))

        none = {"ok": True, "nodes": 0, "file": "ok", "problems": []}
        assert checks() == none
        assert submit()["data"]["reason"] == "NODE_UNKNOWN"

        routes.write_text(yaml.safe_dump({jobs.HOST: {"host": "127.0.0.1", "port": port}}))
        wait_for(lambda: checks()["nodes"] == 1, 10, about="the edit is in force")
        assert node.get("/health/ready")["ready"] is True
        later: list[dict[str, Any]] = []
        waiting = threading.Thread(target=lambda: later.append(submit()))
        waiting.start()  # the node is known now; that nobody answers there is found out in time
        wait_for(lambda: node.get("/api/v1/jobs")["jobs"], 10, about="the job was taken in")

        routes.write_text(yaml.safe_dump({jobs.HOST: {"host": "127.0.0.1", "port": 0, "prot": 1}}))
        wait_for(lambda: checks()["file"] == "refused", 10, about="the broken edit is noticed")
        answer = said("GET", f"{node.operator}/health/ready")  # a typing mistake takes no node out of service
        assert answer.status_code == 200 and answer.json()["ready"] is True
        assert checks()["nodes"] == 1  # the old table is in force
        told = "\n".join(checks()["problems"])
        assert f"{jobs.HOST}.port" in told and f"{jobs.HOST}.prot" in told

        routes.unlink()
        wait_for(lambda: "does not exist" in "".join(checks()["problems"]), 10, about="the loss is noticed")
        assert checks()["nodes"] == 1

        routes.write_text("{}")
        wait_for(lambda: checks() == none, 10, about="the repair is in force")
        for job in node.get("/api/v1/jobs")["jobs"]:
            node.post(f"{PLATFORM}/job/stop_all", {"job_id": job["job_id"]})
        waiting.join(60)
        assert not waiting.is_alive() and later[0]["code"] != 0


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
