"""Connections to peers, which are kept open between requests: blocking ones of HTTP/1.1, of any kind by `Clients`,
each under the TLS identity of its route.
"""

import functools
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

from gateway.errors import PeerUnreachable
from gateway.runtime.context import Exchange
from route_table.certificates import stamp
from route_table.model import NO_IDENTITY, Identity

C = TypeVar("C")
K = TypeVar("K", bound=Hashable)

LARGEST_ANSWER = 32 * 1024**2
"""bytes; what is longer is not a response of this protocol"""
_MOST, _MOST_IDLE = 32, 8
"""connections to one address: in use, and kept for the next request"""
_LONGEST_HEAD = 1 << 17
"""bytes of headers, and of what came with them"""
_IDLE_SECONDS = 4.0
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_PACKED = re.compile(r"\b(gzip|deflate|br|zstd|compress)\b", re.IGNORECASE)
_LENGTHS = frozenset({"content-length", "transfer-encoding"})
_CONNECT_SECONDS, _TURN_SECONDS = 3.0, 1.0


@dataclass(frozen=True)
class Request:
    """One request; ``target`` is path and query."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Response:
    """What came back; the body is empty where it was larger than `LARGEST_ANSWER`."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class NotConnected(Exception):
    """No connection came about: the request was not sent."""


class NoResponse(Exception):
    """The request may have arrived; no readable response came back."""


class Reading:
    """Reads one response."""

    def __init__(self, most: int) -> None:
        """``most``: bytes of the body; the rest is not read."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.content = bytearray()
        self.over = self.keep = False
        self._most = most
        self._came = 0
        self._begun = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Take what came, nothing at the end of the connection. Raises ConnectionError."""
        if data:
            self._take(data)
        elif not self._begun or self.has_length:
            raise ConnectionResetError("the peer closed the connection without a whole response")
        self.over = self.over or not data
        if self.over and (coding := packed(self.headers)):
            raise ConnectionAbortedError(f"content-encoding {coding} was not asked for")

    def _take(self, data: bytes) -> None:
        self._came += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise ConnectionAbortedError(f"the response is not HTTP: {error}") from error
        if self._came > (4 * self._most if self._begun else _LONGEST_HEAD):  # chunks may be short
            raise ConnectionAbortedError("the response is mostly headers")

    @property
    def has_length(self) -> bool:
        """Whether its end is known, and need not be that of the connection."""
        return not _LENGTHS.isdisjoint(self.headers)

    def on_message_begin(self) -> None:
        """Begin anew after one that came before the response; nothing belongs behind it."""
        if self.over:
            self.keep = False
        else:
            self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, by the parser."""
        if not self.over:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Note the status; what comes before the response itself, such as 100, is passed over."""
        if not self.over:
            self.status = self._parser.get_status_code()
            self._begun = self.status >= 200

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        if not self.over:
            self.content += body
            self.over = len(self.content) > self._most

    def on_message_complete(self) -> None:
        """Note the end."""
        if self._begun and not self.over:
            self.keep = self._parser.should_keep_alive()
            self.over = True


def packed(headers: Mapping[str, str]) -> str:
    """Return how a body was compressed; empty where it was not, whatever else some peers write there."""
    coding = headers.get("content-encoding", "")
    return coding if _PACKED.search(coding) else ""


def head(
    what: bytes,
    netloc: bytes,
    headers: Iterable[tuple[bytes, bytes]],
    size: int,
) -> bytes:
    """Return the head of a request; ``what``: method and path. Raises ValueError for control characters in it."""
    lines = [
        what + b" HTTP/1.1",
        b"host: " + netloc,
        b"accept-encoding: identity",
        b"content-length: %d" % size,
    ]
    lines += [b"%s: %s" % header for header in headers]
    if bad := [line for line in lines if _CONTROL.search(line)]:
        raise ValueError(f"control characters in {bad[0].split(b':')[0].decode('latin-1')!r}")
    return b"\r\n".join([*lines, b"", b""])


class Client:
    """Requests to one address; safe to use from several threads."""

    def __init__(
        self,
        url: str,
        verify: ssl.SSLContext,
        server_name: str | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._tls = parts.scheme == "https"
        self._address = parts.hostname or "", parts.port or (443 if self._tls else 80)
        self._netloc = parts.netloc.rpartition("@")[2]
        self._prefix = parts.path.rstrip("/")
        self._verify = verify
        self._server_name = server_name
        self._turns = threading.Semaphore(_MOST)
        self._lock = threading.Lock()
        self._idle: list[tuple[float, socket.socket]] = []
        self._used: set[socket.socket] = set()

    def send(self, request: Request, seconds: float) -> Response:
        """Make a request, and wait so long for the whole of its response. Raises `NotConnected`, `NoResponse`."""
        end = time.monotonic() + seconds
        if not self._turns.acquire(timeout=min(_TURN_SECONDS, seconds)):
            raise NotConnected(f"{_MOST} requests are under way")
        try:
            sock, keep = self._kept() or self._connected(seconds), False
            sock.settimeout(seconds)
            try:
                response = self._exchanged(sock, request, end)
                keep = response.keep
            except OSError as error:
                raise NoResponse(f"{type(error).__name__} {error}") from error
            finally:
                self._put_back(sock, keep)
        finally:
            self._turns.release()
        whole = len(response.content) <= LARGEST_ANSWER
        return Response(
            response.status, bytes(response.content) if whole else b"", response.headers
        )

    def close(self) -> None:
        """Close every connection; running requests fail."""
        with self._lock:
            idle, self._idle = self._idle, []
            used = list(self._used)
        for _, sock in idle:
            sock.close()
        for sock in used:
            with suppress(OSError):  # it ends by itself just now
                sock.shutdown(socket.SHUT_RDWR)

    def _kept(self) -> socket.socket | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                since, sock = self._idle.pop()
                self._used.add(sock)
            if time.monotonic() - since < _IDLE_SECONDS and not _ended(sock):
                return sock
            self._put_back(sock, keep=False)

    def _connected(self, seconds: float) -> socket.socket:
        try:
            sock = socket.create_connection(self._address, min(_CONNECT_SECONDS, seconds))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls:
                name = self._server_name or self._address[0]
                try:
                    sock = self._verify.wrap_socket(sock, server_hostname=name)
                except (OSError, ValueError):
                    sock.close()
                    raise
        except (OSError, ValueError) as error:
            raise NotConnected(str(error)) from error
        with self._lock:
            self._used.add(sock)
        return sock

    def _exchanged(
        self,
        sock: socket.socket,
        request: Request,
        end: float,
    ) -> Reading:
        headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in request.headers.items()
        ]
        what = f"{request.method} {self._prefix}{request.target}".encode("latin-1")
        sock.sendall(
            head(what, self._netloc.encode("latin-1"), headers, len(request.body)) + request.body
        )
        response = Reading(LARGEST_ANSWER)
        while not response.over:
            response.feed(sock.recv(65536))
            if time.monotonic() > end:
                raise TimeoutError("the answer does not end")
        if not (
            response.content or response.keep or response.has_length
        ):  # else a head that was cut off would do
            raise ConnectionResetError("the peer closed the connection without a body")
        return response

    def _put_back(self, sock: socket.socket, keep: bool) -> None:
        with self._lock:
            self._used.discard(sock)
            if keep and len(self._idle) < _MOST_IDLE:
                self._idle.append((time.monotonic(), sock))
                return
        sock.close()


def _ended(sock: socket.socket) -> bool:
    """Tell whether the other side has closed an idle connection, on which nothing else can come."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


class Connections:
    """The clients for all peers."""

    def __init__(self, observe: Callable[[Exchange], None] = lambda _: None) -> None:
        """``observe`` gets every request."""
        self._clients: Clients[tuple[str, Identity], Client] = Clients(
            lambda key, verify: Client(key[0], verify, key[1].server_name)
        )
        self.observe = observe
        self.profile_checked: set[tuple[str, str]] = set()
        """node ids with addresses that do not speak another dialect than their route says"""

    def to(self, url: str, identity: Identity = NO_IDENTITY) -> Client:
        """Return the client for an address. Raises `PeerUnreachable` where the identity's files cannot be used."""
        return self._clients.get(
            (url, identity), identity if url.startswith("https") else NO_IDENTITY
        )

    def close(self) -> None:
        """Close every client; running calls fail."""
        for client in self._clients.clear():
            client.close()


class Clients(Generic[K, C]):
    """One client per key; one whose identity's files have changed is replaced, and kept for its running calls."""

    def __init__(self, make: Callable[[K, ssl.SSLContext], C]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._current: dict[K, tuple[list[tuple[int, int]], C]] = {}
        self._former: list[C] = []

    def get(self, key: K, identity: Identity) -> C:
        """Return the client for a key. Raises `PeerUnreachable` where the identity's files cannot be used."""
        current = _stamp(identity)
        with self._lock:
            known = self._current.get(key)
            if known is not None and known[0] == current:
                return known[1]
            client = self._make(key, context(identity))
            if known is not None:
                self._former.append(known[1])
            self._current[key] = (current, client)
            return client

    def clear(self) -> list[C]:
        """Forget every client, and return them to be closed."""
        with self._lock:
            found = [*(client for _, client in self._current.values()), *self._former]
            self._current.clear()
            self._former.clear()
        return found


def context(identity: Identity) -> ssl.SSLContext:
    """Return the TLS context of an identity. Raises `PeerUnreachable` where a file of it cannot be used."""
    if identity == NO_IDENTITY:
        return _usual()
    try:
        if identity.ca is None:
            made = httpx.create_ssl_context(trust_env=False)
        else:
            made = ssl.create_default_context(cafile=identity.ca)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        if identity.certificate is not None and identity.key is not None:
            made.load_cert_chain(identity.certificate, identity.key, password=lambda: "")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        text = f"the certificates that the route names cannot be used: {getattr(error, 'reason', None) or error}"
        raise PeerUnreachable(text, delivered=False) from error
    return made


@functools.cache
def _usual() -> ssl.SSLContext:
    """The machine's certificate authorities; reading them takes some 20 ms."""
    return httpx.create_ssl_context(trust_env=False)


def asked_name(identity: Identity) -> dict[str, str]:
    """Return a request's extensions where the certificate has another name than the host."""
    return {} if identity.server_name is None else {"sni_hostname": identity.server_name}


def _stamp(identity: Identity) -> list[tuple[int, int]]:
    files = (identity.ca, identity.certificate, identity.key)
    return [stamp(file) for file in files if file is not None]
