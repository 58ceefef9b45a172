"""``bfia-gateway doctor``: the step that fails names the fault, and a check changes nothing."""

import errno
import json
import os
import re
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import make_url

from adapter.bfia.examples import A_PROVIDER
from engines.base import RULES_CREATED_AT_START, Capacity, Engine, Isolation, PullDenied
from engines.kubernetes import KubernetesEngine
from engines.multi import SeveralEngines
from gateway.bootstrap import engine_parts
from gateway.config.loader import load
from gateway.config.schema.engine import NamedEngine
from gateway.diagnostics.doctor import look
from gateway.diagnostics.network import routes_of
from gateway.domain.resources import GIB
from gateway.errors import Invalid
from gateway.http.listening_file import claim
from gateway.identity.keys import Keyring
from gateway.language.catalogue import translate
from gateway.runtime.trials import Result, Step
from gateway.store.database import open_database
from gateway.store.providers import SqlProviders
from gateway.store.repositories import Gateways, SqlRouteVersions
from gateway.store.store import Store
from gateway.version import VERSION
from provider_registry.registration import provider_from_request
from provider_registry.registry import Registry
from route_table.live import Export, Version
from tests.certificates import Authority
from tests.cli import call, raising
from tests.e2e.nodes import free_ports
from tests.inprocess import Node, running, settings
from tests.memory_engine import MemoryEngine, MemoryWorld, Script
from tests.registry.builders import a_description, a_request

FAR = "far"  # a further engine
DOWN = "gone"  # a further engine that is down


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The configuration of a node without faults that was never started."""
    listen = {}
    for name, port in zip(("peer", "container", "operator"), free_ports(3), strict=True):
        listen[name] = {"bind": f"127.0.0.1:{port}"}
    (tmp_path / "routes.yml").write_text("{}")
    body = {
        "node": {"id": "JG0100001100000010"},
        "engine": {"kind": "process"},
        "listen": listen,
        "route_table": {"file": "routes.yml"},
        "database": {"url": f"sqlite:///{tmp_path / 'state.db'}"},
        "storage": {"url": f"file://{tmp_path / 'storage'}"},
        "state_dir": str(tmp_path / "state"),
    }
    file = tmp_path / "node.yml"
    file.write_text(yaml.safe_dump(body))
    return file


@pytest.fixture
def busy_port() -> Iterator[int]:
    """A port that another program listens on."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


@dataclass(frozen=True)
class Report:
    """The result of ``doctor --json``."""

    exit_code: int
    # the steps, by name
    steps: dict[str, dict[str, Any]]

    def failed(self) -> list[str]:
        """Return the names of the failed steps; each step with a fault needs a cause and advice."""
        for step in self.steps.values():
            if step["result"] in ("failed", "warning"):
                assert step["cause"], step
                assert step["remedy"], step
        return [name for name, step in self.steps.items() if step["result"] == "failed"]


def doctor(config: Path, **changes: Any) -> Report:
    """Change settings in a configuration, by section, and check the node."""
    settings = yaml.safe_load(config.read_text())
    for section, values in changes.items():
        if isinstance(values, dict):
            values = settings.get(section, {}) | values
        settings[section] = values
    config.write_text(yaml.safe_dump(settings))
    checked = call("doctor", "--config", str(config), "--json")
    assert checked.stdout, checked.stderr
    steps = json.loads(checked.stdout)["steps"]
    return Report(checked.exit_code, {step["name"]: step for step in steps})


def named_step(
    steps: list[Step],
    name: str,
) -> Step:
    """Return the step of that name."""
    (step,) = [step for step in steps if step.name == name]
    return step


# ---------------------------------------------------------------- a node without faults


def test_a_good_node_passes_and_is_left_as_it_is(config):
    files = sorted(config.parent.iterdir())

    report = doctor(config)

    assert report.exit_code == 0
    assert report.failed() == []
    assert report.steps["migrations"]["result"] == "ok"
    assert "not made yet" in report.steps["migrations"]["found"]
    assert report.steps["isolation"]["result"] == "warning"
    assert report.steps["certificates"]["found"] == "none are named"
    assert report.steps["database"]["found"] == "sqlite answers"
    # a database without tables has no tokens to count
    assert report.steps["tokens"]["found"] in ("mode on", "mode off")
    assert sorted(config.parent.iterdir()) == files


def test_the_report_for_people_says_what_to_do(config):
    printed = call("doctor", "--config", str(config))
    assert printed.exit_code == 0
    assert "what to do" in printed.stdout


def test_a_rule_without_effect_is_a_warning(config):
    rules = [
        {"decide": "reject", "source": "JG9"},
        {
            "decide": "approve",
            "source": "JG9",
            "role": "host",
        },
    ]
    report = doctor(
        config,
        approval={
            "mode": "rules",
            "rules": rules,
        },
    )
    assert report.exit_code == 0
    assert report.failed() == []
    step = report.steps["approval"]
    assert step["result"] == "warning"
    assert step["found"] == "mode rules, 2 rules"
    assert step["cause"].startswith("approval.rules[1]: approval.rules[0] comes first")


def test_migrate_checks_and_then_migrates(config):
    database = config.parent / "state.db"

    checked = call("migrate", "--check", "--config", str(config))
    assert checked.exit_code == 1
    assert "would go from no schema" in checked.stdout
    assert not database.exists()

    assert call("migrate", "--config", str(config)).exit_code == 0
    assert database.exists()
    assert call("migrate", "--check", "--config", str(config)).exit_code == 0


@pytest.mark.parametrize(
    ("revision", "exit_code", "text"),
    [
        ("0099_next", 0, "nothing to do: the schema is 0099_next"),
        ("0100_other", 1, "this version cannot use the schema 0100_other"),
    ],
)
def test_migrate_checks_a_schema_of_a_newer_version(config, revision, exit_code, text):
    assert call("migrate", "--config", str(config)).exit_code == 0
    with closing(sqlite3.connect(config.parent / "state.db")) as database:
        database.execute("update alembic_version set version_num = ?", [revision])
        database.commit()

    checked = call("migrate", "--check", "--config", str(config))

    assert checked.exit_code == exit_code
    assert text in checked.stdout


# ---------------------------------------------------------------- a fault in each step


def test_a_fault_fails_its_own_step_only(config, busy_port, caplog):
    """The fixture's files serve all faults; each starts from the good configuration."""
    good = config.read_text()
    peer = yaml.safe_load(good)["listen"]["peer"]
    write_route_files(config.parent)
    tls_folder = config.parent / "pki"
    unmatched = {
        "certificate": str(tls_folder / "own.pem"),
        "key": str(tls_folder / "old.key"),
    }
    nobody = free_ports(1)[0]
    docker = {"base_url": f"tcp://127.0.0.1:{nobody}"}
    faults: list[tuple[str, dict[str, Any]]] = [
        ("database", {"database": {"url": f"mysql+pymysql://me:swordfish@127.0.0.1:{nobody}/db"}}),
        ("storage", {"storage": {"url": f"file://{config}/storage"}}),
        ("state folder", {"state_dir": f"{config}/state"}),
        ("disk", {"limits": {"storage_reserve_bytes": 1 << 60}}),
        ("engine", {"engine": {"kind": "docker", "docker": docker}}),
        ("ports", {"listen": {"operator": {"bind": f"127.0.0.1:{busy_port}"}}}),
        ("ports", {"listen": {"operator": peer}}),
        ("routes", {"route_table": {"file": "broken.yml"}}),
        ("routes", {"route_table": {"file": "nowhere.yml"}}),
        ("routes", {"route_table": {"file": "circle.yml"}}),
        (
            "certificates",
            {"listen": {"peer": peer | {"tls": unmatched}}},
        ),
        ("certificates", {"route_table": {"file": "expired.yml"}}),
    ]
    for step, changes in faults:
        report = doctor(config, **changes)
        assert report.exit_code == 1, report
        assert report.failed() == [step], report
        if step == "certificates":
            assert "the listener's at the next start" in report.steps[step]["remedy"]
        assert "swordfish" not in json.dumps(report.steps)
        # the step says it; a log line would say it twice
        assert "not accepted" not in caplog.text
        config.write_text(good)


def write_route_files(folder: Path) -> None:
    """Write route tables with faults, and certificates below ``pki``."""
    authority = Authority(folder / "pki")
    authority.sign("own")
    old = authority.sign(
        "old",
        days=-1,
    )
    entry = {
        "url": "https://h",
        "ca": authority.file,
        "certificate": old.certificate,
        "key": old.key,
    }
    (folder / "broken.yml").write_text("JG1: {host: h, prot: 1}\n")
    (folder / "circle.yml").write_text("JG1: {via: JG2}\nJG2: {via: JG1}\n")
    (folder / "expired.yml").write_text(yaml.safe_dump({"JG1": entry}))


def test_a_full_disk_is_named_with_its_free_and_needed_space(config):
    step = doctor(config, limits={"storage_reserve_bytes": 1 << 60}).steps["disk"]
    free, rest = step["cause"].split(" free at ")
    assert free.endswith("iB")
    assert rest.startswith(f"{config.parent / 'storage'}, 1073741824.0 GiB wanted")
    chinese = translate(step["cause"], "zh")
    assert chinese.endswith("不会启动任何任务")
    assert "剩余" in chinese


@pytest.mark.mariadb
@pytest.mark.parametrize(
    ("changes", "number", "remedy", "chinese"),
    [
        (
            {"password": "wrong", "database": "x"},
            1045,
            "correct user or password",
            "更正 database.url 中的用户名",
        ),
        ({"database": "bfia_no_such"}, 1049, "create that database", "创建该数据库"),
        ({"database": "mysql"}, 1044, "grant the user", "授予 database.url 中的用户"),
    ],
    ids=["password", "no-database", "no-right"],
)
def test_the_error_of_the_database_decides_the_advice(config, changes, number, remedy, chinese):
    url = make_url(os.environ["BFIA_TEST_DB_URL"]).set(**changes)
    report = doctor(
        config,
        database={"url": url.render_as_string(hide_password=False)},
    )
    step = report.steps["database"]
    assert step["cause"].partition(" (got")[0].endswith(f"(error {number})")
    assert step["remedy"].startswith(remedy)
    assert translate(step["remedy"], "zh").startswith(chinese)


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("changes", "cause", "remedy"),
    [
        ({"password": "wrong", "database": "x"}, "password", "correct user or password"),
        ({"database": "bfia_no_such"}, "does not exist", "create that database"),
        ({"port": 1, "database": "x"}, "Connection refused", "start the database"),
    ],
    ids=["password", "no-database", "no-server"],
)
def test_the_error_of_postgresql_decides_the_advice(config, changes, cause, remedy):
    url = make_url(os.environ["BFIA_TEST_PG_URL"]).set(**changes)
    report = doctor(
        config,
        database={"url": url.render_as_string(hide_password=False)},
    )
    step = report.steps["database"]
    assert cause in step["cause"]
    assert step["remedy"].startswith(remedy)


def test_missing_packet_filter_rules_are_fine_before_the_first_start(config):
    class WithoutRules(MemoryEngine):
        """An engine that makes its packet filter rules when it starts."""

        def isolation(self) -> Isolation:
            gap = f"open: iptables has no rules for them; {RULES_CREATED_AT_START}"
            return replace(
                super().isolation(),
                gaps=(gap,),
            )

    def engine_of(settings: Any) -> Engine:
        return WithoutRules(
            node="n",
            installation="i",
            images={},
        )

    def remedy() -> str:
        return named_step(look(load(config), engine_of), "isolation").remedy

    assert remedy() == "nothing before the first start; afterwards close the gaps, or accept them"
    assert translate(remedy(), "zh").startswith("首次启动前无需处理")

    state = config.parent / "state"
    state.mkdir()
    with claim(state, []):
        assert remedy() == "close the gaps, or accept them"


# ---------------------------------------------------------------- access, peers and keys


@pytest.mark.parametrize(
    ("level", "result"),
    [
        ("open", "warning"),
        ("known", "ok"),
    ],
)
def test_a_node_that_accepts_jobs_from_every_node_is_warned(config, level, result):
    assert doctor(config, trust={"level": level}).steps["peers"]["result"] == result


def test_tokens_without_effect_are_a_warning(config):
    def token(*words: str) -> Any:
        return call("token", *words, "--config", str(config))

    assert token("create", "ann", "--role", "admin").exit_code == 0
    created = token("create", "li", "--role", "admin", "--days", "0.1")
    assert re.search(r"until \d{4}-\d\d-\d\d \d\d:\d\d UTC; it is shown", created.stderr)
    assert token("revoke", "li").exit_code == 0

    step = doctor(config, auth={"mode": "off"}).steps["tokens"]
    assert step["result"] == "warning"
    assert "valid here: 1" in step["cause"]

    step = doctor(config, auth={"mode": "on"}).steps["tokens"]
    assert step["result"] == "ok"
    assert "valid here: 1" not in step["cause"]
    assert step["found"] == "mode on, 1 valid token"

    token("revoke", "ann")
    assert doctor(config, auth={"mode": "off"}).steps["tokens"]["result"] == "ok"


def test_each_route_without_signatures_is_named(config):
    key = Keyring(config.parent / "state").make("ed25519")
    entry = {"host": "127.0.0.1", "port": 9}
    routes = {
        "A": {**entry, "signing": "off"},
        "B": {**entry, "keys": key.public},
        "C": entry,
    }
    file = config.parent / "routes.yml"

    file.write_text(yaml.safe_dump(routes))
    step = doctor(config).steps["signing"]
    assert step["result"] == "warning"
    assert step["cause"].endswith(": A")
    assert "route edit" in step["remedy"]
    assert key.id in step["found"]
    assert "1 of" in step["found"]

    del routes["A"]
    file.write_text(yaml.safe_dump(routes))
    step = doctor(config).steps["signing"]
    assert step["result"] == "ok"
    assert not step["cause"].endswith(": A")
    assert key.id in step["found"]
    assert "1 of" in step["found"]


# ---------------------------------------------------------------- routes


def test_a_route_without_a_listener_is_a_warning(config, busy_port):
    nobody = free_ports(1)[0]
    write_routes(
        config,
        f"JG2: {{host: 127.0.0.1, port: {busy_port}}}",
        f"JG3: {{url: 'http://127.0.0.1:{nobody}'}}",
        "JG4: {host: no-such-name.invalid, port: 1}",
        "JG5: {host: no-such-name.invalid, port: 1, enabled: false}",
    )
    step = routes_of(load(config))
    assert step.result is Result.WARNING
    assert "route test" in step.remedy
    assert f"JG3: nothing listens at 127.0.0.1:{nobody}" in step.cause
    assert "JG4: " in step.cause
    assert "JG2" not in step.cause
    assert "JG5" not in step.cause

    write_routes(config, f"JG2: {{host: 127.0.0.1, port: {busy_port}}}")
    assert routes_of(load(config)).result is Result.OK

    transport = f"http://127.0.0.1:{nobody}"
    write_routes(config, f"JG2: {{host: 127.0.0.1, port: {busy_port}, transport: '{transport}'}}")
    assert f"JG2: nothing listens at 127.0.0.1:{nobody}" in routes_of(load(config)).cause


def write_routes(config: Path, *lines: str) -> None:
    """Write the route table of a configuration."""
    (config.parent / "routes.yml").write_text("\n".join(lines) + "\n")


def test_an_unreachable_host_is_named_with_the_machines_error(config, monkeypatch):
    write_routes(config, "JG2: {url: 'http://10.0.0.9:7380'}")
    no_route = OSError(errno.EHOSTUNREACH, "No route to host")
    monkeypatch.setattr(socket, "create_connection", raising(no_route))
    assert "10.0.0.9:7380 cannot be reached (" in routes_of(load(config)).cause


def test_a_second_gateway_with_a_different_route_file_does_not_start(tmp_path, monkeypatch):
    """Its routes would become the node's, so it follows nothing until the files agree."""
    node_settings = settings(tmp_path)
    node_settings.route_table.file.write_text("JG0100002200000020: {host: h, port: 1}\n")
    with closing(Store(open_database(node_settings.database.url))) as store:
        Gateways(store).beat("other", "http://10.0.0.5:7380")
        versions = SqlRouteVersions(store, "other")
        versions.add(Version(1, datetime.now(UTC), "file", "", "file", "{}"))
        versions.set_exported(Export(1, "0"))
    monkeypatch.setattr("gateway.bootstrap.node.FOLLOW_TIMEOUT", 0.0)

    node = Node(node_settings)
    try:
        (problem,) = node.routes.problems
        with pytest.raises(Invalid, match="other routes than the gateway"):
            node.start()
    finally:
        node.stop()
    assert problem.path == "route_table.file"

    def engine_of(settings: Any) -> Engine:
        return engine_parts.engine_of(settings, "none")

    step = named_step(look(node_settings, engine_of), "routes")
    assert step.result == Result.FAILED
    assert step.remedy == "copy that file here, or set route_table.file: null"


# ---------------------------------------------------------------- a running node


@pytest.fixture
def running_node(config: Path) -> Iterator[Node]:
    """The node of the configuration, running with a provider."""
    body = yaml.safe_load(config.read_text())
    sections = ("listen", "database", "storage", "state_dir")
    changes = {section: body[section] for section in sections}
    changes["route_table"] = {"file": str(config.parent / "routes.yml")}
    with running(config.parent, **changes) as node:
        node.post("/v2/provider/register", A_PROVIDER)
        yield node


def process_engine(*command: str) -> dict[str, Any]:
    """Return the settings of an engine with a command for the provider's image."""
    images = {A_PROVIDER["metadata"]["image"]: {"command": list(command)}}
    return {
        "kind": "process",
        "process": {"images": images},
    }


def test_a_running_node_is_recognised_by_its_ports(config, running_node):
    report = doctor(config)
    assert report.exit_code == 0
    assert report.steps["ports"]["found"] == "the node is running"
    assert report.steps["migrations"]["result"] == "ok"
    assert report.steps["images"]["result"] == "warning"
    assert "IMAGE_NOT_FOUND" in report.steps["images"]["cause"]


def test_the_images_of_registered_providers_are_checked(config, running_node):
    command = process_engine("env", "PYTHONPATH=/a", "/nowhere/python", "-m", "x")
    step = doctor(config, engine=command).steps["images"]
    assert "COMMAND_NOT_FOUND" in step["cause"]
    assert "/nowhere/python" in step["cause"]

    provider = "example:1.0.0@docker"
    running_node.registry.approve(
        provider,
        {A_PROVIDER["metadata"]["image"]: "sha256:another"},
    )
    step = doctor(config, engine=process_engine("/bin/true")).steps["images"]
    assert provider in step["cause"]
    assert "provider approve" in step["remedy"]

    running_node.registry.retire(provider)
    step = doctor(config, engine=process_engine("/bin/true")).steps["images"]
    assert step["result"] == "ok"


def test_ports_of_a_node_with_another_state_folder_are_busy(config, running_node):
    report = doctor(
        config,
        state_dir=str(config.parent / "another"),
    )
    assert report.exit_code == 1
    assert report.failed() == ["ports"]
    assert report.steps["ports"]["cause"].count(": cannot listen") == 3


def test_a_running_node_of_another_version_is_a_warning(config, running_node):
    listening = running_node.settings.state_dir / "listening.json"
    listening.write_text(listening.read_text().replace(VERSION, "0.0.9"))
    report = doctor(config)
    assert report.exit_code == 0
    assert report.steps["ports"]["result"] == "warning"
    assert "as 0.0.9" in report.steps["ports"]["cause"]


def test_a_port_of_another_program_is_busy_although_the_node_runs(config, running_node, busy_port):
    report = doctor(
        config,
        listen={"operator": {"bind": f"127.0.0.1:{busy_port}"}},
    )
    assert report.exit_code == 1
    assert report.failed() == ["ports"]


# ---------------------------------------------------------------- engines and images


def register_provider(
    settings: Any,
    name: str,
    base_url: str,
    image: str,
    **metadata: Any,
) -> None:
    """Register a provider with the image of one daemon; ``metadata`` has further values."""
    request = a_request(
        a_description("X", provider=name),
        name=name,
    )
    request["metadata"] = {
        "base_url": base_url,
        "image": image,
        **metadata,
    }
    with closing(Store(open_database(settings.database.url))) as store:
        Registry(SqlProviders(store)).register(provider_from_request(request))


def settings_with_docker(config: Path, **docker: Any) -> Any:
    """Return the settings of a configuration with Docker as the engine."""
    body = yaml.safe_load(config.read_text())
    body["engine"] = {
        "kind": "docker",
        "docker": docker,
    }
    body["listen"]["container"]["advertise"] = "http://10.0.0.5:7381"
    return load(None, body)


@pytest.fixture
def daemons() -> dict[str, MemoryWorld]:
    """The state of three container daemons, by engine name; "" is the main one."""
    worlds = {name: MemoryWorld() for name in ("", FAR, DOWN)}
    worlds[DOWN].down = True
    return worlds


@pytest.fixture
def several_engines(daemons: dict[str, MemoryWorld]) -> Callable[[Any], Engine]:
    """Builds the engines of the daemons; the one that is down has no memory once it is up."""

    def engine(
        name: str,
        capacity: Capacity,
        *images: str,
    ) -> MemoryEngine:
        return MemoryEngine(
            node="n",
            installation="i",
            images={image: Script() for image in images},
            world=daemons[name],
            capacity=capacity,
        )

    def engine_of(settings: Any) -> Engine:
        memory_of_down = 8 * GIB if daemons[DOWN].down else -GIB
        return SeveralEngines(
            engine("", Capacity(3, 8 * GIB, 2), "main:1"),
            {
                FAR: engine(FAR, Capacity(3, 8 * GIB, 0), "far:1"),
                DOWN: engine(DOWN, Capacity(3, memory_of_down, 0)),
            },
        )

    return engine_of


@pytest.fixture
def settings_with_engines(config: Path) -> Any:
    """Settings with the engines FAR and DOWN next to the main one."""
    further = {name: NamedEngine(base_url=f"ssh://{name}") for name in (FAR, DOWN)}
    main = settings_with_docker(config, base_url="unix:///main")
    return main.model_copy(update={"engines": further})


def test_every_engine_is_checked(settings_with_engines, several_engines, daemons):
    step = named_step(look(settings_with_engines, several_engines), "engine")
    assert step.result == "warning"
    assert DOWN in step.cause
    assert FAR not in step.cause
    assert step.found == (
        f"memory with gpu 2, and 2 further engines: {FAR} (memory) has cpu 3, memory 8 GiB"
    )

    daemons[DOWN].down = False
    step = named_step(look(settings_with_engines, several_engines), "engine")
    assert step.cause == f"nothing can run at {DOWN}: it has no cpu or no memory for runs"
    assert "ResourceQuota" in step.remedy


def test_each_image_is_checked_at_its_own_engine(settings_with_engines, several_engines):
    providers = [
        ("here", "unix:///main", "main:1"),
        ("far", f"ssh://{FAR}", "far:1"),
        ("lost", f"ssh://{FAR}", "main:1"),
        ("stranger", "tcp://10.9.9.9:2376", "far:1"),
    ]
    for name, base_url, image in providers:
        register_provider(settings_with_engines, name, base_url, image)

    cause = named_step(look(settings_with_engines, several_engines), "images").cause

    assert f"main:1 at ssh://{FAR} (IMAGE_NOT_FOUND)" in cause
    assert "tcp://10.9.9.9:2376 (DAEMON_NOT_ALLOWED)" in cause
    assert cause.count("(") == 2, "the images of here and far are fine"
    assert cause.count("for lost:1.0.0@docker") == 1
    assert cause.count("for stranger:1.0.0@docker") == 1


def test_an_image_for_other_engines_is_reported(settings_with_engines, several_engines):
    register_provider(
        settings_with_engines,
        "cluster",
        "unix:///main",
        "main:1",
        engine_kinds=["kubernetes"],
    )

    step = named_step(look(settings_with_engines, several_engines), "images")

    assert "(ENGINE_UNSUITABLE), for cluster:1.0.0@docker" in step.cause
    assert "metadata.engine" in step.remedy


class ClusterWithoutQuota(KubernetesEngine):
    """A cluster that responds, without a quota and without the right to list nodes."""

    def __init__(self) -> None:
        super().__init__("n", "i")
        self._cluster.list = lambda *_, **__: []  # type: ignore[method-assign]
        self._machines = lambda: None  # type: ignore[method-assign]

    def check(self) -> None:
        """Accept the cluster."""


@pytest.mark.parametrize(
    ("is_further_engine", "result"), [(False, "failed"), (True, "warning")], ids=["main", "further"]
)
def test_a_cluster_with_unknown_totals_needs_a_quota(config, is_further_engine, result):
    def engine_of(settings: Any) -> Engine:
        if not is_further_engine:
            return ClusterWithoutQuota()
        main = MemoryEngine(
            node="n",
            installation="i",
            images={},
        )
        return SeveralEngines(main, {FAR: ClusterWithoutQuota()})

    settings = settings_with_docker(config, base_url="unix:///main")
    step = named_step(look(settings, engine_of), "engine")
    assert step.result == result
    assert "has no quota" in step.cause
    assert step.remedy == (
        "give the namespace a ResourceQuota of cpu and memory, or let the account list nodes"
    )
    assert translate(step.remedy, "zh").startswith("为命名空间设置")


def test_an_image_that_will_be_pulled_is_looked_up_in_its_registry(config):
    lookups: list[str] = []

    class EngineWithRegistry(MemoryEngine):
        """An engine with a registry that refuses the images of closed.example."""

        def registry_digest(self, image: str, seconds: float) -> str:
            lookups.append(image)
            if "closed" in image:
                raise PullDenied(f"{image} cannot be fetched: unauthorized")
            return super().registry_digest(image, seconds)

    def engine_of(settings: Any) -> Engine:
        images = {"shop.example/here:1": Script()}
        engine = EngineWithRegistry(
            node="n",
            installation="i",
            images=images,
        )
        engine.fetchable = {"shop.example/there:1": lambda launch: Script()}
        return engine

    registries = ["shop.example", "closed.example"]
    settings = settings_with_docker(
        config,
        pull="missing",
        registries=registries,
    )

    def images_step() -> Step:
        return named_step(look(settings, engine_of), "images")

    open_database(settings.database.url).dispose()  # without tables the step would be skipped
    step = images_step()
    assert step.result == "ok"
    assert "no provider is in use" in step.found

    register_provider(settings, "here", "", "shop.example/here:1")
    assert images_step().found == "1 image registered, all here"
    assert not lookups

    register_provider(settings, "later", "", "shop.example/there:1")
    step = images_step()
    assert step.result == "ok"
    assert "1 of them with its registry" in step.found
    assert lookups == ["shop.example/there:1"]

    register_provider(settings, "denied", "", "closed.example/x:1")
    step = images_step()
    assert step.result == "warning"
    assert "log in at it" in step.remedy
    assert "closed.example/x:1 (PULL_DENIED" in step.cause
    assert "for denied:1.0.0@docker" in step.cause
    assert "there:1" not in step.cause
