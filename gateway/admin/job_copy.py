"""A job as the body of ``create_all``, for people to change and to submit as a new job."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.admin.job_view import JobServices, amendments_in_force
from gateway.domain import rerun
from gateway.domain.spec import JobSpec, NodeId, role_entries
from gateway.errors import NotFound
from gateway.jobs.secret_masking import without_secrets
from provider_registry.model import join

_PROTOCOL = "bfia"  # whose ``create_all`` this node's platform submits
# Second spellings that only some peers read.
_PEER_SPELLINGS = ("module_name", "code")


def copy_of(services: JobServices, job_id: str) -> dict[str, Any]:
    """Return a copy of a job, with a list of the omitted values. Raises `NotFound`.

    The copy has the parameters in force at the job's end, neither an id nor an earlier job, and
    this node as its initiator if this node has a role in the job.
    """
    local = services.store.local_jobs.find(job_id)
    job = services.store.jobs.find(job_id)
    record = job or local
    if record is None:
        raise NotFound(
            f"job {job_id} neither is scheduled nor runs here",
            reason="JOB_UNKNOWN",
        )
    amendments = amendments_in_force(services, job_id, local)
    spec = rerun.with_amendments(record.spec, amendments)
    left_out: list[str] = []
    copied = _new_job(spec, services.node)
    body = services.peers.adapter(_PROTOCOL).request(copied)
    foreign: list[str] = []
    if job is None:  # the scheduling node sends every node its own entries only
        foreign = _parties_elsewhere(spec, services.node)
    return {
        "job_id": job_id,
        "job": _as_submitted(body, left_out),
        "left_out": left_out,
        "foreign_parties": foreign,
    }


def _new_job(spec: JobSpec, node: NodeId) -> JobSpec:
    """Return a job without its id, its earlier job and the tasks that it inherits from that."""
    job_params = dict(spec.job_params)
    if spec.common:
        common = dict(spec.common)
        common.pop("inherit", None)
        job_params["common"] = common
    new_job = replace(
        spec,
        job_id="",
        old_job_id="",
        job_params=job_params,
        bundles={},
    )
    if not spec.parties_at(node):
        return new_job
    return replace(
        new_job,
        initiator=node,
        initiator_role=rerun.initiator_role(spec, node),
    )


def _parties_elsewhere(spec: JobSpec, node: NodeId) -> list[str]:
    """Return the labels of other nodes' parties that have entries of their own."""
    roles = {role for role, entries in role_entries(spec.task_params) if entries}
    labels = []
    for party in spec.parties:
        if party.node != node and party.role in roles:
            labels.append(party.label)
    return labels


def _as_submitted(body: Mapping[str, Any], left_out: list[str]) -> dict[str, Any]:
    """Return a body between nodes as a user submits it, without secrets.

    The paths of the secrets are added to ``left_out``.
    """
    components = []
    for task in body["dag"]["components"]:
        fields = {name: value for name, value in task.items() if name not in _PEER_SPELLINGS}
        components.append(fields)
    config = dict(body["config"])
    for name in ("job_params", "task_params"):
        config[name] = _without_secret_entries(
            config[name],
            without_secrets(config[name]),
            f"config.{name}",
            left_out,
        )
    return {
        "flow_id": body["flow_id"],
        "dag": {**body["dag"], "components": components},
        "config": config,
    }


def _without_secret_entries(
    entries: Mapping[str, Any],
    masked: Mapping[str, Any],
    path: str,
    left_out: list[str],
) -> dict[str, Any]:
    """Return entries without secret values; add the paths of secrets to ``left_out``.

    ``masked``: the same entries, with their secrets masked.
    """
    plain = {}
    for name, value in entries.items():
        entry_path = join(path, name)
        if isinstance(value, Mapping):
            plain[name] = _without_secret_entries(value, masked[name], entry_path, left_out)
        elif value == masked[name]:
            plain[name] = value
        else:
            left_out.append(entry_path)
    return plain
