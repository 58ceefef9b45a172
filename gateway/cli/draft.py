"""``bfia-gateway job draft``: a job's file from the descriptions of its components, to be filled in."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bfia_gateway_client.drafting import (
    Component,
    Port,
    Task,
    chained,
    first_value,
    reader_of,
    readers_of,
    roles_of,
    switched_off,
)
from gateway.cli import options
from gateway.cli.client import DEFAULT_CONFIG, EXIT_BAD_INPUT, CallFailed, settings_of
from gateway.cli.command import command, say
from gateway.cli.jobs import commands
from gateway.cli.language import t
from gateway.cli.providers import allowed, component_of

if TYPE_CHECKING:
    from provider_registry import model

_LONGEST = 200
"""characters of a list of choices, or of a description"""
_WORD = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
_NOT_TEXT = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
"""words that YAML does not read as text"""


@command(
    commands,
    "draft",
    "reference/Intersection reference/HeteroLR --data guest=bank#customers > job.yml",
)
def draft(
    tasks: Annotated[
        list[str],
        typer.Argument(
            help="PROVIDER/COMPONENT, in their order; each reads what those before it wrote.",
            autocompletion=options.components,
        ),
    ],
    party: Annotated[
        list[str] | None,
        typer.Option(help="ROLE=NODE; may be repeated. Default: this node plays every role."),
    ] = None,
    data: Annotated[list[str] | None, typer.Option(help="ROLE=DATASET; may be repeated.")] = None,
    flow: Annotated[str, typer.Option(help="The flow's name.")] = "draft",
    config: options.Config = DEFAULT_CONFIG,
    url: options.Url = "",
) -> None:
    """Print a job of these components; every parameter is a comment with its meaning and default.

    Fill it in, check it with `job plan`, then submit it with `job submit`. A file stands for a provider as well.
    """
    chain = []
    for task in tasks:
        provider, _, name = task.rpartition("/")
        if not provider or not name:
            text = f"{task!r} must read PROVIDER/COMPONENT, such as reference/HeteroLR"
            raise CallFailed(text, EXIT_BAD_INPUT)
        chain.append(_component(component_of(provider, name, config, url)))
    roles = roles_of(chain)
    datasets = _by_role(data or [], roles, "--data ROLE=DATASET")
    nodes = _by_role(party or [], roles, "--party ROLE=NODE")
    if missing := [role for role in roles if role not in nodes]:
        if url:
            text = f"name the nodes: {', '.join(f'--party {role}=NODE' for role in missing)}"
            raise CallFailed(text, EXIT_BAD_INPUT, "INVALID")
        nodes |= dict.fromkeys(missing, settings_of(config).node.id)
    open_ = [role for role in missing if role != roles[0]]
    say(_drafted(chain, {role: nodes[role] for role in roles}, datasets, flow, open_), nl=False)


def _component(one: "model.Component") -> Component:
    from provider_registry.forms import form

    inputs, outputs = (
        tuple(Port(i.name, i.category) for i in found) for found in (one.inputs, one.outputs)
    )
    return Component(one.name, one.provider, one.version, one.roles, inputs, outputs, form(one))


def _by_role(
    given: Sequence[str],
    roles: Sequence[str],
    form: str,
) -> dict[str, str]:
    made = {}
    for text in given:
        role, _, value = text.partition("=")
        if not value or role not in roles:
            raise CallFailed(
                f"{text!r} must read {form}; roles are {', '.join(roles)}", EXIT_BAD_INPUT
            )
        made[role] = value
    return made


_PARAMETERS = 'The parameters of each component are below task_params: remove the "# " before those that you set.'


def _drafted(
    components: Sequence[Component],
    nodes: Mapping[str, str],
    datasets: Mapping[str, str],
    flow: str,
    open_: Sequence[str],
) -> str:
    """Return a job as YAML. ``nodes`` is who plays each role, ``datasets`` what a role's first task reads.

    ``open_``: roles whose node is still to be named.
    """
    hint = f"  # {t('change this: the node of this role')}"
    tasks = chained(components)
    first = next(iter(nodes))
    lines = [
        f"# {t(_PARAMETERS)}",
        f"# {t('Then: bfia-gateway job plan FILE, and bfia-gateway job submit FILE --watch')}",
        f"flow_id: {_yaml(flow)}",
        "dag:",
        '  version: "2.0"',
        "  components:",
        *(line for task in tasks for line in _dag_entry(task)),
        "config:",
        '  version: "2.0.0"',
        f"  initiator: {{role: {_yaml(first)}, node_id: {_yaml(nodes[first])}}}",
        "  role:",
        *(
            f"    {_yaml(role)}: [{_yaml(node)}]{hint if role in open_ else ''}"
            for role, node in nodes.items()
        ),
        "  job_params:",
        "    common: {sync_type: callback}",
        "  task_params:",
        f"    common:  # {t('for all parties')}",
        *(line for task in tasks for line in _parameters(task, tasks)),
    ]
    for role in nodes:
        if readers := readers_of(tasks, role):
            lines += [f"    {_yaml(role)}:  # {t('for the node of this role alone')}", '      "0":']
        for task in readers:
            dataset = _yaml(datasets.get(role, "namespace#name"))
            hint = "" if role in datasets else f"  # {t('change this: a dataset there')}"
            lines.append(f"        {_yaml(task.name)}: {{dataset_id: {dataset}}}{hint}")
    return "\n".join(lines) + "\n"


def _dag_entry(task: Task) -> Iterator[str]:
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
            entry = f"{{type: {_comment(one.category)}, key: <task>.<output>}}"
            yield f"        # {t(f'it can read {_comment(one.name)} as well')}: - {entry}"
    yield "      output:" if component.outputs else "      output: []"
    for out in component.outputs:
        yield f"        - {{type: {_yaml(out.category)}, key: {_yaml(out.name)}}}"


def _parameters(task: Task, tasks: Sequence[Task]) -> Iterator[str]:
    """Yield parameters: what is required, and the switch that would keep columns from a task that reads them."""
    schema = task.component.form
    required = schema.get("required", ())
    reader = reader_of(task, tasks)
    yield f"      {_yaml(task.name)}: {{"
    for name, field in schema["properties"].items():
        yield f"        # {_comment(field['title'])} ({_about(field)})"
        if field.get("description", field["title"]) != field["title"]:
            yield f"        #   {_comment(field['description'])[:_LONGEST]}"
        if name in required:
            yield f"        {_yaml(name)}: {_yaml(first_value(field))},  # {t('required')}"
        elif switched_off(name, field, reader):
            why = f"{_comment(reader)} reads all columns of this table, not the ids alone"
            yield f"        {_yaml(name)}: false,  # {t(why)}"
        else:
            yield f"        # {_yaml(name)}: {_yaml(field.get('default'))},"
    yield "      }"


def _about(field: Mapping[str, Any]) -> str:
    """Return a parameter's type, its allowed values, and what it depends on."""
    choices = _comment(allowed(field))[:_LONGEST]
    conditions = field["x-bfia"].get("dependsOn", ())
    parts = [
        field["x-bfia"]["type"],
        t(f"one of {choices}") if choices and "enum" in field else choices,
    ]
    parts.append(t(f"goes with {' or '.join(conditions)}") if conditions else "")
    return _comment("; ".join(filter(None, parts)))


def _comment(text: str) -> str:
    """Keep a vendor's text within its line of comment."""
    return "".join(sign if sign.isprintable() else "?" for sign in " ".join(text.split()))


def _yaml(value: Any) -> str:
    """Return a value as YAML in one line; plain words without quotes."""
    if isinstance(value, str) and _WORD.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    if isinstance(value, float) and "e" in (text := repr(value)) and "." not in text:
        return text.replace("e", ".0e")  # else YAML reads it as text
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)
