"""Encryption of inputs for the key of an attested run: X25519, HKDF and ChaCha20-Poly1305.

A stream begins with the sender's 32 byte public key. Frames follow: the length of the ciphertext
in four bytes, then the ciphertext of at most `CHUNK` bytes. The nonce counts the frames in its
last eight bytes; its first byte is 1 in the last frame, so a cut stream cannot be opened.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import BinaryIO

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)

from gateway.domain.attestation import ReportRefused

CHUNK = 1024**2  # bytes of content in a frame
_INFO = b"bfia-gateway tee input 1"
_KEY_SIZE = 32


def read_public_key(pem: str) -> X25519PublicKey:
    """Return an X25519 key. Raises `ReportRefused` (TEE_KEY_INVALID)."""
    try:
        key = load_pem_public_key(pem.encode())
    except ValueError as error:
        raise ReportRefused("TEE_KEY_INVALID", "pem_public_key must be a PEM key") from error
    if not isinstance(key, X25519PublicKey):
        raise ReportRefused("TEE_KEY_INVALID", "pem_public_key must be an X25519 key")
    return key


def key_hash(key: X25519PublicKey) -> bytes:
    """Return the SHA-256 of a key in DER form."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return sha256(der).digest()


def sealed(content: BinaryIO, recipient: X25519PublicKey) -> Iterator[bytes]:
    """Yield a file's content, encrypted for a key."""
    private = X25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    hkdf = HKDF(
        SHA256(),
        _KEY_SIZE,
        salt=public + recipient.public_bytes_raw(),
        info=_INFO,
    )
    cipher = ChaCha20Poly1305(hkdf.derive(private.exchange(recipient)))
    yield public
    number = 0
    chunk = content.read(CHUNK)
    while True:
        following = content.read(CHUNK)
        is_last = not following
        nonce = bytes([is_last]) + bytes(3) + number.to_bytes(8, "big")
        ciphertext = cipher.encrypt(nonce, chunk, None)
        yield len(ciphertext).to_bytes(4, "big") + ciphertext
        if is_last:
            return
        chunk = following
        number += 1
