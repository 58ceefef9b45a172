"""``/api/v1/jobs/…/approve|reject|suspend|resume``: what people decide on jobs. Real HTTP statuses."""

from datetime import UTC
from typing import Annotated, Any

from fastapi import Body, Request
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin.answers import Answer, named, noted
from gateway.admin.deps import AfterText, Limit
from gateway.admin.parts import AdminParts
from gateway.domain.run import LocalJob
from gateway.errors import NotAllowed
from gateway.http.pagination import page_of
from gateway.http.paths import Paths
from gateway.store.serialization import to_plain


class Decision(BaseModel):
    """Who decides, and why; the reason of a refusal goes to every node of the job."""

    model_config = ConfigDict(extra="forbid")

    by: str = Field(default="", max_length=100, description="Name of the person, for the timeline.")
    reason: str = Field(default="", max_length=1000, description="Why.")


_EXAMPLE = {"by": "li", "reason": "agreed with the data's owner"}
_NONE = Decision()
Said = Annotated[Decision, Body(description="May be left out.", examples=[_EXAMPLE])]


class Nothing(BaseModel):
    """An object without fields, or no body at all."""

    model_config = ConfigDict(extra="forbid")


Empty = Annotated[Nothing, Body(examples=[{}])]


def add_decisions(router: Paths, parts: AdminParts, run: Answer) -> None:
    """Add the paths of decisions to the operators' router."""

    @router.get("/api/v1/approvals", summary="Jobs here that wait for a person", response_model=None)
    async def approvals(after: AfterText = "", limit: Limit = 100) -> Any:
        """The oldest first. ``next``: what to send as ``after`` for the next page; null on the last one."""

        def work() -> dict[str, Any]:
            page = page_of(parts.participant.waiting(), _place, after, limit)
            return {"approvals": [_asked(one) for one in page.entries], "total": page.total, "next": page.next}

        return await run(work)

    @router.post("/api/v1/jobs/{job_id}/approve", summary="Agree to a job at this node", response_model=None)
    async def approve(request: Request, job_id: str, said: Said = _NONE) -> Any:
        by = named(request, said.by)
        return await run(lambda: _decide(request, parts, job_id, True, by, said.reason))

    @router.post("/api/v1/jobs/{job_id}/reject", summary="Refuse a job at this node", response_model=None)
    async def reject(request: Request, job_id: str, said: Said = _NONE) -> Any:
        by = named(request, said.by)
        return await run(lambda: _decide(request, parts, job_id, False, by, said.reason))

    @router.post(
        "/api/v1/jobs/{job_id}/suspend", summary="Start no further task; what runs, ends", response_model=None
    )
    async def suspend(request: Request, job_id: str, body: Empty = Nothing()) -> Any:
        return await run(lambda: _suspend(request, parts, job_id, True))

    @router.post("/api/v1/jobs/{job_id}/resume", summary="Go on with a suspended job", response_model=None)
    async def resume(request: Request, job_id: str, body: Empty = Nothing()) -> Any:
        return await run(lambda: _suspend(request, parts, job_id, False))


def _decide(
    request: Request, parts: AdminParts, job_id: str, approve: bool, by: str, reason: str
) -> dict[str, Any]:
    before = parts.store.local_jobs.find(job_id)
    person = named(request, "")
    if approve and person and person in parts.coordinator.submitters(job_id):
        text = f"{person} submitted job {job_id}: somebody else has to agree to it"
        raise NotAllowed(text, reason="SAME_PERSON")
    local, taken = parts.participant.decide(job_id, approve, by or "an operator", reason)
    noted(request, {"local_status": before and str(before.status)}, {"local_status": str(local.status)}, reason)
    approval = approval_of(local)
    return {"job_id": job_id, "local_status": str(local.status), "approval": approval, "repeated": not taken}


def _suspend(request: Request, parts: AdminParts, job_id: str, on: bool) -> dict[str, Any]:
    job = parts.store.jobs.find(job_id)
    before = job.suspended is not None if job else None  # another node schedules it: not known here
    parts.coordinator.suspend(job_id, on)
    noted(request, {"suspended": before}, {"suspended": on})
    return {"job_id": job_id, "suspended": on}


def approval_of(local: LocalJob) -> dict[str, Any] | None:
    """Return who had to agree to a job here, until when, and what was decided; None where nobody had to."""
    if local.approval is None:
        return None
    shown = to_plain(local.approval)
    shown.pop("confirm")
    return dict(shown)


def _place(local: LocalJob) -> tuple[str, str]:
    return local.created_at.astimezone(UTC).isoformat(timespec="microseconds"), local.id


def _asked(local: LocalJob) -> dict[str, Any]:
    spec = local.spec
    return {
        "job_id": local.id,
        "flow_id": spec.flow_id,
        "initiator": spec.initiator,
        "scheduler": spec.scheduler,
        "roles": [p.label for p in spec.parties_at(local.node)],
        "components": sorted({f"{n.component.provider}/{n.component.name}" for n in spec.dag.nodes}),
        "approval": approval_of(local),
    }
