"""A job in full, and the runs that a person approves, as responses show them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from engines.base import Engine
from engines.logs import STREAMS
from gateway.admin.models import model_of
from gateway.auth import RunTokens
from gateway.broker.broker import Broker
from gateway.data.combined_storage import Storages
from gateway.data.logs import RunLogs
from gateway.domain import local_waiting, rerun, waiting
from gateway.domain.dag import DagNode
from gateway.domain.job import Job
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import (
    Amendment,
    CallState,
    Failure,
    JobSpec,
    NodeId,
    Party,
    data_location,
    effective,
)
from gateway.domain.states import Outcome, RunStatus
from gateway.errors import NotFound
from gateway.http.console_links import console_link
from gateway.jobs.approvals import Approvals
from gateway.jobs.executor import Executor
from gateway.jobs.job_requests import JobRequests
from gateway.jobs.job_statuses import JobStatuses
from gateway.jobs.launcher import Launching
from gateway.jobs.resources import Resources
from gateway.jobs.secret_masking import without_secrets
from gateway.ports import Clock, JobView
from gateway.runtime.context import Peers
from gateway.store.serialization import to_plain
from gateway.store.store import Store
from provider_registry.model import Component
from provider_registry.registry import Registry, Unknown

# Origin of a value that the job does not set: the component's own default, which no node sends.
DEFAULT = "component default"
_LAST_LINES = 100  # of a failed run's log
_MOST_TOPICS = 100  # of a job's channel
# Parameters that locate a dataset.
_DATASET_PARAMETERS = ("dataset_id", "namespace", "name")
# Fields of a view that the API does not show: they are about the reliability of a peer's response.
_RELIABILITY = ("is_inferred", "never_ends_callback_jobs")
_VIEW_FIELDS = tuple(field.name for field in fields(JobView) if field.name not in _RELIABILITY)
# Fields of a run that the API does not show, by their stored names: its container's credentials,
# and the state of calls.
_HIDDEN_RUN_FIELDS = ("run_id", "token", "launch", "stop", "collect", "told", "seal")


@dataclass(frozen=True)
class JobServices:
    """The services that the paths of jobs and their archives use."""

    node: NodeId  # this node
    clock: Clock
    store: Store
    run_tokens: RunTokens
    runs_folder: Path  # folder with the working folders and logs of runs
    registry: Registry
    storage: Storages
    engine: Engine
    resources: Resources
    broker: Broker
    peers: Peers
    launching: Launching
    executor: Executor
    run_logs: RunLogs
    job_requests: JobRequests
    job_statuses: JobStatuses
    approvals: Approvals
    # Address at which people reach the operators' listener; empty if it is not known
    operator_address: str


def job_in_full(
    services: JobServices,
    job_id: str,
    *,
    logs: bool = True,
) -> dict[str, Any]:
    """Return everything about a job; with ``logs``, also the last lines of failed runs.

    Raises `NotFound`.
    """
    view = services.job_statuses.status(job_id)
    local = services.store.local_jobs.find(job_id)
    job = services.store.jobs.find(job_id)
    amendments = amendments_in_force(services, job_id, local)
    body: dict[str, Any] = {name: getattr(view, name) for name in _VIEW_FIELDS}
    body |= {
        "console_url": console_link(job_id, services.operator_address),
        "runs": [],
        "inherited_runs": [],
        "local_warnings": [],
        "warning_count": 0,
        "resources": None,
        "channel": [],
        "channel_refused": "",
        "channel_received": [],
        "amendments": amendments,
        "refusals": _refusals(job),
        **_times(local, job),
    }
    record = local or job
    if record is None:
        body |= _spec_fields_elsewhere(services, view)
    else:
        body |= _spec_fields(services, record.spec, amendments, local)
    if local is not None:
        body |= _local_fields(services, local, logs)
    return body


def _refusals(job: Job | None) -> Sequence[Failure]:
    """Return why nodes rejected a job; empty if it is not rejected, or not scheduled here."""
    if job is None or job.outcome is not Outcome.REJECTED:
        return []
    return job.refusals


def _spec_fields(
    services: JobServices,
    spec: JobSpec,
    amendments: Sequence[Amendment],
    local: LocalJob | None,
) -> dict[str, Any]:
    """Return the fields from a job's specification, the parameters with their changes."""
    amended = rerun.with_amendments(spec, amendments)
    return {
        "model": model_of(spec),
        "initiator": spec.initiator,
        "trace_id": spec.trace_id,
        "parties": spec.parties,
        "parameters": _parameters_by_party(services, amended, local),
        "flow": spec.dag.nodes,
    }


def _spec_fields_elsewhere(services: JobServices, view: JobView) -> dict[str, Any]:
    """Return the fields of `_spec_fields`, and the scheduler, for a job without a record here.

    This node only submitted the job to another node. Its parties are those in the status that the
    other node reports.
    """
    parties = {}
    for task in view.tasks:
        for node, status_by_role in task.nodes.items():
            for role in status_by_role:
                parties[role, node] = {
                    "role": role,
                    "index": None,
                    "node": node,
                }
    return {
        "model": None,
        "initiator": services.node,
        "trace_id": None,
        "parties": list(parties.values()),
        "parameters": {},
        "flow": [],
        "scheduler": view.scheduler or services.store.scheduler_of(view.job_id) or "",
    }


def _local_fields(
    services: JobServices,
    local: LocalJob,
    logs: bool,
) -> dict[str, Any]:
    """Return the fields about this node's part of a job: its runs, resources and channel."""
    failure = None
    if local.ending is not None:
        failure = local.ending.failure
    queued_runs = services.executor.waiting_for_turn(local)
    reasons = local_waiting.of_runs(local, services.store.run_timing, queued_runs)
    sessions = _sessions(local)
    received = services.broker.traffic()  # since the start of this gateway
    received_here = []
    for session in sessions:
        if session in received:
            received_here.append(
                {
                    "session": session,
                    **received[session]._asdict(),
                }
            )
    refused_requests = filter(None, map(services.broker.last_refusal, sessions))
    inherited = [run for run in local.runs_that_count() if run.of_job]
    return {
        "runs": [
            _run_fields(services, run, local, reasons[run.run_id], logs) for run in local.runs
        ],
        "local_status": local.status,
        "local_waiting": local_waiting.of_local(local, services.store.run_timing),
        "local_failure": failure,
        "approval": approval_of(local),
        "inherited_runs": list(map(_inherited_run, inherited)),
        "local_warnings": local.warnings,
        "warning_count": local.run_warnings,
        "resources": services.resources.of_job(local),
        "channel": _topics(services, local),
        "channel_refused": next(refused_requests, ""),
        "channel_received": received_here,
    }


def _times(
    local: LocalJob | None,
    job: Job | None,
) -> dict[str, Any]:
    """Return a job's times of creation, start and end, and its user, as far as they are known.

    ``local``: this node's part of the job; ``job``: the job as its scheduler has it. A participant
    takes the start of its first run for the job's, and does not know the user.
    """
    times: dict[str, Any] = {
        "created_at": None,
        "started_at": None,
        "ended_at": None,
        "user": "",
    }
    record = job or local  # the scheduler's times come first: they are those of the whole job
    if record is not None:
        times["created_at"] = record.created_at
        times["ended_at"] = record.ended_at
    if job is not None:
        times["started_at"] = job.started_at
        times["user"] = job.user
    elif local is not None:
        starts = [run.started_at for run in local.runs if run.started_at]
        times["started_at"] = min(starts, default=None)
    return times


def _sessions(local: LocalJob) -> list[str]:
    """Return the names of the sessions that the job may have: its own, and one per task."""
    ids = dict.fromkeys([local.id, *(run.task_id for run in local.runs)])
    return [f"session_{id_}" for id_ in ids]


def _topics(services: JobServices, local: LocalJob) -> list[dict[str, Any]]:
    """Return the first `_MOST_TOPICS` topics of a job with unread messages or waiting parties."""
    parties = {run.name: run.party.label for run in local.runs}
    topics = []
    for session in _sessions(local):
        for topic in services.broker.backlog(session):
            topics.append(
                {
                    "session": session,
                    **topic._asdict(),
                    "oldest": round(topic.oldest, 3),
                    "readers": [parties.get(run, run) for run in topic.readers],
                }
            )
    return topics[:_MOST_TOPICS]


def amendments_in_force(
    services: JobServices,
    job_id: str,
    local: LocalJob | None,
) -> list[Amendment]:
    """Return the changes of a job's parameters that are in force.

    A node that does not schedule the job learns them from the start of a task.
    """
    job = services.store.jobs.find(job_id)
    if job is not None:
        return list(job.amendments)
    if local is None:
        return []
    return [amendment for amendment in local.offered if amendment.id in local.amendments]


def approval_of(local: LocalJob) -> dict[str, Any] | None:
    """Return the approval of a job here, its deadline and the decision; None if it needs none.

    The call that reports the decision (``confirm``) is left out.
    """
    if local.approval is None:
        return None
    return {name: value for name, value in vars(local.approval).items() if name != "confirm"}


def planned_runs(services: JobServices, local: LocalJob) -> list[dict[str, Any]]:
    """Return the runs of a job at this node before they exist, with image, dataset and parameters.

    The image is empty, and every party counts, if the component is not registered here.
    """
    runs = []
    for task in local.spec.dag.nodes:
        component = task.component
        image = ""
        digest = ""
        roles = None
        with suppress(Unknown):
            provider, registered = services.registry.find(
                component.provider, component.version, component.name
            )
            roles = registered.roles
            image = provider.image_for(component.name)
            digest = provider.digests.get(image, "")
        for party in local.spec.parties_at(local.node):
            if party.takes_part(roles):
                runs.append(
                    {
                        "task": task.name,
                        "party": party.label,
                        "component": f"{component.provider}/{component.name} {component.version}",
                        "image": image,
                        "digest": digest,
                        "dataset": _dataset_of(local, party, task),
                        "parameters": _values_without_dataset(local, party, task),
                    }
                )
    return runs


def _values_without_dataset(
    local: LocalJob,
    party: Party,
    task: DagNode,
) -> Any:
    """Return the values that a job sets for a task's parameters, with secrets masked."""
    parameters = effective(local.spec.task_params, party, task.name)
    values = {}
    for name, parameter in parameters.items():
        if name not in _DATASET_PARAMETERS:
            values[name] = parameter.value
    return without_secrets(values)


def _dataset_of(local: LocalJob, party: Party, task: DagNode) -> str:
    """Return the id of a task's dataset, or its namespace and name; "" without one."""
    location = data_location(local.spec.task_params, party, task.name) or {}
    names = [location[key] for key in ("namespace", "name") if key in location]
    return location.get("dataset_id") or "#".join(names)


def _parameters_by_party(
    services: JobServices,
    spec: JobSpec,
    local: LocalJob | None,
) -> dict[str, Any]:
    """Return the parameters by party and task; only of this node's parties, if it has any.

    The defaults are those of the components as they were registered when this node got its part of
    the job; for a job without a part here, as they are registered today.
    """
    created_at = None
    parties = spec.parties
    if local is not None:
        created_at = local.created_at
        parties = spec.parties_at(local.node)
    parameters: dict[str, dict[str, Any]] = {}
    with services.registry.one_view():  # read a provider once for all its tasks and parties
        for party in parties:
            parameters[party.label] = {
                task.name: _task_parameters(services, spec, party, task, created_at)
                for task in spec.dag.nodes
            }
    return parameters


def _task_parameters(
    services: JobServices,
    spec: JobSpec,
    party: Party,
    task: DagNode,
    created_at: datetime | None,
) -> dict[str, Any]:
    """Return a task's parameters at a party with their origins, and the component's defaults.

    The defaults are missing if the component is not registered here, or has not the party's role.
    ``created_at``: when this node got its part of the job; None without a part.
    """
    parameters: dict[str, Any] = dict(effective(spec.task_params, party, task.name))
    defaults: dict[str, Any] = {}
    component = task.component
    with suppress(Unknown):
        _, registered = services.registry.find(
            component.provider,
            component.version,
            component.name,
            at=created_at,
        )
        if party.role in registered.roles:
            defaults = _defaults_of(registered)
    return parameters | {name: value for name, value in defaults.items() if name not in parameters}


def _defaults_of(component: Component) -> dict[str, Any]:
    """Return the defaults of a component's parameters as responses show them, by name."""
    defaults = {}
    for parameter in component.parameters:
        if parameter.default not in (None, ""):
            defaults[parameter.name] = {
                "value": parameter.default,
                "origin": DEFAULT,
            }
    return defaults


def _run_fields(
    services: JobServices,
    run: Run,
    local: LocalJob,
    reason: waiting.Waiting | None,
    logs: bool,
) -> dict[str, Any]:
    """Return a run as responses show it.

    ``reason``: why it waits; ``logs``: whether a failed run has the last lines of its log.
    """
    body = {name: value for name, value in to_plain(run).items() if name not in _HIDDEN_RUN_FIELDS}
    task = run.task_id
    # The API finds only the newest attempt of a task by the task's name.
    if run in local.newest_runs(run.task_name):
        task = run.task_name
    # A run names only an engine other than the main one. Its owner is a gateway instance and the
    # kind of its main engine, such as ``alice-1/docker``.
    body["engine"] = run.engine or run.owner.rpartition("/")[2] or services.engine.kind
    body["waiting"] = reason
    body["log"] = _log_path(local.id, run, task)
    # A run that was never launched has no log.
    if logs and run.status is RunStatus.FAILED and run.launch.state is CallState.OK:
        body["last_lines"] = _last_lines(services, local.id, run)
    return body


def _inherited_run(run: Run) -> dict[str, Any]:
    """Return a run of an earlier job with outputs in use here; its log belongs to that job."""
    return {
        "task_name": run.task_name,
        "party": run.party,
        "job_id": run.of_job,
        "task_id": run.task_id,
        "image_digest": run.software.digest,
        "outputs": run.data.outputs_by_key(),
        "log": _log_path(run.of_job, run, run.task_id),
    }


def _log_path(job_id: str, run: Run, task: str) -> str:
    """Return the path of a run's log in this API; ``task``: its name or its id."""
    job = quote(job_id, safe="")
    return f"/api/v1/jobs/{job}/runs/{run.party.label}/{quote(task, safe='')}/log"


def _last_lines(
    services: JobServices,
    job_id: str,
    run: Run,
) -> list[str]:
    """Return the last lines of a run's log, or the error in one line if it is not here."""
    try:
        no_lines = services.run_logs.read_run(  # only for the total number of lines
            job_id,
            run,
            STREAMS,
            start=0,
            length=0,
        )
        log = services.run_logs.read_run(
            job_id,
            run,
            STREAMS,
            start=max(0, no_lines.total - _LAST_LINES),
            length=_LAST_LINES,
        )
    except NotFound as error:  # another gateway of this node has the log
        return [f"[{error.reason}: {error.message}]"]
    return [line.text for line in log.lines]
