"""Encrypts integers so that others can add them up: Paillier's scheme (EUROCRYPT 1999) on gmpy2.

With the modulus ``n = p q``, the ciphertext of ``m`` is ``(1 + m n) r modulo n ** 2``, and the
product of two ciphertexts is one of the sum. The randomness ``r`` is ``h ** x``, with ``x`` of half
the key's length (Damgård, Jurik and Nielsen, "A generalization of Paillier's public-key system",
2010), computed from a fixed-base table: about fifteen times as fast as ``r ** n``. The owner of the
key computes modulo ``p ** 2`` and ``q ** 2`` and joins the halves.

Functions take lists, because inversion, powers and packing cost less for many values together.
`gmpy2.powmod_base_list` releases the interpreter, so that other threads can run.

A ciphertext is an ``mpz`` below ``n ** 2``. Plaintexts are integers; negative ones wrap around
``n``. Every random number comes from `secrets`.
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
from gmpy2 import mpz

from refvendor.arrays import Ints
from refvendor.contract import BadParameters, VendorError
from refvendor.crypto.inversion import invert_all

# Lengths of keys in bits.
SMALLEST_KEY = 1024
LARGEST_KEY = 8192
THREADS = max(2, min(4, os.cpu_count() or 2))
WORKERS = ThreadPoolExecutor(
    max_workers=THREADS,
    thread_name_prefix="paillier",
)
PRIMALITY_ROUNDS = 30
# Entries per row of a fixed-base table: one per value of a byte.
TABLE_WIDTH = 256
LARGEST_WINDOW = 12  # bits of exponents that `_multi_power` handles in one step
Item = TypeVar("Item")


class BadCiphertext(VendorError):
    """A peer sent bytes that are no key, or no ciphertexts under the key."""


def generate(key_length: int = 2048) -> PrivateKey:
    """Return a fresh key whose modulus has exactly ``key_length`` bits. Raises `BadParameters`."""
    if not SMALLEST_KEY <= key_length <= LARGEST_KEY or key_length % 2:
        raise BadParameters(
            f"key_length: must be an even number from {SMALLEST_KEY} to {LARGEST_KEY}, got "
            f"{key_length}"
        )
    p, q = _random_primes(key_length)
    n = p * q
    x = mpz(secrets.randbelow(int(n) - 2) + 2)
    h = n - x * x % n
    return PrivateKey(n=n, h=gmpy2.powmod(h, n, n * n), p=p, q=q)


def _random_primes(key_length: int) -> tuple[mpz, mpz]:
    """Return primes p and q with ``gcd(p - 1, q - 1) = 2``, as the shorter randomness needs
    them.
    """
    while True:
        p = _random_prime(key_length // 2)
        q = _random_prime(key_length // 2)
        has_length = (p * q).bit_length() == key_length
        if p != q and has_length and gmpy2.gcd(p - 1, q - 1) == 2:
            return p, q


def _random_prime(bits: int) -> mpz:
    """Return a prime of exactly that size, 3 modulo 4, with its two top bits set."""
    while True:
        candidate = mpz(secrets.randbits(bits) | (3 << (bits - 2)) | 3)
        if gmpy2.is_prime(candidate, PRIMALITY_ROUNDS):
            return candidate


class FixedBase:
    """Powers of one base from a table with a row per byte of the exponent."""

    def __init__(
        self,
        base: mpz,
        modulus: mpz,
        bits: int,
    ) -> None:
        """Prepare for exponents of at most ``bits`` bits."""
        self._modulus = modulus
        self._exponent_bytes = _divide_up(bits, 8)
        self._rows: list[list[mpz]] = []
        for _ in range(self._exponent_bytes):
            row = [mpz(1)]
            while len(row) < TABLE_WIDTH:
                row.append(row[-1] * base % modulus)
            self._rows.append(row)
            base = row[-1] * base % modulus

    def power(self, exponent: int) -> mpz:
        """Return the base to an exponent.

        Raises `OverflowError` if the exponent does not fit the table.
        """
        result = mpz(1)
        digits = exponent.to_bytes(self._exponent_bytes, "little")
        for row, digit in zip(self._rows, digits, strict=True):
            if digit:
                result = result * row[digit] % self._modulus
        return result


@dataclass(frozen=True)
class PublicKey:
    """The part of a key that every party may know: the modulus n and the base h of the
    randomness.
    """

    n: mpz
    h: mpz = field(repr=False)

    @classmethod
    def from_bytes(cls, data: bytes) -> PublicKey:
        """Read a key that `to_bytes` wrote. Raises `BadCiphertext`."""
        if len(data) % 3 or not data:
            raise BadCiphertext("a public key of this length cannot be")
        size = len(data) // 3
        n = mpz(int.from_bytes(data[:size], "big"))
        h = mpz(int.from_bytes(data[size:], "big"))
        if not SMALLEST_KEY <= n.bit_length() <= LARGEST_KEY or n.is_even():
            raise BadCiphertext(f"a public key must be odd and of at least {SMALLEST_KEY} bits")
        if not 1 < h < n * n or gmpy2.gcd(h, n) != 1:
            raise BadCiphertext("the base of the randomness is not a unit under the key")
        return cls(n=n, h=h)

    def to_bytes(self) -> bytes:
        """Return the public part of the key: n, then h in twice as many bytes."""
        size = self.cipher_bytes // 2
        return int(self.n).to_bytes(size, "big") + int(self.h).to_bytes(2 * size, "big")

    @cached_property
    def bits(self) -> int:
        """Length of the modulus in bits."""
        return int(self.n.bit_length())

    @cached_property
    def square(self) -> mpz:
        """The modulus of the ciphertexts."""
        return self.n * self.n

    @cached_property
    def cipher_bytes(self) -> int:
        """Bytes of one ciphertext on the wire."""
        return 2 * _divide_up(self.bits, 8)

    @cached_property
    def _table(self) -> FixedBase:
        return FixedBase(
            self.h,
            self.square,
            self.bits // 2,
        )

    def prepare(self) -> None:
        """Build the table now, so that the first encryption need not wait for it."""
        _ = self._table

    def randomness(self, count: int) -> list[mpz]:
        """Return fresh encryptions of zero. Each must be used only once."""
        bits = self.bits // 2
        return [self._table.power(secrets.randbits(bits)) for _ in range(count)]

    def encrypt(
        self,
        values: Sequence[int],
        randomness: Sequence[mpz] | None = None,
    ) -> list[mpz]:
        """Encrypt integers between ``-n / 2`` and ``n / 2``, with fresh randomness if none is
        passed.
        """
        n = self.n
        square = self.square
        noise = self.randomness(len(values)) if randomness is None else randomness
        return [(1 + value % n * n) * r % square for value, r in zip(values, noise, strict=True)]

    def add(
        self,
        first: Sequence[mpz],
        second: Sequence[mpz],
    ) -> list[mpz]:
        """Return ciphertexts of the sums, pair by pair."""
        square = self.square
        return [a * b % square for a, b in zip(first, second, strict=True)]

    def rerandomise(
        self, ciphers: Sequence[mpz], randomness: Sequence[mpz] | None = None
    ) -> list[mpz]:
        """Return ciphertexts of the same plaintexts that do not reveal how they were computed."""
        noise = self.randomness(len(ciphers)) if randomness is None else randomness
        return self.add(ciphers, noise)

    def negate(
        self,
        ciphers: Sequence[mpz],
    ) -> list[mpz]:
        """Return ciphertexts of the negated plaintexts."""
        return invert_all(ciphers, self.square)

    def product(self, ciphers: Iterable[mpz]) -> mpz:
        """Return the ciphertext of the sum of all plaintexts."""
        product = mpz(1)
        for cipher in ciphers:
            product = product * cipher % self.square
        return product

    # ------------------------------------------------------------ weighted sums

    def weighted_sums(
        self,
        ciphers: Sequence[mpz],
        weights: Ints,
    ) -> list[mpz]:
        """Return ciphertexts of ``weights.T @ plaintexts``; ``weights`` has a row per ciphertext.

        The weights are shifted to be non-negative; the shift is removed once for all columns.
        """
        columns = weights.shape[1]
        if not ciphers or not columns:
            return [mpz(1)] * columns
        shift = max(0, -int(weights.min()))
        exponents = weights + shift
        bits = max(
            1,
            int(exponents.max()).bit_length(),
        )
        sums = [self._multi_power(ciphers, exponents[:, column], bits) for column in range(columns)]
        if not shift:
            return sums
        surplus = gmpy2.powmod(
            self.product(ciphers),
            shift,
            self.square,
        )
        correction = gmpy2.invert(surplus, self.square)
        return [value * correction % self.square for value in sums]

    def _multi_power(
        self,
        bases: Sequence[mpz],
        exponents: Ints,
        bits: int,
    ) -> mpz:
        """Return the product of all ``base ** exponent`` (Pippenger's algorithm).

        Exponents are cut into digits of ``window`` bits. Bases with the same digit are multiplied
        first.
        """
        window = _best_window(len(bases), bits)
        last_start = (bits - 1) // window * window
        result = mpz(1)
        for start in range(last_start, -1, -window):
            digits = (exponents >> start) & ((1 << window) - 1)
            result = gmpy2.powmod(result, 1 << window, self.square)
            result = result * self._digit_power(bases, digits.tolist(), window) % self.square
        return result

    def _digit_power(
        self,
        bases: Sequence[mpz],
        digits: Sequence[int],
        window: int,
    ) -> mpz:
        """Return the product of all ``base ** digit``, for digits of ``window`` bits."""
        square = self.square
        buckets: list[mpz | None] = [None] * (1 << window)
        for base, digit in zip(bases, digits, strict=True):
            if digit == 0:
                continue
            bucket = buckets[digit]
            buckets[digit] = base if bucket is None else bucket * base % square
        # A bucket of digit d enters d of the running products.
        result = mpz(1)
        running = mpz(1)
        for bucket in reversed(buckets[1:]):
            if bucket is not None:
                running = running * bucket % square
            if running != 1:
                result = result * running % square
        return result

    # ------------------------------------------------------------ packing

    def slots(self, slot_bits: int) -> int:
        """Return how many non-negative values of ``slot_bits`` one plaintext can hold without
        turning negative.
        """
        return (self.bits - 2) // slot_bits

    def pack(
        self,
        ciphers: Sequence[mpz],
        slot_bits: int,
    ) -> list[mpz]:
        """Put as many plaintexts as fit side by side into one; each must be in [0, 2 ** slot_bits).

        `unpack` takes them out again in the same order.
        """
        chunks = _even_chunks(ciphers, self.slots(slot_bits))
        share = max(1, _divide_up(len(chunks), THREADS))
        shares = [chunks[start : start + share] for start in range(0, len(chunks), share)]
        jobs = [WORKERS.submit(self._pack_chunks, part, slot_bits) for part in shares]
        return [packed for job in jobs for packed in job.result()]

    def _pack_chunks(
        self,
        chunks: list[Sequence[mpz]],
        slot_bits: int,
    ) -> list[mpz]:
        """Pack each chunk into one ciphertext by Horner's rule, all together; longer chunks come
        first.
        """
        square = self.square
        packed: list[mpz] = []
        for slot in reversed(range(len(chunks[0]))):
            if packed:
                packed = gmpy2.powmod_base_list(packed, 1 << slot_bits, square)
            ciphers = [chunk[slot] for chunk in chunks if len(chunk) > slot]
            shifted = packed + [mpz(1)] * (len(ciphers) - len(packed))
            packed = self.add(shifted, ciphers)
        return packed

    def unpack(
        self,
        plaintexts: Sequence[int],
        slot_bits: int,
        count: int,
    ) -> list[int]:
        """Return the ``count`` values that `pack` put into these plaintexts.

        Raises `BadCiphertext`.
        """
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

    # ------------------------------------------------------------ the wire

    def dump(self, ciphers: Iterable[mpz]) -> bytes:
        """Return ciphertexts as bytes, `cipher_bytes` each."""
        size = self.cipher_bytes
        return b"".join(int(cipher).to_bytes(size, "big") for cipher in ciphers)

    def load(
        self,
        data: bytes,
        count: int,
    ) -> list[mpz]:
        """Read ``count`` ciphertexts that `dump` wrote. Raises `BadCiphertext`."""
        size = self.cipher_bytes
        if len(data) != size * count:
            raise BadCiphertext(f"{count} ciphertexts take {size * count} bytes, got {len(data)}")
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        ciphers = [mpz(int.from_bytes(piece, "big")) for piece in pieces]
        product = mpz(1)
        for cipher in ciphers:
            if not 0 < cipher < self.square:
                raise BadCiphertext("a ciphertext lies outside the key's range")
            product = product * cipher % self.n
        if gmpy2.gcd(product, self.n) != 1:
            raise BadCiphertext("a ciphertext shares a factor with the key")
        return ciphers


@dataclass(frozen=True)
class PrivateKey(PublicKey):
    """A key with its two primes p and q: it decrypts, and it encrypts faster."""

    p: mpz = field(
        default=mpz(0),
        repr=False,
    )
    q: mpz = field(
        default=mpz(0),
        repr=False,
    )

    @property
    def public(self) -> PublicKey:
        """The part of the key that others get."""
        return PublicKey(
            n=self.n,
            h=self.h,
        )

    @cached_property
    def _tables(self) -> tuple[FixedBase, FixedBase]:
        """Tables of h modulo ``p ** 2`` and modulo ``q ** 2``."""
        bits = self.bits // 2
        p_square = self.p * self.p
        q_square = self.q * self.q
        return (
            FixedBase(self.h % p_square, p_square, bits),
            FixedBase(self.h % q_square, q_square, bits),
        )

    @cached_property
    def _inverse_of_q_square(self) -> mpz:
        """The inverse of ``q ** 2`` modulo ``p ** 2``."""
        return gmpy2.invert(self.q * self.q, self.p * self.p)

    def prepare(self) -> None:
        """Build the tables now, so that the first encryption need not wait for them."""
        _ = self._tables, self._inverse_of_q_square

    def randomness(self, count: int) -> list[mpz]:
        """Return fresh encryptions of zero. Each must be used only once."""
        p_table, q_table = self._tables
        p_square = self.p * self.p
        q_square = self.q * self.q
        inverse = self._inverse_of_q_square
        values = []
        for _ in range(count):
            x = secrets.randbits(self.bits // 2)
            a = p_table.power(x)
            b = q_table.power(x)
            values.append(b + (a - b) * inverse % p_square * q_square)  # Garner's formula
        return values

    def decrypt(
        self,
        ciphers: Sequence[mpz],
    ) -> list[int]:
        """Return the plaintexts; those above half the modulus are negative numbers."""
        if not ciphers:
            return []
        jobs = [WORKERS.submit(self._decrypt_modulo, ciphers, prime) for prime in (self.p, self.q)]
        modulo_p, modulo_q = (job.result() for job in jobs)
        inverse = gmpy2.invert(self.q, self.p)
        plaintexts = []
        for a, b in zip(modulo_p, modulo_q, strict=True):
            value = b + (a - b) * inverse % self.p * self.q  # Garner's formula
            plaintexts.append(int(self._signed(value)))
        return plaintexts

    def _signed(self, value: mpz) -> mpz:
        """Return the number between ``-n / 2`` and ``n / 2`` with the same remainder."""
        if value > self.n // 2:
            return value - self.n
        return value

    def _decrypt_modulo(
        self,
        ciphers: Sequence[mpz],
        prime: mpz,
    ) -> list[mpz]:
        """Return the plaintexts modulo one of the primes (Paillier 1999, section 7)."""
        square = prime * prime
        factor = gmpy2.invert((prime - 1) * (self.n // prime) % prime, prime)
        powers = gmpy2.powmod_base_list([cipher % square for cipher in ciphers], prime - 1, square)
        return [(power - 1) // prime * factor % prime for power in powers]


def _best_window(bases: int, bits: int) -> int:
    """Return the number of bits per digit with which `_multi_power` needs the fewest
    multiplications.
    """

    def multiplications(window: int) -> int:
        digits = _divide_up(bits, window)
        return digits * (bases + (2 << window))

    return min(
        range(1, LARGEST_WINDOW + 1),
        key=multiplications,
    )


def _divide_up(value: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-value // divisor)


def _even_chunks(
    values: Sequence[Item],
    limit: int,
) -> list[Sequence[Item]]:
    """Split into the fewest chunks of at most ``limit`` whose sizes differ by one at most, longer
    ones first.
    """
    count = _divide_up(len(values), limit)
    chunks: list[Sequence[Item]] = []
    start = 0
    for number in range(count):
        is_longer = number < len(values) % count
        size = len(values) // count + int(is_longer)
        chunks.append(values[start : start + size])
        start += size
    return chunks
