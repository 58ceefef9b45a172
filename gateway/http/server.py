"""Runs the listeners of one node in one process and one event loop until a signal.

The number of clients' connections is limited; see `gateway.http.connection` for the limits of one
connection.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import Server

from gateway.http.connection import HEAD_SECONDS, Connection, Http2
from gateway.http.connection_limits import ConnectionCount, allow_descriptors, connection_count
from gateway.links.accepting import Acceptor
from gateway.links.dialling import Dialler
from gateway.links.link import LinkOrigin
from gateway.links.links import Links
from gateway.links.sharing import Sharing

log = logging.getLogger(__name__)

_PAUSE = 0.1  # seconds from a failure to accept a connection to the next try
_STARTUP_PAUSE = 0.01  # seconds; between two looks whether all servers have started
# Warnings about the limit of connections, and about failed TLS handshakes of an address.
_WARN_EVERY = 60.0  # seconds; between two warnings of the same kind
_MOST_WARNED = 64  # addresses with a warning within that time
_BACKLOG = 2048  # connections to a socket that the kernel queues until they are accepted
_IDLE_SECONDS = 75  # after which a connection without a request is closed
_GRACE_SECONDS = 5  # for requests that still run when the listeners stop


def bound(address: str) -> socket.socket:
    """Return a listening socket at ``host:port`` (port 0: any free one).

    Raises `OSError` with the address.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, int(port)))
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from error
    sock.listen(_BACKLOG)
    sock.set_inheritable(False)
    return sock


def port_of(sock: socket.socket) -> int:
    """Return the port that a socket is bound to."""
    return int(sock.getsockname()[1])


def host_of(sock: socket.socket) -> str:
    """Return the address that a socket is bound to, as addresses in URLs are written."""
    host = str(sock.getsockname()[0])
    return f"[{host}]" if ":" in host else host


class Arrivals:
    """Further sockets, bound at any time. Thread-safe.

    Sockets that are put before serving begins wait for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[str, socket.socket]] = []
        self._serve: Callable[[str, socket.socket], None] | None = None

    def put(self, name: str, sock: socket.socket) -> None:
        """Serve the application of a name on a further socket, once serving has begun."""
        with self._lock:
            if self._serve is None:
                self._waiting.append((name, sock))
            else:
                self._serve(name, sock)

    def serve_with(
        self,
        serve: Callable[[str, socket.socket], None],
    ) -> None:
        """Set the function that serves a socket; the waiting sockets are served immediately."""
        with self._lock:
            self._serve = serve
            for name, sock in self._waiting:
                serve(name, sock)
            self._waiting.clear()


@dataclass(frozen=True)
class LinkService:
    """The links of a node: which stand, and how further ones are accepted, dialled and shared."""

    listener: str  # the name of the application that serves the requests over links
    links: Links
    acceptor: Acceptor
    dialler: Dialler
    sharing: Sharing


class ServerTls(Protocol):
    """The TLS settings of a listener."""

    def context(self, *_: object) -> ssl.SSLContext:
        """Build the SSL context; uvicorn's arguments are ignored.

        Raises `OSError` for unusable files.
        """
        ...


class _Server(Server):
    """Accepts connections itself, to close those above a limit before TLS or HTTP begins."""

    def __init__(
        self,
        config: uvicorn.Config,
        connection_count: ConnectionCount,
        http2: Http2 | None,
    ) -> None:
        super().__init__(config)
        self._http2 = http2
        self.acceptor: Acceptor | None = None  # of links; None: the server takes none
        self._connection_count = connection_count
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._serving: set[asyncio.Task[None]] = set()
        # Address -> time of the last warning about its TLS handshakes; "": about the limit of
        # connections.
        self._warned: dict[str, float] = {}

    async def startup(
        self,
        sockets: list[socket.socket] | None = None,
    ) -> None:
        """Start uvicorn without sockets, and accept connections on these sockets instead."""
        await super().startup(sockets=[])
        for sock in sockets or ():
            self.accept(sock)

    def accept(self, sock: socket.socket) -> None:
        """Serve a further socket."""
        self._listening.append(sock)
        self._accepting.append(asyncio.create_task(self._accept(sock)))

    def serve_stream(self, sock: socket.socket, origin: LinkOrigin) -> None:
        """Serve a stream of a link as a connection; a node has as many as an address."""
        if not self._connection_count.take(origin.node):
            sock.close()
            self._warn_of_limit(origin.node)
            return
        task = asyncio.create_task(self._serve_stream(sock, origin))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve_stream(self, sock: socket.socket, origin: LinkOrigin) -> None:
        """Serve a stream of a link until it is closed."""
        connection = Connection(self.config, self.server_state, self.lifespan.state)
        connection.link = origin

        def protocol() -> Connection:
            return connection

        try:
            await asyncio.get_running_loop().connect_accepted_socket(protocol, sock)
            await connection.lost.wait()
        finally:
            self._connection_count.free(origin.node)

    async def shutdown(
        self,
        sockets: list[socket.socket] | None = None,
    ) -> None:
        """Accept no further connections, and close the open ones."""
        loop = asyncio.get_running_loop()
        for sock in self._listening:
            if sock.fileno() >= 0:
                loop.remove_reader(sock)
        # Let the tasks of just accepted connections begin: a task cancelled before its beginning
        # would leave its socket open. This takes two turns of the loop: in the first, `_accept`
        # goes on and creates the task; in the second, the task begins.
        for _ in range(2):
            await asyncio.sleep(0)
        # Cancelling ends handshakes and HTTP/2. An established HTTP/1 connection only loses the
        # task that waits for its end; uvicorn's shutdown below closes the connection.
        tasks = [*self._accepting, *self._serving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().shutdown(sockets)
        if self._http2 is not None:
            await self._http2.close()

    async def _accept(self, sock: socket.socket) -> None:
        """Accept connections on a socket, and serve each in a task, within the limits."""
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        with sock:
            while not self.should_exit:
                try:
                    client, address = await loop.sock_accept(sock)
                except OSError as error:  # no descriptor is free, or the client is gone already
                    log.warning(
                        "a connection cannot be accepted",
                        extra={"error": str(error)},
                    )
                    await asyncio.sleep(_PAUSE)
                    continue
                host = address[0]
                if not self._connection_count.take(host):
                    client.close()
                    self._warn_of_limit(host)
                    await asyncio.sleep(0)  # let other tasks run during a flood
                    continue
                task = loop.create_task(self._serve_connection(client, host))
                self._serving.add(task)
                task.add_done_callback(self._serving.discard)

    def _warn_of_limit(self, address: str) -> None:
        """Log that connections are closed for lack of room, once in a while."""
        if self._may_warn(""):
            log.warning(
                "connection limit reached, more are closed",
                extra={"address": address},
            )

    def _may_warn(self, address: str) -> bool:
        """Count a warning about an address; "" is for the limit of connections.

        Return False if the last warning about it is too recent, or if too many addresses have had a
        warning recently.
        """
        now = asyncio.get_running_loop().time()
        self._warned = {key: at for key, at in self._warned.items() if now - at < _WARN_EVERY}
        if address in self._warned:
            return False
        if address and len(self._warned) >= _MOST_WARNED:
            return False
        self._warned[address] = now
        return True

    async def _serve_connection(
        self,
        client: socket.socket,
        address: str,
    ) -> None:
        """Serve a connection until it is closed."""
        context = self.config.ssl
        tls_timeout = None if context is None else HEAD_SECONDS
        connection = Connection(self.config, self.server_state, self.lifespan.state)
        connection.http2 = self._http2
        connection.acceptor = self.acceptor

        def protocol() -> Connection:
            return connection

        try:
            # Set here, as not every event loop sets it for an accepted socket.
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol,
                client,
                ssl=context,
                ssl_handshake_timeout=tls_timeout,
                ssl_shutdown_timeout=tls_timeout,
            )
            await connection.lost.wait()
        except OSError as error:  # including ssl.SSLError
            level = logging.DEBUG
            if isinstance(error, ssl.SSLError) and self._may_warn(address):
                level = logging.WARNING
            log.log(
                level,
                "a connection was not made",
                extra={
                    "address": address,
                    "error": str(error),
                },
            )
        finally:
            self._connection_count.free(address)
            await connection.end()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle no signals: `serve` installs one handler for all listeners."""
        yield


def _do_nothing() -> None:
    """Take the place of a function to be called before the listeners stop."""


async def serve(
    apps: Mapping[str, ASGIApp],
    sockets: Mapping[str, Sequence[socket.socket]],
    ready: Callable[[], None],
    stopping: asyncio.Event | None = None,
    arrivals: Arrivals | None = None,
    tls: Mapping[str, ServerTls] | None = None,
    http2: Mapping[str, Http2] | None = None,
    links: LinkService | None = None,
    before_stop: Callable[[], None] = _do_nothing,
) -> None:
    """Serve each named application on its sockets until SIGTERM or SIGINT.

    - ``ready`` is called once all listeners respond, ``before_stop`` before they stop
    - ``stopping``: serve until this event is set instead, and handle no signals
    - ``arrivals``: further sockets, which are bound later
    - ``tls``: settings of the applications served over https
    - ``http2``: servers for an application's HTTP/2 connections
    - ``links``: the links that an application takes, and whose requests it serves
    """
    loop = asyncio.get_running_loop()
    allow_descriptors()
    servers = {}
    for name, app in apps.items():
        config = _uvicorn_config(app, (tls or {}).get(name))
        servers[name] = _Server(config, connection_count(name), (http2 or {}).get(name))
    if links is not None:
        server = servers[links.listener]
        server.acceptor = links.acceptor
        links.links.serve_with(server.serve_stream)

    # Called by a signal without an argument, or with the finished task that waits for ``stopping``.
    def leave(_: object = None) -> None:
        before_stop()
        for server in servers.values():
            server.force_exit = server.should_exit  # at the second signal
            server.should_exit = True

    def accept_arrival(name: str, sock: socket.socket) -> None:
        try:
            loop.call_soon_threadsafe(servers[name].accept, sock)
        except RuntimeError:  # the loop is closed: serving has ended
            sock.close()

    tasks = []
    for name, server in servers.items():
        tasks.append(asyncio.create_task(server.serve(sockets=list(sockets[name]))))
    if arrivals is not None:
        arrivals.serve_with(accept_arrival)
    if stopping is None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, leave)
    else:
        waiting = asyncio.create_task(stopping.wait())
        waiting.add_done_callback(leave)
    if await _have_started(servers.values(), tasks):
        ready()
    async with _dialling(links):
        await asyncio.gather(*tasks)


@contextlib.asynccontextmanager
async def _dialling(links: LinkService | None) -> AsyncIterator[None]:
    """Keep the links that this node opens; None: it opens none."""
    if links is None:
        yield
        return
    tasks = [
        asyncio.create_task(links.dialler.run()),
        asyncio.create_task(links.sharing.run()),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        links.links.close()


def _uvicorn_config(app: ASGIApp, tls: ServerTls | None) -> uvicorn.Config:
    """Return the settings of uvicorn for one application; ``tls`` None: served without TLS."""
    return uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        # The connected address counts as the sender: it may identify the container that reports.
        proxy_headers=False,
        timeout_keep_alive=_IDLE_SECONDS,
        # Tells other nodes how long they may keep connections for their next request.
        headers=[("keep-alive", f"timeout={_IDLE_SECONDS}")],
        timeout_graceful_shutdown=_GRACE_SECONDS,
        ws="none",
        ssl_context_factory=None if tls is None else tls.context,
    )


async def _have_started(
    servers: Collection[_Server],
    tasks: list[asyncio.Task[None]],
) -> bool:
    """Wait for all servers to start; return False if one ends before that."""
    waiting = list(servers)
    while waiting:
        if any(map(asyncio.Task.done, tasks)):
            return False
        await asyncio.sleep(_STARTUP_PAUSE)
        waiting = [server for server in waiting if not server.started]
    return True
