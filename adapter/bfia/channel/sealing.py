"""Seals messages of the channel for other nodes, and opens sealed messages from other nodes.

Between nodes, a sealed message consists of headers and the encrypted payload, even if the container
has pushed JSON or protobuf. The seal covers the headers byte for byte, so that the topic is
percent-encoded: HTTP libraries would otherwise encode it in different ways. See docs/sealing.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from starlette.requests import Request

from adapter.bfia.channel.codec import Ptp, plain_topic_to_sealed, sealed_topic_to_plain
from adapter.bfia.channel.part_headers import Part
from adapter.bfia.channel.storing import CodecThreads, short_digest
from gateway.broker.received import Number
from gateway.domain.problems import Problem
from gateway.errors import Invalid, NotAllowed
from gateway.identity.sealing import (
    SEALING_KEY_MISSING,
    SEALING_REQUIRED,
    ContentKey,
    SealedHeaders,
    open_sealed,
    read_position,
)
from gateway.identity.sealing_suites import TAG_BYTES
from gateway.identity.seals import MessageSeal, Seals
from route_table.model import Route

SEAL_KEY = "x-ptp-seal-key"  # header with the wrapped content key
SEAL = "x-ptp-seal"  # header with the position of the content


def is_sealed(request: Request) -> bool:
    """True if a message has a seal, valid or not."""
    return SEAL_KEY in request.headers


# ---------------------------------------------------------------- sending


@dataclass(frozen=True)
class Sealer:
    """Seals one message for its target, whole or in parts."""

    seal: MessageSeal
    ptp: Ptp  # the headers with which the message is sent
    source: str

    def seal_whole(self, pieces: list[bytes]) -> list[bytes]:
        """Return the content that is sent in place of a payload."""
        headers = _sealed_headers(self.ptp, self.source)
        return self.seal.seal(headers, pieces)

    def seal_part(
        self,
        position: str,
        number: int,
        pieces: list[bytes],
    ) -> list[bytes]:
        """Return the content that is sent in place of a part.

        ``position`` is the value of the part's header; ``number`` counts the parts.
        """
        headers = _sealed_headers(self.ptp, self.source, position)
        # Sealing empties its list, and ``pieces`` are needed again if the peer takes no parts.
        return self.seal.seal(headers, list(pieces), number)


def sealer_for(
    seals: Seals | None,
    ptp: Ptp,
    route: Route,
    source: str,
    message_id: str,
) -> Sealer | None:
    """Return the sealer of a message; None if the route says that messages are sent unsealed.

    ``source`` is this node; ``ptp`` are the message's headers, with its topic. Raises `NotAllowed`
    if the route requires seals, and this node has no key of its own or of the route's node.
    """
    if not route.sends_sealed:
        return None
    if seals is None or not route.sealing_key:
        text = (
            f"messages for node {route.node} have to be sealed, and its route has no sealing_key: "
            "accept its present invitation (bfia-gateway partner accept --replace), or: "
            f"bfia-gateway route edit {route.node} --sealing accepted"
        )
        raise NotAllowed(text, reason=SEALING_KEY_MISSING)
    sent = replace(
        ptp,
        target=route.node,
        topic=plain_topic_to_sealed(ptp.topic or ""),
        message_id=seals.message_id(message_id),
        # A receiver derives the id of an unsealed message from the container's token. A sealed
        # message has its id already, and the token is a secret.
        token="",
    )
    return Sealer(seals.begin(route.node, route.sealing_key, ptp.session), sent, source)


# ---------------------------------------------------------------- opening


@dataclass(frozen=True)
class Opened:
    """A message, or a part of one, in clear."""

    ptp: Ptp
    payload: list[bytes]
    sender_number: Number | None  # identifies a sealed message; None for an unsealed one


class Opener:
    """Opens sealed messages for this node, and refuses unsealed ones where a seal is required."""

    def __init__(
        self,
        seals: Seals | None,
        sender_route: Callable[[str], Route | None],
        codec_threads: CodecThreads,
    ) -> None:
        """``sender_route`` returns the entry with a node's public keys; None without one."""
        self._seals = seals
        self._sender_route = sender_route
        self._codec_threads = codec_threads

    def refuse_unsealed(self, source: str) -> None:
        """Raise `NotAllowed` if messages of a node have to be sealed."""
        route = self._sender_route(source)
        if route is None or route.sealing_mode != "required":
            return
        text = (
            f"messages of node {source} have to be sealed: have it accept this node's present "
            "invitation (bfia-gateway partner accept --replace), or here: bfia-gateway route edit "
            f"{source} --sealing accepted"
        )
        raise NotAllowed(text, reason=SEALING_REQUIRED)

    def admit(self, request: Request, ptp: Ptp) -> int:
        """Check the seal's key while only the headers of a message have arrived.

        Return by how many bytes the seal makes the content longer; 0 for an unsealed message.
        Raises `NotAllowed` for a wrong seal, and for an unsealed message if seals are required.
        """
        if not is_sealed(request):
            self.refuse_unsealed(ptp.source)
            return 0
        self._key(request, _sealed_headers(ptp, ptp.source))
        return TAG_BYTES

    async def open(
        self,
        request: Request,
        ptp: Ptp,
        pieces: list[bytes],
        part: Part | None = None,
    ) -> "Opened":
        """Return a message, or the ``part`` of one, in clear.

        ``pieces`` are its content. Those of a sealed message are removed from the list while they
        are decrypted, to save memory; those of an unsealed one are returned. Raises `NotAllowed`
        for a seal that does not fit, and `Invalid` for malformed headers.
        """
        if not is_sealed(request):
            return Opened(ptp, pieces, None)
        place = ""
        if part is not None:
            place = part.value
        position = read_position(request.headers.get(SEAL, ""))
        headers = _sealed_headers(ptp, ptp.source, place)
        key = self._key(request, headers)
        work = partial(open_sealed, key, position, headers)
        payload = await self._codec_threads.run(pieces, work, key.quick_bytes)
        topic = sealed_topic_to_plain(ptp.topic or "")
        number = Number(short_digest("seal", key.header), position.sequence)
        return Opened(replace(ptp, topic=topic), payload, number)

    def _key(self, request: Request, headers: SealedHeaders) -> ContentKey:
        """Return the content key of a sealed message.

        Raises `NotAllowed` for a key that does not fit, and `Invalid` if this node opens none.
        """
        if self._seals is None:
            raise Invalid([Problem(SEAL_KEY, "is not served here: send the message unsealed")])
        return self._seals.received_key(
            request.headers[SEAL_KEY],
            headers.source,
            headers.session,
            self._keys(headers.source),
        )

    def _keys(self, source: str) -> tuple[str, ...]:
        """Return the public keys of a node; none without an entry that has some."""
        route = self._sender_route(source)
        if route is None:
            return ()
        return route.keys


def _sealed_headers(
    ptp: Ptp,
    source: str,
    part: str = "",
) -> SealedHeaders:
    """Return the headers that a seal covers."""
    return SealedHeaders(
        session=ptp.session,
        source=source,
        target=ptp.target,
        topic=ptp.topic or "",
        message_id=ptp.message_id,
        part=part,
    )
