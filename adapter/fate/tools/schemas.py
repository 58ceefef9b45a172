"""Bodies and queries of the paths for FATE's own tools."""

from typing import Annotated, Any, Literal

from fastapi.openapi.models import Example
from pydantic import BeforeValidator, Field

from adapter.fate.dag.wire import DagSchema, Wire, listed

LONGEST_NOTE = 2000
MOST_LISTED = 1000

_JOB = Field(min_length=1, max_length=100, description="the job's id")
Texts = Annotated[list[str], BeforeValidator(listed)]


class JobQuery(Wire):
    """``job/query``: every field narrows the response."""

    job_id: str = ""
    role: str = ""
    party_id: str = ""
    status: str = Field(default="", description="FATE's word, such as success")


class Paged(Wire):
    """A page of what there is."""

    limit: int = Field(default=0, ge=0, le=MOST_LISTED, description="rows of a page; 0: all, at most 1000")
    page: int = Field(default=1, ge=0, description="from 1")
    order_by: str = "create_time"
    order: Literal["asc", "desc"] = "desc"


class JobListQuery(Paged):
    """``job/list/query``: a page of jobs; every field that is given narrows it."""

    job_id: str = Field(default="", description="a part of the id")
    description: str = Field(default="", description="a part of the notes")
    partner: str = ""
    party_id: str = ""
    role: Texts = Field(default_factory=list)
    status: Texts = Field(default_factory=list)


class TaskQuery(JobQuery):
    """``job/task/query``: every field narrows the response."""

    task_name: str = ""
    task_id: str = ""
    task_version: int | None = Field(default=None, ge=0, description="an attempt, from 0; else the newest")


class TaskListQuery(Paged):
    """``job/task/list/query``: a page of a job's tasks."""

    job_id: str = _JOB
    role: str = ""
    party_id: str = ""
    task_name: str = ""


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

    log_type: Literal["task_debug", "task_info", "task_warning", "task_error", "schedule_info", "schedule_error"]
    job_id: str = _JOB
    role: str = ""
    party_id: str = ""
    task_name: str = Field(default="", description="else of all tasks, one after the other")
    begin: int = Field(default=0, ge=0, description="number of the first line, from 1")
    end: int = Field(default=0, ge=0, description="number of the last line; 0: all there are")


class Submit(Wire):
    """``job/submit``"""

    dag_schema: DagSchema


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
    """``job/notes/add``: a note about a job."""

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


_SITES = (("guest", "JG0100001100000010"), ("host", "JG0100002200000020"))
_PARTIES = [{"role": role, "party_id": [at]} for role, at in _SITES]
_DATASETS = [{"dataset_id": f"testspace#test_{p['role']}", "parties": [p]} for p in _PARTIES]
_TASK: dict[str, Any] = {
    "component_ref": "Intersection",
    "conf": {"provider": "unionpay", "version": "2.0.0"},
    "parameters": {"id": "id", "intersect_method": "rsa"},
    "inputs": {"data": {"train_data": {"data_warehouse": _DATASETS}}},
}
DAG_SCHEMA: dict[str, Any] = {
    "kind": "bfia",
    "schema_version": "2.2.0",
    "dag": {
        "conf": {"extra": {"initiator": {"role": "guest", "party_id": "JG0100001100000010"}}},
        "parties": _PARTIES,
        "stage": "train",
        "tasks": {"intersect_rsa_1": _TASK},
    },
}
"""A job of one task, as FATE's pipeline writes it"""

SUBMIT = {"one task": Example(summary="An intersection of two parties", value={"dag_schema": DAG_SCHEMA})}
