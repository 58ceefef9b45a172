"""``bfia-gateway provider parameters``: what a job may tell a component, from its description."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gateway.cli.client import DEFAULT_CONFIG, AsJson, Config, Url, reporting, show, table
from gateway.cli.completing import providers
from gateway.cli.described import chosen, components_of


def add(commands: typer.Typer) -> None:
    """Add the command to ``provider``."""
    commands.command("parameters")(parameters)


def parameters(
    name: Annotated[
        str,
        typer.Argument(
            help="name:version@device, such as unionpay; or a registration's file.", autocompletion=providers
        ),
    ],
    component: Annotated[str, typer.Argument(help="Which of its components; default: the only one.")] = "",
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Show what a job may tell a component: kinds, defaults, allowed values. With --json as a JSON Schema.

    The schema is what a form or an editor works with; a node serves it, too. Of a file it is shown without a node.

    Example: bfia-gateway provider parameters unionpay HeteroLR

    Example: bfia-gateway provider parameters register.json HeteroLR --json > hetero_lr.schema.json
    """
    with reporting(as_json):
        from provider_registry.forms import form

        found = form(chosen(components_of(name, config, url), component, name))
        if as_json:
            show(found)
            return
        rows = [
            [name, _kind(field), _needed(name, found, field), _default(field), allowed(field), field["title"]]
            for name, field in found["properties"].items()
        ]
        said = found["x-bfia"]
        table(
            f"{said['componentName']} of {said['provider']} {said['version']}",
            ["parameter", "kind", "needed", "default", "allowed", "what it is"],
            rows,
        )


def allowed(field: Mapping[str, Any]) -> str:
    """Return in a line which values a field of a form may have; empty where any."""
    labels = field["x-bfia"].get("labels", {})
    if (values := field.get("enum", field.get("items", {}).get("enum"))) is not None:
        texts = [value if isinstance(value, str) else _json(value) for value in values]
        return ", ".join(f"{text} ({labels[text]})" if text in labels else text for text in texts)
    if validator := field["x-bfia"].get("validator"):
        return str(validator)
    source = field["x-bfia"].get("choicesFrom")
    return f"what {source}() offers" if source else ""


def _kind(field: Mapping[str, Any]) -> str:
    return str(field["x-bfia"]["type"])


def _needed(name: str, schema: Mapping[str, Any], field: Mapping[str, Any]) -> str:
    conditions = field["x-bfia"].get("dependsOn")
    if name in schema.get("required", ()):
        return "yes"
    if any(name in one["then"]["required"] for one in schema.get("allOf", ())):
        return f"where {' or '.join(conditions)}"
    return f"no; goes with {' or '.join(conditions)}" if conditions else "no"


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default", "")
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
