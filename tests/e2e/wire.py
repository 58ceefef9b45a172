"""A way between two nodes that can be cut: while it is, connections break and new ones are refused."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Wire:
    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = self._listen(0)
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._cut = False
        self._accept()

    def cut(self) -> None:
        with self._lock:
            self._cut = True
            found, self._open = self._open, set()
        for sock in (self._listener, *found):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def heal(self) -> None:
        self._listener = self._listen(self.port)
        self._cut = False
        self._accept()

    @staticmethod
    def _listen(port: int) -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen(64)
        return sock

    def _accept(self) -> None:
        listener = self._listener

        def work() -> None:
            while True:
                try:
                    near, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=self._join, args=(near,), daemon=True).start()

        threading.Thread(target=work, daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        with self._lock:
            if self._cut:
                near.close()
                far.close()
                return
            self._open |= {near, far}
        threading.Thread(target=self._copy, args=(near, far), daemon=True).start()
        self._copy(far, near)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


@contextmanager
def wire(target: int) -> Iterator[Wire]:
    made = Wire(target)
    try:
        yield made
    finally:
        made.cut()
