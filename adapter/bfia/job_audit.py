"""``/v1/interconn/job/audit``: a node asks whether another would take part in a job, before it creates it there.

The job audit of the management layer. What is decided is told by ``confirm``; ``query``, which the standard has
for every other audit, is an extension here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Query, Request

from adapter.bfia import requests, responses, translate, wire
from adapter.bfia.envelope import ok
from adapter.bfia.extensions import JOB_AUDIT
from adapter.bfia.headers import described
from adapter.bfia.profiles import Profile
from adapter.bfia.requests import Sender, asked, on, required
from adapter.body import JsonRoute
from gateway.domain.run import Audit
from gateway.domain.spec import NodeId
from gateway.ports import JobAuditApi, Limiters
from gateway.runtime.context import new_trace_id


@dataclass(frozen=True)
class JobAuditParts:
    """What the paths of the job audit are built of."""

    audits: JobAuditApi
    limiters: Limiters
    profile_of: Callable[[NodeId], Profile]
    knows: Callable[[NodeId], bool]


def router(parts: JobAuditParts) -> APIRouter:
    """Return the paths for peers."""
    router = APIRouter(tags=["job audit"], route_class=JsonRoute, dependencies=[Depends(described)])

    known = partial(requests.known, parts.knows)
    done = partial(requests.done, parts, parts.limiters.rest)
    heard = partial(requests.done, parts, parts.limiters.news)

    @router.post(
        f"{JOB_AUDIT}/apply", summary="A node asks whether this one would take part in a job (management 8)"
    )
    async def apply(
        body: Annotated[wire.ApplyAudit, Body(openapi_examples=responses.APPLY_AUDIT)], sender: Sender
    ) -> dict[str, Any]:
        source = known(sender)
        spec = translate.job_spec(body, body.job_id, source, sender.trace_id or new_trace_id())
        audit = Audit(body.audit_id, body.name, body.project_id)
        await on(parts.limiters.rest, sender, lambda: parts.audits.apply(spec, audit, source))
        return ok(profile=parts.profile_of(source))

    @router.post(
        f"{JOB_AUDIT}/confirm", summary="A node that this one asked says whether it takes part (management 8)"
    )
    async def confirm(
        body: Annotated[wire.ConfirmAudit, Body(openapi_examples=responses.CONFIRM_AUDIT)], sender: Sender
    ) -> dict[str, Any]:

        def work(source: NodeId) -> None:
            why_not = translate.audit_refusal(body, source)
            parts.audits.confirm(body.audit_id, why_not, source)

        return await heard(sender, work)

    @router.post(f"{JOB_AUDIT}/terminate", summary="A node takes back its question, or its answer (management 8)")
    async def terminate(
        body: Annotated[wire.TerminateAudit, Body(openapi_examples=responses.TERMINATE_AUDIT)], sender: Sender
    ) -> dict[str, Any]:

        def work(source: NodeId) -> None:
            ending = translate.ending(body, datetime.now(UTC), source)
            parts.audits.terminate(body.audit_id, source, ending)

        return await done(sender, work)

    @router.get(f"{JOB_AUDIT}/query", summary="What has become of a question of the sender's (ours)")
    async def query(
        request: Request, sender: Sender, audit_id: str | None = Query(default=None, description="the audit's id")
    ) -> dict[str, Any]:
        source = known(sender)
        wanted = required(await asked(request, "audit_id"), "audit_id")
        status = await on(parts.limiters.rest, sender, lambda: parts.audits.status(wanted, source))
        return ok({"status": str(status)}, parts.profile_of(source))

    return router
