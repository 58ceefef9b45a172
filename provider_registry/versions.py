"""The order of providers' versions, as vendors number them."""

import re
from typing import Any

_VERSION_PART = re.compile(r"[0-9]+|[^0-9.]+")  # a number or a word


def version_order(version: str) -> tuple[Any, ...]:
    """Return the sort key of a version: 1.9 comes before 1.10, 2.0.0-rc1 before 2.0.0.

    Different versions have different keys. A leading v, and the part after a ``+``, decide only
    between versions that are equal without them.
    """
    without_build = version.partition("+")[0].removeprefix("v")
    release, _, prerelease = without_build.partition("-")
    # A prerelease has False in the second place, which sorts before the release's True.
    return (
        _version_parts(release),
        not prerelease,
        _version_parts(prerelease),
        version,
    )


def _version_parts(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return the parts of a version for sorting: words come before numbers.

    A part is (0, 0, word) or (1, number, ""). Trailing zeros are left out, so that 1.0 equals 1.
    """
    result: list[tuple[int, int, str]] = []
    for part in _VERSION_PART.findall(text):
        if part.isdecimal():
            result.append((1, int(part), ""))
        else:
            result.append((0, 0, part))
    while result and result[-1] == (1, 0, ""):
        result.pop()
    return tuple(result)
