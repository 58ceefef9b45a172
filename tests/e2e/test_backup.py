"""A node that lost its database and its keys is restored from a backup into another database."""

import json
import shutil
from zipfile import ZipFile

import pytest
import yaml

from tests.cli import call
from tests.e2e import jobs
from tests.e2e.nodes import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.mariadb]


def test_a_lost_node_is_restored_and_its_partner_notices_nothing(tmp_path, mariadb_url):
    with jobs.patient_nodes(tmp_path / "nodes") as federation:
        guest = federation[jobs.GUEST]
        config = ["--config", str(guest.home / "node.yml")]
        file = tmp_path / "node.zip"
        jobs.upload(guest, "guest")
        job_id = guest.submit(jobs.job_of(tmp_path, {"a": 0}))
        guest.wait_job(job_id)
        # A deletion is refused until the last response is stored.
        deletion = f"/api/v1/jobs/{job_id}?dry_run=true"
        wait_for(lambda: guest.ask("DELETE", deletion).status_code == 200)
        before = guest.job(job_id)
        backup = call("backup", str(file), "--json", *config)
        assert backup.exit_code == 0
        assert json.loads(backup.stdout)["storage"] == 1
        assert file.stat().st_mode & 0o777 == 0o600
        again = call("backup", str(file), *config)
        assert again.exit_code == 2
        assert "--force" in again.stderr

        refused = call("restore", str(file), "--json", *config)
        assert refused.exit_code == 2
        assert json.loads(refused.stderr)["reason"] == "DATABASE_NOT_EMPTY"
        guest.kill()
        shutil.rmtree(guest.home / "state")
        for database_file in guest.home.glob("gateway.db*"):
            database_file.unlink()
        guest.settings["database"] = {"url": mariadb_url}
        (guest.home / "node.yml").write_text(yaml.safe_dump(guest.settings))
        restored = call("restore", str(file), "--json", *config)
        assert restored.exit_code == 0, restored.stderr
        assert json.loads(restored.stdout)["missing"] == []
        assert json.loads(restored.stdout)["written"] == [
            str(guest.home / "state" / "identity" / "signing.pem")
        ]
        guest.start()
        assert guest.job(job_id) == before
        guest.wait_job(
            guest.submit(jobs.job_of(tmp_path, {"a": 0}))
        )  # with signatures that the host verifies
        assert call("audit", "verify", *config).exit_code == 0


def test_a_wrong_backup_changes_nothing_and_a_broken_restore_repeats(tmp_path):
    def init(
        name: str,
        node: str,
    ) -> list[str]:
        file = tmp_path / name / "node.yml"
        assert call("init", "--node", node, "-o", str(file), "--engine", "process").exit_code == 0
        return ["--config", str(file)]

    file = tmp_path / "node.zip"
    assert call("backup", str(file), *init("one", "JG-one")).exit_code == 0
    old = tmp_path / "old.zip"
    with ZipFile(file) as source, ZipFile(old, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "manifest.json":
                content = json.dumps(
                    json.loads(content)
                    | {
                        "schema": "0001",
                        "version": "0.0.9",
                    }
                ).encode()
            target.writestr(name, content)
    torn = tmp_path / "torn.zip"
    torn.write_bytes(file.read_bytes()[:2000])
    for backup, config, expected in (
        (file, init("other", "JG-other"), "BACKUP_OTHER_NODE"),
        (file, init("same", "JG-one"), "BACKUP_OTHER_KEY"),
        (
            old,
            ["--config", str(tmp_path / "new" / "node.yml")],
            "BACKUP_OTHER_VERSION",
        ),
        (
            torn,
            ["--config", str(tmp_path / "new" / "node.yml")],
            "is not a backup",
        ),
        (tmp_path / "none.zip", [], "No such file"),
    ):
        refused = call("restore", str(backup), "--json", *config)
        assert refused.exit_code == 2
        assert expected in refused.stderr
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob("*/var/*.db"))[1:]
    keys = next((tmp_path / "one").rglob("signing.pem")).parent.relative_to(tmp_path / "one")
    blocked = tmp_path / "new" / keys
    blocked.parent.mkdir(parents=True)
    blocked.touch()
    broken = call(
        "restore",
        str(file),
        "--config",
        str(tmp_path / "new" / "node.yml"),
    )
    assert broken.exit_code == 2
    assert str(blocked) in broken.stderr
    blocked.unlink()
    restored = call(
        "restore",
        str(file),
        "--config",
        str(tmp_path / "new" / "node.yml"),
    )
    assert restored.exit_code == 0
    assert "next: bfia-gateway doctor" in restored.stdout
    assert (tmp_path / "new" / "node.yml").read_bytes() == (
        tmp_path / "one" / "node.yml"
    ).read_bytes()


def test_a_restore_for_which_something_is_missing_writes_nothing(tmp_path):
    home = tmp_path / "one"
    new = tmp_path / "new"
    config = ["--config", str(home / "node.yml")]
    secret = home / "lake.key"
    assert call("init", "--node", "JG-one", "-o", config[1], "--engine", "process").exit_code == 0
    lake = {
        "url": "s3://127.0.0.1:9/lake",
        "username": "bank",
        "password_file": "lake.key",
        "tls": False,
    }
    settings = yaml.safe_load((home / "node.yml").read_text()) | {"storages": {"lake": lake}}
    (home / "node.yml").write_text(yaml.safe_dump(settings))
    secret.write_text("secret")
    backup = call("backup", str(tmp_path / "node.zip"), *config)
    assert backup.exit_code == 0
    assert f"not in it: {secret}" in backup.stdout
    restore = ("restore", str(tmp_path / "node.zip"), "--config", str(new / "node.yml"))
    refused = call(*restore)
    assert refused.exit_code == 2
    assert "storages.lake.password_file: cannot be read" in refused.stderr
    assert "unzip node.yml from" in refused.stderr
    assert not new.exists() or list(new.iterdir()) == []
    new.mkdir(exist_ok=True)
    shutil.copy(secret, new)
    restored = call(*restore)
    assert restored.exit_code == 0
    assert f"storage.url lies outside of {new}: {home}" in restored.stderr
    assert {"node.yml", "routes.yml", "lake.key"} <= {file.name for file in new.iterdir()}


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
    home, new, outside = (tmp_path / name for name in ("one", "new", "outside"))
    outside.mkdir()
    new.mkdir()
    (new / "link").symlink_to(outside)
    assert (
        call(
            "init", "--node", "JG-one", "-o", str(home / "node.yml"), "--engine", "process"
        ).exit_code
        == 0
    )
    honest, hostile = tmp_path / "honest.zip", tmp_path / "hostile.zip"
    assert call("backup", str(honest), "--config", str(home / "node.yml")).exit_code == 0
    hostile_settings = json.loads(json.dumps(elsewhere).replace("{outside}", str(outside)))
    settings = yaml.safe_load((home / "node.yml").read_text()) | hostile_settings
    with ZipFile(honest) as source, ZipFile(hostile, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, yaml.safe_dump(settings) if name == "node.yml" else content)
    restore = ("restore", str(hostile), "--json", "--config", str(new / "node.yml"))
    refused = call(*restore)
    assert refused.exit_code == 2
    assert json.loads(refused.stderr)["reason"] == "BACKUP_WRITES_ELSEWHERE"
    assert list(outside.iterdir()) == []
    assert [path.name for path in new.iterdir()] == ["link"]
    (new / "node.yml").write_text(yaml.safe_dump(settings))  # an admin has read it
    assert call(*restore).exit_code == 0
    assert list(outside.iterdir()) != []
