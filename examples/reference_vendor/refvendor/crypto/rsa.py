"""RSA blind signatures (Chaum): one party signs the ids of another without seeing them.

Ids are hashed onto the full range of the modulus before they are signed. The signatures are
unblinded with one inversion for the whole batch and verified under the public key.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import gmpy2  # type: ignore[import-untyped]
from gmpy2 import mpz

from refvendor.contract import VendorError
from refvendor.crypto.hashing import expand
from refvendor.crypto.inversion import invert_all

EXPONENT = 65537
# Lengths of keys in bits.
SMALLEST_KEY = 1024
LARGEST_KEY = 8192
# Prefix of everything that is hashed for a signature, so that no other protocol computes the same
# hashes.
_DOMAIN = b"refvendor psi rsa\x00"
# Hash output beyond the length of the modulus, so that its remainder is almost uniform.
_EXTRA_HASH_BYTES = 16


class BadSignature(VendorError):
    """The signer sent something other than signatures of the values that it received."""


@dataclass(frozen=True)
class PublicKey:
    """The key that verifies signatures: modulus n and exponent e."""

    n: mpz
    e: mpz

    @property
    def size(self) -> int:
        """Bytes of a number below the modulus."""
        return (int(self.n).bit_length() + 7) // 8

    def hashed(self, method: str, value: bytes) -> mpz:
        """Return the hash of a value as a number below the modulus that has about as many bits."""
        data = expand(method, _DOMAIN + value, self.size + _EXTRA_HASH_BYTES)
        return mpz(int.from_bytes(data, "big")) % self.n


@dataclass(frozen=True)
class PrivateKey:
    """The key that signs: the primes p and q of the modulus, and the private exponent d."""

    public: PublicKey
    p: mpz
    q: mpz
    d: mpz

    def sign(
        self,
        values: Sequence[mpz],
    ) -> list[mpz]:
        """Raise each number to the private exponent, modulo p and q in two threads, joined by
        Garner's formula.
        """
        if not values:
            return []
        with ThreadPoolExecutor(2) as pool:
            modulo_p = pool.submit(
                _powers,
                values,
                self.d,
                self.p,
            )
            modulo_q = pool.submit(
                _powers,
                values,
                self.d,
                self.q,
            )
            halves = list(zip(modulo_p.result(), modulo_q.result(), strict=True))
        q_inverse = gmpy2.invert(self.q, self.p)
        return [b + self.q * ((a - b) * q_inverse % self.p) for a, b in halves]


def generate(bits: int) -> PrivateKey:
    """Return a fresh key whose modulus has exactly that many bits.

    Raises `ValueError` for an unusable length.
    """
    if not SMALLEST_KEY <= bits <= LARGEST_KEY or bits % 2:
        raise ValueError(
            f"key length must be even and from {SMALLEST_KEY} to {LARGEST_KEY}, got {bits}"
        )
    p = _random_prime(bits // 2)
    q = _random_prime(bits // 2)
    while (
        abs(p - q).bit_length() < bits // 2 - 100
    ):  # close primes are easy to find (FIPS 186-5, A.1.3)
        q = _random_prime(bits // 2)
    d = gmpy2.invert(
        mpz(EXPONENT),
        gmpy2.lcm(p - 1, q - 1),
    )
    return PrivateKey(PublicKey(p * q, mpz(EXPONENT)), p, q, d)


@dataclass(frozen=True)
class Blinded:
    """Hashed ids under random factors that only their owner knows."""

    hashes: list[mpz]
    factors: list[mpz]
    values: list[mpz]  # for the signer: hash * factor ** e


def blind(
    key: PublicKey,
    hashes: Sequence[mpz],
) -> Blinded:
    """Hide each hash from the signer by a random factor."""
    factors = [mpz(2 + secrets.randbelow(int(key.n) - 3)) for _ in hashes]
    masks = gmpy2.powmod_base_list(factors, key.e, key.n) if factors else []
    values = [value * mask % key.n for value, mask in zip(hashes, masks, strict=True)]
    return Blinded(list(hashes), factors, values)


def unblind(
    key: PublicKey,
    blinded: Blinded,
    signed: Sequence[mpz],
) -> list[mpz]:
    """Return the signatures of the hashes. Raises `BadSignature` unless every one verifies."""
    if len(signed) != len(blinded.hashes):
        raise BadSignature(f"{len(signed)} signatures came for {len(blinded.hashes)} values")
    if not signed:
        return []
    try:
        inverses = invert_all(blinded.factors, key.n)
    except ZeroDivisionError as error:
        raise BadSignature("the signer's modulus has small factors") from error
    signatures = [value * inverse % key.n for value, inverse in zip(signed, inverses, strict=True)]
    if gmpy2.powmod_base_list(signatures, key.e, key.n) != blinded.hashes:
        raise BadSignature("a signature does not verify")
    return signatures


def _powers(
    values: Sequence[mpz],
    exponent: mpz,
    prime: mpz,
) -> list[mpz]:
    """Return the powers modulo a prime; Fermat's theorem shortens the exponent."""
    remainders = [value % prime for value in values]
    powers: list[mpz] = gmpy2.powmod_base_list(
        remainders,
        exponent % (prime - 1),
        prime,
    )
    return powers


def _random_prime(bits: int) -> mpz:
    """Return a prime for the public exponent.

    Its two top bits are set, so that two make a modulus of full length.
    """
    while True:
        candidate = gmpy2.next_prime(mpz(secrets.randbits(bits) | 3 << (bits - 2)))
        has_length = candidate.bit_length() == bits
        if has_length and candidate % EXPONENT != 1:
            return candidate
