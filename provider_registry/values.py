"""A job's parameters validated against the description of their component.

Descriptions in the field contradict jobs that run well with them, so only two things refuse a job: a required
parameter that is missing, and text that cannot be read as the number it is declared to be. Values outside an
enumeration refuse it where the caller is strict. All else is a warning. Defaults are never filled in.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from provider_registry import regex
from provider_registry.model import Component, Parameter, Problem, as_text, bounded, join
from provider_registry.types import Kind, kind_of, number, reads_as

_SHOWN = 20
"""how many allowed values a problem lists"""
_NUMERIC = (Kind.INTEGER, Kind.NUMBER)


class Findings(NamedTuple):
    """What is wrong with a task's parameters: what refuses the job, and what is only reported."""

    errors: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def check(
    parameters: Mapping[str, Any],
    component: Component,
    path: str,
    strict: bool = False,
) -> Findings:
    """Compare the effective parameters of one task with its component's description.

    ``path`` is that of the parameters in the job. ``strict`` makes a value outside bindingData an error.
    A value of None counts as not given, as it never reaches the container.
    """
    declared = {p.name: p for p in component.parameters}
    given = {name: value for name, value in parameters.items() if value is not None}
    errors: list[Problem] = []
    warnings: list[Problem] = []
    for name, value in given.items():
        at = join(path, name)
        if name not in declared:
            warnings.append(Problem(at, f"is not a parameter of {component.name}; passed on as it is", value))
            continue
        parameter = declared[name]
        unreadable, warning = _type_problem(parameter, value)
        if warning:
            (errors if unreadable else warnings).append(Problem(at, warning, value))
        if not _is_listed(parameter, value):
            rule = f"must be one of {_allowed(parameter)}"
            (errors if strict else warnings).append(Problem(at, rule, value))
        warnings += _validator_problem(parameter, value, at)
    for parameter in component.parameters:
        if parameter.name not in given and not parameter.optional:
            at = join(path, parameter.name)
            if _is_shown(parameter, given, declared):
                errors.append(Problem(at, f"is missing; {component.name} requires it"))
            else:
                hint = ", ".join(parameter.depends_on[:_SHOWN])
                warnings.append(Problem(at, f"is missing; required where {hint}"))
    return Findings(bounded(errors), bounded(warnings))


def _type_problem(parameter: Parameter, value: Any) -> tuple[bool, str | None]:
    """Return (whether it refuses the job, rule or None) for a value of another type than the declared one.

    A value that the description itself names, as default or in bindingData, never refuses the job.
    """
    kind = kind_of(parameter.type)
    if isinstance(value, str):
        if kind is Kind.TEXT or kind is Kind.OTHER:
            return False, None
        if not value.strip():
            return False, f"is empty where {parameter.type} is declared"
        if reads_as(kind, value):
            return False, _respelled(kind, value)
        named = value == parameter.default or (parameter.binding is not None and value in parameter.binding)
        return kind in _NUMERIC and not named, f"cannot be read as {parameter.type}"
    if kind is Kind.OTHER or _is_of(kind, value):
        return False, None
    return False, f"is {_name_of(value)} where {parameter.type} is declared"


def _respelled(kind: Kind, text: str) -> str | None:
    """Warn about text that is readable, but perhaps not by every component."""
    if kind is Kind.BOOLEAN and text not in ("true", "false"):
        return "is text for a boolean, and neither true nor false as spelled in JSON"
    if kind is Kind.NUMBER and number(text) is None:
        return "is not a finite number"
    if kind is Kind.INTEGER and not text.strip().lstrip("+-").isdigit():
        return "is a whole number in the spelling of a fraction"
    return None


def _is_of(kind: Kind, value: Any) -> bool:
    """Tell whether a JSON value other than text is of a kind; any scalar counts as text."""
    if isinstance(value, bool):
        return kind in (Kind.BOOLEAN, Kind.TEXT)
    if isinstance(value, int):
        return kind in (Kind.INTEGER, Kind.NUMBER, Kind.TEXT)
    if isinstance(value, float):
        return kind in (Kind.NUMBER, Kind.TEXT)
    return kind is (Kind.OBJECT if isinstance(value, Mapping) else Kind.LIST)


def _name_of(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    return "an object" if isinstance(value, Mapping) else "a list"


def _is_listed(parameter: Parameter, value: Any) -> bool:
    """Tell whether a value is among the allowed ones, if any are listed. Empty text is not a choice.

    Numbers are compared as numbers, booleans without regard to case, and a list by its elements.
    """
    allowed = parameter.binding
    if allowed is None or value == "":
        return True
    if not isinstance(value, (list, tuple, Mapping)):
        return _is_one(parameter, allowed, value)
    choices = _structured(allowed)  # once, and not for each element
    if any(value == choice for choice in choices):
        return True
    if isinstance(value, Mapping):
        return _is_one(parameter, allowed, value)
    elements = [element for element in value if not isinstance(element, (list, tuple))]
    return all(
        element == ""
        or (isinstance(element, Mapping) and element in choices)
        or _is_one(parameter, allowed, element)
        for element in elements
    )


def _is_one(parameter: Parameter, allowed: Sequence[str], value: Any) -> bool:
    """Tell whether a single value is among the allowed ones."""
    text = as_text(value)
    if text in allowed:
        return True
    if kind_of(parameter.type) is Kind.BOOLEAN or isinstance(value, bool):
        return text.lower() in {choice.lower() for choice in allowed}
    read = number(value)
    return read is not None and any(number(choice) == read for choice in allowed)


def _structured(allowed: Sequence[str]) -> list[Any]:
    """Return the choices that are JSON of an object or a list."""
    found = []
    for choice in allowed:
        if choice.lstrip()[:1] in ("{", "["):
            with suppress(ValueError, RecursionError):
                found.append(json.loads(choice))
    return found


def _allowed(parameter: Parameter) -> str:
    values = parameter.binding or ()
    shown = ", ".join(value[:64] for value in values[:_SHOWN])
    return f"{shown}, … ({len(values)} in all)" if len(values) > _SHOWN else shown


def _validator_problem(parameter: Parameter, value: Any, at: str) -> Iterator[Problem]:
    """Check a value against the range or the expression of its parameter. Empty text is not matched."""
    check = parameter.validator
    if check is None or value == "":
        return
    if check.pattern is None:
        read = number(value)
        if read is not None and not check.in_range(read):
            yield Problem(at, f"must lie within {check.text}", value)
        return
    matches = regex.full_match(check.pattern, as_text(value))
    if matches is False:
        yield Problem(at, f"must match {check.pattern}", value)
    elif matches is None:
        yield Problem(at, f"could not be checked against {check.pattern}", value)


def _is_shown(parameter: Parameter, given: Mapping[str, Any], declared: Mapping[str, Parameter]) -> bool:
    """Tell whether a form would show a parameter: it has no condition, or one of them holds.

    ``name.value`` holds if that parameter has that value, given or by default; ``name`` if it is given.
    """
    return not parameter.depends_on or any(_holds(c, given, declared) for c in parameter.depends_on)


def _holds(condition: str, given: Mapping[str, Any], declared: Mapping[str, Parameter]) -> bool:
    if condition in declared:
        return condition in given
    name, _, wanted = condition.partition(".")
    other = declared.get(name)
    if other is None:
        return True
    return as_text(given.get(name, other.default or "")).lower() == wanted.lower()
