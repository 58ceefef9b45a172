"""Posts to peers over HTTP/1.1 connections that are kept for further requests.

A request takes a twentieth of the time of the same request by a general HTTP client (ADR 33).
"""

import asyncio
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from adapter.bfia.channel.pieces import total_length
from adapter.bfia.connections import ResponseReader, leads_over_link, request_head
from adapter.bfia.kept import idle_seconds
from adapter.bfia.outbound import open_socket
from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.links.links import Connector, WithoutLinks
from gateway.runtime.pacing import Pace
from route_table.model import NO_IDENTITY, Identity
from route_table.proxies import Proxy

_MOST = 256  # the most connections to one peer at the same time
_KEPT = _MOST  # the most idle connections that are kept to one peer
_CONNECT_SECONDS = 5.0  # to open a connection, TLS handshake included
_SLICE = 1 << 18  # bytes that are sent or read together
_MOST_UNSENT = 1 << 17  # bytes of a request that wait in the kernel
_LARGEST_RESPONSE = 1 << 20  # bytes of a response's body; more is not read
_DEFAULT_PORT = {"http": 80, "https": 443, "link": 0}
_IS_SECURE = {"http": False, "https": True, "link": False}


def do_nothing() -> None:
    """Do nothing when a request was sent."""


class BadAddress(ValueError):
    """An address that cannot be used."""


class PeerResponse(NamedTuple):
    """A peer's response: the status, the Content-Type, and the beginning of the body."""

    status: int
    content_type: str
    content: bytes


class Origin(NamedTuple):
    """The other end of a connection."""

    url: str  # the peer's, without the path of the request: a link may serve it
    host: str
    port: int
    secure: bool  # True: TLS
    name: str | None  # the name in the peer's certificate; None: the host


class _Url(NamedTuple):
    """The parts of an address."""

    host: str
    port: int
    secure: bool  # True: TLS
    netloc: bytes  # host and port as the address writes them, for the Host header
    path: bytes


class HttpConnections:
    """Connections to all peers under one TLS context.

    They belong to one event loop; call `close` there.
    """

    def __init__(
        self,
        verify: ssl.SSLContext,
        proxy: Proxy | None = None,
        links: Connector | None = None,
        identity: Identity = NO_IDENTITY,
    ) -> None:
        """``links`` opens connections over links; None: this process has none.

        ``identity``: the way to the peers, with the files of the TLS context and the proxy.
        """
        self._verify = verify
        self._proxy = proxy
        self._links = links or WithoutLinks()
        self._identity = identity
        self._slots: defaultdict[Origin, asyncio.Semaphore] = defaultdict(_connection_slots)
        self._idle: defaultdict[Origin, list[_Connection]] = defaultdict(list)
        self._closed = False

    async def post(
        self,
        url: str,
        body: list[bytes],
        headers: list[tuple[bytes, bytes]],
        seconds: float,
        name: str | None = None,
        path: str = "",
        pace: Pace | None = None,
        on_sent: Callable[[], None] = do_nothing,
    ) -> PeerResponse:
        """Send a body, which is in pieces, to a path below a URL, and return the response.

        ``pace`` None: the peer's bandwidth has no limit.

        ``seconds`` is the longest pause of the peer; ``name`` is the name in the peer's
        certificate, None: the host. ``on_sent`` is called when the request has left for the peer.
        Raises BadAddress, Invalid for a header with control characters, and OSError (also a
        TimeoutError) if no complete response arrives.
        """
        parsed = _parse_url(url + path)
        size = total_length(body)
        if pace is not None:  # the peer must not see a request that waits for its turn
            await pace.take(min(size, pace.slice_bytes))
        origin = Origin(url, parsed.host, parsed.port, parsed.secure, name)
        async with self._slots[origin]:
            connection = self._take_idle(origin)
            if connection is None:
                connection = await self._connect(origin, min(_CONNECT_SECONDS, seconds))
            try:
                if connection.leads_over_link:  # the path in the address is for a reverse proxy
                    parsed = parsed._replace(path=path.encode("ascii"))
                head = _head(parsed, headers, size)
                response = await connection.post(head, body, seconds, pace, on_sent)
            except BaseException:
                connection.close()
                raise
            self._keep_or_close(origin, connection)
            return response

    def _take_idle(self, origin: Origin) -> "_Connection | None":
        """Return the most recent idle connection that is usable; None if there is none."""
        idle = self._idle[origin]
        while idle:
            connection = idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        return None

    def _keep_or_close(self, origin: Origin, connection: "_Connection") -> None:
        """Keep a connection for further requests if it can take them."""
        idle = self._idle[origin]
        has_room = not self._closed and len(idle) < _KEPT
        if connection.reusable and has_room:
            idle.append(connection)
        else:
            connection.close()

    async def _connect(self, origin: Origin, seconds: float) -> "_Connection":
        """Open a connection, over a link if one serves the address.

        Raises OSError, also a TimeoutError after ``seconds``.
        """
        over_link = self._links.connect(origin.url, self._identity)
        if over_link is not None:
            reader, writer = await asyncio.open_connection(sock=over_link, limit=_SLICE)
            return _Connection(reader, writer)
        context = None
        name = None
        if origin.secure:
            context = self._verify
            name = origin.name or origin.host
        async with asyncio.timeout(seconds):
            if self._proxy is None:
                reader, writer = await asyncio.open_connection(
                    origin.host,
                    origin.port,
                    limit=_SLICE,
                    ssl=context,
                    server_hostname=name,
                )
            else:
                tunnel = await asyncio.to_thread(
                    open_socket,
                    origin.host,
                    origin.port,
                    seconds,
                    self._proxy,
                )
                reader, writer = await asyncio.open_connection(
                    sock=tunnel,
                    limit=_SLICE,
                    ssl=context,
                    server_hostname=name,
                )
        _limit_unsent(writer)
        return _Connection(reader, writer)

    def close(self) -> None:
        """Close idle connections; a connection in use is closed after its request."""
        self._closed = True
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()


def _connection_slots() -> asyncio.Semaphore:
    """Return the slots for connections to one peer."""
    return asyncio.Semaphore(_MOST)


def _limit_unsent(writer: asyncio.StreamWriter) -> None:
    """Have writes wait until the kernel has sent nearly all bytes.

    Otherwise a request would seem sent while most of it waits for a long line.
    """
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MOST_UNSENT)


class _Connection:
    """One connection, which carries one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._usable_until = 0.0  # by the monotonic clock
        self.leads_over_link = leads_over_link(writer.get_extra_info("socket"))
        self.reusable = False  # True once a complete exchange allows a further request

    def is_usable(self) -> bool:
        """True if the peer has probably not closed the idle connection."""
        is_fresh = time.monotonic() < self._usable_until
        return is_fresh and not self._reader.at_eof()

    def close(self) -> None:
        """Close the connection immediately."""
        self._writer.transport.abort()

    async def post(
        self,
        head: bytes,
        pieces: list[bytes],
        seconds: float,
        pace: Pace | None = None,
        on_sent: Callable[[], None] = do_nothing,
    ) -> PeerResponse:
        """Send a request and return its response; the peer may pause for ``seconds``.

        ``pace``: of the body, whose first slice may pass already. ``on_sent`` is called before the
        response is read. Raises OSError, also a TimeoutError.
        """
        self.reusable = False
        response = ResponseReader(_LARGEST_RESPONSE)
        async with asyncio.timeout(seconds) as deadline:
            is_sent = await self._send(head, pieces, seconds, deadline, pace)
            on_sent()
            while not response.complete:
                data = await self._reader.read(_SLICE)
                _extend(deadline, seconds)
                response.feed(data)
        self._usable_until = time.monotonic() + idle_seconds(response.headers)
        self.reusable = is_sent and response.keep
        content_type = response.headers.get("content-type", "")
        return PeerResponse(response.status, content_type, bytes(response.content))

    async def _send(
        self,
        head: bytes,
        pieces: list[bytes],
        seconds: float,
        deadline: asyncio.Timeout,
        pace: Pace | None,
    ) -> bool:
        """Send a request; return True if it was sent completely.

        False if the peer closed the connection before the end of the request, as it may after a
        refusal; the response can still be read.
        """
        is_paced = pace is not None and total_length(pieces) > pace.slice_bytes
        if (
            total_length(pieces) <= _SLICE and not is_paced
        ):  # short enough for the writer's buffer: no `drain`
            self._writer.write(b"".join([head, *pieces]))
            return True
        try:
            self._writer.write(head)
            if pace is not None:
                await self._send_paced(pieces, seconds, deadline, pace)
                return True
            for piece in pieces:
                view = memoryview(piece)
                for begin in range(0, len(piece), _SLICE):
                    self._writer.write(view[begin : begin + _SLICE])
                    await self._writer.drain()
                    _extend(deadline, seconds)
        except ConnectionError:
            return False
        return True

    async def _send_paced(
        self,
        pieces: list[bytes],
        seconds: float,
        deadline: asyncio.Timeout,
        pace: Pace,
    ) -> None:
        """Send a body slice by slice, each in its turn; the first slice has had its turn.

        Waiting for a turn does not count as a pause of the peer. Raises ConnectionError.
        """
        unsent = total_length(pieces)
        allowed = pace.slice_bytes
        for piece in pieces:
            view = memoryview(piece)
            while view:
                if not allowed:
                    deadline.reschedule(None)
                    allowed = min(unsent, pace.slice_bytes)
                    await pace.take(allowed)
                    _extend(deadline, seconds)
                data = view[:allowed]
                view = view[allowed:]
                allowed -= len(data)
                unsent -= len(data)
                self._writer.write(data)
                await self._writer.drain()
                _extend(deadline, seconds)


def _extend(deadline: asyncio.Timeout, seconds: float) -> None:
    """Move the deadline of a request to ``seconds`` from now."""
    deadline.reschedule(asyncio.get_running_loop().time() + seconds)


@lru_cache(1024)
def _parse_url(url: str) -> _Url:
    """Return the parts of an address. Raises BadAddress."""
    try:
        parts = urlsplit(url)
        secure = _IS_SECURE[parts.scheme]
        port = parts.port or _DEFAULT_PORT[parts.scheme]
        host = parts.hostname or ""
        _, _, netloc = parts.netloc.rpartition("@")
        parsed = _Url(
            host,
            port,
            secure,
            netloc.encode("ascii"),
            parts.path.encode("ascii"),
        )
    except (KeyError, ValueError) as error:
        raise BadAddress(str(error)) from error
    if not host:
        raise BadAddress("it names no host")
    return parsed


def _head(
    url: _Url,
    headers: list[tuple[bytes, bytes]],
    size: int,
) -> bytes:
    """Return the head of a request. Raises Invalid for control characters."""
    all_headers = [(b"accept", b"*/*"), *headers]
    try:
        return request_head(b"POST " + url.path, url.netloc, all_headers, size)
    except ValueError as error:
        rule = "must not have control characters; the topic is sent as a header"
        raise Invalid([Problem("headers", rule)]) from error
