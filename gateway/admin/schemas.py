"""What the paths of ``/api/v1`` return; fields beyond those named here may come with them."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import Body
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Object = dict[str, Any]
Moment = Annotated[
    str,
    BeforeValidator(lambda value: value.isoformat() if isinstance(value, datetime) else value),
    Field(examples=["2026-11-22T08:00:00+00:00"], description="ISO 8601, UTC"),
]


class Model(BaseModel):
    """A response."""

    model_config = ConfigDict(extra="allow")


class Nothing(BaseModel):
    """An object without fields."""

    model_config = ConfigDict(extra="forbid")


Empty = Annotated[Nothing | None, Body(examples=[{}])]
"""a body that may be left out"""


class Page(Model):
    """A part of a list."""

    total: int
    next: str | None = Field(description="send it as `after` for the next page; null on the last one")


class NumberedPage(Model):
    """A part of a list whose entries are numbered, newest first."""

    next: int | None = Field(description="send it as `after` for the next page; null on the last one")


class Problem(Model):
    """One thing wrong in a request."""

    path: str = Field(examples=["limit"])
    rule: str = Field(examples=["must be a whole number"])
    got: Any = None
    suggestion: str = Field(default="", description="what was probably meant")


class Cause(Model):
    """Why a request was refused."""

    reason: str = Field(examples=["INVALID"], description="stable; docs/reasons.md explains each")
    problems: list[Problem] = Field(default_factory=list)


class Refusal(Model):
    """Every response other than a success; the HTTP status is the code."""

    code: int = Field(examples=[400])
    msg: str = Field(examples=["INVALID: limit: must be a whole number (got 'abc')"])
    data: Cause


# Jobs


class Failure(Model):
    """Why a job, task or run failed: the same at every party."""

    reason: str = Field(examples=["IMAGE_NOT_FOUND"])
    message: str


class Waiting(Model):
    """Why something has not ended yet."""

    reason: str = Field(examples=["RESOURCES"])
    message: str
    since: Moment
    next_check: Moment | None = Field(description="null: checked when something happens")


class Task(Model):
    """A task of a job."""

    task_id: str
    name: str
    status: str
    failure: Failure | None
    nodes: dict[str, dict[str, str]] = Field(description="node -> role -> state")
    attempt: int = Field(description="counted from 0")
    waiting: Waiting | None


class JobLine(Model):
    """A job in a list."""

    job_id: str
    flow_id: str
    status: str = Field(examples=["FINISHED"])
    outcome: str | None = Field(examples=["SUCCEEDED"])
    created_at: Moment
    sides: list[str] = Field(description="scheduler, participant: what this node is to the job")


class Jobs(Model):
    """A page of jobs, newest first."""

    jobs: list[JobLine]
    next: str | None = Field(description="send it as `after` for the next page; null on the last one")


class Party(Model):
    """A role of a job and the node that plays it."""

    role: str = Field(examples=["guest"])
    index: int | None
    node: str


class Run(Model):
    """A container run at this node."""

    task_id: str
    task_name: str
    party: Party
    image: str
    attempt: int
    status: str
    failure: Failure | None
    waiting: Waiting | None
    log: str = Field(description="path of its log")


class Job(Model):
    """A job as far as this node knows it; the rest is requested from its scheduler."""

    job_id: str
    status: str
    outcome: str | None
    progress: int = Field(description="percent")
    flow_id: str
    scheduler: str
    failure: Failure | None
    waiting: Waiting | None
    tasks: list[Task]
    warnings: list[str]
    initiator: str
    trace_id: str | None
    parties: list[Party]
    parameters: dict[str, dict[str, Object]] = Field(description="party -> task -> name -> value and origin")
    runs: list[Run]
    inherited_runs: list[Object]
    local_warnings: list[str]
    resources: Object | None
    model: Object | None


class TimelineEntry(Model):
    """A line of a job's timeline."""

    at: Moment
    side: str = Field(examples=["scheduler"])
    event: str = Field(examples=["job RUNNING"])
    by: str
    detail: Object


class Timeline(Model):
    """What happened to a job, oldest first."""

    timeline: list[TimelineEntry]


class Rerun(Model):
    """The new job, the tasks it runs and those whose outputs it takes over."""

    job_id: str
    old_job_id: str
    start: str = Field(alias="from")
    runs: list[str]
    inherits: list[str]


class Approval(Model):
    """A job that waits for a person here."""

    job_id: str
    flow_id: str
    initiator: str
    scheduler: str
    roles: list[str]
    components: list[str]
    approval: Object | None


class Approvals(Page):
    """Jobs that wait for a person, oldest first."""

    approvals: list[Approval]


class Decided(Model):
    """The state of a job after an approval or rejection."""

    job_id: str
    local_status: str
    approval: Object | None
    repeated: bool = Field(description="it was decided so before")


class Suspended(Model):
    """Whether further tasks of a job are started."""

    job_id: str
    suspended: bool


class Item(Model):
    """A thing that was, or would be, removed."""

    kind: str = Field(examples=["logs"])
    name: str
    job: str
    bytes: int
    why: str
    removed: bool
    cause: str = Field(description="why it could not be removed")


class Items(Model):
    """What was, or would be, removed."""

    items: list[Item]
    bytes: int


class Deleted(Items):
    """What a deletion removed here."""

    job_id: str
    dry_run: bool


class DeletedJob(Deleted):
    """What the deletion of a job removed, here and at the other nodes."""

    nodes: dict[str, Object] | None = Field(description="result at the other nodes; null: only here")


class Cancelled(Model):
    """Jobs that were, or would be, stopped before anything of them ran."""

    dry_run: bool
    jobs: list[Any]


class Check(Model):
    """One item of a dry run."""

    check: str = Field(examples=["image"])
    about: str
    standing: str = Field(examples=["ok"])
    found: str
    cause: str
    remedy: str


class NodePlan(Model):
    """The dry run of a job at one node."""

    node: str
    parties: list[str]
    checks: list[Check]


class Plan(Model):
    """The dry run of a job at all its nodes."""

    good: bool = Field(description="nothing is known that would make the job fail")
    nodes: list[NodePlan]


# The node


class Live(Model):
    """The process responds."""

    status: str = Field(examples=["ok"])


class HealthCheck(Model):
    """Whether one part of the node works."""

    ok: bool


class Ready(Model):
    """Whether the node can take jobs."""

    ready: bool
    checks: dict[str, HealthCheck] = Field(description="database, engine, routes and more; each with its cause")


class Engine(Model):
    """What runs the algorithms."""

    kind: str = Field(examples=["docker"])
    capabilities: list[str]
    answers: bool
    isolation: Object | None


class Orphans(Model):
    """Runs that only the engine or only the database knows."""

    unknown: list[Object]
    lost: list[Object]


class Resources(Model):
    """What this node has, which jobs hold it, and which wait."""

    node: str
    total: Object
    held: Object
    remaining: Object
    engines: list[Object]
    holders: list[Object]
    waiting: list[Object]


class Draining(Model):
    """Whether the node takes no more jobs, and what it waits for."""

    draining: bool
    since: Moment | None
    running: str | None
    exit: bool
    jobs: list[Object]


class AuditLine(Model):
    """Who did what when, and with which result."""

    id: int
    at: Moment
    who: str
    action: str = Field(examples=["PUT /api/v1/routes/JG0100002200000020"])
    status: int
    code: int | None
    detail: Object = Field(description="before and after; of a refusal its message, or its reason and how often")


class Audit(NumberedPage):
    """A page of the audit log."""

    audit: list[AuditLine]


class TokenLine(Model):
    """A token, without its secret."""

    id: str
    name: str
    role: str = Field(examples=["viewer"])
    created_at: Moment
    expires_at: Moment | None
    revoked_at: Moment | None


class Tokens(Page):
    """A page of tokens, oldest first."""

    tokens: list[TokenLine]


class Setting(Model):
    """A setting and where its value comes from."""

    path: str = Field(examples=["listen.peer.bind"])
    value: Any
    origin: str = Field(examples=["file"])
    where: str | None


class Settings(Model):
    """All settings, secrets masked."""

    settings: list[Setting]


class Webhook(Model):
    """A receiver of events."""

    url: str
    events: list[str]
    number: int = Field(description="the last event that it received")
    behind: int = Field(description="events that it has not received yet")


class Webhooks(Model):
    """All receivers of events."""

    webhooks: list[Webhook]


class Event(Model):
    """An event of a job."""

    id: int = Field(description="in the order in which events were stored")
    event: str = Field(examples=["finished"])
    job_id: str
    node: str
    at: Moment
    side: str
    by: str
    status: str
    detail: Object


class Events(Model):
    """Events with ``follow=0``; else they come as server-sent events."""

    events: list[Event]
    next: int
