"""Forwards the socket of a daemon on another machine through ssh.

The system's ssh client only forwards the socket; keys, known hosts and ports come from its own
configuration. ssh never asks for a password here.
"""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from engines.base import EngineDown

SCHEME = "ssh://"
DEFAULT_SOCKET = "/var/run/docker.sock"
OPEN_TIMEOUT = 15.0  # seconds that ssh may take to forward the socket

_LONGEST_OUTPUT = 500  # characters of the client's output in a message
_PAUSE = 0.05  # seconds between two looks for the socket
_SOCKET = "s"  # a short name: the path of a socket may have only about 100 bytes
_OUTPUT = "output"  # name of the file with the output of ssh
_OPTIONS = (
    "-oBatchMode=yes",
    "-oExitOnForwardFailure=yes",
    "-oConnectTimeout=10",
    "-oServerAliveInterval=10",
    "-oServerAliveCountMax=3",
    "-oControlMaster=no",
    "-oStreamLocalBindMask=0177",
)


class Tunnel:
    """One forwarded socket; not thread-safe."""

    def __init__(self, url: str) -> None:
        """``url``: ssh://[user@]host[:port][/path/of/the/socket]. Connects only when first used."""
        self._url = url
        self._folder: Path | None = None
        self._client: subprocess.Popen[bytes] | None = None

    def open(self) -> Path:
        """Return the socket on this machine; connect unless connected. Raises `EngineDown`."""
        is_running = self._client is not None and self._client.poll() is None
        if self._folder is not None and is_running:
            return self._folder / _SOCKET
        self.close()  # removes the rest of a connection that was lost
        program = shutil.which("ssh")
        if program is None:
            raise EngineDown(f"{self._url}: the program ssh is missing; install an OpenSSH client")
        self._folder = Path(tempfile.mkdtemp(prefix="bfia-ssh-"))
        with (self._folder / _OUTPUT).open("wb") as output:
            self._client = subprocess.Popen(
                [program, *self._arguments(self._folder / _SOCKET)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._wait_for_socket(self._folder, self._client)
        return self._folder / _SOCKET

    def close(self) -> None:
        """End the ssh client, and delete the socket's folder."""
        if self._client is not None:
            self._client.kill()  # ssh has nothing to complete, as it only forwards
            self._client.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._client = None
        self._folder = None

    def _arguments(self, local_socket: Path) -> list[str]:
        """Return the arguments of ssh, which forwards ``local_socket`` and runs no command."""
        url = urlsplit(self._url)
        remote_socket = url.path
        if remote_socket in ("", "/"):
            remote_socket = DEFAULT_SOCKET
        forward = f"{local_socket}:{remote_socket}"
        arguments = ["-N", "-T", *_OPTIONS, "-L", forward]  # no command, no terminal
        if url.port:
            arguments += ["-p", str(url.port)]
        if url.username:
            arguments += ["-l", url.username]
        return [*arguments, "--", url.hostname or ""]

    def _wait_for_socket(
        self,
        folder: Path,
        client: subprocess.Popen[bytes],
    ) -> None:
        """Wait until ssh has created the socket, which it does once it is connected.

        Raises `EngineDown` with ssh's output if ssh ends without a socket, or takes longer than
        `OPEN_TIMEOUT`.
        """
        deadline = time.monotonic() + OPEN_TIMEOUT
        while not (folder / _SOCKET).exists():
            has_ended = client.poll() is not None
            is_late = time.monotonic() > deadline
            if has_ended or is_late:
                output = (folder / _OUTPUT).read_text(errors="replace").strip()
                self.close()
                reason = output[-_LONGEST_OUTPUT:] or "no connection in time"
                raise EngineDown(f"{self._url}: {reason}")
            time.sleep(_PAUSE)
