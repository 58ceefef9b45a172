"""The parameters of a component as a JSON Schema: what a form shows, and what an editor or a client checks.

Everything in it comes from the description. What it accepts passes `values.check` without a warning, except for
expressions that are not portable or not for text, and ranges for text. What JSON Schema cannot express is in
``x-bfia``.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from provider_registry import description
from provider_registry.model import Component, Parameter, unfit
from provider_registry.values import ValueKind, json_of, kind_of, number, reads_as

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PREFIX = "runtime.component.parameter."
"""of the variable in a container's environment that holds a parameter"""
ADVANCED = "高级分组-默认不显示"
"""the format's group that a form keeps folded"""

_ITEM = r"(?:[^(\\*+?{]|\\[^A-Za-z0-9]|\\[dDwWsS]|\{[0-9]{1,3}\})*"
_PORTABLE = re.compile(rf"{_ITEM}(?:(?:[*+?]|\{{[0-9,]{{1,7}}\}}){_ITEM}){{0,2}}")
"""expressions that mean the same to every program and are quick to match: no group, at most two repetitions"""


def form(component: Component) -> dict[str, Any]:
    """Return the schema of a component's parameters, in the order of the description."""
    declared = {p.name: p for p in component.parameters}
    labels = {
        item["name"]: description.labels(item.get("bindingData"))
        for item in component.document.get("inputParam") or ()
    }
    made: dict[str, Any] = {
        "$schema": DIALECT,
        "title": component.title or component.name,
        "type": "object",
        "properties": {name: _field(p, labels.get(name, {})) for name, p in declared.items()},
    }
    if component.description:
        made["description"] = component.description
    choices = {p.name: _by_small_letters(p.binding or ()) for p in component.parameters}
    shown_if = {
        p.name: _shown_if(p, declared, choices) for p in component.parameters if not p.optional
    }
    if always := [name for name, alternatives in shown_if.items() if not alternatives]:
        made["required"] = always
    if len(always) < len(shown_if):
        made["allOf"] = [
            {"if": {"anyOf": alternatives}, "then": {"required": [name]}}
            for name, alternatives in shown_if.items()
            if alternatives
        ]
    made["x-bfia"] = {
        "provider": component.provider,
        "version": component.version,
        "componentName": component.name,
        "roleList": list(component.roles),
    }
    return made


def _field(parameter: Parameter, labels: Mapping[str, str]) -> dict[str, Any]:
    kind = kind_of(parameter.type)
    made: dict[str, Any] = {"title": parameter.title or parameter.name}
    if parameter.description:
        made["description"] = parameter.description
    if kind is not ValueKind.OTHER:
        made["type"] = str(kind)
    if parameter.binding is None:
        made |= _bounds(parameter, kind)
    else:
        readable = all(reads_as(kind, text) for text in parameter.binding)
        if kind is ValueKind.LIST and not readable:
            made["items"] = {
                "enum": _once(v for text in parameter.binding for v in (text, *_as_number(text)))
            }
        else:
            made["enum"] = _once(_value(kind, text) for text in parameter.binding)
        if not readable and kind is not ValueKind.LIST:
            made.pop("type", None)  # the list says more than the type that it contradicts
    if parameter.default:
        made["default"] = _value(kind, parameter.default)
    if parameter.ui_pattern == "readOnly":
        made["readOnly"] = True
    made["x-bfia"] = _hints(parameter, labels)
    return made


def _bounds(parameter: Parameter, kind: ValueKind) -> dict[str, Any]:
    """Return the check of a parameter as far as a schema can make it, and anybody can make it quickly."""
    check = parameter.validator
    if check is None:
        return {}
    if check.pattern is not None:
        portable = kind is ValueKind.TEXT and _PORTABLE.fullmatch(check.pattern)
        return {"pattern": f"^(?:{check.pattern})$"} if portable else {}
    if kind not in (ValueKind.INTEGER, ValueKind.NUMBER, ValueKind.OTHER):
        return {}
    made = {}
    if check.lower is not None:
        made["exclusiveMinimum" if check.lower_open else "minimum"] = _short(check.lower)
    if check.upper is not None:
        made["exclusiveMaximum" if check.upper_open else "maximum"] = _short(check.upper)
    return made


def _hints(parameter: Parameter, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return what a form shows, and the variable that the container finds the value in."""
    check = parameter.validator
    sometimes = {
        "dependsOn": list(parameter.depends_on),
        "labels": {text: label for text, label in labels.items() if label != text},
        "choicesFrom": parameter.binding_function,
        "validator": check.text if check is not None else None,
    }
    return {
        "variable": PREFIX + parameter.name,
        "type": parameter.type,
        "widget": parameter.ui_type,
        "pattern": parameter.ui_pattern,
        "groups": list(parameter.groups),
        "advanced": ADVANCED in parameter.groups,
        **{name: value for name, value in sometimes.items() if value},
    }


def _shown_if(
    parameter: Parameter,
    declared: Mapping[str, Parameter],
    choices: Mapping[str, Mapping[str, list[str]]],
) -> Sequence[dict[str, Any]]:
    """Return when a parameter is shown, each alternative as a schema; none where it always is.

    Conditions are read as `values.check` does: one that names an unknown parameter holds.
    """
    found: list[dict[str, Any]] = []
    for text in parameter.depends_on:
        name, _, wanted = text.partition(".")
        if text in declared:
            found.append({"required": [text]})
        elif name not in declared:
            return []
        else:
            other, spelled = declared[name], choices[name].get(wanted.lower(), [])
            values = _once(
                v for one in (*spelled, wanted) for v in (_value(kind_of(other.type), one), one)
            )
            given = {} if (other.default or "").lower() == wanted.lower() else {"required": [name]}
            found.append({"properties": {name: {"enum": values}}, **given})
    return found


def _by_small_letters(choices: Iterable[str]) -> Mapping[str, list[str]]:
    made: dict[str, list[str]] = {}
    for choice in choices:
        made.setdefault(choice.lower(), []).append(choice)
    return made


def _value(kind: ValueKind, text: str) -> Any:
    """Return the value of a kind that a text spells; the text itself where it spells none."""
    if kind in (ValueKind.TEXT, ValueKind.OTHER) or not reads_as(kind, text):
        return text
    if kind is ValueKind.BOOLEAN:
        return text.strip().lower() == "true"
    if kind in (ValueKind.OBJECT, ValueKind.LIST):
        value = json_of(text)
        return text if unfit(value) else value
    return next(iter(_as_number(text)), text)


def _as_number(text: str) -> tuple[int | float, ...]:
    read = number(text)
    return () if read is None else (_short(read),)


def _short(value: float) -> int | float:
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _once(values: Iterable[Any]) -> list[Any]:
    """Leave out repeats, which a schema's list must not have; ``true`` repeats neither 1 nor its own text."""
    return list({(type(value), _key(value)): value for value in values}.values())


def _key(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, (dict, list)) else value
