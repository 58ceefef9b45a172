"""``/api/v1/jobs/plan``: the dry run of a job."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import APIRouter, Body, Depends
from fastapi.responses import Response

from adapter.body import JsonRoute
from gateway.admin.deps import Reply, api_router, service
from gateway.admin.responses import jobs as responses
from gateway.domain.dry_run import JobPlan, Standing


@dataclass(frozen=True)
class DryRunServices:
    """The services that the path of the dry run uses."""

    plan: Callable[[Mapping[str, Any]], JobPlan]  # takes the body that would submit the job
    limiter: CapacityLimiter  # threads of requests to other nodes


_Services = Annotated[DryRunServices, Depends(service(DryRunServices))]


def router(example: Mapping[str, Any]) -> APIRouter:
    """Return the path of the dry run; ``example`` is the body of a job for its documentation."""
    router = api_router(route_class=JsonRoute)
    schema = {"examples": [dict(example)]}
    router.add_api_route(
        "/jobs/plan",
        plan_job,
        methods=["POST"],
        summary="Plan a job (dry run): what would happen at every node; creates nothing",
        response_model=responses.Plan,
        name="planned",
        openapi_extra={"requestBody": {"content": {"application/json": {"schema": schema}}}},
    )
    return router


async def plan_job(
    services: _Services,
    body: Annotated[dict[str, Any], Body()],
) -> Response:
    plan = await anyio.to_thread.run_sync(
        services.plan,
        body,
        limiter=services.limiter,
    )
    counts = {f"{standing}_count": plan.count(standing) for standing in Standing}
    nodes = []
    for node_plan in plan.nodes:
        nodes.append(
            {
                "node": node_plan.node,
                "parties": node_plan.parties,
                "checks": node_plan.items,
            }
        )
    warnings = []
    for warning in plan.warnings:
        item = warning.item
        warnings.append(
            {
                "nodes": warning.nodes,
                "check": item.check,
                "about": item.about,
                "cause": item.cause,
                "remedy": item.remedy,
            }
        )
    body = {
        "good": plan.good,
        "verdict": plan.verdict,
        **counts,
        "warnings": warnings,
        "nodes": nodes,
    }
    return Reply(body)
