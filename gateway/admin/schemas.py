"""What the operators' own paths about the node itself answer: routes, providers, data, models, audit, settings."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from gateway.http.app import Answers

# What the operators' own paths answer, as models: for the interface description and clients made from it.
#
# Answers are built where they are known, and not by these; a test holds them against each other. Fields that are
# not named here may come, and none that is named is missing.

_JOB = "job-0123456789abcdef0123456789abcdef"
Moment = Annotated[str, Field(examples=["2026-11-22T08:00:00+00:00"], description="ISO 8601, UTC")]
JobId = Annotated[str, Field(examples=[_JOB])]
NodeId = Annotated[str, Field(examples=["JG0100002200000020"])]
Bytes = Annotated[int, Field(examples=[4096])]
Object = dict[str, Any]


class Shown(BaseModel):
    """An answer; more fields than these may come."""

    model_config = ConfigDict(extra="allow", defer_build=True)


class Failure(Shown):
    """Why, and where: the same at every party."""

    reason: Annotated[str, Field(examples=["IMAGE_NOT_FOUND"])]
    message: str


class Waiting(Shown):
    """Why something has not ended yet: the one reason that has to go away first."""

    reason: Annotated[str, Field(examples=["RESOURCES"])]
    message: str
    since: Moment
    next_check: Moment | None = Field(description="null: only news can change it")


class Task(Shown):
    """A task of a job; ``attempt`` counts from 0."""

    task_id: Annotated[str, Field(examples=["task_0123456789abcdef0123456789abcdef"])]
    name: Annotated[str, Field(examples=["intersect"])]
    status: Annotated[str, Field(examples=["RUNNING"])]
    failure: Failure | None
    nodes: dict[str, dict[str, str]] = Field(description="node -> role -> state")
    attempt: int
    waiting: Waiting | None


class JobLine(Shown):
    """A job in a list; ``sides`` says what this node is to it, and the state is that of the first."""

    job_id: JobId
    flow_id: str
    status: Annotated[str, Field(examples=["FINISHED"])]
    outcome: Annotated[str | None, Field(examples=["SUCCEEDED"])]
    created_at: Moment
    sides: Annotated[list[str], Field(examples=[["scheduler", "participant"]])]


class Jobs(Shown):
    """A page of jobs, newest first."""

    jobs: list[JobLine]
    next: str | None = Field(description="send it as `after` for the next page; null on the last one")


class Party(Shown):
    """A role of a job and the node that plays it."""

    role: Annotated[str, Field(examples=["guest"])]
    index: int | None
    node: NodeId


class RunHere(Shown):
    """A container run at this node."""

    task_id: str
    task_name: str
    party: Party
    image: str
    attempt: int
    status: Annotated[str, Field(examples=["SUCCESS"])]
    failure: Failure | None
    waiting: Waiting | None
    log: str = Field(description="path of its log")


class JobInFull(Shown):
    """A job as far as this node knows it; what only its scheduler knows comes from there."""

    job_id: JobId
    status: str
    outcome: str | None
    progress: int = Field(description="percent")
    flow_id: str
    scheduler: NodeId
    failure: Failure | None
    waiting: Waiting | None
    tasks: list[Task]
    warnings: list[str]
    initiator: NodeId
    trace_id: str | None
    parties: list[Party | Object] = Field(description="as far as this node knows them")
    parameters: dict[str, dict[str, Object]] = Field(description="party -> task -> name -> value and origin")
    runs: list[RunHere]
    inherited_runs: list[Object]
    local_warnings: list[str]
    resources: Object | None
    model: Object | None


class Happened(Shown):
    """A line of a job's timeline."""

    at: Moment
    side: Annotated[str, Field(examples=["scheduler"])]
    event: Annotated[str, Field(examples=["job RUNNING"])]
    by: str
    detail: Object


class Timeline(Shown):
    """What happened to a job, oldest first."""

    timeline: list[Happened]


class Address(Shown):
    """Whose output it is, and where it lies."""

    task: str
    party: Annotated[str, Field(examples=["guest.0"])]
    key: str
    namespace: str
    name: str


class OutputLine(Address):
    """An output in a list; ``there``: it lies in this node's storage."""

    task_id: str
    attempt: int
    inherited_from: str | None
    output: str
    there: bool
    value: Any = Field(description="of a small report, its content")


class Outputs(Shown):
    """What the runs of this node left of a job."""

    outputs: list[OutputLine]


class OutputColumn(Shown):
    """A column of a table."""

    name: str
    type: str


class Facts(Address):
    """What an output is like; null, empty or 0 where its task wrote no word of it."""

    type: str
    there: bool
    count: int | None = Field(description="rows")
    columns: list[OutputColumn]
    more_columns: int = Field(description="columns beyond the first 10,000, which are not named")
    partitions: int
    bytes: Bytes
    description: str
    id_column: str
    label_column: str
    created_at: str = Field(description="ISO 8601, UTC")


class OutputFacts(Shown):
    """What the outputs of a task are like, at whichever party; never a row of them."""

    outputs: list[Facts]


class Look(Address):
    """The beginning of what is in an output; ``left_out`` says what is not shown."""

    type: str
    kind: Annotated[str, Field(examples=["table"], description="table, json or bytes")]
    bytes: Bytes
    partitions: int
    left_out: str


class ReportLine(Address):
    """A report in a list, and where it is shown."""

    output: str
    there: bool
    url: str


class RunWarning(Shown):
    """What was odd about a run that went well."""

    task: str
    party: str
    warning: str


class Reports(Shown):
    """The reports of a job, and what was odd about its runs."""

    reports: list[ReportLine]
    warnings: list[RunWarning]


class Series(Shown):
    """A table of a report; ``left_out`` points were too many to be shown."""

    name: str
    columns: list[str]
    points: list[list[Any]]
    left_out: int


class Report(Address):
    """What a report says; ``problem``: why it could not be read."""

    format: Annotated[str, Field(examples=["json"])]
    values: Object
    series: list[Series]
    problem: str
    plots: list[str] = Field(description="what of it can be drawn: names of tables, and `values`")


class Rerun(Shown):
    """The new job, what it runs and whose outputs it takes over."""

    job_id: JobId
    old_job_id: JobId
    start: str = Field(alias="from")
    runs: list[str]
    inherits: list[str]


class Thing(Shown):
    """A thing that was, or would be, taken away; ``cause`` says why it could not be."""

    kind: Annotated[str, Field(examples=["logs"])]
    name: str
    job: str
    bytes: Bytes
    why: str
    removed: bool
    cause: str


class Things(Shown):
    """What was, or would be, taken away."""

    items: list[Thing]
    bytes: Bytes


class Deleted(Things):
    """What the deletion of a job took away here."""

    job_id: JobId
    dry_run: bool


class DeletedJob(Deleted):
    """What the deletion of a job took away, here and at the other nodes."""

    nodes: dict[str, Object] | None = Field(description="how it ended at the others; null: they were not asked")


class Cancelled(Shown):
    """Jobs that were, or would be, stopped before anything of them ran."""

    dry_run: bool
    jobs: list[Object | str]


class Approval(Shown):
    """A job that waits until a person here agrees."""

    job_id: JobId
    flow_id: str
    initiator: NodeId
    scheduler: NodeId
    roles: list[str]
    components: list[str]
    approval: Object | None


class Approvals(Shown):
    """A page of the jobs that wait for a person."""

    approvals: list[Approval]
    total: int
    next: str | None = Field(description="send it as `after` for the next page; null on the last one")


class Decided(Shown):
    """How a job stands after somebody agreed or refused; ``repeated``: it was decided so before."""

    job_id: JobId
    local_status: str
    approval: Object | None
    repeated: bool


class Suspended(Shown):
    """Whether further tasks of a job are started."""

    job_id: JobId
    suspended: bool


class PlanItem(Shown):
    """One thing that was looked at before a job: how it stands, and what to do where it does not."""

    check: Annotated[str, Field(examples=["image"])]
    about: str
    standing: Annotated[str, Field(examples=["ok"])]
    found: str
    cause: str
    remedy: str


class PlanAtNode(Shown):
    """What one node says of a job that is not there yet."""

    node: NodeId
    parties: list[str]
    checks: list[PlanItem]


class Plan(Shown):
    """What all nodes say of a job that is not there yet; ``good``: nothing is known to stand in the way."""

    good: bool
    nodes: list[PlanAtNode]


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


_ANSWER_TABLE_JOB = "/api/v1/jobs/{job_id}"
_DATASET = "/api/v1/datasets/{namespace}/{name}"
_MODEL = "/api/v1/models/{model_id}/{version}"
_PROVIDER = "/api/v1/providers/{provider_name}"
_PART = "{task}/{party}/{key}"


class Wrong(BaseModel):
    """One thing wrong in a request."""

    path: str = Field(examples=["limit"])
    rule: str = Field(examples=["must be a whole number from 1 to 1000"])
    got: Any = Field(default=None, examples=["abc"])
    suggestion: str = Field(default="", description="what was probably meant")


class Because(BaseModel):
    """Why something was refused, and every problem with its path."""

    reason: str = Field(examples=["INVALID"], description="stable; docs/reasons.md explains each")
    problems: list[Wrong] = Field(default_factory=list)


class Refusal(BaseModel):
    """Every answer that is no success; the HTTP status is the code."""

    code: int = Field(examples=[400])
    msg: str = Field(examples=["INVALID: limit: must be a whole number from 1 to 1000 (got 'abc')"])
    data: Because


ANSWERS: Answers = {
    ("get", "/health/live"): Live,
    ("get", "/health/ready"): Ready,
    ("get", "/api/v1/jobs"): Jobs,
    ("post", "/api/v1/jobs/plan"): Plan,
    ("post", "/api/v1/jobs/cancel-waiting"): Cancelled,
    ("get", _ANSWER_TABLE_JOB): JobInFull,
    ("delete", _ANSWER_TABLE_JOB): DeletedJob,
    ("delete", _ANSWER_TABLE_JOB + "/tasks/{task}/outputs"): Deleted,
    ("get", f"{_ANSWER_TABLE_JOB}/timeline"): Timeline,
    ("get", f"{_ANSWER_TABLE_JOB}/outputs"): Outputs,
    ("get", f"{_ANSWER_TABLE_JOB}/outputs/{_PART}"): Look,
    ("get", f"{_ANSWER_TABLE_JOB}/metadata/{{task}}/{{party}}"): OutputFacts,
    ("get", f"{_ANSWER_TABLE_JOB}/metadata/{_PART}"): OutputFacts,
    ("get", f"{_ANSWER_TABLE_JOB}/reports"): Reports,
    ("get", f"{_ANSWER_TABLE_JOB}/reports/{_PART}"): Report,
    ("post", f"{_ANSWER_TABLE_JOB}/rerun"): Rerun,
    ("post", f"{_ANSWER_TABLE_JOB}/approve"): Decided,
    ("post", f"{_ANSWER_TABLE_JOB}/reject"): Decided,
    ("post", f"{_ANSWER_TABLE_JOB}/suspend"): Suspended,
    ("post", f"{_ANSWER_TABLE_JOB}/resume"): Suspended,
    ("get", "/api/v1/approvals"): Approvals,
    ("get", "/api/v1/gc"): Things,
    ("post", "/api/v1/gc"): Things,
    ("get", "/api/v1/drain"): Draining,
    ("post", "/api/v1/drain"): Draining,
    ("post", "/api/v1/undrain"): Draining,
    ("get", "/api/v1/settings"): SettingsShown,
    ("get", "/api/v1/engine"): Engine,
    ("get", "/api/v1/orphans"): Orphans,
    ("get", "/api/v1/resources"): Resources,
    ("get", "/api/v1/events"): Events,
    ("get", "/api/v1/events/webhooks"): Webhooks,
    ("get", "/api/v1/audit"): Audit,
    ("get", "/api/v1/tokens"): Tokens,
    ("get", "/api/v1/routes"): Routes,
    ("get", "/api/v1/routes/{node}"): OneRoute,
    ("put", "/api/v1/routes/{node}"): RouteVersionMade,
    ("patch", "/api/v1/routes/{node}"): RouteVersionMade,
    ("delete", "/api/v1/routes/{node}"): RouteVersionMade,
    ("post", "/api/v1/routes/{node}/test"): Trial,
    ("get", "/api/v1/route-versions"): RouteVersions,
    ("get", "/api/v1/route-versions/{number}"): RouteVersionInFull,
    ("post", "/api/v1/route-versions/{number}/rollback"): RouteVersionMade,
    ("get", "/api/v1/providers"): Providers,
    ("post", "/api/v1/providers"): ProviderWritten,
    ("get", _PROVIDER): ProviderInFull,
    ("get", _PROVIDER + "/components/{component}/parameters"): ParameterSchema,
    ("get", f"{_PROVIDER}/history"): Revisions,
    ("get", f"{_PROVIDER}/diff"): ProviderDiff,
    ("post", f"{_PROVIDER}/retire"): ProviderWritten,
    ("post", f"{_PROVIDER}/unretire"): ProviderWritten,
    ("post", f"{_PROVIDER}/approve"): ProviderWritten,
    ("put", "/api/v1/provider-owners/{name}"): Given,
    ("get", "/api/v1/schemas"): Schemas,
    ("get", "/api/v1/schemas/{name}"): JsonSchema,
    ("get", "/api/v1/datasets"): Datasets,
    ("get", _DATASET): DatasetInFull,
    ("delete", _DATASET): DatasetGone,
    ("get", f"{_DATASET}/preview"): DatasetPreview,
    ("post", f"{_DATASET}/disable"): DatasetLine,
    ("post", f"{_DATASET}/enable"): DatasetLine,
    ("get", "/api/v1/dataset-grants"): Grants,
    ("put", _DATASET + "/grants/{node}"): Granted,
    ("delete", _DATASET + "/grants/{node}"): Grant,
    ("get", "/api/v1/models"): Models,
    ("get", _MODEL): ModelInFull,
    ("delete", _MODEL): ModelGone,
    ("post", f"{_MODEL}/deploy"): ModelLine,
    ("post", f"{_MODEL}/undeploy"): ModelLine,
    ("post", "/api/v1/models/import"): ModelLine,
}
