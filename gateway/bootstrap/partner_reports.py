"""The services of reports that are kept with partners."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gateway.admin.partner_reports import PartnerReportServices
from gateway.bootstrap.services import Services
from gateway.domain.platform_reports import ReadReport
from gateway.domain.spec import NodeId
from gateway.store.platform_reports import SqlPlatformReports


def partner_report_services(services: Services) -> PartnerReportServices:
    """Return the services of the paths of these reports."""
    return PartnerReportServices(
        reports=SqlPlatformReports(services.foundation.store),
        routes=services.registries.routes,
        clock=services.foundation.clock,
        read=_read,
        page=_page,
        own_keys=lambda: services.peers.statement_keys.for_partners,
    )


def _read(
    node_id: NodeId,
    envelope: Any,
    now: datetime,
) -> ReadReport:
    """Return the report about a node, see `read_report_about`."""
    # Imported late: most nodes keep no reports.
    from gateway.conformance.platforms.reading import read_report_about  # noqa: PLC0415

    return read_report_about(node_id, envelope, now)


def _page(content: Mapping[str, Any]) -> str:
    """Return a report as HTML."""
    from gateway.conformance.platforms.page import page  # noqa: PLC0415

    return page(content)
