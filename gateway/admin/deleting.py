"""``DELETE /api/v1/jobs/…``: a job everywhere, outputs of one task here; and all waiting jobs at once."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import Body, Query, Request
from fastapi.openapi.models import Example
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from gateway.admin.answers import answering, looked, named, noted, refusal
from gateway.errors import GatewayError
from gateway.http.paths import Paths
from gateway.jobs.coordinator import Coordinator
from gateway.jobs.deletion import Deleting, SomeUnreached, cancel_waiting
from gateway.ports import Limiters
from gateway.store.store import Store

BY = "operator"
"""who it was where no token is needed"""
DryRun = Annotated[bool, Query(description="only say what would be done")]


@dataclass(frozen=True)
class DeletingParts:
    """What the paths are built of."""

    node: str
    store: Store
    coordinator: Coordinator
    deleting: Deleting
    limiters: Limiters


class CancelWaiting(BaseModel):
    """Which jobs to cancel: all of which nothing runs yet."""

    model_config = ConfigDict(extra="forbid")

    dry_run: bool = False


_CANCEL = {"only look": Example(value={"dry_run": True})}


def router(parts: DeletingParts) -> Paths:
    """Return the paths that take something away."""
    router = Paths(tags=["operators"])
    run = answering(parts.limiters)

    @router.delete("/api/v1/jobs/{job_id}", summary="Delete an ended job at every node", response_model=None)
    async def delete(
        request: Request,
        job_id: str,
        here: Annotated[bool, Query(description="only at this node; the others are not asked")] = False,
        reason: Annotated[str, Query(max_length=200, description="kept in the line that is left")] = "",
        dry_run: DryRun = False,
    ) -> Any:
        """Its records, logs and outputs; one line in its timeline stays. ``nodes``: how it ended at the others.

        Refused while the job goes on (JOB_NOT_ENDED) or others need an output (OUTPUTS_IN_USE). Where a node does
        not answer (503), the job is kept here, so that the same request goes on where this one stopped.
        """

        by = named(request, BY)

        def work() -> Any:
            done = parts.deleting.delete(job_id, by=by, reason=reason, here=here, dry_run=dry_run).as_dict()
            looked(request) if dry_run else noted(request, {"job_id": job_id}, None, reason)
            return done

        try:  # it waits for other nodes
            return await anyio.to_thread.run_sync(work, limiter=parts.limiters.peers)
        except SomeUnreached as error:
            nodes = {n: at.as_dict() for n, at in error.nodes.items()}
            data = {"reason": error.reason, "nodes": nodes}
            body = {"code": error.code, "msg": f"{error.reason}: {error.message}", "data": data}
            return JSONResponse(body, status_code=error.code)
        except GatewayError as error:
            return refusal(error)

    @router.delete(
        "/api/v1/jobs/{job_id}/tasks/{task}/outputs",
        summary="Delete what one task of an ended job left here",
        response_model=None,
    )
    async def clean_task(
        request: Request,
        job_id: str,
        task: str,
        content: Annotated[
            Literal["outputs", "metrics"], Query(description="outputs: tables and models; metrics: reports")
        ] = "outputs",
        dry_run: DryRun = False,
    ) -> Any:
        """``task`` is a name in the flow or an id. Refused as the deletion of a job is."""

        def work() -> Any:
            items = parts.deleting.clean_task(job_id, task, content, by=named(request, BY), dry_run=dry_run)
            listed = [item.as_dict() for item in items]
            if dry_run:
                looked(request)
            else:
                noted(request, [f"{item.kind} {item.name}" for item in items[:100]], None)
            return {"job_id": job_id, "dry_run": dry_run, "items": listed, "bytes": sum(i.bytes for i in items)}

        return await run(work)

    @router.post(
        "/api/v1/jobs/cancel-waiting",
        summary="Stop all jobs scheduled here of which nothing runs yet",
        response_model=None,
    )
    async def cancel_waiting(
        request: Request, body: Annotated[CancelWaiting, Body(openapi_examples=_CANCEL)]
    ) -> Any:
        def work() -> Any:
            done = _cancel(parts, body.dry_run)
            if body.dry_run:
                looked(request)
            else:
                noted(request, {"waiting": done["jobs"][:100]}, {"waiting": []})
            return done

        return await run(work)

    return router


def _cancel(parts: DeletingParts, dry_run: bool) -> dict[str, Any]:
    return {"dry_run": dry_run, "jobs": cancel_waiting(parts.store, parts.coordinator, parts.node, dry_run)}
