"""The version is known without package metadata, which a checkout with only its requirements
lacks.
"""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from gateway.version import VERSION

ROOT = Path(__file__).resolve().parents[1]

# Prints the version that a node writes into its folder, while no package is installed.
UNINSTALLED = """
import importlib.metadata, sys
def nothing(name):
    raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.version = importlib.metadata.distribution = nothing
from pathlib import Path
import gateway.bootstrap.listeners, gateway.diagnostics.doctor, adapter.bfia.interconn
from gateway.http.listening_file import claim, serving
folder = Path(sys.argv[1])
with claim(folder, []):
    print(serving(folder).version)
"""


def test_a_node_that_was_not_installed_knows_its_version(tmp_path):
    command = [sys.executable, "-c", UNINSTALLED, str(tmp_path)]
    process = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.stdout.strip() == VERSION, process.stderr


def test_the_package_carries_the_same_version():
    assert version("bfia-gateway") == VERSION
