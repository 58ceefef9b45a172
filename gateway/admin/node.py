"""The node itself: health, metrics, engine, resources, cleaning, draining, audit log, tokens and settings."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.openapi.models import Example
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from engines.base import EngineError
from gateway.admin import schemas
from gateway.admin.deps import (
    AdminParts,
    AfterNumber,
    AfterText,
    Limit,
    api_router,
    moments,
    noted,
    noted_dry_run,
)
from gateway.auth import token_place
from gateway.config.effective import effective
from gateway.config.schema import Settings
from gateway.domain.problems import Problem
from gateway.errors import EngineFailed, Invalid
from gateway.http.pagination import page_of
from gateway.jobs.retention import Cleaner, Item
from gateway.jobs.submission import Drain
from gateway.store.serialization import to_plain


class Clean(BaseModel):
    """What to remove."""

    model_config = ConfigDict(extra="forbid")

    orphans: bool = False
    """also what the database knows nothing of"""
    dry_run: bool = False
    """remove nothing, only say what would be removed"""


class DrainOrder(BaseModel):
    """How to drain the node."""

    model_config = ConfigDict(extra="forbid")

    running: Literal["wait", "stop"] = "wait"
    """what becomes of the jobs under way"""
    exit: bool = True
    """whether the process exits once nothing is under way"""


_CLEAN = {"only look": Example(value={"dry_run": True}), "clean": Example(value={})}
_DRAIN = {
    "wait, stay up": Example(value={"running": "wait", "exit": False}),
    "wait, then exit": Example(value={}),
}


def health_router(parts: AdminParts) -> APIRouter:
    """Return the paths by which others watch the node."""
    router = api_router(prefix="")

    @router.get("/health/live", summary="The process responds", response_model=schemas.Live)
    async def live() -> Any:
        return {"status": "ok"}

    @router.get(
        "/health/ready",
        summary="Jobs can be taken; what is wrong",
        response_model=schemas.Ready,
        responses={503: {"model": schemas.Ready, "description": "Not ready."}},
    )
    def ready() -> Any:
        checks = _checks(parts)
        good = all(check["ok"] for check in checks.values())
        return JSONResponse({"ready": good, "checks": checks}, status_code=200 if good else 503)

    @router.get(
        "/metrics",
        summary="Figures for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    def metrics() -> Any:
        return Response(parts.metrics.text(), media_type=parts.metrics.content_type)

    return router


def _checks(parts: AdminParts) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {"database": {"ok": True}}
    try:
        parts.store.jobs.list(limit=1)
    except Exception as error:  # whatever the driver raises, readiness is a yes or a no
        found["database"] = {"ok": False, "cause": type(error).__name__}
    try:
        parts.engine.check()
        found["engine"] = {"ok": True, "kind": parts.engine.kind}
    except EngineError as error:
        found["engine"] = {"ok": False, "kind": parts.engine.kind, "cause": f"{error.reason}: {error}"}
    lacks = "; ".join(f"{lack.reason}: {lack.text}" for lack in parts.participant.admission.lacks())
    found["storage"] = {"ok": not lacks, "cause": lacks} if lacks else {"ok": True}
    problems = [str(p) for p in parts.routes.problems]
    # a file that cannot be used does no harm: the table before it stays in force
    nodes = len(parts.routes.table.routes)
    found["routes"] = {"ok": True, "nodes": nodes, "file": "refused" if problems else "ok", "problems": problems}
    if found["engine"]["ok"] and found["database"]["ok"]:
        try:
            found["orphans"] = {"ok": True, **{kind: len(runs) for kind, runs in _orphans(parts).items()}}
        except EngineFailed as error:
            found["orphans"] = {"ok": True, "cause": f"{error.reason}: {error.message}"}
    found["channel"] = {"ok": True, **parts.broker.usage()._asdict()}
    return found


def _orphans(parts: AdminParts) -> dict[str, list[dict[str, Any]]]:
    """Return ``unknown`` (in the engine, not in the store) and ``lost`` (the other way round).

    Only runs of this node and installation; ``lost`` only those of this gateway. Raises `EngineFailed`.
    """
    expected = parts.store.launched(parts.owner)  # before the engine is listed: what starts meanwhile is not lost
    try:
        there = {found.name: found for found in parts.engine.list()}
    except EngineError as error:
        raise EngineFailed(str(error), reason=error.reason) from error
    missing = [run for run in expected if run.name not in there]
    still = {run.name for run in parts.store.launched(parts.owner)} if missing else set()
    return {
        "unknown": [
            {
                "name": name,
                "state": type(found.probe).__name__.lower(),
                **{key: found.labels.get(f"bfia.{key}") for key in ("job", "task", "role", "index", "attempt")},
            }
            for name, found in sorted(there.items())
            if parts.store.job_of_container(name) is None
        ],
        "lost": [
            {
                "name": run.name,
                "state": run.status,
                "job": run.job_id,
                "task": run.task_id,
                "role": run.role,
                "index": str(run.index),
                "attempt": str(run.attempt),
            }
            for run in missing
            if run.name in still  # and did not end meanwhile
        ],
    }


def router(parts: AdminParts, cleaner: Cleaner, drain: Drain, settings: Settings) -> APIRouter:
    """Return the paths of the engine, resources, cleaning, draining, the audit log, tokens and settings."""
    router = api_router()

    @router.get(
        "/engine", summary="What runs algorithms, and what they cannot reach", response_model=schemas.Engine
    )
    def engine() -> Any:
        about = {"kind": parts.engine.kind, "capabilities": sorted(parts.engine.capabilities)}
        try:
            parts.engine.check()
            return {**about, "answers": True, "isolation": to_plain(parts.engine.isolation())}
        except EngineError as error:
            return {**about, "answers": False, "cause": f"{error.reason}: {error}", "isolation": None}

    @router.get(
        "/orphans", summary="Runs that only the engine or only the store knows of", response_model=schemas.Orphans
    )
    def orphans() -> Any:
        return _orphans(parts)

    @router.get(
        "/resources", summary="What this node has, who holds it, who waits", response_model=schemas.Resources
    )
    def resources() -> Any:
        return parts.resources.view()

    @router.get("/gc", summary="What cleaning would remove now", response_model=schemas.Items)
    def plan(
        orphans: Annotated[bool, Query(description="also what the database knows nothing of")] = False,
    ) -> Any:
        return _listed(cleaner.plan(orphans=orphans))

    @router.post("/gc", summary="Remove what has outlived its end or its time", response_model=schemas.Items)
    def clean(request: Request, body: Annotated[Clean, Body(openapi_examples=_CLEAN)] = Clean()) -> Any:
        """``removed`` says of each whether it is gone; ``cause`` why not. ``dry_run``: none is removed."""
        items = (cleaner.plan if body.dry_run else cleaner.clean)(orphans=body.orphans)
        if body.dry_run:
            noted_dry_run(request)
        else:
            noted(request, [f"{item.kind} {item.name}" for item in items[:100]], None)
        return _listed(items)

    def ordered(request: Request, order: Callable[[], dict[str, Any]]) -> Any:
        before, after = drain.state(), order()
        keys = ("draining", "running", "exit")
        noted(request, {key: before[key] for key in keys}, {key: after[key] for key in keys})
        return after

    @router.get(
        "/drain", summary="Whether the node is being drained, and what is left", response_model=schemas.Draining
    )
    def draining() -> Any:
        return drain.state()

    @router.post(
        "/drain", summary="Take no new jobs; exit once nothing is under way", response_model=schemas.Draining
    )
    def begin(request: Request, body: Annotated[DrainOrder, Body(openapi_examples=_DRAIN)] = DrainOrder()) -> Any:
        """New jobs are refused with reason DRAINING, here and towards other nodes. Forgotten by a restart."""
        return ordered(request, lambda: drain.begin(stop=body.running == "stop", leave=body.exit))

    @router.post("/undrain", summary="Take new jobs again", response_model=schemas.Draining)
    def undo(request: Request, body: schemas.Empty = None) -> Any:
        return ordered(request, drain.undo)

    @router.get("/audit", summary="Who requested which change, and its result", response_model=schemas.Audit)
    def audit(
        after: AfterNumber = None,
        limit: Limit = 100,
        who: Annotated[str | None, Query(description="only by this person or node")] = None,
        action: Annotated[str | None, Query(description="only whose action holds this text")] = None,
        since: Annotated[str, Query(description="only then or later, such as 2026-11-21T08:00Z")] = "",
        until: Annotated[str, Query(description="only before that")] = "",
        refused: Annotated[bool | None, Query(description="only changes that were not made, or that were")] = None,
    ) -> Any:
        """``detail`` holds what was there ``before`` and ``after``, and the ids that were ``asked`` for."""
        problems: list[Problem] = []
        first, last = moments(problems, since=since, until=until)
        if problems:
            raise Invalid(problems)
        found = parts.audit.list(after, limit + 1, who, action, first, last, refused)
        return {"audit": found[:limit], "next": found[limit - 1].id if len(found) > limit else None}

    @router.get("/tokens", summary="The tokens of this node; never their text", response_model=schemas.Tokens)
    def tokens(after: AfterText = "", limit: Limit = 100) -> Any:
        return page_of(parts.tokens.list(), token_place, after, limit).shown("tokens")

    @router.get(
        "/settings", summary="Every setting in force, and where it comes from", response_model=schemas.Settings
    )
    def shown() -> Any:
        """``origin``: default, file (``where``: file and line), environment (the variable), or command.

        Secrets and passwords are masked.
        """
        return {"settings": effective(settings)}

    return router


def _listed(items: list[Item]) -> dict[str, Any]:
    return {"items": items, "bytes": sum(item.bytes for item in items)}
