"""Shared by end-to-end tests: images that are built once, and the register of containers."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import docker
import docker.errors
import pytest
from filelock import FileLock

from tests.e2e.nodes import REFERENCE_IMAGE, ROOT, VENDOR
from tests.services import own_docker

# The reference vendor's image, as the user's file of registrations calls it.
USERS_IMAGE = "unionpay:2.0.0"
GATEWAY_IMAGE = "bfia-gateway:test"
BASE = os.environ.get("BFIA_TEST_BASE_IMAGE", "bfia-base:py311")


@pytest.fixture(scope="session")
def reference_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The reference vendor's image, which also has the name in the user's file."""
    script = str(VENDOR / "build_image.sh")
    with build_lock(tmp_path_factory, "reference-image") as was_built:
        if not was_built.exists():
            run(["bash", script, BASE, REFERENCE_IMAGE, str(ROOT / ".venv-vendor")])
            run(["docker", "tag", REFERENCE_IMAGE, USERS_IMAGE])
    return REFERENCE_IMAGE


@pytest.fixture(scope="session")
def gateway_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The gateway's image with Kubernetes' client, built as documented, on a local base image."""
    script = str(ROOT / "compose" / "build.sh")
    with build_lock(tmp_path_factory, "gateway-image") as was_built:
        if not was_built.exists():
            run(["docker", "rmi", "-f", GATEWAY_IMAGE])  # an earlier session's
            run(
                ["bash", script, BASE, GATEWAY_IMAGE],
                PYTHON=sys.executable,
                EXTRA="k8s",
            )
    return GATEWAY_IMAGE


@pytest.fixture(scope="session")
def mariadb_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A MariaDB image from Debian's packages, kept for later runs until its sources change."""
    image = os.environ.get("BFIA_TEST_MARIADB_IMAGE")
    if image:
        return image
    if not shutil.which("apt-get"):
        pytest.skip(
            "MariaDB's image is made from Debian's packages, or named by BFIA_TEST_MARIADB_IMAGE"
        )
    folder = ROOT / "tests" / "images" / "mariadb"
    make_base = ROOT / ".ci" / "mkbase.sh"
    sources = [make_base, *sorted(file for file in folder.iterdir() if file.is_file())]
    content = b"".join(file.read_bytes() for file in sources)
    tag = f"bfia-test-mariadb:{hashlib.sha256(content).hexdigest()[:12]}"
    base = f"{tag}-base"
    with (
        build_lock(tmp_path_factory, "mariadb-image"),
        contextlib.closing(docker.from_env(timeout=120)) as client,
    ):
        if not client.images.list(tag):
            packages = (folder / "packages.txt").read_text().split()
            scratch = str(tmp_path_factory.mktemp("mariadb"))
            run(["bash", str(make_base), scratch, base, *packages])
            client.images.build(
                path=str(folder),
                tag=tag,
                buildargs={"BASE": base},
                rm=True,
            )
            client.images.remove(base)
    return tag


@contextlib.contextmanager
def small_image(
    folder: Path,
    name: str,
    lines: Iterable[str],
    *files: str | Path,
) -> Iterator[str]:
    """Build an image from lines of a Dockerfile, files and folders; remove it at the end."""
    folder.mkdir()
    for file in map(Path, files):
        if file.is_dir():
            shutil.copytree(
                file,
                folder / file.name,
                ignore=shutil.ignore_patterns("__pycache__"),
            )
        else:
            shutil.copy(file, folder)
    (folder / "Dockerfile").write_text("\n".join(lines))
    with contextlib.closing(own_docker.Daemon()) as client:
        client.images.build(
            path=str(folder),
            tag=name,
            rm=True,
        )
        yield name
        with contextlib.suppress(docker.errors.ImageNotFound):
            client.images.remove(name, force=True)


@contextlib.contextmanager
def build_lock(
    factory: pytest.TempPathFactory,
    name: str,
) -> Iterator[Path]:
    """Let one worker at a time build something; yield the file that exists once it was built."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Workers share the parent. Without workers all sessions do, and an old image would count.
        shared = shared.parent
    was_built = shared / name
    with FileLock(f"{was_built}.lock"):
        yield was_built
        was_built.touch()


def run(command: list[str], **environment: str) -> None:
    """Run a command that builds an image. Raises `AssertionError` with its output if it fails."""
    process = subprocess.run(
        command,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.fixture
def register(tmp_path: Path) -> Path:
    """The folder where each container registers its start."""
    folder = tmp_path / "register"
    folder.mkdir()
    return folder
