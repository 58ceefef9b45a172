"""``/api/v1/gc``, ``/api/v1/drain``: what cleaning would remove, and the cleaning itself; emptying the node."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import Body, Query, Request
from fastapi.openapi.models import Example
from pydantic import BaseModel, ConfigDict

from gateway.admin.answers import answering, looked, noted
from gateway.http.paths import Paths
from gateway.jobs.cleaning import Cleaner, Item
from gateway.ports import Limiters
from gateway.runtime.drain import Drain


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


def router(cleaner: Cleaner, drain: Drain, limiters: Limiters) -> Paths:
    """Return the paths of cleaning and emptying."""
    router = Paths(tags=["operators"])
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
