"""A cable to a server that a test can cut: connections through it break, and new ones until it is mended."""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast


class Cable(socketserver.ThreadingTCPServer):
    """Passes on what comes to its ``server_address``."""

    daemon_threads = True

    def __init__(self, target: tuple[str, int] | str, at: str = "127.0.0.1") -> None:
        """``target``: host and port, or the path of a socket; ``at``: this machine's address of the near end."""
        super().__init__((at, 0), _Passage)
        self.target = target
        self.whole = True
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()

    def cut(self) -> None:
        """Break what is connected, and what will be."""
        with self._lock:
            self.whole = False
            for end in self._ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let new connections through."""
        self.whole = True

    def sends(self, octets: bytes) -> None:
        """Hear what the near end sends, before it is passed on."""

    @contextlib.contextmanager
    def passing(self, *ends: socket.socket) -> Iterator[bool]:
        """Say whether the cable is whole; while inside, `cut` breaks these."""
        with self._lock:
            self._ends.update(ends)
            whole = self.whole
        try:
            yield whole
        finally:
            with self._lock:
                self._ends.difference_update(ends)


class _Passage(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        cable = cast(Cable, self.server)
        near = cast(socket.socket, self.request)
        with _connected(cable.target) as far, cable.passing(near, far) as whole:
            if whole:
                back = threading.Thread(target=_pump, args=(far, near))
                back.start()
                _pump(near, far, cable.sends)
                back.join()


def _connected(target: tuple[str, int] | str) -> socket.socket:
    if not isinstance(target, str):
        return socket.create_connection(target)
    far = socket.socket(socket.AF_UNIX)
    far.connect(target)
    return far


def _pump(
    source: socket.socket,
    target: socket.socket,
    first: Callable[[bytes], None] = lambda octets: None,
) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            first(data)
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def cable_to(
    target: tuple[str, int] | str,
    at: str = "127.0.0.1",
    kind: type[Cable] = Cable,
) -> Iterator[Any]:
    """Give a cable, cut at the end."""
    with kind(target, at) as cable:
        thread = threading.Thread(target=cable.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield cable
        finally:
            cable.cut()
            cable.shutdown()
            thread.join()
