"""Checks a task against the description of its component: its parameters, inputs and outputs.

A job is refused for a required parameter that is missing, and for text that cannot be read as the
declared number. Published descriptions contradict published jobs that run well with them, so
everything else is a warning. A vendor whose descriptions list every value can ask for more
(``strict``): a value of the declared type that is not among the choices or out of range then
refuses the job as well. The description's own default never does, and a range refuses nothing if
the default or a choice lies outside it. Defaults are never filled in.

A flow has its own keys (``data0``, ``report1``), a description its own names (``train_data``,
``train-auc``), and the standard does not say how they correspond. Our rule: within a group (data,
model, metric), equal names belong together; the rest is matched by position.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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

MAX_PATTERN = 512  # characters
MAX_VALUE = 4096  # characters; longer values are not matched against an expression
MAX_PATTERN_MEMORY = 256 * 1024  # bytes; RE2 refuses expressions that need more
MAX_LISTED_CHOICES = 20  # in a message
MAX_LISTED_FORMATS = 20  # in a message
MAX_CHOICE_LENGTH = 64  # characters of each choice in a message
SIMILARITY = 0.75  # the least similarity of a name that is suggested for an unknown parameter
MAX_SUGGESTIONS = 100  # per task; also the number of parameters compared for each

# Decimal digits only: Python's int() and float() would also accept 1_000 and other scripts' digits.
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SPECIAL_NUMBERS = ("inf", "infinity", "nan")

# ------------------------------------------------------------ types of values


class ValueKind(StrEnum):
    """The kinds of values that parameters can have, by their names in JSON Schema.

    OTHER, which JSON Schema does not have, is the kind of all types that vendors invented: their
    values are not checked.
    """

    TEXT = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    OBJECT = "object"
    LIST = "array"
    OTHER = "other"


# All spellings of a declared type, in lower case; any other one is OTHER.
TYPE_NAMES = {
    **dict.fromkeys(("string", "str", "text"), ValueKind.TEXT),
    **dict.fromkeys(("int", "integer", "long"), ValueKind.INTEGER),
    **dict.fromkeys(("float", "double", "number"), ValueKind.NUMBER),
    **dict.fromkeys(("bool", "boolean"), ValueKind.BOOLEAN),
    **dict.fromkeys(("object", "json", "dict", "map"), ValueKind.OBJECT),
    **dict.fromkeys(("list", "array"), ValueKind.LIST),
}

_NUMERIC = (ValueKind.INTEGER, ValueKind.NUMBER)


def kind_of(type_name: str) -> ValueKind:
    """Return the kind of a declared type in any of its spellings."""
    return TYPE_NAMES.get(
        type_name.strip().lower(),
        ValueKind.OTHER,
    )


def number(value: Any) -> float | None:
    """Return a JSON number, or the number that a decimal text spells.

    Returns None for anything else, for infinity and NaN, and for a number too large for a float.
    """
    if not _is_decimal(value):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    if not math.isfinite(result):
        return None
    return result


def _is_decimal(value: Any) -> bool:
    """Return whether a value is a number of JSON, or the text of a decimal number."""
    if isinstance(value, str):
        return _NUMBER.fullmatch(value.strip()) is not None
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def reads_as(kind: ValueKind, text: str) -> bool:
    """Return whether a text spells a value of a kind; any text does for TEXT and OTHER.

    ``12.0`` is a whole number; ``inf`` and ``1e999`` are numbers, ``1_000`` is not.
    """
    reads = _READERS.get(kind)
    if reads is None:
        return True
    return reads(text.strip())


def _reads_as_integer(text: str) -> bool:
    """Return whether a text is a whole number, perhaps with a fraction of zero."""
    if _INTEGER.fullmatch(text):
        return True
    value = number(text)
    return value is not None and value.is_integer()


def _reads_as_number(text: str) -> bool:
    """Return whether a text is a decimal number, infinity or NaN."""
    if _NUMBER.fullmatch(text):
        return True
    return text.lower().lstrip("+-") in _SPECIAL_NUMBERS


def _reads_as_boolean(text: str) -> bool:
    """Return whether a text is true or false, in any case."""
    return text.lower() in ("true", "false")


def _reads_as_object(text: str) -> bool:
    """Return whether a text is a JSON object."""
    return isinstance(json_of(text), dict)


def _reads_as_list(text: str) -> bool:
    """Return whether a text is a JSON list."""
    return isinstance(json_of(text), list)


# Kinds without an entry accept any text.
_READERS: Mapping[ValueKind, Callable[[str], bool]] = {
    ValueKind.INTEGER: _reads_as_integer,
    ValueKind.NUMBER: _reads_as_number,
    ValueKind.BOOLEAN: _reads_as_boolean,
    ValueKind.OBJECT: _reads_as_object,
    ValueKind.LIST: _reads_as_list,
}


def json_of(text: str) -> Any:
    """Parse text as JSON; None if it is not JSON, or JSON's null."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


# ------------------------------------------------------------ regular expressions


def flaw(pattern: str) -> str | None:
    """Return the reason why a regular expression cannot be used; None if it can."""
    if len(pattern) > MAX_PATTERN:
        return f"is longer than {MAX_PATTERN} characters"
    expression = _compile(pattern)
    if expression.error:
        return f"is not a regular expression that RE2 supports ({expression.error})"
    return None


def full_match(pattern: str, value: str) -> bool | None:
    """Return whether a regular expression matches a whole value.

    Returns None if the expression or the value cannot be used: too long, or not in UTF-8.
    """
    is_usable_value = len(value) <= MAX_VALUE and encodable(value)
    if not is_usable_value or flaw(pattern) is not None:
        return None
    return _compile(pattern).compiled.fullmatch(value) is not None


@dataclass(frozen=True)
class _Expression:
    """A compiled RE2 expression, or the error of its compilation."""

    compiled: Any = None
    error: str = ""


@lru_cache(maxsize=256)
def _compile(pattern: str) -> _Expression:
    """Compile an expression with RE2, which matches in linear time: it comes from a vendor."""
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MAX_PATTERN_MEMORY
    try:
        return _Expression(compiled=re2.compile(pattern, options))
    except UnicodeEncodeError as error:
        return _Expression(error=str(error))
    except re2.error as error:
        return _Expression(error=_reason(error))


def _reason(error: Exception) -> str:
    """Return the message of an error of RE2, which has it as text or bytes."""
    [reason] = error.args
    if isinstance(reason, bytes):
        return reason.decode("utf-8", "replace")
    return str(reason)


# ------------------------------------------------------------ parameters


class Findings(NamedTuple):
    """Problems of a task's parameters: errors refuse the job, warnings are only reported."""

    errors: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def check(
    parameters: Mapping[str, Any],
    component: Component,
    path: str,
    *,
    strict: bool = False,
) -> Findings:
    """Compare the parameters of one task with the description of its component.

    - ``parameters``: the effective values by name; None counts as missing, since the container does
      not get it
    - ``path``: of the parameters in the job; the problems' paths begin with it
    - ``strict``: a value outside choices or range refuses the job
    """
    values = {name: value for name, value in parameters.items() if value is not None}
    return _ParameterCheck(component, values, path, strict).run()


class _ParameterCheck:
    """One check of a task's parameters, which collects their problems."""

    def __init__(
        self,
        component: Component,
        values: Mapping[str, Any],
        path: str,
        strict: bool,
    ) -> None:
        """Take what `check` takes; ``values`` are the parameters that are not None."""
        self._component = component
        self._declared = {parameter.name: parameter for parameter in component.parameters}
        self._values = values
        self._path = path
        self._strict = strict
        self._errors: list[Problem] = []
        self._warnings: list[Problem] = []

    def run(self) -> Findings:
        """Check the values in their order, then the missing parameters."""
        for name, value in self._values.items():
            parameter = self._declared.get(name)
            if parameter is None:
                self._warn_of_unknown(name, value)
            else:
                self._check_value(parameter, value)
        for parameter in self._component.parameters:
            is_missing = parameter.name not in self._values
            if is_missing and not parameter.optional:
                self._report_missing(parameter)
        return Findings(bounded(self._errors), bounded(self._warnings))

    def _report(
        self,
        problem: Problem,
        *,
        refuses: bool,
    ) -> None:
        """Add a problem that refuses the job, or a warning."""
        if refuses:
            self._errors.append(problem)
        else:
            self._warnings.append(problem)

    def _warn_of_unknown(self, name: str, value: Any) -> None:
        """Warn of an unknown parameter; suggest a similar one that has no value."""
        rule = f"is not a parameter of {self._component.name}; passed on as it is"
        suggestion = ""
        if len(self._warnings) < MAX_SUGGESTIONS:
            compared = islice(self._declared, MAX_SUGGESTIONS)
            unused = [parameter for parameter in compared if parameter not in self._values]
            suggestion = near(name, unused, SIMILARITY)
        self._warnings.append(Problem(join(self._path, name), rule, value, suggestion))

    def _check_value(self, parameter: Parameter, value: Any) -> None:
        """Report a value of another type, outside the choices, or against the validator."""
        path = join(self._path, parameter.name)
        mismatch = _type_mismatch(parameter, value)
        if mismatch is not None:
            self._report(
                Problem(path, mismatch.rule, value),
                refuses=mismatch.refuses,
            )
        if not _is_allowed(parameter, value):
            choices = parameter.binding or ()
            rule = f"is none of {list_limited(choices, MAX_LISTED_CHOICES)}"
            problem = Problem(
                path,
                rule,
                value,
                near(as_text(value), choices),
            )
            # Choices say nothing about values of another type.
            self._report(problem, refuses=self._strict and mismatch is None)
        broken_rule = _validator_rule(parameter, value)
        if broken_rule:
            refuses = self._strict and _range_may_refuse(parameter)
            self._report(
                Problem(path, broken_rule, value),
                refuses=refuses,
            )

    def _report_missing(self, parameter: Parameter) -> None:
        """Report a required parameter without a value.

        It refuses the job if the parameter has no `depends_on` or one of those conditions holds
        (then a form would show it); otherwise it is only a warning.
        """
        path = join(self._path, parameter.name)
        conditions = parameter.depends_on
        is_shown = not conditions or any(self._holds(condition) for condition in conditions)
        if is_shown:
            rule = f"is missing; {self._component.name} requires it"
            self._errors.append(Problem(path, rule))
        else:
            hint = ", ".join(conditions[:MAX_LISTED_CHOICES])
            self._warnings.append(Problem(path, f"is missing; required where {hint}"))

    def _holds(self, condition: str) -> bool:
        """Return whether a condition (an entry of a parameter's ``depends_on``) holds.

        ``name.value`` holds if that parameter has that value, set or by default; ``name`` holds if
        it is set. A condition on an unknown parameter always holds.
        """
        if condition in self._declared:
            return condition in self._values
        name, _, expected = condition.partition(".")
        parameter = self._declared.get(name)
        if parameter is None:
            return True
        value = self._values.get(name, parameter.default or "")
        return as_text(value).lower() == expected.lower()


@dataclass(frozen=True)
class _TypeMismatch:
    """A problem with the type of a value: its rule, and whether it refuses the job."""

    rule: str
    refuses: bool = False


def _type_mismatch(parameter: Parameter, value: Any) -> _TypeMismatch | None:
    """Compare a value with the declared type; None if it fits or the type is unknown."""
    kind = kind_of(parameter.type)
    if kind is ValueKind.OTHER:
        return None
    if isinstance(value, str):
        return _text_mismatch(parameter, kind, value)
    type_name, kinds = _json_type(value)
    if kind in kinds:
        return None
    return _TypeMismatch(f"is {type_name} where {parameter.type} is declared")


def _text_mismatch(
    parameter: Parameter,
    kind: ValueKind,
    value: str,
) -> _TypeMismatch | None:
    """Compare text with the declared type; None if it fits.

    Only text for a number can refuse the job, and not if the description itself names that text,
    as the default or a choice.
    """
    if kind is ValueKind.TEXT:
        return None
    if not value.strip():
        return _TypeMismatch(f"is empty where {parameter.type} is declared")
    if not reads_as(kind, value):
        refuses = kind in _NUMERIC and value not in _named_values(parameter)
        return _TypeMismatch(f"cannot be read as {parameter.type}", refuses)
    if kind is ValueKind.BOOLEAN and value not in ("true", "false"):
        rule = "is text for a boolean, and not in lower case as in JSON (true, false)"
        return _TypeMismatch(rule)
    return None


def _json_type(value: Any) -> tuple[str, tuple[ValueKind, ...]]:
    """Return the name of a JSON value's type, for messages, and the kinds that it fits.

    Numbers and booleans also fit TEXT, as containers get all values as text.
    """
    for json_type, name, kinds in _JSON_TYPES:
        if isinstance(value, json_type):
            return name, kinds
    return "a list", (ValueKind.LIST,)


# Types of JSON values except text and lists, each with its name and the kinds that it fits.
_JSON_TYPES: Sequence[tuple[type, str, tuple[ValueKind, ...]]] = (
    (bool, "a boolean", (ValueKind.BOOLEAN, ValueKind.TEXT)),  # before int, whose subclass it is
    (int, "a number", (ValueKind.INTEGER, ValueKind.NUMBER, ValueKind.TEXT)),
    (float, "a number", (ValueKind.NUMBER, ValueKind.TEXT)),
    (Mapping, "an object", (ValueKind.OBJECT,)),
)


def _named_values(parameter: Parameter) -> list[str]:
    """Return the values that the description itself names: the choices and the default."""
    values = list(parameter.binding or ())
    if parameter.default:
        values.append(parameter.default)
    return values


def _range_may_refuse(parameter: Parameter) -> bool:
    """Return whether a number outside the range of a parameter may refuse the job.

    It may if the description's own values, default and choices, are all in the range: a
    description that contradicts itself proves nothing. A parameter without a range refuses none.
    """
    validator = parameter.validator
    if validator is None or validator.pattern is not None:
        return False
    named = [number(text) for text in _named_values(parameter)]
    return all(validator.in_range(value) for value in named if value is not None)


def _is_allowed(parameter: Parameter, value: Any) -> bool:
    """Return whether a value is a choice of its parameter, or need not be one.

    Without choices any value is allowed. Empty text and the default are always allowed. A list
    is allowed if all its elements are choices, an object if a choice spells it in JSON. For
    other values see `_is_choice`.
    """
    choices = parameter.binding
    if choices is None or value == "" or as_text(value) == parameter.default:
        return True
    structures = [json_of(choice) for choice in choices if choice.lstrip().startswith(("{", "["))]
    if isinstance(value, (list, tuple)) and value not in structures:
        return all(_is_allowed_element(parameter, structures, element) for element in value)
    return value in structures or _is_choice(parameter, choices, value)


def _is_allowed_element(
    parameter: Parameter,
    structures: Sequence[Any],
    element: Any,
) -> bool:
    """Return whether an element of a list is a choice; lists inside it are not checked.

    ``structures`` are the choices that spell an object or a list, parsed.
    """
    is_unchecked = element == "" or isinstance(element, (list, tuple))
    if is_unchecked:
        return True
    if isinstance(element, Mapping) and element in structures:
        return True
    return _is_choice(parameter, parameter.binding or (), element)


def _is_choice(
    parameter: Parameter,
    choices: Sequence[str],
    value: Any,
) -> bool:
    """Return whether a value is among the choices, which are texts.

    Booleans are compared without regard to case, numbers by their value: 1.0 is the choice "1".
    """
    text = as_text(value)
    if text in choices:
        return True
    is_boolean = kind_of(parameter.type) is ValueKind.BOOLEAN or isinstance(value, bool)
    if is_boolean:
        return text.lower() in [choice.lower() for choice in choices]
    as_number = number(value)
    if as_number is None:
        return False
    return as_number in [number(choice) for choice in choices]


def list_limited(values: Sequence[str], limit: int) -> str:
    """Return values in one line for a message.

    More than ``limit`` values are cut, with "…" and their number at the end.
    """
    text = ", ".join(value[:MAX_CHOICE_LENGTH] for value in values[:limit])
    if len(values) > limit:
        text += f", … ({len(values)})"
    return text


def _validator_rule(parameter: Parameter, value: Any) -> str:
    """Return the rule that a value breaks by its range or expression; "" if it breaks none.

    Empty text counts as no value, and text that spells no number breaks no range.
    """
    validator = parameter.validator
    if validator is None or value == "":
        return ""
    if validator.pattern is not None:
        return _expression_rule(validator.pattern, as_text(value))
    as_number = number(value)
    if as_number is None or validator.in_range(as_number):
        return ""
    return f"lies outside {validator.text}"


def _expression_rule(pattern: str, value: str) -> str:
    """Return the rule that a value breaks by an expression; "" if the expression matches."""
    matches = full_match(pattern, value)
    if matches is None:
        return f"could not be checked against {pattern}"
    if not matches:
        return f"must match {pattern}"
    return ""


# ------------------------------------------------------------ inputs and outputs


def match_outputs(
    dag_outputs: Sequence[tuple[str, str]], specs: Sequence[DataSpec]
) -> dict[str, str]:
    """Return the names that a component's description gives to a flow's outputs, by their keys.

    ``dag_outputs`` has (type, key) of each output. Outputs without a counterpart are left out.
    """
    flow_items = [_FlowItem(group_of(category), key, key) for category, key in dag_outputs]
    return _match(flow_items, specs)


def match_inputs(
    dag_inputs: Sequence[tuple[str, str]], specs: Sequence[DataSpec]
) -> dict[str, str]:
    """Return the names that a component's description gives to a flow's inputs, by their sources.

    ``dag_inputs`` has (type, ``<task>.<key>``) of each input. It leaves out an input without an
    upstream task: that belongs to the first of the component's inputs.
    """
    flow_items = []
    for category, source in dag_inputs:
        key = source.partition(".")[2] or source
        flow_items.append(_FlowItem(group_of(category), source, key))
    return _match(flow_items, specs)


def format_problem(
    format_name: str,
    spec: DataSpec,
    path: str,
) -> Problem | None:
    """Return the problem of an upstream output's format that an input does not list.

    Returns None if the input lists the format, in any case, or none at all.
    """
    if not spec.formats:
        return None
    if format_name.lower() in {name.lower() for name in spec.formats}:
        return None
    readable = ", ".join(spec.formats[:MAX_LISTED_FORMATS])
    return Problem(path, f"is {format_name}; input {spec.name} reads {readable}", format_name)


class _FlowItem(NamedTuple):
    """An input or output of a task in a flow."""

    group: str  # of its type: data, model or metric
    key: str  # under which the result lists it
    name: str  # compared with the description's names


def _match(
    flow_items: Sequence[_FlowItem],
    specs: Sequence[DataSpec],
) -> dict[str, str]:
    """Match by name first, then the rest by position; return the names by key.

    A key that occurs twice is matched once; a spec belongs to one key.
    """
    free = list(specs)
    names: dict[str, str] = {}

    def assign(item: _FlowItem, candidates: Sequence[DataSpec]) -> None:
        if item.key not in names and candidates:
            names[item.key] = candidates[0].name
            free.remove(candidates[0])

    for item in flow_items:
        same_group = [spec for spec in free if spec.group == item.group]
        assign(item, [spec for spec in same_group if spec.name == item.name])
    for item in flow_items:
        assign(item, [spec for spec in free if spec.group == item.group])
    # In the order of the flow, not of the matches.
    return {item.key: names[item.key] for item in flow_items if item.key in names}
