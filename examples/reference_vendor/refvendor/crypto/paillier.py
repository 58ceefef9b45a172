"""Encrypts integers so that others can add them up: Paillier's scheme on gmpy2.

The randomness of a ciphertext is ``h ** x`` with ``x`` of half the key's length (Damgård, Jurik, Nielsen),
taken from a fixed-base table: about fifteen times as quick as ``r ** n``. The owner of the key computes
modulo the squares of the two primes and joins the halves. Lists are handled as wholes, because inversion,
powers and packing are cheaper that way; `gmpy2.powmod_base_list` lets other threads run meanwhile.

A ciphertext is an ``mpz`` below ``n ** 2``. Plaintexts are integers; negative ones wrap around ``n``.
Every random number comes from `secrets`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import gmpy2  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
from gmpy2 import mpz

from refvendor.contract import BadParameters, VendorError

SMALLEST_KEY = 1024
LARGEST_KEY = 8192
THREADS = max(2, min(4, os.cpu_count() or 2))
WORKERS = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="paillier")
T = TypeVar("T")


class BadCiphertext(VendorError):
    """A peer sent bytes that are no key or no ciphertexts under the key."""


def generate(key_length: int = 2048) -> PrivateKey:
    """Draw a fresh key whose modulus has exactly ``key_length`` bits. Raises `BadParameters`."""
    if not SMALLEST_KEY <= key_length <= LARGEST_KEY or key_length % 2:
        raise BadParameters(
            f"key_length: must be an even number from {SMALLEST_KEY} to {LARGEST_KEY}, got {key_length}"
        )
    while True:
        p, q = _prime(key_length // 2), _prime(key_length // 2)
        if p != q and gmpy2.gcd(p - 1, q - 1) == 2 and (p * q).bit_length() == key_length:
            break
    n = p * q
    x = mpz(secrets.randbelow(int(n) - 2) + 2)
    h = n - x * x % n
    return PrivateKey(
        n=n,
        h=gmpy2.powmod(h, n, n * n),
        p=p,
        q=q,
    )


class FixedBase:
    """Powers of one base by table, one row of 255 entries per byte of the exponent."""

    def __init__(
        self,
        base: mpz,
        modulus: mpz,
        bits: int,
    ) -> None:
        self._modulus = modulus
        self._size = -(-bits // 8)
        self._rows: list[list[mpz]] = []
        for _ in range(self._size):
            row = [mpz(1), base]
            for _ in range(254):
                row.append(row[-1] * base % modulus)
            self._rows.append(row)
            base = row[-1] * base % modulus

    def power(self, exponent: int) -> mpz:
        """Return the base to an exponent, which has to fit into the table."""
        result, modulus = mpz(1), self._modulus
        for row, digit in zip(self._rows, exponent.to_bytes(self._size, "little"), strict=True):
            if digit:
                result = result * row[digit] % modulus
        return result


@dataclass(frozen=True)
class PublicKey:
    """What every party may know: the modulus and the base of the randomness."""

    n: mpz
    h: mpz = field(repr=False)

    @classmethod
    def from_bytes(cls, data: bytes) -> PublicKey:
        """Read what `to_bytes` wrote. Raises `BadCiphertext`."""
        if len(data) % 3 or not data:
            raise BadCiphertext("a public key of this length cannot be")
        size = len(data) // 3
        n, h = mpz(int.from_bytes(data[:size], "big")), mpz(int.from_bytes(data[size:], "big"))
        if not SMALLEST_KEY <= n.bit_length() <= LARGEST_KEY or n.is_even():
            raise BadCiphertext(f"a public key must be odd and of at least {SMALLEST_KEY} bits")
        if not 1 < h < n * n or gmpy2.gcd(h, n) != 1:
            raise BadCiphertext("the base of the randomness is not a unit under the key")
        return cls(n=n, h=h)

    def to_bytes(self) -> bytes:
        """Return it as `from_bytes` reads it."""
        size = self.cipher_bytes // 2
        return int(self.n).to_bytes(size, "big") + int(self.h).to_bytes(2 * size, "big")

    @cached_property
    def bits(self) -> int:
        """Length of the modulus."""
        return int(self.n.bit_length())

    @cached_property
    def square(self) -> mpz:
        """The modulus of the ciphertexts."""
        return self.n * self.n

    @cached_property
    def cipher_bytes(self) -> int:
        """Bytes of one ciphertext on the wire."""
        return 2 * (-(-self.bits // 8))

    @cached_property
    def _table(self) -> FixedBase:
        return FixedBase(self.h, self.square, self.bits // 2)

    def prepare(self) -> None:
        """Build the table now, so that the first encryption need not wait for it."""
        _ = self._table

    def randomness(self, count: int) -> list[mpz]:
        """Encryptions of zero, to be used once each."""
        table, bits = self._table, self.bits // 2
        return [table.power(secrets.randbits(bits)) for _ in range(count)]

    def encrypt(self, values: Sequence[int], randomness: Sequence[mpz] | None = None) -> list[mpz]:
        """Encrypt integers of at most half the modulus in size, with fresh or given `randomness`."""
        n, square = self.n, self.square
        noise = self.randomness(len(values)) if randomness is None else randomness
        return [(1 + value % n * n) * r % square for value, r in zip(values, noise, strict=True)]

    def add(self, left: Sequence[mpz], right: Sequence[mpz]) -> list[mpz]:
        """Ciphertexts of the sums, pair by pair."""
        square = self.square
        return [a * b % square for a, b in zip(left, right, strict=True)]

    def rerandomise(
        self, ciphers: Sequence[mpz], randomness: Sequence[mpz] | None = None
    ) -> list[mpz]:
        """The same plaintexts in ciphertexts that nobody can link to how they were computed."""
        return self.add(
            ciphers, self.randomness(len(ciphers)) if randomness is None else randomness
        )

    def negate(self, ciphers: Sequence[mpz]) -> list[mpz]:
        """Ciphertexts of the negated plaintexts: one inversion for the whole list."""
        square, running, products = self.square, mpz(1), []
        for cipher in ciphers:
            products.append(running)
            running = running * cipher % square
        inverse = gmpy2.invert(running, square)
        result = [mpz(0)] * len(ciphers)
        for i in range(len(ciphers) - 1, -1, -1):
            result[i] = inverse * products[i] % square
            inverse = inverse * ciphers[i] % square
        return result

    def weighted_sums(self, ciphers: Sequence[mpz], weights: npt.NDArray[np.int64]) -> list[mpz]:
        """Ciphertexts of ``weights.T @ plaintexts``; ``weights`` has a row per ciphertext.

        The weights are shifted to be non-negative; the shift is taken out once for all columns.
        """
        columns = weights.shape[1]
        if not ciphers or not columns:
            return [mpz(1)] * columns
        shift = max(0, -int(weights.min()))
        shifted = weights + shift
        width = max(1, int(shifted.max()).bit_length())
        sums = [self._multi_power(ciphers, shifted[:, column], width) for column in range(columns)]
        if not shift:
            return sums
        square, product = self.square, mpz(1)
        for cipher in ciphers:
            product = product * cipher % square
        correction = gmpy2.invert(gmpy2.powmod(product, shift, square), square)
        return [value * correction % square for value in sums]

    def _multi_power(
        self,
        bases: Sequence[mpz],
        exponents: npt.NDArray[np.int64],
        bits: int,
    ) -> mpz:
        """The product of all ``base ** exponent`` by buckets of equal digits (Pippenger)."""
        square = self.square
        window = min(range(1, 13), key=lambda w: -(-bits // w) * (len(bases) + (2 << w)))
        result = mpz(1)
        for start in range((bits - 1) // window * window, -1, -window):
            result = gmpy2.powmod(result, 1 << window, square)
            buckets: list[mpz | None] = [None] * (1 << window)
            for base, digit in zip(
                bases, ((exponents >> start) & ((1 << window) - 1)).tolist(), strict=True
            ):
                if digit:
                    held = buckets[digit]
                    buckets[digit] = base if held is None else held * base % square
            running = mpz(1)
            for held in reversed(buckets[1:]):
                if held is not None:
                    running = running * held % square
                if running != 1:
                    result = result * running % square
        return result

    def slots(self, slot_bits: int) -> int:
        """How many non-negative values of ``slot_bits`` one plaintext holds without touching the sign."""
        return (self.bits - 2) // slot_bits

    def pack(self, ciphers: Sequence[mpz], slot_bits: int) -> list[mpz]:
        """Put as many plaintexts as fit side by side into one; each must be in [0, 2 ** slot_bits).

        `unpack` takes them out again in the same order.
        """
        chunks = _even_chunks(ciphers, self.slots(slot_bits))
        share = max(1, -(-len(chunks) // THREADS))
        parts = [chunks[i : i + share] for i in range(0, len(chunks), share)]
        jobs = [WORKERS.submit(self._pack_chunks, part, slot_bits) for part in parts]
        return [packed for job in jobs for packed in job.result()]

    def _pack_chunks(self, chunks: list[Sequence[mpz]], slot_bits: int) -> list[mpz]:
        """Horner's rule over all chunks together; the longer chunks come first."""
        square, step = self.square, 1 << slot_bits
        packed: list[mpz] = []
        for place in range(max(len(chunk) for chunk in chunks) - 1, -1, -1):
            if packed:
                packed = gmpy2.powmod_base_list(packed, step, square)
            here = [chunk[place] for chunk in chunks if len(chunk) > place]
            packed = [a * b % square for a, b in zip(packed, here, strict=False)] + here[
                len(packed) :
            ]
        return packed

    def unpack(
        self,
        plaintexts: Sequence[int],
        slot_bits: int,
        count: int,
    ) -> list[int]:
        """The ``count`` values that `pack` put into these plaintexts. Raises `BadCiphertext`."""
        sizes = [len(chunk) for chunk in _even_chunks(range(count), self.slots(slot_bits))]
        if len(sizes) != len(plaintexts):
            raise BadCiphertext(
                f"{count} packed values need {len(sizes)} ciphertexts, got {len(plaintexts)}"
            )
        mask = (1 << slot_bits) - 1
        values = []
        for plaintext, size in zip(plaintexts, sizes, strict=True):
            values += [(plaintext >> (slot_bits * slot)) & mask for slot in range(size)]
        return values

    def dump(self, ciphers: Iterable[mpz]) -> bytes:
        """Ciphertexts as bytes, `cipher_bytes` each."""
        size = self.cipher_bytes
        return b"".join(int(cipher).to_bytes(size, "big") for cipher in ciphers)

    def load(self, data: bytes, count: int) -> list[mpz]:
        """Read ``count`` ciphertexts that `dump` wrote. Raises `BadCiphertext`."""
        size = self.cipher_bytes
        if len(data) != size * count:
            raise BadCiphertext(f"{count} ciphertexts take {size * count} bytes, got {len(data)}")
        square = self.square
        ciphers = [
            mpz(int.from_bytes(data[i : i + size], "big")) for i in range(0, len(data), size)
        ]
        product = mpz(1)
        for cipher in ciphers:
            if not 0 < cipher < square:
                raise BadCiphertext("a ciphertext lies outside the key's range")
            product = product * cipher % self.n
        if gmpy2.gcd(product, self.n) != 1:
            raise BadCiphertext("a ciphertext shares a factor with the key")
        return ciphers


@dataclass(frozen=True)
class PrivateKey(PublicKey):
    """The two primes as well: decrypts, and encrypts quicker."""

    p: mpz = field(default=mpz(0), repr=False)
    q: mpz = field(default=mpz(0), repr=False)

    @property
    def public(self) -> PublicKey:
        """The part of it that others get."""
        return PublicKey(n=self.n, h=self.h)

    @cached_property
    def _half_tables(self) -> tuple[FixedBase, FixedBase, mpz]:
        pp, qq, bits = self.p * self.p, self.q * self.q, self.bits // 2
        return (
            FixedBase(self.h % pp, pp, bits),
            FixedBase(self.h % qq, qq, bits),
            gmpy2.invert(qq, pp),
        )

    def prepare(self) -> None:
        """Make the tables now, so that the first encryption need not."""
        _ = self._half_tables

    def randomness(self, count: int) -> list[mpz]:
        """Return factors that hide as many plaintexts, each modulo the square."""
        by_p, by_q, inverse = self._half_tables
        pp, qq, bits = self.p * self.p, self.q * self.q, self.bits // 2
        values = []
        for _ in range(count):
            x = secrets.randbits(bits)
            a, b = by_p.power(x), by_q.power(x)
            values.append(b + (a - b) * inverse % pp * qq)
        return values

    def decrypt(self, ciphers: Sequence[mpz]) -> list[int]:
        """The plaintexts; those above half the modulus come back negative."""
        if not ciphers:
            return []
        halves = [
            WORKERS.submit(self._decrypt_modulo, ciphers, prime) for prime in (self.p, self.q)
        ]
        by_p, by_q = (half.result() for half in halves)
        p, q, n, half = self.p, self.q, self.n, self.n // 2
        inverse = gmpy2.invert(q, p)
        values = (b + (a - b) * inverse % p * q for a, b in zip(by_p, by_q, strict=True))
        return [int(value - n if value > half else value) for value in values]

    def _decrypt_modulo(self, ciphers: Sequence[mpz], prime: mpz) -> list[mpz]:
        square = prime * prime
        factor = gmpy2.invert((prime - 1) * (self.n // prime) % prime, prime)
        powers = gmpy2.powmod_base_list([cipher % square for cipher in ciphers], prime - 1, square)
        return [(power - 1) // prime * factor % prime for power in powers]


def _prime(bits: int) -> mpz:
    """A random prime of exactly that size, 3 modulo 4, with its two top bits set."""
    while True:
        candidate = mpz(secrets.randbits(bits) | (3 << (bits - 2)) | 3)
        if gmpy2.is_prime(candidate, 30):
            return candidate


def _even_chunks(values: Sequence[T], limit: int) -> list[Sequence[T]]:
    """Split into the fewest chunks of at most ``limit``, as even as can be, longer ones first."""
    count = -(-len(values) // limit)
    chunks: list[Sequence[T]] = []
    start = 0
    for i in range(count):
        size = len(values) // count + (i < len(values) % count)
        chunks.append(values[start : start + size])
        start += size
    return chunks
