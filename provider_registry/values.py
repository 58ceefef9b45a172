"""A task validated against the description of its component: its parameters, inputs and outputs.

What refuses a job: a required parameter that is missing, and text that cannot be read as the number it is declared
to be. Published descriptions contradict published jobs that run well with them, so all else is a warning. A vendor
whose description lists every value can ask for more (``strict``): then a value of the declared type that is not
among the choices or lies out of range refuses the job as well, unless the description names that value itself or
leaves its own range. Defaults are never filled in.

A flow has its own keys (``data0``, ``report1``), a description its own names (``train_data``, ``train-auc``), and
the standard does not say how they meet. Rule: within a group (data, model, metric) equal names first, then what is
left by position.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import re2

from provider_registry.model import (
    Component,
    DataSpec,
    Parameter,
    Problem,
    as_text,
    bounded,
    encodable,
    group_of,
    join,
    near,
)

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

MAX_PATTERN = 512
MAX_VALUE = 4096
_MEMORY = 256 * 1024
"""bytes that RE2 may use for one expression; it refuses those that need more"""


class Kind(StrEnum):
    """What a value is read as, by its type in a JSON Schema; ``other``: it is not read at all."""

    TEXT = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    OBJECT = "object"
    LIST = "array"
    OTHER = "other"


NAMES = {
    **dict.fromkeys(("string", "str", "text"), Kind.TEXT),
    **dict.fromkeys(("int", "integer", "long"), Kind.INTEGER),
    **dict.fromkeys(("float", "double", "number"), Kind.NUMBER),
    **dict.fromkeys(("bool", "boolean"), Kind.BOOLEAN),
    **dict.fromkeys(("object", "json", "dict", "map"), Kind.OBJECT),
    **dict.fromkeys(("list", "array"), Kind.LIST),
}


def kind_of(declared: str) -> Kind:
    """Return what a type's name means, however it is spelled."""
    return NAMES.get(declared.strip().lower(), Kind.OTHER)


def number(value: Any) -> float | None:
    """Read a JSON number or its decimal text as a finite number; None if it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value.strip()):
            return None
    elif not isinstance(value, (int, float)):
        return None
    try:
        read = float(value)
    except OverflowError:
        return None
    return read if math.isfinite(read) else None


def reads_as(kind: Kind, text: str) -> bool:
    """Tell whether text can be read as a value of a kind. Every text is a text, and of a kind we do not know.

    ``12.0`` is a whole number; ``inf`` and ``1e999`` are numbers, ``1_000`` is not.
    """
    text = text.strip()
    match kind:
        case Kind.INTEGER:
            read = None if _INTEGER.fullmatch(text) else number(text)
            return bool(_INTEGER.fullmatch(text)) or (read is not None and read.is_integer())
        case Kind.NUMBER:
            return bool(_NUMBER.fullmatch(text)) or text.lower().lstrip("+-") in (
                "inf",
                "infinity",
                "nan",
            )
        case Kind.BOOLEAN:
            return text.lower() in ("true", "false")
        case Kind.OBJECT:
            return isinstance(json_of(text), dict)
        case Kind.LIST:
            return isinstance(json_of(text), list)
    return True


def json_of(text: str) -> Any:
    """Return the JSON value that a text spells; None if it spells none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def flaw(pattern: str) -> str | None:
    """Say why an expression cannot be used; None if it can."""
    if len(pattern) > MAX_PATTERN:
        return f"is longer than {MAX_PATTERN} characters"
    found = _compiled(pattern)
    return (
        f"is not a regular expression that RE2 supports ({found})"
        if isinstance(found, str)
        else None
    )


def full_match(pattern: str, value: str) -> bool | None:
    """Tell whether the whole value matches; None where the value is too long, or one of the two cannot be used."""
    found = _compiled(pattern) if len(pattern) <= MAX_PATTERN else ""
    if isinstance(found, str) or len(value) > MAX_VALUE or not encodable(value):
        return None
    return found.fullmatch(value) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    """Return an expression ready for use, or the reason why there is none."""
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MEMORY
    try:
        return re2.compile(pattern, options)
    except UnicodeEncodeError as error:
        return str(error)
    except re2.error as error:
        [reason] = error.args
        return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


_SHOWN = 20
"""how many allowed values a problem lists"""
_NUMERIC = (Kind.INTEGER, Kind.NUMBER)
_ALIKE, _COMPARED = 0.75, 100
"""how alike a known parameter must be to be the one that was meant, and how many are looked at"""
_VALUES: tuple[tuple[type, str, tuple[Kind, ...]], ...] = (
    (bool, "a boolean", (Kind.BOOLEAN, Kind.TEXT)),
    (int, "a number", (Kind.INTEGER, Kind.NUMBER, Kind.TEXT)),
    (float, "a number", (Kind.NUMBER, Kind.TEXT)),
    (Mapping, "an object", (Kind.OBJECT,)),
    (object, "a list", (Kind.LIST,)),
)
"""the JSON values other than text, the first that fits, and the kinds that they belong to"""


class Findings(NamedTuple):
    """What is wrong with a task's parameters: what refuses the job, and what is only reported."""

    errors: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def check(
    parameters: Mapping[str, Any],
    component: Component,
    path: str,
    *,
    strict: bool = False,
) -> Findings:
    """Compare the effective parameters of one task with its component's description.

    ``path`` is that of the parameters in the job. A value of None counts as not given, as it never reaches the
    container. ``strict``: values outside choices and ranges refuse the job.
    """
    declared = {p.name: p for p in component.parameters}
    given = {name: value for name, value in parameters.items() if value is not None}
    errors: list[Problem] = []
    warnings: list[Problem] = []
    for name, value in given.items():
        at = join(path, name)
        if name not in declared:
            rule = f"is not a parameter of {component.name}; passed on as it is"
            free = [one for one in islice(declared, _COMPARED) if one not in given]
            meant = near(name, free, _ALIKE) if len(warnings) < _COMPARED else ""
            warnings.append(Problem(at, rule, value, meant))
            continue
        parameter = declared[name]
        unreadable, warning = _type_problem(parameter, value)
        if warning:
            (errors if unreadable else warnings).append(Problem(at, warning, value))
        if not _is_listed(parameter, value):
            allowed = parameter.binding or ()
            rule, meant = f"is none of {listed(allowed, _SHOWN)}", near(as_text(value), allowed)
            refuses = (
                strict and not warning
            )  # choices are no statement about values of another type
            (errors if refuses else warnings).append(Problem(at, rule, value, meant))
        refuses = strict and _range_binds(parameter, value)
        (errors if refuses else warnings).extend(_validator_problem(parameter, value, at))
    for parameter in component.parameters:
        if parameter.name not in given and not parameter.optional:
            at = join(path, parameter.name)
            conditions = parameter.depends_on
            if not conditions or any(
                _holds(c, given, declared) for c in conditions
            ):  # a form would show it
                errors.append(Problem(at, f"is missing; {component.name} requires it"))
            else:
                hint = ", ".join(conditions[:_SHOWN])
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
        if kind is Kind.BOOLEAN and reads_as(kind, value) and value not in ("true", "false"):
            return False, "is text for a boolean, and neither true nor false as spelled in JSON"
        if reads_as(kind, value):
            return False, None
        return kind in _NUMERIC and value not in _named(
            parameter
        ), f"cannot be read as {parameter.type}"
    name, kinds = next((name, kinds) for types, name, kinds in _VALUES if isinstance(value, types))
    fits = kind is Kind.OTHER or kind in kinds  # any scalar counts as text
    return False, None if fits else f"is {name} where {parameter.type} is declared"


def _named(parameter: Parameter) -> tuple[str, ...]:
    """Return the values that the description itself names, as default or in bindingData."""
    return (*((parameter.default,) if parameter.default else ()), *(parameter.binding or ()))


def _range_binds(parameter: Parameter, value: Any) -> bool:
    """Tell whether a value may be refused for its range: the description keeps to the range itself."""
    check = parameter.validator
    if check is None or check.pattern is not None:
        return False
    named = [read for text in _named(parameter) if (read := number(text)) is not None]
    return number(value) is not None and all(map(check.in_range, named))


def _is_listed(parameter: Parameter, value: Any) -> bool:
    """Tell whether a value is an allowed one or the default, if any are listed. Empty text is not a choice.

    Numbers are compared as numbers, booleans without regard to case, and a list by its elements.
    """
    allowed = parameter.binding
    if allowed is None or value == "" or as_text(value) == parameter.default:
        return True
    if not isinstance(value, (list, tuple, Mapping)):
        return _is_one(parameter, allowed, value)
    choices = [json_of(choice) for choice in allowed if choice.lstrip()[:1] in ("{", "[")]
    if any(value == choice for choice in choices):
        return True
    if isinstance(value, Mapping):
        return _is_one(parameter, allowed, value)
    return all(
        element == ""
        or isinstance(element, (list, tuple))
        or (isinstance(element, Mapping) and element in choices)
        or _is_one(parameter, allowed, element)
        for element in value
    )


def _is_one(
    parameter: Parameter,
    allowed: Sequence[str],
    value: Any,
) -> bool:
    """Tell whether a single value is among the allowed ones."""
    text = as_text(value)
    if text in allowed:
        return True
    if kind_of(parameter.type) is Kind.BOOLEAN or isinstance(value, bool):
        return text.lower() in {choice.lower() for choice in allowed}
    read = number(value)
    return read is not None and any(number(choice) == read for choice in allowed)


def listed(values: Sequence[str], most: int) -> str:
    """Return values in one line, of many the first few."""
    shown = ", ".join(value[:64] for value in values[:most])
    return f"{shown}, … ({len(values)})" if len(values) > most else shown


def _validator_problem(
    parameter: Parameter,
    value: Any,
    at: str,
) -> Iterator[Problem]:
    """Check a value against the range or the expression of its parameter. Empty text is not matched."""
    check = parameter.validator
    if check is None or value == "":
        return
    if check.pattern is None:
        read = number(value)
        if read is not None and not check.in_range(read):
            yield Problem(at, f"lies outside {check.text}", value)
        return
    matches = full_match(check.pattern, as_text(value))
    if matches is False:
        yield Problem(at, f"must match {check.pattern}", value)
    elif matches is None:
        yield Problem(at, f"could not be checked against {check.pattern}", value)


def _holds(
    condition: str,
    given: Mapping[str, Any],
    declared: Mapping[str, Parameter],
) -> bool:
    """``name.value`` holds if that parameter has that value, given or by default; ``name`` if it is given."""
    if condition in declared:
        return condition in given
    name, _, wanted = condition.partition(".")
    other = declared.get(name)
    if other is None:
        return True
    return as_text(given.get(name, other.default or "")).lower() == wanted.lower()


def match_outputs(
    dag_outputs: Sequence[tuple[str, str]], specs: Sequence[DataSpec]
) -> dict[str, str]:
    """Match a flow's outputs, each (type, key), with a component's: key -> name in the description."""
    return _match([(kind, key, key) for kind, key in dag_outputs], specs)


def match_inputs(
    dag_inputs: Sequence[tuple[str, str]], specs: Sequence[DataSpec]
) -> dict[str, str]:
    """Match a flow's inputs, each (type, ``<task>.<key>``), with a component's; the names compared are the keys.

    An input that no upstream task feeds belongs to the first of the component's inputs and is not listed here.
    """
    return _match([(kind, key, key.partition(".")[2] or key) for kind, key in dag_inputs], specs)


def format_problem(
    format_name: str,
    spec: DataSpec,
    path: str,
) -> Problem | None:
    """Say that an input does not list the format of what would feed it; None if it does, or lists none."""
    if not spec.formats or format_name.lower() in (f.lower() for f in spec.formats):
        return None
    return Problem(
        path,
        f"is {format_name}; input {spec.name} reads {', '.join(spec.formats[:20])}",
        format_name,
    )


def _match(wanted: Sequence[tuple[str, str, str]], specs: Sequence[DataSpec]) -> dict[str, str]:
    """Match (type, key in the flow, name to compare); a duplicate key is matched once."""
    free, left, names = list(specs), list(wanted), dict[str, str]()
    for by_name in (True, False):
        waiting, left = left, []
        for kind, key, name in waiting:
            fit = (s for s in free if s.group == group_of(kind) and (s.name == name or not by_name))
            if key in names or (found := next(fit, None)) is None:
                left.append((kind, key, name))
            else:
                names[key] = found.name
                free.remove(found)
    return {key: names[key] for _, key, _ in wanted if key in names}
