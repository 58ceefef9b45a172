"""Images as their registry has them: the machines of a cluster fetch them there, by digest."""

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engines.base import ImageNotFound, PullFailed
from engines.docker.images import Image as AnyImage
from engines.docker.images import PullRules
from engines.docker.registry import NOT_VALID, Registry

_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS = ", ".join(
    (
        *_INDEXES,
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image(AnyImage):
    """An image as its registry has it just now."""

    registry: str = ""

    @property
    def reference(self) -> str:
        """Return ``repository@digest``, by which machines fetch this content and no other."""
        return self.repo_digests[0]


class Images:
    """What the registries that the admin allows have."""

    def __init__(self, rules: PullRules) -> None:
        self._rules = rules

    def find(self, name: str) -> Image:
        """Return an image. Raises `ImageNotFound`, `PullDenied`, `PullFailed`."""
        registry, repository, reference = self._rules.place_of(name)
        try:
            with Registry(registry, repository) as there:
                return _read(there, name, registry, reference)
        except NOT_VALID as error:
            raise PullFailed(f"{registry} gave no valid response about {name}") from error


def _read(
    there: Registry,
    name: str,
    registry: str,
    reference: str,
) -> Image:
    body = _get(there, "manifests", reference, name)
    whole = f"sha256:{hashlib.sha256(body).hexdigest()}"
    manifest: Mapping[str, Any] = json.loads(body)
    if indexed := manifest.get("mediaType") in _INDEXES or "manifests" in manifest:
        manifest = json.loads(_get(there, "manifests", _of_this_kind(manifest), name))
    about = str(manifest["config"]["digest"])
    config = json.loads(_get(there, "blobs", about, name)).get("config") or {}
    # the name without its tag or digest; a colon before a slash belongs to a port
    bare = name.partition("@")[0]
    bare = bare.rpartition(":")[0] if ":" in bare.rpartition("/")[2] else bare
    # machines of other kinds may run more than the configuration read here
    return Image(
        whole if indexed else about,
        config.get("Labels") or {},
        (f"{bare}@{whole}",),
        config,
        registry,
    )


def _of_this_kind(index: Mapping[str, Any]) -> str:
    """Return the digest of an index's manifest for machines like this one, else of the first for Linux."""
    wanted = _ARCHITECTURES.get(platform.machine(), platform.machine())
    linux = [one for one in index["manifests"] if one["platform"]["os"] == "linux"]
    return str(
        next((one for one in linux if one["platform"]["architecture"] == wanted), linux[0])[
            "digest"
        ]
    )


def _get(
    there: Registry,
    kind: str,
    reference: str,
    name: str,
) -> bytes:
    """Return what has a tag or digest. Raises `PullFailed` for something else than what the digest stands for."""
    body = there.get(f"{kind}/{reference}", _MANIFESTS if kind == "manifests" else "*/*")
    if body is None:
        raise ImageNotFound(
            f"the registry has no image {name}", "push it there, or correct its registration"
        )
    if ":" in reference and reference != f"sha256:{hashlib.sha256(body).hexdigest()}":
        raise PullFailed(f"the registry sent something else than {kind}/{reference} of {name}")
    return body
