"""What the operators' own paths about the node itself answer: routes, providers, data, models, audit, settings."""

from typing import Annotated, Any

from pydantic import Field

from gateway.admin.answer_models import Bytes, JobId, Moment, NodeId, Object, Shown

_NEXT = "send it as `after` for the next page; null on the last one"


class Live(Shown):
    """The process answers; nothing else is looked at."""

    status: Annotated[str, Field(examples=["ok"])]


class Check(Shown):
    """Whether one part of the node works; its cause comes beside it where it does not."""

    ok: bool


class Ready(Shown):
    """Whether the node can take jobs, and which part keeps it from that."""

    ready: bool
    checks: dict[str, Check] = Field(description="database, engine, routes and more; each with its cause")


class RouteLine(Shown):
    """A route of the table; ``via``: requests are handed to that node, to be passed on."""

    node: NodeId
    url: Annotated[str, Field(examples=["http://10.0.0.7:7380"])]
    profile: Annotated[str, Field(examples=["spec"])]
    institution: str | None
    deadline: Annotated[float, Field(examples=[10.0], description="seconds")]
    enabled: bool
    via: str | None
    relay: bool


class Routes(Shown):
    """A page of the table in force."""

    version: int
    file: str | None
    problems: list[str] = Field(description="why the file as it is now is not in force")
    routes: list[RouteLine]
    total: int
    next: str | None = Field(description=_NEXT)


class OneRoute(Shown):
    """One route, and the version it is of."""

    version: int
    route: RouteLine


class RouteChange(Shown):
    """One value of a route before and after; ``field`` is empty where the whole route came or went."""

    node: NodeId
    field: str
    before: Any
    after: Any


class RouteVersion(Shown):
    """Who changed the table when, why, and how."""

    version: int
    at: Moment
    author: str
    reason: str
    source: Annotated[str, Field(examples=["api"])]
    changes: list[RouteChange]


class RouteVersionMade(RouteVersion):
    """The version that a change has made, which is in force."""

    not_in_file: list[str] = Field(
        description="why route_table.file cannot be used as it is now, and does not hold the change until it is"
        " corrected; empty: it holds the change within a second or two"
    )


class RouteVersions(Shown):
    """A page of the versions, newest first."""

    versions: list[RouteVersion]
    next: int | None = Field(description=_NEXT)


class RouteVersionInFull(RouteVersion):
    """A version with its text, and the difference from the one before."""

    diff: str
    text: str


class TrialStep(Shown):
    """One step of a trial of a route; ``seconds`` is how long it took."""

    name: Annotated[str, Field(examples=["tcp"])]
    result: Annotated[str, Field(examples=["ok"], description="ok, warning, failed or skipped")]
    found: str
    cause: str
    remedy: str
    seconds: float


class Trial(Shown):
    """A trial of a route, step by step."""

    node: NodeId
    good: bool
    steps: list[TrialStep]


class ProviderLine(Shown):
    """A provider in a list."""

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
    """A page of providers."""

    providers: list[ProviderLine]
    total: int
    next: str | None = Field(description=_NEXT)


class Warned(Shown):
    """What was odd, but usable, in a registration."""

    path: str
    rule: str


class ProviderInFull(ProviderLine):
    """A provider with its description; ``jobs`` are those that use it."""

    revision: int
    protocol: str
    metadata: Object
    digests: dict[str, str]
    jobs: list[Any]
    warnings: list[Warned]
    components_description: Object


class Revision(Shown):
    """What somebody did to a provider, and when."""

    provider_name: str
    revision: int
    at: Moment
    author: str
    action: Annotated[str, Field(examples=["registered"])]
    reason: str


class Revisions(Shown):
    """A page of what became of a provider, newest first."""

    history: list[Revision]
    next: int | None = Field(description=_NEXT)


class ValueChange(Shown):
    """One value of a description before and after."""

    path: str
    before: Any
    after: Any


class ProviderWritten(Revision):
    """What a registration did."""

    created: bool
    changed: Annotated[bool, Field(description="false: it was so before, and this is its newest revision")]
    changes: list[ValueChange]
    retired: bool
    digests: dict[str, str]
    warnings: list[Warned]


class ProviderDiff(Shown):
    """What is different between two revisions."""

    provider_name: str
    since: int
    until: int
    changes: list[ValueChange]
    diff: str


class Given(Shown):
    """Whose a provider's name is now; ``before`` null: nobody's."""

    name: str
    before: str | None
    owner: str


class SchemaLine(Shown):
    """A JSON Schema for what vendors or users write."""

    name: str
    covers: Any = Field(alias="for")
    title: str


class Schemas(Shown):
    """All schemas that are served."""

    schemas: list[SchemaLine]


class DatasetLine(Shown):
    """A dataset in a list; ``count`` is of its rows."""

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
    """A page of datasets."""

    datasets: list[DatasetLine]
    total: int
    next: str | None = Field(description=_NEXT)


class Column(Shown):
    """A column of a dataset."""

    name: str
    type: str


class Grant(Shown):
    """A partner node that may use a dataset, or might."""

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
    """A grant that was just made."""

    warnings: Annotated[list[str], Field(description="such as: the node has no route")]


class Grants(Shown):
    """A page of grants, and what holds for a dataset that was never granted."""

    default: str
    grants: list[Grant]
    total: int
    next: str | None = Field(description=_NEXT)


class DatasetInFull(Shown):
    """A dataset with where it is from, who may use it, and what uses it; ``there``: its files lie here."""

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
    """The first rows of a dataset; ``left_out`` says what is not shown."""

    dataset_id: str
    count: int
    kind: Annotated[str, Field(examples=["table"])]
    bytes: Bytes
    columns: list[str]
    rows: list[list[str]]
    left_out: str


class ModelLine(Shown):
    """A version of a model; ``here`` are the parties whose parts lie at this node."""

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
    """A page of models."""

    models: list[ModelLine]
    total: int
    next: str | None = Field(description=_NEXT)


class ModelInFull(ModelLine):
    """A version of a model with its parties and files."""

    parties: list[Object]
    models: list[Object]


class ModelGone(Shown):
    """The version that was deleted."""

    deleted: ModelLine


class AuditLine(Shown):
    """Who did what when, and how that ended."""

    id: int
    at: Moment
    who: str
    action: Annotated[str, Field(examples=["PUT /api/v1/routes/JG0100002200000020"])]
    status: int
    code: int | None
    detail: Object = Field(description="before and after; of a refusal its words, or its reason and how often")


class Audit(Shown):
    """A page of the audit, newest first."""

    audit: list[AuditLine]
    next: int | None = Field(description=_NEXT)


class TokenLine(Shown):
    """A token, without what opens anything."""

    id: str
    name: str
    role: Annotated[str, Field(examples=["viewer"])]
    created_at: Moment
    expires_at: Moment | None
    revoked_at: Moment | None


class Tokens(Shown):
    """A page of tokens."""

    tokens: list[TokenLine]
    total: int
    next: str | None = Field(description=_NEXT)


class SettingLine(Shown):
    """A setting, what it is, and where that comes from."""

    path: Annotated[str, Field(examples=["listen.peer.bind"])]
    value: Any
    origin: Annotated[str, Field(examples=["file"])]
    where: str | None


class SettingsShown(Shown):
    """All settings, secrets masked."""

    settings: list[SettingLine]


class Draining(Shown):
    """Whether the node takes no more jobs, and what it waits for."""

    draining: bool
    since: Moment | None
    running: str | None
    exit: bool
    jobs: list[Object]


class Engine(Shown):
    """What runs the algorithms, and whether it answers."""

    kind: Annotated[str, Field(examples=["docker"])]
    capabilities: list[str]
    answers: bool
    isolation: Object | None


class Orphans(Shown):
    """Runs that only the engine knows, and runs that only the database knows."""

    unknown: list[Object]
    lost: list[Object]


class Resources(Shown):
    """What jobs hold of this node, what is left, and who waits."""

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
    """A receiver of events: how far it has got, and how many events it is behind."""

    url: str
    events: list[str]
    number: int
    behind: int


class Webhooks(Shown):
    """All receivers of events."""

    webhooks: list[Webhook]


class Event(Shown):
    """What became of a job; ``id`` grows in the order in which things were stored."""

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
    """The dataset that was deleted."""

    deleted: DatasetLine
