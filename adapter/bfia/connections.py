"""Kept connections to peers, each under the TLS identity of its route.

`Client` sends blocking HTTP/1.1 requests to one address, the URL in a route. `Clients` caches
clients (ours or httpx's) by a hashable key.
"""

import functools
import math
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlsplit

import httptools
import httpx

from adapter.bfia.kept import UNPROMISED, idle_seconds
from adapter.bfia.outbound import open_socket, proxy_of
from gateway.domain.volumes import CountVolume, ignore_volume
from gateway.errors import PeerUnreachable
from gateway.links.links import Connector, WithoutLinks
from gateway.runtime.context import Exchange
from route_table.certificates import stamp
from route_table.model import NO_IDENTITY, Identity, Route
from route_table.proxies import ProxyFailed

C = TypeVar("C")
K = TypeVar("K", bound=Hashable)

LARGEST_ANSWER = 32 * 1024**2  # bytes; no response of this protocol is larger
MAX_REQUESTS = 32  # concurrent requests to one address
_MAX_IDLE = 8  # idle connections kept per address
_RECEIVE_SIZE = 65536  # bytes
_MAX_HEAD = 1 << 17  # bytes that may arrive before the end of the response's headers
# A response may have this many times the bytes of the largest body, as small chunks add framing.
_MAX_WIRE_FACTOR = 4
# Seconds after its last request for which a peer counts as in use; a daily job then finds an open
# connection.
_IN_USE_SECONDS = 26 * 3600.0
# Seconds between two requests that keep a connection, which is also how often `Connections.keep`
# is to be called
KEEPING_INTERVAL = 20.0
_KEEPING_REQUEST_SECONDS = 5.0
_KEEPING_SECONDS = 10.0  # of a call of `Connections.keep`, which silent peers could prolong
_CONNECT_SECONDS = 3.0  # to open a connection, and as many again for its TLS handshake
_PORTS = {"http": 80, "https": 443, "link": 0}
_QUEUE_SECONDS = 1.0  # the longest wait while `MAX_REQUESTS` requests are under way
# Seconds from a call of `Client.send` until its request is being sent
LONGEST_CONNECT = _QUEUE_SECONDS + 2 * _CONNECT_SECONDS
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # control characters except the tab
_COMPRESSED = re.compile(r"\b(gzip|deflate|br|zstd|compress)\b", re.IGNORECASE)
# Headers that show where the body ends
_LENGTH_HEADERS = frozenset({"content-length", "transfer-encoding"})

FileStamps = list[tuple[int, int]]  # modification time and size of each file of an identity


@dataclass(frozen=True)
class Request:
    """One request; ``target`` is path and query."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Response:
    """A complete response; the body is empty if it was larger than `LARGEST_ANSWER`."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class NotConnected(Exception):
    """No connection could be opened: the request was not sent.

    ``reason`` is the symbolic name if a proxy on the way is the cause; else "".
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class NoResponse(Exception):
    """The request may have arrived, but no readable response came back."""


class ResponseReader:
    """Parses one response from the bytes of a connection.

    Interim responses (100, 103) are skipped; everything after the end of the response is ignored.
    """

    def __init__(self, max_body: int) -> None:
        """``max_body``: the largest body in bytes; the rest of a larger one is not read.

        A larger body counts as complete, with more than ``max_body`` bytes in ``content``.
        """
        self.status = 0
        self.headers: dict[str, str] = {}
        self.content = bytearray()
        self.complete = False  # whether the response has ended, or its body is too large
        self.keep = False  # whether the connection can take a further request
        self._max_body = max_body
        self._received = 0
        self._has_final_head = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Take received bytes; empty ``data`` means that the peer closed the connection.

        Raises ConnectionError for a response that is incomplete, compressed or not HTTP.
        """
        if data:
            self._parse(data)
        else:
            self._end_of_connection()
        if not self.complete:
            return
        coding = compression(self.headers)
        if coding:
            raise ConnectionAbortedError(f"content-encoding {coding} was not asked for")

    def _parse(self, data: bytes) -> None:
        """Parse received bytes.

        Raises ConnectionError for bytes that are not HTTP, or are mostly headers.
        """
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise ConnectionAbortedError(f"the response is not HTTP: {error}") from error
        limit = _MAX_HEAD
        if self._has_final_head:
            limit = _MAX_WIRE_FACTOR * self._max_body
        if self._received > limit:
            raise ConnectionAbortedError("the response is mostly headers")

    def _end_of_connection(self) -> None:
        """Complete a response that ends with its connection.

        Raises ConnectionError if the response is cut off.
        """
        is_cut_off = not self._has_final_head or self.has_length
        if is_cut_off:
            raise ConnectionResetError("the peer closed the connection without a whole response")
        self.complete = True

    @property
    def has_length(self) -> bool:
        """True if the headers show where the body ends, so that a close does not end it."""
        return not _LENGTH_HEADERS.isdisjoint(self.headers)

    def on_message_begin(self) -> None:
        """Parser callback: drop the headers of an interim response before this message.

        A message after the final response makes the connection unusable for a further request.
        """
        if self.complete:
            self.keep = False
        else:
            self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser callback: store a header."""
        if not self.complete:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Parser callback: store the status."""
        if not self.complete:
            self.status = self._parser.get_status_code()
            self._has_final_head = self.status >= 200

    def on_body(self, body: bytes) -> None:
        """Parser callback: append to the body."""
        if not self.complete:
            self.content += body
            # A body that is too large completes the response: its rest is not read.
            self.complete = len(self.content) > self._max_body

    def on_message_complete(self) -> None:
        """Parser callback: end the response, unless it was an interim one."""
        if self._has_final_head and not self.complete:
            self.keep = self._parser.should_keep_alive()
            self.complete = True


def compression(headers: Mapping[str, str]) -> str:
    """Return the content-encoding of a compressed body; "" if the body is not compressed.

    Values without a compression are ignored: some peers write, for example, a charset there.
    """
    coding = headers.get("content-encoding", "")
    if _COMPRESSED.search(coding):
        return coding
    return ""


def request_head(
    request_line: bytes,
    netloc: bytes,
    headers: Iterable[tuple[bytes, bytes]],
    size: int,
) -> bytes:
    """Return the head of a request with a body of ``size`` bytes.

    ``request_line`` is method and path, without the version. Raises ValueError for control
    characters, by which a value could add further headers.
    """
    lines = [
        request_line + b" HTTP/1.1",
        b"host: " + netloc,
        b"accept-encoding: identity",
        b"content-length: %d" % size,
    ]
    lines += [b"%s: %s" % header for header in headers]
    for line in lines:
        if _CONTROL.search(line):
            name = line.split(b":")[0].decode("latin-1")
            raise ValueError(f"control characters in {name!r}")
    return b"\r\n".join([*lines, b"", b""])


class Client:
    """Requests to one address; safe to use from several threads."""

    def __init__(
        self,
        url: str,
        tls_context: ssl.SSLContext,
        identity: Identity = NO_IDENTITY,
        links: Connector | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``identity`` has the name in the peer's certificate, and the proxy on the way.

        ``links`` opens connections over links; None: this process has none. ``monotonic`` is the
        clock of idle connections.
        """
        self._monotonic = monotonic
        parts = urlsplit(url)
        self._url = url
        self._identity = identity
        self._links = links or WithoutLinks()
        self._uses_tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or _PORTS[parts.scheme]
        self._netloc = parts.netloc.rpartition("@")[2]  # without user and password
        self._prefix = parts.path.rstrip("/")
        self._tls_context = tls_context
        self._server_name = identity.server_name or self._host
        self._proxy = proxy_of(identity)
        self._slots = threading.Semaphore(MAX_REQUESTS)
        self._lock = threading.Lock()
        # Idle connections, the most recent last, with the time until which they may be used
        self._idle: list[tuple[float, socket.socket]] = []
        self._used_at = -math.inf  # time of the last request
        self._kept_at = -math.inf  # time of the last response
        self._idle_seconds = UNPROMISED  # as the last response promised
        self._busy: set[socket.socket] = set()  # connections with a request under way

    def send(self, request: Request, seconds: float) -> Response:
        """Send a request and wait at most ``seconds`` for its complete response.

        Raises `NotConnected`, `NoResponse`, and ValueError for control characters in the request.
        """
        self._used_at = self._monotonic()
        end = time.monotonic() + seconds
        if not self._slots.acquire(timeout=min(_QUEUE_SECONDS, seconds)):
            raise NotConnected(f"{MAX_REQUESTS} requests are under way")
        try:
            response = self._send(request, seconds, end)
        finally:
            self._slots.release()
        body = bytes(response.content)
        if len(body) > LARGEST_ANSWER:
            body = b""
        return Response(response.status, body, response.headers)

    def _send(self, request: Request, seconds: float, end: float) -> ResponseReader:
        """Send a request over an idle or new connection, and return its response.

        ``seconds`` limits each operation of the socket, ``end`` (by the monotonic clock) the whole
        exchange. Raises the errors of `send`.
        """
        sock = self._take_idle()
        if sock is None:
            sock = self._connect(seconds)
        keep = False
        try:
            sock.settimeout(seconds)
            response = self._exchange(sock, request, end)
            keep = response.keep
            self._kept_at = self._monotonic()
            self._idle_seconds = idle_seconds(response.headers)
        except OSError as error:
            raise NoResponse(f"{type(error).__name__} {error}") from error
        finally:
            self._put_back(sock, keep=keep)
        return response

    def keep(self) -> None:
        """Keep a connection open if the peer is in use, or open one ahead of need.

        For that, a small request is sent once the last response is `KEEPING_INTERVAL` old. A peer
        that does not promise to keep idle connections longer than that gets none.
        """
        now = self._monotonic()
        is_in_use = now - self._used_at < _IN_USE_SECONDS
        if not is_in_use or self._idle_seconds <= KEEPING_INTERVAL:
            return
        if self.idle_sockets() and now - self._kept_at < KEEPING_INTERVAL:
            return
        self._send_small()

    def open_ahead(self) -> None:
        """Open a connection to a peer that was never called; from now on it counts as in use."""
        if self._used_at == -math.inf:
            self._used_at = self._monotonic()
            self._send_small()

    def _send_small(self) -> None:
        """Send a small request, which opens a connection if none is idle."""
        request = Request("GET", "/health/live", {}, b"")
        seconds = _KEEPING_REQUEST_SECONDS
        with suppress(NotConnected, NoResponse):  # the next request will meet it, too
            self._send(request, seconds, time.monotonic() + seconds)

    def idle_sockets(self) -> list[socket.socket]:
        """Return the idle connections that could take a request."""
        now = self._monotonic()
        with self._lock:
            idle = list(self._idle)
        sockets = []
        for until, sock in idle:
            is_open = sock.fileno() >= 0 and not _is_closed_by_peer(sock)
            if now < until and is_open:
                sockets.append(sock)
        return sockets

    def close(self) -> None:
        """Close every connection; running requests fail."""
        with self._lock:
            idle = self._idle
            self._idle = []
            busy = list(self._busy)
        for _, sock in idle:
            sock.close()
        for sock in busy:
            with suppress(OSError):  # its request has just ended
                sock.shutdown(socket.SHUT_RDWR)

    def _take_idle(self) -> socket.socket | None:
        """Return the most recent idle connection that is still usable; None if there is none."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                until, sock = self._idle.pop()
                self._busy.add(sock)
            is_open = sock.fileno() >= 0
            if self._monotonic() < until and is_open and not _is_closed_by_peer(sock):
                return sock
            self._put_back(sock, keep=False)

    def _connect(self, seconds: float) -> socket.socket:
        """Open a connection for one request. Raises `NotConnected`."""
        try:
            sock = self._open_socket(min(_CONNECT_SECONDS, seconds))
        except ProxyFailed as error:
            raise NotConnected(str(error), error.reason) from error
        except (OSError, ValueError) as error:
            raise NotConnected(str(error)) from error
        with self._lock:
            self._busy.add(sock)
        return sock

    def _open_socket(self, timeout: float) -> socket.socket:
        """Connect over a link, or else directly or through the proxy, with TLS for https.

        Raises OSError, and ValueError for an unusable name.
        """
        over_link = self._links.connect(self._url, self._identity)
        if over_link is not None:
            return over_link
        sock = open_socket(self._host, self._port, timeout, self._proxy)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._uses_tls:
                return self._tls_context.wrap_socket(sock, server_hostname=self._server_name)
        except (OSError, ValueError):
            sock.close()
            raise
        return sock

    def _exchange(
        self,
        sock: socket.socket,
        request: Request,
        end: float,
    ) -> ResponseReader:
        """Send the request and read its response.

        Raises OSError, and ValueError for control characters in the request.
        """
        head = self._head(request, over_link=leads_over_link(sock))
        sock.sendall(head + request.body)
        response = ResponseReader(LARGEST_ANSWER)
        while not response.complete:
            response.feed(sock.recv(_RECEIVE_SIZE))
            if time.monotonic() > end:
                raise TimeoutError("the answer does not end")
        # Without length headers, `keep` is true only for a status without a body (204, 304).
        is_delimited = response.keep or response.has_length
        is_empty = not response.content
        if is_empty and not is_delimited:  # probably cut off after its headers
            raise ConnectionResetError("the peer closed the connection without a body")
        return response

    def _head(
        self,
        request: Request,
        *,
        over_link: bool,
    ) -> bytes:
        """Return the head of a request at this address.

        The path in the address is for a reverse proxy, and a link ends behind that. Raises
        ValueError for control characters.
        """
        prefix = self._prefix
        if over_link:
            prefix = ""
        headers = []
        for name, value in request.headers.items():
            headers.append((name.encode("latin-1"), value.encode("latin-1")))
        request_line = f"{request.method} {prefix}{request.target}".encode("latin-1")
        netloc = self._netloc.encode("latin-1")
        return request_head(request_line, netloc, headers, len(request.body))

    def _put_back(self, sock: socket.socket, keep: bool) -> None:
        """Keep a connection for further requests if ``keep`` is set and there is room.

        Otherwise close it.
        """
        with self._lock:
            self._busy.discard(sock)
            if keep and len(self._idle) < _MAX_IDLE:
                self._idle.append((self._monotonic() + self._idle_seconds, sock))
                return
        sock.close()


def leads_over_link(sock: socket.socket) -> bool:
    """Return whether a connection leads over a link: such a one begins with a pair of sockets."""
    return sock.family == socket.AF_UNIX


def _is_closed_by_peer(sock: socket.socket) -> bool:
    """True if an idle connection is readable: without a request, only its end should arrive."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _ignore(exchange: Exchange) -> None:
    """Do not observe an exchange."""


class Connections:
    """The clients for all peers."""

    def __init__(
        self,
        observe: Callable[[Exchange], None] = _ignore,
        links: Connector | None = None,
        count_volume: CountVolume = ignore_volume,
    ) -> None:
        """`adapter.bfia.peer` calls ``observe`` with every exchange, for the metrics.

        It calls ``count_volume`` with the bytes of every exchange that has a response.

        ``links`` opens connections over links; None: this process has none.
        """
        self._links = links
        self._clients: Clients[tuple[str, Identity], Client] = Clients(self._client)
        self.observe = observe
        self.count_volume = count_volume
        # (node id, address) of each peer that was checked against the profile of its route.
        # Only `adapter.bfia.peer` reads and changes this set.
        self.profile_checked: set[tuple[str, str]] = set()

    def to(self, url: str, identity: Identity = NO_IDENTITY) -> Client:
        """Return the client for an address.

        Raises `PeerUnreachable` if the identity's files are unusable.
        """
        if not url.startswith("https"):  # no TLS: the identity's files are neither read nor checked
            identity = identity.without_tls()
        return self._clients.get((url, identity), identity)

    def _client(
        self,
        key: tuple[str, Identity],
        tls_context: ssl.SSLContext,
    ) -> Client:
        """Return a new client; ``key``: its address and identity."""
        url, identity = key
        return Client(url, tls_context, identity, self._links)

    def keep(self, partners: Iterable[Route] = ()) -> None:
        """Keep connections to the peers in use for about `_KEEPING_SECONDS`; see `Client.keep`.

        Connections to ``partners`` that were never called are opened ahead of need.
        """
        end = time.monotonic() + _KEEPING_SECONDS
        for client in self._clients.all():
            if time.monotonic() < end:
                client.keep()
        for route in partners:
            if time.monotonic() > end:
                return
            with suppress(PeerUnreachable):  # the next request will report it
                self.to(route.url, route.identity).open_ahead()

    def close(self) -> None:
        """Close every client; running calls fail."""
        for client in self._clients.clear():
            client.close()


class Clients(Generic[K, C]):
    """One client for each key, replaced when a file of the client's identity changes.

    A replaced client stays open for its running calls; `clear` returns it, too.
    """

    def __init__(
        self,
        make: Callable[[K, ssl.SSLContext], C],
    ) -> None:
        """``make`` returns a new client for a key, with the TLS context of its identity."""
        self._make = make
        self._lock = threading.Lock()
        self._current: dict[K, tuple[FileStamps, C]] = {}
        self._replaced: list[C] = []

    def get(self, key: K, identity: Identity) -> C:
        """Return the client for a key; ``identity`` is the one that the client uses for TLS.

        Raises `PeerUnreachable` if the identity's files are unusable.
        """
        stamps = _file_stamps(identity)
        with self._lock:
            current = self._current.get(key)
            if current is not None:
                current_stamps, current_client = current
                if current_stamps == stamps:
                    return current_client
            client = self._make(key, context(identity))
            if current is not None:
                self._replaced.append(current_client)
            self._current[key] = (stamps, client)
            return client

    def all(self) -> list[C]:
        """Return the clients in use, without the replaced ones."""
        with self._lock:
            return [client for _, client in self._current.values()]

    def clear(self) -> list[C]:
        """Remove every client and return them, for the caller to close."""
        with self._lock:
            clients = [client for _, client in self._current.values()]
            clients += self._replaced
            self._current.clear()
            self._replaced.clear()
        return clients


def context(identity: Identity) -> ssl.SSLContext:
    """Return the TLS context of an identity.

    Raises `PeerUnreachable` if one of its files is unusable.
    """
    if identity.without_proxy() == NO_IDENTITY:
        return _default_context()
    try:
        return _load_context(identity)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        cause = getattr(error, "reason", None) or error
        text = f"the certificates that the route names cannot be used: {cause}"
        raise PeerUnreachable(text, delivered=False) from error


def _load_context(identity: Identity) -> ssl.SSLContext:
    """Load the files of an identity. Raises OSError, ValueError.

    If the identity names no authorities, those of the machine are trusted.
    """
    if identity.ca is None:
        tls = httpx.create_ssl_context(trust_env=False)
    else:
        tls = ssl.create_default_context(cafile=identity.ca)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    if identity.certificate is not None and identity.key is not None:
        tls.load_cert_chain(identity.certificate, identity.key, password=_no_password)
    return tls


def _no_password() -> str:
    """Return no password: without this function, OpenSSL asks for one on the terminal."""
    return ""


@functools.cache
def _default_context() -> ssl.SSLContext:
    """Load the machine's certificate authorities, once: it takes about 20 ms."""
    return httpx.create_ssl_context(trust_env=False)


def connect_to(route: Route) -> socket.socket:
    """Connect to the host and port of a route's URL, perhaps through a proxy. Raises OSError."""
    parts = urlsplit(route.url)
    return open_socket(
        parts.hostname or "",
        parts.port or _PORTS[parts.scheme],
        _CONNECT_SECONDS,
        proxy_of(route.identity),
    )


def sni_extension(identity: Identity) -> dict[str, str]:
    """Return httpx's request extension with the name in the peer's certificate.

    Empty if the route names none: then the certificate must have the name of the host.
    """
    if identity.server_name is None:
        return {}
    return {"sni_hostname": identity.server_name}


def _file_stamps(identity: Identity) -> FileStamps:
    """Return the stamp of each file of an identity, which shows whether the file has changed."""
    files = (
        identity.ca,
        identity.certificate,
        identity.key,
        identity.proxy_password,
    )
    return [stamp(file) for file in files if file is not None]
