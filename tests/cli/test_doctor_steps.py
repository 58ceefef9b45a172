"""Single steps of ``bfia-gateway doctor``, each with the parts of an installation that it reads."""

import errno
import shutil
import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec

from engines.base import EngineError
from gateway.config.loader import load
from gateway.diagnostics import engines, machine, network
from gateway.diagnostics.machine import clock_of, storages_of
from gateway.diagnostics.network import certificates_of
from gateway.identity.keys import Keyring
from gateway.language.catalogue import translate
from gateway.runtime.trials import Result, Step
from gateway.store.database import SchemaRevisions
from tests.certificates import Authority
from tests.cli import raising
from tests.inprocess import ME, PEER, Node, running, settings
from tests.services.signing import public

MINIMAL = {
    "node": {"id": "JG1"},
    "engine": {"kind": "process"},
}
ANY_PORT = {"bind": "127.0.0.1:0"}


def check_step(step: Callable[..., Step], **installation: Any) -> Step:
    """Take one step with the parts of an installation that matter to it."""
    taken = step(SimpleNamespace(**installation))
    assert taken.result is Result.OK or taken.remedy
    return taken


# ---------------------------------------------------------------- machine, database and engine


def test_an_older_schema_is_a_warning():
    revisions = SchemaRevisions("0016_applications", "0020_gpus")
    step = check_step(
        machine.migrations,
        database_up=True,
        revisions=revisions,
    )
    assert step.result is Result.WARNING
    assert step.cause == "the schema is 0016_applications, this version's is 0020_gpus"


def test_a_schema_of_a_newer_version_is_a_warning():
    revisions = SchemaRevisions("0099_next", "0025_partner_volumes")
    step = check_step(
        machine.migrations,
        database_up=True,
        revisions=revisions,
    )
    assert step.result is Result.WARNING
    assert step.remedy == "upgrade this gateway, too; until then it can use the database"
    assert "表结构 0099_next 属于更新的版本" in translate(step.cause, "zh")


def test_an_engine_that_fails_to_report_isolation_is_a_failure():
    engine = SimpleNamespace(isolation=raising(EngineError("it answers nonsense")))
    assert check_step(engines.isolation, engine_up=True, engine=engine).result is Result.FAILED


def test_a_folder_on_a_full_disk_is_called_full(tmp_path, monkeypatch):
    no_space = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(machine, "try_to_write", raising(no_space))
    assert machine.writable(tmp_path).cause == f"{tmp_path} is full: No space left on device"


def test_a_port_that_may_not_be_used_is_a_failure(tmp_path, monkeypatch):
    denied = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(network, "bound", raising(denied))
    step = check_step(
        network.ports,
        settings=settings(tmp_path / "node"),
    )
    assert step.result is Result.FAILED
    assert step.cause.startswith("peer: ")


def test_a_clock_that_is_off_is_named(tmp_path):
    assert clock_of(tmp_path / "storage", None).result is Result.OK
    assert "-0.0 " not in clock_of(tmp_path, None, lambda: time.time() + 0.02).found

    late = clock_of(tmp_path, None, lambda: time.time() + 3600)
    assert late.result is Result.FAILED
    assert "3600 s off" in late.cause
    assert late.remedy


def test_the_clock_of_the_database_is_compared_too(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "database_time", lambda store: 100.0)
    step = clock_of(tmp_path / "none", cast(Any, object()), lambda: 0.0)
    assert "the clock of the database is 100 s off this machine's" in step.cause


def test_a_storage_without_its_password_file_fails(tmp_path):
    lake = {
        "url": "s3://127.0.0.1:1/joint",
        "username": "key",
        "password_file": "none.txt",
    }
    changes = {
        "state_dir": str(tmp_path / "state"),
        "storages": {"lake": lake},
    }
    assert storages_of(load(None, MINIMAL | changes)).result is Result.FAILED


# ---------------------------------------------------------------- keys and certificates


def test_a_key_of_the_node_that_cannot_be_read_fails(tmp_path):
    node_settings = load(
        None,
        MINIMAL | {"state_dir": str(tmp_path / "state")},
    )
    Keyring(node_settings.state_dir).make("ed25519")
    for file in node_settings.state_dir.rglob("*.pem"):
        file.write_text("no key")
    assert network.signing_of(node_settings).result is Result.FAILED


def test_the_keys_of_image_signers_are_read_as_at_the_start(tmp_path):
    def check_keys(*keys: Path) -> Step:
        docker = {"signatures": [{"keys": [str(key) for key in keys]}]}
        return certificates_of(
            load(
                None,
                MINIMAL | {"engine": {"kind": "docker", "docker": docker}},
            )
        )

    (tmp_path / "none.pem").write_text("no key")
    wrong = check_keys(tmp_path / "none.pem", tmp_path / "nosuch.pem")
    assert wrong.result is Result.FAILED
    assert wrong.remedy
    for number in (0, 1):
        assert f"engine.docker.signatures[0].keys[{number}]" in wrong.cause

    key = public(
        ec.generate_private_key(ec.SECP256R1()),
        tmp_path,
        "good.pem",
    )
    good = check_keys(key)
    assert good.result is Result.OK
    assert good.found == "1 key of signers"


@pytest.mark.parametrize(
    ("with_client_ca", "result", "cause"),
    [
        (False, Result.WARNING, "in the name of: JG2"),
        (True, Result.OK, "is bound to its node id"),
    ],
    ids=["without", "with"],
)
def test_a_peer_listener_should_require_certificates(tmp_path, with_client_ca, result, cause):
    listen = listen_with_certificate(
        tmp_path,
        days=90,
        with_client_ca=with_client_ca,
    )
    file = tmp_path / "routes.yml"
    file.write_text("JG2: {host: h, port: 1, signing: off}")
    values = {"listen": listen, "route_table": {"file": str(file)}}

    step = check_step(network.peers, settings=load(None, MINIMAL | values))

    assert step.result is result
    assert cause in (step.cause or step.found)


def test_a_node_without_routes_is_not_warned_of_forged_messages(tmp_path):
    listen = listen_with_certificate(tmp_path, days=90)
    step = check_step(network.peers, settings=load(None, MINIMAL | {"listen": listen}))
    assert step.result is Result.OK
    assert "no route takes unsealed messages" in step.found


def test_a_certificate_that_expires_soon_is_a_warning(tmp_path):
    listen = listen_with_certificate(tmp_path, days=3)
    step = certificates_of(load(None, MINIMAL | {"listen": listen}))
    assert step.result is Result.WARNING
    assert "these expire soon: " in step.cause
    assert "in 2 days" in step.cause


def listen_with_certificate(
    folder: Path, days: int, with_client_ca: bool = False
) -> dict[str, Any]:
    """Return listeners with a certificate for partners that is valid for ``days`` days."""
    authority = Authority(
        folder / "ca",
        days=90,
    )
    files = authority.sign(
        "node",
        days=days,
    )
    tls = {
        "certificate": str(files.certificate),
        "key": str(files.key),
    }
    if with_client_ca:
        tls["client_ca"] = str(authority.file)
    return {
        "peer": {
            "bind": "0.0.0.0:0",
            "tls": tls,
        },
        "container": ANY_PORT,
    }


def test_a_renewed_certificate_of_the_listener_needs_a_restart(tmp_path):
    authority = Authority(tmp_path / "tls")
    old = authority.sign(
        "old",
        ME,
        days=20,
    )
    new = authority.sign(
        "new",
        ME,
        days=25,
    )
    tls = {
        "certificate": old.certificate,
        "key": old.key,
    }
    listen = {"peer": {**ANY_PORT, "tls": tls}, "container": ANY_PORT, "operator": ANY_PORT}
    with running(tmp_path, listen=listen) as node:
        check_served_certificate(node, "en", "")
        assert certificates_of(node.settings).result is Result.OK

        for new_file, old_file in zip(astuple(new), astuple(old), strict=True):
            shutil.copy(new_file, old_file)

        restart = "the file is newer than what is served: restart the node"
        check_served_certificate(node, "en", restart)
        check_served_certificate(node, "zh", "文件比正在使用的新：请重启节点")
        step = certificates_of(node.settings)
        assert step.result is Result.WARNING
        assert step.cause == f"newer than what the listener serves: {old.certificate}"
        assert step.remedy.startswith("restart the node")
        assert translate(step.remedy, "zh").startswith("重启节点")
    # the next start will serve the new file
    assert certificates_of(node.settings).result is Result.OK


def check_served_certificate(
    node: Node,
    language: str,
    cause: str,
) -> None:
    """Check the node's own view of the certificate that it serves, which is valid for 19 days."""
    response = node.get(
        "/api/v1/certificates",
        headers={"accept-language": language},
    )
    (certificate,) = response.json()["certificates"]
    assert certificate["days"] == 19
    assert certificate["cause"] == cause


def certificate_step_for_partner(
    folder: Path,
    name: str,
) -> tuple[Step, str]:
    """Return the step for a route whose certificate has a name, and the certificate's file."""
    authority = Authority(folder / "tls")
    files = authority.sign("own", name)
    entry = {
        "url": "https://h",
        "ca": authority.file,
        "certificate": files.certificate,
        "key": files.key,
    }
    node_settings = settings(folder)
    node_settings.route_table.file.write_text(yaml.safe_dump({PEER: entry}))
    return certificates_of(node_settings), files.certificate


def test_a_certificate_for_partners_needs_the_nodes_id(tmp_path):
    step, certificate = certificate_step_for_partner(tmp_path, "gw.bank.example")
    assert step.result is Result.WARNING
    assert step.cause == f"the certificate for partners lacks this node's id: {certificate}"
    assert "peer_certificate" in step.remedy
    assert "请合作方设置" in translate(step.remedy, "zh")


def test_the_nodes_id_in_a_certificate_may_be_in_lower_case(tmp_path):
    step, _ = certificate_step_for_partner(tmp_path, ME.lower())
    assert step.result is Result.OK
