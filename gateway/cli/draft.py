"""``bfia-gateway job draft``: writes a job's file from the descriptions of its components."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bfia_gateway_client.drafting import (
    Component,
    Port,
    Task,
    chained,
    first_value,
    reader_of,
    roles_of,
    switched_off,
    tasks_with_dataset,
)
from gateway.cli import options, vendor_texts
from gateway.cli.client import DEFAULT_CONFIG, EXIT_BAD_INPUT, CallFailed, settings_of
from gateway.cli.command import command
from gateway.cli.jobs import commands
from gateway.cli.language import t
from gateway.cli.output import say
from gateway.cli.providers import allowed, component_of

_LONGEST_COMMENT = 200  # characters of a list of choices, or of a description, in a comment
_EXPONENT_WITHOUT_POINT = re.compile(r"-?\d+e")  # such as 1e-05, which YAML reads as text
_PLAIN_WORD = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
# Words that YAML does not read as text.
_NOT_TEXT = (
    "true",
    "false",
    "yes",
    "no",
    "on",
    "off",
    "null",
    "y",
    "n",
)
_INTRODUCTION = (
    'The parameters of each component are below task_params: remove the "# " before those that '
    "you set."
)


@dataclass(frozen=True)
class _Draft:
    """The facts from which a job's file is written."""

    flow_id: str
    tasks: Sequence[Task]
    nodes: Mapping[str, str]  # by role; the first role is the initiator's
    open_roles: Sequence[str]  # without --party: the user has to replace the node in the file
    datasets: Mapping[str, str]  # by role: the dataset that its tasks read


@command(
    commands,
    "draft",
    "reference/Intersection reference/HeteroLR --data guest=bank#customers > job.yml",
)
def draft(
    tasks: Annotated[
        list[str],
        typer.Argument(
            help=(
                "PROVIDER/COMPONENT, in their order; each reads the newest table that a task "
                "before it writes."
            ),
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
    """Print a job of these components. Required parameters have a first value; the others are
    comments with their meaning and default.

    Fill it in, check it with `job plan`, then submit it with `job submit`. PROVIDER may also be the
    file of a registration.
    """
    components = [_component(task, config, url) for task in tasks]
    roles = roles_of(components)
    datasets = _values_by_role(data or [], roles, "--data ROLE=DATASET")
    nodes = _values_by_role(party or [], roles, "--party ROLE=NODE")
    unassigned = [role for role in roles if role not in nodes]
    if unassigned and url:  # the node's id comes from the configuration, which --url replaces
        parties = ", ".join(f"--party {role}=NODE" for role in unassigned)
        raise CallFailed(f"name the nodes: {parties}", EXIT_BAD_INPUT, "INVALID")
    if unassigned:
        nodes |= dict.fromkeys(unassigned, settings_of(config).node.id)
    job = _Draft(
        flow_id=flow,
        tasks=chained(components),
        nodes={role: nodes[role] for role in roles},
        # This node may play the first role, the initiator's.
        open_roles=[role for role in unassigned if role != roles[0]],
        datasets=datasets,
    )
    say("\n".join(_job_lines(job)) + "\n", nl=False)


def _component(task: str, config: Path, url: str) -> Component:
    """Return the component that the ``task`` PROVIDER/COMPONENT names. Raises `CallFailed`."""
    from provider_registry.forms import form

    provider, _, name = task.rpartition("/")
    if not provider or not name:
        text = f"{task!r} must read PROVIDER/COMPONENT, such as reference/HeteroLR"
        raise CallFailed(text, EXIT_BAD_INPUT)
    registered = component_of(provider, name, config, url)
    return Component(
        name=registered.name,
        provider=registered.provider,
        version=registered.version,
        roles=registered.roles,
        inputs=[Port(data.name, data.category) for data in registered.inputs],
        outputs=[Port(data.name, data.category) for data in registered.outputs],
        form=form(registered),
    )


def _values_by_role(
    pairs: Sequence[str],
    roles: Sequence[str],
    form: str,
) -> dict[str, str]:
    """Return the values of ROLE=VALUE options.

    Raises `CallFailed`, which shows the ``form`` of the option.
    """
    values = {}
    for text in pairs:
        role, _, value = text.partition("=")
        if not value or role not in roles:
            raise CallFailed(
                f"{text!r} must read {form}; roles are {', '.join(roles)}", EXIT_BAD_INPUT
            )
        if role in values:
            raise CallFailed(
                f"{text!r} names {role} again: a draft has one party of each role, add others to "
                "the file",
                EXIT_BAD_INPUT,
            )
        values[role] = value
    return values


# ---------------------------------------------------------------- the job's file


def _job_lines(job: _Draft) -> Iterator[str]:
    """Yield the lines of a job in YAML."""
    initiator = next(iter(job.nodes))
    yield f"# {t(_INTRODUCTION)}"
    yield f"# {t('Then: bfia-gateway job plan FILE, and bfia-gateway job submit FILE --watch')}"
    yield f"flow_id: {_yaml(job.flow_id)}"
    yield "dag:"
    yield '  version: "2.0"'
    yield "  components:"
    for task in job.tasks:
        yield from _dag_entry(task)
    yield "config:"
    yield '  version: "2.0.0"'
    yield f"  initiator: {{role: {_yaml(initiator)}, node_id: {_yaml(job.nodes[initiator])}}}"
    yield "  role:"
    for role, node in job.nodes.items():
        hint = ""
        if role in job.open_roles:
            hint = f"  # {t('change this: the node of this role')}"
        yield f"    {_yaml(role)}: [{_yaml(node)}]{hint}"
    yield "  job_params:"
    yield "    common: {sync_type: callback}"
    yield "  task_params:"
    yield f"    common:  # {t('for all parties')}"
    for task in job.tasks:
        yield from _parameters(task, job.tasks)
    for role in job.nodes:
        yield from _datasets(job, role)


def _datasets(job: _Draft, role: str) -> Iterator[str]:
    """Yield the part of the parameters that names the dataset of each task at a role's node."""
    readers = tasks_with_dataset(job.tasks, role)
    if not readers:
        return
    yield f"    {_yaml(role)}:  # {t('for the node of this role alone')}"
    yield '      "0":'
    dataset = _yaml(job.datasets.get(role, "namespace#name"))
    hint = ""
    if role not in job.datasets:
        hint = f"  # {t('change this: a dataset there')}"
    for task in readers:
        yield f"        {_yaml(task.name)}: {{dataset_id: {dataset}}}{hint}"


def _dag_entry(task: Task) -> Iterator[str]:
    """Yield a task of the DAG: component, inputs, outputs; further possible inputs as comments."""
    component = task.component
    yield f"    - name: {_yaml(task.name)}"
    yield f"      componentName: {_yaml(component.name)}"
    yield f"      provider: {_yaml(component.provider)}"
    yield f"      version: {_yaml(component.version)}"
    # In brackets, so that the list stays valid without an input and with each comment turned on.
    yield "      input: [" if component.inputs else "      input: []"
    table = component.input_table
    if task.source and table:
        yield f"        {{type: {_yaml(table.category)}, key: {_yaml(task.source)}}},"
    for port in component.inputs:
        if port is not table:
            yield f"        # {t(f'it can read {_comment(port.name)} as well')}:"
            yield f"        # {{type: {_yaml(port.category)}, key: <task>.<output>}},"
    if component.inputs:
        yield "      ]"
    yield "      output:" if component.outputs else "      output: []"
    for port in component.outputs:
        yield f"        - {{type: {_yaml(port.category)}, key: {_yaml(port.name)}}}"


def _parameters(task: Task, tasks: Sequence[Task]) -> Iterator[str]:
    """Yield a task's parameters: as comments, except the required ones.

    A switch that would hide columns from a later task is set to false.
    """
    schema = task.component.form
    required = schema.get("required", ())
    reader = reader_of(task, tasks)
    yield f"      {_yaml(task.name)}: {{"
    for name, field in schema["properties"].items():
        title = vendor_texts.of_field(field, "title")
        description = vendor_texts.of_field(field, "description") or title
        yield f"        # {_comment(title)} ({_constraints(field)})"
        if description != title:
            yield f"        #   {_comment(description)[:_LONGEST_COMMENT]}"
        if name in required:
            yield f"        {_yaml(name)}: {_yaml(first_value(field))},  # {t('required')}"
        elif switched_off(name, field, reader):
            why = f"{_comment(reader)} reads all columns of this table, not the ids alone"
            yield f"        {_yaml(name)}: false,  # {t(why)}"
        else:
            yield f"        # {_yaml(name)}: {_yaml(field.get('default'))},"
    yield "      }"


def _constraints(field: Mapping[str, Any]) -> str:
    """Return a parameter's type, its allowed values, and the parameters that it depends on."""
    choices = _comment(allowed(field))[:_LONGEST_COMMENT]
    if choices and "enum" in field:
        choices = t(f"one of {choices}")
    dependencies = ""
    conditions = field["x-bfia"].get("dependsOn", ())
    if conditions:
        dependencies = t(f"goes with {' or '.join(conditions)}")
    texts = [field["x-bfia"]["type"], choices, dependencies]
    return _comment("; ".join(filter(None, texts)))


def _comment(text: str) -> str:
    """Return a vendor's text in one line, so that all of it stays in the comment."""
    line = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def _yaml(value: Any) -> str:
    """Return a value as YAML in one line; plain words without quotes."""
    if isinstance(value, str) and _is_plain(value):
        return value
    return _quoted_yaml(value)


def _quoted_yaml(value: Any) -> str:
    """Return a value as YAML in one line: JSON, except numbers that YAML would read as text."""
    if isinstance(value, list):
        items = ", ".join(map(_quoted_yaml, value))
        return f"[{items}]"
    if isinstance(value, dict):
        entries = [f"{_quoted_yaml(name)}: {_quoted_yaml(item)}" for name, item in value.items()]
        return f"{{{', '.join(entries)}}}"
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and _EXPONENT_WITHOUT_POINT.match(text):
        return text.replace("e", ".0e")
    if text.isprintable():
        return text
    return json.dumps(value)  # with escapes


def _is_plain(text: str) -> bool:
    """True if YAML reads a text without quotes as the same text."""
    return bool(_PLAIN_WORD.fullmatch(text)) and text.lower() not in _NOT_TEXT
