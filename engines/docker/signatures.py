"""Finds the cosign signatures of an image in its registry, where they have the tag ``sha256-….sig``.

They are not verified here. What a registry sends is bounded in size, number and time.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engines.base import SignatureMissing, SignatureUnchecked
from engines.docker.registry import NOT_VALID, NoAnswer, Registry, repository_of

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


def signatures_of(image: str, repo_digests: Sequence[str]) -> tuple[Signed, ...]:
    """Return the signatures of an image, of which the daemon knows these digests.

    Raises `SignatureMissing` if there are none, `SignatureUnchecked` if the registry does not say.
    """
    registry, repository, _ = repository_of(image)
    if not registry:
        raise SignatureMissing(f"{image} is not a valid image name")
    known = [repository_of(digest) for digest in repo_digests]
    digests = [digest for *of, digest in known if of == [registry, repository]]
    if not digests:
        raise SignatureMissing(
            f"the image {image} was never pulled from its registry, or pushed: push it, sign it there, pull it"
        )
    with Registry(registry, repository) as there:
        found = [one for digest in digests for one in _signatures(there, digest)]
    if not found:
        names = ", ".join(digests)
        raise SignatureMissing(f"{image} has no signature ({names}) in {registry}: cosign sign --key … {image}")
    return tuple(found[:_MOST])


def _signatures(there: Registry, digest: str) -> Iterator[Signed]:
    """Yield the signatures of the manifest with this digest."""
    manifest = _ask(there, f"manifests/{digest.replace(':', '-')}.sig", _MANIFESTS)
    try:
        layers = json.loads(manifest or "{}").get("layers", ())
        signed = [
            (layer["digest"], str(layer["annotations"][_SIGNATURE]))
            for layer in layers[:_MOST]
            if layer["mediaType"] == _SIMPLE and re.fullmatch("sha256:[0-9a-f]{64}", layer["digest"])
        ]
    except NOT_VALID:
        return
    for name, signature in signed:
        payload = _ask(there, f"blobs/{name}", "*/*")
        if payload is not None and f"sha256:{hashlib.sha256(payload).hexdigest()}" == name:
            yield Signed(payload, signature, digest)


def _ask(there: Registry, path: str, accept: str) -> bytes | None:
    try:
        return there.get(path, accept)
    except NoAnswer as error:
        raise SignatureUnchecked(f"whether the image is signed is unknown: {error}") from error
