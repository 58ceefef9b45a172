"""``bfia-gateway route …``: which nodes there are, how to reach them, and whether that works."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bfia_gateway_client.calls import path_of
from gateway.cli import options
from gateway.cli.client import EXIT_BAD_INPUT, CallFailed, Client, who
from gateway.cli.command import Output, command
from gateway.cli.language import t
from gateway.cli.output import say
from gateway.cli.tables import Columns, listing, print_steps, table
from gateway.cli.values import amount, difference, translate_own, when
from route_table.model import PROFILES

commands = typer.Typer(name="route")


_FILES = ("ca", "certificate", "key", "proxy_password")  # keys of a route that name a file
# Fields of a change that may leave a route without a key; "" stands for a route that was
# added or replaced.
_SIGNING_FIELDS = ("", "keys", "signing")
_LISTED_CHANGES = 10  # changes of a version that a line names
_LISTED_REMEDIES = 10  # routes whose next step the list names
_OPEN = "none: open to anyone"
_REFUSED = "none: refused"
# What proves the requests of a route's node, as the list shows it.
_PROOFS = {
    "signature": "signature",
    "certificate": "certificate",
    "fate": "FATE's signature",
    "local": "none: this machine only",
    "off": _OPEN,
    "missing": _REFUSED,
}


def _route_option(
    help_text: str,
    value_type: Any = str,
    **limits: Any,
) -> tuple[Any, None]:
    """Return an option for a value of a route, with its default, for `command`.

    The default None leaves the route's value unchanged.
    """
    option = typer.Option(help=help_text, **limits)
    return Annotated[value_type | None, option], None


# Options of ``add`` and ``edit``, by keys of a route; only ``to`` is the key "url" of a route. "It"
# and "its" in the help texts mean the node that the route leads to.
_ROUTE_OPTIONS: dict[str, tuple[Any, Any]] = {
    "to": _route_option("Address of its gateway, such as https://gw.example:7380."),
    "via": _route_option("In place of an address: id of the node that relays requests."),
    "dial": _route_option(
        "out: open links to it and keep them, so that this node needs no open port."
    ),
    "reached": _route_option(
        "by-link: in place of an address, for a node that opens links to this one."
    ),
    "relay": _route_option("Whether this node relays requests from it or to it.", bool),
    "transport": _route_option(
        "Address of its transport layer (messages of containers), if that is another one."
    ),
    "profile": _route_option(f"Its dialect: {', '.join(PROFILES)}."),
    "institution": _route_option("Its owner."),
    "deadline": _route_option(
        "Seconds that one request may take; default: as it was, or 10.", float, min=0
    ),
    "parallel": _route_option(
        "Connections that carry a long message to it together, 1 to 7; more are faster over a "
        "long line that loses packets; default: 2.",
        int,
    ),
    "bandwidth": _route_option(
        "Bytes per second exchanged with it in each direction, such as 20MB; default: "
        "limits.partner_bandwidth."
    ),
    "ca": _route_option("PEM file on the node's machine: authorities of its certificate."),
    "certificate": _route_option(
        "PEM file on the node's machine: the certificate presented to it."
    ),
    "key": _route_option("PEM file on the node's machine: the key of that certificate."),
    "server_name": _route_option(
        "Name that its certificate must have, where that is not the host."
    ),
    "proxy": _route_option("HTTP proxy on the way to it, such as http://user@proxy.example:3128."),
    "proxy_password": _route_option(
        "File on the node's machine: the password of that user and nothing else."
    ),
    "peer_certificate": _route_option(
        "Required in the client certificate of its requests: a subject alternative name, or "
        "sha256:DIGEST of its public key; default: its node id."
    ),
    "keys": _route_option('Public keys that sign its requests, such as "$(cat their-keys.pem)".'),
    "signing": _route_option(
        "required (default of a new route), accepted, or off; off means that its requests need no "
        "proof."
    ),
    "bundles": _route_option(
        "required or accepted (default): whether its jobs need a signed bundle."
    ),
    "sealing_key": _route_option(
        "Public key to which messages for it are sealed (its invitation has it)."
    ),
    "sealing": _route_option(
        "required, accepted, or off: whether messages of containers are sealed from end to end; "
        "default: accepted with a sealing key, else off."
    ),
    "control_sealing": _route_option(
        "required, accepted, or off (default): whether the bodies of control requests (jobs, "
        "tasks, reports) are sealed from end to end, too."
    ),
    "components": _route_option(
        'What it may run here, such as "unionpay/*, reference/*"; default: everything.'
    ),
}


@command(commands, "list", options=options.paged())
def list_routes(node: Client, **paging: Any) -> Output:
    """List the routes in force."""
    response = node.get("/api/v1/routes", **paging)
    yield response
    columns: Columns = {
        "node": "node",
        "address": _address,
        "profile": "profile",
        "institution": "institution",
        "deadline": _deadline,
        "relay": "relay",
        "proof": _proof,
        "sealing": _sealing,
        "enabled": "enabled",
    }
    say(f"version {response['version']}")
    listing(
        response,
        "routes",
        columns,
        noun="route",
        dispensable=("deadline", "relay", "profile"),
        red=(t(_OPEN), t(_REFUSED)),
    )
    _print_remedies([route for route in response["routes"] if route["remedy"]])
    for problem in response["problems"]:
        say(f"not in force, {problem}", err=True)


def _print_remedies(routes: Sequence[Mapping[str, Any]]) -> None:
    """Print the next step for the first of these routes, whose nodes' requests are unproven."""
    if routes:
        say("what to do:")
    for route in routes[:_LISTED_REMEDIES]:
        say(f"  {route['node']}: {t(route['remedy'])}")


def _address(route: Mapping[str, Any]) -> str:
    """Return the address of a route, or how else its node is reached."""
    if route["via"]:
        return f"via {route['via']}"
    if route["reached"]:
        return t(f"dials in: {_links_text(route)}")
    if route["dial"]:
        return t(f"{route['url']}, dialled: {_links_text(route)}")
    return str(route["url"])


def _links_text(route: Mapping[str, Any]) -> str:
    """Return how many links stand, since when, and from where; or why the last one failed."""
    links = route["links"]
    failure = route["link_failure"]
    if links:
        since = min(_minute(link["since"]) for link in links)
        addresses = ", ".join(sorted({str(link["address"]) for link in links}))
        return f"{len(links)} links since {since}, {addresses}"
    if failure:
        return f"no link stands; the last one at {_minute(failure['at'])}: {failure['cause']}"
    return "no link stands"


def _minute(moment: str) -> str:
    """Return a time in UTC to the minute."""
    return moment[:16].replace("T", " ")


def _deadline(route: Mapping[str, Any]) -> str:
    """Return the time limit of a request."""
    return f"{route['deadline']:g} s"


def _proof(route: Mapping[str, Any]) -> str:
    """Return what proves the requests of a route's node.

    Empty for the default entry and for one of the node itself, by which no node sends requests.
    """
    return t(_PROOFS.get(route["proof"], ""))


def _sealing(route: Mapping[str, Any]) -> str:
    """Return whether messages of containers are sealed, and whether control requests are.

    If the route does not set ``sealing``, messages are if it has a sealing key. Control requests
    are named only if they are sealed.
    """
    has_key = bool(route["sealing_key"])
    sealing = route["sealing"] or ("accepted" if has_key else "off")
    control = route["control_sealing"]
    words = [_sealing_word(sealing)]
    if control != "off":
        words.append(f"{t('control')} {_sealing_word(control)}")
    if "required" in (sealing, control) and not has_key:
        words.append(t("no key"))
    return ", ".join(words)


def _sealing_word(value: str) -> str:
    """Return a setting in the language in use; "required" alone is a word of forms there."""
    return t(f"sealing: {value}").removeprefix("sealing: ")


@command(commands, "show", "JG0100002200000020")
def show(node: Client, node_id: options.NodeId) -> Output:
    """Show a route, and the bytes exchanged with its node today and this month (UTC).

    They are the bodies of requests and responses, without headers and TLS.
    """
    response = node.get(path_of("routes", node_id))
    yield response
    route = response["route"]
    traffic = response["traffic"]
    rows = [
        ["address", _address(route)],
        ["profile", route["profile"]],
        ["institution", route["institution"]],
        ["deadline", _deadline(route)],
        ["relay", route["relay"]],
        ["proof", _proof(route)],
        ["sealing", _sealing(route)],
        ["enabled", route["enabled"]],
        ["today", _traffic_text(traffic["today"])],
        ["this month", _traffic_text(traffic["month"])],
        *_pace_rows(response),
    ]
    table(f"route to {node_id}", ["", ""], rows)
    if route["remedy"]:
        _print_remedies([route])


def _pace_rows(response: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each direction whose bandwidth is limited."""
    rows = []
    for direction in ("sending", "receiving"):
        pace = response.get(direction)  # earlier versions have none
        if pace:
            rows.append([direction, _pace_text(pace)])
    return rows


def _pace_text(pace: Mapping[str, Any]) -> str:
    """Return the present rate, the limit, and how many messages wait."""
    rate = amount(pace["bytes_per_second"])
    limit = amount(pace["limit"])
    waiting = pace["waiting"]
    return t(f"{rate}/s of at most {limit}/s, {waiting} messages wait")


def _traffic_text(traffic: Mapping[str, Any]) -> str:
    """Return the bytes received and sent."""
    received = amount(traffic["bytes_in"])
    sent = amount(traffic["bytes_out"])
    return t(f"{received} in, {sent} out")


@command(
    commands,
    "add",
    'JG0100002200000020 --to https://gw.partner.example:7380 --keys "$(cat their-keys.pem)" -m '
    '"new partner"',
    options=_ROUTE_OPTIONS,
)
def add(
    node: Client,
    node_id: options.NodeId,
    reason: options.Reason = "",
    **entry: Any,
) -> Output:
    """Add a route, or replace its entry. In force immediately; also in the file within a second or
    two.

    The entry `default` applies to all nodes without one. Requests of the node need a signature by
    one of `--keys`; with `--signing off` any request with its id is accepted.

    Through another node: bfia-gateway route add JG0100002200000020 --via JG0100003300000030
    """
    yield from _edit(node, "PUT", node_id, _route_values(entry), reason)


@command(commands, "edit", 'JG0100002200000020 --deadline 5 -m "fast line"', options=_ROUTE_OPTIONS)
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
    """Change some values of a route; the others stay. `--to` removes `via`, and the other way
    round.

    With TLS: bfia-gateway route edit JG0100002200000020 --to https://gw.example --ca
    /etc/bfia/partner.pem
    """
    removed = dict.fromkeys(unset or ())
    yield from _edit(node, "PATCH", node_id, removed | _route_values(entry), reason)


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
    version = node.delete(
        path_of("routes", node_id),
        reason=reason,
        author=who(),
    )
    yield from _output_of(version)


@command(commands, "history", "--limit 5", options=options.paged(limit=20))
def history(node: Client, **paging: Any) -> Output:
    """Show who changed the routes, when and why."""
    response = node.get("/api/v1/route-versions", **paging)
    yield response
    columns: Columns = {
        "version": "version",
        "at (UTC)": when("at", length=16),
        "by": _author,
        "changed": _changes_text,
        "why": _reason,
    }
    listing(response, "versions", columns, title="versions of the routes")


def _author(version: Mapping[str, Any]) -> str:
    """Return the author of a version; a name that this program entered is translated."""
    return translate_own(version["author"])


def _reason(version: Mapping[str, Any]) -> str:
    """Return the reason of a version; a reason that this program entered is translated."""
    return translate_own(version["reason"])


def _changes_text(version: Mapping[str, Any]) -> str:
    """Return the first changes of a version in a line."""
    changes = version["changes"]
    text = ", ".join(map(difference, changes[:_LISTED_CHANGES]))
    unnamed = len(changes) - _LISTED_CHANGES
    if unnamed > 0:
        text += f" and {unnamed} more"
    return text


@command(commands, "diff", "12 --since 9")
def diff(
    node: Client,
    version: Annotated[int, typer.Argument(help="A version; 0: the newest.")] = 0,
    since: Annotated[int, typer.Option(help="The version to compare with; 0: the one before.")] = 0,
) -> Output:
    """Show what differs between two versions of the routes."""
    number = version or node.get("/api/v1/routes")["version"]
    response = node.get(f"/api/v1/route-versions/{number}", since=since or None)
    yield response
    say(response["diff"] or "no difference")


@command(commands, "rollback")
def rollback(
    node: Client,
    version: Annotated[
        int, typer.Argument(help="The version to go back to; 0: the one before the newest.")
    ] = 0,
    reason: options.Reason = "",
) -> Output:
    """Restore the routes of a version. This makes a new version, which can be rolled back, too.

    To an earlier one: bfia-gateway route rollback 11 -m "the new address was wrong"
    """
    query = {}
    if not version:
        newest = _newest_version(node)
        version = newest - 1
        query["version"] = newest  # refused if the routes have changed since
    path = f"/api/v1/route-versions/{version}/rollback"
    yield from _output_of(node.post(path, {"reason": reason, "author": who()}, **query))


def _newest_version(node: Client) -> int:
    """Return the newest version of the routes, which a rollback without a version undoes.

    Print a hint if that version is itself a rollback. Raises `CallFailed` if it is the first one.
    """
    newest = int(node.get("/api/v1/routes")["version"])
    if newest < 2:
        raise CallFailed("there is no version before this one", EXIT_BAD_INPUT, "VERSION_UNKNOWN")
    if node.get(f"/api/v1/route-versions/{newest}")["source"] == "rollback":
        say(
            f"this takes back the rollback of version {newest}; to go further back, name a version",
            err=True,
        )
    return newest


@command(commands, "test", "JG0100002200000020", timeout=150)
def test(node: Client, node_id: options.NodeId) -> Output:
    """Test a route in both directions, step by step. Exit code 1: a step failed."""
    response = node.post(path_of("routes", node_id, "test"), {})
    yield response, response["good"]
    print_steps(f"route to {node_id}", response["steps"])


# ---------------------------------------------------------------- changes


def _route_values(command_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for a route from a command's options, with absolute paths of files.

    Options that are empty, or not used (None), are left out.
    """
    values = {}
    for key, value in command_options.items():
        if value in (None, ""):
            continue
        if key == "to":
            key = "url"
        elif key in _FILES:
            value = str(Path(value).absolute())
        values[key] = value
    return values


def _edit(
    node: Client,
    method: str,
    node_id: str,
    values: Mapping[str, Any],
    reason: str,
) -> Output:
    """Write a node's route; print the new version, and a hint if the route lacks a public key."""
    body = {
        "route": values,
        "reason": reason,
        "author": who(),
    }
    version = node.call(method, path_of("routes", node_id), body)
    yield from _output_of(version)
    if _lacks_key(node, node_id, version["changes"]):
        say(
            f"nothing of {node_id} is taken before its route has a key: accept its invitation",
            err=True,
        )
        say(
            "(bfia-gateway partner accept --replace), or: bfia-gateway route edit "
            f"{node_id} --keys KEYS",
            err=True,
        )


def _lacks_key(
    node: Client,
    node_id: str,
    changes: Iterable[Mapping[str, Any]],
) -> bool:
    """True if changes have left a node's route with nothing that proves the node's requests.

    Asks the node for the route, since a change of one field does not show the others.
    """
    if not any(change["field"] in _SIGNING_FIELDS for change in changes):
        return False
    route = node.get(path_of("routes", node_id))["route"]
    return bool(route["proof"] == "missing")


def _output_of(version: dict[str, Any]) -> Output:
    """Yield a new version of the routes as the output of a command, and print its changes."""
    yield version
    if version["changes"]:
        say(f"version {version['version']} is in force: {_changes_text(version)}")
    else:
        say(f"nothing changed: version {version['version']} is in force as before")
    causes = version.get("not_in_file")
    if causes:
        lines = ["warning: the route file cannot be used as it is, and does not hold this version:"]
        lines += [f"  {cause}" for cause in causes]
        say("\n".join(lines), err=True)
        say(
            "correct it and make this change in it, too: the corrected file replaces this version",
            err=True,
        )
