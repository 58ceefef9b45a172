"""The modules that the published wheel of FATE-Flow 2.2.0 lacks, as far as its code needs them.

The wheel leaves out ``fate_flow.adapter.bfia.utils``, which its BFIA adapter imports. This file has
the names that the published code imports from there, written after their use in that code and
after the standard. It runs inside FATE-Flow's server, with that server's libraries. Decisions of
these names are no behaviour of FATE-Flow: `test_fate_flow` lists the clauses that it does not
compare for this reason.
"""

from typing import Any

from fate_flow.entity.types import BaseStateTransitionRule, BaseStatus
from fate_flow.utils.api_utils import API
from flask import jsonify
from pydantic import BaseModel

# ---------------------------------------------------------------- utils.entity


class ReturnCode:
    """Codes of responses: the standard has 0 for a success and leaves the others open."""

    SUCCESS, FAILED = 0, 1


# States of tasks and jobs (control layer 3.7 and 3.8), each before those that may follow it.
_TASK_STATES = ("PENDING", "READY", "RUNNING", "SUCCESS", "FAILED")
_JOB_STATES = ("PENDING", "READY", "REJECTED", "RUNNING", "FINISHED")
_FINAL_STATES = ("SUCCESS", "FAILED", "FINISHED", "REJECTED")


def _later_states(states: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the states that may follow each state; none follows a final one."""
    followers: dict[str, list[str]] = {}
    for index, state in enumerate(states):
        followers[state] = []
        if state not in _FINAL_STATES:
            followers[state] = list(states[index + 1 :])
    return followers


class StatusSet(BaseStatus):
    """Every state of a job or a task."""

    PENDING, READY, REJECTED, RUNNING, FINISHED = _JOB_STATES
    SUCCESS, FAILED = "SUCCESS", "FAILED"

    @classmethod
    def get_level(cls, status: str) -> int:
        """Return the rank of a state among all of them."""
        return list(cls.status_list()).index(status)


class TaskStatus(BaseStatus):
    """The states of a task."""

    PENDING, READY, RUNNING, SUCCESS, FAILED = _TASK_STATES

    class StateTransitionRule(BaseStateTransitionRule):
        """The successors of each state."""

        RULES = _later_states(_TASK_STATES)


class JobStatus(BaseStatus):
    """The states of a job."""

    PENDING, READY, REJECTED, RUNNING, FINISHED = _JOB_STATES

    class StateTransitionRule(BaseStateTransitionRule):
        """The successors of each state."""

        RULES = _later_states(_JOB_STATES)


class EndStatus(BaseStatus):
    """The final states of jobs and tasks."""

    SUCCESS, FAILED, FINISHED = "SUCCESS", "FAILED", "FINISHED"


class InterruptStatus(BaseStatus):
    """The states of a task that end its job."""

    FAILED = "FAILED"


# ---------------------------------------------------------------- utils.spec.job


class InitiatorSpec(BaseModel):
    """The initiator of a job."""

    role: str
    node_id: str


class RoleSpec(BaseModel):
    """The nodes of each role."""

    guest: list[str] | None
    host: list[str] | None
    arbiter: list[str] | None


class _ParametersByRole(BaseModel):
    """Parameters of each role, by the index of its node."""

    guest: dict[str, Any] | None
    host: dict[str, Any] | None
    arbiter: dict[str, Any] | None


class JobCommonSpec(BaseModel):
    """The parameters of a whole job."""

    sync_type: str | None = "poll"


class JobParamsSpec(_ParametersByRole):
    """The parameters of a job and of its roles."""

    common: JobCommonSpec | None


class TaskParamsSpec(_ParametersByRole):
    """The parameters of tasks."""

    common: dict[str, Any] | None


class ConfSpec(BaseModel):
    """The config of a job."""

    initiator: InitiatorSpec
    role: RoleSpec
    job_params: JobParamsSpec
    task_params: TaskParamsSpec
    version: str


class DataSpec(BaseModel):
    """An input or an output of a task."""

    type: str
    key: str


class DagComponentSpec(BaseModel):
    """A task of a flow."""

    name: str
    provider: str
    componentName: str
    version: str
    input: list[DataSpec] = []
    output: list[DataSpec] = []


class DagSpec(BaseModel):
    """The flow of a job."""

    version: str
    components: list[DagComponentSpec]


class BFIADagSpec(BaseModel):
    """A job as it is submitted."""

    flow_id: str | None
    old_job_id: str | None
    dag: DagSpec
    config: ConfSpec


class DagSchemaSpec(BaseModel):
    """A job with the name of its protocol, as FATE-Flow stores it."""

    kind: str = "bfia"
    schema_version: str
    dag: BFIADagSpec


# ---------------------------------------------------------------- utils.spec.artifact


class ArtifactAddress(BaseModel):
    """The address of an input or an output."""

    name: str
    namespace: str


class S3Address(BaseModel):
    """The address of a storage."""

    url: str


class Engine(BaseModel):
    """A storage."""

    name: str
    address: S3Address


# ---------------------------------------------------------------- utils.spec.task


class RuntimeConf(BaseModel):
    """The component of a container, its parameters and its data."""

    name: str
    parameter: dict[str, Any] = {}
    input: dict[str, ArtifactAddress] | None
    output: dict[str, ArtifactAddress] | None


class RuntimeComponent(BaseModel):
    """The value of ``runtime`` in a container's environment."""

    component: RuntimeConf


class LogPath(BaseModel):
    """The folder of a container's log."""

    path: str


class Config(BaseModel):
    """The value of ``config`` in a container's environment."""

    task_id: str
    session_id: str
    token: str
    trace_id: str | None
    inst_id: dict[str, str]
    node_id: dict[str, str]
    log: LogPath | None
    self_role: str


class SystemConf(BaseModel):
    """The value of ``system`` in a container's environment."""

    storage: str
    transport: str
    callback: str


class TaskRuntimeEnv(BaseModel):
    """The environment of a container."""

    runtime: RuntimeComponent
    config: Config
    system: SystemConf


# ---------------------------------------------------------------- utils.api_utils


class BfiaAPI(API):
    """FATE-Flow's decorators of handlers, with the standard's envelope in responses."""

    class Output:
        """Responses."""

        @staticmethod
        def json(
            code: int = ReturnCode.SUCCESS,
            msg: str = "success",
            data: Any = None,
            **further_fields: Any,
        ) -> Any:
            """Return a response; handlers that give no data get none."""
            envelope = {"code": code, "msg": msg}
            if data is not None:
                envelope["data"] = data
            return jsonify(envelope | further_fields)
