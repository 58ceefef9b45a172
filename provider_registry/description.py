"""A vendor's self-description, JSON, read into a `Component`.

Refused is what leaves the gateway unable to run the component: a field of the wrong shape, no name, no roles, no
list of parameters, inputs or outputs, a duplicate name in a list. What is only shown to people, or contradicts
itself while the component may still work, is a warning: vendors' published descriptions do all of that.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from provider_registry import regex, schema
from provider_registry.lint import contradictions, of_component, outer_wins
from provider_registry.model import (
    Component,
    DataSpec,
    InvalidDescription,
    Parameter,
    Problem,
    ResultCode,
    Validator,
    as_text,
    bounded,
    encodable,
    join,
)
from provider_registry.types import number

MAX_BINDING = 1000
"""values that are read from a list given as JSON text; a real list is bounded by the schema"""

_FUNCTION = re.compile(r"call_function\s{1,8}([A-Za-z_][\w.]{0,255})\s{0,8}(?:\(\s{0,8}\))?")
_EXPRESSION = re.compile(r"regular\s{0,8}[:：-](.*)", re.DOTALL)
_RANGE = re.compile(r"([(\[])([^,]{0,64}),([^,]{0,64})([)\]])")
_BARE_RANGE = re.compile(r"\s{0,8}([\d.eE+-]{1,32}|-?inf)\s{0,8}[,;~]\s{0,8}([\d.eE+-]{1,32}|inf)\s{0,8}")
_WIDE = str.maketrans("（），【】［］", "(),[][]")
_QUOTES = ("''", '""', "‘’", "“”")
_PLACEHOLDERS = ("", "正则项")
"""what the published example has in place of an expression: no check"""
_UNBOUNDED = ("", "inf", "-inf", "+inf", "∞", "-∞", "+∞", "sup")


def text(value: Any) -> str:
    """Return display text: absent is empty."""
    return value if isinstance(value, str) else ""


def texts(value: Any) -> tuple[str, ...]:
    """Read a list of texts, or one text for a list of one; blanks are left out."""
    values = [value] if isinstance(value, str) else value or []
    return tuple(v.strip() for v in values if v.strip())


def is_optional(value: Any) -> tuple[bool, str | None]:
    """Read ``optional``: a boolean, its text in any case, or nothing, which means that it may be omitted."""
    if isinstance(value, bool):
        return value, None
    spelled = text(value).strip().lower()
    return spelled != "false", None if spelled else "is missing; read as true"


def binding(value: Any) -> tuple[tuple[str, ...] | None, str | None, str | None]:
    """Read ``bindingData``: (allowed values as text, or None; callback's name, or None; warning).

    Forms: a list of {label, value} or of plain values, the same list as JSON text, ``call_function name()``,
    or nothing.
    """
    if isinstance(value, str):
        if not value.strip():
            return None, None, None
        called = _FUNCTION.fullmatch(value.strip())
        if called:
            return None, called[1], None
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, list):
            return None, None, "is neither a list nor call_function <name>(); any value is allowed"
    entries = [_entry(item) for item in (value or [])[:MAX_BINDING]]
    values = tuple(entry[0] for entry in entries if entry is not None)
    warning = "has entries without a plain value, which are left out" if None in entries else None
    return values or None, None, warning


def labels(value: Any) -> dict[str, str]:
    """Read the labels of ``bindingData``: allowed value as text -> what a form calls it, if it has a name."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    entries = map(_entry, value[:MAX_BINDING] if isinstance(value, list) else ())
    return {entry[0]: entry[1] for entry in entries if entry is not None and entry[1]}


def _entry(item: Any) -> tuple[str, str] | None:
    """Read one choice: its value as text and its label; None if it has no plain value."""
    found, label = (item.get("value"), item.get("label")) if isinstance(item, dict) else (item, None)
    if not isinstance(found, (str, int, float)) or not encodable(as_text(found)):
        return None
    shown = as_text(label) if isinstance(label, (str, int, float)) else ""
    return as_text(found), shown if encodable(shown) else ""


def validator(value: Any) -> tuple[Validator | None, str | None]:
    """Read ``validator``: an expression, a range, or nothing. A placeholder in either place means no check."""
    spelled = text(value).strip()
    if not spelled:
        return None, None
    expression = _EXPRESSION.fullmatch(spelled)
    if expression:
        return _expression(spelled, expression[1].strip())
    bounds = _RANGE.fullmatch(spelled.translate(_WIDE))
    if bounds:
        return _range(spelled, bounds)
    return None, "is neither regular:'<expression>' nor (lower,upper); nothing is checked"


def _expression(spelled: str, pattern: str) -> tuple[Validator | None, str | None]:
    if len(pattern) > 1 and pattern[0] + pattern[-1] in _QUOTES:
        pattern = pattern[1:-1]
    if pattern.strip() in _PLACEHOLDERS:
        return None, None
    flaw = regex.flaw(pattern)
    if flaw:
        return None, f"{flaw}; nothing is checked"
    return Validator(spelled, pattern=pattern), None


def _range(spelled: str, found: re.Match[str]) -> tuple[Validator | None, str | None]:
    """Read a range. Round brackets alone are the format's only notation and say nothing of the bounds, which then
    belong to it; where a square one is used as well, a round one leaves its bound out."""
    opening, low, high, closing = (part.strip() for part in found.groups())
    bounds: list[float | None] = []
    for bound in (low, high):
        read = number(bound)
        if read is None and bound.lower() not in _UNBOUNDED:
            return None, "has a bound that is not a number; nothing is checked"
        bounds.append(read)
    lower, upper = bounds
    if lower is None and upper is None:
        return None, None
    if lower is not None and upper is not None and lower > upper:
        return None, "has a lower bound above the upper one; nothing is checked"
    square = opening == "[" or closing == "]"
    lower_open = square and opening == "(" and lower is not None
    upper_open = square and closing == ")" and upper is not None
    return Validator(spelled, lower, upper, lower_open=lower_open, upper_open=upper_open), None


def suggested(validator: Any) -> str:
    """Return how a check that cannot be read may have been meant; empty where that is not obvious."""
    spelled = text(validator).strip()
    if _EXPRESSION.fullmatch(spelled):
        return ""
    bare = _BARE_RANGE.fullmatch(spelled)
    if bare:
        return f"({bare[1]},{bare[2]})"
    bounds = _RANGE.fullmatch(spelled.translate(_WIDE))
    if bounds:
        low, high = number(bounds[2].strip()), number(bounds[3].strip())
        turned = low is not None and high is not None and low > high
        return f"{bounds[1]}{bounds[3].strip()},{bounds[2].strip()}{bounds[4]}" if turned else ""
    if spelled.startswith("^") or spelled.endswith("$"):
        return f"regular:'{spelled[:128]}'"
    word, colon, rest = spelled.partition(":")
    return f"regular:{rest[:128]}" if colon and word.lower().startswith("reg") else ""


_RESPELLED = {"editeable": "editable", "redio": "radio"}
"""the format's own misspellings; both forms are read"""


def component(
    document: Any, path: str = "", *, provider: str | None = None, version: str | None = None
) -> tuple[Component, tuple[Problem, ...]]:
    """Read one description, part of a document within its bounds, and return it with its warnings.

    ``provider`` and ``version`` are those it is registered under; they win over the inner ones. Raises
    InvalidDescription with every problem, each under ``path``.
    """
    problems = [*schema.DESCRIPTION.problems(document, path), *_repeated_names(document, path)]
    if problems:
        raise InvalidDescription(bounded(problems))
    read, unclear = from_valid(document, path, provider=provider, version=version)
    warnings = chain(
        outer_wins(document, path, provider, version),
        of_component(read, document, path),
        unclear,
        contradictions(read.parameters, join(path, "inputParam")),
    )
    return read, bounded(warnings)


def from_valid(
    document: Mapping[str, Any], path: str = "", *, provider: str | None = None, version: str | None = None
) -> tuple[Component, list[Problem]]:
    """Read a description whose shape is known to be good; returns it and the warnings about its spellings."""
    unclear: list[Problem] = []
    parameters = tuple(
        _parameter(item, join(path, "inputParam", i), unclear) for i, item in enumerate(document["inputParam"])
    )
    read = Component(
        name=document["componentName"],
        title=text(document.get("title")),
        provider=provider or text(document.get("provider")),
        version=version or text(document.get("version")),
        description=text(document.get("description")),
        roles=tuple(dict.fromkeys(document["roleList"])),
        description_version=text(document.get("desVersion")),
        storage_engines=texts(document.get("storageEngine")),
        parameters=parameters,
        inputs=tuple(map(_data, document["inputData"])),
        outputs=tuple(map(_data, document["outputData"])),
        results=tuple(
            ResultCode(str(item["resultCode"]), text(item.get("resultMessage")))
            for item in document.get("result") or ()
        ),
        document=dict(document),
    )
    return read, unclear


def _parameter(item: Mapping[str, Any], path: str, unclear: list[Problem]) -> Parameter:
    """Read one parameter; what its spellings leave unclear is added to ``unclear``."""
    optional, about_optional = is_optional(item.get("optional"))
    values, function, about_binding = binding(item.get("bindingData"))
    check, about_check = validator(item.get("validator"))
    found = {"optional": about_optional, "bindingData": about_binding, "validator": about_check}
    for name, warning in found.items():
        if warning:
            hint = suggested(item.get(name)) if name == "validator" else ""
            unclear.append(Problem(join(path, name), warning, item.get(name), hint))
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


def _data(item: Mapping[str, Any]) -> DataSpec:
    return DataSpec(
        name=item["name"],
        description=text(item.get("description")),
        category=item["category"],
        formats=texts(item.get("dataFormat")),
    )


def _repeated_names(document: Any, path: str) -> Iterator[Problem]:
    """Find duplicate names in a list of a document that may break its schema."""
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
