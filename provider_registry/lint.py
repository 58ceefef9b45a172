"""Warnings about a description, field by field: unusual, but no reason to refuse it."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from provider_registry import schema
from provider_registry.model import Parameter, Problem, Validator, group_of, join, near, texts
from provider_registry.values import (
    TYPE_NAMES,
    ValueKind,
    full_match,
    kind_of,
    list_limited,
    number,
    reads_as,
)

ROLES = ("guest", "host", "arbiter", "local")
STORAGES = ("s3", "hdfs", "eggroll", "file", "localfile", "oss", "mysql", "hive")
FORMATS = ("csv", "pmml", "json", "yaml", "zip")
INPUTS = ("model", "dataset", "training_set", "test_set", "validate_set", "datasets", "cache")
OUTPUTS = ("model", "dataset", "training_set", "test_set", "report", "metric", "cache")
UI_PATTERNS = ("editeable", "editable", "readOnly", "hidden")
UI_TYPES = (
    "input",
    "textArea",
    "numberPicker",
    "checkbox",
    "redio",
    "radio",
    "switch",
    "select",
    "selectTree",
)

# Accepted spellings of types -> the standard's.
_STANDARD_TYPES = {
    "double": "float",
    "long": "int",
    "bool": "boolean",
    "str": "string",
    "text": "string",
}
_IMAGE_NAME_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_IMAGE_NAME = re.compile(
    r"(?:[\w.-]+(?::\d+)?/)?"
    rf"{_IMAGE_NAME_PART}(?:/{_IMAGE_NAME_PART})*"
    r"(?::\w[\w.-]{0,127})?"
    r"(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
MAX_LISTED_VALUES = 6  # in a warning

# Similarity of an unknown type to a known one above which it is a spelling mistake: int32 may be a
# vendor's own type, strng is none.
MISSPELLING_SIMILARITY = 0.8

_COMPONENT_FIELDS = schema.DESCRIPTION.fields()
_ITEM_FIELDS = {
    name: schema.DESCRIPTION.fields(name)
    for name in ("inputParam", "inputData", "outputData", "result")
}

# ------------------------------------------------------------ the shape of a description


def unknown_fields(
    item: Mapping[str, Any],
    known_fields: Sequence[str],
    path: str,
) -> Iterator[Problem]:
    """Yield the fields of an object that the format does not have, each with a similar known one."""
    for name in item:
        if name in known_fields:
            continue
        suggestion = near(name, known_fields)
        yield Problem(join(path, name), "is not a field of the format", item[name], suggestion)


def registration_differences(
    document: Mapping[str, Any],
    path: str,
    provider: str | None,
    version: str | None,
) -> Iterator[Problem]:
    """Yield the differences between a description's provider and version and the registration's."""
    for field, registered in (("provider", provider), ("version", version)):
        described = document.get(field)
        if described is None:
            yield Problem(join(path, field), "is missing")
        elif registered is not None and described != registered:
            rule = f"differs from the {field} it is registered under, {registered}"
            yield Problem(join(path, field), rule, described, registered)


def component_warnings(
    document: Mapping[str, Any],
    path: str,
    *,
    valid: bool = True,
) -> Iterator[Problem]:
    """Yield the warnings about everything but the parameters' values.

    Unless the description is ``valid`` by its schema, only those entries are checked that are.
    """
    yield from _missing_fields(document, path, ("title", "storageEngine", "result"))
    yield from unknown_fields(document, _COMPONENT_FIELDS, path)
    if valid:
        yield from _role_warnings(document["roleList"], join(path, "roleList"))
        yield from _storage_warnings(document, join(path, "storageEngine"))
    for field, known_fields in _ITEM_FIELDS.items():
        items = document.get(field)
        if not isinstance(items, list):
            continue
        for index, item in enumerate(items):
            if valid or schema.DESCRIPTION.accepts_entry(item, field):
                item_path = join(path, field, index)
                yield from unknown_fields(item, known_fields, item_path)
                yield from _ITEM_WARNINGS[field](item, item_path)


def _role_warnings(roles: Sequence[str], path: str) -> Iterator[Problem]:
    for index, role in enumerate(roles):
        role_path = join(path, index)
        names = [name.strip() for name in role.split(",")]
        if len(names) > 1:
            suggestion = json.dumps(names)[1:-1]
            yield Problem(role_path, "is one name with commas", role, suggestion)
        else:
            yield from unusual_value(role, ROLES, role_path, "is none of the usual {}")


def _storage_warnings(document: Mapping[str, Any], path: str) -> Iterator[Problem]:
    for index, storage in enumerate(texts(document.get("storageEngine"))):
        if storage not in STORAGES:
            rule = "is not a usual name of a storage"
            yield Problem(join(path, index), rule, storage, near(storage, STORAGES))


def image_name_problems(name: str, path: str) -> Iterator[Problem]:
    """Yield a problem for a name that no image can have in a registry or container engine."""
    if not name or _IMAGE_NAME.fullmatch(name):
        return
    rule = "is not a valid image name, such as registry.example.com/vendor/image:1.0.0 (lower case)"
    lower_case = name.lower()
    suggestion = lower_case if _IMAGE_NAME.fullmatch(lower_case) else ""
    yield Problem(path, rule, name, suggestion)


def misspelled_types(parameters: Any, path: str) -> Iterator[Problem]:
    """Yield misspelled types in a list of parameters that may break its schema."""
    if not isinstance(parameters, list):
        return
    for index, item in enumerate(parameters):
        if not isinstance(item, Mapping):
            continue
        type_name = item.get("type")
        if not isinstance(type_name, str) or not type_name.isalpha():
            continue
        if kind_of(type_name) is not ValueKind.OTHER:
            continue
        suggestion = near(type_name, TYPE_NAMES, MISSPELLING_SIMILARITY)
        if suggestion:
            yield Problem(join(path, index, "type"), "is not a known type", type_name, suggestion)


def unusual_value(
    value: str,
    usual: Sequence[str],
    path: str,
    rule: str = "is none of {}",
) -> Iterator[Problem]:
    """Yield a value that is not among the usual ones, with the most similar of them."""
    if value not in usual:
        names = list_limited(usual, MAX_LISTED_VALUES)
        yield Problem(path, rule.format(names), value, near(value, usual))


def _result_warnings(item: Mapping[str, Any], path: str) -> Iterator[Problem]:
    yield from _missing_fields(item, path, ("resultMessage",))
    code = item["resultCode"]
    if not isinstance(code, str):
        rule = "is a number where the format has text"
        yield Problem(join(path, "resultCode"), rule, code, f'"{code}"')


def _data_warnings(
    item: Mapping[str, Any],
    path: str,
    categories: Sequence[str],
) -> Iterator[Problem]:
    category = item["category"]
    rule = f"is none of {{}}; treated as {group_of(category)}"
    yield from unusual_value(category, categories, join(path, "category"), rule)
    formats_path = join(path, "dataFormat")
    formats = texts(item.get("dataFormat"))
    for name in formats:
        yield from unusual_value(name, FORMATS, formats_path)
    if not formats:
        yield Problem(formats_path, "is missing")


def _parameter_warnings(item: Mapping[str, Any], path: str) -> Iterator[Problem]:
    yield from _missing_fields(item, path, ("title",))
    for field, usual in (("UIPattern", UI_PATTERNS), ("UIType", UI_TYPES)):
        if item.get(field):
            yield from unusual_value(item[field], usual, join(path, field))
    yield from _type_warnings(item["type"], join(path, "type"))
    choices = item.get("bindingData")
    if isinstance(choices, list):
        yield from _choice_warnings(choices, join(path, "bindingData"))


def _type_warnings(type_name: str, path: str) -> Iterator[Problem]:
    if kind_of(type_name) is ValueKind.OTHER:
        rule = "is a type whose values are not checked"
        yield Problem(path, rule, type_name, near(type_name, TYPE_NAMES))
        return
    standard_name = _STANDARD_TYPES.get(type_name.strip().lower())
    if standard_name:
        rule = "is not a type of the standard; read here as its own is, perhaps not by others"
        yield Problem(path, rule, type_name, standard_name)


def _choice_warnings(choices: Sequence[Any], path: str) -> Iterator[Problem]:
    plain_values = [choice for choice in choices if not isinstance(choice, Mapping)]
    if plain_values:
        rule = "lists values where the format has objects of label and value"
        yield Problem(path, rule, plain_values)
    for index, choice in enumerate(choices):
        if isinstance(choice, Mapping):
            yield from unknown_fields(choice, ("label", "value"), join(path, index))
            yield from _missing_fields(choice, join(path, index), ("label",))


_ITEM_WARNINGS: Mapping[str, Callable[[Mapping[str, Any], str], Iterator[Problem]]] = {
    "inputParam": _parameter_warnings,
    "inputData": partial(_data_warnings, categories=INPUTS),
    "outputData": partial(_data_warnings, categories=OUTPUTS),
    "result": _result_warnings,
}


def _missing_fields(
    document: Mapping[str, Any],
    path: str,
    fields: Iterable[str],
) -> Iterator[Problem]:
    for field in fields:
        if document.get(field) is None:
            yield Problem(join(path, field), "is missing")
        elif document[field] == []:
            yield Problem(join(path, field), "is empty", [])


# ------------------------------------------------------------ contradictions

# Choices of every parameter of a component by name; None where any value is allowed.
Choices = Mapping[str, frozenset[str] | None]


def contradictions(parameters: Sequence[Parameter], path: str) -> Iterator[Problem]:
    """Yield the contradictions within and between the parameters of a component."""
    choices: dict[str, frozenset[str] | None] = {}
    for parameter in parameters:
        binding = parameter.binding
        choices[parameter.name] = None if binding is None else frozenset(binding)
    for index, parameter in enumerate(parameters):
        parameter_path = join(path, index)
        yield from parameter_contradictions(parameter, parameter_path)
        for k, condition in enumerate(parameter.depends_on):
            condition_path = join(parameter_path, "dependsOn", k)
            yield from _condition_problems(parameter.name, condition, choices, condition_path)


def parameter_contradictions(parameter: Parameter, path: str) -> Iterator[Problem]:
    """Yield the contradictions between default, choices, validator and type of one parameter."""
    yield from _default_contradictions(parameter, join(path, "defaultValue"))
    yield from _binding_contradictions(parameter, join(path, "bindingData"))
    if parameter.default and parameter.binding:
        yield from unusual_value(parameter.default, parameter.binding, join(path, "defaultValue"))


def _default_contradictions(parameter: Parameter, path: str) -> Iterator[Problem]:
    default = parameter.default
    if not default:
        return
    if not reads_as(kind_of(parameter.type), default):
        yield Problem(path, f"cannot be read as {parameter.type}", default)
    validator = parameter.validator
    if validator is None:
        return
    if _is_outside(validator, default):
        yield Problem(path, f"lies outside {validator.text}", default)
    if validator.pattern is not None and full_match(validator.pattern, default) is False:
        yield Problem(path, f"does not match {validator.text}", default)


def _binding_contradictions(parameter: Parameter, path: str) -> Iterator[Problem]:
    choices = parameter.binding or ()
    kind = kind_of(parameter.type)
    unreadable = [choice for choice in choices if choice and not reads_as(kind, choice)]
    if unreadable:
        names = list_limited(unreadable, MAX_LISTED_VALUES)
        rule = f"lists values that are not of type {parameter.type}: {names}"
        yield Problem(path, rule, unreadable)
    validator = parameter.validator
    if validator is None:
        return
    outside = [choice for choice in choices if _is_outside(validator, choice)]
    if outside:
        names = list_limited(outside, MAX_LISTED_VALUES)
        yield Problem(path, f"lists values outside {validator.text}: {names}", outside)


def _is_outside(validator: Validator, text: str) -> bool:
    value = number(text)
    return value is not None and not validator.in_range(value)


def _condition_problems(
    parameter: str,
    condition: str,
    choices: Choices,
    path: str,
) -> Iterator[Problem]:
    """Yield a condition that names an unknown parameter or value, or the parameter itself."""
    name, value = condition, ""
    if condition not in choices:
        name, _, value = condition.partition(".")
    if name not in choices:
        suggestion = near(name, choices)
        if suggestion and value:
            suggestion += f".{value}"
        yield Problem(path, "names a parameter that is not described", condition, suggestion)
        return
    if name == parameter:
        yield Problem(path, "depends on the parameter itself", condition)
        return
    values = choices[name]
    if value and values is not None and value not in values:
        suggestion = ""
        similar = near(value, values)
        if similar:
            suggestion = f"{name}.{similar}"
        yield Problem(path, f"names a value that {name} does not list", condition, suggestion)
