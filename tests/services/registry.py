"""A real image registry on loopback, as a process of the test's own."""

import base64
import contextlib
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.nodes import free_ports
from tests.plain import NO_TLS

PROGRAM = "/usr/bin/docker-registry"
USER, PASSWORD = "reader", "open sesame"
_HASH = "$2b$04$TAP89X9wSwUfHwrnmS.kquwARY5W6UPDx5DKS8KqeVc7FWKaQayj."


@contextmanager
def registry(home: Path, *, guarded: bool = False, images: Path | None = None) -> Iterator[str]:
    """Serve a registry until the end; give its ``host:port``. Guarded: it wants `PASSWORD`.

    ``images``: those of another registry, which other machines get from this one, too.
    """
    home.mkdir(parents=True)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    listens = address.removeprefix("127.0.0.1") if images else address
    config = f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {images or home / 'data'}}}}}\n"
    config += f"http: {{addr: '{listens}'}}\n"
    if guarded:
        (home / "users").write_text(f"{USER}:{_HASH}\n")
        config += f"auth: {{htpasswd: {{realm: closed, path: {home}/users}}}}\n"
    (home / "config.yml").write_text(config)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([PROGRAM, "serve", str(home / "config.yml")], stdout=log, stderr=log)
    try:
        end = time.monotonic() + 120
        while not _answers(address):
            assert process.poll() is None and time.monotonic() < end, (home / "log").read_text()
            time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait(60)


def log_in(folder: Path, address: str, password: str = PASSWORD) -> None:
    """Write what ``docker login`` writes, for who has the folder as ``DOCKER_CONFIG``."""
    token = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {address: {"auth": token}}}))


def _answers(address: str) -> bool:
    try:
        httpx.get(f"http://{address}/v2/", trust_env=False, verify=NO_TLS)
    except httpx.TransportError:
        return False
    return True


class Gate:
    """Passes connections on to a registry, and holds back what asks for an image's content until it is open."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._to = host, int(port)
        self.open = threading.Event()
        self.asked = threading.Event()
        """content was asked for"""
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._begin(self._accept)

    def close(self) -> None:
        self.open.set()
        for end in (self._server, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
        for end in (self._server, *self._ends):
            end.close()

    def _begin(self, work: Callable[..., None], *args: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # at the end
            while True:
                near, _ = self._server.accept()
                self._ends.append(near)
                far = socket.create_connection(self._to)
                self._ends.append(far)
                self._begin(self._pass, near, far, True)
                self._begin(self._pass, far, near, False)

    def _pass(self, source: socket.socket, target: socket.socket, asks: bool) -> None:
        with contextlib.suppress(OSError):
            while octets := source.recv(65536):
                if asks and octets.startswith(b"GET ") and b"/blobs/" in octets.split(b"\r\n", 1)[0]:
                    self.asked.set()
                    self.open.wait(100)
                target.sendall(octets)
            target.shutdown(socket.SHUT_WR)
