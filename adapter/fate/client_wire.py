"""What FATE's own tools send: parameters of GETs, bodies of POSTs."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from adapter.fate.dag_wire import Wire

LONGEST_NOTE = 2000
MOST_LISTED = 1000

_JOB = Field(min_length=1, max_length=100, description="the job's id")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Words = Annotated[list[str], BeforeValidator(_listed)]


class JobQuery(Wire):
    """``job/query``: every field narrows the answer."""

    job_id: str = ""
    role: str = ""
    party_id: str = ""
    status: str = Field(default="", description="FATE's word, such as success")


class JobListQuery(Wire):
    limit: int = Field(default=0, ge=0, le=MOST_LISTED, description="jobs of a page; 0: all, at most 1000")
    page: int = Field(default=1, ge=0, description="from 1")
    job_id: str = Field(default="", description="a part of the id")
    description: str = Field(default="", description="a part of the notes")
    partner: str = ""
    party_id: str = ""
    role: Words = Field(default_factory=list)
    status: Words = Field(default_factory=list)
    order_by: str = "create_time"
    order: str = "desc"


class TaskQuery(JobQuery):
    job_id: str = ""
    task_name: str = ""
    task_id: str = ""
    task_version: int | None = Field(default=None, ge=0, description="an attempt, from 0; else the newest")


class TaskListQuery(Wire):
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
    output_key: str = ""


class DeleteOutput(OfTask):
    dry_run: bool = False
    """only say what would be deleted; not of FATE"""


class LogQuery(Wire):
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


class JobId(Wire):
    job_id: str = _JOB


class CleanJob(JobId):
    dry_run: bool = False
    """only say what would be deleted; not of FATE"""


class CleanQueue(Wire):
    dry_run: bool = False
    """only say which jobs would be cancelled; not of FATE"""


class AddNotes(OfParty):
    notes: str = Field(max_length=LONGEST_NOTE)


class Table(Wire):
    namespace: str = Field(min_length=1)
    name: str = Field(min_length=1)


class TableQuery(Table):
    display: bool = Field(default=False, description="the first rows too")


class TableDownload(Table):
    header: str = Field(default="", description="false: without the line that names the columns")


class ComponentDownload(Table):
    path: str = ""
