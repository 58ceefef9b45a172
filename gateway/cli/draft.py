"""``bfia-gateway job draft``: a job's file from the descriptions of its components, to be filled in."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_BAD_INPUT,
    CallFailed,
    Config,
    Url,
    reporting,
    settings_of,
)
from gateway.cli.client import components as component_names
from gateway.cli.console import say
from gateway.cli.providers import allowed, chosen, components_of

if TYPE_CHECKING:
    from provider_registry.model import Component

_ORDER = ("guest", "host", "arbiter")
_LONGEST = 200
"""signs of a list of choices, or of a description"""
_WORD = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
_NOT_TEXT = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
"""words that YAML reads as something else"""
_LEAVES_COLUMNS_OUT = ("only_output_key",)
"""switches in descriptions, the standard's sample and FATE's among them, that make a table of ids alone"""


def add(commands: typer.Typer) -> None:
    """Add the command to those of jobs."""
    commands.command("draft")(draft)


def draft(
    tasks: Annotated[
        list[str],
        typer.Argument(
            help="PROVIDER/COMPONENT, in their order; each reads what those before it wrote.",
            autocompletion=component_names,
        ),
    ],
    party: Annotated[
        list[str] | None, typer.Option(help="ROLE=NODE; may be repeated. Default: this node plays every role.")
    ] = None,
    data: Annotated[list[str] | None, typer.Option(help="ROLE=DATASET; may be repeated.")] = None,
    flow: Annotated[str, typer.Option(help="The flow's name.")] = "draft",
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
) -> None:
    """Print a job of these components; every parameter is a comment that tells what it is for and its default.

    Fill it in, ask `job plan` about it, then hand it in by `job submit`. A file stands for a provider as well.

    Example: bfia-gateway job draft reference/Intersection reference/HeteroLR --data guest=bank#customers > job.yml
    """
    with reporting():
        chain = [_component(task, config, url) for task in tasks]
        roles = _roles(chain)
        datasets = _pairs(data or [], roles, "--data ROLE=DATASET")
        nodes = _pairs(party or [], roles, "--party ROLE=NODE")
        if missing := [role for role in roles if role not in nodes]:
            if url:
                text = f"say which node plays: {', '.join(f'--party {role}=NODE' for role in missing)}"
                raise CallFailed(text, EXIT_BAD_INPUT, "INVALID")
            nodes |= dict.fromkeys(missing, settings_of(config).node.id)
        say(drafted(chain, {role: nodes[role] for role in roles}, datasets, flow), nl=False)


def _component(task: str, config: Path, url: str) -> "Component":
    provider, _, name = task.rpartition("/")
    if not provider or not name:
        raise CallFailed(f"{task!r} must read PROVIDER/COMPONENT, such as reference/HeteroLR", EXIT_BAD_INPUT)
    return chosen(components_of(provider, config, url), name, provider)


def _roles(components: "Sequence[Component]") -> list[str]:
    found = dict.fromkeys(role for c in components for role in c.roles)
    return sorted(found, key=lambda role: _ORDER.index(role) if role in _ORDER else len(_ORDER))


def _pairs(given: Sequence[str], roles: Sequence[str], form: str) -> dict[str, str]:
    made = {}
    for text in given:
        role, equals, value = text.partition("=")
        if not equals or not value or role not in roles:
            raise CallFailed(f"{text!r} must read {form}; roles are {', '.join(roles)}", EXIT_BAD_INPUT)
        made[role] = value
    return made


@dataclass(frozen=True)
class _Task:
    name: str
    component: "Component"
    source: str
    """``task.output`` of the table that it reads; empty where it reads the parties' own"""

    @property
    def own_data(self) -> bool:
        return not self.source and any(i.group == "data" for i in self.component.inputs)


def drafted(
    components: "Sequence[Component]", nodes: Mapping[str, str], datasets: Mapping[str, str], flow: str
) -> str:
    """Return a job as YAML. ``nodes`` is who plays each role, ``datasets`` what a role's first task reads."""
    tasks = _chained(components)
    first = next(iter(nodes))
    lines = [
        '# What each component can be told stands below task_params: take the "# " away before what you set.',
        "# Then: bfia-gateway job plan FILE, and bfia-gateway job submit FILE --watch",
        f"flow_id: {_yaml(flow)}",
        "dag:",
        '  version: "2.0"',
        "  components:",
        *(line for task in tasks for line in _in_dag(task)),
        "config:",
        '  version: "2.0.0"',
        f"  initiator: {{role: {_yaml(first)}, node_id: {_yaml(nodes[first])}}}",
        "  role:",
        *(f"    {_yaml(role)}: [{_yaml(node)}]" for role, node in nodes.items()),
        "  job_params:",
        "    common: {sync_type: callback}",
        "  task_params:",
        "    common:  # what all parties are told",
        *(line for task in tasks for line in _told_all(task, _reader(task, tasks))),
    ]
    for role in nodes:
        reads = [task for task in tasks if task.own_data and role in task.component.roles and role != "arbiter"]
        if reads:
            lines += [f"    {_yaml(role)}:  # what only the node of this role is told", '      "0":']
        for task in reads:
            said = _yaml(datasets.get(role, "namespace#name"))
            hint = "" if role in datasets else "  # change this: a dataset there"
            lines.append(f"        {_yaml(task.name)}: {{dataset_id: {said}}}{hint}")
    return "\n".join(lines) + "\n"


def _chained(components: "Sequence[Component]") -> list[_Task]:
    """Name the tasks, and let each read the newest table that one before it writes."""
    tasks: list[_Task] = []
    table = ""
    for component in components:
        name = re.sub(r"[^\w-]", "_", component.name).lower()
        taken = {task.name for task in tasks}
        name = next(n for n in (name, *(f"{name}_{i}" for i in range(2, len(components) + 2))) if n not in taken)
        reads = any(i.group == "data" for i in component.inputs)
        tasks.append(_Task(name, component, table if reads else ""))
        written = next((o.name for o in component.outputs if o.group == "data"), "")
        table = f"{name}.{written}" if written else table
    return tasks


def _in_dag(task: _Task) -> Iterator[str]:
    component = task.component
    yield f"    - name: {_yaml(task.name)}"
    yield f"      componentName: {_yaml(component.name)}"
    yield f"      provider: {_yaml(component.provider)}"
    yield f"      version: {_yaml(component.version)}"
    tables = [i for i in component.inputs if i.group == "data"]
    if task.source:
        yield "      input:"
        yield f"        - {{type: {_yaml(tables[0].category)}, key: {_yaml(task.source)}}}"
    else:
        yield "      input: []"
    for one in component.inputs:
        if one not in tables[:1]:
            more = f"{{type: {_line(one.category)}, key: <task>.<output>}}"
            yield f"        # it can read {_line(one.name)} as well: - {more}"
    yield "      output:" if component.outputs else "      output: []"
    for out in component.outputs:
        yield f"        - {{type: {_yaml(out.category)}, key: {_yaml(out.name)}}}"


def _reader(task: _Task, tasks: Sequence[_Task]) -> str:
    """Return the first task that reads this one's table; empty where none does."""
    return next((later.name for later in tasks if later.source.partition(".")[0] == task.name), "")


def _told_all(task: _Task, reader: str) -> Iterator[str]:
    """Write parameters: what is needed, and the switch that would keep columns from a task that reads them."""
    from provider_registry.forms import form

    schema = form(task.component)
    needed = schema.get("required", ())
    yield f"      {_yaml(task.name)}: {{"
    for name, field in schema["properties"].items():
        yield f"        # {_line(field['title'])} ({_about(field)})"
        if field.get("description", field["title"]) != field["title"]:
            yield f"        #   {_line(field['description'])[:_LONGEST]}"
        if name in needed:
            value = field["default"] if "default" in field else next(iter(field.get("enum", ())), None)
            yield f"        {_yaml(name)}: {_yaml(value)},  # needed"
        elif reader and name in _LEAVES_COLUMNS_OUT and field.get("default") is not False:
            why = f"{_line(reader)} reads all columns of this table, not the ids alone"
            yield f"        {_yaml(name)}: false,  # {why}"
        else:
            yield f"        # {_yaml(name)}: {_yaml(field.get('default'))},"
    yield "      }"


def _about(field: Mapping[str, Any]) -> str:
    """Say what a parameter may be, and when it means anything."""
    choices = _line(allowed(field))[:_LONGEST]
    said = [field["x-bfia"]["type"], f"one of {choices}" if choices and "enum" in field else choices]
    conditions = field["x-bfia"].get("dependsOn", ())
    said.append(f"goes with {' or '.join(conditions)}" if conditions else "")
    return _line("; ".join(filter(None, said)))


def _line(text: str) -> str:
    """Keep a vendor's text in its line of comment."""
    return "".join(sign if sign.isprintable() else "?" for sign in " ".join(text.split()))


def _yaml(value: Any) -> str:
    """Return a value as YAML in one line; plain words stand without quotes."""
    if isinstance(value, str) and _WORD.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    if isinstance(value, float) and "e" in (text := repr(value)) and "." not in text:
        return text.replace("e", ".0e")  # else YAML reads it as text
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)
