"""Problems of an input onto the wire."""

import math
from collections.abc import Iterable
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError

from adapter.reading import NotFit
from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.plain_words import join as join
from gateway.plain_words import problems_of as problems_of


def refusal(request: Request, error: RequestValidationError) -> Invalid:
    """Return what is wrong with a request that the framework could not read into what its path declares."""
    unread = error.__cause__
    if isinstance(unread, NotFit):
        return Invalid(unread.problems)
    field = getattr(request.scope.get("route"), "body_field", None)
    model = getattr(getattr(field, "field_info", None), "annotation", None)
    return Invalid(problems_of(error.errors(), model))


def shown(value: Any, limit: int = 500) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (bool, int, type(None))):
        return value
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[:limit] + "…"


def listed(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    """Return problems as an answer lists them."""
    return [
        {"path": shown(p.path), "rule": shown(p.rule), "got": shown(p.got)}
        | ({"suggestion": shown(p.suggestion)} if p.suggestion else {})
        for p in problems
    ]
