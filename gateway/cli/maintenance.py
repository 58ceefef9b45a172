"""``bfia-gateway gc``, ``drain``, ``undrain``: what an admin does now and then."""

import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_NO_ANSWER,
    AsJson,
    CallFailed,
    Client,
    Config,
    Url,
    amount,
    connect,
    reporting,
    show,
    table,
)
from gateway.cli.console import say
from gateway.text import counted


def add(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(gc)
    app.command()(drain)
    app.command()(undrain)


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
            say("nothing to remove")
        else:
            done = "would be removed" if dry_run else "removed"
            rows = [[i["kind"], i["name"], i["job"], amount(i["bytes"]), i["cause"] or i["why"]] for i in items]
            table(
                f"{counted(len(items), 'thing')}, {amount(found['bytes'])}",
                ["kind", "name", "job", "size", "why"],
                rows,
            )
            say(f"{len(items) - len(failed)} {done}" + (f", {len(failed)} not" if failed else ""))
        if failed:
            raise typer.Exit(1)


def drain(
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop the jobs under way instead of waiting for them.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Show what is left until the node has ended.")
    ] = True,
    stay: Annotated[bool, typer.Option("--stay", help="Leave the process up when nothing is left.")] = False,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Empty a node: it takes no new jobs, those under way end, then its process ends with exit code 0.

    A gateway that is started again takes jobs again.

    Example: bfia-gateway drain --stop
    """
    with reporting(as_json), connect(config, url) as node:
        begun = node.post("/api/v1/drain", {"running": "stop" if stop else "wait", "exit": not stay})
        state = begun
        if wait:
            for state in _until_empty(node, stay, begun):
                if not as_json:
                    left = ", ".join(f"{j['job_id']} {j['status']}" for j in state["jobs"][:3])
                    more = f" and {len(state['jobs']) - 3} more" if len(state["jobs"]) > 3 else ""
                    say(f"{len(state['jobs'])} left: {left}{more}" if left else "nothing is left")
            if not state["draining"]:
                raise CallFailed("draining was called off by somebody else", reason="UNDRAINED")
        if as_json:
            show(state)
        elif wait:
            say("the node is empty" if stay else "the node has ended")


def undrain(config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False) -> None:
    """Let a node that is being emptied take jobs again.

    Example: bfia-gateway undrain
    """
    with reporting(as_json), connect(config, url) as node:
        state = node.post("/api/v1/undrain", {})
        if as_json:
            show(state)
        else:
            say("the node takes jobs")


def _until_empty(node: Client, stay: bool, first: dict[str, Any], every: float = 0.5) -> Iterator[dict[str, Any]]:
    """Yield what is left, first as known, then whenever it changes, until nothing is; and the node has ended
    unless it stays."""
    known = first["jobs"]
    yield first
    while True:
        try:
            state = node.get("/api/v1/drain")
        except CallFailed as error:
            if error.code == EXIT_NO_ANSWER and not stay:
                return
            raise
        if state["jobs"] != known:
            known = state["jobs"]
            yield state
        if not state["draining"] or (stay and not known):
            yield state
            return
        time.sleep(every)
