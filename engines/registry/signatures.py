"""Finds the cosign signatures of an image in its registry; the caller has to verify them.

The signatures of a manifest have the tag ``sha256-….sig`` in the image's repository.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engines.base import PullDenied, PullFailed, SignatureMissing, SignatureUnchecked
from engines.registry.client import NOT_VALID, Registry
from engines.registry.names import parse_image_name, select_digests

MAX_SIGNATURES = 32  # that are read of one manifest, and that are returned of one image

_PAYLOAD_TYPE = "application/vnd.dev.cosign.simplesigning.v1+json"
_SIGNATURE = "dev.cosignproject.cosign/signature"  # annotation of a payload
# The header ``accept`` of requests for manifests
_MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.v2+json;q=0.9"
)
_SHA256 = re.compile("sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class ImageSignature:
    """One signature over a payload that names an image's digest."""

    payload: bytes
    signature: str  # base64
    digest: str  # of the signed manifest, which the payload has to name


def find_signatures(
    image: str,
    repo_digests: Sequence[str],
) -> tuple[ImageSignature, ...]:
    """Return the signatures of an image that the container daemon knows by these digests.

    ``repo_digests``: as in `ImageMetadata`. Raises `SignatureMissing` if there are no signatures,
    and for an image that was never in its registry or has an invalid name. Raises
    `SignatureUnchecked` if the registry does not say whether there are signatures.
    """
    name = parse_image_name(image)
    if name is None:
        raise SignatureMissing(f"{image} is not a valid image name")
    selected = select_digests(image, repo_digests)
    digests = [repo_digest.partition("@")[2] for repo_digest in selected]
    if not digests:
        raise SignatureMissing(
            f"the image {image} was never pulled from its registry, or pushed: push it, sign it "
            "there, pull it"
        )
    signatures: list[ImageSignature] = []
    with Registry(name.registry, name.repository) as registry:
        for digest in digests:
            signatures.extend(_signatures_of_manifest(registry, digest))
    if not signatures:
        raise SignatureMissing(
            f"{image} has no signature ({', '.join(digests)}) in {name.registry}: cosign sign "
            f"--key … {image}"
        )
    return tuple(signatures[:MAX_SIGNATURES])


def _signatures_of_manifest(registry: Registry, digest: str) -> Iterator[ImageSignature]:
    """Yield the signatures of the manifest with this digest.

    A payload that is missing, or does not have its digest, is skipped. Raises `SignatureUnchecked`.
    """
    tag = digest.replace(":", "-")
    manifest = _get(registry, f"manifests/{tag}.sig", _MANIFEST_TYPES)
    for payload_digest, signature in _signed_payloads(manifest):
        payload = _get(registry, f"blobs/{payload_digest}", "*/*")
        if payload is None:
            continue
        actual_digest = f"sha256:{hashlib.sha256(payload).hexdigest()}"
        if actual_digest == payload_digest:
            yield ImageSignature(payload, signature, digest)


def _signed_payloads(manifest: bytes | None) -> list[tuple[str, str]]:
    """Return the digest of each payload with its signature, both from the manifest.

    Empty without a manifest, and for a manifest of an unexpected form.
    """
    payloads = []
    try:
        layers = json.loads(manifest or "{}").get("layers", ())
        for layer in layers[:MAX_SIGNATURES]:
            digest = layer["digest"]
            is_payload = layer["mediaType"] == _PAYLOAD_TYPE and _SHA256.fullmatch(digest)
            if is_payload:
                payloads.append((digest, str(layer["annotations"][_SIGNATURE])))
    except NOT_VALID:
        return []
    return payloads


def _get(registry: Registry, path: str, accept: str) -> bytes | None:
    """Return the content of a path; None if there is none. Raises `SignatureUnchecked`."""
    try:
        return registry.get(path, accept)
    except (PullDenied, PullFailed) as error:
        raise SignatureUnchecked(f"whether the image is signed is unknown: {error}") from error
