"""Which of several versions is the newest: by their numbers, not by when they were registered."""

import re

ANY = "*"
"""a version in a job that stands for the newest one in use"""

_PARTS = re.compile(r"[0-9]+|[^0-9.]+")
_Part = tuple[int, int, str]


def order(version: str) -> tuple[tuple[_Part, ...], bool, tuple[_Part, ...], str]:
    """Return what versions are sorted by: 1.9 before 1.10, 2.0.0-rc1 before 2.0.0; no two versions are alike.

    What stands behind a ``+`` says nothing of the order, but decides between what is the same otherwise.
    """
    main, _, before = version.partition("+")[0].removeprefix("v").partition("-")
    return _parts(main), not before, _parts(before), version


def _parts(text: str) -> tuple[_Part, ...]:
    found: list[_Part] = [(1, int(p), "") if p.isdecimal() else (0, 0, p) for p in _PARTS.findall(text)]
    while found and found[-1] == (1, 0, ""):
        found.pop()
    return tuple(found)
