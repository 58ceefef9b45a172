"""Jobs of components in a row: each reads what those before it wrote."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bfia_gateway_client.calls import near
from bfia_gateway_client.errors import Problem, invalid

ORDER = ("guest", "host", "arbiter")
_IDS_ALONE = ("only_output_key",)
"""switches in descriptions, the standard's sample and FATE's among them, that make a table of ids alone"""


def group_of(category: str) -> str:
    """Return which of data, model and metric a category, or a type in a flow, is a kind of."""
    lowered = category.lower()
    if any(word in lowered for word in ("data", "training_set", "test_set", "validate_set")):
        return "data"
    return "model" if "model" in lowered else "metric"


@dataclass(frozen=True)
class Port:
    """An input or output as a description has it."""

    name: str
    category: str

    @property
    def group(self) -> str:
        """Return which of data, model and metric it is."""
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
    form: Mapping[str, Any]


def of_description(
    provider: Mapping[str, Any],
    name: str,
    form: Mapping[str, Any],
) -> Component:
    """Return a component of a provider as a node shows that."""
    about = provider["components_description"][name]
    inputs, outputs = (
        tuple(Port(str(one["name"]), str(one["category"])) for one in about[kind])
        for kind in ("inputData", "outputData")
    )
    return Component(
        name, provider["name"], provider["version"], tuple(about["roleList"]), inputs, outputs, form
    )


@dataclass(frozen=True)
class Task:
    """A component in a flow. ``source``: the ``task.output`` that it reads; empty: the parties' own tables."""

    name: str
    component: Component
    source: str

    @property
    def reads_datasets(self) -> bool:
        """Whether its parties name a dataset for it."""
        return not self.source and any(i.group == "data" for i in self.component.inputs)


def chained(components: Sequence[Component]) -> list[Task]:
    """Name the tasks, and let each read the newest table that one before it writes."""
    tasks: list[Task] = []
    table = ""
    for component in components:
        name = base = re.sub(r"[^\w-]", "_", component.name).lower()
        number = 1
        while name in {task.name for task in tasks}:
            number += 1
            name = f"{base}_{number}"
        reads = any(i.group == "data" for i in component.inputs)
        tasks.append(Task(name, component, table if reads else ""))
        written = next((o.name for o in component.outputs if o.group == "data"), "")
        table = f"{name}.{written}" if written else table
    return tasks


def roles_of(components: Sequence[Component]) -> list[str]:
    """Return the roles of some components: guest, host, arbiter, then the others."""
    found = dict.fromkeys(role for component in components for role in component.roles)
    return sorted(found, key=lambda role: ORDER.index(role) if role in ORDER else len(ORDER))


def reader_of(task: Task, tasks: Sequence[Task]) -> str:
    """Return the name of the first task that reads a table of this one; empty where none does."""
    return next((later.name for later in tasks if later.source.partition(".")[0] == task.name), "")


def switched_off(
    name: str,
    field: Mapping[str, Any],
    reader: str,
) -> bool:
    """Say whether a parameter would keep columns from the task that reads the table."""
    return bool(reader) and name in _IDS_ALONE and field.get("default") is not False


def first_value(field: Mapping[str, Any]) -> Any:
    """Return what a required parameter begins with: its default, else its first choice, else None."""
    return field["default"] if "default" in field else next(iter(field.get("enum", ())), None)


def job(
    tasks: Sequence[Task],
    parties: Mapping[str, str],
    data: Mapping[str, str],
    parameters: Mapping[str, Mapping[str, Any]],
    flow: str,
) -> dict[str, Any]:
    """Return a job, ready to be submitted. Raises `Invalid` with everything that is missing or unknown."""
    components = [task.component for task in tasks]
    roles = roles_of(components)
    if problems := list(_problems(tasks, roles, parties, data, parameters)):
        raise invalid(*problems)
    common = {task.name: _preset(task, tasks) | {**parameters.get(task.name, {})} for task in tasks}
    own: dict[str, Any] = {}
    for role in roles:
        tables = {task.name: {"dataset_id": data[role]} for task in readers_of(tasks, role)}
        own |= {role: {"0": tables}} if tables else {}
    return {
        "flow_id": flow,
        "dag": {"version": "2.0", "components": [_entry(task) for task in tasks]},
        "config": {
            "version": "2.0.0",
            "initiator": {"role": roles[0], "node_id": parties[roles[0]]},
            "role": {role: [parties[role]] for role in roles},
            "job_params": {"common": {"sync_type": "callback"}},
            "task_params": {"common": common, **own},
        },
    }


def readers_of(tasks: Sequence[Task], role: str) -> list[Task]:
    """Return the tasks for which a role names a dataset."""
    return [
        t for t in tasks if t.reads_datasets and role in t.component.roles and role != "arbiter"
    ]


def _preset(task: Task, tasks: Sequence[Task]) -> dict[str, Any]:
    fields, reader = task.component.form["properties"], reader_of(task, tasks)
    required = {name: first_value(fields[name]) for name in task.component.form.get("required", ())}
    return required | {
        name: False for name, field in fields.items() if switched_off(name, field, reader)
    }


def _entry(task: Task) -> dict[str, Any]:
    one = task.component
    table = next((i for i in one.inputs if i.group == "data"), None)
    return {
        "name": task.name,
        "componentName": one.name,
        "provider": one.provider,
        "version": one.version,
        "input": [{"type": table.category, "key": task.source}] if table and task.source else [],
        "output": [{"type": out.category, "key": out.name} for out in one.outputs],
    }


def _problems(
    tasks: Sequence[Task],
    roles: Sequence[str],
    parties: Mapping[str, str],
    data: Mapping[str, str],
    parameters: Mapping[str, Mapping[str, Any]],
) -> Iterator[Problem]:
    for role in roles:
        if not parties.get(role):
            yield Problem(f"parties.{role}", "is missing: the id of the node that plays it")
        if readers_of(tasks, role) and not data.get(role):
            yield Problem(f"data.{role}", "is missing: a dataset of that node, namespace#name")
    for path, given in (("parties", parties), ("data", data)):
        for role in given.keys() - {*roles}:
            known = f"is not a role of these components; they are {', '.join(roles)}"
            yield Problem(f"{path}.{role}", known, None, near(role, roles))
    fields = {task.name: task.component.form["properties"] for task in tasks}
    for name, values in parameters.items():
        if name not in fields:
            text = f"is not a task; the tasks are {', '.join(fields)}"
            yield Problem(f"parameters.{name}", text, None, near(name, fields))
            continue
        for parameter in values.keys() - fields[name].keys():
            meant = near(parameter, fields[name])
            yield Problem(
                f"parameters.{name}.{parameter}",
                "is not a parameter of this component",
                None,
                meant,
            )
