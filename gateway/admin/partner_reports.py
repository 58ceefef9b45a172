"""``/api/v1/partner-reports``: signed reports of checks (``peer check``), stored with partners."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import Body, Depends, Path, Query, Request
from fastapi.openapi.models import Example
from fastapi.responses import HTMLResponse, Response

from gateway.admin.deps import (
    OPERATOR,
    AfterText,
    Limit,
    Reply,
    api_router,
    author_of,
    content,
    record_change,
    service,
)
from gateway.admin.outputs import attachment
from gateway.admin.responses import partner_reports as responses
from gateway.domain.platform_reports import (
    PlatformReport,
    ReadReport,
    breaches_of,
    report_of_content,
)
from gateway.domain.spec import NodeId
from gateway.errors import Invalid, NotFound
from gateway.http.pagination import page_of
from gateway.ports import Clock
from gateway.store.platform_reports import SqlPlatformReports, StoredReport
from gateway.store.serialization import dumps
from provider_registry.model import document_problem
from route_table.certificates import key_pin, public_key
from route_table.live import LiveRoutes
from route_table.model import DEFAULT_ENTRY

# The page of a report runs nothing and loads nothing.
_PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; "
        "frame-ancestors 'none'; base-uri 'none'; sandbox"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_EXAMPLE = {
    "payloadType": "application/vnd.bfia-gateway.platform-report+json",
    "payload": "eyJmb3JtYXQiOiAxfQ==",
    "signatures": [{"keyid": "sha256:…", "sig": "…"}],
}
_EXAMPLES = {"written by peer check --report": Example(value=_EXAMPLE)}
NodeInPath = Annotated[
    str,
    Path(
        max_length=128,
        examples=["JG0100002200000020"],
        description="id of the partner",
    ),
]


@dataclass(frozen=True)
class PartnerReportServices:
    """The services of these paths."""

    reports: SqlPlatformReports
    routes: LiveRoutes
    clock: Clock
    # Reads the report about a node at a time; raises `Invalid` for any other value.
    read: Callable[[NodeId, Any, datetime], ReadReport]
    # Returns the content of a report as an HTML page.
    page: Callable[[Mapping[str, Any]], str]
    own_keys: Callable[[], list[str]]  # public keys of this node


_Services = Annotated[PartnerReportServices, Depends(service(PartnerReportServices))]
router = api_router()


@router.get(
    "/partner-reports",
    summary="Reports of checks that are stored with partners, by node",
    response_model=responses.PartnerReportsPage,
    name="every",
)
def list_reports(
    services: _Services,
    node: Annotated[str, Query(description="only that of this partner")] = "",
    after: AfterText = "",
    limit: Limit = 100,
) -> Response:
    reports = [_fields(services, stored) for stored in services.reports.list()]
    if node:
        reports = [report for report in reports if report["node"] == node]
    return Reply(page_of("reports", reports, _sort_key, after, limit))


@router.get(
    "/partner-reports/{node}",
    summary="A partner's report, with the clauses that do not hold",
    response_model=responses.FullPartnerReport,
    name="one",
)
def get_report(services: _Services, node: NodeInPath) -> Response:
    stored = _find(services, node)
    breaches = breaches_of(_read(services, node).content)
    fields = {**_fields(services, stored), "breaches": breaches}
    # No `Reply`, which would translate the texts of the report: they are in both languages.
    return Response(dumps(fields), media_type="application/json")


@router.get(
    "/partner-reports/{node}/file",
    summary="A partner's report as it was signed",
    response_model=responses.SignedReport,
    name="file",
)
def get_file(services: _Services, node: NodeInPath) -> Response:
    return Response(
        dumps(_envelope(services, node)),
        media_type="application/json",
        headers=attachment(f"report-{node}.json"),
    )


@router.get(
    "/partner-reports/{node}/page",
    summary="A partner's report as a page, with the requests that show it",
    responses=content("text/html"),
    response_class=HTMLResponse,
    name="page",
)
def get_page(services: _Services, node: NodeInPath) -> Response:
    stored = _find(services, node)
    report = {**_read(services, node).content, "counts": stored.report.counts}
    return HTMLResponse(services.page(report), headers=_PAGE_HEADERS)


@router.put(
    "/partner-reports/{node}",
    summary="Keep a signed report with a partner, in place of an earlier one",
    response_model=responses.PartnerReport,
    name="keep",
)
def put_report(
    request: Request,
    services: _Services,
    node: NodeInPath,
    envelope: Annotated[dict[str, Any], Body(openapi_examples=_EXAMPLES)],
) -> Response:
    _check_is_partner(services, node)
    now = services.clock()
    problem = document_problem(envelope)
    if problem is not None:
        raise Invalid([problem], reason="REPORT_INVALID")
    report = services.read(node, envelope, now)
    stored = StoredReport(
        node=node,
        author=author_of(request, OPERATOR),
        stored_at=now,
        report=report_of_content(report.content, report.key),
    )
    earlier = services.reports.get(node)
    services.reports.put(stored, envelope)
    record_change(request, _facts(earlier), _facts(stored))
    return Reply(_fields(services, stored))


@router.delete(
    "/partner-reports/{node}",
    summary="Delete a partner's report",
    response_model=responses.PartnerReportNode,
    name="delete",
)
def delete_report(
    request: Request,
    services: _Services,
    node: NodeInPath,
) -> Response:
    stored = _find(services, node)
    services.reports.delete(node)
    record_change(request, _facts(stored), None)
    return Reply({"node": node})


def _sort_key(report: Mapping[str, Any]) -> tuple[str]:
    return (report["node"],)


def _check_is_partner(services: PartnerReportServices, node: NodeId) -> None:
    """Raise `NotFound` (NODE_UNKNOWN) for a node without a route."""
    if node != DEFAULT_ENTRY and node in services.routes.table.routes:
        return
    text = f"{node} has no route, so it has no report: accept it with bfia-gateway partner accept"
    raise NotFound(text, reason="NODE_UNKNOWN")


def _find(services: PartnerReportServices, node: NodeId) -> StoredReport:
    """Return what a partner's report says. Raises `NotFound` (REPORT_UNKNOWN)."""
    stored = services.reports.get(node)
    if stored is None:
        raise _unknown(node)
    return stored


def _envelope(services: PartnerReportServices, node: NodeId) -> Mapping[str, Any]:
    """Return a partner's report as it was signed. Raises `NotFound` (REPORT_UNKNOWN)."""
    envelope = services.reports.envelope(node)
    if envelope is None:
        raise _unknown(node)
    return envelope


def _read(services: PartnerReportServices, node: NodeId) -> ReadReport:
    """Return the content of a partner's report; its signature is verified again.

    Raises `NotFound` (REPORT_UNKNOWN), and `Invalid` for one that was changed in the database.
    """
    return services.read(node, _envelope(services, node), services.clock())


def _unknown(node: NodeId) -> NotFound:
    """Return the error of a partner without a report."""
    text = f"no report is stored with {node}; to add one: bfia-gateway partner report {node} FILE"
    return NotFound(text, reason="REPORT_UNKNOWN")


def _facts(stored: StoredReport | None) -> PlatformReport | None:
    """Return what a report says, for the audit log; None without one."""
    if stored is None:
        return None
    return stored.report


def _fields(services: PartnerReportServices, stored: StoredReport) -> dict[str, Any]:
    """Return a report as responses show it."""
    report = stored.report
    return {
        "node": stored.node,
        "author": stored.author,
        "stored_at": stored.stored_at,
        "checked_at": report.checked_at,
        "url": report.url,
        "standard": report.standard,
        "checker": report.checker,
        "checker_version": report.checker_version,
        "key": key_pin(public_key(report.key)),
        "signed_by": _signer(services, stored),
        "good": report.good,
        "deviations": report.deviations,
        "counts": report.counts,
    }


def _signer(services: PartnerReportServices, stored: StoredReport) -> str:
    """Return whose key has signed a report: ``this node``, ``partner`` or ``other``."""
    pin = key_pin(public_key(stored.report.key))
    route = services.routes.table.routes.get(stored.node)
    if pin in _pins(services.own_keys()):
        return "this node"
    if route is not None and pin in _pins(route.keys):
        return "partner"
    return "other"


def _pins(keys: Iterable[str]) -> set[str]:
    """Return the ids of public keys."""
    return {key_pin(public_key(key)) for key in keys}
