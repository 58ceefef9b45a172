"""A listener of ours for tests: one application on a real socket, served as `gateway.http.server` serves it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp

from gateway.http.server import Tls, bound, port_of, serve


@contextmanager
def listening(app: ASGIApp, tls: Tls | None = None) -> Iterator[int]:
    """Serve the application until the test is over; yield its port."""
    sock = bound("127.0.0.1:0")
    up, hold = threading.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def main() -> None:
        stopping = asyncio.Event()
        hold.append((asyncio.get_running_loop(), stopping))
        await serve({"peer": app}, {"peer": [sock]}, up.set, stopping, tls={} if tls is None else {"peer": tls})

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    assert up.wait(30)
    try:
        yield port_of(sock)
    finally:
        loop, stopping = hold[0]
        loop.call_soon_threadsafe(stopping.set)
        thread.join(30)
