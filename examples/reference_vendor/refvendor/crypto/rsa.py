"""RSA blind signatures: one party has ids signed by another that never sees them.

Ids are hashed onto the whole range of the modulus before signing. The signer's answer is unblinded with one
inversion for the whole batch and checked against the public key.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate

import gmpy2  # type: ignore[import-untyped]
from gmpy2 import mpz

from refvendor.contract import VendorError
from refvendor.crypto.hashing import expand

EXPONENT = 65537
SMALLEST_KEY, LARGEST_KEY = 1024, 8192
_DOMAIN = b"refvendor psi rsa\x00"


class BadSignature(VendorError):
    """The signer answered with something that is not a signature of what was asked."""


@dataclass(frozen=True)
class PublicKey:
    """What a signature is checked with: modulus and exponent."""

    n: mpz
    e: mpz

    @property
    def size(self) -> int:
        """Bytes of a number below the modulus."""
        return (int(self.n).bit_length() + 7) // 8

    def hashed(self, method: str, value: bytes) -> mpz:
        """A number below the modulus, made of all its bits' worth of hash output."""
        return mpz(int.from_bytes(expand(method, _DOMAIN + value, self.size + 16), "big")) % self.n


@dataclass(frozen=True)
class PrivateKey:
    """What signs: the two primes, and the exponent."""

    public: PublicKey
    p: mpz
    q: mpz
    d: mpz

    def sign(self, values: Sequence[mpz]) -> list[mpz]:
        """Raise each number to the private exponent, both halves of the remainder theorem at a time."""
        if not values:
            return []
        with ThreadPoolExecutor(2) as pool:
            by_p = pool.submit(_powers, values, self.d, self.p)
            by_q = pool.submit(_powers, values, self.d, self.q)
            halves = list(zip(by_p.result(), by_q.result(), strict=True))
        q_inverse = gmpy2.invert(self.q, self.p)
        return [b + self.q * ((a - b) * q_inverse % self.p) for a, b in halves]


def generate(bits: int) -> PrivateKey:
    """A fresh key whose modulus has exactly that many bits."""
    if not SMALLEST_KEY <= bits <= LARGEST_KEY or bits % 2:
        raise ValueError(
            f"key length must be even and from {SMALLEST_KEY} to {LARGEST_KEY}, got {bits}"
        )
    p = _prime(bits // 2)
    q = _prime(bits // 2)
    while abs(p - q).bit_length() < bits // 2 - 100:
        q = _prime(bits // 2)
    d = gmpy2.invert(mpz(EXPONENT), gmpy2.lcm(p - 1, q - 1))
    return PrivateKey(PublicKey(p * q, mpz(EXPONENT)), p, q, d)


@dataclass(frozen=True)
class Blinded:
    """Hashed ids under random factors that only their owner knows."""

    hashes: list[mpz]
    factors: list[mpz]
    values: list[mpz]


def blind(key: PublicKey, hashes: Sequence[mpz]) -> Blinded:
    """Hide hashes from their signer, each by a random factor."""
    factors = [mpz(2 + secrets.randbelow(int(key.n) - 3)) for _ in hashes]
    masks = gmpy2.powmod_base_list(factors, key.e, key.n) if factors else []
    values = [h * mask % key.n for h, mask in zip(hashes, masks, strict=True)]
    return Blinded(list(hashes), factors, values)


def unblind(
    key: PublicKey,
    blinded: Blinded,
    signed: Sequence[mpz],
) -> list[mpz]:
    """The signatures of the hashes. Raises `BadSignature` unless every one verifies."""
    if len(signed) != len(blinded.hashes):
        raise BadSignature(f"{len(signed)} signatures came for {len(blinded.hashes)} values")
    if not signed:
        return []
    try:
        inverses = _inverses(blinded.factors, key.n)
    except ZeroDivisionError as error:
        raise BadSignature("the signer's modulus has small factors") from error
    signatures = [s * inverse % key.n for s, inverse in zip(signed, inverses, strict=True)]
    if gmpy2.powmod_base_list(signatures, key.e, key.n) != blinded.hashes:
        raise BadSignature("a signature does not verify")
    return signatures


def _powers(
    values: Sequence[mpz],
    exponent: mpz,
    prime: mpz,
) -> list[mpz]:
    powers: list[mpz] = gmpy2.powmod_base_list(
        [value % prime for value in values], exponent % (prime - 1), prime
    )
    return powers


def _prime(bits: int) -> mpz:
    """A random prime with its two highest bits set, so that a product of two has twice the bits."""
    while True:
        candidate = gmpy2.next_prime(mpz(secrets.randbits(bits) | 3 << (bits - 2)))
        if candidate.bit_length() == bits and candidate % EXPONENT != 1:
            return candidate


def _inverses(values: Sequence[mpz], modulus: mpz) -> list[mpz]:
    """All inverses at the price of one, by going back through the running products."""
    products = list(accumulate(values, lambda a, b: a * b % modulus))
    running = gmpy2.invert(products[-1], modulus)
    result = [mpz(0)] * len(values)
    for i in range(len(values) - 1, 0, -1):
        result[i] = running * products[i - 1] % modulus
        running = running * values[i] % modulus
    result[0] = running
    return result
