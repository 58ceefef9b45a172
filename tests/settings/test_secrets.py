"""Secrets of the settings come from files, commands or the environment; none stays in clear."""

import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.bootstrap.parts import storages
from gateway.config.loader import load
from gateway.config.schema import Settings
from gateway.config.secret_command import MAX_SECRET_BYTES, CommandFailed, secret_printed_by
from gateway.config.secrets import (
    admin_token,
    database_url,
    fate_sites,
    oidc_client,
    secrets_in_clear,
    webhook_receivers,
)
from gateway.errors import Invalid
from gateway.language.catalogue import translate
from tests.cli import call
from tests.e2e.nodes import wait_for

SECRET = "hunter2-hunter2-hunter2"
STRICT = {"secrets": {"mode": "refuse"}}
LAKE = {
    "url": "s3://h:9000/joint",
    "username": "key",
    "share_key": True,
}
OIDC = {
    "issuer": "https://login.example",
    "client_id": "console",
    "console": "https://bfia.example",
    "roles": {"admins": "admin"},
}


def program(*lines: str) -> list[str]:
    """Return a command that runs lines of Python."""
    return [sys.executable, "-c", "\n".join(lines)]


PRINTS_SECRET = program(f"print('{SECRET}')")


def storage_key(settings: Settings) -> str:
    """Return the secret key of the storage ``lake``."""
    return storages(settings).remotes["lake"].remote.password


def webhook_key(settings: Settings) -> str:
    """Return the key of the only receiver of events."""
    (receiver,) = webhook_receivers(settings)
    return receiver.secret


def fate_token(settings: Settings) -> str:
    """Return the token that the site 9999 expects."""
    app = fate_sites(settings)["9999"].sends
    assert app is not None
    return app.app_token


def client_secret(settings: Settings) -> str:
    """Return the secret of the console's client."""
    assert settings.auth.oidc is not None
    return oidc_client(settings.auth.oidc).client_secret


# Builds the sections of the settings from the sources of a secret.
Sections = Callable[[dict[str, Any]], dict[str, Any]]
# By the setting of each secret: its name in its section, the sections, and its reader.
PLACES: dict[str, tuple[str, Sections, Callable[[Settings], str]]] = {
    "storages.lake.password": (
        "password",
        lambda source: {"storages": {"lake": LAKE | source}},
        storage_key,
    ),
    "auth.token": (
        "token",
        lambda source: {"auth": {"mode": "on", **source}},
        admin_token,
    ),
    "auth.oidc.client_secret": (
        "client_secret",
        lambda source: {"auth": {"mode": "on", "oidc": OIDC | source}},
        client_secret,
    ),
    "events.webhooks[0].secret": (
        "secret",
        lambda source: {"events": {"webhooks": [{"url": "https://a.example", **source}]}},
        webhook_key,
    ),
    "fate.sites.9999.sends.app_token": (
        "app_token",
        lambda source: {"fate": {"sites": {"9999": {"sends": {"app_id": "1", **source}}}}},
        fate_token,
    ),
}
EVERY_PLACE = pytest.mark.parametrize("setting", PLACES)


@pytest.fixture
def write(tmp_path):
    """A function that writes a node's configuration with further sections; returns the file."""

    def write_file(sections: dict[str, Any]) -> Path:
        file = tmp_path / "node.yml"
        settings = {
            "node": {"id": "JG0100001100000010"},
            "engine": {"kind": "process"},
            **sections,
        }
        file.write_text(yaml.safe_dump(settings))
        file.chmod(0o600)
        return file

    return write_file


@pytest.fixture
def secret_file(tmp_path):
    """A file of mode 0600 with the secret."""
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    return file


# ------------------------------------------------------------ sources


@EVERY_PLACE
def test_every_secret_may_be_in_a_file_of_its_own(write, secret_file, setting):
    name, sections, read = PLACES[setting]
    source = {f"{name}_file": secret_file.name}
    config = write(sections(source) | STRICT)

    assert read(load(config)) == SECRET


@EVERY_PLACE
def test_every_secret_may_be_printed_by_a_command(write, setting):
    name, sections, read = PLACES[setting]
    source = {f"{name}_command": PRINTS_SECRET}
    config = write(sections(source) | STRICT)

    assert read(load(config)) == SECRET


@EVERY_PLACE
def test_a_secret_has_either_a_file_or_a_command(write, setting):
    name, sections, _ = PLACES[setting]
    both = {
        f"{name}_file": "secret",
        f"{name}_command": PRINTS_SECRET,
    }

    with pytest.raises(Invalid, match=f"{name}_file and {name}_command exclude each other"):
        load(write(sections(both)))


@EVERY_PLACE
def test_a_secret_that_cannot_be_read_is_named(write, tmp_path, setting):
    name, sections, read = PLACES[setting]
    settings = load(write(sections({f"{name}_file": "none"})))

    with pytest.raises(Invalid) as missing:
        read(settings)
    assert str(missing.value).startswith(f"{setting}_file: cannot be read")

    (tmp_path / "none").write_text("\n")
    with pytest.raises(Invalid, match="is an empty file"):
        read(settings)


@pytest.mark.parametrize(
    "source",
    [{"password_file": "secret"}, {"password_command": program(f"print('{SECRET}@/')")}],
    ids=["file", "command"],
)
def test_the_databases_password_is_put_into_its_address(write, secret_file, source):
    secret_file.write_text(f"{SECRET}@/")
    database = {"url": "mysql+pymysql://bank@db:3306/bfia", **source}

    settings = load(write({"database": database} | STRICT))

    expected = f"mysql+pymysql://bank:{SECRET}%40%2F@db:3306/bfia"
    assert database_url(settings) == expected
    assert SECRET not in settings.database.url


@pytest.mark.parametrize(
    "url",
    ["sqlite:///var/node.db", "mysql+pymysql://db/bfia"],
)
def test_a_database_without_a_user_has_no_password(write, url):
    database = {
        "url": url,
        "password_file": "secret",
    }

    with pytest.raises(Invalid, match="need the user in url"):
        load(write({"database": database}))


def test_a_short_token_in_a_file_is_refused(write, secret_file):
    secret_file.write_text("short")
    auth = {
        "mode": "on",
        "token_file": "secret",
    }
    settings = load(write({"auth": auth}))

    with pytest.raises(Invalid) as refusal:
        admin_token(settings)
    assert str(refusal.value).startswith("auth.token_file: must give a token of at least 16")


def test_the_environment_takes_precedence_over_a_file(write, secret_file, monkeypatch):
    monkeypatch.setenv("BFIA_GATEWAY__STORAGES__LAKE__PASSWORD", "from-the-environment")
    lake = LAKE | {"password_file": "secret"}

    settings = load(write({"storages": {"lake": lake}} | STRICT))

    assert storage_key(settings) == "from-the-environment"


# ------------------------------------------------------------ commands


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (program(f"print('{SECRET}')", "raise SystemExit(3)"), "ended with code 3"),
        (program("pass"), "printed nothing"),
        (program(f"print('{SECRET}' * {MAX_SECRET_BYTES})"), "must print at most 4096 bytes"),
        (
            program("import sys", "sys.stdout.buffer.write(bytes([255]))"),
            "must print text in UTF-8",
        ),
        (["/no/such/program", SECRET], "cannot be run: No such file or directory"),
        (["echo", f"{SECRET}\0"], "cannot be run: embedded null byte"),
    ],
    ids=["exit code", "silence", "too much", "no text", "no program", "null character"],
)
def test_a_command_that_fails_is_named_without_its_secret(write, command, problem):
    lake = LAKE | {"password_command": command}

    with pytest.raises(Invalid) as failure:
        storages(load(write({"storages": {"lake": lake}})))

    text = str(failure.value)
    assert text.startswith(f"storages.lake.password_command: {problem}")
    assert command[0] in text
    assert SECRET not in text
    assert translate(text, "zh") != text


def has_ended(process_id: int) -> bool:
    """True if a process has ended, even if its parent has not noticed that."""
    try:
        return " Z " in Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return True


def test_a_command_that_does_not_end_is_killed_with_its_children(tmp_path):
    mark = tmp_path / "children"
    lines = [
        "import subprocess, sys, time",
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])",
        f"open({str(mark)!r}, 'w').write(str(child.pid))",
        "time.sleep(600)",
    ]

    with pytest.raises(CommandFailed, match="must end within 2 s"):
        secret_printed_by(program(*lines), seconds=2)

    child = int(mark.read_text())
    wait_for(lambda: has_ended(child), about="the child is killed")


def test_a_command_gets_no_input_and_no_shell(tmp_path):
    reads = program("import sys", "print('input:' + sys.stdin.read(), sys.argv[1])")

    assert secret_printed_by([*reads, "$HOME; echo x"]) == "input: $HOME; echo x"


# ------------------------------------------------------------ in clear


def test_a_new_node_names_every_secret_in_clear_at_once(write, secret_file):
    secret_file.chmod(0o640)
    webhook = {
        "url": "https://a.example",
        "secret": SECRET,
    }
    sea = {
        "password_file": "secret",
        "share_key": False,
    }
    config = write(
        {
            "secrets": {"mode": "refuse"},
            "database": {"url": f"mysql+pymysql://bank:{SECRET}@db/bfia"},
            "auth": {
                "mode": "on",
                "token": SECRET,
            },
            "events": {"webhooks": [webhook]},
            "storages": {
                "lake": LAKE | {"password": SECRET},
                "sea": LAKE | sea,
            },
        }
    )

    with pytest.raises(Invalid) as refusal:
        load(config)

    rules = {problem.path: problem.rule for problem in refusal.value.problems}
    assert set(rules) == {
        "database.url",
        "auth.token",
        "events.webhooks[0].secret",
        "storages.lake.password",
        "storages.sea.password_file",
        "storages.sea.share_key",
    }
    assert "bfia-gateway move-secrets" in rules["storages.lake.password"]
    assert "storages.lake.password_command" in rules["storages.lake.password"]
    for path, variable in (
        ("database.url", "BFIA_GATEWAY__DATABASE__URL"),
        ("auth.token", "BFIA_GATEWAY__AUTH__TOKEN"),
        ("events.webhooks[0].secret", "BFIA_GATEWAY__EVENTS__WEBHOOKS"),
        ("storages.lake.password", "BFIA_GATEWAY__STORAGES__LAKE__PASSWORD"),
    ):
        assert f"set {variable} in the environment" in rules[path]
    assert "chmod 600" in rules["storages.sea.password_file"]
    assert "role must be set" in rules["storages.sea.share_key"]
    assert SECRET not in str(refusal.value)
    for rule in rules.values():
        assert translate(rule, "zh") != rule


def test_a_secret_in_the_environment_is_not_in_clear(write, monkeypatch):
    monkeypatch.setenv("BFIA_GATEWAY__AUTH__TOKEN", SECRET)

    settings = load(write({"auth": {"mode": "on"}} | STRICT))

    assert admin_token(settings) == SECRET


def test_a_configuration_of_an_older_node_keeps_loading(write):
    lake = LAKE | {"password": SECRET}

    settings = load(write({"storages": {"lake": lake}}))

    assert storage_key(settings) == SECRET
    assert [secret.in_clear for secret in secrets_in_clear(settings)] == ["storages.lake.password"]


def test_init_writes_a_configuration_that_refuses_secrets(tmp_path):
    config = tmp_path / "node.yml"
    assert call("init", "--engine", "process", "-o", str(config)).exit_code == 0
    assert load(config).secrets.mode == "refuse"

    text = config.read_text()
    config.write_text(text.replace('  token: ""', f'  token: "{SECRET}"'))

    refused = call("doctor", "--config", str(config))
    assert refused.exit_code == 2
    assert "auth.token: is a secret in clear" in refused.stderr
    assert SECRET not in refused.output


# ------------------------------------------------------------ moving

CONFIGURATION = f"""\
# our node
node: {{id: "JG0100001100000010"}}
engine: {{kind: process}}
database:
  url: mysql+pymysql://bank:{SECRET}%40@db/bfia   # replicated
auth: {{mode: "on", token: {SECRET}}}
events:
  webhooks:
    - {{url: "https://a.example", secret: {SECRET}}}
storages:
  lake: {{url: "s3://h:9000/joint", username: key, password: {SECRET}, share_key: true}}
"""


@pytest.fixture
def older(tmp_path):
    """The configuration of an older node, with secrets in clear."""
    file = tmp_path / "node.yml"
    file.write_text(CONFIGURATION)
    file.chmod(0o600)
    return file


def test_move_secrets_gives_each_secret_a_file_of_mode_0600(older, tmp_path):
    moved = call("move-secrets", "--config", str(older))

    assert moved.exit_code == 0, moved.output
    assert SECRET not in moved.output
    files = {file.name: file for file in (tmp_path / "secrets").iterdir()}
    assert set(files) == {
        "auth.token",
        "database.password",
        "events.webhooks.0.secret",
        "storages.lake.password",
    }
    for path in (*files.values(), older):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert "storages.lake.password: " in moved.stdout


@pytest.mark.parametrize(
    ("config_mode", "secrets_mode", "expected"),
    [
        (0o600, "warn", (0o600, 0o700)),
        (0o640, "warn", (0o640, 0o750)),
        (0o644, "warn", (0o640, 0o750)),
        (0o640, "refuse", (0o600, 0o700)),
    ],
    ids=["owner", "group", "everybody", "refused for the group"],
)
def test_moved_secrets_keep_the_right_of_the_group(older, config_mode, secrets_mode, expected):
    older.write_text(f"{CONFIGURATION}secrets: {{mode: {secrets_mode}}}\n")
    older.chmod(config_mode)

    assert call("move-secrets", "--config", str(older)).exit_code == 0

    file_mode, folder_mode = expected
    folder = older.parent / "secrets"
    assert stat.S_IMODE(folder.stat().st_mode) == folder_mode
    for path in (*folder.iterdir(), older):
        assert stat.S_IMODE(path.stat().st_mode) == file_mode


def test_a_moved_configuration_means_the_same_and_keeps_its_comments(older):
    assert call("move-secrets", "--config", str(older)).exit_code == 0

    text = older.read_text()
    assert SECRET not in text
    assert "# our node" in text
    assert "# replicated" in text
    strict = older.with_name("strict.yml")
    strict.write_text(text + "secrets: {mode: refuse}\n")
    settings = load(strict)
    assert storage_key(settings) == SECRET
    assert webhook_key(settings) == SECRET
    assert admin_token(settings) == SECRET
    assert database_url(settings) == f"mysql+pymysql://bank:{SECRET}%40@db/bfia"


def test_a_second_move_finds_nothing(older):
    call("move-secrets", "--config", str(older))
    before = older.read_text()

    again = call("move-secrets", "--config", str(older))

    assert again.exit_code == 0
    assert "contains no secret in clear" in again.stdout
    assert older.read_text() == before


def test_a_move_that_would_replace_a_file_changes_nothing(older, tmp_path):
    (tmp_path / "secrets").mkdir()
    existing = tmp_path / "secrets" / "storages.lake.password"
    existing.write_text("another")

    refused = call("move-secrets", "--config", str(older))

    assert refused.exit_code == 2
    assert "File exists" in refused.stderr
    assert "nothing was moved" in refused.stderr
    assert older.read_text() == CONFIGURATION
    assert [file.name for file in existing.parent.iterdir()] == [existing.name]
    assert existing.read_text() == "another"


def test_doctor_names_secrets_in_clear_and_the_command(write, tmp_path):
    config = write(
        {
            "auth": {
                "mode": "on",
                "token": SECRET,
            },
            "database": {"url": f"sqlite:///{tmp_path / 'node.db'}"},
        }
    )

    printed = call("doctor", "--config", str(config), "--json")

    steps = yaml.safe_load(printed.stdout)["steps"]
    (step,) = [step for step in steps if step["name"] == "secrets"]
    assert step["cause"] == "in clear in the configuration file: auth.token"
    assert step["remedy"] == f"bfia-gateway move-secrets --config {config}"
    assert SECRET not in printed.output


def test_doctor_names_every_secret_that_cannot_be_read(write, tmp_path):
    config = write(
        {
            "database": {"url": f"sqlite:///{tmp_path / 'node.db'}"},
            "events": {
                "webhooks": [
                    {"url": "https://a.example", "secret_file": "absent"},
                    {"url": "https://b.example", "secret_command": ["false"]},
                ]
            },
        }
    )

    printed = call("doctor", "--config", str(config), "--json")

    steps = yaml.safe_load(printed.stdout)["steps"]
    (step,) = [step for step in steps if step["name"] == "secrets"]
    assert step["result"] == "failed"
    first, second = step["cause"].split("; ")
    assert first.startswith("events.webhooks[0].secret_file: cannot be read")
    assert second.startswith("events.webhooks[1].secret_command: ")
    assert "correct the file or the command" in step["remedy"]
