"""Jobs and tasks as rows, with the columns that FATE's tools print: what has no meaning here is null.

Beside FATE's columns stand ours: how a job ended, what each run used, and where logs and results are looked at,
always as addresses of this gateway, never as paths of its machine.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from urllib.parse import quote

from adapter.fate.dag.write import dag_schema, parties_of
from adapter.fate.states import job_word, task_word
from adapter.fate.tools.deps import Sight
from gateway.domain.models import named
from gateway.domain.parameters import effective
from gateway.domain.run import Run
from gateway.domain.spec import Failure, Party
from gateway.domain.states import TASK_OF_RUN, JobStatus, Outcome
from gateway.ports import TaskView

LOCAL = "local"
"""role of an upload, which FATE's tools wait for as for a job"""
_NOT_HERE = dict.fromkeys(("apply_resource_time", "return_resource_time", "engine_name", "status_code"), None)
_NO_PROCESS = dict.fromkeys(
    ("cmd", "run_ip", "run_port", "run_pid", "engine_conf", "status_code", "task_run"), None
)


def job_rows(seen: Sight, base: str, kind: str) -> list[dict[str, Any]]:
    """Return one row for each party of the job that this node plays; ``base``: this gateway's address."""
    view, spec = seen.view, seen.spec
    model = named(spec)
    started = seen.job.started_at if seen.job else min(_begins(seen), default=None)
    record = seen.local or seen.job
    ended = record.ended_at if record else None
    inherit = {"job_id": spec.old_job_id} if spec.old_job_id else None
    shared = {
        "protocol": kind,
        "flow_id": spec.flow_id,
        "job_id": spec.job_id,
        "description": seen.notes,
        "tag": "job_end" if view.status in (JobStatus.FINISHED, JobStatus.REJECTED) else "",
        "dag": dag_schema(spec, kind),
        "parties": parties_of(spec.parties),
        "initiator_party_id": spec.initiator,
        "scheduler_party_id": spec.scheduler,
        "status": job_word(view.status, view.outcome, view.failure),
        "inheritance": inherit,
        "progress": 100 if view.outcome is Outcome.SUCCEEDED else view.progress,
        "model_id": model.model_id,
        "model_version": model.version,
        "cores": 0,
        "memory": 0,
        "remaining_cores": 0,
        "remaining_memory": 0,
        "user_name": seen.user or None,
        "resource_in_use": bool(seen.local and seen.local.pool and not seen.local.closed),
        **_NOT_HERE,
        **_times(seen.created_at, started, ended),
        "outcome": view.outcome,
        "failed_by": view.failure.as_dict() if view.failure else None,
        "warnings": list(view.warnings),
        "log_url": f"{base}/v2/job/log/download?job_id={quote(spec.job_id, safe='')}",
        "ui_url": f"{base}/api/v1/jobs/{quote(spec.job_id, safe='')}",
    }
    if seen.begun_again:
        shared["begun_again"] = seen.begun_again
    return [{**shared, "role": p.role, "party_id": p.node} for p in seen.parties]


def upload_row(job_id: str, node: str, at: datetime) -> dict[str, Any]:
    """Return an upload as the job that FATE's tools wait for: it was over when it was answered."""
    done = {"status": "success", "progress": 100, "role": LOCAL, "party_id": "0", "job_id": job_id}
    parties = [{"role": LOCAL, "party_id": ["0"]}]
    return {**done, "protocol": "fate", "parties": parties, "scheduler_party_id": node, **_times(at, at, at)}


def task_rows(seen: Sight, base: str, kind: str, *, all_attempts: bool = False) -> list[dict[str, Any]]:
    """Return one row for each task and party that this node plays; ``all_attempts``: earlier ones before it."""
    rows = []
    for task in seen.view.tasks:
        for party in _players(seen, task):
            if all_attempts:
                rows += [_past(seen, task, party, base, kind, i) for i in range(len(task.attempts))]
            rows.append(_task_row(seen, task, party, base, kind))
    return rows


def _players(seen: Sight, task: TaskView) -> Iterator[Party]:
    """Yield the parties of a task; where the scheduling node does not say who, those with a run of it here."""
    for party in seen.parties:
        roles = task.nodes.get(party.node)
        said = any(role.partition(".")[0] == party.role for role in roles or ())
        if said or (not roles and _run(seen, task.task_id, party) is not None):
            yield party


def _run(seen: Sight, task_id: str, party: Party) -> Run | None:
    runs = (*seen.local.inherited, *seen.local.runs) if seen.local else ()
    return next((r for r in reversed(runs) if r.task_id == task_id and r.party == party), None)


def _standing(seen: Sight, task: TaskView, party: Party) -> Run | None:
    """Return the run that counts for a party: of the newest attempt, or the one taken over."""
    found = _run(seen, task.task_id, party)
    if found is None and seen.local and task.inherited:
        found = next((r for r in reversed(seen.local.standing(task.name)) if r.party == party), None)
    return found


def _task_row(seen: Sight, task: TaskView, party: Party, base: str, kind: str) -> dict[str, Any]:
    run = _standing(seen, task, party)
    told = next(
        (s for role, s in task.nodes.get(party.node, {}).items() if role in (party.role, party.label)), task.status
    )
    mine = TASK_OF_RUN[run.status] if run else told
    failure = (run.failure if run else None) or task.failure
    row = _row(seen, task.name, party, kind, run)
    return {
        **row,
        "task_id": task.task_id,
        "task_version": task.attempt,
        "execution_id": run.name if run else None,
        "status": task_word(task.status, task.failure),
        "party_status": task_word(mine, failure),
        "error_report": _said(failure, task.failure),
        "inherited_from": {"job_id": run.of_job} if run and run.of_job else None,
        **_times(run.created_at if run else seen.created_at, run.started_at if run else None, _end(run)),
        **_links(seen, task.name, party, run, base),
    }


def _past(seen: Sight, task: TaskView, party: Party, base: str, kind: str, index: int) -> dict[str, Any]:
    past = task.attempts[index]
    run = _run(seen, past.task_id, party)
    word = task_word(TASK_OF_RUN[run.status], run.failure) if run else "failed"
    return {
        **_row(seen, task.name, party, kind, run),
        "task_id": past.task_id,
        "task_version": past.number,
        "execution_id": run.name if run else None,
        "status": "failed",
        "party_status": word,
        "error_report": _said(past.failure),
        "inherited_from": None,
        **_times(past.started_at or seen.created_at, past.started_at, past.ended_at),
        **_links(seen, past.task_id, party, run, base),
    }


def _row(seen: Sight, name: str, party: Party, kind: str, run: Run | None) -> dict[str, Any]:
    node = seen.spec.dag.get(name)
    ref = node.component if node else None
    parameters = {k: v.value for k, v in effective(seen.spec.task_params, party, name).items()}
    limits = run.limits if run else {}
    memory = limits.get("memory")
    return {
        "protocol": kind,
        "job_id": seen.spec.job_id,
        "role": party.role,
        "party_id": party.node,
        "task_name": name,
        "component": ref.name if ref else None,
        "provider_name": f"{ref.provider}:{ref.version}@docker" if ref else None,
        "scheduler_party_id": seen.spec.scheduler,
        "component_parameters": parameters,
        "task_parameters": {},
        "task_cores": limits.get("cpu") or 0,
        "memory": int(memory / 1024 / 1024) if memory else 0,
        "resource_in_use": bool(run and run.started_at and not run.over),
        "worker_id": run.name if run else None,
        "kill_status": bool(run and run.stop_at),
        "sync_type": "callback" if seen.spec.by_callback else "poll",
        "timeout": seen.spec.lifetimes.of(name).timeout,
        "launcher_name": "default",
        **_NO_PROCESS,
        "image": run.image if run else None,
        "image_digest": run.image_digest if run else None,
        "exit_code": run.exit.code if run and run.exit else None,
    }


def _links(seen: Sight, task: str, party: Party, run: Run | None, base: str) -> dict[str, Any]:
    job_id = run.of_job if run and run.of_job else seen.spec.job_id
    place = f"{base}/api/v1/jobs/{quote(job_id, safe='')}"
    name = run.task_id if run and run.of_job else task
    log = f"{place}/runs/{party.label}/{quote(name, safe='')}/log" if run else None
    return {"log_url": log, "ui_url": place}


def _times(created: datetime, started: datetime | None, ended: datetime | None) -> dict[str, Any]:
    """Return FATE's six columns of times: milliseconds, and texts in UTC."""
    changed = ended or started or created
    return {
        "create_time": _ms(created),
        "create_date": f"{created:%Y-%m-%d %H:%M:%S}",
        "update_time": _ms(changed),
        "update_date": f"{changed:%Y-%m-%d %H:%M:%S}",
        "start_time": _ms(started) if started else None,
        "end_time": _ms(ended) if ended else None,
        "elapsed": _ms(ended) - _ms(started) if started and ended else None,
    }


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _begins(seen: Sight) -> Iterator[datetime]:
    for run in seen.local.runs if seen.local else ():
        if run.started_at:
            yield run.started_at


def _end(run: Run | None) -> datetime | None:
    return run.ended_at if run else None


def _said(failure: Failure | None, cause: Failure | None = None) -> str:
    """Return why a party's part failed; where it was only stopped, also what the whole task failed of."""
    if failure is None:
        return ""
    words = f"{failure.reason}: {failure.message}"
    if failure.reason != "STOPPED" or cause is None or cause.reason == "STOPPED":
        return words
    where = " ".join(part for part in (cause.role, cause.node) if part)
    return f"{words}; the task failed at {where or 'another party'} of {cause.reason}: {cause.message}"
