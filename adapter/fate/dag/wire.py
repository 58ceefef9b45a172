"""The shapes of FATE's job description (schema 2.x, kinds ``fate`` and ``bfia``), as FATE's own client writes it.

Keys that are not listed are ignored, as FATE ignores them; null and absent are the same.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from adapter.body import without_nulls

MOST = 1000
"""tasks, parties, or artefacts of one task"""

GROUPS = ("data", "model", "metric")


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def listed(value: Any) -> Any:
    """Return a single value as a list of one."""
    return value if isinstance(value, list) else [value]


class Wire(BaseModel):
    """A part of FATE's description; null is absent."""

    model_config = ConfigDict(extra="ignore")

    _nulls = model_validator(mode="before")(without_nulls)


Id = Annotated[str, BeforeValidator(_text)]
Ids = Annotated[list[Id], BeforeValidator(listed), Field(max_length=MOST)]
Object = dict[str, Any]


class PartySpec(Wire):
    """A role, and the parties that play it, in the order of their index."""

    role: str
    party_id: Ids


Parties = Annotated[list[PartySpec], Field(max_length=MOST)]


class Channel(Wire):
    """Where an input comes from: another task's output, a dataset, or a model that an earlier job left."""

    producer_task: str = ""
    output_artifact_key: str = ""
    output_artifact_type_alias: str = ""
    namespace: str = ""
    name: str = ""
    dataset_id: str = ""
    model_id: str = ""
    model_version: Id = ""
    parties: Parties | None = None


Channels = Annotated[list[Channel], BeforeValidator(listed), Field(max_length=MOST)]


class Sources(Wire):
    """One input: its channels, by where they come from."""

    task_output_artifact: Channels = Field(default_factory=list)
    data_warehouse: Channels = Field(default_factory=list)
    model_warehouse: Channels = Field(default_factory=list)


Artifacts = Annotated[dict[str, Sources], Field(max_length=MOST)]


class Inputs(Wire):
    """A task's inputs by name."""

    data: Artifacts = Field(default_factory=dict)
    model: Artifacts = Field(default_factory=dict)


class OutputSpec(Wire):
    """What an output is called by those who take it."""

    output_artifact_key_alias: str = ""
    output_artifact_type_alias: str = ""


Produced = Annotated[
    dict[str, Annotated[list[OutputSpec], BeforeValidator(listed), Field(max_length=MOST)]],
    Field(max_length=MOST),
]


class Outputs(Wire):
    """A task's outputs by name."""

    data: Produced = Field(default_factory=dict)
    model: Produced = Field(default_factory=dict)
    metric: Produced = Field(default_factory=dict)


class TaskSpec(Wire):
    """A task: the component it runs, with what, for whom, and after which tasks."""

    component_ref: str
    dependent_tasks: list[str] = Field(default_factory=list, max_length=MOST)
    parameters: Object = Field(default_factory=dict)
    inputs: Inputs = Field(default_factory=Inputs)
    outputs: Outputs | None = None
    parties: Parties | None = None
    conf: Object = Field(default_factory=dict)
    stage: str = ""


class PartyTask(Wire):
    """What a task is given at some parties only."""

    parameters: Object = Field(default_factory=dict)
    conf: Object = Field(default_factory=dict)


class PartyTasks(Wire):
    """What only some parties get: settings of the job there, and parameters of tasks."""

    parties: Parties = Field(default_factory=list)
    tasks: dict[str, PartyTask] = Field(default_factory=dict)
    conf: Object = Field(default_factory=dict)


class Inheritance(Wire):
    """The earlier job whose finished tasks stand for tasks of this one."""

    job_id: str
    task_list: list[str] = Field(default_factory=list, max_length=MOST)


class ModelWarehouse(Wire):
    """The model that a prediction uses."""

    model_id: str
    model_version: Id


class Initiator(Wire):
    """Who began the job."""

    role: str
    party_id: Id


class Extra(Wire):
    """What the standard has beyond FATE, under ``conf.extra``."""

    flow_id: str = ""
    old_job_id: str = ""
    initiator: Initiator | None = None
    standard: Object | None = None
    """the whole job as the standard describes it, from a gateway like this one"""


class TaskConf(Wire):
    """Settings of every task."""

    model_config = ConfigDict(extra="allow")

    provider: str = ""
    timeout: Any = None


class JobConf(Wire):
    """Settings of the job; what is read elsewhere or passed on by its name is not listed."""

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
    """A job: who takes part, its settings, its tasks."""

    parties: Parties
    conf: JobConf = Field(default_factory=JobConf)
    stage: str = ""
    tasks: dict[str, TaskSpec] = Field(max_length=MOST)
    party_tasks: dict[str, PartyTasks] = Field(default_factory=dict, max_length=MOST)


class DagSchema(Wire):
    """A job with the version and the kind of its description."""

    dag: DagSpec
    schema_version: Id = ""
    kind: Literal["fate", "bfia"] = "fate"
