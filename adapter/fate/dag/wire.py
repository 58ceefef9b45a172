"""The shape of FATE's job description (schema 2.x, kinds ``fate`` and ``bfia``), as FATE's own
client writes it.

Keys that are not listed are ignored, as FATE ignores them. Null means absent.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WrapValidator,
    model_validator,
)

from adapter.body import is_integer, with_few_errors, without_nulls

MOST = 1000  # entries of a list or an object: tasks, parties, artefacts of one task
GROUPS = ("data", "model", "metric")  # FATE's groups of outputs


def _as_text(value: Any) -> Any:
    """Return a whole number as text, and any other value unchanged.

    A pydantic validator: FATE writes ids and versions as numbers or as texts.
    """
    if is_integer(value):
        return str(value)
    return value


def _as_list(value: Any) -> list[Any]:
    """Return a list unchanged, and any other value as a list with that one entry.

    A pydantic validator: FATE omits the brackets of a list with one entry.
    """
    if isinstance(value, list):
        return value
    return [value]


def _none_if_empty(value: Any) -> Any:
    """Return None for an empty list, and any other value unchanged.

    A pydantic validator: FATE reads an empty list of parties as an absent one.
    """
    if value == []:
        return None
    return value


class Wire(BaseModel):
    """Base of the parts of FATE's description; null means absent."""

    model_config = ConfigDict(extra="ignore")

    _nulls = model_validator(mode="before")(without_nulls)


Id = Annotated[str, BeforeValidator(_as_text)]
Ids = Annotated[list[Id], BeforeValidator(_as_list), Field(max_length=MOST)]
Object = dict[str, Any]


class PartySpec(Wire):
    """A role and its parties, in the order of their index."""

    role: str
    party_id: Ids  # the node of each party


Parties = Annotated[list[PartySpec], Field(max_length=MOST)]
# The parties of a part of the job; None: no restriction
PartiesOfPart = Annotated[Parties | None, BeforeValidator(_none_if_empty)]


class Channel(Wire):
    """A source of an input: another task's output, a dataset, or the model of an earlier job.

    FATE has a type for each; the fields of the other two are empty here.
    """

    # Another task's output: the task, and the name and type of the output
    producer_task: str = ""
    output_artifact_key: str = ""
    output_artifact_type_alias: str = ""
    # A dataset, by its address or by its id
    namespace: str = ""
    name: str = ""
    dataset_id: str = ""
    # The model of an earlier job
    model_id: str = ""
    model_version: Id = ""
    parties: PartiesOfPart = None  # those that get the input; None: all parties of the task


Channels = Annotated[list[Channel], BeforeValidator(_as_list), Field(max_length=MOST)]


class Sources(Wire):
    """One input: its channels by the kind of their source."""

    task_output_artifact: Channels = Field(default_factory=list)
    data_warehouse: Channels = Field(default_factory=list)
    model_warehouse: Channels = Field(default_factory=list)


Artifacts = Annotated[dict[str, Sources], Field(max_length=MOST)]


class Inputs(Wire):
    """A task's inputs by name."""

    data: Artifacts = Field(default_factory=dict)
    model: Artifacts = Field(default_factory=dict)


class OutputSpec(Wire):
    """The name and type of an output in the flow."""

    output_artifact_key_alias: str = ""
    output_artifact_type_alias: str = ""


Produced = Annotated[
    dict[str, Annotated[list[OutputSpec], BeforeValidator(_as_list), Field(max_length=MOST)]],
    Field(max_length=MOST),
]


class Outputs(Wire):
    """A task's outputs by name."""

    data: Produced = Field(default_factory=dict)
    model: Produced = Field(default_factory=dict)
    metric: Produced = Field(default_factory=dict)


class TaskSpec(Wire):
    """A task: its component, parameters, inputs, outputs, parties and predecessors."""

    component_ref: str
    dependent_tasks: list[str] = Field(
        default_factory=list,
        max_length=MOST,
    )
    parameters: Object = Field(default_factory=dict)
    inputs: Inputs = Field(default_factory=Inputs)
    outputs: Outputs | None = None
    parties: PartiesOfPart = None  # None: all parties of the job
    conf: Object = Field(default_factory=dict)  # settings of this task alone
    stage: str = ""


class PartyTask(Wire):
    """Parameters and settings of a task at some parties only."""

    parameters: Object = Field(default_factory=dict)
    conf: Object = Field(default_factory=dict)


class PartyTasks(Wire):
    """Settings of the job and parameters of tasks for some parties only."""

    parties: Parties = Field(default_factory=list)
    tasks: dict[str, PartyTask] = Field(default_factory=dict)
    conf: Object = Field(default_factory=dict)


class Inheritance(Wire):
    """The earlier job whose finished tasks this job takes over."""

    job_id: str
    task_list: list[str] = Field(
        default_factory=list,
        max_length=MOST,
    )


class ModelWarehouse(Wire):
    """The model that a prediction uses."""

    model_id: str
    model_version: Id


class Initiator(Wire):
    """The party that started the job."""

    role: str
    party_id: Id


class Extra(Wire):
    """Fields of the standard that FATE does not have, under ``conf.extra``."""

    flow_id: str = ""
    old_job_id: str = ""
    initiator: Initiator | None = None
    standard: Object | None = None  # the job in the standard's form, from a gateway like this one


class TaskConf(Wire):
    """Settings that hold for every task of the job."""

    model_config = ConfigDict(extra="allow")

    provider: str = ""
    timeout: Any = None


class JobConf(Wire):
    """Settings of the job; further ones, which are read by name, are kept as extra fields."""

    model_config = ConfigDict(extra="allow")

    initiator_party_id: Id = ""
    scheduler_party_id: Id = ""
    inheritance: Inheritance | None = None
    model_warehouse: ModelWarehouse | None = None
    model_id: str = ""
    model_version: Id = ""
    extra: Extra = Field(default_factory=Extra)
    task: TaskConf = Field(default_factory=TaskConf)


class DagSpec(Wire):
    """A job: its parties, settings and tasks."""

    parties: Parties
    conf: JobConf = Field(default_factory=JobConf)
    stage: str = ""
    tasks: dict[str, TaskSpec] = Field(max_length=MOST)
    party_tasks: dict[str, PartyTasks] = Field(
        default_factory=dict,
        max_length=MOST,
    )


class DagSchema(Wire):
    """A job with the version and the kind of its description."""

    dag: Annotated[DagSpec, WrapValidator(with_few_errors)]
    schema_version: Id = ""
    kind: Literal["fate", "bfia"] = "fate"
