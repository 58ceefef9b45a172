"""Responses of a node by its OpenAPI document: written by ``make docs``, never by hand.

Further fields of a response, as of a node newer than this client, are kept as attributes.
Fields that an older node does not send are empty.
"""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Response(BaseModel):
    """The base of all responses."""

    model_config = ConfigDict(
        extra="allow",
        defer_build=True,
        protected_namespaces=(),
        populate_by_name=True,
    )


class Dataset(Response):
    """A dataset in the list, with the number of its columns."""

    dataset_id: str = ""
    namespace: str = ""
    name: str = ""
    count: int | None = None
    """rows; null: not counted"""
    partitions: int = 0
    """files that it consists of"""
    size: int = 0
    """bytes of the uploaded file, or of the registered files"""
    storage: str = ""
    """name of the node's storage that has it; file: the node's folder"""
    disabled: bool = False
    """jobs must not use it"""
    description: str = ""
    created_at: datetime
    url: str = ""
    """path of the dataset in this API"""
    columns: int = 0
    """how many it has"""


class Decided(Response):
    """The decision on a job that waited for an approval."""

    job_id: str = ""
    local_status: str = ""
    """of this node's part in the job"""
    approval: dict[str, Any] | None = None
    repeated: bool = False
    """the same decision had been made before, and stays as it was"""


class RemovedItem(Response):
    """One thing to remove."""

    kind: str = ""
    name: str = ""
    job: str = ""
    bytes: int = 0
    why: str = ""
    removed: bool = False
    cause: str = ""


class Deleted(Response):
    """What was deleted with a job, or would be."""

    job_id: str = ""
    dry_run: bool = False
    items: list[RemovedItem] = Field(default_factory=list)
    bytes: int = 0
    """of all items"""
    nodes: dict[str, dict[str, Any]] | None = None
    """result at the other nodes; null: only here"""


class DeletedDataset(Response):
    """The dataset that was deleted."""

    deleted: Dataset


class Model(Response):
    """A version of a model."""

    model_id: str = ""
    version: str = ""
    deployed: bool = False
    deployed_at: datetime | None = None
    granted: list[str] = Field(default_factory=list)
    """nodes that may use it besides the parties of its training"""
    here: list[str] = Field(default_factory=list)
    """the parties whose parts are at this node"""
    imported: bool = False
    """it came from an archive, not from a job here"""
    job_id: str = ""
    """of the training"""
    flow_id: str = ""
    """of the training"""
    created_at: datetime
    bytes: int = 0
    """size of the parts at this node"""
    url: str = ""
    """path of the version in this API"""


class DeletedModel(Response):
    """The version of a model that was deleted."""

    deleted: Model


class Column(Response):
    """A column of a table: its name and type, as its task wrote them."""

    name: str = ""
    type: str = ""


class Grant(Response):
    """The permission of a node to use a dataset."""

    dataset_id: str = ""
    node: str = ""
    state: str = ""
    """in force, expired or revoked"""
    granted_at: datetime
    granted_by: str = ""
    reason: str = ""
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    revoked_by: str | None = None


class FullDataset(Response):
    """A dataset with its columns, its grants, and the jobs that use it."""

    dataset_id: str = ""
    namespace: str = ""
    name: str = ""
    count: int | None = None
    """rows; null: not counted"""
    partitions: int = 0
    """files that it consists of"""
    size: int = 0
    """bytes of the uploaded file, or of the registered files"""
    storage: str = ""
    """name of the node's storage that has it; file: the node's folder"""
    disabled: bool = False
    """jobs must not use it"""
    description: str = ""
    created_at: datetime
    url: str = ""
    """path of the dataset in this API"""
    columns: list[Column] = Field(default_factory=list)
    origin: str = ""
    """file:<name> or path:<path> of the uploaded file, or place:<address> of the registered table; empty: another program left it in the storage"""
    checksum: str = ""
    """sha256 of the uploaded file, hex"""
    format: str = ""
    """csv or parquet"""
    in_place: bool = False
    """registered without a copy: deleting it leaves its files"""
    delimiter: str = ""
    encoding: str = ""
    label_name: str = ""
    """column of the labels; empty: none"""
    match_id_name: str = ""
    """column of the ids by which parties match rows; empty: none was named"""
    meta: dict[str, Any] = Field(default_factory=dict)
    """further fields that the user gave it"""
    sid: str = ""
    """column of ids that the upload added; empty: none was added"""
    grants: list[Grant] = Field(default_factory=list)
    published: list[str] = Field(default_factory=list)
    """partners that see it; *: all with a contract"""
    grants_default: str = ""
    """what holds for a dataset that was never granted: the setting data.grants"""
    used_by: list[str] = Field(default_factory=list)
    """ids of jobs that use it"""
    warnings: list[str] = Field(default_factory=list)
    """what looked odd in it when it was read"""
    changed: str = ""
    """how the files of a registered table have changed; empty: they have not"""
    there: bool = False
    """its files are in the storage"""
    away: str = ""
    """why the storage could not be read; empty: it answered"""


class TrainingParty(Response):
    """One role of a job: its position in the role's list, and the node that plays it."""

    role: str = ""
    index: int = 0
    node: str = ""


class FullModel(Model):
    """A version of a model with its parties and files."""

    digest: str = ""
    """sha256 of its file here, hex; of several files, of the list of their digests and names"""
    parties: list[TrainingParty] = Field(default_factory=list)
    """all parties of the training"""
    models: list[dict[str, Any]] = Field(default_factory=list)
    """for each party here: its name, and its parts with their files"""


class ProviderWarning(Response):
    """A warning about a component description."""

    path: str = ""
    rule: str = ""


class Provider(Response):
    """A provider in the list."""

    provider_name: str = ""
    name: str = ""
    version: str = ""
    device: str = ""
    """such as docker"""
    image: str = ""
    """of components without an image of their own"""
    images: dict[str, str | None] = Field(default_factory=dict)
    """image -> pinned digest"""
    retired: bool = False
    """new jobs do not get it"""
    components: list[str] = Field(default_factory=list)
    """their names"""
    warning_count: int = 0
    owner: str = ""
    """name of the vendor's tokens; empty: this node's admins"""
    granted: list[str] = Field(default_factory=list)
    """extra privileges of its containers, by the admin's settings"""
    attestation: str = ""
    """TEE platform of which its runs here must bring a report; empty: none"""


class FullProvider(Provider):
    """A provider in full."""

    revision: int = 0
    """number of the newest one"""
    protocol: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict)
    digests: dict[str, str] = Field(default_factory=dict)
    """image -> approved digest"""
    jobs: list[str] = Field(default_factory=list)
    """jobs that use it"""
    warnings: list[ProviderWarning] = Field(default_factory=list)
    components_description: dict[str, Any] = Field(default_factory=dict)
    """name of a component -> its description"""


class RouteChange(Response):
    """A changed field of a route."""

    node: str = ""
    field: str = ""
    """empty: the whole route was added or removed"""
    before: Any = None
    after: Any = None


class RouteVersion(Response):
    """A version of the route table."""

    version: int = 0
    at: datetime
    author: str = ""
    reason: str = ""
    source: str = ""
    changes: list[RouteChange] = Field(default_factory=list)


class FullRouteVersion(RouteVersion):
    """A version of the route table with its text."""

    diff: str = ""
    """against the version before, or the requested one"""
    text: str = ""
    """as an administrator would write it in the file"""


JobStatus = str
"""A job's states, in the standard's words. One of PENDING, READY, RUNNING, FINISHED, REJECTED."""


TaskStatus = str
"""A task's states, in the standard's words. One of PENDING, READY, RUNNING, SUCCESS, FAILED."""


class Failure(Response):
    """Why something failed, in the same words for every party."""

    reason: str = ""
    message: str = ""
    node: str = ""
    role: str = ""
    task: str = ""
    exit_code: int | None = None


class TaskAttempt(Response):
    """A failed attempt of a task, which was retried under another id."""

    number: int = 0
    task_id: str = ""
    failure: Failure
    started_at: datetime | None = None
    ended_at: datetime | None = None


class Waiting(Response):
    """Why a job, a task or a run has not ended."""

    reason: str = ""
    message: str = ""
    since: datetime
    next_check: datetime | None = None


class Lineage(Response):
    """The origin of inherited outputs: the task that wrote them, and the job in which it ran."""

    job_id: str = ""
    task_id: str = ""


class Task(Response):
    """A task as it is reported to others."""

    task_id: str = ""
    name: str = ""
    status: TaskStatus
    failure: Failure | None = None
    nodes: dict[str, dict[str, TaskStatus]] | None = None
    since: datetime | None = None
    attempt: int = 0
    attempts: list[TaskAttempt] = Field(default_factory=list)
    waiting: Waiting | None = None
    inherited: Lineage | None = None


Outcome = str
"""How a job ended. One of SUCCEEDED, FAILED, STOPPED, REJECTED."""


class Party(Response):
    """A party of a job; the index is unknown for jobs that another node schedules."""

    role: str = ""
    index: int | None = None
    node: str = ""


class Origin(Response):
    """The job that this one runs again."""

    job_id: str = ""
    start: str = ""
    by: str = ""
    changed: list[str] = Field(default_factory=list)
    parameters: dict[str, Any] | None = None


class ComponentRef(Response):
    """The key of a component: vendor, version, class name."""

    provider: str = ""
    version: str = ""
    name: str = ""


class Address(Response):
    """The storage, namespace and name of a table, model or report of a node."""

    namespace: str = ""
    name: str = ""
    storage: str = ""
    in_place: str = ""


class AttestationPolicy(Response):
    """The requirements for the reports of runs."""

    platform: str = ""
    measurements: list[str] = Field(default_factory=list)
    signers: list[str] = Field(default_factory=list)
    max_age: int = 300
    tcb: list[str] = ['UpToDate']


class Attestation(Response):
    """The report that a run has to bring, and its result."""

    platform: str = ""
    policy: AttestationPolicy | None = None
    demanded_by: list[str] = Field(default_factory=list)
    verified_at: datetime | None = None
    measurement: str = ""
    signer: str = ""
    tcb_status: str = ""
    is_hardware: bool = False
    public_key: str = ""
    report_digest: str = ""


class Exit(Response):
    """How a container exited, as the engine reports it, and the run's missing outputs."""

    code: int = 0
    signal: int | None = None
    oom_killed: bool = False
    started_at: datetime | None = None
    finished_at: datetime | None = None
    missing_outputs: list[str] = Field(default_factory=list)


class FileSum(Response):
    """The fingerprint of an output's file, taken after its run had succeeded."""

    name: str = ""
    size: int = 0
    sha256: str = ""
    output: str = ""


class Run(Response):
    """A party's part in a task, run at this node."""

    name: str = ""
    """of its container"""
    task_id: str = ""
    task_name: str = ""
    party: Party
    component: ComponentRef
    image: str = ""
    created_at: datetime
    image_profile: str = ""
    """the older conventions that the image expects; empty: none"""
    declared: dict[str, int] = Field(default_factory=dict)
    """numbers from the provider's registration, such as n_threads"""
    engine: str = ""
    """name or kind of its engine"""
    attempt: int = 0
    """counted from 0"""
    status: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    inputs: dict[str, Address] = Field(default_factory=dict)
    """name in the component's description -> address"""
    outputs: dict[str, Address] = Field(default_factory=dict)
    """name in the component's description -> address"""
    output_keys: dict[str, str] = Field(default_factory=dict)
    """key in the flow -> name in the component's description"""
    needed_outputs: list[str] = Field(default_factory=list)
    """names of outputs that later tasks of the same party read"""
    checkpoint: Address | None = None
    """folder for checkpoints of the task; null: the job has none"""
    checkpoint_from: Address | None = None
    """checkpoints of an earlier job"""
    limits: dict[str, float | None] = Field(default_factory=dict)
    """cpu in cores, memory and disk in bytes, pids; null: unlimited"""
    limit_origins: dict[str, str] = Field(default_factory=dict)
    """where each limit comes from, such as guest.0 or site default"""
    roles: list[str] = Field(default_factory=list)
    """all roles that take part in the task"""
    results: dict[str, str] = Field(default_factory=dict)
    """the vendor's result codes -> their meaning"""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    probe_at: datetime | None = None
    """when its container is inspected next"""
    reported: TaskStatus | None = None
    """the last state that its container reported"""
    reported_at: datetime | None = None
    """when its container reported last"""
    result_code: str = ""
    """of the vendor, as its container reported it"""
    result_message: str = ""
    attestation: Attestation | None = None
    """the report of its TEE; null: the node demands none"""
    exit: Exit | None = None
    """null: no exit of its container is known"""
    stop_at: datetime | None = None
    """when its stop was requested"""
    failure: Failure | None = None
    no_callback: bool = False
    """it has succeeded without any report"""
    image_digest: str = ""
    """of the image from which its container was started"""
    expected_digest: str = ""
    """of the approved image; empty: any"""
    granted: list[str] = Field(default_factory=list)
    """extra privileges of its container, by the admin's settings"""
    away_at: datetime | None = None
    """since when the engine has not responded"""
    owner: str = ""
    """the gateway instance and engine that run its container"""
    of_job: str = ""
    """the earlier job of an inherited run; empty: this job"""
    to_seal: list[str] = Field(default_factory=list)
    """outputs that are models, which are fingerprinted after its success"""
    files: list[FileSum] = Field(default_factory=list)
    """fingerprints of its models"""
    warnings: list[str] = Field(default_factory=list)
    """about its inputs and outputs"""
    waiting: Waiting | None = None
    """why it has not ended yet"""
    log: str = ""
    """path of its log"""
    last_lines: list[str] = Field(default_factory=list)
    """of its log, where it failed"""


class DagInput(Response):
    """An input of a task: an output of another task."""

    type: str = ""
    task: str = ""
    key: str = ""


class DagOutput(Response):
    """An output of a task: its type, and its key for other tasks."""

    type: str = ""
    key: str = ""


class DagNode(Response):
    """One named component instance; its name is the task's name."""

    name: str = ""
    component: ComponentRef
    inputs: list[DagInput] = Field(default_factory=list)
    outputs: list[DagOutput] = Field(default_factory=list)


class OnTopic(Response):
    """Messages of a session that wait to be read on a topic."""

    session: str = ""
    topic: str = ""
    messages: int = 0
    bytes: int = 0
    """of these messages"""
    oldest: float = 0.0
    """age of the oldest message in seconds"""
    bytes_per_second: int = 0
    """received over the last ten seconds, whether read by now or not"""
    readers: list[str] = Field(default_factory=list)
    """parties that wait for a message"""


class ReceivedMessages(Response):
    """Messages that a session has received."""

    session: str = ""
    messages: int = 0
    bytes: int = 0
    bytes_per_second: int = 0
    """over the last ten seconds"""


class Amendment(Response):
    """One change of a job's parameters after its creation; the n-th change makes version n."""

    id: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    by: str = ""
    reason: str = ""
    at: datetime
    bundle: dict[str, Any] | None = None


class Job(Response):
    """A job in full."""

    job_id: str = ""
    console_url: str = ""
    """of its page in the console; a path unless listen.operator.advertise is set"""
    status: JobStatus
    tasks: list[Task] = Field(default_factory=list)
    outcome: Outcome | None = None
    failure: Failure | None = None
    progress: int = 0
    """percent"""
    flow_id: str = ""
    scheduler: str = ""
    warnings: list[str] = Field(default_factory=list)
    waiting: Waiting | None = None
    """why it has not ended yet, or what is left to do after its end"""
    parties: list[Party] = Field(default_factory=list)
    tolerated: list[str] = Field(default_factory=list)
    """tasks that failed without the job failing"""
    old_job_id: str = ""
    """the job whose finished tasks it took over"""
    origin: Origin | None = None
    """the job that it runs again"""
    initiator: str = ""
    trace_id: str | None = None
    parameters: dict[str, dict[str, dict[str, Any]]] = Field(default_factory=dict)
    """party -> task -> parameter -> value and its origin"""
    runs: list[Run] = Field(default_factory=list)
    inherited_runs: list[dict[str, Any]] = Field(default_factory=list)
    """runs of an earlier job whose outputs it uses"""
    flow: list[DagNode] = Field(default_factory=list)
    local_warnings: list[str] = Field(default_factory=list)
    """of this node"""
    warning_count: int = 0
    """warnings of its runs at this node"""
    resources: dict[str, Any] | None = None
    """its reservation at this node and its use"""
    model: dict[str, Any] | None = None
    """the version that it trains or predicts with"""
    channel: list[OnTopic] = Field(default_factory=list)
    """topics with unread messages or waiting parties, 100 at most"""
    channel_received: list[ReceivedMessages] = Field(default_factory=list)
    """since the start of this gateway"""
    amendments: list[Amendment] = Field(default_factory=list)
    """changes of parameters that are in force"""
    refusals: list[Failure] = Field(default_factory=list)
    """why nodes rejected it"""
    approval: dict[str, Any] | None = None
    """at this node; null: it needs none"""
    channel_refused: str = ""
    """the last refused request to its channel; empty: none was refused"""
    local_status: str | None = None
    """of this node's part; null: this node takes no part"""
    local_failure: Failure | None = None
    """why this node's part has failed"""
    local_waiting: Waiting | None = None
    """why this node's part has not ended yet"""
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    user: str = ""
    """the submitter, if known here"""


class ListedJob(Response):
    """An entry in a list of jobs."""

    job_id: str = ""
    flow_id: str = ""
    status: str = ""
    outcome: str | None = None
    reason: str | None = None
    created_at: datetime
    sides: list[str] = Field(default_factory=list)
    ended_at: datetime | None = None
    user: str = ""
    progress: int = 0
    warning_count: int = 0


class NewGrant(Grant):
    """A grant as it was just made."""

    warnings: list[str] = Field(default_factory=list)
    """such as: the node has no route"""


class NewRouteVersion(RouteVersion):
    """The version of the route table that a change has made."""

    not_in_file: list[str] = Field(default_factory=list)
    """why route_table.file cannot be used and does not hold the change"""


class Output(Response):
    """An output in the list."""

    task: str = ""
    """its name in the flow"""
    party: str = ""
    """such as guest.0"""
    key: str = ""
    """the output's key in the flow"""
    namespace: str = ""
    """first part of its address in the storage"""
    name: str = ""
    """second part of its address in the storage"""
    task_id: str = ""
    attempt: int = 0
    """of the run, counted from 0"""
    inherited_from: str | None = None
    """the earlier job whose run wrote it; null: this job"""
    output: str = ""
    """its name in the component's description"""
    there: bool = False
    """it is in this node's storage"""
    value: Any = None
    """content of a small JSON document, if the reader may see it; otherwise null"""


class Outputs(Response):
    """The outputs of a job's runs at this node."""

    outputs: list[Output] = Field(default_factory=list)


class PlanWarning(Response):
    """A warning of a dry run."""

    nodes: list[str] = Field(default_factory=list)
    """that report it"""
    check: str = ""
    about: str = ""
    """the path in the job; empty for the check as such"""
    cause: str = ""
    remedy: str = ""
    """what to do, unless it is meant so; may be empty"""


Standing = str
"""The result of one check. One of ok, warning, waits, problem, unknown."""


class Check(Response):
    """The result of one check of a job."""

    check: str = ""
    standing: Standing
    found: str = ""
    cause: str = ""
    remedy: str = ""
    about: str = ""


class NodePlan(Response):
    """The checks of a dry run at one node."""

    node: str = ""
    parties: list[str] = Field(default_factory=list)
    """such as guest.0"""
    checks: list[Check] = Field(default_factory=list)


class Plan(Response):
    """The result of a dry run."""

    good: bool = False
    """no check has found a problem"""
    verdict: str = ""
    """the result in one sentence, with counts"""
    warnings: list[PlanWarning] = Field(default_factory=list)
    """of all nodes, each once"""
    nodes: list[NodePlan] = Field(default_factory=list)


class Difference(Response):
    """A value of a prediction's job that differs from the training's."""

    path: str = ""
    """of the value, in the job"""
    before: Any = None
    """in the training"""
    after: Any = None
    """in the prediction"""


class PredictionJob(Response):
    """The job of a prediction; its id is empty for a dry run."""

    job_id: str = ""
    differences: list[Difference] = Field(default_factory=list)


class ValueChange(Response):
    """A value that differs between two revisions."""

    path: str = ""
    before: Any = None
    after: Any = None


class Revision(Response):
    """A change of a provider."""

    provider_name: str = ""
    """name:version@device"""
    revision: int = 0
    at: datetime
    author: str = ""
    action: str = ""
    reason: str = ""
    in_words: str = ""
    """the action in the reader's language"""


class ProviderChanged(Revision):
    """A provider after a change."""

    created: bool = False
    """the provider, or one of its components, is new"""
    changed: bool = False
    """false: it was so before, and this is its newest revision"""
    changes: list[ValueChange] = Field(default_factory=list)
    retired: bool = False
    """new jobs do not get it"""
    digests: dict[str, str] = Field(default_factory=dict)
    """image -> approved digest"""
    warnings: list[ProviderWarning] = Field(default_factory=list)


class RegisteredDataset(Response):
    """A dataset as it was just registered."""

    dataset_id: str = ""
    namespace: str = ""
    name: str = ""
    count: int | None = None
    """rows; null: not counted"""
    partitions: int = 0
    """files that it consists of"""
    size: int = 0
    """bytes of the uploaded file, or of the registered files"""
    storage: str = ""
    """name of the node's storage that has it; file: the node's folder"""
    disabled: bool = False
    """jobs must not use it"""
    description: str = ""
    created_at: datetime
    url: str = ""
    """path of the dataset in this API"""
    columns: list[Column] = Field(default_factory=list)
    origin: str = ""
    """file:<name> or path:<path> of the uploaded file, or place:<address> of the registered table; empty: another program left it in the storage"""
    checksum: str = ""
    """sha256 of the uploaded file, hex"""
    format: str = ""
    """csv or parquet"""
    in_place: bool = False
    """registered without a copy: deleting it leaves its files"""
    delimiter: str = ""
    encoding: str = ""
    label_name: str = ""
    """column of the labels; empty: none"""
    match_id_name: str = ""
    """column of the ids by which parties match rows; empty: none was named"""
    meta: dict[str, Any] = Field(default_factory=dict)
    """further fields that the user gave it"""
    sid: str = ""
    """column of ids that the upload added; empty: none was added"""
    grants: list[Grant] = Field(default_factory=list)
    published: list[str] = Field(default_factory=list)
    """partners that see it; *: all with a contract"""
    grants_default: str = ""
    """what holds for a dataset that was never granted: the setting data.grants"""
    used_by: list[str] = Field(default_factory=list)
    """ids of jobs that use it"""
    warnings: list[str] = Field(default_factory=list)
    """what looked odd in it, and which images may not be able to read it"""
    changed: str = ""
    """how the files of a registered table have changed; empty: they have not"""
    there: bool = False
    """its files are in the storage"""
    away: str = ""
    """why the storage could not be read; empty: it answered"""


class Series(Response):
    """A table of a report."""

    name: str = ""
    columns: list[str] = Field(default_factory=list)
    points: list[list[float | str | bool | None]] = Field(default_factory=list)
    left_out: int = 0


class Report(Response):
    """A report: its figures, and its curves."""

    task: str = ""
    """its name in the flow"""
    party: str = ""
    """such as guest.0"""
    key: str = ""
    """the output's key in the flow"""
    namespace: str = ""
    """first part of its address in the storage"""
    name: str = ""
    """second part of its address in the storage"""
    format: str = ""
    """json or csv"""
    values: dict[str, Any] = Field(default_factory=dict)
    """single values by path, such as baseline.auc"""
    series: list[Series] = Field(default_factory=list)
    """tables for plots, each with its columns and points"""
    problem: str = ""
    """why it cannot be read; empty: it could be read"""


class ReportLine(Response):
    """A report in the list."""

    task: str = ""
    """its name in the flow"""
    party: str = ""
    """such as guest.0"""
    key: str = ""
    """the output's key in the flow"""
    namespace: str = ""
    """first part of its address in the storage"""
    name: str = ""
    """second part of its address in the storage"""
    output: str = ""
    """its name in the component's description"""
    there: bool = False
    """it is in this node's storage"""
    url: str = ""
    """path of the report in this API"""


class RunWarning(Response):
    """A warning about the outputs of a run."""

    task: str = ""
    """its name in the flow"""
    party: str = ""
    """such as guest.0"""
    warning: str = ""


class Reports(Response):
    """The reports of a job's runs at this node."""

    reports: list[ReportLine] = Field(default_factory=list)
    warnings: list[RunWarning] = Field(default_factory=list)


class Rerun(Response):
    """A job that runs an ended one again."""

    job_id: str = ""
    old_job_id: str = ""
    from_: str = Field(alias="from")
    runs: list[str] = Field(default_factory=list)
    """tasks that run again"""
    inherits: list[str] = Field(default_factory=list)
    """tasks whose outputs are taken over"""


Proof = str
"""What proves the requests of a node. With `MISSING`, none of them is served. One of signature, certificate, fate, off, local, missing."""


class RouteLink(Response):
    """A link to a route's node that stands."""

    since: datetime
    address: str = ""
    dials_out: bool = False
    gateway: str = ""


class LinkFailure(Response):
    """Why the last link to a route's node was refused, could not be opened or has ended."""

    at: datetime
    cause: str = ""


class Route(Response):
    """A route, what proves the requests of its node, and the links to it."""

    node: str = ""
    url: str = ""
    profile: str = "spec"
    institution: str | None = None
    deadline: float = 10.0
    enabled: bool = True
    via: str | None = None
    relay: bool = False
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None
    proxy: str | None = None
    proxy_password: str | None = None
    components: list[str] = Field(default_factory=list)
    peer_certificate: list[str] = Field(default_factory=list)
    keys: list[str] = Field(default_factory=list)
    signing: str | None = None
    bundles: str = "accepted"
    transport: str | None = None
    sealing_key: str | None = None
    sealing: str | None = None
    control_sealing: str = "off"
    dial: str | None = None
    reached: str | None = None
    parallel: int = 2
    bandwidth: int | None = None
    proof: Proof | None = None
    remedy: str = ""
    links: list[RouteLink] | None = None
    link_failure: LinkFailure | None = None


Result = str
"""The result of a step; a warning does not make the trial fail. One of ok, warning, failed, skipped."""


class Step(Response):
    """One step of a trial; ``cause`` and ``remedy`` are empty for a step that went well."""

    name: str = ""
    result: Result
    found: str = ""
    cause: str = ""
    remedy: str = ""
    seconds: float = 0.0


class RouteTest(Response):
    """The test of a route."""

    node: str = ""
    good: bool = False
    """no step has failed"""
    steps: list[Step] = Field(default_factory=list)


class Session(Response):
    """The sender of a request, and the node."""

    node: str = ""
    institution: str = ""
    version: str = ""
    """of the gateway's software"""
    user: str = ""
    role: str = ""


class Stored(Response):
    """What was stored."""

    namespace: str = ""
    name: str = ""
    dataset_id: str = ""
    """namespace#name, as jobs name the dataset."""
    count: int = 0
    """Rows."""
    columns: list[str] = Field(default_factory=list)
    """As in the storage: with sid, if it was asked for."""
    partitions: int = 0
    checksum: str = ""
    """sha256 of the uploaded file, hex."""
    encoding: str = ""
    """In which the file was read."""
    delimiter: str = ""
    """With which the file was read."""
    warnings: list[str] = Field(default_factory=list)
    """What looks odd in it, with line and example."""


class TimelineEntry(Response):
    """Something that happened to a job."""

    at: datetime
    side: str = ""
    """this node's part then: scheduler, participant or operator"""
    event: str = ""
    by: str = ""
    """who caused it; may be empty"""
    detail: dict[str, Any] = Field(default_factory=dict)
    in_words: str = ""
    """the event in the reader's language"""


class Timeline(Response):
    """All that happened to a job."""

    timeline: list[TimelineEntry] = Field(default_factory=list)
