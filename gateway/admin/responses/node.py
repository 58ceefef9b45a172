"""The node, its events, and sessions of the console."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from gateway.admin.responses.base import NumberedPage, Object
from gateway.jobs import retention
from gateway.runtime.trials import Step

# ---------------------------------------------------------------- the node


class Engine(BaseModel):
    """The engine that runs algorithms."""

    kind: str = Field(description="such as docker")
    capabilities: list[str]
    answers: bool = Field(description="it can be reached")
    isolation: Object | None = Field(description="what runs cannot reach; null: it does not answer")
    engines: list[Object] = Field(description="the node's further engines, in the same form")


class Resources(BaseModel):
    """The node's resources and their holders."""

    node: str = Field(description="id of this node")
    total: Object = Field(description="of the main engine, with the disk of all engines")
    held: Object = Field(description="reserved by jobs")
    others: Object = Field(description="used by other programs than this node")
    remaining: Object
    engines: list[Object] = Field(description="every engine, the main one first")
    holders: list[Object] = Field(description="reservations of jobs")
    waiting: list[Object] = Field(description="jobs in the queue, in its order")


class DoctorSteps(BaseModel):
    """The result of the node's examination."""

    good: bool = Field(description="no step has failed")
    steps: list[Step]


class Orphans(BaseModel):
    """Runs that only the engine or only the store knows."""

    unknown: list[Object] = Field(description="in the engine, not in the store")
    lost: list[Object] = Field(description="in the store, not in the engine")


class Items(BaseModel):
    """What cleaning removes, or would remove."""

    items: list[retention.Item]
    bytes: int = Field(description="of all items")


class Draining(BaseModel):
    """Whether the node is being drained."""

    draining: bool
    since: datetime | None
    running: str | None = Field(
        description="the jobs under way: wait (for their end) or stop (them); null: not draining"
    )
    exit: bool = Field(description="the process ends when no job is under way any more")
    jobs: list[Object] = Field(description="ids and statuses of the jobs under way")
    process: Object = Field(description="pid, start and boot of the node's process")


class AuditEntry(BaseModel):
    """An entry of the audit log."""

    id: int
    at: datetime
    who: str = Field(description="person or node that requested it")
    action: str = Field(description="method and path of a request, or the name of a command")
    status: int = Field(description="HTTP status of the response")
    code: int | None = Field(description="of the response's envelope; null: it had no envelope")
    detail: Mapping[str, Any]
    hash: str | None = Field(
        description="over the entry and the hash of the one before; null: older than the chain"
    )
    in_words: str = Field(description="meaning of the action, in the reader's language")


class AuditPage(NumberedPage):
    """Entries of the audit log, newest first."""

    audit: list[AuditEntry]


class Setting(BaseModel):
    """A setting in force, and its origin."""

    path: str = Field(description="such as engine.kind")
    value: Any = Field(description="secrets are masked")
    origin: str = Field(description="default, file, environment or command")
    where: str | None = Field(description="file and line, or the variable; empty for other origins")
    changed: bool = Field(description="the value is not the default")


class Settings(BaseModel):
    """Every setting in force."""

    settings: list[Setting]


class ReasonExplained(BaseModel):
    """The meaning of a reason, and the next step."""

    reason: str
    means: str
    next_step: str


class StorageHere(BaseModel):
    """A storage of the node, and whether it answers."""

    name: str
    kind: str = Field(description="file, or the kind of a remote storage")
    url: str
    uploads: bool = Field(description="an upload that names no storage goes there")
    ok: bool = Field(description="it answered")
    cause: str = Field(description="why it did not answer; empty: it did")


class StoragesHere(BaseModel):
    """The node's storages."""

    storages: list[StorageHere]


class CertificateEnd(BaseModel):
    """The time at which the certificates of a file expire."""

    where: str = Field(description="the setting or route key that names the file")
    file: str
    ends: datetime
    days: int = Field(description="from now to the end; negative: it has expired")
    cause: str = Field(
        description="says so if the file was replaced after the node had loaded it; otherwise empty"
    )


class CertificatesHere(BaseModel):
    """The certificates that the node uses."""

    certificates: list[CertificateEnd]


class Invitation(BaseModel):
    """This node's invitation to a partner."""

    node: str
    address: str
    keys: list[str]
    sealing_key: str | None = Field(
        default=None, description="to which messages of containers are sealed; null without one"
    )


class InvitationWords(Invitation):
    """A partner's invitation, and the words by which people compare it."""

    words: str = Field(description="six, derived from both invitations")
    digits: str = Field(description="the words as digits: a group of five for each")
    sealing: str | None = Field(
        default=None,
        description="for the partner's route: required if both sides have sealing keys, else null",
    )
    way: dict[str, str] = Field(
        description="how both nodes reach each other, for the partner's route: url, and dial if "
        "this node dials; or reached"
    )
    version: int = Field(description="of the route table")
    has_route: bool = Field(description="this node has a route to the partner")


# ---------------------------------------------------------------- events


class Event(BaseModel):
    """An event of a job at this node."""

    id: int
    event: str = Field(description="its name, such as finished")
    job_id: str
    node: str = Field(description="id of this node")
    at: str = Field(description="ISO 8601")
    side: str = Field(description="this node's part then: scheduler, participant or operator")
    by: str = Field(description="who caused it; may be empty")
    status: str = Field(description="name of the timeline entry, such as job FINISHED")
    detail: Object


class Events(BaseModel):
    """The events so far."""

    events: list[Event]
    next: int = Field(description="send it as `after` for the events after these")


class Webhook(BaseModel):
    """A receiver of events."""

    url: str
    events: list[str] = Field(description="names of the events that it gets")
    number: int = Field(description="of the last event that it has received")
    behind: int = Field(description="number of events that it has not received yet")


class Webhooks(BaseModel):
    """The receivers of events."""

    webhooks: list[Webhook]


# ---------------------------------------------------------------- the console's session


class Session(BaseModel):
    """The sender of a request, and the node."""

    node: str
    institution: str
    version: str = Field(description="of the gateway's software")
    user: str
    role: str


class SessionEnded(BaseModel):
    """The end of a session."""

    ended: bool
    provider: str = Field(
        description="the OpenID provider with which the browser is still logged in; empty: none"
    )


class LoginWays(BaseModel):
    """The ways to log in."""

    oidc: bool = Field(description="by an OpenID provider")
    issuer: str = Field(description="address of that provider; empty: none")
