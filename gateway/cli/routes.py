"""``bfia-gateway route …``: which nodes there are, how to reach them, and whether that works."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bfia_gateway_client.calls import path_of
from gateway.cli import options
from gateway.cli.client import EXIT_BAD_INPUT, CallFailed, Client, who
from gateway.cli.command import (
    Columns,
    Output,
    command,
    difference,
    listing,
    print_steps,
    say,
    translate_own,
    when,
)
from route_table.model import PROFILES

commands = typer.Typer(name="route")


def _key(
    help_text: str,
    kind: Any = str,
    **more: Any,
) -> tuple[Any, None]:
    return Annotated[kind | None, typer.Option(help=help_text, **more)], None


_ENTRY: dict[str, tuple[Any, Any]] = {
    "to": _key("Address of its gateway, such as https://gw.example:7380."),
    "via": _key("In place of an address: id of the node that relays requests."),
    "relay": _key("Whether this node relays requests from it or to it.", bool),
    "transport": _key(
        "Address of its transport layer (messages of containers), if that is another one."
    ),
    "profile": _key(f"Its dialect: {', '.join(PROFILES)}."),
    "institution": _key("Its owner."),
    "deadline": _key("Seconds that one request may take; default: as it was, or 10.", float, min=0),
    "ca": _key("PEM file on the node's machine: authorities of its certificate."),
    "certificate": _key("PEM file on the node's machine: the certificate presented to it."),
    "key": _key("PEM file on the node's machine: the key of that certificate."),
    "server_name": _key("Name that its certificate must have, where that is not the host."),
    "peer_certificate": _key(
        "What the certificate that it connects with must have: a subject alternative name, or sha256:DIGEST of "
        "its public key; default: its node id."
    ),
    "keys": _key('Public keys that sign its requests, such as "$(cat their-keys.pem)".'),
    "signing": _key(
        "required (default of a new route), accepted, or off: its requests need no proof."
    ),
    "bundles": _key("required or accepted (default): whether its jobs need a signed bundle."),
    "components": _key(
        'What it may run here, such as "unionpay/*, reference/*"; default: everything.'
    ),
}
"""options of `add` and `edit`: the keys of a route"""


@command(commands, "list", options=options.paged())
def list_routes(node: Client, **page: Any) -> Output:
    """List the routes in force."""
    found = node.get("/api/v1/routes", **page)
    yield found
    columns: Columns = {
        "node": "node",
        "address": lambda r: f"via {r['via']}" if r["via"] else r["url"],
        "profile": "profile",
        "institution": "institution",
        "deadline": lambda r: f"{r['deadline']:g} s",
        "relay": "relay",
        "signing": _signing,
        "enabled": "enabled",
    }
    say(f"version {found['version']}")
    listing(found, "routes", "route", columns, spare=("deadline", "relay", "profile"))
    for problem in found["problems"]:
        say(f"not in force, {problem}", err=True)


@command(
    commands,
    "add",
    'JG0100002200000020 --to https://gw.partner.example:7380 --keys "$(cat their-keys.pem)" -m "new partner"',
    options=_ENTRY,
)
def add(
    node: Client,
    node_id: options.NodeId,
    reason: options.Reason = "",
    **entry: Any,
) -> Output:
    """Add a route, or replace its entry. In force immediately; also in the file within a second or two.

    The id `default` stands for all nodes without an entry. Requests of the node need a signature by one of
    `--keys`; with `--signing off` whoever names the node is taken for it.

    Through another node: bfia-gateway route add JG0100002200000020 --via JG0100003300000030
    """
    yield from _edit(node, "PUT", node_id, _given(entry), reason)


@command(commands, "edit", 'JG0100002200000020 --deadline 5 -m "fast line"', options=_ENTRY)
def edit(
    node: Client,
    node_id: options.NodeId,
    unset: Annotated[
        list[str] | None,
        typer.Option(help="Key of the entry to remove, such as ca; may be repeated."),
    ] = None,
    reason: options.Reason = "",
    **entry: Any,
) -> Output:
    """Change some values of a route; the others stay. `--to` removes `via`, and the other way round.

    With TLS: bfia-gateway route edit JG0100002200000020 --to https://gw.example --ca /etc/bfia/partner.pem
    """
    yield from _edit(node, "PATCH", node_id, dict.fromkeys(unset or ()) | _given(entry), reason)


@command(commands, "disable", 'JG0100002200000020 -m "maintenance until Monday"')
def disable(
    node: Client,
    node_id: options.NodeId,
    reason: options.Reason = "",
) -> Output:
    """Take no new jobs with a node; its entry stays, and jobs under way continue."""
    yield from _edit(node, "PATCH", node_id, {"enabled": False}, reason)


@command(commands, "enable", "JG0100002200000020")
def enable(
    node: Client,
    node_id: options.NodeId,
    reason: options.Reason = "",
) -> Output:
    """Enable a disabled node again."""
    yield from _edit(node, "PATCH", node_id, {"enabled": True}, reason)


@command(commands, "remove", 'JG0100002200000020 -m "contract ended"')
def remove(
    node: Client,
    node_id: options.NodeId,
    reason: options.Reason = "",
) -> Output:
    """Remove a route. `route rollback` restores it."""
    yield from _changed(node.delete(path_of("routes", node_id), reason=reason, author=who()))


@command(commands, "history", "--limit 5", options=options.paged(20))
def history(node: Client, **page: Any) -> Output:
    """Show who changed the routes, when and why."""
    found = node.get("/api/v1/route-versions", **page)
    yield found
    columns: Columns = {
        "version": "version",
        "at (UTC)": when("at", 16),
        "by": lambda v: translate_own(v["author"]),
    }
    more: Columns = {"changed": _changes, "why": lambda v: translate_own(v["reason"])}
    listing(found, "versions", "", {**columns, **more}, "versions of the routes")


@command(commands, "diff", "12 --since 9")
def diff(
    node: Client,
    version: Annotated[int, typer.Argument(help="A version; 0: the newest.")] = 0,
    since: Annotated[int, typer.Option(help="The version to compare with; 0: the one before.")] = 0,
) -> Output:
    """Show what differs between two versions of the routes."""
    number = version or node.get("/api/v1/routes")["version"]
    found = node.get(f"/api/v1/route-versions/{number}", since=since or None)
    yield found
    say(found["diff"] or "no difference")


@command(commands, "rollback")
def rollback(
    node: Client,
    version: Annotated[
        int, typer.Argument(help="The version to go back to; 0: the one before the newest.")
    ] = 0,
    reason: options.Reason = "",
) -> Output:
    """Make the routes what they were at a version. That is a version of its own, and can be rolled back too.

    To an earlier one: bfia-gateway route rollback 11 -m "the new address was wrong"
    """
    newest = 0
    if not version:
        newest = int(node.get("/api/v1/routes")["version"])
        if newest < 2:
            raise CallFailed(
                "there is no version before this one", EXIT_BAD_INPUT, "VERSION_UNKNOWN"
            )
        if node.get(f"/api/v1/route-versions/{newest}")["source"] == "rollback":
            say(
                f"this takes back the rollback of version {newest}; to go further back, name a version",
                err=True,
            )
    query = {} if version else {"version": newest}  # so that nobody else's change is undone unseen
    path = f"/api/v1/route-versions/{version or newest - 1}/rollback"
    yield from _changed(node.post(path, {"reason": reason, "author": who()}, **query))


@command(commands, "test", "JG0100002200000020", timeout=150)
def test(node: Client, node_id: options.NodeId) -> Output:
    """Test a route in both directions, step by step. Exit code 1: a step failed."""
    found = node.post(path_of("routes", node_id, "test"), {})
    yield found, found["good"]
    print_steps(f"route to {node_id}", found["steps"])


def _signing(route: Mapping[str, Any]) -> str:
    """Return whether a route's requests need a signature, as it is in force."""
    if route["keys"]:
        return route["signing"] or "required"
    if route["signing"] == "required":
        return "required, no key"
    return route["signing"] or "accepted"


def _given(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of an entry that were given, with absolute paths of files."""
    given = {
        "url" if key == "to" else key: value
        for key, value in entry.items()
        if value not in (None, "")
    }
    files = given.keys() & {"ca", "certificate", "key"}
    return given | {key: str(Path(given[key]).absolute()) for key in files}


def _edit(
    node: Client,
    method: str,
    node_id: str,
    values: Mapping[str, Any],
    reason: str,
) -> Output:
    body = {
        "route": values,
        "reason": reason,
        "author": who(),
    }
    version = node.call(method, path_of("routes", node_id), body)
    yield from _changed(version)
    if any(map(_takes_nothing, version["changes"])):
        say(
            f"nothing of {node_id} is taken before its route has a key: accept its invitation",
            err=True,
        )
        say(
            f"(bfia-gateway partner accept), or: bfia-gateway route edit {node_id} --keys KEYS",
            err=True,
        )


def _takes_nothing(change: Mapping[str, Any]) -> bool:
    """Tell whether a change leaves a route that requires signatures without a key."""
    if change["field"] == "keys":
        return not change["after"]
    entry = change["after"]
    new = change["field"] == "" and entry is not None
    return new and entry["signing"] == "required" and not entry["keys"]


def _changed(version: dict[str, Any]) -> Output:
    yield version
    if version["changes"]:
        say(f"version {version['version']} is in force: {_changes(version)}")
    else:
        say(f"nothing changed: version {version['version']} is in force as before")
    if version.get("not_in_file"):
        text = "warning: the route file cannot be used as it is, and does not hold this version"
        say("\n".join([f"{text}:", *(f"  {cause}" for cause in version["not_in_file"])]), err=True)
        say(
            "correct it and make this change in it, too: the corrected file replaces this version",
            err=True,
        )


def _changes(version: Mapping[str, Any]) -> str:
    shown = [difference(change) for change in version["changes"][:10]]
    more = len(version["changes"]) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
