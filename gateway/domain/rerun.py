"""Tasks that a job inherits from an earlier one, and reruns of a job from one of its tasks.

A job names the earlier one by ``old_job_id``. By default it inherits every task that is the same in
both. With ``job_params.common.inherit`` it inherits exactly the tasks listed there, or is refused.
The node that schedules both jobs compares the flows, and every party compares its own side
(`Acceptance.inherited`). The job begins only when all agree.

A rerun is a new job, because the standard's FINISHED is final. It has the old job's flow, roles and
settings. It inherits the succeeded tasks that are not downstream of the task to begin with; the
rest runs again, with the requested changes. The node that requests the rerun is its initiator, even
if another node submitted the old job.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from gateway.domain.dag import ComponentRef, downstream, order
from gateway.domain.entries import as_mapping
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
    merged_entry,
    overlay,
    tasks_in,
)
from gateway.domain.states import JOB, TASK, TaskStatus, ended, move

INHERITANCE_FAILED = "INHERITANCE_FAILED"  # reason of a refused or failed job
_MAX_LISTED = 20  # tasks that a problem lists


def difference(
    old: JobSpec,
    new: JobSpec,
    task: str,
    parties: Iterable[Party],
) -> str:
    """Describe the first difference of a task in two jobs, at these parties; empty for none.

    Compared are the job's parties, the task's component, inputs and outputs, and the parameters and
    datasets of ``parties``.
    """
    if old.parties != new.parties:
        return f"the roles differ: {_roles(new)} instead of {_roles(old)}"
    old_task = old.dag.get(task)
    new_task = new.dag.get(task)
    if old_task is None or new_task is None:
        return "there is no such task"
    if old_task.component != new_task.component:
        return _component_difference(old_task.component, new_task.component)
    if old_task.inputs != new_task.inputs:
        return "the inputs differ"
    if old_task.outputs != new_task.outputs:
        return "the outputs differ"
    for party in parties:
        text = _party_difference(old, new, task, party)
        if text:
            return text
    return ""


def _component_difference(old: ComponentRef, new: ComponentRef) -> str:
    """Describe the difference of two components: "version" if only that differs."""
    what = "component"
    if old.provider == new.provider and old.name == new.name:
        what = "version"
    return f"the {what} differs: {new} instead of {old}"


def _party_difference(
    old: JobSpec,
    new: JobSpec,
    task: str,
    party: Party,
) -> str:
    """Describe the difference of a party's parameters or dataset of a task; empty for none."""
    names = _different_parameters(old, new, task, party)
    if names:
        return f"the parameters of {party.label} differ: {', '.join(names[:10])}"
    if not _has_same_dataset(old, new, task, party):
        return f"the inputs of {party.label} differ: another dataset"
    return ""


def _has_same_dataset(
    old: JobSpec,
    new: JobSpec,
    task: str,
    party: Party,
) -> bool:
    """Return whether a party's task reads the same dataset in both jobs, or none in either.

    Only the names are compared, not the content of the dataset.
    """
    old_location = data_location(old.task_params, party, task)
    new_location = data_location(new.task_params, party, task)
    return old_location == new_location


def _roles(spec: JobSpec) -> str:
    """List the parties of a job for a message, at most ten."""
    return ", ".join(f"{party.label}={party.node}" for party in spec.parties[:10])


def _different_parameters(
    old: JobSpec,
    new: JobSpec,
    task: str,
    party: Party,
) -> list[str]:
    """Return the names of the parameters of a task that differ at a party, sorted."""
    old_values = _values(old, party, task)
    new_values = _values(new, party, task)
    names = sorted(old_values.keys() | new_values.keys())
    # `...` means an absent parameter, as None is a value of its own
    return [name for name in names if old_values.get(name, ...) != new_values.get(name, ...)]


def _values(
    spec: JobSpec,
    party: Party,
    task: str,
) -> dict[str, Any]:
    """Return the values of a party's parameters of a task."""
    parameters = effective(spec.task_params, party, task)
    return {name: parameter.value for name, parameter in parameters.items()}


def candidates(
    old: Job,
    spec: JobSpec,
) -> tuple[dict[str, Lineage], dict[str, str]]:
    """Return the tasks that may be inherited, with their origin, and why other tasks may not.

    This is the view of the scheduling node: each party compares its own side later. Without
    ``inherit`` in the settings all tasks of the flow are considered.
    """
    lineages: dict[str, Lineage] = {}
    obstacles: dict[str, str] = {}
    demanded = spec.settings.inherit
    old_spec = with_amendments(old.spec, old.amendments)
    for name in order(spec.dag):
        if demanded is not None and name not in demanded:
            continue
        obstacle = _obstacle(old, old_spec, spec, name)
        obstacle = obstacle or lost_upstream(spec, name, lineages)
        if obstacle:
            obstacles[name] = obstacle
            continue
        task = old.tasks[name]
        # a task that the old job has inherited itself keeps its first origin
        lineages[name] = task.lineage or Lineage(old.id, task.task_id)
    return lineages, obstacles


def _obstacle(
    old: Job,
    old_spec: JobSpec,
    spec: JobSpec,
    name: str,
) -> str:
    """Return why a task of the old job cannot be inherited; empty if it can.

    Whether the tasks before it are inherited as well is checked by `lost_upstream`.
    ``old_spec`` is the old job with the parameters that were in force at its end.
    """
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
    """Return a message with the upstream tasks of a task that are not inherited; empty for none."""
    missing = sorted(spec.dag[task].upstream - set(inherited))
    if not missing:
        return ""
    return f"it needs the output of {', '.join(missing)}, which is not inherited"


def decide_inheritance(job: Job, at: datetime) -> Job | Failure:
    """Decide, once every node has accepted the job, which tasks it inherits.

    A task is inherited if every node of the task reports that it can inherit the task, and the
    tasks before it are inherited too. Otherwise the task runs again, unless the setting ``inherit``
    demands the inheritance: then the result is a failure. The result is also a failure if a node
    does not report its inheritable tasks.
    """
    tasks = {name: task for name, task in job.tasks.items() if task.lineage is not None}
    inheritable = _inheritable_tasks(job, tasks.values())
    if isinstance(inheritable, Failure):
        return inheritable
    inherited = _agreed_tasks(job, tasks, inheritable)
    if isinstance(inherited, Failure):
        return inherited
    for name, task in tasks.items():
        if name in inherited:
            job = job.with_task(_as_inherited(task, at))
        else:
            job = job.with_task(replace(task, lineage=None))
    return _note_inheritance(job, tasks, inherited, at)


def _agreed_tasks(
    job: Job,
    tasks: Mapping[str, Task],
    inheritable: Mapping[NodeId, Collection[str]],
) -> set[str] | Failure:
    """Return the tasks that all of their nodes can inherit, if the tasks before them are inherited.

    Return a failure if the setting ``inherit`` demands a task that is not among them.
    ``inheritable`` has the tasks that each node reports.
    """
    inherited: set[str] = set()
    for name in order(job.spec.dag):
        if name not in tasks:
            continue
        refusing = [node for node in tasks[name].nodes if name not in inheritable[node]]
        if not refusing and job.spec.dag[name].upstream <= inherited:
            inherited.add(name)
        elif job.spec.settings.inherit is not None:
            text = f"task {name} of job {job.spec.old_job_id} cannot be inherited"
            return Failure(
                INHERITANCE_FAILED,
                text,
                node=next(iter(refusing), ""),  # "" if only a task before it is not inherited
                task=name,
            )
    return inherited


def _inheritable_tasks(
    job: Job,
    tasks: Iterable[Task],
) -> dict[NodeId, tuple[str, ...]] | Failure:
    """Return the tasks that each node can inherit; a failure if a node has not reported them."""
    reports = {}
    for task in tasks:
        for node in task.nodes:
            inheritable = job.nodes[node].reservation.acceptance.inherited
            if inheritable is None:
                text = f"{node} does not say what it can inherit of job {job.spec.old_job_id}"
                return Failure(INHERITANCE_FAILED, text, node=node)
            reports[node] = inheritable
    return reports


def _note_inheritance(
    job: Job,
    tasks: Mapping[str, Task],
    inherited: Collection[str],
    at: datetime,
) -> Job:
    """Return the job with a note on each task: whether it is inherited, and its origin.

    ``tasks`` are those that may be inherited, as they were before the decision.
    """
    for name, task in tasks.items():
        event = "task not inherited"
        if name in inherited:
            event = "task inherited"
        assert task.lineage is not None  # `tasks` has no other tasks
        detail = {
            "from_job": task.lineage.job_id,
            "from_task_id": task.lineage.task_id,
        }
        job = job.with_note(at, event, task=name, **detail)
    return job


def _as_inherited(task: Task, at: datetime) -> Task:
    """Return a task as succeeded at all of its nodes, as it was in the earlier job."""
    nodes = {}
    for node, part in task.nodes.items():
        nodes[node] = replace(
            part,
            roles=dict.fromkeys(part.roles, TaskStatus.SUCCESS),
        )
    status = move(TASK, task.status, TaskStatus.SUCCESS)
    return replace(
        task,
        status=status,
        nodes=nodes,
        ended_at=at,
    )


# ---------------------------------------------------------------- checkpoints
#
# Checkpoints are an extension that a job may request: folders in which tasks save their progress,
# to go on after an interruption. If a task's machine shares no folder with the node, its
# checkpoints are in the storage of its outputs.
#
# With ``job_params.common.checkpoints: true`` each party of a task has one such folder in a job.
# Every attempt finds the files of the earlier ones there; the first attempt in a job that takes
# over from another finds a copy of the folder that the same task has in that job.


def may_take_checkpoints(
    old: JobSpec,
    new: JobSpec,
    task: str,
    parties: Collection[Party],
) -> bool:
    """Return whether a task may take over the checkpoints of the same task in an earlier job.

    The scheduling node and all parties must be the same, and so must the components and inputs of
    the task and of all tasks before it. Parameters may differ. The datasets of these tasks at
    ``parties`` must be the same because checkpoints may contain their data: the new job then names
    these datasets, and needs grants for them.
    """
    if new.scheduler != old.scheduler or new.parties != old.parties:
        return False
    needed = {task}
    for name in reversed(order(new.dag)):
        if name not in needed:
            continue
        if not _has_same_data(old, new, name, parties):
            return False
        needed |= new.dag[name].upstream
    return True


def _has_same_data(
    old: JobSpec,
    new: JobSpec,
    task: str,
    parties: Iterable[Party],
) -> bool:
    """Return whether a task has the same component, inputs and datasets in both jobs.

    Datasets are compared at these parties only.
    """
    old_task = old.dag.get(task)
    new_task = new.dag[task]
    if old_task is None or old_task.component != new_task.component:
        return False
    if old_task.inputs != new_task.inputs:
        return False
    return all(_has_same_dataset(old, new, task, party) for party in parties)


def checkpoints(
    spec: JobSpec,
    task: str,
    party: Party,
    storage: str = "",
) -> tuple[Address | None, Address | None]:
    """Return a party's folder for checkpoints of a task: in this job, and in the old one.

    Both are None for a job without checkpoints, the second also without an old job. ``storage`` is
    the name of the storage with both folders; empty: the one that every node has.
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
    """Return the folder for checkpoints of a party's task in a job."""
    return Address(f"{job_id}-{party.role}-{party.index}", f"{task}-checkpoint", storage)


# ---------------------------------------------------------------- reruns


@dataclass(frozen=True)
class Order:
    """The request to run an ended job again.

    The function `order` has nothing to do with it: that returns the sequence of a flow's tasks.
    """

    job_id: str
    new_job_id: str
    start: str = ""  # the task to begin with; empty: the first that has not succeeded
    # changes in the form of ``task_params``: common, then role -> index, then task -> parameters
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rerun:
    """The new job, with the tasks that it runs and the ones that it takes over."""

    spec: JobSpec
    origin: Origin
    runs: tuple[str, ...]  # tasks that run
    inherits: tuple[str, ...]  # tasks that are inherited


@dataclass(frozen=True)
class RerunResult:
    """The new job, as it is reported to the node that requested it."""

    job_id: str
    start: str  # the task from which on the old job runs again
    runs: tuple[str, ...] = ()  # tasks that run
    inherits: tuple[str, ...] = ()  # tasks that are inherited


def plan(
    old: Job,
    request: Order,
    by: NodeId,
    trace_id: str,
) -> tuple[Rerun | None, list[Problem]]:
    """Return the new job of an ended one, or None and all problems of the request.

    ``by`` becomes the initiator of the new job, and needs a role in it. It may change the
    parameters of its own parties. Only the old job's initiator and its scheduling node may change
    the parameters of other nodes.
    """
    dag = old.spec.dag
    names = order(dag)
    unfinished = [name for name in names if old.tasks[name].status is not TaskStatus.SUCCESS]
    start = request.start or next(iter(unfinished), "")
    problem = _start_problem(old, start) or _role_problem(old, by)
    if problem is not None:
        return None, [problem]
    rerun_tasks = downstream(dag, [start, *unfinished])
    amended_spec = with_amendments(old.spec, old.amendments)
    problems, task_params = change_parameters(amended_spec, request.parameters, rerun_tasks, by)
    if problems:
        return None, problems
    inherits = tuple(name for name in names if name not in rerun_tasks)
    common = {**old.spec.common, "inherit": list(inherits)}
    spec = replace(
        old.spec,
        job_id=request.new_job_id,
        initiator=by,
        initiator_role=initiator_role(old.spec, by),
        trace_id=trace_id,
        old_job_id=old.id,
        job_params={**old.spec.job_params, "common": common},
        task_params=task_params,
        bundles={},  # the old initiator signed the old job, not this one
    )
    runs = tuple(name for name in names if name in rerun_tasks)
    origin = Origin(
        job_id=old.id,
        start=start,
        by=by,
        changed=tasks_in(request.parameters),
        parameters=request.parameters,
    )
    return Rerun(spec, origin, runs, inherits), []


def _start_problem(old: Job, start: str) -> Problem | None:
    """Return the problem of the task that a rerun begins with; None if it has none.

    ``start`` is empty if the request names no task, and every task has succeeded.
    """
    if not start:
        text = f"every task of job {old.id} has succeeded: say from which one it is to run again"
        return Problem("from", text, start)
    dag = old.spec.dag
    if dag.get(start) is None:
        names = ", ".join(order(dag)[:_MAX_LISTED])
        return Problem("from", f"job {old.id} has no such task, but {names}", start)
    return None


def _role_problem(old: Job, by: NodeId) -> Problem | None:
    """Return the problem of a node that requests a rerun without a role in the job, else None."""
    if old.spec.parties_at(by):
        return None
    rule = (
        "can be run again only by a node with a role in it, which is its initiator then; "
        f"{by} has none"
    )
    return Problem("job_id", rule, old.id)


def initiator_role(spec: JobSpec, node: NodeId) -> str:
    """Return the role in which a node initiates the job.

    The role of the old initiator if the node plays that too, otherwise the node's first role.
    """
    roles = [party.role for party in spec.parties_at(node)]
    if spec.initiator_role in roles:
        return spec.initiator_role
    return roles[0]


def change_parameters(
    spec: JobSpec,
    changes: Mapping[str, Any],
    may_change: Collection[str],
    by: NodeId,
    else_rule: str = "is not run again, so its parameters cannot change",
) -> tuple[list[Problem], dict[str, Any]]:
    """Return the problems of a node's changes of parameters, and the parameters with the changes.

    ``may_change`` are the tasks whose parameters may change; ``else_rule`` is the rule that a
    change of any other task violates. ``by`` requests the changes. The parameters are complete only
    if there are no problems.
    """
    problems: list[Problem] = []
    params = dict(spec.task_params)
    for change in _changes(spec, changes):
        if isinstance(change, Problem):
            problems.append(change)
            continue
        problems += _change_problems(spec, change, may_change, by, else_rule)
        if problems:
            continue  # the caller gets all problems, and does not use the parameters then
        old_entry = params.get(change.role)
        if change.party is None:
            params[change.role] = merged_entry(old_entry, change.by_task)
        else:
            params[change.role] = _for_party(
                spec,
                old_entry,
                change.party,
                change.by_task,
            )
    return problems, params


@dataclass(frozen=True)
class _Change:
    """New parameters of tasks for one party, or for all of them."""

    role: str  # ``common`` for all parties
    party: Party | None  # None: all parties
    by_task: Mapping[str, Any]
    path: str  # path of the entry in the request


def _changes(
    spec: JobSpec,
    changes: Mapping[str, Any],
) -> Iterator[_Change | Problem]:
    """Yield each entry of a request to change parameters, or the problem of an unreadable one.

    ``changes`` has the form of ``task_params``, with a single index as the key of a party.
    """
    roles = {party.role for party in spec.parties}
    for role, entry in changes.items():
        path = f"parameters.{role}"
        if not isinstance(entry, Mapping):
            yield Problem(path, "must be an object", entry)
        elif role == "common":
            yield _Change(role, None, entry, path)
        elif role not in roles:
            rule = f"is not a role of the job: {', '.join(sorted(roles))}"
            yield Problem(path, rule, role)
        else:
            for key, by_task in entry.items():
                yield _party_change(spec, role, key, by_task)


def _party_change(
    spec: JobSpec,
    role: str,
    key: Any,
    by_task: Any,
) -> _Change | Problem:
    """Return the entry of one index of a role, or the problem of an unreadable one."""
    path = f"parameters.{role}.{key}"
    party = _party(spec, role, key)
    if party is None:
        return Problem(path, f"is not an index of a {role}", key)
    if not isinstance(by_task, Mapping):
        return Problem(path, "must be an object", by_task)
    return _Change(role, party, by_task, path)


def _party(
    spec: JobSpec,
    role: str,
    key: Any,
) -> Party | None:
    """Return the party of a role with this index; None if the job has none."""
    index = index_of(str(key))
    for party in spec.parties:
        if party.role == role and party.index == index:
            return party
    return None


def _change_problems(
    spec: JobSpec,
    change: _Change,
    may_change: Collection[str],
    by: NodeId,
    else_rule: str,
) -> list[Problem]:
    """Return why the node ``by`` may not make a change; empty if it may.

    It may not if the change concerns other nodes, or tasks that do not exist or cannot change.
    """
    party = change.party
    is_own = party is not None and party.node == by
    if not is_own and by not in (spec.initiator, spec.scheduler):
        concerned = "common"
        if party is not None:
            concerned = party.node
        rule = f"may not be changed by {by}: it concerns other nodes"
        return [Problem(change.path, rule, concerned)]
    problems = []
    for task, values in change.by_task.items():
        path = f"{change.path}.{task}"
        if spec.dag.get(task) is None:
            problems.append(Problem(path, "names a task that is not in the flow", task))
        elif task not in may_change:
            problems.append(Problem(path, else_rule, task))
        elif not isinstance(values, Mapping):
            rule = "must be an object: parameters by their names"
            problems.append(Problem(path, rule, values))
    return problems


def _for_party(
    spec: JobSpec,
    by_index: Any,
    party: Party,
    changes: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a role's entries with a new one for this party alone: its parameters and the changes.

    The key of an entry may name several indexes (``0|1``). The key of the new entry names only the
    party's index. The new entry comes last, so that it wins over all entries that name this index.
    """
    entries = dict(as_mapping(by_index))
    values_by_task = {}
    for node in spec.dag.nodes:
        parameters = overlay({party.role: entries}, party, node.name)
        if parameters:
            values_by_task[node.name] = {name: p.value for name, p in parameters.items()}
    key = str(party.index)
    entries.pop(key, None)  # so that the new entry comes last
    entries[key] = merged_entry(values_by_task, changes)
    return entries


# ---------------------------------------------------------------- new parameters for a running job


def amendment_problems(
    spec: JobSpec,
    parameters: Mapping[str, Any],
    begun_tasks: Iterable[str],
    by: NodeId,
) -> list[Problem]:
    """Return the problems of new parameters that the node ``by`` requests for a running job.

    A task that has begun keeps its parameters.
    """
    not_begun = {node.name for node in spec.dag.nodes} - set(begun_tasks)
    rule = "has started, so its parameters cannot change"
    problems, _ = change_parameters(spec, parameters, not_begun, by, else_rule=rule)
    return problems


def with_amendments(spec: JobSpec, amendments: Iterable[Amendment]) -> JobSpec:
    """Return a job with the new parameters in force.

    The scheduling node offers new parameters to every node, and each that accepts them stores them.
    They are in force once the scheduling node has recorded them, in a write that also checks that
    none of their tasks has begun. Each later start of a task names the amendments in force, so that
    a node ignores parameters that were only offered.
    """
    amendments = list(amendments)
    if not amendments:
        return spec
    tasks = {node.name for node in spec.dag.nodes}
    # The changes were checked when they were requested. They are applied in the name of the
    # scheduling node, which may change the parameters of every party.
    for amendment in amendments:
        _, params = change_parameters(spec, amendment.parameters, tasks, spec.scheduler)
        spec = replace(spec, task_params=params)
    return spec


def in_force(local: LocalJob) -> JobSpec:
    """Return a party's job with the new parameters in force here.

    These are the offered ones that the start of a task has named.
    """
    amendments = [offer for offer in local.offered if offer.id in local.amendments]
    return with_amendments(local.spec, amendments)
