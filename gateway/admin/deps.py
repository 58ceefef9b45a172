"""One rule for what stands behind the ? of our own paths: each is known, of its kind and in its range, or refused.

A list that grows has pages: ``limit`` entries, and ``next``, which is sent as ``after`` for the next page.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import anyio.to_thread
from fastapi import Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse, Response
from pydantic import BeforeValidator
from pydantic_core import to_json

from engines.base import Engine
from gateway.broker.broker import Broker
from gateway.data.logs import RunLogs
from gateway.data.storage import FileStorage
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId
from gateway.errors import GatewayError, Invalid, near
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

OURS = "/api/v1/"
MOST = 1000
"""entries of one page"""
_LARGEST = 2**63 - 1
"""what the database can hold"""


def whole(first: int, last: int) -> Callable[[Any], int]:
    """Return what reads a whole number within bounds and names both where it is none."""

    def read(value: Any) -> int:
        text = str(value).strip()
        if text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 20 and first <= int(text) <= last:
            return int(text)
        upto = f"to {last}" if last < _LARGEST else "on"
        raise ValueError(f"must be a whole number from {first} {upto}")

    return read


Limit = Annotated[
    int, BeforeValidator(whole(1, MOST)), Query(ge=1, le=MOST, description=f"entries of a page, 1 to {MOST}")
]
NUMBER = BeforeValidator(whole(0, _LARGEST))
"""of a version, a revision, an entry"""
AfterNumber = Annotated[
    int | None,
    NUMBER,
    Query(ge=0, description="the next page: what the last answer said in next"),
]
AfterText = Annotated[str, Query(description="the next page: what the last answer said in next")]


async def only_known(request: Request) -> None:
    """Refuse parameters of our own paths that nobody reads, such as misspelt ones. Raises `Invalid`."""
    if not request.url.path.startswith(OURS):
        return
    known = set(_names(request.scope["route"].dependant))
    problems = []
    for name in dict.fromkeys(request.query_params):
        if name not in known:
            there = f"this path knows {', '.join(sorted(known))}" if known else "this path has none"
            got = request.query_params[name][:200]
            problems.append(Problem(name[:200], f"is no parameter here; {there}", got, near(name, known)))
    if problems:
        raise Invalid(problems)


def _names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _names(inner)


Answer = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs work in a thread, which also writes out the object that it returns; what the gateway can name becomes an
answer with its HTTP status."""


def answering(limiters: Limiters) -> Answer:
    """Return how a path does its work: in a thread of the limiter, with errors as answers."""

    async def answer(work: Callable[[], Any]) -> Any:
        try:
            return await anyio.to_thread.run_sync(lambda: _written(work()), limiter=limiters.rest)
        except GatewayError as error:
            return refusal(error)

    return answer


def _written(found: Any) -> Any:
    """Return an object as an answer in JSON: the framework would go through it on the event loop, and slowly."""
    if not isinstance(found, dict):
        return found
    text = to_json(found, inf_nan_mode="null", fallback=jsonable_encoder)
    return Response(text, media_type="application/json")


def refusal(error: GatewayError) -> JSONResponse:
    """Return an error as the operators' paths say it: its own HTTP status, its reason, every problem."""
    data: dict[str, Any] = {"reason": error.reason}
    if error.job_id:
        data["job_id"] = error.job_id
    if error.problems:
        data["problems"] = [
            {"path": p.path, "rule": p.rule, "got": str(p.got)}
            | ({"suggestion": p.suggestion} if p.suggestion else {})
            for p in error.problems
        ]
    body = {"code": error.code, "msg": f"{error.reason}: {error.message}", "data": data}
    return JSONResponse(body, status_code=error.code)


def named(request: Request, otherwise: str) -> str:
    """Return whose token the request came with; where no token is needed, what it says itself."""
    return str(getattr(request.state, "operator", "") or otherwise)


def noted(request: Request, before: Any, after: Any, reason: str = "") -> None:
    """Leave to the audit what a change changed; None: nothing was, or is, there."""
    request.state.audit = {"before": before, "after": after, **({"reason": reason} if reason else {})}


def looked(request: Request) -> None:
    """Leave to the audit that nothing was changed: the request only asked what would be."""
    request.state.audit = {"dry_run": True}


@dataclass(frozen=True)
class AdminParts:
    """What the paths of our own API are built of."""

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
    """Read each text, an empty one as None; what is wrong with one becomes a problem by its name."""
    found: list[datetime | None] = []
    for path, text in texts.items():
        try:
            found.append(moment(text) if text else None)
        except ValueError as error:
            problems.append(Problem(path, str(error), text))
            found.append(None)
    return found
