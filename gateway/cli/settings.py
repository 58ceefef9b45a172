"""``bfia-gateway settings``: every value in force, and where it comes from."""

import json
from typing import Annotated, Any

import typer

from gateway.cli.client import DEFAULT_CONFIG, AsJson, Config, Url, connect, reporting, settings_of, show, table
from gateway.text import counted


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "settings", epilog="Exit codes: 0 shown, 1 the node said no, 2 bad input, 3 no answer from the node."
    )(settings)


def settings(
    contains: Annotated[str, typer.Argument(help="Only settings whose path holds this text.")] = "",
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not a default.")] = False,
    file: Annotated[
        bool, typer.Option("--file", help="What a start with this configuration would use; asks no node.")
    ] = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Show what the running node works with: every setting, its value and where that comes from.

    Secrets are masked. What each setting means: docs/settings.md.

    Example: bfia-gateway settings --changed
    """
    with reporting(as_json):
        found = _of_file(config) if file else _of_node(config, url)
        rows = [one for one in found if contains in one["path"] and not (changed and one["origin"] == "default")]
        if as_json:
            show({"settings": rows})
            return
        table(
            counted(len(rows), "setting"),
            ["setting", "value", "from"],
            [[one["path"], _text(one["value"]), one["where"] or one["origin"]] for one in rows],
        )


def _of_node(config: Any, url: str) -> list[dict[str, Any]]:
    with connect(config, url) as node:
        return list(node.get("/api/v1/settings")["settings"])


def _of_file(config: Any) -> list[dict[str, Any]]:
    from gateway.config.effective import effective

    return effective(settings_of(config))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
