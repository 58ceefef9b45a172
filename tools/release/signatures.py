"""Signatures of a release by an offline key (ECDSA P-256 with SHA-256).

``SHA256SUMS.sig`` has the form of ``cosign sign-blob``: the base64 of a DER signature, which
``cosign verify-blob --key`` and ``openssl dgst -verify`` check. The provenance is signed in an
envelope (DSSE). Signatures are deterministic (RFC 6979), so that a release signed again with the
same key has the same bytes.
"""

import base64
import binascii
import hashlib
import json
import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from tools.release import checksums, provenance
from tools.release.artefacts import ReleaseError

PUBLIC_KEY = "release.pub"
SIGNATURE = f"{checksums.NAME}.sig"
ENVELOPE = "provenance.dsse.json"
# Files that signing adds, which the checksums cannot list.
FILES = (PUBLIC_KEY, SIGNATURE, ENVELOPE)


class WrongSignature(Exception):
    """A file is not what the key signed; the text is the reason."""


# ------------------------------------------------------------ keys


def make_key(path: Path) -> None:
    """Write a new private key, readable by its owner only, and its public key to ``PATH.pub``.

    Raises `ReleaseError` if a file exists.
    """
    key = generate_private_key(SECP256R1())
    private = key.private_bytes(
        Encoding.PEM,
        PrivateFormat.PKCS8,
        NoEncryption(),
    )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(private)
        with path.with_name(f"{path.name}.pub").open("xb") as file:
            file.write(pem_of(key.public_key()))
    except FileExistsError as error:
        raise ReleaseError(f"{error.filename} exists: a key is never overwritten") from None


def read_private_key(path: Path) -> EllipticCurvePrivateKey:
    """Read the key that signs. Raises `ReleaseError`."""
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, TypeError, ValueError) as error:
        raise ReleaseError(
            f"{path} is not a key: {error}; make one with python -m tools.release key {path}"
        ) from error
    if not isinstance(key, EllipticCurvePrivateKey) or not is_p256(key.public_key()):
        raise ReleaseError(f"{path} is not an ECDSA key of the curve P-256")
    return key


def parse_public_key(content: bytes) -> EllipticCurvePublicKey:
    """Return the public key of a PEM file. Raises `ValueError` for any other form."""
    key = load_pem_public_key(content)
    if not isinstance(key, EllipticCurvePublicKey) or not is_p256(key):
        raise ValueError("not an ECDSA key of the curve P-256")
    if pem_of(key) != content:
        raise ValueError("not in the form in which it was written")
    return key


def is_p256(key: EllipticCurvePublicKey) -> bool:
    """True for a key of the curve P-256."""
    return isinstance(key.curve, SECP256R1)


def pem_of(key: EllipticCurvePublicKey) -> bytes:
    """Return a public key as PEM."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def fingerprint(key: EllipticCurvePublicKey) -> str:
    """Return the SHA-256 of a public key (DER) in hex, by which people compare keys."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


# ------------------------------------------------------------ signing


def sign_release(folder: Path, key: EllipticCurvePrivateKey) -> None:
    """Sign the checksums and the provenance of a release, and add the public key."""
    signature = sign((folder / checksums.NAME).read_bytes(), key)
    (folder / SIGNATURE).write_text(signature + "\n", encoding="ascii")
    payload = (folder / provenance.NAME).read_bytes()
    envelope_signature = sign(authenticated(payload), key)
    public_key = key.public_key()
    (folder / ENVELOPE).write_bytes(envelope(payload, envelope_signature, public_key))
    (folder / PUBLIC_KEY).write_bytes(pem_of(public_key))


def sign(content: bytes, key: EllipticCurvePrivateKey) -> str:
    """Return the base64 of a deterministic signature."""
    algorithm = ECDSA(SHA256(), deterministic_signing=True)
    return base64.b64encode(key.sign(content, algorithm)).decode()


def authenticated(payload: bytes) -> bytes:
    """Return the bytes that an envelope's signature covers (PAE of DSSE v1)."""
    kind = provenance.PAYLOAD_TYPE
    return f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload


def envelope(
    payload: bytes,
    signature: str,
    key: EllipticCurvePublicKey,
) -> bytes:
    """Return a DSSE envelope as the file that holds it."""
    document = {
        "payloadType": provenance.PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": fingerprint(key), "sig": signature}],
    }
    return (json.dumps(document, indent=1) + "\n").encode()


# ------------------------------------------------------------ checking


def check_signature(
    content: bytes,
    signature: str,
    key: EllipticCurvePublicKey,
) -> None:
    """Raise `WrongSignature` unless the key signed the content."""
    try:
        der = base64.b64decode(signature, validate=True)
        key.verify(der, content, ECDSA(SHA256()))
    except (binascii.Error, InvalidSignature):
        raise WrongSignature("not signed with this key") from None
    if base64.b64encode(der).decode() != signature:
        raise WrongSignature("the signature is not in its only valid form")


def check_sums(folder: Path, key: EllipticCurvePublicKey) -> None:
    """Raise `WrongSignature` unless the key signed the checksums."""
    text = (folder / SIGNATURE).read_bytes().decode("ascii", errors="replace")
    if not text.endswith("\n"):
        raise WrongSignature("the signature has no end of line")
    content = (folder / checksums.NAME).read_bytes()
    check_signature(content, text.removesuffix("\n"), key)


def check_envelope(folder: Path, key: EllipticCurvePublicKey) -> None:
    """Raise `WrongSignature` unless the envelope holds the provenance, signed with the key."""
    content = (folder / ENVELOPE).read_bytes()
    payload = (folder / provenance.NAME).read_bytes()
    try:
        (entry,) = json.loads(content)["signatures"]
        signature = str(entry["sig"])
    except (LookupError, TypeError, ValueError):
        raise WrongSignature("not a DSSE envelope with one signature") from None
    check_signature(authenticated(payload), signature, key)
    if envelope(payload, signature, key) != content:
        raise WrongSignature(f"its payload is not {provenance.NAME}")
