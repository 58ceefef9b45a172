"""Modular inverses of many values."""

from __future__ import annotations

from collections.abc import Sequence

import gmpy2  # type: ignore[import-untyped]
from gmpy2 import mpz


def invert_all(
    values: Sequence[mpz],
    modulus: mpz,
) -> list[mpz]:
    """Return all inverses at the price of one (Montgomery's trick).

    Raises `ZeroDivisionError` if a value has no inverse.
    """
    products = []
    product = mpz(1)
    for value in values:
        products.append(product)
        product = product * value % modulus
    inverse = gmpy2.invert(product, modulus)
    results = [mpz(0)] * len(values)
    for place in reversed(range(len(values))):
        results[place] = inverse * products[place] % modulus
        inverse = inverse * values[place] % modulus
    return results
