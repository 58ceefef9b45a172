"""What end-to-end tests share: the two engines that they run on, and where containers say that they are there."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.e2e.nodes import ROOT, VENDOR, process_engine

IMAGES = ("unionpay:2.0.0", "bfia-reference-vendor:1.0.0")


@dataclass(frozen=True)
class EngineChoice:
    kind: str
    settings: dict[str, Any]


@pytest.fixture(scope="session")
def reference_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The reference vendor's image, built once for all workers, also under the name that the user's file has."""
    base = os.environ.get("BFIA_TEST_BASE_IMAGE", "bfia-base:py311")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # else the parent is that of every session: an old image would do
        shared = shared.parent
    done = shared / "reference-image"
    with FileLock(str(done) + ".lock"):
        if not done.exists():
            command = ["bash", str(VENDOR / "build_image.sh"), base, IMAGES[1], str(ROOT / ".venv-vendor")]
            built = subprocess.run(command, capture_output=True, text=True, check=False)
            assert built.returncode == 0, built.stdout + built.stderr
            subprocess.run(["docker", "tag", IMAGES[1], IMAGES[0]], check=True)
            done.touch()
    return IMAGES[1]


@pytest.fixture(params=["process", pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.slow])])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineChoice]:
    if request.param == "process":
        yield EngineChoice("process", process_engine(*IMAGES))
        return
    request.getfixturevalue("reference_image")
    yield EngineChoice("docker", {"kind": "docker"})


@pytest.fixture
def register(tmp_path: Path) -> Path:
    """Where each container says that it is there."""
    (tmp_path / "register").mkdir()
    return tmp_path / "register"
