"""Builder of the documentation as a site, which needs no server and no network."""

import os
import subprocess
import sys
from pathlib import Path

from tools.release.artefacts import Artefact, Build, ReleaseError
from tools.release.files import pack_folder

FOLDER = "site"  # of the built pages, in the scratch folder of a release
ROOT = Path(__file__).resolve().parents[2]  # has the environment of MkDocs


def build_site(build: Build) -> list[Artefact]:
    """Build the pages of the sources and pack them. Raises `ReleaseError`."""
    pages = build.scratch / FOLDER
    sources = build.source.folder
    environment = os.environ | {
        "PYTHONPATH": f"{sources}:{sources / 'clients' / 'python'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SOURCE_DATE_EPOCH": str(build.source.epoch),
    }
    result = subprocess.run(
        [sys.executable, "-m", "tools.site", "build", str(pages), "--tools", str(ROOT)],
        cwd=sources,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise ReleaseError(f"the site was not built: {result.stderr.strip()}")
    return [pack_folder(build, "site", pages)]
