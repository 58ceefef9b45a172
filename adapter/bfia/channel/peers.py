"""The paths that other nodes' transports call: ``invoke``, ``part`` and ``transport``."""

from functools import partial

from anyio import CapacityLimiter, Semaphore
from fastapi import Request
from starlette.responses import Response

from adapter.bfia.channel import bodies, codec, responses
from adapter.bfia.channel.codec import GRPC, INVOKE, PART, PUSH, TRANSPORT, Ptp
from adapter.bfia.channel.containers import CODEC_THREADS
from adapter.bfia.channel.dependencies import ChannelParts
from adapter.bfia.channel.message_forms import Form, form_of
from adapter.bfia.channel.part_headers import Part, read_part, read_sealed_part
from adapter.bfia.channel.pieces import Payload
from adapter.bfia.channel.responses import LOOP, NOT_JOINED, NOT_PERMITTED, ChannelRefused
from adapter.bfia.channel.sealing import Opener, is_sealed
from adapter.bfia.channel.sessions import Cache
from adapter.bfia.channel.storing import CodecThreads, Inbox
from gateway.domain.problems import Problem
from gateway.errors import Invalid, NotFound, TooLarge
from gateway.http.peers import check_claim, has_client_certificate
from route_table.model import NODE_ID

# Header of a request that one gateway of this node has passed on to another one; the other one does
# not pass it on again.
HANDED_ON = "x-handed-on"

_SENDER_THREADS = 2  # threads that look up nodes which only a body names
# Headers of a request that concern one connection only, and so are not passed on
_HOP_HEADERS = frozenset(
    {b"host", b"connection", b"content-length", b"transfer-encoding", b"accept-encoding"}
)

# (whether a gateway of this node handed the message on, whether its sender showed a certificate) ->
# kind of slots
_SLOT_KINDS = {
    (False, True): "large",
    (False, False): "of anybody",
    (True, True): "handed on",
    (True, False): "handed on by anybody",
}


class PeerHandlers:
    """Serves the requests of other nodes' transports."""

    def __init__(self, parts: ChannelParts) -> None:
        self._parts = parts
        self._codec_threads = CodecThreads(CODEC_THREADS)
        self._inbox = Inbox(parts, self._codec_threads)
        self._opener = Opener(parts.seals, parts.sender_route, self._codec_threads)
        self._bodies = bodies.Bodies(
            parts.max_body,
            parts.stall_for,
            parts.least_rate,
            partial(bodies.turns_of, parts.incoming),
        )
        self._gateway_of = Cache(parts.elsewhere)  # by session
        self._may_bring = Cache(self._ask_may_bring)
        # For senders that only a body names. For a sender that the headers name,
        # `parts.known_sender` answers from memory, and is called without a thread.
        self._known_sender = Cache(parts.known_sender, CapacityLimiter(_SENDER_THREADS))

    def _ask_may_bring(self, node_and_session: tuple[str, str]) -> bool:
        """True if a node may bring messages of a session; may ask a database."""
        return self._parts.may_bring(*node_and_session)

    async def invoke(self, request: Request) -> Response:
        """Store a message that another node's transport sends."""
        if is_sealed(request):
            return await self._store_sealed(request, INVOKE)
        headers = request.headers.raw
        form = form_of(
            request.headers.get("content-type", ""),
            codec.read_topic(headers),
        )
        if form is not Form.RAW and not _is_pass_through(request):
            return await self._invoke_encapsulated(request, form)
        return await self._store_whole(request, form, INVOKE)

    async def _store_whole(
        self,
        request: Request,
        form: Form,
        path: str,
    ) -> Response:
        """Store a message whose body is that of the container's push; ``path`` is the request's."""
        ptp = codec.read_ptp(request.headers.raw)
        self._check(ptp, self._parts.known_sender(ptp.source))
        self._opener.admit(request, ptp)
        async with self._bodies.pieces(request, self._invoke_slots(request)) as pieces:
            await self._refuse_non_party(ptp)
            response = await self._hand_on(request, ptp, pieces, form, path)
            if response is None:
                await self._inbox.store(ptp, form, pieces, ptp.source)
                response = responses.success(form)
        return response

    async def _store_sealed(self, request: Request, path: str) -> Response:
        """Store a message that is sealed, see docs/sealing.md; ``path`` is the request's."""
        ptp = codec.read_ptp(request.headers.raw)
        self._check_ends(ptp, self._parts.known_sender(ptp.source))
        # Before the check of `_refuse_other_paths`, so that route tests learn whether a seal fits.
        self._opener.admit(request, ptp)
        _refuse_other_paths(ptp)
        async with self._bodies.pieces(request, self._invoke_slots(request)) as pieces:
            await self._refuse_non_party(ptp)
            response = await self._hand_on(request, ptp, pieces, Form.RAW, path)
            if response is None:
                opened = await self._opener.open(request, ptp, pieces)
                await self._inbox.store(
                    opened.ptp,
                    Form.RAW,
                    opened.payload,
                    ptp.source,
                    sender_number=opened.sender_number,
                )
                response = responses.success(Form.RAW)
        return response

    async def _invoke_encapsulated(self, request: Request, form: Form) -> Response:
        """Store a message in the encapsulated mode: the body is an envelope around the push.

        The envelope may contain the headers, also the one that names the sender.
        """
        async with self._bodies.pieces(request, self._invoke_slots(request)) as pieces:
            read_envelope = partial(codec.read_envelope, form=form)
            envelope, payload = await self._codec_threads.run(pieces, read_envelope)
            ptp = codec.read_ptp(request.headers.raw, envelope.metadata)
            # The listener has checked only a sender that the headers name.
            check_claim(request.scope, ptp.source)
            is_known = False
            # Texts that are no node's id are not looked up, so they get no entry in the cache.
            if NODE_ID.fullmatch(ptp.source):
                is_known = await self._known_sender(ptp.source)
            self._check(ptp, is_known)
            self._opener.refuse_unsealed(ptp.source)
            await self._refuse_non_party(ptp)
            response = await self._hand_on(request, ptp, pieces, form, INVOKE)
            if response is None:
                message = await self._codec_threads.run(pieces, partial(_take_payload, payload))
                await self._inbox.store(ptp, form, message, ptp.source)
                response = responses.success(form)
        return response

    def _invoke_slots(self, request: Request) -> Semaphore:
        """Return the slots for a large message that comes by ``invoke`` or ``transport``.

        Senders without a client certificate share a few slots of their own.
        """
        has_certificate = has_client_certificate(request.scope)
        kind = _SLOT_KINDS[HANDED_ON in request.headers, has_certificate]
        return self._bodies.slots(kind)

    async def part(self, request: Request) -> Response:
        """Store a part of a bare payload that another node's transport sends.

        The first part reserves capacity for the whole message. So parts are taken only in sessions
        of known jobs: in other sessions, any node could reserve capacity.
        """
        ptp = codec.read_ptp(request.headers.raw)
        self._check(ptp, self._parts.known_sender(ptp.source))
        if not ptp.message_id:
            raise Invalid([Problem("x-ptp-message-id", "is required", None)])
        seal_bytes = self._opener.admit(request, ptp)
        _refuse_long_part(request, bodies.PART + seal_bytes)
        await self._refuse_non_party(ptp)
        if not await self._inbox.is_of_known_job(ptp.session):
            text = f"session {ptp.session} is of no job here: send the whole message"
            raise ChannelRefused(NOT_PERMITTED, text)
        # Parts are short and belong to known jobs. So a sender without a client certificate may use
        # the slots of senders with one.
        slots = self._bodies.slots(_SLOT_KINDS[HANDED_ON in request.headers, True])
        async with self._bodies.pieces(request, slots) as pieces:
            part = _read_part(request, pieces, seal_bytes)
            response = await self._hand_on(request, ptp, pieces, Form.RAW, PART)
            if response is None:
                opened = await self._opener.open(request, ptp, pieces, part)
                await self._inbox.store_part(
                    opened.ptp,
                    opened.payload,
                    part.offset,
                    part.size,
                    ptp.source,
                    sender_number=opened.sender_number,
                )
                response = responses.success(Form.RAW)
        return response

    async def transport(self, request: Request) -> Response:
        """Store a message that comes over HTTP as the body of the path in ``x-ptp-uri``.

        The body is the container's push, without an envelope (transport layer, 2.2.2). Over gRPC,
        let a known node begin a stream of messages instead, see `grpc_server`.
        """
        if request.scope["http_version"] == GRPC:
            return self._begin_stream(request)
        if is_sealed(request):
            return await self._store_sealed(request, TRANSPORT)
        form = form_of(
            request.headers.get("content-type", ""),
            codec.read_topic(request.headers.raw),
        )
        return await self._store_whole(request, form, TRANSPORT)

    def _begin_stream(self, request: Request) -> Response:
        """Let a known node begin a gRPC stream; each of its messages is a call of `invoke`."""
        source = ""
        ends = codec.read_ends(request.headers.raw)
        if ends is not None:
            source, _ = ends
        if not self._parts.known_sender(source):
            raise ChannelRefused(NOT_JOINED, f"node {source or '(none named)'} is not known here")
        return responses.success(Form.PROTOBUF)

    def _check(self, ptp: Ptp, is_known: bool) -> None:
        """Raise an error for a message that this node does not take.

        It takes only messages of a known sender (``is_known``), to this node, and with a push as
        their ``x-ptp-uri``.
        """
        self._check_ends(ptp, is_known)
        _refuse_other_paths(ptp)

    def _check_ends(self, ptp: Ptp, is_known: bool) -> None:
        """Raise an error unless a message is of a known sender and for this node."""
        if not ptp.source:
            raise Invalid([Problem("x-ptp-source-node-id", "is required", None)])
        if not is_known:
            raise ChannelRefused(NOT_JOINED, f"node {ptp.source} is not known here")
        node = self._parts.node
        if ptp.target not in ("", node):
            raise ChannelRefused(LOOP, f"this is node {node}; nothing is passed on to {ptp.target}")
        # An institution counts only without a target node.
        institution = self._parts.institution
        if not ptp.target and ptp.target_institution not in ("", institution, node):
            target = ptp.target_institution
            text = f"this is institution {institution}, and the message is for {target}"
            raise ChannelRefused(NOT_JOINED, text)

    async def _refuse_non_party(self, ptp: Ptp) -> None:
        """Raise ChannelRefused if the sender may not bring messages of the session."""
        if not await self._may_bring((ptp.source, ptp.session)):
            text = f"node {ptp.source} has no part in the job of this session"
            raise ChannelRefused(NOT_PERMITTED, text)

    async def _hand_on(
        self,
        request: Request,
        ptp: Ptp,
        pieces: list[bytes],
        form: Form,
        path: str,
    ) -> Response | None:
        """Pass a message on to the gateway of this node that has the message's session.

        Return the response of that gateway. None if no other gateway has the session, or if another
        gateway has passed the message on to this one; then the caller stores the message.
        """
        if HANDED_ON in request.headers:
            return None
        route = await self._gateway_of(ptp.session)
        if route is None:
            return None
        headers = [pair for pair in request.headers.raw if pair[0] not in _HOP_HEADERS]
        headers.append((HANDED_ON.encode(), b"1"))
        retry_for = self._parts.retry_for
        reply = await self._parts.courier.invoke(route, pieces, headers, retry_for, path)
        if reply.succeeded:
            return responses.success(form)
        return responses.reply(reply.code, reply.message, form)


def _take_payload(payload: Payload, _: list[bytes]) -> list[bytes]:
    """Return the bytes of a payload, and free its body.

    The second argument is the body, which `CodecThreads.run` passes; the payload refers to it.
    """
    return list(payload.consume())


def _read_part(
    request: Request,
    pieces: list[bytes],
    seal_bytes: int,
) -> Part:
    """Return the position of a part. Raises Invalid.

    ``seal_bytes``: added by its seal; 0 for an unsealed part.
    """
    if seal_bytes:
        return read_sealed_part(request.headers, pieces, bodies.PART, seal_bytes)
    return read_part(request.headers, pieces, bodies.PART)


def _refuse_other_paths(ptp: Ptp) -> None:
    """Raise NotFound for a request other than a push."""
    if not ptp.is_push:
        text = f"x-ptp-uri {ptp.uri!r} is not served between nodes; only {PUSH} is"
        raise NotFound(text)


def _is_pass_through(request: Request) -> bool:
    """True for the pass-through mode: the body is the container's push, without an envelope."""
    headers = request.headers
    version = headers.get("x-ptp-version", headers.get("x_ptp_version", ""))
    return version.strip() == codec.PASS_THROUGH


def _refuse_long_part(request: Request, limit: int) -> None:
    """Raise TooLarge for a part over ``limit`` bytes, or one that does not announce its length."""
    size = bodies.announced(request)
    if size is None:
        # A body by gRPC is in memory already; its length is checked with its header.
        is_too_long = request.scope["http_version"] != GRPC
    else:
        is_too_long = size > limit
    if is_too_long:
        raise TooLarge(f"a part has at most {limit} bytes")
