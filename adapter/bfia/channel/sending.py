"""Sends containers' messages to other nodes' transports, whole or in parts, in the form that each
transport takes.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar
from uuid import uuid4

import anyio.to_thread

from adapter.bfia.channel import bodies, codec, responses
from adapter.bfia.channel.codec import INVOKE, PART, SUCCESS, TRANSPORT, Ptp, TransportReply
from adapter.bfia.channel.courier import BUFFER_FULL
from adapter.bfia.channel.dependencies import ChannelParts
from adapter.bfia.channel.grpc_client import is_grpc
from adapter.bfia.channel.http_client import do_nothing
from adapter.bfia.channel.message_forms import Form
from adapter.bfia.channel.part_headers import Part
from adapter.bfia.channel.part_window import PartWindow
from adapter.bfia.channel.pieces import measure, total_length
from adapter.bfia.channel.sealing import Sealer, sealer_for
from adapter.bfia.channel.storing import CodecThreads, parse_push, short_digest
from adapter.bfia.profiles import profile_named
from gateway.broker import BufferFull
from gateway.domain.problems import Problem
from gateway.errors import Invalid, PeerUnreachable
from route_table.model import Route

T = TypeVar("T")


class PartsRefused(Exception):
    """The peer has refused ``first_part``, the first part of a message: send the message whole."""

    def __init__(self, first_part: list[bytes]) -> None:
        super().__init__()
        self.first_part = first_part


def takes_parts(route: Route, topic: str = "") -> bool:
    """True if a peer's transport may take a message in parts.

    ``topic``: the message's; "" if the message has not been parsed yet.

    For profile ``spec``, the answer is uncertain: the peer may refuse the first part. A transport
    whose profile shows that it is another platform's takes no parts.
    """
    profile = profile_named(route.profile)
    if profile.encapsulates or profile.bare_payloads or profile.takes_transport:
        return False
    # gRPC carries the topic of a part in its metadata, which are ASCII; a sealed message's topic is
    # percent-encoded.
    return topic.isascii() or not is_grpc(route.url) or route.sends_sealed


def message_path(route: Route) -> str:
    """Return the path for whole messages to a peer's transport."""
    takes_transport = profile_named(route.profile).takes_transport
    if takes_transport and not is_grpc(route.url):  # over gRPC it is a stream of messages
        return TRANSPORT
    return INVOKE


def refuse_wrong_length(length: int, announced: int) -> None:
    """Raise Invalid if a body does not have its announced length (bytes)."""
    if length != announced:
        raise Invalid([Problem("body", f"must have the {announced} bytes that were announced")])


def _check_refused_part(
    ptp: Ptp,
    reply: TransportReply,
    part: list[bytes],
    is_first: bool,
) -> None:
    """Raise PartsRefused for the first part, unless the peer only lacks capacity (`BUFFER_FULL`).

    For a later part, raise BufferFull if the peer has lost an earlier one. If nothing is raised,
    the refusal is the reply to the message.
    """
    if is_first and reply.code != BUFFER_FULL:
        # The peer takes no parts, or refuses the message for a reason that holds for the whole
        # message, too.
        raise PartsRefused(part)
    if reply.code == responses.PARTS_MISSING:
        text = f"node {ptp.target} was restarted and has lost a part: push again"
        raise BufferFull(text)


@dataclass(frozen=True, slots=True)
class _Outgoing:
    """A request to a peer."""

    body: list[bytes]  # in pieces
    headers: dict[str, str]


class Outbox:
    """Sends messages to other nodes.

    Its methods raise PeerUnreachable if a peer does not respond.
    """

    def __init__(self, channel: ChannelParts, codec_threads: CodecThreads) -> None:
        self._channel = channel
        self._codec_threads = codec_threads

    async def send_buffered(
        self,
        ptp: Ptp,
        route: Route,
        pieces: list[bytes],
        form: Form,
    ) -> TransportReply:
        """Send a message that is in memory.

        It is sent in parts if it is long, is not a bare payload (the caller streams long ones), and
        the peer takes parts; otherwise as a whole. Raises Invalid.
        """
        is_long = total_length(pieces) > bodies.LARGE
        if is_long and form is not Form.RAW and takes_parts(route):
            reply = await self._send_payload_in_parts(ptp, route, pieces, form)
            if reply is not None:
                return reply
        return await self.send(ptp, route, pieces, form)

    async def _send_payload_in_parts(
        self,
        ptp: Ptp,
        route: Route,
        pieces: list[bytes],
        form: Form,
    ) -> TransportReply | None:
        """Send the payload of a message in parts; None if the peer does not take them."""
        # The message's id is made from the digest of the token, not from the token: the receiving
        # node gets only the digest, and makes the same id if it gets the message as a whole.
        read = partial(parse_push, ptp, form, self._token_digest(ptp))
        push = await self._codec_threads.run(pieces, read)
        if not takes_parts(route, push.topic):
            return None
        ptp = replace(ptp, topic=push.topic, message_id=push.push_id or uuid4().hex)
        parts = self._iterate_in_threads(push.payload.parts(bodies.PART))
        try:
            return await self.send_parts(ptp, route, parts, push.payload.size)
        except PartsRefused:
            return None

    async def _iterate_in_threads(self, items: Iterator[T]) -> AsyncIterator[T]:
        """Yield the items of an iterator; each step runs in a thread, as it may take long."""
        limiter = self._codec_threads.limiter
        while True:
            item = await anyio.to_thread.run_sync(
                next,
                items,
                None,
                limiter=limiter,
            )
            if item is None:
                return
            yield item

    async def send_parts(
        self,
        ptp: Ptp,
        route: Route,
        parts: AsyncIterator[list[bytes]],
        size: int,
    ) -> TransportReply:
        """Send a bare payload of ``size`` bytes in parts, and clear each part once it was sent.

        The first part is sent alone, as the peer may take no parts, and so is the last one, whose
        reply tells that the message is complete. ``route.parallel`` others are sent together.

        Return the reply to the last part, or the first refusal. Raises PartsRefused and BufferFull
        as `_check_refused_part` does, Invalid if the parts together do not have ``size`` bytes, and
        NotAllowed if they have to be sealed and a key is missing.
        """
        sealer = self._sealer(ptp, route, ptp.message_id)

        async def send(
            part: list[bytes],
            offset: int,
            on_sent: Callable[[], None],
        ) -> TransportReply:
            outgoing = await self._outgoing_part(ptp, sealer, part, offset, size)
            return await self._post(
                ptp,
                route,
                outgoing.body,
                outgoing.headers,
                Form.RAW,
                PART,
                may_be_unknown=offset == 0,
                on_sent=on_sent,
            )

        window = PartWindow(send, route.parallel, bodies.PART)
        try:
            return await self._send_all(ptp, window, parts, size)
        finally:
            await window.close()

    async def _send_all(
        self,
        ptp: Ptp,
        window: PartWindow,
        parts: AsyncIterator[list[bytes]],
        size: int,
    ) -> TransportReply:
        """Send parts through a window, the first and the last one alone; see `send_parts`."""
        offset = 0
        refusal = None
        async for part in parts:
            is_first = offset == 0
            first_part = list(part) if is_first else []
            end = offset + total_length(part)
            if end == size:
                refusal = await window.wait()
            refusal = refusal or await window.put(part, offset)
            if is_first or end == size:
                refusal = refusal or await window.wait()
            if refusal is not None:
                _check_refused_part(ptp, refusal, first_part, is_first)
                return refusal
            offset = end
        await window.wait()
        refuse_wrong_length(offset, size)
        return TransportReply(code=SUCCESS)

    async def _outgoing_part(
        self,
        ptp: Ptp,
        sealer: Sealer | None,
        part: list[bytes],
        offset: int,
        size: int,
    ) -> "_Outgoing":
        """Return the request for a part; ``sealer`` None: the part is sent unsealed."""
        if sealer is None:
            _, checksum = measure(part)
            headers = self._invoke_headers(ptp, encapsulated=False)
            return _Outgoing(part, headers | Part(offset, size, checksum).header)
        position = Part(offset, size)
        number = offset // bodies.PART
        seal = partial(sealer.seal_part, position.value, number)
        body = await self._codec_threads.run(part, seal, sealer.seal.key.quick_bytes)
        headers = self._invoke_headers(sealer.ptp, encapsulated=False)
        return _Outgoing(body, headers | position.header | sealer.seal.headers(number))

    async def send(
        self,
        ptp: Ptp,
        route: Route,
        pieces: list[bytes],
        form: Form,
    ) -> TransportReply:
        """Send a whole message, sealed or rewritten into the form that the peer's transport takes.

        Raises Invalid, and NotAllowed if it has to be sealed and a key is missing.
        """
        if route.sends_sealed:
            return await self._send_sealed(ptp, route, pieces, form)
        profile = profile_named(route.profile)
        uses_grpc = is_grpc(route.url)
        if profile.bare_payloads or profile.encapsulates or uses_grpc:
            rewrite = partial(
                codec.rewrite,
                ptp=ptp,
                form=form,
                profile=profile,
                grpc=uses_grpc,
            )
            pieces, ptp, form = await self._codec_threads.run(pieces, rewrite)
        headers = self._invoke_headers(ptp, encapsulated=profile.encapsulates)
        if profile.encapsulates:
            wrap = partial(codec.encode_envelope, metadata=headers, form=form)
            pieces = await self._codec_threads.run(pieces, wrap)
        return await self._post(ptp, route, pieces, headers, form, message_path(route))

    async def _send_sealed(
        self,
        ptp: Ptp,
        route: Route,
        pieces: list[bytes],
        form: Form,
    ) -> TransportReply:
        """Send a whole message sealed, as a bare payload. Raises Invalid, NotAllowed."""
        payload = pieces
        if form is not Form.RAW:  # a bare payload is sealed as it is
            read = partial(parse_push, ptp, form, self._token_digest(ptp))
            push = await self._codec_threads.run(pieces, read)
            ptp = replace(ptp, topic=push.topic, message_id=push.push_id)
            payload = list(push.payload.consume())
        sealer = self._sealer(ptp, route, ptp.message_id or uuid4().hex)
        assert sealer is not None  # the route sends only sealed messages
        limit = sealer.seal.key.quick_bytes
        body = await self._codec_threads.run(payload, sealer.seal_whole, limit)
        headers = self._invoke_headers(sealer.ptp, encapsulated=False) | sealer.seal.headers()
        return await self._post(ptp, route, body, headers, Form.RAW, INVOKE)

    def _sealer(
        self,
        ptp: Ptp,
        route: Route,
        message_id: str,
    ) -> Sealer | None:
        """Return what seals a message; None if it is sent unsealed. Raises NotAllowed."""
        return sealer_for(self._channel.seals, ptp, route, self._channel.node, message_id)

    def _invoke_headers(
        self,
        ptp: Ptp,
        *,
        encapsulated: bool,
    ) -> dict[str, str]:
        """Return the headers of a message to another node."""
        return codec.invoke_headers(
            ptp,
            node=self._channel.node,
            institution=self._channel.institution,
            message_id=ptp.message_id or uuid4().hex,
            token=self._token_digest(ptp),
            encapsulated=encapsulated,
        )

    def _token_digest(self, ptp: Ptp) -> str:
        """Return the digest that other nodes get instead of a container's token; "" without one."""
        if not ptp.token:
            return ""
        return short_digest("token", ptp.token)

    async def _post(
        self,
        ptp: Ptp,
        route: Route,
        body: list[bytes],
        headers: dict[str, str],
        form: Form,
        path: str,
        *,
        may_be_unknown: bool = False,
        on_sent: Callable[[], None] = do_nothing,
    ) -> TransportReply:
        """Post a message, or a part of one, until the peer answers. Raises PeerUnreachable.

        ``may_be_unknown``: the peer may not know ``path``. ``on_sent`` as for `Courier.invoke`.
        """
        content_type = form.value
        if form is Form.RAW:  # as the Content-Type of a request, its value would mean protobuf
            content_type = "application/octet-stream"
        raw_headers = []
        for name, value in (headers | {"content-type": content_type}).items():
            raw_headers.append((name.encode(), value.encode("latin-1", "replace")))
        try:
            return await self._channel.courier.invoke(
                route,
                body,
                raw_headers,
                self._channel.retry_for,
                path,
                may_be_unknown,
                ptp.session,
                on_sent,
            )
        except PeerUnreachable as error:
            raise PeerUnreachable(f"node {ptp.target} gave no answer: {error.message}") from error
