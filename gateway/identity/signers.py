"""Signing keys outside this process: in a PKCS#11 token, or behind a command.

A node may keep the private key of its signed statements there, so that no file of the gateway holds
it. The public key is configured, and every signature is verified with it before it is used.
"""

from typing import Protocol

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from gateway.errors import SigningFailed
from gateway.identity.keys import is_valid_signature
from route_table.certificates import encode_key, key_pin, public_key, signature_algorithm

SIGN_TIMEOUT = 10.0  # seconds for one signature; a token or command that needs longer has failed
SIGNATURE_UNUSABLE = "SIGNATURE_UNUSABLE"  # reason of a failure; see gateway/language/reasons.yml
SIGNER_TIMEOUT = "SIGNER_TIMEOUT"  # the same
_NUMBER_SIZE = 32  # bytes of each of the two numbers of a signature of ECDSA on P-256, or of SM2
_TWO_NUMBERS = ("ecdsa-p256-sha256", "sm2")  # algorithms whose signatures are two numbers


class Signer(Protocol):
    """A key that signs statements; `gateway.identity.keys.KeyPair` is one, too."""

    @property
    def id(self) -> str:
        """``sha256:`` and the hexadecimal digest of the public key (SubjectPublicKeyInfo)."""

    @property
    def algorithm(self) -> str:
        """One of `gateway.identity.keys.KEY_GENERATORS`."""

    @property
    def public(self) -> str:
        """The public key in the form of routes: base64 of its SubjectPublicKeyInfo."""

    def sign(self, content: bytes) -> bytes:
        """Return the signature in the form of RFC 9421. Raises `SigningFailed`."""


class KeyHolder(Protocol):
    """The place of a private key that this process cannot read."""

    def signature(self, content: bytes, algorithm: str) -> bytes:
        """Return a signature over ``content``, unverified; two numbers may be in DER.

        Takes at most `SIGN_TIMEOUT` seconds. Raises `SigningFailed`.
        """


class ExternalSigner:
    """A `Signer` whose private key lies elsewhere."""

    def __init__(self, public: str, holder: KeyHolder) -> None:
        """``public``: the public key in the form of routes. Raises `ValueError` for any other."""
        self._public_key = public_key(public)
        self._holder = holder
        self.public = encode_key(self._public_key)
        self.id = key_pin(self._public_key)
        self.algorithm = signature_algorithm(self._public_key)

    def sign(self, content: bytes) -> bytes:
        """Return the verified signature in the form of RFC 9421. Raises `SigningFailed`."""
        signature = self._holder.signature(content, self.algorithm)
        if self.algorithm in _TWO_NUMBERS:
            signature = _without_der(signature)
        if not self._is_valid(signature, content):
            raise SigningFailed(
                f"the signature is not one of the configured public key {self.id}",
                reason=SIGNATURE_UNUSABLE,
            )
        return signature

    def _is_valid(self, signature: bytes, content: bytes) -> bool:
        """Return whether the public key confirms a signature of any form."""
        try:
            return is_valid_signature(self._public_key, signature, content)
        except (ValueError, UnsupportedAlgorithm):
            return False


def _without_der(signature: bytes) -> bytes:
    """Return two numbers as RFC 9421 joins them, if they are in DER; any other bytes unchanged.

    Tokens join the numbers; OpenSSL and key services write them in DER.
    """
    if len(signature) == 2 * _NUMBER_SIZE:
        return signature
    try:
        r, s = decode_dss_signature(signature)
        return r.to_bytes(_NUMBER_SIZE, "big") + s.to_bytes(_NUMBER_SIZE, "big")
    except (ValueError, OverflowError):
        return signature
