"""What YAML, or a lenient reader of JSON, takes and no JSON can say: told with its place, and nothing is sent."""

import json
import math
from collections.abc import Iterator, Mapping
from datetime import date
from itertools import islice
from typing import Any

from provider_registry.limits import join, shorten

_MOST = 20
"""misfits that are told of one file"""


def misfits(value: Any) -> list[str]:
    """Return a line for each thing in a file's content that cannot be sent: where, what it is, what to do."""
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return list(islice(_found(value), _MOST)) or ["it holds itself, by an alias; write it out"]
    return []


def _found(value: Any) -> Iterator[str]:
    """Go through every value once, also where one is reached by several ways."""
    todo, seen = [("", value)], set[int]()
    while todo:
        path, one = todo.pop()
        if isinstance(one, Mapping | list):
            if id(one) in seen:
                continue
            seen.add(id(one))
        if isinstance(one, Mapping):
            for key in one:
                if not isinstance(key, str | int | float | None):
                    yield f"{join(path, str(key))}: the name is {_kind(key)}; put it in quotes"
            todo += reversed([(join(path, str(key)), inner) for key, inner in one.items()])
        elif isinstance(one, list):
            todo += reversed([(join(path, number), inner) for number, inner in enumerate(one)])
        elif isinstance(one, float) and not math.isfinite(one):
            yield f"{path} is {one}, which JSON has no word for; give a number"
        elif not isinstance(one, str | int | float | None):
            yield f"{path} is {_kind(one)} ({shorten(str(one))}); put it in quotes, as text"


def _kind(one: Any) -> str:
    if isinstance(one, date):
        return "a date"
    return _KINDS.get(type(one), f"a {type(one).__name__}")


_KINDS: dict[type, str] = {bytes: "binary data", set: "a set", tuple: "a list"}
