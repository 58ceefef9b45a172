"""Warnings about tasks that read a table which an earlier task has reduced to its ids.

An intersection does so by its parameter ``only_output_key``, often by default. A training behind it
would find neither features nor labels, and fail after the job has begun.
"""

from collections.abc import Mapping

from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec, effective
from gateway.jobs.flow_checks import Plans, in_flow_order
from gateway.jobs.party_task import PartyTask
from provider_registry.model import as_text, group_of

# Parameter of FATE's components and of the standard's sample by which a task writes only the ids
_IDS_ONLY = "only_output_key"

# Task and party's label -> the task that reduced the table which the task writes at this party
_Reducers = Mapping[tuple[str, str], PartyTask]


def lost_columns(spec: JobSpec, plans: Plans) -> list[Problem]:
    """Return a warning for each task that reads a table of ids alone.

    A task that has the parameter itself needs no other columns; it passes such a table on.
    """
    reducers: dict[tuple[str, str], PartyTask] = {}
    warnings = []
    for plan in in_flow_order(spec, plans):
        task = plan.task
        reducer = _upstream_reducer(task, reducers)
        if not _has_parameter(task):
            if reducer is not None:
                warnings.append(_warning(task, reducer))
            continue
        if reducer is None and _is_reducing(task):
            reducer = task
        if reducer is not None:
            reducers[task.node.name, task.party.label] = reducer
    return warnings


def _upstream_reducer(task: PartyTask, reducers: _Reducers) -> PartyTask | None:
    """Return the task that reduced a table which a task reads; None if all tables are complete."""
    for edge in task.node.inputs:
        if group_of(edge.type) != "data":
            continue
        reducer = reducers.get((edge.task, task.party.label))
        if reducer is not None:
            return reducer
    return None


def _has_parameter(task: PartyTask) -> bool:
    """Return whether the task's component can reduce its table."""
    return any(parameter.name == _IDS_ONLY for parameter in task.component.parameters)


def _is_reducing(task: PartyTask) -> bool:
    """Return whether the task reduces its table, by the job's value or else by the default."""
    parameters = effective(task.spec.task_params, task.party, task.node.name)
    value = None
    if _IDS_ONLY in parameters:
        value = parameters[_IDS_ONLY].value
    if value in (None, ""):
        value = _default(task)
    return as_text(value).strip().lower() == "true"


def _default(task: PartyTask) -> str:
    """Return the described default of the parameter; "" without one."""
    for parameter in task.component.parameters:
        if parameter.name == _IDS_ONLY:
            return parameter.default or ""
    return ""


def _warning(reader: PartyTask, reducer: PartyTask) -> Problem:
    """Return the warning about a reader, at the parameter of the task that reduced its table."""
    parameters = effective(reducer.spec.task_params, reducer.party, reducer.node.name)
    origin = "common"
    if _IDS_ONLY in parameters:
        origin = parameters[_IDS_ONLY].origin
    path = f"config.task_params.{origin}.{reducer.node.name}.{_IDS_ONLY}"
    component = reducer.component.name
    name = reader.node.name
    rule = (
        f"is true, so {component} writes the ids alone: "
        f"{name} reads its table and gets no other column"
    )
    remedy = f"set it to false, unless {name} needs the ids alone"
    return Problem(path, rule, remedy=remedy)
