"""The ciphers of sealed messages: how a content key is wrapped, and how content is encrypted.

The kind of the recipient's sealing key decides: HPKE (RFC 9180) with X25519 and AES-256-GCM, or
SM2 and SM4-GCM.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES, SM4
from cryptography.hazmat.primitives.ciphers.modes import GCM
from cryptography.hazmat.primitives.hashes import SHA256, SM3
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from route_table import sm2
from route_table.certificates import SealingKey

# A key to which messages for this node are sealed.
SealingPrivateKey = X25519PrivateKey | sm2.PrivateKey

TAG_BYTES = 16  # by which a sealed content is longer than the plain one, with every cipher

_HPKE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


class NotOpened(ValueError):
    """A wrapped key or a content cannot be opened: it is damaged, or for another recipient."""


class Aead:
    """Encrypts contents with one content key, in Galois/Counter Mode.

    Contents are lists of pieces, so that a long one is not copied as a whole.
    """

    def __init__(self, algorithm: AES | SM4) -> None:
        """``algorithm``: the cipher with the content key."""
        self._algorithm = algorithm

    def encrypt(
        self,
        nonce: bytes,
        pieces: list[bytes],
        associated_data: bytes,
    ) -> list[bytes]:
        """Return the encrypted pieces, and the tag as the last one; ``pieces`` are freed."""
        encryptor = Cipher(self._algorithm, GCM(nonce)).encryptor()
        encryptor.authenticate_additional_data(associated_data)
        encrypted = [encryptor.update(piece) for piece in _freed(pieces)]
        encryptor.finalize()
        return [*encrypted, encryptor.tag]

    def decrypt(
        self,
        nonce: bytes,
        pieces: list[bytes],
        associated_data: bytes,
    ) -> list[bytes]:
        """Return the plain pieces; ``pieces`` are freed.

        Raises `InvalidTag` for pieces that were changed, or encrypted with other data.
        """
        tag = _split_tag(pieces)
        decryptor = Cipher(self._algorithm, GCM(nonce, tag)).decryptor()
        decryptor.authenticate_additional_data(associated_data)
        plain = [decryptor.update(piece) for piece in _freed(pieces)]
        decryptor.finalize()
        return plain


def _freed(pieces: list[bytes]) -> Iterator[bytes]:
    """Yield pieces, and drop each from the list before the next one."""
    for index, piece in enumerate(pieces):
        yield piece
        pieces[index] = b""


def _split_tag(pieces: list[bytes]) -> bytes:
    """Remove the tag from the end of encrypted pieces, and return it.

    Raises `InvalidTag` if there are fewer bytes.
    """
    tail = b""
    while len(tail) < TAG_BYTES:
        if not pieces:
            raise InvalidTag
        tail = pieces.pop() + tail
    pieces.append(tail[:-TAG_BYTES])
    return tail[-TAG_BYTES:]


class SealingSuite(Protocol):
    """How content keys are wrapped for one kind of recipient's key, and used."""

    name: str  # as the header with the wrapped key has it
    key_bytes: int  # of a content key
    # The longest content for which a thread would cost more time than the cipher
    quick_bytes: int

    def wrap(
        self,
        content_key: bytes,
        recipient: SealingKey,
        info: bytes,
    ) -> bytes:
        """Return a content key that only the recipient can unwrap, with the same ``info``."""

    def unwrap(
        self,
        wrapped: bytes,
        private: SealingPrivateKey,
        info: bytes,
    ) -> bytes:
        """Return a content key. Raises `NotOpened`."""

    def derive_key(
        self,
        content_key: bytes,
        salt: bytes,
        info: bytes,
    ) -> bytes:
        """Return another content key, derived from the given one by HKDF (RFC 5869)."""

    def aead(self, content_key: bytes) -> Aead:
        """Return the cipher for contents."""


class _X25519Suite:
    """HPKE's single-shot mode for content keys, AES-256-GCM for contents."""

    name = "x25519-aes256gcm"
    key_bytes = 32
    quick_bytes = (1 << 21) + TAG_BYTES  # a part of a message takes 0.2 ms

    def wrap(
        self,
        content_key: bytes,
        recipient: SealingKey,
        info: bytes,
    ) -> bytes:
        return _HPKE.encrypt(content_key, cast(X25519PublicKey, recipient), info=info)

    def unwrap(
        self,
        wrapped: bytes,
        private: SealingPrivateKey,
        info: bytes,
    ) -> bytes:
        try:
            return _HPKE.decrypt(wrapped, cast(X25519PrivateKey, private), info=info)
        except (InvalidTag, ValueError) as error:
            raise NotOpened from error

    def derive_key(
        self,
        content_key: bytes,
        salt: bytes,
        info: bytes,
    ) -> bytes:
        return HKDF(SHA256(), self.key_bytes, salt, info).derive(content_key)

    def aead(self, content_key: bytes) -> Aead:
        return Aead(AES(content_key))


class _Sm2Suite:
    """SM2 encryption (GB/T 32918.4) for content keys, SM4-GCM for contents.

    SM2 binds no ``info``: the signature of the wrapped key does.
    """

    name = "sm2-sm4gcm"
    key_bytes = 16
    quick_bytes = 1 << 14  # 0.4 ms

    def wrap(
        self,
        content_key: bytes,
        recipient: SealingKey,
        info: bytes,
    ) -> bytes:
        return cast(sm2.PublicKey, recipient).encrypt(content_key)

    def unwrap(
        self,
        wrapped: bytes,
        private: SealingPrivateKey,
        info: bytes,
    ) -> bytes:
        try:
            content_key = cast(sm2.PrivateKey, private).decrypt(wrapped)
        except ValueError as error:
            raise NotOpened from error
        if len(content_key) != self.key_bytes:
            raise NotOpened
        return content_key

    def derive_key(
        self,
        content_key: bytes,
        salt: bytes,
        info: bytes,
    ) -> bytes:
        return HKDF(SM3(), self.key_bytes, salt, info).derive(content_key)

    def aead(self, content_key: bytes) -> Aead:
        return Aead(SM4(content_key))


_X25519: SealingSuite = _X25519Suite()
_SM2: SealingSuite = _Sm2Suite()

SUITES: Mapping[str, SealingSuite] = {suite.name: suite for suite in (_X25519, _SM2)}


def suite_for(key: SealingKey | SealingPrivateKey) -> SealingSuite:
    """Return the suite for a kind of key."""
    if isinstance(key, X25519PublicKey | X25519PrivateKey):
        return _X25519
    return _SM2
