"""``bfia-gateway partner …``: two admins exchange addresses and keys, and compare six words by telephone."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_BAD_INPUT,
    CallFailed,
    connect,
    read_object,
    segment,
    settings_of,
    who,
)
from gateway.cli.command import Config, Output, command, group
from gateway.cli.console import print_json, say

commands = group("partner", "Become the partner of another node: exchange invitations, and compare six words.")


@command(commands, "invite", "--address https://gw.bank.example:7380 > invitation.json")
def invite(
    address: Annotated[
        str, typer.Option(help="Where the partner reaches this node; default: listen.peer.advertise.")
    ] = "",
    config: Config = DEFAULT_CONFIG,
) -> Output:
    """Print this node's invitation: its id, address and public keys. Nothing in it is secret.

    Each side sends its own to the other, and accepts the other's.
    """
    settings, keys = settings_of(config), _keys(config)
    address = address or str(settings.listen.peer.advertise or "")
    if not address:
        raise CallFailed(
            "give --address, or set listen.peer.advertise: where the partner reaches this node", EXIT_BAD_INPUT
        )
    found = {"node": settings.node.id, "address": address, "keys": keys}
    yield found
    print_json(found)


@command(commands, "accept", "their-invitation.json")
def accept(
    file: Annotated[Path, typer.Argument(help="The partner's invitation; - reads standard input.")],
    yes: Annotated[bool, typer.Option("--yes", help="The words are the same: write the route.")] = False,
    config: Config = DEFAULT_CONFIG,
) -> Output:
    """Accept a partner's invitation: once both see the same six words, write its route; it must sign its requests.

    Compare the words by telephone, with somebody whose voice or number you know. Needs the running node.
    """
    from gateway.identity.keys import six_words

    theirs, own = read_object(file), settings_of(config).node.id
    named: dict[str, Any] = {key: theirs.get(key) for key in ("node", "address", "keys")}
    node, address, keys = named.values()
    if not (isinstance(node, str) and isinstance(address, str) and isinstance(keys, list) and keys) or node == own:
        text = f"{file} is not the invitation of another node, which has node, address and keys"
        raise CallFailed(text, EXIT_BAD_INPUT)
    words = six_words({own: _keys(config), node: [str(key) for key in keys]})
    if not yes:
        say(f"{node} at {address}; the words at both sides: {words}", err=True)
        typer.confirm("Does the partner see the same words?", abort=True, err=True)
    entry = {"url": address, "keys": ", ".join(map(str, keys)), "signing": "required"}
    with connect(config) as client:
        path, body = (
            f"/api/v1/routes/{segment(node)}",
            {"route": entry, "reason": "invitation accepted", "author": who()},
        )
        try:
            done = client.call("PATCH", path, body)
        except CallFailed as error:
            if error.reason != "NODE_UNKNOWN":
                raise
            done = client.call("PUT", path, body)
    yield {"node": node, "words": words, "version": done["version"]}
    say(f"{node} is a partner now, and must sign its requests; the words: {words}")
    say(f"next: bfia-gateway route test {node}, once the partner has accepted, too")


def _keys(config: Path) -> list[str]:
    from gateway.identity.keys import Keyring

    if keys := [pair.public for pair in Keyring(settings_of(config).state_dir).pairs.values()]:
        return keys
    raise CallFailed("this node has no key pair: bfia-gateway identity rotate makes one")
