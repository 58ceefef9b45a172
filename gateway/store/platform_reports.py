"""The table of reports of checks of partners' platforms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select

from gateway.domain.platform_reports import PlatformReport
from gateway.domain.spec import NodeId
from gateway.store import schema
from gateway.store.database import InDatabase
from gateway.store.serialization import dumps, loads

_COLUMNS = schema.platform_report.c
_LISTED = (_COLUMNS.node, _COLUMNS.author, _COLUMNS.stored_at, _COLUMNS.summary)


@dataclass(frozen=True)
class StoredReport:
    """A report that is stored with a partner, without its clauses."""

    node: NodeId
    author: str  # who keeps it
    stored_at: datetime
    report: PlatformReport


class SqlPlatformReports(InDatabase):
    """At most one report for each partner."""

    def list(self) -> Sequence[StoredReport]:
        """Return what the reports say, in the order of their nodes."""
        query = select(*_LISTED).order_by(_COLUMNS.node)
        return [_stored_report(row) for row in self._database.rows(query)]

    def get(self, node: NodeId) -> StoredReport | None:
        """Return what a partner's report says; None without one."""
        query = select(*_LISTED).where(_COLUMNS.node == node)
        row = self._database.first(query)
        if row is None:
            return None
        return _stored_report(row)

    def envelope(self, node: NodeId) -> Mapping[str, Any] | None:
        """Return a partner's report as it was signed; None without one."""
        query = select(_COLUMNS.envelope).where(_COLUMNS.node == node)
        envelope: Mapping[str, Any] | None = self._database.value(query)
        return envelope

    def put(self, stored: StoredReport, envelope: Mapping[str, Any]) -> None:
        """Keep a report, in place of the partner's earlier one."""
        values = {
            "author": stored.author,
            "stored_at": stored.stored_at,
            "summary": dumps(stored.report),
            "envelope": envelope,
        }
        self._database.put(
            schema.platform_report,
            {"node": stored.node},
            values,
        )

    def delete(self, node: NodeId) -> bool:
        """Delete a partner's report; return False if there is none."""
        delete = schema.platform_report.delete().where(_COLUMNS.node == node)
        return bool(self._database.execute(delete))


def _stored_report(row: Any) -> StoredReport:
    """Return the report of a row with the columns that are listed."""
    return StoredReport(
        node=row.node,
        author=row.author,
        stored_at=row.stored_at,
        report=loads(PlatformReport, row.summary),
    )
