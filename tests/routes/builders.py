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
    entry = {f.name: getattr(route, f.name) for f in fields(Route)[1:]}
    return {
        f.name: _text(entry[f.name])
        for f in fields(Route)[1:]
        if entry[f.name] not in (f.default, "")
    }


def _text(value: Any) -> Any:
    return ", ".join(value) if isinstance(value, tuple) else value
