"""Problems of an input as JSON for a response."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError

from gateway.domain.problems import Problem
from gateway.errors import Invalid, problems_of

Words = Callable[[str], str]
"""Rewrites a text for its readers, such as peers."""


def refusal(request: Request, error: RequestValidationError) -> Invalid:
    """Return what is wrong with a request that does not fit what its path declares."""
    problems = problems_of([e for e in error.errors() if not _of_bytes(error, e)], model_of(request))
    if len(problems) < len(error.errors()):
        sent = request.headers.get("content-type", "")[:200]
        problems.insert(0, Problem("content-type", "must be application/json", sent, "application/json"))
    return Invalid(problems)


def model_of(request: Request) -> Any:
    """Return what the path of a request declares as its body; None where it declares none."""
    field = getattr(request.scope.get("route"), "body_field", None)
    return getattr(getattr(field, "field_info", None), "annotation", None)


def _of_bytes(error: RequestValidationError, one: Mapping[str, Any]) -> bool:
    """Whether a problem is that of a body that was not parsed, as its content type is not JSON."""
    return isinstance(error.body, bytes) and tuple(one.get("loc") or ())[:1] == ("body",)


def shown(value: Any, limit: int = 500) -> Any:
    """Return a value as a response shows it: JSON numbers as they are, all else as text cut to ``limit``."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bool | int | None):
        return value
    return text_of(value, limit)


def text_of(value: Any, limit: int = 500) -> str:
    """Return a value as encodable text of at most ``limit`` characters."""
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[:limit] + "…"


def words_for(app: Any, words: Words | None = None) -> Words:
    """Return the words in which an application reports errors; set to ``words`` where they are given."""
    if words is not None:
        app.state.words = words
    found: Words = getattr(app.state, "words", str)
    return found


def listed(problems: Iterable[Problem], words: Words = str) -> list[dict[str, Any]]:
    """Return problems as a response lists them."""
    return [
        {"path": shown(p.path), "rule": words(shown(p.rule)), "got": shown(p.got)}
        | ({"suggestion": words(shown(p.suggestion))} if p.suggestion else {})
        for p in problems
    ]
