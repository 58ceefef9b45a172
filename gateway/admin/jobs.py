"""``/api/v1/jobs`` and ``/api/v1/approvals``: lists, a job in full, its timeline and archive, and
the requests that approve, rerun, change or suspend a job.

Deletion and cancellation are in `job_removal`, the dry run is in `dry_run`.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC
from functools import partial
from typing import Annotated, Any

from fastapi import Body, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import AfterValidator, ConfigDict, Field

from gateway.admin.deps import (
    AfterText,
    Empty,
    Input,
    Limit,
    Reply,
    Since,
    Until,
    among,
    api_router,
    author_of,
    content,
    record_change,
    service,
)
from gateway.admin.job_archive import archive_pieces
from gateway.admin.job_copy import copy_of
from gateway.admin.job_view import JobServices, approval_of, job_in_full, planned_runs
from gateway.admin.outputs import attachment
from gateway.admin.responses import jobs as responses
from gateway.auth import Role, person_of
from gateway.domain.run import LocalJob
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import NotAllowed, NotFound
from gateway.http.pagination import page_of
from gateway.jobs.bundle_document import document
from gateway.store.queries import JobCursor, JobFilter, is_known, page
from gateway.store.serialization import dumps
from gateway.store.timeline import TimelineEntry


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
        description="the task to begin with; empty: the first that has not succeeded",
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


_DECISION_EXAMPLE = {"by": "li", "reason": "agreed with the data's owner"}
DecisionBody = Annotated[
    Decision, Body(description="May be left out.", examples=[_DECISION_EXAMPLE])
]
_RERUN_EXAMPLE = {
    "from": "train",
    "parameters": {"common": {"train": {"epochs": 5}}},
}
_PARAMETERS_EXAMPLE = {
    "parameters": {"common": {"train": {"epochs": 5}}},
    "reason": "it converges sooner",
}
_SOME_OF = "of {}, separated by commas"  # description of a parameter that takes several words
Statuses = Annotated[
    Sequence[str], among(JobStatus), Query(description=_SOME_OF.format(", ".join(JobStatus)))
]
Outcomes = Annotated[
    Sequence[str], among(Outcome), Query(description=_SOME_OF.format(", ".join(Outcome)))
]


def _search(description: str) -> Any:
    """Return the declaration of a text to search for."""
    return Query(max_length=200, description=description)


def _parse_cursor(text: str) -> JobCursor | None:
    """Parse the last job of the page before: ``<time of creation>~<job id>``.

    The time is in seconds since the epoch. Returns None for a text of another form.
    """
    created, mark, job_id = text.partition("~")
    with suppress(ValueError):
        if mark and math.isfinite(float(created)):
            return JobCursor(float(created), job_id)
    return None


def _check_cursor(text: str) -> str:
    """Return an empty text or a cursor unchanged; raise ValueError for any other text."""
    if text and _parse_cursor(text) is None:
        raise ValueError("must be `next` of a response")
    return text


AfterJob = Annotated[AfterText, AfterValidator(_check_cursor)]
_Services = Annotated[JobServices, Depends(service(JobServices))]
router = api_router()


@router.get(
    "/jobs",
    summary="Jobs scheduled here or taken part in, newest first",
    response_model=responses.Jobs,
    name="listed",
)
def list_jobs(
    services: _Services,
    status: Statuses = (),
    outcome: Outcomes = (),
    flow_id: Annotated[str | None, Query(description="only of this flow")] = None,
    partner: Annotated[str | None, Query(description="only with this node in a role")] = None,
    text: Annotated[str, _search("in the id, flow, submitter, nodes or components")] = "",
    user: Annotated[str, _search("only submitted by this person here")] = "",
    component: Annotated[str, _search("only with this component: name, or provider/name")] = "",
    reason: Annotated[str, _search("only failed for this reason")] = "",
    since: Since = None,
    until: Until = None,
    after: AfterJob = "",
    limit: Limit = 100,
) -> Response:
    """``sides``: this node's parts in the job. ``since``, ``until``: time of its creation."""
    conditions = JobFilter(
        statuses=status,
        outcomes=outcome,
        flow_id=flow_id,
        partner=partner,
        since=since,
        before=until,
        text=text,
        user=user,
        component=component,
        reason=reason,
    )
    jobs = page(services.store, conditions, limit, after=_parse_cursor(after))
    following = None
    if jobs.next:
        # With ``!r`` the time keeps every digit, so that the next page begins at the right job.
        following = f"{jobs.next.created_at!r}~{jobs.next.job_id}"
    return Reply({"jobs": jobs.entries, "next": following})


@router.get(
    "/jobs/{job_id}",
    summary="A job in full: parties, parameters, runs here",
    response_model=responses.Job,
    name="one",
)
def get_job(
    request: Request,
    services: _Services,
    job_id: str,
) -> Response:
    """``last_lines`` of a failed run's log: only for readers who may read the log."""
    may_read_logs = getattr(request.state, "role", "") != Role.VIEWER
    return Reply(job_in_full(services, job_id, logs=may_read_logs))


@router.get(
    "/jobs/{job_id}/timeline",
    summary="All that happened to a job",
    response_model=responses.Timeline,
)
def timeline(services: _Services, job_id: str) -> Response:
    """A deleted job still has its timeline."""
    entries = services.store.timeline(job_id)
    if not entries and not is_known(services.store, job_id):
        raise NotFound(
            f"no job {job_id} was submitted, is scheduled or runs here", reason="JOB_UNKNOWN"
        )
    return Reply({"timeline": list(map(_timeline_entry, entries))})


@router.post(
    "/jobs/{job_id}/rerun",
    summary="Rerun an ended job from a task on; earlier results are reused",
    response_model=responses.Rerun,
)
def rerun(
    request: Request,
    services: _Services,
    job_id: str,
    body: Annotated[RerunOrder | None, Body(examples=[_RERUN_EXAMPLE])] = None,
) -> Response:
    order = body or RerunOrder()
    result = services.job_requests.rerun(job_id, order.start, order.parameters)
    request.state.answered = {"job_id": result.job_id}  # the audit log names the new job
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
    summary="Change the parameters of tasks that have not started, at every node or at none",
    response_model=responses.ParametersChanged,
)
def amend(
    request: Request,
    services: _Services,
    job_id: str,
    body: Annotated[ParametersOrder, Body(examples=[_PARAMETERS_EXAMPLE])],
) -> Response:
    version = services.job_requests.amend(job_id, body.parameters, body.reason)
    amendment = {"version": version, "parameters": body.parameters}
    record_change(request, None, amendment, body.reason)
    return Reply({"job_id": job_id, "version": version})


@router.get(
    "/approvals",
    summary="Jobs here that wait for a person",
    response_model=responses.ApprovalsPage,
    name="approvals",
)
def list_approvals(
    services: _Services,
    after: AfterText = "",
    limit: Limit = 100,
) -> Response:
    """The oldest first.

    ``tasks``: the runs at this node that approval would allow, with their images and datasets.
    """
    waiting = services.approvals.waiting()
    show = partial(_approval_fields, services)
    return Reply(page_of("approvals", waiting, _creation_key, after, limit, show))


@router.post(
    "/jobs/{job_id}/approve",
    summary="Approve a job at this node",
    response_model=responses.Decided,
)
def approve(
    request: Request,
    services: _Services,
    job_id: str,
    decision: DecisionBody = Decision(),
) -> Response:
    _check_not_submitter(request, services, job_id)
    return _decide(request, services, job_id, decision, approve=True)


@router.post(
    "/jobs/{job_id}/reject",
    summary="Reject a job at this node",
    response_model=responses.Decided,
)
def reject(
    request: Request,
    services: _Services,
    job_id: str,
    decision: DecisionBody = Decision(),
) -> Response:
    return _decide(request, services, job_id, decision, approve=False)


@router.post(
    "/jobs/{job_id}/suspend",
    summary="Suspend a job: no further task starts, running ones finish",
    response_model=responses.Suspended,
    name="suspended",
)
def suspend(
    request: Request,
    services: _Services,
    job_id: str,
    body: Empty = None,
) -> Response:
    return _set_suspended(request, services, job_id, should_be_suspended=True)


@router.post(
    "/jobs/{job_id}/resume",
    summary="Resume a suspended job",
    response_model=responses.Suspended,
    name="resumed",
)
def resume(
    request: Request,
    services: _Services,
    job_id: str,
    body: Empty = None,
) -> Response:
    return _set_suspended(request, services, job_id, should_be_suspended=False)


@router.get(
    "/jobs/{job_id}/bundle",
    summary="What its initiator signed of a job, and what ran here",
    response_model=responses.JobBundle,
)
def bundle(services: _Services, job_id: str) -> Response:
    """For `bfia-gateway job verify`, which compares the two.

    Only at a node that takes part in the job.
    """
    return Reply(document(services.store.local_jobs.get(job_id)))


@router.get(
    "/jobs/{job_id}/copy",
    summary="A job as the body of `create_all`, to edit and to submit as a new one",
    response_model=responses.JobCopy,
)
def copy(services: _Services, job_id: str) -> Response:
    """With the parameters in force at its end, without id and secrets.

    A node that did not schedule the job has no parameters of the parties at other nodes.
    """
    # It is no `Reply`, as that would translate texts in the job.
    return Response(dumps(copy_of(services, job_id)), media_type="application/json")


@router.get(
    "/jobs/{job_id}/archive",
    summary="All that this node knows of a job, as a zip file",
    response_class=StreamingResponse,
    responses=content("application/zip", format="binary"),
)
def download(services: _Services, job_id: str) -> Response:
    """The job as it was submitted (as far as this node knows it), its state and effective
    parameters, the masked environment and the logs of every attempt, the timeline, reports, and
    ``SHA256SUMS`` of all of them.

    A file that could not be read is named in ``INCOMPLETE``.
    """
    pieces = filter(None, archive_pieces(services, job_id))  # some pieces are empty
    return StreamingResponse(
        pieces, media_type="application/zip", headers=attachment(f"{job_id}.zip")
    )


def _timeline_entry(entry: TimelineEntry) -> dict[str, Any]:
    """Return an entry, with its event also as ``in_words``, which `Reply` translates."""
    return {**vars(entry), "in_words": entry.event}


def _creation_key(local: LocalJob) -> tuple[str, str]:
    """Return the key that sorts jobs by the time of their creation."""
    return local.created_at.astimezone(UTC).isoformat(timespec="microseconds"), local.id


def _approval_fields(services: JobServices, local: LocalJob) -> dict[str, Any]:
    """Return a job that waits for an approval as the list shows it."""
    job = local.spec
    components = [node.component for node in job.dag.nodes]
    component_names = {f"{component.provider}/{component.name}" for component in components}
    return {
        "job_id": local.id,
        "flow_id": job.flow_id,
        "initiator": job.initiator,
        "submitted_by": sorted(services.job_requests.submitters(local.id) - {job.initiator}),
        "scheduler": job.scheduler,
        "roles": [party.label for party in job.parties_at(local.node)],
        "components": sorted(component_names),
        "approval": approval_of(local),
        "tasks": planned_runs(services, local),
    }


def _check_not_submitter(
    request: Request,
    services: JobServices,
    job_id: str,
) -> None:
    """Raise `NotAllowed` (SAME_PERSON) if the job was submitted by the person who approves it.

    At a node that requires no tokens the person is unknown, and nothing is checked.
    """
    approver = author_of(request, "")
    if not approver:
        return
    submitters = map(person_of, services.job_requests.submitters(job_id))
    if person_of(approver) in submitters:
        text = f"{approver} submitted job {job_id}: another person has to approve it"
        raise NotAllowed(text, reason="SAME_PERSON")


def _decide(
    request: Request,
    services: JobServices,
    job_id: str,
    decision: Decision,
    *,
    approve: bool,
) -> Response:
    """Decide on a job at this node, and record the change of its status for the audit log."""
    before = services.store.local_jobs.find(job_id)
    status_before = None
    if before is not None:
        status_before = str(before.status)
    by = author_of(request, decision.by) or "an operator"
    local, is_new = services.approvals.decide(
        job_id,
        approve=approve,
        by=by,
        words=decision.reason,
    )
    after = {"local_status": str(local.status)}
    record_change(request, {"local_status": status_before}, after, decision.reason)
    return Reply(
        {
            "job_id": job_id,
            **after,
            "approval": approval_of(local),
            "repeated": not is_new,
        }
    )


def _set_suspended(
    request: Request,
    services: JobServices,
    job_id: str,
    *,
    should_be_suspended: bool,
) -> Response:
    """Suspend or resume a job, and record the change for the audit log."""
    job = services.store.jobs.find(job_id)
    before = None  # not known of a job that another node schedules
    if job is not None:
        before = job.suspended is not None
    services.job_requests.suspend(job_id, on=should_be_suspended)
    record_change(request, {"suspended": before}, {"suspended": should_be_suspended})
    return Reply({"job_id": job_id, "suspended": should_be_suspended})
