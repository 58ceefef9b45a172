"""Shared by the routers of ``/api/v1``: services, bodies, parameters, responses, audit log.

Handlers return records and plain data unchanged; the ``response_model`` of each path only
describes them in the API's documentation.
"""

import json
import re
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import datetime
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, FastAPI, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from gateway.admin.responses.base import Refusal
from gateway.domain.problems import Problem
from gateway.errors import Invalid, near
from gateway.http.moments import parse_moment
from gateway.language.catalogue import ENGLISH, LANGUAGE, of_header, of_texts
from gateway.store.serialization import dumps

OPERATOR = "operator"  # the author of changes at a node that requires no tokens
API = "/api/v1"
S = TypeVar("S")
_MAX_PAGE_SIZE = 1000  # entries
_LARGEST_NUMBER = 2**63 - 1  # the largest that the database can hold
_DIGITS = re.compile("[0-9]{1,19}")  # `_LARGEST_NUMBER` has 19


def provide(app: FastAPI, *services: object) -> None:
    """Give services to the handlers of an application, which depend on them by their classes.

    Services that were provided before remain.
    """
    provided = getattr(app.state, "services", {})
    app.state.services = {**provided, **{type(service): service for service in services}}


def service(kind: type[S]) -> Callable[[Request], Awaitable[S]]:
    """Return a FastAPI dependency: the service of this class that was passed to `provide`."""

    async def find(request: Request) -> S:
        services: Mapping[type, Any] = request.app.state.services
        result: S = services[kind]
        return result

    return find


async def set_language(request: Request) -> None:
    """Set the language of the response to the one that the request prefers."""
    LANGUAGE.set(of_header(request.headers.get("accept-language", "")))


class Reply(JSONResponse):
    """Records and plain data, as JSON."""

    def render(self, content: Any) -> bytes:
        """Return the body, with texts for people in the language of the request."""
        text = dumps(content)  # JSON
        language = LANGUAGE.get()
        if language != ENGLISH:
            translated = of_texts(json.loads(text), language)
            text = json.dumps(translated, ensure_ascii=False)
        return text.encode("utf-8", "replace")  # a lone surrogate becomes a question mark


class Input(BaseModel):
    """The base of bodies of requests; fields that the class does not have are refused."""

    model_config = ConfigDict(extra="forbid")


class Why(Input):
    """A body with the reason of a change."""

    reason: str = Field(
        default="",
        max_length=1000,
        description="Why; kept in the audit.",
    )


class Authored(BaseModel):
    """Who changes something, and why; both are kept in its history. Further fields are ignored."""

    reason: str = Field(
        default="",
        max_length=1000,
        description="Why; kept in the history.",
    )
    author: str = Field(
        default=OPERATOR,
        min_length=1,
        max_length=255,
        description="Who, where no token says it.",
    )


# A body without fields, which may be left out.
Empty = Annotated[Input | None, Body(examples=[{}])]


def api_router(prefix: str = API, **options: Any) -> APIRouter:
    """Return a router of the operators' listener; ``options`` are passed to `APIRouter`.

    The ``name`` of a path is the beginning of its operation id, which has to stay as published.
    By default it is the name of the handler.
    """
    return APIRouter(
        tags=["operators"],
        prefix=prefix,
        responses={"default": {"model": Refusal, "description": "Refused."}},
        default_response_class=Reply,
        **options,
    )


def content(*kinds: str, **schema: str) -> dict[int | str, Any]:
    """Return the declaration of a response that is not JSON.

    ``kinds`` are its media types; ``schema`` is empty for text, ``format="binary"`` for bytes.
    """
    body = {
        "schema": {"type": "string", **schema},
    }
    return {
        200: {"content": dict.fromkeys(kinds, body)},
    }


def among(words: Iterable[str]) -> AfterValidator:
    """Return the validator of a query parameter that lists some of these words.

    The parameter may be repeated, or separate words by commas; case does not matter.
    """
    by_upper_case = {word.upper(): word for word in words}

    def check(texts: Sequence[str]) -> list[str]:
        listed = [word.strip().upper() for word in ",".join(texts).split(",")]
        chosen = list(filter(None, listed))
        unknown = set(chosen) - by_upper_case.keys()
        if unknown:
            raise ValueError(f"must be among {', '.join(by_upper_case.values())}")
        return [by_upper_case[word] for word in chosen]

    return AfterValidator(check)


_NEXT_PAGE = "the next page: `next` of the last response"
Limit = Annotated[
    int,
    Query(
        ge=1,
        le=_MAX_PAGE_SIZE,
        description=f"entries of a page, 1 to {_MAX_PAGE_SIZE}",
    ),
]
Number = Annotated[int, Field(ge=0, le=_LARGEST_NUMBER)]  # of a version, a revision, an entry
AfterNumber = Annotated[Number | None, Query(description=_NEXT_PAGE)]
AfterText = Annotated[str, Query(description=_NEXT_PAGE)]


def parse_number(text: str) -> int | None:
    """Parse a `Number` in a header; None for any other text.

    Digits of other scripts than ASCII are no number, though ``int`` accepts them.
    """
    if _DIGITS.fullmatch(text) is None:
        return None
    number = int(text)
    if number > _LARGEST_NUMBER:
        return None
    return number


_Moment = Annotated[datetime | None, BeforeValidator(parse_moment)]
Since = Annotated[_Moment, Query(description="only from this time on, such as 2026-11-21T08:00Z")]
Until = Annotated[_Moment, Query(description="only before this time")]


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse query parameters that a path of ``/api/v1`` does not have. Raises `Invalid`.

    Paths of the standard ignore unknown parameters.
    """
    if not request.scope["path"].startswith(f"{API}/"):
        return
    parameters = set(_parameter_names(request.scope["route"].dependant))
    problems = []
    for name in request.query_params:  # each name once
        if name not in parameters:
            problems.append(_unknown_parameter(request, name, parameters))
    if problems:
        raise Invalid(problems)


def _unknown_parameter(
    request: Request,
    name: str,
    parameters: Collection[str],
) -> Problem:
    """Return the refusal of a parameter; ``parameters``: the names that the path has."""
    hint = "this path has none"
    if parameters:
        hint = f"this path knows {', '.join(sorted(parameters))}"
    return Problem(
        name[:200],
        rule=f"is not a known parameter; {hint}",
        got=request.query_params[name][:200],
        suggestion=near(name, parameters),
    )


def _parameter_names(dependant: Dependant) -> Iterator[str]:
    """Yield the names of a path's query parameters, also of those that its dependencies declare."""
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _parameter_names(inner)


def author_of(request: Request, otherwise: str) -> str:
    """Return the person that the request's token names; ``otherwise`` for a request without one."""
    return str(getattr(request.state, "operator", "") or otherwise)


def record_change(
    request: Request,
    before: Any,
    after: Any,
    reason: str = "",
    *,
    dry_run: bool = False,
) -> None:
    """Set what the audit log will record of this request.

    ``before`` and ``after`` are the changed values, None if there was none before or is none after.
    Of a dry run the log records only that it was one.
    """
    if dry_run:
        request.state.audit = {"dry_run": True}
        return
    change = {
        "before": before,
        "after": after,
    }
    if reason:
        change["reason"] = reason
    request.state.audit = change
