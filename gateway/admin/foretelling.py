"""``POST /api/v1/jobs/plan``: what would happen to a job at every node; nothing is created."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import Body
from fastapi.routing import APIRoute

from gateway.admin.answers import answering
from gateway.domain.dry_run import JobPlan, Standing
from gateway.domain.spec import JobSpec
from gateway.http.paths import Paths
from gateway.ports import Limiters


@dataclass(frozen=True)
class ForetellingParts:
    """What the path is built of."""

    read: Callable[[Mapping[str, Any]], JobSpec]
    """makes a job of the body that would hand it in; raises `Invalid`"""
    plan: Callable[[JobSpec], JobPlan]
    example: Mapping[str, Any]
    limiters: Limiters


def router(parts: ForetellingParts, route: type[APIRoute] = APIRoute) -> Paths:
    """Return the path. ``route``: how a body as large as a job may be is read on the event loop."""
    router = Paths(tags=["operators"], route_class=route)
    run = answering(replace(parts.limiters, rest=parts.limiters.peers))  # it waits for other nodes

    @router.post(
        "/api/v1/jobs/plan",
        summary="What would happen to a job at every node; creates nothing",
        response_model=None,
    )
    async def plan(body: Annotated[dict[str, Any], Body(examples=[dict(parts.example)])]) -> Any:
        return await run(lambda: _as_values(parts.plan(parts.read(body))))

    return router


def _as_values(plan: JobPlan) -> dict[str, Any]:
    return {
        "good": plan.good,
        **{f"{standing}_count": plan.count(standing) for standing in Standing},
        "nodes": [
            {
                "node": node.node,
                "parties": list(node.parties),
                "checks": [
                    {
                        "check": item.check,
                        "about": item.about,
                        "standing": str(item.standing),
                        "found": item.found,
                        "cause": item.cause,
                        "remedy": item.remedy,
                    }
                    for item in node.items
                ],
            }
            for node in plan.nodes
        ],
    }
