"""What a job takes over from an earlier one, and a job that is rerun from one of its tasks.

A job names the earlier one by ``old_job_id``. Without more it takes over every task that is the same in both;
with ``job_params.common.inherit`` exactly the tasks listed there, or it is refused. The node that schedules both
compares the flows, every party its own side (`Acceptance.inherited`), and the job begins only when all agree.

A rerun is a new job, because the standard's FINISHED is final. It has the same flow, roles and settings,
takes over what is not downstream of the task and had succeeded; the rest runs again, with the changes asked for.
It is a job of the node that requests it: that node is its initiator, whoever submitted the old one.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from gateway.domain.dag import downstream, order
from gateway.domain.job import Job, Lineage, Origin, Task
from gateway.domain.problems import Problem, index_of
from gateway.domain.run import Address, LocalJob
from gateway.domain.spec import (
    Amendment,
    Failure,
    JobSpec,
    NodeId,
    Party,
    data_location,
    effective,
    overlay,
    tasks_in,
)
from gateway.domain.states import JOB, TASK, TaskStatus, ended, move

REASON = "INHERITANCE_FAILED"


def difference(
    old: JobSpec,
    new: JobSpec,
    task: str,
    parties: Iterable[Party],
) -> str:
    """Say in what a task differs between two jobs, at these parties; empty where it is the same."""
    if old.parties != new.parties:
        return f"the roles differ: {_roles(new)} instead of {_roles(old)}"
    before, now = old.dag.get(task), new.dag.get(task)
    if before is None or now is None:
        return "there is no such task"
    if before.component != now.component:
        same = (before.component.provider, before.component.name) == (
            now.component.provider,
            now.component.name,
        )
        what = "version" if same else "component"
        return f"the {what} differs: {now.component} instead of {before.component}"
    if before.inputs != now.inputs:
        return "the inputs differ"
    if before.outputs != now.outputs:
        return "the outputs differ"
    for party in parties:
        one, two = _values(old, party, task), _values(new, party, task)
        if names := sorted(
            name for name in one.keys() | two.keys() if one.get(name, ...) != two.get(name, ...)
        ):
            return f"the parameters of {party.label} differ: {', '.join(names[:10])}"
        if data_location(old.task_params, party, task) != data_location(
            new.task_params, party, task
        ):
            return f"the inputs of {party.label} differ: another dataset"
    return ""


def _roles(spec: JobSpec) -> str:
    return ", ".join(f"{p.label}={p.node}" for p in spec.parties[:10])


def _values(
    spec: JobSpec,
    party: Party,
    task: str,
) -> dict[str, Any]:
    return {name: found.value for name, found in effective(spec.task_params, party, task).items()}


def candidates(old: Job, spec: JobSpec) -> tuple[dict[str, Lineage], dict[str, str]]:
    """Return the tasks that may be taken over, as far as the scheduling node knows, and why others may not."""
    found: dict[str, Lineage] = {}
    lacking: dict[str, str] = {}
    wanted, ran = spec.settings.inherit, amended(old.spec, old.amendments)
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
        elif why := difference(ran, spec, name, spec.parties) or lost_upstream(spec, name, found):
            lacking[name] = why
        else:
            found[name] = before.lineage or Lineage(old.id, before.task_id)
    return found, lacking


def lost_upstream(
    spec: JobSpec,
    task: str,
    found: Collection[str],
) -> str:
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
        node: job.nodes[node].reservation.acceptance.inherited
        for task in wished.values()
        for node in task.nodes
    }
    silent = [node for node, names in reported.items() if names is None]
    if silent:
        return Failure(
            REASON,
            f"{silent[0]} does not say what it can inherit of job {job.spec.old_job_id}",
            silent[0],
        )
    kept: list[str] = []
    for name in order(job.spec.dag):
        task = wished.get(name)
        if task is None:
            continue
        without = [node for node in task.nodes if name not in (reported[node] or ())]
        if not without and job.spec.dag[name].upstream <= set(kept):
            kept.append(name)
        elif job.spec.settings.inherit is not None:
            where = without[0] if without else ""
            return Failure(
                REASON,
                f"task {name} of job {job.spec.old_job_id} cannot be inherited",
                where,
                task=name,
            )
    tasks = {
        n: _inherited(t, n in kept, at) if t.lineage is not None else t
        for n, t in job.tasks.items()
    }
    job = replace(job, tasks=tasks)
    for name, task in wished.items():
        lineage = task.lineage
        event = "task inherited" if name in kept else "task not inherited"
        detail = {"from_job": lineage.job_id, "from_task_id": lineage.task_id} if lineage else {}
        job = job.noted(at, event, task=name, **detail)
    return job


def _inherited(
    task: Task,
    kept: bool,
    at: datetime,
) -> Task:
    if not kept:
        return replace(task, lineage=None)
    done = TaskStatus.SUCCESS
    nodes = {
        n: replace(part, roles=dict.fromkeys(part.roles, done)) for n, part in task.nodes.items()
    }
    return replace(
        task,
        status=move(TASK, task.status, done),
        nodes=nodes,
        ended_at=at,
    )


# Folders in which tasks keep what they need to go on after they were cut short: an extension that a job asks for.
# Where a task's machine shares no folder with the node, they are at the storage where its outputs lie.
#
# With ``job_params.common.checkpoints: true`` each party of a task has one such folder in a job. Every attempt
# finds there what the earlier ones left; the first attempt in a job that takes over from another finds a copy of
# what the same task left there.


def may_go_on(
    old: JobSpec,
    new: JobSpec,
    task: str,
    parties: Collection[Party],
) -> bool:
    """Tell whether a task may have what the same one of an earlier job left at these parties.

    The scheduling node and the parties are the same; so are components and data of the task and of all before it,
    which the new job therefore names, and needs grants for. Parameters may differ.
    """
    if (new.scheduler, new.parties) != (old.scheduler, old.parties):
        return False
    needed = {task}
    for name in reversed(order(new.dag)):
        if name in needed:
            before, now = old.dag.get(name), new.dag[name]
            if before is None or (before.component, before.inputs) != (now.component, now.inputs):
                return False
            data = [
                [data_location(job.task_params, one, name) for one in parties] for job in (old, new)
            ]
            if data[0] != data[1]:
                return False
            needed |= now.upstream
    return True


def checkpoints(
    spec: JobSpec,
    task: str,
    party: Party,
    storage: str = "",
) -> tuple[Address | None, Address | None]:
    """Return where a party of a task keeps them, and where it did in the job that this one takes over from."""
    ids = (spec.job_id, spec.old_job_id) if spec.settings.checkpoints else ("", "")
    name = f"{task}-checkpoint"
    own, old = (
        Address(f"{i}-{party.role}-{party.index}", name, storage) if i else None for i in ids
    )
    return own, old


# A rerun.


@dataclass(frozen=True)
class Order:
    """What is requested."""

    job_id: str
    new_job_id: str
    start: str = ""  # the task to begin with; empty: the first that has not succeeded
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """changes in the form of ``task_params``: common, then role -> index, then task -> parameters"""


@dataclass(frozen=True)
class Rerun:
    """The new job, and which tasks it runs and which it takes over."""

    spec: JobSpec
    origin: Origin
    runs: tuple[str, ...]
    inherits: tuple[str, ...]


@dataclass(frozen=True)
class RerunResult:
    """The new job and what becomes of the tasks in it, as reported."""

    job_id: str
    start: str
    runs: tuple[str, ...] = ()
    inherits: tuple[str, ...] = ()


def plan(
    old: Job,
    wanted: Order,
    by: NodeId,
    trace_id: str,
) -> tuple[Rerun | None, list[Problem]]:
    """Return the new job of an ended one, or everything that is wrong with the request.

    ``by`` may change parameters of its own parties; those that concern others only as the old job's initiator or
    as the node that schedules it. ``by`` is the initiator of the new job, and needs a role in it.
    """
    dag = old.spec.dag
    names = order(dag)
    left = [name for name in names if old.tasks[name].status is not TaskStatus.SUCCESS]
    start = wanted.start or next(iter(left), "")
    if not start:
        text = f"every task of job {old.id} has succeeded: say from which one it is to run again"
        return None, [Problem("from", text, wanted.start)]
    if dag.get(start) is None:
        return None, [
            Problem("from", f"job {old.id} has no such task, but {', '.join(names[:20])}", start)
        ]
    roles = [party.role for party in old.spec.parties_at(by)]
    if not roles:
        rule = f"can be run again only by a node with a role in it, which is its initiator then; {by} has none"
        return None, [Problem("job_id", rule, old.id)]
    again = downstream(dag, [start, *left])
    spec = amended(old.spec, old.amendments)
    problems, task_params = changed(spec, wanted.parameters, again, by)
    if problems:
        return None, problems
    inherits = tuple(name for name in names if name not in again)
    common = {**old.spec.common, "inherit": list(inherits)}
    spec = replace(
        old.spec,
        job_id=wanted.new_job_id,
        initiator=by,
        initiator_role=old.spec.initiator_role if old.spec.initiator_role in roles else roles[0],
        trace_id=trace_id,
        old_job_id=old.id,
        job_params={**old.spec.job_params, "common": common},
        task_params=task_params,
        bundles={},
    )
    runs = tuple(name for name in names if name in again)
    origin = Origin(old.id, start, by, tasks_in(wanted.parameters), wanted.parameters)
    return Rerun(spec, origin, runs, inherits), []


def changed(
    spec: JobSpec,
    changes: Mapping[str, Any],
    may_change: Collection[str],
    by: NodeId,
    else_rule: str = "is not run again, so its parameters cannot change",
) -> tuple[list[Problem], dict[str, Any]]:
    """Return what is wrong with changes of these tasks' parameters, and the parameters with them."""
    problems: list[Problem] = []
    params = dict(spec.task_params)
    roles = {p.role for p in spec.parties}
    for role, entry in changes.items():
        at = f"parameters.{role}"
        if not isinstance(entry, Mapping):
            problems.append(Problem(at, "must be an object", entry))
        elif role == "common":
            problems += _may(spec, by, None, at) or _wrong_tasks(
                spec, entry, may_change, at, else_rule
            )
            if not problems:
                params[role] = _laid_over(params.get(role), entry)
        elif role not in roles:
            problems.append(
                Problem(at, f"is not a role of the job: {', '.join(sorted(roles))}", role)
            )
        else:
            for key, by_task in entry.items():
                party = next(
                    (p for p in spec.parties if p.role == role and p.index == index_of(str(key))),
                    None,
                )
                if party is None or not isinstance(by_task, Mapping):
                    rule = "must be an object" if party else f"is not an index of a {role}"
                    problems.append(Problem(f"{at}.{key}", rule, key if party is None else by_task))
                    continue
                wrong = _may(spec, by, party, f"{at}.{key}")
                problems += wrong or _wrong_tasks(
                    spec, by_task, may_change, f"{at}.{key}", else_rule
                )
                if not problems:
                    params[role] = _for_party(spec, params.get(role), party, by_task)
    return problems, params


def _may(
    spec: JobSpec,
    by: NodeId,
    party: Party | None,
    at: str,
) -> list[Problem]:
    if by in (spec.initiator, spec.scheduler) or (party is not None and party.node == by):
        return []
    return [
        Problem(
            at,
            f"may not be changed by {by}: it concerns other nodes",
            party.node if party else "common",
        )
    ]


def _wrong_tasks(
    spec: JobSpec,
    by_task: Mapping[str, Any],
    may_change: Collection[str],
    at: str,
    else_rule: str,
) -> list[Problem]:
    problems = []
    for task, values in by_task.items():
        if spec.dag.get(task) is None:
            problems.append(Problem(f"{at}.{task}", "names a task that is not in the flow", task))
        elif task not in may_change:
            problems.append(Problem(f"{at}.{task}", else_rule, task))
        elif not isinstance(values, Mapping):
            problems.append(
                Problem(f"{at}.{task}", "must be an object: parameters by their names", values)
            )
    return problems


def _laid_over(old: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Lay changes over an entry, task by task."""
    found = dict(old) if isinstance(old, Mapping) else {}
    for task, values in changes.items():
        before = found.get(task)
        found[task] = {**(before if isinstance(before, Mapping) else {}), **values}
    return found


def _for_party(
    spec: JobSpec,
    by_index: Any,
    party: Party,
    changes: Mapping[str, Any],
) -> dict[str, Any]:
    """Give a party an entry of its own at the end, where it wins, with all that held for it and the changes."""
    entries = dict(by_index) if isinstance(by_index, Mapping) else {}
    params = {party.role: entries}
    now = {
        node.name: {name: found.value for name, found in overlay(params, party, node.name).items()}
        for node in spec.dag.nodes
    }
    own = _laid_over({task: values for task, values in now.items() if values}, changes)
    key = str(party.index)
    return {k: v for k, v in entries.items() if k != key} | {key: own}


# ---------------------------------------------------------------- new parameters for a job that is under way


def amendable(
    spec: JobSpec,
    parameters: Mapping[str, Any],
    begun: Iterable[str],
    by: NodeId,
) -> list[Problem]:
    """Return what is wrong with new parameters, where some tasks have started; ``by``: the requesting node."""
    free = {node.name for node in spec.dag.nodes} - set(begun)
    return changed(spec, parameters, free, by, "has started, so its parameters cannot change")[0]


def amended(spec: JobSpec, amendments: Iterable[Amendment]) -> JobSpec:
    """Return a job with the new parameters that hold.

    The scheduling node offers new parameters to every node, and each that takes them puts them aside. They hold
    once the scheduling node has recorded them, in the one write that also finds that none of their tasks has
    begun; each start of a task from then on names what holds. What was only offered is never named.
    """
    every = {node.name for node in spec.dag.nodes}
    for one in amendments:
        spec = replace(spec, task_params=changed(spec, one.parameters, every, spec.scheduler)[1])
    return spec


def in_force(local: LocalJob) -> JobSpec:
    """Return a party's job with the new parameters that hold."""
    return amended(local.spec, (one for one in local.offered if one.id in local.amendments))
