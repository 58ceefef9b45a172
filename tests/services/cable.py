"""A cable to a server: once a test cuts it, its connections and new ones break until it is
mended.
"""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast


class Cable(socketserver.ThreadingTCPServer):
    """Forwards the connections to its ``server_address``."""

    daemon_threads = True

    def __init__(
        self,
        target: tuple[str, int] | str,
        at: str = "127.0.0.1",
    ) -> None:
        """``target``: host and port, or the path of a socket; ``at``: the address to listen on."""
        super().__init__((at, 0), _Passage)
        self.target = target
        self.is_intact = True
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()

    def cut(self) -> None:
        """Break all connections, also new ones until `mend`."""
        with self._lock:
            self.is_intact = False
            for end in self._ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def cut_one(self) -> None:
        """Break one of the connections; new ones are let through."""
        with self._lock:
            end = next(iter(self._ends))
            end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let new connections through."""
        self.is_intact = True

    def connect(self) -> socket.socket:
        """Connect to the target."""
        return _connected(self.target)

    def sends(self, octets: bytes) -> None:
        """Called with each chunk from the near end, before it is forwarded."""

    @contextlib.contextmanager
    def connection(self, *ends: socket.socket) -> Iterator[bool]:
        """Let `cut` break these sockets; yield whether the cable is intact."""
        with self._lock:
            self._ends.update(ends)
            is_intact = self.is_intact
        try:
            yield is_intact
        finally:
            with self._lock:
                self._ends.difference_update(ends)


class Balancer(Cable):
    """Leads each connection to the first of its targets that takes it."""

    targets: Sequence[tuple[str, int]] = ()

    def connect(self) -> socket.socket:
        """Connect to the first target that listens. Raises `OSError` if none does."""
        for target in self.targets:
            with contextlib.suppress(OSError):
                return _connected(target)
        raise ConnectionRefusedError("no target listens")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection for which no target listens."""


class _Passage(socketserver.BaseRequestHandler):
    """Forwards one connection in both directions."""

    def handle(self) -> None:
        cable = cast(Cable, self.server)
        near = cast(socket.socket, self.request)
        with cable.connect() as far, cable.connection(near, far) as is_intact:
            if is_intact:
                back = threading.Thread(target=_forward, args=(far, near))
                back.start()
                _forward(near, far, cable.sends)
                back.join()


def _connected(target: tuple[str, int] | str) -> socket.socket:
    """Connect to a host and port, or to the path of a socket."""
    if not isinstance(target, str):
        return socket.create_connection(target)
    client = socket.socket(socket.AF_UNIX)
    client.connect(target)
    return client


def _forward(
    source: socket.socket,
    target: socket.socket,
    observe: Callable[[bytes], None] | None = None,
) -> None:
    """Copy from one socket to the other until one of them ends; then close both."""
    with contextlib.suppress(OSError):
        data = source.recv(65536)
        while data:
            if observe is not None:
                observe(data)
            target.sendall(data)
            data = source.recv(65536)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def cable_to(
    target: tuple[str, int] | str,
    at: str = "127.0.0.1",
    kind: type[Cable] = Cable,
) -> Iterator[Any]:
    """Lay a cable to a target; it is cut at the end."""
    with kind(target, at) as cable:
        thread = threading.Thread(
            target=cable.serve_forever,
            kwargs={"poll_interval": 0.05},
        )
        thread.start()
        try:
            yield cable
        finally:
            cable.cut()
            cable.shutdown()
            thread.join()
