"""Connections to peers, which are kept open between requests: blocking ones by the standard library, of any kind
by `Clients`, each under the TLS identity of its route.
"""

import functools
import http.client
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlsplit

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
_IDLE_SECONDS = 4.0
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


class Client:
    """Requests to one address; safe to use from several threads."""

    def __init__(self, url: str, verify: ssl.SSLContext, server_name: str | None = None) -> None:
        parts = urlsplit(url)
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._prefix = parts.path.rstrip("/")
        self._verify = verify
        self._server_name = server_name
        self._turns = threading.Semaphore(_MOST)
        self._lock = threading.Lock()
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
        self._used: set[http.client.HTTPConnection] = set()

    def send(self, request: Request, seconds: float) -> Response:
        """Make a request, and wait so long for the whole of its response. Raises `NotConnected`, `NoResponse`."""
        end = time.monotonic() + seconds
        if not self._turns.acquire(timeout=min(_TURN_SECONDS, seconds)):
            raise NotConnected(f"{_MOST} requests are under way")
        try:
            connection = self._connection(seconds)
            try:
                response = self._exchanged(connection, request, end)
            except (OSError, http.client.HTTPException) as error:
                raise NoResponse(f"{type(error).__name__} {error}") from error
            finally:
                self._put_back(connection)
            return response
        finally:
            self._turns.release()

    def close(self) -> None:
        """Close every connection; running requests fail."""
        with self._lock:
            idle, self._idle = self._idle, []
            used = list(self._used)
        for _, connection in idle:
            connection.close()
        for connection in used:
            with suppress(OSError, AttributeError):  # it ends by itself just now
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                since, connection = self._idle.pop() if self._idle else (0.0, None)
                if connection is not None:
                    self._used.add(connection)
            if connection is None:
                return self._connected(seconds)
            if time.monotonic() - since < _IDLE_SECONDS and not _ended(connection.sock):
                connection.sock.settimeout(seconds)
                return connection
            connection.close()
            self._put_back(connection)

    def _connected(self, seconds: float) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port or (443 if self._tls else 80))
        connection.timeout = min(_CONNECT_SECONDS, seconds)
        try:
            connection.connect()
            if self._tls:
                name = self._server_name or self._host
                connection.sock = self._verify.wrap_socket(connection.sock, server_hostname=name)
            connection.sock.settimeout(seconds)
        except (OSError, ValueError, http.client.HTTPException) as error:
            connection.close()
            raise NotConnected(str(error)) from error
        with self._lock:
            self._used.add(connection)
        return connection

    def _exchanged(self, connection: http.client.HTTPConnection, request: Request, end: float) -> Response:
        """Send and read. A connection that cannot be used again is closed."""
        whole = False
        try:
            connection.request(request.method, self._prefix + request.target, request.body, dict(request.headers))
            response = connection.getresponse()
            with response:
                body = bytearray()
                while chunk := response.read1(65536):
                    body += chunk
                    if len(body) > LARGEST_ANSWER:
                        return Response(response.status, b"", {})
                    if time.monotonic() > end:
                        raise TimeoutError("the answer does not end")
                without_end = response.length is None and not response.chunked
                if response.length or (without_end and not body):  # else a head that was cut off would do
                    raise http.client.IncompleteRead(bytes(body), response.length)
                if (coding := response.getheader("content-encoding", "identity")) != "identity":
                    raise http.client.HTTPException(f"content-encoding {coding} was not asked for")
            whole = not response.will_close
            return Response(response.status, bytes(body), {k.lower(): v for k, v in response.getheaders()})
        finally:
            if not whole:
                connection.close()

    def _put_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._used.discard(connection)
            if connection.sock is not None and len(self._idle) < _MOST_IDLE:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()


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

    def to(self, url: str, identity: Identity = NO_IDENTITY) -> Client:
        """Return the client for an address. Raises `PeerUnreachable` where the identity's files cannot be used."""
        return self._clients.get((url, identity), identity if url.startswith("https") else NO_IDENTITY)

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
