"""Route tables as text."""

import json
from dataclasses import fields
from typing import Any

from route_table.model import Route, RouteTable


def dump(table: RouteTable) -> str:
    """Write a table as YAML that `parse` reads into the same routes."""
    entries = {node: entry_of(route) for node, route in table.routes.items()}
    return json.dumps(entries, indent=1)


def entry_of(route: Route) -> dict[str, Any]:
    """Return the entry that `parse` reads into a route, without keys that have their default."""
    _node, *keys = fields(Route)
    entry = {}
    for key in keys:
        value = getattr(route, key.name)
        if value in (key.default, ""):
            continue
        if isinstance(value, tuple):
            value = ", ".join(value)
        entry[key.name] = value
    return entry
