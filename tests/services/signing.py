"""Signs images in a registry as cosign does with a private key, without cosign."""

import hashlib
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.plain import NO_TLS

SIMPLE = "application/vnd.dev.cosign.simplesigning.v1+json"


def public(key: Any, folder: Path, name: str) -> Path:
    """Write a key's public half as PEM; return the file."""
    path = folder / name
    path.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return path


def text_for(digest: str) -> bytes:
    """Return the text that a signature of an image signs, by the image's digest."""
    image = {"docker-manifest-digest": digest}
    identity = {"docker-reference": "registry.example.com/acme"}
    critical = {
        "identity": identity,
        "image": image,
        "type": "cosign container image signature",
    }
    return json.dumps({"critical": critical, "optional": None}).encode()


def signature(key: Any, text: bytes) -> str:
    """Sign a text; return the signature in base64."""
    match key:
        case ec.EllipticCurvePrivateKey():
            signed = key.sign(text, ec.ECDSA(SHA256()))
        case rsa.RSAPrivateKey():
            signed = key.sign(text, padding.PKCS1v15(), SHA256())
        case ed25519.Ed25519PrivateKey():
            signed = key.sign(text)
        case _:
            raise TypeError(key)
    return b64encode(signed).decode()


def put(
    shop: str,
    repository: str,
    digest: str,
    *signatures: tuple[bytes, str],
    auth: Any = None,
) -> None:
    """Store signatures of the image with a digest: pairs of a signed text and its signature."""
    url = f"http://{shop}/v2/{repository}"
    with httpx.Client(
        base_url=url,
        auth=auth,
        timeout=120,
        trust_env=False,
        verify=NO_TLS,
    ) as http:
        layers = [
            {
                **_blob(http, text),
                "mediaType": SIMPLE,
                "annotations": {"dev.cosignproject.cosign/signature": signed},
            }
            for text, signed in signatures
        ]
        kind = "application/vnd.oci.image.manifest.v1+json"
        config = {**_blob(http, b"{}"), "mediaType": "application/vnd.oci.image.config.v1+json"}
        manifest = {
            "schemaVersion": 2,
            "mediaType": kind,
            "config": config,
            "layers": layers,
        }
        tag = digest.replace(":", "-") + ".sig"
        http.put(
            f"/manifests/{tag}", json=manifest, headers={"content-type": kind}
        ).raise_for_status()


def _blob(http: httpx.Client, content: bytes) -> dict[str, Any]:
    """Upload a blob; return its descriptor for a manifest."""
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    place = http.post("/blobs/uploads/").raise_for_status().headers["location"]
    response = http.put(
        httpx.URL(place).copy_merge_params({"digest": digest}),
        content=content,
        headers={"content-type": "application/octet-stream"},
    )
    response.raise_for_status()
    return {"digest": digest, "size": len(content)}
