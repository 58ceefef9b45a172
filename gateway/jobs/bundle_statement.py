"""The statement in a job's bundle: digests of the parts of a job as one of its nodes gets it.

There is a digest for each part, so that a check can name the part that differs, and no node learns
the parameters of other nodes. The statement also has the digests of the images that its signer has
approved.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.domain.dag import DagNode
from gateway.domain.entries import as_mapping
from gateway.domain.spec import JobSpec, NodeId
from gateway.identity.statements import Envelope, canonical, open_envelope, read_unverified
from provider_registry.model import ANY

KIND = "application/vnd.bfia-gateway.job-bundle.v1+json"  # media type of the payload

# Required members of a statement in JSON and their types.
_MEMBERS = {
    "job_id": str,
    "for": str,
    "signer": str,
    "created": int,
    "open": list,
    "parts": dict,
    "images": dict,
}
_LATEST = 2**37  # seconds since 1970; no bundle is signed as late


@dataclass(frozen=True)
class Statement:
    """A signed statement about a job."""

    job_id: str
    node: NodeId  # the node that gets the bundle; ``for`` in JSON
    signer: NodeId
    created: int  # seconds since 1970
    open_tasks: Sequence[str]  # tasks whose version the scheduling node chooses
    parts: Mapping[str, str]  # part of the job -> its digest
    images: Mapping[str, str]  # component -> digest of the image approved by the signer
    keys: Mapping[str, Any]  # node -> its public keys; the form of the values is not checked


def open_statement(
    envelope: Any,
    keys: Sequence[str],
) -> tuple[Statement, str]:
    """Return a statement and the public key that signed it.

    Raises `UnknownKey` if none of ``keys`` signed it, and `ValueError` for any other fault.
    """
    content, key = open_envelope(envelope, KIND, keys)
    return _statement(content), key


def accepted_statement(envelope: Envelope) -> Statement:
    """Return the statement of a bundle whose signature was checked when it was accepted."""
    content, _ = read_unverified(envelope, KIND)
    return _statement(content)


def _statement(content: Mapping[str, Any]) -> Statement:
    """Return the statement in a JSON object. Raises `ValueError` if it is not one."""
    for name, kind in _MEMBERS.items():
        if not isinstance(content.get(name), kind):
            raise ValueError("it is not a statement about a job")
    if not 0 <= content["created"] <= _LATEST:
        raise ValueError("it is not a statement about a job")
    return Statement(
        job_id=content["job_id"],
        node=content["for"],
        signer=content["signer"],
        created=content["created"],
        open_tasks=content["open"],
        parts=content["parts"],
        images=content["images"],
        keys=as_mapping(content.get("keys")),
    )


def parts(
    spec: JobSpec,
    node: NodeId,
    open_tasks: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the parts of a job as a node gets it, by their names.

    They are ``flow``, ``parties``, ``common``, and one per party of the node under its label. Two
    spellings of the same job have equal parts. ``open_tasks`` are the tasks whose version the
    scheduling node chooses.
    """
    job_params = spec.with_single_indices(spec.job_params)
    task_params = spec.with_single_indices(spec.task_params)
    content: dict[str, Any] = {
        "flow": {
            "flow_id": spec.flow_id,
            "version": spec.dag.version,
            "tasks": [_task(task, task.name in open_tasks) for task in spec.dag_at(node).nodes],
        },
        "parties": {
            "roles": _nodes_by_role(spec),
            "initiator": [spec.initiator_role, spec.initiator],
            "scheduler": spec.scheduler,
            "version": spec.version,
            "old_job_id": spec.old_job_id,
        },
        "common": {
            "job": _common_settings(spec, job_params),
            "tasks": _common_entries(task_params),
        },
    }
    for party in spec.parties_at(node):
        content[party.label] = [
            _party_entry(params, party.role, party.index) for params in (job_params, task_params)
        ]
    return content


def _nodes_by_role(spec: JobSpec) -> dict[str, list[NodeId]]:
    """Return the nodes of each role, in the order of their indices."""
    roles: dict[str, list[NodeId]] = {}
    for party in spec.parties:
        roles.setdefault(party.role, []).append(party.node)
    return roles


def _common_settings(
    spec: JobSpec,
    job_params: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the settings that concern no single role; an absent ``sync_type`` has its default."""
    settings = _common_entries(job_params)
    sync_type = "poll"
    if spec.settings.by_callback:
        sync_type = "callback"
    settings["common"] = {"sync_type": sync_type, **as_mapping(settings.get("common"))}
    return settings


def _task(task: DagNode, is_open: bool) -> dict[str, Any]:
    """Return a task of the flow as it is signed; an open version is signed as `ANY`."""
    component = task.component
    if is_open:
        component = replace(component, version=ANY)
    return {
        "name": task.name,
        "component": str(component),
        "input": [[edge.type, edge.task, edge.key] for edge in task.inputs],
        "output": [[output.type, output.key] for output in task.outputs],
    }


def _common_entries(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the common entries of parameters, and each value that is not a role's object."""
    entries = {}
    for name, value in params.items():
        if name == "common" or not isinstance(value, Mapping):
            entries[name] = value
    return entries


def _party_entry(
    params: Mapping[str, Any],
    role: str,
    index: int,
) -> Any:
    """Return the entry of a party without empty objects, which say the same as an absent value."""
    entry = as_mapping(params.get(role)).get(str(index), {})
    if not isinstance(entry, Mapping):
        return entry
    return {name: value for name, value in entry.items() if value != {}}


def digests(job_parts: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 digest of each part."""
    return {name: hashlib.sha256(canonical(part)).hexdigest() for name, part in job_parts.items()}


def different_parts(
    statement: Statement,
    job_parts: Mapping[str, Any],
) -> list[str]:
    """Return the names of the parts of a job that differ from a statement."""
    actual = digests(job_parts)
    names = dict.fromkeys((*statement.parts, *actual))
    return [name for name in names if statement.parts.get(name) != actual.get(name)]
