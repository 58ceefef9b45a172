"""Commutative encryption of ids on Curve25519 (RFC 7748): two secrets give the same point in either
order.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

import gmpy2  # type: ignore[import-untyped]
from nacl.bindings import crypto_scalarmult
from nacl.exceptions import CryptoError
from nacl.exceptions import RuntimeError as SodiumError

from refvendor.contract import VendorError

SIZE = 32  # bytes of a secret and of a point
# The curve is v^2 = u^3 + A u^2 + u modulo P (RFC 7748, 4.1).
_P = gmpy2.mpz(2**255 - 19)
_A = 486662
# Prefix of everything that is hashed to a point, so that no other protocol computes the same
# hashes.
_DOMAIN = b"refvendor psi x25519\x00"
_MOST_HASHES = 256


class BadPoint(VendorError):
    """A peer sent bytes that are no usable point."""


def secret() -> bytes:
    """Return a new secret of `SIZE` bytes."""
    return secrets.token_bytes(SIZE)


def point(value: bytes) -> bytes:
    """Return the point of an id: its first hash that is on the curve.

    Any number is on the curve or on its twist, and a product stays where its factor was. Without
    the search, everyone who sees a product would learn one bit of the hash.
    """
    for counter in range(_MOST_HASHES):
        data = hashlib.sha512(_DOMAIN + bytes([counter]) + value).digest()
        u = gmpy2.mpz(int.from_bytes(data, "little")) % _P
        if u > 1 and _is_on_curve(u):
            return int(u).to_bytes(SIZE, "little")
    raise BadPoint("no point found for an id")


def _is_on_curve(u: gmpy2.mpz) -> bool:
    """True if the right side of the curve's equation is a square."""
    v_squared = u * (u * (u + _A) + 1) % _P
    return bool(gmpy2.legendre(v_squared, _P) == 1)


def multiply(
    scalar: bytes,
    points: Iterable[bytes],
) -> list[bytes]:
    """Encrypt points under a secret.

    Raises `BadPoint` for one of small order or of a wrong length.
    """
    return [_multiply_point(scalar, point_bytes) for point_bytes in points]


def _multiply_point(scalar: bytes, point_bytes: bytes) -> bytes:
    if len(point_bytes) != SIZE:  # the library would read beyond the end of a shorter one
        raise BadPoint(f"a point must have {SIZE} bytes")
    try:
        return crypto_scalarmult(scalar, point_bytes)
    except (SodiumError, CryptoError, ValueError, TypeError) as error:
        raise BadPoint("a point cannot be used") from error
