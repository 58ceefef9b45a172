"""Commutative encryption of ids on Curve25519: two parties' secrets, in either order, give the same point."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

import gmpy2  # type: ignore[import-untyped]
from nacl.bindings import crypto_scalarmult
from nacl.exceptions import CryptoError
from nacl.exceptions import RuntimeError as SodiumError

from refvendor.contract import VendorError

SIZE = 32
_P = gmpy2.mpz(2**255 - 19)
_A = 486662
_DOMAIN = b"refvendor psi x25519\x00"


class BadPoint(VendorError):
    """A peer sent bytes that are no usable point."""


def secret() -> bytes:
    """Return a new secret of `SIZE` bytes."""
    return secrets.token_bytes(SIZE)


def point(value: bytes) -> bytes:
    """A point for an id, found by hashing on until one lies on the curve.

    A hash taken as it comes lies on the curve or on its twist, and multiplying keeps it there: whoever sees
    the product would learn one bit of the hash.
    """
    for counter in range(256):
        data = hashlib.sha512(_DOMAIN + bytes([counter]) + value).digest()
        u = gmpy2.mpz(int.from_bytes(data, "little")) % _P
        if u > 1 and gmpy2.legendre(u * (u * (u + _A) + 1) % _P, _P) == 1:
            return int(u).to_bytes(SIZE, "little")
    raise BadPoint("no point found for an id")


def multiply(scalar: bytes, points: Iterable[bytes]) -> list[bytes]:
    """Encrypt points under a secret. Raises `BadPoint` for one of small order or of a wrong length."""
    found = list(points)
    if any(
        len(p) != SIZE for p in found
    ):  # the library reads as many bytes as it needs, whatever is there
        raise BadPoint(f"a point must have {SIZE} bytes")
    try:
        return [crypto_scalarmult(scalar, p) for p in found]
    except (SodiumError, CryptoError, ValueError, TypeError) as error:
        raise BadPoint("a point cannot be used") from error
