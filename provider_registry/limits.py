"""How much of a document is looked at, and how little of it is quoted back.

Descriptions come from other institutions. The bounds here are checked by walking the document once, without
recursion, before anything else reads it.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from provider_registry.model import InvalidDescription, Problem

MAX_DEPTH = 24
MAX_VALUES = 100_000
MAX_TEXT = 4 * 1024 * 1024
"""characters in all texts and keys together"""
MAX_BITS = 4096
"""size of an integer; the interpreter refuses to write out much longer ones"""
MAX_COMPONENTS = 500
MAX_PROBLEMS = 200
MAX_QUOTE = 200
"""characters of a found value that a problem repeats"""

ROOT = "(document)"
MORE = Problem(ROOT, f"has more than the {MAX_PROBLEMS} problems listed here")
_PLAIN_KEY = re.compile(r"[\w-]{1,128}")


def too_large(document: Any) -> Problem | None:
    """Say which bound a JSON value exceeds: depth, number of values, characters of text; None if none."""
    text = 0
    for values, (depth, value) in enumerate(_walk(document), 1):
        if isinstance(value, str):
            text += len(value)
        if depth > MAX_DEPTH:
            return Problem(ROOT, f"must not nest deeper than {MAX_DEPTH} levels", depth)
        if values > MAX_VALUES:
            return Problem(ROOT, f"must not hold more than {MAX_VALUES} values", values)
        if text > MAX_TEXT:
            return Problem(ROOT, f"must not hold more than {MAX_TEXT} characters of text", text)
    return None


def not_json(document: Any) -> Problem | None:
    """Say what in a value cannot be stored as JSON in UTF-8: NaN, half a surrogate pair, foreign types,
    integers of thousands of digits."""
    for _, value in _walk(document):
        if isinstance(value, str):
            if not encodable(value):
                return Problem(ROOT, "must be text that UTF-8 can hold", shorten(value))
        elif isinstance(value, float):
            if not math.isfinite(value):
                return Problem(ROOT, "must hold finite numbers only", repr(value))
        elif isinstance(value, int):
            if value.bit_length() > MAX_BITS:
                return Problem(ROOT, f"must not hold integers beyond {MAX_BITS} bits", shorten(value))
        elif not isinstance(value, (Mapping, list, tuple, type(None))):
            return Problem(ROOT, "must hold JSON values only", type(value).__name__)
    return None


def refuse_unfit(document: Any) -> None:
    """Raise InvalidDescription if a document is too large or is not JSON."""
    problem = None if _fits(document) else too_large(document) or not_json(document)
    if problem:
        raise InvalidDescription((problem,))


def _fits(document: Any) -> bool:
    """Tell whether a document is certainly within all bounds: the quick look, level by level, at what is usual."""
    level: list[Any] = [document]
    values = text = 0
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is str:
                text += len(value)
                if not (value.isascii() or encodable(value)):
                    return False
            elif kind is dict:
                below.extend(value)
                below.extend(value.values())
            elif kind is list:
                below.extend(value)
            elif kind is int:
                if value.bit_length() > MAX_BITS:
                    return False
            elif not (value is None or kind is bool or (kind is float and math.isfinite(value))):
                return False
        values += len(level)
        if values > MAX_VALUES or text > MAX_TEXT:
            return False
        if not below:
            return True
        level = below
    return False


def shorten(value: Any) -> Any:
    """Return a JSON value that shows what was found, small enough to be repeated in an answer."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, int):
        return value if abs(value) < 10**18 else "an integer of many digits"
    if isinstance(value, str):
        text = value if encodable(value) else value.encode("utf-8", "replace").decode()
        return text if len(text) <= MAX_QUOTE else text[:MAX_QUOTE] + "…"
    if isinstance(value, (Mapping, list, tuple)) and not value:
        return {} if isinstance(value, Mapping) else []
    if _few(value) and too_large(value) is None and not_json(value) is None:
        text = as_text(value)
        if len(text) <= MAX_QUOTE:
            return json.loads(text)
    if isinstance(value, Mapping):
        return f"an object with {len(value)} fields"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)} values"
    return f"a {type(value).__name__}"


def as_text(value: Any) -> str:
    """Return the text form of a JSON value: text as it is, anything else as JSON.

    A value nested too deeply for the encoder, or with an integer too long for it, gives an empty text.
    """
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (RecursionError, ValueError, TypeError):
        return ""


def _few(value: Any) -> bool:
    """Tell whether an object or a list may fit into a quote: each value, and each key, takes a character."""
    return isinstance(value, (Mapping, list, tuple)) and next(islice(_walk(value), MAX_QUOTE, None), None) is None


def join(path: str, *steps: str | int) -> str:
    """Extend a path: ``join("a", "b", 3)`` is ``a.b[3]``; odd keys are quoted."""
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            path += f".{step}" if path else step
        else:
            path += f"[{json.dumps(shorten(step), ensure_ascii=False)}]"
    return path


def bounded(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems with what they found cut short, and at most MAX_PROBLEMS of them."""
    kept = [Problem(p.path, p.rule, shorten(p.got), p.suggestion) for p in islice(problems, MAX_PROBLEMS + 1)]
    if len(kept) > MAX_PROBLEMS:
        kept[MAX_PROBLEMS] = MORE
    return tuple(kept)


def _walk(document: Any) -> Iterator[tuple[int, Any]]:
    """Go through every value and key with its depth. Children are opened lazily, so that a bound ends it."""
    stack: list[Iterator[tuple[int, Any]]] = [iter([(1, document)])]
    while stack:
        item = next(stack[-1], None)
        if item is None:
            stack.pop()
            continue
        yield item
        depth, value = item
        if isinstance(value, Mapping):
            stack.append(_children(depth + 1, (part for pair in value.items() for part in pair)))
        elif isinstance(value, (list, tuple)):
            stack.append(_children(depth + 1, value))


def _children(depth: int, values: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    return ((depth, value) for value in values)


def encodable(text: str) -> bool:
    """Tell whether UTF-8 can hold a text: JSON's escapes can spell half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
