"""Finds the cosign signatures of an image in its registry, where they have the tag ``sha256-….sig``.

They are not verified here. What a registry sends is bounded in size, number and time.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from docker import auth
from docker.errors import DockerException
from docker.utils import parse_repository_tag

from engines.base import SignatureMissing, SignatureUnchecked
from engines.docker.registry import NoAnswer, Registry

_SIMPLE = "application/vnd.dev.cosign.simplesigning.v1+json"
_SIGNATURE = "dev.cosignproject.cosign/signature"
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json;q=0.9"
)
_MOST = 32
"""signatures of one image that are read"""


@dataclass(frozen=True)
class Signed:
    """One signature: base64 over the bytes of a text that names an image's digest."""

    payload: bytes
    signature: str
    digest: str
    """of the manifest that it was found for, which the text has to name"""


def registry_of(image: str) -> str:
    """Return the registry of an image's name: ``host[:port]``, or docker.io for a name without a host."""
    try:
        return str(auth.resolve_repository_name(parse_repository_tag(image)[0])[0])
    except DockerException:
        return ""


def signatures_of(image: str, repo_digests: Sequence[str]) -> tuple[Signed, ...]:
    """Return the signatures of an image, of which the daemon knows these digests.

    Raises `SignatureMissing` if there are none, `SignatureUnchecked` if the registry does not say.
    """
    try:
        registry, repository = auth.resolve_repository_name(parse_repository_tag(image)[0])
    except DockerException as error:
        raise SignatureMissing(f"{image} is not a valid image name: {error}") from error
    digests = [digest for digest in map(_digest, repo_digests) if digest[0] == (registry, repository)]
    if not digests:
        raise SignatureMissing(
            f"the image {image} was never pulled from its registry, or pushed: push it, sign it there, pull it"
        )
    found: list[Signed] = []
    with Registry(registry, repository) as there:
        for _, digest in digests:
            found += _signatures(there, digest)
    if not found:
        names = ", ".join(digest for _, digest in digests)
        raise SignatureMissing(f"{image} has no signature ({names}) in {registry}: cosign sign --key … {image}")
    return tuple(found[:_MOST])


def _digest(known: str) -> tuple[tuple[str, str], str]:
    name, _, digest = known.partition("@")
    with suppress(DockerException):
        return auth.resolve_repository_name(name), digest
    return ("", ""), digest


def _signatures(there: Registry, digest: str) -> Iterator[Signed]:
    """Yield the signatures of the manifest with this digest."""
    algorithm, _, code = digest.partition(":")
    manifest = _ask(there, f"manifests/{algorithm}-{code}.sig", _MANIFESTS)
    if manifest is None:
        return
    for layer in _layers(manifest)[:_MOST]:
        annotations = layer.get("annotations")
        signature = annotations.get(_SIGNATURE) if isinstance(annotations, Mapping) else None
        name = str(layer.get("digest"))
        payload = _ask(there, f"blobs/{name}", "*/*") if re.fullmatch("sha256:[0-9a-f]{64}", name) else None
        whole = payload is not None and f"sha256:{hashlib.sha256(payload).hexdigest()}" == name
        if isinstance(signature, str) and payload is not None and whole:
            yield Signed(payload, signature, digest)


def _ask(there: Registry, path: str, accept: str) -> bytes | None:
    try:
        return there.get(path, accept)
    except NoAnswer as error:
        raise SignatureUnchecked(f"whether the image is signed is unknown: {error}") from error


def _layers(manifest: bytes) -> list[Mapping[str, Any]]:
    try:
        layers = json.loads(manifest).get("layers")
    except (ValueError, AttributeError, RecursionError):
        return []
    if not isinstance(layers, list):
        return []
    return [layer for layer in layers if isinstance(layer, Mapping) and layer.get("mediaType") == _SIMPLE]
