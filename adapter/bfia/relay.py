"""Relays requests between other nodes: control requests, and messages of the channel unparsed.

A request is relayed only if the routes of both its source and its target say ``relay: true``. A
request without a target node is for the node of the institution in ``x-ptp-target-inst-id``. The
request keeps its headers and body, so that the target sees the source. Each relay appends its node
id to the header `PASSED`, which reveals loops. The response that a relay itself gives has a reason
and the relay's node id, so that it cannot be mistaken for the target's response.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from adapter.bfia import relay_wire
from adapter.bfia.channel.bodies import Bodies, announced, turns_of
from adapter.bfia.channel.codec import (
    CHANNEL,
    GRPC,
    INVOKE,
    PART,
    TRANSPORT,
    read_ends,
    read_session,
    read_target_institution,
)
from adapter.bfia.channel.courier import Courier
from adapter.bfia.channel.grpc_client import is_grpc
from adapter.bfia.channel.responses import reply, response_form
from adapter.bfia.connections import compression, sni_extension
from adapter.bfia.outbound import ROUTE_URL
from adapter.bfia.paths import ROOT
from adapter.bfia.peer import LONGEST_CALL
from adapter.bfia.requests import incoming
from gateway.domain.volumes import Volume
from gateway.errors import Invalid, PeerUnreachable
from gateway.runtime.pacing import Pace, PartnerPacing
from route_table.institutions import nodes_of
from route_table.model import Route, RouteTable, UnknownNode

PASSED = "x-relay-path"  # header with the nodes that have relayed a request, separated by commas
MOST_HOPS = 8  # nodes that may relay one request

LARGEST_RESPONSE = 32 * 1024**2  # bytes
_TIMEOUT_SHARE = 0.9  # share of the sender's timeout; the rest is for the response's way back
_SHORTEST_TIMEOUT = 0.05  # seconds, however little time the sender has left
_CONNECT_SECONDS = 3.0  # to open a connection to the target
# Most that a sender may request as its timeout, as a multiple of the route's deadline.
_MAX_TIMEOUT_FACTOR = 3.0
# Begins the text of a relay's own response to a message of the channel.
_RELAY_PREFIX = "relay "
_MOST_WITHIN_DIGITS = 9  # digits of a sender's timeout in milliseconds; a longer one is ignored
_LONGEST_PATH = 4096  # characters of `PASSED` that are read
# Headers of a request that concern one connection only, or that the relay writes itself
_DROPPED_HEADERS = frozenset(
    [
        b"host",
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"x-handed-on",  # `adapter.bfia.channel.peers.HANDED_ON`, for gateways of one node only
        b"accept-encoding",  # the relay's HTTP client requests uncompressed responses
        PASSED.encode(),
        relay_wire.WITHIN.encode(),
    ]
)
# Headers of the target's response that are passed on to the sender
_RESPONSE_HEADERS = (
    "content-type",
    "content-digest",
    "x-auth-sign",
    "signature-input",
    "signature",
)

# Records a refusal. Its arguments: source, target, reason, message.
RecordRefusal = Callable[[str, str, str, str], None]


class RelayRefused(Exception):
    """The request is not relayed, or is relayed without a usable response of the target.

    The reason is one of `relay_wire.RELAY_CODES`.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        delivered: bool | None = None,
    ) -> None:
        """``delivered``: whether a target that gave no usable response may have got the request.

        None if this node has refused to relay the request.
        """
        super().__init__(message)
        self.reason = reason
        self.delivered = delivered

    @property
    def is_silence(self) -> bool:
        """True if the target gave no usable response, or could not be called.

        False if this node has refused to relay the request.
        """
        return self.delivered is not None


class _TooLarge(Exception):
    """The body is over the ``limit`` in bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"this node passes on bodies of at most {limit} bytes")


@dataclass(frozen=True)
class _Transit:
    """A request for another node."""

    request: Request
    source: str
    target: str  # "" if the request names only an institution
    institution: str  # "" unless the request names only an institution
    by_channel: bool  # True: a message of the channel; False: a control request

    @property
    def passed(self) -> tuple[str, ...]:
        """The nodes that have relayed the request before."""
        path = ",".join(self.request.headers.getlist(PASSED))
        names = [name.strip() for name in path[:_LONGEST_PATH].split(",")]
        return tuple(name for name in names if name)

    @property
    def has_body(self) -> bool:
        """True if a body follows the headers."""
        if self.request.scope["http_version"] == GRPC:
            return True  # a message by gRPC always has a body, and no header that announces it
        headers = self.request.headers
        has_length = headers.get("content-length", "0") != "0"
        return has_length or "transfer-encoding" in headers

    def timeout(self, route: Route) -> float:
        """Return the seconds to wait for the target.

        They are fewer than the sender's own, so that this node can still report to the sender that
        the target does not respond.
        """
        if self.by_channel:
            return route.deadline * _TIMEOUT_SHARE
        usual = min(route.deadline, LONGEST_CALL)
        within = self.request.headers.get(relay_wire.WITHIN, "")
        is_number = within.isascii() and within.isdigit()
        if not is_number or len(within) > _MOST_WITHIN_DIGITS:
            return usual * _TIMEOUT_SHARE
        seconds = min(int(within) / 1000, _MAX_TIMEOUT_FACTOR * usual)
        return max(seconds * _TIMEOUT_SHARE, _SHORTEST_TIMEOUT)

    def url(self, route: Route) -> str:
        """Return the request's URL at the target, with path and query as they were received."""
        scope = self.request.scope
        raw_path = scope.get("raw_path", b"").decode("latin-1")
        path = (raw_path or self.request.url.path).partition("?")[0]
        query = scope.get("query_string", b"").decode("latin-1")
        if query:
            path += f"?{query}"
        return route.url + path

    def headers(
        self,
        me: str,
        seconds: float,
    ) -> list[tuple[bytes, bytes]]:
        """Return the headers for the target, with this node as the last relay.

        ``seconds``: the time for the response.
        """
        headers = []
        for name, value in self.request.headers.raw:
            if name.lower() not in _DROPPED_HEADERS:
                headers.append((name, value))
        passed = ",".join((*self.passed, me))
        headers.append((PASSED.encode(), passed.encode("latin-1", "replace")))
        if not self.by_channel:
            milliseconds = str(int(seconds * 1000))
            headers.append((relay_wire.WITHIN.encode(), milliseconds.encode()))
        return headers


class _Sent:
    """The number of bytes of a body that were sent on, in their turns."""

    def __init__(self, pace: Pace | None) -> None:
        """``pace`` None: the bytes do not wait for turns."""
        self.bytes = 0
        self._pace = pace

    async def count(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the pieces of a body in their turns, and count their bytes."""
        async for piece in body:
            if self._pace is not None:
                await self._pace.take(len(piece))
            self.bytes += len(piece)
            yield piece


def _is_between_nodes(scope: Scope) -> bool:
    """True for a request at a path between nodes, unless a ``..`` may lead elsewhere."""
    if scope["type"] != "http":
        return False
    path: str = scope["path"]
    return path.startswith(f"{ROOT}/") and ".." not in path.split("/")


def _ends_of(
    request: Request,
    by_channel: bool,
) -> tuple[str, str] | None:
    """Return source and target of a request; "" for an absent one.

    None for a path of the channel that is not for other nodes, or for a message of the channel
    whose headers name different sources or targets.
    """
    if not by_channel:
        call = incoming(request)
        return call.source, call.target
    if not _is_message(request):
        return None
    return read_ends(request.headers.raw)


def _is_message(request: Request) -> bool:
    """True for a message of the channel, whole or in part.

    ``chan/transport`` over gRPC begins a stream of messages, which is never relayed.
    """
    path = request.scope["path"]
    if path == TRANSPORT:
        return bool(request.scope["http_version"] != GRPC)
    return path in (INVOKE, PART)


class Relay:
    """ASGI layer around the application for peers, which gets only the requests for this node."""

    def __init__(
        self,
        app: ASGIApp,
        node: str,
        institution: str,
        table: Callable[[], RouteTable],
        courier: Courier,
        control_limit: int,
        channel_limit: int,
        record_refusal: RecordRefusal,
        incoming: PartnerPacing | None = None,
    ) -> None:
        """``incoming``: the pace of what arrives; None: no partner has a limit.

        ``table`` returns the current routes; ``record_refusal`` records each refusal.

        ``node`` and ``institution`` are this node's.
        ``control_limit`` and ``channel_limit``: bytes of the largest body of a control request, and
        of a message of the channel.
        """
        self._app = app
        self._node = node
        self._own_institutions = ("", institution, node)
        self._table = table
        self._courier = courier
        self._control_limit = control_limit
        self._channel_limit = channel_limit
        self._record_refusal = record_refusal
        # For the slots and the pace of bodies; `_bounded` checks the size.
        self._bodies = Bodies(
            max(control_limit, channel_limit),
            turns_of=partial(turns_of, incoming or PartnerPacing()),
        )

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Pass requests for this node to the application; relay or refuse those for other nodes."""
        transit = self._transit(scope, receive)
        if transit is None:
            await self._app(scope, receive, send)
            return
        response = await self._respond(transit)
        await response(scope, receive, send)

    def _transit(self, scope: Scope, receive: Receive) -> _Transit | None:
        """Return a request that is addressed to another node; None for any other."""
        if not _is_between_nodes(scope):
            return None
        request = Request(scope, receive)
        by_channel = scope["path"].startswith(CHANNEL)
        ends = _ends_of(request, by_channel)
        if ends is None:
            return None
        source, target = ends
        institution = ""
        if not target:
            institution = read_target_institution(request.headers.raw)
        if target in ("", self._node) and institution in self._own_institutions:
            return None
        return _Transit(request, source, target, institution, by_channel)

    async def _respond(self, transit: _Transit) -> Response:
        """Return the target's response, or this node's own if the target gave none."""
        try:
            return await self._relay(transit)
        except RelayRefused as error:
            if not error.is_silence:
                await anyio.to_thread.run_sync(
                    self._record_refusal, transit.source, transit.target, error.reason, str(error)
                )
            return self._refusal(error, transit)
        except _TooLarge as error:
            return Response(str(error), 413)
        except Invalid as error:  # the body arrives too slowly
            return Response(str(error), 408)
        except ClientDisconnect:
            return Response(status_code=400)

    async def _relay(self, transit: _Transit) -> Response:
        """Send the request on.

        Raises `RelayRefused`, `_TooLarge`, `Invalid` for a stalled body, ClientDisconnect.
        """
        table = self._table()
        target = transit.target or _node_of(table, transit.institution)
        route = relay_route(
            table,
            self._node,
            transit.source,
            target,
            transit.passed,
        )
        if transit.by_channel:
            route = route.channel
        if is_grpc(route.url):
            text = f"{self._node} passes on by HTTP only, and the route says gRPC"
            raise RelayRefused(relay_wire.RELAY_NO_ROUTE, text)
        slots_of_source = self._bodies.slots("relayed of one node", transit.source)
        slots_of_all = self._bodies.slots("relayed")
        async with slots_of_source, slots_of_all:
            return await self._send(transit, route, (slots_of_source, slots_of_all))

    async def _send(
        self,
        transit: _Transit,
        route: Route,
        slots: tuple[anyio.Semaphore, ...],
    ) -> Response:
        """Send a request on; return the target's response.

        ``slots``: the semaphores whose slots the request holds; a slow body is refused while others
        wait for them. Raises the errors of `_relay`.
        """
        seconds = transit.timeout(route)
        total: float | None = seconds
        limit = self._control_limit
        if transit.by_channel:
            # A message may be large: only each pause is limited, by httpx's timeout.
            total = None
            limit = self._channel_limit
        if (announced(transit.request) or 0) > limit:
            raise _TooLarge(limit)
        body = None
        if transit.has_body:
            body = _bounded(self._bodies.stream(transit.request, *slots), limit)
        node = _name_with_hop(route)
        try:
            with anyio.fail_after(total):
                return await self._request(transit, route, body, seconds)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise _target_failed(
                f"node {node} cannot be connected to: {error}", delivered=False
            ) from error
        except PeerUnreachable as error:
            raise _target_failed(
                f"node {node} is not called: {error.message}", delivered=False
            ) from error
        except TimeoutError as error:
            raise _target_failed(f"node {node} gave no answer within {seconds:.1f} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _target_failed(
                f"node {node} gave no answer: {type(error).__name__} {error}"
            ) from error

    async def _request(
        self,
        transit: _Transit,
        route: Route,
        body: AsyncIterator[bytes] | None,
        seconds: float,
    ) -> Response:
        """Exchange a request with the target; return its response.

        Raises httpx's errors, `RelayRefused`.
        """
        client = self._courier.client(route.identity)
        sent = _Sent(self._pace(transit, route))
        if body is not None:
            body = sent.count(body)
        connect = min(_CONNECT_SECONDS, seconds)
        request = client.stream(
            transit.request.method,
            transit.url(route),
            content=body,
            headers=transit.headers(self._node, seconds),
            timeout=httpx.Timeout(
                seconds,
                connect=connect,
                pool=connect,
            ),
            extensions={**sni_extension(route.identity), ROUTE_URL: route.url},
        )
        async with request as response:
            copy = await _copy(response, f"node {_name_with_hop(route)}")
        volume = Volume(bytes_in=len(copy.body), bytes_out=sent.bytes)
        self._courier.count_volume(route.node, volume)
        if not transit.by_channel:
            self._courier.pacing.charge(route.node, sent.bytes)
        return copy

    def _pace(self, transit: _Transit, route: Route) -> Pace | None:
        """Return the pace of a request to its target; None if it does not wait for turns."""
        if not transit.by_channel:
            return None
        session = read_session(transit.request.headers.raw)
        return self._courier.pacing.of(route.node, session, transit.source)

    def _refusal(self, error: RelayRefused, transit: _Transit) -> Response:
        """Return this node's own response to a control request or to a message of the channel."""
        code, channel_code = relay_wire.RELAY_CODES[error.reason]
        message = f"{error.reason}: {error}"
        data: dict[str, Any] = {
            "reason": error.reason,
            "relay": self._node,
        }
        status = 200  # of HTTP; the code in the body tells the refusal
        if error.is_silence:
            data["delivered"] = error.delivered
            status = 503
        if transit.by_channel:
            form = response_form(transit.request.headers.raw)
            return reply(channel_code, f"{_RELAY_PREFIX}{self._node}: {message}", form, status)
        body = {
            "code": code,
            "msg": message,
            "data": data,
        }
        return JSONResponse(body, status_code=status)


def _node_of(table: RouteTable, institution: str) -> str:
    """Return the one node of an institution. Raises `RelayRefused` for none, and for several."""
    nodes = nodes_of(table, institution)
    if not nodes:
        text = f"no route here names institution {institution}: send the target's node id"
        raise RelayRefused(relay_wire.INSTITUTION_UNKNOWN, text)
    if len(nodes) > 1:
        text = f"institution {institution} has several nodes: send the target's node id"
        raise RelayRefused(relay_wire.INSTITUTION_AMBIGUOUS, text)
    return nodes[0]


def relay_route(
    table: RouteTable,
    me: str,
    source: str,
    target: str,
    passed: tuple[str, ...],
) -> Route:
    """Return the route on which a request is relayed.

    ``me`` is this node; ``passed`` are the nodes that have relayed the request before. Raises
    `RelayRefused` for a loop, for too many hops, without a route, and if the routes of source and
    target do not both allow relaying.
    """
    if source == me or me in passed:
        hops = " via ".join((source, *passed[:MOST_HOPS], me))
        raise RelayRefused(
            relay_wire.RELAY_LOOP, f"the request for {target} came back to {me}: {hops}"
        )
    if len(passed) >= MOST_HOPS:
        text = f"the request for {target} was passed on by {len(passed)} nodes already"
        raise RelayRefused(relay_wire.RELAY_TOO_FAR, text)
    may_relay = table.knows(source) and table.routes[source].relay
    if not may_relay:
        name = source or "(none named)"
        text = f"{me} is not {target}, and passes on nothing of node {name}"
        raise RelayRefused(relay_wire.RELAY_NOT_ALLOWED, text)
    route = _resolve(table, me, target)
    if route.via in (source, *passed):
        text = f"{me} would send the request for {target} back to {route.via}, where it came from"
        raise RelayRefused(relay_wire.RELAY_LOOP, text)
    return route


def _resolve(table: RouteTable, me: str, target: str) -> Route:
    """Return the route to the target.

    Raises `RelayRefused` if there is no route, or if the route does not allow relaying.
    """
    try:
        route = table.resolve(target)
    except UnknownNode as error:
        raise RelayRefused(relay_wire.RELAY_NO_ROUTE, f"{me} cannot pass on: {error}") from error
    if not route.relay:
        text = f"{me} is not {target}, and passes on nothing for that node"
        raise RelayRefused(relay_wire.RELAY_NOT_ALLOWED, text)
    return route


def _target_failed(message: str, delivered: bool = True) -> RelayRefused:
    """Return the error for a target that gave no usable response.

    ``delivered``: whether the target may have got the request.
    """
    return RelayRefused(relay_wire.TARGET_UNREACHABLE, message, delivered)


def _name_with_hop(route: Route) -> str:
    """Return the target's node id, followed by the next hop if the route has one."""
    if route.via:
        return f"{route.node}, through {route.via},"
    return route.node


async def _bounded(
    body: AsyncGenerator[bytes],
    limit: int,
) -> AsyncIterator[bytes]:
    """Yield the chunks of a body. Raises `_TooLarge` for more than ``limit`` bytes."""
    size = 0
    async with aclosing(body):
        async for chunk in body:
            size += len(chunk)
            if size > limit:
                raise _TooLarge(limit)
            if chunk:
                yield chunk


async def _copy(response: httpx.Response, target: str) -> Response:
    """Return a copy of the target's response for the sender.

    Raises `RelayRefused` if the response is compressed or too large. Also raises it for an HTTP
    status from 500 on, unless the response is that of a further relay.
    """
    coding = compression(response.headers)
    if coding:
        text = f"{target} answers in the content-encoding {coding}, which was not asked for"
        raise _target_failed(text)
    content = await _read(response, target)
    if response.status_code >= 500 and not _is_of_relay(content):
        raise _target_failed(f"{target} answers HTTP {response.status_code}")
    copy = Response(content, response.status_code, media_type="application/json")
    for name in _RESPONSE_HEADERS:
        if name in response.headers:
            copy.headers[name] = response.headers[name]
    return copy


async def _read(response: httpx.Response, target: str) -> bytes:
    """Return the body of the target's response. Raises `RelayRefused` if it is too large."""
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > LARGEST_RESPONSE:
            raise _target_failed(f"{target} answers with more than {LARGEST_RESPONSE} bytes")
    return bytes(content)


def _is_of_relay(content: bytes) -> bool:
    """True for a response that a further relay gave instead of the target: it is passed on."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        return False
    if not isinstance(fields, dict):
        return False
    is_control_response = relay_wire.relay_response(fields) is not None
    return is_control_response or str(fields.get("message", "")).startswith(_RELAY_PREFIX)
