"""Tasks that a job takes over from an earlier one, and reruns of a job from one of its tasks.

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
    """Describe in what a task differs between two jobs, at these parties; empty if it is the same."""
    if old.parties != new.parties:
        return f"the roles differ: {_roles(new)} instead of {_roles(old)}"
    before, now = old.dag.get(task), new.dag.get(task)
    if before is None or now is None:
        return "there is no such task"
    if before.component != now.component:
        is_same_component = (
            before.component.provider == now.component.provider
            and before.component.name == now.component.name
        )
        what = "version" if is_same_component else "component"
        return f"the {what} differs: {now.component} instead of {before.component}"
    if before.inputs != now.inputs:
        return "the inputs differ"
    if before.outputs != now.outputs:
        return "the outputs differ"
    for party in parties:
        names = _different_parameters(old, new, task, party)
        if names:
            return f"the parameters of {party.label} differ: {', '.join(names[:10])}"
        old_location = data_location(old.task_params, party, task)
        if old_location != data_location(new.task_params, party, task):
            return f"the inputs of {party.label} differ: another dataset"
    return ""


def _roles(spec: JobSpec) -> str:
    return ", ".join(f"{party.label}={party.node}" for party in spec.parties[:10])


def _different_parameters(
    old: JobSpec,
    new: JobSpec,
    task: str,
    party: Party,
) -> list[str]:
    old_values = _values(old, party, task)
    new_values = _values(new, party, task)
    names = sorted(old_values.keys() | new_values.keys())
    return [name for name in names if old_values.get(name, ...) != new_values.get(name, ...)]


def _values(
    spec: JobSpec,
    party: Party,
    task: str,
) -> dict[str, Any]:
    parameters = effective(spec.task_params, party, task)
    return {name: parameter.value for name, parameter in parameters.items()}


def candidates(old: Job, spec: JobSpec) -> tuple[dict[str, Lineage], dict[str, str]]:
    """Return the tasks that may be taken over, and why others may not.

    As far as the scheduling node knows.
    """
    lineages: dict[str, Lineage] = {}
    obstacles: dict[str, str] = {}
    demanded = spec.settings.inherit
    old_spec = amended(old.spec, old.amendments)
    for name in order(spec.dag):
        if demanded is not None and name not in demanded:
            continue
        obstacle = _obstacle(old, old_spec, spec, name)
        obstacle = obstacle or lost_upstream(spec, name, lineages)
        if obstacle:
            obstacles[name] = obstacle
            continue
        task = old.tasks[name]
        lineages[name] = task.lineage or Lineage(old.id, task.task_id)
    return lineages, obstacles


def _obstacle(
    old: Job,
    old_spec: JobSpec,
    spec: JobSpec,
    name: str,
) -> str:
    """Return why a task of the old job cannot be taken over by itself; empty if it can."""
    task = old.tasks.get(name)
    if not ended(JOB, old.status):
        return f"job {old.id} is still {old.status}"
    if task is None:
        return f"job {old.id} has no such task"
    if task.status is not TaskStatus.SUCCESS:
        return f"it has not succeeded in job {old.id}"
    return difference(old_spec, spec, name, spec.parties)


def lost_upstream(
    spec: JobSpec,
    task: str,
    inherited: Collection[str],
) -> str:
    """Return which output a task lacks to be inherited; empty if none."""
    missing = sorted(spec.dag[task].upstream - set(inherited))
    if not missing:
        return ""
    return f"it needs the output of {', '.join(missing)}, which is not inherited"


def agreed(job: Job, at: datetime) -> Job | Failure:
    """Decide, once every node has accepted the job, which tasks it takes over.

    A node that does not say what it can take over refuses by that; so does one that lacks a task which the job
    demands. Without a demand such a task just runs.
    """
    candidate_tasks = {}
    reports: dict[NodeId, tuple[str, ...]] = {}
    for name, task in job.tasks.items():
        if task.lineage is None:
            continue
        candidate_tasks[name] = task
        for node in task.nodes:
            inheritable = job.nodes[node].reservation.acceptance.inherited
            if inheritable is None:
                text = f"{node} does not say what it can inherit of job {job.spec.old_job_id}"
                return Failure(REASON, text, node)
            reports[node] = inheritable
    inherited: set[str] = set()
    for name in order(job.spec.dag):
        if name not in candidate_tasks:
            continue
        lacking = [node for node in candidate_tasks[name].nodes if name not in reports[node]]
        if not lacking and job.spec.dag[name].upstream <= inherited:
            inherited.add(name)
        elif job.spec.settings.inherit is not None:
            text = f"task {name} of job {job.spec.old_job_id} cannot be inherited"
            return Failure(REASON, text, lacking[0] if lacking else "", task=name)
    for name, task in candidate_tasks.items():
        job = job.with_task(_inherited(task, name in inherited, at))
    for name, task in candidate_tasks.items():
        event = "task inherited" if name in inherited else "task not inherited"
        detail = {}
        if task.lineage is not None:
            detail = {"from_job": task.lineage.job_id, "from_task_id": task.lineage.task_id}
        job = job.with_note(at, event, task=name, **detail)
    return job


def _inherited(
    task: Task,
    kept: bool,
    at: datetime,
) -> Task:
    if not kept:
        return replace(task, lineage=None)
    nodes = {}
    for node, part in task.nodes.items():
        nodes[node] = replace(part, roles=dict.fromkeys(part.roles, TaskStatus.SUCCESS))
    status = move(TASK, task.status, TaskStatus.SUCCESS)
    return replace(task, status=status, nodes=nodes, ended_at=at)


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
    if new.scheduler != old.scheduler or new.parties != old.parties:
        return False
    needed = {task}
    for name in reversed(order(new.dag)):
        if name not in needed:
            continue
        before, now = old.dag.get(name), new.dag[name]
        if before is None or before.component != now.component or before.inputs != now.inputs:
            return False
        for party in parties:
            old_location = data_location(old.task_params, party, name)
            if old_location != data_location(new.task_params, party, name):
                return False
        needed |= now.upstream
    return True


def checkpoints(
    spec: JobSpec,
    task: str,
    party: Party,
    storage: str = "",
) -> tuple[Address | None, Address | None]:
    """Return the checkpoints' folder of a party of a task: in this job, and in the old one.

    Both None for a job without checkpoints, the second for one without an old job.
    """
    if not spec.settings.checkpoints:
        return None, None
    folder = _checkpoint_folder(spec.job_id, task, party, storage)
    if not spec.old_job_id:
        return folder, None
    return folder, _checkpoint_folder(spec.old_job_id, task, party, storage)


def _checkpoint_folder(
    job_id: str,
    task: str,
    party: Party,
    storage: str,
) -> Address:
    return Address(f"{job_id}-{party.role}-{party.index}", f"{task}-checkpoint", storage)


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
    roles = {party.role for party in spec.parties}
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
            rule = f"is not a role of the job: {', '.join(sorted(roles))}"
            problems.append(Problem(at, rule, role))
        else:
            for key, by_task in entry.items():
                at_key = f"{at}.{key}"
                party = _party(spec, role, key)
                if party is None:
                    problems.append(Problem(at_key, f"is not an index of a {role}", key))
                    continue
                if not isinstance(by_task, Mapping):
                    problems.append(Problem(at_key, "must be an object", by_task))
                    continue
                problems += _may(spec, by, party, at_key) or _wrong_tasks(
                    spec, by_task, may_change, at_key, else_rule
                )
                if not problems:
                    params[role] = _for_party(spec, params.get(role), party, by_task)
    return problems, params


def _party(
    spec: JobSpec,
    role: str,
    key: Any,
) -> Party | None:
    index = index_of(str(key))
    for party in spec.parties:
        if party.role == role and party.index == index:
            return party
    return None


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
    entry = dict(old) if isinstance(old, Mapping) else {}
    for task, values in changes.items():
        old_values = entry.get(task)
        if isinstance(old_values, Mapping):
            values = {**old_values, **values}
        entry[task] = dict(values)
    return entry


def _for_party(
    spec: JobSpec,
    by_index: Any,
    party: Party,
    changes: Mapping[str, Any],
) -> dict[str, Any]:
    """Give a party an entry of its own with the changes and all that held for it.

    The entry stands at the end, where it wins.
    """
    entries = dict(by_index) if isinstance(by_index, Mapping) else {}
    values_by_task = {}
    for node in spec.dag.nodes:
        parameters = overlay({party.role: entries}, party, node.name)
        if parameters:
            values_by_task[node.name] = {name: p.value for name, p in parameters.items()}
    key = str(party.index)
    entries.pop(key, None)
    entries[key] = _laid_over(values_by_task, changes)
    return entries


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
    tasks = {node.name for node in spec.dag.nodes}
    for amendment in amendments:
        _, params = changed(spec, amendment.parameters, tasks, spec.scheduler)
        spec = replace(spec, task_params=params)
    return spec


def in_force(local: LocalJob) -> JobSpec:
    """Return a party's job with the new parameters that hold."""
    amendments = [offer for offer in local.offered if offer.id in local.amendments]
    return amended(local.spec, amendments)
