"""``/v1/interconn/schedule``: what other nodes ask of this one (control layer 3)."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import Body, Depends, Query, Request

from adapter.bfia import examples, foreseen, requests, translate, wire
from adapter.bfia.envelope import ok
from adapter.bfia.headers import described
from adapter.bfia.profiles import Profile
from adapter.bfia.requests import Sender, asked, on, required
from adapter.json import JsonRoute
from gateway.domain.outward import told
from gateway.domain.rerun import Order
from gateway.domain.spec import NodeId
from gateway.http.paths import Paths
from gateway.ports import Limiters, ParticipantApi, SchedulerApi, TaskReport
from gateway.runtime.context import new_trace_id

SCHEDULE = "/v1/interconn/schedule"
_STATUS_ALL = wire.JobId.model_json_schema() | {"example": examples.STATUS_ALL}
"""what stands in the query or, as with most peers, in the body"""


@dataclass(frozen=True)
class InterconnParts:
    """What the paths for other nodes are built of."""

    node: NodeId
    scheduler: SchedulerApi
    participant: ParticipantApi
    limiters: Limiters
    profile_of: Callable[[NodeId], Profile]
    knows: Callable[[NodeId], bool]


def router(parts: InterconnParts) -> Paths:
    """Return the paths for peers."""
    router = Paths(tags=["between nodes"], route_class=JsonRoute, dependencies=[Depends(described)])

    known = partial(requests.known, parts.knows)
    done = partial(requests.done, parts, parts.limiters.rest)
    heard = partial(requests.done, parts, parts.limiters.news)

    @router.post(f"{SCHEDULE}/job/create_all", summary="An initiator asks this node to schedule a job (3.1)")
    async def create_all(
        body: Annotated[wire.CreateJob, Body(openapi_examples=examples.SUBMIT_JOB)], sender: Sender
    ) -> dict[str, Any]:
        source = known(sender)
        trace = sender.trace_id or new_trace_id()
        spec = translate.job_spec(body, body.job_id, parts.node, trace)
        await on(parts.limiters.peers, sender, lambda: parts.scheduler.submit_job(spec, source))
        return ok({"job_id": body.job_id}, parts.profile_of(source))

    @router.post(f"{SCHEDULE}/job/create", summary="The scheduling node creates a job here (3.2)")
    async def create(
        body: Annotated[wire.CreateJob, Body(openapi_examples=examples.CREATE_JOB)], sender: Sender
    ) -> dict[str, Any]:
        source = known(sender)
        trace = sender.trace_id or new_trace_id()
        spec = translate.job_spec(body, body.job_id, source, trace)
        said = await on(parts.limiters.rest, sender, lambda: parts.participant.create_job(spec, source))
        return ok({"job_id": body.job_id} | translate.acceptance_body(said), parts.profile_of(source))

    @router.post(f"{SCHEDULE}/job/plan", summary="A node asks what would happen to a job here (ours)")
    async def plan(
        body: Annotated[wire.CreateJob, Body(openapi_examples=examples.CREATE_JOB)], sender: Sender
    ) -> dict[str, Any]:
        source = known(sender)
        spec = translate.job_spec(body, body.job_id, source, sender.trace_id or new_trace_id())
        told = await on(parts.limiters.rest, sender, lambda: parts.participant.foretell(spec, source))
        return ok(foreseen.body(told), parts.profile_of(source))

    @router.post(f"{SCHEDULE}/job/resource/apply", summary="The scheduling node has a job's resources held (ours)")
    async def hold(
        body: Annotated[wire.JobId, Body(openapi_examples=examples.START_JOB)], sender: Sender
    ) -> dict[str, Any]:
        return await done(sender, lambda source: parts.participant.hold(body.job_id, source))

    @router.post(f"{SCHEDULE}/job/resource/free", summary="A party has free what a job waits for (ours)")
    async def free(
        body: Annotated[wire.JobId, Body(openapi_examples=examples.SUSPEND_JOB)], sender: Sender
    ) -> dict[str, Any]:
        return await done(sender, lambda source: parts.scheduler.resources_free(body.job_id, source))

    @router.post(f"{SCHEDULE}/job/resource/return", summary="The scheduling node gives them back (ours)")
    async def give_back(
        body: Annotated[wire.JobId, Body(openapi_examples=examples.START_JOB)], sender: Sender
    ) -> dict[str, Any]:
        return await done(sender, lambda source: parts.participant.give_back(body.job_id, source))

    @router.post(f"{SCHEDULE}/job/start", summary="The scheduling node starts a job (3.3)")
    async def start(
        body: Annotated[wire.StartJob, Body(openapi_examples=examples.START_JOB)], sender: Sender
    ) -> dict[str, Any]:
        return await done(sender, lambda source: parts.participant.start_job(body.job_id, source, body.without))

    @router.post(f"{SCHEDULE}/task/start", summary="The scheduling node starts a task (3.4)")
    async def start_task(
        body: Annotated[wire.StartTask, Body(openapi_examples=examples.START_TASK)], sender: Sender
    ) -> dict[str, Any]:
        return await done(
            sender, lambda source: parts.participant.start_task(body.job_id, body.task_id, body.task_name, source)
        )

    @router.post(
        f"{SCHEDULE}/job/stop_all", summary="A node of the job asks this node to stop it everywhere (3.5)"
    )
    async def stop_all(
        body: Annotated[wire.StopAll, Body(openapi_examples=examples.STOP_ALL)], sender: Sender
    ) -> dict[str, Any]:
        return await done(sender, lambda source: parts.scheduler.stop_job(body.job_id, body.task_name, source))

    @router.post(f"{SCHEDULE}/job/audit_confirm", summary="A node says whether it takes part in a job (1.0, 3.10)")
    async def audit_confirm(
        body: Annotated[wire.ConfirmJob, Body(openapi_examples=examples.CONFIRM_JOB)], sender: Sender
    ) -> dict[str, Any]:

        def work(source: NodeId) -> None:
            failure = translate.refusal(body, source)
            parts.scheduler.confirm_job(body.job_id, failure, source)

        return await heard(sender, work)

    @router.post(f"{SCHEDULE}/job/suspend", summary="A node of the job asks to start no further task (extension)")
    async def suspend(
        body: Annotated[wire.SuspendJob, Body(openapi_examples=examples.SUSPEND_JOB)], sender: Sender
    ) -> dict[str, Any]:
        return await done(sender, lambda source: parts.scheduler.suspend_job(body.job_id, True, source))

    @router.post(f"{SCHEDULE}/job/resume", summary="A node of the job asks to go on with it (extension)")
    async def resume(
        body: Annotated[wire.SuspendJob, Body(openapi_examples=examples.SUSPEND_JOB)], sender: Sender
    ) -> dict[str, Any]:
        return await done(sender, lambda source: parts.scheduler.suspend_job(body.job_id, False, source))

    @router.post(
        f"{SCHEDULE}/job/rerun", summary="A node of the job asks this node to run it again from a task on (ours)"
    )
    async def rerun(
        body: Annotated[wire.RerunJob, Body(openapi_examples=examples.RERUN)], sender: Sender
    ) -> dict[str, Any]:
        source = known(sender)
        wanted = Order(body.job_id, body.new_job_id, body.start, body.parameters)
        made = await on(parts.limiters.peers, sender, lambda: parts.scheduler.rerun_job(wanted, source))
        return ok(translate.rerun_body(made), parts.profile_of(source))

    @router.post(f"{SCHEDULE}/job/stop", summary="The scheduling node ends a job, or one of its tasks (3.6)")
    async def stop(
        body: Annotated[wire.StopJob, Body(openapi_examples=examples.STOP_JOB)], sender: Sender
    ) -> dict[str, Any]:

        def work(source: NodeId) -> None:
            ending = translate.ending(body, datetime.now(UTC), source)
            parts.participant.stop_job(body.job_id, body.task_name, ending, source)

        return await done(sender, work)

    @router.post(f"{SCHEDULE}/task/stop", summary="The scheduling node ends a task (one peer's own path)")
    async def stop_task(
        body: Annotated[wire.StopTask, Body(openapi_examples=examples.STOP_TASK)], sender: Sender
    ) -> dict[str, Any]:
        return await done(sender, lambda source: parts.participant.stop_task("", body.task_id, "", source))

    @router.get(f"{SCHEDULE}/job/status_all", include_in_schema=False)
    @router.post(
        f"{SCHEDULE}/job/status_all",
        summary="State of a job that this node schedules (3.7)",
        openapi_extra={"requestBody": {"content": {"application/json": {"schema": _STATUS_ALL}}}},
    )
    async def status_all(
        request: Request, sender: Sender, job_id: str | None = Query(default=None, description="the job's id")
    ) -> dict[str, Any]:
        source = known(sender)
        wanted = required(await asked(request, "job_id"), "job_id")
        view = await on(parts.limiters.rest, sender, lambda: parts.scheduler.job_status(wanted, source))
        profile = parts.profile_of(source)
        return ok(told(translate.status_body(view, profile)), profile)

    @router.post(f"{SCHEDULE}/task/poll", summary="The scheduling node asks for a task's state (3.8)")
    async def poll(
        body: Annotated[wire.PollTask, Body(openapi_examples=examples.POLL_TASK)], sender: Sender
    ) -> dict[str, Any]:
        source = known(sender)
        news = await on(
            parts.limiters.news, sender, lambda: parts.participant.poll_task(body.task_id, body.role, source)
        )
        profile = parts.profile_of(source)
        data: dict[str, Any] = {"status": translate.said_status(news.status, profile)}
        if news.failure is not None:
            data["failed_by"] = told(news.failure.as_dict())
        return ok(data, profile)

    @router.post(f"{SCHEDULE}/task/callback", summary="A participating node reports a task's state (3.9)")
    async def report(
        body: Annotated[wire.ReportTask, Body(openapi_examples=examples.REPORT_TASK)], sender: Sender
    ) -> dict[str, Any]:
        source = known(sender)
        status = translate.task_status(body.status)
        news = TaskReport(body.task_id, body.role, status, translate.failure(body.failed_by))
        await on(parts.limiters.news, sender, lambda: parts.scheduler.report_task(news, source))
        return ok(profile=parts.profile_of(source))

    @router.post(f"{SCHEDULE}/job/delete", summary="A node of an ended job has it deleted here (ours)")
    async def delete(
        body: Annotated[wire.DeleteJob, Body(openapi_examples=examples.DELETE_JOB)], sender: Sender
    ) -> dict[str, Any]:
        return await done(sender, lambda source: parts.participant.delete_job(body.job_id, body.dry_run, source))

    return router
