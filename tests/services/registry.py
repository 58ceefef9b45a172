"""A real image registry on loopback, as a process of the test's own."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

PROGRAM = "/usr/bin/docker-registry"
USER, PASSWORD = "reader", "open sesame"
_HASH = "$2b$04$TAP89X9wSwUfHwrnmS.kquwARY5W6UPDx5DKS8KqeVc7FWKaQayj."


@contextmanager
def registry(home: Path, *, guarded: bool = False) -> Iterator[str]:
    """Serve a registry until the end; give its ``host:port``. Guarded: it wants `PASSWORD`."""
    home.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = (
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {home}/data}}}}\nhttp: {{addr: '{address}'}}\n"
    )
    if guarded:
        (home / "users").write_text(f"{USER}:{_HASH}\n")
        config += f"auth: {{htpasswd: {{realm: closed, path: {home}/users}}}}\n"
    (home / "config.yml").write_text(config)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([PROGRAM, "serve", str(home / "config.yml")], stdout=log, stderr=log)
    try:
        end = time.monotonic() + 30
        while not _answers(address):
            assert process.poll() is None and time.monotonic() < end, (home / "log").read_text()
            time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait(20)


def _answers(address: str) -> bool:
    try:
        httpx.get(f"http://{address}/v2/", trust_env=False)
    except httpx.TransportError:
        return False
    return True
