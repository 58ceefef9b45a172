"""``/v2/scheduler``: requests of initiators and parties that speak FATE's protocol to this node as scheduler."""

from typing import Any

from fastapi import APIRouter, Request

from adapter.fate import wire
from adapter.fate.client import failure_of
from adapter.fate.envelope import ANY, NO_JOB, NO_TASK, SCHEDULER, Code, Envelope, FateRoute, ok, posts
from adapter.fate.ids import Key, id_of
from adapter.fate.requests import FateParts, asker, on, trace_of
from adapter.fate.states import OUR_TASK, TaskWord, word_in
from gateway.domain.job import Job
from gateway.domain.problems import Problem
from gateway.domain.rerun import Order
from gateway.domain.spec import NodeId
from gateway.errors import Invalid, NotAllowed, NotFound
from gateway.ports import TaskReport, as_mapping


def router(parts: FateParts) -> APIRouter:
    """Return the paths for peers."""
    router = APIRouter(tags=["FATE: scheduler"], route_class=FateRoute)

    post = posts(router, SCHEDULER)

    async def scheduled(request: Request, job_id: str) -> tuple[Job, NodeId]:
        """Return a job that is scheduled here, and the caller."""
        job = await on(parts.limiters.rest, request, lambda: parts.job_of(job_id))
        if job is None:
            raise NotFound(f"no job {job_id} is scheduled here", reason="JOB_UNKNOWN")
        return job, (await asker(parts, request, job.spec.initiator, *job.spec.nodes)).node

    @post("/job/create", "submit_job, under an id made here", {ANY: Code.CREATE_JOB_FAILED})
    async def create(body: wire.Dag, request: Request) -> Envelope[Any]:
        fields = body.model_dump()
        initiator = str(as_mapping(body.dag.get("conf")).get("initiator_party_id") or "")
        who = await asker(parts, request, request.headers.get("initiator-party-id", ""), initiator)

        def work() -> Envelope[Any]:
            spec = parts.descriptions.read(fields, parts.new_id, parts.node, trace_of(request))
            if spec.scheduler != parts.node:
                rule = f"must be {parts.node}: this node schedules only jobs of its own"
                raise Invalid([Problem("dag.conf.scheduler_party_id", rule, spec.scheduler)])
            parts.scheduler.submit_job(spec, who.node)
            common = as_mapping(spec.job_params.get("common"))
            model = {name: str(common[name]) for name in ("model_id", "model_version") if common.get(name)}
            return ok({"model_id": spec.job_id, "model_version": "0"} | model, job_id=spec.job_id)

        return await on(parts.limiters.peers, request, work)

    @post("/job/stop", "stop_job", {"": Code.KILL_JOB_FAILED})
    async def stop(body: wire.StopAll, request: Request) -> Envelope[Any]:
        job, who = await scheduled(request, body.job_id)
        await on(parts.limiters.rest, request, lambda: parts.scheduler.stop_job(job.id, "", who))
        return ok()

    @post("/job/rerun", "rerun_job: a new job that takes over what had succeeded", NO_JOB)
    async def rerun(body: wire.RerunJob, request: Request) -> Envelope[Any]:
        job, who = await scheduled(request, body.job_id)
        wanted = Order(job.id, body.new_job_id or parts.new_id(), body.start, body.parameters)
        made = await on(parts.limiters.peers, request, lambda: parts.scheduler.rerun_job(wanted, who))
        data = {"job_id": made.job_id, "from": made.start, "runs": made.runs, "inherits": made.inherits}
        return ok(data, job_id=made.job_id)

    @post("/task/report", "report_task", {**NO_TASK, "": Code.UPDATE_TASK_FAILED})
    async def report(body: wire.Report, request: Request) -> Envelope[Any]:
        status = OUR_TASK[word_in(TaskWord, body.status)]
        who = (await asker(parts, request, body.party_id)).node
        if body.party_id not in ("", who):
            raise NotAllowed(f"{who} reports for itself only, not for {body.party_id}")
        task_id = id_of(Key(body.job_id, body.task_id, body.task_version))
        news = TaskReport(task_id, body.role, status, failure_of(body.failed_by), body.job_id)
        await on(parts.limiters.news, request, lambda: parts.scheduler.report_task(news, who))
        return ok()

    return router
