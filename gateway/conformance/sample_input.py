"""Made-up tables and parameters for components that get none from the user."""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from provider_registry.model import Component, Parameter, Validator

UNKNOWN = "conformance_unknown"  # a parameter that no description has
ID_COLUMN = "id"
LABEL_COLUMN = "y"
ROWS = 60  # of each table
COLUMNS = 3  # of each table, besides id and label
TEXT = "conformance"  # value of a parameter without any hint
# The types of numbers that descriptions use, in lower case, each with its conversion.
_NUMBER_TYPES: Mapping[str, Callable[[float], Any]] = {
    "int": int,
    "integer": int,
    "float": float,
    "number": float,
    "double": float,
}
# Values of parameters of the other types, in lower case; texts get `TEXT`.
_VALUES_BY_TYPE: Mapping[str, Any] = {
    "bool": False,
    "boolean": False,
    "object": {},
}


def sample_table(role: str) -> bytes:
    """Return a CSV table for a role, the same at each call.

    All roles have the same ids. The columns correlate with a label of 0 or 1, which only a guest's
    table shows. The role is the seed of the random numbers.
    """
    numbers = random.Random(role)
    has_label = role == "guest"
    header = [ID_COLUMN]
    if has_label:
        header.append(LABEL_COLUMN)
    header += [f"{role}_x{number}" for number in range(COLUMNS)]
    table = ",".join(header) + "\n"
    for row in range(ROWS):
        label = row % 2
        cells = [f"u{row:04d}"]
        if has_label:
            cells.append(str(label))
        cells += [f"{numbers.gauss(label, 1.0):.4f}" for _ in range(COLUMNS)]
        table += ",".join(cells) + "\n"
    return table.encode()


def required_parameters(
    component: Component,
    parameters: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the user's parameters, with made-up values for the other required ones.

    The user's parameters stay even if the description does not name them.
    """
    required = [parameter for parameter in component.parameters if not parameter.optional]
    values = {parameter.name: _sample_value(parameter) for parameter in required}
    return {**values, **parameters}


def default_parameters(component: Component) -> dict[str, Any]:
    """Return the defaults of all parameters that have one, by the parameters' names.

    A blank default counts as none.
    """
    return {
        parameter.name: parameter.default for parameter in component.parameters if parameter.default
    }


def _sample_value(parameter: Parameter) -> Any:
    """Return a value that the description allows: its default, a choice, or one of its type."""
    if parameter.default:
        return parameter.default
    if parameter.binding:
        return parameter.binding[0]
    type_name = parameter.type.lower()
    if type_name in _NUMBER_TYPES:
        return _sample_number(parameter.validator, _NUMBER_TYPES[type_name])
    return _VALUES_BY_TYPE.get(type_name, TEXT)


def _sample_number(validator: Validator, convert: Callable[[float], Any]) -> Any:
    """Return a number that a validator allows.

    For a range this is its middle, for a range with one bound that bound, or the next number within
    it. Without any bound, and for a validator that is a pattern, it is 1. ``convert`` makes it a
    number of the parameter's type.
    """
    # A pattern has no bounds: both are infinite.
    limits = [limit for limit in (validator.lower, validator.upper) if math.isfinite(limit)]
    if not limits:
        return convert(1)
    middle = sum(limits) / len(limits)
    candidates = [convert(number) for number in (middle, middle + 1, middle - 1)]
    allowed = filter(validator.in_range, candidates)
    return next(allowed, candidates[0])
