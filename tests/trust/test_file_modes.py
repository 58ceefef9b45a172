"""Another user of the machine reads a configuration, a database or run ids: all of it is closed to others."""

import json
import os
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.config.loader import load
from gateway.diagnostics.doctor import modes_of
from gateway.runtime.checks import Result
from tests import forks
from tests.certificates import Authority
from tests.e2e import jobs
from tests.e2e.conftest import EngineChoice
from tests.e2e.conftest import engine as engine
from tests.e2e.conftest import reference_image as reference_image
from tests.e2e.nodes import Federation, Node


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def open_to_others(folder: Path) -> list[str]:
    """Return what another user of this machine can read or change, who goes only where the folders let him."""
    found: list[str] = []
    folders = [folder]
    while folders:
        for entry in os.scandir(folders.pop()):
            rights = entry.stat(follow_symlinks=False).st_mode
            if entry.is_dir(follow_symlinks=False):
                if rights & 0o011:
                    folders.append(Path(entry.path))
                if rights & 0o066:
                    found.append(entry.path)
            elif rights & 0o066 and not entry.is_symlink():
                found.append(entry.path)
    return found


def test_init_writes_for_its_user_alone_also_over_files_that_were_open(tmp_path: Path):
    for more in ([], ["--force"]):
        done = forks.run(["init", "--node", "JG1", "--engine", "process", "-o", str(tmp_path / "node.yml"), *more])
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


@pytest.mark.slow
def test_nothing_of_a_node_that_ran_a_job_is_open_to_others(engine: EngineChoice, tmp_path: Path):
    with Federation(tmp_path, [jobs.GUEST, jobs.HOST], engine.settings) as federation:
        by_test = {str(path) for node in federation.nodes.values() for path in written_by_test(node)}
        for node in federation.nodes.values():
            node.storage.chmod(0o755)  # the admin may have made it so; what is below is closed all the same
        by_test |= {str(node.storage) for node in federation.nodes.values()}
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        guest = federation[jobs.GUEST]
        guest.wait_job(guest.submit(jobs.quick_job(jobs.GUEST, jobs.HOST, depth=3)))
        assert mode(guest.home / "gateway.db") == 0o600
        assert mode(guest.home / "state") == mode(guest.home / "state" / "runs") == 0o700
        for node in federation.nodes.values():
            assert set(open_to_others(node.home)) <= by_test


def written_by_test(node: Node) -> list[Path]:
    return [node.home / "node.yml", node.home / "routes.yml", *node.home.glob("gateway-*.log")]


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
