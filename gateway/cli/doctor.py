"""``bfia-gateway doctor`` and ``migrate``: is everything there that a node needs?"""

from typing import Annotated

import typer

from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_FAILED,
    AsJson,
    CallFailed,
    Config,
    reporting,
    settings_of,
    show,
    table,
)
from gateway.cli.console import say

_ME = "doctor"
"""stands for the installation: what looks owns no containers"""
MARKS = {"ok": "ok", "warning": "WARNING", "failed": "FAILED", "skipped": "–"}


def add(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(doctor)
    app.command()(migrate)


def doctor(config: Config = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """Look at all that a node needs: database, storage, file modes, disk, clock, engine, images, ports, routes.

    Changes nothing. Works beside a running node and without one. Exit code 1: a step failed. Of a route, only
    whether something listens at its address is looked at; `route test` tries the whole link.

    Example: bfia-gateway doctor --config node.yml
    """
    from gateway.bootstrap.engine import engine_of
    from gateway.diagnostics.doctor import look
    from gateway.runtime.checks import good
    from gateway.store.serialization import to_plain

    with reporting(as_json):
        steps = look(settings_of(config), lambda settings: engine_of(settings, _ME, _ME), config)
        if as_json:
            show({"good": good(steps), "steps": to_plain(steps)})
        else:
            rows = [
                [s.name, MARKS[s.result], f"{s.seconds * 1000:.0f} ms", s.cause or s.found, s.remedy]
                for s in steps
            ]
            table(str(config), ["step", "result", "took", "found", "what to do"], rows)
        if not good(steps):
            raise typer.Exit(EXIT_FAILED)


def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Only look; exit code 1 if there is something to do.")
    ] = False,
    config: Config = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Bring the database to this version's schema. `serve` does so by itself.

    Example: bfia-gateway migrate --check
    """
    from pathlib import Path

    from gateway.errors import Invalid
    from gateway.store.migrate import opened, revisions

    with reporting(as_json):
        url = settings_of(config).database.url
        try:
            before, newest = revisions(url)
            if not check and before != newest:
                if url.startswith("sqlite:///"):
                    Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
                opened(url).dispose()
        except Invalid as error:
            raise CallFailed("; ".join(map(str, error.problems)), EXIT_FAILED, error.reason) from None
        if as_json:
            show({"was": before, "newest": newest, "migrated": not check and before != newest})
        elif before == newest:
            say(f"nothing to do: the schema is {newest}")
        else:
            say(f"{'would go' if check else 'went'} from {before or 'no schema'} to {newest}")
        if check and before != newest:
            raise typer.Exit(EXIT_FAILED)
