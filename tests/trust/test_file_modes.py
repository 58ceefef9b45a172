"""Files of a node are closed to other users of the machine."""

import json
import os
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.config.loader import load
from gateway.diagnostics.machine import modes_of
from gateway.runtime.trials import Result
from tests import forks
from tests.certificates import Authority


def mode_of(path):
    return path.stat().st_mode & 0o777


def run_command(*words):
    """Run a command, which must succeed, in a process of its own."""
    done = forks.run([str(word) for word in words])
    assert done.returncode == 0, done.stderr


def test_init_writes_files_for_its_user_alone(tmp_path):
    config = tmp_path / "node.yml"
    routes = tmp_path / "routes.yml"
    init = ("init", "--node", "JG1", "--engine", "process", "-o", config)

    run_command(*init)
    assert mode_of(config) == 0o600
    assert mode_of(routes) == 0o600

    # Existing files are closed as well.
    config.chmod(0o644)
    routes.chmod(0o644)
    run_command(*init, "--force")
    assert mode_of(config) == 0o600
    assert mode_of(routes) == 0o600


def a_configuration(**changes):
    """Return a node's configuration on free ports."""
    listeners = ("peer", "container", "operator")
    return {
        "node": {"id": "JG1"},
        "engine": {"kind": "process"},
        "listen": {name: {"bind": "127.0.0.1:0"} for name in listeners},
        **changes,
    }


def test_migrate_makes_a_database_for_its_user_alone(tmp_path):
    config = tmp_path / "node.yml"
    settings = a_configuration(database={"url": "sqlite:///new/state.db"})
    config.write_text(yaml.safe_dump(settings))

    run_command("migrate", "--config", config)

    assert mode_of(tmp_path / "new") == 0o700
    assert mode_of(tmp_path / "new" / "state.db") == 0o600


@pytest.fixture
def open_files(tmp_path):
    """Give a configuration, key and database that others of the machine may read."""
    files = Authority(tmp_path / "pki").sign("own")
    settings = a_configuration(
        database={"url": "sqlite:///state.db"},
        storage={"url": f"file://{tmp_path / 'sto rage'}"},
        state_dir="state",
    )
    settings["listen"]["peer"]["tls"] = {
        "certificate": files.certificate,
        "key": files.key,
    }
    config = tmp_path / "node.yml"
    config.write_text(yaml.safe_dump(settings))
    database = tmp_path / "state.db"
    database.touch()
    config.chmod(0o644)
    database.chmod(0o644)
    Path(files.key).chmod(0o604)
    return config, files.key, database


@pytest.fixture
def open_folders(tmp_path):
    """Give folders of a node's state and data that others of the machine may read."""
    folders = (tmp_path / "state", tmp_path / "sto rage")
    for folder in folders:
        folder.mkdir()
        folder.chmod(0o755)
    return folders


def test_doctor_names_open_files_and_the_commands_that_close_them(open_files, open_folders):
    config, key, database = open_files
    state, storage = open_folders

    done = CliRunner().invoke(app, ["doctor", "--config", str(config), "--json"])

    steps = {step["name"]: step for step in json.loads(done.stdout)["steps"]}
    step = steps["file modes"]
    assert step["result"] == "warning"
    close_files, close_folders = step["remedy"].split("; ")
    assert close_files == f"chmod 600 {config} {key} {database}"
    assert close_folders == f"chmod 700 {state} '{storage}'"
    assert os.system(close_files) == 0
    assert os.system(close_folders) == 0
    assert modes_of(load(config), config).result is Result.OK


def test_what_only_a_group_may_read_is_no_warning(open_files, open_folders):
    for file in map(Path, open_files):
        file.chmod(0o640)
    for folder in open_folders:
        folder.chmod(0o750)
    config, key, _ = open_files
    settings = load(config)

    step = modes_of(settings, config)

    assert step.result is Result.OK
    strict = settings.model_copy(
        update={"secrets": settings.secrets.model_copy(update={"mode": "refuse"})}
    )
    assert f"chmod 600 {config} {key}" in modes_of(strict, config).remedy
