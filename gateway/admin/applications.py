"""``/api/v1/applications``: applications of partners and of this node, and decisions on them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Body, Depends, Path, Query, Request
from fastapi.openapi.models import Example
from fastapi.responses import Response
from pydantic import AwareDatetime, BeforeValidator, Field

from gateway.admin.deps import (
    OPERATOR,
    AfterNumber,
    Empty,
    Input,
    Limit,
    Number,
    Reply,
    Why,
    api_router,
    author_of,
    record_change,
    service,
)
from gateway.admin.responses import partners as responses
from gateway.config.schema.tee import TeePolicy, policy_of
from gateway.domain.applications import (
    Application,
    Kind,
    Side,
    jobs_in_words,
    shown_scope,
    tee_policies,
)
from gateway.domain.approval import AuditStatus
from gateway.domain.approved_flows import task_lines
from gateway.domain.dag import Dag
from gateway.domain.permit_scope import read_scope
from gateway.domain.spec import NodeId
from gateway.http.pagination import numbered_page
from gateway.jobs.announcements import Acknowledgement, Announcements
from gateway.jobs.applications import Applications
from gateway.store.serialization import to_plain
from route_table.certificates import key_pin, public_key
from route_table.model import switch_word

# Bounds of an expiry: every time zone and database can represent the times within them.
_FIRST_EXPIRY = datetime(1970, 1, 2, tzinfo=UTC)
_LAST_EXPIRY = datetime(2300, 1, 1, tzinfo=UTC)
ExpiresAt = Annotated[
    AwareDatetime | None,
    Field(
        default=None,
        ge=_FIRST_EXPIRY,
        lt=_LAST_EXPIRY,
        description="A time with its zone.",
    ),
]
MostJobs = Annotated[
    int | None,
    Field(
        default=None,
        ge=1,
        le=2**31 - 2,
        description="How many jobs may use the permission.",
    ),
]


class Applying(Input):
    """An application of this node to a partner."""

    kind: Kind = Field(description="contract, dataset, project, flow or model")
    partner: NodeId = Field(
        min_length=1,
        max_length=100,
        description="The node that decides.",
    )
    subject: str = Field(
        default="",
        max_length=400,
        description="Id of the dataset, project, flow or model.",
    )
    url: str = Field(
        default="",
        max_length=1000,
        description="Of a contract: where the partner is reached.",
    )
    address: str = Field(
        default="",
        max_length=1000,
        description="Of a contract: where it reaches this node.",
    )
    key: str = Field(
        default="",
        max_length=20_000,
        description=(
            "Of a contract: the partner's public key, or the id of that key. A person compares it "
            "with the partner beforehand, for example by telephone."
        ),
    )
    signing: Annotated[str | None, BeforeValidator(switch_word)] = Field(
        default=None,
        pattern="^(required|accepted|off)$",
        description=(
            "Of a contract: whether the partner has to sign its messages: required, accepted or "
            "off; default: as its route says, or required."
        ),
    )
    expires_at: ExpiresAt
    jobs: MostJobs
    scope: dict[str, list[str]] = Field(
        default_factory=dict,
        description=(
            "Of a dataset: limits of the permit, as lists of ids by NODE, PROJECT and COMPONENT "
            "(provider/name); empty: none."
        ),
    )
    tee: TeePolicy | None = Field(
        default=None,
        description="Of a contract: the attestation reports that runs under it have to bring.",
    )
    fields: dict[str, Any] = Field(
        default_factory=dict, description="Further fields of the standard's body."
    )


class Limits(Input):
    """Limits of a permit, as lists of ids; an empty list sets none."""

    NODE: list[str] = Field(default_factory=list)
    PROJECT: list[str] = Field(default_factory=list)
    COMPONENT: list[str] = Field(
        default_factory=list,
        description="Each is provider/name.",
    )


class Deciding(Why):
    """The terms of an approval; an omitted time, number of jobs or scope stays as applied for."""

    expires_at: ExpiresAt
    jobs: MostJobs
    scope: Limits = Field(
        default_factory=Limits,
        description="Of a dataset: limits of the permit, within those that were applied for.",
    )
    signing: Annotated[str | None, BeforeValidator(switch_word)] = Field(
        default=None,
        pattern="^(required|accepted|off)$",
        description=(
            "Of a contract: whether the partner has to sign its messages: required, accepted or "
            "off; default: required."
        ),
    )
    tee: TeePolicy | None = Field(
        default=None,
        description=(
            "Of a contract: attestation reports of runs under it, in addition to those that were "
            "applied for; the stricter requirement of each kind holds."
        ),
    )


_DATASET_EXAMPLE = {
    "kind": "dataset",
    "partner": "JG0100002200000020",
    "subject": "bank#credit",
    "jobs": 10,
}
_APPLYING_EXAMPLES = {"dataset": Example(value=_DATASET_EXAMPLE)}
# Kind of a partner's offers -> beginning of the standard's path for a list of them.
_LIST_PATHS = {
    "datasets": "dataset/pub",
    "projects": "project",
    "components": "component",
}
_DECIDING_EXAMPLES = {
    "with a reason": Example(value={"reason": "contract 2026-17"}),
    "without": Example(value={}),
}
OneNumber = Annotated[
    Number, Path(description="Of an application, as the list has it.", examples=[9])
]


@dataclass(frozen=True)
class ApplicationServices:
    """The services that the paths of applications use."""

    applications: Applications
    announcements: Announcements  # of this node's address and key
    # Makes an application from the body of a request.
    compose: Callable[[Applying], Application]
    # Returns the flow in the body of an application.
    read_flow: Callable[[Mapping[str, Any]], Dag]
    # Returns the ids of a contract's keys.
    key_ids: Callable[[Application], str]
    # Requests a list of a partner's offers: takes the partner, the path and the query.
    fetch_offers: Callable[[NodeId, str, Mapping[str, str]], Mapping[str, Any]]
    limiter: CapacityLimiter  # threads of requests to partners


_Services = Annotated[ApplicationServices, Depends(service(ApplicationServices))]
router = api_router()


@router.get(
    "/applications",
    summary="Applications, by number",
    response_model=responses.ApplicationPage,
    name="listed",  # part of the operation's id in the OpenAPI document
)
def list_applications(
    services: _Services,
    kind: Kind | None = None,
    side: Side | None = None,
    status: AuditStatus | None = None,
    partner: Annotated[str | None, Query(description="only with this node")] = None,
    after: AfterNumber = None,
    limit: Limit = 100,
) -> Response:
    page: Sequence[Application] = services.applications.store.list(
        side,
        kind,
        status,
        partner,
        after=after or 0,
        limit=limit + 1,  # one more shows that there is a next page
    )
    show = partial(_visible_fields, services)
    return Reply(numbered_page("applications", page, limit, "number", show))


@router.get(
    "/applications/{application}",
    summary="One application",
    response_model=responses.Application,
    name="one",  # part of the operation's id, too
)
def get_application(services: _Services, application: OneNumber) -> Response:
    return Reply(_visible_fields(services, services.applications.store.get(application)))


@router.post(
    "/applications",
    summary="Apply to a partner",
    response_model=responses.Application,
)
async def apply(
    request: Request,
    services: _Services,
    body: Annotated[Applying, Body(openapi_examples=_APPLYING_EXAMPLES)],
) -> Response:
    def work() -> Application:
        return services.applications.apply_with_partner(services.compose(body), body.key)

    application = await anyio.to_thread.run_sync(work, limiter=services.limiter)
    record_change(request, None, _summary(application))
    return Reply(_visible_fields(services, application))


@router.post(
    "/applications/{application}/approve",
    summary="Approve a partner's application",
    response_model=responses.Application,
)
def approve(
    request: Request,
    services: _Services,
    application: OneNumber,
    body: Annotated[Deciding, Body(openapi_examples=_DECIDING_EXAMPLES)],
) -> Response:
    """Approving a contract writes the partner's route, approving the use of a dataset writes a
    grant.

    The partner is notified.
    """
    fields = {
        "expires_at": body.expires_at,
        "most_jobs": body.jobs,
        "signing": body.signing,
        "scope": read_scope(body.scope.model_dump()),
        "tee_approved": policy_of(body.tee),
    }
    changes = {name: value for name, value in fields.items() if value is not None}
    before, after = services.applications.decide(
        application,
        approve=True,
        by=author_of(request, OPERATOR),
        reason=body.reason,
        **changes,
    )
    return _record_and_reply(request, services, before, after, body.reason)


@router.post(
    "/applications/{application}/reject",
    summary="Reject a partner's application",
    response_model=responses.Application,
)
def reject(
    request: Request,
    services: _Services,
    application: OneNumber,
    body: Annotated[Deciding, Body(openapi_examples=_DECIDING_EXAMPLES)],
) -> Response:
    """Terms in the body have no effect."""
    before, after = services.applications.decide(
        application, approve=False, by=author_of(request, OPERATOR), reason=body.reason
    )
    return _record_and_reply(request, services, before, after, body.reason)


@router.post(
    "/applications/{application}/terminate",
    summary="Terminate an application of either side",
    response_model=responses.Application,
)
def terminate(
    request: Request,
    services: _Services,
    application: OneNumber,
    body: Annotated[Why, Body(openapi_examples=_DECIDING_EXAMPLES)],
) -> Response:
    """Ending a contract disables the partner's route, ending the use of a dataset revokes the
    grant.

    The partner is notified.
    """
    before, after = services.applications.terminate(
        application, author_of(request, OPERATOR), body.reason
    )
    return _record_and_reply(request, services, before, after, body.reason)


@router.post(
    "/applications/{application}/refresh",
    summary="Deliver a pending notice to the partner now, or query its decision",
    response_model=responses.Application,
)
async def refresh(
    services: _Services,
    application: OneNumber,
    body: Empty = None,
) -> Response:
    refreshed = await anyio.to_thread.run_sync(
        services.applications.refresh, application, limiter=services.limiter
    )
    return Reply(_visible_fields(services, refreshed))


@router.get(
    "/announcements",
    summary="Which partners with a contract know this node's address and key",
    response_model=responses.AnnouncementsList,
    name="acknowledged",
)
def list_announcements(services: _Services) -> Response:
    return Reply(_announcements(services.announcements.list()))


@router.post(
    "/announcements",
    summary="Notify partners with a contract of this node's address and key",
    response_model=responses.AnnouncementsList,
)
async def announce(
    request: Request,
    services: _Services,
    body: Empty = None,
) -> Response:
    """Partners that know both already are not called."""
    acknowledgements = await anyio.to_thread.run_sync(
        services.announcements.announce, limiter=services.limiter
    )
    content = _announcements(acknowledgements)
    record_change(request, None, content)
    return Reply(content)


@router.get(
    "/partners/{node}/{what}",
    summary="What a partner offers: datasets, projects or components",
    response_model=responses.Offers,
)
async def offers(
    services: _Services,
    node: str,
    what: Annotated[Literal["datasets", "projects", "components"], Path()],
    page: Annotated[int, Query(ge=1, le=10**9)] = 1,
    size: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    def work() -> Mapping[str, Any]:
        contract = services.applications.contract_with(node)
        query = {
            "contract_id": contract.id,
            "page_num": str(page),
            "page_size": str(size),
        }
        return services.fetch_offers(node, f"{_LIST_PATHS[what]}/list", query)

    response = await anyio.to_thread.run_sync(work, limiter=services.limiter)
    return Reply({"records": response.get("records") or [], "total": response.get("total") or 0})


def _visible_fields(services: ApplicationServices, application: Application) -> dict[str, Any]:
    """Return an application as responses show it: without its permit and credentials."""
    fields = to_plain(application).items()
    visible = {name: value for name, value in fields if name in responses.Application.model_fields}
    return {
        **visible,
        "scope": shown_scope(application).ids_by_key,
        "tasks": _tasks(services, application),
        "jobs_in_words": jobs_in_words(application),
        "key": services.key_ids(application),
        "signed": _is_signed(application),
        "tee": to_plain(application.tee_approved or application.tee),
        "tee_agreed": _is_tee_agreed(application),
    }


def _tasks(services: ApplicationServices, application: Application) -> list[str]:
    """Return the tasks of a flow as a person sees them before the decision; empty for the rest."""
    if application.kind is not Kind.FLOW:
        return []
    return task_lines(services.read_flow(application.request))


def _is_signed(application: Application) -> bool | None:
    """Return whether a partner has signed its application for a contract.

    None for any other application: once there is a contract, its key signs all requests.
    """
    is_partners = application.side is Side.THEIRS
    if application.kind is not Kind.CONTRACT or not is_partners:
        return None
    return bool(application.keys)  # the key that signed the application


def _is_tee_agreed(application: Application) -> bool | None:
    """Return whether the approval of a contract states its attestation reports.

    None for a contract without them, and for an application that is not approved.
    """
    has_policy = bool(tee_policies(application))
    if application.status is not AuditStatus.APPROVED or not has_policy:
        return None
    return application.tee_approved is not None


def _announcements(acknowledgements: Sequence[Acknowledgement]) -> dict[str, Any]:
    """Return which partners have acknowledged what, in the form of responses."""
    rows = []
    for acknowledgement in acknowledgements:
        contract = acknowledgement.contract
        announcement = contract.announcing or contract.announced
        address = ""
        key = ""
        at = None
        if announcement is not None:
            address = announcement.address
            key = key_pin(public_key(announcement.key))
            at = announcement.at
        rows.append(
            {
                "partner": contract.partner,
                "application": contract.number,
                "address": address,
                "key": key,
                "acknowledged": acknowledgement.is_current,
                "at": at,
                "trouble": contract.trouble,
            }
        )
    return {"announcements": rows}


def _record_and_reply(
    request: Request,
    services: ApplicationServices,
    before: Application,
    after: Application,
    reason: str,
) -> Response:
    """Record an application's change for the audit log, and reply with the changed application."""
    summary = _summary(after)
    record_change(
        request,
        {**summary, "status": str(before.status)},
        {**summary, "status": str(after.status)},
        reason,
    )
    return Reply(_visible_fields(services, after))


def _summary(application: Application) -> dict[str, Any]:
    """Return the fields by which the audit log names an application."""
    return {
        "application": application.number,
        "kind": str(application.kind),
        "partner": application.partner,
    }
