"""The builders of a release, in the order in which they run, and the release as a whole."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tools.release.artefacts import Artefact, Build, Builder, ReleaseError
from tools.release.checksums import write_checksums
from tools.release.files import build_changes, build_deployment, build_documents
from tools.release.machines import build_aarch64, build_x86_64
from tools.release.packages import build_client, build_gateway, build_reference_vendor
from tools.release.provenance import write_provenance
from tools.release.sbom import write_sboms
from tools.release.site import build_site
from tools.release.source import export

ROOT = Path(__file__).resolve().parents[2]

# Made from the sources alone, in seconds.
PACKAGES: tuple[Builder, ...] = (
    build_gateway,
    build_client,
    build_reference_vendor,
)
# Made by MkDocs, in half a minute; the bundles hold its pages.
PAGES: tuple[Builder, ...] = (build_site,)
# Made from packages and from Debian's, in minutes.
IMAGES: tuple[Builder, ...] = (
    build_x86_64,
    build_aarch64,
)
# Made from the sources and the digests of images.
FILES: tuple[Builder, ...] = (
    build_deployment,
    build_documents,
    build_changes,
)
BUILDERS = (*PACKAGES, *PAGES, *IMAGES, *FILES)
WITHOUT_IMAGES = (*PACKAGES, *FILES)


def build_release(
    folder: Path,
    revision: str,
    builders: Sequence[Builder] = BUILDERS,
) -> None:
    """Build every file of a release except the signatures.

    Raises `ReleaseError`, also for a folder with files.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ReleaseError(f"{folder} is not empty: empty it, or name another folder")
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        source = export(ROOT, revision, scratch / "source")
        artefacts = build_artefacts(Build(source, folder, scratch), builders)
        write_sboms(source, artefacts)
        write_provenance(source, folder)
    write_checksums(folder)


def build_artefacts(build: Build, builders: Sequence[Builder]) -> tuple[Artefact, ...]:
    """Run builders; return all files. Raises `ReleaseError` if one wrote no file."""
    for builder in builders:
        artefacts = tuple(checked(builder(build)))
        build = replace(build, artefacts=build.artefacts + artefacts)
    return build.artefacts


def checked(artefacts: Iterable[Artefact]) -> Iterator[Artefact]:
    """Yield artefacts whose files exist. Raises `ReleaseError` for a missing file."""
    for artefact in artefacts:
        if not artefact.path.is_file():
            raise ReleaseError(f"{artefact.path} was announced by its builder and not written")
        yield artefact
