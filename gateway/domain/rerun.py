"""A job begun again from one of its tasks: as a new job, because the standard's FINISHED is final.

The new job has the same flow, roles and settings. It takes over what is not downstream of the task and had
succeeded; the rest runs again, with the changes that were asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.domain.dag import downstream, order
from gateway.domain.job import Job, Origin
from gateway.domain.parameters import overlay
from gateway.domain.problems import Problem, index_of
from gateway.domain.spec import JobSpec, NodeId, Party
from gateway.domain.states import TaskStatus


@dataclass(frozen=True)
class Order:
    """What somebody asks for."""

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


def plan(old: Job, wanted: Order, by: NodeId, trace_id: str) -> tuple[Rerun | None, list[Problem]]:
    """Return the new job of an ended one, or everything that is wrong with the request.

    ``by`` may change parameters of its own parties; those that concern others only as the job's initiator or as
    the node that schedules it.
    """
    dag = old.spec.dag
    names = order(dag)
    left = [name for name in names if old.tasks[name].status is not TaskStatus.SUCCESS]
    start = wanted.start or next(iter(left), "")
    if not start:
        text = f"every task of job {old.id} has succeeded: say from which one it is to run again"
        return None, [Problem("from", text, wanted.start)]
    if dag.get(start) is None:
        return None, [Problem("from", f"job {old.id} has no such task, but {', '.join(names[:20])}", start)]
    again = downstream(dag, [start, *left])
    problems, task_params = _changed(old.spec, wanted.parameters, again, by)
    if problems:
        return None, problems
    inherits = tuple(name for name in names if name not in again)
    common = old.spec.job_params.get("common")
    common = {**(common if isinstance(common, Mapping) else {}), "inherit": list(inherits)}
    spec = replace(
        old.spec,
        job_id=wanted.new_job_id,
        trace_id=trace_id,
        old_job_id=old.id,
        job_params={**old.spec.job_params, "common": common},
        task_params=task_params,
    )
    runs = tuple(name for name in names if name in again)
    origin = Origin(old.id, start, by, _tasks_in(wanted.parameters), wanted.parameters)
    return Rerun(spec, origin, runs, inherits), []


def _tasks_in(changes: Mapping[str, Any]) -> tuple[str, ...]:
    entries = [changes.get("common", {}), *(e for r, by in changes.items() if r != "common" for e in by.values())]
    return tuple(sorted({task for by_task in entries for task in by_task}))


def _changed(
    spec: JobSpec, changes: Mapping[str, Any], again: frozenset[str], by: NodeId
) -> tuple[list[Problem], dict[str, Any]]:
    """Return the parameters with the changes, or what is wrong with these."""
    problems: list[Problem] = []
    params = dict(spec.task_params)
    roles = {p.role for p in spec.parties}
    for role, entry in changes.items():
        at = f"parameters.{role}"
        if not isinstance(entry, Mapping):
            problems.append(Problem(at, "must be an object", entry))
        elif role == "common":
            problems += _may(spec, by, None, at) or _wrong_tasks(spec, entry, again, at)
            if not problems:
                params[role] = _laid_over(params.get(role), entry)
        elif role not in roles:
            problems.append(Problem(at, f"is not a role of the job: {', '.join(sorted(roles))}", role))
        else:
            for key, by_task in entry.items():
                party = next((p for p in spec.parties if p.role == role and p.index == index_of(str(key))), None)
                if party is None or not isinstance(by_task, Mapping):
                    rule = "must be an object" if party else f"is not an index of a {role}"
                    problems.append(Problem(f"{at}.{key}", rule, key if party is None else by_task))
                    continue
                wrong = _may(spec, by, party, f"{at}.{key}")
                problems += wrong or _wrong_tasks(spec, by_task, again, f"{at}.{key}")
                if not problems:
                    params[role] = _for_party(spec, params.get(role), party, by_task)
    return problems, params


def _may(spec: JobSpec, by: NodeId, party: Party | None, at: str) -> list[Problem]:
    if by in (spec.initiator, spec.scheduler) or (party is not None and party.node == by):
        return []
    return [Problem(at, f"may not be changed by {by}: it concerns other nodes", party.node if party else "common")]


def _wrong_tasks(spec: JobSpec, by_task: Mapping[str, Any], again: frozenset[str], at: str) -> list[Problem]:
    problems = []
    for task, values in by_task.items():
        if spec.dag.get(task) is None:
            problems.append(Problem(f"{at}.{task}", "names a task that is not in the flow", task))
        elif task not in again:
            problems.append(Problem(f"{at}.{task}", "is not run again, so its parameters cannot change", task))
        elif not isinstance(values, Mapping):
            problems.append(Problem(f"{at}.{task}", "must be an object: parameters by their names", values))
    return problems


def _laid_over(old: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Lay changes over an entry, task by task."""
    found = dict(old) if isinstance(old, Mapping) else {}
    for task, values in changes.items():
        before = found.get(task)
        found[task] = {**(before if isinstance(before, Mapping) else {}), **values}
    return found


def _for_party(spec: JobSpec, by_index: Any, party: Party, changes: Mapping[str, Any]) -> dict[str, Any]:
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
