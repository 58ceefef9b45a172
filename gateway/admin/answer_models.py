"""What the operators' own paths answer, as models: for the interface description and clients made from it.

Answers are built where they are known, and not by these; a test holds them against each other. Fields that are
not named here may come, and none that is named is missing.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

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
    reason: Annotated[str, Field(examples=["RESOURCES"])]
    message: str
    since: Moment
    next_check: Moment | None = Field(description="null: only news can change it")


class Task(Shown):
    task_id: Annotated[str, Field(examples=["task_0123456789abcdef0123456789abcdef"])]
    name: Annotated[str, Field(examples=["intersect"])]
    status: Annotated[str, Field(examples=["RUNNING"])]
    failure: Failure | None
    nodes: dict[str, dict[str, str]] = Field(description="node -> role -> state")
    attempt: int
    waiting: Waiting | None


class JobLine(Shown):
    job_id: JobId
    flow_id: str
    status: Annotated[str, Field(examples=["FINISHED"])]
    outcome: Annotated[str | None, Field(examples=["SUCCEEDED"])]
    created_at: Moment
    sides: Annotated[list[str], Field(examples=[["scheduler", "participant"]])]


class Jobs(Shown):
    jobs: list[JobLine]
    next: str | None = Field(description="send it as `after` for the next page; null on the last one")


class Party(Shown):
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
    at: Moment
    side: Annotated[str, Field(examples=["scheduler"])]
    event: Annotated[str, Field(examples=["job RUNNING"])]
    by: str
    detail: Object


class Timeline(Shown):
    timeline: list[Happened]


class Address(Shown):
    task: str
    party: Annotated[str, Field(examples=["guest.0"])]
    key: str
    namespace: str
    name: str


class OutputLine(Address):
    task_id: str
    attempt: int
    inherited_from: str | None
    output: str
    there: bool
    value: Any = Field(description="of a small report, its content")


class Outputs(Shown):
    outputs: list[OutputLine]


class Column(Shown):
    name: str
    type: str


class Facts(Address):
    """What an output is like; null, empty or 0 where its task wrote no word of it."""

    type: str
    there: bool
    count: int | None = Field(description="rows")
    columns: list[Column]
    more_columns: int = Field(description="columns beyond the first 10,000, which are not named")
    partitions: int
    bytes: Bytes
    description: str
    id_column: str
    label_column: str
    created_at: str = Field(description="ISO 8601, UTC")


class OutputFacts(Shown):
    outputs: list[Facts]


class Look(Address):
    type: str
    kind: Annotated[str, Field(examples=["table"], description="table, json or bytes")]
    bytes: Bytes
    partitions: int
    left_out: str


class ReportLine(Address):
    output: str
    there: bool
    url: str


class RunWarning(Shown):
    task: str
    party: str
    warning: str


class Reports(Shown):
    reports: list[ReportLine]
    warnings: list[RunWarning]


class Series(Shown):
    name: str
    columns: list[str]
    points: list[list[Any]]
    left_out: int


class Report(Address):
    format: Annotated[str, Field(examples=["json"])]
    values: Object
    series: list[Series]
    problem: str
    plots: list[str] = Field(description="what of it can be drawn: names of tables, and `values`")


class Rerun(Shown):
    job_id: JobId
    old_job_id: JobId
    start: str = Field(alias="from")
    runs: list[str]
    inherits: list[str]


class Thing(Shown):
    kind: Annotated[str, Field(examples=["logs"])]
    name: str
    job: str
    bytes: Bytes
    why: str
    removed: bool
    cause: str


class Things(Shown):
    items: list[Thing]
    bytes: Bytes


class Deleted(Things):
    job_id: JobId
    dry_run: bool


class DeletedJob(Deleted):
    nodes: dict[str, Object] | None = Field(description="how it ended at the others; null: they were not asked")


class Cancelled(Shown):
    dry_run: bool
    jobs: list[Object | str]


class Approval(Shown):
    job_id: JobId
    flow_id: str
    initiator: NodeId
    scheduler: NodeId
    roles: list[str]
    components: list[str]
    approval: Object | None


class Approvals(Shown):
    approvals: list[Approval]
    total: int
    next: str | None = Field(description="send it as `after` for the next page; null on the last one")


class Decided(Shown):
    job_id: JobId
    local_status: str
    approval: Object | None
    repeated: bool


class Suspended(Shown):
    job_id: JobId
    suspended: bool


class PlanItem(Shown):
    check: Annotated[str, Field(examples=["image"])]
    about: str
    standing: Annotated[str, Field(examples=["ok"])]
    found: str
    cause: str
    remedy: str


class PlanAtNode(Shown):
    node: NodeId
    parties: list[str]
    checks: list[PlanItem]


class Plan(Shown):
    good: bool
    nodes: list[PlanAtNode]
