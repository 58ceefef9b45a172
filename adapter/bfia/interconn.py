"""``/v1/interconn/schedule``: what other nodes ask of this one (control layer 3)."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adapter.bfia import requests, responses, translate, wire
from adapter.bfia.envelope import ok
from adapter.bfia.extensions import EXTENSIONS
from adapter.bfia.headers import described
from adapter.bfia.peer import Peer
from adapter.bfia.profiles import Profile
from adapter.bfia.requests import NO_ROUTE, Sender, on, required
from adapter.bfia.requests import asked as asked_of
from adapter.bfia.route_test import called_back
from adapter.body import JsonRoute
from gateway.data.outputs import Column, Facts, OutputFacts, Wanted
from gateway.domain.redaction import told
from gateway.domain.rerun import Order
from gateway.domain.spec import NodeId
from gateway.errors import NotAllowed, Refused
from gateway.ports import Limiters, ParticipantApi, SchedulerApi, TaskReport
from gateway.runtime.context import new_trace_id
from gateway.version import VERSION

SCHEDULE = "/v1/interconn/schedule"
_STATUS_ALL = wire.JobId.model_json_schema() | {"example": responses.STATUS_ALL}
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


def router(parts: InterconnParts) -> APIRouter:
    """Return the paths for peers."""
    router = APIRouter(tags=["between nodes"], route_class=JsonRoute, dependencies=[Depends(described)])

    known = partial(requests.known, parts.knows)
    done = partial(requests.done, parts, parts.limiters.rest)
    heard = partial(requests.done, parts, parts.limiters.news)

    @router.post(f"{SCHEDULE}/job/create_all", summary="An initiator asks this node to schedule a job (3.1)")
    async def create_all(
        body: Annotated[wire.CreateJob, Body(openapi_examples=responses.SUBMIT_JOB)], sender: Sender
    ) -> dict[str, Any]:
        source = known(sender)
        trace = sender.trace_id or new_trace_id()
        spec = translate.job_spec(body, body.job_id, parts.node, trace)
        await on(parts.limiters.peers, sender, lambda: parts.scheduler.submit_job(spec, source))
        return ok({"job_id": body.job_id}, parts.profile_of(source))

    @router.post(f"{SCHEDULE}/job/create", summary="The scheduling node creates a job here (3.2)")
    async def create(
        body: Annotated[wire.CreateJob, Body(openapi_examples=responses.CREATE_JOB)], sender: Sender
    ) -> dict[str, Any]:
        source = known(sender)
        trace = sender.trace_id or new_trace_id()
        spec = translate.job_spec(body, body.job_id, source, trace)
        said = await on(parts.limiters.rest, sender, lambda: parts.participant.create_job(spec, source))
        return ok({"job_id": body.job_id} | translate.acceptance_body(said), parts.profile_of(source))

    @router.post(f"{SCHEDULE}/job/plan", summary="A node asks what would happen to a job here (ours)")
    async def plan(
        body: Annotated[wire.CreateJob, Body(openapi_examples=responses.CREATE_JOB)], sender: Sender
    ) -> dict[str, Any]:
        source = known(sender)
        spec = translate.job_spec(body, body.job_id, source, sender.trace_id or new_trace_id())
        told = await on(parts.limiters.rest, sender, lambda: parts.participant.foretell(spec, source))
        return ok(translate.body(told), parts.profile_of(source))

    @router.post(f"{SCHEDULE}/job/resource/apply", summary="The scheduling node has a job's resources held (ours)")
    async def hold(
        body: Annotated[wire.JobId, Body(openapi_examples=responses.START_JOB)], sender: Sender
    ) -> dict[str, Any]:
        return await done(sender, lambda source: parts.participant.hold(body.job_id, source))

    @router.post(f"{SCHEDULE}/job/resource/free", summary="A party has free what a job waits for (ours)")
    async def free(
        body: Annotated[wire.JobId, Body(openapi_examples=responses.SUSPEND_JOB)], sender: Sender
    ) -> dict[str, Any]:
        return await done(sender, lambda source: parts.scheduler.resources_free(body.job_id, source))

    @router.post(f"{SCHEDULE}/job/resource/return", summary="The scheduling node gives them back (ours)")
    async def give_back(
        body: Annotated[wire.JobId, Body(openapi_examples=responses.START_JOB)], sender: Sender
    ) -> dict[str, Any]:
        return await done(sender, lambda source: parts.participant.give_back(body.job_id, source))

    @router.post(f"{SCHEDULE}/job/start", summary="The scheduling node starts a job (3.3)")
    async def start(
        body: Annotated[wire.StartJob, Body(openapi_examples=responses.START_JOB)], sender: Sender
    ) -> dict[str, Any]:
        return await done(sender, lambda source: parts.participant.start_job(body.job_id, source, body.without))

    @router.post(f"{SCHEDULE}/task/start", summary="The scheduling node starts a task (3.4)")
    async def start_task(
        body: Annotated[wire.StartTask, Body(openapi_examples=responses.START_TASK)], sender: Sender
    ) -> dict[str, Any]:
        return await done(
            sender, lambda source: parts.participant.start_task(body.job_id, body.task_id, body.task_name, source)
        )

    @router.post(
        f"{SCHEDULE}/job/stop_all", summary="A node of the job asks this node to stop it everywhere (3.5)"
    )
    async def stop_all(
        body: Annotated[wire.StopAll, Body(openapi_examples=responses.STOP_ALL)], sender: Sender
    ) -> dict[str, Any]:
        return await done(sender, lambda source: parts.scheduler.stop_job(body.job_id, body.task_name, source))

    @router.post(f"{SCHEDULE}/job/audit_confirm", summary="A node says whether it takes part in a job (1.0, 3.10)")
    async def audit_confirm(
        body: Annotated[wire.ConfirmJob, Body(openapi_examples=responses.CONFIRM_JOB)], sender: Sender
    ) -> dict[str, Any]:

        def work(source: NodeId) -> None:
            failure = translate.refusal(body, source)
            parts.scheduler.confirm_job(body.job_id, failure, source)

        return await heard(sender, work)

    @router.post(f"{SCHEDULE}/job/suspend", summary="A node of the job asks to start no further task (extension)")
    async def suspend(
        body: Annotated[wire.SuspendJob, Body(openapi_examples=responses.SUSPEND_JOB)], sender: Sender
    ) -> dict[str, Any]:
        return await done(sender, lambda source: parts.scheduler.suspend_job(body.job_id, True, source))

    @router.post(f"{SCHEDULE}/job/resume", summary="A node of the job asks to go on with it (extension)")
    async def resume(
        body: Annotated[wire.SuspendJob, Body(openapi_examples=responses.SUSPEND_JOB)], sender: Sender
    ) -> dict[str, Any]:
        return await done(sender, lambda source: parts.scheduler.suspend_job(body.job_id, False, source))

    @router.post(
        f"{SCHEDULE}/job/rerun", summary="A node of the job asks this node to run it again from a task on (ours)"
    )
    async def rerun(
        body: Annotated[wire.RerunJob, Body(openapi_examples=responses.RERUN)], sender: Sender
    ) -> dict[str, Any]:
        source = known(sender)
        wanted = Order(body.job_id, body.new_job_id, body.start, body.parameters)
        made = await on(parts.limiters.peers, sender, lambda: parts.scheduler.rerun_job(wanted, source))
        return ok(translate.rerun_body(made), parts.profile_of(source))

    @router.post(f"{SCHEDULE}/job/stop", summary="The scheduling node ends a job, or one of its tasks (3.6)")
    async def stop(
        body: Annotated[wire.StopJob, Body(openapi_examples=responses.STOP_JOB)], sender: Sender
    ) -> dict[str, Any]:

        def work(source: NodeId) -> None:
            ending = translate.ending(body, datetime.now(UTC), source)
            parts.participant.stop_job(body.job_id, body.task_name, ending, source)

        return await done(sender, work)

    @router.post(f"{SCHEDULE}/task/stop", summary="The scheduling node ends a task (one peer's own path)")
    async def stop_task(
        body: Annotated[wire.StopTask, Body(openapi_examples=responses.STOP_TASK)], sender: Sender
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
        wanted = required(await asked_of(request, "job_id"), "job_id")
        view = await on(parts.limiters.rest, sender, lambda: parts.scheduler.job_status(wanted, source))
        profile = parts.profile_of(source)
        return ok(told(translate.status_body(view, profile)), profile)

    @router.post(f"{SCHEDULE}/task/poll", summary="The scheduling node asks for a task's state (3.8)")
    async def poll(
        body: Annotated[wire.PollTask, Body(openapi_examples=responses.POLL_TASK)], sender: Sender
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
        body: Annotated[wire.ReportTask, Body(openapi_examples=responses.REPORT_TASK)], sender: Sender
    ) -> dict[str, Any]:
        source = known(sender)
        status = translate.task_status(body.status)
        news = TaskReport(body.task_id, body.role, status, translate.failure(body.failed_by))
        await on(parts.limiters.news, sender, lambda: parts.scheduler.report_task(news, source))
        return ok(profile=parts.profile_of(source))

    @router.post(f"{SCHEDULE}/job/delete", summary="A node of an ended job has it deleted here (ours)")
    async def delete(
        body: Annotated[wire.DeleteJob, Body(openapi_examples=responses.DELETE_JOB)], sender: Sender
    ) -> dict[str, Any]:
        return await done(sender, lambda source: parts.participant.delete_job(body.job_id, body.dry_run, source))

    return router


PATH = "/output/metadata"
_Words = Annotated[str, Field(max_length=1000)]
_Amount = Annotated[int, Field(ge=0, le=2**63 - 1)]


class OfOutputs(wire.JobId):
    """Which outputs: those of a task at a role or party, or the one of a key."""

    task_name: Annotated[str, Field(min_length=1, max_length=255)]
    role: Annotated[str, Field(min_length=1, max_length=255, description="as in `host`, or `host.0`")]
    output_key: wire.Text = Field(default="", description="key in the flow; absent: all of the task")


class _Column(BaseModel):
    name: _Words
    type: _Words = ""


class _Facts(BaseModel):
    """One output as a peer tells of it: what else it says is left aside."""

    model_config = ConfigDict(extra="ignore")

    task: _Words
    party: _Words
    key: _Words
    type: _Words = ""
    namespace: _Words
    name: _Words
    there: bool = True
    count: _Amount | None = None
    columns: list[_Column] = Field(default=[], max_length=10_000)
    more_columns: _Amount = 0
    partitions: _Amount = 0
    bytes: _Amount = 0
    description: _Words = ""
    id_column: _Words = ""
    label_column: _Words = ""
    created_at: _Words = ""


class _Said(BaseModel):
    outputs: list[_Facts] = Field(max_length=1000)


@dataclass(frozen=True)
class OutputParts:
    """What the path is built of."""

    facts: OutputFacts
    limiters: Limiters
    profile_of: Callable[[NodeId], Profile]
    knows: Callable[[NodeId], bool]


def outputs_router(parts: OutputParts) -> APIRouter:
    """Return the path for peers."""
    router = APIRouter(tags=["between nodes"], route_class=JsonRoute, dependencies=[Depends(described)])
    known = partial(requests.known, parts.knows)

    @router.post(
        f"{SCHEDULE}{PATH}", summary="A node of a job asks what an output here is like; needs a grant (ours)"
    )
    async def metadata(
        body: Annotated[OfOutputs, Body(openapi_examples=responses.OUTPUT_METADATA)], sender: Sender
    ) -> dict[str, Any]:
        source = known(sender)
        wanted = Wanted(body.job_id, body.task_name, body.role, body.output_key)
        told = await on(
            parts.limiters.rest, sender, lambda: parts.facts.told(wanted, source, f"POST {SCHEDULE}{PATH}")
        )
        return ok({"outputs": [one.as_dict() for one in told]}, parts.profile_of(source))

    return router


def asked(peer: Peer, wanted: Wanted) -> Sequence[Facts]:
    """Ask a peer what outputs there are like. Raises what it answers, `NotServed` where it lacks the path."""
    body = {
        "job_id": wanted.job_id,
        "task_name": wanted.task,
        "role": wanted.role,
        "output_key": wanted.key,
    }
    try:
        said = _Said.model_validate(peer.ask(EXTENSIONS[PATH], body))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Refused(f"what the node says of its outputs cannot be read: {where}", reason="NO_ENVELOPE") from None
    return [_facts(one) for one in said.outputs]


def _facts(one: _Facts) -> Facts:
    fields = one.model_dump(exclude={"columns"})
    return Facts(**fields, columns=tuple(Column(c.name, c.type) for c in one.columns))


PROTOCOL_VERSION = "1.2.0"


class Hello(wire.Body):
    """Who asks, and what to try."""

    node_id: wire.Text = Field(default="", description="the node that asks")
    padding: wire.Text = Field(default="", description="anything; tries how large a body may be")
    call_back: bool = Field(default=False, description="true: say hello back, and tell how that went")


@dataclass(frozen=True)
class HelloParts:
    """What the path is built of."""

    node: NodeId
    institution: str
    peer: Callable[[NodeId], Peer]
    knows: Callable[[NodeId], bool]
    profile_of: Callable[[NodeId], Profile]
    limiters: Limiters


def hello_router(parts: HelloParts) -> APIRouter:
    """Return the path for peers."""
    router = APIRouter(tags=["between nodes"], route_class=JsonRoute, dependencies=[Depends(described)])

    @router.post(f"{SCHEDULE}/node/hello", summary="Who is there, and does it reach me? (extension)")
    async def hello(
        body: Annotated[Hello, Body(openapi_examples={"hello": {"value": {"node_id": "JG0100001100000010"}}})],
        sender: Sender,
    ) -> dict[str, Any]:
        known = bool(sender.source) and parts.knows(sender.source)
        data: dict[str, Any] = {
            "node_id": parts.node,
            "institution": parts.institution,
            "gateway": VERSION,
            "protocol": PROTOCOL_VERSION,
            "knows_you": known,
        }
        if body.call_back:
            if not known:
                raise NotAllowed(NO_ROUTE.format(sender.source or "(none named)"))
            data["back"] = await on(
                parts.limiters.peers, sender, lambda: called_back(parts.peer, parts.node, sender.source)
            )
        data["time_ms"] = time.time_ns() // 1_000_000
        return ok(data, parts.profile_of(sender.source))

    return router
