"""A node that lost its database and its keys is restored from a backup into another database."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import yaml
from typer.testing import Result

from tests.cli import call
from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.postgresql]

MANIFEST = "manifest.json"
SETTINGS = "node.yml"
SIGNING_KEY = "signing.pem"


# ---------------------------------------------------------------- commands


def init(home: Path, node_id: str = "JG-one") -> Path:
    """Create the configuration of a node; return its file."""
    config = home / SETTINGS
    result = call(
        "init",
        "--node",
        node_id,
        "-o",
        str(config),
        "--engine",
        "process",
    )
    assert result.exit_code == 0
    return config


def back_up(config: Path, file: Path, *options: str) -> Result:
    """Write a backup of a node."""
    return call(
        "backup",
        str(file),
        *options,
        "--config",
        str(config),
    )


def restore(config: Path, file: Path, *options: str) -> Result:
    """Restore a node from a backup."""
    return call(
        "restore",
        str(file),
        *options,
        "--config",
        str(config),
    )


def rewrite(
    file: Path,
    copy: Path,
    name: str,
    change: Callable[[bytes], str],
) -> None:
    """Copy a backup and change the content of one of its files."""
    with ZipFile(file) as source, ZipFile(copy, "w") as target:
        for member in source.namelist():
            content: bytes | str = source.read(member)
            if member == name:
                content = change(content)
            target.writestr(member, content)


def read_settings(config: Path) -> dict[str, Any]:
    return yaml.safe_load(config.read_text())


# ---------------------------------------------------------------- a lost node


def test_a_lost_node_is_restored_and_its_partner_notices_nothing(tmp_path, postgresql_url):
    with jobs.patient_nodes(tmp_path / "nodes") as federation:
        guest = federation[jobs.GUEST]
        config = guest.home / SETTINGS
        file = tmp_path / "node.zip"
        jobs.upload(guest, "guest")
        job_id = run_job(guest, tmp_path)
        wait_until_deletable(guest, job_id)
        job_before = guest.job(job_id)

        check_backup(config, file)
        refused = restore(config, file, "--json")
        assert refused.exit_code == 2
        assert json.loads(refused.stderr)["reason"] == "DATABASE_NOT_EMPTY"

        lose_database_and_keys(federation, postgresql_url)
        restored = restore(config, file, "--json")
        assert restored.exit_code == 0, restored.stderr
        report = json.loads(restored.stdout)
        identity = guest.home / "state" / "identity"
        keys = {str(identity / SIGNING_KEY), str(identity / "sealing.pem")}
        assert report["missing"] == []
        assert set(report["written"]) == keys

        guest.start()
        assert guest.job(job_id) == job_before
        run_job(guest, tmp_path)  # with signatures that the host verifies
        audit = call("audit", "verify", "--config", str(config))
        assert audit.exit_code == 0


def run_job(node: Node, register: Path) -> str:
    """Run a job of one task to its end; return its id."""
    body = jobs.job_of(register, {"a": 0})
    job_id = node.submit(body)
    node.wait_job(job_id)
    return job_id


def wait_until_deletable(node: Node, job_id: str) -> None:
    """Wait until the last response is stored; until then a deletion is refused."""

    def is_deletable() -> bool:
        response = node.ask("DELETE", f"/api/v1/jobs/{job_id}?dry_run=true")
        return response.status_code == 200

    wait_for(is_deletable)


def check_backup(config: Path, file: Path) -> None:
    """Write a backup, which only the user can read and which is not overwritten."""
    backup = back_up(config, file, "--json")
    assert backup.exit_code == 0
    assert json.loads(backup.stdout)["storage"] == 1
    mode = file.stat().st_mode
    assert mode & 0o777 == 0o600

    second = back_up(config, file)
    assert second.exit_code == 2
    assert "--force" in second.stderr


def lose_database_and_keys(federation: Federation, database_url: str) -> None:
    """Kill the guest, remove its files, and configure another database."""
    guest = federation[jobs.GUEST]
    guest.kill()
    shutil.rmtree(guest.home / "state")
    for database_file in guest.home.glob("gateway.db*"):
        database_file.unlink()
    guest.settings["database"] = {"url": database_url}
    config = guest.home / SETTINGS
    config.write_text(yaml.safe_dump(guest.settings))


# ---------------------------------------------------------------- refusals


def make_old(manifest: bytes) -> str:
    """Return a backup's manifest as an older version would have written it."""
    fields = json.loads(manifest)
    fields["schema"] = "0001"
    fields["version"] = "0.0.9"
    return json.dumps(fields)


def test_a_wrong_backup_changes_nothing_and_a_broken_restore_repeats(tmp_path):
    home = tmp_path / "one"
    new_config = tmp_path / "new" / SETTINGS
    file = tmp_path / "node.zip"
    config = init(home)
    backup = back_up(config, file)
    assert backup.exit_code == 0

    check_wrong_backups(tmp_path, file, new_config)
    assert not new_config.parent.exists()
    databases = list(tmp_path.glob("*/var/*.db"))
    assert len(databases) <= 1

    # A file where the folder of the keys has to be breaks the restore.
    key_file = next(home.rglob(SIGNING_KEY))
    blocked = new_config.parent / key_file.parent.relative_to(home)
    blocked.parent.mkdir(parents=True)
    blocked.touch()
    broken = restore(new_config, file)
    assert broken.exit_code == 2
    assert str(blocked) in broken.stderr

    blocked.unlink()
    restored = restore(new_config, file)
    assert restored.exit_code == 0
    assert "next: bfia-gateway doctor" in restored.stdout
    assert new_config.read_bytes() == config.read_bytes()


def check_wrong_backups(folder: Path, file: Path, new_config: Path) -> None:
    """Restore a backup at other nodes, an old one, a damaged one, and one that does not exist."""
    old = folder / "old.zip"
    rewrite(file, old, MANIFEST, make_old)
    torn = folder / "torn.zip"
    torn.write_bytes(file.read_bytes()[:2000])
    missing = folder / "none.zip"
    other_node = init(folder / "other", "JG-other")
    other_key = init(folder / "same", "JG-one")

    for backup, config, message in (
        (file, other_node, "BACKUP_OTHER_NODE"),
        (file, other_key, "BACKUP_OTHER_KEY"),
        (old, new_config, "BACKUP_OTHER_VERSION"),
        (torn, new_config, "is not a backup"),
    ):
        refused = restore(config, backup, "--json")
        assert refused.exit_code == 2
        assert message in refused.stderr

    refused = call("restore", str(missing), "--json")
    assert refused.exit_code == 2
    assert "No such file" in refused.stderr


def test_a_restore_for_which_something_is_missing_writes_nothing(tmp_path):
    home = tmp_path / "one"
    new = tmp_path / "new"
    file = tmp_path / "node.zip"
    config = init(home)
    secret = home / "lake.key"
    secret.write_text("secret")
    secret.chmod(0o600)
    lake = {
        "url": "s3://127.0.0.1:9/lake",
        "username": "bank",
        "password_file": "lake.key",
        "share_key": True,
        "tls": False,
    }
    settings = read_settings(config)
    settings["storages"] = {"lake": lake}
    config.write_text(yaml.safe_dump(settings))
    backup = back_up(config, file)
    assert backup.exit_code == 0
    assert f"not in it: {secret}" in backup.stdout

    refused = restore(new / SETTINGS, file)
    assert refused.exit_code == 2
    assert "storages.lake.password_file: cannot be read" in refused.stderr
    assert "unzip node.yml from" in refused.stderr
    assert not new.exists() or list(new.iterdir()) == []

    new.mkdir(exist_ok=True)
    shutil.copy(secret, new)
    restored = restore(new / SETTINGS, file)
    assert restored.exit_code == 0
    assert f"storage.url lies outside of {new}: {home}" in restored.stderr
    names = {path.name for path in new.iterdir()}
    assert {SETTINGS, "routes.yml", "lake.key"} <= names


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"route_table": {"file": "{outside}/authorized_keys"}},
        {"route_table": {"file": "../outside/authorized_keys"}},
        {"route_table": {"file": "link/authorized_keys"}},
        {"state_dir": "{outside}/state"},
        {"database": {"url": "sqlite:///{outside}/gateway.db"}},
    ],
)
def test_a_backup_cannot_have_files_written_outside_of_its_folder(tmp_path, elsewhere):
    new = tmp_path / "new"
    outside = tmp_path / "outside"
    outside.mkdir()
    new.mkdir()
    (new / "link").symlink_to(outside)
    config = init(tmp_path / "one")
    honest = tmp_path / "honest.zip"
    hostile = tmp_path / "hostile.zip"
    backup = back_up(config, honest)
    assert backup.exit_code == 0
    changes = json.dumps(elsewhere).replace("{outside}", str(outside))
    settings = read_settings(config) | json.loads(changes)
    hostile_settings = yaml.safe_dump(settings)
    rewrite(honest, hostile, SETTINGS, lambda content: hostile_settings)

    refused = restore(new / SETTINGS, hostile, "--json")
    assert refused.exit_code == 2
    assert json.loads(refused.stderr)["reason"] == "BACKUP_WRITES_ELSEWHERE"
    assert list(outside.iterdir()) == []
    assert [path.name for path in new.iterdir()] == ["link"]

    # An admin who has read the settings writes them, which permits them.
    (new / SETTINGS).write_text(hostile_settings)
    restored = restore(new / SETTINGS, hostile, "--json")
    assert restored.exit_code == 0
    assert list(outside.iterdir()) != []
