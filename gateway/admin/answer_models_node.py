"""What the operators' own paths about the node itself answer: routes, providers, data, models, audit, settings."""

from typing import Annotated, Any

from pydantic import Field

from gateway.admin.answer_models import Bytes, JobId, Moment, NodeId, Object, Shown

_NEXT = "send it as `after` for the next page; null on the last one"


class Live(Shown):
    status: Annotated[str, Field(examples=["ok"])]


class Check(Shown):
    ok: bool


class Ready(Shown):
    ready: bool
    checks: dict[str, Check] = Field(description="database, engine, routes and more; each with its cause")


class RouteLine(Shown):
    node: NodeId
    url: Annotated[str, Field(examples=["http://10.0.0.7:7380"])]
    profile: Annotated[str, Field(examples=["spec"])]
    institution: str | None
    deadline: Annotated[float, Field(examples=[10.0], description="seconds")]
    enabled: bool
    via: str | None
    relay: bool


class Routes(Shown):
    version: int
    file: str | None
    problems: list[str] = Field(description="why the file as it is now is not in force")
    routes: list[RouteLine]
    total: int
    next: str | None = Field(description=_NEXT)


class OneRoute(Shown):
    version: int
    route: RouteLine


class RouteChange(Shown):
    node: NodeId
    field: str
    before: Any
    after: Any


class RouteVersion(Shown):
    version: int
    at: Moment
    author: str
    reason: str
    source: Annotated[str, Field(examples=["api"])]
    changes: list[RouteChange]


class RouteVersions(Shown):
    versions: list[RouteVersion]
    next: int | None = Field(description=_NEXT)


class RouteVersionInFull(RouteVersion):
    diff: str
    text: str


class TrialStep(Shown):
    name: Annotated[str, Field(examples=["tcp"])]
    result: Annotated[str, Field(examples=["ok"], description="ok, warning, failed or skipped")]
    found: str
    cause: str
    remedy: str
    seconds: float


class Trial(Shown):
    node: NodeId
    good: bool
    steps: list[TrialStep]


class ProviderLine(Shown):
    provider_name: Annotated[str, Field(examples=["unionpay:2.0.0@docker"])]
    name: str
    version: str
    device: str
    image: str
    images: dict[str, str | None] = Field(description="image -> pinned digest")
    retired: bool
    components: list[str]
    warning_count: int
    owner: str | None


class Providers(Shown):
    providers: list[ProviderLine]
    total: int
    next: str | None = Field(description=_NEXT)


class Warned(Shown):
    path: str
    rule: str


class ProviderInFull(ProviderLine):
    revision: int
    protocol: str
    metadata: Object
    digests: dict[str, str]
    jobs: list[Any]
    warnings: list[Warned]
    components_description: Object


class Revision(Shown):
    provider_name: str
    revision: int
    at: Moment
    author: str
    action: Annotated[str, Field(examples=["registered"])]
    reason: str


class Revisions(Shown):
    history: list[Revision]
    next: int | None = Field(description=_NEXT)


class ValueChange(Shown):
    path: str
    before: Any
    after: Any


class ProviderWritten(Revision):
    created: bool
    changed: Annotated[bool, Field(description="false: it was so before, and this is its newest revision")]
    changes: list[ValueChange]
    retired: bool
    digests: dict[str, str]
    warnings: list[Warned]


class ProviderDiff(Shown):
    provider_name: str
    since: int
    until: int
    changes: list[ValueChange]
    diff: str


class Given(Shown):
    name: str
    before: str | None
    owner: str


class SchemaLine(Shown):
    name: str
    covers: Any = Field(alias="for")
    title: str


class Schemas(Shown):
    schemas: list[SchemaLine]


class DatasetLine(Shown):
    dataset_id: Annotated[str, Field(examples=["testspace#test_guest"])]
    namespace: str
    name: str
    count: int
    columns: int
    partitions: int
    size: Bytes
    disabled: bool
    description: str
    created_at: Moment
    url: str


class Datasets(Shown):
    datasets: list[DatasetLine]
    total: int
    next: str | None = Field(description=_NEXT)


class Column(Shown):
    name: str
    type: str


class Grant(Shown):
    dataset_id: str
    node: NodeId
    state: Annotated[str, Field(examples=["in force"])]
    granted_at: Moment
    granted_by: str
    reason: str
    expires_at: Moment | None
    revoked_at: Moment | None
    revoked_by: str | None


class Granted(Grant):
    warnings: Annotated[list[str], Field(description="such as: the node has no route")]


class Grants(Shown):
    default: str
    grants: list[Grant]
    total: int
    next: str | None = Field(description=_NEXT)


class DatasetInFull(Shown):
    dataset_id: str
    columns: list[Column]
    count: int
    origin: Any
    checksum: str
    there: bool
    grants: list[Grant]
    grants_default: str
    used_by: list[Any]


class DatasetPreview(Shown):
    dataset_id: str
    count: int
    kind: Annotated[str, Field(examples=["table"])]
    bytes: Bytes
    columns: list[str]
    rows: list[list[str]]
    left_out: str


class ModelLine(Shown):
    model_id: Annotated[str, Field(examples=["credit"])]
    version: Annotated[str, Field(examples=["3"])]
    deployed: bool
    deployed_at: Moment | None
    granted: list[NodeId]
    here: list[str]
    imported: bool
    job_id: JobId
    flow_id: str
    created_at: Moment
    bytes: Bytes
    url: str


class Models(Shown):
    models: list[ModelLine]
    total: int
    next: str | None = Field(description=_NEXT)


class ModelInFull(ModelLine):
    parties: list[Object]
    models: list[Object]


class ModelGone(Shown):
    deleted: ModelLine


class AuditLine(Shown):
    id: int
    at: Moment
    who: str
    action: Annotated[str, Field(examples=["PUT /api/v1/routes/JG0100002200000020"])]
    status: int
    code: int | None
    detail: Object = Field(description="before and after; of a refusal its words, or its reason and how often")


class Audit(Shown):
    audit: list[AuditLine]
    next: int | None = Field(description=_NEXT)


class TokenLine(Shown):
    id: str
    name: str
    role: Annotated[str, Field(examples=["viewer"])]
    created_at: Moment
    expires_at: Moment | None
    revoked_at: Moment | None


class Tokens(Shown):
    tokens: list[TokenLine]
    total: int
    next: str | None = Field(description=_NEXT)


class SettingLine(Shown):
    path: Annotated[str, Field(examples=["listen.peer.bind"])]
    value: Any
    origin: Annotated[str, Field(examples=["file"])]
    where: str | None


class SettingsShown(Shown):
    settings: list[SettingLine]


class Draining(Shown):
    draining: bool
    since: Moment | None
    running: str | None
    exit: bool
    jobs: list[Object]


class Engine(Shown):
    kind: Annotated[str, Field(examples=["docker"])]
    capabilities: list[str]
    answers: bool
    isolation: Object | None


class Orphans(Shown):
    unknown: list[Object]
    lost: list[Object]


class Resources(Shown):
    node: NodeId
    total: Object
    held: Object
    remaining: Object
    engines: list[Object] = Field(
        description="the same for each engine; above is the main one's, and all the disk"
    )
    holders: list[Object] = Field(description="which job holds how much since when")
    waiting: list[Object]


class Webhook(Shown):
    url: str
    events: list[str]
    number: int
    behind: int


class Webhooks(Shown):
    webhooks: list[Webhook]


class Event(Shown):
    id: int
    event: Annotated[str, Field(examples=["finished"])]
    job_id: JobId
    node: NodeId
    at: Moment
    side: str
    by: str
    status: str
    detail: Object


class Events(Shown):
    """With ``follow=0``; else each event comes by itself, as server-sent events."""

    events: list[Event]
    next: int


class JsonSchema(Shown):
    """A JSON Schema."""

    title: str
    type: Any


class ParameterSchema(JsonSchema):
    """What a job may tell a component; ``x-bfia`` of a property holds what a form shows beside it."""

    properties: dict[str, Any]


class DatasetGone(Shown):
    deleted: DatasetLine
