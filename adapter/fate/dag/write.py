"""What this gateway runs -> FATE's job description, for FATE's tools to show."""

from collections.abc import Mapping
from typing import Any

from gateway.domain.dag import DagNode, group
from gateway.domain.spec import JobSpec, Party

SCHEMA_VERSION = "2.2.0"


def dag_schema(spec: JobSpec, kind: str) -> dict[str, Any]:
    """Return a job as FATE's description of it. What the job does not hold for this node is not in it."""
    common = spec.job_params.get("common")
    conf: dict[str, Any] = {
        "initiator_party_id": spec.initiator,
        "scheduler_party_id": spec.scheduler,
        **(dict(common) if isinstance(common, Mapping) else {}),
        "extra": {
            "flow_id": spec.flow_id,
            "old_job_id": spec.old_job_id,
            "initiator": {"role": spec.initiator_role, "party_id": spec.initiator},
        },
    }
    inherit = conf.pop("inherit", None)
    if spec.old_job_id:
        conf["inheritance"] = {"job_id": spec.old_job_id, "task_list": inherit or []}
    if isinstance(timeout := conf.pop("task_timeout", None), int | float):
        conf["task"] = {"timeout": timeout}
    predicts = conf.pop("job_type", "train") == "predict"
    own_settings = conf.pop("tasks", None)
    settings: Mapping[str, Any] = own_settings if isinstance(own_settings, Mapping) else {}
    if predicts:
        names = {"model_id": conf.pop("model_id", ""), "model_version": conf.pop("model_version", "")}
        conf["model_warehouse"] = names
    dag: dict[str, Any] = {
        "parties": parties_of(spec.parties),
        "conf": conf,
        "stage": "predict" if predicts else "train",
        "tasks": {node.name: _task(spec, node, settings.get(node.name)) for node in spec.dag.nodes},
    }
    if own := _party_tasks(spec):
        dag["party_tasks"] = own
    return {"dag": dag, "schema_version": SCHEMA_VERSION, "kind": kind}


def parties_of(parties: tuple[Party, ...]) -> list[dict[str, Any]]:
    """Return parties in FATE's form: the ids of each role."""
    roles: dict[str, list[str]] = {}
    for party in parties:
        roles.setdefault(party.role, []).append(party.node)
    return [{"role": role, "party_id": nodes} for role, nodes in roles.items()]


def dependencies(spec: JobSpec, node_names: set[str]) -> dict[str, Any]:
    """Return who needs whose output, as FATE's ``dag/dependency`` tells it, of these tasks."""
    shown = [node for node in spec.dag.nodes if node.name in node_names]
    return {
        "component_list": [node.name for node in shown],
        "component_stage": {node.name: "train" for node in shown},
        "component_module": {node.name: node.component.name for node in shown},
        "dependencies": {
            node.name: [
                {
                    "type": "task_output_artifact",
                    "model_type": group(i.type),
                    "component_name": i.task,
                    "up_output_info": [i.key],
                }
                for i in node.inputs
            ]
            or [{"up_output_info": []}]
            for node in shown
        },
    }


def _task(spec: JobSpec, node: DagNode, settings: Any) -> dict[str, Any]:
    ref = node.component
    common = spec.task_params.get("common")
    parameters = common.get(node.name) if isinstance(common, Mapping) else None
    task: dict[str, Any] = {
        "component_ref": ref.name,
        "conf": {"provider": ref.provider, "version": ref.version, **(settings or {})},
        "parameters": dict(parameters) if isinstance(parameters, Mapping) else {},
    }
    if node.upstream:
        task["dependent_tasks"] = sorted(node.upstream)
    inputs: dict[str, Any] = {}
    for wanted in node.inputs:
        kind = "model" if group(wanted.type) == "model" else "data"
        channel = {"producer_task": wanted.task, "output_artifact_key": wanted.key}
        key = f"{wanted.task}.{wanted.key}"
        inputs.setdefault(kind, {})[key] = {
            "task_output_artifact": {**channel, "output_artifact_type_alias": wanted.type}
        }
    if inputs:
        task["inputs"] = inputs
    outputs: dict[str, Any] = {}
    for output in node.outputs:
        alias = {"output_artifact_key_alias": output.key, "output_artifact_type_alias": output.type}
        outputs.setdefault(group(output.type), {})[output.key] = alias
    task["outputs"] = outputs
    return task


def _party_tasks(spec: JobSpec) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for party in spec.parties:
        conf, tasks = _entry(spec.job_params, party), _entry(spec.task_params, party)
        given = {name: {"parameters": dict(v)} for name, v in tasks.items() if isinstance(v, Mapping) and v}
        if conf or given:
            found[f"{party.role}_{party.index}_{party.node}"] = {
                "parties": [{"role": party.role, "party_id": [party.node]}],
                "conf": conf,
                "tasks": given,
            }
    return found


def _entry(params: Mapping[str, Any], party: Party) -> dict[str, Any]:
    """Return what a party's entries say, one laid over the other."""
    merged: dict[str, Any] = {}
    by_index = params.get(party.role)
    for key, entry in by_index.items() if isinstance(by_index, Mapping) else ():
        if str(party.index) in key.split("|") and isinstance(entry, Mapping):
            merged |= entry
    return merged
