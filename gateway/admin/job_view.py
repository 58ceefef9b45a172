"""A job in full, and all that this node knows of it as an archive."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, get_type_hints
from urllib.parse import quote

from engines.logs import STREAMS
from gateway.admin.deps import AdminParts
from gateway.admin.models import model_of
from gateway.domain import rerun, waiting
from gateway.domain.dag import DagNode
from gateway.domain.job import Job
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Amendment, CallState, JobSpec, Party, data_location, effective
from gateway.domain.states import Outcome, RunStatus
from gateway.errors import GatewayError, NotFound
from gateway.jobs import archive, bundles
from gateway.jobs.archive import Entry, as_json, without_secrets
from gateway.ports import JobView
from gateway.store.serialization import stored_names, to_plain
from provider_registry.model import group_of
from provider_registry.registry import Unknown

DEFAULT = "component default"
"""origin of a value that the job does not set; the component takes it by itself, it is never sent to it"""
_LAST_LINES = 100
_MOST_TOPICS = 100
_OF_PEER = ("is_inferred", "ends_no_callback_job")
"""of a view: how far its peer's answer is to be believed"""
VIEWED = {name: kind for name, kind in get_type_hints(JobView).items() if name not in _OF_PEER}
_HIDDEN = ("run_id", "token", "launch", "stop", "collect", "told", "seal")
"""of a run: its container's credentials, and calls under way"""
SHOWN = {
    name: kind
    for name, kind in get_type_hints(Run).items()
    if stored_names(Run)[name] not in _HIDDEN
}


def job_in_full(
    parts: AdminParts,
    job_id: str,
    *,
    logs: bool = True,
) -> dict[str, Any]:
    """Return all that is known of a job. ``logs``: with the last lines of failed runs. Raises `NotFound`."""
    view = parts.coordinator.status(job_id)
    local = parts.store.local_jobs.find(job_id)
    job = parts.store.jobs.find(job_id)
    spec = local.spec if local else job.spec if job else None
    found: dict[str, Any] = {
        **{name: getattr(view, name) for name in VIEWED},
        "runs": [],
        "inherited_runs": [],
        "local_warnings": [],
        "resources": None,
        "channel": [],
        "channel_refused": "",
        "channel_received": [],
        "amendments": _amendments(parts, job_id, local),
        "model": model_of(spec) if spec else None,
        **_times(local, job),
        "flow": [],
        "refusals": job.refusals if job and job.outcome is Outcome.REJECTED else [],
    }
    if spec:
        found |= {
            "initiator": spec.initiator,
            "trace_id": spec.trace_id,
            "parties": spec.parties,
        }
        found["parameters"] = _parameters(parts, rerun.amended(spec, found["amendments"]), local)
        found["flow"] = spec.dag.nodes
    else:  # submitted to another node, and without a part here
        roles = dict.fromkeys(
            (role, at) for task in view.tasks for at, own in task.nodes.items() for role in own
        )
        found |= {
            "initiator": parts.settings.node.id,
            "trace_id": None,
            "parameters": {},
        }
        found["scheduler"] = view.scheduler or parts.store.scheduler_of(job_id) or ""
        found["parties"] = [
            {
                "role": role,
                "index": None,
                "node": node,
            }
            for role, node in roles
        ]
    if local:
        turns = parts.executor.waiting_for_turn(local)
        reasons = waiting.of_runs(local, parts.store.run_timing, turns)
        received = parts.broker.received()  # since this gateway's start
        found |= {
            "runs": [_run(parts, run, local, reasons[run.run_id], logs) for run in local.runs],
            "local_status": local.status,
            "local_waiting": waiting.of_local(local, parts.store.run_timing),
            "local_failure": local.ending.failure if local.ending else None,
            "approval": approval_of(local),
            "inherited_runs": [_inherited_run(run) for run in local.standing() if run.of_job],
            "local_warnings": local.warnings,
            "resources": parts.resources.of_job(local),
            "channel": _channel(parts, local),
            "channel_refused": next(
                filter(None, map(parts.broker.last_refused, _sessions(local))), ""
            ),
            "channel_received": [
                {"session": s, **received[s]._asdict()} for s in _sessions(local) if s in received
            ],
        }
    return found


def _times(local: LocalJob | None, job: Job | None) -> dict[str, Any]:
    """Return when a job was created, started and ended, as far as this node knows, and who submitted it."""
    record = job or local
    begun = [run.started_at for run in local.runs if run.started_at] if local else []
    return {
        "created_at": record.created_at if record else None,
        "started_at": job.started_at if job else min(begun, default=None),
        "ended_at": record.ended_at if record else None,
        "user": job.user if job else "",
    }


def _sessions(local: LocalJob) -> dict[str, None]:
    return dict.fromkeys(
        f"session_{name}" for name in (local.id, *(run.task_id for run in local.runs))
    )


def _channel(parts: AdminParts, local: LocalJob) -> list[dict[str, Any]]:
    """Return what waits on the topics of a job here, and which parties wait; the first hundred topics."""
    parties = {run.name: run.party.label for run in local.runs}
    found = [
        {
            "session": session,
            **on._asdict(),
            "oldest": round(on.oldest, 3),
            "readers": [parties.get(run, run) for run in on.readers],
        }
        for session in _sessions(local)
        for on in parts.broker.waiting(session)
    ]
    return found[:_MOST_TOPICS]


def _amendments(
    parts: AdminParts,
    job_id: str,
    local: LocalJob | None,
) -> list[Amendment]:
    """Return the changes of a job's parameters that hold; a party knows of them once a task's start named them."""
    if job := parts.store.jobs.find(job_id):
        return list(job.amendments)
    return [one for one in local.offered if one.id in local.amendments] if local else []


def approval_of(local: LocalJob) -> dict[str, Any] | None:
    """Return who had to agree to a job here, until when, and what was decided; None where nobody had to."""
    if local.approval is None:
        return None
    return {name: value for name, value in vars(local.approval).items() if name != "confirm"}


_DATASET = ("dataset_id", "namespace", "name")


def pieces_here(parts: AdminParts, local: LocalJob) -> list[dict[str, Any]]:
    """Return what a job would run at this node: image, parameters, and which dataset each task would read."""
    found = []
    for task in local.spec.dag.nodes:
        ref, image, digest, roles = task.component, "", "", None
        with suppress(Unknown):
            provider, component = parts.registry.find(ref.provider, ref.version, ref.name)
            image, roles = provider.image_for(ref.name), component.roles
            digest = provider.digests.get(image, "")
        for party in local.spec.parties_at(local.node):
            if roles is None or party.role in roles:
                where = data_location(local.spec.task_params, party, task.name) or {}
                names = [where[key] for key in ("namespace", "name") if key in where]
                about = {
                    "image": image,
                    "digest": digest,
                    "dataset": where.get("dataset_id") or "#".join(names),
                }
                set_ = {
                    k: v.value
                    for k, v in effective(local.spec.task_params, party, task.name).items()
                }
                about |= {
                    "parameters": without_secrets(
                        {k: v for k, v in set_.items() if k not in _DATASET}
                    )
                }
                component_ = f"{ref.provider}/{ref.name} {ref.version}"
                found.append(
                    {
                        "task": task.name,
                        "party": party.label,
                        "component": component_,
                        **about,
                    }
                )
    return found


def _parameters(
    parts: AdminParts,
    spec: JobSpec,
    local: LocalJob | None,
) -> dict[str, Any]:
    began = local.created_at if local else None
    with parts.registry.one_view():  # tasks of one provider, at each party: it is read once
        return {
            party.label: {
                node.name: _of_task(parts, spec, party, node, began) for node in spec.dag.nodes
            }
            for party in spec.parties
            if local is None or party.node == local.node
        }


def _of_task(
    parts: AdminParts,
    spec: JobSpec,
    party: Party,
    node: DagNode,
    began: datetime | None,
) -> dict[str, Any]:
    """Return a task's parameters at a party, each with its origin; of what the job leaves open, the default."""
    found: dict[str, Any] = dict(effective(spec.task_params, party, node.name))
    ref = node.component
    try:
        _, component = parts.registry.find(ref.provider, ref.version, ref.name, at=began)
    except Unknown:
        return found
    for parameter in component.parameters if party.role in component.roles else ():
        if parameter.default not in (None, ""):
            found.setdefault(parameter.name, {"value": parameter.default, "origin": DEFAULT})
    return found


def _run(
    parts: AdminParts,
    run: Run,
    local: LocalJob,
    waits: waiting.Waiting | None,
    logs: bool,
) -> dict[str, Any]:
    found = {name: value for name, value in to_plain(run).items() if name not in _HIDDEN}
    newest = run in local.newest_runs(run.task_name)
    found["engine"] = run.engine or run.owner.rpartition("/")[2] or parts.engine.kind
    found["waiting"] = waits
    found["log"] = _log_of(local.id, run, run.task_name if newest else run.task_id)
    if logs and run.status is RunStatus.FAILED and run.launch.state is CallState.OK:
        found["last_lines"] = _last_lines(parts, local.id, run)
    return found


def _inherited_run(run: Run) -> dict[str, Any]:
    """Return a run of an earlier job whose outputs count here; its log is with that job."""
    return {
        "task_name": run.task_name,
        "party": run.party,
        "job_id": run.of_job,
        "task_id": run.task_id,
        "image_digest": run.image_digest,
        "outputs": {key: run.outputs[name] for key, name in run.output_keys.items()},
        "log": _log_of(run.of_job, run, run.task_id),
    }


def _log_of(
    job_id: str,
    run: Run,
    task: str,
) -> str:
    return (
        f"/api/v1/jobs/{quote(job_id, safe='')}/runs/{run.party.label}/{quote(task, safe='')}/log"
    )


def _last_lines(
    parts: AdminParts,
    job_id: str,
    run: Run,
) -> list[str]:
    try:
        total = parts.run_logs.read_run(job_id, run, STREAMS, 0, 0).total
        found = parts.run_logs.read_run(
            job_id, run, STREAMS, max(0, total - _LAST_LINES), _LAST_LINES
        )
    except NotFound as error:  # another gateway has them
        return [f"[{error.reason}: {error.message}]"]
    return [line.text for line in found.lines]


def archived(parts: AdminParts, job_id: str) -> Iterator[bytes]:
    """Return a zip of all that this node knows of a job, made piece by piece. Raises `NotFound`."""
    store, now = parts.store, parts.clock()
    local = store.local_jobs.find(job_id)
    job = store.jobs.find(job_id)
    record = job or local
    if record is None:
        raise NotFound(f"job {job_id} neither is scheduled nor runs here", reason="JOB_UNKNOWN")
    ids = [i for run in (local.runs if local else ()) for i in (run.run_id, run.token) if i]
    secrets = [*map(parts.run_tokens.issue, ids), *ids, *parts.storage.secrets]
    try:
        state = to_plain(job_in_full(parts, job_id))
    except GatewayError as error:  # the node that schedules it has forgotten it, or says no
        state = {"reason": error.reason, "message": error.message}
    head = {
        "job_id": job_id,
        "node": parts.settings.node.id,
        "made_at": now.isoformat(),
        "sides": [
            side for side, one in (("scheduler", job), ("participant", local)) if one is not None
        ],
        "job": state,
    }

    def document(value: Any) -> list[bytes]:
        return [as_json(without_secrets(value, secrets))]

    def environment(local: LocalJob, run: Run) -> list[bytes]:
        return document(parts.launching.environment(local, run))

    def timeline() -> Iterator[bytes]:
        for entry in store.timeline(job_id):
            yield (
                b" ".join(line.strip() for line in document(to_plain(entry))[0].splitlines())
                + b"\n"
            )

    def entries() -> Iterator[Entry]:
        yield Entry(
            "job.json",
            partial(document, parts.peers.adapter(record.spec.protocol).request(record.spec)),
        )
        yield Entry("state.json", partial(document, head))
        yield Entry("timeline.jsonl", timeline)
        if local is None:
            return
        yield Entry(bundles.FILE, lambda: document(bundles.document(local)))
        for run in local.runs:
            place = f"runs/{_place(run)}"
            yield Entry(f"{place}/environment.json", partial(environment, local, run))
            yield from _log(parts, run, f"{place}/log", secrets)
        yield from _reports(parts, local)

    return archive.write(entries(), now)


def _place(run: Run) -> str:
    return f"{run.party.label}/{run.task_name}/attempt-{run.attempt}"


def _log(
    parts: AdminParts,
    run: Run,
    place: str,
    secrets: list[str],
) -> Iterable[Entry]:
    """Return what a run wrote, or an error entry where another gateway of this node has it."""
    try:
        parts.run_logs.check_here(run)
    except NotFound as error:
        return [Entry(place, partial(_refused, error))]
    return archive.of_files(parts.runs_folder / run.name, place, secrets)


def _refused(error: NotFound) -> Iterable[bytes]:
    raise error


def _reports(parts: AdminParts, local: LocalJob) -> Iterator[Entry]:
    for run in local.runs:
        for key, name in sorted(run.output_keys.items()):
            is_report = group_of(local.spec.dag.type_of(run.task_name, key)) == "metric"
            if is_report and parts.storage.exists(run.outputs[name]):
                yield Entry(
                    f"reports/{_place(run)}/{key}", partial(parts.storage.stream, run.outputs[name])
                )
