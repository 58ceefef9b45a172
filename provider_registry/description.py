"""Reads a vendor's self-description of a component, a JSON document, into a `Component`.

A description is refused if the gateway cannot run the component by it: a field of the wrong shape,
no name, no roles, no list of parameters, inputs or outputs, a duplicate name in a list, a
misspelled type. Other faults are warnings, because vendors' published descriptions have all of
them: faults in fields that are only displayed, and contradictions that need not break a job.
"""

import math
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

# The published forms of ``bindingData`` and ``validator``. Repetitions are bounded: the texts come
# from other institutions, and matching must stay fast.
_FUNCTION = re.compile(r"call_function\s{1,8}([A-Za-z_][\w.]{0,255})\s{0,8}(?:\(\s{0,8}\))?")
_EXPRESSION = re.compile(r"regular\s{0,8}[:：-](.*)", re.DOTALL)
_RANGE = re.compile(r"([(\[])([^,]{0,64}),([^,]{0,64})([)\]])")
_WIDE_BRACKETS = str.maketrans("（），【】［］", "(),[][]")
_QUOTES = ("''", '""', "‘’", "“”")
_NO_EXPRESSION = ("", "正则项")  # placeholders of the published example: no check
# Spellings, in lower case, of a range that has no bound on one side.
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
    """Read the description of one component; return it with the warnings about it.

    - ``document``: part of a registration whose size `model.document_problem` has checked
    - ``path``: the description's path in the registration; the paths of problems begin with it
    - ``provider``, ``version``: those of the registration, used instead of the description's own

    Raises `InvalidDescription` with every problem, and with the warnings about the valid parts.
    """
    foreign_problems = foreign.description_problems(document, path)
    if foreign_problems:
        raise InvalidDescription(bounded(foreign_problems))
    parameters_path = join(path, "inputParam")
    parameters = None
    if isinstance(document, Mapping):
        parameters = document.get("inputParam")
    problems = [
        *schema.DESCRIPTION.problems(document, path),
        *_repeated_names(document, path),
        *misspelled_types(parameters, parameters_path),
    ]
    if problems:
        raise _invalid(document, path, problems, provider, version)
    parsed, spelling_warnings = from_valid(
        document,
        path,
        provider=provider,
        version=version,
    )
    warnings = chain(
        registration_differences(document, path, provider, version),
        component_warnings(document, path),
        spelling_warnings,
        contradictions(parsed.parameters, parameters_path),
    )
    return parsed, bounded(warnings)


def expressions(document: Any) -> set[str]:
    """Return the validators in a description that are regular expressions, as they are spelled.

    The description may break its schema.
    """
    spellings: set[str] = set()
    match document:
        case {"inputParam": [*parameters]}:
            for parameter in parameters:
                spellings |= _expression_of(parameter)
    return spellings


def _expression_of(parameter: Any) -> set[str]:
    """Return the spelling of a parameter's regular expression; empty for any other validator."""
    match parameter:
        case {"validator": str(spelling)} if _EXPRESSION.fullmatch(spelling.strip()):
            return {spelling.strip()}
    return set()


def _invalid(
    document: Any,
    path: str,
    problems: Sequence[Problem],
    provider: str | None,
    version: str | None,
) -> InvalidDescription:
    """Return the error of a description that has problems with its shape.

    Contradictions within its valid parameters are only warnings in a valid description; here they
    are reported as problems too, so that the vendor can mend everything in one go.
    """
    if not isinstance(document, Mapping):
        document = {}
    contradicting, spelling_warnings = _check_valid_parameters(document.get("inputParam"), path)
    problems = [*problems, *contradicting]
    invalid_paths = {problem.path for problem in problems}  # a warning adds nothing there
    warnings = chain(
        registration_differences(document, path, provider, version),
        component_warnings(document, path, valid=False),
        spelling_warnings,
    )
    remaining = (warning for warning in warnings if warning.path not in invalid_paths)
    return InvalidDescription(bounded(problems), bounded(remaining))


def _check_valid_parameters(
    parameters: Any,
    path: str,
) -> tuple[list[Problem], list[Problem]]:
    """Check the valid entries of ``inputParam`` in a description that breaks its schema.

    Returns their contradictions and the warnings about their spellings. Both are empty if
    ``parameters`` is not a list. ``path`` is the path of the description. Entries beyond the
    schema's limit are not checked.
    """
    problems: list[Problem] = []
    spelling_warnings: list[Problem] = []
    if not isinstance(parameters, list):
        return problems, spelling_warnings
    limit = schema.DESCRIPTION.max_entries("inputParam")
    for index, item in enumerate(parameters[:limit]):
        if schema.DESCRIPTION.accepts_entry(item, "inputParam"):
            item_path = join(path, "inputParam", index)
            parameter = _read_parameter(item, item_path, spelling_warnings)
            problems += parameter_contradictions(parameter, item_path)
    return problems, spelling_warnings


def _repeated_names(document: Any, path: str) -> Iterator[Problem]:
    """Yield the duplicate names in each list of a document that may break its schema.

    Lists of a wrong type are left to the schema.
    """
    if not isinstance(document, Mapping):
        return
    for field in ("inputParam", "inputData", "outputData"):
        items = document.get(field)
        if isinstance(items, list):
            yield from _repeated_names_in_list(items, field, path)


def _repeated_names_in_list(
    items: list[Any],
    field: str,
    path: str,
) -> Iterator[Problem]:
    """Yield a problem for each entry of one list that repeats the name of an earlier one.

    Entries without a proper name are left to the schema.
    """
    first_index: dict[str, int] = {}
    for index, item in enumerate(items):
        if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
            continue
        name = item["name"]
        if name not in first_index:
            first_index[name] = index
            continue
        rule = f"repeats the name of {field}[{first_index[name]}]"
        yield Problem(
            join(path, field, index, "name"),
            rule,
            name,
        )


def from_valid(
    document: Mapping[str, Any],
    path: str = "",
    *,
    provider: str | None = None,
    version: str | None = None,
) -> tuple[Component, list[Problem]]:
    """Read a description that keeps the schema; return it with the warnings about its spellings.

    The arguments have the same meaning as those of `component`.
    """
    spelling_warnings: list[Problem] = []
    parameters = tuple(
        _read_parameter(item, join(path, "inputParam", index), spelling_warnings)
        for index, item in enumerate(document["inputParam"])
    )
    results = {
        str(result["resultCode"]): text(result.get("resultMessage"))
        for result in document.get("result") or ()
    }
    parsed = Component(
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
    return parsed, spelling_warnings


def _read_data_specs(items: list[Mapping[str, Any]]) -> tuple[DataSpec, ...]:
    """Read ``inputData`` or ``outputData``."""
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
    """Return the text of a field that is only displayed; "" if it is absent or not a text."""
    if isinstance(value, str):
        return value
    return ""


# ------------------------------------------------------------ one parameter


def _read_parameter(
    item: Mapping[str, Any],
    path: str,
    spelling_warnings: list[Problem],
) -> Parameter:
    """Read one parameter; warnings about its spellings are added to ``spelling_warnings``.

    ``item`` is its description, which is at ``path`` of the registration.
    """
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
            spelling_warnings.append(Problem(join(path, field), rule, item.get(field)))
    conditions = item.get("dependsOn")
    if isinstance(conditions, str):
        conditions = conditions.split(",")
    ui_pattern = text(item.get("UIPattern")) or "editable"
    ui_type = text(item.get("UIType")) or "input"
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
        ui_pattern=_RESPELLED.get(ui_pattern, ui_pattern),
        ui_type=_RESPELLED.get(ui_type, ui_type),
        groups=texts(item.get("groupTag")),
    )


def _read_default(value: Any) -> str | None:
    """Return a default as text: None if there is none, "" if it is blank."""
    if value is None:
        return None
    default = as_text(value)
    if not default.strip():
        return ""
    return default


def _read_optional(value: Any) -> tuple[bool, str]:
    """Read ``optional``, a boolean or its text in upper or lower case.

    Returns whether the parameter is optional, and a warning or "". An absent or blank value means
    true.
    """
    spelling = ""
    if value is not None:
        spelling = as_text(value).strip().lower()
    if not spelling:
        return True, "is missing; read as true"
    return spelling != "false", ""  # the schema has refused other words than true and false


class _Binding(NamedTuple):
    """The content of ``bindingData``: choices or a callback. Without both, any value is allowed."""

    values: tuple[str, ...] | None = None  # the choices as text
    function: str | None = None  # name of the callback that supplies the choices
    warning: str = ""  # about the spelling; "" without one


def _read_binding(value: Any) -> _Binding:
    """Read ``bindingData``.

    Forms: a list of {label, value} or of plain values, the same list as JSON text,
    ``call_function name()``, or nothing.
    """
    if isinstance(value, str):
        call = _FUNCTION.fullmatch(value.strip())
        if call:
            return _Binding(function=call[1])
        is_list = isinstance(json_of(value), list)
        if value.strip() and not is_list:
            warning = "is neither a list nor call_function <name>(); any value is allowed"
            return _Binding(warning=warning)
    return _binding_of(_read_choices(value))


def _binding_of(choices: "list[_Choice | None]") -> _Binding:
    """Return the binding to the choices that `_read_choices` returns; None is an unusable choice.

    Without any usable choice, the parameter allows any value.
    """
    values = tuple(choice.value for choice in choices if choice is not None)
    warning = ""
    if None in choices:
        warning = "has entries without a plain value, which are left out"
    return _Binding(values=values or None, warning=warning)


def labels(value: Any, language: str = "") -> dict[str, str]:
    """Return the labels that ``bindingData`` gives to its choices, by the choice as text.

    ``language``: that of the labels, such as en; empty: the labels without a language. Choices
    without such a label are left out.
    """
    label_field = "label"
    if language:
        label_field = f"label_{language}"
    choices = filter(None, _read_choices(value, label_field))
    return {choice.value: choice.label for choice in choices if choice.label}


class _Choice(NamedTuple):
    """One choice of ``bindingData``: its value as text and its label in a form."""

    value: str
    label: str


def _read_choices(value: Any, label_field: str = "label") -> list[_Choice | None]:
    """Read the choices of a list or of its JSON text; an entry without a plain value is None.

    ``label_field`` is the field of a choice with its label. Empty for anything that is not a list.
    Entries after `MAX_BINDING` are ignored.
    """
    if isinstance(value, str):
        value = json_of(value)
    if not isinstance(value, list):
        return []
    return [_read_choice(item, label_field) for item in value[:MAX_BINDING]]


def _read_choice(item: Any, label_field: str) -> _Choice | None:
    """Read one choice: {label, value} or a plain value, which has no label.

    Returns None for an entry whose value is not plain; a label that is not plain becomes "".
    """
    value, label = item, None
    if isinstance(item, dict):
        value = item.get("value")
        label = item.get(label_field)
    if not _is_plain(value):
        return None
    label_text = ""
    if _is_plain(label):
        label_text = as_text(label)
    return _Choice(as_text(value), label_text)


def _is_plain(value: Any) -> bool:
    """Return whether a value is a text, number or boolean that can be stored.

    Text with half a surrogate pair cannot be stored, because UTF-8 does not hold it.
    """
    # Booleans are integers in Python.
    return isinstance(value, (str, int, float)) and encodable(as_text(value))


def _read_validator(value: Any) -> tuple[Validator, str]:
    """Read ``validator``, an expression or a range; return it with a warning or "".

    A blank validator gives a check that every value passes. So does a validator that cannot be
    read, together with a warning.
    """
    spelling = text(value).strip()
    if not spelling:
        return Validator(), ""
    expression = _EXPRESSION.fullmatch(spelling)
    if expression:
        return _read_expression(spelling, expression[1].strip())
    bounds = _RANGE.fullmatch(spelling.translate(_WIDE_BRACKETS))
    if bounds:
        return _read_range(spelling, bounds)
    return Validator(), "is neither regular:'<expression>' nor (lower,upper), so nothing is checked"


def _read_expression(
    spelling: str,
    pattern: str,
) -> tuple[Validator, str]:
    """Read a regular expression, as `_read_validator` does.

    ``spelling`` is the whole validator, ``pattern`` the part after ``regular:``, perhaps quoted.
    """
    is_quoted = len(pattern) > 1 and pattern[0] + pattern[-1] in _QUOTES
    if is_quoted:
        pattern = pattern[1:-1]
    if pattern.strip() in _NO_EXPRESSION:
        return Validator(), ""
    reason = flaw(pattern)
    if reason:
        return Validator(), f"{reason}, so nothing is checked"
    return Validator(spelling, pattern=pattern), ""


def _read_range(
    spelling: str,
    match: re.Match[str],
) -> tuple[Validator, str]:
    """Read a range, as `_read_validator` does.

    The format writes all ranges with round brackets, and both bounds belong to such a range. A
    round bracket excludes its bound only if the other bracket is square.
    """
    opening, low, high, closing = map(str.strip, match.groups())
    lower = _read_bound(low, -math.inf)
    upper = _read_bound(high, math.inf)
    if lower is None or upper is None:
        return Validator(), "has a bound that is not a number, so nothing is checked"
    if lower > upper:
        return Validator(), "has a lower bound above the upper one, so nothing is checked"
    if (lower, upper) == (-math.inf, math.inf):
        return Validator(), ""
    brackets = opening + closing
    validator = Validator(
        spelling,
        lower=lower,
        upper=upper,
        lower_open=brackets == "(]",
        upper_open=brackets == "[)",
    )
    return validator, ""


def _read_bound(spelling: str, unbounded: float) -> float | None:
    """Read a bound of a range; return ``unbounded`` for a spelling that means no bound.

    Returns None for any other text that is not a number.
    """
    if spelling.lower() in _UNBOUNDED:
        return unbounded
    return number(spelling)
