"""What is done with a whole job: its archive, its deletion, cancelling what waits, and a dry run of a new one."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Body, Query, Request
from fastapi.openapi.models import Example
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict

from gateway.admin import schemas
from gateway.admin.deps import OPERATOR, AdminParts, api_router, named, noted, noted_dry_run
from gateway.admin.jobs import job_in_full
from gateway.auth import RunTokens
from gateway.domain.dry_run import JobPlan, Standing
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import JobSpec
from gateway.errors import GatewayError, NotFound, envelope
from gateway.jobs import archive
from gateway.jobs.archive import Entry, as_json, without_secrets
from gateway.jobs.retention import Deleting, SomeUnreached
from gateway.ports import Limiters
from gateway.store.serialization import to_plain
from provider_registry.model import group_of

STREAMS = ("stdout", "stderr")


@dataclass(frozen=True)
class ArchiveParts:
    """What the path is built of."""

    admin: AdminParts
    runs: Path
    """where the logs of runs lie"""
    request_of: Callable[[JobSpec], dict[str, Any]]
    """a job as its protocol's request"""
    environment_of: Callable[[LocalJob, Run], dict[str, str]]
    clock: Callable[[], datetime]
    tokens: RunTokens


def archive_router(parts: ArchiveParts) -> APIRouter:
    """Return the path of the archive."""
    router = api_router()

    @router.get(
        "/jobs/{job_id}/archive",
        summary="All that this node knows of a job, as a zip file",
        response_class=StreamingResponse,
        responses={200: {"content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}}}},
    )
    def download(job_id: str) -> Any:
        """The job as it was submitted (as far as this node knows it), its state and effective parameters, the
        masked environment and the logs of every attempt, the timeline, reports, and ``SHA256SUMS`` of all of them.

        A file that could not be read is named in ``INCOMPLETE``.
        """
        pieces = archive.write(_entries(parts, job_id), parts.clock())
        plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in job_id)
        headers = {"content-disposition": f'attachment; filename="{plain}.zip"'}
        return StreamingResponse(filter(None, pieces), media_type="application/zip", headers=headers)

    return router


def _entries(parts: ArchiveParts, job_id: str) -> Iterable[Entry]:
    """Return the files of a job's archive. Raises `NotFound`."""
    store = parts.admin.store
    local = store.local_jobs.find(job_id)
    job = store.jobs.find(job_id)
    record = job or local
    if record is None:
        raise NotFound(f"job {job_id} neither is scheduled nor runs here", reason="JOB_UNKNOWN")
    ids = [i for run in (local.runs if local else ()) for i in (run.run_id, run.token) if i]
    secrets = [*map(parts.tokens.issue, ids), *ids]
    try:
        state = without_secrets(job_in_full(parts.admin, job_id), secrets)
    except GatewayError as error:  # the node that schedules it has forgotten it, or says no
        state = {"reason": error.reason, "message": error.message}
    head = {
        "job_id": job_id,
        "node": parts.admin.node,
        "made_at": parts.clock().isoformat(),
        "sides": [side for side, one in (("scheduler", job), ("participant", local)) if one is not None],
        "job": state,
    }
    request = without_secrets(parts.request_of(record.spec), secrets)
    return _files(parts, job_id, local, secrets, [("job.json", request), ("state.json", head)])


def _files(
    parts: ArchiveParts,
    job_id: str,
    local: LocalJob | None,
    secrets: list[str],
    documents: list[tuple[str, Any]],
) -> Iterator[Entry]:
    for name, value in documents:
        yield _document(name, value)
    yield Entry("timeline.jsonl", lambda: _timeline(parts, job_id, secrets))
    for run in local.runs if local else ():
        assert local is not None
        place = f"runs/{run.party.label}/{run.task_name}/attempt-{run.attempt}"
        yield Entry(f"{place}/environment.json", lambda run=run: _environment(parts, local, run, secrets))  # type: ignore[misc]
        yield from _log(parts, run, f"{place}/log", secrets)
    yield from _reports(parts, local)


def _log(parts: ArchiveParts, run: Run, place: str, secrets: list[str]) -> Iterable[Entry]:
    """Return what a run wrote; where another gateway of this node has it, an entry that says so."""
    try:
        parts.admin.run_logs.check_here(run)
    except NotFound as error:
        words = error

        def elsewhere() -> Iterable[bytes]:
            raise words

        return [Entry(place, elsewhere)]
    return archive.of_files(parts.runs / run.name, place, secrets)


def _document(name: str, value: Any) -> Entry:
    return Entry(name, lambda: [as_json(value)])


def _timeline(parts: ArchiveParts, job_id: str, secrets: list[str]) -> Iterator[bytes]:
    for entry in parts.admin.store.timeline(job_id):
        shown = as_json(without_secrets(to_plain(entry), secrets))
        yield b" ".join(line.strip() for line in shown.splitlines()) + b"\n"


def _environment(parts: ArchiveParts, local: LocalJob, run: Run, secrets: list[str]) -> list[bytes]:
    return [as_json(without_secrets(parts.environment_of(local, run), secrets))]


def _reports(parts: ArchiveParts, local: LocalJob | None) -> Iterator[Entry]:
    for run in local.runs if local else ():
        assert local is not None
        node = local.spec.dag.get(run.task_name)
        types = {o.key: o.type for o in node.outputs} if node else {}
        for key, name in sorted(run.output_keys.items()):
            address = run.outputs[name]
            if group_of(types.get(key, "")) != "metric" or not parts.admin.storage.exists(address):
                continue
            place = f"reports/{run.party.label}/{run.task_name}/attempt-{run.attempt}/{key}"
            yield Entry(place, lambda address=address: parts.admin.storage.stream(address))  # type: ignore[misc]


DryRun = Annotated[bool, Query(description="only say what would be done")]


class CancelWaiting(BaseModel):
    """Which jobs to cancel: all of which nothing runs yet."""

    model_config = ConfigDict(extra="forbid")

    dry_run: bool = False


_CANCEL = {"only look": Example(value={"dry_run": True})}


def deletion_router(parts: AdminParts, deleting: Deleting) -> APIRouter:
    """Return the paths of deletion."""
    router = api_router()

    @router.delete(
        "/jobs/{job_id}", summary="Delete an ended job at every node", response_model=schemas.DeletedJob
    )
    async def delete(
        request: Request,
        job_id: str,
        here: Annotated[bool, Query(description="only at this node; no request to the others")] = False,
        reason: Annotated[str, Query(max_length=200, description="kept in the line that is left")] = "",
        dry_run: DryRun = False,
    ) -> Any:
        """Its records, logs and outputs; one line in its timeline stays. ``nodes``: the result at the others.

        Refused while the job goes on (JOB_NOT_ENDED) or others need an output (OUTPUTS_IN_USE). Where a node does
        not respond (503), the job is kept here, so that the same request goes on where this one stopped.
        """
        by = named(request, OPERATOR)

        def work() -> dict[str, Any]:
            return deleting.delete(job_id, by=by, reason=reason, here=here, dry_run=dry_run).as_dict()

        try:  # it waits for other nodes
            done = await anyio.to_thread.run_sync(work, limiter=parts.limiters.peers)
        except SomeUnreached as error:
            request.state.refused = error
            body = envelope(error)
            body["data"]["nodes"] = {n: asdict(at) for n, at in error.nodes.items()}
            return JSONResponse(body, error.code)
        if dry_run:
            noted_dry_run(request)
        else:
            noted(request, {"job_id": job_id}, None, reason)
        return done

    @router.delete(
        "/jobs/{job_id}/tasks/{task}/outputs",
        summary="Delete what one task of an ended job left here",
        response_model=schemas.Deleted,
    )
    def clean_task(
        request: Request,
        job_id: str,
        task: str,
        content: Annotated[
            Literal["outputs", "metrics"], Query(description="outputs: tables and models; metrics: reports")
        ] = "outputs",
        dry_run: DryRun = False,
    ) -> Any:
        """``task`` is a name in the flow or an id. Refused as the deletion of a job is."""
        items = deleting.clean_task(job_id, task, content, by=named(request, OPERATOR), dry_run=dry_run)
        if dry_run:
            noted_dry_run(request)
        else:
            noted(request, [f"{item.kind} {item.name}" for item in items[:100]], None)
        return {"job_id": job_id, "dry_run": dry_run, "items": items, "bytes": sum(i.bytes for i in items)}

    @router.post(
        "/jobs/cancel-waiting",
        summary="Stop all jobs scheduled here of which nothing runs yet",
        response_model=schemas.Cancelled,
    )
    def cancel(request: Request, body: Annotated[CancelWaiting, Body(openapi_examples=_CANCEL)]) -> Any:
        jobs = parts.coordinator.cancel_waiting(parts.node, body.dry_run)
        if body.dry_run:
            noted_dry_run(request)
        else:
            noted(request, {"waiting": jobs[:100]}, {"waiting": []})
        return {"dry_run": body.dry_run, "jobs": jobs}

    return router


def dry_run_router(
    plan: Callable[[Mapping[str, Any]], JobPlan],
    example: Mapping[str, Any],
    limiters: Limiters,
    route: type[APIRoute] = APIRoute,
) -> APIRouter:
    """Return the path of the dry run. ``plan`` takes the body that would submit the job, which ``route`` reads."""
    router = api_router(route_class=route)

    @router.post(
        "/jobs/plan",
        summary="What would happen to a job at every node; creates nothing",
        response_model=schemas.Plan,
    )
    async def planned(body: Annotated[dict[str, Any], Body(examples=[dict(example)])]) -> Any:
        found = await anyio.to_thread.run_sync(plan, body, limiter=limiters.peers)
        return {
            "good": found.good,
            **{f"{standing}_count": found.count(standing) for standing in Standing},
            "nodes": [{"node": n.node, "parties": n.parties, "checks": n.items} for n in found.nodes],
        }

    return router
