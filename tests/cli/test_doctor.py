"""``bfia-gateway doctor``: whatever a node lacks is named by its step, and nothing is changed by looking."""

import errno
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import astuple, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from sqlalchemy import make_url

from adapter.bfia.examples import A_PROVIDER
from engines.base import MADE_AT_START, Capacity, Engine, EngineError, Isolation, PullDenied
from engines.kubernetes import KubernetesEngine
from engines.multi import SeveralEngines
from gateway.bootstrap import engine_parts
from gateway.config.engine import NamedEngine
from gateway.config.loader import load
from gateway.diagnostics import engines, machine, network
from gateway.diagnostics.doctor import look
from gateway.diagnostics.machine import clock_of, storages_of
from gateway.diagnostics.network import certificates_of, routes_of
from gateway.domain.amounts import GIB
from gateway.errors import Invalid
from gateway.http.server import claimed
from gateway.identity.keys import Keyring
from gateway.language.catalogue import translate
from gateway.runtime.trials import Result, Step
from gateway.store.database import open_database
from gateway.store.repositories import Gateways, SqlProviders, SqlRouteVersions
from gateway.store.store import Store
from gateway.version import VERSION
from provider_registry.registration import provider_from_request
from provider_registry.registry import Registry
from route_table.live import Export, Version
from tests.certificates import Authority
from tests.cli import call, raising
from tests.e2e.nodes import free_ports
from tests.inprocess import ME, Node, ask, running, settings
from tests.memory_engine import MemoryEngine, MemoryWorld, Script
from tests.registry.builders import a_description, a_request
from tests.services.signing import public

FAR, GONE = "far", "gone"
LAKE = {"url": "s3://127.0.0.1:1/joint", "username": "key"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return the configuration of a node that has all it needs and was never started."""
    ports = free_ports(3)
    names = ("peer", "container", "operator")
    (tmp_path / "routes.yml").write_text("{}")
    body = {
        "node": {"id": "JG0100001100000010"},
        "engine": {"kind": "process"},
        "listen": {n: {"bind": f"127.0.0.1:{p}"} for n, p in zip(names, ports, strict=True)},
        "route_table": {"file": "routes.yml"},
        "database": {"url": f"sqlite:///{tmp_path / 'state.db'}"},
        "storage": {"url": f"file://{tmp_path / 'storage'}"},
        "state_dir": str(tmp_path / "state"),
    }
    file = tmp_path / "node.yml"
    file.write_text(yaml.safe_dump(body))
    return file


def doctor(config: Path, **over: Any) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code and the steps by their name."""
    settings = yaml.safe_load(config.read_text())
    for section, values in over.items():
        settings[section] = (
            settings.get(section, {}) | values if isinstance(values, dict) else values
        )
    config.write_text(yaml.safe_dump(settings))
    done = call("doctor", "--config", str(config), "--json")
    assert done.stdout, done.stderr
    return done.exit_code, {s["name"]: s for s in json.loads(done.stdout)["steps"]}


def failed(steps: dict[str, dict[str, Any]]) -> list[str]:
    for step in steps.values():
        if step["result"] in ("failed", "warning"):
            assert step["cause"] and step["remedy"], step
    return [name for name, step in steps.items() if step["result"] == "failed"]


def test_a_node_that_has_all_it_needs_is_found_good_and_left_as_it_is(config):
    before = sorted(config.parent.iterdir())
    code, steps = doctor(config)
    assert code == 0
    assert failed(steps) == []
    assert steps["migrations"]["result"] == "ok"
    assert "not made yet" in steps["migrations"]["found"]
    assert steps["isolation"]["result"] == "warning"
    assert steps["certificates"]["found"] == "none are named"
    assert steps["database"]["found"] == "sqlite answers"
    assert steps["tokens"]["found"] in ("mode on", "mode off"), (
        "of a database without tables none are counted"
    )
    assert sorted(config.parent.iterdir()) == before
    shown = call("doctor", "--config", str(config))
    assert shown.exit_code == 0
    assert "what to do" in shown.stdout
    rules = [
        {"decide": "reject", "source": "JG9"},
        {
            "decide": "approve",
            "source": "JG9",
            "role": "host",
        },
    ]
    code, steps = doctor(config, approval={"mode": "rules", "rules": rules})
    assert code == 0
    assert failed(steps) == []
    step = steps["approval"]
    assert step["result"] == "warning"
    assert step["found"] == "mode rules, 2 rules"
    assert step["cause"].startswith("approval.rules[1]: approval.rules[0] comes first")


@pytest.fixture
def busy_port() -> Iterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        yield taken.getsockname()[1]


def test_each_route_without_signatures_is_named(config):
    key = Keyring(config.parent / "state").make("ed25519")
    entry = {"host": "127.0.0.1", "port": 9}
    routes = {
        "A": {**entry, "signing": "off"},
        "B": {**entry, "keys": key.public},
        "C": entry,
    }
    file = config.parent / "routes.yml"
    for given, result in ((routes, "warning"), ({n: routes[n] for n in "BC"}, "ok")):
        file.write_text(yaml.safe_dump(given))
        step = doctor(config)[1]["signing"]
        assert step["result"] == result
        assert key.id in step["found"]
        assert "1 of" in step["found"]
        assert step["cause"].endswith(": A") is (result == "warning")


def test_a_node_that_takes_jobs_of_everybody_is_warned(config):
    for level, result in (("open", "warning"), ("known", "ok")):
        assert doctor(config, trust={"level": level})[1]["peers"]["result"] == result


def test_tokens_that_no_request_needs_are_named(config):
    assert call("token", "create", "ann", "--role", "admin", "--config", str(config)).exit_code == 0
    soon = call(
        "token", "create", "li", "--role", "admin", "--days", "0.1", "--config", str(config)
    ).stderr
    assert re.search(r"until \d{4}-\d\d-\d\d \d\d:\d\d UTC; it is shown", soon)
    assert call("token", "revoke", "li", "--config", str(config)).exit_code == 0
    for mode, result in (("off", "warning"), ("on", "ok")):
        step = doctor(config, auth={"mode": mode})[1]["tokens"]
        assert step["result"] == result
        assert ("valid here: 1" in step["cause"]) is (mode == "off")
    assert step["found"] == "mode on, 1 valid token"
    call("token", "revoke", "ann", "--config", str(config))
    assert doctor(config, auth={"mode": "off"})[1]["tokens"]["result"] == "ok"


def test_what_is_wrong_is_named_by_its_step_and_no_other(config, busy_port, caplog):
    good = config.read_text()
    nobody = free_ports(1)[0]
    (config.parent / "broken.yml").write_text("JG1: {host: h, prot: 1}\n")
    faults: list[tuple[str, dict[str, Any]]] = [
        ("database", {"database": {"url": f"mysql+pymysql://me:secret@127.0.0.1:{nobody}/db"}}),
        ("storage", {"storage": {"url": f"file://{config}/storage"}}),
        ("state folder", {"state_dir": f"{config}/state"}),
        ("disk", {"limits": {"storage_reserve_bytes": 1 << 60}}),
        (
            "engine",
            {"engine": {"kind": "docker", "docker": {"base_url": f"tcp://127.0.0.1:{nobody}"}}},
        ),
        ("ports", {"listen": {"operator": {"bind": f"127.0.0.1:{busy_port}"}}}),
        ("routes", {"route_table": {"file": "broken.yml"}}),
        ("routes", {"route_table": {"file": "nowhere.yml"}}),
    ]
    authority = Authority(config.parent / "pki")
    own, old = authority.sign("own"), authority.sign("old", days=-1)
    peer = yaml.safe_load(good)["listen"]["peer"]
    wrong_key = {"certificate": own.certificate, "key": old.key}
    entry = {
        "url": "https://h",
        "ca": authority.file,
        "certificate": old.certificate,
        "key": old.key,
    }
    (config.parent / "expired.yml").write_text(yaml.safe_dump({"JG1": entry}))
    (config.parent / "circle.yml").write_text("JG1: {via: JG2}\nJG2: {via: JG1}\n")
    faults += [
        ("ports", {"listen": {"operator": peer}}),
        ("certificates", {"listen": {"peer": peer | {"tls": wrong_key}}}),
        ("certificates", {"route_table": {"file": "expired.yml"}}),
        ("routes", {"route_table": {"file": "circle.yml"}}),
    ]
    for step, over in faults:
        code, steps = doctor(config, **over)
        assert code == 1, steps
        assert failed(steps) == [step], steps
        assert step != "certificates" or "the listener's at the next start" in steps[step]["remedy"]
        assert "secret" not in json.dumps(steps)
        assert "not accepted" not in caplog.text, "the step says it"
        config.write_text(good)


def test_a_full_disk_is_named_with_what_is_free_and_what_is_wanted(config):
    step = doctor(config, limits={"storage_reserve_bytes": 1 << 60})[1]["disk"]
    free, rest = step["cause"].split(" free at ")
    assert free.endswith("iB")
    assert rest.startswith(f"{config.parent / 'storage'}, 1073741824.0 GiB wanted")
    assert translate(step["cause"], "zh").endswith("不会启动任何任务")
    assert "剩余" in translate(step["cause"], "zh")


@pytest.mark.mariadb
def test_what_is_wrong_with_the_database_decides_what_to_do(config):
    url = make_url(os.environ["BFIA_TEST_DB_URL"])
    for given, number, remedy, chinese in (
        (
            url.set(password="wrong", database="x"),
            1045,
            "correct user or password",
            "更正 database.url 中的用户名",
        ),
        (url.set(database="bfia_no_such"), 1049, "create that database", "创建该数据库"),
        (url.set(database="mysql"), 1044, "grant the user", "授予 database.url 中的用户"),
    ):
        step = doctor(config, database={"url": given.render_as_string(hide_password=False)})[1][
            "database"
        ]
        assert step["cause"].partition(" (got")[0].endswith(f"(error {number})")
        assert step["remedy"].startswith(remedy)
        assert translate(step["remedy"], "zh").startswith(chinese)


def test_missing_packet_filter_rules_are_fine_before_the_first_start(config):
    class Unmade(MemoryEngine):
        gaps = (f"open: iptables has no rules for them; {MADE_AT_START}",)

        def isolation(self) -> Isolation:
            return replace(super().isolation(), gaps=self.gaps)

    def remedy() -> str:
        steps = look(
            load(config),
            lambda settings: Unmade(
                node="n",
                installation="i",
                images={},
            ),
        )
        return next(step.remedy for step in steps if step.name == "isolation")

    assert remedy() == "nothing before the first start; afterwards close the gaps, or accept them"
    assert translate(remedy(), "zh").startswith("首次启动前无需处理")
    (state := config.parent / "state").mkdir()
    with claimed(state, []):
        assert remedy() == "close the gaps, or accept them"


def test_the_keys_of_signers_are_looked_at_as_the_start_does(tmp_path):
    def step(*keys: Path) -> Step:
        docker = {"signatures": [{"keys": list(map(str, keys))}]}
        return certificates_of(
            load(None, {"node": {"id": "JG1"}, "engine": {"kind": "docker", "docker": docker}})
        )

    (tmp_path / "none.pem").write_text("no key")
    wrong = step(tmp_path / "none.pem", tmp_path / "nosuch.pem")
    assert wrong.result is Result.FAILED
    assert wrong.remedy
    assert all(f"engine.docker.signatures[0].keys[{n}]" in wrong.cause for n in (0, 1))
    good = step(public(ec.generate_private_key(ec.SECP256R1()), tmp_path, "good.pem"))
    assert good.result is Result.OK
    assert good.found == "1 key of signers"


def test_a_renewed_file_of_the_listener_counts_after_a_restart(tmp_path):
    authority = Authority(tmp_path / "tls")
    old, new = authority.sign("old", ME, days=20), authority.sign("new", ME, days=25)
    tls, free = {"certificate": old.certificate, "key": old.key}, {"bind": "127.0.0.1:0"}
    with running(
        tmp_path,
        listen={
            "peer": {**free, "tls": tls},
            "container": free,
            "operator": free,
        },
    ) as node:

        def shown(language: str = "en") -> tuple[int, str]:
            got = ask(
                node,
                "operator",
                "GET",
                "/api/v1/certificates",
                headers={"accept-language": language},
            )
            (one,) = got.json()["certificates"]
            return one["days"], one["cause"]

        assert shown() == (19, "")
        assert certificates_of(node.settings).result is Result.OK
        for now, before in zip(astuple(new), astuple(old), strict=True):
            shutil.copy(now, before)
        assert shown() == (19, "the file is newer than what is served: restart the node")
        assert shown("zh") == (19, "文件比正在使用的新：请重启节点")
        step = certificates_of(node.settings)
        assert step.result is Result.WARNING
        assert step.cause == f"newer than what the listener serves: {old.certificate}"
        assert step.remedy.startswith("restart the node")
        assert translate(step.remedy, "zh").startswith("重启节点")
    assert certificates_of(node.settings).result is Result.OK  # it is what the next start serves


def test_a_certificate_for_partners_without_the_nodes_id_is_named(tmp_path):
    authority = Authority(tmp_path / "tls")
    for name, result in (("gw.bank.example", Result.WARNING), (ME.lower(), Result.OK)):
        own = authority.sign("own", name)
        entry = {
            "url": "https://h",
            "ca": authority.file,
            "certificate": own.certificate,
            "key": own.key,
        }
        found = settings(tmp_path)
        found.route_table.file.write_text(yaml.safe_dump({"JG0100002200000020": entry}))
        step = certificates_of(found)
        assert step.result is result
        if result is Result.WARNING:
            assert (
                step.cause
                == f"the certificate for partners lacks this node's id: {own.certificate}"
            )
            assert "peer_certificate" in step.remedy
            assert "请合作方设置" in translate(step.remedy, "zh")


def looked(step: Callable[..., Step], **about: Any) -> tuple[Result, str]:
    """Take one step of a node of which only this matters; return how it went, and the cause."""
    done = step(SimpleNamespace(**about))
    assert done.result is Result.OK or done.remedy
    return done.result, done.cause or done.found


def test_what_fails_while_it_is_looked_at_is_named(tmp_path, monkeypatch):
    older = looked(
        machine.migrations, database_up=True, revisions=("0016_applications", "0020_gpus")
    )
    assert older == (Result.WARNING, "the schema is 0016_applications, this version's is 0020_gpus")
    engine = SimpleNamespace(isolation=raising(EngineError("it answers nonsense")))
    assert looked(engines.isolation, engine_up=True, engine=engine)[0] is Result.FAILED
    with monkeypatch.context() as patch:
        patch.setattr(
            machine, "try_to_write", raising(OSError(errno.ENOSPC, "No space left on device"))
        )
        full = machine.writable(tmp_path)
        assert full.cause == f"{tmp_path} is full: No space left on device"
        patch.setattr(
            socket, "create_connection", raising(OSError(errno.EHOSTUNREACH, "No route to host"))
        )
        away = network._connection_problem(urlsplit("http://10.0.0.9:7380"))
        assert away.startswith("10.0.0.9:7380 cannot be reached (")
        patch.setattr(machine, "database_time", lambda store: 100.0)
        clock = clock_of(tmp_path / "none", cast(Any, object()), lambda: 0.0)
        assert "the clock of the database is 100 s off this machine's" in clock.cause
        patch.setattr(network, "bound", raising(PermissionError(errno.EACCES, "Permission denied")))
        ports = network.ports(cast(Any, SimpleNamespace(settings=settings(tmp_path / "node"))))
        assert ports.result is Result.FAILED
        assert ports.cause.startswith("peer: ")


def test_what_peers_could_do_and_keys_that_end_or_cannot_be_read_are_named(tmp_path):
    authority = Authority(tmp_path / "ca", days=90)
    soon = authority.sign("soon", days=3)
    tls = {"certificate": str(soon.certificate), "key": str(soon.key)}
    for more, result, words in (
        ({}, Result.WARNING, "peers show no certificate"),
        ({"client_ca": str(authority.file)}, Result.OK, "is bound to its node id"),
    ):
        listen = {
            "peer": {"bind": "0.0.0.0:0", "tls": tls | more},
            "container": {"bind": "127.0.0.1:0"},
        }
        made = load(
            None,
            {
                "node": {"id": "JG1"},
                "engine": {"kind": "process"},
                "listen": listen,
            },
        )
        found = looked(network.peers, settings=made)
        assert found[0] is result
        assert words in found[1]
        ends = certificates_of(made)
        assert ends.result is Result.WARNING
        assert "these expire soon: " in ends.cause
        assert "in 2 days" in ends.cause
    over = {
        "state_dir": str(tmp_path / "state"),
        "storages": {"lake": LAKE | {"password_file": "none.txt"}},
    }
    made = load(
        None,
        {
            "node": {"id": "JG1"},
            "engine": {"kind": "process"},
            **over,
        },
    )
    assert storages_of(made).result is Result.FAILED
    Keyring(made.state_dir).make("ed25519")
    for file in made.state_dir.rglob("*.pem"):
        file.write_text("no key")
    assert network.signing_of(made).result is Result.FAILED


def test_a_route_to_where_nobody_listens_is_told(config, busy_port):
    nobody = free_ports(1)[0]
    (config.parent / "routes.yml").write_text(
        f"JG2: {{host: 127.0.0.1, port: {busy_port}}}\nJG3: {{url: 'http://127.0.0.1:{nobody}'}}\n"
        "JG4: {host: no-such-name.invalid, port: 1}\nJG5: {host: no-such-name.invalid, port: 1, enabled: false}\n"
    )
    step = routes_of(load(config))
    assert step.result is Result.WARNING
    assert "route test" in step.remedy
    assert f"JG3: nothing listens at 127.0.0.1:{nobody}" in step.cause
    assert "JG4: " in step.cause
    assert "JG2" not in step.cause
    assert "JG5" not in step.cause
    (config.parent / "routes.yml").write_text(f"JG2: {{host: 127.0.0.1, port: {busy_port}}}\n")
    assert routes_of(load(config)).result is Result.OK
    entry = f"{{host: 127.0.0.1, port: {busy_port}, transport: 'http://127.0.0.1:{nobody}'}}"
    (config.parent / "routes.yml").write_text(f"JG2: {entry}\n")
    assert f"JG2: nothing listens at 127.0.0.1:{nobody}" in routes_of(load(config)).cause


def test_a_second_gateway_with_a_route_file_of_its_own_is_not_started(tmp_path, monkeypatch):
    """Its routes would become the node's; nothing is followed until the files agree."""
    found = settings(tmp_path)
    found.route_table.file.write_text("JG0100002200000020: {host: h, port: 1}\n")
    with closing(Store(open_database(found.database.url))) as store:
        Gateways(store).beat("other", "http://10.0.0.5:7380")
        versions = SqlRouteVersions(store, "other")
        versions.add(Version(1, datetime.now(UTC), "file", "", "file", "{}"))
        versions.set_exported(Export(1, "0"))
    monkeypatch.setattr("gateway.bootstrap.node.FOLLOW_TIMEOUT", 0.0)
    node = Node(found)
    try:
        health = node.routes.problems
        with pytest.raises(Invalid, match="other routes than the gateway"):
            node.start()
    finally:
        node.stop()
    assert [p.path for p in health] == ["route_table.file"]
    (step,) = (
        one
        for one in look(found, lambda settings: engine_parts.engine_of(settings, "none"))
        if one.name == "routes"
    )
    assert step.result == Result.FAILED
    assert step.remedy == "copy that file here, or set route_table.file: null"


def test_a_clock_that_is_off_is_named(tmp_path):
    assert clock_of(tmp_path / "storage", None).result is Result.OK
    assert "-0.0 " not in clock_of(tmp_path, None, lambda: time.time() + 0.02).found
    late = clock_of(tmp_path, None, lambda: time.time() + 3600)
    assert late.result is Result.FAILED
    assert "3600 s off" in late.cause
    assert late.remedy


def registered(settings: Any, *providers: tuple[str, str, str]) -> None:
    """Register providers: name, daemon, image."""
    with closing(Store(open_database(settings.database.url))) as store:
        for name, base_url, image in providers:
            told = a_request(a_description("X", provider=name), name=name)
            told["metadata"] = {"base_url": base_url, "image": image}
            Registry(SqlProviders(store)).register(provider_from_request(told))


def with_docker(config: Path, **docker: Any) -> Any:
    body = yaml.safe_load(config.read_text()) | {"engine": {"kind": "docker", "docker": docker}}
    body["listen"]["container"]["advertise"] = "http://10.0.0.5:7381"
    return load(None, body)


def test_it_works_beside_a_running_node_and_knows_its_images(config):
    settings = yaml.safe_load(config.read_text())
    over = {
        key: settings[key] for key in ("listen", "database", "storage", "state_dir", "route_table")
    }
    over["route_table"] = {"file": str(config.parent / "routes.yml")}
    with running(config.parent, **over) as node:
        ask(node, "operator", "POST", "/v2/provider/register", json=A_PROVIDER)
        code, steps = doctor(config)
        assert code == 0
        assert steps["ports"]["found"] == "the node is running"
        assert steps["migrations"]["result"] == "ok"
        assert steps["images"]["result"] == "warning"
        assert "IMAGE_NOT_FOUND" in steps["images"]["cause"]
        image, key = A_PROVIDER["metadata"]["image"], "example:1.0.0@docker"
        command = ["env", "PYTHONPATH=/a", "/nowhere/python", "-m", "x"]
        engine = {"kind": "process", "process": {"images": {image: {"command": command}}}}
        step = doctor(config, engine=engine)[1]["images"]
        assert "COMMAND_NOT_FOUND" in step["cause"] and "/nowhere/python" in step["cause"], step
        node.registry.approve(key, {image: "sha256:another"})
        engine = {"kind": "process", "process": {"images": {image: {"command": ["/bin/true"]}}}}
        _, steps = doctor(config, engine=engine)
        assert key in steps["images"]["cause"]
        assert "provider approve" in steps["images"]["remedy"]
        node.registry.retire(key)
        assert doctor(config, engine=engine)[1]["images"]["result"] == "ok"
        code, steps = doctor(
            config, state_dir=str(config.parent / "another")
        )  # then another node has the ports
        assert code == 1
        assert failed(steps) == ["ports"]
        assert steps["ports"]["cause"].count(": cannot listen") == 3
        own = {"state_dir": settings["state_dir"]}
        listening = node.settings.state_dir / "listening.json"
        listening.write_text(listening.read_text().replace(VERSION, "0.0.9"))
        code, steps = doctor(config, **own)
        assert code == 0
        assert steps["ports"]["result"] == "warning"
        assert "as 0.0.9" in steps["ports"]["cause"]
        with socket.create_server(
            ("127.0.0.1", 0)
        ) as deaf:  # in this node's state folder, and not its own
            port = deaf.getsockname()[1]
            code, steps = doctor(config, listen={"operator": {"bind": f"127.0.0.1:{port}"}})
        assert code == 1
        assert failed(steps) == ["ports"]


def test_all_daemons_are_checked_and_each_image_where_it_runs(config):
    worlds = {name: MemoryWorld() for name in ("", FAR, GONE)}
    worlds[GONE].down = True

    def engine_of(settings: Any) -> Engine:
        def one(name: str, *images: str) -> Engine:
            scripts = {image: Script() for image in images}
            has = Capacity(
                3, -GIB if name == GONE and not worlds[GONE].down else 8 * GIB, 0 if name else 2
            )
            return MemoryEngine(
                node="n",
                installation="i",
                images=scripts,
                world=worlds[name],
                capacity=has,
            )

        return SeveralEngines(one("", "main:1"), {FAR: one(FAR, "far:1"), GONE: one(GONE)})

    settings = with_docker(config, base_url="unix:///main")
    further = {name: NamedEngine(base_url=f"ssh://{name}") for name in (FAR, GONE)}
    settings = settings.model_copy(update={"engines": further})
    registered(
        settings,
        ("here", "unix:///main", "main:1"),
        ("far", f"ssh://{FAR}", "far:1"),
        ("lost", f"ssh://{FAR}", "main:1"),
        ("stranger", "tcp://10.9.9.9:2376", "far:1"),
    )
    steps = {step.name: step for step in look(settings, engine_of)}
    assert steps["engine"].result == "warning"
    assert GONE in steps["engine"].cause
    assert FAR not in steps["engine"].cause
    expected = f"memory with gpu 2, and 2 further engines: {FAR} (memory) has cpu 3, memory 8 GiB"
    assert steps["engine"].found == expected
    said = steps["images"].cause
    assert f"main:1 at ssh://{FAR} (IMAGE_NOT_FOUND)" in said
    assert "tcp://10.9.9.9:2376 (DAEMON_NOT_ALLOWED)" in said
    assert said.count("(") == 2, "the others are where they belong"
    assert said.count("for lost:1.0.0@docker") == 1
    assert said.count("for stranger:1.0.0@docker") == 1
    worlds[GONE].down = False
    (engine,) = (step for step in look(settings, engine_of) if step.name == "engine")
    assert engine.cause == f"nothing can run at {GONE}: it has no cpu or no memory for runs"
    assert "ResourceQuota" in engine.remedy


@pytest.mark.parametrize("further", [False, True])
def test_a_cluster_whose_totals_are_unknown_is_told_how_to_say_them(config, further):
    class Unknown(KubernetesEngine):
        """A cluster that answers, with neither quota nor a right to list nodes."""

        def __init__(self) -> None:
            super().__init__("n", "i")
            self._cluster.list = lambda *_, **__: []  # type: ignore[method-assign]
            self._machines = lambda: None  # type: ignore[method-assign]

        def check(self) -> None:
            pass

    def engine_of(settings: Any) -> Engine:
        main = MemoryEngine(
            node="n",
            installation="i",
            images={},
        )
        return SeveralEngines(main, {FAR: Unknown()}) if further else Unknown()

    settings = with_docker(config, base_url="unix:///main")
    (step,) = (step for step in look(settings, engine_of) if step.name == "engine")
    assert step.result == ("warning" if further else "failed")
    assert "has no quota" in step.cause
    assert (
        step.remedy
        == "give the namespace a ResourceQuota of cpu and memory, or let the account list nodes"
    )
    assert translate(step.remedy, "zh").startswith("为命名空间设置")


def test_of_an_image_that_is_to_be_fetched_the_registry_is_asked(config):
    asked: list[tuple[str, float]] = []

    class Shops(MemoryEngine):
        def registry_digest(self, image: str, seconds: float) -> str:
            asked.append((image, seconds))
            if "closed" in image:
                raise PullDenied(f"{image} cannot be fetched: unauthorized")
            return super().registry_digest(image, seconds)

    def engine_of(settings: Any) -> Engine:
        engine = Shops(
            node="n",
            installation="i",
            images={"shop.example/here:1": Script()},
        )
        engine.fetchable = {"shop.example/there:1": lambda told: Script()}
        return engine

    settings = with_docker(config, pull="missing", registries=["shop.example", "closed.example"])

    def images(*provider: tuple[str, str, str]) -> Step:
        registered(settings, *provider)
        return {step.name: step for step in look(settings, engine_of)}["images"]

    empty = images()
    assert empty.result == "ok"
    assert "no provider is in use" in empty.found
    assert images(("here", "", "shop.example/here:1")).found == "1 image registered, all here"
    assert not asked
    later = images(("later", "", "shop.example/there:1"))
    assert later.result == "ok"
    assert "1 of them with its registry" in later.found
    assert [image for image, _ in asked] == ["shop.example/there:1"]
    denied = images(("denied", "", "closed.example/x:1"))
    assert denied.result == "warning"
    assert "log in at it" in denied.remedy
    assert "closed.example/x:1 (PULL_DENIED" in denied.cause
    assert "for denied:1.0.0@docker" in denied.cause
    assert "there:1" not in denied.cause


def test_migrate_looks_and_does(config):
    looked = call("migrate", "--check", "--config", str(config))
    assert looked.exit_code == 1
    assert "would go from no schema" in looked.stdout
    assert not (config.parent / "state.db").exists()
    done = call("migrate", "--config", str(config))
    assert done.exit_code == 0
    assert (config.parent / "state.db").exists()
    assert call("migrate", "--check", "--config", str(config)).exit_code == 0
