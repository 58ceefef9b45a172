"""The version is told without package metadata: a checkout with its requirements alone has none."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from gateway.version import VERSION

ROOT = Path(__file__).resolve().parents[1]

UNINSTALLED = """
import importlib.metadata, sys
def nothing(name):
    raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.version = importlib.metadata.distribution = nothing
from pathlib import Path
import gateway.bootstrap.listeners, gateway.diagnostics.doctor, adapter.bfia.interconn
from gateway.http.server import claimed, serving
here = Path(sys.argv[1])
with claimed(here, []):
    print(serving(here).version)
"""


def test_a_node_that_was_not_installed_knows_its_version(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNINSTALLED, str(tmp_path)]
    told = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.stdout.strip() == VERSION, told.stderr


def test_what_is_built_carries_the_same_version() -> None:
    assert version("bfia-gateway") == VERSION
