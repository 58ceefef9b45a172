"""Checks a task against the description of its component: its parameters, inputs and outputs.

A job is refused for a required parameter that is missing, and for text that cannot be read as the
declared number. Published descriptions contradict published jobs that run well with them, so
everything else is a warning. A vendor whose descriptions list every value can ask for more
(``strict``): a value of the declared type that is not among the choices or out of range then
refuses the job as well. The description's own default never refuses a job, and a range refuses
nothing if the default or a choice is outside that range. Defaults are never filled in.

A flow has its own keys (``data0``, ``report1``), a description its own names (``train_data``,
``train-auc``), and the standard does not say how they correspond. Our rule: within a group (data,
model, metric), equal names belong together; the rest is matched by position.
"""

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import count, islice, product
from typing import Any, NamedTuple

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
# Matches in this process after which the matching thread pauses. RE2 releases Python's global lock
# for each match, often for less time than another thread needs to wake up and take the lock; the
# pause is long enough.
MATCHES_PER_PAUSE = 64
_PAUSE = 0.0001  # seconds
MAX_LISTED_CHOICES = 20  # in a message
MAX_LISTED_FORMATS = 20  # in a message
MAX_CHOICE_LENGTH = 64  # characters of each choice in a message
SIMILARITY = 0.75  # the least similarity of a name that is suggested for an unknown parameter
# How many of a task's first warnings may get a suggestion, and how many of the component's
# parameters each of them is compared with.
MAX_SUGGESTIONS = 100

# Decimal digits only: Python's int() and float() would also accept 1_000 and other scripts' digits.
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

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

# The advice about a value of another kind.
_TYPE_REMEDIES: Mapping[ValueKind, str] = {
    ValueKind.TEXT: "write a text",
    ValueKind.INTEGER: "write a whole number",
    ValueKind.NUMBER: "write a number",
    ValueKind.BOOLEAN: "write true or false, without quotes",
    ValueKind.OBJECT: "write an object in JSON",
    ValueKind.LIST: "write a list in JSON",
}
_NUMERIC = (ValueKind.INTEGER, ValueKind.NUMBER)


def kind_of(type_name: str) -> ValueKind:
    """Return the kind of a declared type in any of its spellings.

    Spaces around it and its case do not matter; OTHER for a type that is not in `TYPE_NAMES`.
    """
    return TYPE_NAMES.get(
        type_name.strip().lower(),
        ValueKind.OTHER,
    )


def number(value: Any) -> float | None:
    """Return a JSON number, or the number that a decimal text spells.

    Returns None for anything else, for infinity and NaN, and for a number too large for a float.
    """
    spelling = as_text(value).strip()
    if not _NUMBER.fullmatch(spelling):
        return None
    result = float(spelling)  # infinity if the number is too large
    if not math.isfinite(result):
        return None
    return result


def reads_as(kind: ValueKind, text: str) -> bool:
    """Return whether a text spells a value of a kind; any text does for TEXT and OTHER.

    ``12.0`` is a whole number; ``inf`` and ``1e999`` are numbers, ``1_000`` is not.
    """
    text = text.strip()
    if kind is ValueKind.INTEGER:
        return _reads_as_integer(text)
    if kind in _STRUCTURES:
        return isinstance(json_of(text), _STRUCTURES[kind])
    expression = _SPELLINGS.get(kind, _ANY_TEXT)
    return expression.fullmatch(text) is not None


def _reads_as_integer(text: str) -> bool:
    """Return whether a text is a whole number, perhaps with a fraction of zero.

    A text of digits may have any length. A text with a fraction or an exponent, such as 1e3, must
    have a value that fits a float.
    """
    if _INTEGER.fullmatch(text):
        return True
    value = number(text)
    return value is not None and value.is_integer()


# Python's types of the kinds that text spells in JSON.
_STRUCTURES: Mapping[ValueKind, type] = {
    ValueKind.OBJECT: dict,
    ValueKind.LIST: list,
}
_ANY_TEXT = re.compile(".*", re.DOTALL)
# The texts that spell a value of two further kinds. INTEGER, which is in neither table, has a
# function of its own; TEXT and OTHER accept any text.
_SPELLINGS: Mapping[ValueKind, re.Pattern[str]] = {
    ValueKind.NUMBER: re.compile(
        rf"{_NUMBER.pattern}|[+-]*(?:inf|infinity|nan)",
        re.ASCII | re.IGNORECASE,
    ),
    ValueKind.BOOLEAN: re.compile("true|false", re.ASCII | re.IGNORECASE),
}


def json_of(text: str) -> Any:
    """Parse text as JSON; None if it is not JSON, or JSON's null.

    Text that nests too deeply for the parser counts as no JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


# ------------------------------------------------------------ regular expressions

_matches = count(1)  # of this process


def flaw(pattern: str) -> str | None:
    """Return the reason why a regular expression cannot be used; None if it can."""
    return _compile(pattern).flaw


def full_match(pattern: str, value: str) -> bool | None:
    """Return whether a regular expression matches a whole value.

    Returns None if the expression has a `flaw`, or the value is too long or not UTF-8 text. After
    every `MATCHES_PER_PAUSE` matches, the thread pauses so that other threads can run.
    """
    expression = _compile(pattern)
    is_usable_value = len(value) <= MAX_VALUE and encodable(value)
    if not is_usable_value or expression.flaw is not None:
        return None
    if next(_matches) % MATCHES_PER_PAUSE == 0:
        time.sleep(_PAUSE)
    return expression.compiled.fullmatch(value) is not None


@dataclass(frozen=True)
class _Expression:
    """A compiled RE2 expression, or the reason why it cannot be used."""

    compiled: Any = None  # None if there is a flaw
    flaw: str | None = None


@lru_cache(maxsize=256)
def _compile(pattern: str) -> _Expression:
    """Compile an expression with RE2, which matches in linear time: it comes from a vendor."""
    if len(pattern) > MAX_PATTERN:
        return _Expression(flaw=f"is longer than {MAX_PATTERN} characters")
    # Imported late: few parameters have an expression.
    import re2  # noqa: PLC0415

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MAX_PATTERN_MEMORY
    try:
        return _Expression(compiled=re2.compile(pattern, options))
    except (re2.error, UnicodeEncodeError) as error:
        rule = f"is not a regular expression that RE2 supports ({_reason(error)})"
        return _Expression(flaw=rule)


def _reason(error: Exception) -> str:
    """Return the message of an error; RE2 gives it as text or bytes."""
    reason = error.args[0]
    if isinstance(reason, bytes):
        return reason.decode("utf-8", "replace")
    return str(error)


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
    - ``path``: the path of the parameters in the job, with which the problems' paths begin
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
        """Check the values in their order, then the missing parameters.

        Only required parameters can be missing. Errors and warnings are bounded separately.
        """
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
        component = self._component.name
        remedy = f"leave it out, unless {component} is known to read it"
        if suggestion:
            remedy = f"write {suggestion}, if it is meant"
        path = join(self._path, name)
        self._warnings.append(Problem(path, rule, value, suggestion, remedy=remedy))

    def _check_value(self, parameter: Parameter, value: Any) -> None:
        """Report a value of another type, outside the choices, or against the validator.

        One value may break several. Choices and validator refuse the job only with ``strict``.
        """
        path = join(self._path, parameter.name)
        type_mismatch = _type_mismatch(parameter, value)
        if type_mismatch is not None:
            remedy = _type_remedy(parameter)
            self._report(
                Problem(path, type_mismatch.rule, value, remedy=remedy),
                refuses=type_mismatch.refuses,
            )
        elif not _is_allowed(parameter, value):
            # Choices say nothing about values of another type.
            self._report(_choice_problem(parameter, value, path), refuses=self._strict)
        validator_mismatch = _validator_mismatch(parameter, value)
        if validator_mismatch is not None:
            remedy = f"write a value that fits {parameter.validator.text}"
            self._report(
                Problem(path, validator_mismatch.rule, value, remedy=remedy),
                refuses=self._strict and validator_mismatch.refuses,
            )

    def _report_missing(self, parameter: Parameter) -> None:
        """Report a required parameter without a value.

        The problem refuses the job if the parameter has no ``depends_on``, or if one of these
        conditions holds, since a form would then show the parameter. Otherwise, it is a warning.
        """
        path = join(self._path, parameter.name)
        conditions = parameter.depends_on
        is_shown = not conditions or any(map(self._holds, conditions))
        if is_shown:
            rule = f"is missing; {self._component.name} requires it"
            self._errors.append(Problem(path, rule))
        else:
            hint = ", ".join(conditions[:MAX_LISTED_CHOICES])
            rule = f"is missing; required where {hint}"
            remedy = "give it a value if one of these holds"
            self._warnings.append(Problem(path, rule, remedy=remedy))

    def _holds(self, condition: str) -> bool:
        """Return whether a condition (an entry of a parameter's ``depends_on``) holds.

        ``name.value`` holds if the parameter ``name`` has the value ``value``, set or by default;
        ``name`` alone holds if the parameter is set. A condition on an unknown parameter always
        holds.
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
class _Mismatch:
    """A conflict of a value with its parameter's type or validator."""

    rule: str  # the rule that the value breaks
    refuses: bool = False  # the job is refused; for a range, only with ``strict``


def _type_mismatch(parameter: Parameter, value: Any) -> _Mismatch | None:
    """Compare a value with the declared type; None if it fits or the type is unknown.

    A JSON value of another type never refuses the job; for text see `_text_mismatch`.
    """
    kind = kind_of(parameter.type)
    if kind is ValueKind.OTHER:  # a type of the vendor's own
        return None
    if isinstance(value, str):
        return _text_mismatch(parameter, kind, value)
    type_name, kinds = _JSON_TYPES.get(type(value), _LIST_TYPE)
    if kind in kinds:
        return None
    if kind is ValueKind.TEXT and _spells_structure(parameter, type(value)):
        return None
    return _Mismatch(f"is {type_name} where {parameter.type} is declared")


def _text_mismatch(
    parameter: Parameter,
    kind: ValueKind,
    value: str,
) -> _Mismatch | None:
    """Compare text with the declared type; None if it fits.

    Only text for a number can refuse the job, and not if the description itself names that text,
    as the default or a choice.
    """
    if kind is ValueKind.TEXT:
        return None
    if not value.strip():
        return _Mismatch(f"is empty where {parameter.type} is declared")
    if not reads_as(kind, value):
        refuses = kind in _NUMERIC and value not in _named_values(parameter)
        return _Mismatch(f"cannot be read as {parameter.type}", refuses=refuses)
    if kind is ValueKind.BOOLEAN and value not in ("true", "false"):
        rule = "is text for a boolean, and not in lower case as in JSON (true, false)"
        return _Mismatch(rule)
    return None


# Types of JSON values except text and lists, each with its name for messages and the kinds that it
# fits. Numbers and booleans also fit TEXT, as containers get all values as text.
_JSON_TYPES: Mapping[type, tuple[str, tuple[ValueKind, ...]]] = {
    bool: ("a boolean", (ValueKind.BOOLEAN, ValueKind.TEXT)),
    int: ("a number", (ValueKind.INTEGER, ValueKind.NUMBER, ValueKind.TEXT)),
    float: ("a number", (ValueKind.NUMBER, ValueKind.TEXT)),
    dict: ("an object", (ValueKind.OBJECT,)),
}
_LIST_TYPE = ("a list", (ValueKind.LIST,))


def _spells_structure(parameter: Parameter, structure: type) -> bool:
    """Return whether the default or a choice of a text spells an object, or a list, in JSON.

    The text then has that form, and containers get objects and lists as JSON text anyway.
    ``structure`` is dict or list.
    """
    return any(isinstance(json_of(text), structure) for text in _named_values(parameter) if text)


def _named_values(parameter: Parameter) -> tuple[str | None, ...]:
    """Return the values that the description itself names: the choices (binding) and the default.

    The default is None for a parameter without one.
    """
    return *(parameter.binding or ()), parameter.default


def _is_allowed(parameter: Parameter, value: Any) -> bool:
    """Return whether a value is a choice of its parameter, or need not be one.

    The default is always allowed; without choices, any value is. A list is allowed if the list
    itself is a choice, or if all its elements are choices; lists inside it are not checked.
    """
    if parameter.binding is None or as_text(value) == parameter.default:
        return True
    choices = _Choices(parameter.binding, kind_of(parameter.type))
    if choices.allow(value):
        return True
    if not isinstance(value, (list, tuple)):
        return False
    elements = [element for element in value if not isinstance(element, (list, tuple))]
    return all(map(choices.allow, elements))


class _Choices:
    """The choices of a parameter, in each of the forms in which a value can equal one."""

    def __init__(self, choices: Sequence[str], kind: ValueKind) -> None:
        """Convert the choices, which are texts, of a parameter of a kind."""
        self._kind = kind
        self._texts = {*choices, ""}  # empty text counts as no value, which is always allowed
        self._lower_case = set(map(str.lower, choices))
        self._numbers = set(map(number, choices)) - {None}
        parsed = map(json_of, choices)
        self._structures = [value for value in parsed if isinstance(value, (dict, list))]

    def allow(self, value: Any) -> bool:
        """Return whether a value is empty text or a choice.

        Objects and lists are compared with the choices that spell one in JSON, booleans without
        regard to case, numbers by their value: 1.0 is the choice "1".
        """
        text = as_text(value)
        if text in self._texts or value in self._structures:
            return True
        if isinstance(value, bool) or self._kind is ValueKind.BOOLEAN:
            return text.lower() in self._lower_case
        return number(value) in self._numbers


def _type_remedy(parameter: Parameter) -> str:
    """Return the advice about a value of another type, with the default as an example."""
    remedy = _TYPE_REMEDIES[kind_of(parameter.type)]
    default = parameter.default
    if default and len(default) <= MAX_CHOICE_LENGTH:
        return f"{remedy}; the default is {default}"
    return remedy


def _choice_problem(parameter: Parameter, value: Any, path: str) -> Problem:
    """Return the problem of a value at a path that is none of the choices.

    Its suggestion is the most similar choice, or "" if none is similar.
    """
    choices = parameter.binding or ()
    rule = f"is none of {list_limited(choices, MAX_LISTED_CHOICES)}"
    suggestion = near(as_text(value), choices)
    remedy = "write one of these values"
    if suggestion:
        remedy = f"write {suggestion}, if it is meant"
    return Problem(path, rule, value, suggestion, remedy=remedy)


def list_limited(values: Sequence[str], limit: int) -> str:
    """Return values in one line for a message.

    More than ``limit`` values are cut, with "…" and their number at the end.
    """
    text = ", ".join(value[:MAX_CHOICE_LENGTH] for value in values[:limit])
    if len(values) > limit:
        text += f", … ({len(values)})"
    return text


def _validator_mismatch(parameter: Parameter, value: Any) -> _Mismatch | None:
    """Compare a value with the range or expression; None if it fits.

    Empty text counts as no value, and text that spells no number breaks no range. Only a range can
    refuse the job, and not if the description contradicts itself with a default or a choice outside
    the range.
    """
    validator = parameter.validator
    if value == "":
        return None
    if validator.pattern is not None:
        return _expression_mismatch(validator.pattern, as_text(value))
    if validator.in_range(number(value)):
        return None
    # Texts that spell no number, and a missing default, are None, which is in every range.
    named_numbers = map(number, _named_values(parameter))
    is_consistent = all(map(validator.in_range, named_numbers))
    return _Mismatch(f"lies outside {validator.text}", refuses=is_consistent)


def _expression_mismatch(pattern: str, value: str) -> _Mismatch | None:
    """Compare a value with an expression; None if it matches.

    A value that does not match refuses no job, even with ``strict``.
    """
    matches = full_match(pattern, value)
    if matches is None:
        return _Mismatch(f"could not be checked against {pattern}")
    if not matches:
        return _Mismatch(f"must match {pattern}")
    return None


# ------------------------------------------------------------ inputs and outputs


def match_outputs(
    dag_outputs: Sequence[tuple[str, str]], specs: Sequence[DataSpec]
) -> dict[str, str]:
    """Return the names that a component's description gives to a flow's outputs, by their keys.

    ``dag_outputs`` has (type, key) of each output. Outputs without a counterpart are left out.
    """
    flow_items = [
        _FlowItem(group=group_of(category), key=key, name=key) for category, key in dag_outputs
    ]
    return _match(flow_items, specs)


def match_inputs(
    dag_inputs: Sequence[tuple[str, str]], specs: Sequence[DataSpec]
) -> dict[str, str]:
    """Return the names that a component's description gives to a flow's inputs, by their sources.

    ``dag_inputs`` has (type, ``<task>.<key>``) of each input from an upstream task. It leaves out
    an input without an upstream task, which belongs to the first of the component's inputs.
    """
    flow_items = [
        _FlowItem(
            group=group_of(category),
            key=source,
            name=source.split(".", maxsplit=1)[-1],
        )
        for category, source in dag_inputs
    ]
    return _match(flow_items, specs)


def format_problem(
    format_name: str,
    spec: DataSpec,
    path: str,
) -> Problem | None:
    """Return the problem of an upstream output's format that an input does not list.

    Returns None if the input lists the format, in upper or lower case, or lists no formats.
    """
    if not spec.formats:
        return None
    if format_name.lower() in map(str.lower, spec.formats):
        return None
    readable = ", ".join(spec.formats[:MAX_LISTED_FORMATS])
    rule = f"is {format_name}; input {spec.name} reads {readable}"
    remedy = f"use data in a format that {spec.name} lists, or have the description list it"
    return Problem(path, rule, format_name, remedy=remedy)


class _FlowItem(NamedTuple):
    """An input or output of a task in a flow."""

    group: str  # of its type: data, model or metric
    key: str  # its key in the result of `_match`
    name: str  # the name that is compared with the description's names


def _match(
    flow_items: Sequence[_FlowItem],
    specs: Sequence[DataSpec],
) -> dict[str, str]:
    """Match by name first, then the rest by position; return the names by key.

    A key that occurs twice is matched once; a spec belongs to one key.
    """
    by_group = [
        (item, spec) for item, spec in product(flow_items, specs) if item.group == spec.group
    ]
    by_name = [(item, spec) for item, spec in by_group if item.name == spec.name]
    names: dict[str, str] = {}
    # Pairs are in the order of both sequences, so the first free pair is a match by position.
    for item, spec in (*by_name, *by_group):
        is_free = spec.name not in names.values()
        if is_free and item.key not in names:
            names[item.key] = spec.name
    # In the order of the flow, not of the matches.
    return {item.key: names[item.key] for item in flow_items if item.key in names}
