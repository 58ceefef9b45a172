"""The bodies of the control layer, requests and replies; no other file has these field names.

Reading is liberal: unknown fields are kept aside, the second spellings that peers use are accepted.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from provider_registry.model import unfit


class Body(BaseModel):
    """A body of the control layer; unknown fields are kept aside."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, coerce_numbers_to_str=False)


def _text_or_empty(value: Any) -> Any:
    return "" if value is None else value


Text = Annotated[str, BeforeValidator(_text_or_empty)]
"""A text in which null stands for the empty one, as some peers send it."""

Id = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\x21-\x7e]+$")]


def _dict_or_empty(value: Any) -> Any:
    return {} if value is None else value


def _fit(value: dict[str, Any]) -> dict[str, Any]:
    if problem := unfit(value):
        raise PydanticCustomError("unfit", "{rule}", {"rule": problem.rule})
    return value


Object = Annotated[dict[str, Any], BeforeValidator(_dict_or_empty), AfterValidator(_fit)]
"""Free content, within the bounds that also hold for descriptions: depth, number of values, amount of text."""

MOST_PARTIES = 1000
_MOST_ROLES = 50
_MOST_ENDS = 100
"""inputs, or outputs, of one component"""


def _few_roles(roles: Any) -> Any:
    if isinstance(roles, dict) and len(roles) > _MOST_ROLES:
        raise PydanticCustomError("roles", "must not name more than {most} roles", {"most": _MOST_ROLES})
    return roles


def _few_parties(roles: dict[str, list[str]]) -> dict[str, list[str]]:
    if sum(map(len, roles.values())) > MOST_PARTIES:
        raise PydanticCustomError("parties", "must not name more than {most} parties", {"most": MOST_PARTIES})
    return roles


class DagIo(Body):
    """An input (``key`` is ``<task>.<output key>``) or an output of a component."""

    type: str
    key: str


class DagComponent(Body):
    """A task of the flow (control layer, DAG): its name, what it runs, and where its data comes from and goes."""

    name: str
    component_name: str = Field(validation_alias=AliasChoices("componentName", "module_name"))
    provider: str = Field(validation_alias=AliasChoices("provider", "code"))
    version: str
    input: list[DagIo] = Field(
        default_factory=list, max_length=_MOST_ENDS, validation_alias=AliasChoices("input", "inputData")
    )
    output: list[DagIo] = Field(
        default_factory=list, max_length=_MOST_ENDS, validation_alias=AliasChoices("output", "outputData")
    )


class DagBody(Body):
    """The flow of a job."""

    components: list[DagComponent] = Field(max_length=1000)
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
        BeforeValidator(_few_roles),
        AfterValidator(_few_parties),
    ]
    job_params: Object = Field(default_factory=dict)
    task_params: Object = Field(default_factory=dict)
    version: str = "2.0.0"
    old_job_id: Text = Field(default="", max_length=100)
    """another place for `CreateAll.old_job_id`"""


class CreateAll(Body):
    """``POST /v1/platform/schedule/job/create_all`` (control layer 5.1)."""

    flow_id: Text = Field(default="", max_length=200)
    old_job_id: Text = Field(default="", max_length=100)
    """an extension that one peer sends: the job whose finished tasks are taken over"""
    dag: DagBody
    config: ConfigBody = Field(validation_alias=AliasChoices("config", "conf"))


class CreateJob(CreateAll):
    """``job/create_all`` and ``job/create`` between nodes (3.1, 3.2)."""

    job_id: Id


class JobId(Body):
    """``job/start`` (3.3)."""

    job_id: Id


class DeleteJob(JobId):
    """``job/delete``, an extension."""

    dry_run: bool = False


class StartJob(Body):
    """``job/start`` (3.3); ``without``, an extension, names parties that are left out."""

    job_id: Id
    without: list[Id] = Field(default_factory=list, max_length=MOST_PARTIES)


class SuspendJob(Body):
    """``job/suspend`` and ``job/resume``: extensions."""

    job_id: Id


class StartTask(Body):
    """``task/start`` (3.4)."""

    job_id: Id
    task_id: Id
    task_name: str


class Failed(Body):
    """Why a job or task failed: an extension field, equal at every party."""

    reason: str = ""
    message: Text = ""
    node: Text = ""
    role: Text = ""
    task: Text = ""
    exit_code: int | None = None


class ConfirmJob(Body):
    """``job/audit_confirm`` (3.10 of version 1.0): READY or REJECTED; why, as an extension."""

    job_id: Id
    status: str
    failed_by: Failed | None = None


class ApplyAudit(CreateJob):
    """``job/audit/apply`` of the management layer (8); what it prints as ``conf`` may be called ``config``."""

    audit_id: Id
    name: Text = Field(default="", max_length=200)
    project_id: Text = Field(default="", max_length=200)


class ConfirmAudit(Body):
    """``job/audit/confirm`` (management 8): APPROVED or REJECTED; a permit, object or text, may come with it."""

    audit_id: Id
    status: str
    resource_permit: Any = None
    failed_by: Failed | None = None


class TerminateAudit(Body):
    """``job/audit/terminate`` (management 8); how the job ended, and why, as an extension."""

    audit_id: Id
    outcome: Text = ""
    failed_by: Failed | None = None


class StopAll(Body):
    """``job/stop_all`` (3.5, 5.2): the whole job at every node, or one task and what follows it."""

    job_id: Id
    task_name: Text = ""


class RerunJob(Body):
    """``job/rerun``, an extension: an ended job is run again from a task on, as a new job."""

    job_id: Id
    new_job_id: Id
    start: Text = Field(default="", alias="from")
    parameters: Object = Field(default_factory=dict)


class StopTaskOfJob(Body):
    """``job/stop_task`` (5.7): one task, and what follows it, at every node."""

    job_id: Id
    task_name: str = Field(min_length=1)


class StopTask(Body):
    """``task/stop``: one task, and what follows it, at the node that is asked; of one peer, in no version."""

    task_id: Id


class StopJob(Body):
    """``job/stop`` (3.6): the whole job, or one task and what follows it."""

    job_id: Id
    task_name: Text = ""
    outcome: Text = ""
    failed_by: Failed | None = None


class PollTask(Body):
    """``task/poll`` (3.8)."""

    task_id: Id
    role: Text = ""


class ReportTask(Body):
    """``task/callback`` between nodes (3.9)."""

    task_id: Id
    status: str
    role: Text = ""
    failed_by: Failed | None = None


class ContainerCallback(Body):
    """``task/callback`` of a container (4.1)."""

    task_id: Text = ""
    status: str
    role: Text = ""
    result_code: Text = Field(default="", validation_alias=AliasChoices("result_code", "resultCode"))
    result_message: Text = Field(default="", validation_alias=AliasChoices("result_message", "resultMessage"))
