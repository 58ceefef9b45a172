"""What is unusual about a description, field by field: worth telling, and no reason to refuse it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from provider_registry import schema
from provider_registry.limits import join
from provider_registry.model import Component, Problem, group_of
from provider_registry.types import NAMES, Kind, kind_of

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
"""how many values a remark lists"""

_COMPONENT_FIELDS = schema.fields(schema.DESCRIPTION)
_PARAMETER_FIELDS = schema.fields(schema.DESCRIPTION, "inputParam")
_DATA_FIELDS = schema.fields(schema.DESCRIPTION, "inputData")
_RESULT_FIELDS = schema.fields(schema.DESCRIPTION, "result")


def unknown_fields(item: Mapping[str, Any], known: Sequence[str], path: str) -> Iterator[Problem]:
    """Name the fields of an object that the format does not have, each with the one it may have meant."""
    for name in item:
        if name not in known:
            yield Problem(join(path, name), "is no field of the format", item[name], near(name, known))


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
        if role not in ROLES:
            rule = f"is none of the usual {listed(ROLES)}"
            yield Problem(join(path, "roleList", i), rule, role, near(role, ROLES))
    yield from repeats(document["roleList"], join(path, "roleList"))
    for i, storage in enumerate(read.storage_engines):
        meant = near(storage, STORAGES)
        if storage not in STORAGES and meant:
            yield Problem(join(path, "storageEngine", i), "is no usual name of a storage", storage, meant)
    yield from _of_results(read, document, path)
    for field, usual in (("inputData", INPUTS), ("outputData", OUTPUTS)):
        for i, item in enumerate(document[field]):
            yield from _of_data(item, usual, join(path, field, i))
    for i, item in enumerate(document["inputParam"]):
        yield from _of_parameter(item, join(path, "inputParam", i))


def near(word: str, known: Iterable[str]) -> str:
    """Return which of the known words somebody meant; empty where that is not clear."""
    by_lower = {name.lower(): name for name in reversed(list(known))}
    found = get_close_matches(word[:64].lower(), list(by_lower), n=1)
    return by_lower[found[0]] if found else ""


def repeats(values: Iterable[str], path: str) -> Iterator[Problem]:
    """Say which values stand more than once in a list."""
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
    if category not in usual:
        rule = f"is none of {listed(usual)}; treated as {group_of(category)}"
        yield Problem(join(at, "category"), rule, category, near(category, usual))
    formats = item.get("dataFormat")
    formats = [formats] if isinstance(formats, str) else formats or []
    for name in formats:
        if name.strip() and name not in FORMATS:
            yield Problem(join(at, "dataFormat"), f"is none of {listed(FORMATS)}", name, near(name, FORMATS))
    yield from repeats(formats, join(at, "dataFormat"))
    if not any(name.strip() for name in formats):
        yield Problem(join(at, "dataFormat"), "is missing")


def _of_parameter(item: Mapping[str, Any], at: str) -> Iterator[Problem]:
    yield from unknown_fields(item, _PARAMETER_FIELDS, at)
    yield from _missing(item, at, ("title",))
    for name, hints in (("UIPattern", UI_PATTERNS), ("UIType", UI_TYPES)):
        if item.get(name) and item[name] not in hints:
            yield Problem(join(at, name), f"is none of {listed(hints)}", item[name], near(item[name], hints))
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
