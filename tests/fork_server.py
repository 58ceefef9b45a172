"""Imports all of the gateway and forks a process for each command of a test.

Started by `tests.forks` with one end of a socket as its standard input. A request is a JSON object
with the command's words, environment, directory and pace, and perhaps the file of its network
namespace. It comes with four descriptors: standard input, output and error, and one to which the
child's wait status is written when it has ended. The response is the child's process id. When the
other end of the socket is closed, the server kills its children and ends.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import tempfile
import threading
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import gateway.cli.serve
from gateway.bootstrap.node import Gateway
from gateway.bootstrap.parts import Pace
from gateway.cli.main import main
from tests import made_once, namespaces
from tests.inprocess import settings


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork a child for each request; return the request in the child, None in the server.

    The server returns once the connection is closed.
    """
    children: dict[int, tuple[int, int]] = {}  # pidfd: process id, descriptor for its wait status
    events = select.poll()
    events.register(connection, select.POLLIN)
    while True:
        for descriptor, _ in events.poll():
            if descriptor in children:
                events.unregister(descriptor)
                _collect(*children.pop(descriptor))
                os.close(descriptor)
                continue
            data, descriptors, _, _ = socket.recv_fds(
                connection,
                1 << 20,
                4,
            )
            if not data:
                for pid, _ in children.values():
                    os.kill(pid, signal.SIGKILL)
                return None
            request: dict[str, Any] = json.loads(data)
            pid = os.fork()
            if pid == 0:
                _become(request, descriptors)
                return request
            *standard_streams, status_pipe = descriptors
            for stream in standard_streams:
                os.close(stream)
            pidfd = os.pidfd_open(pid)
            children[pidfd] = (pid, status_pipe)
            events.register(pidfd, select.POLLIN)
            connection.send(str(pid).encode())


def _collect(pid: int, status_pipe: int) -> None:
    """Take the status of an ended child and write it for the test."""
    _, status = os.waitpid(pid, 0)
    try:
        os.write(status_pipe, str(status).encode())
    except BrokenPipeError:  # the test no longer waits for it
        pass
    finally:
        os.close(status_pipe)


def _become(
    request: dict[str, Any],
    descriptors: list[int],
) -> None:
    """Turn a copy of the server into a process as a start of the command would make it."""
    os.setsid()
    if "namespace" in request:
        namespaces.enter(request["namespace"])
    for number in range(3):
        os.dup2(descriptors[number], number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.stdin = open(
        0,
        encoding="utf-8",
        closefd=False,
    )
    sys.stdout = open(
        1,
        "w",
        encoding="utf-8",
        closefd=False,
    )
    sys.stderr = open(
        2,
        "w",
        encoding="utf-8",
        errors="backslashreplace",
        buffering=1,
        closefd=False,
    )


# Modules that libraries import at their first use.
LATE_IMPORTS = (
    "pydantic.v1",
    "pymysql",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.sqlite",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.auto",
)


def load() -> None:
    """Import the modules of all commands, and build the validators of a node."""
    for module in pkgutil.iter_modules(gateway.cli.__path__, "gateway.cli."):
        importlib.import_module(module.name)
    for name in LATE_IMPORTS:
        importlib.import_module(name)
    made_once.install()
    with (
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as devnull,
        redirect_stdout(devnull),
    ):
        node = Gateway(settings(Path(folder) / "node"))
        node.listeners.operators.complete()
        node.stop()
    made_once.when_used()


def run(request: dict[str, Any]) -> None:
    """Run the command and exit, without Python's slow clean-up of everything imported."""
    sys.argv = ["bfia-gateway", *request["words"]]
    gateway.cli.serve.run = partial(gateway.cli.serve.run, pace=Pace(**request["pace"]))
    try:
        main()
    except SystemExit as end:
        code = 0
        if isinstance(end.code, int):
            code = end.code
        threading._shutdown()  # type: ignore[attr-defined]  waits for threads
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    load()
    gc.freeze()
    command = serve(socket.socket(fileno=os.dup(0)))
    if command is not None:
        run(command)
