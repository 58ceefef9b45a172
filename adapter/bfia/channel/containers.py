"""The paths that this node's containers call: ``push``, ``pop``, ``peek`` and ``release``."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from uuid import uuid4

import anyio
import anyio.to_thread
from anyio import CapacityLimiter, Semaphore
from fastapi import Request
from starlette.responses import Response

from adapter.bfia.channel import bodies, codec, responses
from adapter.bfia.channel.codec import SUCCESS, Ask, Ptp, TransportReply
from adapter.bfia.channel.dependencies import ChannelParts, Member
from adapter.bfia.channel.message_forms import Form, form_of
from adapter.bfia.channel.pieces import total_length
from adapter.bfia.channel.responses import LOOP, NOT_JOINED, ChannelRefused, Handover
from adapter.bfia.channel.sending import Outbox, PartsRefused, refuse_wrong_length, takes_parts
from adapter.bfia.channel.sessions import Cache, Claim
from adapter.bfia.channel.storing import CodecThreads, Inbox, short_digest
from gateway.broker import Message
from gateway.domain.problems import Problem
from gateway.errors import GatewayError, Invalid, NotAllowed
from route_table.model import Route

CODEC_THREADS = 2  # threads that parse and write long messages
_READING_THREADS = 8  # threads that read stored messages for the runs that pop them
_ADDRESS_THREADS = 2  # threads that look up runs by their address
_POP_SECONDS = 120.0  # how long a pop without a timeout of its own waits
_REFUSAL_PAUSE = 1.0  # seconds before the refusal of a pop or peek in the form RAW


class ContainerHandlers:
    """Serves the requests of this node's containers."""

    def __init__(self, parts: ChannelParts) -> None:
        self._parts = parts
        self._broker = parts.broker
        self._codec_threads = CodecThreads(CODEC_THREADS)
        self._inbox = Inbox(parts, self._codec_threads)
        self._outbox = Outbox(parts, self._codec_threads)
        self._bodies = bodies.Bodies(parts.max_body, parts.stall_for, parts.least_rate)
        self._reading = CapacityLimiter(_READING_THREADS)
        self._run_of_token = Cache(parts.run_of)
        self._address_threads = CapacityLimiter(_ADDRESS_THREADS)

    async def push(self, request: Request) -> Response:
        """Store a container's message here, or send it to its target node."""
        ptp, form = _read_headers(request)
        member = await self._member(request, ptp)
        target = self._target(ptp, member)
        ptp = replace(ptp, target=target)
        route = self._route(ptp, target, member)
        slots = self._slots(target)
        if self._can_stream(request, ptp, form, route):
            # The slots are taken here, because `Bodies.parts` does not take them.
            async with AsyncExitStack() as held_slots:
                for slot in slots:
                    await held_slots.enter_async_context(slot)
                return await self._push_streamed(request, ptp, route, member.run)
        async with self._bodies.pieces(request, *slots) as pieces:
            if route is None:
                await self._inbox.store(
                    ptp,
                    form,
                    pieces,
                    self._parts.node,
                    member.run,
                )
                return responses.success(form)
            # `Inbox.store`, above, refuses ended sessions itself.
            await self._inbox.refuse_ended(ptp.session)
            reply = await self._outbox.send_buffered(ptp, route, pieces, form)
            return _response_of(reply, ptp.target, form)

    def _route(
        self,
        ptp: Ptp,
        target: str,
        member: Member,
    ) -> Route | None:
        """Return the route to the target of a push; None for this node.

        Raises ChannelRefused, and NotAllowed for a node that is not in the run's job.
        """
        route = None
        if target != self._parts.node:
            if ptp.source not in ("", self._parts.node):
                text = f"a message of node {ptp.source} for node {target} is not passed on here"
                raise ChannelRefused(LOOP, text)
            route = self._parts.route_of(target)
            if route is None:
                text = f"node {target} has no route here: ask this node's admin for one"
                raise ChannelRefused(NOT_JOINED, text)
        if target not in member.nodes:
            raise NotAllowed(f"node {target} takes no part in the job of this run")
        return route

    def _target(self, ptp: Ptp, member: Member) -> str:
        """Return the node to which a message goes. Raises Invalid, ChannelRefused.

        A message that names only an institution goes to the institution's node in the run's job.
        """
        if ptp.target:
            return ptp.target
        institution = ptp.target_institution
        if not institution:
            raise Invalid([Problem("x-ptp-target-node-id", "is required", None)])
        nodes = list(self._parts.nodes_of(institution))
        if institution in (self._parts.institution, self._parts.node):
            nodes.append(self._parts.node)
        in_job = sorted(member.nodes.intersection(nodes))
        if not in_job:
            text = (
                f"institution {institution} has no node in this job with a route here: send "
                "x-ptp-target-node-id, or name the institution in the node's route"
            )
            raise ChannelRefused(NOT_JOINED, text)
        if len(in_job) > 1:
            rule = f"has several nodes in this job, {', '.join(in_job)}: send x-ptp-target-node-id"
            raise Invalid([Problem("x-ptp-target-inst-id", rule, institution)])
        return in_job[0]

    def _slots(self, target: str) -> list[Semaphore]:
        """Return the slots that a large body needs, in the order in which they are taken.

        The slot for the target is taken first: a body that waits for it does not hold one of the
        slots that the bodies for all targets share.
        """
        large = self._bodies.slots("large")
        if target == self._parts.node:
            return [large]
        return [self._bodies.slots("to one node", target), large]

    def _can_stream(
        self,
        request: Request,
        ptp: Ptp,
        form: Form,
        route: Route | None,
    ) -> bool:
        """True if the body is a long bare payload that can be stored, or sent on, part by part.

        ``route`` None: the payload is stored here.
        """
        size = bodies.announced(request)
        if form is not Form.RAW or size is None:
            return False
        if not bodies.LARGE < size <= self._parts.max_body:  # `Bodies.pieces` refuses larger ones
            return False
        return route is None or takes_parts(route, ptp.topic or "")

    async def _push_streamed(
        self,
        request: Request,
        ptp: Ptp,
        route: Route | None,
        run: str,
    ) -> Response:
        """Store a bare payload, or send it on, part by part while it arrives.

        ``route`` None: the payload is stored here.
        """
        await self._inbox.refuse_ended(ptp.session)
        # All parts need the same id, by which the broker of the receiving node joins them.
        ptp = replace(ptp, message_id=ptp.message_id or uuid4().hex)
        size = bodies.announced(request) or 0  # never None here: `_can_stream` has seen the size
        async with aclosing(bodies.prefetch(self._bodies.parts(request))) as parts:
            if route is None:
                await self._store_parts(ptp, parts, size, run)
                return responses.success(Form.RAW)
            try:
                reply = await self._outbox.send_parts(ptp, route, parts, size)
            except PartsRefused as refused:
                # Collect all parts, and send the message as a whole.
                pieces = [*refused.first_part]
                async for part in parts:
                    pieces += part
                reply = await self._outbox.send(ptp, route, pieces, Form.RAW)
            return _response_of(reply, ptp.target, Form.RAW)

    async def _store_parts(
        self,
        ptp: Ptp,
        parts: AsyncIterator[list[bytes]],
        size: int,
        run: str,
    ) -> None:
        """Store a message for this node in parts.

        Raises Invalid if the parts together do not have the announced ``size`` (bytes).
        """
        offset = 0
        async for part in parts:
            await self._inbox.store_part(
                ptp,
                part,
                offset,
                size,
                self._parts.node,
                run,
            )
            offset += total_length(part)
            part.clear()  # otherwise it would stay in memory while the next one arrives
        refuse_wrong_length(offset, size)

    async def pop(self, request: Request) -> Response:
        """Hand the next message to a container; wait for one if there is none."""
        return await self._take(request, waits=True)

    async def peek(self, request: Request) -> Response:
        """Hand the next message to a container if there is one."""
        return await self._take(request, waits=False)

    async def _take(self, request: Request, *, waits: bool) -> Response:
        """Respond to a pop (``waits``) or peek with the next message.

        The message is taken from the broker only when the response is sent.
        """
        ptp, form = _read_headers(request)
        async with _pause_before_refusal(form):
            member = await self._member(request, ptp)
            ask = await self._read_ask(request, ptp, form)
            seconds = 0.0
            if waits:
                query = request.query_params.get("timeout")
                seconds = codec.wait_seconds(ptp.timeout, ask.timeout, query, _POP_SECONDS)
            await self._inbox.refuse_ended(ptp.session)
        return Handover(
            self._broker,
            partial(self._pop, ptp, form, member, ask.topic or "", seconds),
            partial(_frame, form),
            form,
            self._reading,
        )

    async def _pop(
        self,
        ptp: Ptp,
        form: Form,
        member: Member,
        topic: str,
        seconds: float,
    ) -> Message | None:
        """Take the next message for a run; None if none arrives in time.

        In a pop, ``x-ptp-target-node-id`` names the node from which the message must come. If it
        is absent or names this node, a message of any node of the job is taken.
        """
        sources = member.nodes
        if ptp.target not in ("", self._parts.node):
            sources = member.nodes & {ptp.target}
        async with _pause_before_refusal(form):
            return await self._broker.pop(
                ptp.session,
                topic,
                sources=sources,
                reader=_reader_of(member),
                run=member.run,
                pop_id=ptp.pop_id or None,
                timeout=seconds,
            )

    async def release(self, request: Request) -> Response:
        """Drop a topic for a container; without a topic, all unread messages of the session.

        Messages for other runs stay: without a topic, a run that shares the session loses only the
        delivered messages that are kept in case it repeats a pop.
        """
        ptp, form = _read_headers(request)
        # Not from the cache, as another run may have begun within the last second.
        member = await anyio.to_thread.run_sync(
            self._parts.run_of,
            _claim_of(request, ptp),
            limiter=self._address_threads,
        )
        ask = await self._read_ask(request, ptp, form)
        reader = _reader_of(member)
        if ask.topic is None and member.shares_session:
            await self._broker.forget_retained(ptp.session, reader=reader)
        else:
            await self._broker.release(
                ptp.session,
                ask.topic,
                reader=reader,
                run=member.run,
            )
        return responses.success(form)

    async def _read_ask(
        self,
        request: Request,
        ptp: Ptp,
        form: Form,
    ) -> Ask:
        """Return the body of a request. A topic in the headers replaces the topic of the body."""
        async with self._bodies.pieces(request) as pieces:
            ask = await self._codec_threads.run(pieces, partial(_decode_ask, form))
        if ptp.topic is not None:
            ask = ask.model_copy(update={"topic": ptp.topic})
        return ask

    async def _member(self, request: Request, ptp: Ptp) -> Member:
        """Return the run that sends a request, and the nodes of the run's job.

        Raises NotAllowed if no run is found, or if the session is not the run's own.
        """
        claim = _claim_of(request, ptp)
        if claim.token:
            return await self._run_of_token(claim)
        # Not cached: another container may get the address of one that has just ended.
        return await anyio.to_thread.run_sync(
            self._parts.run_of, claim, limiter=self._address_threads
        )


def _claim_of(request: Request, ptp: Ptp) -> Claim:
    """Return what a request tells about its run: the token or, without one, the address."""
    if ptp.token:
        return Claim(ptp.session, token=ptp.token)
    address = ""
    if request.client is not None:
        address = request.client.host
    return Claim(ptp.session, address=address)


def _read_headers(request: Request) -> tuple[Ptp, Form]:
    """Return the headers of a request and the form of its body. Raises Invalid."""
    ptp = codec.read_ptp(request.headers.raw)
    return ptp, form_of(request.headers.get("content-type", ""), ptp.topic)


def _decode_ask(form: Form, pieces: list[bytes]) -> Ask:
    """Read the body of a pop, peek or release. Raises Invalid."""
    return codec.decode_ask(b"".join(pieces), form)


def _reader_of(member: Member) -> str:
    """Return the name under which the broker knows a run that reads messages."""
    return short_digest("run", member.run)


def _frame(form: Form, message: Message) -> list[bytes | None]:
    """Return the pieces of a response with a message; each None is a place for its content."""
    metadata = {"x-ptp-source-node-id": message.source, "x-ptp-topic": message.topic}
    return codec.frame(SUCCESS, "success", message.size, metadata, form)


def _response_of(reply: TransportReply, target: str, form: Form) -> Response:
    """Return the response to a container's push, from the reply of the node ``target``.

    Raises ChannelRefused if the target has refused the message.
    """
    if not reply.succeeded:
        raise ChannelRefused(reply.code, f"node {target}: {reply.message}")
    return responses.success(form)


@asynccontextmanager
async def _pause_before_refusal(form: Form) -> AsyncIterator[None]:
    """Wait before the refusal of a pop or peek in the form RAW.

    SecretFlow's client, which uses this form, repeats a refused pop without a pause.
    """
    try:
        yield
    except GatewayError:
        if form is Form.RAW:
            await anyio.sleep(_REFUSAL_PAUSE)
        raise
