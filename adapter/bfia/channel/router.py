"""The transport's routers: push, pop, peek and release for this node's containers, invoke between nodes.

The code of an answer stands in its body; HTTP is 200, save for a body over the limit (413). Requests stay on the
event loop while they wait; bodies over a quarter of a MiB are read and written in threads.
"""

import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from adapter.bfia.channel import bodies, codec, responses
from adapter.bfia.channel.calls import by_grpc
from adapter.bfia.channel.codec import GRPC, INVOKE, PART, PUSH, SUCCESS, Answer, Ask, Ptp
from adapter.bfia.channel.courier import BUFFER_FULL, Courier
from adapter.bfia.channel.forms import Form, form_of
from adapter.bfia.channel.pieces import Payload, measured
from adapter.bfia.channel.refusals import Refusals
from adapter.bfia.channel.responses import (
    IN_THREAD,
    LOOP,
    NOT_JOINED,
    NOT_PERMITTED,
    ChannelRefused,
    Handover,
)
from adapter.bfia.channel.sessions import Cache, Claim, UnknownSessions
from adapter.bfia.profiles import profile_named
from gateway.broker import Broker, BufferFull, Message, SessionReleased
from gateway.domain.problems import Problem
from gateway.errors import (
    GatewayError,
    Invalid,
    NotAllowed,
    NotFound,
    PeerUnreachable,
    TooLarge,
    brief,
    release,
)
from gateway.http.peers import check_claim, shows_certificate
from route_table.model import NODE_ID, Route

X = TypeVar("X")

_BARE_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class Member:
    """The run that a request comes from, and the nodes of its job."""

    run: str
    nodes: frozenset[str]


_POP_SECONDS = 120.0
_ASKING = 2
"""threads that ask about nodes which only a body names"""
_CODEC_THREADS = 2
_READING_THREADS = 8
HANDED_ON = "x-handed-on"
"""said by a gateway of this node that passes on what was brought to it, so that it goes one step only"""
_OF_ANYBODY = {"large": "of anybody", "handed on": "handed on by anybody"}
"""kind of places of proven senders -> of others"""
_OF_THIS_HOP = (b"host", b"connection", b"content-length", b"transfer-encoding", b"accept-encoding")


@dataclass(frozen=True)
class ChannelParts:
    """What the transport's routers work with.

    ``run_of`` gives the run that a container's request comes from, and raises NotAllowed where it comes from none
    or is for a session that is not this run's. ``route_of`` and ``known_sender`` answer from memory where headers
    name the node; ``session_open`` (False: its job has ended, None: not known here), ``run_of`` and
    ``known_sender`` of a node that only the body names may ask a database: they are called in threads and their
    answers are remembered for a second, but for a run that is recognised by its address.
    ``max_body`` is in bytes, ``retry_for`` and ``stall_for`` (the longest pause within a body) in seconds;
    ``least_rate`` is what a large body has to keep up beside that while another waits for its place, in bytes
    per second.
    ``elsewhere`` gives the route to another gateway of this node where that one has the session; it is called as
    those are. Whoever runs the routers without their lifespan closes ``courier``, the connections to peers.
    """

    node: str
    institution: str
    broker: Broker
    run_of: Callable[[Claim], Member]
    route_of: Callable[[str], Route | None]
    known_sender: Callable[[str], bool]
    session_open: Callable[[str], bool | None]
    max_body: int
    retry_for: float = 30.0
    stall_for: float = 10.0
    least_rate: float = 32 * 1024
    unknown_sessions: int = 256
    courier: Courier = field(default_factory=Courier)
    elsewhere: Callable[[str], Route | None] = lambda session: None
    may_bring: Callable[[str, str], bool] = lambda node, session: True
    """whether a node may bring messages of a session; asked as those are"""
    own_session: Callable[[Claim], str] = lambda claim: ""
    """returns the session of the run that a refused request comes from, whichever it named; empty for no run"""


def container_router(parts: ChannelParts) -> APIRouter:
    """Return push, pop, peek and release, for the containers of this node."""
    desk = _Desk(parts)
    refusals = Refusals(parts.broker, parts.own_session)
    router = _channel_router(parts)
    for path, handle, about in (
        (PUSH, desk.push, responses.PUSH),
        (codec.CHANNEL + "pop", desk.pop, responses.POP),
        (codec.CHANNEL + "peek", desk.peek, responses.PEEK),
        (codec.CHANNEL + "release", desk.release, responses.RELEASE),
    ):
        _add(router, path, handle, about, refusals.of_container)
    return router


def peer_router(parts: ChannelParts) -> APIRouter:
    """Return invoke and part, for the transports of other nodes, and the refusal of transport."""
    desk = _Desk(parts)
    note = Refusals(parts.broker, parts.own_session).of_node
    router = _channel_router(parts)
    _add(router, INVOKE, desk.invoke, responses.INVOKE, note)
    _add(router, PART, desk.part, responses.PART, note)
    _add(router, codec.CHANNEL + "transport", desk.transport, responses.TRANSPORT, note)
    return router


def _add(
    router: APIRouter,
    path: str,
    handle: Callable[[Request], Awaitable[Response]],
    about: dict[str, Any],
    note: Callable[[str, Request, GatewayError], Awaitable[None]],
) -> None:
    operation = path.rpartition("/")[2]

    async def endpoint(request: Request) -> Response:
        try:
            return await handle(request)
        except ClientDisconnect:
            return Response(status_code=400)
        except GatewayError as error:
            release(error)
            await note(operation, request, error)
            if error.code == NotAllowed.code:
                request.state.refused = brief(error)
            return responses.refusal(error, responses.form_for(request.headers.raw))

    endpoint.__name__ = f"chan_{operation}"
    router.add_api_route(
        path,
        endpoint,
        methods=["POST"],
        response_model=None,
        **about,
    )


def _channel_router(parts: ChannelParts) -> APIRouter:
    return APIRouter(
        tags=["channel"],
        route_class=ChannelRoute,
        lifespan=_closing(parts.courier),
    )


def _closing(courier: Courier) -> Callable[[FastAPI], Any]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await courier.close()

    return lifespan


class ChannelRoute(APIRoute):
    """A path of the channel: FastAPI describes and finds it, its handler gets the plain request.

    Solving dependencies would cost a small message more than all the rest of its way (ADR 33). Checks that an
    application declares as dependencies do not apply: the handlers authenticate senders themselves.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the endpoint itself."""
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler


class _Desk:
    """What happens to a request of each kind."""

    def __init__(self, parts: ChannelParts) -> None:
        self._parts = parts
        self._broker = parts.broker
        self._run_of_token = Cache(parts.run_of)
        self._by_address = CapacityLimiter(_ASKING)
        self._session_open = Cache(parts.session_open)
        self._elsewhere = Cache(parts.elsewhere)
        self._may_bring: Cache[str, bool] = Cache(
            lambda asked: parts.may_bring(*asked.split("\n", 1))
        )
        self._unknown = UnknownSessions(parts.broker, self._session_open, parts.unknown_sessions)
        self._known_inside = Cache(parts.known_sender, limiter=CapacityLimiter(_ASKING))
        self._bodies = bodies.Bodies(parts.max_body, parts.stall_for, parts.least_rate)
        self._codec = CapacityLimiter(_CODEC_THREADS)
        self._reading = CapacityLimiter(_READING_THREADS)

    async def push(self, request: Request) -> Response:
        """Store a container's message here, or bring it to the node it is for."""
        ptp, form = _asked(request)
        member = await self._member(request, ptp)
        target = self._target(ptp)
        if target != self._parts.node and ptp.source not in ("", self._parts.node):
            raise ChannelRefused(
                LOOP, f"a message of node {ptp.source} for node {target} is not passed on here"
            )
        route = None if target == self._parts.node else self._parts.route_of(target)
        if target != self._parts.node and route is None:
            raise ChannelRefused(
                NOT_JOINED, f"node {target} has no route here: ask this node's admin for one"
            )
        if target not in member.nodes:
            raise NotAllowed(f"node {target} takes no part in the job of this run")
        places = () if route is None else (self._bodies.places("to one node", target),)
        if (
            form is Form.RAW
            and (size := bodies.announced(request)) is not None
            and bodies.LARGE < size <= self._parts.max_body
            and (route is None or _takes_parts(route, ptp.topic or ""))
        ):
            async with AsyncExitStack() as held:
                for place in (*places, self._bodies.places("large")):
                    await held.enter_async_context(place)
                return await self._push_long(request, ptp, route, member.run, size)
        async with self._bodies.pieces(request, *places, self._bodies.places("large")) as pieces:
            if route is None:
                await self._store(ptp, form, pieces, source=self._parts.node, run=member.run)
                return responses.success(form)
            await self._refuse_ended(ptp.session)
            return _response_to(await self._send_held(ptp, route, pieces, form), ptp, form)

    async def _push_long(
        self,
        request: Request,
        ptp: Ptp,
        route: Route | None,
        run: str,
        size: int,
    ) -> Response:
        """Store a bare payload, or bring it on, part by part while it comes."""
        await self._refuse_ended(ptp.session)
        ptp = replace(ptp, message_id=ptp.message_id or uuid4().hex)
        async with aclosing(bodies.ahead(self._bodies.parts(request))) as parts:
            if route is not None:
                try:
                    answer = await self._send_parts(ptp, route, parts, size)
                except _NoParts as refused:
                    rest = [piece async for more in parts for piece in more]
                    answer = await self._send(ptp, route, [*refused.part, *rest], Form.RAW)
                return _response_to(answer, ptp, Form.RAW)
            offset = 0
            async for part in parts:
                await self._store_part(ptp, part, offset, size, self._parts.node, run)
                offset += sum(map(len, part))
                part.clear()  # or it would be there while the next one comes
            _refuse_short(offset, size)
        return responses.success(Form.RAW)

    async def _send_held(
        self,
        ptp: Ptp,
        route: Route,
        pieces: list[bytes],
        form: Form,
    ) -> Answer:
        """Bring a message on that is here as a whole; a long one in parts, as its bare payload."""
        if sum(map(len, pieces)) > bodies.LARGE and form is not Form.RAW and _takes_parts(route):
            read = partial(_read_push, ptp, form, self._token(ptp))
            topic, payload, name = await self._read(pieces, read)
            if _takes_parts(route, topic):
                named = replace(ptp, topic=topic, message_id=name or uuid4().hex)
                parts = self._in_threads(payload.parts(bodies.PART))
                with contextlib.suppress(_NoParts):
                    return await self._send_parts(named, route, parts, payload.size)
        return await self._send(ptp, route, pieces, form)

    async def _in_threads(self, parts: Iterator[X]) -> AsyncIterator[X]:
        while (
            part := await anyio.to_thread.run_sync(next, parts, None, limiter=self._codec)
        ) is not None:
            yield part

    async def _send_parts(
        self,
        ptp: Ptp,
        route: Route,
        parts: AsyncIterator[list[bytes]],
        size: int,
    ) -> Answer:
        """Bring a payload in parts. Raises _NoParts where the peer refuses the first one."""
        offset, answer = 0, Answer(code=SUCCESS)
        async for part in parts:
            length, checksum = measured(part)
            headers = (
                self._invoke_headers(ptp, encapsulated=False)
                | codec.Part(offset, size, checksum).header
            )
            answer = await self._brought(
                ptp, route, part, headers, Form.RAW, PART, may_be_unknown=not offset
            )
            if not answer.succeeded and not offset and answer.code != BUFFER_FULL:
                raise _NoParts(
                    part
                )  # its transport takes none, or what it refuses it says of the whole, too
            if answer.code == responses.PARTS_MISSING:
                raise BufferFull(f"node {ptp.target} was restarted and has lost a part: push again")
            if not answer.succeeded:
                return answer
            offset += length
            part.clear()
        _refuse_short(offset, size)
        return answer

    async def _store_part(
        self,
        ptp: Ptp,
        pieces: list[bytes],
        offset: int,
        size: int,
        source: str,
        run: str | None,
    ) -> None:
        await self._refuse_ended(ptp.session)
        await self._broker.part(
            ptp.session,
            ptp.topic or "",
            source,
            pieces,
            offset=offset,
            size=size,
            run=run,
            sequence=_digest("message", ptp.message_id),
        )

    def _target(self, ptp: Ptp) -> str:
        if ptp.target:
            return ptp.target
        if ptp.target_institution and ptp.target_institution == self._parts.institution:
            return self._parts.node
        if ptp.target_institution:
            text = f"institution {ptp.target_institution} names no node; send x-ptp-target-node-id"
            raise ChannelRefused(NOT_JOINED, text)
        raise Invalid([Problem("x-ptp-target-node-id", "is required", None)])

    async def _send(
        self,
        ptp: Ptp,
        route: Route,
        pieces: list[bytes],
        form: Form,
    ) -> Answer:
        profile = profile_named(route.profile)
        grpc = by_grpc(route.url)
        if profile.bare_payloads or profile.encapsulates or grpc:
            write = partial(
                codec.rewritten,
                ptp=ptp,
                form=form,
                profile=profile,
                grpc=grpc,
            )
            pieces, ptp, form = await self._read(pieces, write)
        headers = self._invoke_headers(ptp, encapsulated=profile.encapsulates)
        if profile.encapsulates:
            pieces = await self._read(
                pieces, partial(codec.encode_envelope, metadata=headers, form=form)
            )
        return await self._brought(ptp, route, pieces, headers, form, INVOKE)

    def _token(self, ptp: Ptp) -> str:
        """Return what stands for a container's token at other nodes."""
        return _digest("token", ptp.token) if ptp.token else ""

    def _invoke_headers(self, ptp: Ptp, *, encapsulated: bool) -> dict[str, str]:
        return codec.invoke_headers(
            ptp,
            node=self._parts.node,
            institution=self._parts.institution,
            message_id=ptp.message_id or uuid4().hex,
            token=self._token(ptp),
            encapsulated=encapsulated,
        )

    async def _brought(
        self,
        ptp: Ptp,
        route: Route,
        body: list[bytes],
        headers: dict[str, str],
        form: Form,
        path: str,
        may_be_unknown: bool = False,
    ) -> Answer:
        texts = headers | {
            "content-type": "application/octet-stream" if form is Form.RAW else form.value
        }
        sent = [
            (name.encode(), value.encode("latin-1", "replace")) for name, value in texts.items()
        ]
        try:
            return await self._parts.courier.invoke(
                route, body, sent, self._parts.retry_for, path, may_be_unknown
            )
        except PeerUnreachable as error:
            raise PeerUnreachable(f"node {ptp.target} gave no answer: {error.message}") from error

    async def pop(self, request: Request) -> Response:
        """Hand the next message to a container, and wait for one if there is none."""
        return await self._take(request, None)

    async def peek(self, request: Request) -> Response:
        """Hand the next message to a container if there is one."""
        return await self._take(request, 0.0)

    async def _take(self, request: Request, seconds: float | None) -> Response:
        ptp, form = _asked(request)
        async with _unhurried(form):
            member, ask = await self._wanted(request, ptp, form)
            if seconds is None:
                query = request.query_params.get("timeout")
                seconds = codec.wait_seconds(ptp.timeout, ask.timeout, query, _POP_SECONDS)
            await self._refuse_ended(ptp.session)

        async def taking() -> Message | None:
            async with _unhurried(form):
                return await self._broker.pop(
                    ptp.session,
                    ask.topic or "",
                    sources=member.nodes
                    if ptp.target in ("", self._parts.node)
                    else member.nodes & {ptp.target},
                    reader=_digest("run", member.run),
                    run=member.run,
                    pop_id=ptp.pop_id or None,
                    timeout=seconds,
                )

        def framed(message: Message) -> list[bytes | None]:
            metadata = {"x-ptp-source-node-id": message.source, "x-ptp-topic": message.topic}
            return codec.frame(SUCCESS, "success", message.size, metadata, form)

        return Handover(self._broker, taking, framed, form, self._reading)

    async def release(self, request: Request) -> Response:
        """Drop a topic for a container or, without a topic, what was kept for repeats of its pops."""
        ptp, form = _asked(request)
        member, ask = await self._wanted(request, ptp, form)
        await self._broker.release(
            ptp.session, ask.topic, reader=_digest("run", member.run), run=member.run
        )
        return responses.success(form)

    async def _wanted(
        self,
        request: Request,
        ptp: Ptp,
        form: Form,
    ) -> tuple[Member, Ask]:
        """Return who sends the request, and what it asks for: a header's topic goes before a body's."""
        member = await self._member(request, ptp)
        async with self._bodies.pieces(request) as pieces:
            ask = await self._read(pieces, lambda _: codec.decode_ask(b"".join(pieces), form))
        return member, ask if ptp.topic is None else ask.model_copy(update={"topic": ptp.topic})

    async def invoke(self, request: Request) -> Response:
        """Store a message that another node's transport brings."""
        headers = request.headers.raw
        form = form_of(request.headers.get("content-type", ""), codec.read_topic(headers))
        ptp = None
        version = request.headers.get(
            "x-ptp-version", request.headers.get("x_ptp_version", "")
        ).strip()
        if version == codec.PASS_THROUGH or form is Form.RAW:
            ptp = codec.read_ptp(headers)
            _check_invoke(ptp, self._parts.node, self._parts.known_sender(ptp.source))
        if HANDED_ON in request.headers:
            kind = "handed on"
        else:
            kind = "large"
        if not shows_certificate(request.scope):
            kind = _OF_ANYBODY[kind]
        places = self._bodies.places(kind)
        async with self._bodies.pieces(request, places) as pieces:
            inner = None
            if ptp is None:
                envelope, inner = await self._read(pieces, partial(codec.read_envelope, form=form))
                ptp = codec.read_ptp(headers, envelope.metadata)
                check_claim(request.scope, ptp.source)
                known = NODE_ID.fullmatch(ptp.source) is not None and await self._known_inside(
                    ptp.source
                )
                _check_invoke(ptp, self._parts.node, known)
            await self._refuse_non_party(ptp)
            if answer := await self._handed_on(request, ptp, pieces, form, INVOKE):
                return answer
            if inner is not None:
                pieces = await self._read(pieces, lambda _: list(inner.last()))
            await self._store(ptp, form, pieces, source=ptp.source, run=None)
        return responses.success(form)

    async def part(self, request: Request) -> Response:
        """Store a part of a bare payload that another node's transport brings, of a session that is known here.

        It reserves capacity for all that is to come, which in sessions of no known job anybody could do.
        """
        ptp = codec.read_ptp(request.headers.raw)
        _check_invoke(ptp, self._parts.node, self._parts.known_sender(ptp.source))
        if not ptp.message_id:
            raise Invalid([Problem("x-ptp-message-id", "is required", None)])
        size = bodies.announced(request)
        if (size is None and request.scope["http_version"] != GRPC) or (size or 0) > bodies.PART:
            raise TooLarge(f"a part has at most {bodies.PART} bytes")
        await self._refuse_non_party(ptp)
        if await self._session_open(ptp.session) is None:
            raise ChannelRefused(
                NOT_PERMITTED, f"session {ptp.session} is of no job here: send the whole message"
            )
        kind = "handed on" if HANDED_ON in request.headers else "large"
        async with self._bodies.pieces(request, self._bodies.places(kind)) as pieces:
            part = codec.read_part(request.headers, pieces, bodies.PART)
            if answer := await self._handed_on(request, ptp, pieces, Form.RAW, PART):
                return answer
            await self._store_part(ptp, pieces, part.offset, part.size, ptp.source, None)
        return responses.success(Form.RAW)

    async def transport(self, request: Request) -> Response:
        """Let a node of which this one knows begin a stream of messages by gRPC; each is an invoke of its own."""
        if request.scope["http_version"] != GRPC:
            raise ChannelRefused(
                NOT_PERMITTED, "chan/transport is not served over HTTP; use chan/invoke"
            )
        source, _ = codec.read_ends(request.headers.raw) or ("", "")
        if not self._parts.known_sender(source):
            raise ChannelRefused(NOT_JOINED, f"node {source or '(none named)'} is not known here")
        return responses.success(Form.PROTOBUF)

    async def _refuse_non_party(self, ptp: Ptp) -> None:
        if not await self._may_bring(f"{ptp.source}\n{ptp.session}"):
            raise ChannelRefused(
                NOT_PERMITTED, f"node {ptp.source} has no part in the job of this session"
            )

    async def _handed_on(
        self,
        request: Request,
        ptp: Ptp,
        pieces: list[bytes],
        form: Form,
        path: str,
    ) -> Response | None:
        """Pass a message on to the gateway of this node that has its session; None where that is this one."""
        if HANDED_ON in request.headers or (other := await self._elsewhere(ptp.session)) is None:
            return None
        kept = [(name, value) for name, value in request.headers.raw if name not in _OF_THIS_HOP]
        kept.append((HANDED_ON.encode(), b"1"))
        answer = await self._parts.courier.invoke(other, pieces, kept, self._parts.retry_for, path)
        return _response_to(answer, None, form)

    async def _store(
        self,
        ptp: Ptp,
        form: Form,
        pieces: list[bytes],
        *,
        source: str,
        run: str | None,
    ) -> None:
        topic, payload, name = await self._read(pieces, partial(_read_push, ptp, form, ptp.token))
        if not self._broker.holds(ptp.session):
            await self._refuse_ended(ptp.session)
            await self._unknown.admit(ptp.session, source)
        sequence = _digest("message", name) if name else None
        await self._broker.push(
            ptp.session,
            topic,
            source,
            payload,
            size=payload.size,
            run=run,
            sequence=sequence,
        )

    async def _refuse_ended(self, session: str) -> None:
        if not self._broker.holds(session) and await self._session_open(session) is False:
            raise SessionReleased(f"session {session} has ended")

    async def _member(self, request: Request, ptp: Ptp) -> Member:
        """Return the run that sends the request. Raises NotAllowed for none, and for one with another session."""
        if ptp.token:
            return await self._run_of_token(Claim(ptp.session, token=ptp.token))
        claim = Claim(ptp.session, address=request.client.host if request.client else "")
        # not remembered: another container may get the address of one that has just ended
        return await anyio.to_thread.run_sync(self._parts.run_of, claim, limiter=self._by_address)

    async def _read(self, pieces: list[bytes], read: Callable[[list[bytes]], X]) -> X:
        if sum(map(len, pieces)) <= IN_THREAD:
            return read(pieces)
        return await anyio.to_thread.run_sync(read, pieces, limiter=self._codec)


class _NoParts(Exception):
    """The peer takes no parts; this was the first one."""

    def __init__(self, part: list[bytes]) -> None:
        super().__init__()
        self.part = part


def _takes_parts(route: Route, topic: str = "") -> bool:
    """Tell whether a peer's transport may take parts: none of another platform does."""
    profile = profile_named(route.profile)
    return not (
        profile.encapsulates
        or profile.bare_payloads
        or (by_grpc(route.url) and not topic.isascii())
    )


def _refuse_short(length: int, size: int) -> None:
    if length != size:
        raise Invalid([Problem("body", f"must have the {size} bytes that were announced")])


def _response_to(
    answer: Answer,
    ptp: Ptp | None,
    form: Form,
) -> Response:
    """Return another transport's answer; ``ptp`` names the node to which a container's message was brought.

    Raises `ChannelRefused` where that node refuses the message.
    """
    if answer.succeeded:
        return responses.success(form)
    if ptp is not None:
        raise ChannelRefused(answer.code, f"node {ptp.target}: {answer.message}")
    return responses.reply(answer.code, answer.message, form)


def _check_invoke(
    ptp: Ptp,
    here: str,
    known: bool,
) -> None:
    if not ptp.source:
        raise Invalid([Problem("x-ptp-source-node-id", "is required", None)])
    if not known:
        raise ChannelRefused(NOT_JOINED, f"node {ptp.source} is not known here")
    if ptp.target not in ("", here):
        raise ChannelRefused(LOOP, f"this is node {here}; nothing is passed on to {ptp.target}")
    if not ptp.is_push:
        raise NotFound(f"x-ptp-uri {ptp.uri!r} is not served between nodes; only {PUSH} is")


def _asked(request: Request) -> tuple[Ptp, Form]:
    ptp = codec.read_ptp(request.headers.raw)
    return ptp, form_of(request.headers.get("content-type", ""), ptp.topic)


@asynccontextmanager
async def _unhurried(form: Form) -> AsyncIterator[None]:
    """Let a second pass before a refusal of a bare pop: SecretFlow's client asks again without a pause."""
    try:
        yield
    except GatewayError:
        if form is Form.RAW:
            await anyio.sleep(_BARE_PAUSE)
        raise


def _read_push(
    ptp: Ptp,
    form: Form,
    token: str,
    pieces: list[bytes],
) -> tuple[str, Payload, str]:
    """Read a push: its topic, its payload, and the name by which its repeats are recognised; empty for none.

    The sender's own sequence counts together with its token and a checksum: a second attempt of a task, or a
    sender that means something else by the word, must not lose messages. Else it is the id of the push.
    """
    push, payload = codec.read_push(pieces, form)
    name = ptp.message_id
    if sequence := push.metadata.get("sequence", ""):
        name = _digest("sequence", token, sequence, f"{payload.size} {payload.checksum}")
    return push.topic if ptp.topic is None else ptp.topic, payload, name


def _digest(*parts: str) -> str:
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).hexdigest()
