"""``bfia-gateway gc``: what an admin does now and then."""

from typing import Annotated

import typer

from gateway.cli.client import DEFAULT_CONFIG, AsJson, Config, Url, amount, connect, reporting, show, table


def add(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(gc)


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Also what the node's database knows nothing of.")
    ] = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Remove what jobs left behind: strays of ended jobs, and what the settings' retention lets go.

    The node does so by itself every retention.every_seconds, but for orphans. Exit code 1: something could not be
    removed.

    Example: bfia-gateway gc --dry-run
    """
    with reporting(as_json), connect(config, url, timeout=600) as node:
        found = node.post("/api/v1/gc", {"dry_run": dry_run, "orphans": orphans})
        items = found["items"]
        failed = [] if dry_run else [item for item in items if not item["removed"]]
        if as_json:
            show(found)
        elif not items:
            typer.echo("nothing to remove")
        else:
            done = "would be removed" if dry_run else "removed"
            rows = [[i["kind"], i["name"], i["job"], amount(i["bytes"]), i["cause"] or i["why"]] for i in items]
            table(f"{len(items)} things, {amount(found['bytes'])}", ["kind", "name", "job", "size", "why"], rows)
            typer.echo(f"{len(items) - len(failed)} {done}" + (f", {len(failed)} not" if failed else ""))
        if failed:
            raise typer.Exit(1)
