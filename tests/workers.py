"""Forks the workers of a test run from a process that has imported the tests.

Importing all tests takes a worker ten seconds of computing, and 25 s in a new checkout, where it
compiles them. `start` makes pytest-xdist begin each worker with `tests/joining.py`, which hands its
standard streams over to a fork of the server, this module. The server ends with the test run.
"""

import atexit
import contextlib
import gc
import importlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

import execnet
import pytest
from _pytest.config import Config, _prepareconfig, apply_warning_filters

ROOT = Path(__file__).resolve().parents[1]
JOINING = ROOT / "tests" / "joining.py"

# ---------------------------------------------------------------- in the process of the test run


def start(specs: Iterable[execnet.XSpec], paths: Sequence[str]) -> None:
    """Start the server; let each worker be a fork of it.

    ``paths`` are the files and folders of tests that the server imports.
    """
    address = f"bfia-workers-{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0{address}")
    listener.listen()
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.workers", str(listener.fileno()), *paths],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=[listener.fileno()],
        cwd=ROOT,
        start_new_session=True,
    )
    listener.close()
    atexit.register(_stop, server)
    for spec in specs:
        spec.python = f"{sys.executable} -S -E {JOINING} {address}"


def _stop(server: "subprocess.Popen[bytes]") -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait(60)


# ---------------------------------------------------------------- in the server


def load(paths: Sequence[str]) -> None:
    """Import the tests below these paths as pytest does: with its assertions, and with every
    warning as an error.

    A module that cannot be imported is left to the workers, which report why.
    """
    config = _prepareconfig(["-s", *paths])
    with warnings.catch_warnings():
        apply_warning_filters(config.getini("filterwarnings"), [])
        for module in _modules(config):
            with contextlib.suppress(Exception, pytest.skip.Exception):
                importlib.import_module(module)
    config._ensure_unconfigure()
    gc.collect()
    gc.freeze()


def _modules(config: Config) -> list[str]:
    """Return the names of all test modules below the paths of a configuration."""
    files: set[Path] = set()
    for argument in config.args:
        path = Path(argument.partition("::")[0]).resolve()
        if path.is_dir():
            files |= {*path.rglob("conftest.py"), *path.rglob("test_*.py")}
        else:
            files.add(path)
    relative = [file.relative_to(ROOT).with_suffix("") for file in files]
    return sorted(".".join(path.parts) for path in relative)


def serve(listener: socket.socket) -> None:
    """Fork a worker for each connection.

    Returns in the worker. In the server, returns never: it exits once the test run has ended.
    """
    workers: dict[int, tuple[int, socket.socket]] = {}  # pidfd: process id, its `joining.py`
    events = select.poll()
    events.register(listener, select.POLLIN)
    events.register(sys.stdin.fileno(), select.POLLIN)
    while True:
        for descriptor, _ in events.poll():
            if descriptor == listener.fileno():
                connection, _ = listener.accept()
                _, streams, _, _ = socket.recv_fds(connection, 1, 3)
                pid = os.fork()
                if pid == 0:
                    listener.close()
                    connection.close()
                    for pidfd, (_, other_connection) in workers.items():
                        os.close(pidfd)
                        other_connection.close()
                    _become(streams)
                    return
                for stream in streams:
                    os.close(stream)
                pidfd = os.pidfd_open(pid)
                workers[pidfd] = (pid, connection)
                events.register(pidfd, select.POLLIN)
            elif descriptor in workers:
                events.unregister(descriptor)
                pid, connection = workers.pop(descriptor)
                os.waitpid(pid, 0)
                connection.close()
                os.close(descriptor)
            else:  # the test run has ended
                for pid, _ in workers.values():
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)


def _become(streams: list[int]) -> None:
    """Turn a copy of the server into a new process with these standard streams."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    random.seed()


def work() -> None:
    """Run the program that xdist sends, and exit without Python's slow clean-up."""
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    # as in the command line that execnet gives an interpreter
    exec(eval(sys.stdin.readline()), vars(main))
    threading._shutdown()  # type: ignore[attr-defined]  waits for threads
    atexit._run_exitfuncs()
    os._exit(0)


if __name__ == "__main__":
    load(sys.argv[2:])
    serve(socket.socket(fileno=int(sys.argv[1])))
    work()
