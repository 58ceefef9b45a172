"""What the standard's paths, and ours between nodes, answer: for the interface description."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from adapter.bfia.examples import JOB

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
    code: int = Field(examples=[0], description="0, or why not; to profile kuscia 200 for 0")
    msg: str = Field(examples=["success"])
    data: Nothing


class JobData(Said):
    job_id: JobId


class OfJob(Envelope):
    data: JobData  # type: ignore[assignment]


class StatusData(Said):
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
    data: StatusData  # type: ignore[assignment]


class PollData(Said):
    status: State


class OfPoll(Envelope):
    data: PollData  # type: ignore[assignment]


class ListData(Said):
    job_list: dict[str, str] = Field(examples=[{JOB: "FINISHED"}], description="job -> state")


class OfList(Envelope):
    data: ListData  # type: ignore[assignment]


class LineData(Said):
    num: int = Field(description="lines")
    roles: list[Any]
    over: bool


class OfLines(Envelope):
    data: LineData  # type: ignore[assignment]


class LogData(LineData):
    data: str
    start: int
    next: int
    left_out: int
    parts: list[dict[str, Any]]


class OfLog(Envelope):
    data: LogData  # type: ignore[assignment]


class RerunData(JobData):
    start: str = Field(alias="from")
    runs: list[str]
    inherits: list[str]


class OfRerun(Envelope):
    data: RerunData  # type: ignore[assignment]


class Check(Said):
    check: str
    about: str
    standing: str
    found: str
    cause: str
    remedy: str


class PlanData(Said):
    checks: list[Check]


class OfPlan(Envelope):
    data: PlanData  # type: ignore[assignment]


class HelloData(Said):
    node_id: str = Field(examples=["JG0100001100000010"])
    institution: str
    gateway: str
    protocol: str = Field(examples=["1.2.0"])
    knows_you: bool
    time_ms: int


class OfHello(Envelope):
    data: HelloData  # type: ignore[assignment]


class AuditData(Said):
    status: State


class OfAudit(Envelope):
    data: AuditData  # type: ignore[assignment]


class Own(Said):
    """The user's own interface says ``message``."""

    code: int = Field(examples=[0])
    message: str = Field(examples=["success"])


class OwnList(Own):
    data: list[dict[str, Any]]


class OutputsData(Said):
    outputs: list[dict[str, Any]] = Field(description="columns, count, size and address of each; never rows")


class OfOutputs(Envelope):
    data: OutputsData  # type: ignore[assignment]


class Reason(Said):
    reason: str = Field(examples=["JOB_UNKNOWN"], description="stable; docs/reasons.md explains each")
    problems: list[dict[str, Any]] = Field(default_factory=list)


class Refusal(Said):
    """HTTP 200 for what a known path decides; 404, 405, 413, 500 and 503 are real."""

    code: int = Field(examples=[404])
    msg: str = Field(examples=["JOB_UNKNOWN: no job by that id"])
    data: Reason


class OwnRefusal(Own):
    data: Reason


class ChannelRefusal(Said):
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
