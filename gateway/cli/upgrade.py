"""``upgrade``: whether partners would notice a new version, before it serves them."""

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import options
from gateway.cli.client import DEFAULT_CONFIG, EXIT_BAD_INPUT, CallFailed, settings_of
from gateway.cli.command import Output, command
from gateway.cli.output import say
from gateway.cli.tables import table
from gateway.errors import counted

if TYPE_CHECKING:
    from gateway.http.exchange_book import Exchange

commands = typer.Typer(
    name="upgrade",
    help="Find out whether partners would notice a new version.",
    no_args_is_help=True,
)


@command(commands, "rehearse", "--new /opt/bfia-gateway/0.2.0/bin/bfia-gateway")
def rehearse(
    new: Annotated[
        Path, typer.Option("--new", help="The new version's program, installed next to this one.")
    ],
    partner: Annotated[str, typer.Option("--partner", help="Only the requests of this node.")] = "",
    config: options.Config = DEFAULT_CONFIG,
) -> Output:
    """Play the last requests of each partner against a copy of this node in both versions, and list
    every response that would differ.

    The copies reach no other host; this node may be running, and is not changed. A node keeps the
    last 20 kinds of requests per partner, without their values. Exit code 1: something differs.
    """
    from gateway.diagnostics import rehearsal

    exchanges = _kept(config, partner)
    before = rehearsal.Program([sys.executable, "-m", "gateway.cli"])
    after = rehearsal.Program([str(new)])
    if not new.is_file():
        raise CallFailed(f"{new} does not exist: name the new version's bfia-gateway by --new")
    versions = [program.run("--version").strip() for program in (before, after)]
    say(f"playing {counted(len(exchanges), 'request')} against {' and '.join(versions)}", err=True)
    with tempfile.TemporaryDirectory(prefix="bfia-rehearsal-") as folder:
        try:
            differences = rehearsal.rehearse(before, after, config, exchanges, Path(folder))
        except rehearsal.RehearsalFailed as error:
            raise CallFailed(f"the rehearsal failed: {error}") from error
    rows = []
    for difference in differences:
        exchange = difference.exchange
        request = f"{exchange.method} {exchange.path}"
        rows.append([exchange.partner, request, "; ".join(difference.changes)])
    outcome = {
        "versions": versions,
        "requests": len(exchanges),
        "differences": [
            {"partner": name, "request": request, "changes": text} for name, request, text in rows
        ],
    }
    yield outcome, not differences
    if rows:
        table("", ["partner", "request", "change"], rows)
    say(f"requests played: {len(exchanges)}; responses that would differ: {len(rows)}")


def _kept(config: Path, partner: str) -> "list[Exchange]":
    """Return the kept exchanges, of one partner or of all. Raises `CallFailed` without any."""
    from gateway.http.exchange_book import FOLDER, kept_exchanges

    folder = settings_of(config).state_dir / FOLDER
    exchanges = []
    for exchange in kept_exchanges(folder):
        if partner in ("", exchange.partner):
            exchanges.append(exchange)
    if not exchanges:
        text = f"no requests of partners are kept in {folder} yet: a running node keeps them"
        raise CallFailed(text, EXIT_BAD_INPUT)
    return exchanges
