"""What the routers of ``/api/v1`` share: parameters of lists, times, and what a request leaves to the audit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.dependencies.models import Dependant
from pydantic import Field

from engines.base import Engine
from gateway.admin.schemas import Refusal
from gateway.broker.broker import Broker
from gateway.data.logs import RunLogs
from gateway.data.storage import FileStorage
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId
from gateway.errors import Invalid, near
from gateway.jobs.coordinator import Coordinator
from gateway.jobs.participant import Participant
from gateway.jobs.resources import Resources
from gateway.ports import Limiters
from gateway.runtime.checks import Step
from gateway.runtime.metrics import Metrics
from gateway.store.repositories import SqlAudit, SqlTokens
from gateway.store.store import Store
from provider_registry.registry import Registry
from route_table.live import LiveRoutes

OPERATOR = "operator"
"""who it was where no token is needed"""
API = "/api/v1"
_MOST = 1000
"""entries of one page"""
_LARGEST = 2**63 - 1
"""what the database can hold"""


@dataclass(frozen=True)
class AdminParts:
    """What the paths of jobs, outputs, routes and the node itself use."""

    node: NodeId
    owner: str
    """gateway instance and engine: whose containers these are where several share a database"""
    store: Store
    coordinator: Coordinator
    participant: Participant
    routes: LiveRoutes
    try_route: Callable[[NodeId], Sequence[Step]]
    metrics: Metrics
    tokens: SqlTokens
    audit: SqlAudit
    registry: Registry
    engine: Engine
    broker: Broker
    storage: FileStorage
    run_logs: RunLogs
    resources: Resources
    limiters: Limiters


def api_router(prefix: str = API, **options: Any) -> APIRouter:
    """Return a router for paths of the operators' listener."""
    refused = {"model": Refusal, "description": "Refused."}
    return APIRouter(tags=["operators"], prefix=prefix, responses={"default": refused}, **options)


_NEXT_PAGE = "the next page: `next` of the last response"
Limit = Annotated[int, Query(ge=1, le=_MOST, description=f"entries of a page, 1 to {_MOST}")]
Number = Annotated[int, Field(ge=0, le=_LARGEST)]
"""of a version, a revision, an entry"""
AfterNumber = Annotated[Number | None, Query(description=_NEXT_PAGE)]
AfterText = Annotated[str, Query(description=_NEXT_PAGE)]


async def only_known(request: Request) -> None:
    """Refuse query parameters that a path of ours does not have. Raises `Invalid`."""
    if not request.url.path.startswith(f"{API}/"):
        return
    known = set(_names(request.scope["route"].dependant))
    problems = []
    for name in dict.fromkeys(request.query_params):
        if name not in known:
            there = f"this path knows {', '.join(sorted(known))}" if known else "this path has none"
            got = request.query_params[name][:200]
            problems.append(Problem(name[:200], f"is not a known parameter; {there}", got, near(name, known)))
    if problems:
        raise Invalid(problems)


def _names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _names(inner)


def named(request: Request, otherwise: str) -> str:
    """Return the name of the request's token; where no token is needed, the name that the request gives."""
    return str(getattr(request.state, "operator", "") or otherwise)


def noted(request: Request, before: Any, after: Any, reason: str = "") -> None:
    """Leave to the audit log what a change changed; None: nothing was, or is, there."""
    request.state.audit = {"before": before, "after": after, **({"reason": reason} if reason else {})}


def noted_dry_run(request: Request) -> None:
    """Leave to the audit log that nothing was changed."""
    request.state.audit = {"dry_run": True}


_FIRST, _LAST = datetime(1970, 1, 2, tzinfo=UTC), datetime(9998, 1, 1, tzinfo=UTC)


def moment(text: str) -> datetime:
    """Read a date, or date and time, in UTC where it names no zone. Raises `ValueError` with the rule."""
    rule = "must be a date or time such as 2026-11-21 or 2026-11-21T08:00Z"
    try:
        found = datetime.fromisoformat(text.strip().replace(" ", "+") if "T" in text else text.strip())
    except ValueError:
        raise ValueError(rule) from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    if not _FIRST <= found <= _LAST:
        raise ValueError(rule)
    return found


def moments(problems: list[Problem], **texts: str) -> list[datetime | None]:
    """Read each text, an empty one as None; what is wrong with one becomes a problem with its name."""
    found: list[datetime | None] = []
    for path, text in texts.items():
        try:
            found.append(moment(text) if text else None)
        except ValueError as error:
            problems.append(Problem(path, str(error), text))
            found.append(None)
    return found
