"""Made-up tables and parameters for components that get none from the user."""

import random
from collections.abc import Mapping
from typing import Any

from provider_registry.model import Component, Parameter, Validator

UNKNOWN = "conformance_unknown"  # a parameter that no description has
ID_COLUMN = "id"
LABEL_COLUMN = "y"
ROWS = 60  # of each table
COLUMNS = 3  # of each table, besides id and label
TEXT = "conformance"  # value of a parameter without any hint


def sample_table(role: str) -> bytes:
    """Return a CSV table for a role, the same at each call.

    All roles have the same ids. A guest's table also has a label, which correlates with its
    columns.
    """
    numbers = random.Random(role)
    has_label = role == "guest"
    label_header = [LABEL_COLUMN] if has_label else []
    header = [ID_COLUMN, *label_header, *(f"{role}_x{number}" for number in range(COLUMNS))]
    lines = [",".join(header)]
    for row in range(ROWS):
        label = row % 2
        cells = [f"u{row:04d}"]
        if has_label:
            cells.append(str(label))
        cells += [f"{numbers.gauss(label, 1.0):.4f}" for _ in range(COLUMNS)]
        lines.append(",".join(cells))
    return "".join(f"{line}\n" for line in lines).encode()


def required_parameters(
    component: Component,
    parameters: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the user's parameters, with made-up values for the other required ones."""
    required = [parameter for parameter in component.parameters if not parameter.optional]
    values = {parameter.name: _sample_value(parameter) for parameter in required}
    return {**values, **parameters}


def default_parameters(component: Component) -> dict[str, Any]:
    """Return the defaults of all parameters that have one, by name."""
    return {
        parameter.name: parameter.default for parameter in component.parameters if parameter.default
    }


def _sample_value(parameter: Parameter) -> Any:
    """Return a value that the description allows: its default, a choice, or one of its type."""
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
    """Return the middle of a range; the only bound of a half-open one; 1 without any bound."""
    if validator is None or validator.pattern is not None:
        return 1
    limits = [limit for limit in (validator.lower, validator.upper) if limit is not None]
    if not limits:
        return 1
    return sum(limits) / len(limits)
