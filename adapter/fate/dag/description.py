"""Writes jobs of this gateway in FATE's description, for FATE's sites, and reads such descriptions.

The job is also included in the standard's form, under ``conf.extra``, which FATE passes on. Another
gateway like this one reads that form, as FATE's description cannot tell two parties of one role and
node apart.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from adapter.fate.dag.read import job_spec
from adapter.fate.dag.wire import DagSchema
from adapter.fate.words import PROTOCOL
from gateway.domain.dag import DagNode, group
from gateway.domain.entries import as_mapping
from gateway.domain.spec import JobSpec, NodeId, Party
from gateway.ports import ProtocolAdapter
from provider_registry.registration import DEVICE
from provider_registry.registry import Registry

SCHEMA_VERSION = "2.2.0"


class Standard(ProtocolAdapter, Protocol):
    """The standard's protocol, for requests between gateways that FATE's protocol does not have."""

    def read_request(
        self,
        request: Mapping[str, Any],
        scheduler: NodeId,
        trace_id: str,
    ) -> JobSpec:
        """Return the job in a body that `request` has written. Raises `Invalid`."""


@dataclass(frozen=True)
class Descriptions:
    """Writes and reads job descriptions."""

    me: NodeId
    standard: Standard
    registry: Registry
    devices: Mapping[NodeId, str]  # FATE's site -> the device of its providers, if not `DEVICE`

    def write(
        self,
        spec: JobSpec,
        to: NodeId = "",
    ) -> dict[str, Any]:
        """Return dag, schema_version and kind of a job.

        ``to``: the node that gets the job, whose providers may have a device of their own; empty:
        no node in particular.
        """
        body = dag_schema(spec, PROTOCOL)
        device = self.devices.get(to, DEVICE)
        for node in spec.dag.nodes:
            ref = node.component
            task = body["dag"]["tasks"][node.name]
            task["conf"]["provider"] = f"{ref.provider}:{ref.version}@{device}"
        conf = body["dag"]["conf"]
        # FATE's nodes cannot store a job without model_id and model_version.
        conf["model_id"] = conf.get("model_id") or spec.job_id
        conf["model_version"] = conf.get("model_version") or "0"
        conf["sync_type"] = "poll"
        if spec.settings.by_callback:
            conf["sync_type"] = "callback"
        conf["extra"]["standard"] = self.standard.request(spec)
        return body

    def read(
        self,
        schema: DagSchema,
        new_id: Callable[[], str],
        scheduler: NodeId,
        trace_id: str,
    ) -> JobSpec:
        """Return the described job; ``scheduler`` is its scheduler if the description names none.

        Raises `Invalid`.
        """
        conf = schema.dag.conf
        if conf.extra.standard is not None:
            scheduler = conf.scheduler_party_id or scheduler
            return self.standard.read_request(conf.extra.standard, scheduler, trace_id)
        spec, _ = job_spec(
            schema,
            self.registry,
            new_id(),
            self.me,
            scheduler,
            trace_id,
        )
        return spec


def dag_schema(spec: JobSpec, kind: str) -> dict[str, Any]:
    """Return a job in FATE's description; ``kind``: the name of the protocol that runs the job."""
    conf = _job_conf(spec)
    task_settings = as_mapping(conf.pop("tasks", None))
    stage = "train"
    if conf.pop("job_type", "train") == "predict":
        stage = "predict"
        conf["model_warehouse"] = {
            "model_id": conf.pop("model_id", ""),
            "model_version": conf.pop("model_version", ""),
        }
    tasks = {node.name: _task(spec, node, task_settings.get(node.name)) for node in spec.dag.nodes}
    dag: dict[str, Any] = {
        "parties": parties_of(spec.parties),
        "conf": conf,
        "stage": stage,
        "tasks": tasks,
    }
    party_tasks = _party_tasks(spec)
    if party_tasks:
        dag["party_tasks"] = party_tasks
    return {
        "dag": dag,
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
    }


def _job_conf(spec: JobSpec) -> dict[str, Any]:
    """Return the job's settings under FATE's names."""
    conf: dict[str, Any] = {
        "initiator_party_id": spec.initiator,
        "scheduler_party_id": spec.scheduler,
        **as_mapping(spec.job_params.get("common")),
        "extra": {
            "flow_id": spec.flow_id,
            "old_job_id": spec.old_job_id,
            "initiator": {
                "role": spec.initiator_role,
                "party_id": spec.initiator,
            },
        },
    }
    inherit = conf.pop("inherit", None)
    if spec.old_job_id:
        conf["inheritance"] = {"job_id": spec.old_job_id, "task_list": inherit or []}
    timeout = conf.pop("task_timeout", None)
    if isinstance(timeout, int | float):
        conf["task"] = {"timeout": timeout}
    return conf


def parties_of(parties: tuple[Party, ...]) -> list[dict[str, Any]]:
    """Return parties in FATE's form: the ids of each role."""
    roles: dict[str, list[str]] = {}
    for party in parties:
        roles.setdefault(party.role, []).append(party.node)
    return [{"role": role, "party_id": nodes} for role, nodes in roles.items()]


def _task(
    spec: JobSpec,
    node: DagNode,
    settings: Any,
) -> dict[str, Any]:
    """Return a task; ``settings``: its own settings, None without any."""
    ref = node.component
    common = as_mapping(spec.task_params.get("common"))
    task: dict[str, Any] = {
        "component_ref": ref.name,
        "conf": {
            "provider": ref.provider,
            "version": ref.version,
            **(settings or {}),
        },
        "parameters": dict(as_mapping(common.get(node.name))),
        "outputs": _outputs(node),
    }
    if node.upstream:
        task["dependent_tasks"] = sorted(node.upstream)
    inputs = _inputs(node)
    if inputs:
        task["inputs"] = inputs
    return task


def _inputs(node: DagNode) -> dict[str, Any]:
    """Return the inputs of a task under FATE's names: data, or models of other tasks."""
    inputs: dict[str, Any] = {}
    for source in node.inputs:
        artifact = {
            "producer_task": source.task,
            "output_artifact_key": source.key,
            "output_artifact_type_alias": source.type,
        }
        kind = "data"
        if group(source.type) == "model":
            kind = "model"
        artifacts = inputs.setdefault(kind, {})
        artifacts[f"{source.task}.{source.key}"] = {"task_output_artifact": artifact}
    return inputs


def _outputs(node: DagNode) -> dict[str, Any]:
    """Return the outputs of a task under FATE's names, by their group."""
    outputs: dict[str, Any] = {}
    for output in node.outputs:
        artifacts = outputs.setdefault(group(output.type), {})
        artifacts[output.key] = {
            "output_artifact_key_alias": output.key,
            "output_artifact_type_alias": output.type,
        }
    return outputs


def _party_tasks(spec: JobSpec) -> dict[str, Any]:
    """Return the settings and parameters of single parties, by a name for each party.

    Parties without any are omitted.
    """
    party_tasks: dict[str, Any] = {}
    for party in spec.parties:
        conf = _entries_of(spec.job_params, party)
        tasks = _tasks_of(spec, party)
        if conf or tasks:
            party_tasks[f"{party.role}_{party.index}_{party.node}"] = {
                "parties": [{"role": party.role, "party_id": [party.node]}],
                "conf": conf,
                "tasks": tasks,
            }
    return party_tasks


def _tasks_of(spec: JobSpec, party: Party) -> dict[str, Any]:
    """Return the tasks that have parameters at one party alone, with these parameters."""
    tasks = {}
    for name, parameters in _entries_of(spec.task_params, party).items():
        if isinstance(parameters, Mapping) and parameters:
            tasks[name] = {"parameters": dict(parameters)}
    return tasks


def _entries_of(
    params: Mapping[str, Any],
    party: Party,
) -> dict[str, Any]:
    """Return the parameters of a party.

    They are merged from all entries that name its index, such as ``0|1``.
    """
    merged: dict[str, Any] = {}
    for indices, entry in as_mapping(params.get(party.role)).items():
        if str(party.index) in indices.split("|") and isinstance(entry, Mapping):
            merged |= entry
    return merged
