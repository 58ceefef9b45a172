"""Reads a vendor's self-description, JSON, into a `Component`.

A description is refused if the gateway cannot run the component by it: a field of the wrong shape,
no name, no roles, no list of parameters, inputs or outputs, a duplicate name in a list, a
misspelled type. Fields that are only displayed, and contradictions with which the component may
still work, are warnings: vendors' published descriptions have all of them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from provider_registry import foreign, schema
from provider_registry.lint import (
    component_warnings,
    contradictions,
    misspelled_types,
    parameter_contradictions,
    registration_differences,
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

MAX_BINDING = 1000  # entries read from a list given as JSON text; the schema bounds a real list

_FUNCTION = re.compile(r"call_function\s{1,8}([A-Za-z_][\w.]{0,255})\s{0,8}(?:\(\s{0,8}\))?")
_EXPRESSION = re.compile(r"regular\s{0,8}[:：-](.*)", re.DOTALL)
_RANGE = re.compile(r"([(\[])([^,]{0,64}),([^,]{0,64})([)\]])")
_WIDE_BRACKETS = str.maketrans("（），【】［］", "(),[][]")
_QUOTES = ("''", '""', "‘’", "“”")
_NO_EXPRESSION = ("", "正则项")  # placeholders of the published example: no check
_UNBOUNDED = ("", "inf", "-inf", "+inf", "∞", "-∞", "+∞", "sup")
_RESPELLED = {"editeable": "editable", "redio": "radio"}  # misspelled in the format itself

# ------------------------------------------------------------ a whole description


def component(
    document: Any,
    path: str = "",
    *,
    provider: str | None = None,
    version: str | None = None,
) -> tuple[Component, tuple[Problem, ...]]:
    """Read one description, part of a document within its bounds, and return it with its warnings.

    ``provider`` and ``version`` of the registration win over the description's own. Raises
    InvalidDescription with every problem, each under ``path``, and the warnings about the rest.
    """
    foreign_problems = foreign.description_problems(document, path)
    if foreign_problems:
        raise InvalidDescription(bounded(foreign_problems))
    parameters_path = join(path, "inputParam")
    parameters = document.get("inputParam") if isinstance(document, Mapping) else None
    problems = [
        *schema.DESCRIPTION.problems(document, path),
        *_repeated_names(document, path),
        *misspelled_types(parameters, parameters_path),
    ]
    if problems:
        raise _invalid(document, path, problems, provider, version)
    read, unclear = from_valid(document, path, provider=provider, version=version)
    warnings = chain(
        registration_differences(document, path, provider, version),
        component_warnings(document, path),
        unclear,
        contradictions(read.parameters, parameters_path),
    )
    return read, bounded(warnings)


def _invalid(
    document: Any,
    path: str,
    problems: Sequence[Problem],
    provider: str | None,
    version: str | None,
) -> InvalidDescription:
    """Return the error of an invalid description.

    Contradictions in its valid parameters, warnings otherwise, are reported as problems.
    """
    if not isinstance(document, Mapping):
        document = {}
    contradicting, unclear = _check_valid_parameters(document.get("inputParam"), path)
    problems = [*problems, *contradicting]
    invalid_paths = {problem.path for problem in problems}
    warnings = chain(
        registration_differences(document, path, provider, version),
        component_warnings(document, path, valid=False),
        unclear,
    )
    remaining = [warning for warning in warnings if warning.path not in invalid_paths]
    return InvalidDescription(bounded(problems), bounded(remaining))


def _check_valid_parameters(parameters: Any, path: str) -> tuple[list[Problem], list[Problem]]:
    """Return the contradictions in the parameters that keep the schema, and their unclear spellings."""
    problems: list[Problem] = []
    unclear: list[Problem] = []
    if not isinstance(parameters, list):
        return problems, unclear
    for index, item in enumerate(parameters):
        if schema.DESCRIPTION.accepts_entry(item, "inputParam"):
            item_path = join(path, "inputParam", index)
            parameter = _read_parameter(item, item_path, unclear)
            problems += parameter_contradictions(parameter, item_path)
    return problems, unclear


def _repeated_names(document: Any, path: str) -> Iterator[Problem]:
    """Yield the duplicate names in each list of a document that may break its schema."""
    if not isinstance(document, Mapping):
        return
    for field in ("inputParam", "inputData", "outputData"):
        items = document.get(field)
        if not isinstance(items, list):
            continue
        first_index: dict[str, int] = {}
        for index, item in enumerate(items):
            name = item.get("name") if isinstance(item, Mapping) else None
            if not isinstance(name, str):
                continue
            if name in first_index:
                rule = f"repeats the name of {field}[{first_index[name]}]"
                yield Problem(join(path, field, index, "name"), rule, name)
            else:
                first_index[name] = index


def from_valid(
    document: Mapping[str, Any],
    path: str = "",
    *,
    provider: str | None = None,
    version: str | None = None,
) -> tuple[Component, list[Problem]]:
    """Read a description of valid shape; return it with the warnings about its spellings."""
    unclear: list[Problem] = []
    parameters = tuple(
        _read_parameter(item, join(path, "inputParam", index), unclear)
        for index, item in enumerate(document["inputParam"])
    )
    results = {
        str(result["resultCode"]): text(result.get("resultMessage"))
        for result in document.get("result") or ()
    }
    read = Component(
        name=document["componentName"],
        title=text(document.get("title")),
        provider=provider or text(document.get("provider")),
        version=version or text(document.get("version")),
        description=text(document.get("description")),
        roles=tuple(dict.fromkeys(document["roleList"])),
        storage_engines=texts(document.get("storageEngine")),
        parameters=parameters,
        inputs=_read_data_specs(document["inputData"]),
        outputs=_read_data_specs(document["outputData"]),
        results=results,
        document=dict(document),
    )
    return read, unclear


def _read_data_specs(items: list[Mapping[str, Any]]) -> tuple[DataSpec, ...]:
    return tuple(
        DataSpec(
            name=item["name"],
            description=text(item.get("description")),
            category=item["category"],
            formats=texts(item.get("dataFormat")),
        )
        for item in items
    )


def text(value: Any) -> str:
    """Return display text; empty if the field is absent."""
    if isinstance(value, str):
        return value
    return ""


# ------------------------------------------------------------ one parameter


def _read_parameter(
    item: Mapping[str, Any],
    path: str,
    unclear: list[Problem],
) -> Parameter:
    """Read one parameter; warnings about its spellings are added to ``unclear``."""
    optional, optional_warning = _read_optional(item.get("optional"))
    binding = _read_binding(item.get("bindingData"))
    validator, validator_warning = _read_validator(item.get("validator"))
    warnings = {
        "optional": optional_warning,
        "bindingData": binding.warning,
        "validator": validator_warning,
    }
    for field, rule in warnings.items():
        if rule:
            unclear.append(Problem(join(path, field), rule, item.get(field)))
    conditions = item.get("dependsOn")
    if isinstance(conditions, str):
        conditions = conditions.split(",")
    pattern = text(item.get("UIPattern")) or "editable"
    widget = text(item.get("UIType")) or "input"
    return Parameter(
        name=item["name"],
        title=text(item.get("title")),
        description=text(item.get("description")),
        type=item["type"],
        optional=optional,
        default=_read_default(item.get("defaultValue")),
        binding=binding.values,
        binding_function=binding.function,
        validator=validator,
        depends_on=texts(conditions),
        ui_pattern=_RESPELLED.get(pattern, pattern),
        ui_type=_RESPELLED.get(widget, widget),
        groups=texts(item.get("groupTag")),
    )


def _read_default(value: Any) -> str | None:
    """Return a default as text: None if absent, empty if blank."""
    if value is None:
        return None
    default = as_text(value)
    if not default.strip():
        return ""
    return default


def _read_optional(value: Any) -> tuple[bool, str]:
    """Read ``optional``, a boolean or its text in any case, and a warning; absent means true."""
    spelling = "" if value is None else as_text(value).strip().lower()
    if not spelling:
        return True, "is missing; read as true"
    return spelling != "false", ""


class _Binding(NamedTuple):
    """A read ``bindingData``: the choices as text or a callback's name; neither: any value."""

    values: tuple[str, ...] | None = None
    function: str | None = None
    warning: str = ""


def _read_binding(value: Any) -> _Binding:
    """Read ``bindingData``.

    Forms: a list of {label, value} or of plain values, the same list as JSON text,
    ``call_function name()``, or nothing.
    """
    if isinstance(value, str):
        call = _FUNCTION.fullmatch(value.strip())
        if call:
            return _Binding(function=call[1])
        if value.strip() and not isinstance(json_of(value), list):
            warning = "is neither a list nor call_function <name>(); any value is allowed"
            return _Binding(warning=warning)
    entries = _read_choices(value)
    values = tuple(entry.value for entry in entries if entry is not None)
    warning = ""
    if None in entries:
        warning = "has entries without a plain value, which are left out"
    return _Binding(values=values or None, warning=warning)


def labels(value: Any) -> dict[str, str]:
    """Return the labels of ``bindingData`` by the choice they belong to, without empty ones."""
    choices = [choice for choice in _read_choices(value) if choice is not None]
    return {choice.value: choice.label for choice in choices if choice.label}


class _Choice(NamedTuple):
    """One choice of ``bindingData``: its value as text and its label in a form."""

    value: str
    label: str


def _read_choices(value: Any) -> list[_Choice | None]:
    """Read a list or its JSON text; an entry without a plain value is None."""
    if isinstance(value, str):
        value = json_of(value)
    if not isinstance(value, list):
        return []
    return [_read_choice(item) for item in value[:MAX_BINDING]]


def _read_choice(item: Any) -> _Choice | None:
    value, label = item, None
    if isinstance(item, dict):
        value = item.get("value")
        label = item.get("label")
    if not isinstance(value, (str, int, float)) or not encodable(as_text(value)):
        return None
    label_text = ""
    if isinstance(label, (str, int, float)) and encodable(as_text(label)):
        label_text = as_text(label)
    return _Choice(as_text(value), label_text)


def _read_validator(value: Any) -> tuple[Validator | None, str]:
    """Read ``validator``, an expression or a range, and a warning; a placeholder means no check."""
    spelling = text(value).strip()
    if not spelling:
        return None, ""
    expression = _EXPRESSION.fullmatch(spelling)
    if expression:
        return _read_expression(spelling, expression[1].strip())
    bounds = _RANGE.fullmatch(spelling.translate(_WIDE_BRACKETS))
    if bounds:
        return _read_range(spelling, bounds)
    return None, "is neither regular:'<expression>' nor (lower,upper), so nothing is checked"


def _read_expression(spelling: str, pattern: str) -> tuple[Validator | None, str]:
    if len(pattern) > 1 and pattern[0] + pattern[-1] in _QUOTES:
        pattern = pattern[1:-1]
    if pattern.strip() in _NO_EXPRESSION:
        return None, ""
    wrong = flaw(pattern)
    if wrong:
        return None, f"{wrong}, so nothing is checked"
    return Validator(spelling, pattern=pattern), ""


def _read_range(spelling: str, match: re.Match[str]) -> tuple[Validator | None, str]:
    """Read a range.

    Round brackets alone are the format's only notation and say nothing of the bounds, which then
    belong to the range; next to a square bracket, a round one excludes its bound.
    """
    opening, low, high, closing = (part.strip() for part in match.groups())
    lower = number(low)
    upper = number(high)
    if not _is_bound(low, lower) or not _is_bound(high, upper):
        return None, "has a bound that is not a number, so nothing is checked"
    if lower is None and upper is None:
        return None, ""
    if lower is not None and upper is not None and lower > upper:
        return None, "has a lower bound above the upper one, so nothing is checked"
    has_square = opening == "[" or closing == "]"
    validator = Validator(
        spelling,
        lower,
        upper,
        lower_open=has_square and opening == "(" and lower is not None,
        upper_open=has_square and closing == ")" and upper is not None,
    )
    return validator, ""


def _is_bound(spelling: str, value: float | None) -> bool:
    return value is not None or spelling.lower() in _UNBOUNDED
