"""Route tables as text."""

import json
from dataclasses import fields
from typing import Any

from route_table.model import Route, RouteTable


def dump(table: RouteTable) -> str:
    """Write a table as YAML that `parse` reads into the same routes."""
    return json.dumps({node: entry_of(route) for node, route in table.routes.items()}, indent=1)


def entry_of(route: Route) -> dict[str, Any]:
    """Return the keys and values of the entry that `parse` reads into a route, defaults left out."""
    entry = {}
    for field in fields(Route)[1:]:
        value = getattr(route, field.name)
        if value not in (field.default, ""):
            entry[field.name] = _text(value)
    return entry


def _text(value: Any) -> Any:
    if isinstance(value, tuple):
        return ", ".join(value)
    return value
