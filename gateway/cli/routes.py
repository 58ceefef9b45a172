"""``bfia-gateway route …``: which nodes there are, how to reach them, and whether that works."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gateway.cli.client import EXIT_BAD_INPUT, CallFailed, Client, NodeId, segment
from gateway.cli.command import After, Limit, Output, Reason, command, group
from gateway.cli.console import Columns, listing, say, table, when
from gateway.cli.inputs import finite, who
from route_table.model import PROFILES

commands = group("Which nodes there are, how to reach them, and whether that works.")

MARKS = {"ok": "ok", "warning": "WARNING", "failed": "FAILED", "skipped": "–"}
"""results of the steps of `route test` and `doctor`"""


def _text(help_text: str, *names: str) -> Any:
    return Annotated[str | None, typer.Option(*names, help=help_text)]


_ENTRY: dict[str, Any] = {
    "to": _text("Address of its gateway, such as https://gw.example:7380.", "--to"),
    "via": _text("In place of an address: id of the node that relays requests."),
    "relay": Annotated[
        bool | None, typer.Option("--relay/--no-relay", help="Whether this node relays requests from it or to it.")
    ],
    "profile": _text(f"Its dialect: {', '.join(PROFILES)}."),
    "institution": _text("Its owner."),
    "deadline": Annotated[
        float | None,
        typer.Option(
            help="Seconds that one request may take; default: as it was, or 10.", callback=finite(above=0)
        ),
    ],
    "ca": _text("PEM file on the node's machine: authorities of its certificate."),
    "certificate": _text("PEM file on the node's machine: the certificate presented to it."),
    "key": _text("PEM file on the node's machine: the key of that certificate."),
    "server_name": _text("Name that its certificate must have, where that is not the host."),
    "peer_certificate": _text(
        "What the certificate that it connects with must have: a subject alternative name, or sha256:DIGEST of "
        "its public key; default: its node id."
    ),
    "components": _text('What it may run here, such as "unionpay/*, reference/*"; default: everything.'),
}
"""options of `add` and `edit`: the keys of a route"""


@command(commands, "list")
def list_routes(node: Client, after: After = "", limit: Limit = 100) -> Output:
    """List the routes in force.

    Example: bfia-gateway route list
    """
    found = node.get("/api/v1/routes", after=after, limit=limit)
    yield found
    columns: Columns = {
        "node": "node",
        "address": lambda r: f"via {r['via']}" if r["via"] else r["url"],
        "profile": "profile",
        "institution": "institution",
        "deadline": lambda r: f"{r['deadline']:g} s",
        "relay": "relay",
        "enabled": "enabled",
    }
    say(f"version {found['version']}")
    listing(found, "routes", "route", columns)
    for problem in found["problems"]:
        say(f"not in force, {problem}", err=True)


@command(commands, "add", options=_ENTRY)
def add(node: Client, node_id: NodeId, reason: Reason = "", **entry: Any) -> Output:
    """Add a route, or replace its entry. In force immediately; also in the file within a second or two.

    The id `default` stands for all nodes without an entry.

    Example: bfia-gateway route add JG0100002200000020 --to https://gw.partner.example:7380 -m "new partner"

    Through another node: bfia-gateway route add JG0100002200000020 --via JG0100003300000030
    """
    yield from _changed(node.call("PUT", _path(node_id), _edit(_given(entry), reason)))


@command(commands, "edit", options=_ENTRY)
def edit(
    node: Client,
    node_id: NodeId,
    unset: Annotated[
        list[str] | None, typer.Option(help="Key of the entry to remove, such as ca; may be repeated.")
    ] = None,
    reason: Reason = "",
    **entry: Any,
) -> Output:
    """Change some values of a route; the others stay. `--to` removes `via`, and the other way round.

    Example: bfia-gateway route edit JG0100002200000020 --deadline 5 -m "fast line"

    With TLS: bfia-gateway route edit JG0100002200000020 --to https://gw.example --ca /etc/bfia/partner.pem
    """
    values = dict.fromkeys(unset or ()) | _given(entry)
    yield from _changed(node.call("PATCH", _path(node_id), _edit(values, reason)))


@command(commands, "disable")
def disable(node: Client, node_id: NodeId, reason: Reason = "") -> Output:
    """Take no new jobs with a node; its entry stays, and jobs under way go on.

    Example: bfia-gateway route disable JG0100002200000020 -m "maintenance until Monday"
    """
    yield from _changed(node.call("PATCH", _path(node_id), _edit({"enabled": False}, reason)))


@command(commands, "enable")
def enable(node: Client, node_id: NodeId, reason: Reason = "") -> Output:
    """Enable a disabled node again.

    Example: bfia-gateway route enable JG0100002200000020
    """
    yield from _changed(node.call("PATCH", _path(node_id), _edit({"enabled": True}, reason)))


@command(commands, "remove")
def remove(node: Client, node_id: NodeId, reason: Reason = "") -> Output:
    """Remove a route. `route rollback` brings it back.

    Example: bfia-gateway route remove JG0100002200000020 -m "contract ended"
    """
    yield from _changed(node.delete(_path(node_id), reason=reason, author=who()))


@command(commands, "history")
def history(
    node: Client,
    limit: Annotated[int, typer.Option(help="How many versions.", min=1, max=1000)] = 20,
    after: Annotated[int, typer.Option(help="The next page: what the last one ended with.", min=0)] = 0,
    version: Annotated[int, typer.Option(help="Show the difference that this version made.")] = 0,
) -> Output:
    """Show who changed the routes, when and why.

    Example: bfia-gateway route history --version 12
    """
    if version:
        found = node.get(f"/api/v1/route-versions/{version}")
        yield found
        say(found["diff"])
        return
    found = node.get("/api/v1/route-versions", limit=limit, after=after or None)
    yield found
    columns: Columns = {
        "version": "version",
        "at (UTC)": when("at"),
        "by": "author",
        "changed": _changes,
        "why": "reason",
    }
    listing(found, "versions", "", columns, "versions of the routes")


@command(commands, "diff")
def diff(
    node: Client,
    version: Annotated[int, typer.Argument(help="A version; 0: the newest.")] = 0,
    since: Annotated[int, typer.Option(help="The version to compare with; 0: the one before.")] = 0,
) -> Output:
    """Show what differs between two versions of the routes.

    Example: bfia-gateway route diff 12 --since 9
    """
    number = version or node.get("/api/v1/routes")["version"]
    found = node.get(f"/api/v1/route-versions/{number}", since=since or None)
    yield found
    say(found["diff"] or "no difference")


@command(commands, "rollback")
def rollback(
    node: Client,
    version: Annotated[int, typer.Argument(help="The version to go back to; 0: the one before the newest.")] = 0,
    reason: Reason = "",
) -> Output:
    """Make the routes what they were at a version. That is a version of its own, and can be rolled back too.

    Example: bfia-gateway route rollback

    To an earlier one: bfia-gateway route rollback 11 -m "the new address was wrong"
    """
    newest = 0 if version else int(node.get("/api/v1/routes")["version"])
    if not version and newest < 2:
        raise CallFailed("there is no version before this one", EXIT_BAD_INPUT, "VERSION_UNKNOWN")
    body = {"reason": reason, "author": who()}
    query = {} if version else {"version": newest}  # so that nobody else's change is undone unseen
    path = f"/api/v1/route-versions/{version or newest - 1}/rollback"
    yield from _changed(node.call("POST", path, body, query=query))


@command(commands, "test", timeout=150)
def test(node: Client, node_id: NodeId) -> Output:
    """Test a route in both directions, step by step. Exit code 1: a step failed.

    Example: bfia-gateway route test JG0100002200000020
    """
    found = node.post(f"{_path(node_id)}/test", {})
    yield found, found["good"]
    print_steps(f"route to {node_id}", found["steps"])


def print_steps(title: str, steps: list[Mapping[str, Any]]) -> None:
    """Print the steps of a test as a table."""
    rows = [
        [s["name"], MARKS[s["result"]], f"{s['seconds'] * 1000:.0f} ms", s["cause"] or s["found"], s["remedy"]]
        for s in steps
    ]
    table(title, ["step", "result", "took", "found", "what to do"], rows)


def _path(node_id: str) -> str:
    return f"/api/v1/routes/{segment(node_id)}"


def _given(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of an entry that were given."""
    return {"url" if key == "to" else key: value for key, value in entry.items() if value not in (None, "")}


def _edit(values: Mapping[str, Any], reason: str) -> dict[str, Any]:
    return {"route": values, "reason": reason, "author": who()}


def _changed(version: dict[str, Any]) -> Output:
    yield version
    if version["changes"]:
        say(f"version {version['version']} is in force: {_changes(version)}")
    else:
        say(f"nothing changed: version {version['version']} is in force as before")
    if version.get("not_in_file"):
        text = "warning: the route file cannot be used as it is, and does not hold this version"
        say("\n".join([f"{text}:", *(f"  {cause}" for cause in version["not_in_file"])]), err=True)
        say("correct it: what it then holds of other nodes is merged with this version (route list)", err=True)


def _changes(version: Mapping[str, Any]) -> str:
    shown = []
    for change in version["changes"][:10]:
        node, field = change["node"], change["field"]
        if field:
            shown.append(f"{node}.{field} {change['before']} → {change['after']}")
        else:
            shown.append(f"{'+' if change['before'] is None else '-'}{node}")
    more = len(version["changes"]) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
