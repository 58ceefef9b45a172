"""Route tables as text."""

import json

from route_table.document import entry_of
from route_table.model import RouteTable


def dump(table: RouteTable) -> str:
    """Write a table as YAML that `parse` reads into the same routes."""
    return json.dumps({node: entry_of(route) for node, route in table.routes.items()}, indent=1)
