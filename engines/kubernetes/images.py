"""Images as their registry has them: the machines of a cluster pull them from there, by digest."""

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engines.base import ImageNotFound, PullFailed
from engines.image import Image
from engines.records import object_in
from engines.registry.client import NOT_VALID, Registry
from engines.registry.names import PullRules

_INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFEST_TYPES = (
    *_INDEX_TYPES,
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
# The header ``accept`` by the kind of the requested content
_ACCEPTED_TYPES = {"manifests": ", ".join(_MANIFEST_TYPES), "blobs": "*/*"}
# The registries' names of architectures by Linux's names
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class RegistryImage(Image):
    """An image as its registry has it now."""

    registry: str = ""  # as in `ImageName.registry`

    @property
    def reference(self) -> str:
        """``repository@digest``, by which machines pull exactly this content."""
        return self.repo_digests[0]


class RegistryImages:
    """The images of the registries that the admin allows."""

    def __init__(self, rules: PullRules) -> None:
        """``rules``: which registries images may come from."""
        self._rules = rules

    def find(self, image: str) -> RegistryImage:
        """Return an image. Raises `ImageNotFound`, `PullDenied`, `PullFailed`."""
        name = self._rules.allowed_name(image)
        try:
            with Registry(name.registry, name.repository) as registry:
                return _read_image(registry, image, name.registry, name.reference)
        except NOT_VALID as error:
            raise PullFailed(f"{name.registry} gave no valid response about {image}") from error


def _read_image(
    registry: Registry,
    image: str,
    registry_name: str,
    reference: str,
) -> RegistryImage:
    """Read an image; from an index, its image for machines like this one.

    The digest of an index counts as the image's digest: machines of other kinds run other images
    of the index than the one whose configuration is read here. Without an index, the digest of the
    configuration counts. Raises `NOT_VALID` for documents of an unexpected form.
    """
    document = _get(registry, "manifests", reference, image)
    document_digest = _sha256(document)
    manifest: Mapping[str, Any] = json.loads(document)
    index_digest = ""
    is_index = manifest.get("mediaType") in _INDEX_TYPES or "manifests" in manifest
    if is_index:
        index_digest = document_digest
        manifest = json.loads(_get(registry, "manifests", _digest_for_here(manifest), image))
    config_digest = str(manifest["config"]["digest"])
    config = object_in(
        json.loads(_get(registry, "blobs", config_digest, image)),
        "config",
    )
    return RegistryImage(
        digest=index_digest or config_digest,
        labels=object_in(config, "Labels"),
        repo_digests=(f"{_without_reference(image)}@{document_digest}",),
        config=config,
        registry=registry_name,
    )


def _digest_for_here(index: Mapping[str, Any]) -> str:
    """Return the digest of an index's manifest for machines like this one.

    If the index has none for them, the digest of its first manifest for Linux. Raises IndexError
    for an index without a manifest for Linux.
    """
    machine = platform.machine()
    architecture = _ARCHITECTURES.get(machine, machine)
    manifests = [entry for entry in index["manifests"] if entry["platform"]["os"] == "linux"]
    for manifest in manifests:
        if manifest["platform"]["architecture"] == architecture:
            return str(manifest["digest"])
    return str(manifests[0]["digest"])


def _without_reference(image: str) -> str:
    """Return an image's name without its tag or digest."""
    name = image.partition("@")[0]
    last_part = name.rpartition("/")[2]  # a colon before the last slash belongs to a port
    has_tag = ":" in last_part
    if has_tag:
        return name.rpartition(":")[0]
    return name


def _get(
    registry: Registry,
    kind: str,
    reference: str,
    image: str,
) -> bytes:
    """Return the content of a tag or digest; ``kind``: a key of `_ACCEPTED_TYPES`.

    Raises `ImageNotFound`; `PullFailed` if the content does not have the requested digest.
    """
    body = registry.get(f"{kind}/{reference}", _ACCEPTED_TYPES[kind])
    if body is None:
        raise ImageNotFound(
            f"the registry has no image {image}", "push it there, or correct its registration"
        )
    is_digest = ":" in reference
    if is_digest and reference != _sha256(body):
        raise PullFailed(f"the registry sent something else than {kind}/{reference} of {image}")
    return body


def _sha256(content: bytes) -> str:
    """Return the digest of a content as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
