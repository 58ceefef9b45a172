"""Applications, routes and providers."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from gateway.admin.responses.base import NumberedPage, Object, Page
from gateway.domain.applications import Kind, Side
from gateway.domain.approval import AuditStatus
from gateway.runtime.trials import Step
from route_table.model import Route

# ---------------------------------------------------------------- applications and partners


class Application(BaseModel):
    """An application of a partner or of this node."""

    kind: Kind
    id: str
    partner: str
    side: Side
    subject: str
    request: Mapping[str, Any]
    at: datetime
    status: AuditStatus
    by: str
    reason: str
    changed_at: datetime | None
    expires_at: datetime | None
    most_jobs: int | None
    notice: str = Field(
        description=(
            "message still to be delivered to the partner: confirm or terminate; empty: none"
        )
    )
    due_at: datetime | None
    trouble: str
    url: str
    level: int
    number: int
    jobs: int
    key: str = Field(
        description=(
            "for a contract: ids of the partner's keys. Until the partner's own application is "
            "approved: the key that it sent; otherwise those of its route"
        )
    )
    signed: bool = Field(
        description=(
            "for a partner's contract application: whether it is signed with the key that it "
            "contains"
        )
    )


class ApplicationPage(BaseModel):
    """Applications, by number."""

    applications: list[Application]
    next: int | None


class Offers(BaseModel):
    """Datasets, projects or components that a partner offers."""

    records: list[Object]
    total: int


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

    diff: str
    text: str


class RoutesPage(Page):
    """The routes in force."""

    routes: list[Route]
    version: int
    file: str | None
    problems: list[str] = Field(description="why the file as it is now is not in force")


class OneRoute(BaseModel):
    """A route, and the version of the table."""

    version: int
    route: Route


class RouteTest(BaseModel):
    """The test of a route."""

    node: str
    good: bool
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

    provider_name: str
    revision: int
    at: datetime
    author: str
    action: str = Field(examples=["registered"])
    reason: str
    in_words: str


class HistoryPage(NumberedPage):
    """The revisions of a provider, newest first."""

    history: list[Revision]


class ProviderChanged(Revision):
    """A provider after a change."""

    created: bool
    changed: bool = Field(description="false: it was so before, and this is its newest revision")
    changes: list[ValueChange]
    retired: bool
    digests: dict[str, str]
    warnings: list[ProviderWarning]


class Provider(BaseModel):
    """A provider in the list."""

    provider_name: str = Field(examples=["unionpay:2.0.0@docker"])
    name: str
    version: str
    device: str
    image: str
    images: dict[str, str | None] = Field(description="image -> pinned digest")
    retired: bool
    components: list[str]
    warning_count: int
    owner: str


class ProvidersPage(Page):
    """Registered providers."""

    providers: list[Provider]


class FullProvider(Provider):
    """A provider in full."""

    revision: int
    protocol: str
    metadata: Object
    digests: dict[str, str]
    jobs: list[str] = Field(description="jobs that use it")
    warnings: list[ProviderWarning]
    components_description: Object


class ProviderDiff(BaseModel):
    """The difference between two revisions of a provider."""

    provider_name: str
    since: int
    until: int
    changes: list[ValueChange]
    diff: str


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

    name: str
    before: str | None
    owner: str
