"""A real image registry on loopback, for one test."""

import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.e2e.nodes import free_ports
from tests.services import listens, started
from tests.services.cable import Cable, cable_to

PROGRAM = "/usr/bin/docker-registry"
USER = "reader"
PASSWORD = "open sesame"
_HASH = "$2b$04$TAP89X9wSwUfHwrnmS.kquwARY5W6UPDx5DKS8KqeVc7FWKaQayj."  # bcrypt of the password


@contextmanager
def registry(
    home: Path,
    *,
    guarded: bool = False,
    images: Path | None = None,
) -> Iterator[str]:
    """Serve a registry until the test is over; yield its ``host:port``.

    ``guarded``: it asks for `PASSWORD`. ``images``: the folder of another registry, whose images it
    serves, also to other machines.
    """
    home.mkdir(parents=True)
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    folder = home / "data"
    host = "127.0.0.1"
    if images is not None:
        folder = images
        host = ""  # all addresses
    config = f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder}}}}}\n"
    config += f"http: {{addr: '{host}:{port}'}}\n"
    if guarded:
        (home / "users").write_text(f"{USER}:{_HASH}\n")
        config += f"auth: {{htpasswd: {{realm: closed, path: {home}/users}}}}\n"
    (home / "config.yml").write_text(config)
    command = [PROGRAM, "serve", str(home / "config.yml")]
    process = started(command, home / "log", partial(listens, port))
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
    """Write the file that ``docker login`` writes, into a folder for ``DOCKER_CONFIG``."""
    token = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {address: {"auth": token}}}))


class Gate(Cable):
    """A cable to a registry that holds requests for an image's content until it is open."""

    def __init__(
        self,
        target: tuple[str, int] | str,
        at: str,
    ) -> None:
        super().__init__(target, at)
        self.open = threading.Event()
        self.asked = threading.Event()  # set by the first request for content
        self.address = f"127.0.0.1:{self.server_address[1]}"

    def sends(self, octets: bytes) -> None:
        request_line = octets.split(b"\r\n", 1)[0]
        if request_line.startswith(b"GET ") and b"/blobs/" in request_line:
            self.asked.set()
            self.open.wait(100)

    def cut(self) -> None:
        self.open.set()
        super().cut()


def gate_to(address: str) -> contextlib.AbstractContextManager[Gate]:
    """Lay a gate to the registry at an address."""
    host, _, port = address.partition(":")
    return cable_to((host, int(port)), kind=Gate)
