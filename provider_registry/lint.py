"""Warnings about a description, field by field: unusual, and no reason to refuse it."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from provider_registry import schema
from provider_registry.model import Parameter, Problem, Validator, group_of, join, near, texts
from provider_registry.values import NAMES, Kind, full_match, kind_of, listed, number, reads_as

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
_STANDARD = {
    "double": "float",
    "long": "int",
    "bool": "boolean",
    "str": "string",
    "text": "string",
}
"""spellings that are read -> the standard's"""
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:[\w.-]+(?::\d+)?/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?",
    re.ASCII,
)
_SHOWN = 6
"""how many values a warning lists"""
_MISSPELLED = 0.8
"""how alike a known type must be for another word to be a mistake: int32 may be a vendor's own, strng is none"""

_FIELDS = {
    name: schema.DESCRIPTION.fields(name)
    for name in ("inputParam", "inputData", "outputData", "result")
}
_COMPONENT_FIELDS = schema.DESCRIPTION.fields()


def unknown_fields(
    item: Mapping[str, Any],
    known: Sequence[str],
    path: str,
) -> Iterator[Problem]:
    """Name the fields of an object that the format does not have, each with the one it may have meant."""
    for name in item:
        if name not in known:
            yield Problem(
                join(path, name), "is not a field of the format", item[name], near(name, known)
            )


def outer_wins(
    document: Mapping[str, Any],
    path: str,
    provider: str | None,
    version: str | None,
) -> Iterator[Problem]:
    """Say where a description names another provider or version than it is registered under."""
    for name, outer in (("provider", provider), ("version", version)):
        inner = document.get(name)
        if inner is None:
            yield Problem(join(path, name), "is missing")
        elif outer is not None and inner != outer:
            rule = f"differs from the {name} it is registered under, {outer}"
            yield Problem(join(path, name), rule, inner, outer)


def of_component(
    document: Mapping[str, Any],
    path: str,
    *,
    whole: bool = True,
) -> Iterator[Problem]:
    """Say what is unusual about everything but the parameters' values; ``whole``: it keeps the schema."""
    yield from _missing(document, path, ("title", "storageEngine", "result"))
    yield from unknown_fields(document, _COMPONENT_FIELDS, path)
    for i, role in enumerate(document["roleList"] if whole else ()):
        parts = [part.strip() for part in role.split(",")]
        if len(parts) > 1:
            yield Problem(
                join(path, "roleList", i), "is one name with commas", role, json.dumps(parts)[1:-1]
            )
        else:
            yield from none_of(role, ROLES, join(path, "roleList", i), "is none of the usual {}")
    for i, storage in enumerate(texts(document.get("storageEngine")) if whole else ()):
        if storage not in STORAGES:
            at = join(path, "storageEngine", i)
            yield Problem(at, "is not a usual name of a storage", storage, near(storage, STORAGES))
    for field, known in _FIELDS.items():
        items = document.get(field)
        for i, item in enumerate(items if isinstance(items, list) else ()):
            if whole or schema.DESCRIPTION.fits(item, field):
                at = join(path, field, i)
                yield from unknown_fields(item, known, at)
                yield from _OF[field](item, at)


def of_image(name: str, path: str) -> Iterator[Problem]:
    """Say where no registry and no container engine can have an image of that name."""
    if name and not _IMAGE.fullmatch(name):
        rule = "is not a valid image name, such as registry.example.com/vendor/image:1.0.0 (lower case)"
        yield Problem(path, rule, name, name.lower() if _IMAGE.fullmatch(name.lower()) else "")


def misspelled_types(parameters: Any, path: str) -> Iterator[Problem]:
    """Find the types that are known ones misspelled, in a list that may break its schema."""
    for i, item in enumerate(parameters if isinstance(parameters, list) else ()):
        given = item.get("type") if isinstance(item, Mapping) else None
        spelled = given if isinstance(given, str) and given.isalpha() else ""
        if (
            spelled
            and kind_of(spelled) is Kind.OTHER
            and (meant := near(spelled, NAMES, _MISSPELLED))
        ):
            yield Problem(join(path, i, "type"), "is not a known type", spelled, meant)


def none_of(
    value: str,
    usual: Sequence[str],
    path: str,
    rule: str = "is none of {}",
) -> Iterator[Problem]:
    """Report a value that is not among the usual ones, with the one that was probably meant."""
    if value not in usual:
        yield Problem(path, rule.format(listed(usual, _SHOWN)), value, near(value, usual))


def _of_result(item: Mapping[str, Any], at: str) -> Iterator[Problem]:
    yield from _missing(item, at, ("resultMessage",))
    if not isinstance(code := item["resultCode"], str):
        yield Problem(
            join(at, "resultCode"), "is a number where the format has text", code, f'"{code}"'
        )


def _of_input(
    item: Mapping[str, Any],
    at: str,
    usual: Sequence[str] = INPUTS,
) -> Iterator[Problem]:
    category = item["category"]
    yield from none_of(
        category, usual, join(at, "category"), f"is none of {{}}; treated as {group_of(category)}"
    )
    place, formats = join(at, "dataFormat"), texts(item.get("dataFormat"))
    for name in formats:
        yield from none_of(name, FORMATS, place)
    if not formats:
        yield Problem(place, "is missing")


def _of_parameter(item: Mapping[str, Any], at: str) -> Iterator[Problem]:
    yield from _missing(item, at, ("title",))
    for name, hints in (("UIPattern", UI_PATTERNS), ("UIType", UI_TYPES)):
        if item.get(name):
            yield from none_of(item[name], hints, join(at, name))
    if kind_of(item["type"]) is Kind.OTHER:
        rule = "is a type whose values are not checked"
        yield Problem(join(at, "type"), rule, item["type"], near(item["type"], NAMES))
    elif meant := _STANDARD.get(item["type"].strip().lower()):
        rule = "is not a type of the standard; read here as its own is, perhaps not by others"
        yield Problem(join(at, "type"), rule, item["type"], meant)
    binding = item.get("bindingData")
    choices = binding if isinstance(binding, list) else ()
    if plain := [choice for choice in choices if not isinstance(choice, Mapping)]:
        yield Problem(
            join(at, "bindingData"),
            "lists values where the format has objects of label and value",
            plain,
        )
    for i, choice in enumerate(choices):
        if isinstance(choice, Mapping):
            yield from unknown_fields(choice, ("label", "value"), join(at, "bindingData", i))
            yield from _missing(choice, join(at, "bindingData", i), ("label",))


_OF: Mapping[str, Callable[[Mapping[str, Any], str], Iterator[Problem]]] = {
    "inputParam": _of_parameter,
    "inputData": _of_input,
    "outputData": partial(_of_input, usual=OUTPUTS),
    "result": _of_result,
}


def _missing(
    document: Mapping[str, Any],
    path: str,
    names: Iterable[str],
) -> Iterator[Problem]:
    for name in names:
        if document.get(name) is None:
            yield Problem(join(path, name), "is missing")
        elif document[name] == []:
            yield Problem(join(path, name), "is empty", [])


Allowed = Mapping[str, frozenset[str] | None]
"""the allowed values of every parameter of a component, None for any"""


def contradictions(parameters: Sequence[Parameter], path: str) -> Iterator[Problem]:
    """Find them in all parameters of a component."""
    allowed: Allowed = {
        p.name: None if p.binding is None else frozenset(p.binding) for p in parameters
    }
    for i, parameter in enumerate(parameters):
        at = join(path, i)
        yield from within(parameter, at)
        for k, condition in enumerate(parameter.depends_on):
            yield from _unmet_condition(
                parameter.name, condition, allowed, join(at, "dependsOn", k)
            )


def within(parameter: Parameter, at: str) -> Iterator[Problem]:
    """Find the contradictions within one parameter."""
    for name, rule, got in _of_values(parameter, kind_of(parameter.type)):
        yield Problem(join(at, name), rule, got)
    if parameter.default and parameter.binding:
        yield from none_of(parameter.default, parameter.binding, join(at, "defaultValue"))


def _of_values(parameter: Parameter, kind: Kind) -> Iterator[tuple[str, str, Any]]:
    """Yield (field, rule, what is there) where default, choices, check and type do not go together."""
    default, check, binding = parameter.default, parameter.validator, parameter.binding or ()
    if default and not reads_as(kind, default):
        yield "defaultValue", f"cannot be read as {parameter.type}", default
    if check is not None:
        if default and _outside(check, default):
            yield "defaultValue", f"lies outside {check.text}", default
        if default and check.pattern is not None and full_match(check.pattern, default) is False:
            yield "defaultValue", f"does not match {check.text}", default
    if unreadable := [value for value in binding if value and not reads_as(kind, value)]:
        rule = f"lists values that are not of type {parameter.type}: {listed(unreadable, _SHOWN)}"
        yield "bindingData", rule, unreadable
    if check is not None and (outside := [value for value in binding if _outside(check, value)]):
        yield (
            "bindingData",
            f"lists values outside {check.text}: {listed(outside, _SHOWN)}",
            outside,
        )


def _outside(check: Validator, value: str) -> bool:
    read = number(value)
    return read is not None and not check.in_range(read)


def _unmet_condition(
    own: str,
    condition: str,
    allowed: Allowed,
    at: str,
) -> Iterator[Problem]:
    """Say whether a condition names a parameter, or a value of one, that the description does not have."""
    name, _, value = (condition, "", "") if condition in allowed else condition.partition(".")
    if name not in allowed:
        meant = near(name, allowed)
        hint = f"{meant}.{value}" if meant and value else meant
        yield Problem(at, "names a parameter that is not described", condition, hint)
        return
    if name == own:
        yield Problem(at, "depends on the parameter itself", condition)
        return
    values = allowed[name]
    if value and values is not None and value not in values:
        meant = near(value, values)
        yield Problem(
            at, f"names a value that {name} does not list", condition, meant and f"{name}.{meant}"
        )
