"""Builds the JSON Schema of a component's parameters, for forms and for checking their values.

Everything in the schema comes from the description. Values that the schema accepts pass
`values.check` without a warning, unless they fail a check that the schema leaves out: an expression
that is not portable or not for text, or a range for text. Hints that JSON Schema cannot express are
in ``x-bfia``.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from provider_registry import description
from provider_registry.model import Component, Parameter, Validator, document_problem
from provider_registry.values import ValueKind, json_of, kind_of, number, reads_as

DIALECT = "https://json-schema.org/draft/2020-12/schema"
# The variable with a parameter's value has this prefix, followed by the parameter's name.
VARIABLE_PREFIX = "runtime.component.parameter."
LANGUAGES = ("en", "zh")  # that texts of a description may have beside their own, as in title_en
ADVANCED = "高级分组-默认不显示"  # the format's group that a form keeps folded

# Expressions that mean the same to every program and match quickly: no groups, at most two
# repetitions. A fixed count, such as {3}, does not count as a repetition.
_UNREPEATED = r"(?:[^(\\*+?{]|\\[^A-Za-z0-9]|\\[dDwWsS]|\{[0-9]{1,3}\})*"
_REPETITION = r"(?:[*+?]|\{[0-9,]{1,7}\})"
_PORTABLE = re.compile(f"{_UNREPEATED}(?:{_REPETITION}{_UNREPEATED}){{0,2}}")

_RANGED_KINDS = (ValueKind.INTEGER, ValueKind.NUMBER, ValueKind.OTHER)
_FIRST_INEXACT = 1e15  # floats from here on are not shown as whole numbers


def form(component: Component) -> dict[str, Any]:
    """Return the JSON Schema of a component's parameters, in the order of the description.

    The schema is an object with one property per parameter; its ``x-bfia`` names the component.
    """
    schema: dict[str, Any] = {
        "$schema": DIALECT,
        "title": component.title or component.name,
        "type": "object",
        "properties": _properties(component),
    }
    if component.description:
        schema["description"] = component.description
    schema |= _requirements(component.parameters)
    schema["x-bfia"] = {
        "provider": component.provider,
        "version": component.version,
        "componentName": component.name,
        "roleList": list(component.roles),
    }
    return schema


def _properties(component: Component) -> dict[str, Any]:
    """Return the schema of each parameter by its name.

    The labels of choices come from the document, since a `Parameter` has the bare values only.
    """
    items = {item["name"]: item for item in component.document["inputParam"]}
    properties = {}
    for parameter in component.parameters:
        item = items[parameter.name]
        labels = description.labels(item.get("bindingData"))
        schema = _parameter_schema(parameter, labels)
        translations = _translations(item)
        if translations:
            schema["x-bfia"]["translations"] = translations
        properties[parameter.name] = schema
    return properties


def _translations(item: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a parameter's texts in the languages that its description names, by language.

    Each language has ``title``, ``description`` and ``labels`` (by the choice), as far as they
    exist.
    """
    translations = {}
    for language in LANGUAGES:
        texts: dict[str, Any] = {}
        for field in ("title", "description"):
            text = item.get(f"{field}_{language}")
            if text:
                texts[field] = text
        labels = description.labels(item.get("bindingData"), language)
        if labels:
            texts["labels"] = labels
        if texts:
            translations[language] = texts
    return translations


# ------------------------------------------------------------ one parameter


def _parameter_schema(
    parameter: Parameter,
    labels: Mapping[str, str],
) -> dict[str, Any]:
    """Return the schema of one parameter; ``labels`` has the labels of its choices, if any."""
    kind = kind_of(parameter.type)
    schema: dict[str, Any] = {"title": parameter.title or parameter.name}
    if parameter.description:
        schema["description"] = parameter.description
    schema |= _accepted_values(parameter, kind)
    if parameter.default:
        schema["default"] = _value(kind, parameter.default)
    if parameter.ui_pattern == "readOnly":
        schema["readOnly"] = True
    schema["x-bfia"] = _hints(parameter, labels)
    return schema


def _accepted_values(
    parameter: Parameter,
    kind: ValueKind,
) -> dict[str, Any]:
    """Return the keywords that restrict the value: type, choices, range and expression.

    ``kind`` is that of the declared type.
    """
    schema: dict[str, Any] = {}
    if kind is not ValueKind.OTHER:
        schema["type"] = str(kind)
    if parameter.binding is None:
        return schema | _validator_keywords(parameter.validator, kind)
    return _choice_keywords(parameter.binding, kind, schema)


def _choice_keywords(
    choices: Sequence[str], kind: ValueKind, type_keyword: dict[str, Any]
) -> dict[str, Any]:
    """Return the keywords for a parameter with choices.

    If some choices are not of the declared type, the type is left out. A parameter of type list
    keeps its type in that case, and the choices are those for the elements of the list.
    ``type_keyword`` is empty for an unknown type.
    """
    choices_fit = all(reads_as(kind, choice) for choice in choices)
    if kind is ValueKind.LIST and not choices_fit:
        return type_keyword | {"items": {"enum": _elements(choices)}}
    enum = {"enum": _unique(_value(kind, choice) for choice in choices)}
    if choices_fit:
        return type_keyword | enum
    return enum


def _elements(choices: Iterable[str]) -> list[Any]:
    """Return the choices for a list's elements: each as text, and as a number if it is one."""
    elements: list[Any] = []
    for choice in choices:
        elements += [choice, _number_or_text(choice)]
    return _unique(elements)


def _validator_keywords(
    validator: Validator,
    kind: ValueKind,
) -> dict[str, Any]:
    """Return the keywords for a parameter's check.

    Empty for a check that any value passes, and for one that a schema cannot express: a range for
    text, an expression for anything but text, or an expression that other programs may match
    differently or slowly.
    """
    if validator.pattern is not None:
        return _pattern_keyword(validator.pattern, kind)
    if kind not in _RANGED_KINDS:
        return {}
    return _range_keywords(validator)


def _pattern_keyword(
    pattern: str,
    kind: ValueKind,
) -> dict[str, Any]:
    """Return the keyword for an expression, which must match the whole value.

    Empty for an expression that is not portable, and for a parameter that is not text.
    """
    is_portable = _PORTABLE.fullmatch(pattern) is not None
    if kind is not ValueKind.TEXT or not is_portable:
        return {}
    return {"pattern": f"^(?:{pattern})$"}


def _range_keywords(validator: Validator) -> dict[str, Any]:
    """Return the keywords for the bounds that a range has.

    Empty for a range without bounds.
    """
    lower = "exclusiveMinimum" if validator.lower_open else "minimum"
    upper = "exclusiveMaximum" if validator.upper_open else "maximum"
    bounds = {
        lower: validator.lower,
        upper: validator.upper,
    }
    return {
        keyword: _json_number(bound) for keyword, bound in bounds.items() if math.isfinite(bound)
    }


def _hints(
    parameter: Parameter,
    labels: Mapping[str, str],
) -> dict[str, Any]:
    """Return how a form shows a parameter, and the variable with its value in the container.

    ``labels`` has labels by the choice; those equal to their choice are left out of the hints.
    """
    hints = {
        "variable": VARIABLE_PREFIX + parameter.name,
        "type": parameter.type,
        "widget": parameter.ui_type,
        "pattern": parameter.ui_pattern,
        "groups": list(parameter.groups),
        "advanced": ADVANCED in parameter.groups,
    }
    informative_labels = {choice: label for choice, label in labels.items() if label != choice}
    if parameter.depends_on:
        hints["dependsOn"] = list(parameter.depends_on)
    if informative_labels:
        hints["labels"] = informative_labels
    if parameter.binding_function:
        hints["choicesFrom"] = parameter.binding_function
    if parameter.validator.text:
        hints["validator"] = parameter.validator.text
    return hints


# ------------------------------------------------------------ which parameters are required


def _requirements(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Return the keywords for the parameters that a job must give.

    ``required`` lists the parameters that are always shown, ``allOf`` has an ``if`` for each
    parameter that is shown on a condition. Either is left out if it would be empty.
    """
    conditions = _Conditions(parameters)
    always = []
    conditional = []
    for parameter in parameters:
        if parameter.optional:
            continue
        alternatives = conditions.alternatives(parameter)
        if alternatives:
            then = {"required": [parameter.name]}
            conditional.append({"if": {"anyOf": alternatives}, "then": then})
        else:
            always.append(parameter.name)
    schema: dict[str, Any] = {}
    if always:
        schema["required"] = always
    if conditional:
        schema["allOf"] = conditional
    return schema


class _Conditions:
    """Translates ``dependsOn`` of a component's parameters into schemas."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        """Index the parameters, and the spellings of their choices, by name."""
        self._parameters = {parameter.name: parameter for parameter in parameters}
        # (name of a parameter, its choice in lower case) -> the spellings of the choice
        self._spellings: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for parameter in parameters:
            for choice in parameter.binding or ():
                self._spellings[parameter.name, choice.lower()].append(choice)

    def alternatives(
        self,
        parameter: Parameter,
    ) -> list[dict[str, Any]]:
        """Return schemas for a parameter's conditions; at least one must hold for it to be shown.

        Empty if the parameter is always shown. Conditions are read as in `values.check`: one on an
        unknown parameter always holds.
        """
        schemas: list[dict[str, Any]] = []
        for condition in parameter.depends_on:
            name, _, expected = condition.partition(".")
            if condition in self._parameters:
                schemas.append({"required": [condition]})
            elif name in self._parameters:
                schemas.append(self._has_value(self._parameters[name], expected))
            else:
                return []  # this condition always holds, whatever the others say
        return schemas

    def _has_value(
        self,
        parameter: Parameter,
        expected: str,
    ) -> dict[str, Any]:
        """Return the schema that holds while a parameter has the expected value.

        Upper and lower case do not matter, and a default counts as the value.
        """
        kind = kind_of(parameter.type)
        spellings = [*self._spellings[parameter.name, expected.lower()], expected]
        values: list[Any] = []
        for spelling in spellings:
            values += [_value(kind, spelling), spelling]
        schema: dict[str, Any] = {"properties": {parameter.name: {"enum": _unique(values)}}}
        default = parameter.default or ""
        # A schema without ``required`` also holds while the parameter has no value.
        if default.lower() != expected.lower():
            schema["required"] = [parameter.name]
        return schema


# ------------------------------------------------------------ JSON values


def _value(kind: ValueKind, text: str) -> Any:
    """Return the JSON value of a kind that a text spells; the text itself if it spells none."""
    parse = _PARSERS.get(kind)
    if parse is None or not reads_as(kind, text):
        return text
    return parse(text)


def _boolean(text: str) -> bool:
    """Return the boolean that a text spells in upper or lower case."""
    return text.strip().lower() == "true"


def _number_or_text(text: str) -> Any:
    """Return the number that a text spells.

    Returns the text itself if it spells no number, or one that JSON does not have, such as inf.
    """
    as_number = number(text)
    if as_number is None:
        return text
    return _json_number(as_number)


def _structure(text: str) -> Any:
    """Return the object or list that a text spells.

    Returns the text itself if the value is too large or nested too deeply.
    """
    value = json_of(text)
    if document_problem(value) is not None:
        return text
    return value


# Kind -> the function that reads its values from text. Values of the other kinds stay text.
_PARSERS: Mapping[ValueKind, Callable[[str], Any]] = {
    ValueKind.BOOLEAN: _boolean,
    ValueKind.INTEGER: _number_or_text,
    ValueKind.NUMBER: _number_or_text,
    ValueKind.OBJECT: _structure,
    ValueKind.LIST: _structure,
}


def _json_number(value: float) -> int | float:
    """Return a number as JSON shows it best: without a fraction if it is a whole number.

    Whole numbers from `_FIRST_INEXACT` on stay floats: their last digits would be made up.
    """
    if value.is_integer() and abs(value) < _FIRST_INEXACT:
        return int(value)
    return value


def _unique(values: Iterable[Any]) -> list[Any]:
    """Return the values without repeats, which JSON Schema forbids in an ``enum``.

    Values of different types are different: ``true`` repeats neither 1 nor "true".
    """
    by_identity = {}
    for value in values:
        comparable = value
        if isinstance(value, (dict, list)):
            comparable = json.dumps(value, sort_keys=True)
        by_identity[type(value), comparable] = value
    return list(by_identity.values())
