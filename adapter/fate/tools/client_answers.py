"""What the paths of FATE's tools answer in ``data``, for the interface description; a refusal is `Told`.

FATE-Flow documents each answer by an example only. The fields that its tools read are named here; others may
stand beside them.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from adapter.fate.answers import Told

JobId = Annotated[str, Field(examples=["job-0123456789abcdef0123456789abcdef"])]
PartyId = Annotated[str, Field(examples=["JG0100001100000010"])]
Role = Annotated[str, Field(examples=["guest"])]
Millis = Annotated[int | None, Field(description="milliseconds since 1970", examples=[1763798400000])]


class _Shown(BaseModel):
    model_config = ConfigDict(extra="allow", defer_build=True)


class Site(_Shown):
    """``site/info/query``: which party this node is."""

    party_id: PartyId


class Server(_Shown):
    """``server/fateflow``: where this gateway is, and its version."""

    instance_id: str
    host: str | None
    http_port: int | None
    version: str
    timestamp: Millis


class Submitted(_Shown):
    """``job/submit``: the version of a model that the job trains, or predicts with."""

    model_id: str | None = None
    model_version: str | None = None
    warnings: list[str] = Field(
        default_factory=list, description="parts of the description that mean nothing here"
    )


class PartyOf(_Shown):
    """A role of a job, and the parties that play it."""

    role: Role
    party_id: list[PartyId]


class JobRow(_Shown):
    """A job as one of its parties sees it."""

    job_id: JobId
    role: Role
    party_id: PartyId
    status: Annotated[str, Field(examples=["success"], description="FATE's words for states")]
    progress: int = Field(description="per cent of its tasks", examples=[100])
    protocol: Annotated[str, Field(examples=["fate"])]
    parties: list[PartyOf]
    scheduler_party_id: PartyId | None
    create_time: Millis
    update_time: Millis
    start_time: Millis
    end_time: Millis
    elapsed: Millis


class TaskRow(_Shown):
    """A task at one party."""

    job_id: JobId
    role: Role
    party_id: PartyId
    task_name: str
    task_id: str
    task_version: int
    component: str
    provider_name: str | None
    status: Annotated[str, Field(examples=["running"])]
    party_status: str
    error_report: str
    create_time: Millis
    start_time: Millis
    end_time: Millis


class Jobs(_Shown):
    """``job/list/query``: a page of jobs."""

    count: int = Field(description="of all pages")
    data: list[JobRow]


class Tasks(_Shown):
    """``job/task/list/query``: a page of tasks."""

    count: int = Field(description="of all pages")
    data: list[TaskRow]


class Rerun(_Shown):
    """``job/rerun``: the new job."""

    job_id: JobId
    rerun_of: JobId
    runs: list[str] = Field(description="tasks that run again")
    inherits: list[str] = Field(description="tasks whose outputs are taken over")


class Needs(_Shown):
    """``job/dag/dependency``: which components a job's tasks run."""

    component_list: list[str]
    component_module: dict[str, str]
    dependencies: dict[str, Any]


class DataView(_Shown):
    """``job/data/view``: what one party reads."""

    role: Role
    party_id: PartyId
    data_view: dict[str, dict[str, list[Any]]] = Field(description="role, then party id: its datasets")


class Thing(_Shown):
    """Something that is deleted, or would be."""

    kind: Annotated[str, Field(examples=["outputs"])]
    name: str
    bytes: int
    why: str
    removed: bool
    cause: str = Field(description="why it could not be removed")


class Deleted(_Shown):
    """What was taken away, or (``dry_run``) would be."""

    dry_run: bool
    items: list[Thing]


class LogLine(_Shown):
    """A line of a log; the number counts from 1."""

    line_num: int
    content: str


class Table(_Shown):
    """A table of this node; ``count`` is of its rows."""

    namespace: str
    name: str
    count: int


class TableInFull(Table):
    """A table of this node with what is written down about it."""

    meta: dict[str, Any] = Field(description="delimiter, label, columns and their types")
    data_type: str
    partitions: int
    disabled: bool


class Place(_Shown):
    """Where a table lies."""

    namespace: str
    name: str


class Rows(_Shown):
    """The first rows of a task's output; ``total`` is None where nobody counted them."""

    data: list[list[Any]]
    metadata: dict[str, Any]
    total: int | None


class MetricKey(_Shown):
    """Under which name and type a report of a task lies."""

    name: str
    type: str


class Metric(MetricKey):
    """A report of a task."""

    data: Any = Field(description="what the report says; its form is the component's")


_DATA: dict[str, Any] = {
    "/v2/site/info/query": Site,
    "/v2/server/fateflow": list[Server],
    "/v2/job/submit": Submitted,
    "/v2/job/query": list[JobRow],
    "/v2/job/list/query": Jobs,
    "/v2/job/rerun": Rerun,
    "/v2/job/task/query": list[TaskRow],
    "/v2/job/task/list/query": Tasks,
    "/v2/job/clean": Deleted,
    "/v2/job/queue/clean": dict[str, Any],
    "/v2/job/dag/dependency": Needs,
    "/v2/job/data/view": DataView,
    "/v2/log/count": int,
    "/v2/log/query": list[LogLine],
    "/v2/table/query": TableInFull,
    "/v2/data/component/upload": Table,
    "/v2/data/component/upload/file": Table,
    "/v2/output/data/table": dict[str, list[Place]],
    "/v2/output/data/display": dict[str, list[Rows]],
    "/v2/output/model/query": dict[str, Any],
    "/v2/output/model/delete": Deleted,
    "/v2/output/metric/delete": Deleted,
    "/v2/output/metric/key/query": list[MetricKey],
    "/v2/output/metric/query": list[Metric],
}
_BESIDE = ("/v2/job/submit", "/v2/job/rerun", "/v2/job/stop", "/v2/data/component/upload")
"""answers in which the job's id stands beside ``data``"""


def answer_of(path: str) -> type[BaseModel]:
    """Return what a path answers when it is done; of one that is not listed the envelope alone."""
    return _MODELS.get(path, Told)


def _model(path: str) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    if path in _DATA:
        fields["data"] = (_DATA[path], ...)
    if path.startswith(_BESIDE):
        fields["job_id"] = (JobId, ...)
    name = "".join(part.title() for part in path.removeprefix("/v2/").split("/"))
    return create_model(f"Fate{name}", __base__=Told, **fields)


_MODELS = {path: _model(path) for path in dict.fromkeys((*_DATA, "/v2/job/stop"))}
