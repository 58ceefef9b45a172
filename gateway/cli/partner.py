"""``bfia-gateway partner …``: two admins exchange addresses and keys, and compare six words by telephone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_BAD_INPUT,
    CallFailed,
    Client,
    connect,
    read_object,
    segment,
    settings_of,
    who,
)
from gateway.cli.command import Config, Output, command, group
from gateway.cli.console import print_json, say, warn

if TYPE_CHECKING:
    from gateway.config.schema import Settings

commands = group("partner", "Become the partner of another node: exchange invitations, and compare six words.")


Address = Annotated[str, typer.Option(help="Where the partner reaches this node; default: listen.peer.advertise.")]


@command(commands, "invite", "--address https://gw.bank.example:7380 > invitation.json")
def invite(address: Address = "", config: Config = DEFAULT_CONFIG) -> Output:
    """Print this node's invitation: its id, address and public keys. Nothing in it is secret.

    Each side sends its own to the other, and accepts the other's.
    """
    found = _own(settings_of(config), address)
    _warn(found)
    yield found
    print_json(found)


@command(commands, "accept", "their-invitation.json --address https://gw.bank.example:7380")
def accept(
    file: Annotated[Path, typer.Argument(help="The partner's invitation; - reads standard input.")],
    address: Annotated[
        str, typer.Option(help="This node's address as its own invitation has it; default: listen.peer.advertise.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="The words are the same: write the route.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace address and keys of the node's existing route.")
    ] = False,
    config: Config = DEFAULT_CONFIG,
) -> Output:
    """Accept a partner's invitation: once both see the same six words, write its route; it must sign its requests.

    The words stand for both invitations: ids, addresses and keys. Compare them by telephone, with somebody whose
    voice or number you know. Needs the running node.
    """
    from gateway.identity.keys import six_words

    own, theirs = _own(settings_of(config), address), read_object(file)
    theirs = {key: theirs.get(key) for key in own}
    node, url, keys = theirs.values()
    texts = [node, url, *keys] if isinstance(keys, list) and keys else [None]
    # text with spaces or line feeds could show other words in the prompt
    if any(not isinstance(text, str) or text.split() != [text] for text in texts) or node == own["node"]:
        text = f"{file} is not the invitation of another node, which has node, address and keys"
        raise CallFailed(text, EXIT_BAD_INPUT)
    words = six_words(own, theirs)
    with connect(config) as client:
        version = client.get("/api/v1/routes", limit=1)["version"]
        if before := _route(client, node):
            if not replace:
                text = f"{node} has a route already: {before}; to replace that, add --replace"
                raise CallFailed(text, reason="CONFLICT")
            say(f"replaces the route of {node}: {before}", err=True)
        _warn(own, theirs)
        if not yes:
            say(f"this node, {own['node']}, is at {own['address']}; {node} is at {url}", err=True)
            say(f"the words at both sides: {words}", err=True)
            typer.confirm("Does the partner see the same words?", abort=True, err=True)
        entry = {"url": url, "keys": ", ".join(keys), "signing": "required", "bundles": "required"}
        body = {"route": entry, "reason": "invitation accepted", "author": who()}
        done = client.call("PATCH" if before else "PUT", _path(node), body, query={"version": version})
    yield {"node": node, "words": words, "version": done["version"]}
    say(f"{node} is a partner now, and must sign its requests; the words: {words}")
    say(f"next: bfia-gateway route test {node}, once the partner has accepted, too")


def _own(settings: "Settings", address: str) -> dict[str, Any]:
    """Return this node's invitation."""
    from gateway.identity.keys import Keyring

    address = address or str(settings.listen.peer.advertise or "")
    if not address:
        text = "give --address, or set listen.peer.advertise: where the partner reaches this node"
        raise CallFailed(text, EXIT_BAD_INPUT)
    if keys := [pair.public for pair in Keyring(settings.state_dir).pairs.values()]:
        return {"node": settings.node.id, "address": address, "keys": keys}
    raise CallFailed("this node has no key pair: bfia-gateway identity rotate makes one")


def _warn(*invitations: dict[str, Any]) -> None:
    addresses = [one["address"] for one in invitations if one["address"].lower().startswith("http://")]
    warn(f"{address} is not encrypted: anyone on the network can read it; use https" for address in addresses)


def _route(client: Client, node: str) -> str:
    """Return address and key ids of a node's route; empty: it has none."""
    from route_table.certificates import key_pin, public_key

    try:
        found = client.get(_path(node))["route"]
    except CallFailed as error:
        if error.reason != "NODE_UNKNOWN":
            raise
        return ""
    at = f"via {found['via']}" if found["via"] else found["url"]
    return f"{at}, keys: {', '.join(key_pin(public_key(key)) for key in found['keys']) or 'none'}"


def _path(node: str) -> str:
    return f"/api/v1/routes/{segment(node)}"
