"""Wheels of other projects for a machine, downloaded by their hashes."""

import subprocess
import sys
from pathlib import Path

from tools.release.artefacts import ReleaseError

# What a glibc of 2.28 (Kylin V10, openEuler 20.03) still loads, the newest form first.
MANYLINUX = (
    "manylinux_2_28",
    "manylinux_2_27",
    "manylinux_2_26",
    "manylinux_2_24",
    "manylinux_2_17",
    "manylinux2014",
    "manylinux_2_12",
    "manylinux2010",
    "manylinux_2_5",
    "manylinux1",
)
ABIS = ("cp311", "abi3", "none")


def download_wheels(
    requirements: Path,
    machine: str,
    folder: Path,
) -> list[Path]:
    """Put the wheels of a lock for a machine, such as aarch64, into an empty folder.

    Raises `ReleaseError` if a package has no wheel for the machine, or another hash.
    """
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--require-hashes", "--only-binary", ":all:", "--implementation", "cp"]
    command += ["--python-version", "3.11", "--dest", str(folder)]
    command += ["--requirement", str(requirements)]
    for abi in ABIS:
        command += ["--abi", abi]
    for name in MANYLINUX:
        command += ["--platform", f"{name}_{machine}"]
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        raise ReleaseError(
            f"not every package of {requirements.name} has a wheel for {machine}:\n"
            f"{process.stderr.strip()}"
        )
    return sorted(folder.glob("*.whl"))
