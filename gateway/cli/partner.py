"""``bfia-gateway partner …``: become partners, by six words or by a contract; apply for data, decide on that."""

from collections.abc import Generator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bfia_gateway_client.calls import path_of
from gateway.cli import options
from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXAMPLE_NODE,
    EXIT_BAD_INPUT,
    CallFailed,
    Client,
    connect,
    read_object,
    settings_of,
    who,
)
from gateway.cli.command import Columns, Output, command, listing, print_json, say, warn, when
from gateway.cli.language import t

if TYPE_CHECKING:
    from gateway.config.schema import Settings

commands = typer.Typer(name="partner")


_AUTHORITY = "PEM file: the authority of the partner's certificate, where no public one issued it; default: the route's."
_CERTIFICATE = (
    "PEM file: this node's certificate, which it shows the partner; default: the route's."
)
_KEY = "PEM file: the private key of that certificate; default: the route's."
Address = Annotated[
    str, typer.Option(help="Where the partner reaches this node; default: listen.peer.advertise.")
]


@command(commands, "invite", "--address https://gw.bank.example:7380 > invitation.json")
def invite(address: Address = "", config: options.Config = DEFAULT_CONFIG) -> Output:
    """Print this node's invitation: its id, address and public keys. Nothing in it is secret.

    Each side sends its own to the other, and accepts the other's.
    """
    found = _own(settings_of(config), address)
    _warn(found)
    if found["node"] == EXAMPLE_NODE:
        warn(
            [
                f"{EXAMPLE_NODE} is the default id, for trials: no two nodes may have the same; change node.id first"
            ]
        )
    yield found
    print_json(found)


@command(commands, "accept", "their-invitation.json --address https://gw.bank.example:7380")
def accept(
    file: Annotated[Path, typer.Argument(help="The partner's invitation; - reads standard input.")],
    address: Annotated[
        str,
        typer.Option(
            help="This node's address as its own invitation has it; default: listen.peer.advertise."
        ),
    ] = "",
    yes: Annotated[
        bool, typer.Option("--yes", help="The words are the same: write the route.")
    ] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Replace address and keys of the node's route, and enable it."
        ),
    ] = False,
    ca: Annotated[Path | None, typer.Option(help=_AUTHORITY)] = None,
    certificate: Annotated[Path | None, typer.Option(help=_CERTIFICATE)] = None,
    key: Annotated[Path | None, typer.Option(help=_KEY)] = None,
    config: options.Config = DEFAULT_CONFIG,
) -> Output:
    """Accept a partner's invitation: once both see the same six words, write its route; it must sign its requests.

    The words stand for both invitations: ids, addresses and keys. Compare them by telephone, with somebody whose
    voice or number you know. Needs the running node.
    """
    from gateway.errors import Invalid
    from gateway.identity.keys import invitation_of, six_words

    own, theirs = _own(settings_of(config), address), read_object(file)
    if theirs.get("node") == own["node"]:
        text = f"{file} is this node's own invitation: send it to the partner, and accept the partner's"
        raise CallFailed(text, EXIT_BAD_INPUT)
    try:
        theirs = invitation_of(theirs, own["node"])
    except Invalid as error:
        text = f"{file} is not the invitation of another node, which has node, address and keys"
        raise CallFailed(text, EXIT_BAD_INPUT) from error
    node, url, keys = theirs.values()
    words = six_words(own, theirs)
    with connect(config) as client:
        version = client.get("/api/v1/routes", limit=1)["version"]
        if before := _route(client, node):
            if not replace:
                text = f"{node} has a route already: {_in_brief(before)}; to replace that, add --replace"
                raise CallFailed(text, reason="CONFLICT")
            say(f"replaces the route of {node}: {_in_brief(before)}", err=True)
        _warn(own, theirs)
        if not yes:
            say(f"this node, {own['node']}, is at {own['address']}; {node} is at {url}", err=True)
            say(f"the words at both sides: {words}", err=True)
            typer.confirm(t("Does the partner see the same words?"), abort=True, err=True)
        entry = {
            "url": url,
            "keys": ", ".join(keys),
            "signing": "required",
            "bundles": "required",
        }
        tls = {
            "ca": ca,
            "certificate": certificate,
            "key": key,
        }
        entry |= {name: str(given.absolute()) for name, given in tls.items() if given}
        entry |= {"enabled": "true"} if before else {}
        body = {
            "route": entry,
            "reason": "invitation accepted",
            "author": who(),
        }
        done = client.call(
            "PATCH" if before else "PUT", path_of("routes", node), body, query={"version": version}
        )
    yield {
        "node": node,
        "words": words,
        "version": done["version"],
    }
    say(f"{node} is a partner now, and must sign its requests; the words: {words}")
    say(f"next: bfia-gateway route test {node}, once the partner has accepted, too")


Number = Annotated[
    int, typer.Argument(min=1, help="Number of the application, as the list has it.")
]
Days = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=36_500,
        help="For so many days.",
    ),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="For so many jobs.")]
_COLUMNS: Columns = {
    "number": "number",
    "kind": "kind",
    "who": lambda one: t(one["side"]),
    "partner": "partner",
    "for": "subject",
    "address": "url",
}


@command(commands, "apply", "dataset JG0100002200000020 bank#credit --days 30 --jobs 10")
def apply(
    node: Client,
    kind: Annotated[str, typer.Argument(help="contract, dataset, project, flow or model.")],
    partner: options.NodeId,
    subject: Annotated[str, typer.Argument(help="Id of the dataset, project, flow or model.")] = "",
    to: Annotated[str, typer.Option(help="Of a contract: where the partner is reached.")] = "",
    address: Annotated[
        str, typer.Option(help="Of a contract: where the partner reaches this node.")
    ] = "",
    key: Annotated[
        str,
        typer.Option(
            help="Of a contract: the partner's public key or its id, compared by telephone; not needed with https."
        ),
    ] = "",
    signing: Annotated[
        str,
        typer.Option(
            help="Of a contract: required (default), accepted or off, for nodes that sign otherwise."
        ),
    ] = "",
    days: Days = None,
    jobs: Jobs = None,
    fields: Annotated[
        Path | None,
        typer.Option(help="File with further fields of the standard's body, such as name or dag."),
    ] = None,
) -> Output:
    """Apply for a contract with a node, or for the use of what it offers. A person there decides."""
    body: dict[str, Any] = {
        "kind": kind,
        "partner": partner,
        "subject": subject,
        "url": to,
        "address": address,
    }
    body |= {"key": key, "signing": signing or None}
    body |= {
        "jobs": jobs,
        "expires_at": _until(days),
        "fields": read_object(fields) if fields else {},
    }
    made = node.call("POST", "/api/v1/applications", body)
    yield made
    say(
        f"application {made['number']}: {partner} has it; its answer is in: bfia-gateway partner applications"
    )


@command(commands, "applications", "--waiting", options=options.paged())
def applications(
    node: Client,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Only what waits for a decision here.")
    ] = False,
    partner: Annotated[
        str, typer.Option(help="Only with this node.", autocompletion=options.nodes)
    ] = "",
    **page: Any,
) -> Output:
    """List contracts and audits, of partners and of this node: what waits, what holds, until when."""
    narrow = {"side": "theirs", "status": "APPLIED"} if waiting else {}
    found = node.get(
        "/api/v1/applications",
        **narrow,
        partner=partner,
        **page,
    )
    yield found
    more = {
        "state": "status",
        "since (UTC)": when("at", 16),
        "until": when("expires_at", 16),
        "key id": "key",
        "signed": "signed",
    }
    listing(
        found,
        "applications",
        "application",
        {
            **_COLUMNS,
            **more,
            "trouble": "trouble",
        },
    )


@command(commands, "approve", '3 --days 90 --reason "contract 2026-17"')
def approve(
    node: Client,
    number: Number,
    days: Days = None,
    jobs: Jobs = None,
    signing: Annotated[
        str,
        typer.Option(
            help="Of a contract: required (default), accepted or off, for nodes that sign otherwise."
        ),
    ] = "",
    reason: options.Reason = "",
) -> Output:
    """Approve a partner's application. Before a contract, compare the id of its key by telephone.

    A contract writes the route, a dataset the grant.
    """
    body = {
        "reason": reason,
        "expires_at": _until(days),
        "jobs": jobs,
        "signing": signing or None,
    }
    yield from _changed(node, number, "approve", body)


@command(commands, "reject", '3 --reason "unknown institution"')
def reject(
    node: Client,
    number: Number,
    reason: options.Reason = "",
) -> Output:
    """Reject a partner's application; it may apply again."""
    yield from _changed(node, number, "reject", {"reason": reason})


@command(commands, "terminate", '3 --reason "end of the project"')
def terminate(
    node: Client,
    number: Number,
    reason: options.Reason = "",
) -> Output:
    """End a contract or an audit, whoever applied: its route is disabled, its grant is revoked."""
    done = yield from _changed(node, number, "terminate", {"reason": reason})
    route = _route(node, done["partner"]) if done["kind"] == "contract" else {}
    if route and not route["enabled"]:
        say(f"the route to {done['partner']} is disabled")


@command(commands, "refresh", "3")
def refresh(node: Client, number: Number) -> Output:
    """Deliver a pending notice to the partner now, or query its decision."""
    yield from _changed(node, number, "refresh", {})


@command(commands, "offers", "JG0100002200000020 datasets")
def offers(
    node: Client,
    partner: options.NodeId,
    what: Annotated[str, typer.Argument(help="datasets, projects or components.")] = "datasets",
    page: Annotated[int, typer.Option(min=1, help="Which page.")] = 1,
) -> Output:
    """List what a partner offers to this node; needs a contract."""
    found = node.get(path_of("partners", partner, what), page=page)
    yield found
    keys = dict.fromkeys(key for one in found["records"] for key in one) or ["name"]
    columns: Columns = {
        _OFFERED.get(key, key.replace("_", " ")): partial(_offered, key) for key in keys
    }
    listing(found, "records", "offer", columns)


_OFFERED = {
    "join_columns": "match id",
    "column_metas": "columns",
    "count": "rows",
}
"""fields of the standard by the heading under which people see them"""


def _offered(key: str, one: Mapping[str, Any]) -> Any:
    """Return a field of the standard, of objects with a name only that."""
    value = one.get(key)
    if isinstance(value, list):
        return [of["name"] if isinstance(of, dict) and "name" in of else of for of in value]
    return value


def _changed(
    node: Client,
    number: int,
    verb: str,
    body: dict[str, Any],
) -> Generator[Any, None, Any]:
    """Return what a change of an application made of it, once it is printed."""
    done = node.call("POST", f"/api/v1/applications/{number}/{verb}", body)
    yield done
    say(
        f"application {number}: {done['kind']} {done['subject']}, {done['partner']}: {done['status']}"
    )
    warn([done["trouble"]] if done["trouble"] else [])
    return done


def _until(days: float | None) -> str | None:
    return (datetime.now(UTC) + timedelta(days=days)).isoformat() if days is not None else None


def _own(settings: "Settings", address: str) -> dict[str, Any]:
    """Return this node's invitation."""
    from gateway.identity.keys import Keyring

    address = address or str(settings.listen.peer.advertise or "")
    if not address:
        text = "give --address, or set listen.peer.advertise: where the partner reaches this node"
        raise CallFailed(text, EXIT_BAD_INPUT)
    if not address.lower().startswith(("http://", "https://")):
        raise CallFailed(
            f"the address {address} must begin with https:// or http://", EXIT_BAD_INPUT
        )
    if keys := [pair.public for pair in Keyring(settings.state_dir).pairs.values()]:
        return {
            "node": settings.node.id,
            "address": address,
            "keys": keys,
        }
    raise CallFailed("this node has no key pair: bfia-gateway identity rotate makes one")


def _warn(*invitations: dict[str, Any]) -> None:
    addresses = [
        one["address"] for one in invitations if one["address"].lower().startswith("http://")
    ]
    warn(
        f"{address} is not encrypted: anyone on the network can read it; use https"
        for address in addresses
    )


def _route(client: Client, node: str) -> dict[str, Any]:
    """Return a node's route; empty: it has none."""
    try:
        found: dict[str, Any] = client.get(path_of("routes", node))["route"]
    except CallFailed as error:
        if error.reason != "NODE_UNKNOWN":
            raise
        return {}
    return found


def _in_brief(found: Mapping[str, Any]) -> str:
    """Return address and key ids of a route, and whether it is disabled."""
    from route_table.certificates import key_pin, public_key

    at = f"via {found['via']}" if found["via"] else found["url"]
    at += "" if found["enabled"] else ", disabled"
    return f"{at}, keys: {', '.join(key_pin(public_key(key)) for key in found['keys']) or 'none'}"
