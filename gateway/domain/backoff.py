"""Pauses that differ from job to job, so that what failed together is not tried again together.

The share by which a pause is shortened follows from words (whose request it is, and which try), not from chance:
decisions stay the same when they are made again.
"""

import zlib


def shortened(seconds: float, by: float, *words: object) -> float:
    """Return the pause less a part of it, from none up to the share ``by``."""
    share = zlib.crc32(repr(words).encode()) / 2**32
    return seconds * (1.0 - by * share)
