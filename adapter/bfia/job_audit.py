"""``/v1/interconn/job/audit``: a node asks whether another would take part in a job, before it creates it there.

The job audit of the management layer; ``query``, which the standard has for every other audit, is an extension.
"""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request

from adapter.bfia import examples, translate, wire
from adapter.bfia.envelope import Route, ok
from adapter.bfia.extensions import JOB_AUDIT
from adapter.bfia.requests import Caller, Done, Peers, on, required
from gateway.domain.run import Audit
from gateway.jobs.participant import JobAudits


def router(audits: JobAudits, peers: Peers) -> APIRouter:
    """Return the paths for peers."""
    router = APIRouter(tags=["job audit"], route_class=Route)
    known, limiters = peers.caller, peers.limiters

    @router.post(
        f"{JOB_AUDIT}/apply", summary="A node asks whether this one would take part in a job (management 8)"
    )
    async def apply(body: Annotated[wire.ApplyAudit, examples.APPLY_AUDIT], caller: Caller = known) -> Done:
        spec = translate.job_spec(body, body.job_id, caller.node, caller.trace_id)
        audit = Audit(body.audit_id, body.name, body.project_id)
        return await caller.done(limiters.rest, lambda: audits.apply(spec, audit, caller.node))

    @router.post(
        f"{JOB_AUDIT}/confirm", summary="A node that this one asked says whether it takes part (management 8)"
    )
    async def confirm(body: Annotated[wire.ConfirmAudit, examples.CONFIRM_AUDIT], caller: Caller = known) -> Done:
        why_not = translate.refusal(body, caller.node)
        return await caller.done(limiters.news, lambda: audits.confirm(body.audit_id, why_not, caller.node))

    @router.post(f"{JOB_AUDIT}/terminate", summary="A node withdraws its question, or its answer (management 8)")
    async def terminate(
        body: Annotated[wire.TerminateAudit, examples.TERMINATE_AUDIT], caller: Caller = known
    ) -> Done:
        ending = translate.ending(body, datetime.now(UTC), caller.node)
        return await caller.done(limiters.rest, lambda: audits.terminate(body.audit_id, caller.node, ending))

    @router.get(f"{JOB_AUDIT}/query", summary="What has become of a question of the sender's (ours)")
    async def query(
        request: Request,
        caller: Caller = known,
        audit_id: str | None = Query(default=None, description="the audit's id"),
    ) -> wire.Answer[wire.AuditData]:
        wanted = await required(request, "audit_id")
        status = await on(limiters.rest, caller.sender, lambda: audits.status(wanted, caller.node))
        return ok(wire.AuditData(status=str(status)), caller.profile)

    return router
