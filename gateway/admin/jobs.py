"""``/api/v1/jobs``: listing, a job in full, its timeline and archive, and all that is done with a
whole job.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC
from typing import Annotated, Any, Literal

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import APIRouter, Body, Path, Query, Request
from fastapi.openapi.models import Example
from fastapi.responses import Response, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import AfterValidator, ConfigDict, Field

from gateway.admin.deps import (
    OPERATOR,
    AfterText,
    Empty,
    Input,
    JobServices,
    Limit,
    Reply,
    Since,
    Until,
    among,
    api_router,
    author_of,
    content,
    record_change,
)
from gateway.admin.job_view import (
    approval_of,
    archive_pieces,
    job_in_full,
    pieces_here,
)
from gateway.admin.outputs import attachment
from gateway.admin.responses import jobs as responses
from gateway.auth import Role, person_of
from gateway.domain.dry_run import JobPlan, Standing
from gateway.domain.problems import Problem
from gateway.domain.run import LocalJob
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import Invalid, NotAllowed, NotFound, envelope
from gateway.http.pagination import page_of
from gateway.jobs.bundle_document import document
from gateway.jobs.deletion import Deleted, Deleting, SomeUnreached
from gateway.ports import Clock, Limiters
from gateway.store.queries import JobCursor, JobFilter, is_known, page
from gateway.store.repositories import SqlTemplates
from gateway.store.serialization import dumps
from gateway.store.timeline import TimelineEntry
from provider_registry.model import document_problem


def _timeline_entry(entry: TimelineEntry) -> dict[str, Any]:
    """Return an entry, with its event also in the reader's language, ``in_words``."""
    return {**vars(entry), "in_words": entry.event}


def _approval(local: LocalJob) -> dict[str, Any]:
    """Return a job that waits for an approval, without its tasks."""
    job = local.spec
    components = [node.component for node in job.dag.nodes]
    return {
        "job_id": local.id,
        "flow_id": job.flow_id,
        "initiator": job.initiator,
        "scheduler": job.scheduler,
        "roles": [party.label for party in job.parties_at(local.node)],
        "components": sorted(
            {f"{component.provider}/{component.name}" for component in components}
        ),
        "approval": approval_of(local),
    }


class Decision(Input):
    """Who decides, and why; the reason of a rejection goes to every node of the job."""

    by: str = Field(
        default="",
        max_length=100,
        description="Name of the person, for the timeline.",
    )
    reason: str = Field(
        default="",
        max_length=1000,
        description="Why.",
    )


class RerunOrder(Input):
    """What to run again, and what to change."""

    model_config = ConfigDict(populate_by_name=True)

    start: str = Field(
        default="",
        alias="from",
        max_length=200,
        description="a task; else the first that has not succeeded",
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict,
        description=(
            "changes of tasks that run again, as in task_params: common, then role, index, task"
        ),
    )


class ParametersOrder(Input):
    """New parameters of tasks that have not begun, and why."""

    parameters: dict[str, Any] = Field(
        description="as in task_params: common, then role, index, task"
    )
    reason: str = Field(
        min_length=1,
        max_length=1000,
        description="Why; every node of the job gets it.",
    )


class CancelWaiting(Input):
    """The body of a request to cancel all jobs that have no run yet."""

    dry_run: bool = False


_A_DECISION = {"by": "li", "reason": "agreed with the data's owner"}
_Decision = Annotated[Decision, Body(description="May be left out.", examples=[_A_DECISION])]
_AGAIN = {
    "from": "train",
    "parameters": {"common": {"train": {"epochs": 5}}},
}
_OTHERS = {
    "parameters": {"common": {"train": {"epochs": 5}}},
    "reason": "it converges sooner",
}
_CANCEL = {"only look": Example(value={"dry_run": True})}
_SEVERAL_OF = "of {}, with commas"  # description of a parameter
_Statuses = Annotated[
    Sequence[str], among(JobStatus), Query(description=_SEVERAL_OF.format(", ".join(JobStatus)))
]
_Outcomes = Annotated[
    Sequence[str], among(Outcome), Query(description=_SEVERAL_OF.format(", ".join(Outcome)))
]
_DryRun = Annotated[bool, Query(description="only say what would be done")]


def _parse_cursor(text: str) -> JobCursor | None:
    """Parse where a page begins: ``<seconds>~<job id>``; None for a text of another form."""
    created, mark, job_id = text.partition("~")
    with suppress(ValueError):
        if mark and math.isfinite(float(created)):
            return JobCursor(float(created), job_id)
    return None


def _check_cursor(text: str) -> str:
    """Return the text unchanged; raise ValueError unless it is empty or a cursor."""
    if text and _parse_cursor(text) is None:
        raise ValueError("must be `next` of a response")
    return text


def router(
    services: JobServices,
    deleting: Deleting,
    limiter: CapacityLimiter,
) -> APIRouter:
    """Return the paths of jobs; requests to partners are made in threads of the limiter."""
    router = api_router()
    store = services.store

    @router.get(
        "/jobs",
        summary="Jobs scheduled here or taken part in, newest first",
        response_model=responses.Jobs,
    )
    def listed(
        status: _Statuses = (),
        outcome: _Outcomes = (),
        flow_id: Annotated[str | None, Query(description="only of this flow")] = None,
        partner: Annotated[str | None, Query(description="only with this node in a role")] = None,
        since: Since = None,
        until: Until = None,
        after: Annotated[AfterText, AfterValidator(_check_cursor)] = "",
        limit: Limit = 100,
    ) -> Response:
        """``sides``: this node's parts in the job. ``since``, ``until``: time of its creation."""
        conditions = JobFilter(status, outcome, flow_id, partner, since, until)
        jobs = page(store, conditions, limit, _parse_cursor(after))
        following = None
        if jobs.next:
            following = f"{jobs.next.created_at!r}~{jobs.next.job_id}"
        return Reply({"jobs": jobs.entries, "next": following})

    @router.get(
        "/jobs/{job_id}",
        summary="A job in full: parties, parameters, runs here",
        response_model=responses.Job,
    )
    def one(request: Request, job_id: str) -> Response:
        """``last_lines`` of a failed run's log: for those only who may read the log."""
        logs = getattr(request.state, "role", "") != Role.VIEWER
        return Reply(job_in_full(services, job_id, logs=logs))

    @router.get(
        "/jobs/{job_id}/timeline",
        summary="All that happened to a job",
        response_model=responses.Timeline,
    )
    def timeline(job_id: str) -> Response:
        """A deleted job still has its timeline."""
        entries = store.timeline(job_id)
        if not entries and not is_known(store, job_id):
            raise NotFound(
                f"no job {job_id} was submitted, is scheduled or runs here", reason="JOB_UNKNOWN"
            )
        return Reply({"timeline": list(map(_timeline_entry, entries))})

    @router.post(
        "/jobs/{job_id}/rerun",
        summary="Run an ended job again from a task on; what came before is taken over",
        response_model=responses.Rerun,
    )
    def rerun(
        request: Request,
        job_id: str,
        body: Annotated[RerunOrder | None, Body(examples=[_AGAIN])] = None,
    ) -> Response:
        order = body or RerunOrder()
        result = services.job_requests.rerun(job_id, order.start, order.parameters)
        request.state.answered = {"job_id": result.job_id}
        return Reply(
            {
                "job_id": result.job_id,
                "old_job_id": job_id,
                "from": result.start,
                "runs": result.runs,
                "inherits": result.inherits,
            }
        )

    @router.post(
        "/jobs/{job_id}/parameters",
        summary="Give tasks that have not begun new parameters, at every node or at none",
        response_model=responses.ParametersChanged,
    )
    def amend(
        request: Request,
        job_id: str,
        body: Annotated[ParametersOrder, Body(examples=[_OTHERS])],
    ) -> Response:
        version = services.job_requests.amend(job_id, body.parameters, body.reason)
        record_change(
            request, None, {"version": version, "parameters": body.parameters}, body.reason
        )
        return Reply({"job_id": job_id, "version": version})

    @router.get(
        "/approvals",
        summary="Jobs here that wait for a person",
        response_model=responses.ApprovalsPage,
    )
    def approvals(after: AfterText = "", limit: Limit = 100) -> Response:
        """The oldest first.

        ``tasks``: the runs at this node that approval would allow, with their images and datasets.
        """

        def asked(local: LocalJob) -> dict[str, Any]:
            return {**_approval(local), "tasks": pieces_here(services, local)}

        return Reply(
            page_of("approvals", services.approvals.waiting(), _created, after, limit, asked)
        )

    def decide(
        request: Request,
        job_id: str,
        decision: Decision,
        *,
        approve: bool,
    ) -> Response:
        before = store.local_jobs.find(job_id)
        person = author_of(request, "")
        submitters = map(person_of, services.job_requests.submitters(job_id))
        if approve and person and person_of(person) in submitters:
            text = f"{person} submitted job {job_id}: another person has to approve it"
            raise NotAllowed(text, reason="SAME_PERSON")
        by = author_of(request, decision.by) or "an operator"
        local, is_new = services.approvals.decide(job_id, approve, by, decision.reason)
        after = {"local_status": str(local.status)}
        record_change(
            request, {"local_status": before and str(before.status)}, after, decision.reason
        )
        return Reply(
            {
                "job_id": job_id,
                **after,
                "approval": approval_of(local),
                "repeated": not is_new,
            }
        )

    @router.post(
        "/jobs/{job_id}/approve",
        summary="Agree to a job at this node",
        response_model=responses.Decided,
    )
    def approve(
        request: Request,
        job_id: str,
        decision: _Decision = Decision(),
    ) -> Response:
        return decide(request, job_id, decision, approve=True)

    @router.post(
        "/jobs/{job_id}/reject",
        summary="Refuse a job at this node",
        response_model=responses.Decided,
    )
    def reject(
        request: Request,
        job_id: str,
        decision: _Decision = Decision(),
    ) -> Response:
        return decide(request, job_id, decision, approve=False)

    def suspend(
        request: Request,
        job_id: str,
        *,
        is_suspended: bool,
    ) -> Response:
        job = store.jobs.find(job_id)
        before = None  # another node schedules the job
        if job is not None:
            before = job.suspended is not None
        services.job_requests.suspend(job_id, is_suspended)
        record_change(request, {"suspended": before}, {"suspended": is_suspended})
        return Reply({"job_id": job_id, "suspended": is_suspended})

    @router.post(
        "/jobs/{job_id}/suspend",
        summary="Start no further task; what runs, ends",
        response_model=responses.Suspended,
    )
    def suspended(
        request: Request,
        job_id: str,
        body: Empty = None,
    ) -> Response:
        return suspend(request, job_id, is_suspended=True)

    @router.post(
        "/jobs/{job_id}/resume",
        summary="Go on with a suspended job",
        response_model=responses.Suspended,
    )
    def resumed(
        request: Request,
        job_id: str,
        body: Empty = None,
    ) -> Response:
        return suspend(request, job_id, is_suspended=False)

    @router.get(
        "/jobs/{job_id}/bundle",
        summary="What its initiator signed of a job, and what ran here",
        response_model=responses.JobBundle,
    )
    def bundle(job_id: str) -> Response:
        """For `bfia-gateway job verify`, which compares the two.

        Only at a node that takes part in the job.
        """
        return Reply(document(store.local_jobs.get(job_id)))

    @router.get(
        "/jobs/{job_id}/archive",
        summary="All that this node knows of a job, as a zip file",
        response_class=StreamingResponse,
        responses=content("application/zip", format="binary"),
    )
    def download(job_id: str) -> Response:
        """The job as it was submitted (as far as this node knows it), its state and effective
        parameters, the masked environment and the logs of every attempt, the timeline, reports, and
        ``SHA256SUMS`` of all of them.

        A file that could not be read is named in ``INCOMPLETE``.
        """
        pieces = filter(None, archive_pieces(services, job_id))
        return StreamingResponse(
            pieces, media_type="application/zip", headers=attachment(f"{job_id}.zip")
        )

    @router.delete(
        "/jobs/{job_id}",
        summary="Delete an ended job at every node",
        response_model=responses.Deleted,
    )
    async def delete(
        request: Request,
        job_id: str,
        here: Annotated[
            bool, Query(description="only at this node; no request to the others")
        ] = False,
        reason: Annotated[
            str, Query(max_length=200, description="kept in the line that is left")
        ] = "",
        dry_run: _DryRun = False,
    ) -> Response:
        """Deletes its records, logs and outputs; one line in its timeline stays. ``nodes``: the
        result at each other node.

        Refused while the job is under way at any node (JOB_NOT_ENDED), or while other jobs need one
        of its outputs (OUTPUTS_IN_USE). If a node does not respond (503), this node keeps the job;
        send the same request again to delete it at the remaining nodes.
        """
        by = author_of(request, OPERATOR)

        def work() -> Response:
            return Reply(
                deleting.delete(
                    job_id,
                    by=by,
                    reason=reason,
                    here=here,
                    dry_run=dry_run,
                ).as_dict()
            )

        try:  # it waits for other nodes
            done = await anyio.to_thread.run_sync(work, limiter=limiter)
        except SomeUnreached as error:
            request.state.refused = error
            body = envelope(error)
            body["data"]["nodes"] = error.nodes
            return Reply(body, error.code)
        record_change(request, {"job_id": job_id}, None, reason, dry_run=dry_run)
        return done

    @router.delete(
        "/jobs/{job_id}/tasks/{task}/outputs",
        summary="Delete what one task of an ended job left here",
        response_model=responses.Deleted,
    )
    def clean_task(
        request: Request,
        job_id: str,
        task: str,
        content: Annotated[
            Literal["outputs", "metrics"],
            Query(description="outputs: tables and models; metrics: reports"),
        ] = "outputs",
        dry_run: _DryRun = False,
    ) -> Response:
        """``task`` is a name in the flow or an id. Refused as the deletion of a job is."""
        items = deleting.clean_task(
            job_id, task, content, by=author_of(request, OPERATOR), dry_run=dry_run
        )
        record_change(
            request, [f"{item.kind} {item.name}" for item in items[:100]], None, dry_run=dry_run
        )
        return Reply(Deleted(job_id, dry_run, items).as_dict())

    @router.post(
        "/jobs/cancel-waiting",
        summary="Stop all jobs scheduled here of which nothing runs yet",
        response_model=responses.Cancelled,
    )
    def cancel(
        request: Request, body: Annotated[CancelWaiting, Body(openapi_examples=_CANCEL)]
    ) -> Response:
        jobs = services.job_requests.cancel_waiting(services.node, body.dry_run)
        record_change(
            request,
            {"waiting": jobs[:100]},
            {"waiting": []},
            dry_run=body.dry_run,
        )
        return Reply({"dry_run": body.dry_run, "jobs": jobs})

    return router


def _created(local: LocalJob) -> tuple[str, str]:
    return local.created_at.astimezone(UTC).isoformat(timespec="microseconds"), local.id


def _template_key(row: Mapping[str, Any]) -> tuple[str]:
    return (row["name"],)


def dry_run_router(
    plan: Callable[[Mapping[str, Any]], JobPlan],
    example: Mapping[str, Any],
    limiters: Limiters,
    route: type[APIRoute] = APIRoute,
) -> APIRouter:
    """Return the path of the dry run.

    ``plan`` takes the body that would submit the job, which ``route`` reads.
    """
    router = api_router(route_class=route)

    @router.post(
        "/jobs/plan",
        summary="What would happen to a job at every node; creates nothing",
        response_model=responses.Plan,
    )
    async def planned(body: Annotated[dict[str, Any], Body(examples=[dict(example)])]) -> Response:
        job_plan = await anyio.to_thread.run_sync(
            plan,
            body,
            limiter=limiters.peers,
        )
        counts = {f"{standing}_count": job_plan.count(standing) for standing in Standing}
        nodes = []
        for node_plan in job_plan.nodes:
            nodes.append(
                {
                    "node": node_plan.node,
                    "parties": node_plan.parties,
                    "checks": node_plan.items,
                }
            )
        return Reply({"good": job_plan.good, **counts, "nodes": nodes})

    return router


# No space at the end: MariaDB ignores it in comparisons.
_Name = Annotated[str, Path(max_length=128, pattern=r"^[^/\x00-\x1f]*[^/\x00-\x20]$")]


class Kept(Input):
    """The body of a create_all, complete or not."""

    job: dict[str, Any] = Field(description="body of create_all")


_KEPT = {
    "begun": Example(
        value={"job": {"flow_id": "loans", "dag": {"version": "2.0", "components": []}}}
    )
}


def templates_router(templates: SqlTemplates, clock: Clock) -> APIRouter:
    """Return the paths of jobs that people here keep under a name to begin further ones with."""
    router = api_router()

    @router.get(
        "/templates",
        summary="Jobs kept as templates, by name",
        response_model=responses.TemplatesPage,
    )
    def every(after: AfterText = "", limit: Limit = 100) -> Response:
        rows = [row._asdict() for row in templates.list()]
        return Reply(page_of("templates", rows, _template_key, after, limit))

    @router.get(
        "/templates/{name}",
        summary="A template with its job",
        response_model=responses.Template,
    )
    def one(name: _Name) -> Response:
        return reply_untranslated(name)

    @router.put(
        "/templates/{name}",
        summary="Keep a job as a template, in place of one of that name",
        response_model=responses.Template,
    )
    def keep(
        request: Request,
        name: _Name,
        body: Annotated[Kept, Body(openapi_examples=_KEPT)],
    ) -> Response:
        problem = document_problem(body.job)
        if problem is not None:
            raise Invalid([Problem("job", problem.rule, problem.got)])
        before = templates.get(name)
        templates.put(name, author_of(request, OPERATOR), clock(), body.job)
        record_change(request, before and before.job, body.job)
        return reply_untranslated(name)

    @router.delete(
        "/templates/{name}",
        summary="Delete a template",
        response_model=responses.TemplateName,
    )
    def delete(request: Request, name: _Name) -> Response:
        record_change(request, find_template(name)["job"], None)
        templates.delete(name)
        return Reply({"name": name})

    def find_template(name: str) -> dict[str, Any]:
        template = templates.get(name)
        if template is None:
            raise NotFound(f"no template is called {name}", reason="TEMPLATE_UNKNOWN")
        return dict(template._asdict())

    def reply_untranslated(name: str) -> Response:  # `Reply` would translate texts of the job
        return Response(dumps(find_template(name)), media_type="application/json")

    return router
