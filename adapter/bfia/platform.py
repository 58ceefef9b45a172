"""``/v1/platform/schedule``: what this node's own platform and its containers request (control layer 4 and 5)."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Annotated
from uuid import uuid4

from fastapi import APIRouter, Query, Request

from adapter.bfia import examples, translate, wire
from adapter.bfia.envelope import Route, ok
from adapter.bfia.profiles import PROFILES, Profile
from adapter.bfia.requests import Done, Sender, on, required, texts
from adapter.bfia.validation import unknown_fields
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId
from gateway.domain.states import TaskStatus
from gateway.errors import Invalid, NotAllowed, NotFound
from gateway.jobs.coordinator import Coordinator
from gateway.ports import Callback, Limiters
from gateway.runtime.context import new_trace_id

SCHEDULE = "/v1/platform/schedule"
OTHER = "/v2/schedule"
"""another spelling of `SCHEDULE`, which the first users have"""
_FROM_CONTAINER = (TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED)


def operator_router(
    jobs: Coordinator, coordinator_node: NodeId, profile_of: Callable[[NodeId], Profile], limiters: Limiters
) -> APIRouter:
    """Return the paths for this node's own platform; ``coordinator_node`` schedules the jobs submitted here."""
    router = APIRouter(tags=["platform"], route_class=Route)

    @router.post(f"{OTHER}/job/create_all", summary="Submit a job (other spelling)", include_in_schema=False)
    @router.post(f"{SCHEDULE}/job/create_all", summary="Submit a job")
    async def create_all(
        request: Request, sender: Sender, body: Annotated[wire.CreateAll, examples.CREATE_ALL]
    ) -> wire.Answer[wire.JobData]:
        """Create a job at every node that it names. Responds when all have accepted it, or one refused."""
        trace = sender.trace_id or new_trace_id()
        nodes = {node for named in body.config.role.values() for node in named}
        spec = translate.job_spec(body, new_id(map(profile_of, nodes)), coordinator_node, trace)
        spec = replace(spec, unknown_fields=unknown_fields(body))
        job_id = await on(limiters.peers, sender, lambda: jobs.submit(spec))
        request.state.answered = {"job_id": job_id}
        return ok(wire.JobData(job_id=job_id))

    @router.get(f"{OTHER}/job/status_all", include_in_schema=False)
    @router.post(f"{OTHER}/job/status_all", include_in_schema=False)
    @router.post(f"{SCHEDULE}/job/status_all", include_in_schema=False)
    @router.get(f"{SCHEDULE}/job/status_all", summary="State of a job and of all its tasks")
    async def status_all(
        request: Request, sender: Sender, job_id: str | None = Query(default=None, description="the job's id")
    ) -> wire.Answer[wire.StatusData]:
        wanted = await required(request, "job_id")
        view = await on(limiters.rest, sender, lambda: jobs.status_here(wanted))
        if view is None:  # another node knows, and may take its time
            view = await on(limiters.peers, sender, lambda: jobs.status(wanted))
        return ok(wire.StatusData(**translate.status_body(view)))

    @router.post(f"{OTHER}/job/stop_all", include_in_schema=False)
    @router.post(f"{SCHEDULE}/job/stop_all", summary="Stop a job at every node")
    async def stop_all(body: Annotated[wire.StopAll, examples.STOP_ALL], sender: Sender) -> Done:
        """Stop a job, whichever node schedules it. What is over stays as it is; a second stop changes nothing."""
        await on(limiters.peers, sender, lambda: jobs.stop(body.job_id, body.task_name))
        return ok()

    @router.post(f"{OTHER}/job/stop_task", include_in_schema=False)
    @router.post(f"{SCHEDULE}/job/stop_task", summary="Stop a task, and all that needs its output, at every node")
    async def stop_task(body: Annotated[wire.StopTaskOfJob, examples.STOP_TASK_OF_JOB], sender: Sender) -> Done:
        """Stop one task and what follows it. Other branches go on; the job ends when nothing is left to run."""
        await on(limiters.peers, sender, lambda: jobs.stop(body.job_id, body.task_name))
        return ok()

    @router.get(f"{OTHER}/job/query_job_list", include_in_schema=False)
    @router.get(f"{SCHEDULE}/job/query_job_list", summary="All jobs of a flow, or all jobs")
    async def query_job_list(
        request: Request, sender: Sender, flow_id: str | None = Query(default=None, description="only this flow")
    ) -> wire.Answer[wire.JobList]:
        wanted = (await texts(request, "flow_id")).get("flow_id")
        found = await on(limiters.peers, sender, lambda: jobs.jobs(wanted))
        return ok(wire.JobList(job_list={job_id: str(status) for job_id, status in found.items()}))

    return router


def container_router(
    take: Callable[[Callback], None],
    limiters: Limiters,
    run_of_token: Callable[[str], str | None] = lambda token: token,
    *,
    by_address: bool = True,
) -> APIRouter:
    """Return the path on which containers report.

    ``run_of_token`` gives the run that a callback's token belongs to, None for an unknown token; ``by_address``:
    whether a run may be recognised by its address where its callback has no token.
    """
    router = APIRouter(tags=["container"], route_class=Route)

    @router.post(f"{SCHEDULE}/task/callback", summary="A container reports its state")
    async def task_callback(
        request: Request,
        body: Annotated[wire.ContainerCallback, examples.CALLBACK],
        sender: Sender,
        run: str = Query(default="", description="the run's token; part of the address that the container got"),
    ) -> Done:
        status = translate.task_status(body.status)
        if status not in _FROM_CONTAINER:
            raise Invalid([Problem("status", f"must be one of {', '.join(_FROM_CONTAINER)}", body.status)])
        if not run and not body.task_id:
            raise Invalid([Problem("task_id", "is required where the address has no ?run=", body.task_id)])
        if not run and not by_address:
            raise NotAllowed("report to the whole of system.callback, ?run= included", reason="RUN_TOKEN_REQUIRED")
        run_id = run_of_token(run) if run else ""
        if run_id is None:
            raise NotFound("no run of this node has that token", reason="RUN_UNKNOWN")
        address = request.client.host if request.client else ""
        news = Callback(status, body.task_id, body.role, run_id, body.result_code, body.result_message, address)
        await on(limiters.news, sender, lambda: take(news))
        return ok()

    return router


def new_id(profiles: Iterable[Profile]) -> str:
    """Return a random job id that every node of the job can store."""
    longest = min((p.longest_job_id for p in profiles), default=PROFILES["spec"].longest_job_id)
    return f"job-{uuid4().hex}"[:longest]
