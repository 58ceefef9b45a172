"""The report of a check as JSON, signed."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.conformance.platforms.check import CheckResult, Judgement
from gateway.conformance.platforms.findings import Exchange, Verdict
from gateway.conformance.platforms.reading import FORMAT, KIND
from gateway.domain.spec import NodeId
from gateway.identity.signers import Signer
from gateway.identity.statements import Envelope, sign_statement
from gateway.version import VERSION

_LONGEST_BODY = 4096  # bytes of a body that a report repeats
_MOST_EXCHANGES = 20  # of one clause; the first ones
# Beginnings of the headers that a report keeps: the standard's, and the form of the body.
_PUBLIC_HEADERS = ("x-", "x_", "content-type")
# Headers with secrets; a report only says that they were sent.
_SECRET_HEADERS = ("x-auth-sign", "x_auth_sign", "x-mprac-token-set", "x-ptp-token")


@dataclass(frozen=True)
class Subject:
    """The checked node, the checking one, and the date."""

    node_id: NodeId
    url: str
    standard: str  # version
    checker: NodeId  # id that the check had
    at: datetime


def report_of(subject: Subject, result: CheckResult) -> dict[str, Any]:
    """Return a report: a JSON object of the form in ``report.schema.json``."""
    return {
        "format": FORMAT,
        "node_id": subject.node_id,
        "url": subject.url,
        "standard": subject.standard,
        "checker": subject.checker,
        "checker_version": VERSION,
        "at": subject.at.isoformat(timespec="seconds"),
        "good": result.good,
        "counts": {str(verdict): result.count(verdict) for verdict in Verdict},
        "clauses": [_clause_json(judgement) for judgement in result.judgements],
        "jobs": [{"job_id": job_id, "stopped": stopped} for job_id, stopped in result.jobs],
    }


def _clause_json(judgement: Judgement) -> dict[str, Any]:
    """Return a clause with the finding about it."""
    clause = judgement.clause
    finding = judgement.finding
    exchanges = finding.exchanges[:_MOST_EXCHANGES]
    return {
        "id": clause.id,
        "section": clause.section,
        "level": str(clause.level),
        "says": {"en": clause.says.en, "zh": clause.says.zh},
        "remedy": {"en": clause.remedy.en, "zh": clause.remedy.zh},
        "verdict": str(finding.verdict),
        "observation": finding.observation,
        "dialect": finding.dialect,
        "exchanges": [_exchange_json(exchange) for exchange in exchanges],
        "further_exchanges": len(finding.exchanges) - len(exchanges),
    }


def _exchange_json(exchange: Exchange) -> dict[str, Any]:
    """Return one request and its response."""
    return {
        "from": "check" if exchange.to_node else "node",
        "method": exchange.method,
        "target": exchange.target,
        "headers": _public_headers(exchange.sent_headers),
        "body": _beginning(exchange.sent),
        "status": exchange.status,
        "response_headers": _public_headers(exchange.headers),
        "response": _beginning(exchange.received),
        "seconds": round(exchange.seconds, 3),
        "failure": exchange.failure,
    }


def _public_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that a report shows, without secrets."""
    headers_to_show = {}
    for name, value in headers.items():
        lower_name = name.lower()
        if not lower_name.startswith(_PUBLIC_HEADERS):
            continue
        headers_to_show[name] = "(sent)" if lower_name in _SECRET_HEADERS and value else value
    return headers_to_show


def _beginning(content: bytes) -> str:
    """Return the beginning of a body as text."""
    text = content[:_LONGEST_BODY].decode("utf-8", "replace")
    if len(content) > _LONGEST_BODY:
        text += f"… ({len(content)} bytes)"
    return text


def sign_report(signer: Signer, report: Mapping[str, Any]) -> Envelope:
    """Return a report in a signed envelope. Raises `SigningFailed`."""
    return sign_statement(signer, KIND, {**report, "key": signer.public})
