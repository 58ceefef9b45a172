"""``/api/v1/gc``: what cleaning would remove, and the cleaning itself."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from fastapi.openapi.models import Example
from pydantic import BaseModel, ConfigDict

from gateway.admin.answers import answering
from gateway.cleaning import Cleaner, Item
from gateway.ports import Limiters


class Clean(BaseModel):
    """What to remove."""

    model_config = ConfigDict(extra="forbid")

    orphans: bool = False
    """also what the database knows nothing of"""
    dry_run: bool = False
    """remove nothing, only say what would go"""


_CLEAN = {"only look": Example(value={"dry_run": True}), "clean": Example(value={})}


def router(cleaner: Cleaner, limiters: Limiters) -> APIRouter:
    """Return the paths of cleaning."""
    router = APIRouter(tags=["operators"])
    run = answering(limiters)

    @router.get("/api/v1/gc", summary="What cleaning would remove now", response_model=None)
    async def look(
        orphans: Annotated[bool, Query(description="also what the database knows nothing of")] = False,
    ) -> Any:
        return await run(lambda: _listed(cleaner.plan(orphans=orphans)))

    @router.post("/api/v1/gc", summary="Remove what has outlived its end or its time", response_model=None)
    async def clean(body: Annotated[Clean, Body(openapi_examples=_CLEAN)] = Clean()) -> Any:
        """``removed`` says of each whether it is gone; ``cause`` why not. ``dry_run``: none is removed."""
        work = cleaner.plan if body.dry_run else cleaner.clean
        return await run(lambda: _listed(work(orphans=body.orphans)))

    return router


def _listed(items: list[Item]) -> dict[str, Any]:
    return {"items": [item.as_dict() for item in items], "bytes": sum(item.bytes for item in items)}
