"""``/api/v1/jobs``: deletion of ended jobs and their outputs, cancellation of waiting jobs."""

from dataclasses import dataclass
from typing import Annotated, Literal

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Body, Depends, Query, Request
from fastapi.openapi.models import Example
from fastapi.responses import Response
from pydantic import Field

from gateway.admin.deps import (
    OPERATOR,
    Input,
    Reply,
    api_router,
    author_of,
    record_change,
    service,
)
from gateway.admin.responses import jobs as responses
from gateway.domain.spec import NodeId
from gateway.errors import envelope
from gateway.jobs.deletion import Deleted, Deleting, SomeUnreached
from gateway.jobs.job_requests import JobRequests

_MAX_AUDITED = 100  # jobs or items that one entry of the audit log names


class CancelWaiting(Input):
    """The body of a request to cancel all jobs that have no run yet."""

    dry_run: bool = Field(default=False, description="only say which jobs would be cancelled")


_CANCEL_EXAMPLES = {"only look": Example(value={"dry_run": True})}
DryRun = Annotated[bool, Query(description="only say what would be done")]


@dataclass(frozen=True)
class RemovalServices:
    """The services that the paths of this module use."""

    node: NodeId  # this node
    job_requests: JobRequests
    deleting: Deleting
    limiter: CapacityLimiter  # threads of requests to other nodes


_Services = Annotated[RemovalServices, Depends(service(RemovalServices))]
router = api_router()


@router.delete(
    "/jobs/{job_id}",
    summary="Delete an ended job at every node",
    response_model=responses.Deleted,
    name="delete",
)
async def delete_job(
    request: Request,
    services: _Services,
    job_id: str,
    only_here: Annotated[
        bool, Query(alias="here", description="only at this node; no request to the others")
    ] = False,
    reason: Annotated[str, Query(max_length=200, description="kept in the timeline")] = "",
    dry_run: DryRun = False,
) -> Response:
    """Deletes its records, logs and outputs; one line in its timeline stays. ``nodes``: the
    result at each other node.

    Refused while the job is under way at any node (JOB_NOT_ENDED), or while other jobs need one
    of its outputs (OUTPUTS_IN_USE). If a node does not respond (503), this node keeps the job;
    send the same request again to delete it at the remaining nodes.
    """

    def work() -> Response:
        deleted = services.deleting.delete(
            job_id,
            by=author_of(request, OPERATOR),
            reason=reason,
            only_here=only_here,
            dry_run=dry_run,
        )
        return Reply(deleted.as_dict())

    try:
        response = await anyio.to_thread.run_sync(work, limiter=services.limiter)
    except SomeUnreached as error:
        return _refuse_unreached(request, error)
    record_change(request, {"job_id": job_id}, None, reason, dry_run=dry_run)
    return response


@router.delete(
    "/jobs/{job_id}/tasks/{task}/outputs",
    summary="Delete the outputs of one task of an ended job, here or at every node",
    response_model=responses.Deleted,
)
async def clean_task(
    request: Request,
    services: _Services,
    job_id: str,
    task: str,
    content: Annotated[
        Literal["outputs", "metrics"],
        Query(description="outputs: tables and models; metrics: reports"),
    ] = "outputs",
    everywhere: Annotated[
        bool, Query(description="at every node of the job, not only at this one")
    ] = False,
    dry_run: DryRun = False,
) -> Response:
    """``task`` is a name in the flow or an id. ``nodes``: the result at each other node, if they
    are asked. Refused for the same reasons as the deletion of a job.
    """
    by = author_of(request, OPERATOR)

    def work() -> Deleted:
        deleting = services.deleting
        if everywhere:
            return deleting.clean_task_everywhere(job_id, task, content, by=by, dry_run=dry_run)
        items = deleting.clean_task(job_id, task, content, by=by, dry_run=dry_run)
        return Deleted(job_id, dry_run=dry_run, items=items)

    try:
        deleted = await anyio.to_thread.run_sync(work, limiter=services.limiter)
    except SomeUnreached as error:
        return _refuse_unreached(request, error)
    names = [f"{item.kind} {item.name}" for item in deleted.items[:_MAX_AUDITED]]
    record_change(request, names, None, dry_run=dry_run)
    return Reply(deleted.as_dict())


@router.post(
    "/jobs/cancel-waiting",
    summary="Stop every job scheduled here that has not begun to run",
    response_model=responses.Cancelled,
    name="cancel",
)
def cancel_waiting(
    request: Request,
    services: _Services,
    body: Annotated[CancelWaiting, Body(openapi_examples=_CANCEL_EXAMPLES)],
) -> Response:
    jobs = services.job_requests.cancel_waiting(services.node, body.dry_run)
    record_change(
        request,
        {"waiting": jobs[:_MAX_AUDITED]},
        {"waiting": []},
        dry_run=body.dry_run,
    )
    return Reply({"dry_run": body.dry_run, "jobs": jobs})


def _refuse_unreached(request: Request, error: SomeUnreached) -> Response:
    """Return the refusal of a deletion because some nodes did not respond, with all results."""
    request.state.refused = error  # for the audit log
    body = envelope(error)
    body["data"]["nodes"] = error.nodes
    return Reply(body, error.code)
