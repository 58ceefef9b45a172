"""The configuration: wrong values are refused, and no refusal shows a secret."""

import os
import sqlite3
import sys
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from adapter.bfia.peer import LONGEST_CALL
from gateway.bootstrap.engine_parts import (
    EnginesWithoutFolders,
    engines_by_place,
    engines_without_folders,
)
from gateway.bootstrap.node import Gateway
from gateway.bootstrap.parts import Pace, url_for_gateways
from gateway.config.loader import REMOVED, load
from gateway.config.report import effective
from gateway.config.schema import Settings
from gateway.config.schema.engine import Allowance, ExtraMount
from gateway.config.schema.listeners import PeerTls
from gateway.config.tls import problems
from gateway.config.values import without_password
from gateway.domain.problems import Problem
from gateway.errors import DatabaseAway, Invalid
from gateway.store.database import open_database
from tests.cli import call
from tests.e2e.nodes import ROOT
from tests.inprocess import ME, Node, ask, running, settings

SECRET = "hunter2-hunter2"


def loaded(**changes: Any) -> Settings:
    """Return the settings of a node that runs processes, with changed sections."""
    return load(
        None,
        {"node": {"id": "JG1"}, "engine": {"kind": "process"}} | changes,
    )


def refusal(**changes: Any) -> str:
    """Return the message that refuses changed sections."""
    with pytest.raises(Invalid) as caught:
        loaded(**changes)
    return str(caught.value)


TLS = {"certificate": "c.pem", "key": "k.pem"}
HDFS: Any = {"url": "hdfs://h:1/a", "datanodes": ["h:9866"]}
DOCKER = {"kind": "docker"}
BIG = {"base_url": "tcp://h:1"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {
                "engine": {
                    "kind": "docker",
                    "docker": {"storage_source": {"bind": "/a", "volume": "b"}},
                }
            },
            "exactly one of bind and volume",
        ),
        (
            {"engine": {"kind": "process", "docker": {"signatures": [{"keys": ["k.pem"]}]}}},
            "signatures",
        ),
        (
            {
                "listen": {
                    "peer": {
                        "bind": "127.0.0.1:0",
                        "tls": TLS,
                        "advertise": "http://h:1",
                    }
                }
            },
            "advertise must begin with https:// while tls is set",
        ),
        (
            {"listen": {"peer": {"bind": "127.0.0.1:0", "tls": TLS}, "container": None}},
            "listen.container must not be null while listen.peer.tls is set",
        ),
        ({"auth": {"mode": "on", "token": "short"}}, "a token must have at least 16 characters"),
        (
            {"storages": {"a": HDFS | {"username": "x"}, "b": HDFS | {"username": "y"}}},
            "must all have the same username",
        ),
        (
            {"outbound": {"proxy": "http://proxy:3128", "proxy_password": "file"}},
            "outbound: proxy_password needs a user in proxy",
        ),
        ({"outbound": {"proxy_password": "file"}}, "proxy_password needs a user in proxy"),
        (
            {"limits": {"partner_bandwidth": "20Mbit"}},
            "limits.partner_bandwidth: must be bytes per second from 512KiB to 1TB",
        ),
        ({"limits": {"partner_bandwidth": 0}}, "limits.partner_bandwidth: must be bytes"),
        ({"limits": {"partner_bandwidth": True}}, "limits.partner_bandwidth: must be bytes"),
        ({"storages": {"file": HDFS}}, "file is the name of the folder that every node has"),
        (
            {"storages": {"a": HDFS | {"url": "hdfs://h:99999999/a"}}},
            "must read s3://host:port/bucket",
        ),
        (
            {"storages": {"a": HDFS | {"password": SECRET}}},
            "hdfs takes url, username, share_key, datanodes, principal, keytab and web only",
        ),
        (
            {
                "storages": {
                    "a": {
                        "url": "s3://h:1/abc",
                        "username": "x",
                        "password": SECRET,
                        "datanodes": ["h:1"],
                    }
                }
            },
            "s3 has no datanodes",
        ),
        ({"engine": DOCKER, "engines": {"big": BIG}}, "engines need listen.container.advertise"),
        ({"engine": {"kind": "swarm"}}, "swarm needs listen.container.advertise"),
        ({"engine": {"kind": "kubernetes"}}, "kubernetes needs listen.container.advertise"),
        (
            {"engine": {"kind": "swarm"}, "listen": {"container": None}},
            "swarm needs listen.peer.advertise",
        ),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(settings, message):
    refused = refusal(**settings)
    assert message in refused
    assert SECRET not in refused


def test_an_event_is_chosen_by_its_name():
    hook = {
        "url": "http://h/x",
        "secret": SECRET,
        "events": ["stopped"],
    }
    assert loaded(events={"webhooks": [hook]}).events.webhooks[0].events == ["stopped"]


def test_revocation_lists_without_authorities_are_refused(tmp_path):
    lists = tmp_path / "revoked.pem"
    lists.touch()
    tls = PeerTls(
        certificate=tmp_path / "c.pem",
        key=tmp_path / "k.pem",
        revoked=lists,
    )
    all_problems = problems(tls, datetime.now(UTC))
    (problem,) = [candidate for candidate in all_problems if candidate.path.endswith("revoked")]
    assert problem.rule == "needs client_ca, whose authorities sign revocation lists"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@host/db",
        f"mysql+pymysql://me:{SECRET}@host",
        f"mysql+pymysql://me:{SECRET}@host:99999/db",
        f"postgresql+psycopg://me:{SECRET}@host",
        "sqlite:///:memory:",
        "sqlite:///file.db?mode=ro",
        "",
    ],
)
def test_an_address_of_no_database_is_refused_with_its_path(url):
    message = refusal(database={"url": url})
    assert message.startswith("database.url: ")
    assert "sqlite:///path" in message
    assert SECRET not in message


@pytest.mark.parametrize(
    "password",
    [
        "p@ss/w#rd%",
        "hex@adec",
        "hex/adec",
        "hex#adec",
        "hex?adec",
        "hex[adec",
        "12@hex/adec",
        "12/hex@adec",
        "hex?a@dec",
        "hex\uff20adec",
        "12?hexadec",
    ],
)
def test_a_password_that_is_not_percent_encoded_is_refused_unseen(password):
    message = refusal(database={"url": f"mysql+pymysql://gw:{password}@127.0.0.1:21393/gw"})
    assert message.startswith(
        "database.url: must have its user and password percent-encoded: write %40 for @"
    )
    assert message.endswith("(got 'mysql+pymysql://***@127.0.0.1:21393/gw')")
    encoded = f"mysql+pymysql://gw:{quote(password, safe='')}@127.0.0.1:21393/gw"
    assert loaded(database={"url": encoded}).database.url == encoded


@pytest.mark.parametrize(
    "url",
    [
        "mysql+pymysql://gw:100%@127.0.0.1/gw",
        "mysql+pymysql://gw:a:b@127.0.0.1/gw",
        "mysql+pymysql://gw@[::1]:3307/gw",
        "postgresql+psycopg://gw:100%25@[::1]:5433/gw?sslmode=verify-full",
        "mysql+pymysql://gw:x@127.0.0.1/gw?ssl_ca=/etc/a@b.pem",
    ],
)
def test_addresses_that_worked_go_on_working(url):
    assert loaded(database={"url": url}).database.url == url


@pytest.mark.parametrize(
    "url",
    ["mysql+pymysql://gw:hexadec/gw", "mysql://gw:hex\uff20adec@host/gw", "gw:hexadec@host/gw"],
)
def test_an_address_with_parts_missing_shows_no_password(url):
    message = refusal(database={"url": url})
    assert "mysql+pymysql://user:password@host:port/database" in message
    assert "hexadec" not in message
    assert "adec" not in message


def test_a_wrong_section_does_not_show_its_secret():
    for section in (
        {"database": f"mysql+pymysql://me:{SECRET}@host/db"},
        {"database": {"uri": f"x://a:{SECRET}@b"}},
        {"auth": {"mode": "onn", "token": SECRET}},
        {
            "auth": {
                "mode": "on",
                "token": SECRET[:15],
                "more": SECRET,
            }
        },
        {"database": {"url": "sqlite:///x.db", "password": SECRET}},
        {"storages": {"lake": HDFS | {"passwort": SECRET}}},
        {"storages": {"lake": HDFS | {"password_command": SECRET}}},
        {"storage": {"lake": {"password": SECRET}}},
        {"identity": {"statement_key": {"pkcs11": {"pin": SECRET}}}},
    ):
        assert SECRET not in refusal(**section)


@given(st.text(alphabet="ab:/@?#%", max_size=12))
def test_no_password_is_ever_shown(around):
    assert SECRET not in without_password(
        f"mysql+pymysql://{around}{SECRET}{around}@host/db?password={SECRET}"
    )


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("AUTHTOKEN", "BFIA_GATEWAY__AUTHTOKEN"),
        ("DATABASE", "database"),
    ],
)
def test_a_misspelt_variable_is_refused_without_its_value(monkeypatch, name, path):
    monkeypatch.setenv(f"BFIA_GATEWAY__{name}", f"mysql+pymysql://me:{SECRET}@host/db")
    message = refusal()
    assert path in message
    assert SECRET not in message


def test_the_example_token_is_refused():
    line = next(
        line
        for line in (ROOT / "compose" / ".env.example").read_text(encoding="utf-8").splitlines()
        if line.startswith("BANK_TOKEN=")
    )
    message = refusal(auth={"mode": "on", "token": line.partition("=")[2]})
    assert message.startswith("auth.token: ")
    assert "openssl rand" in message
    assert loaded(auth={"mode": "on", "token": "0123456789abcdef"}).auth.mode == "on"


def test_paths_are_relative_to_the_configuration_file(tmp_path):
    file = tmp_path / "node.yml"
    tls = {
        "ca": "keys/ca.pem",
        "cert": "/etc/cert.pem",
        "key": "key.pem",
    }
    docker = {"base_url": "tcp://h:1", "tls": tls}
    text: dict[str, Any] = {
        "node": {"id": "JG1"},
        "engine": {"kind": "docker", "docker": docker},
    }
    file.write_text(yaml.safe_dump(text))
    loaded = load(file)
    assert loaded.storage.path == tmp_path / "var" / "storage"
    assert loaded.engine.docker.tls is not None
    assert list(dict(loaded.engine.docker.tls).values()) == [
        tmp_path / "keys/ca.pem",
        Path("/etc/cert.pem"),
        tmp_path / "key.pem",
    ]
    file.write_text(yaml.safe_dump(text | {"storage": {"url": "file:///var/storage"}}))
    assert load(file).storage.path == Path("/var/storage")
    for wrong in ("file://var/storage", "s3://bucket", "var/storage"):
        assert refusal(storage={"url": wrong}).startswith("storage.url: ")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("nodes") / "first") as gateway:
        yield gateway


@pytest.mark.parametrize(
    "form", ["sqlite+pysqlite:///{}/gateway.db", "sqlite:///{}-link/gateway.db"]
)
def test_a_second_gateway_on_the_same_file_is_refused_however_it_is_named(gateway, tmp_path, form):
    home = Path(gateway.settings.database.url.partition("///")[2]).parent
    if "link" in form:
        home.with_name("first-link").symlink_to(home)
    with pytest.raises(Invalid) as caught:
        Node(settings(tmp_path, database={"url": form.format(home)}))
    assert caught.value.reason == "DATABASE_IN_USE"


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        (f"mysql+pymysql://me:{SECRET}@127.0.0.1:1/db", "refused"),
        (f"mysql+pymysql://me:{SECRET}@127.0.0.1:1/db?colour={SECRET}", "colour"),
        (f"postgresql+psycopg://me:{SECRET}@127.0.0.1:1/db", "refused"),
        (f"postgresql+psycopg://me:{SECRET}@127.0.0.1:1/db?colour={SECRET}", "colour"),
        ("sqlite:///{home}", "unable to open"),
        ("nothing://{home}", "nothing"),
        ("sqlite:///{home}/text.db", "not a database"),
        ("sqlite:///{home}/text.db/gateway.db", ""),
    ],
)
def test_a_database_that_cannot_be_used_is_refused_with_its_cause(tmp_path, url, cause):
    (tmp_path / "text.db").write_text("this is no database\n" * 100)
    with pytest.raises((Invalid, DatabaseAway)) as caught:
        open_database(url.format(home=tmp_path))
    message = str(caught.value)
    assert "database.url" in message
    assert cause in message.lower()
    assert SECRET not in message


@pytest.mark.mariadb
def test_a_wrong_password_is_told_but_not_shown():
    where = os.environ["BFIA_TEST_DB_URL"].rpartition("@")[2]
    with pytest.raises(Invalid, match="Access denied") as caught:
        open_database(f"mysql+pymysql://bfia:{SECRET}@{where}/bfia_none")
    assert SECRET not in str(caught.value)


def test_a_missing_driver_is_named_with_the_extra_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(Invalid) as caught:
        open_database(f"postgresql+psycopg://me:{SECRET}@127.0.0.1:1/db")
    (problem,) = caught.value.problems
    assert problem.path == "database.url"
    assert "pip install 'bfia-gateway[postgres]'" in problem.rule
    assert SECRET not in str(caught.value)


def test_a_database_of_a_later_version_is_refused(tmp_path):
    url = f"sqlite:///{tmp_path / 'gateway.db'}"
    open_database(url).dispose()
    with sqlite3.connect(tmp_path / "gateway.db") as connection:
        connection.execute("update alembic_version set version_num = '9999'")
    connection.close()
    with pytest.raises(Invalid, match="9999"):
        open_database(url)


GOOD_HOSTS = [
    "127.0.0.1:7382",
    "127.9.9.9",
    "localhost",
    "localhost:1",
    "LOCALHOST:7382",
    "[::1]:7382",
]
BAD_HOSTS = [
    "evil.example:7382",
    "10.0.0.1",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "[",
]


def test_requests_from_pages_of_other_sites_are_refused(gateway):
    def status(
        host: str | None = None,
        origin: str | None = None,
        listener: str = "operator",
    ) -> int:
        headers = {k: v for k, v in (("host", host), ("origin", origin)) if v is not None}
        response = ask(gateway, listener, "GET", "/docs", headers=headers)
        if response.status_code == 403:
            assert response.json()["code"] == 403
            assert response.json()["data"].keys() == {
                "reason",
                "next_step",
            }
            assert response.json()["data"]["reason"] == "FOREIGN_ORIGIN"
        return response.status_code

    assert status() == 200
    assert {host: status(host) for host in GOOD_HOSTS} == dict.fromkeys(GOOD_HOSTS, 200)
    assert {host: status(host) for host in BAD_HOSTS} == dict.fromkeys(BAD_HOSTS, 403)
    good = [f"http://{host}" for host in GOOD_HOSTS]
    bad = [
        "null",
        "",
        "127.0.0.1",
        *(f"https://{host}" for host in BAD_HOSTS),
        "https://127.0.0.1@evil.example",
    ]
    assert {origin: status(None, origin) for origin in good} == dict.fromkeys(good, 200)
    assert {origin: status(None, origin) for origin in bad} == dict.fromkeys(bad, 403)
    assert status("evil.example", listener="peer") == 200, "other listeners are for other machines"


def test_a_computing_engine_of_other_platforms_is_refused_by_name():
    for kind, name in (("eggroll", "Eggroll"), ("linkis_spark", "Linkis")):
        message = refusal(engine={"kind": kind})
        assert message.startswith("engine.kind: ")
        assert name in message


ADVERTISED = {
    "listen": {"container": {"bind": "0.0.0.0:7381", "advertise": "http://10.0.0.5:7381"}}
}
K8S: Any = {"kind": "kubernetes", "kubernetes": {}}


@pytest.mark.parametrize(
    ("docker", "message"),
    [
        ({"base_url": "ssh://-oProxyCommand=x"}, "engine.docker.base_url"),
        ({"daemons": [BIG]}, "is not known here; known are"),
        ({"pull": "missing"}, "needs at least one of registries"),
        ({"base_url": "tcp://h:1", "tls": {"ca": "ca.pem", "cert": "c.pem"}}, "belong together"),
        (
            {"allow": {"v": {"mounts": [{"source": "/var/run/docker.sock", "target": "/s"}]}}},
            "the whole machine",
        ),
        (
            {"allow": {"v": {"mounts": [{"source": "//", "target": "/s"}]}}},
            "whole machine",
        ),
        (
            {"allow": {"v": {"mounts": [{"source": "//run", "target": "/s"}]}}},
            "whole machine",
        ),
        (
            {"allow": {"v": {"mounts": [{"source": "a/../b", "target": "/s"}]}}},
            "absolute path",
        ),
        (
            {"allow": {"v": {"mounts": [{"source": "/a", "target": "/bfia/storage"}]}}},
            "gateway's own",
        ),
        (
            {"allow": {"v": {"mounts": [{"source": "/a", "target": "//bfia/x"}]}}},
            "gateway's own",
        ),
        (
            {"allow": {"v": {"mounts": [{"source": "/a", "target": "/x/../bfia"}]}}},
            "gateway's own",
        ),
        ({"allow": {"v": {"privileged": True}}}, "privileged"),
    ],
)
def test_settings_that_containers_cannot_have_are_refused(docker, message):
    assert message in refusal(engine=DOCKER | {"docker": docker})


def test_a_mount_with_a_name_like_the_gateway_s_folder_is_allowed(tmp_path):
    mount = ExtraMount(source=tmp_path, target="/bfia-data")
    assert Allowance(mounts=[mount]).mounts == [mount]


@pytest.mark.parametrize(
    ("engine", "engines", "message"),
    [
        (DOCKER, {"Big One": BIG}, "engines.Big One"),
        (DOCKER, {"big": {"base_url": "h:1"}}, "engines.big.base_url"),
        (DOCKER, {"big": {"base_url": "ssh://h", "tls": {"ca": "ca.pem"}}}, "begins with tcp://"),
        (DOCKER, {"big": BIG | {"kind": "podman"}}, "engines.big.kind"),
        (DOCKER, {"a": BIG, "b": BIG}, "engines.b.base_url: tcp://h:1 is there twice"),
        (
            DOCKER,
            {"big": BIG | {"constraints": ["node.role==worker"]}},
            "constraints and gpu belong to kind swarm",
        ),
        (DOCKER, {"big": BIG | {"gpu": "GPU"}}, "constraints and gpu belong to kind swarm"),
        (DOCKER, {"k": {"kind": "kubernetes"}}, "the section kubernetes belong together"),
        (DOCKER, {"k": K8S | {"base_url": "tcp://h:1"}}, "are not for kind kubernetes"),
        (DOCKER, {"k": {"kind": "swarm"}}, "kind swarm needs base_url"),
        ({"kind": "process"}, {"big": BIG}, "engines need engine.kind docker"),
        (
            {"kind": "swarm", "swarm": {"storage_source": {"volume": "v"}}},
            {},
            "of a Swarm share no volumes",
        ),
        ({"kind": "swarm", "swarm": {"constraints": ["gpu"]}}, {}, "engine.swarm.constraints[0]"),
        ({"kind": "kubernetes", "kubernetes": {"gpu": "gpu"}}, {}, "engine.kubernetes.gpu"),
    ],
)
def test_further_engines_that_make_no_sense_are_refused(engine, engines, message):
    assert message in refusal(
        engine=engine,
        engines=engines,
        **ADVERTISED,
    )


def test_a_provider_reaches_a_swarm_by_its_name_its_manager_or_the_device():
    further = {
        "far": {"base_url": "tcp://h:1"},
        "farm": {"kind": "swarm", "base_url": "tcp://h:2"},
    }
    docker = loaded(
        engine={"kind": "docker"},
        engines=further,
        **ADVERTISED,
    )
    assert engines_by_place(docker) == {
        "": "",
        "far": "far",
        "tcp://h:1": "far",
        "farm": "farm",
        "tcp://h:2": "farm",
        "swarm": "farm",
    }
    assert engines_without_folders(docker) == EnginesWithoutFolders(
        frozenset({"farm"}), frozenset({"farm"})
    )
    shared = {"storage_source": {"bind": "/mnt/storage"}}
    swarm = loaded(
        engine={"kind": "swarm", "swarm": shared},
        engines=further,
        **ADVERTISED,
    )
    assert engines_by_place(swarm)["swarm"] == ""
    assert engines_by_place(swarm)["tcp://h:2"] == "farm"
    assert engines_without_folders(swarm) == EnginesWithoutFolders(
        frozenset({"farm"}), frozenset({"", "farm"})
    )


def test_a_provider_reaches_a_cluster_by_its_name_or_the_device():
    docker = loaded(
        engine={"kind": "docker"},
        engines={"k": K8S, "l": K8S},
        **ADVERTISED,
    )
    assert engines_by_place(docker) == {
        "": "",
        "k": "k",
        "l": "l",
        "k8s": "k",
    }
    assert engines_without_folders(docker) == EnginesWithoutFolders(
        frozenset({"k", "l"}),
        frozenset({"k", "l"}),
    )
    cluster = loaded(
        engine={"kind": "kubernetes"},
        engines={"l": K8S},
        **ADVERTISED,
    )
    assert engines_by_place(cluster) == {
        "": "",
        "l": "l",
        "k8s": "",
    }
    assert engines_without_folders(cluster).storage == {"", "l"}


def test_every_value_says_where_it_comes_from_and_no_secret_is_shown(tmp_path, monkeypatch):
    file = tmp_path / "node.yml"
    file.write_text(
        "node:\n  id: JG1\nengine: {kind: process}\n"
        f"auth: {{token: {SECRET}-{SECRET}}}\n"
        f"events: {{webhooks: [{{url: 'http://u:{SECRET}@h/x?key={SECRET}', secret: {SECRET}}}]}}\n"
    )
    monkeypatch.setenv("BFIA_GATEWAY__DATABASE__URL", f"mysql+pymysql://me:{SECRET}@host/db")
    monkeypatch.setenv("BFIA_GATEWAY__LIMITS", '{"pids": 9}')
    entries = {e["path"]: e for e in effective(load(file, {"data": {"grants": "listed"}}))}
    assert SECRET not in repr(entries)
    origins = {path: (entries[path]["origin"], entries[path]["where"]) for path in entries}
    assert origins["node.id"] == ("file", f"{file}:2")
    assert origins["auth.token"] == ("file", f"{file}:4")
    assert entries["auth.token"]["value"] == "***"
    assert origins["data.grants"] == ("command", "")
    assert entries["data.grants"]["value"] == "listed"
    assert origins["database.url"] == ("environment", "BFIA_GATEWAY__DATABASE__URL")
    assert origins["limits.pids"] == ("environment", "BFIA_GATEWAY__LIMITS")
    assert origins["limits.cpu"] == origins["approval.mode"] == ("default", "")
    output = call("settings", "--file", "--config", str(file), "--changed")
    assert output.exit_code == 0
    assert "node.yml:2" in output.stdout
    assert "limits.cpu" not in output.stdout
    assert SECRET not in output.stdout
    older = []  # as an older gateway reports them
    for entry in entries.values():
        older.append({key: value for key, value in entry.items() if key != "changed"})
    monkeypatch.setattr("gateway.config.report.effective", lambda _: older)
    output = call("settings", "--file", "--config", str(file), "--changed")
    assert output.exit_code == 0
    assert "node.yml:2" in output.stdout
    assert "limits.cpu" not in output.stdout
    monkeypatch.undo()
    call("init", "--engine", "process", "--node", ME, "-o", str(tmp_path / "new/node.yml"))
    new = {e["path"]: e for e in effective(load(tmp_path / "new/node.yml"))}
    assert {
        path for path, e in new.items() if e["origin"] != "default"
    } == new.keys()  # `init` writes all of them
    changed = {"node.id", "engine.kind", "route_table.file", "data.grants", "secrets.mode"}
    assert {path for path, e in new.items() if e["changed"]} == {
        *changed,
        "resources.memory_gib",
        "resources.disk_gib",
    }


def test_a_file_of_an_earlier_version_is_read_with_its_changes_named(tmp_path):
    file = tmp_path / "node.yml"
    node: dict[str, Any] = {
        "node": {"id": ME},
        "engine": {"kind": "docker"},
    }
    old = deepcopy(node)
    for path, default in REMOVED.items():
        *sections, name = path.split(".")
        place = old
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = default
    file.write_text(yaml.safe_dump(old))
    assert load(file).limits == load(None, node).limits
    old["limits"]["files"] = 10
    old["retention"]["workspace_seconds"] = 1
    file.write_text(yaml.safe_dump(old))
    with pytest.raises(Invalid) as caught:
        load(file)
    rule = "is not a setting of this version any more; delete it"
    assert list(caught.value.problems) == [
        Problem("limits.files", rule, 10),
        Problem("retention.workspace_seconds", rule, 1),
    ]


@pytest.mark.parametrize(
    ("spelling", "mode"),
    [
        ("on", "on"),
        ("true", "on"),
        ("Yes", "on"),
        ("'yes'", "on"),
        ('"on"', "on"),
        ("off", "off"),
        ("false", "off"),
        ("'No'", "off"),
    ],
)
def test_on_and_off_are_read_in_each_spelling_of_yaml(tmp_path, spelling, mode):
    file = tmp_path / "node.yml"
    file.write_text(f"node: {{id: A}}\nengine: {{kind: process}}\nauth: {{mode: {spelling}}}\n")

    assert load(file).auth.mode == mode


@pytest.mark.parametrize("spelling", ["off", "false", "no", "'No'"])
def test_no_approval_is_chosen_in_each_spelling_of_yaml(tmp_path, spelling):
    file = tmp_path / "node.yml"
    file.write_text(f"node: {{id: A}}\nengine: {{kind: process}}\napproval: {{mode: {spelling}}}\n")

    assert load(file).approval.mode == "off"


def test_true_is_no_mode_of_approval():
    assert "approval.mode: must be one of off, rules, person (got 'on')" in refusal(
        approval={"mode": True}
    )


def test_a_variable_may_say_true_for_on(monkeypatch):
    monkeypatch.setenv("BFIA_GATEWAY__AUTH__MODE", "true")
    assert loaded().auth.mode == "on"


def test_a_key_that_stands_twice_is_refused_with_both_lines(tmp_path):
    """Else an addition at the top of a file that `init` wrote would silently have no effect."""
    file = tmp_path / "node.yml"
    file.write_text(
        "approval: {mode: person}\nnode: {id: A}\nengine: {kind: process}\napproval: {mode: "
        "'off'}\n"
    )
    with pytest.raises(Invalid) as caught:
        load(file)
    [problem] = caught.value.problems
    assert problem.path == "approval"
    assert ("lines 1 and 4" in problem.rule) is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"node: {id: 2026-99-99}", "must be YAML: month must be in 1..12"),
        (b"node: {id: " + b"1" * 6000 + b"}", "must be YAML: Exceeds the limit"),
        (b"a: '" + b"[" * 600 + b"'", "a: is not known here"),
        (b"a: &a [*a]", "a: is not known here"),
        (
            b"node:\n\tid: x",
            "must be YAML: line 2 column 1: found character that cannot start any token",
        ),
        (b"\xff\xfen\x00", "must be text in UTF-8 (got 'byte 0')"),
        (b"- a", "must be a YAML mapping (name: value)"),
    ],
)
def test_a_file_that_cannot_be_read_is_reported_in_one_line(tmp_path, text, message):
    file = tmp_path / "node.yml"
    file.write_bytes(text)
    with pytest.raises(Invalid) as caught:
        load(file)
    assert [str(p) for p in caught.value.problems if message in str(p)]
    assert "\n" not in str(caught.value)
    file.unlink()
    with pytest.raises(Invalid, match="cannot be read"):
        load(file)


@pytest.mark.parametrize(
    ("peer", "database", "own_address", "address"),
    [
        ({}, "mysql+pymysql://u@127.0.0.1/d", "http://0.0.0.0:7380", "http://127.0.0.1:7380"),
        ({}, "postgresql+psycopg://u@127.0.0.1/d", "http://0.0.0.0:7380", "http://127.0.0.1:7380"),
        ({}, "mysql+pymysql://u@[::1]:3307/d", "https://[::]:7380", "https://[::1]:7380"),
        ({}, "mysql+pymysql://u@127.0.0.1/d", "http://10.0.0.5:7380", "http://10.0.0.5:7380"),
        ({}, "sqlite:///gateway.db", "http://0.0.0.0:7380", "http://0.0.0.0:7380"),
        (
            {"advertise": "http://gw1:7380"},
            "mysql+pymysql://u@127.0.0.1/d",
            "http://0.0.0.0:7380",
            "http://gw1:7380",
        ),
    ],
)
def test_the_address_at_which_gateways_of_a_node_reach_each_other(
    peer, database, own_address, address
):
    """A wildcard address leads nowhere: a message forwarded to it would stay at the sender."""
    settings = loaded(listen={"peer": {"bind": "0.0.0.0:7380", **peer}}, database={"url": database})
    assert url_for_gateways(settings, own_address) == address


def test_a_call_that_is_on_its_way_is_not_repeated():
    # one second in its lane, one for a place, three for TCP and three for the TLS handshake
    assert Pace().lost_call >= 1 + 1 + 3 + 3 + LONGEST_CALL


@pytest.mark.parametrize("bandwidth", [20_000_000, "20MB", "20 MB/s", "20000000"])
def test_a_bandwidth_has_a_unit_or_is_in_bytes(bandwidth):
    limits = loaded(limits={"partner_bandwidth": bandwidth}).limits
    assert limits.partner_bandwidth == 20_000_000


def test_partners_have_no_limit_of_bandwidth_by_default():
    assert loaded().limits.partner_bandwidth is None
