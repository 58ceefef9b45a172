"""The installer runs as root, and meets folders of the gateway's user, perhaps prepared for it."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tools.release import checksums

INSTALLER = Path(checksums.__file__).with_name("bundle") / "install.sh"
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0,
    reason="the installer needs root",
)
USER = "nobody"  # runs the gateway
# Of both versions. The old one cannot use the new database, so going back restores a backup.
PROGRAM = """#!/bin/sh
case "$1 $2" in
  backup*) touch "$2" ;;
  "migrate --check") exit 1 ;;
esac
"""


class Machine:
    """A bundle, and a node of an older version with a file of root as its database."""

    def __init__(self, root):
        self.root = root
        self.state = root / "state"
        self.backups = self.state / "backups"
        self.file_of_root = root / "file"
        self.folder_of_root = root / "folder"
        self.file_of_root.write_text("of root")
        self.folder_of_root.mkdir(mode=0o755)
        self.backups.mkdir(parents=True)
        (self.state / "node.yml").touch()
        for path in (self.state, self.backups):
            shutil.chown(path, USER)
        self.set_database(self.file_of_root)
        (root / "prefix/current").symlink_to(root / "prefix/versions/1-old")
        self._make_bundle()

    def run(self, command):
        """Run a command of the installer as root."""
        options = {
            "--prefix": self.root / "prefix",
            "--state": self.state,
            "--user": USER,
            "--python": sys.executable,
        }
        words = ["sh", self.root / INSTALLER.name, command, "--no-service"]
        for option, value in options.items():
            words += [option, value]
        return subprocess.run(
            words,
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
        )

    def set_database(self, file):
        """Have the configuration name a file as the database."""
        for version in ("1-old", "2-new"):
            self._install(version, file)

    def belongings_of_root(self):
        """Return content, owners and modes of the file and the folder of root."""
        belongings = [self.file_of_root.read_text(), os.listdir(self.folder_of_root)]
        for path in (self.file_of_root, self.folder_of_root):
            state = path.stat()
            belongings += [state.st_uid, state.st_mode]
        return belongings

    def _install(self, version, database):
        programs = {
            "bfia-gateway": PROGRAM,
            "python": f"#!/bin/sh\necho {database}\n",
        }
        folder = self.root / "prefix/versions" / version
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        (folder / ".complete").touch()
        for name, content in programs.items():
            program = folder / "bin" / name
            program.write_text(content)
            program.chmod(0o755)

    def _make_bundle(self):
        shutil.copy(INSTALLER, self.root)
        release = self.root / "release.env"
        release.write_text(
            f"VERSION=2\nCOMMIT=new\nMACHINE={platform.machine()}\nGLIBC=2.17\n",
        )
        line = f"{checksums.sha256_of(release)}  {release.name}\n"
        (self.root / checksums.NAME).write_text(line)


@pytest.fixture
def machine():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        yield Machine(root)


def test_an_upgrade_and_the_way_back_with_an_untouched_node(machine):
    database = machine.state / "gateway.db"
    database.touch()
    shutil.chown(database, USER)
    machine.set_database(database)
    current = machine.root / "prefix/current"

    upgrade = machine.run("upgrade")
    assert upgrade.returncode == 0, upgrade.stderr
    assert current.resolve().name == "2-new"
    (backup,) = machine.backups.iterdir()
    assert backup.owner() == USER

    rollback = machine.run("rollback")
    assert rollback.returncode == 0, rollback.stderr
    assert current.resolve().name == "1-old"
    (replaced,) = machine.backups.glob("replaced-*/gateway.db")
    assert replaced.owner() == USER
    assert machine.run("rollback").returncode == 1


def backups_elsewhere(machine):
    machine.backups.rmdir()
    machine.backups.symlink_to(machine.folder_of_root)


def note_elsewhere(machine):
    (machine.backups / "previous").symlink_to(machine.file_of_root)


def demo_elsewhere(machine):
    (machine.state / "demo").symlink_to(machine.folder_of_root)


def do_nothing(_):
    """Prepare nothing: the configuration names a file of root as the database."""


@pytest.mark.parametrize(
    ("prepare", "commands"),
    [
        (backups_elsewhere, ["upgrade"]),
        (note_elsewhere, ["upgrade"]),
        (demo_elsewhere, ["upgrade", "demo"]),
        (do_nothing, ["upgrade", "rollback"]),
    ],
)
def test_the_gateways_user_gets_nothing_of_root_by_an_installation(machine, prepare, commands):
    before = machine.belongings_of_root()
    prepare(machine)
    for command in commands:
        machine.run(command)
    assert machine.belongings_of_root() == before


def test_no_module_of_the_present_folder_is_run_as_root(machine):
    (machine.root / "venv.py").write_text(f"open({str(machine.file_of_root)!r}, 'w')")
    check = machine.run("check")
    assert check.returncode == 0, check.stderr
    assert machine.file_of_root.read_text() == "of root"
