"""Speaks with the peers of a task: framed messages in a fixed order, encrypted between two parties.

A message has a kind, a few JSON fields and blobs. First both sides send a hello with a fresh X25519
key and, if the party holds rows, a salted hash of its ordered ids. Every later message travels in a
box (PyNaCl) that only the peer can open, because it passes through gateways that must not read row
sets and scores. The keys are not certified: the box protects against reading, not against a gateway
that replaces messages.
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

# Names of messages on the channel. Everything after the hello has one name, so it arrives in the
# order sent.
HELLO = "hello"
TRAIN = "train"
# Kind of the message with which a party tells its peers that it failed.
ABORT = "abort"
# Length of a message's head, in front of it.
HEAD_LENGTH = struct.Struct(">I")


class PeerFailed(VendorError):
    """A peer gave up; its own log says why."""

    def __init__(self, peer: str) -> None:
        super().__init__(f"{peer} gave up, see its log")
        self.peer = peer


class BadMessage(VendorError):
    """A peer sent something that the protocol does not allow at this point."""


class NotAligned(VendorError):
    """The parties do not hold the same ids in the same order."""


@dataclass(frozen=True)
class Message:
    """A message from a peer.

    The methods that read a field raise `BadMessage` if it is missing or invalid.
    """

    kind: str
    fields: Mapping[str, Any]
    blobs: Sequence[bytes]

    def integer(
        self,
        name: str,
        low: int,
        high: int,
    ) -> int:
        """Return a field that must be a whole number from ``low`` to ``high``."""
        value = self.fields.get(name)
        if type(value) is not int or not low <= value <= high:
            raise BadMessage(f"{self.kind}: {name} must be a whole number from {low} to {high}")
        return value

    def number(self, name: str) -> float:
        """Return a field that must be a number."""
        value = self.fields.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise BadMessage(f"{self.kind}: {name} must be a number")
        return float(value)

    def integers(self, name: str) -> list[int]:
        """Return a field that must be a list of whole numbers."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise BadMessage(f"{self.kind}: {name} must be a list of whole numbers")
        return value

    def blob(self, place: int = 0) -> bytes:
        """Return the blob at a place."""
        if place >= len(self.blobs):
            raise BadMessage(f"{self.kind}: blob {place} is missing")
        return self.blobs[place]


class Link(Protocol):
    """The connection to one peer."""

    peer: str

    def send(
        self,
        kind: str,
        fields: Mapping[str, Any] | None = None,
        blobs: Sequence[bytes] = (),
    ) -> None:
        """Send one message."""

    def expect(self, *kinds: str) -> Message:
        """Wait for the next message.

        Raises `BadMessage` if it is of another kind, and `PeerFailed` if the peer has given up.
        """


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
        """Send an encrypted message."""
        sealed = self._box.encrypt(encode(kind, fields or {}, blobs))
        self._net.send(
            self.peer,
            TRAIN,
            bytes(sealed),
        )

    def expect(self, *kinds: str) -> Message:
        """Wait for the peer's next message. Raises `BadMessage` and `PeerFailed`."""
        sealed = self._net.recv(self.peer, TRAIN)
        try:
            data = self._box.decrypt(sealed)
        except (CryptoError, ValueError) as error:
            raise BadMessage(
                f"{self.peer}: a message does not open under the agreed key"
            ) from error
        return require_kind(self.peer, decode(data), kinds)


def connect(
    task: Task,
    net: Net,
    peers: Sequence[str],
    ids: Sequence[str] | None,
) -> dict[str, SealedLink]:
    """Exchange a hello with every peer and return the links by peer.

    ``ids`` are this party's ids in order, None for a party without rows. Raises `NotAligned` with
    the names of the peers whose ids differ; these raise it as well, since both sides compare.
    """
    key = PrivateKey.generate()
    fields: dict[str, Any] = {
        "rows": None,
        "ids": None,
    }
    if ids is not None:
        fields = {
            "rows": len(ids),
            "ids": ids_digest(task.task_id, ids),
        }
    hello = encode(
        HELLO,
        fields,
        [bytes(key.public_key)],
    )
    for peer in peers:
        net.send(peer, HELLO, hello)
    links = {}
    differing = []
    for peer in peers:
        message = require_kind(
            peer,
            decode(net.recv(peer, HELLO)),
            (HELLO,),
        )
        links[peer] = SealedLink(
            net,
            peer,
            _agree_on_box(key, peer, message),
        )
        if _holds_other_ids(fields, message.fields):
            differing.append(f"{peer} ({message.fields.get('rows')} rows)")
    with aborting_peers(list(links.values())):
        if differing:
            raise NotAligned(
                f"{task.me} ({fields['rows']} rows) and {', '.join(differing)} do not hold the "
                f"same ids in "
                "the same order; run Intersection first and take its output"
            )
    return links


def _agree_on_box(
    key: PrivateKey,
    peer: str,
    hello: Message,
) -> Box:
    """Derive the shared box from this party's key and the peer's. Raises `BadMessage`."""
    try:
        return Box(key, PublicKey(hello.blob()))
    except (CryptoError, ValueError, TypeError) as error:
        raise BadMessage(f"{peer}: its public key cannot be used") from error


def _holds_other_ids(
    fields: Mapping[str, Any],
    peer_fields: Mapping[str, Any],
) -> bool:
    """True if both parties hold rows and their ids differ."""
    digest = fields["ids"]
    peer_digest = peer_fields.get("ids")
    if digest is None or peer_digest is None:
        return False
    return bool(digest != peer_digest)


@contextmanager
def aborting_peers(links: Sequence[Link]) -> Iterator[None]:
    """Make every peer stop waiting if the block fails. The reason stays in this party's log."""
    try:
        yield
    except Exception as error:
        for link in links:
            has_failed_itself = isinstance(error, PeerFailed) and error.peer == link.peer
            if not has_failed_itself:
                with suppress(VendorError):
                    link.send(ABORT)
        raise


def ids_digest(
    task_id: str,
    ids: Sequence[str],
) -> str:
    """Return a hash of all ids in order.

    It differs from task to task, so that runs cannot be compared.
    """
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
    """Return a message as bytes: the length of its head, its head as JSON, its blobs."""
    head = {
        "kind": kind,
        "fields": fields,
        "blobs": [len(blob) for blob in blobs],
    }
    data = json.dumps(head, separators=(",", ":")).encode()
    return b"".join([HEAD_LENGTH.pack(len(data)), data, *blobs])


def decode(data: bytes) -> Message:
    """Read a message that `encode` wrote. Raises `BadMessage`."""
    try:
        (size,) = HEAD_LENGTH.unpack_from(data)
        start = HEAD_LENGTH.size + size
        head = json.loads(data[HEAD_LENGTH.size : start])
        kind = head["kind"]
        fields = head["fields"]
        lengths = head["blobs"]
        are_lengths = all(type(length) is int and length >= 0 for length in lengths)
    except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadMessage("a message cannot be read") from error
    if not isinstance(fields, dict) or not are_lengths:
        raise BadMessage("a message's head is malformed")
    if start + sum(lengths) != len(data):
        raise BadMessage("a message is cut short")
    return Message(
        kind=kind,
        fields=fields,
        blobs=_cut(data[start:], lengths),
    )


def _cut(
    data: bytes,
    lengths: Sequence[int],
) -> list[bytes]:
    """Cut bytes into pieces of these lengths."""
    pieces = []
    start = 0
    for length in lengths:
        pieces.append(data[start : start + length])
        start += length
    return pieces


def require_kind(
    peer: str,
    message: Message,
    kinds: Sequence[str],
) -> Message:
    """Return a message of one of these kinds.

    Raises `BadMessage` for any other, and `PeerFailed` if the peer has given up.
    """
    if message.kind == ABORT:
        raise PeerFailed(peer)
    if message.kind not in kinds:
        raise BadMessage(f"{peer} sent {message.kind!r} where {' or '.join(kinds)} was expected")
    return message
