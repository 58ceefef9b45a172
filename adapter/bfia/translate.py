"""Translates jobs, their ends and consents between the wire's bodies and the domain, both ways.

Nothing here has a side effect. The states of jobs are in `adapter.bfia.views`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from adapter.bfia import wire
from adapter.bfia.profiles import PROFILES, Profile
from adapter.body import is_integer
from gateway.domain import approval
from gateway.domain.approval import AuditStatus
from gateway.domain.dag import ComponentRef, Dag, DagInput, DagNode, DagOutput
from gateway.domain.entries import as_mapping
from gateway.domain.job import Acceptance
from gateway.domain.problems import Problem
from gateway.domain.redaction import redacted
from gateway.domain.spec import Ending, Failure, JobSpec, NodeId, Party
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import Invalid
from gateway.ports import as_seconds

PROTOCOL = "bfia"
JOB_PERMIT_LEVEL = 2  # ``resource_level`` of permits for jobs, the same as for flows

# Bounds of a party's response to ``job/create``, in characters and entries
_LONGEST_TEXT = 300
_LONGEST_CHECK_NAME = 40
_MOST_CHECKS = 20


# ---------------------------------------------------------------- jobs


def job_spec(
    body: wire.CreateAll,
    job_id: str,
    scheduler: NodeId,
    trace_id: str,
    profile: Profile = PROFILES["spec"],
) -> JobSpec:
    """Return the job that a body describes; the domain checks every rule beyond the body's form.

    ``profile``: the sender's dialect.
    """
    config = body.config
    bundles = {}
    if isinstance(body, wire.CreateJob):
        bundles = body.signed_bundles
    return JobSpec(
        job_id=job_id,
        flow_id=body.flow_id,
        dag=dag(body.dag),
        parties=_parties(config.role),
        initiator=config.initiator.node_id,
        initiator_role=config.initiator.role,
        scheduler=scheduler,
        protocol=PROTOCOL,
        trace_id=trace_id,
        job_params=config.job_params,
        task_params=_read_task_params(body, profile),
        version=config.version,
        old_job_id=body.old_job_id or config.old_job_id,
        bundles=bundles,
    )


def _parties(nodes_by_role: Mapping[str, Sequence[NodeId]]) -> tuple[Party, ...]:
    """Return the parties of a job in the order of the body, numbered from 0 within each role."""
    parties = []
    for role, nodes in nodes_by_role.items():
        for index, node in enumerate(nodes):
            parties.append(Party(role, index, node))
    return tuple(parties)


def _read_task_params(
    body: wire.CreateAll,
    profile: Profile,
) -> dict[str, Any]:
    """Return the tasks' parameters, with datasets as this gateway names them."""
    task_params = body.config.task_params
    if not profile.addresses_data:  # else this dialect names a dataset by `namespace` and `name`
        return task_params
    tasks_without_input = {task.name for task in body.dag.components if not task.input}
    return _with_dataset_ids(task_params, tasks_without_input)


def _with_dataset_ids(
    task_params: Mapping[str, Any],
    tasks: Collection[str],
) -> dict[str, Any]:
    """Return the parameters with a ``dataset_id`` in place of each address of a dataset.

    Only the parties' own entries for ``tasks``, which read no other task's output, are changed.
    """
    changed = dict(task_params)
    for role, by_index in task_params.items():
        is_of_parties = role != "common" and isinstance(by_index, Mapping)
        if is_of_parties:
            changed[role] = {
                index: _party_entry_with_dataset_ids(by_task, tasks)
                for index, by_task in by_index.items()
            }
    return changed


def _party_entry_with_dataset_ids(by_task: Any, tasks: Collection[str]) -> Any:
    """Return a party's entry with dataset ids for these tasks; any other value unchanged."""
    if not isinstance(by_task, Mapping):
        return by_task
    changed = dict(by_task)
    for task in tasks:
        if task in changed:
            changed[task] = _with_dataset_id(changed[task])
    return changed


def _with_dataset_id(values: Any) -> Any:
    """Return a task's parameters with a ``dataset_id`` in place of ``namespace`` and ``name``.

    Unchanged if the parameters have a ``dataset_id`` already, or no usable namespace and name.
    """
    if not isinstance(values, Mapping) or "dataset_id" in values:
        return values
    namespace = values.get("namespace")
    name = values.get("name")
    has_address = isinstance(namespace, str) and isinstance(name, str)
    if not has_address or "#" in str(namespace):
        return values
    changed = dict(values)
    del changed["namespace"], changed["name"]
    changed["dataset_id"] = f"{namespace}#{name}"
    return changed


def dag(body: wire.DagBody) -> Dag:
    """Return the flow of a body; the domain checks its rules."""
    return Dag(tuple(map(_dag_node, body.components)), body.version)


def _dag_node(component: wire.DagComponent) -> DagNode:
    """Return a task of the flow; the key of an input is ``<task>.<key of its output>``."""
    inputs = []
    for dag_input in component.input:
        task, _, key = dag_input.key.partition(".")
        inputs.append(DagInput(dag_input.type, task, key))
    outputs = [DagOutput(output.type, output.key) for output in component.output]
    return DagNode(
        component.name,
        ComponentRef(component.provider, component.version, component.component_name),
        tuple(inputs),
        tuple(outputs),
    )


def create_body(spec: JobSpec, profile: Profile) -> dict[str, Any]:
    """Return the body of ``create_all`` and ``create`` between nodes, in the peer's dialect."""
    roles: dict[str, list[str]] = {}
    for party in spec.parties:
        roles.setdefault(party.role, []).append(party.node)
    body: dict[str, Any] = {
        "job_id": spec.job_id,
        "flow_id": spec.flow_id,
        "dag": {
            "components": [_component(node) for node in spec.dag.nodes],
            "version": spec.dag.version,
        },
        "config": {
            "initiator": {"role": spec.initiator_role, "node_id": spec.initiator},
            "role": roles,
            "job_params": _job_params(spec, profile),
            "task_params": _task_params(spec, profile),
            "version": spec.version,
        },
    }
    # A peer at which the field may not be omitted gets an empty text.
    if spec.old_job_id or not profile.may_omit_old_job_id:
        body["old_job_id"] = spec.old_job_id
    return body


def _component(node: DagNode) -> dict[str, Any]:
    """Return a task of the flow, with both spellings of the fields that peers spell differently."""
    ref = node.component
    inputs = []
    for dag_input in node.inputs:
        inputs.append({"type": dag_input.type, "key": f"{dag_input.task}.{dag_input.key}"})
    outputs = []
    for output in node.outputs:
        outputs.append({"type": output.type, "key": output.key})
    return {
        "name": node.name,
        "componentName": ref.name,
        "module_name": ref.name,
        "provider": ref.provider,
        "code": ref.provider,
        "version": ref.version,
        "input": inputs,
        "output": outputs,
    }


def _job_params(spec: JobSpec, profile: Profile) -> dict[str, Any]:
    """Return the job's parameters with one entry for each party's index.

    Some peers cannot read an entry of several indices, such as "0|1", or need an entry ``common``.
    """
    params = spec.with_single_indices(spec.job_params)
    if not profile.needs_common:
        return params
    sync_type = "poll"
    if spec.settings.by_callback:
        sync_type = "callback"
    # If the job has an entry ``common`` of its own, that entry replaces this one.
    return {"common": {"sync_type": sync_type}, **params}


def _task_params(spec: JobSpec, profile: Profile) -> dict[str, Any]:
    """Return the tasks' parameters with one entry for each party's index.

    If the peer needs it, each party has an entry for each task.
    """
    params = spec.with_single_indices(spec.task_params)
    if not profile.reads_task_entries:
        return params
    for role, by_index in params.items():
        if isinstance(by_index, Mapping):
            params[role] = dict(by_index)  # a copy, which is changed below
    for party in spec.parties:
        by_index = params.setdefault(party.role, {})
        entry = dict(by_index.get(str(party.index)) or {})
        for node in spec.dag.nodes:
            entry.setdefault(node.name, {})
        by_index[str(party.index)] = entry
    return params


# ---------------------------------------------------------------- failures and endings


def failure_fields(failure: Failure | None) -> dict[str, Any]:
    """Return the extension field with the cause of a failure, redacted for other nodes.

    Empty without a failure.
    """
    if failure is None:
        return {}
    return {"failed_by": redacted(failure.as_dict())}


def read_ending(
    body: wire.StopJob | wire.TerminateAudit, reported_at: datetime, sender: NodeId
) -> Ending | None:
    """Return the ending that the scheduler reports.

    None if it reports no outcome, or an unknown one.
    """
    try:
        outcome = Outcome(body.outcome)
    except ValueError:
        return None
    return Ending(outcome, reported_at, body.failed_by, sender)


def ending_fields(ending: Ending | None) -> dict[str, Any]:
    """Return a job's outcome and cause: extensions of ``job/stop`` and ``job/audit/terminate``.

    Empty for a job that has not ended.
    """
    if ending is None:
        return {}
    return {"outcome": str(ending.outcome), **failure_fields(ending.failure)}


# ---------------------------------------------------------------- consent


def acceptance_body(acceptance: Acceptance) -> dict[str, Any]:
    """Return the extension fields of a party's acceptance of a job; empty if there are none."""
    body: dict[str, Any] = {}
    if acceptance.holds:  # the job needs resources that must be reserved here
        body["resources"] = {"tasks_at_once": acceptance.tasks_at_once}
    if acceptance.inherited is not None:
        body["inherited"] = list(acceptance.inherited)
    if acceptance.waits:
        body["status"] = str(JobStatus.PENDING)
        body["approval_within"] = acceptance.within
    if acceptance.waits_for:
        body["waits_for"] = acceptance.waits_for
    if acceptance.checks:
        body["checks"] = dict(acceptance.checks)
    return body


def read_acceptance(
    data: Mapping[str, Any],
    profile: Profile = PROFILES["spec"],
) -> Acceptance:
    """Read a party's acceptance of a job; an extension that cannot be read counts as absent."""
    inherited = data.get("inherited")
    if isinstance(inherited, list):
        inherited = tuple(map(str, inherited))
    else:
        inherited = None
    status = str(data.get("status") or "").upper()
    acceptance = Acceptance(
        # A peer at which resources must be reserved sends this object.
        holds=isinstance(data.get("resources"), Mapping),
        tasks_at_once=_tasks_at_once(data),
        waits=profile.waits_by_status and status == JobStatus.PENDING,
        checks=_checks(data),
        inherited=inherited,
    )
    if not acceptance.waits:
        return acceptance
    waits_for = data.get("waits_for")
    if isinstance(waits_for, str):
        acceptance = replace(acceptance, waits_for=waits_for[:_LONGEST_TEXT])
    return replace(
        acceptance,
        within=as_seconds(data.get("approval_within")),
    )


def _tasks_at_once(data: Mapping[str, Any]) -> int | None:
    """Return the number of tasks that a party reserves resources for; None if it sends none."""
    number = as_mapping(data.get("resources")).get("tasks_at_once")
    if is_integer(number) and number >= 1:
        return number
    return None


def _checks(data: Mapping[str, Any]) -> dict[str, str]:
    """Return a party's checks of a job, shortened: name -> result; empty for too many."""
    checks = as_mapping(data.get("checks"))
    if len(checks) > _MOST_CHECKS:
        return {}
    return {
        str(name)[:_LONGEST_CHECK_NAME]: str(result)[:_LONGEST_TEXT]
        for name, result in checks.items()
    }


def audit_body(spec: JobSpec, profile: Profile) -> dict[str, Any]:
    """Return the body of ``job/audit/apply``.

    ``name`` and ``project_id`` get the flow's id, by which a job names its project; without a flow,
    the job's id.
    """
    create = create_body(spec, profile)
    flow_or_job_id = spec.flow_id or spec.job_id
    body = {
        "audit_id": approval.audit_id_for(spec.job_id),
        "job_id": spec.job_id,
        "flow_id": spec.flow_id,
        "name": flow_or_job_id,
        "project_id": flow_or_job_id,
        "dag": create["dag"],
        "conf": create["config"],
    }
    if spec.old_job_id:
        body["old_job_id"] = spec.old_job_id
    return body


def audit_answer_body(
    audit_id: str,
    refusal: Failure | None,
) -> dict[str, Any]:
    """Return the body of ``job/audit/confirm``.

    ``refusal``: why this node refuses the job, an extension field; None: it takes part.
    """
    status = AuditStatus.APPROVED
    if refusal is not None:
        status = AuditStatus.REJECTED
    return {"audit_id": audit_id, "status": str(status), **failure_fields(refusal)}


def job_permit(
    job_id: str,
    token: str,
    *,
    owner: NodeId,
    applicant: NodeId,
) -> dict[str, Any]:
    """Return the field ``resource_permit`` of ``job/audit/confirm``: a permit for one job."""
    permit = {
        "token": token,
        "resource_level": JOB_PERMIT_LEVEL,
        "resource_type": "JOB",
        "resource_id": job_id,
        "resource_node_id": owner,
        "resource_inst_id": owner,
        "request_node_id": applicant,
        "request_inst_id": applicant,
        "time_limit": 0,  # until the job is created, which the permit allows once
        "times_limit": 1,
    }
    return {"resource_permit": permit}


def read_refusal(
    body: wire.ConfirmJob | wire.ConfirmAudit,
    sender: NodeId,
) -> Failure | None:
    """Return why a node does not take part; None if it does.

    Raises `Invalid` for any other status.
    """
    status = body.status.upper()
    if status in (JobStatus.READY, AuditStatus.APPROVED):
        return None
    if status == JobStatus.REJECTED:
        return body.failed_by or Failure("APPROVAL_REJECTED", f"{sender} refused the job", sender)
    agreed: str = JobStatus.READY
    if isinstance(body, wire.ConfirmAudit):
        agreed = AuditStatus.APPROVED
    problem = Problem("status", f"must be {agreed} or REJECTED", body.status)
    raise Invalid([problem], reason="STATUS_UNKNOWN")
