"""What a job takes over from an earlier one: tasks that finished there and need not run again.

A job names the earlier one by ``old_job_id``. Without more it takes over every task that is the same in both;
with ``job_params.common.inherit`` exactly the tasks listed there, or it is refused. The node that schedules both
compares the flows, every party its own side (`Acceptance.inherited`), and the job begins only when all agree.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from gateway.domain.dag import order
from gateway.domain.job import Job, Lineage, Task
from gateway.domain.parameters import data_location, effective
from gateway.domain.spec import Failure, JobSpec, Party
from gateway.domain.states import JOB, TASK, TaskStatus, ended, move

REASON = "INHERITANCE_FAILED"


def demanded(spec: JobSpec) -> tuple[str, ...] | None:
    """Return the tasks that the job wants to take over, and no others; None: whatever is the same."""
    asked = spec.common.get("inherit")
    return None if asked is None else tuple(asked)


def difference(old: JobSpec, new: JobSpec, task: str, parties: Iterable[Party]) -> str:
    """Say in what a task differs between two jobs, at these parties; empty where it is the same."""
    if old.parties != new.parties:
        return f"the roles differ: {_roles(new)} instead of {_roles(old)}"
    before, now = old.dag.get(task), new.dag.get(task)
    if before is None or now is None:
        return "there is no such task"
    if before.component != now.component:
        same = (before.component.provider, before.component.name) == (now.component.provider, now.component.name)
        what = "version" if same else "component"
        return f"the {what} differs: {now.component} instead of {before.component}"
    if before.inputs != now.inputs:
        return "the inputs differ"
    if before.outputs != now.outputs:
        return "the outputs differ"
    for party in parties:
        one, two = _values(old, party, task), _values(new, party, task)
        names = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
        if one.keys() != two.keys() or names:
            names = names or sorted(one.keys() ^ two.keys())
            return f"the parameters of {party.label} differ: {', '.join(names[:10])}"
        if data_location(old.task_params, party, task) != data_location(new.task_params, party, task):
            return f"the inputs of {party.label} differ: another dataset"
    return ""


def _roles(spec: JobSpec) -> str:
    return ", ".join(f"{p.label}={p.node}" for p in spec.parties[:10])


def _values(spec: JobSpec, party: Party, task: str) -> dict[str, Any]:
    return {name: found.value for name, found in effective(spec.task_params, party, task).items()}


def candidates(old: Job, spec: JobSpec) -> tuple[dict[str, Lineage], dict[str, str]]:
    """Return the tasks that may be taken over, as far as the scheduling node knows, and why others may not."""
    found: dict[str, Lineage] = {}
    lacking: dict[str, str] = {}
    wanted = demanded(spec)
    for name in order(spec.dag):
        if wanted is not None and name not in wanted:
            continue
        before = old.tasks.get(name)
        if not ended(JOB, old.status):
            lacking[name] = f"job {old.id} is still {old.status}"
        elif before is None:
            lacking[name] = f"job {old.id} has no such task"
        elif before.status is not TaskStatus.SUCCESS:
            lacking[name] = f"it has not succeeded in job {old.id}"
        elif why := difference(old.spec, spec, name, spec.parties) or lost_upstream(spec, name, found):
            lacking[name] = why
        else:
            found[name] = before.lineage or Lineage(old.id, before.task_id)
    return found, lacking


def lost_upstream(spec: JobSpec, task: str, found: Collection[str]) -> str:
    """Say which task's output is missing for another to be inherited; empty where none is."""
    missing = sorted(spec.dag[task].upstream - set(found))
    return f"it needs the output of {', '.join(missing)}, which is not inherited" if missing else ""


def agreed(job: Job, at: datetime) -> Job | Failure:
    """Decide, once every node has accepted the job, which tasks it takes over.

    A node that does not say what it can take over refuses by that; so does one that lacks a task which the job
    demands. Without a demand such a task just runs.
    """
    wished = {name: task for name, task in job.tasks.items() if task.lineage is not None}
    reported = {
        node: job.nodes[node].reservation.acceptance.inherited for task in wished.values() for node in task.nodes
    }
    silent = [node for node, names in reported.items() if names is None]
    if silent:
        return Failure(
            REASON, f"{silent[0]} does not say what it can inherit of job {job.spec.old_job_id}", silent[0]
        )
    kept: list[str] = []
    for name in order(job.spec.dag):
        task = wished.get(name)
        if task is None:
            continue
        without = [node for node in task.nodes if name not in (reported[node] or ())]
        if not without and job.spec.dag[name].upstream <= set(kept):
            kept.append(name)
        elif demanded(job.spec) is not None:
            where = without[0] if without else ""
            return Failure(
                REASON, f"task {name} of job {job.spec.old_job_id} cannot be inherited", where, task=name
            )
    tasks = {n: _inherited(t, n in kept, at) if t.lineage is not None else t for n, t in job.tasks.items()}
    job = replace(job, tasks=tasks)
    for name, task in wished.items():
        lineage = task.lineage
        event = "task inherited" if name in kept else "task not inherited"
        detail = {"from_job": lineage.job_id, "from_task_id": lineage.task_id} if lineage else {}
        job = job.noted(at, event, task=name, **detail)
    return job


def _inherited(task: Task, kept: bool, at: datetime) -> Task:
    if not kept:
        return replace(task, lineage=None)
    done = TaskStatus.SUCCESS
    nodes = {n: replace(part, roles=dict.fromkeys(part.roles, done)) for n, part in task.nodes.items()}
    return replace(task, status=move(TASK, task.status, done), nodes=nodes, ended_at=at)
