"""``/api/v1/gc``, ``/api/v1/drain``: what cleaning would remove, and the cleaning itself; emptying the node."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Query, Request
from fastapi.openapi.models import Example
from pydantic import BaseModel, ConfigDict

from gateway.admin.deps import AfterNumber, AfterText, Answer, Limit, answering, looked, moments, noted
from gateway.auth import Token, token_place
from gateway.config.effective import effective
from gateway.config.schema import Settings
from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.http.pagination import page_of
from gateway.jobs.retention import Cleaner, Item
from gateway.ports import Limiters
from gateway.runtime.drain import Drain
from gateway.store.repositories import SqlAudit, SqlTokens
from gateway.store.serialization import to_plain


class Clean(BaseModel):
    """What to remove."""

    model_config = ConfigDict(extra="forbid")

    orphans: bool = False
    """also what the database knows nothing of"""
    dry_run: bool = False
    """remove nothing, only say what would go"""


_CLEAN = {"only look": Example(value={"dry_run": True}), "clean": Example(value={})}


class Empty(BaseModel):
    """How to empty the node."""

    model_config = ConfigDict(extra="forbid")

    running: Literal["wait", "stop"] = "wait"
    """what becomes of the jobs under way"""
    exit: bool = True
    """whether the process ends once nothing is under way"""


_EMPTY = {
    "wait, stay up": Example(value={"running": "wait", "exit": False}),
    "wait, then end": Example(value={}),
}
_NOTHING = {"nothing to say": Example(value={})}


class Nothing(BaseModel):
    """No more than the path says."""

    model_config = ConfigDict(extra="forbid")


def router(cleaner: Cleaner, drain: Drain, limiters: Limiters) -> APIRouter:
    """Return the paths of cleaning and emptying."""
    router = APIRouter(tags=["operators"])
    run = answering(limiters)

    @router.get("/api/v1/gc", summary="What cleaning would remove now", response_model=None)
    async def look(
        orphans: Annotated[bool, Query(description="also what the database knows nothing of")] = False,
    ) -> Any:
        return await run(lambda: _listed(cleaner.plan(orphans=orphans)))

    @router.post("/api/v1/gc", summary="Remove what has outlived its end or its time", response_model=None)
    async def clean(request: Request, body: Annotated[Clean, Body(openapi_examples=_CLEAN)] = Clean()) -> Any:
        """``removed`` says of each whether it is gone; ``cause`` why not. ``dry_run``: none is removed."""

        def work() -> Any:
            items = (cleaner.plan if body.dry_run else cleaner.clean)(orphans=body.orphans)
            if body.dry_run:
                looked(request)
            else:
                noted(request, [f"{item.kind} {item.name}" for item in items[:100]], None)
            return _listed(items)

        return await run(work)

    @router.get(
        "/api/v1/drain", summary="Whether the node is being emptied, and what is left", response_model=None
    )
    async def draining() -> Any:
        return await run(drain.state)

    @router.post("/api/v1/drain", summary="Take no new jobs; end once nothing is under way", response_model=None)
    async def begin(request: Request, body: Annotated[Empty, Body(openapi_examples=_EMPTY)] = Empty()) -> Any:
        """New jobs are refused with reason DRAINING, here and towards other nodes. Forgotten by a restart."""
        return await run(
            lambda: _ordered(request, drain, lambda: drain.begin(stop=body.running == "stop", leave=body.exit))
        )

    @router.post("/api/v1/undrain", summary="Take new jobs again", response_model=None)
    async def undo(request: Request, body: Annotated[Nothing, Body(openapi_examples=_NOTHING)] = Nothing()) -> Any:
        return await run(lambda: _ordered(request, drain, drain.undo))

    return router


def _ordered(request: Request, drain: Drain, order: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    before, after = drain.state(), order()
    keys = ("draining", "running", "exit")
    noted(request, {key: before[key] for key in keys}, {key: after[key] for key in keys})
    return after


def _listed(items: list[Item]) -> dict[str, Any]:
    return {"items": [item.as_dict() for item in items], "bytes": sum(item.bytes for item in items)}


def add_audit(router: APIRouter, audit: SqlAudit, tokens: SqlTokens, run: Answer) -> None:
    """Add the paths."""

    @router.get("/api/v1/audit", summary="Who asked for which change, and how that went", response_model=None)
    async def entries(
        after: AfterNumber = None,
        limit: Limit = 100,
        who: Annotated[str | None, Query(description="only by this person or node")] = None,
        action: Annotated[str | None, Query(description="only whose action holds this text")] = None,
        since: Annotated[str, Query(description="only then or later, such as 2026-11-21T08:00Z")] = "",
        until: Annotated[str, Query(description="only before that")] = "",
        refused: Annotated[bool | None, Query(description="only changes that were not made, or that were")] = None,
    ) -> Any:
        """``detail`` holds what was there ``before`` and ``after``, and the ids that were ``asked`` for.

        ``next``: send it as ``after`` for the next page; null on the last one.
        """

        def work() -> dict[str, Any]:
            problems: list[Problem] = []
            first, last = moments(problems, since=since, until=until)
            if problems:
                raise Invalid(problems)
            found = audit.list(after, limit + 1, who, action, first, last, refused)
            shown = [to_plain(e) for e in found[:limit]]
            return {"audit": shown, "next": found[limit - 1].id if len(found) > limit else None}

        return await run(work)

    @router.get("/api/v1/tokens", summary="Whose tokens there are; never their text", response_model=None)
    async def listed(after: AfterText = "", limit: Limit = 100) -> Any:
        """The oldest first. ``next``: what to send as ``after`` for the next page; null on the last one."""

        def work() -> dict[str, Any]:
            page = page_of(tokens.list(), token_place, after, limit)
            return {"tokens": [_shown(token) for token in page.entries], "total": page.total, "next": page.next}

        return await run(work)


def _shown(token: Token) -> dict[str, Any]:
    shown: dict[str, Any] = to_plain(token)
    shown.pop("digest")
    return shown


def settings_router(settings: Settings) -> APIRouter:
    """Return the path."""
    router = APIRouter(tags=["operators"])

    @router.get("/api/v1/settings", summary="Every setting in force, and where it comes from", response_model=None)
    async def shown() -> Any:
        """``origin``: default, file (``where``: file and line), environment (the variable), or command.

        Secrets and passwords are masked.
        """
        return {"settings": effective(settings)}

    return router
