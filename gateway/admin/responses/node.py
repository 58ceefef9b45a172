"""The node, its events, and sessions of the console."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from gateway.admin.responses.base import NumberedPage, Object
from gateway.jobs import retention
from gateway.runtime.trials import Step

# ---------------------------------------------------------------- the node


class Live(BaseModel):
    """The process responds."""

    status: str


class Ready(BaseModel):
    """Whether jobs can be taken."""

    ready: bool
    checks: dict[str, Object]


class Engine(BaseModel):
    """The engine that runs algorithms."""

    kind: str
    capabilities: list[str]
    answers: bool
    isolation: Object | None
    engines: list[Object]


class Resources(BaseModel):
    """The node's resources and their holders."""

    node: str
    total: Object
    held: Object
    others: Object
    remaining: Object
    engines: list[Object]
    holders: list[Object]
    waiting: list[Object]


class DoctorSteps(BaseModel):
    """The result of the node's examination."""

    good: bool
    steps: list[Step]


class Orphans(BaseModel):
    """Runs that only the engine or only the store knows."""

    unknown: list[Object]
    lost: list[Object]


class Items(BaseModel):
    """What cleaning removes, or would remove."""

    items: list[retention.Item]
    bytes: int


class Draining(BaseModel):
    """Whether the node is being drained."""

    draining: bool
    since: datetime | None
    running: str | None
    exit: bool
    jobs: list[Object]
    process: Object


class AuditEntry(BaseModel):
    """An entry of the audit log."""

    id: int
    at: datetime
    who: str
    action: str
    status: int
    code: int | None
    detail: Mapping[str, Any]
    hash: str | None
    in_words: str


class AuditPage(NumberedPage):
    """Entries of the audit log, newest first."""

    audit: list[AuditEntry]


class Setting(BaseModel):
    """A setting in force, and its origin."""

    path: str
    value: Any
    origin: str
    where: str | None
    changed: bool


class Settings(BaseModel):
    """Every setting in force."""

    settings: list[Setting]


class ReasonExplained(BaseModel):
    """The meaning of a reason, and the next step."""

    reason: str
    means: str
    next_step: str


class StorageHere(BaseModel):
    """A storage of the node."""

    name: str
    kind: str
    url: str
    uploads: bool
    ok: bool
    cause: str


class StoragesHere(BaseModel):
    """The node's storages."""

    storages: list[StorageHere]


class CertificateEnd(BaseModel):
    """The end of a certificate."""

    where: str
    file: str
    ends: datetime
    days: int
    cause: str


class CertificatesHere(BaseModel):
    """The certificates that the node uses."""

    certificates: list[CertificateEnd]


class Invitation(BaseModel):
    """This node's invitation to a partner."""

    node: str
    address: str
    keys: list[str]


class InvitationWords(Invitation):
    """A partner's invitation, and the words by which people compare it."""

    words: str
    version: int
    has_route: bool


# ---------------------------------------------------------------- events


class Event(BaseModel):
    """An event of a job."""

    id: int
    event: str
    job_id: str
    node: str
    at: str
    side: str
    by: str
    status: str
    detail: Object


class Events(BaseModel):
    """The events so far."""

    events: list[Event]
    next: int


class Webhook(BaseModel):
    """A receiver of events."""

    url: str
    events: list[str]
    number: int
    behind: int


class Webhooks(BaseModel):
    """The receivers of events."""

    webhooks: list[Webhook]


# ---------------------------------------------------------------- the console's session


class Session(BaseModel):
    """The sender of a request, and the node."""

    node: str
    institution: str
    version: str
    user: str
    role: str


class SessionEnded(BaseModel):
    """The end of a session."""

    ended: bool
    provider: str


class LoginWays(BaseModel):
    """The ways to log in."""

    oidc: bool
    issuer: str
