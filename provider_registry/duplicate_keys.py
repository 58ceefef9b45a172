"""Finds the keys that stand twice in one object of JSON: of two values only one would hold."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from provider_registry.model import Problem, join

_MOST = 50
"""problems that are told of one document"""


def loaded(text: bytes | str) -> tuple[Any, bool]:
    """Return what JSON says, and whether a key stands twice in it. Raises ValueError, RecursionError."""
    seen = False

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal seen
        found = dict(pairs)
        seen = seen or len(found) < len(pairs)
        return found

    return json.loads(text, object_pairs_hook=once), seen


def twice(text: bytes | str) -> list[Problem]:
    """Return the keys that stand twice, each with its path; what is no JSON has none, and its reader says so."""
    try:
        return list(islice(_found(text), _MOST)) if loaded(text)[1] else []
    except (ValueError, RecursionError):
        return []


class _Pairs(list[tuple[str, Any]]):
    """An object as it is written."""


def _found(text: bytes | str) -> Iterator[Problem]:
    stack: list[tuple[str, Any]] = [("", json.loads(text, object_pairs_hook=_Pairs))]
    while stack:
        path, value = stack.pop()
        if isinstance(value, _Pairs):
            seen: set[str] = set()
            for key, inner in value:
                if key in seen:
                    yield Problem(join(path, key), "stands twice in one object; keep one of them")
                seen.add(key)
                stack.append((join(path, key), inner))
        elif isinstance(value, list):
            stack += [(join(path, number), inner) for number, inner in enumerate(value)]
