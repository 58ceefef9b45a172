"""The bodies of requests and responses, mostly of the control layer.

Reading is liberal: unknown fields are kept, and the second spellings that peers use are accepted.
"""

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Json,
    StringConstraints,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from adapter.body import failure_of, with_few_errors, within_bounds, without_nulls
from gateway.domain.dry_run import Item
from gateway.domain.entries import as_mapping
from gateway.domain.spec import Failure


class Body(BaseModel):
    """A body of the control layer; unknown fields are kept aside."""

    model_config = ConfigDict(
        extra="allow",
        populate_by_name=True,
        coerce_numbers_to_str=False,
    )


def _text(value: Any) -> Any:
    """Return an empty text for null, any other value unchanged."""
    if value is None:
        return ""
    return value


def _object(value: Any) -> Any:
    """Return an empty object for null, any other value unchanged."""
    if value is None:
        return {}
    return value


# A text; some peers send null for the empty one.
Text = Annotated[str, BeforeValidator(_text)]

# An id: visible ASCII characters without spaces.
Id = Annotated[
    str,
    Field(
        min_length=1,
        max_length=100,
        pattern=r"^[\x21-\x7e]+$",
    ),
]

# The token of a permit: visible ASCII characters without commas, which separate permits.
PermitToken = Annotated[str, StringConstraints(pattern=r"^[\x21-\x2b\x2d-\x7e]{1,500}$")]

# Free content within the bounds of descriptions: depth, number of values, amount of text.
Object = Annotated[dict[str, Any], BeforeValidator(_object), AfterValidator(within_bounds)]

# Signed parts of a job, by node; any value that is not an object counts as none.
Bundles = Annotated[dict[str, Any], BeforeValidator(as_mapping), AfterValidator(within_bounds)]

MOST_PARTIES = 1000  # of one job
_MOST_ROLES = 50  # of one job
_MOST_IO = 100  # inputs of one component; the same limit applies to its outputs


def _check_party_count(roles: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the roles unchanged; raise `PydanticCustomError` if they have too many parties.

    A validator of pydantic.
    """
    if sum(map(len, roles.values())) > MOST_PARTIES:
        raise PydanticCustomError(
            "parties", "must not name more than {most} parties", {"most": MOST_PARTIES}
        )
    return roles


class DagIo(Body):
    """An input or an output of a component."""

    type: str  # such as dataset or model
    key: str  # of an output: its name; of an input: ``<task>.<key of that task's output>``


class DagComponent(Body):
    """A task of the flow (control layer, DAG): its name, component, inputs and outputs."""

    name: str
    component_name: str = Field(validation_alias=AliasChoices("componentName", "module_name"))
    provider: str = Field(validation_alias=AliasChoices("provider", "code"))
    version: str
    input: list[DagIo] = Field(
        default_factory=list,
        max_length=_MOST_IO,
        validation_alias=AliasChoices("input", "inputData"),
    )
    output: list[DagIo] = Field(
        default_factory=list,
        max_length=_MOST_IO,
        validation_alias=AliasChoices("output", "outputData"),
    )


class DagBody(Body):
    """The flow of a job."""

    components: Annotated[
        list[DagComponent],
        Field(max_length=1000),
        WrapValidator(with_few_errors),
    ]
    version: str = "2.0"


class Initiator(Body):
    """Who began the job; ``nodeId`` is a spelling of some peers."""

    role: str
    node_id: str = Field(validation_alias=AliasChoices("node_id", "nodeId"))


class ConfigBody(Body):
    """Who takes part in a job, and its parameters."""

    initiator: Initiator
    role: Annotated[
        dict[str, Annotated[list[Id], Field(max_length=MOST_PARTIES)]],
        Field(max_length=_MOST_ROLES),
        BeforeValidator(without_nulls),
        AfterValidator(_check_party_count),
    ]
    job_params: Object = Field(default_factory=dict)
    task_params: Object = Field(default_factory=dict)
    version: str = "2.0.0"
    # Another place for `CreateAll.old_job_id`
    old_job_id: Text = Field(default="", max_length=100)


class CreateAll(Body):
    """``POST /v1/platform/schedule/job/create_all`` (control layer 5.1)."""

    flow_id: Text = Field(default="", max_length=200)
    # An extension that one peer sends: the job whose finished tasks are taken over
    old_job_id: Text = Field(default="", max_length=100)
    dag: DagBody
    config: ConfigBody = Field(validation_alias=AliasChoices("config", "conf"))


class CreateJob(CreateAll):
    """``job/create_all`` and ``job/create`` between nodes (3.1, 3.2)."""

    job_id: Id
    # An extension: node -> the part of the job that the initiator has signed for it, in an envelope
    # after DSSE
    signed_bundles: Bundles = {}


class JobQuery(BaseModel):
    """Names a job, in the query string or in a JSON body."""

    job_id: str = Field(min_length=1, description="the job's id")


class AuditQuery(BaseModel):
    """Names an audit, in the query string or in a JSON body."""

    audit_id: str = Field(min_length=1, description="the audit's id")


class JobId(Body):
    """A request about one job."""

    job_id: Id


class DeleteJob(JobId):
    """``job/delete``, an extension."""

    dry_run: bool = False


class CleanTask(JobId):
    """``task/clean``, an extension."""

    task_name: Id
    content: Literal["outputs", "metrics"] = "outputs"
    dry_run: bool = False


class StartJob(JobId):
    """``job/start`` (3.3); ``without``, an extension, names parties that are left out."""

    without: list[Id] = Field(
        default_factory=list,
        max_length=MOST_PARTIES,
    )


class StartTask(JobId):
    """``task/start`` (3.4); ``amendments``, an extension: ids of the changes in force."""

    task_id: Id
    task_name: str
    amendments: list[Id] = Field(
        default_factory=list,
        max_length=1000,
    )


# The cause of a job's or task's failure: an extension field, equal at every party; None for a value
# without a reason.
FailedBy = Annotated[Failure | None, BeforeValidator(failure_of)]


class ConfirmJob(JobId):
    """``job/audit_confirm`` (3.10 of version 1.0): ``status`` is READY or REJECTED; an extension is
    ``failed_by``, the cause of a rejection.
    """

    status: str
    failed_by: FailedBy = None


class ApplyAudit(CreateJob):
    """``job/audit/apply`` of the management layer (8); its ``conf`` may also be named
    ``config``.
    """

    audit_id: Id
    name: Text = Field(default="", max_length=200)
    project_id: Text = Field(default="", max_length=200)


class JobPermit(Body):
    """The permit of an audited job, which its creation presents."""

    token: PermitToken


class ConfirmAudit(Body):
    """``job/audit/confirm`` (management 8): ``status`` is APPROVED or REJECTED; an extension is
    ``failed_by``, the cause of a rejection. The permit is an object, or its JSON as a text.
    """

    audit_id: Id
    status: str
    failed_by: FailedBy = None
    resource_permit: JobPermit | Json[JobPermit] | None = None


class TerminateAudit(Body):
    """``job/audit/terminate`` (management 8); extensions are ``outcome`` and ``failed_by``: how the
    job ended, and why.
    """

    audit_id: Id
    outcome: Text = ""
    failed_by: FailedBy = None


class StopAll(JobId):
    """``job/stop_all`` (3.5, 5.2): the whole job at every node, or one task and what follows it."""

    task_name: Text = ""


class RerunJob(JobId):
    """``job/rerun``, an extension: an ended job is run again from a task on, as a new job."""

    new_job_id: Id
    # The task to begin with; empty: the first that has not succeeded
    start: Text = Field(default="", alias="from")
    parameters: Object = Field(default_factory=dict)  # changes, in the form of ``task_params``


class AmendJob(JobId):
    """``job/parameters``, an extension: tasks that have not begun get new parameters at all nodes,
    or at none.
    """

    parameters: Object  # changes, in the form of ``task_params``
    reason: Text = Field(default="", max_length=1000)  # a person's words


class OfferParameters(AmendJob):
    """``job/parameters/offer``, an extension: offers a party the change of an `AmendJob` before the
    change is in force.
    """

    amendment: Id  # id of the change
    by: Id = Field(description="the node that asked for it")
    holding: list[Id] = Field(
        default_factory=list,
        max_length=1000,
        description="ids of earlier changes in force",
    )
    # Of the job with the new parameters, as in `CreateJob`
    signed_bundles: Bundles = {}


class StopTaskOfJob(JobId):
    """``job/stop_task`` (5.7): one task, and what follows it, at every node."""

    task_name: str = Field(min_length=1)


class StopTask(Body):
    """``task/stop``: one task, and what follows it, at the called node; a path of one peer, in no
    version of the standard.
    """

    task_id: Id


class StopJob(StopAll):
    """``job/stop`` (3.6): the whole job at the called node, or one task and what follows it;
    extensions are ``outcome`` and ``failed_by``: how the job ended, and why.
    """

    outcome: Text = ""
    failed_by: FailedBy = None


class PollTask(Body):
    """``task/poll`` (3.8)."""

    task_id: Id
    role: Text = ""


class ReportTask(Body):
    """``task/callback`` between nodes (3.9)."""

    task_id: Id
    status: str
    role: Text = ""
    failed_by: FailedBy = None


def _cut_at(limit: int) -> AfterValidator:
    """Return a validator that keeps the first ``limit`` characters of a text.

    Texts of containers are cut, as they stay in the records of their job.
    """

    def cut(text: str) -> str:
        return text[:limit]

    return AfterValidator(cut)


Short = Annotated[Text, _cut_at(100)]
Message = Annotated[Text, _cut_at(1000)]


class ContainerCallback(Body):
    """``task/callback`` of a container (4.1)."""

    task_id: Annotated[Text, _cut_at(128)] = ""  # no task's id is longer
    status: str
    role: Short = ""
    result_code: Short = Field(
        default="", validation_alias=AliasChoices("result_code", "resultCode")
    )
    result_message: Message = Field(
        default="", validation_alias=AliasChoices("result_message", "resultMessage")
    )


class OfOutputs(JobId):
    """``output/metadata``, an extension: the outputs of a task at a role or party; with
    ``output_key``, only that output.
    """

    task_name: Annotated[str, Field(min_length=1, max_length=255)]
    role: Annotated[
        str,
        Field(
            min_length=1,
            max_length=255,
            description="as in `host`, or `host.0`",
        ),
    ]
    output_key: Text = Field(default="", description="key in the flow; absent: all of the task")


class Hello(Body):
    """``node/hello``, an extension: who asks, and what to test."""

    node_id: Text = Field(default="", description="the node that asks")
    padding: Text = Field(default="", description="anything; tests how large a body may be")
    call_back: bool = Field(
        default=False, description="true: say hello back, and report how that went"
    )


class ProviderKeys(Body):
    """``/v2/provider/query`` and ``delete``: selects providers by any of their keys."""

    name: str | None = None
    device: str | None = None
    version: str | None = None
    provider_name: str | None = None


class Response(BaseModel):
    """Data of a response; only fields that were set are sent."""

    model_config = ConfigDict(extra="allow", defer_build=True)


class Empty(Response):
    """No data."""


D = TypeVar("D", bound=Response)


class Answer(Response, Generic[D]):
    """The envelope of every response."""

    code: int = Field(
        default=0,
        examples=[0],
        description="0 for a success (200 to a peer of profile kuscia), or the code of the refusal",
    )
    msg: str = Field(default="success", examples=["success"])
    data: D


class UsersAnswer(Response):
    """The envelope of our first users' interface, which has ``message`` instead of ``msg``."""

    code: int = Field(default=0, examples=[0])
    message: str = Field(examples=["success"])


class UsersList(UsersAnswer):
    """The response to a query of our first users' interface."""

    data: list[dict[str, Any]]


class Reason(Response):
    """Why a request was refused, and every problem of it with its path."""

    reason: str = Field(
        examples=["JOB_UNKNOWN"], description="stable; docs/reasons.md explains each"
    )
    problems: list[dict[str, Any]] = Field(default_factory=list)


class Refusal(Response):
    """HTTP 200 for what a known path decides; 404, 405, 413, 415, 500 and 503 are real."""

    code: int = Field(examples=[404])
    msg: str = Field(examples=["JOB_UNKNOWN: no job by that id"])
    data: Reason


class UsersRefusal(UsersAnswer):
    """How our first users' interface refuses."""

    data: Reason


class ChannelRefusal(Response):
    """How the transport refuses: its codes are texts, ``E0000000`` and three digits."""

    code: str = Field(examples=["E0000000404"])
    message: str


class JobData(Response):
    """Which job the response is about."""

    job_id: str = Field(examples=["job-example"])


State = Annotated[str, Field(examples=["RUNNING"])]


class StateData(Response):
    """The state of a task, an audit or an application."""

    status: State


class StatusData(JobData):
    """``job/status_all``: the standard has ``job_id``, ``job_status`` and ``status``, the rest is
    ours.
    """

    job_id: str = Field(default="", examples=["job-example"])
    job_status: State = ""
    status: dict[str, str] = Field(
        examples=[{"task_example": "RUNNING"}], description="task -> state"
    )
    outcome: str | None = None
    progress: int = Field(default=0, description="percent")
    failed_by: dict[str, Any] | None = Field(
        default=None, description="node, role, task and why, the same at every party"
    )
    scheduler: str = ""
    warnings: list[str] = []
    tasks: list[dict[str, Any]] = []


class JobList(Response):
    """``job/query_job_list``: the jobs that the queried node submitted, schedules or takes part
    in.
    """

    job_list: dict[str, str] = Field(
        examples=[{"job-example": "FINISHED"}], description="job -> state"
    )


class LogLines(Response):
    """``task/get_log_line``: how long a task's log is so far; ``over``: nothing more will come."""

    num: int = Field(description="lines")
    roles: list[Any]
    over: bool


class LogData(LogLines):
    """``task/get_log``: lines numbered from 0; ``start`` is the first of them, ``next`` where to
    continue.
    """

    data: str
    start: int
    next: int
    left_out: int  # requested lines that do not fit into this response
    parts: list[dict[str, Any]]


class AmendData(JobData):
    """``job/parameters``: the current version of the parameters."""

    version: int


class RerunData(JobData):
    """``job/rerun``: the new job, its first task, the tasks that it runs, and those whose outputs
    it takes over.
    """

    start: str = Field(serialization_alias="from")
    runs: list[str]
    inherits: list[str]


class PlanData(Response):
    """``job/plan``: everything that was checked, in the order of the job's life."""

    checks: list[Item]


class HelloSealing(Response):
    """How the queried node seals messages to the sender, and what it takes.

    The first two fields are about messages of containers.
    """

    mode: str = Field(examples=["required"], description="required, accepted or off")
    sealed_to: str = Field(description="the sender's key to which messages are sealed, if they are")
    key: str = Field(description="the queried node's sealing key; empty if it has none")
    control: str = Field(
        default="off",
        description="for control requests: required, accepted or off",
    )
    control_sealed_to: str = Field(
        default="",
        description="the sender's key to which control requests are sealed, if they are",
    )


class HelloData(Response):
    """``node/hello``: who the queried node is; ``time_ms`` is its clock, in milliseconds since
    1970.
    """

    node_id: str = Field(examples=["JG0100001100000010"])
    institution: str
    gateway: str  # version of its software
    protocol: str = Field(examples=["1.2.0"])
    knows_you: bool
    time_ms: int
    proof: str = Field(
        default="",
        description=(
            "what proves the sender's requests here: signature, certificate, fate (FATE's "
            "signature), off (nothing, by decision), local (nothing, as only this machine reaches "
            "the listener), or missing: they are refused; absent for an unknown sender"
        ),
    )
    sealing: HelloSealing | None = None


class OutputsData(Response):
    """``output/metadata``: what a task's outputs at the queried node are like."""

    outputs: list[dict[str, Any]] = Field(
        description="columns, count, size and address of each; never rows"
    )
