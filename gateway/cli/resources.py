"""``bfia-gateway resources``: what the node has, who holds it, who waits."""

from collections.abc import Mapping
from typing import Any

import typer

from gateway.cli.client import DEFAULT_CONFIG, AsJson, Config, Url, connect, reporting, show, table

_KINDS = (("cpu", "cpu"), ("memory_gib", "memory GiB"), ("disk_gib", "disk GiB"))
_HEADS = [head for _, head in _KINDS]


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(resources)


def resources(config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False) -> None:
    """Show what jobs hold of this node, since when, what is left, and which jobs wait for what.

    Example: bfia-gateway resources
    """
    with reporting(as_json), connect(config, url) as node:
        found = node.get("/api/v1/resources")
    if as_json:
        show(found)
        return
    rows = [[name, *_amounts(found[name])] for name in ("total", "held", "remaining")]
    table(f"node {found['node']}", ["", *_HEADS], rows)
    held = [[one["job_id"], *_amounts(one), one["since"]] for one in found["holders"]]
    if held:
        table("\nheld", ["job", *_HEADS, "since"], held)
    waiting = [[one["job_id"], one["priority"], one["since"], one["reason"]] for one in found["waiting"]]
    if waiting:
        table("\nwaiting, in this order", ["job", "priority", "since", "why"], waiting)
    for name, text in (
        ("returns_ignored", "returns with nothing to return"),
        ("returned_by_reconciler", "jobs that ended and still held something"),
        ("expired", "jobs that held something and were never started"),
    ):
        if found[name]:
            typer.echo(f"{text}: {found[name]}")


def _amounts(one: Mapping[str, Any]) -> list[str]:
    return [f"{one[kind]:g}" for kind, _ in _KINDS]
