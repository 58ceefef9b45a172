"""Applications, routes and providers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from gateway.admin.responses.base import NumberedPage, Object, Page
from gateway.domain.applications import Kind, Side
from gateway.domain.approval import AuditStatus
from gateway.domain.attestation import AttestationPolicy
from gateway.runtime.trials import Step
from route_table import model
from route_table.proof import Proof

# ---------------------------------------------------------------- applications and partners


class Application(BaseModel):
    """An application of a partner or of this node."""

    kind: Kind
    id: str
    partner: str
    side: Side
    subject: str = Field(
        description="id of the dataset, project, flow or model; for a contract, the partner's id"
    )
    request: Mapping[str, Any] = Field(description="body of the application as it was sent")
    at: datetime = Field(description="when the node applied")
    status: AuditStatus
    by: str = Field(description="who changed the status last")
    reason: str = Field(description="for the last change of the status")
    changed_at: datetime | None
    expires_at: datetime | None
    most_jobs: int | None = Field(description="jobs that may use the permission; null: any number")
    notice: str = Field(
        description=(
            "message still to be delivered to the partner: confirm, terminate or (this node's new "
            "address or key) update; empty: none"
        )
    )
    due_at: datetime | None = Field(description="when the partner is called next")
    trouble: str = Field(description="why the last call to the partner failed; empty: it did not")
    url: str = Field(description="for a contract: the partner's address")
    level: int = Field(
        description="of this node's permit, as the partner that granted it has recorded it"
    )
    number: int = Field(description="of the record at this node")
    jobs: int = Field(description="how many have used the permission; failed jobs count")
    jobs_in_words: str = Field(
        description="numbers asked, approved and used; empty for a contract",
        examples=["5 of 5 used (asked: 10)"],
    )
    scope: Mapping[str, list[str]] = Field(
        description=(
            "for a dataset: limits of the permit, as ids by NODE, PROJECT and COMPONENT, requested "
            "or approved; empty: none"
        )
    )
    tasks: list[str] = Field(
        description="for a flow: each task, with the tasks before it and its component",
        examples=[["psi: unionpay:2.0.0/PSI", "train: unionpay:2.0.0/HeteroLR ← psi"]],
    )
    key: str = Field(
        description=(
            "for a contract: ids of the partner's keys. Until the partner's own application is "
            "approved: the key that it sent; otherwise those of its route"
        )
    )
    tee: AttestationPolicy | None = Field(
        description=(
            "for a contract: attestation reports of runs under it, as approved or, before, as "
            "applied for; null: none"
        )
    )
    tee_agreed: bool | None = Field(
        description=(
            "for an approved contract with such reports: whether the approval states them; false: "
            "the partner's product does not, so that only this node demands them"
        )
    )
    signed: bool | None = Field(
        description=(
            "for a partner's contract application: whether it is signed with the key that it "
            "contains; null for other applications"
        )
    )


class ApplicationPage(BaseModel):
    """Applications, by number."""

    applications: list[Application]
    next: int | None


class Announcement(BaseModel):
    """What the partner of a contract knows of this node."""

    partner: str
    application: int = Field(description="number of the contract")
    address: str = Field(
        description="of this node, as the partner was or is being told; empty: it was not told any"
    )
    key: str = Field(description="id of this node's key, as the partner was or is being told")
    acknowledged: bool = Field(description="the partner knows the present address and key")
    at: datetime | None = Field(
        description="when the partner acknowledged an update; null: it knows them from the contract"
    )
    trouble: str = Field(description="why the partner was not told; empty: nothing failed")


class AnnouncementsList(BaseModel):
    """The contracts in force, by number."""

    announcements: list[Announcement]


class Offers(BaseModel):
    """Datasets, projects or components that a partner offers."""

    records: list[Object]
    total: int = Field(description="entries on all pages together")


# ---------------------------------------------------------------- routes


class RouteChange(BaseModel):
    """A changed field of a route."""

    node: str
    field: str = Field(description="empty: the whole route was added or removed")
    before: Any
    after: Any


class RouteVersion(BaseModel):
    """A version of the route table."""

    version: int
    at: datetime
    author: str
    reason: str
    source: str = Field(examples=["api"])
    changes: list[RouteChange]


class VersionsPage(NumberedPage):
    """The versions of the route table, newest first."""

    versions: list[RouteVersion]


class NewRouteVersion(RouteVersion):
    """The version of the route table that a change has made."""

    not_in_file: list[str] = Field(
        description="why route_table.file cannot be used and does not hold the change"
    )


class FullRouteVersion(RouteVersion):
    """A version of the route table with its text."""

    diff: str = Field(description="against the version before, or the requested one")
    text: str = Field(description="as an administrator would write it in the file")


@dataclass(frozen=True)
class RouteLink:
    """A link to a route's node that stands."""

    since: datetime
    address: str  # of the other end
    dials_out: bool  # this node has dialled
    gateway: str = ""  # URL of this node's gateway at which it ends; empty for the asked one


@dataclass(frozen=True)
class LinkFailure:
    """Why the last link to a route's node was refused, could not be opened or has ended."""

    at: datetime
    cause: str


@dataclass(frozen=True)
class Route(model.Route):
    """A route, what proves the requests of its node, and the links to it."""

    proof: Proof | None = None  # None for this node's own entry and the default one
    remedy: str = ""  # next step if nothing proves them; empty if something does
    links: list[RouteLink] = field(default_factory=list)  # empty for a node without links
    link_failure: LinkFailure | None = None  # None if no link has failed yet


class RoutesPage(Page):
    """The routes in force."""

    routes: list[Route]
    version: int = Field(description="of the table in force")
    file: str | None = Field(description="route_table.file; null: there is none")
    problems: list[str] = Field(description="why the file as it is now is not in force")


class Traffic(BaseModel):
    """Bytes of the bodies of requests and responses, in both directions; no headers, no TLS."""

    bytes_in: int = Field(description="received from the node")
    bytes_out: int = Field(description="sent to the node")


class RecentTraffic(BaseModel):
    """The bytes exchanged with a node, by UTC.

    Those at other gateways of this node count after a minute at most.
    """

    today: Traffic
    month: Traffic = Field(description="since the first day of this month")


class Pace(BaseModel):
    """What passes in one direction at this gateway, where the bandwidth is limited."""

    limit: int = Field(description="bytes per second")
    bytes_per_second: int = Field(description="over the last 10 s")
    waiting: int = Field(description="messages that wait for their turns")
    waited_seconds: float = Field(description="of all messages together, since the start")


class OneRoute(BaseModel):
    """A route with its bytes, and the version of the table."""

    version: int = Field(description="of the table in force")
    route: Route
    traffic: RecentTraffic = Field(
        description="exchanged with the node; of the entry default: with all nodes without an entry"
    )
    sending: Pace | None = Field(description="null: what is sent to the node has no limit")
    receiving: Pace | None = Field(description="null: what the node sends has no limit")


class RouteTest(BaseModel):
    """The test of a route."""

    node: str
    good: bool = Field(description="no step has failed")
    steps: list[Step]


# ---------------------------------------------------------------- providers


class ProviderWarning(BaseModel):
    """A warning about a component description."""

    path: str
    rule: str


class ValueChange(BaseModel):
    """A value that differs between two revisions."""

    path: str
    before: Any
    after: Any


class Revision(BaseModel):
    """A change of a provider."""

    provider_name: str = Field(description="name:version@device")
    revision: int
    at: datetime
    author: str
    action: str = Field(examples=["registered"])
    reason: str
    in_words: str = Field(description="the action in the reader's language")


class HistoryPage(NumberedPage):
    """The revisions of a provider, newest first."""

    history: list[Revision]


class ProviderChanged(Revision):
    """A provider after a change."""

    created: bool = Field(description="the provider, or one of its components, is new")
    changed: bool = Field(description="false: it was so before, and this is its newest revision")
    changes: list[ValueChange]
    retired: bool = Field(description="new jobs do not get it")
    digests: dict[str, str] = Field(description="image -> approved digest")
    warnings: list[ProviderWarning]


class Provider(BaseModel):
    """A provider in the list."""

    provider_name: str = Field(examples=["unionpay:2.0.0@docker"])
    name: str
    version: str
    device: str = Field(description="such as docker")
    image: str = Field(description="of components without an image of their own")
    images: dict[str, str | None] = Field(description="image -> pinned digest")
    retired: bool = Field(description="new jobs do not get it")
    components: list[str] = Field(description="their names")
    warning_count: int
    owner: str = Field(description="name of the vendor's tokens; empty: this node's admins")
    granted: list[str] = Field(
        description="extra privileges of its containers, by the admin's settings"
    )
    attestation: str = Field(
        description="TEE platform of which its runs here must bring a report; empty: none"
    )


class ProvidersPage(Page):
    """Registered providers."""

    providers: list[Provider]


class FullProvider(Provider):
    """A provider in full."""

    revision: int = Field(description="number of the newest one")
    protocol: str
    metadata: Object
    digests: dict[str, str] = Field(description="image -> approved digest")
    jobs: list[str] = Field(description="jobs that use it")
    warnings: list[ProviderWarning]
    components_description: Object = Field(description="name of a component -> its description")


class ProviderDiff(BaseModel):
    """The difference between two revisions of a provider."""

    provider_name: str
    since: int = Field(description="number of the first revision; 0: nothing at all")
    until: int = Field(description="number of the last revision")
    changes: list[ValueChange]
    diff: str = Field(description="the changes as lines of text")


class SchemaLine(BaseModel):
    """A JSON Schema that this node publishes."""

    name: str
    for_: Any = Field(alias="for")
    title: str


class Schemas(BaseModel):
    """The JSON Schemas that this node publishes."""

    schemas: list[SchemaLine]


class JsonSchema(BaseModel):
    """A JSON Schema."""

    title: str
    type: Any


class ParameterSchema(JsonSchema):
    """The JSON Schema of a component's parameters."""

    properties: Object


class NameOwner(BaseModel):
    """The owner of a provider's name."""

    name: str = Field(description="of the provider, without version and device")
    before: str | None = Field(description="the owner until now; null: there was none")
    owner: str = Field(description="name of a vendor's tokens; empty: this node's admins")
