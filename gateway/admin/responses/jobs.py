"""Jobs and their templates."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from gateway.admin.responses.base import Object, Page
from gateway.domain import dry_run
from gateway.domain.attestation import Attestation
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
    next: str | None = Field(
        description="send it as `after` for the next page; null on the last one"
    )


class Party(BaseModel):
    """A party of a job; the index is unknown for jobs that another node schedules."""

    role: str
    index: int | None
    node: str


class Run(BaseModel):
    """A party's part in a task, run at this node."""

    name: str = Field(description="of its container")
    task_id: str
    task_name: str
    party: Party
    component: ComponentRef
    image: str
    created_at: datetime
    image_profile: str = Field(
        description="the older conventions that the image expects; empty: none"
    )
    declared: Mapping[str, int] = Field(
        description="numbers from the provider's registration, such as n_threads"
    )
    engine: str = Field(description="name or kind of its engine")
    attempt: int = Field(description="counted from 0")
    status: str
    parameters: Mapping[str, Any]
    inputs: Mapping[str, Address] = Field(
        description="name in the component's description -> address"
    )
    outputs: Mapping[str, Address] = Field(
        description="name in the component's description -> address"
    )
    output_keys: Mapping[str, str] = Field(
        description="key in the flow -> name in the component's description"
    )
    needed_outputs: tuple[str, ...] = Field(
        description="names of outputs that later tasks of the same party read"
    )
    checkpoint: Address | None = Field(
        description="folder for checkpoints of the task; null: the job has none"
    )
    checkpoint_from: Address | None = Field(description="checkpoints of an earlier job")
    limits: Mapping[str, float | None] = Field(
        description="cpu in cores, memory and disk in bytes, pids; null: unlimited"
    )
    limit_origins: Mapping[str, str] = Field(
        description="where each limit comes from, such as guest.0 or site default"
    )
    roles: tuple[str, ...] = Field(description="all roles that take part in the task")
    results: Mapping[str, str] = Field(description="the vendor's result codes -> their meaning")
    started_at: datetime | None
    ended_at: datetime | None
    probe_at: datetime | None = Field(description="when its container is inspected next")
    reported: TaskStatus | None = Field(description="the last state that its container reported")
    reported_at: datetime | None = Field(description="when its container reported last")
    result_code: str = Field(description="of the vendor, as its container reported it")
    result_message: str
    attestation: Attestation | None = Field(
        description="the report of its TEE; null: the node demands none"
    )
    exit: Exit | None = Field(description="null: no exit of its container is known")
    stop_at: datetime | None = Field(description="when its stop was requested")
    failure: Failure | None
    no_callback: bool = Field(description="it has succeeded without any report")
    image_digest: str = Field(description="of the image from which its container was started")
    expected_digest: str = Field(description="of the approved image; empty: any")
    granted: tuple[str, ...] = Field(
        description="extra privileges of its container, by the admin's settings"
    )
    away_at: datetime | None = Field(description="since when the engine has not responded")
    owner: str = Field(description="the gateway instance and engine that run its container")
    of_job: str = Field(description="the earlier job of an inherited run; empty: this job")
    to_seal: tuple[str, ...] = Field(
        description="outputs that are models, which are fingerprinted after its success"
    )
    files: tuple[FileSum, ...] = Field(description="fingerprints of its models")
    warnings: tuple[str, ...] = Field(description="about its inputs and outputs")
    waiting: Waiting | None = Field(description="why it has not ended yet")
    log: str = Field(description="path of its log")
    last_lines: list[str] = Field(default=[], description="of its log, where it failed")


class OnTopic(BaseModel):
    """Messages of a session that wait to be read on a topic."""

    session: str
    topic: str
    messages: int
    bytes: int = Field(description="of these messages")
    oldest: float = Field(description="age of the oldest message in seconds")
    bytes_per_second: int = Field(
        description="received over the last ten seconds, whether read by now or not"
    )
    readers: tuple[str, ...] = Field(description="parties that wait for a message")


class ReceivedMessages(BaseModel):
    """Messages that a session has received."""

    session: str
    messages: int
    bytes: int
    bytes_per_second: int = Field(description="over the last ten seconds")


class Job(BaseModel):
    """A job in full."""

    job_id: str
    console_url: str = Field(
        description="of its page in the console; a path unless listen.operator.advertise is set"
    )
    status: JobStatus
    tasks: Sequence[TaskView]
    outcome: Outcome | None
    failure: Failure | None
    progress: int = Field(description="percent")
    flow_id: str
    scheduler: str
    warnings: Sequence[str]
    waiting: Waiting | None = Field(
        description="why it has not ended yet, or what is left to do after its end"
    )
    parties: list[Party]
    tolerated: Sequence[str] = Field(description="tasks that failed without the job failing")
    old_job_id: str = Field(description="the job whose finished tasks it took over")
    origin: Origin | None = Field(description="the job that it runs again")
    initiator: str
    trace_id: str | None
    parameters: dict[str, dict[str, Object]] = Field(
        description="party -> task -> parameter -> value and its origin"
    )
    runs: list[Run]
    inherited_runs: list[Object] = Field(description="runs of an earlier job whose outputs it uses")
    flow: list[DagNode]
    local_warnings: list[str] = Field(description="of this node")
    warning_count: int = Field(description="warnings of its runs at this node")
    resources: Object | None = Field(description="its reservation at this node and its use")
    model: Object | None = Field(description="the version that it trains or predicts with")
    channel: list[OnTopic] = Field(
        description="topics with unread messages or waiting parties, 100 at most"
    )
    channel_received: list[ReceivedMessages] = Field(description="since the start of this gateway")
    amendments: list[Amendment] = Field(description="changes of parameters that are in force")
    refusals: list[Failure] = Field(description="why nodes rejected it")
    approval: Object | None = Field(default=None, description="at this node; null: it needs none")
    channel_refused: str = Field(
        description="the last refused request to its channel; empty: none was refused"
    )
    local_status: str | None = Field(
        default=None, description="of this node's part; null: this node takes no part"
    )
    local_failure: Failure | None = Field(
        default=None, description="why this node's part has failed"
    )
    local_waiting: Waiting | None = Field(
        default=None, description="why this node's part has not ended yet"
    )
    created_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    user: str = Field(description="the submitter, if known here")


class TimelineEntry(BaseModel):
    """Something that happened to a job."""

    at: datetime
    side: str = Field(description="this node's part then: scheduler, participant or operator")
    event: str
    by: str = Field(description="who caused it; may be empty")
    detail: Mapping[str, Any]
    in_words: str = Field(description="the event in the reader's language")


class Timeline(BaseModel):
    """All that happened to a job."""

    timeline: list[TimelineEntry]


class Rerun(BaseModel):
    """A job that runs an ended one again."""

    job_id: str
    old_job_id: str
    from_: str = Field(alias="from")
    runs: list[str] = Field(description="tasks that run again")
    inherits: list[str] = Field(description="tasks whose outputs are taken over")


class JobCopy(BaseModel):
    """A job as the body of a new one."""

    job_id: str = Field(description="the job that was copied")
    job: Object = Field(description="body of create_all")
    left_out: list[str] = Field(description="paths of secrets, which the copy lacks")
    foreign_parties: list[str] = Field(
        description="parties at other nodes whose parameters and datasets are not known here"
    )


class ApprovalTask(BaseModel):
    """A task of a job that waits for an approval."""

    task: str
    party: str = Field(description="such as guest.0")
    component: str = Field(description="provider/name version")
    image: str
    digest: str = Field(description="of the image; empty: none is pinned")
    dataset: str = Field(description="its id, or namespace#name; empty: none")
    parameters: Object = Field(description="the parameters that the job sets for it")


class ApprovalInFull(BaseModel):
    """A job that waits for an approval, or has had one."""

    job_id: str
    flow_id: str
    initiator: str
    submitted_by: list[str] = Field(
        description="persons of this node who submitted it; empty if it came from another node"
    )
    scheduler: str
    roles: list[str] = Field(description="the parties of this node")
    components: list[str] = Field(description="of the whole flow, as provider/name")
    approval: Object | None = Field(description="its deadline, and the decision if there is one")
    tasks: list[ApprovalTask]


class ApprovalsPage(Page):
    """Jobs that wait for an approval."""

    approvals: list[ApprovalInFull]


class Decided(BaseModel):
    """The decision on a job that waited for an approval."""

    job_id: str
    local_status: str = Field(description="of this node's part in the job")
    approval: Object | None
    repeated: bool = Field(
        description="the same decision had been made before, and stays as it was"
    )


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
    bytes: int = Field(description="of all items")
    nodes: dict[str, Object] | None = Field(
        description="result at the other nodes; null: only here"
    )


class Cancelled(BaseModel):
    """The jobs that were cancelled, or would be."""

    dry_run: bool
    jobs: list[str]


class BundleRun(BaseModel):
    """A run in the evidence of a job."""

    run: str = Field(description="its party, task and attempt")
    component: str
    digest: str = Field(description="of the image that ran")


class JobBundle(BaseModel):
    """The signed evidence of a job at this node."""

    job_id: str
    node: str
    public_key: str = Field(description="of the initiator; empty without a bundle")
    images: dict[str, str] = Field(description="component -> digest of its image approved here")
    parts: Object = Field(
        description="of the job as this node has it, to compare with the statement"
    )
    bundle: Object | None = Field(description="the statement in its envelope; null: there was none")
    runs: list[BundleRun]


class NodePlan(BaseModel):
    """The checks of a dry run at one node."""

    node: str
    parties: list[str] = Field(description="such as guest.0")
    checks: list[dry_run.Item]


class PlanWarning(BaseModel):
    """A warning of a dry run."""

    nodes: list[str] = Field(description="that report it")
    check: str
    about: str = Field(description="the path in the job; empty for the check as such")
    cause: str
    remedy: str = Field(description="what to do, unless it is meant so; may be empty")


class Plan(BaseModel):
    """The result of a dry run."""

    good: bool = Field(description="no check has found a problem")
    verdict: str = Field(description="the result in one sentence, with counts")
    warnings: list[PlanWarning] = Field(description="of all nodes, each once")
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
