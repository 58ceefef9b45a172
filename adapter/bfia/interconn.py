"""The paths for other nodes: ``/v1/interconn/schedule`` (control layer 3) and
``/v1/interconn/job/audit``.

The job audit of the management layer asks whether a node would take part in a job, before it is
created there. The standard defines a ``query`` for every audit but this one; ours is an extension.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field, TypeAdapter, ValidationError

from adapter.bfia import examples, translate, views, wire
from adapter.bfia.envelope import Route, ok
from adapter.bfia.paths import JOB_AUDIT, SCHEDULE
from adapter.bfia.peer import Peer
from adapter.bfia.requests import (
    NO_ROUTE,
    Caller,
    Named,
    Paths,
    Peers,
    Sender,
    query_parameters,
    read,
    run_blocking,
)
from adapter.bfia.route_check import call_back
from gateway.data.outputs import OutputCatalog, OutputMetadata, OutputQuery
from gateway.domain.redaction import redacted
from gateway.domain.rerun import Order
from gateway.domain.run import Audit
from gateway.domain.spec import Amendment, Failure, NodeId
from gateway.errors import NotAllowed, Refused
from gateway.http.peers import unproven
from gateway.jobs.job_audits import JobAudits
from gateway.ports import JobView, ParticipantApi, SchedulerApi, TaskReport
from gateway.version import VERSION

OUTPUT_METADATA = "/output/metadata"
PROTOCOL_VERSION = "1.2.0"


def router(
    node: NodeId,
    scheduler: SchedulerApi,
    participant: ParticipantApi,
    peers: Peers,
) -> APIRouter:
    """Return the paths of the control layer for peers."""
    router = APIRouter(tags=["between nodes"], route_class=Route)
    _add_task_paths(router, scheduler, participant, peers)
    _add_status_path(router, scheduler, peers)
    _add_scheduler_paths(router, node, scheduler, peers)
    _add_participant_paths(router, node, participant, peers)
    return router


def _add_task_paths(
    router: APIRouter,
    scheduler: SchedulerApi,
    participant: ParticipantApi,
    peers: Peers,
) -> None:
    """Add the most frequent paths.

    They are added before the other paths, because paths are tried in order.
    """
    path = Paths(router, peers, SCHEDULE)
    news_limiter = peers.limiters.news  # for short requests on which jobs wait

    @path("/task/callback", "A participating node reports a task's state (3.9)", news_limiter)
    def report(
        body: Annotated[wire.ReportTask, examples.REPORT_TASK],
        caller: Caller,
    ) -> None:
        status = views.task_status(body.status)
        report = TaskReport(body.task_id, body.role, status, body.failed_by)
        scheduler.report_task(report, caller.node)

    @path("/task/poll", "The scheduling node polls a task's state (3.8)", news_limiter)
    def poll(
        body: Annotated[wire.PollTask, examples.POLL_TASK],
        caller: Caller,
    ) -> wire.StateData:
        task_state = participant.poll_task(body.task_id, body.role, caller.node)
        return wire.StateData(
            status=views.wire_status(task_state.status, caller.profile),
            **translate.failure_fields(task_state.failure),
        )


def _add_status_path(router: APIRouter, scheduler: SchedulerApi, peers: Peers) -> None:
    """Add ``status_all``, which peers request by GET or POST."""

    @router.get(
        f"{SCHEDULE}/job/status_all",
        include_in_schema=False,
        max_body_size=peers.ids_bytes,
    )
    @router.post(
        f"{SCHEDULE}/job/status_all",
        max_body_size=peers.ids_bytes,
        summary="State of a job that this node schedules, or of its own part (3.7)",
        openapi_extra=examples.STATUS_ALL,
    )
    async def status_all(
        request: Request,
        # Also a party of a running job, even if this node has no route to it.
        caller: Caller = peers.party,
    ) -> wire.Answer[wire.StatusData]:
        query = await read(request, wire.JobQuery)

        def job_status() -> JobView:
            # A sender without a route is allowed only as a party of some job; check that it is a
            # party of this one.
            peers.check_job(caller, [query])
            return scheduler.job_status(query.job_id, caller.node)

        view = await run_blocking(peers.limiters.rest, caller.sender, job_status)
        body = redacted(views.status_body(view, caller.profile))
        return ok(wire.StatusData(**body), caller.profile)


def _add_scheduler_paths(
    router: APIRouter,
    node: NodeId,
    scheduler: SchedulerApi,
    peers: Peers,
) -> None:
    """Add the paths of a node that schedules jobs."""
    path = Paths(router, peers, SCHEDULE)
    news_limiter = peers.limiters.news  # for short requests on which jobs wait
    peers_limiter = peers.limiters.peers  # for requests that wait for other nodes

    @path("/job/create_all", "An initiator has this node schedule a job (3.1)", peers_limiter)
    def create_all(
        body: Annotated[wire.CreateJob, examples.SUBMIT_JOB], caller: Caller
    ) -> wire.JobData:
        spec = translate.job_spec(
            body,
            body.job_id,
            node,
            caller.trace_id,
            caller.profile,
        )
        scheduler.submit_job(spec, caller.node)
        return wire.JobData(job_id=body.job_id)

    @path(
        "/job/stop_all",
        "A node of the job asks this node to stop the job at every party (3.5)",
    )
    def stop_all(
        body: Annotated[wire.StopAll, examples.STOP_ALL],
        caller: Caller,
    ) -> None:
        cause = None
        if caller.profile.stops_for_failures:
            text = (
                f"stopped by {caller.node}, whose requests do not tell a person's stop from a "
                "container's death"
            )
            cause = Failure("STOPPED", text)
        scheduler.stop_job(body.job_id, body.task_name, caller.node, cause)

    @path(
        "/job/audit_confirm",
        "A node says whether it takes part in a job (3.10 of version 1.0)",
        news_limiter,
    )
    def audit_confirm(
        body: Annotated[wire.ConfirmJob, examples.CONFIRM_JOB], caller: Caller
    ) -> None:
        refusal = translate.read_refusal(body, caller.node)
        scheduler.confirm_job(body.job_id, refusal, caller.node)

    @path("/job/resource/free", "A party reports that resources a job waits for are free (ours)")
    def free(
        body: Annotated[wire.JobId, examples.JOB_HERE_ID],
        caller: Caller,
    ) -> None:
        scheduler.resources_free(body.job_id, caller.node)

    @path("/job/suspend", "A node of the job asks that no further task be started (ours)")
    def suspend(
        body: Annotated[wire.JobId, examples.JOB_HERE_ID],
        caller: Caller,
    ) -> None:
        scheduler.suspend_job(
            body.job_id,
            should_be_suspended=True,
            sender=caller.node,
        )

    @path("/job/resume", "A node of the job asks that the job be continued (ours)")
    def resume(
        body: Annotated[wire.JobId, examples.JOB_HERE_ID],
        caller: Caller,
    ) -> None:
        scheduler.suspend_job(
            body.job_id,
            should_be_suspended=False,
            sender=caller.node,
        )

    @path(
        "/job/rerun",
        "A node of the job asks that the job be run again from a task on (ours)",
        peers_limiter,
    )
    def rerun(
        body: Annotated[wire.RerunJob, examples.RERUN],
        caller: Caller,
    ) -> wire.RerunData:
        order = Order(body.job_id, body.new_job_id, body.start, body.parameters)
        rerun = scheduler.rerun_job(order, caller.node)
        return wire.RerunData(**vars(rerun))

    @path(
        "/job/parameters",
        "A node of the job sets new parameters for tasks that have not begun (ours)",
        peers_limiter,
    )
    def amend(
        body: Annotated[wire.AmendJob, examples.AMEND],
        caller: Caller,
    ) -> wire.AmendData:
        version = scheduler.amend_job(
            body.job_id,
            body.parameters,
            body.reason,
            caller.node,
        )
        return wire.AmendData(job_id=body.job_id, version=version)


def _add_participant_paths(
    router: APIRouter,
    node: NodeId,
    participant: ParticipantApi,
    peers: Peers,
) -> None:
    """Add the paths of a node that takes part in jobs."""
    path = Paths(router, peers, SCHEDULE)

    @path("/job/create", "The scheduling node creates a job here (3.2)")
    def create(
        body: Annotated[wire.CreateJob, examples.CREATE_JOB], caller: Caller
    ) -> wire.JobData:
        spec = translate.job_spec(
            body,
            body.job_id,
            caller.node,
            caller.trace_id,
            caller.profile,
        )
        acceptance = participant.create_job(spec, caller.node)
        return wire.JobData(job_id=body.job_id, **translate.acceptance_body(acceptance))

    @path("/job/plan", "A node asks what would happen to a job here (ours)")
    def plan(
        body: Annotated[wire.CreateJob, examples.CREATE_JOB],
        caller: Caller,
    ) -> wire.PlanData:
        spec = translate.job_spec(
            body,
            body.job_id,
            caller.node,
            caller.trace_id,
            caller.profile,
        )
        plan = participant.dry_run(spec, caller.node)
        return wire.PlanData(checks=views.redact_plan(plan))

    @path("/job/resource/apply", "The scheduling node reserves a job's resources (ours)")
    def reserve(
        body: Annotated[wire.JobId, examples.JOB_ID],
        caller: Caller,
    ) -> None:
        participant.hold(body.job_id, caller.node)

    @path("/job/resource/return", "The scheduling node returns the reserved resources (ours)")
    def give_back(
        body: Annotated[wire.JobId, examples.JOB_ID],
        caller: Caller,
    ) -> None:
        participant.give_back(body.job_id, caller.node)

    @path("/job/start", "The scheduling node starts a job (3.3)")
    def start(
        body: Annotated[wire.StartJob, examples.JOB_ID],
        caller: Caller,
    ) -> None:
        excluded_parties = body.without
        participant.start_job(body.job_id, caller.node, without=excluded_parties)

    @path("/task/start", "The scheduling node starts a task (3.4)")
    def start_task(
        body: Annotated[wire.StartTask, examples.START_TASK],
        caller: Caller,
    ) -> None:
        participant.start_task(
            body.job_id,
            body.task_id,
            body.task_name,
            caller.node,
            offers_in_force=body.amendments,
        )

    @path("/job/parameters/offer", "The scheduling node offers a party new parameters (ours)")
    def offer(
        body: Annotated[wire.OfferParameters, examples.OFFER],
        caller: Caller,
    ) -> None:
        amendment = Amendment(
            id=body.amendment,
            parameters=body.parameters,
            by=body.by,
            reason=body.reason,
            at=datetime.now(UTC),
            bundle=body.signed_bundles.get(node),
        )
        participant.offer_parameters(
            body.job_id,
            amendment,
            offers_in_force=body.holding,  # the wire's name for the ids of changes in force
            sender=caller.node,
        )

    @path("/job/stop", "The scheduling node ends a job, or one of its tasks (3.6)")
    def stop(
        body: Annotated[wire.StopJob, examples.STOP_JOB],
        caller: Caller,
    ) -> None:
        ending = translate.read_ending(body, datetime.now(UTC), caller.node)
        participant.stop_job(body.job_id, body.task_name, ending, caller.node)

    @path("/task/stop", "The scheduling node ends a task (one peer's own path)")
    def stop_task(
        body: Annotated[wire.StopTask, examples.STOP_TASK],
        caller: Caller,
    ) -> None:
        # The body, as the one peer with this path sends it, lacks the job's id and the task's name.
        participant.stop_task(
            job_id="",
            task_id=body.task_id,
            task_name="",
            sender=caller.node,
        )

    @path("/job/delete", "A node of an ended job asks that the job be deleted here (ours)")
    def delete(
        body: Annotated[wire.DeleteJob, examples.DELETE_JOB],
        caller: Caller,
    ) -> None:
        participant.delete_job(body.job_id, body.dry_run, caller.node)

    @path(
        "/task/clean", "A node of an ended job asks that outputs of a task be deleted here (ours)"
    )
    def clean_task(
        body: Annotated[wire.CleanTask, examples.CLEAN_TASK],
        caller: Caller,
    ) -> None:
        participant.clean_task(
            body.job_id,
            body.task_name,
            body.content,
            body.dry_run,
            caller.node,
        )


def outputs_router(catalog: OutputCatalog, peers: Peers) -> APIRouter:
    """Return the path for peers' questions about the metadata of outputs."""
    router = APIRouter(tags=["between nodes"], route_class=Route)
    path = Paths(router, peers, SCHEDULE)

    @path(OUTPUT_METADATA, "A node of a job asks what an output here is like; needs a grant (ours)")
    def metadata(
        body: Annotated[wire.OfOutputs, examples.OUTPUT_METADATA], caller: Caller
    ) -> wire.OutputsData:
        query = OutputQuery(body.job_id, body.task_name, body.role, body.output_key)
        outputs = catalog.for_peer(
            query,
            caller.node,
            action=f"POST {SCHEDULE}{OUTPUT_METADATA}",
        )
        return wire.OutputsData(outputs=[output.as_dict() for output in outputs])

    return router


def _no_facts(node: NodeId) -> Mapping[str, str]:
    """Return no facts: this node seals nothing."""
    return {}


def hello_router(
    node: NodeId,
    institution: str,
    peer_of: Callable[[NodeId], Peer],
    peers: Peers,
    sealing_of: Callable[[NodeId], Mapping[str, str]] = _no_facts,
) -> APIRouter:
    """Return the path for peers' route tests.

    ``sealing_of`` returns the fields of `wire.HelloSealing` for a peer; none if nothing is sealed.
    """
    router = APIRouter(tags=["between nodes"], route_class=Route)

    @router.post(
        f"{SCHEDULE}/node/hello",
        summary=(
            "A peer tests its route to this node and, on request, this node's route back (ours)"
        ),
    )
    async def hello(
        body: Annotated[wire.Hello, examples.HELLO],
        sender: Sender,
        # Only for the interface description: `sender` has been read from that header.
        x_source_node_id: Named = "",
    ) -> wire.Answer[wire.HelloData]:
        is_known = bool(sender.source) and peers.knows(sender.source)
        proof = peers.proof(sender.source)
        optional_fields: dict[str, Any] = {}
        if proof is not None:
            optional_fields["proof"] = str(proof)
        if body.call_back:
            if not is_known:
                raise NotAllowed(NO_ROUTE.format(sender.source or "(none named)", node))
            entry = peers.unproven_entry(sender.source)
            if entry is not None:
                raise unproven(entry, node)
            work = partial(call_back, peer_of, node, sender.source)
            optional_fields["back"] = await run_blocking(peers.limiters.peers, sender, work)
        if is_known:
            facts = sealing_of(sender.source)
            if facts:
                optional_fields["sealing"] = wire.HelloSealing(**facts)
        data = wire.HelloData(
            node_id=node,
            institution=institution,
            gateway=VERSION,
            protocol=PROTOCOL_VERSION,
            knows_you=is_known,
            time_ms=time.time_ns() // 1_000_000,
            **optional_fields,
        )
        return ok(data, peers.profile_of(sender.source))

    return router


_OUTPUTS = TypeAdapter(Annotated[list[OutputMetadata], Field(max_length=1000)])


def ask_output_metadata(peer: Peer, query: OutputQuery) -> Sequence[OutputMetadata]:
    """Ask a peer for the metadata of outputs.

    Raises the peer's refusal; `NotServed` if it lacks the path.
    """
    body = {
        "job_id": query.job_id,
        "task_name": query.task,
        "role": query.role,
        "output_key": query.key,
    }
    outputs = peer.ask(OUTPUT_METADATA, body).get("outputs")
    try:
        return _OUTPUTS.validate_python(outputs)
    except ValidationError as error:
        first_error = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first_error["loc"]))
        text = f"the node's description of its outputs is invalid: {where}"
        # This reason also covers an envelope without the requested content.
        raise Refused(text, reason="NO_ENVELOPE") from None


def audit_router(audits: JobAudits, peers: Peers) -> APIRouter:
    """Return the paths of the job audit for peers."""
    router = APIRouter(tags=["job audit"], route_class=Route)
    limiters = peers.limiters
    path = Paths(router, peers, JOB_AUDIT)

    @path("/apply", "A node asks whether this one would take part in a job (management 8)")
    def apply(
        body: Annotated[wire.ApplyAudit, examples.APPLY_AUDIT],
        caller: Caller,
    ) -> None:
        spec = translate.job_spec(
            body,
            body.job_id,
            caller.node,
            caller.trace_id,
            caller.profile,
        )
        audit = Audit(body.audit_id, body.name, body.project_id)
        audits.apply(spec, audit, caller.node)

    @path(
        "/confirm",
        "A node that this one asked says whether it takes part (management 8)",
        limiters.news,
    )
    def confirm(
        body: Annotated[wire.ConfirmAudit, examples.CONFIRM_AUDIT],
        caller: Caller,
    ) -> None:
        refusal = translate.read_refusal(body, caller.node)
        permit = body.resource_permit.token if body.resource_permit else ""
        audits.confirm(body.audit_id, refusal, caller.node, permit)

    @path("/terminate", "A node withdraws its question, or its answer (management 8)")
    def terminate(
        body: Annotated[wire.TerminateAudit, examples.TERMINATE_AUDIT], caller: Caller
    ) -> None:
        ending = translate.read_ending(body, datetime.now(UTC), caller.node)
        audits.terminate(body.audit_id, caller.node, ending)

    @router.get(
        f"{JOB_AUDIT}/query",
        summary="The state of an audit that the sender has applied for (ours)",
        openapi_extra=query_parameters(wire.AuditQuery),
        max_body_size=peers.ids_bytes,
    )
    async def query(
        request: Request,
        caller: Caller = peers.caller,  # only a node with a route
    ) -> wire.Answer[wire.StateData]:
        body = await read(request, wire.AuditQuery)
        work = partial(_audit_state, audits, body.audit_id, caller.node)
        state = await run_blocking(limiters.rest, caller.sender, work)
        return ok(state, caller.profile)

    return router


def _audit_state(audits: JobAudits, audit_id: str, sender: NodeId) -> wire.StateData:
    """Return the state of an audit; once approved and until the creation, with the job's permit."""
    status = audits.status(audit_id, sender)
    permit = audits.permit(audit_id, sender)
    fields = {}
    if permit is not None:
        fields = translate.job_permit(
            permit.job_id,
            permit.token,
            owner=permit.owner,
            applicant=sender,
        )
    return wire.StateData(status=str(status), **fields)
