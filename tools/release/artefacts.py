"""What a builder of release files takes and returns."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class ReleaseError(Exception):
    """The release cannot be made; the text is the cause and the next step."""


@dataclass(frozen=True)
class Source:
    """The files of one commit without `.git`, and the values that a release derives from it."""

    folder: Path
    commit: str
    epoch: int  # the commit's time, in seconds since 1970: SOURCE_DATE_EPOCH of every builder
    version: str


@dataclass(frozen=True)
class Component:
    """A package inside an artefact, as an SBOM lists it."""

    name: str
    version: str
    purl: str
    licence: str  # SPDX expression
    sha256: tuple[str, ...] = ()  # of its distribution files, in hex
    requires: tuple[str, ...] = ()  # names of other components of the artefact
    marker: str = ""  # environment marker (PEP 508) of a package for some machines only
    is_direct: bool = False  # needed by the artefact itself, not only by other components
    is_optional: bool = False  # part of an extra


@dataclass(frozen=True)
class Artefact:
    """A file of the release.

    ``components``: the packages that it holds or needs; None for a file without software.
    ``image_digest``: digest of the OCI image manifest inside, as ``sha256:…``; empty if none.
    """

    path: Path
    components: tuple[Component, ...] | None = None
    image_digest: str = ""


@dataclass(frozen=True)
class Build:
    """A release under construction.

    ``artefacts``: results of the builders that ran before, such as wheels for an image.
    """

    source: Source
    output: Path  # folder of the release's files
    scratch: Path  # folder for intermediate files, deleted afterwards
    artefacts: tuple[Artefact, ...] = ()

    def artefact(self, name: str) -> Artefact:
        """Return the result of an earlier builder by its file name. Raises `ReleaseError`."""
        for artefact in self.artefacts:
            if artefact.path.name == name:
                return artefact
        raise ReleaseError(f"{name} is needed by a later builder and was not built")


class Builder(Protocol):
    """Writes files of the release to ``build.output`` and returns them.

    The same source gives the same bytes: times are ``build.source.epoch``, entries are sorted, and
    nothing of the machine (paths, users, random values) goes into a file. No network is used.
    Raises `ReleaseError`.
    """

    def __call__(self, build: Build) -> Sequence[Artefact]: ...
