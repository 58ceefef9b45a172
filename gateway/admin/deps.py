"""Shared by the routers of ``/api/v1``: services, models of responses, parameters and the audit.

Handlers return records and plain data unchanged; the ``response_model`` of each path only
describes them in the API's documentation.
"""

import json
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, FastAPI, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.responses import JSONResponse
from fastapi.types import DecoratedCallable
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model

from engines.base import Engine
from gateway.auth import RunTokens
from gateway.broker.broker import Broker
from gateway.data.combined_storage import Storages
from gateway.data.logs import RunLogs
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId
from gateway.errors import Invalid, near
from gateway.jobs.approvals import Approvals
from gateway.jobs.executor import Executor
from gateway.jobs.job_requests import JobRequests
from gateway.jobs.job_statuses import JobStatuses
from gateway.jobs.launcher import Launching
from gateway.jobs.resources import Resources
from gateway.language.catalogue import ENGLISH, LANGUAGE, of_header, of_texts
from gateway.ports import Clock
from gateway.runtime.context import Peers
from gateway.store.serialization import dumps
from gateway.store.store import Store
from provider_registry.registry import Registry

OPERATOR = "operator"  # the author of changes at a node that requires no tokens
API = "/api/v1"
Object = dict[str, Any]
S = TypeVar("S")
_PAGE_SIZE = 1000  # entries of a page at most
_FOLLOWING = "send it as `after` for the next page; null on the last one"
_LARGEST_NUMBER = 2**63 - 1  # the largest that the database can hold


@dataclass(frozen=True)
class JobServices:
    """The services that the paths of jobs and their archives use."""

    node: NodeId  # this node
    clock: Clock
    store: Store
    run_tokens: RunTokens
    runs_folder: Path  # working folders and logs of runs
    registry: Registry
    storage: Storages
    engine: Engine
    resources: Resources
    broker: Broker
    peers: Peers
    launching: Launching
    executor: Executor
    run_logs: RunLogs
    job_requests: JobRequests
    job_statuses: JobStatuses
    approvals: Approvals


def provide(app: FastAPI, *services: object) -> None:
    """Give services to the handlers of an application, which depend on them by their classes."""
    app.state.services = {type(service): service for service in services}


def service(kind: type[S]) -> Callable[[Request], Awaitable[S]]:
    """Return a FastAPI dependency: the service of this class that was passed to `provide`."""

    async def find(request: Request) -> S:
        services: Mapping[type, Any] = request.app.state.services
        result: S = services[kind]
        return result

    return find


async def in_language(request: Request) -> None:
    """Set the language of the response to the one that the request prefers."""
    LANGUAGE.set(of_header(request.headers.get("accept-language", "")))


class Reply(JSONResponse):
    """Records and plain data, as JSON."""

    def render(self, content: Any) -> bytes:
        """Return the body, with texts for people in the language of the request."""
        text = dumps(content)
        language = LANGUAGE.get()
        if language != ENGLISH:
            translated = of_texts(json.loads(text), language)
            text = json.dumps(translated, ensure_ascii=False)
        return text.encode("utf-8", "replace")


def shape(name: str, /, **fields: Any) -> type[BaseModel]:
    """Return the model of a response; ``fields`` have a type each, ``[type]`` for a list.

    A response may have further fields.
    """
    types = {field: _field_type(kind) for field, kind in fields.items()}
    return create_model(name, **types)


def _field_type(kind: Any) -> Any:
    """Return the type of a field; a list of one type stands for the type of such a list."""
    if isinstance(kind, list):
        return GenericAlias(list, tuple(kind))
    return kind


class View:
    """The fields of a record in responses: the type of each, and the function that reads it.

    A field without a function is read from the attribute of its name.
    """

    def __init__(
        self,
        name: str,
        base: "View | None" = None,
        /,
        **fields: Any,
    ) -> None:
        """Take a type, or a pair of type and function, per field; fields of ``base`` come first."""
        self.types: dict[str, Any] = {}
        self._readers: dict[str, Callable[[Any], Any]] = {}
        if base is not None:
            self.types |= base.types
            self._readers |= base._readers
        for field, kind in fields.items():
            if isinstance(kind, tuple):
                self.types[field], self._readers[field] = kind
            else:
                self.types[field] = kind
                self._readers[field] = attrgetter(field)
        self.model = shape(name, **self.types)

    def __call__(self, record: Any) -> dict[str, Any]:
        """Return the fields of a record."""
        return {field: read(record) for field, read in self._readers.items()}


def paged(
    name: str,
    line: Any,
    **page_fields: Any,
) -> type[BaseModel]:
    """Return the model of a page of a list.

    ``name``: the field with the entries; ``line``: the model of an entry; ``page_fields``: types
    of the page's further fields.
    """
    following = Annotated[str | None, Field(description=_FOLLOWING)]
    return shape(
        f"{name.title()}Page",
        **page_fields,
        **{name: [line]},
        total=int,
        next=following,
    )


def numbered(name: str, line: Any) -> type[BaseModel]:
    """Return the model of a page of a list with numbered entries, newest first."""
    following = Annotated[int | None, Field(description=_FOLLOWING)]
    return shape(f"{name.title()}Page", **{name: [line]}, next=following)


class Input(BaseModel):
    """A request's body, without other fields."""

    model_config = ConfigDict(extra="forbid")


class Why(Input):
    """Why it is done."""

    reason: str = Field(
        default="",
        max_length=1000,
        description="Why; kept in the audit.",
    )


class Authored(BaseModel):
    """Who changes something, and why; both are kept in its history."""

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
_PROBLEM = shape(
    "Problem",
    path=Annotated[str, Field(examples=["limit"])],
    rule=Annotated[str, Field(examples=["must be a whole number"])],
    got=(Any, None),
    suggestion=Annotated[str, Field(default="", description="what was probably meant")],
)
_CAUSE = shape(
    "Cause",
    reason=Annotated[
        str, Field(examples=["INVALID"], description="stable; docs/reasons.md explains each")
    ],
    problems=[_PROBLEM],
    next_step=Annotated[str, Field(default="", description="what to do")],
)
_REFUSAL = shape(
    "Refusal",
    code=Annotated[int, Field(description="the HTTP status")],
    msg=str,
    data=_CAUSE,
)


class Paths:
    """Declares paths of the operators' listener on a router of its own."""

    def __init__(self, prefix: str = API, **options: Any) -> None:
        """Take the prefix of all paths and further options of the router."""
        self.router = APIRouter(
            tags=["operators"],
            prefix=prefix,
            responses={"default": {"model": _REFUSAL, "description": "Refused."}},
            default_response_class=Reply,
            **options,
        )

    def __call__(
        self,
        method: str,
        path: str,
        summary: str,
        model: Any = None,
        **options: Any,
    ) -> Callable[[DecoratedCallable], DecoratedCallable]:
        """Return the decorator of a path's handler.

        - ``model``: the model of its response, if that is JSON
        - ``options``: passed to `APIRouter.api_route`. The option ``name``, by default the
          handler's name, becomes the first part of the operation's id in the OpenAPI document.
        """
        return self.router.api_route(
            path,
            methods=[method],
            summary=summary,
            response_model=model,
            **options,
        )


def content(*kinds: str, **schema: str) -> dict[int | str, Any]:
    """Return the declaration of a response that is not JSON.

    ``kinds`` are its media types; ``schema`` is empty for text, ``format="binary"`` for bytes.
    """
    body = {"schema": {"type": "string", **schema}}
    return {200: {"content": dict.fromkeys(kinds, body)}}


def among(words: Iterable[str]) -> AfterValidator:
    """Return the validator of a query parameter that lists some of these words.

    The parameter may be repeated, or separate words by commas; case does not matter.
    """
    by_upper_case = {word.upper(): word for word in words}

    def check(texts: Sequence[str]) -> list[str]:
        listed = [word.strip().upper() for text in texts for word in text.split(",")]
        chosen = [word for word in listed if word]
        has_unknown_word = not by_upper_case.keys() >= set(chosen)
        if has_unknown_word:
            raise ValueError(f"must be among {', '.join(by_upper_case.values())}")
        return [by_upper_case[word] for word in chosen]

    return AfterValidator(check)


_NEXT_PAGE = "the next page: `next` of the last response"
Limit = Annotated[
    int,
    Query(
        ge=1,
        le=_PAGE_SIZE,
        description=f"entries of a page, 1 to {_PAGE_SIZE}",
    ),
]
Number = Annotated[int, Field(ge=0, le=_LARGEST_NUMBER)]  # of a version, a revision, an entry
AfterNumber = Annotated[Number | None, Query(description=_NEXT_PAGE)]
AfterText = Annotated[str, Query(description=_NEXT_PAGE)]

# Moments outside of these limits cannot be converted to every time zone, or to a timestamp.
_EARLIEST = datetime(1970, 1, 2, tzinfo=UTC)
_LATEST = datetime(9998, 1, 1, tzinfo=UTC)


def _parse_moment(text: str) -> datetime | None:
    """Parse a date, or date and time, in UTC if it names no zone; return None for an empty text.

    Raises `ValueError`, also for moments outside of the limits.
    """
    if not text:
        return None
    refused = "must be a date or time such as 2026-11-21 or 2026-11-21T08:00Z"
    stripped = text.strip()
    if "T" in stripped:
        stripped = stripped.replace(" ", "+")  # a plus in a URL that was not escaped
    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError as error:
        raise ValueError(refused) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if not _EARLIEST <= moment <= _LATEST:
        raise ValueError(refused)
    return moment


_Moment = Annotated[datetime | None, BeforeValidator(_parse_moment)]
Since = Annotated[_Moment, Query(description="only then or later, such as 2026-11-21T08:00Z")]
Until = Annotated[_Moment, Query(description="only before that")]


async def only_known(request: Request) -> None:
    """Refuse query parameters that a path of ``/api/v1`` does not have. Raises `Invalid`.

    Paths of the standard ignore unknown parameters.
    """
    if not request.scope["path"].startswith(f"{API}/"):
        return
    parameters = set(_parameter_names(request.scope["route"].dependant))
    unknown = [name for name in dict.fromkeys(request.query_params) if name not in parameters]
    if unknown:
        raise Invalid([_unknown_parameter(request, name, parameters) for name in unknown])


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
        f"is not a known parameter; {hint}",
        request.query_params[name][:200],
        near(name, parameters),
    )


def _parameter_names(dependant: Dependant) -> Iterator[str]:
    """Yield the query parameters of a path, including its dependencies' ones."""
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _parameter_names(inner)


def author_of(request: Request, otherwise: str) -> str:
    """Return the person that the request's token names; ``otherwise`` if no token is required."""
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

    ``before`` and ``after``: the values around the change, None for one that did not exist. Of a
    dry run the log records only that it was one.
    """
    if dry_run:
        request.state.audit = {"dry_run": True}
        return
    change = {"before": before, "after": after}
    if reason:
        change["reason"] = reason
    request.state.audit = change
