"""A self-description, JSON of a vendor, read into a `Component`.

Refused is what leaves the gateway unable to run the component: a field of the wrong shape, no name, no roles, no
list of parameters, inputs or outputs, one name twice in a list. What is only shown to people, or contradicts
itself while the component may still work, is a warning: vendors' published descriptions do all of that.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain
from typing import Any

from provider_registry import notation, patterns, schema
from provider_registry.kinds import Kind, kind_of, number, reads_as
from provider_registry.limits import bounded, join, refuse_unfit
from provider_registry.model import (
    Component,
    DataSpec,
    InvalidDescription,
    Parameter,
    Problem,
    ResultCode,
    group_of,
)

ROLES = ("guest", "host", "arbiter", "local")
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
_RESPELLED = {"editeable": "editable", "redio": "radio"}
"""the format's own misspellings; both forms are read"""
_SHOWN = 5
"""how many values a remark lists"""

_COMPONENT_FIELDS = schema.fields(schema.DESCRIPTION)
_PARAMETER_FIELDS = schema.fields(schema.DESCRIPTION, "inputParam")
_DATA_FIELDS = schema.fields(schema.DESCRIPTION, "inputData")
_RESULT_FIELDS = schema.fields(schema.DESCRIPTION, "result")


def component(
    document: Any, path: str = "", *, provider: str | None = None, version: str | None = None
) -> tuple[Component, tuple[Problem, ...]]:
    """Read one description and return it with its warnings.

    ``provider`` and ``version`` are those it is registered under; they win over the inner ones. Raises
    InvalidDescription with every problem, each under ``path``.
    """
    refuse_unfit(document)
    problems = [*schema.problems(schema.DESCRIPTION, document, path), *_repeated_names(document, path)]
    if problems:
        raise InvalidDescription(bounded(problems))
    read, remarks = from_valid(document, path, provider=provider, version=version)
    allowed = {p.name: None if p.binding is None else frozenset(p.binding) for p in read.parameters}
    warnings = chain(
        _missing(document, path, ("title", "storageEngine", "result")),
        _outer_wins(document, path, provider, version),
        _component_remarks(read, document, path),
        remarks,
        *(
            _contradictions(parameter, allowed, join(path, "inputParam", i))
            for i, parameter in enumerate(read.parameters)
        ),
    )
    return read, bounded(warnings)


def unknown_fields(item: Mapping[str, Any], known: Sequence[str], path: str) -> Iterator[Problem]:
    """Name the fields of an object that the format does not have, each with the one it may have meant."""
    for name in item:
        if name not in known:
            near = get_close_matches(name[:64], known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield Problem(join(path, name), f"is no field of the format{hint}", item[name])


def from_valid(
    document: Mapping[str, Any], path: str = "", *, provider: str | None = None, version: str | None = None
) -> tuple[Component, list[Problem]]:
    """Read a description whose shape is known to be good; returns it and what its spellings left unclear."""
    remarks: list[Problem] = []
    parameters = tuple(
        _parameter(item, join(path, "inputParam", i), remarks) for i, item in enumerate(document["inputParam"])
    )
    read = Component(
        name=document["componentName"],
        title=notation.text(document.get("title")),
        provider=provider or notation.text(document.get("provider")),
        version=version or notation.text(document.get("version")),
        description=notation.text(document.get("description")),
        roles=tuple(dict.fromkeys(document["roleList"])),
        description_version=notation.text(document.get("desVersion")),
        storage_engines=notation.texts(document.get("storageEngine")),
        parameters=parameters,
        inputs=tuple(map(_data, document["inputData"])),
        outputs=tuple(map(_data, document["outputData"])),
        results=tuple(
            ResultCode(str(item["resultCode"]), notation.text(item.get("resultMessage")))
            for item in document.get("result") or ()
        ),
        document=dict(document),
    )
    return read, remarks


def _parameter(item: Mapping[str, Any], path: str, remarks: list[Problem]) -> Parameter:
    """Read one parameter; what its spellings leave unclear is added to ``remarks``."""
    optional, about_optional = notation.is_optional(item.get("optional"))
    values, function, about_binding = notation.binding(item.get("bindingData"))
    check, about_check = notation.validator(item.get("validator"))
    for name, remark in (
        ("optional", about_optional),
        ("bindingData", about_binding),
        ("validator", about_check),
    ):
        if remark:
            remarks.append(Problem(join(path, name), remark, item.get(name)))
    pattern = notation.text(item.get("UIPattern")) or "editable"
    widget = notation.text(item.get("UIType")) or "input"
    return Parameter(
        name=item["name"],
        title=notation.text(item.get("title")),
        description=notation.text(item.get("description")),
        type=item["type"],
        optional=optional,
        default=notation.default_text(item.get("defaultValue")),
        binding=values,
        binding_function=function,
        validator=check,
        depends_on=notation.depends_on(item.get("dependsOn")),
        ui_pattern=_RESPELLED.get(pattern, pattern),
        ui_type=_RESPELLED.get(widget, widget),
        groups=notation.texts(item.get("groupTag")),
    )


def _data(item: Mapping[str, Any]) -> DataSpec:
    return DataSpec(
        name=item["name"],
        description=notation.text(item.get("description")),
        category=item["category"],
        formats=notation.texts(item.get("dataFormat")),
    )


def _repeated_names(document: Any, path: str) -> Iterator[Problem]:
    """Find names that stand twice in one list. Runs on unchecked documents, so that all is told at once."""
    if not isinstance(document, Mapping):
        return
    for field in ("inputParam", "inputData", "outputData"):
        items = document.get(field)
        if not isinstance(items, list):
            continue
        first: dict[str, int] = {}
        for i, item in enumerate(items):
            name = item.get("name") if isinstance(item, Mapping) else None
            if isinstance(name, str) and first.setdefault(name, i) != i:
                yield Problem(join(path, field, i, "name"), f"repeats the name of {field}[{first[name]}]", name)


def _missing(document: Mapping[str, Any], path: str, names: Iterable[str]) -> Iterator[Problem]:
    for name in names:
        if document.get(name) is None:
            yield Problem(join(path, name), "is missing")


def _outer_wins(
    document: Mapping[str, Any], path: str, provider: str | None, version: str | None
) -> Iterator[Problem]:
    for name, outer in (("provider", provider), ("version", version)):
        inner = document.get(name)
        if inner is None:
            yield Problem(join(path, name), "is missing")
        elif outer is not None and inner != outer:
            yield Problem(join(path, name), f"differs from the {name} it is registered under, {outer}", inner)


def _component_remarks(read: Component, document: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """Say what is unusual about everything but the parameters' values."""
    yield from unknown_fields(document, _COMPONENT_FIELDS, path)
    if read.description_version and not read.description_version.startswith("1."):
        yield Problem(
            join(path, "desVersion"), "is not a version 1.x; read as if it were", read.description_version
        )
    for i, role in enumerate(document["roleList"]):
        if role not in ROLES:
            yield Problem(join(path, "roleList", i), f"is none of the usual {_list(ROLES)}", role)
    yield from _repeats(document["roleList"], join(path, "roleList"))
    yield from _repeats([r.code for r in read.results], join(path, "result"))
    for i, item in enumerate(document.get("result") or ()):
        yield from unknown_fields(item, _RESULT_FIELDS, join(path, "result", i))
    for field, specs, usual in (
        ("inputData", read.inputs, INPUTS),
        ("outputData", read.outputs, OUTPUTS),
    ):
        for i, spec in enumerate(specs):
            at = join(path, field, i)
            yield from unknown_fields(document[field][i], _DATA_FIELDS, at)
            if spec.category not in usual:
                group = group_of(spec.category)
                yield Problem(
                    join(at, "category"), f"is none of {_list(usual)}; treated as {group}", spec.category
                )
            for name in spec.formats:
                if name not in FORMATS:
                    yield Problem(join(at, "dataFormat"), f"is none of {_list(FORMATS)}", name)
            if not spec.formats:
                yield Problem(join(at, "dataFormat"), "is missing")
    for i, item in enumerate(document["inputParam"]):
        at = join(path, "inputParam", i)
        yield from unknown_fields(item, _PARAMETER_FIELDS, at)
        yield from _missing(item, at, ("title",))
        for name, hints in (("UIPattern", UI_PATTERNS), ("UIType", UI_TYPES)):
            if item.get(name) and item[name] not in hints:
                yield Problem(join(at, name), f"is none of {_list(hints)}", item[name])


def _contradictions(
    parameter: Parameter, allowed: Mapping[str, frozenset[str] | None], path: str
) -> Iterator[Problem]:
    """Say where a parameter's type, default, allowed values, check and conditions contradict one another.

    ``allowed`` has the allowed values of every parameter of the component, None for any.
    """
    kind = kind_of(parameter.type)
    if kind is Kind.OTHER:
        yield Problem(join(path, "type"), "is a type whose values are not checked", parameter.type)
    if parameter.default:
        yield from _default_contradictions(parameter, kind, join(path, "defaultValue"))
    if parameter.binding:
        at = join(path, "bindingData")
        yield from _repeats(parameter.binding, at)
        unreadable = [value for value in parameter.binding if value and not reads_as(kind, value)]
        if unreadable:
            yield Problem(at, f"lists values that are no {parameter.type}: {_list(unreadable)}", unreadable)
        outside = [value for value in parameter.binding if _outside(parameter, value)]
        if outside:
            check = parameter.validator.text if parameter.validator else ""
            yield Problem(at, f"lists values outside {check}: {_list(outside)}", outside)
    for i, condition in enumerate(parameter.depends_on):
        yield from _unmet_condition(condition, allowed, join(path, "dependsOn", i))


def _default_contradictions(parameter: Parameter, kind: Kind, at: str) -> Iterator[Problem]:
    default = parameter.default or ""
    if not reads_as(kind, default):
        yield Problem(at, f"cannot be read as {parameter.type}", default)
    if parameter.binding and default not in parameter.binding:
        yield Problem(at, f"is none of {_list(parameter.binding)}", default)
    check = parameter.validator
    if check is None:
        return
    if _outside(parameter, default):
        yield Problem(at, f"lies outside {check.text}", default)
    if check.pattern is not None and patterns.is_plain(check.pattern):
        [matches] = patterns.full_matches([(check.pattern, default)], seconds=0)
        if matches is False:
            yield Problem(at, f"does not match {check.text}", default)


def _outside(parameter: Parameter, value: str) -> bool:
    read = number(value)
    return read is not None and parameter.validator is not None and not parameter.validator.in_range(read)


def _unmet_condition(condition: str, allowed: Mapping[str, frozenset[str] | None], at: str) -> Iterator[Problem]:
    """Say whether a condition names a parameter, or a value of one, that the description does not have."""
    if condition in allowed:
        return
    name, _, value = condition.partition(".")
    if name not in allowed:
        yield Problem(at, "names a parameter that is not described", condition)
        return
    values = allowed[name]
    if values is not None and value not in values:
        yield Problem(at, f"names a value that {name} does not list", condition)


def _repeats(values: Iterable[str], path: str) -> Iterator[Problem]:
    repeated = [value for value, count in Counter(values).items() if count > 1]
    if repeated:
        yield Problem(path, f"lists more than once: {_list(repeated)}", repeated)


def _list(values: Sequence[str]) -> str:
    shown = ", ".join(value[:64] for value in values[:_SHOWN])
    return f"{shown}, … ({len(values)} in all)" if len(values) > _SHOWN else shown
