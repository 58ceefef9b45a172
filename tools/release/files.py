"""Builders of the files that are no packages: deployment, documents and the list of changes."""

import gzip
import io
import re
import shutil
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.release.artefacts import Artefact, Build, ReleaseError
from tools.release.image_references import write_references

CHANGES = "CHANGELOG.md"
DOCUMENTS = (
    "docs",
    "README.md",
    "README.zh-CN.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE",
    CHANGES,
)
IMAGE_TAG = re.compile(r"\bbfia-gateway:(\d[\w.-]*)")


def build_deployment(build: Build) -> list[Artefact]:
    """Pack the files for Compose, Kubernetes, Swarm, systemd and monitoring.

    Some of them name the release's images by their digests. Raises `ReleaseError` if a file names
    another version of the image.
    """
    folder = build.source.folder
    refuse_other_versions(folder / "compose", build.source.version)
    write_references(folder / "compose", build.artefacts)
    return [pack(build, "deployment", ["compose", "LICENSE"])]


def build_documents(build: Build) -> list[Artefact]:
    """Pack the documents in both languages."""
    return [pack(build, "documents", DOCUMENTS)]


def build_changes(build: Build) -> list[Artefact]:
    """Copy the list of changes, which people read before they install."""
    path = build.output / CHANGES
    shutil.copyfile(build.source.folder / CHANGES, path)
    return [Artefact(path)]


def refuse_other_versions(folder: Path, version: str) -> None:
    """Raise `ReleaseError` if a file names an image of the gateway with another version."""
    for path in files_below(folder):
        for tag in IMAGE_TAG.findall(path.read_text(encoding="utf-8")):
            if tag != version:
                name = path.relative_to(folder.parent)
                raise ReleaseError(f"{name} names bfia-gateway:{tag}; the version is {version}")


def pack(
    build: Build,
    kind: str,
    names: Sequence[str],
) -> Artefact:
    """Pack files and folders of the sources into a compressed archive."""
    folder = build.source.folder
    paths: list[Path] = []
    for name in names:
        paths.extend(files_below(folder / name))
    return pack_files(build, kind, folder, paths)


def pack_folder(
    build: Build,
    kind: str,
    folder: Path,
) -> Artefact:
    """Pack all files of a folder into a compressed archive."""
    return pack_files(build, kind, folder, files_below(folder))


def pack_files(
    build: Build,
    kind: str,
    folder: Path,
    paths: Iterable[Path],
) -> Artefact:
    """Pack files into a compressed archive, at their places below ``folder``."""
    root = f"bfia-gateway-{build.source.version}-{kind}"
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in paths:
            member = Path(root) / path.relative_to(folder)
            add_file(tar, path, str(member), build.source.epoch)
    output = build.output / f"{root}.tar.gz"
    compressed = gzip.compress(archive.getvalue(), mtime=build.source.epoch)
    output.write_bytes(compressed)
    return Artefact(output)


def files_below(path: Path) -> list[Path]:
    """Return the files of a folder in a fixed order; of a file, the file itself."""
    if path.is_file():
        return [path]
    return sorted(entry for entry in path.rglob("*") if entry.is_file())


def add_file(
    tar: tarfile.TarFile,
    path: Path,
    name: str,
    epoch: int,
) -> None:
    """Add a file to an archive without the machine's times, users and permissions."""
    member = tarfile.TarInfo(name)
    member.size = path.stat().st_size
    member.mtime = epoch
    member.mode = 0o644
    if path.stat().st_mode & 0o100:
        member.mode = 0o755
    with path.open("rb") as file:
        tar.addfile(member, file)
