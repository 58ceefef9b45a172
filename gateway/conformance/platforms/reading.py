"""Signed reports of checks, read back: their signature, their form and the node they are about."""

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

from gateway.domain.platform_reports import ReadReport, date_problems
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId
from gateway.errors import Invalid
from gateway.identity.statements import UnknownKey, open_envelope, read_unverified
from provider_registry.model import ROOT, document_problem
from provider_registry.schema import Schema, read_schema

# The media type that is signed together with a report.
KIND = "application/vnd.bfia-gateway.platform-report+json"
FORMAT = 1  # version of the report's form


def read_report(envelope: Any, trusted_keys: Sequence[str] = ()) -> ReadReport:
    """Return a report whose signature is right.

    Without ``trusted_keys``, any key will do: the reader must know its owner. Raises `ValueError`
    for a wrong signature and for any other value.
    """
    content, _ = read_unverified(envelope, KIND)
    keys = list(trusted_keys) or [str(content.get("key", ""))]
    try:
        verified, key = open_envelope(envelope, KIND, keys)
    except UnknownKey as error:
        raise ValueError(f"{error}, which is none of the trusted keys") from None
    if verified.get("format") != FORMAT or not isinstance(verified.get("clauses"), list):
        raise ValueError(f"it is not a report of form {FORMAT}")
    return ReadReport(verified, key)


def read_report_about(
    node_id: NodeId,
    envelope: Any,
    now: datetime,
) -> ReadReport:
    """Return the report of a check of a node.

    Raises `Invalid`: REPORT_SIGNATURE_WRONG, REPORT_INVALID (with every breach of the published
    schema), REPORT_OF_ANOTHER_NODE.
    """
    try:
        report = read_report(envelope)
    except ValueError as error:
        rule = f"is not a report as it was signed: {error}; take the file that --report wrote"
        raise Invalid([Problem(ROOT, rule)], reason="REPORT_SIGNATURE_WRONG") from None
    problems = _content_problems(report.content, now)
    if problems:
        raise Invalid(problems, reason="REPORT_INVALID")
    checked_node = report.content["node_id"]
    if checked_node != node_id:
        rule = f"is another node than {node_id}, the partner: keep the report with that node"
        problem = Problem("node_id", rule, checked_node)
        raise Invalid([problem], reason="REPORT_OF_ANOTHER_NODE")
    return report


def _content_problems(content: dict[str, Any], now: datetime) -> list[Problem]:
    """Return every breach of the published schema; others only for what can be stored and shown."""
    problem = document_problem(content)
    if problem is not None:
        return [problem]
    return _schema().problems(content) or date_problems(content, now)


@cache
def _schema() -> Schema:
    """Return the published schema of reports."""
    file = files(__package__).joinpath("report.schema.json")
    return read_schema(file, "reports of bfia-gateway peer check")
