"""Speaks with one peer of a training task: framed messages in one order, sealed on their way.

A message has a kind, a few JSON fields and blobs. Before the first one both sides say hello: a fresh X25519
key and, where the party holds rows, a salted hash of its ordered ids. Everything after it travels in a box
(PyNaCl) that only the peer opens, because row sets and scores pass through gateways that have no business
with them. The keys are not certified: the box keeps out who listens, not who replaces messages.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey

from refvendor.contract import Net, Task, VendorError

HELLO, TRAIN = "hello", "train"
ABORT = "abort"


class PeerFailed(VendorError):
    """A peer gave up; its own log says why."""

    def __init__(self, peer: str) -> None:
        super().__init__(f"{peer} gave up, see its log")
        self.peer = peer


class BadMessage(VendorError):
    """A peer sent something other than what the protocol has at this place."""


class NotAligned(VendorError):
    """The parties do not hold the same ids in the same order."""


@dataclass(frozen=True)
class Message:
    """What came from the peer; its fields are read by methods that raise `BadMessage`."""

    kind: str
    fields: Mapping[str, Any]
    blobs: Sequence[bytes]

    def integer(
        self,
        name: str,
        low: int,
        high: int,
    ) -> int:
        """The whole number of that name. Raises `BadMessage` if there is none or it is out of bounds."""
        value = self.fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise BadMessage(f"{self.kind}: {name} must be a whole number from {low} to {high}")
        return value

    def number(self, name: str) -> float:
        """Return a field that has to be a number."""
        value = self.fields.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise BadMessage(f"{self.kind}: {name} must be a number")
        return float(value)

    def integers(self, name: str) -> list[int]:
        """Return a field that has to be a list of whole numbers."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise BadMessage(f"{self.kind}: {name} must be a list of whole numbers")
        return value

    def blob(self, place: int = 0) -> bytes:
        """Return the bytes at a place."""
        if place >= len(self.blobs):
            raise BadMessage(f"{self.kind}: blob {place} is missing")
        return self.blobs[place]


class Link(Protocol):
    """The way to one peer."""

    peer: str

    def send(
        self,
        kind: str,
        fields: Mapping[str, Any] | None = None,
        blobs: Sequence[bytes] = (),
    ) -> None:
        """Send one message."""

    def expect(self, *kinds: str) -> Message:
        """Wait for the next message. Raises `PeerFailed`, or `BadMessage` if it is of another kind."""


class SealedLink:
    """A `Link` whose messages only the peer can read."""

    def __init__(
        self,
        net: Net,
        peer: str,
        box: Box,
    ) -> None:
        self.peer = peer
        self._net = net
        self._box = box

    def send(
        self,
        kind: str,
        fields: Mapping[str, Any] | None = None,
        blobs: Sequence[bytes] = (),
    ) -> None:
        """Send a message that only the peer can open."""
        self._net.send(
            self.peer, TRAIN, bytes(self._box.encrypt(encode(kind, fields or {}, blobs)))
        )

    def expect(self, *kinds: str) -> Message:
        """Return the peer's next message. Raises `BadMessage`, and `PeerFailed` where it has given up."""
        data = self._net.recv(self.peer, TRAIN)
        try:
            data = self._box.decrypt(data)
        except (CryptoError, ValueError) as error:
            raise BadMessage(
                f"{self.peer}: a message does not open under the agreed key"
            ) from error
        return checked(self.peer, decode(data), kinds)


def connect(
    task: Task,
    net: Net,
    peers: Sequence[str],
    ids: Sequence[str] | None,
) -> dict[str, SealedLink]:
    """Say hello to every peer and compare rows with those that hold some.

    ``ids`` are this party's ids in order, None for a party without rows. Raises `NotAligned` naming the
    peer, at both sides, since both compare.
    """
    own = PrivateKey.generate()
    fields: dict[str, Any] = {"rows": None, "ids": None}
    if ids is not None:
        fields = {"rows": len(ids), "ids": ids_digest(task.task_id, ids)}
    hello = encode(HELLO, fields, [bytes(own.public_key)])
    for peer in peers:
        net.send(peer, HELLO, hello)
    links, differing = {}, []
    for peer in peers:
        message = checked(peer, decode(net.recv(peer, HELLO)), (HELLO,))
        try:
            box = Box(own, PublicKey(message.blob()))
        except (CryptoError, ValueError, TypeError) as error:
            raise BadMessage(f"{peer}: its public key cannot be used") from error
        links[peer] = SealedLink(net, peer, box)
        if (
            None not in (fields["ids"], message.fields.get("ids"))
            and message.fields["ids"] != fields["ids"]
        ):
            differing.append(f"{peer} ({message.fields.get('rows')} rows)")
    with telling_peers(list(links.values())):
        if differing:
            raise NotAligned(
                f"{task.me} ({fields['rows']} rows) and {', '.join(differing)} do not hold the same ids in "
                "the same order; run Intersection first and take its output"
            )
    return links


@contextmanager
def telling_peers(links: Sequence[Link]) -> Iterator[None]:
    """Tell every peer to stop waiting if the block fails; the reason stays in this party's log."""
    try:
        yield
    except Exception as error:
        gone = error.peer if isinstance(error, PeerFailed) else None
        for link in links:
            with suppress(VendorError):
                if link.peer != gone:
                    link.send(ABORT)
        raise


def ids_digest(task_id: str, ids: Sequence[str]) -> str:
    """A hash of all ids in order, different in every task."""
    digest = hashlib.sha256(f"alignment\n{task_id}\n".encode())
    for value in ids:
        data = value.encode()
        digest.update(struct.pack(">I", len(data)) + data)
    return digest.hexdigest()


def encode(
    kind: str,
    fields: Mapping[str, Any],
    blobs: Sequence[bytes],
) -> bytes:
    """Return a message as bytes: the length of its head, its head, its blobs."""
    head = {
        "kind": kind,
        "fields": fields,
        "blobs": [len(blob) for blob in blobs],
    }
    data = json.dumps(head, separators=(",", ":")).encode()
    return b"".join([struct.pack(">I", len(data)), data, *blobs])


def decode(data: bytes) -> Message:
    """Read what `encode` wrote. Raises `BadMessage`."""
    try:
        (size,) = struct.unpack_from(">I", data)
        head = json.loads(data[4 : 4 + size])
        kind, fields, lengths = head["kind"], head["fields"], head["blobs"]
        if not isinstance(fields, dict) or any(type(n) is not int or n < 0 for n in lengths):
            raise BadMessage("a message's head is malformed")
    except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadMessage("a message cannot be read") from error
    if 4 + size + sum(lengths) != len(data):
        raise BadMessage("a message is cut short")
    blobs, start = [], 4 + size
    for length in lengths:
        blobs.append(data[start : start + length])
        start += length
    return Message(
        kind=kind,
        fields=fields,
        blobs=blobs,
    )


def checked(
    peer: str,
    message: Message,
    kinds: Sequence[str],
) -> Message:
    """Return a message of one of these kinds.

    Raises `BadMessage`, and `PeerFailed` where the peer has given up.
    """
    if message.kind == ABORT:
        raise PeerFailed(peer)
    if message.kind not in kinds:
        raise BadMessage(f"{peer} sent {message.kind!r} where {' or '.join(kinds)} was expected")
    return message
