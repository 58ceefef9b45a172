"""Finds the keys that stand twice in one object of JSON: of two values only one would hold."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from provider_registry.limits import join
from provider_registry.model import Problem

_MOST = 50
"""problems that are told of one document"""


class _Twice(Exception):
    pass


def twice(text: bytes | str) -> list[Problem]:
    """Return such keys, each with its path; what is no JSON has none, and its reader says so."""
    try:
        try:
            json.loads(text, object_pairs_hook=_once)
        except _Twice:
            return list(islice(_found(text), _MOST))
    except (ValueError, RecursionError):  # also behind the first key that stands twice
        pass
    return []


def _once(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        raise _Twice


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
