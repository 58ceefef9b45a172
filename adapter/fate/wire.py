"""The bodies between nodes; those fields that FATE does not have say so."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from adapter.fate.dag.wire import Wire
from provider_registry.model import unfit


def _fit(value: dict[str, Any]) -> dict[str, Any]:
    if problem := unfit(value):
        raise PydanticCustomError("unfit", "{rule}", {"rule": problem.rule})
    return value


Object = Annotated[dict[str, Any], AfterValidator(_fit)]
Text = Annotated[str, Field(max_length=255)]
Id = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\x21-\x7e]+$")]
Version = Annotated[int, Field(ge=0, le=999_999)]
Failed = Annotated[dict[str, Any] | None, Field(description="ours: why; FATE has no such field")]


class Dag(Wire):
    """``/v2/scheduler/job/create``: a job for this node to schedule."""

    dag: Object
    schema_version: Text = ""
    kind: Text = "fate"


class Party(Wire):
    """A job at one party: FATE sends each role of a node a request of its own."""

    job_id: Id
    role: Text = ""
    party_id: Text = ""


class CreateJob(Party, Dag):
    """``/v2/partner/job/create``: a job that one role of this node is to take part in."""


class StartJob(Party):
    """``/v2/partner/job/start``"""

    extra_info: Object = Field(default_factory=dict, description="``without`` (ours): parties that are left out")


class JobStatus(Party):
    """``/v2/partner/job/status/update``"""

    status: Text = ""
    failed_by: Failed = None


class JobProgress(Party):
    """``/v2/partner/job/update``: ``progress`` in percent."""

    progress: float | None = None


class StopJob(JobStatus):
    """``/v2/partner/job/stop``; how the job ended is ours, FATE reports it by status/update before."""


class Task(Party):
    """A version of a task at one party."""

    job_id: Annotated[str, Field(max_length=100, pattern=r"^[\x21-\x7e]*$")]
    task_id: Text = ""
    task_version: Version
    task_name: Text = Field(default="", description="ours: where the task's id does not contain it")


class TaskState(Task):
    """``/v2/partner/task/status/update``"""

    status: Text = ""


class StopTask(TaskState):
    """``/v2/partner/task/stop``"""

    newest: bool = Field(default=False, description="ours: whichever version runs")


class RerunTask(Task):
    """``/v2/partner/task/rerun``: a further version of a task is to come."""

    new_version: Version


class Report(TaskState):
    """``/v2/scheduler/task/report``"""

    failed_by: Failed = None


class StopAll(Wire):
    """``/v2/scheduler/job/stop``"""

    job_id: Id
    stop_status: Text = ""


class RerunJob(Wire):
    """``/v2/scheduler/job/rerun``; all but the job's id is ours."""

    job_id: Id
    new_job_id: Text = ""
    start: Text = Field(default="", alias="from")
    parameters: Object = Field(default_factory=dict)
