"""Sends containers' messages to other nodes' transports, whole or in parts, in the form that each
transport takes.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar
from uuid import uuid4

import anyio.to_thread

from adapter.bfia.channel import bodies, codec, responses
from adapter.bfia.channel.codec import INVOKE, PART, SUCCESS, Ptp, TransportReply
from adapter.bfia.channel.courier import BUFFER_FULL
from adapter.bfia.channel.dependencies import ChannelParts
from adapter.bfia.channel.grpc_client import is_grpc
from adapter.bfia.channel.message_forms import Form
from adapter.bfia.channel.pieces import measure, total_length
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
    if profile.encapsulates or profile.bare_payloads:
        return False
    # gRPC carries the topic of a part in its metadata, which are ASCII.
    return topic.isascii() or not is_grpc(route.url)


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

        Return the reply to the last part, or the first refusal. Raises PartsRefused and BufferFull
        as `_check_refused_part` does, and Invalid if the parts together do not have ``size`` bytes.
        """
        offset = 0
        reply = TransportReply(code=SUCCESS)
        for_all_parts = self._invoke_headers(ptp, encapsulated=False)
        async for part in parts:
            is_first = offset == 0
            length, checksum = measure(part)
            headers = for_all_parts | codec.Part(offset, size, checksum).header
            reply = await self._post(
                ptp, route, part, headers, Form.RAW, PART, may_be_unknown=is_first
            )
            if not reply.succeeded:
                _check_refused_part(ptp, reply, part, is_first)
                return reply
            offset += length
            part.clear()
        refuse_wrong_length(offset, size)
        return reply

    async def send(
        self,
        ptp: Ptp,
        route: Route,
        pieces: list[bytes],
        form: Form,
    ) -> TransportReply:
        """Send a whole message, rewritten into the form that the peer's transport takes.

        Raises Invalid.
        """
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
        return await self._post(ptp, route, pieces, headers, form, INVOKE)

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
    ) -> TransportReply:
        """Post a message, or a part of one, until the peer answers. Raises PeerUnreachable.

        ``may_be_unknown``: the peer may not know ``path``.
        """
        content_type = form.value
        if form is Form.RAW:  # as the Content-Type of a request, its value would mean protobuf
            content_type = "application/octet-stream"
        raw_headers = []
        for name, value in (headers | {"content-type": content_type}).items():
            raw_headers.append((name.encode(), value.encode("latin-1", "replace")))
        try:
            return await self._channel.courier.invoke(
                route, body, raw_headers, self._channel.retry_for, path, may_be_unknown
            )
        except PeerUnreachable as error:
            raise PeerUnreachable(f"node {ptp.target} gave no answer: {error.message}") from error
