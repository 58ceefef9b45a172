"""``bfia-gateway resources``: what the node has, who holds it, who waits."""

from collections.abc import Iterator, Mapping
from typing import Any

import typer

from gateway.cli.client import DEFAULT_CONFIG, AsJson, Config, Url, connect, reporting, show, table
from gateway.cli.console import say

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
    engines = found.get("engines", [])
    several = len(engines) > 1
    rows = [[name, *_amounts(found[name])] for name in ("total", "held", "remaining")]
    main = f", engine {engines[0]['engine']}" if several else ""
    table(f"node {found['node']}{main}", ["", *_HEADS], rows)
    for one in engines[1:]:
        of = [[name, *_amounts(one[name])[:2]] for name in ("total", "held", "remaining")]
        say(f"\nengine {one['engine']}")
        table("", ["", *_HEADS[:2]], of)
        if one["away"] or one["cause"]:
            say(": ".join(filter(None, (one["away"], one["cause"]))))
    held = [
        [one["job_id"], *where, *_amounts(amounts), one["since"]] for one, where, amounts in _rows(found, several)
    ]
    if held:
        table("\nheld", ["job", *(["engine"] if several else []), *_HEADS, "since"], held)
    waiting = [[one["job_id"], one["priority"], one["since"], one["reason"]] for one in found["waiting"]]
    if waiting:
        table("\nwaiting, in this order", ["job", "priority", "since", "why"], waiting)
    for name, text in (
        ("returns_ignored", "returns with nothing to return"),
        ("returned_by_reconciler", "jobs that ended and still held something"),
        ("expired", "jobs that held something and were never started"),
    ):
        if found[name]:
            say(f"{text}: {found[name]}")


def _rows(
    found: Mapping[str, Any], several: bool
) -> Iterator[tuple[Mapping[str, Any], list[str], Mapping[str, Any]]]:
    """Yield each holder once for each engine of which it holds something."""
    for one in found["holders"]:
        further = one.get("engines", {})
        if not further or any(one[kind] for kind, _ in _KINDS):
            yield one, [found["engines"][0]["engine"]] if several else [], one
        for name, amounts in further.items():
            yield one, [name] if several else [], amounts


def _amounts(one: Mapping[str, Any] | None) -> list[str]:
    return ["?" for _ in _KINDS] if one is None else [f"{one.get(kind, 0):g}" for kind, _ in _KINDS]
