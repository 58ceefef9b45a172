"""Bodies, queries and responses of the paths for FATE's own tools.

FATE-Flow documents each response by an example only.
"""

from typing import Annotated, Any

from fastapi.openapi.models import Example
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from adapter.fate.dag.wire import Wire

LONGEST_NOTE = 2000
MOST_LISTED = 1000

_JOB = Field(min_length=1, max_length=100, description="the job's id")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Texts = Annotated[list[str], BeforeValidator(_listed)]


class JobQuery(Wire):
    """``job/query``: every field narrows the answer."""

    job_id: str = ""
    role: str = ""
    party_id: str = ""
    status: str = Field(default="", description="FATE's word, such as success")


class JobListQuery(Wire):
    """``job/list/query``: a page of jobs; every field that is given narrows it."""

    limit: int = Field(default=0, ge=0, le=MOST_LISTED, description="jobs of a page; 0: all, at most 1000")
    page: int = Field(default=1, ge=0, description="from 1")
    job_id: str = Field(default="", description="a part of the id")
    description: str = Field(default="", description="a part of the notes")
    partner: str = ""
    party_id: str = ""
    role: Texts = Field(default_factory=list)
    status: Texts = Field(default_factory=list)
    order_by: str = "create_time"
    order: str = "desc"


class TaskQuery(JobQuery):
    """``job/task/query``: every field narrows the answer."""

    job_id: str = ""
    task_name: str = ""
    task_id: str = ""
    task_version: int | None = Field(default=None, ge=0, description="an attempt, from 0; else the newest")


class TaskListQuery(Wire):
    """``job/task/list/query``: a page of a job's tasks; ``limit`` 0 is all of them."""

    limit: int = Field(default=0, ge=0, le=MOST_LISTED)
    page: int = Field(default=1, ge=0)
    job_id: str = _JOB
    role: str = ""
    party_id: str = ""
    task_name: str = ""
    order_by: str = "create_time"
    order: str = "desc"


class OfParty(Wire):
    """One party's part of a job."""

    job_id: str = _JOB
    role: str = Field(min_length=1)
    party_id: str = Field(min_length=1)


class OfTask(OfParty):
    """One party's part of a task."""

    task_name: str = Field(min_length=1)


class OutputOfTask(OfTask):
    """One output of a task at one party, or (key empty) all."""

    output_key: str = ""


class DeleteOutput(OfTask):
    """What a task left at one party is to be deleted."""

    dry_run: bool = False
    """only say what would be deleted; not of FATE"""


class LogQuery(Wire):
    """``log/count`` and ``log/query``: lines of one log of a job."""

    log_type: str = Field(
        description="task_error, task_warning, task_info or task_debug; schedule_info or schedule_error"
    )
    job_id: str = _JOB
    role: str = ""
    party_id: str = ""
    task_name: str = Field(default="", description="else of all tasks, one after the other")
    begin: int = Field(default=0, ge=0, description="number of the first line, from 1")
    end: int = Field(default=0, ge=0, description="number of the last line; 0: all there are")


class Submit(Wire):
    """``job/submit``: FATE 2's description, or in its place FATE 1's ``dsl`` and ``runtime_conf``."""

    dag_schema: dict[str, Any] = Field(default_factory=dict)
    dsl: dict[str, Any] | None = None
    runtime_conf: dict[str, Any] | None = None


class JobIdRequest(Wire):
    """A path that asks for a job and nothing more."""

    job_id: str = _JOB


class CleanJob(JobIdRequest):
    """``job/clean``: an ended job is to be deleted."""

    dry_run: bool = False
    """only say what would be deleted; not of FATE"""


class CleanQueue(Wire):
    """``job/queue/clean``: jobs of which nothing runs yet are to be cancelled."""

    dry_run: bool = False
    """only say which jobs would be cancelled; not of FATE"""


class AddNotes(OfParty):
    """``job/notes/add``: what somebody wants remembered about a job."""

    notes: str = Field(max_length=LONGEST_NOTE)


class TableRequest(Wire):
    """A table of this node."""

    namespace: str = Field(min_length=1)
    name: str = Field(min_length=1)


class TableQuery(TableRequest):
    """``table/query``."""

    display: bool = Field(default=False, description="the first rows too")


class TableDownload(TableRequest):
    """``data/download``: a table as a file."""

    header: str = Field(default="", description="false: without the line that names the columns")


class ComponentDownload(TableRequest):
    """``data/component/download``: a table into a folder of this server."""

    path: str = ""


_GUEST, _HOST = "JG0100001100000010", "JG0100002200000020"
_PARTIES = [{"role": "guest", "party_id": [_GUEST]}, {"role": "host", "party_id": [_HOST]}]

DAG_SCHEMA: dict[str, Any] = {
    "kind": "bfia",
    "schema_version": "2.2.0",
    "dag": {
        "conf": {"extra": {"initiator": {"role": "guest", "party_id": _GUEST}}},
        "parties": _PARTIES,
        "stage": "train",
        "tasks": {
            "intersect_rsa_1": {
                "component_ref": "Intersection",
                "conf": {"provider": "unionpay", "version": "2.0.0"},
                "parameters": {"id": "id", "intersect_method": "rsa"},
                "inputs": {
                    "data": {
                        "train_data": {
                            "data_warehouse": [
                                {"dataset_id": "testspace#test_guest", "parties": _PARTIES[:1]},
                                {"dataset_id": "testspace#test_host", "parties": _PARTIES[1:]},
                            ]
                        }
                    }
                },
            }
        },
    },
}
"""A job of one task, as FATE's pipeline writes it"""

SUBMIT = {"one task": Example(summary="An intersection of two parties", value={"dag_schema": DAG_SCHEMA})}


JobId = Annotated[str, Field(examples=["job-0123456789abcdef0123456789abcdef"])]
PartyId = Annotated[str, Field(examples=["JG0100001100000010"])]
Role = Annotated[str, Field(examples=["guest"])]
Millis = Annotated[int | None, Field(description="milliseconds since 1970", examples=[1763798400000])]


class _Shown(BaseModel):
    """Names the fields that FATE's tools read; others may be present."""

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
    component: str | None
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
    """Something that was deleted, or would be."""

    kind: Annotated[str, Field(examples=["outputs"])]
    name: str
    bytes: int
    why: str
    removed: bool
    cause: str = Field(description="why it could not be removed")


class Deleted(_Shown):
    """What was deleted, or (``dry_run``) would be."""

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
    """A table of this node with its metadata."""

    meta: dict[str, Any] = Field(description="delimiter, label, columns and their types")
    data_type: str
    partitions: int
    disabled: bool


class TableName(_Shown):
    """A table's name."""

    namespace: str
    name: str


class Rows(_Shown):
    """The first rows of a task's output; ``total`` is null if unknown."""

    data: list[list[Any]]
    metadata: dict[str, Any]
    total: int | None


class MetricKey(_Shown):
    """Name and type of a task's report."""

    name: str
    type: str


class Metric(MetricKey):
    """A report of a task; the form of ``data`` is the component's."""

    data: Any
