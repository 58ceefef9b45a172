"""Starts ``bfia-gateway`` for tests, as real processes that are forks of one which has imported everything.

Importing takes seconds, and the tests start hundreds of nodes. Such a process does what a new one would: it has
its own session, environment, directory, descriptors, signal handlers and end. The nodes of
the demo and of the images start anew all the same, and so does the bench.
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

ROOT = Path(__file__).resolve().parents[1]


class Process:
    """A process of the gateway: what of `subprocess.Popen` the tests need."""

    def __init__(
        self,
        pid: int,
        end: int,
        words: Sequence[str],
    ) -> None:
        self.pid = pid
        self.args = ["bfia-gateway", *words]
        self.returncode: int | None = None
        self._end = end
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises `subprocess.TimeoutExpired`."""
        if (code := self._ended(timeout)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        until = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if until is None else max(until - time.monotonic(), 0)
            if not select.select([self._end], [], [], left)[0]:
                return None
            with self._lock:
                if self.returncode is None:
                    status = os.read(self._end, 16)
                    assert status, "the process that forks has ended"
                    os.close(self._end)
                    self.returncode = os.waitstatus_to_exitcode(int(status))
        return self.returncode


def start(
    words: Sequence[str],
    *,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    pace: Mapping[str, float] | None = None,
) -> Process:
    """Start the command with these words; ``pace`` is a node's, for ``serve``."""
    with open(os.devnull, "r+b", buffering=0) as nothing:
        files = [
            nothing.fileno() if file == subprocess.DEVNULL else _number(file)
            for file in (stdin, stdout, stderr)
        ]
        return _server.start(words, files, dict(os.environ if env is None else env), cwd, pace)


def run(
    words: Sequence[str],
    *,
    input: str = "",
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
    cwd: Path = ROOT,
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; return what it said. Raises `subprocess.TimeoutExpired`."""
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
        said = [_text(file) for file in (out, err)]
    return subprocess.CompletedProcess(process.args, code, *said)


class _Server:
    """The process that forks; begun when it is first needed, ended with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._way: socket.socket | None = None

    def start(
        self,
        words: Sequence[str],
        files: list[int],
        environment: dict[str, str],
        cwd: Path,
        pace: Mapping[str, float] | None,
    ) -> Process:
        words = [*map(str, words)]
        request = {
            "words": words,
            "environment": environment,
            "cwd": str(cwd),
            "pace": dict(pace or {}),
        }
        ending, told = os.pipe()
        try:
            with self._lock:
                way = self._way = self._way or _begun()
                socket.send_fds(way, [json.dumps(request).encode()], [*files, told])
                pid = int(way.recv(16))
        finally:
            os.close(told)
        return Process(pid, ending, words)


def _begun() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server"],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            start_new_session=True,
        )
    atexit.register(_end, ours, process)
    return ours


def _end(way: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    way.close()
    process.wait(60)


def _number(file: int | IO[bytes]) -> int:
    return file if isinstance(file, int) else file.fileno()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


_server = _Server()
