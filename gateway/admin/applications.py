"""``/api/v1/applications``: applications of partners and of this node, and decisions on them."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, get_type_hints

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import APIRouter, Body, Path, Query, Request
from fastapi.openapi.models import Example
from fastapi.responses import Response
from pydantic import AwareDatetime, Field

from gateway.admin.deps import (
    OPERATOR,
    AfterNumber,
    Empty,
    Input,
    Limit,
    Number,
    Paths,
    Reply,
    Why,
    named,
    noted,
    shape,
)
from gateway.domain.applications import Application, Kind, Side
from gateway.domain.approval import AuditStatus
from gateway.domain.spec import NodeId
from gateway.http.pagination import numbered_page
from gateway.jobs.applications import Applications
from gateway.store.serialization import to_plain

_FIRST = datetime(1970, 1, 2, tzinfo=UTC)
_LAST = datetime(2300, 1, 1, tzinfo=UTC)
_HIDDEN = ("token", "digest", "tries", "answer", "signing", "keys")
Until = Annotated[
    AwareDatetime | None,
    Field(
        default=None,
        ge=_FIRST,
        lt=_LAST,
        description="A time with its zone.",
    ),
]
Jobs = Annotated[
    int | None,
    Field(
        default=None,
        ge=1,
        le=2**31 - 2,
        description="So many jobs may use it.",
    ),
]


class Applying(Input):
    """What this node applies for."""

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
        description="Of a contract: the partner's public key or its id, compared by telephone.",
    )
    signing: str | None = Field(
        default=None,
        pattern="^(required|accepted|off)$",
        description="Of a contract: whether the partner signs; default: as its route says, or required.",
    )
    expires_at: Until
    jobs: Jobs
    fields: dict[str, Any] = Field(
        default_factory=dict, description="Further fields of the standard's body."
    )


class Deciding(Why):
    """How a person decides; what is left out stays as it was applied for."""

    expires_at: Until
    jobs: Jobs
    signing: str | None = Field(
        default=None,
        pattern="^(required|accepted|off)$",
        description="Of a contract: whether the partner signs as this gateway does; default: required.",
    )


_NOTICE = Annotated[
    str, Field(description="what the partner has still to hear: confirm, terminate")
]
_KEY = Annotated[
    str,
    Field(
        description="ids of the partner's keys: what its contract brings, then what its route has"
    ),
]
_SIGNED = Annotated[
    bool, Field(description="whether a contract was applied for with a signature of its own key")
]
_VISIBLE = {name: of for name, of in get_type_hints(Application).items() if name not in _HIDDEN}
_LINE = shape(
    "Application",
    **{
        **_VISIBLE,
        "notice": _NOTICE,
        "key": _KEY,
        "signed": _SIGNED,
    },
)
_PAGE = shape("ApplicationPage", applications=[_LINE], next=int | None)
_FOR_DATA = {
    "kind": "dataset",
    "partner": "JG0100002200000020",
    "subject": "bank#credit",
    "jobs": 10,
}
_EXAMPLES = {"dataset": Example(value=_FOR_DATA)}
_LISTS = {
    "datasets": "dataset/pub",
    "projects": "project",
    "components": "component",
}
_DECISIONS = {
    "with a reason": Example(value={"reason": "contract 2026-17"}),
    "without": Example(value={}),
}
OneNumber = Annotated[
    Number, Path(description="Of an application, as the list has it.", examples=[9])
]


def router(
    applications: Applications,
    compose: Callable[[Applying], Application],
    key_of: Callable[[Application], str],
    offered: Callable[[NodeId, str, Mapping[str, str]], Mapping[str, Any]],
    limiter: CapacityLimiter,
) -> APIRouter:
    """Return the paths; requests to partners are made in threads of the limiter.

    ``compose`` makes an application from a request, ``key_of`` returns the ids of a contract's keys,
    ``offered`` asks a partner for a list of its offers.
    """
    paths = Paths()

    def view(application: Application) -> dict[str, Any]:
        fields = to_plain(application).items()
        visible = {name: value for name, value in fields if name in _VISIBLE}
        return {
            **visible,
            "key": key_of(application),
            "signed": bool(application.keys),
        }

    def changed(
        request: Request,
        before: Application,
        after: Application,
        reason: str = "",
    ) -> Response:
        about = {
            "application": after.number,
            "kind": str(after.kind),
            "partner": after.partner,
        }
        noted(
            request,
            about | {"status": str(before.status)},
            about | {"status": str(after.status)},
            reason,
        )
        return Reply(view(after))

    @paths("GET", "/applications", "Contracts and audits: what waits, what holds", _PAGE)
    def listed(
        kind: Kind | None = None,
        side: Side | None = None,
        status: AuditStatus | None = None,
        partner: Annotated[str | None, Query(description="only with this node")] = None,
        after: AfterNumber = None,
        limit: Limit = 100,
    ) -> Response:
        page: Sequence[Application] = applications.store.list(
            side, kind, status, partner, after or 0, limit + 1
        )
        return Reply(numbered_page("applications", page, limit, "number", view))

    @paths("GET", "/applications/{application}", "One application", _LINE)
    def one(application: OneNumber) -> Response:
        return Reply(view(applications.store.get(application)))

    @paths("POST", "/applications", "Apply for something with a partner", _LINE)
    async def apply(
        request: Request, body: Annotated[Applying, Body(openapi_examples=_EXAMPLES)]
    ) -> Response:
        def work() -> Application:
            return applications.ask(compose(body), body.key)

        application = await anyio.to_thread.run_sync(work, limiter=limiter)
        created = {
            "application": application.number,
            "kind": str(application.kind),
            "partner": application.partner,
        }
        noted(request, None, created)
        return Reply(view(application))

    def decided(
        request: Request,
        number: int,
        approve: bool,
        body: Deciding,
    ) -> Response:
        fields = {
            "expires_at": body.expires_at,
            "most_jobs": body.jobs,
            "signing": body.signing,
        }
        changes = {}
        if approve:
            changes = {name: value for name, value in fields.items() if value is not None}
        by = named(request, OPERATOR)
        before, after = applications.decide(number, approve, by, body.reason, **changes)
        return changed(request, before, after, body.reason)

    @paths("POST", "/applications/{application}/approve", "Approve a partner's application", _LINE)
    def approve(
        request: Request,
        application: OneNumber,
        body: Annotated[Deciding, Body(openapi_examples=_DECISIONS)],
    ) -> Response:
        """A contract writes the partner's route, a dataset its grant; the partner is notified."""
        return decided(request, application, True, body)

    @paths("POST", "/applications/{application}/reject", "Reject a partner's application", _LINE)
    def reject(
        request: Request,
        application: OneNumber,
        body: Annotated[Deciding, Body(openapi_examples=_DECISIONS)],
    ) -> Response:
        return decided(request, application, False, body)

    @paths(
        "POST", "/applications/{application}/terminate", "End an application of either side", _LINE
    )
    def terminate(
        request: Request,
        application: OneNumber,
        body: Annotated[Why, Body(openapi_examples=_DECISIONS)],
    ) -> Response:
        """A contract disables the partner's route, a dataset's grant is revoked; the partner is notified."""
        before, after = applications.terminate(application, named(request, OPERATOR), body.reason)
        return changed(request, before, after, body.reason)

    @paths(
        "POST",
        "/applications/{application}/refresh",
        "Deliver now what the partner has to hear, or ask what it decided",
        _LINE,
    )
    async def refresh(application: OneNumber, body: Empty = None) -> Response:
        refreshed = await anyio.to_thread.run_sync(
            applications.refresh, application, limiter=limiter
        )
        return Reply(view(refreshed))

    @paths(
        "GET",
        "/partners/{node}/{what}",
        "What a partner offers: datasets, projects or components",
        shape("Offers", records=[dict[str, Any]], total=int),
    )
    async def offers(
        node: str,
        what: Annotated[Literal["datasets", "projects", "components"], Path()],
        page: Annotated[int, Query(ge=1, le=10**9)] = 1,
        size: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:
        def work() -> Mapping[str, Any]:
            contract = applications.contract_with(node)
            query = {
                "contract_id": contract.id,
                "page_num": str(page),
                "page_size": str(size),
            }
            return offered(node, f"{_LISTS[what]}/list", query)

        answer = await anyio.to_thread.run_sync(work, limiter=limiter)
        return Reply({"records": answer.get("records") or [], "total": answer.get("total") or 0})

    return paths.router
