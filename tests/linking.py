"""Two nodes of which one dials the other, and a link that is opened byte by byte."""

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from gateway.bootstrap.node import Gateway
from gateway.domain.links.frames import Frame, Kind, decode, encode
from gateway.identity.keys import KeyPair, Keyring
from gateway.identity.statements import sign_statement
from gateway.links.carrier import LINK_PATH
from gateway.links.proof import GATEWAY_OPENING, OPENING
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, Node
from tests.world import NodeSetup, World, write_routes

ANSWER_SECONDS = 30  # for a message or the end of a link


def key_of(node: Gateway) -> KeyPair:
    """Return a node's signing key, which is made at the first call."""
    keyring = Keyring(node.settings.state_dir)
    return keyring.signing or keyring.make("ed25519")


def set_routes(node: Gateway, routes: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace a node's route table."""
    write_routes(Path(str(node.settings.route_table.file)), routes)
    node.routes.reload()


def linked_nodes(world: World, **changes: Any) -> tuple[Node, Node]:
    """Return an open node and a closed one, which keeps links to it."""
    open_node = world.node(NodeSetup(ME), **changes)
    closed_node = world.node(NodeSetup(PEER), **changes)
    link(open_node, closed_node)
    return open_node, closed_node


def wait_for_links(node: Gateway, partner: str, count: int) -> None:
    """Wait until ``count`` links of a partner end at a node."""
    wait_for(
        lambda: node.links.count(partner) == count,
        ANSWER_SECONDS,
        0.02,
        f"{count} links of {partner}",
    )


def link(
    open_node: Node,
    closed_node: Node,
    at: str = "",
    **entry: str,
) -> None:
    """Let a closed node keep links to an open one; wait until they stand.

    ``at``: the URL that the closed node dials; "" for that of the open one's listener. ``entry``
    has further keys of the closed node's route.
    """
    open_id = open_node.settings.node.id
    closed_id = closed_node.settings.node.id
    to_closed = {"reached": "by-link", "keys": key_of(closed_node).public}
    to_open = {
        "url": at or open_node.addresses()["peer"],
        "keys": key_of(open_node).public,
        "dial": "out",
        **entry,
    }
    set_routes(open_node, {closed_id: to_closed})
    set_routes(closed_node, {open_id: to_open})
    wait_for(
        lambda: open_node.links.count(closed_id) == 2 and len(closed_node.links.states()) == 2,
        ANSWER_SECONDS,
        0.02,
        "two links at both ends",
    )


def answer_of(node: Node, partner: str) -> Mapping[str, Any]:
    """Return a partner's answer to the greeting of a node."""
    return dict(node.protocol.peer(partner).ask("/node/hello", {"node_id": node.settings.node.id}))


class Dialling:
    """A connection for a link, as an attacker may use it."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def receive(self) -> Any:
        """Return the next message of the opening."""
        return json.loads(self.socket.recv(ANSWER_SECONDS))

    def challenge(self) -> str:
        """Return the challenge of the node."""
        return str(self.receive()["challenge"])

    def claim(
        self,
        node: str,
        pair: KeyPair,
        changes: Mapping[str, str] | None = None,
    ) -> Any:
        """Answer the node's challenge by an opening in a node's name; return the reply.

        ``changes`` replace values of the signed statement.
        """
        statement = {
            "from": node,
            "to": ME,
            "challenge": self.challenge(),
            "nonce": secrets.token_hex(32),
            **(changes or {}),
        }
        envelope = sign_statement(pair, OPENING, statement)
        return self.send_opening(node, envelope)

    def claim_as_gateway(
        self,
        pair: KeyPair,
        kind: str = GATEWAY_OPENING,
        signed: Mapping[str, str] | None = None,
        **details: str,
    ) -> Any:
        """Send the opening of another gateway of the node; return the answer.

        ``details`` are those of the opening, of which ``signed`` replaces some in the signed
        statement.
        """
        statement = {
            "from": ME,
            "to": ME,
            "challenge": self.challenge(),
            "nonce": secrets.token_hex(32),
            **details,
            **(signed or {}),
        }
        envelope = sign_statement(pair, kind, statement)
        return self.send_opening(ME, envelope, **details)

    def send_opening(
        self,
        node: str,
        envelope: Any,
        **details: str,
    ) -> Any:
        """Send an opening as it is; return the answer."""
        opening = {"node": node, "opening": envelope, **details}
        self.socket.send(json.dumps(opening).encode())
        return self.receive()

    def request(self, head: str, body: bytes = b"") -> bytes:
        """Send a request over the link's first stream; return the beginning of the response."""
        content = head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body
        self.send(Frame(Kind.OPEN, 1))
        self.send(Frame(Kind.DATA, 1, content))
        while True:
            frame = decode(self.socket.recv(ANSWER_SECONDS))  # type: ignore[arg-type]
            if frame.kind is Kind.DATA:
                return frame.data

    def send(self, frame: Frame) -> None:
        """Send a frame of a link."""
        self.socket.send(encode(frame))

    def wait_for_end(self) -> None:
        """Wait until the node has closed the connection."""
        with suppress(ConnectionClosed):
            while True:
                self.socket.recv(ANSWER_SECONDS)


@contextmanager
def dialling(
    node: Gateway,
    headers: Mapping[str, str] | None = None,
) -> Iterator[Dialling]:
    """Connect to a node's listener for peers, and ask for a link; ``headers`` are further ones."""
    url = node.addresses()["peer"].replace("http", "ws", 1) + LINK_PATH
    with connect(
        url,
        compression=None,
        open_timeout=ANSWER_SECONDS,
        additional_headers=headers,
    ) as socket:
        yield Dialling(socket)
