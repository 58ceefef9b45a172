"""A vendor's self-description, JSON, read into a `Component`.

Refused is what leaves the gateway unable to run the component: a field of the wrong shape, no name, no roles, no
list of parameters, inputs or outputs, a duplicate name in a list; and a type that is a known one misspelled.
What is only shown to people, or contradicts itself while the component may still work, is a warning: vendors'
published descriptions do all of that.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from provider_registry import foreign, schema
from provider_registry.lint import (
    contradictions,
    misspelled_types,
    of_component,
    outer_wins,
    within,
)
from provider_registry.model import (
    Component,
    DataSpec,
    InvalidDescription,
    Parameter,
    Problem,
    Validator,
    as_text,
    bounded,
    encodable,
    join,
    texts,
)
from provider_registry.values import flaw, json_of, number

MAX_BINDING = 1000
"""values that are read from a list given as JSON text; a real list is bounded by the schema"""

_FUNCTION = re.compile(r"call_function\s{1,8}([A-Za-z_][\w.]{0,255})\s{0,8}(?:\(\s{0,8}\))?")
_EXPRESSION = re.compile(r"regular\s{0,8}[:：-](.*)", re.DOTALL)
_RANGE = re.compile(r"([(\[])([^,]{0,64}),([^,]{0,64})([)\]])")
_WIDE = str.maketrans("（），【】［］", "(),[][]")
_QUOTES = ("''", '""', "‘’", "“”")
_PLACEHOLDERS = ("", "正则项")
"""what the published example has in place of an expression: no check"""
_UNBOUNDED = ("", "inf", "-inf", "+inf", "∞", "-∞", "+∞", "sup")


def text(value: Any) -> str:
    """Return display text: absent is empty."""
    return value if isinstance(value, str) else ""


def _is_optional(value: Any) -> tuple[bool, str]:
    """Read ``optional``: a boolean, its text in any case, or nothing, which means that it may be omitted."""
    spelled = as_text(value).strip().lower() if value is not None else ""
    return spelled != "false", "" if spelled else "is missing; read as true"


def _binding(value: Any) -> tuple[tuple[str, ...] | None, str | None, str]:
    """Read ``bindingData``: (allowed values as text, or None; callback's name, or None; warning).

    Forms: a list of {label, value} or of plain values, the same list as JSON text, ``call_function name()``,
    or nothing.
    """
    if isinstance(value, str):
        if called := _FUNCTION.fullmatch(value.strip()):
            return None, called[1], ""
        if value.strip() and not isinstance(json_of(value), list):
            return None, None, "is neither a list nor call_function <name>(); any value is allowed"
    entries = _entries(value)
    values = tuple(entry[0] for entry in entries if entry is not None)
    return (
        values or None,
        None,
        "has entries without a plain value, which are left out" if None in entries else "",
    )


def labels(value: Any) -> dict[str, str]:
    """Read the labels of ``bindingData``: allowed value as text -> what a form calls it, if it has a name."""
    return {entry[0]: entry[1] for entry in _entries(value) if entry is not None and entry[1]}


def _entries(value: Any) -> list[tuple[str, str] | None]:
    value = json_of(value) if isinstance(value, str) else value
    return [_entry(item) for item in value[:MAX_BINDING]] if isinstance(value, list) else []


def _entry(item: Any) -> tuple[str, str] | None:
    """Read one choice: its value as text and its label; None if it has no plain value."""
    found, label = (
        (item.get("value"), item.get("label")) if isinstance(item, dict) else (item, None)
    )
    if not isinstance(found, (str, int, float)) or not encodable(as_text(found)):
        return None
    shown = as_text(label) if isinstance(label, (str, int, float)) else ""
    return as_text(found), shown if encodable(shown) else ""


def _validator(value: Any) -> tuple[Validator | None, str]:
    """Read ``validator``: an expression, a range, or nothing. A placeholder in either place means no check."""
    spelled = text(value).strip()
    if not spelled:
        return None, ""
    if expression := _EXPRESSION.fullmatch(spelled):
        pattern = expression[1].strip()
        if len(pattern) > 1 and pattern[0] + pattern[-1] in _QUOTES:
            pattern = pattern[1:-1]
        if pattern.strip() in _PLACEHOLDERS:
            return None, ""
        wrong = flaw(pattern)
        return (
            (None, f"{wrong}, so nothing is checked")
            if wrong
            else (Validator(spelled, pattern=pattern), "")
        )
    if bounds := _RANGE.fullmatch(spelled.translate(_WIDE)):
        return _range(spelled, bounds)
    return None, "is neither regular:'<expression>' nor (lower,upper), so nothing is checked"


def _range(spelled: str, found: re.Match[str]) -> tuple[Validator | None, str]:
    """Read a range. Round brackets alone are the format's only notation and say nothing of the bounds, which then
    belong to it; where a square one is used as well, a round one leaves its bound out."""
    opening, low, high, closing = (part.strip() for part in found.groups())
    lower, upper = number(low), number(high)
    if any(
        read is None and bound.lower() not in _UNBOUNDED
        for bound, read in ((low, lower), (high, upper))
    ):
        return None, "has a bound that is not a number, so nothing is checked"
    if lower is None and upper is None:
        return None, ""
    if lower is not None and upper is not None and lower > upper:
        return None, "has a lower bound above the upper one, so nothing is checked"
    square = opening == "[" or closing == "]"
    lower_open = square and opening == "(" and lower is not None
    upper_open = square and closing == ")" and upper is not None
    return Validator(spelled, lower, upper, lower_open=lower_open, upper_open=upper_open), ""


_RESPELLED = {"editeable": "editable", "redio": "radio"}
"""the format's own misspellings; both forms are read"""


def component(
    document: Any,
    path: str = "",
    *,
    provider: str | None = None,
    version: str | None = None,
) -> tuple[Component, tuple[Problem, ...]]:
    """Read one description, part of a document within its bounds, and return it with its warnings.

    ``provider`` and ``version`` are those it is registered under; they win over the inner ones. Raises
    InvalidDescription with every problem, each under ``path``, and the warnings about what has none.
    """
    if of_another_platform := foreign.description_problems(document, path):
        raise InvalidDescription(bounded(of_another_platform))
    parameters = document.get("inputParam") if isinstance(document, Mapping) else None
    at = join(path, "inputParam")
    problems = [*schema.DESCRIPTION.problems(document, path), *_repeated_names(document, path)]
    problems += misspelled_types(parameters, at)
    if problems:
        vague: list[Problem] = []
        for i, item in enumerate(parameters if isinstance(parameters, list) else ()):
            if schema.DESCRIPTION.fits(
                item, "inputParam"
            ):  # what would be a warning is named with the rest
                problems += within(_parameter(item, join(at, i), vague), join(at, i))
        wrong, about = {p.path for p in problems}, document if isinstance(document, Mapping) else {}
        unusual = [
            *outer_wins(about, path, provider, version),
            *of_component(about, path, whole=False),
            *vague,
        ]
        raise InvalidDescription(
            bounded(problems), bounded(p for p in unusual if p.path not in wrong)
        )
    read, unclear = from_valid(document, path, provider=provider, version=version)
    warnings = chain(
        outer_wins(document, path, provider, version),
        of_component(document, path),
        unclear,
        contradictions(read.parameters, at),
    )
    return read, bounded(warnings)


def from_valid(
    document: Mapping[str, Any],
    path: str = "",
    *,
    provider: str | None = None,
    version: str | None = None,
) -> tuple[Component, list[Problem]]:
    """Read a description whose shape is known to be good; returns it and the warnings about its spellings."""
    unclear: list[Problem] = []
    parameters = tuple(
        _parameter(item, join(path, "inputParam", i), unclear)
        for i, item in enumerate(document["inputParam"])
    )
    read = Component(
        name=document["componentName"],
        title=text(document.get("title")),
        provider=provider or text(document.get("provider")),
        version=version or text(document.get("version")),
        description=text(document.get("description")),
        roles=tuple(dict.fromkeys(document["roleList"])),
        storage_engines=texts(document.get("storageEngine")),
        parameters=parameters,
        inputs=_data(document["inputData"]),
        outputs=_data(document["outputData"]),
        results={
            str(r["resultCode"]): text(r.get("resultMessage")) for r in document.get("result") or ()
        },
        document=dict(document),
    )
    return read, unclear


def _parameter(
    item: Mapping[str, Any],
    path: str,
    unclear: list[Problem],
) -> Parameter:
    """Read one parameter; what its spellings leave unclear is added to ``unclear``."""
    optional, about_optional = _is_optional(item.get("optional"))
    values, function, about_binding = _binding(item.get("bindingData"))
    check, about_check = _validator(item.get("validator"))
    found = {
        "optional": about_optional,
        "bindingData": about_binding,
        "validator": about_check,
    }
    unclear += [
        Problem(join(path, name), rule, item.get(name)) for name, rule in found.items() if rule
    ]
    conditions = item.get("dependsOn")
    default = None if item.get("defaultValue") is None else as_text(item["defaultValue"])
    pattern = text(item.get("UIPattern")) or "editable"
    widget = text(item.get("UIType")) or "input"
    return Parameter(
        name=item["name"],
        title=text(item.get("title")),
        description=text(item.get("description")),
        type=item["type"],
        optional=optional,
        default=default if default is None or default.strip() else "",
        binding=values,
        binding_function=function,
        validator=check,
        depends_on=texts(conditions.split(",") if isinstance(conditions, str) else conditions),
        ui_pattern=_RESPELLED.get(pattern, pattern),
        ui_type=_RESPELLED.get(widget, widget),
        groups=texts(item.get("groupTag")),
    )


def _data(items: list[Mapping[str, Any]]) -> tuple[DataSpec, ...]:
    return tuple(
        DataSpec(d["name"], text(d.get("description")), d["category"], texts(d.get("dataFormat")))
        for d in items
    )


def _repeated_names(document: Any, path: str) -> Iterator[Problem]:
    """Find duplicate names in a list of a document that may break its schema."""
    for field in ("inputParam", "inputData", "outputData"):
        items = document.get(field) if isinstance(document, Mapping) else None
        first: dict[str, int] = {}
        for i, item in enumerate(items if isinstance(items, list) else ()):
            name = item.get("name") if isinstance(item, Mapping) else None
            if isinstance(name, str) and first.setdefault(name, i) != i:
                yield Problem(
                    join(path, field, i, "name"),
                    f"repeats the name of {field}[{first[name]}]",
                    name,
                )
