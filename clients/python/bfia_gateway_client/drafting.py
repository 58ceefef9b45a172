"""Drafts of jobs from a sequence of components.

Each component reads the newest table of the components before it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bfia_gateway_client.calls import Json, near
from bfia_gateway_client.errors import Problem, invalid

ROLE_ORDER = ("guest", "host", "arbiter")  # the standard's roles, in the order of a draft
# Parameters of FATE's components and of the standard's sample by which a task writes only the ids
# of its output table
_IDS_ONLY = ("only_output_key",)
# A category that contains one of these words is that of a table.
_DATA_WORDS = ("data", "training_set", "test_set", "validate_set")


def group_of(category: str) -> str:
    """Return the group of a category or of a type in a flow: data, model or, for others, metric."""
    lowered = category.lower()
    if any(word in lowered for word in _DATA_WORDS):
        return "data"
    if "model" in lowered:
        return "model"
    return "metric"


@dataclass(frozen=True)
class Port:
    """An input or output of a component."""

    name: str
    category: str  # as in the component's description

    @property
    def group(self) -> str:
        """The group of its category: data, model or metric."""
        return group_of(self.category)


@dataclass(frozen=True)
class Component:
    """A component as a node describes it. ``form``: the JSON Schema of its parameters."""

    name: str
    provider: str
    version: str
    roles: Sequence[str]
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    form: Json

    @property
    def input_table(self) -> Port | None:
        """The first input that is a table; None if there is none."""
        return _first_table(self.inputs)

    @property
    def output_table(self) -> Port | None:
        """The first output that is a table; None if there is none."""
        return _first_table(self.outputs)


def _first_table(ports: Sequence[Port]) -> Port | None:
    """Return the first table; None if there is none."""
    for port in ports:
        if port.group == "data":
            return port
    return None


def of_description(
    provider: Json,
    name: str,
    form: Json,
) -> Component:
    """Return a component of a provider.

    ``provider``: the node's description of the provider; ``form``: as in `Component`.
    """
    description = provider["components_description"][name]
    return Component(
        name=name,
        provider=provider["name"],
        version=provider["version"],
        roles=tuple(description["roleList"]),
        inputs=_ports(description["inputData"]),
        outputs=_ports(description["outputData"]),
        form=form,
    )


def _ports(described: Sequence[Json]) -> tuple[Port, ...]:
    """Return the inputs or outputs of a description."""
    return tuple(Port(str(port["name"]), str(port["category"])) for port in described)


@dataclass(frozen=True)
class Task:
    """A component in a flow.

    ``source``: the ``task.output`` that it reads; empty if it reads the parties' own tables, or no
    table.
    """

    name: str
    component: Component
    source: str

    @property
    def reads_datasets(self) -> bool:
        """Whether its parties name a dataset for it."""
        return not self.source and self.component.input_table is not None


def chained(components: Sequence[Component]) -> list[Task]:
    """Name the tasks, and let each read the newest table of an earlier one."""
    tasks: list[Task] = []
    newest_table = ""
    for component in components:
        name = _unique_name(component, [task.name for task in tasks])
        source = ""
        if component.input_table is not None:
            source = newest_table
        tasks.append(Task(name, component, source))
        if component.output_table is not None:
            newest_table = f"{name}.{component.output_table.name}"
    return tasks


def _unique_name(component: Component, used_names: Sequence[str]) -> str:
    """Return a component's name in lower case, with a number if an earlier task has it."""
    base = re.sub(r"[^\w-]", "_", component.name).lower()
    name = base
    number = 1
    while name in used_names:
        number += 1
        name = f"{base}_{number}"
    return name


def roles_of(components: Sequence[Component]) -> list[str]:
    """Return the roles of some components: guest, host, arbiter, then the others as they come."""
    roles: list[str] = []
    for component in components:
        roles += component.roles
    return sorted(dict.fromkeys(roles), key=_rank)


def _rank(role: str) -> int:
    """Return a role's place in `ROLE_ORDER`; the other roles share the place after the last."""
    if role in ROLE_ORDER:
        return ROLE_ORDER.index(role)
    return len(ROLE_ORDER)


def reader_of(task: Task, tasks: Sequence[Task]) -> str:
    """Return the name of the first task that reads a table of this one; empty if there is none."""
    for later_task in tasks:
        if later_task.source.partition(".")[0] == task.name:
            return later_task.name
    return ""


def switched_off(name: str, field: Json, reader: str) -> bool:
    """True for a parameter that a draft sets to False.

    By default it would reduce the output table to its ids, and the task that reads the table would
    get no other columns. ``reader``: the name of that task; empty if no task reads the table.
    """
    is_ids_only = name in _IDS_ONLY and field.get("default") is not False
    return is_ids_only and reader != ""


def first_value(field: Json) -> Any:
    """Return a required parameter's initial value: its default or its first choice; else None."""
    if "default" in field:
        return field["default"]
    return next(iter(field.get("enum", ())), None)


def job(
    tasks: Sequence[Task],
    parties: Mapping[str, str],
    data: Mapping[str, str],
    parameters: Mapping[str, Json],
    flow: str,
) -> dict[str, Any]:
    """Return a job of the tasks, ready to be submitted.

    ``parties``: role -> node; ``data``: role -> dataset; ``parameters``: task -> values; ``flow``:
    the flow's id. Raises `Invalid` with everything that is missing or unknown.
    """
    if not tasks:
        raise invalid(Problem("components", "is empty: name at least one component"))
    roles = roles_of([task.component for task in tasks])
    problems = [
        *_role_problems(tasks, roles, parties, data),
        *_parameter_problems(tasks, parameters),
    ]
    if problems:
        raise invalid(*problems)
    initiator = roles[0]  # the guest, if a component has this role
    return {
        "flow_id": flow,
        "dag": {"version": "2.0", "components": [_entry(task) for task in tasks]},
        "config": {
            "version": "2.0.0",
            "initiator": {"role": initiator, "node_id": parties[initiator]},
            "role": {role: [parties[role]] for role in roles},
            "job_params": {"common": {"sync_type": "callback"}},
            "task_params": _task_params(tasks, roles, data, parameters),
        },
    }


def _task_params(
    tasks: Sequence[Task],
    roles: Sequence[str],
    data: Mapping[str, str],
    parameters: Mapping[str, Json],
) -> dict[str, Any]:
    """Return the parameters common to all parties, and the dataset that each party's tasks read."""
    common = {}
    for task in tasks:
        common[task.name] = _preset(task, tasks) | dict(parameters.get(task.name, {}))
    task_params: dict[str, Any] = {"common": common}
    for role in roles:
        datasets = {}
        for task in tasks_with_dataset(tasks, role):
            datasets[task.name] = {"dataset_id": data[role]}
        if datasets:
            task_params[role] = {"0": datasets}
    return task_params


def tasks_with_dataset(tasks: Sequence[Task], role: str) -> list[Task]:
    """Return the tasks for which a role names a dataset; the arbiter has none."""
    if role == "arbiter":
        return []
    return [task for task in tasks if task.reads_datasets and role in task.component.roles]


def _preset(task: Task, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the initial values of a task's required parameters, and False for each parameter that
    is `switched_off`.
    """
    form = task.component.form
    fields = form["properties"]
    reader = reader_of(task, tasks)
    values = {name: first_value(fields[name]) for name in form.get("required", ())}
    for name, field in fields.items():
        if switched_off(name, field, reader):
            values[name] = False
    return values


def _entry(task: Task) -> dict[str, Any]:
    """Return a task as the flow of a job describes it."""
    component = task.component
    inputs = []
    if component.input_table is not None and task.source:
        inputs.append({"type": component.input_table.category, "key": task.source})
    return {
        "name": task.name,
        "componentName": component.name,
        "provider": component.provider,
        "version": component.version,
        "input": inputs,
        "output": [{"type": port.category, "key": port.name} for port in component.outputs],
    }


def _role_problems(
    tasks: Sequence[Task],
    roles: Sequence[str],
    parties: Mapping[str, str],
    data: Mapping[str, str],
) -> Iterator[Problem]:
    """Yield the roles without a node or dataset, then names that no component has as a role."""
    for role in roles:
        if not parties.get(role):
            yield Problem(f"parties.{role}", "is missing: the id of the node that plays it")
        needs_dataset = bool(tasks_with_dataset(tasks, role))
        if needs_dataset and not data.get(role):
            yield Problem(f"data.{role}", "is missing: a dataset of that node, namespace#name")
    text = f"is not a role of these components; their roles are {', '.join(roles)}"
    for path, by_role in (("parties", parties), ("data", data)):
        for role in by_role.keys() - {*roles}:
            yield Problem(f"{path}.{role}", text, suggestion=near(role, roles))


def _parameter_problems(
    tasks: Sequence[Task],
    parameters: Mapping[str, Json],
) -> Iterator[Problem]:
    """Yield the names that are not tasks, or not parameters of the task's component.

    Then yield the required parameters without a value.
    """
    fields = {task.name: task.component.form["properties"] for task in tasks}
    for name, values in parameters.items():
        if name in fields:
            yield from _unknown_parameters(name, values, fields[name])
        else:
            text = f"is not a task; the tasks are {', '.join(fields)}"
            yield Problem(f"parameters.{name}", text, suggestion=near(name, fields))
    for task in tasks:
        yield from _missing_parameters(task, parameters.get(task.name, {}))


def _missing_parameters(task: Task, values: Json) -> Iterator[Problem]:
    """Yield a task's required parameters that have neither a value, a default nor choices."""
    form = task.component.form
    for parameter in form.get("required", ()):
        field = form["properties"][parameter]
        has_first_value = "default" in field or bool(field.get("enum"))
        if parameter not in values and not has_first_value:
            rule = "is missing: a required parameter without a default"
            yield Problem(f"parameters.{task.name}.{parameter}", rule)


def _unknown_parameters(task: str, values: Json, fields: Json) -> Iterator[Problem]:
    """Yield the names that are not parameters of a task's component."""
    for parameter in values.keys() - fields.keys():
        path = f"parameters.{task}.{parameter}"
        rule = "is not a parameter of this component"
        yield Problem(path, rule, suggestion=near(parameter, fields))
