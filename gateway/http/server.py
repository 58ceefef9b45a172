"""Runs the listeners of one node in one process and one event loop, until a signal ends them.

Clients' connections are bounded: how many there are; `gateway.http.connection` is one of them.
"""

import asyncio
import contextlib
import fcntl
import json
import logging
import resource
import signal
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO

import uvicorn
from starlette.types import ASGIApp

from gateway.http.connection import HEAD_SECONDS, Connection, Http2
from gateway.version import VERSION

log = logging.getLogger(__name__)

_PAUSE = 0.1
"""seconds until a listener that could not accept a connection tries again"""
_WARN_EVERY = 60.0
"""seconds between two warnings that a limit of connections is reached, or that one address fails at TLS"""
_MOST_LOGGED = 64
"""addresses of which such a thing is logged within that time"""
_ENOUGH_FILES = 65_536
_MOST_CONNECTIONS = 4096
_OF_ONE_ADDRESS = {"peer": 512, "container": 1024}
"""the container engine may have all containers come from one address"""


def bound(address: str) -> socket.socket:
    """Bind ``host:port`` (port 0: any free one). Raises `OSError`, naming the address."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(
        family, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # named, so that asyncio sets TCP_NODELAY
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, int(port)))
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from error
    sock.listen(2048)
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
    """Sockets that are bound only after serving has begun, put in by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[str, socket.socket]] = []
        self._take: Callable[[str, socket.socket], None] | None = None

    def put(self, name: str, sock: socket.socket) -> None:
        """Have the application of that name served on a further socket."""
        with self._lock:
            if self._take is None:
                self._waiting.append((name, sock))
            else:
                self._take(name, sock)

    def taken_by(self, take: Callable[[str, socket.socket], None]) -> None:
        """Say who serves them: those that came before, now, and each that comes later."""
        with self._lock:
            self._take = take
            for name, sock in self._waiting:
                take(name, sock)
            self._waiting.clear()


class Secure(Protocol):
    """What a listener is served with by https."""

    def context(self, *_: object) -> ssl.SSLContext:
        """Return it. Raises `OSError` for files that cannot be used."""
        ...


class Places:
    """Counts the open connections of one listener."""

    def __init__(self, total: int, of_one_address: int) -> None:
        """Allow ``total`` connections, and only some of them to one address."""
        self._total = total
        self._of_one_address = of_one_address
        self._open: Counter[str] = Counter()

    def take(self, address: str) -> bool:
        """Count a connection, if there is room for it."""
        if self._open.total() >= self._total or self._open[address] >= self._of_one_address:
            return False
        self._open[address] += 1
        return True

    def free(self, address: str) -> None:
        """Count a connection no longer."""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]


def places(listener: str) -> Places:
    """Return the places of a listener: a quarter of the process's descriptors at most.

    There are up to three listeners; the last quarter is for engines, databases, files and calls to peers.
    """
    total = min(_MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
    limit = _OF_ONE_ADDRESS.get(listener)
    return Places(total, total if limit is None else min(limit, total // 2))


def allow_descriptors() -> None:
    """Raise the soft limit of descriptors to the hard one, as far as they could ever be used."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < (wanted := min(hard, _ENOUGH_FILES)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Server(uvicorn.Server):
    """Accepts connections itself, so that those over the limit are closed before TLS or HTTP begins."""

    def __init__(
        self,
        config: uvicorn.Config,
        places: Places,
        http2: Http2 | None,
    ) -> None:
        super().__init__(config)
        self._http2 = http2
        self._places = places
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._held: set[asyncio.Task[None]] = set()
        self._logged: dict[str, float] = {}
        """address -> when its refused TLS handshake was logged; empty: that the limit is reached"""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        for sock in sockets or ():
            self.accept(sock)

    def accept(self, sock: socket.socket) -> None:
        """Serve a further socket."""
        self._listening.append(sock)
        self._accepting.append(asyncio.create_task(self._accept(sock)))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        for sock in self._listening:
            if sock.fileno() >= 0:
                loop.remove_reader(sock)
        # what was just accepted is taken over first: a task that is cancelled before it began would leave it open
        for _ in range(2):
            await asyncio.sleep(0)
        ending = [
            *self._accepting,
            *self._held,
        ]  # connections that are open already are closed by the server
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await super().shutdown(sockets)
        if self._http2 is not None:
            await self._http2.close()

    async def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        with sock:
            while not self.should_exit:
                try:
                    client, address = await loop.sock_accept(sock)
                except OSError as error:  # no descriptor is left, or the client is gone already
                    log.warning("a connection cannot be accepted", extra={"error": str(error)})
                    await asyncio.sleep(_PAUSE)
                    continue
                if not self._places.take(address[0]):
                    client.close()
                    if self._is_news(""):
                        log.warning(
                            "connection limit reached, more are closed",
                            extra={"address": address[0]},
                        )
                    await asyncio.sleep(0)  # others have their turn, however many come
                    continue
                task = loop.create_task(self._hold(client, address[0]))
                self._held.add(task)
                task.add_done_callback(self._held.discard)

    def _is_news(self, address: str) -> bool:
        """Note what is to be logged of an address; False: it was within the last minute, or too many were."""
        now = asyncio.get_running_loop().time()
        self._logged = {one: at for one, at in self._logged.items() if now - at < _WARN_EVERY}
        if address in self._logged or (address and len(self._logged) >= _MOST_LOGGED):
            return False
        self._logged[address] = now
        return True

    async def _hold(self, client: socket.socket, address: str) -> None:
        """Serve a connection until it is closed."""
        secure = self.config.ssl
        seconds = None if secure is None else HEAD_SECONDS
        connection = Connection(self.config, self.server_state, self.lifespan.state)
        connection.http2 = self._http2
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                client,
                ssl=secure,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
            await connection.lost.wait()
        except OSError as error:  # among them those of TLS
            tells = isinstance(error, ssl.SSLError) and self._is_news(address)
            level = logging.WARNING if tells else logging.DEBUG
            log.log(
                level, "a connection was not made", extra={"address": address, "error": str(error)}
            )
        finally:
            self._places.free(address)
            await connection.end()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # one handler for all listeners, below


async def serve(
    apps: Mapping[str, ASGIApp],
    sockets: Mapping[str, Sequence[socket.socket]],
    ready: Callable[[], None],
    stopping: asyncio.Event | None = None,
    arrivals: Arrivals | None = None,
    tls: Mapping[str, Secure] | None = None,
    http2: Mapping[str, Http2] | None = None,
    leaving: Callable[[], None] = lambda: None,
) -> None:
    """Serve each named application on its sockets, and on those that arrive; call ``ready`` once all answer.

    Applications that ``tls`` names are served by https; connections by HTTP/2 are for the servers of ``http2``.

    Return after a signal; where ``stopping`` is given, when that is set, and signals are left alone. ``leaving``
    is called first: what it has answered soon is not cut off.
    """
    loop = asyncio.get_running_loop()
    allow_descriptors()
    servers = {}
    for name, app in apps.items():
        secure = (tls or {}).get(name)
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # who asks is who has connected: a report is judged by that
            timeout_keep_alive=75,
            timeout_graceful_shutdown=5,
            ws="none",
            ssl_context_factory=secure.context if secure else None,
        )
        servers[name] = _Server(config, places(name), (http2 or {}).get(name))

    def leave() -> None:
        leaving()
        for server in servers.values():
            server.force_exit = server.should_exit
            server.should_exit = True

    def arrived(name: str, sock: socket.socket) -> None:
        try:
            loop.call_soon_threadsafe(servers[name].accept, sock)
        except RuntimeError:  # the loop is closed: nobody serves any more
            sock.close()

    tasks = [
        asyncio.create_task(server.serve(sockets=list(sockets[n]))) for n, server in servers.items()
    ]
    if arrivals is not None:
        arrivals.taken_by(arrived)
    if stopping is None:
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, leave)
    else:
        waiting = asyncio.create_task(stopping.wait())
        waiting.add_done_callback(lambda _: leave())
    while not all(server.started for server in servers.values()):
        if any(task.done() for task in tasks):
            break
        await asyncio.sleep(0.01)
    else:
        ready()
    await asyncio.gather(*tasks)


# Which listeners are this node's own: while it serves, a file in its state folder names them and is locked.

_FILE = "listening.json"
_ANY = ("0.0.0.0", "::")


def claimed(
    state_dir: Path,
    sockets: Iterable[socket.socket],
    files: Mapping[str, Sequence[str]] | None = None,
) -> TextIO:
    """Note where this node listens, for as long as what is returned is open. Raises `OSError`.

    ``files``: what it serves TLS with.
    """
    file = (state_dir / _FILE).open("a+", encoding="ascii")
    fcntl.flock(file, fcntl.LOCK_SH)  # whoever looks holds it for a moment only
    file.truncate(0)
    names = [sock.getsockname()[:2] for sock in sockets]
    at = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in names]
    file.write(
        json.dumps(
            {
                "version": VERSION,
                "at": at,
                "files": files or {},
            }
        )
    )
    file.flush()
    return file


@dataclass(frozen=True)
class Serving:
    """The gateway that serves from a state folder."""

    version: str
    at: tuple[str, ...]
    """where it listens"""
    files: Mapping[str, Sequence[str]]
    """what it serves TLS with"""

    def has(self, address: str) -> bool:
        """Whether it is what listens at an address that is in use."""
        return any(same(address, there) for there in self.at)


def serving(state_dir: Path) -> Serving | None:
    """Return what serves from this state folder; None where nothing does."""
    try:
        with (state_dir / _FILE).open(encoding="ascii") as file:
            if _is_locked(file):
                found = json.load(file)
                return Serving(found["version"], tuple(found["at"]), found.get("files", {}))
    except (OSError, ValueError):
        pass
    return None


def _is_locked(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until it is closed
    except BlockingIOError:
        return True
    return False


def same(one: str, other: str) -> bool:
    """Tell whether two listeners at these addresses, ``host:port``, are in each other's way."""
    (host, port), (host2, port2) = _parts(one), _parts(other)
    return port == port2 != "0" and (host == host2 or host in _ANY or host2 in _ANY)


def _parts(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return "127.0.0.1" if host == "localhost" else host, port
