"""Names the hash functions that parties may agree on, and expands them to any length."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

HASHES = ("md5", "sha1", "sha256", "sha512", "sm3")


def available() -> tuple[str, ...]:
    """The hashes of `HASHES` that this installation computes; SM3 is not in every OpenSSL."""
    found = []
    for name in HASHES:
        try:
            hashlib.new(name, b"", usedforsecurity=False)
        except ValueError:
            continue
        found.append(name)
    return tuple(found)


def digest(name: str, *parts: bytes) -> bytes:
    """Return the hash of all parts one after the other."""
    state = hashlib.new(name, usedforsecurity=False)
    for part in parts:
        state.update(part)
    return state.digest()


def expand(
    name: str,
    seed: bytes,
    length: int,
) -> bytes:
    """``length`` bytes from a seed: the mask generation function MGF1 of PKCS #1 over the named hash."""
    blocks: list[bytes] = []
    size = 0
    while size < length:
        blocks.append(digest(name, seed, len(blocks).to_bytes(4, "big")))
        size += len(blocks[-1])
    return b"".join(blocks)[:length]


def joined_numbers(numbers: Sequence[int], size: int) -> bytes:
    """Return numbers as bytes, each of the same size, the most significant first."""
    return b"".join(number.to_bytes(size, "big") for number in numbers)
