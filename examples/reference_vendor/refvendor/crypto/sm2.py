"""Multiplies points of the curve SM2 (GB/T 32918.5), for commutative encryption of ids.

No published Python package multiplies given points of this curve. The run time depends on the
secret, so this code is not for a machine on which others can measure it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

import gmpy2  # type: ignore[import-untyped]
from gmpy2 import mpz

from refvendor.crypto.curve import BadPoint
from refvendor.crypto.hashing import digest
from refvendor.crypto.inversion import invert_all

SIZE = 33  # bytes of a compressed point
SECRET_SIZE = 32  # bytes
# The curve is y^2 = x^3 - 3 x + B modulo P; its points are N in number.
P = mpz(0xFFFFFFFE_FFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFF_00000000_FFFFFFFF_FFFFFFFF)
B = mpz(0x28E9FA9E_9D9F5E34_4D5A9E4B_CF6509A7_F39789F5_15AB8F92_DDBCBD41_4D940E93)
N = mpz(0xFFFFFFFE_FFFFFFFF_FFFFFFFF_FFFFFFFF_7203DF6B_21C6052B_53BBF409_39D54123)
_EVEN = 2  # first byte of a compressed point with even y
_ODD = 3
_WINDOW = 4  # bits of a scalar per addition
_MOST_TRIES = 256

# x and y in units of z^2 and z^3 (Jacobian coordinates); z is never 0 here.
Point = tuple[mpz, mpz, mpz]


def secret() -> bytes:
    """Return a new secret: a number from 1 to N - 1 in `SECRET_SIZE` bytes, big-endian."""
    scalar = 1 + secrets.randbelow(int(N) - 1)
    return scalar.to_bytes(SECRET_SIZE, "big")


def point(value: bytes) -> bytes:
    """Return the compressed point of an id.

    Its x is the id's SM3 hash as big-endian number modulo P, or the next number above that is on
    the curve; its y is the even one.
    """
    x = mpz(int.from_bytes(digest("sm3", value), "big")) % P
    for _ in range(_MOST_TRIES):
        if gmpy2.legendre(_y_squared(x), P) == 1:
            return _compress(x, mpz(0))
        x = (x + 1) % P
    raise BadPoint("no point found for an id")


def multiply(
    scalar: bytes,
    points: Iterable[bytes],
) -> list[bytes]:
    """Encrypt compressed points under a secret. Raises `BadPoint`."""
    digits = _digits(scalar)
    products = [_multiply_point(digits, _decompress(data)) for data in points]
    inverses = invert_all([z for _, _, z in products], P)
    encrypted = []
    for (x, y, _), inverse in zip(products, inverses, strict=True):
        square = inverse * inverse % P
        encrypted.append(_compress(x * square % P, y * square % P * inverse % P))
    return encrypted


def _digits(scalar: bytes) -> list[int]:
    """Return the scalar in digits of `_WINDOW` bits, the most significant first, without leading
    zeros.
    """
    return [int(digit, 16) for digit in scalar.hex().lstrip("0")]


def _multiply_point(
    digits: Sequence[int],
    base: Point,
) -> Point:
    """Multiply a point by a number below N, so that no addition meets equal or opposite points."""
    multiples = [base, _double(base)]
    while len(multiples) < 2**_WINDOW - 1:
        multiples.append(_add(multiples[-1], base))
    product = multiples[digits[0] - 1]
    for digit in digits[1:]:
        for _ in range(_WINDOW):
            product = _double(product)
        if digit:
            product = _add(product, multiples[digit - 1])
    return product


def _double(a: Point) -> Point:
    x, y, z = a
    z_squared = z * z % P
    y_squared = y * y % P
    beta = x * y_squared % P
    alpha = 3 * (x - z_squared) * (x + z_squared) % P
    x_sum = (alpha * alpha - 8 * beta) % P
    y_sum = (alpha * (4 * beta - x_sum) - 8 * y_squared * y_squared) % P
    z_sum = 2 * y * z % P
    return x_sum, y_sum, z_sum


def _add(
    a: Point,
    b: Point,
) -> Point:
    """Add two points with different x."""
    x1, y1, z1 = a
    x2, y2, z2 = b
    z1_squared = z1 * z1 % P
    z2_squared = z2 * z2 % P
    u1 = x1 * z2_squared % P
    s1 = y1 * z2_squared % P * z2 % P
    h = (x2 * z1_squared - u1) % P
    r = (y2 * z1_squared % P * z1 - s1) % P
    h_squared = h * h % P
    h_cubed = h_squared * h % P
    v = u1 * h_squared % P
    x_sum = (r * r - h_cubed - 2 * v) % P
    y_sum = (r * (v - x_sum) - s1 * h_cubed) % P
    z_sum = z1 * z2 % P * h % P
    return x_sum, y_sum, z_sum


def _y_squared(x: mpz) -> mpz:
    return (x * x * x - 3 * x + B) % P


def _compress(
    x: mpz,
    y: mpz,
) -> bytes:
    prefix = _ODD if y % 2 else _EVEN
    return bytes([prefix]) + int(x).to_bytes(SIZE - 1, "big")


def _decompress(data: bytes) -> Point:
    """Read a compressed point. Raises `BadPoint` for bytes that are none of the curve."""
    if len(data) != SIZE or data[0] not in (_EVEN, _ODD):
        raise BadPoint(f"a point must have {SIZE} bytes, the first of them 2 or 3")
    x = mpz(int.from_bytes(data[1:], "big"))
    y_squared = _y_squared(x)
    if x >= P or gmpy2.legendre(y_squared, P) != 1:
        raise BadPoint("a point is not on the curve")
    y = gmpy2.powmod(y_squared, (P + 1) // 4, P)
    if y % 2 != data[0] % 2:
        y = P - y
    return x, y, mpz(1)
