"""Builders of the Python packages: wheels, and the source distribution of the gateway."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from tools.release.artefacts import Artefact, Build, Component, ReleaseError
from tools.release.requirements import closure, components_of

VENDOR_FOLDER = "examples/reference_vendor"


def build_gateway(build: Build) -> list[Artefact]:
    """Build the gateway's wheel and source distribution."""
    components = components_of(
        build.source.folder,
        "requirements/gateway-all.txt",
        required="requirements/gateway.txt",
    )
    return run_hatchling(build, build.source.folder, components, ["wheel", "sdist"])


def build_client(build: Build) -> list[Artefact]:
    """Build the wheel of the Python client."""
    folder = build.source.folder / "clients" / "python"
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [Requirement(line).name for line in project["dependencies"]]
    components = components_of(build.source.folder, "requirements/gateway.txt")
    return run_hatchling(build, folder, closure(components, names), ["wheel"])


def build_reference_vendor(build: Build) -> list[Artefact]:
    """Build the wheel of the reference vendor, which the demo runs."""
    folder = build.source.folder / VENDOR_FOLDER
    components = components_of(build.source.folder, f"{VENDOR_FOLDER}/requirements.txt")
    return run_hatchling(build, folder, components, ["wheel"])


def run_hatchling(
    build: Build,
    folder: Path,
    components: tuple[Component, ...],
    targets: Sequence[str],
) -> list[Artefact]:
    """Build distributions of a project. Raises `ReleaseError` with the build tool's output."""
    output = build.scratch / f"dist-{folder.name}"
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(output)]
    for target in targets:
        command += ["--target", target]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(build.source.epoch)}
    process = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        raise ReleaseError(f"{folder.name} cannot be built:\n{process.stdout}{process.stderr}")
    artefacts = []
    for path in sorted(output.iterdir()):
        destination = build.output / path.name
        shutil.move(path, destination)
        artefacts.append(Artefact(destination, components))
    return artefacts
