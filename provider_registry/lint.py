"""Warnings about a component's description: unusual fields and values, and contradictions.

Warnings refuse no registration. The misspelled types that `misspelled_types` yields do refuse it.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from provider_registry import schema
from provider_registry.model import Parameter, Problem, group_of, join, near, texts
from provider_registry.values import (
    TYPE_NAMES,
    ValueKind,
    full_match,
    kind_of,
    list_limited,
    number,
    reads_as,
)

# The usual values of a description's fields, from the standard and from published descriptions;
# ``editeable`` and ``redio`` are spelled as in the standard.
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
# An image's reference: registry, path in lower case, tag, digest.
_IMAGE_NAME_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_IMAGE_NAME = re.compile(
    r"(?:[\w.-]+(?::\d+)?/)?"
    rf"{_IMAGE_NAME_PART}(?:/{_IMAGE_NAME_PART})*"
    r"(?::\w[\w.-]{0,127})?"
    r"(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
MAX_LISTED_VALUES = 6  # values that a warning lists at most

# An unknown type with at least this similarity to a known one is taken for a spelling mistake:
# strng is one, int32 may be a vendor's own type.
MISSPELLING_SIMILARITY = 0.8

# The fields that the format has: of a component, and of the entries of each of its lists.
_COMPONENT_FIELDS = schema.DESCRIPTION.fields()
_ITEM_FIELDS = {
    name: schema.DESCRIPTION.fields(name)
    for name in ("inputParam", "inputData", "outputData", "result")
}

_CHOICE_FIELDS = schema.DESCRIPTION.fields("inputParam", "bindingData")

# ------------------------------------------------------------ the shape of a description


def unknown_fields(
    item: Mapping[str, Any],
    known_fields: Sequence[str],
    path: str,
) -> Iterator[Problem]:
    """Yield a warning for each field of an object that the format does not have.

    It suggests the most similar of the format's fields, if any is similar.
    """
    for name in item:
        if name in known_fields:
            continue
        suggestion = near(name, known_fields)
        yield Problem(
            join(path, name),
            "is not a field of the format",
            item[name],
            suggestion,
        )


def registration_differences(
    document: Mapping[str, Any],
    path: str,
    provider: str | None,
    version: str | None,
) -> Iterator[Problem]:
    """Yield a warning if a description names another provider or version than the registration.

    ``provider`` and ``version`` are the registration's; None if a single component is registered,
    whose description alone names them. A field that the description lacks is a warning, too.
    """
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
    """Yield the warnings about everything but contradictions between the parameters' values.

    ``valid``: the description satisfies its schema. If it does not, only the valid entries of its
    lists are checked; the schema's problems say enough about the rest.
    """
    yield from _missing_fields(document, path, ("title", "storageEngine", "result"))
    yield from unknown_fields(document, _COMPONENT_FIELDS, path)
    if valid:
        yield from _role_warnings(document["roleList"], join(path, "roleList"))
        yield from _storage_warnings(document, join(path, "storageEngine"))
    for field in _ITEM_FIELDS:
        items = document.get(field)
        if isinstance(items, list):
            yield from _list_warnings(items, field, join(path, field), valid=valid)


def _list_warnings(
    items: list[Any],
    field: str,
    path: str,
    *,
    valid: bool,
) -> Iterator[Problem]:
    """Yield the warnings about the entries of one list of a description, such as ``inputParam``.

    Entries that break the schema or exceed its limit are skipped. A ``valid`` description has no
    such entries.
    """
    limit = schema.DESCRIPTION.max_entries(field)
    for index, item in enumerate(items[:limit]):
        if valid or schema.DESCRIPTION.accepts_entry(item, field):
            item_path = join(path, index)
            yield from unknown_fields(item, _ITEM_FIELDS[field], item_path)
            yield from _ITEM_WARNINGS[field](item, item_path)


def _role_warnings(
    roles: Sequence[str],
    path: str,
) -> Iterator[Problem]:
    """Yield a warning for each role that is not usual, or that is several roles with commas.

    Several roles in one text suggest the same roles as separate entries of the list, in JSON.
    """
    for index, role in enumerate(roles):
        role_path = join(path, index)
        names = list(map(str.strip, role.split(",")))
        if len(names) > 1:
            suggestion = json.dumps(names)[1:-1]  # without the brackets of the list
            yield Problem(role_path, "is one name with commas", role, suggestion)
        else:
            yield from unusual_value(role, ROLES, role_path, "is none of the usual {}")


def _storage_warnings(
    document: Mapping[str, Any],
    path: str,
) -> Iterator[Problem]:
    """Yield a warning for each entry of ``storageEngine`` that is not a usual name of a storage.

    It suggests the most similar usual name, if any is similar.
    """
    for index, storage in enumerate(texts(document.get("storageEngine"))):
        if storage not in STORAGES:
            rule = "is not a usual name of a storage"
            yield Problem(
                join(path, index),
                rule,
                storage,
                near(storage, STORAGES),
            )


def image_name_problems(name: str | None, path: str) -> Iterator[Problem]:
    """Yield a warning for a name that no image can have in a registry or container engine.

    None and an empty name are fine here: other checks say whether an image is required.
    """
    if not name or _IMAGE_NAME.fullmatch(name):
        return
    rule = "is not a valid image name, such as registry.example.com/vendor/image:1.0.0 (lower case)"
    lower_case = name.lower()
    suggestion = lower_case if _IMAGE_NAME.fullmatch(lower_case) else ""
    yield Problem(path, rule, name, suggestion)


def misspelled_types(parameters: Any, path: str) -> Iterator[Problem]:
    """Yield a problem, which refuses the registration, for each misspelled type of a parameter.

    ``parameters`` is the value of ``inputParam``, which may break its schema.

    A type that is unlike all of ours may be the vendor's own, and is not reported.
    """
    if not isinstance(parameters, list):
        return
    for index, item in enumerate(parameters):
        match item:
            case {"type": str(type_name)}:
                yield from _type_misspelling(type_name, join(path, index, "type"))


def _type_misspelling(type_name: str, path: str) -> Iterator[Problem]:
    """Yield the problem of a type that probably misspells a known one.

    Nothing for a known type, and for a name that may be the vendor's own type.
    """
    is_known = kind_of(type_name) is not ValueKind.OTHER
    # Names with digits or punctuation, such as int32 or list[int], are taken for a vendor's own.
    if is_known or not type_name.isalpha():
        return
    suggestion = near(type_name, TYPE_NAMES, MISSPELLING_SIMILARITY)
    if suggestion:
        yield Problem(path, "is not a known type", type_name, suggestion)


def unusual_value(
    value: str,
    usual: Sequence[str],
    path: str,
    rule: str = "is none of {}",
) -> Iterator[Problem]:
    """Yield a warning for a value that is not among the usual ones, with the most similar of them.

    The list of the usual values replaces ``{}`` in ``rule``.
    """
    if value not in usual:
        names = list_limited(usual, MAX_LISTED_VALUES)
        yield Problem(
            path,
            rule.format(names),
            value,
            near(value, usual),
        )


def _result_warnings(
    item: Mapping[str, Any],
    path: str,
) -> Iterator[Problem]:
    """Yield the warnings about an entry of ``result``: a code and its message.

    The format has the code as text, but the schema also accepts a number.
    """
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
    """Yield the warnings about an entry of ``inputData`` or ``outputData``.

    ``categories`` are the usual ones of inputs or of outputs.
    """
    category = item["category"]
    # `unusual_value` fills in the braces that remain.
    rule = f"is none of {{}}; treated as {group_of(category)}"
    yield from unusual_value(category, categories, join(path, "category"), rule)
    formats_path = join(path, "dataFormat")
    formats = texts(item.get("dataFormat"))
    for name in formats:
        yield from unusual_value(name, FORMATS, formats_path)
    if not formats:
        yield Problem(formats_path, "is missing")


def _parameter_warnings(
    item: Mapping[str, Any],
    path: str,
) -> Iterator[Problem]:
    """Yield the warnings about one entry of ``inputParam``; `contradictions` has further ones."""
    yield from _missing_fields(item, path, ("title",))
    for field, usual in (("UIPattern", UI_PATTERNS), ("UIType", UI_TYPES)):
        if item.get(field):
            yield from unusual_value(
                item[field],
                usual,
                join(path, field),
            )
    yield from _type_warnings(item["type"], join(path, "type"))
    choices = item.get("bindingData")
    if isinstance(choices, list):
        yield from _choice_warnings(choices, join(path, "bindingData"))


def _type_warnings(type_name: str, path: str) -> Iterator[Problem]:
    """Yield a warning for an unknown type, or for a known one with another name in the standard.

    The suggestion is the most similar known type, or the name in the standard.
    """
    if kind_of(type_name) is ValueKind.OTHER:
        rule = "is a type whose values are not checked"
        yield Problem(path, rule, type_name, near(type_name, TYPE_NAMES))
        return
    standard_name = _STANDARD_TYPES.get(type_name.strip().lower())
    if standard_name:
        rule = (
            "is not a type of the standard; read here as the suggested one, perhaps not by others"
        )
        yield Problem(path, rule, type_name, standard_name)


def _choice_warnings(
    choices: Sequence[Any],
    path: str,
) -> Iterator[Problem]:
    """Yield the warnings about the form of a list in ``bindingData``."""
    plain_values = [choice for choice in choices if not isinstance(choice, Mapping)]
    if plain_values:
        rule = "lists values where the format has objects of label and value"
        yield Problem(path, rule, plain_values)
    for index, choice in enumerate(choices):
        if isinstance(choice, Mapping):
            yield from unknown_fields(
                choice,
                _CHOICE_FIELDS,
                join(path, index),
            )
            yield from _missing_fields(
                choice,
                join(path, index),
                ("label",),
            )


def _input_warnings(
    item: Mapping[str, Any],
    path: str,
) -> Iterator[Problem]:
    """Yield the warnings about an entry of ``inputData``."""
    return _data_warnings(item, path, INPUTS)


def _output_warnings(
    item: Mapping[str, Any],
    path: str,
) -> Iterator[Problem]:
    """Yield the warnings about an entry of ``outputData``."""
    return _data_warnings(item, path, OUTPUTS)


# Field with a list -> the function that yields the warnings about one entry, given its path.
_ITEM_WARNINGS: Mapping[str, Callable[[Mapping[str, Any], str], Iterator[Problem]]] = {
    "inputParam": _parameter_warnings,
    "inputData": _input_warnings,
    "outputData": _output_warnings,
    "result": _result_warnings,
}


def _missing_fields(
    document: Mapping[str, Any],
    path: str,
    fields: Iterable[str],
) -> Iterator[Problem]:
    """Yield a warning for each of the fields that an object lacks or leaves as an empty list."""
    for field in fields:
        value = document.get(field)
        if value is None:
            yield Problem(join(path, field), "is missing")
        elif value == []:
            yield Problem(join(path, field), "is empty", [])


# ------------------------------------------------------------ contradictions

# The choices of each parameter of a component, by its name; empty if any value is allowed.
Choices = Mapping[str, frozenset[str]]


def contradictions(
    parameters: Sequence[Parameter],
    path: str,
) -> Iterator[Problem]:
    """Yield the contradictions within and between the parameters of a component.

    ``path`` is that of ``inputParam``.
    """
    choices = {parameter.name: frozenset(parameter.binding or ()) for parameter in parameters}
    for index, parameter in enumerate(parameters):
        parameter_path = join(path, index)
        yield from parameter_contradictions(parameter, parameter_path)
        for position, condition in enumerate(parameter.depends_on):
            condition_path = join(parameter_path, "dependsOn", position)
            yield from _condition_problems(parameter.name, condition, choices, condition_path)


def parameter_contradictions(parameter: Parameter, path: str) -> Iterator[Problem]:
    """Yield the contradictions between type, default, choices and validator of one parameter.

    ``path`` is that of the parameter in ``inputParam``.
    """
    yield from _default_contradictions(parameter, join(path, "defaultValue"))
    yield from _binding_contradictions(parameter, join(path, "bindingData"))
    if parameter.default and parameter.binding:
        yield from unusual_value(
            parameter.default,
            parameter.binding,
            join(path, "defaultValue"),
        )


def _default_contradictions(parameter: Parameter, path: str) -> Iterator[Problem]:
    """Yield the contradictions of a default with the type and with the validator.

    A default that could not be matched against its expression is not reported.
    """
    default = parameter.default
    if not default:
        return
    if not reads_as(kind_of(parameter.type), default):
        yield Problem(path, f"cannot be read as {parameter.type}", default)
    validator = parameter.validator
    if not validator.in_range(number(default)):
        yield Problem(path, f"lies outside {validator.text}", default)
    expression = validator.pattern
    if expression is not None and full_match(expression, default) is False:
        yield Problem(path, f"does not match {validator.text}", default)


def _binding_contradictions(parameter: Parameter, path: str) -> Iterator[Problem]:
    """Yield the contradictions of the choices with the type and with a range.

    There is at most one problem for the type and one for the range, each with all choices that have
    it. An empty choice means no value and is not checked.
    """
    choices = tuple(filter(None, parameter.binding or ()))
    kind = kind_of(parameter.type)
    unreadable = [choice for choice in choices if not reads_as(kind, choice)]
    if unreadable:
        names = list_limited(unreadable, MAX_LISTED_VALUES)
        rule = f"lists values that are not of type {parameter.type}: {names}"
        yield Problem(path, rule, unreadable)
    validator = parameter.validator
    outside = [choice for choice in choices if not validator.in_range(number(choice))]
    if outside:
        names = list_limited(outside, MAX_LISTED_VALUES)
        yield Problem(path, f"lists values outside {validator.text}: {names}", outside)


def _condition_problems(
    parameter: str,
    condition: str,
    choices: Choices,
    path: str,
) -> Iterator[Problem]:
    """Yield the problem of one entry of ``dependsOn``: ``name`` or ``name.value``.

    It is a problem to name an unknown parameter, the dependent ``parameter`` itself, or a value
    that the named parameter does not list.
    """
    # A parameter's name may itself contain a dot, so the whole condition is tried as a name first.
    name, value = condition, ""
    if condition not in choices:
        name, _, value = condition.partition(".")
    listed = choices.get(name, frozenset())
    if name not in choices:
        similar = near(name, choices)
        suggestion = condition.replace(name, similar, 1) if similar else ""
        yield Problem(path, "names a parameter that is not described", condition, suggestion)
    elif name == parameter:
        yield Problem(path, "depends on the parameter itself", condition)
    elif value and listed and value not in listed:
        similar = near(value, listed)
        suggestion = f"{name}.{similar}" if similar else ""
        yield Problem(path, f"names a value that {name} does not list", condition, suggestion)
