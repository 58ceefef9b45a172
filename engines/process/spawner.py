"""Starts supervisors from one small process: a fork of it costs a fraction of the start of an interpreter."""

import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from engines.process import supervisor

_TIMEOUT = 30.0
"""seconds until a supervisor has reported whether its run started"""


class Spawner:
    """Forks supervisors. Its process ends with the gateway, the supervisors live on; one that died is replaced."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self, directory: Path, command: Mapping[str, object]) -> tuple[int, str]:
        """Start the supervisor of a run; return a descriptor of its process, and its report.

        The report is empty if there is none in time. Raises OSError if there is no supervisor.
        """
        ours, theirs = socket.socketpair()
        with ours:
            ours.settimeout(_TIMEOUT)
            with theirs:
                self._request(directory, theirs)
            ours.sendall(json.dumps(command).encode())
            ours.shutdown(socket.SHUT_WR)
            _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
            if not descriptors:
                raise ConnectionError("the supervisor could not be forked")
            return descriptors[0], _line(ours)

    def close(self) -> None:
        """End the process that forks; supervisors live on."""
        with self._lock:
            self._end()

    def _request(self, directory: Path, connection: socket.socket) -> None:
        message = os.fsencode(directory)
        with self._lock:
            try:
                socket.send_fds(self._begun(), [message], [connection.fileno()])
            except OSError:
                self._end()
                socket.send_fds(self._begun(), [message], [connection.fileno()])

    def _begun(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = [sys.executable, "-I", "-S", supervisor.__file__]
                self._server = subprocess.Popen(
                    command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env={}, start_new_session=True
                )
        return self._control

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None


def _line(connection: socket.socket) -> str:
    line = b""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while not line.endswith(b"\n"):
        if not poll.poll(_TIMEOUT * 1000) or not (chunk := connection.recv(65536)):
            return ""
        line += chunk
    return line.decode(errors="replace").strip()
