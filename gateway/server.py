"""Runs the listeners of one node in one process and one event loop, until a signal ends them."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence

import uvicorn
from starlette.types import ASGIApp


def bound(address: str) -> socket.socket:
    """Bind ``host:port`` (port 0: any free one). Raises `OSError`, naming the address."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, so that asyncio sets TCP_NODELAY
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, int(port)))
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from error
    sock.listen(2048)
    sock.set_inheritable(False)
    return sock


def port_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # one handler for all listeners, below


async def serve(
    apps: Mapping[str, ASGIApp],
    sockets: Mapping[str, Sequence[socket.socket]],
    ready: Callable[[], None],
    stopping: asyncio.Event | None = None,
) -> None:
    """Serve each named application on its sockets; call ``ready`` once all answer.

    Return after a signal; where ``stopping`` is given, when that is set, and signals are left alone.
    """
    servers = {
        name: _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=5,
                h11_max_incomplete_event_size=256 * 1024,
            )
        )
        for name, app in apps.items()
    }

    def leave() -> None:
        for server in servers.values():
            if server.should_exit:
                server.force_exit = True
            server.should_exit = True

    tasks = [asyncio.create_task(server.serve(sockets=list(sockets[n]))) for n, server in servers.items()]
    if stopping is None:
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, leave)
    else:
        waiting = asyncio.create_task(stopping.wait())
        waiting.add_done_callback(lambda _: leave())
    while not all(server.started for server in servers.values()):
        if any(task.done() for task in tasks):
            break
        await asyncio.sleep(0.01)
    else:
        ready()
    await asyncio.gather(*tasks)
