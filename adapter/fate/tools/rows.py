"""A job as this node knows it, and its rows: jobs and tasks with the columns that FATE's tools print.

Columns without a meaning here are null. Those of our own say how a job ended, what each run used, and the
addresses of logs and results at this gateway.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from adapter.fate.dag.description import dag_schema, parties_of
from adapter.fate.dag.read import numbered
from adapter.fate.tools.deps import ClientParts
from adapter.fate.words import PROTOCOL, job_word, milliseconds, newest, task_word
from gateway.domain.dag import ComponentRef, Dag, DagNode
from gateway.domain.job import Attempt, Job
from gateway.domain.models import named
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Failure, JobSpec, NodeId, Party, effective
from gateway.domain.states import JOB, TASK_OF_RUN, JobStatus, Outcome, TaskStatus, ended
from gateway.errors import NotFound
from gateway.ports import JobView, TaskView

Row = dict[str, Any]

NOTED = "notes added"
_JOB_NULLS = ("apply_resource_time", "return_resource_time", "engine_name", "status_code")
_TASK_NULLS = ("cmd", "run_ip", "run_port", "run_pid", "engine_conf", "status_code", "task_run")


@dataclass(frozen=True)
class JobRecords:
    """A job as this node knows it."""

    view: JobView
    spec: JobSpec
    """what this node may see of it"""
    local: LocalJob | None
    job: Job | None
    parties: tuple[Party, ...]
    """those that this node plays; all of a job that it has no part in"""
    created_at: datetime
    notes: str = ""
    """the note about it here"""
    user: str = ""
    """who submitted it here; empty if no token is needed"""
    begun_again: str = ""
    """the newest job that follows it here, if FATE has restarted it"""


def records_of(parts: ClientParts, job_id: str, *, ask: bool = True, notes: bool = True) -> JobRecords:
    """Return what is known of a job. Raises `NotFound`.

    ``ask``: request the state from the scheduling node, if that is another one. ``notes``: include notes.
    """
    local, job = parts.store.local_jobs.find(job_id), parts.store.jobs.find(job_id)
    record, here = local or job, parts.settings.node.id
    if record is None:
        if not ask:
            raise unknown_job(job_id)
        found = parts.coordinator.status(job_id)  # submitted here, or the error says why nothing is known
        spec = _submitted_here(here, found)
        return JobRecords(found, spec, None, None, spec.parties, parts.clock())
    view = parts.coordinator.status_here(job_id)
    if view is None:
        view = parts.coordinator.status(job_id) if ask or local is None else _last_known(local)
    spec = record.spec.for_node(here) if record.spec.parties_at(here) else record.spec
    lines = parts.store.timeline(job_id) if notes else []
    texts = [str(e.detail.get("text")) for e in lines if e.event == NOTED]
    elsewhere = next((e.detail["user"] for e in lines if e.side == "initiator" and e.detail.get("user")), "")
    later = None
    if local is not None and local.spec.protocol == PROTOCOL and ended(JOB, local.status):
        later = newest(local.id, parts.store.local_jobs.find)
    return JobRecords(
        view,
        spec,
        local,
        job,
        spec.parties_at(here) or spec.parties,
        record.created_at,
        texts[-1] if texts else "",
        job.user if job is not None else str(elsewhere),
        later.id if later is not None and later.id != job_id else "",
    )


def unknown_job(job_id: str) -> NotFound:
    """Return the error for a job without a record here."""
    return NotFound(f"no job {job_id} is scheduled or runs here", reason="JOB_UNKNOWN")


def _submitted_here(node: NodeId, view: JobView) -> JobSpec:
    roles = dict.fromkeys((role, at) for task in view.tasks for at, own in task.nodes.items() for role in own)
    parties = tuple(numbered((label.partition(".")[0], at) for label, at in roles))
    dag = Dag(tuple(DagNode(task.name, ComponentRef("", "", "")) for task in view.tasks))
    return JobSpec(view.job_id, view.flow_id, dag, parties, node, "", view.scheduler, "bfia", "", {}, {})


def _last_known(local: LocalJob) -> JobView:
    spec, ending = local.spec, local.ending
    outcome, failure = (ending.outcome, ending.failure) if ending else (None, None)
    return JobView(local.id, local.status, (), outcome, failure, flow_id=spec.flow_id, scheduler=spec.scheduler)


def job_rows(seen: JobRecords, base: str) -> list[Row]:
    """Return one row for each party of the job that this node plays; ``base``: this gateway's address."""
    view, spec = seen.view, seen.spec
    model, record = named(spec), seen.local or seen.job
    runs = seen.local.runs if seen.local else ()
    started = seen.job.started_at if seen.job else min((r.started_at for r in runs if r.started_at), default=None)
    job_id = quote(spec.job_id, safe="")
    shared: Row = {
        "protocol": spec.protocol,
        "flow_id": spec.flow_id,
        "job_id": spec.job_id,
        "description": seen.notes,
        "tag": "job_end" if view.status in (JobStatus.FINISHED, JobStatus.REJECTED) else "",
        "dag": dag_schema(spec, spec.protocol),
        "parties": parties_of(spec.parties),
        "initiator_party_id": spec.initiator,
        "scheduler_party_id": spec.scheduler,
        "status": job_word(view.status, view.outcome, view.failure),
        "inheritance": {"job_id": spec.old_job_id} if spec.old_job_id else None,
        "progress": 100 if view.outcome is Outcome.SUCCEEDED else view.progress,
        "model_id": model.model_id,
        "model_version": model.version,
        **dict.fromkeys(("cores", "memory", "remaining_cores", "remaining_memory"), 0),
        "user_name": seen.user or None,
        "resource_in_use": bool(seen.local and seen.local.pool and not seen.local.closed),
        **dict.fromkeys(_JOB_NULLS),
        **_times(seen.created_at, started, record.ended_at if record else None),
        "outcome": view.outcome,
        "failed_by": view.failure.as_dict() if view.failure else None,
        "warnings": list(view.warnings),
        "log_url": f"{base}/v2/job/log/download?job_id={job_id}",
        "ui_url": f"{base}/api/v1/jobs/{job_id}",
    }
    if seen.begun_again:
        shared["begun_again"] = seen.begun_again
    return [{**shared, "role": p.role, "party_id": p.node} for p in seen.parties]


def upload_row(job_id: str, node: str, at: datetime) -> Row:
    """Return an upload as the job that FATE's tools wait for, which had ended with the response."""
    done = {"status": "success", "progress": 100, "role": "local", "party_id": "0", "job_id": job_id}
    parties = [{"role": "local", "party_id": ["0"]}]
    return {**done, "protocol": "fate", "parties": parties, "scheduler_party_id": node, **_times(at, at, at)}


def task_rows(seen: JobRecords, base: str = "", *, all_attempts: bool = False) -> list[Row]:
    """Return one row for each task and party that this node plays; ``all_attempts``: earlier ones before it."""
    return [
        _row(seen, task, party, base, past)
        for task in seen.view.tasks
        for party in _players(seen, task)
        for past in (*(task.attempts if all_attempts else ()), None)
    ]


def _players(seen: JobRecords, task: TaskView) -> Iterator[Party]:
    """Yield the parties of a task; if the scheduling node does not say which, those with a run of it here."""
    for party in seen.parties:
        roles = task.nodes.get(party.node)
        listed = any(role.partition(".")[0] == party.role for role in roles or ())
        if listed or (not roles and _run(seen, task.task_id, party) is not None):
            yield party


def _run(seen: JobRecords, task_id: str, party: Party) -> Run | None:
    runs = (*seen.local.inherited, *seen.local.runs) if seen.local else ()
    return next((r for r in reversed(runs) if r.task_id == task_id and r.party == party), None)


def _row(seen: JobRecords, task: TaskView, party: Party, base: str, past: Attempt | None) -> Row:
    """Return the row of an attempt; of the newest where none is given."""
    node, spec, name = seen.spec.dag.get(task.name), seen.spec, task.name
    ref = node.component if node else None
    if past is not None:
        run, status, log_of = _run(seen, past.task_id, party), TaskStatus.FAILED, past.task_id
        word, version, why, cause = "failed", past.number, run.failure if run else None, _cause(past.failure)
        times = (past.started_at or seen.created_at, past.started_at, past.ended_at)
    else:
        run, log_of = _run(seen, task.task_id, party), name
        if run is None and seen.local and task.inherited:
            run = next((r for r in reversed(seen.local.standing(name)) if r.party == party), None)
        states = task.nodes.get(party.node, {}).items()
        status = next((s for role, s in states if role in (party.role, party.label)), task.status)
        why = (run.failure if run else None) or task.failure
        word, version, cause = task_word(task.status, task.failure), task.attempt, _cause(why, task.failure)
        times = (run.created_at, run.started_at, run.ended_at) if run else (seen.created_at, None, None)
    limits = run.limits if run else {}
    memory = limits.get("memory")
    inherited = run if run and run.of_job else None
    place = f"{base}/api/v1/jobs/{quote(inherited.of_job if inherited else spec.job_id, safe='')}"
    log = f"{place}/runs/{party.label}/{quote(inherited.task_id if inherited else log_of, safe='')}/log"
    return {
        "protocol": spec.protocol,
        "job_id": spec.job_id,
        "role": party.role,
        "party_id": party.node,
        "task_name": name,
        "task_id": past.task_id if past else task.task_id,
        "task_version": version,
        "status": word,
        "party_status": task_word(TASK_OF_RUN[run.status] if run else status, why),
        "error_report": cause,
        **_times(*times),
        "component": ref.name if ref else None,
        "provider_name": f"{ref.provider}:{ref.version}@docker" if ref else None,
        "scheduler_party_id": spec.scheduler,
        "component_parameters": {k: v.value for k, v in effective(spec.task_params, party, name).items()},
        "task_parameters": {},
        "task_cores": limits.get("cpu") or 0,
        "memory": int(memory / 1024 / 1024) if memory else 0,
        "resource_in_use": bool(run and run.started_at and not run.over),
        "execution_id": run.name if run else None,
        "worker_id": run.name if run else None,
        "kill_status": bool(run and run.stop_at),
        "sync_type": "callback" if spec.by_callback else "poll",
        "timeout": spec.time_limits.of(name).timeout,
        "launcher_name": "default",
        **dict.fromkeys(_TASK_NULLS),
        "image": run.image if run else None,
        "image_digest": run.image_digest if run else None,
        "exit_code": run.exit.code if run and run.exit else None,
        "inherited_from": {"job_id": inherited.of_job} if inherited else None,
        "log_url": log if run else None,
        "ui_url": place,
    }


def _times(created: datetime, started: datetime | None, ended: datetime | None) -> Row:
    changed = ended or started or created
    begin, end = milliseconds(started), milliseconds(ended)
    return {
        "create_time": milliseconds(created),
        "create_date": f"{created:%Y-%m-%d %H:%M:%S}",
        "update_time": milliseconds(changed),
        "update_date": f"{changed:%Y-%m-%d %H:%M:%S}",
        "start_time": begin,
        "end_time": end,
        "elapsed": end - begin if begin is not None and end is not None else None,
    }


def _cause(failure: Failure | None, of_task: Failure | None = None) -> str:
    """Return why a party's part failed; if it was only stopped, also why the whole task failed."""
    if failure is None:
        return ""
    words = f"{failure.reason}: {failure.message}"
    if failure.reason != "STOPPED" or of_task is None or of_task.reason == "STOPPED":
        return words
    where = " ".join(part for part in (of_task.role, of_task.node) if part)
    return f"{words}; the task failed at {where or 'another party'} of {of_task.reason}: {of_task.message}"
