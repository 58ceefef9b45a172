"""What this gateway runs -> FATE's job description, for FATE's sites; and back.

Between two gateways of this kind the job also goes along as the standard describes it, under ``conf.extra``:
FATE's description cannot tell two parties of one role and node apart, and FATE passes on what stands there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from adapter.fate.dag.read import job_spec
from adapter.fate.dag.wire import DagSchema
from adapter.fate.words import PROTOCOL
from gateway.domain.dag import DagNode, group
from gateway.domain.spec import JobSpec, NodeId, Party
from gateway.ports import ProtocolAdapter, as_mapping
from provider_registry.registration import DEVICE
from provider_registry.registry import Registry

SCHEMA_VERSION = "2.2.0"


class Standard(ProtocolAdapter, Protocol):
    """The standard's protocol, in which gateways like this one exchange what FATE's has no requests for."""

    def specified(
        self,
        request: Mapping[str, Any],
        scheduler: NodeId,
        trace_id: str,
    ) -> JobSpec:
        """Read what `request` has written. Raises `Invalid`."""


@dataclass(frozen=True)
class Descriptions:
    """Writes and reads jobs."""

    me: NodeId
    standard: Standard
    registry: Registry
    devices: Mapping[NodeId, str]
    """under which device sites have the providers, where not ``docker``"""

    def written(self, spec: JobSpec, to: NodeId = "") -> dict[str, Any]:
        """Return dag, schema_version and kind of a job for the node ``to``."""
        body = dag_schema(spec, PROTOCOL)
        dag, device = body["dag"], self.devices.get(to, DEVICE)
        for node in spec.dag.nodes:
            ref = node.component
            dag["tasks"][node.name]["conf"]["provider"] = f"{ref.provider}:{ref.version}@{device}"
        conf = dag["conf"]
        conf["model_id"] = (
            conf.get("model_id") or spec.job_id
        )  # FATE's nodes cannot store a job without the two
        conf["model_version"] = conf.get("model_version") or "0"
        conf["sync_type"] = "callback" if spec.settings.by_callback else "poll"
        conf["extra"]["standard"] = self.standard.request(spec)
        return body

    def read(
        self,
        schema: DagSchema,
        new_id: Callable[[], str],
        scheduler: NodeId,
        trace_id: str,
    ) -> JobSpec:
        """Return the job that is described; ``scheduler`` where it names none. Raises `Invalid`."""
        conf = schema.dag.conf
        if conf.extra.standard is not None:
            return self.standard.specified(
                conf.extra.standard, conf.scheduler_party_id or scheduler, trace_id
            )
        return job_spec(schema, self.registry, new_id(), self.me, scheduler, trace_id)[0]


def dag_schema(spec: JobSpec, kind: str) -> dict[str, Any]:
    """Return a job as FATE's description of it. What the job does not hold for this node is not in it."""
    conf: dict[str, Any] = {
        "initiator_party_id": spec.initiator,
        "scheduler_party_id": spec.scheduler,
        **as_mapping(spec.job_params.get("common")),
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
    settings = as_mapping(conf.pop("tasks", None))
    predicts = conf.pop("job_type", "train") == "predict"
    if predicts:
        conf["model_warehouse"] = {
            name: conf.pop(name, "") for name in ("model_id", "model_version")
        }
    dag: dict[str, Any] = {
        "parties": parties_of(spec.parties),
        "conf": conf,
        "stage": "predict" if predicts else "train",
        "tasks": {node.name: _task(spec, node, settings.get(node.name)) for node in spec.dag.nodes},
    }
    if own := _party_tasks(spec):
        dag["party_tasks"] = own
    return {
        "dag": dag,
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
    }


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
    ref = node.component
    inputs: dict[str, Any] = {}
    for wanted in node.inputs:
        channel = {"producer_task": wanted.task, "output_artifact_key": wanted.key}
        artifact = {"task_output_artifact": {**channel, "output_artifact_type_alias": wanted.type}}
        kind = "model" if group(wanted.type) == "model" else "data"
        inputs.setdefault(kind, {})[f"{wanted.task}.{wanted.key}"] = artifact
    outputs: dict[str, Any] = {}
    for output in node.outputs:
        alias = {"output_artifact_key_alias": output.key, "output_artifact_type_alias": output.type}
        outputs.setdefault(group(output.type), {})[output.key] = alias
    task: dict[str, Any] = {
        "component_ref": ref.name,
        "conf": {
            "provider": ref.provider,
            "version": ref.version,
            **(settings or {}),
        },
        "parameters": dict(as_mapping(as_mapping(spec.task_params.get("common")).get(node.name))),
        "outputs": outputs,
    }
    if node.upstream:
        task["dependent_tasks"] = sorted(node.upstream)
    if inputs:
        task["inputs"] = inputs
    return task


def _party_tasks(spec: JobSpec) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for party in spec.parties:
        conf, tasks = _entry(spec.job_params, party), _entry(spec.task_params, party)
        given = {
            name: {"parameters": dict(v)}
            for name, v in tasks.items()
            if isinstance(v, Mapping) and v
        }
        if conf or given:
            parties = [{"role": party.role, "party_id": [party.node]}]
            site = {
                "parties": parties,
                "conf": conf,
                "tasks": given,
            }
            found[f"{party.role}_{party.index}_{party.node}"] = site
    return found


def _entry(params: Mapping[str, Any], party: Party) -> dict[str, Any]:
    """Return what a party's entries say, one laid over the other."""
    merged: dict[str, Any] = {}
    for key, entry in as_mapping(params.get(party.role)).items():
        if str(party.index) in key.split("|") and isinstance(entry, Mapping):
            merged |= entry
    return merged
