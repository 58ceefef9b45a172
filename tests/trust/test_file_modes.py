"""Another user of the machine reads a configuration, a database or run ids: all of it is closed to others."""

import json
import os
from pathlib import Path

import yaml
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.config.loader import load
from gateway.diagnostics.machine import modes_of
from gateway.runtime.trials import Result
from tests import forks
from tests.certificates import Authority


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_init_writes_for_its_user_alone_also_over_files_that_were_open(tmp_path: Path):
    for more in ([], ["--force"]):
        done = forks.run(
            [
                "init",
                "--node",
                "JG1",
                "--engine",
                "process",
                "-o",
                str(tmp_path / "node.yml"),
                *more,
            ]
        )
        assert done.returncode == 0, done.stderr
        assert [mode(tmp_path / name) for name in ("node.yml", "routes.yml")] == [0o600, 0o600]
        for name in ("node.yml", "routes.yml"):
            (tmp_path / name).chmod(0o644)


def test_migrate_makes_a_database_for_its_user_alone(tmp_path: Path):
    settings = {
        "node": {"id": "JG1"},
        "engine": {"kind": "process"},
        "listen": {name: {"bind": "127.0.0.1:0"} for name in ("peer", "operator")},
        "database": {"url": "sqlite:///new/state.db"},
    }
    (tmp_path / "node.yml").write_text(yaml.safe_dump(settings))
    done = forks.run(["migrate", "--config", str(tmp_path / "node.yml")])
    assert done.returncode == 0, done.stderr
    assert (mode(tmp_path / "new"), mode(tmp_path / "new" / "state.db")) == (0o700, 0o600)


def test_doctor_names_what_is_open_and_the_command_that_closes_it(tmp_path: Path):
    identity = Authority(tmp_path / "pki").sign("own")
    Path(identity.key).chmod(0o640)
    tls = {"certificate": str(identity.certificate), "key": str(identity.key)}
    settings = {
        "node": {"id": "JG1"},
        "engine": {"kind": "process"},
        "listen": {name: {"bind": "127.0.0.1:0"} for name in ("peer", "container", "operator")},
        "database": {"url": "sqlite:///state.db"},
        "storage": {"url": f"file://{tmp_path / 'sto rage'}"},
        "state_dir": "state",
    }
    settings["listen"]["peer"]["tls"] = tls  # type: ignore[index]
    config = tmp_path / "node.yml"
    config.write_text(yaml.safe_dump(settings))
    (tmp_path / "state.db").write_bytes(b"")
    (tmp_path / "state").mkdir()
    (tmp_path / "sto rage").mkdir()
    for path in (config, tmp_path / "state.db"):
        path.chmod(0o644)
    for path in (tmp_path / "state", tmp_path / "sto rage"):
        path.chmod(0o755)
    done = CliRunner().invoke(app, ["doctor", "--config", str(config), "--json"])
    step = next(s for s in json.loads(done.stdout)["steps"] if s["name"] == "file modes")
    assert step["result"] == "warning"
    files, folders = step["remedy"].split("; ")
    assert files == f"chmod 600 {config} {identity.key} {tmp_path / 'state.db'}"
    assert folders == f"chmod 700 {tmp_path / 'state'} '{tmp_path / 'sto rage'}'"
    for command in (files, folders):
        assert os.system(command) == 0
    assert modes_of(load(config), config).result is Result.OK
