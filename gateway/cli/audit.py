"""``bfia-gateway audit``: who changed what at a node, and how that went."""

import json
from typing import Annotated, Any

import typer

from gateway.cli.client import DEFAULT_CONFIG, AsJson, Config, Url, connect, reporting, show, table
from gateway.cli.console import say
from gateway.text import counted


def add(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "audit", epilog="Exit codes: 0 shown, 1 the node said no, 2 bad input, 3 no answer from the node."
    )(audit)


def audit(
    who: Annotated[str, typer.Option(help="Only by this person, program or node.")] = "",
    action: Annotated[str, typer.Option(help="Only whose action holds this text, such as datasets.")] = "",
    since: Annotated[str, typer.Option(help="Only then or later, UTC: 2026-11-21 or 2026-11-21T08:00.")] = "",
    until: Annotated[str, typer.Option(help="Only before that.")] = "",
    refused: Annotated[bool, typer.Option("--refused", help="Only changes that were not made.")] = False,
    after: Annotated[int, typer.Option(help="The next page: what the last one ended with.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")] = 20,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Show who asked for which change, with what was there before and after.

    Example: bfia-gateway audit --action grants --since 2026-11-01
    """
    asked: dict[str, Any] = {"who": who, "action": action, "since": since, "until": until, "after": after}
    with reporting(as_json), connect(config, url) as node:
        query = {name: value for name, value in asked.items() if value}
        found = node.get("/api/v1/audit", limit=limit, refused=refused or None, **query)
        if as_json:
            show(found)
            return
        rows = [
            [e["id"], e["at"][:19].replace("T", " "), e["who"], e["action"], _went(e), _detail(e["detail"])]
            for e in found["audit"]
        ]
        table(counted(len(rows), "change"), ["", "at (UTC)", "who", "what", "went", "before → after"], rows)
        if found["next"]:
            say(f"more: --after {found['next']}", err=True)


def _went(entry: Any) -> str:
    good = entry["status"] < 400 and entry["code"] in (None, 0, 200)
    if good and entry["detail"].get("dry_run"):
        return "looked only"
    return "done" if good else f"refused ({entry['code'] or entry['status']})"


def _detail(detail: Any, most: int = 300) -> str:
    if isinstance(detail.get("changes"), list):
        text = ", ".join(_change(change) for change in detail["changes"][:10])
    elif "reason" in detail and "from" in detail:
        more = f", {detail['repeated']} times more" if "repeated" in detail else ""
        text = f"from {detail['from']}: {detail.get('message') or detail['reason']}{more}"
    elif "refused" in detail:
        text = str(detail["refused"])
    elif "before" in detail or "after" in detail:
        text = f"{_short(detail.get('before'))} → {_short(detail.get('after'))}"
    else:
        text = _short(detail) if detail else ""
    return text if len(text) <= most else text[: most - 1] + "…"


def _change(change: Any) -> str:
    """Return one line of a difference: of routes by node and key, of providers by path."""
    named = [str(change[key]) for key in ("node", "field", "path") if change.get(key)]
    before, after = change.get("before"), change.get("after")
    if "node" in change and not change.get("field"):
        return f"{'+' if before is None else '-'}{change['node']}"
    return f"{'.'.join(named)} {_short(before)} → {_short(after)}"


def _short(value: Any) -> str:
    return "–" if value is None else json.dumps(value, ensure_ascii=False)
