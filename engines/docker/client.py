"""The way to a daemon's socket on another machine through the system's ssh client.

The client is asked to forward the socket and nothing else; keys, known hosts and ports are its own configuration's
business. It never asks anybody for a password.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from engines.base import EngineDown

SCHEME = "ssh://"
SOCKET = "/var/run/docker.sock"
_PATIENCE = 15.0
"""seconds for the connection to come up"""
_LONGEST_WORDS = 500


class Tunnel:
    """One forwarded socket. Not for several threads at once."""

    def __init__(self, url: str) -> None:
        """``url``: ssh://[user@]host[:port][/path/of/the/socket]. Connects only when first used."""
        self._url = url
        self._folder: Path | None = None
        self._client: subprocess.Popen[bytes] | None = None

    def open(self) -> Path:
        """Return the socket on this machine; connect if nothing is connected. Raises `EngineDown`."""
        if self._folder is not None and self._client is not None and self._client.poll() is None:
            return self._folder / "s"
        self.close()
        program = shutil.which("ssh")
        if program is None:
            raise EngineDown(f"{self._url}: the program ssh is not here; install an OpenSSH client")
        self._folder = Path(tempfile.mkdtemp(prefix="bfia-ssh-"))  # sockets' paths must be short
        with (self._folder / "said").open("wb") as said:
            self._client = subprocess.Popen(
                [program, *self._arguments(self._folder / "s")],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self._wait(self._folder, self._client)
        return self._folder / "s"

    def close(self) -> None:
        """End the client, and delete the socket's folder; returns within 5 seconds or kills."""
        client, self._client = self._client, None
        if client is not None:
            client.terminate()
            try:
                client.wait(5)
            except subprocess.TimeoutExpired:
                client.kill()
                client.wait()
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _arguments(self, here: Path) -> list[str]:
        parts = urlsplit(self._url)
        options = {
            "BatchMode": "yes",
            "ExitOnForwardFailure": "yes",
            "ConnectTimeout": "10",
            "ServerAliveInterval": "10",
            "ServerAliveCountMax": "3",
            "ControlMaster": "no",
            "StreamLocalBindMask": "0177",
        }
        found = ["-N", "-T", *(f"-o{name}={value}" for name, value in options.items())]
        found += ["-L", f"{here}:{parts.path if parts.path not in ('', '/') else SOCKET}"]
        found += ["-p", str(parts.port)] if parts.port else []
        found += ["-l", parts.username] if parts.username else []
        return [*found, "--", parts.hostname or ""]

    def _wait(self, folder: Path, client: "subprocess.Popen[bytes]") -> None:
        end = time.monotonic() + _PATIENCE
        while not _listens(folder / "s"):
            ended = client.poll() is not None
            if ended or time.monotonic() > end:
                words = (folder / "said").read_text(errors="replace").strip()[-_LONGEST_WORDS:]
                self.close()
                raise EngineDown(f"{self._url}: {words or 'no connection in time'}")
            time.sleep(0.05)


def _listens(path: Path) -> bool:
    if not os.path.exists(path):
        return False
    with socket.socket(socket.AF_UNIX) as knock:
        try:
            knock.connect(str(path))
        except OSError:
            return False
    return True
