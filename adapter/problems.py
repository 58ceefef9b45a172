"""Problems of an input as JSON for a response."""

from collections.abc import Callable, Mapping
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


def words_for(app: Any, words: Words | None = None) -> Words:
    """Return the words in which an application reports errors; set to ``words`` where they are given."""
    if words is not None:
        app.state.words = words
    found: Words = getattr(app.state, "words", str)
    return found
