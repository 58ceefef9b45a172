"""``bfia-gateway route …``: who there is, how to reach them, and whether that works."""

from typing import Annotated, Any

import typer

from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_BAD_INPUT,
    AsJson,
    CallFailed,
    Config,
    Url,
    connect,
    nodes,
    reporting,
    segment,
    show,
    table,
)
from gateway.cli.console import PAGE, After, Limit, of_all, print_more, say
from gateway.cli.inputs import finite, who
from route_table.model import PROFILES

RouteUrl = Annotated[str, typer.Option("--to", help="Address of its gateway, such as https://gw.example:7380.")]
Via = Annotated[str, typer.Option(help="In place of an address: id of the node that passes requests on.")]
Relay = Annotated[
    bool | None, typer.Option("--relay/--no-relay", help="Whether this node passes on what is from it or for it.")
]
Profile = Annotated[str, typer.Option(help=f"Its dialect: {', '.join(PROFILES)}.")]
Institution = Annotated[str, typer.Option(help="Who owns it.")]
Deadline = Annotated[
    float | None,
    typer.Option(
        help="Seconds that one call may take; default: as it was, or 10.",
        callback=finite(above=0),
        show_default=False,
    ),
]
Ca = Annotated[str, typer.Option(help="PEM file on the node's machine: authorities of its certificate.")]
Certificate = Annotated[str, typer.Option(help="PEM file on the node's machine: the certificate shown to it.")]
Key = Annotated[str, typer.Option(help="PEM file on the node's machine: the key of that certificate.")]
ServerName = Annotated[str, typer.Option(help="Name that its certificate must bear, where that is not the host.")]
PeerCertificate = Annotated[
    str,
    typer.Option(
        help="What the certificate that it connects with must bear: a subject alternative name or sha256:DIGEST "
        "of its public key; default: its node id."
    ),
]
Components = Annotated[
    str, typer.Option(help='What it may have run here, such as "unionpay/*, reference/*"; default: everything.')
]
Unset = Annotated[
    list[str] | None, typer.Option(help="Key of the entry to take away, such as ca; may be repeated.")
]


def given(
    to: str,
    via: str,
    relay: bool | None,
    profile: str,
    institution: str,
    deadline: float | None,
    ca: str,
    certificate: str,
    key: str,
    server_name: str,
    peer_certificate: str,
    components: str,
) -> dict[str, Any]:
    """Return the keys of an entry that were given."""
    values = {
        "url": to,
        "via": via,
        "profile": profile,
        "institution": institution,
        "deadline": deadline,
        "ca": ca,
        "certificate": certificate,
        "key": key,
        "server_name": server_name,
        "peer_certificate": peer_certificate,
        "components": components,
    }
    found: dict[str, Any] = {name: value for name, value in values.items() if value}
    return found if relay is None else found | {"relay": relay}


commands = typer.Typer(help="Who there is, how to reach them, and whether that works.", no_args_is_help=True)

Node = Annotated[str, typer.Argument(help="Id of the other node.", autocompletion=nodes)]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Why; kept in the history.")]
_MARKS = {"ok": "ok", "warning": "WARNING", "failed": "FAILED", "skipped": "–"}


def add(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="route")


@commands.command("list")
def list_routes(
    after: After = "",
    limit: Limit = PAGE,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """List the routes in force.

    Example: bfia-gateway route list
    """
    with reporting(as_json), connect(config, url) as node:
        found = node.get("/api/v1/routes", after=after or None, limit=limit)
        if as_json:
            show(found)
            return
        rows = [
            [
                r["node"],
                f"via {r['via']}" if r["via"] else r["url"],
                r["profile"],
                r["institution"],
                f"{r['deadline']:g} s",
                _yes(r["relay"]),
                _yes(r["enabled"]),
            ]
            for r in found["routes"]
        ]
        heads = ["node", "address", "profile", "institution", "deadline", "relay", "on"]
        title = f"version {found['version']}: {of_all(found, len(rows), 'route')}"
        table(title, heads, rows)
        print_more(found)
        for problem in found["problems"]:
            say(f"not in force, {problem}", err=True)


@commands.command("add")
def add_route(
    node_id: Node,
    to: RouteUrl = "",
    via: Via = "",
    relay: Relay = None,
    profile: Profile = "",
    institution: Institution = "",
    deadline: Deadline = None,
    ca: Ca = "",
    certificate: Certificate = "",
    key: Key = "",
    server_name: ServerName = "",
    peer_certificate: PeerCertificate = "",
    components: Components = "",
    reason: Reason = "",
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Add a route, or write its entry anew. In force at once; also in the file within a second or two.

    The id `default` stands for all nodes without an entry.

    Example: bfia-gateway route add JG0100002200000020 --to https://gw.partner.example:7380 -m "new partner"

    Through another node: bfia-gateway route add JG0100002200000020 --via JG0100003300000030
    """
    values = given(
        to,
        via,
        relay,
        profile,
        institution,
        deadline,
        ca,
        certificate,
        key,
        server_name,
        peer_certificate,
        components,
    )
    with reporting(as_json), connect(config, url) as node:
        _told(node.call("PUT", _path(node_id), _edit(values, reason)), as_json)


@commands.command("edit")
def edit_route(
    node_id: Node,
    to: RouteUrl = "",
    via: Via = "",
    relay: Relay = None,
    profile: Profile = "",
    institution: Institution = "",
    deadline: Deadline = None,
    ca: Ca = "",
    certificate: Certificate = "",
    key: Key = "",
    server_name: ServerName = "",
    peer_certificate: PeerCertificate = "",
    components: Components = "",
    unset: Unset = None,
    reason: Reason = "",
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Change some values of a route; the others stay. `--to` takes `via` away, and the other way round.

    Example: bfia-gateway route edit JG0100002200000020 --deadline 5 -m "fast line"

    With TLS: bfia-gateway route edit JG0100002200000020 --to https://gw.example --ca /etc/bfia/partner.pem
    """
    values = given(
        to,
        via,
        relay,
        profile,
        institution,
        deadline,
        ca,
        certificate,
        key,
        server_name,
        peer_certificate,
        components,
    )
    values = dict.fromkeys(unset or ()) | values
    with reporting(as_json), connect(config, url) as node:
        _told(node.call("PATCH", _path(node_id), _edit(values, reason)), as_json)


@commands.command("disable")
def disable(
    node_id: Node, reason: Reason = "", config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False
) -> None:
    """Take a node out of use for new jobs; its entry stays, and jobs under way go on.

    Example: bfia-gateway route disable JG0100002200000020 -m "maintenance until Monday"
    """
    _switch(node_id, False, reason, config, url, as_json)


@commands.command("enable")
def enable(
    node_id: Node, reason: Reason = "", config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False
) -> None:
    """Take a disabled node into use again.

    Example: bfia-gateway route enable JG0100002200000020
    """
    _switch(node_id, True, reason, config, url, as_json)


@commands.command("remove")
def remove(
    node_id: Node, reason: Reason = "", config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False
) -> None:
    """Remove a route. `route rollback` brings it back.

    Example: bfia-gateway route remove JG0100002200000020 -m "contract ended"
    """
    with reporting(as_json), connect(config, url) as node:
        _told(node.delete(_path(node_id), reason=reason, author=who()), as_json)


@commands.command("history")
def history(
    limit: Annotated[int, typer.Option(help="How many versions.", min=1, max=1000)] = 20,
    after: Annotated[int, typer.Option(help="The next page: what the last one ended with.", min=0)] = 0,
    version: Annotated[int, typer.Option(help="Show the difference that this version made.")] = 0,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Show who changed the routes, when and why.

    Example: bfia-gateway route history --version 12
    """
    with reporting(as_json), connect(config, url) as node:
        if version:
            one = node.get(f"/api/v1/route-versions/{version}")
            show(one) if as_json else say(one["diff"])
            return
        found = node.get("/api/v1/route-versions", limit=limit, after=after or None)
        if as_json:
            show(found)
            return
        rows = [[v["version"], v["at"][:19], v["author"], _changes(v), v["reason"]] for v in found["versions"]]
        table("versions of the routes", ["version", "at (UTC)", "by", "changed", "why"], rows)
        if found["next"]:
            say(f"more: --after {found['next']}", err=True)


@commands.command("diff")
def diff(
    version: Annotated[int, typer.Argument(help="A version; 0: the newest.")] = 0,
    since: Annotated[int, typer.Option(help="The version to compare with; 0: the one before.")] = 0,
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Show what differs between two versions of the routes.

    Example: bfia-gateway route diff 12 --since 9
    """
    with reporting(as_json), connect(config, url) as node:
        number = version or node.get("/api/v1/routes")["version"]
        one = node.get(f"/api/v1/route-versions/{number}", **({"since": since} if since else {}))
        show(one) if as_json else say(one["diff"] or "no difference")


@commands.command("rollback")
def rollback(
    version: Annotated[int, typer.Argument(help="The version to go back to; 0: the one before the newest.")] = 0,
    reason: Reason = "",
    config: Config = DEFAULT_CONFIG,
    url: Url = "",
    as_json: AsJson = False,
) -> None:
    """Make the routes what they were at a version. That is a version of its own, and can be rolled back too.

    Example: bfia-gateway route rollback

    To an earlier one: bfia-gateway route rollback 11 -m "the new address was wrong"
    """
    with reporting(as_json), connect(config, url) as node:
        newest = 0 if version else int(node.get("/api/v1/routes")["version"])
        if not version and newest < 2:
            raise CallFailed("there is no version before this one", EXIT_BAD_INPUT, "VERSION_UNKNOWN")
        body = {"reason": reason, "author": who()}
        query = {} if version else {"version": newest}  # so that nobody else's change is undone unseen
        path = f"/api/v1/route-versions/{version or newest - 1}/rollback"
        _told(node.call("POST", path, body, query=query), as_json)


@commands.command("test")
def test(node_id: Node, config: Config = DEFAULT_CONFIG, url: Url = "", as_json: AsJson = False) -> None:
    """Try a route in both directions, step by step. Exit code 1: a step failed.

    Example: bfia-gateway route test JG0100002200000020
    """
    with reporting(as_json), connect(config, url, timeout=150) as node:
        found = node.post(f"{_path(node_id)}/test", {})
        if as_json:
            show(found)
        else:
            rows = [
                [
                    s["name"],
                    _MARKS[s["result"]],
                    f"{s['seconds'] * 1000:.0f} ms",
                    s["cause"] or s["found"],
                    s["remedy"],
                ]
                for s in found["steps"]
            ]
            table(f"route to {node_id}", ["step", "result", "took", "found", "what to do"], rows)
        if not found["good"]:
            raise typer.Exit(1)


def _switch(node_id: str, enabled: bool, reason: str, config: Any, url: str, as_json: bool) -> None:
    with reporting(as_json), connect(config, url) as node:
        _told(node.call("PATCH", _path(node_id), _edit({"enabled": enabled}, reason)), as_json)


def _path(node_id: str) -> str:
    return f"/api/v1/routes/{segment(node_id)}"


def _edit(values: dict[str, Any], reason: str) -> dict[str, Any]:
    return {"route": values, "reason": reason, "author": who()}


def _told(version: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show(version)
    elif version["changes"]:
        say(f"version {version['version']} is in force: {_changes(version)}")
    else:
        say(f"nothing changed: version {version['version']} is in force as before")
    if not as_json and version.get("not_in_file"):
        text = "warning: the route file cannot be used as it is, and does not hold this version"
        say("\n".join([f"{text}:", *(f"  {cause}" for cause in version["not_in_file"])]), err=True)
        say("correct it: what it then says of other nodes is joined with this version (route list)", err=True)


def _changes(version: dict[str, Any]) -> str:
    shown = []
    for change in version["changes"][:10]:
        node, field = change["node"], change["field"]
        if field:
            shown.append(f"{node}.{field} {change['before']} → {change['after']}")
        else:
            shown.append(f"{'+' if change['before'] is None else '-'}{node}")
    more = len(version["changes"]) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _yes(value: bool) -> str:
    return "yes" if value else "no"
