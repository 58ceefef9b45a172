"""What the routers of ``/api/v1`` share: what they are made of, how responses are described, and the audit.

Handlers return records and plain data as they are. Each path says by its ``response_model`` what is in them; for a
record that is its class.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Body, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fastapi.types import DecoratedCallable
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model

from engines.base import Engine
from gateway.auth import RunTokens
from gateway.broker.broker import Broker
from gateway.config.schema import Settings
from gateway.data.combined_storage import Storages
from gateway.data.logs import RunLogs
from gateway.domain.problems import Problem
from gateway.errors import Invalid, near
from gateway.jobs.coordinator import Coordinator
from gateway.jobs.executor import Executor
from gateway.jobs.launcher import Launching
from gateway.jobs.participant import Participant
from gateway.jobs.resources import Resources
from gateway.language.catalogue import ENGLISH, LANGUAGE, of_header, of_texts
from gateway.ports import Clock
from gateway.runtime.context import Peers
from gateway.runtime.metrics import Metrics
from gateway.runtime.trials import Step
from gateway.store.audit import SqlAudit
from gateway.store.serialization import dumps
from gateway.store.store import Store
from provider_registry.registry import Registry
from route_table.live import LiveRoutes

OPERATOR = "operator"
"""who it was where no token is needed"""
API = "/api/v1"
Object = dict[str, Any]
_MOST = 1000
"""entries of one page"""
_FOLLOWING = "send it as `after` for the next page; null on the last one"
_LARGEST = 2**63 - 1
"""what the database can hold"""


class AdminParts(Protocol):
    """The parts of a node that the paths of jobs, archives and the node itself use."""

    settings: Settings
    clock: Clock
    owner: str
    """gateway instance and engine: whose containers these are where several share a database"""
    store: Store
    coordinator: Coordinator
    participant: Participant
    peers: Peers
    routes: LiveRoutes
    metrics: Metrics
    run_tokens: RunTokens
    audit: SqlAudit
    registry: Registry
    engine: Engine
    broker: Broker
    storage: Storages
    runs_folder: Path
    """where the logs of runs lie"""
    run_logs: RunLogs
    launching: Launching
    executor: Executor
    resources: Resources
    endpoints: Sequence[APIRoute]
    """of every listener"""
    doctor: Callable[[], Sequence[Step]]
    """checks all that the node needs; set by what serves it"""


async def in_language(request: Request) -> None:
    """Have a request answered in the language that it likes best."""
    LANGUAGE.set(of_header(request.headers.get("accept-language", "")))


class Reply(JSONResponse):
    """Records and plain data, as JSON."""

    def render(self, content: Any) -> bytes:
        """Return the body, with texts for people in the language of the request."""
        text, language = dumps(content), LANGUAGE.get()
        if language != ENGLISH:
            text = json.dumps(of_texts(json.loads(text), language), ensure_ascii=False)
        return text.encode("utf-8", "replace")


def shape(name: str, /, **fields: Any) -> type[BaseModel]:
    """Return the model of a response: a type per field, ``[type]`` for a list; further fields may come with it."""
    types: dict[str, Any] = {
        key: GenericAlias(list, tuple(of)) if isinstance(of, list) else of
        for key, of in fields.items()
    }
    return create_model(name, **types)


class View:
    """How a kind of record is shown: a type per field, and what gives it where no attribute is called so."""

    def __init__(
        self,
        name: str,
        base: "View | None" = None,
        /,
        **fields: Any,
    ) -> None:
        """``base``: the view whose fields come before these."""
        pairs = {
            key: of if isinstance(of, tuple) else (of, attrgetter(key))
            for key, of in fields.items()
        }
        self._parts: dict[str, tuple[Any, Callable[[Any], Any]]] = {
            **(base._parts if base else {}),
            **pairs,
        }
        self.types = {key: of for key, (of, _) in self._parts.items()}
        self.model = shape(name, **self.types)

    def __call__(self, record: Any) -> dict[str, Any]:
        """Return a record as it is shown."""
        return {key: get(record) for key, (_, get) in self._parts.items()}


def paged(
    name: str,
    line: Any,
    **more: Any,
) -> type[BaseModel]:
    """Return the model of a page of a list."""
    after = Annotated[str | None, Field(description=_FOLLOWING)]
    return shape(
        f"{name.title()}Page",
        **more,
        **{name: [line]},
        total=int,
        next=after,
    )


def numbered(name: str, line: Any) -> type[BaseModel]:
    """Return the model of a page of a list whose entries are numbered, newest first."""
    return shape(
        f"{name.title()}Page",
        **{name: [line]},
        next=Annotated[int | None, Field(description=_FOLLOWING)],
    )


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


Empty = Annotated[Input | None, Body(examples=[{}])]
"""a body that may be left out"""
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
    """Declares paths of the operators' listener."""

    def __init__(self, prefix: str = API, **options: Any) -> None:
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
        """Declare what a function responds to; ``model``: of its response, if that is JSON."""
        return self.router.api_route(
            path,
            methods=[method],
            summary=summary,
            response_model=model,
            **options,
        )


def content(*kinds: str, **schema: str) -> dict[int | str, Any]:
    """Declare a response other than JSON: text, or bytes with ``format="binary"``."""
    return {200: {"content": {kind: {"schema": {"type": "string", **schema}} for kind in kinds}}}


def among(words: Iterable[str]) -> AfterValidator:
    """Return what checks a query of some of these words, between commas and in any case."""
    known = {word.upper(): word for word in words}

    def check(texts: Sequence[str]) -> list[str]:
        wanted = [
            word.strip().upper() for text in texts for word in text.split(",") if word.strip()
        ]
        if not known.keys() >= set(wanted):
            raise ValueError(f"must be among {', '.join(known.values())}")
        return [known[word] for word in wanted]

    return AfterValidator(check)


_NEXT_PAGE = "the next page: `next` of the last response"
Limit = Annotated[
    int,
    Query(
        ge=1,
        le=_MOST,
        description=f"entries of a page, 1 to {_MOST}",
    ),
]
Number = Annotated[int, Field(ge=0, le=_LARGEST)]
"""of a version, a revision, an entry"""
AfterNumber = Annotated[Number | None, Query(description=_NEXT_PAGE)]
AfterText = Annotated[str, Query(description=_NEXT_PAGE)]

_FIRST, _LAST = datetime(1970, 1, 2, tzinfo=UTC), datetime(9998, 1, 1, tzinfo=UTC)


def _moment(text: str) -> datetime | None:
    """Read a date, or date and time, in UTC where it names no zone; empty: None."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(
            text.strip().replace(" ", "+") if "T" in text else text.strip()
        )
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
        if _FIRST <= found <= _LAST:
            return found
    except ValueError:
        pass
    raise ValueError("must be a date or time such as 2026-11-21 or 2026-11-21T08:00Z")


_Moment = Annotated[datetime | None, BeforeValidator(_moment)]
Since = Annotated[_Moment, Query(description="only then or later, such as 2026-11-21T08:00Z")]
Until = Annotated[_Moment, Query(description="only before that")]


async def only_known(request: Request) -> None:
    """Refuse query parameters that a path of ours does not have. Raises `Invalid`."""
    if not request.scope["path"].startswith(f"{API}/"):
        return
    known = set(_names(request.scope["route"].dependant))
    problems = []
    for name in dict.fromkeys(request.query_params):
        if name not in known:
            there = f"this path knows {', '.join(sorted(known))}" if known else "this path has none"
            got = request.query_params[name][:200]
            problems.append(
                Problem(name[:200], f"is not a known parameter; {there}", got, near(name, known))
            )
    if problems:
        raise Invalid(problems)


def _names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _names(inner)


def named(request: Request, otherwise: str) -> str:
    """Return the name of the request's token; where no token is needed, the name that the request gives."""
    return str(getattr(request.state, "operator", "") or otherwise)


def noted(
    request: Request,
    before: Any,
    after: Any,
    reason: str = "",
    *,
    dry_run: bool = False,
) -> None:
    """Leave to the audit log what a change changed, None: nothing was, or is, there; of a dry run only that."""
    change = {
        "before": before,
        "after": after,
        **({"reason": reason} if reason else {}),
    }
    request.state.audit = {"dry_run": True} if dry_run else change
