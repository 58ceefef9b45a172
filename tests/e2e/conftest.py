"""What end-to-end tests share: images that are built once, and where containers say that they are there."""

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

from tests.e2e.nodes import ROOT, VENDOR
from tests.services import own_docker

IMAGES = ("unionpay:2.0.0", "bfia-reference-vendor:1.0.0")
BASE = os.environ.get("BFIA_TEST_BASE_IMAGE", "bfia-base:py311")


@pytest.fixture(scope="session")
def reference_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The reference vendor's image, also under the name that the user's file has."""
    with once(tmp_path_factory, "reference-image") as done:
        if not done.exists():
            built(
                [
                    "bash",
                    str(VENDOR / "build_image.sh"),
                    BASE,
                    IMAGES[1],
                    str(ROOT / ".venv-vendor"),
                ]
            )
            built(["docker", "tag", IMAGES[1], IMAGES[0]])
    return IMAGES[1]


@pytest.fixture(scope="session")
def gateway_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The gateway's image, built as the documents say, Kubernetes' client included, on a base of no registry."""
    tag = "bfia-gateway:test"
    with once(tmp_path_factory, "gateway-image") as done:
        if not done.exists():
            built(["docker", "rmi", "-f", tag])  # that of an earlier session
            built(
                ["bash", str(ROOT / "compose" / "build.sh"), BASE, tag],
                PYTHON=sys.executable,
                EXTRA="k8s",
            )
    return tag


@pytest.fixture(scope="session")
def mariadb_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A MariaDB image from Debian's packages, kept for the next run while nothing of it changes."""
    if given := os.environ.get("BFIA_TEST_MARIADB_IMAGE"):
        return given
    if not shutil.which("apt-get"):
        pytest.skip(
            "MariaDB's image is made from Debian's packages, or named by BFIA_TEST_MARIADB_IMAGE"
        )
    folder = ROOT / "tests" / "images" / "mariadb"
    parts = [ROOT / ".ci" / "mkbase.sh", *sorted(p for p in folder.iterdir() if p.is_file())]
    tag = (
        "bfia-test-mariadb:"
        + hashlib.sha256(b"".join(p.read_bytes() for p in parts)).hexdigest()[:12]
    )
    with (
        once(tmp_path_factory, "mariadb-image"),
        contextlib.closing(docker.from_env(timeout=120)) as client,
    ):
        if not client.images.list(tag):
            packages, base = (folder / "packages.txt").read_text().split(), f"{tag}-base"
            built(["bash", str(parts[0]), str(tmp_path_factory.mktemp("mariadb")), base, *packages])
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
    """Build an image from lines of a Dockerfile and files beside it; remove it at the end."""
    folder.mkdir()
    for file in files:
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
def once(factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """Have something to oneself among all workers; the file is there if one of them was here before."""
    shared = factory.getbasetemp()
    if (
        "PYTEST_XDIST_WORKER" in os.environ
    ):  # else the parent is that of every session: an old image would do
        shared = shared.parent
    done = shared / name
    with FileLock(str(done) + ".lock"):
        yield done
        done.touch()


def built(command: list[str], **environment: str) -> None:
    """Run a command that builds an image. Raises `AssertionError` with what it said."""
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def register(tmp_path: Path) -> Path:
    """Where each container says that it is there."""
    (tmp_path / "register").mkdir()
    return tmp_path / "register"
