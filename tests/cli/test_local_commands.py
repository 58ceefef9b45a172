"""Commands that read the configuration and the files of this machine, and their failures."""

import errno
import json
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import typer
import yaml

from gateway.cli import client as cli_client
from gateway.cli import main as cli_main
from gateway.cli.client import EXIT_BAD_INPUT, EXIT_NO_ANSWER, content, read_object, who
from gateway.cli.command import reporting
from gateway.cli.init import docker_responds
from gateway.data import reading
from gateway.data.reading import NotFit
from gateway.errors import DatabaseAway
from gateway.identity.keys import Keyring
from tests.cli import call, raising

# ---------------------------------------------------------------- configuration


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration whose operators' listener has no fixed port."""
    file = tmp_path / "node.yml"
    body = {
        "node": {"id": "JG1"},
        "engine": {"kind": "process"},
        "listen": {"operator": {"bind": "127.0.0.1:0"}},
        "database": {"url": f"sqlite:///{tmp_path / 'node.db'}"},
    }
    file.write_text(yaml.safe_dump(body))
    return file


def test_a_configuration_without_a_port_does_not_say_where_the_node_is(config):
    refused = call("job", "list", "--config", str(config))
    assert refused.exit_code == EXIT_BAD_INPUT
    assert "lets the operator listener choose its port" in refused.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x" * 256, "1 to 255 characters"),
        ("oidc:ann", "reserved for people who log in by OpenID"),
    ],
    ids=["too-long", "openid"],
)
def test_a_token_for_an_unusable_name_is_refused(config, name, message):
    refused = call(
        "token",
        "create",
        name,
        "--role",
        "admin",
        "--config",
        str(config),
    )
    assert refused.exit_code == EXIT_BAD_INPUT
    assert message in refused.stderr


def test_the_expiry_of_tokens_is_in_the_language_in_use(config, use_language):
    for name, days in (("ann", "0"), ("bob", "30")):
        words = ["create", name, "--role", "admin", "--days", days]
        assert call("token", *words, "--config", str(config)).exit_code == 0

    use_language("zh")
    listed = call("token", "list", "--config", str(config), env={"COLUMNS": "120"}).stdout
    ann, bob = (line for line in listed.splitlines() if "admin" in line)
    assert "永不" in ann
    assert "永不" not in bob
    assert "never" not in listed


def test_an_identity_is_shown_and_needed_for_invitations(config):
    shown = call("identity", "show", "--config", str(config))
    assert "this node has no key pair and signs nothing" in shown.stdout
    invited = call(
        "partner",
        "invite",
        "--address",
        "https://me",
        "--config",
        str(config),
    )
    assert invited.exit_code == 1
    assert "this node has no key pair" in invited.stderr

    state_dir = config.parent / "var"
    Keyring(state_dir).make("ed25519")
    settings = yaml.safe_load(config.read_text()) | {"state_dir": str(state_dir)}
    config.write_text(yaml.safe_dump(settings))

    shown = call("identity", "show", "--config", str(config))
    assert shown.exit_code == 0
    assert "ed25519" in shown.stdout
    assert "use" in shown.stdout


# ---------------------------------------------------------------- files and failures


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("init --engine process -o FILE/node.yml", "give another --output"),
        ("provider init overlap -o FILE/overlap", "cannot be written: "),
        ("backup FILE/all.zip --config CONFIG", "cannot be written: "),
    ],
)
def test_an_output_that_cannot_be_written_is_refused(config, tmp_path, command, message):
    file = tmp_path / "file"
    file.touch()
    words = command.replace("FILE", str(file)).replace("CONFIG", str(config)).split()
    refused = call(*words)
    assert refused.exit_code == EXIT_BAD_INPUT
    assert message in refused.stderr


def test_a_backup_with_damaged_bytes_is_refused(tmp_path):
    file = tmp_path / "node.zip"
    with ZipFile(file, "w", ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", json.dumps({"schema": "x" * 500}))
    damaged = bytearray(file.read_bytes())
    compressed_data = 30 + len("manifest.json")  # behind the local header, which has 30 bytes
    damaged[compressed_data] = 0xFF  # begins a block of a type that does not exist
    file.write_bytes(damaged)

    refused = call("restore", str(file), "--config", str(tmp_path / "node.yml"))

    assert refused.exit_code == EXIT_BAD_INPUT
    assert f"{file} is not a backup, or is damaged: " in refused.stderr


def test_a_backup_that_ends_within_an_entry_is_refused(tmp_path):
    file = tmp_path / "node.zip"
    with ZipFile(file, "w") as archive:
        archive.writestr("manifest.json", json.dumps({"schema": "x"}))
    cut = bytearray(file.read_bytes())
    sizes = cut.index(b"PK\x01\x02") + 20  # of the entry, in the central directory
    cut[sizes : sizes + 8] = 2 * (10**6).to_bytes(4, "little")
    file.write_bytes(cut)

    refused = call("restore", str(file), "--config", str(tmp_path / "node.yml"))

    assert refused.exit_code == EXIT_BAD_INPUT
    assert f"{file} is not a backup, or is damaged: it ends within an entry" in refused.stderr


def test_a_file_that_is_not_utf_8_is_sent_as_bytes_but_not_read_as_text(tmp_path):
    file = tmp_path / "odd.yml"
    file.write_bytes(b"\xff\xfe\x00")
    assert content(file) == b"\xff\xfe\x00"
    with pytest.raises(NotFit, match="is not text in UTF-8"):
        read_object(file)


def test_a_file_above_the_limit_is_refused():
    too_large = bytes(reading.MIB + 1)
    with pytest.raises(NotFit, match="larger than 1 MiB, which is the most that is read"):
        reading.check_size(too_large, "it", reading.MIB)


def test_a_user_without_a_name_is_somebody(monkeypatch):
    monkeypatch.setattr(
        cli_client.getpass,
        "getuser",
        raising(KeyError("no name")),
    )
    assert who() == "somebody"


def test_an_unreachable_database_has_an_exit_code_of_its_own(capsys):
    with pytest.raises(typer.Exit) as ended, reporting(False):
        raise DatabaseAway("the database does not answer")
    assert ended.value.exit_code == EXIT_NO_ANSWER
    assert "does not answer" in capsys.readouterr().err


def test_an_interrupted_command_ends_like_a_program_stopped_by_ctrl_c(monkeypatch):
    monkeypatch.setattr(cli_main, "translated", lambda command: raising(KeyboardInterrupt()))
    with pytest.raises(SystemExit) as ended:
        cli_main.main()
    assert ended.value.code == 130


def test_an_input_error_of_the_machine_is_raised(monkeypatch):
    error = OSError(errno.EIO, "Input/output error")
    monkeypatch.setattr(cli_main, "translated", lambda command: raising(error))
    with pytest.raises(OSError, match="Input/output error"):
        cli_main.main()


def test_whether_docker_responds_is_a_yes_or_no():
    assert docker_responds() in (True, False)
