"""``/api/v1/jobs``: listing, a job in full, its timeline, decisions about it, and running it again."""

import math
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Body, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from gateway.admin import schemas
from gateway.admin.deps import AdminParts, AfterText, Limit, api_router, moments, named, noted
from gateway.admin.models import model_of
from gateway.auth import Role
from gateway.data.log_copies import STREAMS
from gateway.domain import waiting
from gateway.domain.dag import DagNode
from gateway.domain.problems import Problem
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import CallState, JobSpec, Party, effective
from gateway.domain.states import JobStatus, Outcome, RunStatus
from gateway.errors import Invalid, NotAllowed, NotFound
from gateway.http.pagination import page_of
from gateway.ports import JobView
from gateway.store.queries import Place, Wanted, page
from gateway.store.serialization import to_plain
from provider_registry.registry import Unknown

DEFAULT = "component default"
"""origin of a value that the job does not set; the component takes it by itself, it is never sent to it"""
_STATUSES = [str(status) for status in JobStatus]
_OUTCOMES = [str(outcome) for outcome in Outcome]
_LAST_LINES = 100


class Decision(BaseModel):
    """Who decides, and why; the reason of a rejection goes to every node of the job."""

    model_config = ConfigDict(extra="forbid")

    by: str = Field(default="", max_length=100, description="Name of the person, for the timeline.")
    reason: str = Field(default="", max_length=1000, description="Why.")


class RerunOrder(BaseModel):
    """What to run again, and what to change."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    start: str = Field(
        default="", alias="from", max_length=200, description="a task; else the first that has not succeeded"
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict,
        description="changes of tasks that run again, as in task_params: common, then role, index, task",
    )


_DECISION = {"by": "li", "reason": "agreed with the data's owner"}
Decided = Annotated[Decision, Body(description="May be left out.", examples=[_DECISION])]
_RERUN = {"from": "train", "parameters": {"common": {"train": {"epochs": 5}}}}


def router(parts: AdminParts) -> APIRouter:
    """Return the paths."""
    router = api_router()

    @router.get("/jobs", summary="Jobs scheduled here or taken part in, newest first", response_model=schemas.Jobs)
    def listed(
        status: Annotated[str, Query(description=f"one or more of {', '.join(_STATUSES)}, with commas")] = "",
        outcome: Annotated[str, Query(description=f"one or more of {', '.join(_OUTCOMES)}")] = "",
        flow_id: Annotated[str | None, Query(description="only of this flow")] = None,
        partner: Annotated[str | None, Query(description="only with this node in a role")] = None,
        since: Annotated[str, Query(description="only created then or later, such as 2026-11-21T08:00Z")] = "",
        until: Annotated[str, Query(description="only created before that")] = "",
        after: AfterText = "",
        limit: Limit = 100,
    ) -> Any:
        """``sides``: what this node is to the job."""
        problems: list[Problem] = []
        wanted = Wanted(
            _among(status, _STATUSES, "status", problems),
            _among(outcome, _OUTCOMES, "outcome", problems),
            flow_id,
            partner,
            *moments(problems, since=since, until=until),
        )
        place = _place(after, problems)
        if problems:
            raise Invalid(problems)
        found = page(parts.store, wanted, limit, place)
        following = f"{found.next.created_at!r}~{found.next.job_id}" if found.next else None
        return {"jobs": found.entries, "next": following}

    @router.get(
        "/jobs/{job_id}", summary="A job in full: parties, parameters, runs here", response_model=schemas.Job
    )
    def one(request: Request, job_id: str) -> Any:
        """``last_lines`` of a failed run's log: for those only who may read the log."""
        logs = getattr(request.state, "role", "") != Role.VIEWER
        return job_in_full(parts, job_id, logs=logs)

    @router.get("/jobs/{job_id}/timeline", summary="All that happened to a job", response_model=schemas.Timeline)
    def timeline(job_id: str) -> Any:
        """Also of a job that was deleted here, of which only that is left."""
        store = parts.store
        found = [to_plain(entry) for entry in store.timeline(job_id)]
        if not found and not (
            store.jobs.find(job_id) or store.local_jobs.find(job_id) or store.scheduler_of(job_id) is not None
        ):
            raise NotFound(f"no job {job_id} was submitted, is scheduled or runs here", reason="JOB_UNKNOWN")
        return {"timeline": found}

    @router.post(
        "/jobs/{job_id}/rerun",
        summary="Run an ended job again from a task on; what came before is taken over",
        response_model=schemas.Rerun,
    )
    def rerun(
        request: Request, job_id: str, body: Annotated[RerunOrder | None, Body(examples=[_RERUN])] = None
    ) -> Any:
        order = body or RerunOrder()
        made = parts.coordinator.rerun(job_id, order.start, order.parameters)
        request.state.answered = {"job_id": made.job_id}
        shown = {"job_id": made.job_id, "old_job_id": job_id, "from": made.start}
        return {**shown, "runs": made.runs, "inherits": made.inherits}

    @router.get("/approvals", summary="Jobs here that wait for a person", response_model=schemas.Approvals)
    def approvals(after: AfterText = "", limit: Limit = 100) -> Any:
        """The oldest first."""
        return page_of(parts.participant.waiting(), _created, after, limit).shown("approvals", _asked)

    def decide(request: Request, job_id: str, decision: Decision, approve: bool) -> Any:
        before = parts.store.local_jobs.find(job_id)
        person = named(request, "")
        if approve and person and person in parts.coordinator.submitters(job_id):
            text = f"{person} submitted job {job_id}: somebody else has to agree to it"
            raise NotAllowed(text, reason="SAME_PERSON")
        by = named(request, decision.by) or "an operator"
        local, taken = parts.participant.decide(job_id, approve, by, decision.reason)
        after = str(local.status)
        noted(request, {"local_status": before and str(before.status)}, {"local_status": after}, decision.reason)
        return {"job_id": job_id, "local_status": after, "approval": _approval(local), "repeated": not taken}

    @router.post("/jobs/{job_id}/approve", summary="Agree to a job at this node", response_model=schemas.Decided)
    def approve(request: Request, job_id: str, decision: Decided = Decision()) -> Any:
        return decide(request, job_id, decision, True)

    @router.post("/jobs/{job_id}/reject", summary="Refuse a job at this node", response_model=schemas.Decided)
    def reject(request: Request, job_id: str, decision: Decided = Decision()) -> Any:
        return decide(request, job_id, decision, False)

    def suspend(request: Request, job_id: str, on: bool) -> Any:
        job = parts.store.jobs.find(job_id)
        before = job.suspended is not None if job else None  # None: another node schedules it
        parts.coordinator.suspend(job_id, on)
        noted(request, {"suspended": before}, {"suspended": on})
        return {"job_id": job_id, "suspended": on}

    @router.post(
        "/jobs/{job_id}/suspend",
        summary="Start no further task; what runs, ends",
        response_model=schemas.Suspended,
    )
    def suspended(request: Request, job_id: str, body: schemas.Empty = None) -> Any:
        return suspend(request, job_id, True)

    @router.post("/jobs/{job_id}/resume", summary="Go on with a suspended job", response_model=schemas.Suspended)
    def resumed(request: Request, job_id: str, body: schemas.Empty = None) -> Any:
        return suspend(request, job_id, False)

    return router


def _among(text: str, words: list[str], path: str, problems: list[Problem]) -> list[str]:
    asked = [word.strip().upper() for word in text.split(",") if word.strip()]
    if wrong := [word for word in asked if word not in words]:
        problems.append(Problem(path, f"must be among {', '.join(words)}", ", ".join(wrong)))
    return asked


def _place(text: str, problems: list[Problem]) -> Place | None:
    if not text:
        return None
    created, mark, job_id = text.partition("~")
    with suppress(ValueError):
        if mark and math.isfinite(float(created)):
            return Place(float(created), job_id)
    problems.append(Problem("after", "must be `next` of a response", text))
    return None


def _created(local: LocalJob) -> tuple[str, str]:
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
        "approval": _approval(local),
    }


def _approval(local: LocalJob) -> dict[str, Any] | None:
    """Return who had to agree to a job here, until when, and what was decided; None where nobody had to."""
    if local.approval is None:
        return None
    return {name: value for name, value in to_plain(local.approval).items() if name != "confirm"}


def job_in_full(parts: AdminParts, job_id: str, *, logs: bool = True) -> dict[str, Any]:
    """Return all that is known of a job. ``logs``: with the last lines of failed runs. Raises `NotFound`."""
    view: JobView = parts.coordinator.status(job_id)
    local = parts.store.local_jobs.find(job_id)
    job = None if local else parts.store.jobs.find(job_id)
    spec = local.spec if local else job.spec if job else None
    reasons = waiting.of_runs(local) if local else {}
    return {
        **to_plain(view),
        **(_known(parts, spec, local) if spec else _submitted_elsewhere(parts, view)),
        "runs": [_run(parts, r, local, reasons[r.run_id], logs) for r in local.runs] if local else [],
        **(_here(local) if local else {}),
        "inherited_runs": [_inherited_run(r) for r in local.standing() if r.of_job] if local else [],
        "local_warnings": list(local.warnings) if local else [],
        "resources": parts.resources.of_job(local) if local else None,
        "model": model_of(spec) if spec else None,
    }


def _here(local: LocalJob) -> dict[str, Any]:
    """Return how the job stands at this node, whatever the scheduling node says of it."""
    return {
        "local_status": str(local.status),
        "local_waiting": to_plain(waiting.of_local(local)),
        "local_failure": to_plain(local.ending.failure) if local.ending else None,
        "approval": _approval(local),
    }


def _known(parts: AdminParts, spec: JobSpec, local: LocalJob | None) -> dict[str, Any]:
    began = local.created_at if local else None
    with parts.registry.one_view():  # tasks of one provider, at each party: it is read once
        parameters = {
            party.label: {node.name: _parameters(parts, spec, party, node, began) for node in spec.dag.nodes}
            for party in spec.parties
            if local is None or party.node == local.node
        }
    return {
        "initiator": spec.initiator,
        "trace_id": spec.trace_id,
        "parties": [to_plain(p) for p in spec.parties],
        "parameters": parameters,
    }


def _submitted_elsewhere(parts: AdminParts, view: JobView) -> dict[str, Any]:
    """Return what is known of a job that this node submitted elsewhere and has no part in."""
    roles = dict.fromkeys((role, node) for task in view.tasks for node, own in task.nodes.items() for role in own)
    return {
        "scheduler": view.scheduler or parts.store.scheduler_of(view.job_id) or "",
        "initiator": parts.node,
        "trace_id": None,
        "parties": [{"role": role, "index": None, "node": node} for role, node in roles],
        "parameters": {},
    }


def _parameters(
    parts: AdminParts, spec: JobSpec, party: Party, node: DagNode, began: datetime | None
) -> dict[str, Any]:
    """Return a task's parameters at a party, each with its origin; of what the job leaves open, the default."""
    shown = {name: to_plain(value) for name, value in effective(spec.task_params, party, node.name).items()}
    ref = node.component
    try:
        _, component = parts.registry.find(ref.provider, ref.version, ref.name, at=began)
    except Unknown:
        return shown
    if party.role in component.roles:
        for parameter in component.parameters:
            if parameter.default not in (None, ""):
                shown.setdefault(parameter.name, {"value": parameter.default, "origin": DEFAULT})
    return shown


def _run(
    parts: AdminParts, run: Run, local: LocalJob, waits: waiting.Waiting | None, logs: bool
) -> dict[str, Any]:
    shown, job_id = to_plain(run), local.id
    shown.pop("run_id")  # the container's credential
    shown.pop("token")
    for inner in ("launch", "stop", "collect", "told"):
        shown.pop(inner)
    newest = run in local.newest_runs(run.task_name)
    place = f"{run.party.label}/{quote(run.task_name if newest else run.task_id, safe='')}"
    shown["engine"] = run.engine or run.owner.rpartition("/")[2] or parts.engine.kind
    shown["waiting"] = to_plain(waits)
    shown["log"] = f"/api/v1/jobs/{quote(job_id, safe='')}/runs/{place}/log"
    if logs and run.status is RunStatus.FAILED and run.launch.state is CallState.OK:
        shown["last_lines"] = _last_lines(parts, job_id, run)
    return dict(shown)


def _inherited_run(run: Run) -> dict[str, Any]:
    """Return a run of an earlier job whose outputs count here; its log is with that job."""
    place = f"{run.party.label}/{quote(run.task_id, safe='')}"
    return {
        "task_name": run.task_name,
        "party": to_plain(run.party),
        "job_id": run.of_job,
        "task_id": run.task_id,
        "image_digest": run.image_digest,
        "outputs": {key: run.outputs[name].as_dict() for key, name in run.output_keys.items()},
        "log": f"/api/v1/jobs/{quote(run.of_job, safe='')}/runs/{place}/log",
    }


def _last_lines(parts: AdminParts, job_id: str, run: Run) -> list[str]:
    try:
        total = parts.run_logs.read_run(job_id, run, STREAMS, 0, 0).total
        found = parts.run_logs.read_run(job_id, run, STREAMS, max(0, total - _LAST_LINES), _LAST_LINES)
    except NotFound as error:  # another gateway has them
        return [f"[{error.reason}: {error.message}]"]
    return [line.text for line in found.lines]
