"""A job in full, and the archive of everything this node has about it."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
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
    JobSpec,
    NodeId,
    Party,
    data_location,
    effective,
)
from gateway.domain.states import Outcome, RunStatus
from gateway.errors import GatewayError, NotFound
from gateway.jobs import archive, bundle_document
from gateway.jobs.approvals import Approvals
from gateway.jobs.archive import Entry, as_json
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
from provider_registry.model import group_of
from provider_registry.registry import Registry, Unknown

# Origin of a value that the job does not set: the component's own default, which no node sends.
DEFAULT = "component default"
_LAST_LINES = 100
_MOST_TOPICS = 100
# Fields of a view that the API does not show: they are about the reliability of a peer's response.
_RELIABILITY = ("is_inferred", "ends_no_callback_job")
_VIEW_FIELDS = tuple(field.name for field in fields(JobView) if field.name not in _RELIABILITY)
# Fields of a run that the API does not show: its container's credentials, and calls under way.
_HIDDEN = ("run_id", "token", "launch", "stop", "collect", "told", "seal")


@dataclass(frozen=True)
class JobServices:
    """The services that the paths of jobs and their archives use."""

    node: NodeId  # this node
    clock: Clock
    store: Store
    run_tokens: RunTokens
    runs_folder: Path  # working folders and logs of runs
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
    amendments = _amendments(services, job_id, local)
    body: dict[str, Any] = {name: getattr(view, name) for name in _VIEW_FIELDS}
    body |= {
        "runs": [],
        "inherited_runs": [],
        "local_warnings": [],
        "resources": None,
        "channel": [],
        "channel_refused": "",
        "channel_received": [],
        "amendments": amendments,
        "refusals": job.refusals if job and job.outcome is Outcome.REJECTED else [],
        **_times(local, job),
    }
    record = local or job
    if record is None:
        body |= _spec_elsewhere(services, view)
        body["scheduler"] = view.scheduler or services.store.scheduler_of(job_id) or ""
    else:
        spec = record.spec
        body |= {
            "model": model_of(spec),
            "initiator": spec.initiator,
            "trace_id": spec.trace_id,
            "parties": spec.parties,
            "parameters": _parameters(services, rerun.with_amendments(spec, amendments), local),
            "flow": spec.dag.nodes,
        }
    if local is not None:
        body |= _local_part(services, local, logs)
    return body


def _spec_elsewhere(services: JobServices, view: JobView) -> dict[str, Any]:
    """Return the parts of a job submitted to another node, in which this node has no party."""
    roles = {}
    for task in view.tasks:
        for node, runs in task.nodes.items():
            for role in runs:
                roles[role, node] = {
                    "role": role,
                    "index": None,
                    "node": node,
                }
    return {
        "model": None,
        "initiator": services.node,
        "trace_id": None,
        "parties": list(roles.values()),
        "parameters": {},
        "flow": [],
    }


def _local_part(
    services: JobServices,
    local: LocalJob,
    logs: bool,
) -> dict[str, Any]:
    """Return the runs of a job here, their resources and their channel."""
    turns = services.executor.waiting_for_turn(local)
    reasons = local_waiting.of_runs(local, services.store.run_timing, turns)
    sessions = _sessions(local)
    received = services.broker.traffic()  # since the start of this gateway
    received_here = []
    for session in sessions:
        if session in received:
            received_here.append({"session": session, **received[session]._asdict()})
    refused_requests = filter(None, map(services.broker.last_refusal, sessions))
    return {
        "runs": [_run(services, run, local, reasons[run.run_id], logs) for run in local.runs],
        "local_status": local.status,
        "local_waiting": local_waiting.of_local(local, services.store.run_timing),
        "local_failure": local.ending.failure if local.ending else None,
        "approval": approval_of(local),
        "inherited_runs": [_inherited_run(run) for run in local.runs_that_count() if run.of_job],
        "local_warnings": local.warnings,
        "resources": services.resources.of_job(local),
        "channel": _channel(services, local),
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
    record = job or local
    if record is not None:
        times |= {"created_at": record.created_at, "ended_at": record.ended_at}
    if job is not None:
        times |= {"started_at": job.started_at, "user": job.user}
    elif local is not None:
        starts = [run.started_at for run in local.runs if run.started_at]
        times["started_at"] = min(starts, default=None)
    return times


def _sessions(local: LocalJob) -> dict[str, None]:
    """Return the names of the sessions that the job may have: its own, and one per task."""
    names = [local.id, *(run.task_id for run in local.runs)]
    return dict.fromkeys(f"session_{name}" for name in names)


def _channel(services: JobServices, local: LocalJob) -> list[dict[str, Any]]:
    """Return the first hundred topics of a job here with unread messages or waiting parties."""
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


def _amendments(
    services: JobServices,
    job_id: str,
    local: LocalJob | None,
) -> list[Amendment]:
    """Return the effective changes of a job's parameters; a party learns them from the start of a
    task.
    """
    job = services.store.jobs.find(job_id)
    if job is not None:
        return list(job.amendments)
    if local is None:
        return []
    return [amendment for amendment in local.offered if amendment.id in local.amendments]


def approval_of(local: LocalJob) -> dict[str, Any] | None:
    """Return the approval of a job here, its deadline and the decision; None if it needs none."""
    if local.approval is None:
        return None
    return {name: value for name, value in vars(local.approval).items() if name != "confirm"}


_DATASET = ("dataset_id", "namespace", "name")


def pieces_here(services: JobServices, local: LocalJob) -> list[dict[str, Any]]:
    """Return the runs of a job at this node before they start: image, parameters and dataset of
    each.
    """
    pieces = []
    for task in local.spec.dag.nodes:
        ref = task.component
        image = ""
        digest = ""
        roles = None
        with suppress(Unknown):
            provider, component = services.registry.find(ref.provider, ref.version, ref.name)
            roles = component.roles
            image = provider.image_for(ref.name)
            digest = provider.digests.get(image, "")
        for party in local.spec.parties_at(local.node):
            if not party.takes_part(roles):
                continue
            parameters = effective(local.spec.task_params, party, task.name)
            values = {k: v.value for k, v in parameters.items() if k not in _DATASET}
            pieces.append(
                {
                    "task": task.name,
                    "party": party.label,
                    "component": f"{ref.provider}/{ref.name} {ref.version}",
                    "image": image,
                    "digest": digest,
                    "dataset": _dataset_of(local, party, task),
                    "parameters": without_secrets(values),
                }
            )
    return pieces


def _dataset_of(local: LocalJob, party: Party, task: DagNode) -> str:
    """Return the id of a task's dataset, or its namespace and name; "" without one."""
    location = data_location(local.spec.task_params, party, task.name) or {}
    names = [location[key] for key in ("namespace", "name") if key in location]
    return location.get("dataset_id") or "#".join(names)


def _parameters(
    services: JobServices,
    spec: JobSpec,
    local: LocalJob | None,
) -> dict[str, Any]:
    """Return the parameters by party and task; only of this node's parties, if it has any."""
    created_at = local.created_at if local else None
    parties = [party for party in spec.parties if local is None or party.node == local.node]
    parameters: dict[str, dict[str, Any]] = {}
    with services.registry.one_view():  # read a provider once for all its tasks and parties
        for party in parties:
            parameters[party.label] = {
                task.name: _of_task(services, spec, party, task, created_at)
                for task in spec.dag.nodes
            }
    return parameters


def _of_task(
    services: JobServices,
    spec: JobSpec,
    party: Party,
    task: DagNode,
    created_at: datetime | None,
) -> dict[str, Any]:
    """Return a task's parameters at a party with their origins, and the component's defaults.

    The defaults are missing for a component that is not registered here, or without that role.
    """
    parameters: dict[str, Any] = dict(effective(spec.task_params, party, task.name))
    ref = task.component
    try:
        _, component = services.registry.find(
            ref.provider,
            ref.version,
            ref.name,
            at=created_at,
        )
    except Unknown:
        return parameters
    if party.role not in component.roles:
        return parameters
    for parameter in component.parameters:
        if parameter.default not in (None, ""):
            parameters.setdefault(parameter.name, {"value": parameter.default, "origin": DEFAULT})
    return parameters


def _run(
    services: JobServices,
    run: Run,
    local: LocalJob,
    reason: waiting.Waiting | None,
    logs: bool,
) -> dict[str, Any]:
    """Return a run; ``reason``: why it waits; ``logs``: with the last lines of a failed one."""
    body = {name: value for name, value in to_plain(run).items() if name not in _HIDDEN}
    is_newest = run in local.newest_runs(run.task_name)
    body["engine"] = run.engine or run.owner.rpartition("/")[2] or services.engine.kind
    body["waiting"] = reason
    body["log"] = _log_of(local.id, run, run.task_name if is_newest else run.task_id)
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
        "log": _log_of(run.of_job, run, run.task_id),
    }


def _log_of(
    job_id: str,
    run: Run,
    task: str,
) -> str:
    """Return the path of a run's log."""
    job = quote(job_id, safe="")
    return f"/api/v1/jobs/{job}/runs/{run.party.label}/{quote(task, safe='')}/log"


def _last_lines(
    services: JobServices,
    job_id: str,
    run: Run,
) -> list[str]:
    try:
        total = services.run_logs.read_run(job_id, run, STREAMS, 0, 0).total
        start = max(0, total - _LAST_LINES)
        log = services.run_logs.read_run(job_id, run, STREAMS, start, _LAST_LINES)
    except NotFound as error:  # another gateway of this node has them
        return [f"[{error.reason}: {error.message}]"]
    return [line.text for line in log.lines]


def archive_pieces(services: JobServices, job_id: str) -> Iterator[bytes]:
    """Return a zip of everything this node has about a job, piece by piece. Raises `NotFound`."""
    local = services.store.local_jobs.find(job_id)
    job = services.store.jobs.find(job_id)
    record = job or local
    if record is None:
        raise NotFound(f"job {job_id} neither is scheduled nor runs here", reason="JOB_UNKNOWN")
    now = services.clock()
    sides = []
    if job is not None:
        sides.append("scheduler")
    if local is not None:
        sides.append("participant")
    state = {
        "job_id": job_id,
        "node": services.node,
        "made_at": now.isoformat(),
        "sides": sides,
        "job": _plain_job(services, job_id),
    }
    secrets = _secrets(services, local)
    request = services.peers.adapter(record.spec.protocol).request(record.spec)

    def document(value: Any) -> list[bytes]:
        return [as_json(without_secrets(value, secrets))]

    def environment(local: LocalJob, run: Run) -> list[bytes]:
        return document(services.launching.environment(local, run))

    def bundle(local: LocalJob) -> list[bytes]:
        return document(bundle_document.document(local))

    def timeline() -> Iterator[bytes]:
        for entry in services.store.timeline(job_id):
            text = document(to_plain(entry))[0]
            yield b" ".join(line.strip() for line in text.splitlines()) + b"\n"

    def entries() -> Iterator[Entry]:
        yield Entry("job.json", partial(document, request))
        yield Entry("state.json", partial(document, state))
        yield Entry("timeline.jsonl", timeline)
        if local is None:
            return
        yield Entry(bundle_document.FILE, partial(bundle, local))
        for run in local.runs:
            folder = f"runs/{_folder(run)}"
            yield Entry(f"{folder}/environment.json", partial(environment, local, run))
            yield from _log(services, run, f"{folder}/log", secrets)
        yield from _reports(services, local)

    return archive.write(entries(), now)


def _plain_job(services: JobServices, job_id: str) -> Any:
    """Return a job in full as plain data, or the error of the node that schedules it."""
    try:
        return to_plain(job_in_full(services, job_id))
    except GatewayError as error:
        return {"reason": error.reason, "message": error.message}


def _secrets(services: JobServices, local: LocalJob | None) -> list[str]:
    """Return the texts to mask in an archive: run ids, their tokens, and secrets of storages."""
    ids = []
    if local is not None:
        for run in local.runs:
            ids += [run_id for run_id in (run.run_id, run.token) if run_id]
    tokens = [services.run_tokens.issue(run_id) for run_id in ids]
    return [*tokens, *ids, *services.storage.secrets]


def _folder(run: Run) -> str:
    """Return the folder of a run's files in an archive."""
    return f"{run.party.label}/{run.task_name}/attempt-{run.attempt}"


def _log(
    services: JobServices,
    run: Run,
    folder: str,
    secrets: list[str],
) -> Iterable[Entry]:
    """Return the log files of a run.

    If another gateway of this node has them, return an entry that raises the error when it is read.
    """
    try:
        services.run_logs.check_here(run)
    except NotFound as error:
        return [Entry(folder, partial(_refused, error))]
    return archive.of_files(services.runs_folder / run.name, folder, secrets)


def _refused(error: NotFound) -> Iterable[bytes]:
    """Raise the error, in place of the content of an entry."""
    raise error


def _reports(services: JobServices, local: LocalJob) -> Iterator[Entry]:
    """Yield the stored reports of a job's runs here."""
    for run in local.runs:
        for key in sorted(run.data.output_keys):
            output_type = local.spec.dag.type_of(run.task_name, key)
            if group_of(output_type) != "metric":
                continue
            address = run.data.output(key)
            if services.storage.exists(address):
                read = partial(services.storage.stream, address)
                yield Entry(f"reports/{_folder(run)}/{key}", read)
