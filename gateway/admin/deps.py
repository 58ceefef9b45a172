"""One rule for what stands behind the ? of our own paths: each is known, of its kind and in its range, or refused.

A list that grows has pages: ``limit`` entries, and ``next``, which is sent as ``after`` for the next page.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.dependencies.models import Dependant
from pydantic import BeforeValidator

from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.plain_words import near

OURS = "/api/v1/"
MOST = 1000
"""entries of one page"""
_LARGEST = 2**63 - 1
"""what the database can hold"""


def whole(first: int, last: int) -> Callable[[Any], int]:
    """Return what reads a whole number within bounds and names both where it is none."""

    def read(value: Any) -> int:
        text = str(value).strip()
        if text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 20 and first <= int(text) <= last:
            return int(text)
        upto = f"to {last}" if last < _LARGEST else "on"
        raise ValueError(f"must be a whole number from {first} {upto}")

    return read


Limit = Annotated[
    int, BeforeValidator(whole(1, MOST)), Query(ge=1, le=MOST, description=f"entries of a page, 1 to {MOST}")
]
NUMBER = BeforeValidator(whole(0, _LARGEST))
"""of a version, a revision, an entry"""
AfterNumber = Annotated[
    int | None,
    NUMBER,
    Query(ge=0, description="the next page: what the last answer said in next"),
]
AfterText = Annotated[str, Query(description="the next page: what the last answer said in next")]


async def only_known(request: Request) -> None:
    """Refuse parameters of our own paths that nobody reads, such as misspelt ones. Raises `Invalid`."""
    if not request.url.path.startswith(OURS):
        return
    known = set(_names(request.scope["route"].dependant))
    problems = []
    for name in dict.fromkeys(request.query_params):
        if name not in known:
            there = f"this path knows {', '.join(sorted(known))}" if known else "this path has none"
            got = request.query_params[name][:200]
            problems.append(Problem(name[:200], f"is no parameter here; {there}", got, near(name, known)))
    if problems:
        raise Invalid(problems)


def _names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _names(inner)
