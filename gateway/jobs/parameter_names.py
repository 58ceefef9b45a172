"""Misspelled names of parameters in a job that is submitted here."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from gateway.domain.dag import DagNode, once_per_component
from gateway.domain.entries import entries_of, objects_in
from gateway.domain.problems import Problem, near
from gateway.domain.spec import JobSpec
from provider_registry.model import Component
from provider_registry.values import MAX_SUGGESTIONS, SIMILARITY

# Parameters that locate a dataset, which no description lists.
_LOCATION = frozenset({"dataset_id", "namespace", "name"})
_MAX_CHECKED = 100  # unknown names of one job that are compared with descriptions

# Returns the component of a task; None if it is not registered here.
FindComponent = Callable[[DagNode], Component | None]


def misspelled_parameters(
    spec: JobSpec,
    find_component: FindComponent,
) -> list[Problem]:
    """Return a problem for each parameter that probably means a described one without a value.

    Published jobs have parameters that no description lists, so an unknown name without a similar
    one is none of these problems: each party warns of it. Tasks whose component is not registered
    here are left out.
    """
    component_of = once_per_component(find_component)
    names_by_task = _names_by_task(spec)
    problems = []
    for task, origin, name, value in islice(_unknown(spec, component_of), _MAX_CHECKED):
        component = component_of(task)
        if component is None:
            continue
        described = islice(component.parameters, MAX_SUGGESTIONS)
        names = [parameter.name for parameter in described]
        unused = [known for known in names if known not in names_by_task[task.name]]
        suggestion = near(name, unused, SIMILARITY)
        if suggestion:
            path = f"config.task_params.{origin}.{task.name}.{name}"
            rule = f"is not a parameter of {component.name}"
            problems.append(Problem(path, rule, value, suggestion, "PARAMETER_UNKNOWN"))
    return problems


def _names_by_task(spec: JobSpec) -> Mapping[str, set[str]]:
    """Return the names of all parameters that any entry of the job gives to a task."""
    names: dict[str, set[str]] = {}
    for _, by_task in entries_of(spec.task_params):
        for task, values in objects_in(by_task):
            names.setdefault(task, set()).update(values)
    return names


def _unknown(
    spec: JobSpec,
    component_of: FindComponent,
) -> Iterator[tuple[DagNode, str, str, Any]]:
    """Yield task, origin, name and value of each parameter that its component does not describe."""
    for origin, by_task in entries_of(spec.task_params):
        for task_name, values in objects_in(by_task):
            task = spec.dag.get(task_name)
            component = component_of(task) if task is not None else None
            if task is None or component is None:
                continue
            described = {parameter.name for parameter in component.parameters}
            for name, value in values.items():
                if value is not None and name not in described | _LOCATION:
                    yield task, origin, name, value
