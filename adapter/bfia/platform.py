"""``/v1/platform/schedule``: what this node's own platform and its containers ask (control layer 4 and 5)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Body, Query, Request

from adapter.bfia import translate, wire
from adapter.bfia.envelope import ok
from adapter.bfia.profiles import PROFILES, Profile
from adapter.bfia.requests import Sender, asked, on, required
from adapter.bfia.responses import CALLBACK, CREATE_ALL, STOP_ALL, STOP_TASK_OF_JOB
from adapter.bfia.validation import unread
from adapter.body import JsonRoute
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId
from gateway.domain.states import TaskStatus
from gateway.errors import Invalid, NotAllowed, NotFound
from gateway.ports import Callback, Limiters, OwnJobs, OwnRuns
from gateway.runtime.context import new_trace_id

SCHEDULE = "/v1/platform/schedule"
_FROM_CONTAINER = (TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED)


@dataclass(frozen=True)
class PlatformParts:
    """What the paths for this node's own platform and containers are built of."""

    node: NodeId
    coordinator_node: NodeId
    """which node schedules the jobs handed in here"""
    jobs: OwnJobs
    runs: OwnRuns
    limiters: Limiters
    profile_of: Callable[[NodeId], Profile] = lambda _: PROFILES["spec"]
    run_of_token: Callable[[str], str | None] = lambda token: token
    """gives the id of the run that a callback's token belongs to, None for no token of this gateway"""
    by_address: bool = True
    """whether a run may be recognised by its address where its callback has no token"""


def operator_router(parts: PlatformParts) -> APIRouter:
    """Return the paths for this node's own platform; ``/v2/schedule`` is another spelling of them."""
    router = APIRouter(tags=["platform"], route_class=JsonRoute)

    @router.post("/v2/schedule/job/create_all", summary="Submit a job (other spelling)", include_in_schema=False)
    @router.post(f"{SCHEDULE}/job/create_all", summary="Submit a job")
    async def create_all(
        sender: Sender, body: wire.CreateAll = Body(openapi_examples=CREATE_ALL)
    ) -> dict[str, Any]:
        """Create a job at every node that it names. The answer comes when all have accepted it, or one refused."""
        trace = sender.trace_id or new_trace_id()
        nodes = {node for named in body.config.role.values() for node in named}
        spec = translate.job_spec(body, new_id(map(parts.profile_of, nodes)), parts.coordinator_node, trace)
        spec = replace(spec, unread=unread(body))
        job_id = await on(parts.limiters.peers, sender, lambda: parts.jobs.hand_in(spec))
        return ok({"job_id": job_id})

    @router.get("/v2/schedule/job/status_all", include_in_schema=False)
    @router.post("/v2/schedule/job/status_all", include_in_schema=False)
    @router.post(f"{SCHEDULE}/job/status_all", include_in_schema=False)
    @router.get(f"{SCHEDULE}/job/status_all", summary="State of a job and of all its tasks")
    async def status_all(
        request: Request, sender: Sender, job_id: str | None = Query(default=None, description="the job's id")
    ) -> dict[str, Any]:
        wanted = required(await asked(request, "job_id"), "job_id")
        view = await on(parts.limiters.rest, sender, lambda: parts.jobs.status_here(wanted))
        if view is None:  # another node knows, and may take its time
            view = await on(parts.limiters.peers, sender, lambda: parts.jobs.status(wanted))
        return ok(translate.status_body(view))

    @router.post("/v2/schedule/job/stop_all", include_in_schema=False)
    @router.post(f"{SCHEDULE}/job/stop_all", summary="Stop a job at every node")
    async def stop_all(
        body: Annotated[wire.StopAll, Body(openapi_examples=STOP_ALL)], sender: Sender
    ) -> dict[str, Any]:
        """Stop a job, whichever node schedules it. What is over stays as it is; a second stop changes nothing."""
        await on(parts.limiters.peers, sender, lambda: parts.jobs.stop(body.job_id, body.task_name))
        return ok()

    @router.post("/v2/schedule/job/stop_task", include_in_schema=False)
    @router.post(f"{SCHEDULE}/job/stop_task", summary="Stop a task, and all that needs its output, at every node")
    async def stop_task(
        body: Annotated[wire.StopTaskOfJob, Body(openapi_examples=STOP_TASK_OF_JOB)], sender: Sender
    ) -> dict[str, Any]:
        """Stop one task and what follows it. Other branches go on; the job ends when nothing is left to run."""
        await on(parts.limiters.peers, sender, lambda: parts.jobs.stop(body.job_id, body.task_name))
        return ok()

    @router.get("/v2/schedule/job/query_job_list", include_in_schema=False)
    @router.get(f"{SCHEDULE}/job/query_job_list", summary="All jobs of a flow, or all jobs")
    async def query_job_list(
        request: Request, sender: Sender, flow_id: str | None = Query(default=None, description="only this flow")
    ) -> dict[str, Any]:
        wanted = (await asked(request, "flow_id")).get("flow_id")
        jobs = await on(parts.limiters.peers, sender, lambda: parts.jobs.jobs(wanted))
        return ok({"job_list": {job_id: str(status) for job_id, status in jobs.items()}})

    return router


def container_router(parts: PlatformParts) -> APIRouter:
    """Return the path on which containers report."""
    router = APIRouter(tags=["container"], route_class=JsonRoute)

    @router.post(f"{SCHEDULE}/task/callback", summary="A container reports its state")
    async def task_callback(
        request: Request,
        body: Annotated[wire.ContainerCallback, Body(openapi_examples=CALLBACK)],
        sender: Sender,
        run: str = Query(default="", description="the run's token; part of the address that the container got"),
    ) -> dict[str, Any]:
        status = translate.task_status(body.status)
        if status not in _FROM_CONTAINER:
            allowed = ", ".join(_FROM_CONTAINER)
            raise Invalid([Problem("status", f"must be one of {allowed}", body.status)])
        if not run and not body.task_id:
            raise Invalid([Problem("task_id", "is required where the address has no ?run=", body.task_id)])
        if not run and not parts.by_address:
            raise NotAllowed("report to the whole of system.callback, ?run= included", reason="RUN_TOKEN_REQUIRED")
        run_id = parts.run_of_token(run) if run else ""
        if run_id is None:
            raise NotFound("no run of this node has that token", reason="RUN_UNKNOWN")
        address = request.client.host if request.client else ""
        said = Callback(status, body.task_id, body.role, run_id, body.result_code, body.result_message, address)
        await on(parts.limiters.news, sender, lambda: parts.runs.callback(said))
        return ok()

    return router


def new_id(profiles: Iterable[Profile]) -> str:
    """Return a random job id that every node of the job can store."""
    longest = min((p.longest_job_id for p in profiles), default=PROFILES["spec"].longest_job_id)
    return f"job-{uuid4().hex}"[:longest]
