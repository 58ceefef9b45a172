"""Sends a container's push to another node's transport, and repeats it until that node has accepted
or refused it.
"""

import re
import ssl
import time
from collections.abc import Callable
from functools import lru_cache

import anyio
import httpx

from adapter.bfia.channel.codec import INVOKE, TransportReply, decode_answer
from adapter.bfia.channel.grpc_client import GrpcConnection, is_grpc
from adapter.bfia.channel.http_client import (
    BadAddress,
    HttpConnections,
    PeerResponse,
    do_nothing,
)
from adapter.bfia.channel.pieces import total_length
from adapter.bfia.connections import Clients
from adapter.bfia.outbound import proxy_of
from adapter.page import first_words
from gateway.domain.volumes import CountVolume, Volume, ignore_volume
from gateway.errors import GatewayError, Invalid, PeerUnreachable
from gateway.links.links import Connector
from gateway.runtime.client_proxies import client_proxy
from gateway.runtime.pacing import Pace, PartnerPacing
from route_table.model import Identity, Route
from route_table.proxies import ProxyFailed

# Codes of the standard's table for transports
BAD_ADDRESS = "E0000000619"
BUFFER_FULL = "E0000000700"
TOO_LARGE = "E0000000413"
UNKNOWN = "E0000000520"

_FIRST_PAUSE = 0.05  # seconds before the first repetition
_LONGEST_PAUSE = 2.0  # the most seconds before a later repetition
_SHORT = 512  # bytes; a shorter response is parsed once, and the result cached
# All codes that transports send; old transports send 0 for a success
_CODE = re.compile(r"E\d{10}|0")


class _NoAnswer(GatewayError):
    """One attempt ended without an answer; the error's text is the cause."""


class Courier:
    """Kept connections to all peers. Belongs to one event loop; close it there."""

    def __init__(
        self,
        links: Connector | None = None,
        count_volume: CountVolume = ignore_volume,
        pacing: PartnerPacing | None = None,
    ) -> None:
        """``links`` opens connections over links; None: this process has none.

        ``count_volume`` counts the bytes of each push that has a response, and of the exchanges of
        the relay, which calls it itself. ``pacing`` of what is sent, also by the relay; None: no
        partner has a limit.
        """
        self._links = links
        self.count_volume = count_volume
        self.pacing = pacing or PartnerPacing()
        self._http: Clients[Identity, HttpConnections] = Clients(self._open_http)
        # Key: the peer's URL, and the TLS identity
        self._grpc: Clients[tuple[str, Identity], GrpcConnection] = Clients(_open_grpc)
        # For the relay (`adapter.bfia.relay`)
        self._relay_clients: Clients[Identity, httpx.AsyncClient] = Clients(self._open_relay_client)

    async def invoke(
        self,
        route: Route,
        body: list[bytes],
        headers: list[tuple[bytes, bytes]],
        retry_for: float,
        path: str = INVOKE,
        may_be_unknown: bool = False,
        session: str = "",
        on_sent: Callable[[], None] = do_nothing,
    ) -> TransportReply:
        """Send a push until the peer answers.

        After a connection failure, HTTP 429 or 5xx, or the code `BUFFER_FULL`, the push is sent
        again: first after a pause of 50 ms, then after pauses that double up to 2 s. No attempt
        begins later than ``retry_for`` seconds from now, but the last one may take as long as the
        route's deadline. Any other answer of the peer is returned, also a refusal; `BUFFER_FULL` is
        returned if the last attempt got it. Raises PeerUnreachable if no attempt got an answer.

        ``may_be_unknown``: the peer may not know the path, so that HTTP 5xx counts as an answer.
        ``session``: the push's, by which pushes take turns where the peer's bandwidth is limited.
        ``on_sent`` is called when an attempt has left for the peer by HTTP.
        """
        pace = self.pacing.of(route.node, session)
        end = time.monotonic() + retry_for
        pause = _FIRST_PAUSE
        while True:
            try:
                reply = await self._try(
                    path,
                    route,
                    body,
                    headers,
                    may_be_unknown,
                    pace,
                    on_sent,
                )
                is_last = time.monotonic() + pause > end
                if reply.code != BUFFER_FULL or is_last:
                    return reply
            except _NoAnswer as error:
                if time.monotonic() + pause > end:
                    raise PeerUnreachable(error.message) from error
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _try(
        self,
        path: str,
        route: Route,
        body: list[bytes],
        headers: list[tuple[bytes, bytes]],
        may_be_unknown: bool,
        pace: Pace | None,
        on_sent: Callable[[], None],
    ) -> TransportReply:
        """Send a push once. Raises _NoAnswer."""
        hop = ""
        if route.via:
            hop = f"next hop {route.via}: "
        size = total_length(body)
        try:
            response = await self._post(path, route, body, headers, pace, on_sent)
        except BadAddress as error:
            return TransportReply(
                code=BAD_ADDRESS,
                message=f"the route's address {route.url!r} cannot be used: {error}",
            )
        except OSError as error:
            raise _NoAnswer(f"{hop}{type(error).__name__}: {error}") from error
        except PeerUnreachable as error:
            raise _NoAnswer(hop + error.message) from error
        volume = Volume(bytes_in=len(response.content), bytes_out=size)
        self.count_volume(route.node, volume)
        is_server_error = response.status >= 500 and not may_be_unknown
        if response.status == 429 or is_server_error:
            raise _NoAnswer(f"{hop}it answered HTTP {response.status}{_reason(response)}")
        if len(response.content) < _SHORT:
            return _read_cached(response)
        return _read(response)

    async def _post(
        self,
        path: str,
        route: Route,
        body: list[bytes],
        headers: list[tuple[bytes, bytes]],
        pace: Pace | None,
        on_sent: Callable[[], None],
    ) -> PeerResponse:
        """Send a push once over HTTP or gRPC. Raises OSError, BadAddress, PeerUnreachable."""
        identity = route.identity
        if is_grpc(route.url):
            connection = self._grpc.get((route.url, identity), identity)
            # gRPC takes one piece; the caller's pieces are replaced, as two copies would stay in
            # memory.
            body[:] = [b"".join(body)]
            if pace is not None:  # gRPC sends the whole body by itself
                await pace.take(len(body[0]))
            return await connection.post(path, body[0], headers, route.deadline)
        connections = self._http.get(identity, identity)
        return await connections.post(
            route.url,
            body,
            headers,
            route.deadline,
            route.server_name,
            path,
            pace,
            on_sent,
        )

    def client(self, identity: Identity) -> httpx.AsyncClient:
        """Return the HTTP client with which the relay (`adapter.bfia.relay`) calls peers.

        Raises PeerUnreachable if the identity's files cannot be used.
        """
        return self._relay_clients.get(identity, identity)

    def _open_http(self, identity: Identity, verify: ssl.SSLContext) -> HttpConnections:
        """Return connections for HTTP under a TLS context, perhaps through the identity's proxy."""
        return HttpConnections(
            verify,
            proxy_of(identity),
            self._links,
            identity,
        )

    def _open_relay_client(self, identity: Identity, verify: ssl.SSLContext) -> httpx.AsyncClient:
        """Return an HTTP client for the relay.

        Raises PeerUnreachable if the password for the identity's proxy cannot be read.
        """
        from adapter.bfia.link_transport import (  # noqa: PLC0415 - httpcore and h2 take 2 MB
            LinkTransport,
        )

        mounts = {}
        if self._links is not None:
            mounts["link://"] = LinkTransport(self._links)
        return httpx.AsyncClient(
            limits=httpx.Limits(
                max_connections=256,
                max_keepalive_connections=64,
                keepalive_expiry=4.0,
            ),
            headers={"accept-encoding": "identity"},
            proxy=_proxy_of_relay(identity),
            trust_env=False,
            verify=verify,
            mounts=mounts,
        )

    async def close(self) -> None:
        """Close every connection."""
        for connections in self._http.clear():
            connections.close()
        for connection in self._grpc.clear():
            await connection.close()
        for client in self._relay_clients.clear():
            await client.aclose()


def _open_grpc(
    key: tuple[str, Identity],
    verify: ssl.SSLContext,
) -> GrpcConnection:
    """Return a connection for gRPC; ``key``: the peer's URL, and the TLS identity."""
    url, identity = key
    return GrpcConnection(url, identity, verify)


def _proxy_of_relay(identity: Identity) -> httpx.Proxy | None:
    """Return the proxy of an identity for the relay's client; None without one.

    Raises PeerUnreachable if the password cannot be read.
    """
    try:
        return client_proxy(proxy_of(identity))
    except ProxyFailed as error:
        raise PeerUnreachable(str(error), delivered=False, reason=error.reason) from error


def _reason(response: PeerResponse) -> str:
    """Return the message of a response with HTTP 429 or 5xx, after a colon; "" if it has none."""
    try:
        reply = decode_answer(response.content, response.content_type)
    except Invalid:
        return ""
    if not reply.message:
        return ""
    return f": {reply.message[:500]}"


@lru_cache(64)  # nearly all responses are the same success
def _read_cached(response: PeerResponse) -> TransportReply:
    """Return a peer's answer; equal responses are parsed once."""
    return _read(response)


def _read(response: PeerResponse) -> TransportReply:
    """Return a peer's answer; `UNKNOWN` for a response without a transport's code."""
    if response.status == 413:
        return TransportReply(code=TOO_LARGE, message="the peer takes no body of this size")
    try:
        reply = decode_answer(response.content, response.content_type)
    except Invalid:
        text = f"the peer answered HTTP {response.status} without a transport response"
        words = first_words(response.content)
        if words:
            text += f"; it says: {words}"
        return TransportReply(code=UNKNOWN, message=text)
    if _CODE.fullmatch(reply.code):
        return reply
    code = reply.code[:40]
    text = f"the peer answered HTTP {response.status}, code {code}: {reply.message[:500]}"
    return TransportReply(code=UNKNOWN, message=text)
