"""The environment of a container (component layer 3.3, 3.4): system.*, config.*, runtime.*.

Booleans are ``True`` and ``False``, numbers decimal text, objects and lists JSON in UTF-8; a null parameter
is left out and an empty text stays set.
"""

import json
import time
from typing import Any

import httpx

from gateway.domain.run import Address, LocalJob, Run
from gateway.domain.states import TaskStatus
from gateway.ports import Site
from provider_registry.model import FATE, YACL


def session_id(job_id: str) -> str:
    """Return the transport session of a job (control layer 2.2)."""
    return f"session_{job_id}"


def session_of(
    job_id: str,
    task_id: str,
    per_task: bool,
) -> str:
    """Return the session of a task's containers; one peer has one for each task, written in the same way."""
    return session_id(task_id if per_task else job_id)


def environment(
    local: LocalJob,
    run: Run,
    site: Site,
    *,
    per_task: bool = False,
) -> dict[str, str]:
    """Return every variable that the container of this run gets.

    ``per_task``: it meets containers of a peer whose sessions are those of tasks.
    """
    spec = local.spec
    variables = {
        "system.storage": site.storage_url,
        "system.callback": site.callback_url,
        "system.transport": site.transport,
        "config.self_role": run.party.label,
        "config.task_id": run.task_id,
        "config.session_id": session_of(spec.job_id, run.task_id, per_task),
        "config.trace_id": spec.trace_id,
        "config.token": run.token,
        "config.log.path": site.log_path,
    }
    if site.checkpoint:  # an extension, for jobs that ask for it
        variables["system.checkpoint"] = site.checkpoint
    if site.checkpoint_at:
        variables["system.checkpoint.address"] = _address(site.checkpoint_at, run.image_profile)
    for party in spec.parties:
        if party.label not in local.excluded and (not run.roles or party.role in run.roles):
            variables[f"config.node_id.{party.label}"] = party.node
            variables[f"config.inst_id.{party.label}"] = (
                site.institution_of.get(party.node) or party.node
            )
    variables["runtime.component.name"] = run.component.name
    for name, value in run.parameters.items():
        if value is not None:
            variables[f"runtime.component.parameter.{name}"] = encoded(value)
    for kind, found in (("input", run.inputs), ("output", run.outputs)):
        for name, address in found.items():
            variables[f"runtime.component.{kind}.{name}"] = _address(address, run.image_profile)
    if port := run.declared.get("control_port"):
        variables["system.control_port"] = str(port)
    for name in ("n_threads", "chunk_size"):
        if value := site.tuning.get(name) or run.declared.get(name):
            variables[f"config.{name}"] = str(value)
    if site.compute:
        variables["system.compute"] = site.compute
    if run.image_profile == YACL:
        variables["system.storage.host.url"] = site.storage_url
    return variables


QUERY = "/v1/platform/algorithm/task/query"
_WITHIN = 2.0
"""seconds for a container's answer"""
_MOST = 64 * 1024
"""bytes of one"""


def container_status(run: Run, address: str) -> TaskStatus | None:
    """Ask a container at its control port how its task ended; None where it does not report an end.

    The answer is trusted as little as a callback: a container speaks for its own run alone.
    """
    url = f"http://{address}:{run.declared['control_port']}{QUERY}"
    try:
        timeout = httpx.Timeout(_WITHIN)
        with httpx.stream(
            "POST",
            url,
            json={"task_id": run.task_id},
            timeout=timeout,
            trust_env=False,
        ) as answer:
            body, end = b"", time.monotonic() + _WITHIN
            for part in answer.iter_raw():
                body += part
                if len(body) > _MOST or time.monotonic() > end:
                    return None
            found = json.loads(body)
        fits = (
            answer.status_code == httpx.codes.OK
            and isinstance(found, dict)
            and found.get("code") in (0, "0")
        )
        status = TaskStatus(str(found.get("status")).upper()) if fits else None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError):
        return None
    return status if status in (TaskStatus.SUCCESS, TaskStatus.FAILED) else None


def encoded(value: Any) -> str:
    """Write a parameter's value as text."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return json.dumps(value, ensure_ascii=False)


def _address(address: Address, profile: str) -> str:
    namespace, name = address.namespace, address.name
    if profile == FATE:
        namespace, name = name, namespace
    return json.dumps({"namespace": namespace, "name": name}, ensure_ascii=False)
