"""Rates as people write them: bytes per second, such as 20MB."""

import re
from fractions import Fraction

# The partner's transport refuses messages that come slower than 32 KiB/s while others wait, and
# takes 16 of them together.
SLOWEST_RATE = 512 * 1024
FASTEST_RATE = 10**12
RATE_RULE = (
    "must be bytes per second from 512KiB to 1TB: a whole number, or a number with kB, MB, GB "
    "(powers of 1000), KiB, MiB or GiB, such as 20MB"
)
_RATE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([kKMGT]i?)?B?(?:/s)?", re.ASCII)
_FACTORS = {
    "": 1,
    "k": 1000,
    "K": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "T": 1000**4,
    "Ki": 1024,
    "ki": 1024,
    "Mi": 1024**2,
    "Gi": 1024**3,
    "Ti": 1024**4,
}


def read_rate(text: str) -> int:
    """Return a rate in bytes per second. Raises `ValueError` with `RATE_RULE`."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(RATE_RULE)
    number, unit = match.groups("")
    factor = _FACTORS[unit]
    rate = int(factor * Fraction(number))
    nearest = min(max(rate, SLOWEST_RATE), FASTEST_RATE)
    if rate != nearest:
        raise ValueError(RATE_RULE)
    return rate
