"""Rules for every command: its node and token, its input files, its output and exit code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import Result

from gateway.bootstrap.parts import Pace
from gateway.cli.client import TOKEN, URL, CallFailed, Client, check_may_write, read_object
from gateway.cli.init import TLS_FILES
from gateway.config.loader import load
from gateway.config.tls import Tls
from gateway.data.reading import NotFit
from gateway.errors import Invalid
from gateway.language.catalogue import translate
from tests.certificates import Authority
from tests.cleaning.ended import left_behind
from tests.cli import NOBODY, all_commands, call, call_node, json_from_node, raising
from tests.e2e.nodes import ROOT, free_ports
from tests.inprocess import running

SECRET = "bfia_0123456789abcdef"
RARE_CLEANING = Pace(cleaning=3600.0)  # no cleaning in the background while a test runs
ANY_PORT = {"bind": "127.0.0.1:0"}


@pytest.fixture(autouse=True)
def no_address_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the node and the token of the developer's shell."""
    monkeypatch.delenv(URL, raising=False)
    monkeypatch.delenv(TOKEN, raising=False)


# ---------------------------------------------------------------- help


def test_every_command_shows_an_example():
    help_texts = {}
    for name, command in all_commands().items():
        is_group = hasattr(command, "commands")
        if not is_group:
            help_texts[name] = " ".join(command.help.split())
    some = {
        "gc",
        "serve",
        "job submit",
        "job plan",
        "data grant",
        "route test",
        "provider check",
    }
    assert some < set(help_texts)
    for name, text in help_texts.items():
        assert f"Example: bfia-gateway {name}" in text, name


def test_help_has_a_long_and_a_short_option():
    long = call("route", "test", "--help")
    assert long.exit_code == 0
    assert "Example: bfia-gateway route test" in " ".join(long.stdout.split())
    assert call("route", "test", "-h").stdout == long.stdout


def test_the_version_is_printed():
    assert call("--version").stdout != ""


# ---------------------------------------------------------------- init


def init(file: Path, *options: str) -> Result:
    """Create a configuration with the process engine."""
    return call("init", "--engine", "process", "-o", str(file), *options)


@pytest.mark.parametrize("node_id", ["JG 01/x", "", "-JG", "JG/..", "j" * 101, "节点"])
def test_an_unusable_node_id_is_refused(tmp_path, node_id):
    file = tmp_path / "node.yml"
    refused = call(
        "init",
        "--node",
        node_id,
        "-o",
        str(file),
    )
    assert refused.exit_code == 2
    assert "letters, digits" in refused.stderr
    assert not file.exists()

    with pytest.raises(Invalid, match="must be a node id"):
        load(
            None,
            {
                "node": {"id": node_id},
                "engine": {"kind": "process"},
            },
        )


def test_init_replaces_no_route_table(tmp_path):
    created = init(tmp_path / "node.yml", "--node", "JG-01.x")
    assert created.exit_code == 0
    assert not created.stderr

    refused = init(tmp_path / "other.yml")
    assert refused.exit_code == 2
    assert "routes.yml; give --force, or --output in another folder" in refused.stderr


def test_a_configuration_with_the_default_node_id_invites_no_partner(tmp_path):
    file = tmp_path / "node.yml"
    created = init(file)
    assert created.exit_code == 0
    assert "no two nodes may have the same" in created.stderr

    invited = call(
        "partner",
        "invite",
        "--address",
        "https://me",
        "--config",
        str(file),
    )
    assert invited.exit_code == 0
    assert "change node.id first" in invited.stderr


def test_init_takes_the_address_that_invitations_then_have(tmp_path):
    file = tmp_path / "node.yml"
    created = init(file, "--node", "A1", "--address", "https://gw.bank.example:7380")
    assert created.exit_code == 0

    invited = call("partner", "invite", "--config", str(file))
    assert json.loads(invited.stdout)["address"] == "https://gw.bank.example:7380"


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["--address", "gw.bank.example:7380"], "must be an http:// or https:// address"),
        (["--address", "http://gw.bank.example", "--tls", "tls"], "must begin with https://"),
    ],
)
def test_init_refuses_an_address_that_no_partner_can_call(tmp_path, options, rule):
    refused = init(tmp_path / "node.yml", *options)
    assert refused.exit_code == 2
    assert rule in refused.stderr
    assert not (tmp_path / "node.yml").exists()


def test_init_with_tls_works_with_the_files_of_the_operations_page(tmp_path):
    file = tmp_path / "node.yml"
    tls_folder = tmp_path / "tls"
    options = ["--port", "7390", "--auth", "--tls", str(tls_folder)]
    created = init(file, "--node", "JG0100001100000010", *options)
    assert created.exit_code == 0
    assert "node.key" in created.stderr
    assert "token create" in created.stdout

    page = (ROOT / "docs/operations.md").read_text()
    (recipe,) = re.findall(
        r"```bash\n(mkdir -p tls.*?)```",
        page,
        re.DOTALL,
    )
    subprocess.run(
        ["bash", "-ec", recipe],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )

    settings = load(file)
    assert settings.auth.mode == "on"
    assert settings.listen.peer.bind == "0.0.0.0:7390"
    assert settings.listen.container.bind == "127.0.0.1:7391"
    assert settings.listen.peer.tls is not None
    context = Tls(*(str(tls_folder / name) for name in TLS_FILES)).context()
    assert context.cert_store_stats()["x509_ca"] == 1
    assert "certificate: tls/node.pem" in file.read_text().replace('"', "")


# ---------------------------------------------------------------- the node and its token


def listeners(operator_port: int) -> dict[str, Any]:
    """Return listeners where only the operators' has a fixed port."""
    return {
        "peer": ANY_PORT,
        "container": ANY_PORT,
        "operator": {"bind": f"127.0.0.1:{operator_port}"},
    }


def test_an_address_with_the_wrong_scheme_is_refused_with_the_right_one(tmp_path):
    plain, secure = free_ports(2)
    files = Authority(tmp_path / "tls").sign("node")
    tls = {
        "certificate": files.certificate,
        "key": files.key,
    }
    listen = listeners(plain) | {"peer": {"bind": f"127.0.0.1:{secure}", "tls": tls}}
    with running(tmp_path / "node", listen=listen):
        for wrong, right, port in (("https", "http", plain), ("http", "https", secure)):
            address = f"127.0.0.1:{port}"
            refused = call("job", "list", "--url", f"{wrong}://{address}")
            assert refused.exit_code == 3
            expected = (
                f"{right} is spoken at {wrong}://{address}, not {wrong}:"
                f" name the node by --url {right}://{address}\n"
            )
            assert expected in refused.stderr


def test_the_address_and_the_token_come_from_the_configuration(tmp_path):
    (port,) = free_ports(1)
    listen = listeners(port)
    auth = {"mode": "on", "token": "a-token-of-this-test"}
    settings = {
        "node": {"id": "JG1"},
        "engine": {"kind": "process"},
        "listen": {"operator": listen["operator"]},
        "auth": auth,
    }
    file = tmp_path / "node.yml"
    with running(tmp_path / "node", listen=listen, auth=auth):
        file.write_text(yaml.safe_dump(settings))
        assert call("gc", "--dry-run", "--config", str(file)).exit_code == 0

        without_token = call("gc", "--dry-run", "--url", f"http://127.0.0.1:{port}")
        assert without_token.exit_code == 1
        assert "NO_TOKEN" in without_token.stderr
        assert f"export {TOKEN}" in without_token.stderr
        assert "Bearer" not in without_token.stderr
        assert "本节点要求令牌" in translate(without_token.stderr, "zh")

        settings["auth"] = {
            "mode": "on",
            "token": "another-token-of-it",
        }
        file.write_text(yaml.safe_dump(settings))
        assert call("gc", "--dry-run", "--config", str(file)).exit_code == 1


def test_a_node_that_does_not_respond_has_exit_code_3():
    silent = call("gc", "--url", NOBODY, "--json")
    assert silent.exit_code == 3
    assert json.loads(silent.stderr)["reason"] == "NO_ANSWER"
    assert "bfia-gateway serve" in silent.stderr
    assert "Errno" not in silent.stderr


@pytest.mark.parametrize("command", ["gc", "serve"])
def test_a_missing_configuration_is_a_bad_input(tmp_path, command):
    missing = call(command, "--config", str(tmp_path / "none.yml"))
    assert missing.exit_code == 2
    for text in ("none.yml is not there", "--config", "--url", "bfia-gateway init"):
        assert text in missing.stderr


def test_an_address_that_is_no_url_is_a_bad_input():
    assert call("gc", "--url", "http://[").exit_code == 2


def test_a_command_at_the_peer_listener_names_the_operators_listener(tmp_path):
    with running(tmp_path) as node:
        refused = call(
            "data",
            "list",
            "--url",
            node.addresses()["peer"],
        )
    assert refused.exit_code == 1
    assert "PATH_UNKNOWN" in refused.stderr
    assert "listen.operator" in refused.stderr


@pytest.mark.parametrize(
    "text",
    [
        f"{SECRET}\r{SECRET}",
        f"{SECRET}é",
        f"{SECRET} {SECRET}",
        f"{SECRET}\udcff",
    ],
    ids=["line", "accent", "space", "no-text"],
)
def test_an_impossible_token_is_refused_without_showing_it(monkeypatch, text):
    monkeypatch.setenv(TOKEN, text)
    refused = call("job", "list", "--url", NOBODY)
    assert refused.exit_code == 2
    assert f"{TOKEN} holds characters" in refused.stderr
    assert SECRET not in refused.output


def test_a_token_is_masked_in_errors_of_the_http_client(monkeypatch):
    error = httpx.LocalProtocolError(f"Illegal header value b'Bearer {SECRET}'")
    monkeypatch.setattr(httpx.Client, "request", raising(error))
    with Client(NOBODY, SECRET) as client, pytest.raises(CallFailed) as refused:
        client.get("/health/live")
    assert SECRET not in str(refused.value)
    assert "Bearer …" in str(refused.value)


# ---------------------------------------------------------------- input and output files


@pytest.fixture(params=["device", "pipe", "folder"])
def not_a_file(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The path of something that is no regular file."""
    os.mkfifo(tmp_path / "pipe")
    paths = {
        "device": "/dev/zero",
        "pipe": str(tmp_path / "pipe"),
        "folder": str(tmp_path),
    }
    return paths[request.param]


@pytest.mark.parametrize(
    "command", ["data upload PATH --namespace bank --name rows", "model import PATH"]
)
def test_only_a_regular_file_is_sent(not_a_file, command):
    refused = call(*command.replace("PATH", not_a_file).split(), "--url", NOBODY)
    assert refused.exit_code == 2, refused.output
    assert "and no file" in refused.stderr


@pytest.mark.parametrize(
    "command",
    ["job list", "doctor", "token list"],
)
def test_only_a_regular_file_is_a_configuration(not_a_file, command):
    refused = call(*command.split(), "--config", not_a_file)
    assert refused.exit_code == 2, refused.output
    assert f"{not_a_file}: is a" in refused.output
    assert "and no file" in refused.output


def test_only_a_regular_file_is_replaced(not_a_file):
    words = ["job", "archive", "job-1", "-o", not_a_file, "--force"]
    refused = call(*words, "--url", NOBODY)
    assert refused.exit_code == 2, refused.output
    assert "is never replaced" in refused.stderr


@pytest.mark.parametrize(
    "command",
    [
        "job download job-1 a k -p guest.0",
        "job archive job-1",
        "data download bank#rows",
        "model export credit 3",
    ],
)
def test_an_existing_file_is_replaced_only_by_force(tmp_path, command):
    file = tmp_path / "rows.csv"
    file.write_text("mine")

    refused = call(*command.split(), "-o", str(file), "--url", NOBODY)
    assert refused.exit_code == 2, refused.output
    assert "give --force" in refused.stderr

    forced = call(*command.split(), "-o", str(file), "--force", "--url", NOBODY)
    assert forced.exit_code == 3  # the node does not respond
    assert file.read_text() == "mine"

    too_long = call(*command.split(), "-o", "a" * 300, "--url", NOBODY)
    assert too_long.exit_code == 2, too_long.output
    assert "File name too long" in too_long.stderr


def test_a_refusal_to_replace_a_file_names_no_option(tmp_path):
    """Some commands have no option -o."""
    file = tmp_path / "rows.csv"
    file.touch()
    with pytest.raises(NotFit, match="or name another file"):
        check_may_write(file, force=False)
    check_may_write(tmp_path / "new.csv", force=False)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("a: 1\na: 2\n", "duplicate key a in lines 1 and 2"),
        ('{"a": 1\n "b": 2}', "is neither JSON nor YAML: line 2 column 5"),
        ("a: [1", "is neither JSON nor YAML: line 2 column 1: did not find"),
        ("[1]", "holds a list"),
        ("", "holds nothing"),
        ('{"a": {"b": [1, NaN]}}', "not JSON compliant"),
        ("a: 2026-01-02", "Object of type date is not JSON serializable"),
        ("a:\n  2026-01-02: 1\n", "keys must be str"),
        ("a: &a [*a]\n", "Circular reference"),
    ],
)
def test_a_file_that_cannot_be_sent_is_refused_with_the_cause(tmp_path, text, cause):
    (tmp_path / "file").write_text(text)
    with pytest.raises(NotFit, match=re.escape(cause)):
        read_object(tmp_path / "file")


def test_a_broken_json_file_is_refused_in_the_words_of_json(tmp_path):
    file = tmp_path / "job.json"
    file.write_text('{"a": 1\n "b": 2}')
    with pytest.raises(NotFit, match="is not JSON: line 2 column 2: Expecting ',' delimiter"):
        read_object(file)


def test_a_missing_file_is_not_called_unreadable_json(tmp_path):
    with pytest.raises(NotFit, match=r"nothere.json cannot be read: No such file") as refused:
        read_object(tmp_path / "nothere.json")
    assert "JSON nor YAML" not in str(refused.value)


def test_a_full_disk_behind_the_output_is_a_sentence():
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "gateway.cli.main", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr == "the output cannot be written: No space left on device\n"


# ---------------------------------------------------------------- cleaning up


def test_gc_prints_a_table_for_people_and_json_for_scripts(tmp_path):
    with running(tmp_path, pace=RARE_CLEANING, retention={"logs_seconds": 1}) as node:
        name = left_behind(node, "job-old", 5).runs[0].name

        dry_run = call_node("gc", node, "--dry-run")
        assert dry_run.exit_code == 0, dry_run.output
        assert name in dry_run.stdout
        assert "1 would be removed" in dry_run.stdout

        (item,) = json_from_node("gc", node, "--dry-run")["items"]
        assert item["kind"] == "logs"
        assert item["name"] == name
        assert item["removed"] is False

        (item,) = json_from_node("gc", node)["items"]
        assert item["name"] == name
        assert item["removed"] is True
        assert "nothing to remove" in call_node("gc", node).stdout


def test_a_job_is_archived_and_a_failed_archive_leaves_no_file(tmp_path):
    with running(tmp_path, pace=RARE_CLEANING) as node:
        left_behind(node, "job-old", 5)
        archive = tmp_path / "job.zip"

        archived = call_node(
            "job",
            node,
            "archive",
            "job-old",
            "-o",
            str(archive),
        )
        assert archived.exit_code == 0
        assert b"SHA256SUMS" in archive.read_bytes()

        unknown = call_node(
            "job",
            node,
            "archive",
            "job-none",
            "-o",
            str(tmp_path / "none.zip"),
        )
        assert unknown.exit_code == 1
        assert list(tmp_path.glob("*.zip*")) == [archive]


def test_a_job_is_cleaned_and_deleted_after_confirmation(tmp_path):
    with running(tmp_path, pace=RARE_CLEANING) as node:
        report = left_behind(node, "job-old", 5).runs[0].data.outputs["report_name"]
        clean = ["clean", "job-old", "a", "--metrics"]

        dry_run = call_node("job", node, *clean, "--dry-run")
        assert dry_run.exit_code == 0
        assert "would be deleted: 1" in dry_run.stdout
        assert node.storage.exists(report)

        assert call_node("job", node, *clean).exit_code == 0
        assert not node.storage.exists(report)

        everywhere = call_node("job", node, "clean", "job-old", "a", "--everywhere")
        assert everywhere.exit_code == 1  # the job's other node has no route
        assert "deleted: 2 items" in everywhere.stdout
        assert "has no route" in everywhere.stdout

        unconfirmed = call_node("job", node, "delete", "job-old")
        assert unconfirmed.exit_code == 1
        assert "Delete job-old for good, at every node of it?" in unconfirmed.stderr
        assert node.store.local_jobs.find("job-old") is not None

        deleted = call_node("job", node, "delete", "job-old", "--yes")
        assert deleted.exit_code == 1  # the job's other node has no route
        assert "has no route" in deleted.output
        assert node.store.local_jobs.find("job-old") is None

        assert "0 cancelled" in call_node("job", node, "cancel-waiting").stdout
