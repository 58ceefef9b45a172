"""What the standard's paths, and ours between nodes, answer: for the interface description."""

from typing import Annotated, Any

from fastapi.openapi.models import Example
from pydantic import BaseModel, ConfigDict, Field

# Examples for the interface description: small bodies that a fresh node accepts, one after the other.
#
# `JOB` and `TASK` are made up by those who send them. Where this node makes an id itself, one of ours stands for
# it.

JOB = "job-example"
JOB_HERE = "job-scheduled-here"
"""a job that this node schedules for another"""
JOB_ASKED = "job-asked-about"
"""a job that another node asks about before it creates it here"""
AUDIT = "audit_example"
AUDIT_HERE = f"audit_{JOB_HERE}"
"""this node's own question about the job that it schedules"""
TASK = "task_example"
TASK_HERE = "task_scheduled_here"
"""a task of such a job; its id is made by this node"""
_NAME = "echo_1"

_DESCRIPTION: dict[str, Any] = {
    "componentName": "Echo",
    "title": "Echo",
    "provider": "example",
    "version": "1.0.0",
    "description": "Copies its input.",
    "roleList": ["guest", "host"],
    "desVersion": "1.3.0",
    "storageEngine": ["file"],
    "inputParam": [],
    "inputData": [{"name": "train_data", "description": "table", "category": "dataset", "dataFormat": ["csv"]}],
    "outputData": [{"name": "train_data", "description": "table", "category": "dataset", "dataFormat": ["csv"]}],
    "result": [{"resultCode": "00000000", "resultMessage": "ok"}],
}

REGISTER: dict[str, Example] = {
    "one component": Example(
        summary="A provider with one component",
        value={
            "name": "example",
            "device": "docker",
            "version": "1.0.0",
            "metadata": {"base_url": "", "image": "example:1.0.0"},
            "protocol": "bfia",
            "components_description": {"Echo": _DESCRIPTION},
        },
    )
}

REGISTER_COMPONENT: dict[str, Example] = {
    "one component": Example(
        summary="One component of an image",
        value={"imageUrl": "example:1.0.0", "component_info": _DESCRIPTION},
    )
}

_BODY: dict[str, Any] = {
    "flow_id": "my-flow",
    "dag": {
        "version": "2.0",
        "components": [
            {
                "name": _NAME,
                "componentName": "Echo",
                "provider": "example",
                "version": "1.0.0",
                "input": [],
                "output": [{"type": "dataset", "key": "data0"}],
            }
        ],
    },
    "config": {
        "version": "2.0.0",
        "initiator": {"role": "guest", "node_id": "JG0100001100000010"},
        "role": {"guest": ["JG0100001100000010"], "host": ["JG0100001100000010"]},
        "job_params": {"common": {"sync_type": "poll"}},
        "task_params": {"common": {}},
    },
}

CREATE_ALL: dict[str, Example] = {"two parties": Example(summary="One task at a guest and a host", value=_BODY)}

A_JOB: dict[str, Any] = _BODY


def _one(summary: str, **value: Any) -> dict[str, Example]:
    return {summary.lower(): Example(summary=summary, value=value)}


_OF_A_PEER = _BODY["config"] | {
    "initiator": {"role": "guest", "node_id": "JG0100001100000011"},
    "role": {"guest": ["JG0100001100000011"], "host": ["JG0100001100000010"]},
}
SUBMIT_JOB = _one("A job of two parties", **(_BODY | {"config": _OF_A_PEER}), job_id=JOB_HERE)
CREATE_JOB = _one("A job of two parties", **_BODY, job_id=JOB)
START_JOB = _one("A job", job_id=JOB)
DELETE_JOB = _one("A job", job_id=JOB, dry_run=True)
OUTPUT_METADATA = _one("All outputs of a task at a role", job_id=JOB, task_name=_NAME, role="guest")
START_TASK = _one("A task of a job", job_id=JOB, task_id=TASK, task_name=_NAME)
POLL_TASK = _one("One role of a task", task_id=TASK, role="guest")
REPORT_TASK = _one("One role of a task", task_id=TASK_HERE, status="RUNNING", role="guest")
STATUS_ALL: dict[str, Any] = {"job_id": JOB_HERE}
STOP_TASK = _one("A task", task_id=TASK)
CONFIRM_JOB = _one("Agreed", job_id=JOB_HERE, status="READY")
APPLY_AUDIT = _one(
    "A job of two parties",
    **{k: v for k, v in _BODY.items() if k != "config"},
    audit_id=AUDIT,
    job_id=JOB_ASKED,
    name="my flow",
    project_id="my-project",
    conf=_BODY["config"],
)
CONFIRM_AUDIT = _one("Approved", audit_id=AUDIT_HERE, status="APPROVED")
TERMINATE_AUDIT = _one("A question", audit_id=AUDIT)
SUSPEND_JOB = _one("A job", job_id=JOB_HERE)
STOP_JOB = _one("A whole job", job_id=JOB, outcome="STOPPED")
STOP_ALL = _one("A whole job", job_id=JOB_HERE)
RERUN = _one("From a task", job_id=JOB_HERE, new_job_id="job-again", **{"from": _NAME})
STOP_TASK_OF_JOB = _one("A task of a job", job_id=JOB_HERE, task_name=_NAME)
CALLBACK = _one("A container that has begun", task_id=TASK, status="RUNNING", role="guest")
DELETE = _one("A version of a provider", name="example", version="1.0.0")


_SCHEDULES = ("/v1/platform/schedule", "/v1/interconn/schedule")
_AUDIT = "/v1/interconn/job/audit"
_OWN = ("/v2/provider", "/v2/component")
JobId = Annotated[str, Field(examples=[JOB])]
State = Annotated[str, Field(examples=["RUNNING"])]


class Said(BaseModel):
    """More fields than these may come."""

    model_config = ConfigDict(extra="allow", defer_build=True)


class Nothing(Said):
    """No data."""


class Envelope(Said):
    """What every path of the control layer answers; each path's own answer says more of ``data``."""

    code: int = Field(examples=[0], description="0, or why not; to profile kuscia 200 for 0")
    msg: str = Field(examples=["success"])
    data: Nothing


class JobData(Said):
    """Which job the answer is about."""

    job_id: JobId


class OfJob(Envelope):
    """An answer that names the job; ``create_all`` tells its id by it."""

    data: JobData  # type: ignore[assignment]


class StatusData(Said):
    """How a job stands; the standard has ``job_id``, ``job_status`` and ``status``, the rest is ours."""

    job_id: JobId
    job_status: State
    status: dict[str, str] = Field(examples=[{"task_example": "RUNNING"}], description="task -> state")
    outcome: str | None
    progress: int = Field(description="percent")
    failed_by: dict[str, Any] | None = Field(description="node, role, task and why, the same at every party")
    scheduler: str
    warnings: list[str]
    tasks: list[dict[str, Any]]


class OfStatus(Envelope):
    """``job/status_all``."""

    data: StatusData  # type: ignore[assignment]


class PollData(Said):
    """The state of a task at the asked node, all its roles or one taken together."""

    status: State


class OfPoll(Envelope):
    """``task/poll``."""

    data: PollData  # type: ignore[assignment]


class ListData(Said):
    """The jobs that the asked node submitted, schedules or takes part in."""

    job_list: dict[str, str] = Field(examples=[{JOB: "FINISHED"}], description="job -> state")


class OfList(Envelope):
    """``job/query_job_list``."""

    data: ListData  # type: ignore[assignment]


class LineData(Said):
    """How long a task's log is so far; ``over``: nothing more will come."""

    num: int = Field(description="lines")
    roles: list[Any]
    over: bool


class OfLines(Envelope):
    """``task/get_log_line``."""

    data: LineData  # type: ignore[assignment]


class LogData(LineData):
    """Lines of a task's log, numbered from 0: ``start`` is the first of these, ``next`` where to ask on."""

    data: str
    start: int
    next: int
    left_out: int
    parts: list[dict[str, Any]]


class OfLog(Envelope):
    """``task/get_log``."""

    data: LogData  # type: ignore[assignment]


class RerunData(JobData):
    """The new job: from which task on it runs, what it runs, and whose outputs it takes over."""

    start: str = Field(alias="from")
    runs: list[str]
    inherits: list[str]


class OfRerun(Envelope):
    """``job/rerun``, an extension."""

    data: RerunData  # type: ignore[assignment]


class Check(Said):
    """One thing that was looked at before a job: how it stands, and what to do where it does not."""

    check: str
    about: str
    standing: str
    found: str
    cause: str
    remedy: str


class PlanData(Said):
    """All that was looked at, in the order in which the asked node would come to it."""

    checks: list[Check]


class OfPlan(Envelope):
    """``job/plan``, an extension."""

    data: PlanData  # type: ignore[assignment]


class HelloData(Said):
    """Who the asked node is; ``time_ms`` is its clock, in milliseconds since 1970."""

    node_id: str = Field(examples=["JG0100001100000010"])
    institution: str
    gateway: str
    protocol: str = Field(examples=["1.2.0"])
    knows_you: bool
    time_ms: int


class OfHello(Envelope):
    """``node/hello``, an extension."""

    data: HelloData  # type: ignore[assignment]


class AuditData(Said):
    """What has become of a question whether a node takes part in a job."""

    status: State


class OfAudit(Envelope):
    """``job/audit/query``, an extension."""

    data: AuditData  # type: ignore[assignment]


class Own(Said):
    """The user's own interface says ``message``."""

    code: int = Field(examples=[0])
    message: str = Field(examples=["success"])


class OwnList(Own):
    """A query of the user's own interface."""

    data: list[dict[str, Any]]


class OutputsData(Said):
    """What a task's outputs at the asked node are like."""

    outputs: list[dict[str, Any]] = Field(description="columns, count, size and address of each; never rows")


class OfOutputs(Envelope):
    """``output/metadata``, an extension."""

    data: OutputsData  # type: ignore[assignment]


class Reason(Said):
    """Why something was refused, and every problem of the request with its path."""

    reason: str = Field(examples=["JOB_UNKNOWN"], description="stable; docs/reasons.md explains each")
    problems: list[dict[str, Any]] = Field(default_factory=list)


class Refusal(Said):
    """HTTP 200 for what a known path decides; 404, 405, 413, 500 and 503 are real."""

    code: int = Field(examples=[404])
    msg: str = Field(examples=["JOB_UNKNOWN: no job by that id"])
    data: Reason


class OwnRefusal(Own):
    """How the user's own interface refuses."""

    data: Reason


class ChannelRefusal(Said):
    """How the transport refuses: its codes are texts, ``E0000000`` and three digits."""

    code: str = Field(examples=["E0000000404"])
    message: str


_BY_END: tuple[tuple[str, type[BaseModel]], ...] = (
    ("/job/create_all", OfJob),
    ("/job/create", OfJob),
    ("/job/status_all", OfStatus),
    ("/job/query_job_list", OfList),
    ("/job/plan", OfPlan),
    ("/job/rerun", OfRerun),
    ("/task/poll", OfPoll),
    ("/task/get_log_line", OfLines),
    ("/task/get_log", OfLog),
    ("/node/hello", OfHello),
    ("/output/metadata", OfOutputs),
)
_WITHOUT_DATA = (
    *(f"/job/{word}" for word in ("start", "stop", "stop_all", "stop_task", "suspend", "resume", "delete")),
    *(f"/job/resource/{word}" for word in ("apply", "free", "return")),
    *("/job/audit_confirm", "/task/start", "/task/stop", "/task/callback", "/component/register"),
)


def answer_of(path: str) -> type[BaseModel] | None:
    """Return what a path answers; None for one that is not of this table."""
    if path == f"{_AUDIT}/query":
        return OfAudit
    if path.startswith(_AUDIT):
        return Envelope
    if path.startswith(_SCHEDULES):
        found = next((model for end, model in _BY_END if path.endswith(end)), None)
        return found or (Envelope if path.endswith(_WITHOUT_DATA) else None)
    if path.startswith(_OWN) and "upload" not in path and "download" not in path:
        return OwnList if path.endswith("/query") else Own
    return None


def refusal_of(path: str) -> type[BaseModel]:
    """Return how a path of this protocol refuses."""
    return OwnRefusal if path.startswith(_OWN) else ChannelRefusal if "/chan/" in path else Refusal
