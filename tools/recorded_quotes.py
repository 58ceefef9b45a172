"""Fetches recorded quotes of SGX and TDX for the tests: `make` calls it.

They are part of the source of a published package, whose hash is pinned. Its build needs a compiler
of Rust; the quotes do not, so pip meets a build tool that only states the package's name.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

REQUIREMENTS = Path("requirements/recorded-quotes.txt")
_FOLDER = "sample"  # in the source

# In place of the package's build tool. pip asks it for the metadata alone.
_BUILD_TOOL = """\
import pathlib


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = pathlib.Path(folder, "dcap_qvl-0.7.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: dcap-qvl\\nVersion: 0.7.0\\n")
    return info.name
"""


def fetch(target: Path) -> None:
    """Write the recorded quotes into a folder."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "maturin.py").write_text(_BUILD_TOOL)
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"),
                *("--no-deps", "--no-binary", ":all:", "--no-build-isolation"),
                *("--require-hashes", "-r", str(REQUIREMENTS), "-d", folder),
            ],
            env={"PYTHONPATH": folder} | _environment(),
            check=True,
        )
        (archive,) = home.glob("*.tar.gz")
        target.mkdir(parents=True, exist_ok=True)
        _extract(archive, target)


def _environment() -> dict[str, str]:
    """Return the environment of this process without its own path of modules."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _extract(archive: Path, target: Path) -> None:
    """Write the files of the folder with the quotes."""
    with tarfile.open(archive) as source:
        for member in source.getmembers():
            path = Path(member.name)
            if member.isfile() and path.parts[1:-1] == (_FOLDER,):
                content = source.extractfile(member)
                assert content is not None
                (target / path.name).write_bytes(content.read())


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
