"""``/api/v1/waiting`` and ``/api/v1/partners``: the first page of a person."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Depends
from fastapi.responses import Response

from gateway.admin.about import AboutServices, certificate_entries
from gateway.admin.deps import Reply, api_router, service
from gateway.admin.responses import overview as responses
from gateway.domain.applications import APPROVED
from gateway.domain.expiring import Expiring, expiring_grants, expiring_permits, is_soon
from gateway.jobs.approvals import Approvals
from gateway.ports import Clock
from gateway.runtime.answers import Answer, PartnerAnswers
from gateway.store.applications import SqlApplications
from gateway.store.repositories import SqlGrants
from route_table.live import LiveRoutes
from route_table.model import DEFAULT_ENTRY, Route


@dataclass(frozen=True)
class OverviewServices:
    """The services of these paths, in addition to `AboutServices`."""

    approvals: Approvals
    applications: SqlApplications
    grants: SqlGrants
    routes: LiveRoutes
    answers: PartnerAnswers
    clock: Clock
    limiter: CapacityLimiter  # threads of requests to partners


_Services = Annotated[OverviewServices, Depends(service(OverviewServices))]
_AboutServices = Annotated[AboutServices, Depends(service(AboutServices))]
router = api_router()


@router.get(
    "/waiting",
    summary="Pending decisions; certificates, grants and permits near their end",
    response_model=responses.WaitingForPeople,
)
def waiting(services: _Services, about: _AboutServices) -> Response:
    now = services.clock()
    certificates = [
        entry for entry in certificate_entries(about, now) if is_soon(entry["ends"], now)
    ]
    return Reply(
        {
            "approvals": len(services.approvals.waiting()),
            "applications": services.applications.count_undecided(),
            "certificates": certificates,
            "expiring": _expiring(services, now),
        }
    )


@router.get(
    "/partners",
    summary="The nodes with routes, and whether they answer",
    response_model=responses.Partners,
)
async def partners(services: _Services) -> Response:
    """Asks each partner with a small request, at most every 15 seconds; takes up to 5 seconds."""
    table = services.routes.table
    routes = [route for node, route in sorted(table.routes.items()) if node != DEFAULT_ENTRY]
    enabled = [route.node for route in routes if route.enabled]
    answers = await anyio.to_thread.run_sync(
        services.answers.ask,
        enabled,
        limiter=services.limiter,
    )
    return Reply({"partners": [_partner_fields(route, answers) for route in routes]})


def _expiring(services: OverviewServices, now: datetime) -> list[Expiring]:
    """Return the grants and permits that end soon, the next end first."""
    approved = services.applications.list(status=APPROVED)
    expiring = [
        *expiring_grants(services.grants.all(), now),
        *expiring_permits(approved, now),
    ]
    expiring.sort(key=_end_of)
    return expiring


def _end_of(expiring: Expiring) -> tuple[bool, float, str]:
    """Return the key that sorts by the end; those without an end come last."""
    end = expiring.expires_at
    if end is None:
        return True, 0.0, expiring.subject
    return False, end.timestamp(), expiring.subject


def _partner_fields(route: Route, answers: Mapping[str, Answer]) -> dict[str, Any]:
    """Return a partner as the response shows it."""
    fields = {
        "node": route.node,
        "institution": route.institution,
        "enabled": route.enabled,
        "answers": None,
        "at": None,
    }
    answer = answers.get(route.node)
    if answer is not None and route.enabled:
        fields |= vars(answer)
    return fields
