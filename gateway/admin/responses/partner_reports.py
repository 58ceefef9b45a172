"""Reports of checks of partners' platforms."""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from gateway.admin.responses.base import Page


class PartnerReport(BaseModel):
    """What the report of a check of a partner says, without its clauses."""

    node: str = Field(description="the partner")
    author: str = Field(description="who keeps the report")
    stored_at: datetime
    checked_at: datetime
    url: str = Field(description="the partner's address at the check")
    standard: str = Field(description="version of the standard")
    checker: str = Field(description="node id that the check had")
    checker_version: str
    key: str = Field(description="id of the key that has signed the report")
    signed_by: Literal["this node", "partner", "other"] = Field(description="owner of that key")
    good: bool = Field(description="nothing that the standard demands is broken")
    deviations: int = Field(description="clauses that do not hold: those that deviate or fail")
    counts: Mapping[str, int] = Field(
        description="clauses by verdict: holds, deviates, fails, not tried"
    )


class PartnerReportsPage(Page):
    """Reports of checks of partners."""

    reports: list[PartnerReport]


class BrokenClause(BaseModel):
    """A clause of the standard that does not hold."""

    id: str
    section: str
    level: Literal["must", "should"]
    verdict: Literal["deviates", "fails"]
    observation: str
    dialect: str = Field(description="profile of a route that lives with it; empty: none")
    says: Mapping[str, str] = Field(description="by language: en, zh")
    remedy: Mapping[str, str] = Field(description="by language: en, zh")


class FullPartnerReport(PartnerReport):
    """The report of a check of a partner."""

    breaches: list[BrokenClause]


class Signature(BaseModel):
    """A signature of a report."""

    keyid: str = Field(description="pin of the public key")
    sig: str = Field(description="base64")


class SignedReport(BaseModel):
    """A report as ``peer check --report`` has written it."""

    payloadType: str
    payload: str = Field(description="the report as JSON, in base64")
    signatures: list[Signature]


class PartnerReportNode(BaseModel):
    """The partner whose report was deleted."""

    node: str
