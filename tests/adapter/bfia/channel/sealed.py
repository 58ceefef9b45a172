"""Nodes that seal their messages, and requests that were recorded on the way between them."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from adapter.bfia.channel.codec import decode_answer
from gateway.identity.keys import KeyPair
from gateway.identity.sealing_keys import SealingPair
from gateway.identity.seals import Seals
from route_table import sm2
from route_table.model import Route

_HALF_PAST_TEN = datetime(2026, 11, 29, 10, 30, tzinfo=UTC)


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now = _HALF_PAST_TEN

    def __call__(self):
        return self.now

    def advance(self, **duration):
        """Set the clock forward."""
        self.now += timedelta(**duration)


class Identity:
    """A node's keys, its seals, and the entries of other nodes in its route table."""

    def __init__(
        self,
        node,
        clock,
        *,
        national=False,
    ):
        """``national``: the keys are of SM2."""
        self.node = node
        self.signing = KeyPair(Ed25519PrivateKey.generate())
        self.pair = SealingPair(X25519PrivateKey.generate())
        if national:
            self.signing = KeyPair(sm2.PrivateKey.generate())
            self.pair = SealingPair(sm2.PrivateKey.generate())
        self.entries = {}
        self.seals = Seals(node, self.pair, self._signing_key, clock)

    def _signing_key(self):
        return self.signing

    @property
    def options(self):
        """The fields of `ChannelParts` for the node."""
        return {"seals": self.seals, "sender_route": self.entries.get}

    def route(self, url="", sealing="required"):
        """Return a route to the node, as other nodes have it."""
        return Route(
            self.node,
            url,
            keys=(self.signing.public,),
            sealing_key=self.pair.public,
            sealing=sealing,
        )


@dataclass(frozen=True)
class Recorded:
    """A request between two nodes."""

    path: str
    headers: dict[str, str]
    body: bytes

    def with_headers(self, **changes):
        """Return the request with other headers; names are written with ``_``, None removes one."""
        headers = dict(self.headers)
        for name, value in changes.items():
            dashed = name.replace("_", "-")
            headers.pop(dashed, None)
            if value is not None:
                headers[dashed] = value
        return replace(self, headers=headers)

    async def send(self, client, node):
        """Send the request to a node; return code and text of the response."""
        response = await client.post(
            node.url + self.path,
            content=self.body,
            headers=self.headers | {"content-type": "application/octet-stream"},
        )
        reply = decode_answer(response.content, response.headers["content-type"])
        return reply.code, reply.message


def recorded(peer):
    """Return the requests that a scripted peer has received, and forget them."""
    requests = []
    for request in peer.requests:
        headers = {name: value for name, value in request.headers.items() if name.startswith("x-")}
        requests.append(Recorded(request.target, headers, request.raw))
    peer.requests.clear()
    return requests


def flipped(body, index=0):
    """Return some bytes with one of them changed."""
    changed = bytearray(body)
    changed[index] ^= 1
    return bytes(changed)
