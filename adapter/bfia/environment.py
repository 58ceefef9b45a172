"""The environment of a container (component layer 3.3, 3.4): system.*, config.*, runtime.*.

Booleans are ``True`` and ``False``, numbers decimal text, objects and lists JSON in UTF-8; a null
parameter is left out and an empty text stays set.
"""

import json
import time
from collections.abc import Mapping
from typing import Any

import httpx

from gateway.domain.run import Address, LocalJob, Run, RunData, Software
from gateway.domain.states import TaskStatus
from gateway.ports import Site
from provider_registry.model import FATE, YACL

QUERY = "/v1/platform/algorithm/task/query"  # path at a container's control port

_QUERY_SECONDS = 2.0  # the longest wait for a container's answer
_LARGEST_ANSWER = 64 * 1024  # bytes of a container's answer
_TUNING = ("n_threads", "chunk_size")  # set by the admin, or else declared by the image
_LARGEST_WHOLE_FLOAT = 1e15  # larger floats are written with their exponent


def session_id(job_or_task_id: str) -> str:
    """Return the id of the transport session of a job, or of a task (control layer 2.2)."""
    return f"session_{job_or_task_id}"


def session_of(job_id: str, task_id: str, per_task: bool) -> str:
    """Return the id of the session of a task's containers.

    ``per_task``: each task has a session of its own, as the job or one kind of peer requires;
    otherwise all tasks share the job's session.
    """
    if per_task:
        return session_id(task_id)
    return session_id(job_id)


def environment(
    local: LocalJob,
    run: Run,
    site: Site,
    *,
    per_task: bool = False,
) -> dict[str, str]:
    """Return all variables of a run's container; ``per_task``: see `session_of`.

    The ``token`` of this ``run`` is the container's complete token; the stored run has only the
    random id with which the token begins.
    """
    spec = local.spec
    return {
        "system.storage": site.storage_url,
        "system.callback": site.callback_url,
        "system.transport": site.transport,
        "config.self_role": run.party.label,
        "config.task_id": run.task_id,
        "config.session_id": session_of(spec.job_id, run.task_id, per_task),
        "config.trace_id": spec.trace_id,
        "config.token": run.token,
        "config.log.path": site.log_path,
        **_attestation(site),
        **_checkpoint(run, site),
        **_parties(local, run, site),
        "runtime.component.name": run.software.component.name,
        **_parameters(run.data),
        **_addresses("input", run.data.inputs, run.software.profile),
        **_addresses("output", run.data.outputs, run.software.profile),
        **_image_variables(run.software, site),
    }


def _attestation(site: Site) -> dict[str, str]:
    """Return the variables for the attestation report, an extension.

    Empty for a run of which the node demands no report.
    """
    if site.attestation is None:
        return {}
    return {
        "system.attestation.platform": site.attestation.platform,
        "system.attestation.url": site.attestation.url,
        "system.attestation.binding": site.attestation.binding,
    }


def _checkpoint(run: Run, site: Site) -> dict[str, str]:
    """Return the variables with the storage of checkpoints, an extension.

    Empty for a job that has not asked for checkpoints.
    """
    variables = {}
    if site.checkpoint:
        variables["system.checkpoint"] = site.checkpoint
    if site.checkpoint_at:
        address = _encode_address(site.checkpoint_at, run.software.profile)
        variables["system.checkpoint.address"] = address
    return variables


def _parties(
    local: LocalJob,
    run: Run,
    site: Site,
) -> dict[str, str]:
    """Return the variables with node and institution of the task's parties that are not excluded.

    A node without a known institution counts as its own institution.
    """
    roles = run.software.roles
    variables = {}
    for party in local.spec.parties:
        is_in_task = not roles or party.role in roles  # no roles: all parties take part
        if is_in_task and party.label not in local.excluded:
            institution = site.institution_of.get(party.node)
            variables[f"config.node_id.{party.label}"] = party.node
            variables[f"config.inst_id.{party.label}"] = institution or party.node
    return variables


def _parameters(data: RunData) -> dict[str, str]:
    """Return the variables with the run's parameters, without those that are null."""
    variables = {}
    for name, value in data.parameters.items():
        if value is not None:
            variables[f"runtime.component.parameter.{name}"] = encode_parameter(value)
    return variables


def _addresses(
    kind: str,
    addresses: Mapping[str, Address],
    profile: str,
) -> dict[str, str]:
    """Return the variables with the addresses of inputs or outputs.

    ``kind``: ``input`` or ``output``; ``profile``: the image's.
    """
    variables = {}
    for name, address in addresses.items():
        variables[f"runtime.component.{kind}.{name}"] = _encode_address(address, profile)
    return variables


def _image_variables(software: Software, site: Site) -> dict[str, str]:
    """Return the variables that depend on the image, or on the admin's settings for it."""
    variables = {}
    control_port = software.declared.get("control_port")
    if control_port:
        variables["system.control_port"] = str(control_port)
    for name in _TUNING:
        value = site.tuning.get(name) or software.declared.get(name)
        if value:
            variables[f"config.{name}"] = str(value)
    if site.compute:
        variables["system.compute"] = site.compute
    if software.profile == YACL:  # such images read the storage's address from this variable
        variables["system.storage.host.url"] = site.storage_url
    return variables


def encode_parameter(value: Any) -> str:
    """Write a parameter's value as text: whole floats without a fraction, objects as JSON."""
    match value:
        case str():
            return value
        case bool():
            return str(value)
        case float() if value.is_integer() and abs(value) < _LARGEST_WHOLE_FLOAT:
            return str(int(value))
    return json.dumps(value, ensure_ascii=False)


def _encode_address(address: Address, profile: str) -> str:
    """Return an address as JSON; images for FATE expect namespace and name exchanged."""
    namespace = address.namespace
    name = address.name
    if profile == FATE:
        namespace, name = name, namespace
    return json.dumps(
        {"namespace": namespace, "name": name},
        ensure_ascii=False,
    )


def container_status(run: Run, address: str) -> TaskStatus | None:
    """Ask a container at its control port how its task ended; None if it does not report an end.

    The answer is trusted as little as a callback: a container speaks for its own run alone.
    """
    url = f"http://{address}:{run.software.declared['control_port']}{QUERY}"
    try:
        body = _query(url, run.task_id)
        if body is None:
            return None
        status = _status_of(json.loads(body))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError):
        return None
    if status in (TaskStatus.SUCCESS, TaskStatus.FAILED):
        return status
    return None


def _query(url: str, task_id: str) -> bytes | None:
    """Return the body of a container's answer; None if it is a refusal, too long or too slow."""
    with httpx.stream(
        "POST",
        url,
        json={"task_id": task_id},
        timeout=httpx.Timeout(_QUERY_SECONDS),
        trust_env=False,
    ) as response:
        if response.status_code != httpx.codes.OK:
            return None
        body = b""
        end = time.monotonic() + _QUERY_SECONDS
        for chunk in response.iter_raw():
            body += chunk
            if len(body) > _LARGEST_ANSWER or time.monotonic() > end:
                return None
        return body


def _status_of(body: Any) -> TaskStatus | None:
    """Return the status in a container's answer; None for a refusal.

    Raises ValueError for an unknown status.
    """
    if not isinstance(body, dict) or body.get("code") not in (0, "0"):
        return None
    return TaskStatus(str(body.get("status")).upper())
