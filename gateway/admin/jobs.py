"""``/api/v1`` and ``/health``: a job in full, its timeline, its runs and logs. Real HTTP statuses."""

import math
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import anyio.to_thread
from fastapi import APIRouter, Body, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from engines.base import EngineError
from gateway.admin.deps import AdminParts, AfterText, Answer, Limit, answering, moments, named, noted
from gateway.admin.models import model_of
from gateway.admin.node import add_audit
from gateway.admin.outputs import add_outputs, add_reports
from gateway.admin.routes import add_routes
from gateway.auth import Role
from gateway.data.log_copies import STREAMS
from gateway.domain import waiting
from gateway.domain.dag import DagNode
from gateway.domain.parameters import effective
from gateway.domain.problems import Problem
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import CallState, JobSpec, Party
from gateway.domain.states import JobStatus, Outcome, RunStatus
from gateway.errors import EngineFailed, Invalid, NotAllowed, NotFound
from gateway.http.pagination import page_of
from gateway.ports import JobView
from gateway.store.queries import Place, Wanted, page
from gateway.store.serialization import to_plain
from provider_registry.registry import Unknown


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


def add_decisions(router: APIRouter, parts: AdminParts, run: Answer) -> None:
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


_STATUSES = [str(status) for status in JobStatus]
_OUTCOMES = [str(outcome) for outcome in Outcome]


def add_listing(router: APIRouter, parts: AdminParts, run: Answer) -> None:
    """Add the path."""

    @router.get("/api/v1/jobs", summary="Jobs scheduled here or taken part in, newest first", response_model=None)
    async def jobs(
        status: Annotated[str, Query(description=f"one or more of {', '.join(_STATUSES)}, with commas")] = "",
        outcome: Annotated[str, Query(description=f"one or more of {', '.join(_OUTCOMES)}")] = "",
        flow_id: Annotated[str | None, Query(description="only of this flow")] = None,
        partner: Annotated[str | None, Query(description="only with this node in a role")] = None,
        since: Annotated[str, Query(description="only created then or later, such as 2026-11-21T08:00Z")] = "",
        until: Annotated[str, Query(description="only created before that")] = "",
        after: AfterText = "",
        limit: Limit = 100,
    ) -> Any:
        """``sides``: what this node is to the job; ``next``: what to send as ``after``, null on the last page."""

        def work() -> dict[str, Any]:
            problems: list[Problem] = []
            wanted = Wanted(
                _among(status, _STATUSES, "status", problems),
                _among(outcome, _OUTCOMES, "outcome", problems),
                flow_id,
                partner,
                *moments(problems, since=since, until=until),
            )
            place = _place_listing(after, problems)
            if problems:
                raise Invalid(problems)
            found = page(parts.store, wanted, limit, place)
            return {
                "jobs": [to_plain(entry) for entry in found.entries],
                "next": f"{found.next.created_at!r}~{found.next.job_id}" if found.next else None,
            }

        return await run(work)


def _among(text: str, words: list[str], path: str, problems: list[Problem]) -> list[str]:
    asked = [word.strip().upper() for word in text.split(",") if word.strip()]
    if wrong := [word for word in asked if word not in words]:
        problems.append(Problem(path, f"must be among {', '.join(words)}", ", ".join(wrong)))
    return asked


def _place_listing(text: str, problems: list[Problem]) -> Place | None:
    if not text:
        return None
    created, mark, job_id = text.partition("~")
    with suppress(ValueError):
        if mark and math.isfinite(float(created)):
            return Place(float(created), job_id)
    problems.append(Problem("after", "must be what an answer said in next", text))
    return None


def orphans(parts: AdminParts) -> dict[str, list[dict[str, Any]]]:
    """Return ``unknown`` (in the engine, not in the store) and ``lost`` (the other way round).

    Only runs of this node and installation; ``lost`` only those of this gateway. Raises `EngineFailed`.
    """
    believed = parts.store.launched(parts.owner)  # before the engine is asked: what starts meanwhile is not lost
    try:
        there = {found.name: found for found in parts.engine.list()}
    except EngineError as error:
        raise EngineFailed(str(error), reason=error.reason) from error
    missing = [run for run in believed if run.name not in there]
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
            if run.name in still  # and not ended while we looked
        ],
    }


def count(parts: AdminParts) -> dict[str, Any]:
    """Return how many there are, as a check of readiness that never fails."""
    try:
        found = orphans(parts)
    except EngineFailed as error:
        return {"ok": True, "cause": f"{error.reason}: {error.message}"}
    return {"ok": True, **{kind: len(runs) for kind, runs in found.items()}}


_RERUNS_EXAMPLE = {"from": "train", "parameters": {"common": {"train": {"epochs": 5}}}}


class RerunBody(BaseModel):
    """What to run again, and what to change."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    start: str = Field(
        default="", alias="from", max_length=200, description="a task; else the first that has not succeeded"
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict,
        description="changes of tasks that run again, as in task_params: common, then role, index, task",
    )


def add_reruns(router: APIRouter, parts: AdminParts, answer: Answer) -> None:
    """Add the path. ``answer`` runs work in a thread and turns refusals into answers."""

    @router.post(
        "/api/v1/jobs/{job_id}/rerun",
        summary="Run an ended job again from a task on; what came before is taken over",
        response_model=None,
    )
    async def rerun(
        job_id: str, body: Annotated[RerunBody | None, Body(examples=[_RERUNS_EXAMPLE])] = None
    ) -> Any:
        wanted = body or RerunBody()

        def work() -> dict[str, Any]:
            made = parts.coordinator.rerun(job_id, wanted.start, wanted.parameters)
            shown = {"job_id": made.job_id, "old_job_id": job_id, "from": made.start}
            return {**shown, "runs": list(made.runs), "inherits": list(made.inherits)}

        return await answer(work)


DEFAULT = "component default"
"""origin of a value that the job does not set; the component takes it by itself, it is never handed over"""


def router(parts: AdminParts) -> APIRouter:
    """Return the operators' paths beyond the protocol."""
    router = APIRouter(tags=["operators"])
    run = answering(parts.limiters)

    @router.get("/health/live", summary="The process answers")
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/health/ready", summary="Jobs can be taken; what is wrong", response_model=None)
    async def ready() -> JSONResponse:
        found = await anyio.to_thread.run_sync(lambda: _checks(parts), limiter=parts.limiters.rest)
        good = all(check["ok"] for check in found.values())
        return JSONResponse({"ready": good, "checks": found}, status_code=200 if good else 503)

    @router.get(
        "/metrics",
        summary="Figures for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}},
    )
    async def metrics() -> Response:
        text = await anyio.to_thread.run_sync(parts.metrics.text, limiter=parts.limiters.rest)
        return Response(text, media_type=parts.metrics.content_type)

    @router.get("/api/v1/engine", summary="What runs algorithms, and what they cannot reach", response_model=None)
    async def engine() -> Any:
        return await run(lambda: _engine(parts))

    @router.get(
        "/api/v1/jobs/{job_id}", summary="A job in full: parties, parameters, runs here", response_model=None
    )
    async def job(request: Request, job_id: str) -> Any:
        """``last_lines`` of a failed run's log: for those only who may read the log."""
        logs = getattr(request.state, "role", "") != Role.VIEWER
        return await run(lambda: job_in_full(parts, job_id, logs=logs))

    @router.get("/api/v1/jobs/{job_id}/timeline", summary="All that happened to a job", response_model=None)
    async def timeline(job_id: str) -> Any:
        """Also of a job that was deleted here, of which only that is left."""
        return await run(lambda: _timeline(parts, job_id))

    @router.get(
        "/api/v1/orphans", summary="Runs that only the engine or only the store knows of", response_model=None
    )
    async def lost_and_unknown() -> Any:
        return await run(lambda: orphans(parts))

    @router.get("/api/v1/resources", summary="What this node has, who holds it, who waits", response_model=None)
    async def resources() -> Any:
        return await run(parts.resources.view)

    add_listing(router, parts, run)
    add_outputs(router, parts, run)
    add_reports(router, parts, run)
    add_reruns(router, parts, run)
    add_routes(router, parts, run)
    add_audit(router, parts.audit, parts.tokens, run)
    add_decisions(router, parts, run)
    return router


def _timeline(parts: AdminParts, job_id: str) -> dict[str, Any]:
    store = parts.store
    found = [_entry(entry) for entry in store.timeline(job_id)]
    if not found and not (
        store.jobs.find(job_id) or store.local_jobs.find(job_id) or store.scheduler_of(job_id) is not None
    ):
        raise NotFound(f"no job {job_id} was submitted, is scheduled or runs here", reason="JOB_UNKNOWN")
    return {"timeline": found}


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
    lacks = "; ".join(f"{lack.reason}: {lack.text}" for lack in parts.participant.lacks())
    found["storage"] = {"ok": not lacks, "cause": lacks} if lacks else {"ok": True}
    problems = [str(p) for p in parts.routes.problems]
    # a file that cannot be used is in nobody's way: the table before it stays in force, and this node serves by it
    nodes = len(parts.routes.table.routes)
    found["routes"] = {"ok": True, "nodes": nodes, "file": "refused" if problems else "ok", "problems": problems}
    if found["engine"]["ok"] and found["database"]["ok"]:
        found["orphans"] = count(parts)
    found["channel"] = {"ok": True, **parts.broker.usage()._asdict()}
    return found


def _engine(parts: AdminParts) -> dict[str, Any]:
    engine = parts.engine
    found: dict[str, Any] = {"kind": engine.kind, "capabilities": sorted(engine.capabilities), "answers": True}
    try:
        engine.check()
        return {**found, "isolation": to_plain(engine.isolation())}
    except EngineError as error:
        return {**found, "answers": False, "cause": f"{error.reason}: {error}", "isolation": None}


def job_in_full(parts: AdminParts, job_id: str, *, logs: bool = True) -> dict[str, Any]:
    """Return all that is known of a job. ``logs``: with the last lines of failed runs. Raises `NotFound`."""
    view: JobView = parts.coordinator.status(job_id)
    local = parts.store.local_jobs.find(job_id)
    job = None if local else parts.store.jobs.find(job_id)
    spec = local.spec if local else job.spec if job else None
    reasons = waiting.of_runs(local) if local else {}
    return {
        **to_plain(view),
        **(_known(parts, spec, local) if spec else _handed_in(parts, view)),
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
        "approval": approval_of(local),
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


def _handed_in(parts: AdminParts, view: JobView) -> dict[str, Any]:
    """Return what can be told of a job that this node handed in elsewhere and has no part in."""
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


def _last_lines(parts: AdminParts, job_id: str, run: Run, count: int = 100) -> list[str]:
    try:
        total = parts.run_logs.read_run(job_id, run, STREAMS, 0, 0).total
        found = parts.run_logs.read_run(job_id, run, STREAMS, max(0, total - count), count)
    except NotFound as error:  # another gateway has them
        return [f"[{error.reason}: {error.message}]"]
    return [line.text for line in found.lines]


def _entry(entry: Any) -> dict[str, Any]:
    return dict(to_plain(entry))
