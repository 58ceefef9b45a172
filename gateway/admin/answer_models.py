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


class Column(Shown):
    """A column of a table."""

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
