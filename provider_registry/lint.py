"""Warnings about a description, field by field: unusual, and no reason to refuse it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from provider_registry import regex, schema
from provider_registry.model import Component, Parameter, Problem, group_of, join
from provider_registry.types import NAMES, Kind, kind_of, number, reads_as

ROLES = ("guest", "host", "arbiter", "local")
STORAGES = ("s3", "hdfs", "eggroll", "file", "localfile", "oss", "mysql", "hive")
FORMATS = ("csv", "pmml", "json", "yaml", "zip")
INPUTS = ("model", "dataset", "training_set", "test_set", "validate_set", "datasets")
OUTPUTS = ("model", "dataset", "training_set", "test_set", "report", "metric")
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
GROUPS = ("默认分组-显示", "高级分组-默认不显示")
"""the format's two groups; others are a vendor's own"""
_SHOWN = 5
"""how many values a warning lists"""

_COMPONENT_FIELDS = schema.DESCRIPTION.fields()
_PARAMETER_FIELDS = schema.DESCRIPTION.fields("inputParam")
_DATA_FIELDS = schema.DESCRIPTION.fields("inputData")
_RESULT_FIELDS = schema.DESCRIPTION.fields("result")


def unknown_fields(item: Mapping[str, Any], known: Sequence[str], path: str) -> Iterator[Problem]:
    """Name the fields of an object that the format does not have, each with the one it may have meant."""
    for name in item:
        if name not in known:
            yield Problem(join(path, name), "is not a field of the format", item[name], near(name, known))


def outer_wins(
    document: Mapping[str, Any], path: str, provider: str | None, version: str | None
) -> Iterator[Problem]:
    """Say where a description names another provider or version than it is registered under."""
    for name, outer in (("provider", provider), ("version", version)):
        inner = document.get(name)
        if inner is None:
            yield Problem(join(path, name), "is missing")
        elif outer is not None and inner != outer:
            rule = f"differs from the {name} it is registered under, {outer}"
            yield Problem(join(path, name), rule, inner, outer)


def of_component(read: Component, document: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """Say what is unusual about everything but the parameters' values."""
    yield from _missing(document, path, ("title", "storageEngine", "result"))
    yield from unknown_fields(document, _COMPONENT_FIELDS, path)
    if read.description_version and not read.description_version.startswith("1."):
        rule = "is not a version 1.x; read as if it were"
        yield Problem(join(path, "desVersion"), rule, read.description_version)
    for i, role in enumerate(document["roleList"]):
        yield from none_of(role, ROLES, join(path, "roleList", i), "is none of the usual {}")
    yield from repeats(document["roleList"], join(path, "roleList"))
    for i, storage in enumerate(read.storage_engines):
        meant = near(storage, STORAGES)
        if storage not in STORAGES and meant:
            yield Problem(join(path, "storageEngine", i), "is not a usual name of a storage", storage, meant)
    yield from _of_results(read, document, path)
    for field, usual in (("inputData", INPUTS), ("outputData", OUTPUTS)):
        for i, item in enumerate(document[field]):
            yield from _of_data(item, usual, join(path, field, i))
    for i, item in enumerate(document["inputParam"]):
        yield from _of_parameter(item, join(path, "inputParam", i))


def near(word: str, known: Iterable[str]) -> str:
    """Return which of the known words was probably meant; empty where that is not clear."""
    by_lower = {name.lower(): name for name in reversed(list(known))}
    found = get_close_matches(word[:64].lower(), list(by_lower), n=1)
    return by_lower[found[0]] if found else ""


def none_of(value: str, usual: Sequence[str], path: str, rule: str = "is none of {}") -> Iterator[Problem]:
    """Report a value that is not among the usual ones, with the one that was probably meant."""
    if value not in usual:
        yield Problem(path, rule.format(listed(usual)), value, near(value, usual))


def repeats(values: Iterable[str], path: str) -> Iterator[Problem]:
    """Report the values that a list has more than once."""
    repeated = [value for value, count in Counter(values).items() if count > 1]
    if repeated:
        yield Problem(path, f"lists more than once: {listed(repeated)}", repeated)


def listed(values: Sequence[str]) -> str:
    """Return values in one line, of many the first few."""
    shown = ", ".join(value[:64] for value in values[:_SHOWN])
    return f"{shown}, … ({len(values)} in all)" if len(values) > _SHOWN else shown


def _of_results(read: Component, document: Mapping[str, Any], path: str) -> Iterator[Problem]:
    yield from repeats([r.code for r in read.results], join(path, "result"))
    for i, item in enumerate(document.get("result") or ()):
        at = join(path, "result", i)
        yield from unknown_fields(item, _RESULT_FIELDS, at)
        yield from _missing(item, at, ("resultMessage",))
        if not isinstance(item["resultCode"], str):
            code = item["resultCode"]
            yield Problem(join(at, "resultCode"), "is a number where the format has text", code, f'"{code}"')


def _of_data(item: Mapping[str, Any], usual: Sequence[str], at: str) -> Iterator[Problem]:
    yield from unknown_fields(item, _DATA_FIELDS, at)
    category = item["category"]
    yield from none_of(category, usual, join(at, "category"), f"is none of {{}}; treated as {group_of(category)}")
    formats = item.get("dataFormat")
    formats = [formats] if isinstance(formats, str) else formats or []
    for name in formats:
        if name.strip():
            yield from none_of(name, FORMATS, join(at, "dataFormat"))
    yield from repeats(formats, join(at, "dataFormat"))
    if not any(name.strip() for name in formats):
        yield Problem(join(at, "dataFormat"), "is missing")


def _of_parameter(item: Mapping[str, Any], at: str) -> Iterator[Problem]:
    yield from unknown_fields(item, _PARAMETER_FIELDS, at)
    yield from _missing(item, at, ("title",))
    for name, hints in (("UIPattern", UI_PATTERNS), ("UIType", UI_TYPES)):
        if item.get(name):
            yield from none_of(item[name], hints, join(at, name))
    if kind_of(item["type"]) is Kind.OTHER:
        rule = "is a type whose values are not checked"
        yield Problem(join(at, "type"), rule, item["type"], near(item["type"], NAMES))
    tags = item.get("groupTag")
    for tag in [tags] if isinstance(tags, str) else tags or ():
        meant = near(tag, GROUPS)
        if tag not in GROUPS and meant:
            yield Problem(join(at, "groupTag"), "is nearly the name of a group of the format", tag, meant)
    binding = item.get("bindingData")
    for i, choice in enumerate(binding if isinstance(binding, list) else ()):
        if isinstance(choice, Mapping):
            yield from unknown_fields(choice, ("label", "value"), join(at, "bindingData", i))
            yield from _missing(choice, join(at, "bindingData", i), ("label",))


def _missing(document: Mapping[str, Any], path: str, names: Iterable[str]) -> Iterator[Problem]:
    for name in names:
        if document.get(name) is None:
            yield Problem(join(path, name), "is missing")


Allowed = Mapping[str, frozenset[str] | None]
"""the allowed values of every parameter of a component, None for any"""

_CHOOSES = ("select", "selectTree", "radio", "checkbox")
_WORDS = (Kind.BOOLEAN, Kind.OBJECT, Kind.LIST)


def contradictions(parameters: Sequence[Parameter], path: str) -> Iterator[Problem]:
    """Find them in all parameters of a component."""
    allowed: Allowed = {p.name: None if p.binding is None else frozenset(p.binding) for p in parameters}
    for i, parameter in enumerate(parameters):
        at = join(path, i)
        kind = kind_of(parameter.type)
        if parameter.default:
            yield from _of_default(parameter, kind, join(at, "defaultValue"))
        if parameter.binding:
            yield from _of_binding(parameter, kind, join(at, "bindingData"))
        yield from _of_check(parameter, kind, join(at, "validator"))
        yield from _of_widget(parameter, kind, at)
        for k, condition in enumerate(parameter.depends_on):
            yield from _unmet_condition(parameter.name, condition, allowed, join(at, "dependsOn", k))
    yield from _circles(parameters, allowed, path)


def _of_default(parameter: Parameter, kind: Kind, at: str) -> Iterator[Problem]:
    default = parameter.default or ""
    if not reads_as(kind, default):
        yield Problem(at, f"cannot be read as {parameter.type}", default)
    if parameter.binding:
        yield from none_of(default, parameter.binding, at)
    check = parameter.validator
    if check is None:
        return
    if _outside(parameter, default):
        yield Problem(at, f"lies outside {check.text}", default)
    if check.pattern is not None and regex.full_match(check.pattern, default) is False:
        yield Problem(at, f"does not match {check.text}", default)


def _of_binding(parameter: Parameter, kind: Kind, at: str) -> Iterator[Problem]:
    binding = parameter.binding or ()
    yield from repeats(binding, at)
    unreadable = [value for value in binding if value and not reads_as(kind, value)]
    if unreadable:
        yield Problem(at, f"lists values that are not of type {parameter.type}: {listed(unreadable)}", unreadable)
    outside = [value for value in binding if _outside(parameter, value)]
    if outside:
        check = parameter.validator.text if parameter.validator else ""
        yield Problem(at, f"lists values outside {check}: {listed(outside)}", outside)


def _of_check(parameter: Parameter, kind: Kind, at: str) -> Iterator[Problem]:
    check = parameter.validator
    if check is not None and check.pattern is None and kind in _WORDS:
        yield Problem(at, f"is a range, which does not apply to type {parameter.type}", check.text)


def _of_widget(parameter: Parameter, kind: Kind, at: str) -> Iterator[Problem]:
    widget, bound = parameter.ui_type, parameter.binding or parameter.binding_function
    place = join(at, "UIType")
    if widget in _CHOOSES and not bound and not (widget == "checkbox" and kind is Kind.BOOLEAN):
        yield Problem(place, "offers a choice, and bindingData lists nothing to choose from", widget)
    if widget == "numberPicker" and kind not in (Kind.INTEGER, Kind.NUMBER, Kind.OTHER):
        yield Problem(place, f"is for numbers, and the type is {parameter.type}", widget)
    if widget == "switch" and kind not in (Kind.BOOLEAN, Kind.OTHER) and len(parameter.binding or ()) != 2:
        yield Problem(place, f"is for true and false, and the type is {parameter.type}", widget)
    if parameter.ui_pattern in ("readOnly", "hidden") and not parameter.optional and not parameter.default:
        rule = "keeps a form from giving a value that is required and has no default"
        yield Problem(join(at, "UIPattern"), rule, parameter.ui_pattern)


def _outside(parameter: Parameter, value: str) -> bool:
    read = number(value)
    return read is not None and parameter.validator is not None and not parameter.validator.in_range(read)


def _unmet_condition(own: str, condition: str, allowed: Allowed, at: str) -> Iterator[Problem]:
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
        yield Problem(at, f"names a value that {name} does not list", condition, meant and f"{name}.{meant}")


def _circles(parameters: Sequence[Parameter], allowed: Allowed, path: str) -> Iterator[Problem]:
    """Find parameters that are each shown only when the other is; the first one is reported."""
    needs: dict[str, list[str]] = {}
    for parameter in parameters:
        names = [c if c in allowed else c.partition(".")[0] for c in parameter.depends_on]
        needs[parameter.name] = [name for name in names if name in allowed and name != parameter.name]
    needed_by: dict[str, list[str]] = {}
    for name, others in needs.items():
        for other in others:
            needed_by.setdefault(other, []).append(name)
    news = [name for name, others in needs.items() if not others]
    shown = set(news)
    while news:
        more = [name for name in needed_by.pop(news.pop(), ()) if name not in shown]
        shown.update(more)
        news += more
    waiting = needs.keys() - shown
    for i, parameter in enumerate(parameters):
        if parameter.name in waiting:
            circle = [p.name for p in parameters if p.name in waiting]
            yield Problem(join(path, i, "dependsOn"), f"is circular: {listed(circle)}", circle)
            return
