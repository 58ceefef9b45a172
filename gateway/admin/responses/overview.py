"""Pending decisions, and whether partners answer."""

from datetime import datetime

from pydantic import BaseModel, Field

from gateway.admin.responses.node import CertificateEnd
from gateway.domain.expiring import Expiring


class WaitingForPeople(BaseModel):
    """Pending decisions at this node, and permissions near their end."""

    approvals: int = Field(description="jobs that wait for an approval")
    applications: int = Field(description="undecided applications of partners")
    certificates: list[CertificateEnd] = Field(
        description="that end within 30 days, or have ended; the next one first"
    )
    expiring: list[Expiring] = Field(
        description=(
            "grants and permits in force that end within 30 days, or have few jobs left; the next "
            "end first"
        )
    )


class Partner(BaseModel):
    """A node with a route, and its last answer."""

    node: str
    institution: str | None
    enabled: bool
    answers: bool | None = Field(
        description="whether it responded to a small request; null: not known (yet)"
    )
    at: datetime | None = Field(description="when it was asked")


class Partners(BaseModel):
    """The nodes with routes."""

    partners: list[Partner]
