"""A real image registry on loopback, as a process of the test's own."""

import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.nodes import free_ports
from tests.services import listens, started
from tests.services.cable import Cable, cable_to

PROGRAM = "/usr/bin/docker-registry"
USER, PASSWORD = "reader", "open sesame"
_HASH = "$2b$04$TAP89X9wSwUfHwrnmS.kquwARY5W6UPDx5DKS8KqeVc7FWKaQayj."


@contextmanager
def registry(
    home: Path,
    *,
    guarded: bool = False,
    images: Path | None = None,
) -> Iterator[str]:
    """Serve a registry until the end; give its ``host:port``. Guarded: it wants `PASSWORD`.

    ``images``: those of another registry, which other machines get from this one, too.
    """
    home.mkdir(parents=True)
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    config = (
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {images or home / 'data'}}}}}\n"
    )
    config += f"http: {{addr: '{'' if images else '127.0.0.1'}:{port}'}}\n"
    if guarded:
        (home / "users").write_text(f"{USER}:{_HASH}\n")
        config += f"auth: {{htpasswd: {{realm: closed, path: {home}/users}}}}\n"
    (home / "config.yml").write_text(config)
    command = [PROGRAM, "serve", str(home / "config.yml")]
    process = started(command, home / "log", lambda: listens(port))
    try:
        yield address
    finally:
        process.terminate()
        process.wait(60)


def log_in(
    folder: Path,
    address: str,
    password: str = PASSWORD,
) -> None:
    """Write what ``docker login`` writes, for who has the folder as ``DOCKER_CONFIG``."""
    token = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {address: {"auth": token}}}))


class Gate(Cable):
    """A way to a registry that holds back what asks for an image's content until it is open."""

    def __init__(self, target: tuple[str, int] | str, at: str) -> None:
        super().__init__(target, at)
        self.open = threading.Event()
        self.asked = threading.Event()
        """content was asked for"""
        self.address = f"127.0.0.1:{self.server_address[1]}"

    def sends(self, octets: bytes) -> None:
        if octets.startswith(b"GET ") and b"/blobs/" in octets.split(b"\r\n", 1)[0]:
            self.asked.set()
            self.open.wait(100)

    def cut(self) -> None:
        self.open.set()
        super().cut()


def gate_to(address: str) -> contextlib.AbstractContextManager[Gate]:
    """Give a gate to the registry at this address."""
    host, _, port = address.partition(":")
    return cable_to((host, int(port)), kind=Gate)
