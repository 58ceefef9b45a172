"""The hash functions that parties may agree on, and their expansion to any length."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

HASHES = ("md5", "sha1", "sha256", "sha512", "sm3")


@cache
def available() -> tuple[str, ...]:
    """Return the hashes of `HASHES` that this installation computes; not every OpenSSL has SM3."""
    return tuple(name for name in HASHES if _is_available(name))


def _is_available(name: str) -> bool:
    try:
        hashlib.new(
            name,
            b"",
            usedforsecurity=False,
        )
    except ValueError:
        return False
    return True


def digest(name: str, *parts: bytes) -> bytes:
    """Return the hash of all parts joined together."""
    state = hashlib.new(
        name,
        usedforsecurity=False,
    )
    for part in parts:
        state.update(part)
    return state.digest()


def expand(
    name: str,
    seed: bytes,
    length: int,
) -> bytes:
    """Return ``length`` bytes that depend on a seed: MGF1 of PKCS #1 (RFC 8017, B.2.1) over the
    named hash.
    """
    output = b""
    counter = 0
    while len(output) < length:
        output += digest(
            name,
            seed,
            counter.to_bytes(4, "big"),
        )
        counter += 1
    return output[:length]


def concatenate_numbers(
    numbers: Sequence[int],
    size: int,
) -> bytes:
    """Return numbers as bytes, ``size`` bytes each, the most significant first."""
    return b"".join(number.to_bytes(size, "big") for number in numbers)
