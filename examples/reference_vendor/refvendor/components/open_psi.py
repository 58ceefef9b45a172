"""Finds the common ids of two parties by the standard's open protocol ECDH-PSI (section 5).

The other party may have any vendor's image. ``docs/ecdh-psi.md`` describes the protocol.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from refvendor.components import open_messages as messages
from refvendor.components.links import BadMessage
from refvendor.components.open_messages import Agreement, CipherBatch, EcSuit, Proposal, PushRequest
from refvendor.contract import Net, Task, VendorError
from refvendor.crypto import curve, sm2

RESPONDER = 0  # the rank that answers the handshake
MOST_ITEMS = 2**28 - 1
LARGEST_BATCH = 100_000  # points; a batch stays below the 4 MiB of a push
LARGEST_VALUE = 2**30  # bytes that a peer's chunks may add up to
# Among 10^6 by 10^6 ids, 80 bits give a false match once in 10^12 runs.
FEWEST_TRUNCATED_BITS = 80
MOST_TRUNCATED_BITS = 256


class HandshakeRefused(VendorError):
    """The parties found no parameters that both support."""


class Suite(Protocol):
    """Commutative encryption of ids on a curve."""

    suit: EcSuit
    point_format: int
    point_size: int  # bytes

    def secret(self) -> bytes:
        """Return a new secret."""

    def point(
        self,
        value: bytes,
    ) -> bytes:
        """Return the point of an id."""

    def multiply(
        self,
        scalar: bytes,
        points: Sequence[bytes],
    ) -> list[bytes]:
        """Encrypt points under a secret. Raises `BadPoint`."""


class Curve25519:
    """X25519 (RFC 7748) on SHA-256 hashes, which count as x coordinates as they are."""

    suit = EcSuit(
        messages.CURVE25519,
        messages.SHA_256,
        messages.DIRECT_HASH_AS_POINT_X,
    )
    point_format = messages.UNCOMPRESSED
    point_size = curve.SIZE

    def secret(self) -> bytes:
        """Return a new secret."""
        return curve.secret()

    def point(
        self,
        value: bytes,
    ) -> bytes:
        """Return the point of an id."""
        return hashlib.sha256(value).digest()

    def multiply(
        self,
        scalar: bytes,
        points: Sequence[bytes],
    ) -> list[bytes]:
        """Encrypt points under a secret. Raises `BadPoint`."""
        return curve.multiply(scalar, points)


class Sm2:
    """SM2 with SM3; the first x from the hash upwards that is on the curve."""

    suit = EcSuit(
        messages.SM2,
        messages.SM3,
        messages.TRY_AND_INCREMENT,
    )
    point_format = messages.X962_COMPRESSED
    point_size = sm2.SIZE

    def secret(self) -> bytes:
        """Return a new secret."""
        return sm2.secret()

    def point(
        self,
        value: bytes,
    ) -> bytes:
        """Return the point of an id."""
        return sm2.point(value)

    def multiply(
        self,
        scalar: bytes,
        points: Sequence[bytes],
    ) -> list[bytes]:
        """Encrypt points under a secret. Raises `BadPoint`."""
        return sm2.multiply(scalar, points)


SUITES: Mapping[str, Suite] = {
    "curve25519": Curve25519(),
    "sm2": Sm2(),
}


@dataclass(frozen=True)
class OpenSettings:
    """This party's parameters of the open protocol."""

    curves: Sequence[str]  # names of `SUITES`, the preferred one first
    truncated_bits: int  # counts at the responder; `NOT_TRUNCATED` for whole points
    batch_size: int  # points
    result_to_rank: int


@dataclass(frozen=True)
class Result:
    """The outcome at one party."""

    peer_count: int
    common: set[str] | None  # None if the peer alone may know the common ids


class OpenLink:
    """Values to and from the peer, each in the standard's envelope."""

    def __init__(
        self,
        net: Net,
        task: Task,
        peer: str,
    ) -> None:
        names = sorted([task.me, peer])
        self.rank = names.index(task.me)
        self.peer_rank = 1 - self.rank
        self._net = net
        self._peer = peer
        self._sent = 0

    def send(
        self,
        value: bytes,
    ) -> None:
        """Send a value. Its key says the direction and counts from 1."""
        self._sent += 1
        key = f"P2P-{self._sent}:{self.rank}->{self.peer_rank}"
        push = PushRequest(self.rank, key, value)
        self._net.push(self._peer, messages.encode_push(push))

    def receive(self) -> bytes:
        """Wait for a value and join it if it comes in chunks. Raises `BadMessage`."""
        push = self._receive_push()
        if push.kind == messages.MONO:
            return push.value
        if push.length > LARGEST_VALUE:
            raise BadMessage(f"{self._peer}: a value of {push.length} bytes is too long")
        chunks = {push.offset: push.value}
        received = len(push.value)
        while received < push.length:
            following = self._receive_push()
            if following.key != push.key or following.offset in chunks:
                raise BadMessage(f"{self._peer}: a value is not complete")
            chunks[following.offset] = following.value
            received += len(following.value)
        return self._join(chunks, push.length)

    def _receive_push(self) -> PushRequest:
        push = messages.decode_push(self._net.pop(self._peer))
        if push.rank != self.peer_rank:
            raise BadMessage(f"{self._peer}: sends as rank {push.rank}, not {self.peer_rank}")
        return push

    def _join(
        self,
        chunks: Mapping[int, bytes],
        length: int,
    ) -> bytes:
        value = b""
        for offset in sorted(chunks):
            if offset != len(value):
                raise BadMessage(f"{self._peer}: the chunks of a value do not fit together")
            value += chunks[offset]
        if len(value) != length:
            raise BadMessage(f"{self._peer}: the chunks of a value do not fit together")
        return value


def match(
    link: OpenLink,
    ids: Sequence[str],
    settings: OpenSettings,
) -> Result:
    """Run the protocol. Raises `BadMessage`, `HandshakeRefused`, `BadPoint`."""
    expected_count = None
    if link.rank == RESPONDER:
        proposal = _receive_proposal(link)
        agreement = answer(proposal, settings)
        link.send(messages.encode_agreement(agreement))
        if agreement.code != messages.OK:
            raise HandshakeRefused(f"refused the peer's handshake: {agreement.message}")
        expected_count = proposal.item_count
    else:
        agreement = _request(link, len(ids), settings)
    suite = _suite_of(agreement.suit)
    exchange = _Exchange(link, suite, agreement, settings.batch_size)
    result = exchange.run(ids)
    if expected_count not in (None, result.peer_count):
        raise BadMessage(f"{result.peer_count} points came, {expected_count} were announced")
    return result


def refuse(link: OpenLink) -> None:
    """Tell a waiting requester that this party cannot take part."""
    message = "the responder cannot take part, see its log"
    refusal = Agreement(messages.INVALID_RESOURCE, message)
    link.send(messages.encode_agreement(refusal))


# ------------------------------------------------------------ the handshake


def _receive_proposal(link: OpenLink) -> Proposal:
    """Wait for the handshake request; answer a malformed one with a refusal and raise."""
    try:
        return messages.decode_proposal(link.receive())
    except BadMessage as error:
        refusal = Agreement(messages.INVALID_REQUEST, str(error))
        link.send(messages.encode_agreement(refusal))
        raise


def answer(
    proposal: Proposal,
    settings: OpenSettings,
) -> Agreement:
    """Return the responder's choice among what the requester proposes, or a refusal."""
    if proposal.version != messages.HANDSHAKE_VERSION:
        message = f"handshake version {proposal.version}, not {messages.HANDSHAKE_VERSION}"
        return Agreement(messages.UNSUPPORTED_VERSION, message)
    has_algorithm = messages.ECDH_PSI in proposal.algorithms
    if not has_algorithm or messages.ECC not in proposal.protocol_families:
        message = "ECDH-PSI with the protocol family ECC is not among the proposals"
        return Agreement(messages.UNSUPPORTED_ALGORITHM, message)
    if proposal.result_to_rank != settings.result_to_rank:
        message = f"result_to_rank {proposal.result_to_rank}, not {settings.result_to_rank}"
        return Agreement(messages.UNSUPPORTED_PARAMETERS, message)
    if not 0 <= proposal.item_count <= MOST_ITEMS:
        message = f"item_num {proposal.item_count} is not from 0 to {MOST_ITEMS}"
        return Agreement(messages.UNSUPPORTED_PARAMETERS, message)
    for name in settings.curves:
        suite = SUITES[name]
        if suite.suit in proposal.suits and suite.point_format in proposal.point_formats:
            return Agreement(
                suit=suite.suit,
                point_format=suite.point_format,
                truncated_bits=_choose_truncation(proposal, settings),
                result_to_rank=settings.result_to_rank,
            )
    message = f"no suite of {', '.join(settings.curves)} with its point format is proposed"
    return Agreement(messages.UNSUPPORTED_PARAMETERS, message)


def _choose_truncation(
    proposal: Proposal,
    settings: OpenSettings,
) -> int:
    if proposal.can_truncate:
        return settings.truncated_bits
    return messages.NOT_TRUNCATED


def _request(
    link: OpenLink,
    item_count: int,
    settings: OpenSettings,
) -> Agreement:
    """Propose this party's parameters and return what the responder chose of them."""
    suites = [SUITES[name] for name in settings.curves]
    proposal = Proposal(
        version=messages.HANDSHAKE_VERSION,
        rank=link.rank,
        algorithms=[messages.ECDH_PSI],
        protocol_families=[messages.ECC],
        suits=[suite.suit for suite in suites],
        point_formats=[suite.point_format for suite in suites],
        can_truncate=True,
        item_count=item_count,
        result_to_rank=settings.result_to_rank,
    )
    link.send(messages.encode_proposal(proposal))
    agreement = messages.decode_agreement(link.receive())
    if agreement.code != messages.OK:
        raise HandshakeRefused(
            f"the peer refused the handshake: {agreement.code} {agreement.message}"
        )
    _check_agreement(agreement, proposal)
    return agreement


def _check_agreement(
    agreement: Agreement,
    proposal: Proposal,
) -> None:
    """Raise `BadMessage` unless the responder chose among the proposals."""
    if agreement.algorithm != messages.ECDH_PSI:
        raise BadMessage(f"the handshake chose algorithm {agreement.algorithm}")
    if agreement.suit not in proposal.suits:
        raise BadMessage("the handshake chose a suite that was not proposed")
    if agreement.point_format != _suite_of(agreement.suit).point_format:
        raise BadMessage(f"the handshake chose point format {agreement.point_format}")
    if agreement.result_to_rank != proposal.result_to_rank:
        raise BadMessage(f"the handshake chose result_to_rank {agreement.result_to_rank}")
    bits = agreement.truncated_bits
    is_allowed = FEWEST_TRUNCATED_BITS <= bits <= MOST_TRUNCATED_BITS and bits % 8 == 0
    if bits != messages.NOT_TRUNCATED and not is_allowed:
        raise BadMessage(
            f"the handshake chose bit_length_after_truncated {bits}: not a multiple of 8 from "
            f"{FEWEST_TRUNCATED_BITS} to {MOST_TRUNCATED_BITS}"
        )


def _suite_of(suit: EcSuit) -> Suite:
    """Return the suite of these numbers, which must be among `SUITES`."""
    (suite,) = [suite for suite in SUITES.values() if suite.suit == suit]
    return suite


# ------------------------------------------------------------ the exchange


@dataclass
class _Arrivals:
    """The batches of one type that have come so far."""

    item_size: int  # bytes
    items: list[bytes] = field(default_factory=list)
    batches: int = 0
    is_complete: bool = False

    def add(
        self,
        batch: CipherBatch,
    ) -> list[bytes]:
        """Add a batch and return its items. Raises `BadMessage`."""
        if self.is_complete or batch.index != self.batches:
            raise BadMessage(f"batch {batch.index} of {batch.type} is out of order")
        if batch.count < 1 and not batch.is_last:
            raise BadMessage(f"batch {batch.index} of {batch.type} is empty and not the last")
        if batch.count * self.item_size != len(batch.ciphertext):
            raise BadMessage(
                f"batch {batch.index} of {batch.type}: {len(batch.ciphertext)} bytes are not "
                f"{batch.count} items of {self.item_size}"
            )
        items = list(_slices(batch.ciphertext, self.item_size))
        self.items += items
        if len(self.items) > MOST_ITEMS:
            raise BadMessage(f"more than {MOST_ITEMS} items of {batch.type}")
        self.batches += 1
        self.is_complete = batch.is_last
        return items


class _Exchange:
    """Both parties send their ids encrypted once, and the peer's encrypted twice if that party may
    know the result.
    """

    def __init__(
        self,
        link: OpenLink,
        suite: Suite,
        agreement: Agreement,
        batch_size: int,
    ) -> None:
        self._link = link
        self._suite = suite
        self._batch_size = batch_size
        self._secret = suite.secret()
        self._tag_size = suite.point_size
        if agreement.truncated_bits != messages.NOT_TRUNCATED:
            self._tag_size = agreement.truncated_bits // 8
        self._learns = agreement.result_to_rank in (messages.EVERY_RANK, link.rank)
        self._peer_learns = agreement.result_to_rank in (messages.EVERY_RANK, link.peer_rank)

    def run(
        self,
        ids: Sequence[str],
    ) -> Result:
        """Send and receive all batches."""
        points, sent_ids = self._encrypt(ids)
        for batch in self._batches(points):
            self._link.send(messages.encode_batch(batch))
        once = _Arrivals(self._suite.point_size)
        twice = _Arrivals(self._tag_size)
        peer_tags: set[bytes] = set()
        while not once.is_complete or (self._learns and not twice.is_complete):
            batch = messages.decode_batch(self._link.receive())
            if batch.type == messages.ENCRYPTED_ONCE:
                peer_tags.update(self._encrypt_again(batch, once.add(batch)))
            elif batch.type == messages.ENCRYPTED_TWICE and self._learns:
                twice.add(batch)
            else:
                raise BadMessage(f"a batch of type {batch.type!r} is not expected")
        if not self._learns:
            return Result(len(once.items), None)
        if len(twice.items) != len(ids):
            raise BadMessage(f"{len(twice.items)} items came back, {len(ids)} were sent")
        pairs = zip(sent_ids, twice.items, strict=True)
        common = {value for value, tag in pairs if tag in peer_tags}
        return Result(len(once.items), common)

    def _encrypt(
        self,
        ids: Sequence[str],
    ) -> tuple[list[bytes], list[str]]:
        """Return encrypted ids in their order, which says nothing of the table, and the ids in the
        same order.
        """
        points = [self._suite.point(value.encode()) for value in ids]
        encrypted = self._suite.multiply(self._secret, points)
        pairs = sorted(zip(encrypted, ids, strict=True))
        return [point for point, _ in pairs], [value for _, value in pairs]

    def _encrypt_again(
        self,
        batch: CipherBatch,
        points: Sequence[bytes],
    ) -> list[bytes]:
        """Return the tags of the peer's points; send them back if the peer may know the result."""
        products = self._suite.multiply(self._secret, points)
        tags = [product[-self._tag_size :] for product in products]
        if self._peer_learns:
            reply = CipherBatch(
                messages.ENCRYPTED_TWICE,
                batch.index,
                batch.is_last,
                batch.count,
                b"".join(tags),
            )
            self._link.send(messages.encode_batch(reply))
        return tags

    def _batches(
        self,
        points: Sequence[bytes],
    ) -> Iterator[CipherBatch]:
        """Yield the points in batches; one empty batch if there are none."""
        starts = range(0, max(1, len(points)), self._batch_size)
        for index, start in enumerate(starts):
            items = points[start : start + self._batch_size]
            yield CipherBatch(
                messages.ENCRYPTED_ONCE,
                index,
                index + 1 == len(starts),
                len(items),
                b"".join(items),
            )


def _slices(
    data: bytes,
    size: int,
) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]
