"""What FATE's own tools send: parameters of GETs, bodies of POSTs."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from adapter.fate.dag.wire import Wire

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
    """``job/list/query``: a page of jobs; every field that is given narrows it."""

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


class JobId(Wire):
    """A path that asks for a job and nothing more."""

    job_id: str = _JOB


class CleanJob(JobId):
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


class Table(Wire):
    """A table of this node."""

    namespace: str = Field(min_length=1)
    name: str = Field(min_length=1)


class TableQuery(Table):
    """``table/query``."""

    display: bool = Field(default=False, description="the first rows too")


class TableDownload(Table):
    """``data/download``: a table as a file."""

    header: str = Field(default="", description="false: without the line that names the columns")


class ComponentDownload(Table):
    """``data/component/download``: a table into a folder of this server."""

    path: str = ""
