"""How the files of a release came about: an in-toto statement with SLSA's provenance predicate."""

import json
import platform
import zlib
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tools.release.artefacts import Source
from tools.release.checksums import sha256_of

NAME = "provenance.json"
BUILD_TYPE = "urn:bfia-gateway:release-build:1"
BUILDER = "urn:bfia-gateway:tools.release"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
# Files of the sources that fix what goes into artefacts and what builds them.
MATERIALS = (
    "requirements/dev.txt",
    "requirements/gateway-all.txt",
    "examples/reference_vendor/requirements.txt",
    "tools/release/bundle/pip.txt",
    "tools/release/images/debian-amd64.lock",
    "tools/release/images/debian-arm64.lock",
    "pyproject.toml",
)


def write_provenance(source: Source, folder: Path) -> None:
    """Write the statement on every file in a folder."""
    document = statement(source, sorted(folder.iterdir()))
    text = json.dumps(document, indent=1) + "\n"
    (folder / NAME).write_text(text, encoding="utf-8")


def statement(source: Source, files: Iterable[Path]) -> dict[str, Any]:
    """Return the statement on some files."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [resource(path.name, sha256_of(path)) for path in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "command": "python -m tools.release build",
                    "commit": source.commit,
                    "version": source.version,
                },
                "internalParameters": {"SOURCE_DATE_EPOCH": source.epoch},
                "resolvedDependencies": materials(source),
            },
            "runDetails": {
                "builder": {
                    "id": BUILDER,
                    "version": builder_versions(),
                },
            },
        },
    }


def resource(name: str, checksum: str) -> dict[str, Any]:
    """Return a file as in-toto describes it."""
    return {"name": name, "digest": {"sha256": checksum}}


def materials(source: Source) -> list[dict[str, Any]]:
    """Return the commit, and the files that fix the versions of tools and dependencies."""
    commit = {"name": "source", "digest": {"gitCommit": source.commit}}
    files = [resource(name, sha256_of(source.folder / name)) for name in MATERIALS]
    return [commit, *files]


def builder_versions() -> dict[str, str]:
    """Return the versions of the tools on which the bytes of the packages depend."""
    return {
        "python": platform.python_version(),
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
        "hatchling": version("hatchling"),
    }


def subjects_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of each file that a statement names. Raises `LookupError`, `TypeError`."""
    return {entry["name"]: entry["digest"]["sha256"] for entry in document["subject"]}
