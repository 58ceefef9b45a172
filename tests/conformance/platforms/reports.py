"""Signed reports of checks, for the tests of their storage."""

from datetime import datetime
from typing import Any

from gateway.conformance.platforms.check import CheckResult, Judgement
from gateway.conformance.platforms.clauses import clause_of
from gateway.conformance.platforms.findings import (
    Finding,
    deviates,
    fails,
    holds,
)
from gateway.conformance.platforms.report import (
    Subject,
    report_of,
    sign_report,
)
from gateway.identity.keys import KEY_GENERATORS, KeyPair
from gateway.identity.signers import Signer

CHECKED_AT = datetime.fromisoformat("2026-03-04T05:06:07Z")
# One clause for each of three verdicts.
FINDINGS = {
    "C-2-envelope": holds("the envelope is complete"),
    "C-2-code": deviates("kuscia", "a success has the code 200"),
    "C-3.2-component": fails("a job with an unknown component is accepted"),
}


def report_content(
    node_id: str,
    findings: dict[str, Finding] | None = None,
    at: datetime = CHECKED_AT,
) -> dict[str, Any]:
    """Return the content of a report about a node; ``findings``: by clause."""
    judgements = []
    for clause_id, finding in (findings or FINDINGS).items():
        clause = clause_of(clause_id)
        judgements.append(Judgement(clause, finding))
    subject = Subject(
        node_id=node_id,
        url="http://partner.example:7380",
        standard="1.2.0",
        checker="JG0000000000000777",
        at=at,
    )
    result = CheckResult(tuple(judgements), jobs=())
    return report_of(subject, result)


def signed_report(
    content: dict[str, Any],
    signer: Signer | None = None,
) -> dict[str, Any]:
    """Return a report in its envelope, by default signed with a new key."""
    if signer is None:
        key = KEY_GENERATORS["ed25519"]()
        signer = KeyPair(key)
    envelope = sign_report(signer, content)
    return dict(envelope)
