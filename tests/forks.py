"""Starts ``bfia-gateway`` for tests as real processes, forked from a server that has imported
everything.

Importing takes seconds, and the tests start hundreds of nodes. A forked process behaves like a new
one: it has its own session, environment, directory, descriptors, signal handlers and exit. The
demo, the images and the bench start new processes.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.namespaces import Namespace

ROOT = Path(__file__).resolve().parents[1]


class Process:
    """A process of the gateway, with the part of `subprocess.Popen` that tests need."""

    def __init__(
        self,
        pid: int,
        status_pipe: int,
        words: Sequence[str],
    ) -> None:
        """``status_pipe``: the descriptor from which its wait status is read once it has ended."""
        self.pid = pid
        self.args = ["bfia-gateway", *words]
        self.returncode: int | None = None
        self._status_pipe = status_pipe
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self._exit_code(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the process has ended.

        Raises `subprocess.TimeoutExpired` after ``timeout`` seconds.
        """
        code = self._exit_code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _exit_code(self, timeout: float | None) -> int | None:
        """Wait for the exit code, at most ``timeout`` seconds if given; None if it runs on."""
        deadline = None
        if timeout is not None:
            deadline = time.monotonic() + timeout
        status = select.poll()  # `select.select` refuses descriptors above 1024
        status.register(self._status_pipe, select.POLLIN)
        while self.returncode is None:
            milliseconds = None
            if deadline is not None:
                milliseconds = max(deadline - time.monotonic(), 0) * 1000
            if not status.poll(milliseconds):
                return None
            self._read_status()
        return self.returncode

    def _read_status(self) -> None:
        with self._lock:
            if self.returncode is not None:  # another thread has read it
                return
            status = os.read(self._status_pipe, 16)
            assert status, "the fork server has ended"
            os.close(self._status_pipe)
            self.returncode = os.waitstatus_to_exitcode(int(status))


def start(
    words: Sequence[str],
    *,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    pace: Mapping[str, float] | None = None,
    namespace: Namespace | None = None,
) -> Process:
    """Start the command with these words.

    ``env`` None: this process's environment. ``pace``: fields of a node's `Pace`, for ``serve``.
    ``namespace``: the network namespace to run in; None: that of this process.
    """
    if env is None:
        env = os.environ
    with open(os.devnull, "r+b", buffering=0) as devnull:
        descriptors = []
        for file in (stdin, stdout, stderr):
            if file == subprocess.DEVNULL:
                file = devnull
            descriptors.append(_descriptor(file))
        settings: dict[str, object] = {
            "environment": dict(env),
            "cwd": str(cwd),
            "pace": dict(pace or {}),
        }
        if namespace is not None:
            settings["namespace"] = namespace.path
        return _server.start(words, descriptors, settings)


def run(
    words: Sequence[str],
    *,
    input: str = "",
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
    cwd: Path = ROOT,
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; return its output.

    Raises `subprocess.TimeoutExpired` after ``timeout`` seconds, once the command is killed.
    """
    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        stdin.write(input.encode())
        stdin.seek(0)
        process = start(
            words,
            stdin=stdin,
            stdout=out,
            stderr=err,
            env=env,
            cwd=cwd,
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        stdout, stderr = _text(out), _text(err)
    return subprocess.CompletedProcess(process.args, code, stdout, stderr)


class _ForkServer:
    """The process that forks; started by the first command, ended with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None

    def start(
        self,
        words: Sequence[str],
        descriptors: list[int],
        settings: Mapping[str, object],
    ) -> Process:
        """Fork a process for a command; ``descriptors`` are its standard input, output and
        error. For ``settings`` see `tests.fork_server`.
        """
        words = [str(word) for word in words]
        request = {"words": words, **settings}
        status_pipe, write_end = os.pipe()
        try:
            with self._lock:
                if self._connection is None:
                    self._connection = _start_server()
                message = json.dumps(request).encode()
                socket.send_fds(self._connection, [message], [*descriptors, write_end])
                pid = int(self._connection.recv(16))
        finally:
            os.close(write_end)
        return Process(pid, status_pipe, words)


def _start_server() -> socket.socket:
    """Start `tests.fork_server`; return the socket that takes requests."""
    connection, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    with its_end:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server"],
            stdin=its_end,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            start_new_session=True,
        )
    atexit.register(_stop_server, connection, process)
    return connection


def _stop_server(connection: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    connection.close()
    process.wait(60)


def _descriptor(file: int | IO[bytes]) -> int:
    return file if isinstance(file, int) else file.fileno()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


_server = _ForkServer()
