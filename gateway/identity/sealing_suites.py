"""The ciphers of sealed messages: how a content key is wrapped, and how content is encrypted.

The kind of the recipient's sealing key decides: HPKE (RFC 9180) with X25519 and AES-256-GCM, or
SM2 and SM4-GCM.
"""

from collections.abc import Mapping
from typing import Protocol, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import SM4
from cryptography.hazmat.primitives.ciphers.modes import GCM
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from route_table import sm2
from route_table.certificates import SealingKey

# A key to which messages for this node are sealed.
SealingPrivateKey = X25519PrivateKey | sm2.PrivateKey

TAG_BYTES = 16  # by which a sealed content is longer than the plain one, with every cipher
NONCE_BYTES = 12

_HPKE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


class NotOpened(ValueError):
    """A wrapped key or a content cannot be opened: it is damaged, or for another recipient."""


class Aead(Protocol):
    """Encrypts contents with one content key."""

    def encrypt(
        self,
        nonce: bytes,
        content: bytes,
        associated_data: bytes,
    ) -> bytes:
        """Return the encrypted content, which is longer by `TAG_BYTES`."""

    def decrypt(
        self,
        nonce: bytes,
        sealed: bytes,
        associated_data: bytes,
    ) -> bytes:
        """Return the plain content. Raises `InvalidTag`."""


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

    def aead(self, content_key: bytes) -> Aead:
        return AESGCM(content_key)


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

    def aead(self, content_key: bytes) -> Aead:
        return _Sm4Gcm(content_key)


class _Sm4Gcm:
    """SM4 in Galois/Counter Mode."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def encrypt(
        self,
        nonce: bytes,
        content: bytes,
        associated_data: bytes,
    ) -> bytes:
        encryptor = Cipher(SM4(self._key), GCM(nonce)).encryptor()
        encryptor.authenticate_additional_data(associated_data)
        return encryptor.update(content) + encryptor.finalize() + encryptor.tag

    def decrypt(
        self,
        nonce: bytes,
        sealed: bytes,
        associated_data: bytes,
    ) -> bytes:
        if len(sealed) < TAG_BYTES:
            raise InvalidTag
        content = memoryview(sealed)[:-TAG_BYTES]
        decryptor = Cipher(SM4(self._key), GCM(nonce, sealed[-TAG_BYTES:])).decryptor()
        decryptor.authenticate_additional_data(associated_data)
        return decryptor.update(content) + decryptor.finalize()


_X25519: SealingSuite = _X25519Suite()
_SM2: SealingSuite = _Sm2Suite()

SUITES: Mapping[str, SealingSuite] = {suite.name: suite for suite in (_X25519, _SM2)}


def suite_for(key: SealingKey | SealingPrivateKey) -> SealingSuite:
    """Return the suite for a kind of key."""
    if isinstance(key, X25519PublicKey | X25519PrivateKey):
        return _X25519
    return _SM2
