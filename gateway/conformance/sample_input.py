"""Made-up tables and parameters for components that get none from the user."""

import random
from collections.abc import Mapping
from typing import Any

from provider_registry.model import Component, Parameter, Validator

UNKNOWN = "conformance_unknown"  # a parameter that no description has
ID_COLUMN = "id"
LABEL_COLUMN = "y"
ROWS = 60
COLUMNS = 3  # of each table, besides id and label
TEXT = "conformance"  # value of a parameter without any hint


def sample_table(role: str) -> bytes:
    """Return a CSV table: the same ids for every role.

    A guest's has a label that correlates with its columns.
    """
    numbers = random.Random(role)
    has_label = role == "guest"
    header = [ID_COLUMN]
    if has_label:
        header.append(LABEL_COLUMN)
    header += [f"{role}_x{number}" for number in range(COLUMNS)]
    lines = [",".join(header)]
    for row in range(ROWS):
        label = row % 2
        cells = [f"u{row:04d}"]
        if has_label:
            cells.append(str(label))
        for _ in range(COLUMNS):
            value = numbers.gauss(label, 1.0)
            cells.append(f"{value:.4f}")
        lines.append(",".join(cells))
    return "".join(f"{line}\n" for line in lines).encode()


def required_parameters(component: Component, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's parameters, with made-up values for further required ones."""
    values = {}
    for parameter in component.parameters:
        if not parameter.optional and parameter.name not in parameters:
            values[parameter.name] = _sample_value(parameter)
    return {**values, **parameters}


def default_parameters(component: Component) -> dict[str, Any]:
    """Return the defaults of all parameters that have one."""
    defaults = {}
    for parameter in component.parameters:
        if parameter.default:
            defaults[parameter.name] = parameter.default
    return defaults


def _sample_value(parameter: Parameter) -> Any:
    """Return a value that the description allows."""
    if parameter.default:
        return parameter.default
    if parameter.binding:
        return parameter.binding[0]
    number = _sample_number(parameter.validator)
    match parameter.type.lower():
        case "int" | "integer":
            return int(number)
        case "float" | "number" | "double":
            return float(number)
        case "bool" | "boolean":
            return False
        case "object":
            return {}
        case _:
            return TEXT


def _sample_number(validator: Validator | None) -> float:
    """Return the middle of a range, its only limit, or 1 without limits."""
    if validator is None or validator.pattern is not None:
        return 1
    limits = [limit for limit in (validator.lower, validator.upper) if limit is not None]
    if not limits:
        return 1
    return sum(limits) / len(limits)
