"""A release from a fresh clone: built twice, verified, installed by pip alone, and its demo."""

import sys
from pathlib import Path

import pytest

from tests.e2e.nodes import ROOT
from tests.release.commands import run

pytestmark = pytest.mark.scale

PINNED = ("requirements/gateway.txt", "examples/reference_vendor/requirements.txt")


@pytest.fixture
def clone(tmp_path):
    folder = tmp_path / "clone"
    run(
        "git",
        "clone",
        "--quiet",
        "--no-local",
        str(ROOT),
        str(folder),
        folder=tmp_path,
    )
    return folder


def release_command(clone, *words):
    """Run a command of the release's tools in the clone, with the libraries of this environment."""
    return run(
        sys.executable,
        "-m",
        "tools.release",
        *words,
        folder=clone,
    )


def pip(environment, *words):
    run(
        str(environment / "bin" / "python"),
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        *words,
        folder=environment,
    )


def test_a_fresh_clone_gives_a_release_that_installs_and_trains(clone, tmp_path):
    key = tmp_path / "release.key"
    release = tmp_path / "release"
    second = tmp_path / "second"
    release_command(clone, "key", str(key))
    release_command(clone, "build", str(release), "--without-images", "--key", str(key))
    release_command(clone, "verify", str(release), "--public-key", f"{key}.pub")
    release_command(clone, "build", str(second), "--without-images", "--key", str(key))
    assert contents(second) == contents(release)

    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", str(environment), folder=tmp_path)
    for requirements in PINNED:
        pip(environment, "install", "--require-hashes", "-r", str(clone / requirements))
    for pattern in ("bfia_gateway-*.whl", "bfia_reference_vendor-*.whl"):
        (wheel,) = release.glob(pattern)
        pip(environment, "install", "--no-index", str(wheel))
    pip(environment, "check")
    command = str(environment / "bin" / "bfia-gateway")
    output = run(command, "demo", "--key-length", "1024", folder=tmp_path)
    assert "AUC, both together" in output


def contents(folder: Path):
    return {path.name: path.read_bytes() for path in folder.iterdir()}
