"""The builders of a release, in the order in which they run."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tools.release.artefacts import Artefact, Build, Builder, ReleaseError
from tools.release.packages import build_client, build_gateway

BUILDERS: tuple[Builder, ...] = (
    build_gateway,
    build_client,
)


def build_artefacts(build: Build) -> tuple[Artefact, ...]:
    """Run every builder; return all files. Raises `ReleaseError` if one wrote no file."""
    for builder in BUILDERS:
        artefacts = tuple(checked(builder(build)))
        build = replace(build, artefacts=build.artefacts + artefacts)
    return build.artefacts


def checked(artefacts: Iterable[Artefact]) -> Iterator[Artefact]:
    """Yield artefacts whose files exist. Raises `ReleaseError` for a missing file."""
    for artefact in artefacts:
        if not artefact.path.is_file():
            raise ReleaseError(f"{artefact.path} was announced by its builder and not written")
        yield artefact
