"""What end-to-end tests share: the image of the reference vendor, and where containers say that they are there."""

import os
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

from tests.e2e.nodes import ROOT, VENDOR

IMAGES = ("unionpay:2.0.0", "bfia-reference-vendor:1.0.0")


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


@pytest.fixture
def register(tmp_path: Path) -> Path:
    """Where each container says that it is there."""
    (tmp_path / "register").mkdir()
    return tmp_path / "register"
