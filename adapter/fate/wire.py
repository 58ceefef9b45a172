"""The bodies between nodes. Unknown fields are left aside, as FATE does; those that FATE does not have say so."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from provider_registry.model import unfit


class Body(BaseModel):
    """A body between nodes."""

    model_config = ConfigDict(extra="ignore")


def _fit(value: dict[str, Any]) -> dict[str, Any]:
    if problem := unfit(value):
        raise PydanticCustomError("unfit", "{rule}", {"rule": problem.rule})
    return value


def _or_empty(value: Any) -> Any:
    return {} if value is None else value


def _text_or_empty(value: Any) -> Any:
    return "" if value is None else value


Object = Annotated[dict[str, Any], BeforeValidator(_or_empty), AfterValidator(_fit)]
Text = Annotated[str, BeforeValidator(_text_or_empty), Field(max_length=255)]
"""A text in which null stands for the empty one."""
Id = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\x21-\x7e]+$")]
Version = Annotated[int, Field(ge=0, le=999_999)]
Failed = Annotated[dict[str, Any] | None, Field(description="ours: why; FATE has no such field")]


class Dag(Body):
    """``/v2/scheduler/job/create``: a job for this node to schedule."""

    dag: Object
    schema_version: Text
    kind: Text = "fate"


class Party(Body):
    """A job at one party: FATE tells each role of a node by itself."""

    job_id: Id
    role: Text
    party_id: Text


class CreateJob(Party):
    """``/v2/partner/job/create``: a job that one role of this node is to take part in."""

    dag: Object
    schema_version: Text
    kind: Text = "fate"


class StartJob(Party):
    """``/v2/partner/job/start``"""

    extra_info: Object = Field(default_factory=dict, description="``without`` (ours): parties that are left out")


class JobStatus(Party):
    """``/v2/partner/job/status/update``"""

    status: Text
    failed_by: Failed = None


class JobProgress(Party):
    """``/v2/partner/job/update``: ``progress`` in percent."""

    progress: float | None = None


class StopJob(Party):
    """``/v2/partner/job/stop``"""

    status: Text = Field(default="", description="ours: how the job ended; FATE tells it by status/update before")
    failed_by: Failed = None


class Task(Body):
    """A version of a task at one party."""

    job_id: Annotated[str, Field(max_length=100, pattern=r"^[\x21-\x7e]*$")]
    role: Text
    party_id: Text
    task_id: Text
    task_version: Version
    task_name: Text = Field(default="", description="ours: where the task's id does not tell it")


class TaskState(Task):
    """``/v2/partner/task/status/update``"""

    status: Text


class StopTask(Task):
    """``/v2/partner/task/stop``"""

    status: Text = ""
    newest: bool = Field(default=False, description="ours: whichever version runs")


class RerunTask(Task):
    """``/v2/partner/task/rerun``: a further version of a task is to come."""

    new_version: Version


class Report(Task):
    """``/v2/scheduler/task/report``"""

    status: Text
    failed_by: Failed = None


class StopAll(Body):
    """``/v2/scheduler/job/stop``"""

    job_id: Id
    stop_status: Text = ""


class RerunJob(Body):
    """``/v2/scheduler/job/rerun``; all but the job's id is ours."""

    job_id: Id
    new_job_id: Text = ""
    start: Text = Field(default="", alias="from")
    parameters: Object = Field(default_factory=dict)
