"""Has all of the gateway imported and forks a process for each of its commands that a test asks for.

Started by `tests.forks` with one end of a socket as its standard input. A request is a JSON object with the words
after ``bfia-gateway``, the environment and the directory, and comes with four descriptors: standard input, output,
error, and one on which the child's wait status is written when it has ended. The answer is the child's number.
The server ends, and its children with it, when the other end of the socket is closed.
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
from tests import made_once
from tests.inprocess import settings


def serve(way: socket.socket) -> dict[str, Any] | None:
    """Fork until nobody asks any more, then return nothing; in a child return the request for its command."""
    children: dict[int, tuple[int, int]] = {}  # by pidfd: process, where its end is told
    events = select.poll()
    events.register(way, select.POLLIN)
    while True:
        for descriptor, _ in events.poll():
            if descriptor in children:
                events.unregister(descriptor)
                _collect(*children.pop(descriptor))
                os.close(descriptor)
                continue
            data, descriptors, _, _ = socket.recv_fds(way, 1 << 20, 4)
            if not data:
                for pid, _ in children.values():
                    os.kill(pid, signal.SIGKILL)
                return None
            request: dict[str, Any] = json.loads(data)
            pid = os.fork()
            if pid == 0:
                _become(request, descriptors)
                return request
            for used in descriptors[:3]:
                os.close(used)
            pidfd = os.pidfd_open(pid)
            children[pidfd] = (pid, descriptors[3])
            events.register(pidfd, select.POLLIN)
            way.send(str(pid).encode())


def _collect(pid: int, told: int) -> None:
    _, status = os.waitpid(pid, 0)
    try:
        os.write(told, str(status).encode())
    except BrokenPipeError:  # nobody waits for it
        pass
    finally:
        os.close(told)


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Make of a copy of the server what a start of the command would have made."""
    os.setsid()
    for number in range(3):
        os.dup2(descriptors[number], number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(
        2,
        "w",
        encoding="utf-8",
        errors="backslashreplace",
        buffering=1,
        closefd=False,
    )


LATER = (
    "pydantic.v1",
    "pymysql",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.sqlite",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.auto",
)
"""what other people's libraries import once they are used"""


def load() -> None:
    """Import what any of the commands does, and make what a node makes of types."""
    for module in pkgutil.iter_modules(gateway.cli.__path__, "gateway.cli."):
        importlib.import_module(module.name)
    for name in LATER:
        importlib.import_module(name)
    made_once.install()
    with (
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as nothing,
        redirect_stdout(nothing),
    ):
        Gateway(settings(Path(folder) / "node")).stop()
    made_once.when_used()


def run(request: dict[str, Any]) -> None:
    """Run the command and end as a new process would, but for taking apart what it had imported."""
    sys.argv = ["bfia-gateway", *request["words"]]
    gateway.cli.serve.run = partial(gateway.cli.serve.run, pace=Pace(**request["pace"]))
    try:
        main()
    except SystemExit as end:
        threading._shutdown()  # type: ignore[attr-defined]  waits for threads
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 0)


if __name__ == "__main__":
    load()
    gc.freeze()
    wanted = serve(socket.socket(fileno=os.dup(0)))
    if wanted is not None:
        run(wanted)
