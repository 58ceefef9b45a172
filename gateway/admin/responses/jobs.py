"""Jobs and their templates."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from gateway.admin.responses.base import Object, Page
from gateway.domain import dry_run
from gateway.domain.dag import ComponentRef, DagNode
from gateway.domain.job import Origin
from gateway.domain.run import Address, Exit, FileSum
from gateway.domain.spec import Amendment, Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.domain.waiting import Waiting
from gateway.jobs import retention
from gateway.ports import TaskView
from gateway.store.queries import Listed


class Jobs(BaseModel):
    """Jobs scheduled here or taken part in."""

    jobs: list[Listed]
    next: str | None


class Party(BaseModel):
    """A party of a job; the index is unknown for jobs that another node schedules."""

    role: str
    index: int | None
    node: str


class Run(BaseModel):
    """A party's part in a task, run at this node."""

    name: str
    task_id: str
    task_name: str
    party: Party
    component: ComponentRef
    image: str
    created_at: datetime
    image_profile: str
    declared: Mapping[str, int]
    engine: str
    attempt: int
    status: str
    parameters: Mapping[str, Any]
    inputs: Mapping[str, Address]
    outputs: Mapping[str, Address]
    output_keys: Mapping[str, str]
    checkpoint: Address | None
    checkpoint_from: Address | None
    limits: Mapping[str, float | None]
    limit_origins: Mapping[str, str]
    roles: tuple[str, ...]
    results: Mapping[str, str]
    started_at: datetime | None
    ended_at: datetime | None
    probe_at: datetime | None
    reported: TaskStatus | None
    reported_at: datetime | None
    result_code: str
    result_message: str
    exit: Exit | None
    stop_at: datetime | None
    failure: Failure | None
    no_callback: bool
    image_digest: str
    expected_digest: str
    granted: tuple[str, ...]
    away_at: datetime | None
    owner: str
    of_job: str
    to_seal: tuple[str, ...]
    files: tuple[FileSum, ...]
    warnings: tuple[str, ...]
    waiting: Waiting | None
    log: str = Field(description="path of its log")
    last_lines: list[str] = Field(default=[], description="of its log, where it failed")


class OnTopic(BaseModel):
    """Messages of a session that wait to be read on a topic."""

    session: str
    topic: str
    messages: int
    bytes: int
    oldest: float
    bytes_per_second: int
    readers: tuple[str, ...]


class ReceivedMessages(BaseModel):
    """Messages that a session has received."""

    session: str
    messages: int
    bytes: int
    bytes_per_second: int


class Job(BaseModel):
    """A job in full."""

    job_id: str
    status: JobStatus
    tasks: Sequence[TaskView]
    outcome: Outcome | None
    failure: Failure | None
    progress: int
    flow_id: str
    scheduler: str
    warnings: Sequence[str]
    waiting: Waiting | None
    parties: list[Party]
    tolerated: Sequence[str]
    old_job_id: str
    origin: Origin | None
    initiator: str
    trace_id: str | None
    parameters: dict[str, dict[str, Object]]
    runs: list[Run]
    inherited_runs: list[Object]
    flow: list[DagNode]
    local_warnings: list[str]
    resources: Object | None
    model: Object | None
    channel: list[OnTopic]
    channel_received: list[ReceivedMessages]
    amendments: list[Amendment]
    refusals: list[Failure]
    approval: Object | None = None
    channel_refused: str
    local_status: str | None = None
    local_failure: Failure | None = None
    local_waiting: Waiting | None = None
    created_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    user: str


class TimelineEntry(BaseModel):
    """Something that happened to a job."""

    at: datetime
    side: str
    event: str
    by: str
    detail: Mapping[str, Any]
    in_words: str


class Timeline(BaseModel):
    """All that happened to a job."""

    timeline: list[TimelineEntry]


class Rerun(BaseModel):
    """A job that runs an ended one again."""

    job_id: str
    old_job_id: str
    from_: str = Field(alias="from")
    runs: list[str]
    inherits: list[str]


class ApprovalTask(BaseModel):
    """A task of a job that waits for an approval."""

    task: str
    party: str
    component: str
    image: str
    digest: str
    dataset: str
    parameters: Object = Field(description="the parameters that the job sets for it")


class ApprovalInFull(BaseModel):
    """A job that waits for an approval, or has had one."""

    job_id: str
    flow_id: str
    initiator: str
    scheduler: str
    roles: list[str]
    components: list[str]
    approval: Object | None
    tasks: list[ApprovalTask]


class ApprovalsPage(Page):
    """Jobs that wait for an approval."""

    approvals: list[ApprovalInFull]


class Decided(BaseModel):
    """The decision on a job that waited for an approval."""

    job_id: str
    local_status: str
    approval: Object | None
    repeated: bool


class ParametersChanged(BaseModel):
    """The version of a job's parameters after a change."""

    job_id: str
    version: int


class Suspended(BaseModel):
    """Whether a job is suspended."""

    job_id: str
    suspended: bool


class Deleted(BaseModel):
    """What was deleted with a job, or would be."""

    job_id: str
    dry_run: bool
    items: list[retention.Item]
    bytes: int
    nodes: dict[str, Object] | None = Field(
        description="result at the other nodes; null: only here"
    )


class Cancelled(BaseModel):
    """The jobs that were cancelled, or would be."""

    dry_run: bool
    jobs: list[str]


class BundleRun(BaseModel):
    """A run in the evidence of a job."""

    run: str
    component: str
    digest: str


class JobBundle(BaseModel):
    """The signed evidence of a job at this node."""

    job_id: str
    node: str
    public_key: str
    images: dict[str, str]
    parts: Object
    bundle: Object | None = Field(description="the statement in its envelope; null: there was none")
    runs: list[BundleRun]


class NodePlan(BaseModel):
    """The checks of a dry run at one node."""

    node: str
    parties: list[str]
    checks: list[dry_run.Item]


class Plan(BaseModel):
    """The result of a dry run."""

    good: bool
    nodes: list[NodePlan]


class ListedTemplate(BaseModel):
    """A template in the list."""

    name: str
    author: str
    saved_at: datetime


class TemplatesPage(Page):
    """Jobs kept as templates."""

    templates: list[ListedTemplate]


class Template(ListedTemplate):
    """A template with its job."""

    job: Object


class TemplateName(BaseModel):
    """The name of a template."""

    name: str
