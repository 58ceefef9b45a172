"""``bfia-gateway job plan``: what would happen to a job, before it is handed in."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_FAILED,
    AsJson,
    Config,
    Url,
    connect,
    read_object,
    reporting,
    show,
    table,
)
from gateway.cli.console import say

_MARKS = {"ok": "ok", "warning": "warning", "waits": "waits", "problem": "PROBLEM", "unknown": "unknown"}
_PATIENCE = 120.0
"""seconds for the answer: every node is asked, and its route is tried in both directions"""


def add(commands: typer.Typer) -> None:
    """Add the command to those of jobs."""
    commands.command("plan")(plan)


def plan(
    file: Annotated[Path, typer.Argument(help="The job as JSON or YAML: dag and config; - reads standard input.")],
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Ask every party what would happen to a job, and create nothing.

    Looked at are image and digest, data and grants, resources now, the route in both directions, the profile, and
    whether somebody has to agree. Exit code 0: nothing is known to stand in the way; 1: something does.

    Example: bfia-gateway job plan examples/create_all_psi_sbt.json
    """
    with reporting(as_json), connect(config, url, timeout=_PATIENCE) as node:
        found = node.post("/api/v1/jobs/plan", read_object(file))
        if as_json:
            show(found)
        else:
            _print(found)
        if not found["good"]:
            raise typer.Exit(EXIT_FAILED)


def _print(found: dict[str, Any]) -> None:
    for one in found["nodes"]:
        parties = ", ".join(one["parties"]) or "no party"
        rows = [
            [
                c["check"],
                c["about"],
                _MARKS.get(c["standing"], c["standing"]),
                "; ".join(filter(None, (c["found"], c["cause"]))),
                c["remedy"],
            ]
            for c in one["checks"]
        ]
        table(f"{one['node']} ({parties})", ["what", "of", "result", "found", "what to do"], rows)
        say("")
    say(_summary(found))


def _summary(found: dict[str, Any]) -> str:
    counts = [
        f"{found[f'{standing}_count']} {words}"
        for standing, words in (
            ("problem", "in the way"),
            ("waits", "to wait for"),
            ("warning", "to look at"),
            ("unknown", "not told"),
        )
        if found.get(f"{standing}_count")
    ]
    return ("nothing stands in the way" if found["good"] else "the job would fail") + (
        f" ({', '.join(counts)})" if counts else ""
    )
