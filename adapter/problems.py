"""Problems of an input onto the wire."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError

from adapter.json import NotFit
from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.errors import join as join
from gateway.errors import problems_of as problems_of


def refusal(request: Request, error: RequestValidationError) -> Invalid:
    """Return what is wrong with a request that the framework could not read into what its path declares."""
    unread = error.__cause__
    if isinstance(unread, NotFit):
        return Invalid(unread.problems)
    problems = problems_of([e for e in error.errors() if not _of_bytes(error, e)], model_of(request))
    if any(_of_bytes(error, e) for e in error.errors()):
        sent = request.headers.get("content-type", "")[:200]
        rule = "must be application/json for a body of JSON, which is not read otherwise"
        problems = [Problem("content-type", rule, sent, "application/json"), *problems]
    return Invalid(problems)


def model_of(request: Request) -> Any:
    """Return what the path of a request declares as its body; None where it declares none."""
    field = getattr(request.scope.get("route"), "body_field", None)
    return getattr(getattr(field, "field_info", None), "annotation", None)


def _of_bytes(error: RequestValidationError, one: Mapping[str, Any]) -> bool:
    """Tell whether a problem is that of a body whose content type is not JSON's: it was left as it came."""
    return isinstance(error.body, bytes) and tuple(one.get("loc") or ())[:1] == ("body",)


def shown(value: Any, limit: int = 500) -> Any:
    """Return a value as a problem shows it.

    Numbers as they are where JSON has them, all else as a text cut to ``limit`` characters.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (bool, int, type(None))):
        return value
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[:limit] + "…"


Words = Callable[[str], str]
"""Whatever is told of an error -> in words for those who hear it."""


def words_for(app: Any, words: Words | None = None) -> Words:
    """Return in which words an application tells its errors: as they are, unless it was told ``words`` before."""
    if words is not None:
        app.state.words = words
    found: Words = getattr(app.state, "words", str)
    return found


def listed(problems: Iterable[Problem], words: Words = str) -> list[dict[str, Any]]:
    """Return problems as an answer lists them."""
    return [
        {"path": shown(p.path), "rule": words(shown(p.rule)), "got": shown(p.got)}
        | ({"suggestion": words(shown(p.suggestion))} if p.suggestion else {})
        for p in problems
    ]
