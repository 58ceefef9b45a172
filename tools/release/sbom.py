"""An inventory of each artefact (SBOM), in the JSON form of CycloneDX 1.6."""

import json
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.release.artefacts import Artefact, Component, Source
from tools.release.checksums import sha256_of

SUFFIX = ".cdx.json"
NAMESPACE = uuid.UUID("5a1c6a0e-6b0f-5d0c-9d5e-3d3b0a9a7c10")  # of serial numbers
KINDS = {".whl": "library", ".gz": "application", ".tar": "container"}


def write_sboms(
    source: Source,
    artefacts: Sequence[Artefact],
) -> None:
    """Write the SBOM of each artefact with software into the same folder."""
    for artefact in artefacts:
        if artefact.components is not None:
            document = sbom(source, artefact.path, artefact.components)
            text = json.dumps(document, indent=1, ensure_ascii=False)
            sbom_path(artefact.path).write_text(text + "\n", encoding="utf-8")


def sbom_path(artefact: Path) -> Path:
    """Return the path of an artefact's SBOM."""
    return artefact.with_name(artefact.name + SUFFIX)


def sbom(
    source: Source,
    path: Path,
    components: Sequence[Component],
) -> dict[str, Any]:
    """Return the SBOM of a file; the same for the same file and components."""
    checksum = sha256_of(path)
    time = datetime.fromtimestamp(source.epoch, UTC)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, checksum)}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": KINDS.get(path.suffix, "file"),
                "bom-ref": path.name,
                "name": path.name,
                "hashes": [sha256_entry(checksum)],
                "licenses": [{"expression": "Apache-2.0"}],
            },
        },
        "components": [component_entry(component) for component in components],
        "dependencies": dependency_entries(path.name, components),
    }


def component_entry(component: Component) -> dict[str, Any]:
    """Return the entry of a package. Its hashes are those of its distribution files."""
    scope = "required"
    if component.is_optional:
        scope = "optional"
    entry: dict[str, Any] = {
        "type": "library",
        "bom-ref": component.purl,
        "name": component.name,
        "version": component.version,
        "purl": component.purl,
        "scope": scope,
        "hashes": [sha256_entry(checksum) for checksum in component.sha256],
    }
    if component.licence:
        entry["licenses"] = [{"expression": component.licence}]
    if component.marker:
        entry["properties"] = [{"name": "bfia-gateway:marker", "value": component.marker}]
    return entry


def sha256_entry(checksum: str) -> dict[str, str]:
    """Return the entry of a SHA-256."""
    return {"alg": "SHA-256", "content": checksum}


def dependency_entries(
    artefact: str,
    components: Sequence[Component],
) -> list[dict[str, Any]]:
    """Return the references of each component, and of the artefact itself."""
    references: dict[str, list[str]] = defaultdict(list)
    for component in components:
        references[component.name].append(component.purl)
    direct = [component.purl for component in components if component.is_direct]
    entries = [{"ref": artefact, "dependsOn": direct}]
    for component in components:
        purls = referenced(component.requires, references)
        entries.append({"ref": component.purl, "dependsOn": purls})
    return entries


def referenced(
    names: Sequence[str],
    references: Mapping[str, list[str]],
) -> list[str]:
    """Return the references of components with some names, sorted."""
    purls: set[str] = set()
    for name in names:
        purls.update(references.get(name, []))
    return sorted(purls)


def described_file(text: str) -> tuple[str, str]:
    """Return name and SHA-256 of the file that an SBOM describes.

    Raises `LookupError`, `TypeError` and `ValueError`.
    """
    component = json.loads(text)["metadata"]["component"]
    return component["name"], component["hashes"][0]["content"]
