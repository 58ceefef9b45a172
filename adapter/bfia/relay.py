"""Relays what other nodes address to others: control requests and messages of the channel, not parsed.

Nothing is passed on unless the routes of both ends say ``relay: true``. What is passed on keeps its headers and
its body, so that the target sees who asks; every relay adds itself to `PASSED`, by which a circle is noticed. A
relay's own answer says so by its reason and its name, and is never taken for the target's.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import anyio
import anyio.to_thread
import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from adapter.bfia import peer
from adapter.bfia.channel.bodies import Bodies, announced
from adapter.bfia.channel.calls import by_grpc
from adapter.bfia.channel.codec import CHANNEL, GRPC, INVOKE, PART, read_ends
from adapter.bfia.channel.courier import Courier
from adapter.bfia.channel.responses import form_for, reply
from adapter.bfia.connections import asked_name, packed
from adapter.bfia.requests import incoming
from gateway.errors import Invalid, PeerUnreachable
from route_table.model import Route, RouteTable, UnknownNode

BETWEEN_NODES = "/v1/interconn/"
PASSED = "x-relay-path"
"""the nodes that have passed a request on so far, separated by commas"""
MOST_HOPS = 8
"""nodes that may pass one request on"""

_LARGEST_RESPONSE = 32 * 1024**2
_SHARE = 0.9
"""of the time that the sender waits: what is left is for the response's way back"""
_CONNECT_SECONDS = 3.0
_MOST_PATIENT = 3.0
"""times a route's own deadline that a sender may have a silent target waited for"""
_OWN_WORDS = "relay "
"""how the message of a relay's own transport response begins"""
_NOT_PASSED = frozenset(
    b"host connection keep-alive proxy-connection te trailer transfer-encoding upgrade x-handed-on "
    b"accept-encoding".split()
) | {PASSED.encode(), peer.WITHIN.encode()}

_ANSWERED = ("content-type", "content-digest", "x-auth-sign", "signature-input", "signature")
"""headers of the target's answer that are passed on"""

Refusal = Callable[[str, str, str, str], None]
"""gets each refusal: source, target, reason, message"""


class Refused(Exception):
    """Is not relayed; the reason is one of `RELAY_CODES`."""

    def __init__(
        self,
        reason: str,
        message: str,
        delivered: bool | None = None,
    ) -> None:
        """``delivered``: whether a silent target can have got the request; None for other reasons."""
        super().__init__(message)
        self.reason = reason
        self.delivered = delivered


class _TooLarge(Exception):
    """The body is over the limit."""


class Relay:
    """Stands before the application for peers, which serves what is for this node."""

    def __init__(
        self,
        app: ASGIApp,
        node: str,
        table: Callable[[], RouteTable],
        courier: Courier,
        limits: tuple[int, int],
        refused: Refusal,
    ) -> None:
        """``table`` gives the routes in force; ``limits`` are the largest bodies of control and channel."""
        self._app = app
        self._node = node
        self._table = table
        self._courier = courier
        self._limits = limits
        self._refused = refused
        self._bodies = Bodies(max(limits))

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Serve what is for this node, pass on what its routes allow, refuse the rest."""
        path = scope.get("path", "")
        if scope["type"] != "http" or not path.startswith(BETWEEN_NODES) or ".." in path.split("/"):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        channel = path.startswith(CHANNEL)
        call = incoming(request)
        ends = read_ends(request.headers.raw) if channel else (call.source, call.target)
        if ends is None or ends[1] in ("", self._node) or (channel and path not in (INVOKE, PART)):
            await self._app(scope, receive, send)
            return
        source, target = ends
        try:
            route = judge(self._table(), self._node, source, target, _passed(request))
            route = route.channel if channel else route
            if by_grpc(route.url):
                raise Refused(
                    "RELAY_NO_ROUTE",
                    f"{self._node} passes on by HTTP only, and the route says gRPC",
                )
            places = (
                self._bodies.places("relayed of one node", source),
                self._bodies.places("relayed"),
            )
            async with places[0], places[1]:
                answer = await self._pass_on(request, route, channel, places)
        except Refused as error:
            if error.delivered is None:
                await anyio.to_thread.run_sync(
                    self._refused, source, target, error.reason, str(error)
                )
            answer = self._refusal(error, request, channel)
        except _TooLarge:
            answer = Response("the body is larger than this node passes on", 413)
        except Invalid as error:
            answer = Response(str(error), 408)
        except ClientDisconnect:
            answer = Response(status_code=400)
        await answer(scope, receive, send)

    async def _pass_on(
        self,
        request: Request,
        route: Route,
        channel: bool,
        places: tuple[anyio.Semaphore, ...],
    ) -> Response:
        seconds = _timeout(request, route, channel)
        limit = self._limits[channel]
        if (announced(request) or 0) > limit:
            raise _TooLarge
        target = f"node {route.node}" + (f", through {route.via}," if route.via else "")
        within = None if channel else seconds  # a large message takes its time
        try:
            with anyio.fail_after(within):
                client = self._courier.to(route.identity)
                connect = min(_CONNECT_SECONDS, seconds)
                async with client.stream(
                    request.method,
                    _url(request, route),
                    content=_bounded(self._bodies.paced(request, *places), limit)
                    if _has_body(request)
                    else None,
                    headers=self._headers(request, seconds, channel),
                    timeout=httpx.Timeout(seconds, connect=connect, pool=connect),
                    extensions=asked_name(route.identity),
                ) as response:
                    return await _copied(response, target)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise _silent(f"{target} cannot be connected to: {error}", delivered=False) from error
        except PeerUnreachable as error:
            raise _silent(f"{target} is not called: {error.message}", delivered=False) from error
        except TimeoutError as error:
            raise _silent(f"{target} gave no answer within {seconds:.1f} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _silent(f"{target} gave no answer: {type(error).__name__} {error}") from error

    def _headers(
        self,
        request: Request,
        seconds: float,
        channel: bool,
    ) -> list[tuple[bytes, bytes]]:
        kept = [
            (name, value) for name, value in request.headers.raw if name.lower() not in _NOT_PASSED
        ]
        way = ",".join((*_passed(request), self._node))
        kept.append((PASSED.encode(), way.encode("latin-1", "replace")))
        if not channel:
            kept.append((peer.WITHIN.encode(), str(int(seconds * 1000)).encode()))
        return kept

    def _refusal(
        self,
        error: Refused,
        request: Request,
        channel: bool,
    ) -> Response:
        code, ptp_code = peer.RELAY_CODES[error.reason]
        message, node = f"{error.reason}: {error}", self._node
        status = 200 if error.delivered is None else 503
        if channel:
            return reply(
                ptp_code, f"{_OWN_WORDS}{node}: {message}", form_for(request.headers.raw), status
            )
        data: dict[str, Any] = {"reason": error.reason, "relay": node}
        if error.delivered is not None:
            data["delivered"] = error.delivered
        return JSONResponse(
            {
                "code": code,
                "msg": message,
                "data": data,
            },
            status_code=status,
        )


def _silent(message: str, delivered: bool = True) -> Refused:
    return Refused(peer.TARGET_UNREACHABLE, message, delivered)


def judge(
    table: RouteTable,
    me: str,
    source: str,
    target: str,
    way: tuple[str, ...],
) -> Route:
    """Return the route on which a request is passed on; ``way`` are the nodes that have passed it on before.

    Raises `Refused`.
    """
    if source == me or me in way:
        shown = " via ".join((source, *way[:MOST_HOPS], me))
        raise Refused(peer.RELAY_LOOP, f"the request for {target} came back to {me}: {shown}")
    if len(way) >= MOST_HOPS:
        raise Refused(
            "RELAY_TOO_FAR", f"the request for {target} was passed on by {len(way)} nodes already"
        )
    if not table.knows(source) or not table.routes[source].relay:
        name = source or "(none named)"
        raise Refused(
            peer.RELAY_NOT_ALLOWED, f"{me} is not {target}, and passes on nothing of node {name}"
        )
    try:
        route = table.resolve(target)
    except UnknownNode as error:
        raise Refused("RELAY_NO_ROUTE", f"{me} cannot pass on: {error}") from error
    if not route.relay:
        raise Refused(
            peer.RELAY_NOT_ALLOWED, f"{me} is not {target}, and passes on nothing for that node"
        )
    if route.via in (source, *way):
        raise Refused(
            peer.RELAY_LOOP,
            f"{me} would send the request for {target} back to {route.via}, where it came from",
        )
    return route


def _passed(request: Request) -> tuple[str, ...]:
    path = ",".join(request.headers.getlist(PASSED))
    return tuple(name for part in path[:4096].split(",") if (name := part.strip()))


def _timeout(
    request: Request,
    route: Route,
    channel: bool,
) -> float:
    """Return how long the target's answer is waited for, so that the sender still hears of its silence."""
    own = route.deadline if channel else min(route.deadline, peer.LONGEST_CALL)
    within = request.headers.get(peer.WITHIN, "")
    if channel or not (within.isascii() and within.isdigit()) or len(within) > 9:
        return own * _SHARE
    return max(min(int(within) / 1000, _MOST_PATIENT * own) * _SHARE, 0.05)


def _has_body(request: Request) -> bool:
    headers = request.headers
    by_length = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    return by_length or request.scope["http_version"] == GRPC


async def _bounded(body: AsyncGenerator[bytes], limit: int) -> AsyncIterator[bytes]:
    size = 0
    async with aclosing(body):
        async for chunk in body:
            size += len(chunk)
            if size > limit:
                raise _TooLarge
            if chunk:
                yield chunk


def _url(request: Request, route: Route) -> str:
    query = request.scope.get("query_string", b"").decode("latin-1")
    path = request.scope.get("raw_path", b"").decode("latin-1") or request.url.path
    return route.url + path.partition("?")[0] + (f"?{query}" if query else "")


async def _copied(response: httpx.Response, target: str) -> Response:
    if coding := packed(response.headers):
        raise _silent(f"{target} answers in the content-encoding {coding}, which was not asked for")
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > _LARGEST_RESPONSE:
            raise _silent(f"{target} answers with more than {_LARGEST_RESPONSE} bytes")
    if response.status_code >= 500 and not _of_relay(bytes(content)):
        raise _silent(f"{target} answers HTTP {response.status_code}")
    answer = Response(bytes(content), response.status_code, media_type="application/json")
    answer.headers.update(
        {name: response.headers[name] for name in _ANSWERED if name in response.headers}
    )
    return answer


def _of_relay(content: bytes) -> bool:
    """Tell whether an answer is a relay's own, so that it already says whose silence it tells of."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        return False
    if not isinstance(fields, dict):
        return False
    return peer.relayed(fields) is not None or str(fields.get("message", "")).startswith(_OWN_WORDS)
