"""Names of images, parsed as the docker command does, and the rules of what may be pulled."""

from collections.abc import Iterable
from dataclasses import dataclass

from docker import auth
from docker.errors import DockerException
from docker.utils import parse_repository_tag

from engines.base import ImageNotFound, PullDenied

DOCKER_HUB = "docker.io"
# The remedy in errors about an invalid name
IMAGE_NAME_FORM = "it reads registry.example.com/vendor/image:1.0.0, in lower case"

_LONGEST_NAME = 200  # characters of an invalid name in a message


@dataclass(frozen=True)
class ImageName:
    """The parts of an image's name."""

    registry: str  # host[:port]; docker.io for names without a host
    repository: str
    reference: str  # tag or digest; "latest" by default

    @property
    def source(self) -> tuple[str, str]:
        """The registry and the repository."""
        return self.registry, self.repository


@dataclass(frozen=True)
class PullRules:
    """What may be pulled: nothing, unless registries are named."""

    registries: frozenset[str] = frozenset()  # as in `ImageName.registry`
    max_seconds: float = 600.0  # for one image
    stale: float = 120.0  # seconds without progress after which a pull is started again, once

    def allowed_name(self, image: str) -> ImageName:
        """Parse the name of an image that may be pulled.

        Raises `ImageNotFound` for an invalid name, `PullDenied` for a registry that is not allowed.
        """
        name = parse_image_name(image)
        if name is None:
            raise invalid_name(image)
        if name.registry not in self.registries:
            allowed = ", ".join(sorted(self.registries)) or "none"
            raise PullDenied(
                f"the registry {name.registry} of the image {image} is not among "
                f"engine.docker.registries ({allowed})"
            )
        return name


def parse_image_name(image: str) -> ImageName | None:
    """Parse an image's name; None if it is not valid. A tag beside a digest is ignored."""
    try:
        name, reference = parse_repository_tag(image)
        if "@" in image:
            name, _ = parse_repository_tag(name)  # splits off the ignored tag
        registry, repository = auth.resolve_repository_name(name)
    except DockerException:
        return None
    if not repository:
        return None
    return ImageName(str(registry), str(repository), reference or "latest")


def registry_of(image: str) -> str:
    """Return the registry of an image; empty if its name is not valid."""
    name = parse_image_name(image)
    if name is None:
        return ""
    return name.registry


def select_digests(image: str, repo_digests: Iterable[str]) -> list[str]:
    """Return those of ``repo_digests`` that are in the repository of the image's name.

    ``repo_digests``: names ``repository@digest``, as in `ImageMetadata`. Empty if the name of the
    image is not valid.
    """
    name = parse_image_name(image)
    if name is None:
        return []
    selected = []
    for repo_digest in repo_digests:
        candidate = parse_image_name(repo_digest)
        if candidate is not None and candidate.source == name.source:
            selected.append(repo_digest)
    return selected


def invalid_name(image: str) -> ImageNotFound:
    """Return the error for an invalid name; it shows at most `_LONGEST_NAME` characters."""
    return ImageNotFound(f"{image[:_LONGEST_NAME]!r} is not a valid image name", IMAGE_NAME_FORM)
