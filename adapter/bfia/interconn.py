"""What other nodes request: ``/v1/interconn/schedule`` (control layer 3) and ``/v1/interconn/job/audit``.

The job audit of the management layer asks whether a node would take part in a job, before it is created there;
``query``, which the standard has for every other audit, is an extension.
"""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field, TypeAdapter, ValidationError

from adapter.bfia import examples, translate, wire
from adapter.bfia.envelope import Route, ok
from adapter.bfia.peer import JOB_AUDIT, Peer
from adapter.bfia.requests import NO_ROUTE, Caller, Done, Named, Peers, Sender, on, required
from adapter.bfia.route_test import called_back
from gateway.data.outputs import OutputCatalog, OutputMetadata, Wanted
from gateway.domain.redaction import redacted
from gateway.domain.rerun import Order
from gateway.domain.run import Audit
from gateway.domain.spec import Amendment, Failure, NodeId
from gateway.errors import NotAllowed, Refused
from gateway.jobs.participant import JobAudits
from gateway.ports import ParticipantApi, SchedulerApi, TaskReport
from gateway.version import VERSION

SCHEDULE = "/v1/interconn/schedule"
OUTPUT_METADATA = "/output/metadata"
PROTOCOL_VERSION = "1.2.0"


def router(node: NodeId, scheduler: SchedulerApi, participant: ParticipantApi, peers: Peers) -> APIRouter:
    """Return the paths of the control layer for peers."""
    router = APIRouter(tags=["between nodes"], route_class=Route)
    known, limiters = peers.caller, peers.limiters

    @router.post(f"{SCHEDULE}/job/create_all", summary="An initiator has this node schedule a job (3.1)")
    async def create_all(
        body: Annotated[wire.CreateJob, examples.SUBMIT_JOB], caller: Caller = known
    ) -> wire.Answer[wire.JobData]:
        spec = translate.job_spec(body, body.job_id, node, caller.trace_id)
        await on(limiters.peers, caller.sender, lambda: scheduler.submit_job(spec, caller.node))
        return ok(wire.JobData(job_id=body.job_id), caller.profile)

    @router.post(f"{SCHEDULE}/job/create", summary="The scheduling node creates a job here (3.2)")
    async def create(
        body: Annotated[wire.CreateJob, examples.CREATE_JOB], caller: Caller = known
    ) -> wire.Answer[wire.JobData]:
        spec = translate.job_spec(body, body.job_id, caller.node, caller.trace_id)
        accepted = await on(limiters.rest, caller.sender, lambda: participant.create_job(spec, caller.node))
        return ok(wire.JobData(job_id=body.job_id, **translate.acceptance_body(accepted)), caller.profile)

    @router.post(f"{SCHEDULE}/job/plan", summary="A node asks what would happen to a job here (ours)")
    async def plan(
        body: Annotated[wire.CreateJob, examples.CREATE_JOB], caller: Caller = known
    ) -> wire.Answer[wire.PlanData]:
        spec = translate.job_spec(body, body.job_id, caller.node, caller.trace_id)
        items = await on(limiters.rest, caller.sender, lambda: participant.dry_run(spec, caller.node))
        return ok(wire.PlanData(**translate.body(items)), caller.profile)

    @router.post(f"{SCHEDULE}/job/resource/apply", summary="The scheduling node reserves a job's resources (ours)")
    async def reserve(body: Annotated[wire.JobId, examples.START_JOB], caller: Caller = known) -> Done:
        return await caller.done(limiters.rest, lambda: participant.hold(body.job_id, caller.node))

    @router.post(f"{SCHEDULE}/job/resource/free", summary="A party has free what a job waits for (ours)")
    async def free(body: Annotated[wire.JobId, examples.SUSPEND_JOB], caller: Caller = known) -> Done:
        return await caller.done(limiters.rest, lambda: scheduler.resources_free(body.job_id, caller.node))

    @router.post(f"{SCHEDULE}/job/resource/return", summary="The scheduling node returns them (ours)")
    async def give_back(body: Annotated[wire.JobId, examples.START_JOB], caller: Caller = known) -> Done:
        return await caller.done(limiters.rest, lambda: participant.give_back(body.job_id, caller.node))

    @router.post(f"{SCHEDULE}/job/start", summary="The scheduling node starts a job (3.3)")
    async def start(body: Annotated[wire.StartJob, examples.START_JOB], caller: Caller = known) -> Done:
        return await caller.done(
            limiters.rest, lambda: participant.start_job(body.job_id, caller.node, body.without)
        )

    @router.post(f"{SCHEDULE}/task/start", summary="The scheduling node starts a task (3.4)")
    async def start_task(body: Annotated[wire.StartTask, examples.START_TASK], caller: Caller = known) -> Done:
        return await caller.done(
            limiters.rest,
            lambda: participant.start_task(
                body.job_id, body.task_id, body.task_name, caller.node, body.amendments
            ),
        )

    @router.post(f"{SCHEDULE}/job/stop_all", summary="A node of the job has this node stop it everywhere (3.5)")
    async def stop_all(body: Annotated[wire.StopAll, examples.STOP_ALL], caller: Caller = known) -> Done:
        why = None
        if caller.profile.stops_for_failures:
            text = f"stopped by {caller.node}, whose requests do not tell a person's stop from a container's death"
            why = Failure("STOPPED", text)
        return await caller.done(
            limiters.rest, lambda: scheduler.stop_job(body.job_id, body.task_name, caller.node, why)
        )

    @router.post(f"{SCHEDULE}/job/audit_confirm", summary="A node says whether it takes part in a job (1.0, 3.10)")
    async def audit_confirm(
        body: Annotated[wire.ConfirmJob, examples.CONFIRM_JOB], caller: Caller = known
    ) -> Done:
        failure = translate.refusal(body, caller.node)
        return await caller.done(limiters.news, lambda: scheduler.confirm_job(body.job_id, failure, caller.node))

    @router.post(f"{SCHEDULE}/job/suspend", summary="A node of the job has no further task started (extension)")
    async def suspend(body: Annotated[wire.JobId, examples.SUSPEND_JOB], caller: Caller = known) -> Done:
        return await caller.done(limiters.rest, lambda: scheduler.suspend_job(body.job_id, True, caller.node))

    @router.post(f"{SCHEDULE}/job/resume", summary="A node of the job has it continued (extension)")
    async def resume(body: Annotated[wire.JobId, examples.SUSPEND_JOB], caller: Caller = known) -> Done:
        return await caller.done(limiters.rest, lambda: scheduler.suspend_job(body.job_id, False, caller.node))

    @router.post(f"{SCHEDULE}/job/rerun", summary="A node of the job has it run again from a task on (ours)")
    async def rerun(
        body: Annotated[wire.RerunJob, examples.RERUN], caller: Caller = known
    ) -> wire.Answer[wire.RerunData]:
        wanted = Order(body.job_id, body.new_job_id, body.start, body.parameters)
        made = await on(limiters.peers, caller.sender, lambda: scheduler.rerun_job(wanted, caller.node))
        answer = {"job_id": made.job_id, "from": made.start, "runs": made.runs, "inherits": made.inherits}
        return ok(wire.RerunData.model_validate(answer), caller.profile)

    @router.post(f"{SCHEDULE}/job/parameters", summary="A node has tasks to come get new parameters (ours)")
    async def amend(
        body: Annotated[wire.AmendJob, examples.AMEND], caller: Caller = known
    ) -> wire.Answer[wire.AmendData]:
        work = partial(scheduler.amend_job, body.job_id, body.parameters, body.reason, caller.node)
        version = await on(limiters.peers, caller.sender, work)
        return ok(wire.AmendData(job_id=body.job_id, version=version), caller.profile)

    @router.post(f"{SCHEDULE}/job/parameters/offer", summary="The scheduling node offers them to a party (ours)")
    async def offer(body: Annotated[wire.OfferParameters, examples.OFFER], caller: Caller = known) -> Done:
        bundle = body.signed_bundles.get(node)
        offered = Amendment(body.amendment, body.parameters, body.by, body.reason, datetime.now(UTC), bundle)
        return await caller.done(
            limiters.rest, lambda: participant.offer_parameters(body.job_id, offered, body.holding, caller.node)
        )

    @router.post(f"{SCHEDULE}/job/stop", summary="The scheduling node ends a job, or one of its tasks (3.6)")
    async def stop(body: Annotated[wire.StopJob, examples.STOP_JOB], caller: Caller = known) -> Done:
        ending = translate.ending(body, datetime.now(UTC), caller.node)
        return await caller.done(
            limiters.rest, lambda: participant.stop_job(body.job_id, body.task_name, ending, caller.node)
        )

    @router.post(f"{SCHEDULE}/task/stop", summary="The scheduling node ends a task (one peer's own path)")
    async def stop_task(body: Annotated[wire.StopTask, examples.STOP_TASK], caller: Caller = known) -> Done:
        return await caller.done(limiters.rest, lambda: participant.stop_task("", body.task_id, "", caller.node))

    @router.get(f"{SCHEDULE}/job/status_all", include_in_schema=False)
    @router.post(
        f"{SCHEDULE}/job/status_all",
        summary="State of a job that this node schedules (3.7)",
        openapi_extra=examples.STATUS_ALL,
    )
    async def status_all(
        request: Request,
        caller: Caller = known,
        job_id: str | None = Query(default=None, description="the job's id"),
    ) -> wire.Answer[wire.StatusData]:
        wanted = await required(request, "job_id")
        view = await on(limiters.rest, caller.sender, lambda: scheduler.job_status(wanted, caller.node))
        return ok(wire.StatusData(**redacted(translate.status_body(view, caller.profile))), caller.profile)

    @router.post(f"{SCHEDULE}/task/poll", summary="The scheduling node polls a task's state (3.8)")
    async def poll(
        body: Annotated[wire.PollTask, examples.POLL_TASK], caller: Caller = known
    ) -> wire.Answer[wire.PollData]:
        news = await on(
            limiters.news, caller.sender, lambda: participant.poll_task(body.task_id, body.role, caller.node)
        )
        status = translate.wire_status(news.status, caller.profile)
        return ok(wire.PollData(status=status, **translate.failed_by(news.failure)), caller.profile)

    @router.post(f"{SCHEDULE}/task/callback", summary="A participating node reports a task's state (3.9)")
    async def report(body: Annotated[wire.ReportTask, examples.REPORT_TASK], caller: Caller = known) -> Done:
        status = translate.task_status(body.status)
        news = TaskReport(body.task_id, body.role, status, body.failed_by)
        return await caller.done(limiters.news, lambda: scheduler.report_task(news, caller.node))

    @router.post(f"{SCHEDULE}/job/delete", summary="A node of an ended job has it deleted here (ours)")
    async def delete(body: Annotated[wire.DeleteJob, examples.DELETE_JOB], caller: Caller = known) -> Done:
        return await caller.done(
            limiters.rest, lambda: participant.delete_job(body.job_id, body.dry_run, caller.node)
        )

    return router


def outputs_router(facts: OutputCatalog, peers: Peers) -> APIRouter:
    """Return the path at which peers ask what outputs are like."""
    router = APIRouter(tags=["between nodes"], route_class=Route)
    path = f"{SCHEDULE}{OUTPUT_METADATA}"

    @router.post(path, summary="A node of a job asks what an output here is like; needs a grant (ours)")
    async def metadata(
        body: Annotated[wire.OfOutputs, examples.OUTPUT_METADATA], caller: Caller = peers.caller
    ) -> wire.Answer[wire.OutputsData]:
        wanted = Wanted(body.job_id, body.task_name, body.role, body.output_key)
        work = partial(facts.for_peer, wanted, caller.node, f"POST {path}")
        found = await on(peers.limiters.rest, caller.sender, work)
        return ok(wire.OutputsData(outputs=[one.as_dict() for one in found]), caller.profile)

    return router


def hello_router(node: NodeId, institution: str, peer_of: Callable[[NodeId], Peer], peers: Peers) -> APIRouter:
    """Return the path at which peers test a route."""
    router = APIRouter(tags=["between nodes"], route_class=Route)

    @router.post(f"{SCHEDULE}/node/hello", summary="Who is there, and does it reach me? (extension)")
    async def hello(
        body: Annotated[wire.Hello, examples.HELLO], sender: Sender, x_source_node_id: Named = ""
    ) -> wire.Answer[wire.HelloData]:
        known = bool(sender.source) and peers.knows(sender.source)
        back: dict[str, Any] = {}
        if body.call_back:
            if not known:
                raise NotAllowed(NO_ROUTE.format(sender.source or "(none named)"))
            work = partial(called_back, peer_of, node, sender.source)
            back["back"] = await on(peers.limiters.peers, sender, work)
        data = wire.HelloData(
            node_id=node,
            institution=institution,
            gateway=VERSION,
            protocol=PROTOCOL_VERSION,
            knows_you=known,
            time_ms=time.time_ns() // 1_000_000,
            **back,
        )
        return ok(data, peers.profile_of(sender.source))

    return router


_OUTPUTS = TypeAdapter(Annotated[list[OutputMetadata], Field(max_length=1000)])


def asked(peer: Peer, wanted: Wanted) -> Sequence[OutputMetadata]:
    """Ask a peer what outputs there are like. Raises what it responds, `NotServed` where it lacks the path."""
    body = {"job_id": wanted.job_id, "task_name": wanted.task, "role": wanted.role, "output_key": wanted.key}
    try:
        return _OUTPUTS.validate_python(peer.ask(OUTPUT_METADATA, body).get("outputs"))
    except ValidationError as error:
        where = ".".join(map(str, error.errors(include_input=False, include_url=False)[0]["loc"]))
        raise Refused(f"the node's description of its outputs is invalid: {where}", reason="NO_ENVELOPE") from None


def audit_router(audits: JobAudits, peers: Peers) -> APIRouter:
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
