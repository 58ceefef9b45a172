"""Bodies of many bytes: a thread writes a response to the client's socket, and reads a request's from it.

Through the event loop each piece costs as much again. A client that takes a response slowly holds no thread: the
loop waits until it takes more. By TLS the framework sends and receives.
"""

import asyncio
import contextlib
import io
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import anyio.to_thread
import structlog
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway.errors import GatewayError

log = structlog.get_logger(__name__)

WRITE = "bfia.write"
"""the ASGI extension that writes what is left of a response, see `written`"""
READ = "bfia.read"
"""the ASGI extension that leaves what is left of a request's body to its caller, see `Rest`"""
_TURN = 0.5
"""seconds for which a thread writes; then others have their turn"""
_STUCK = 0.05
"""seconds that a thread waits for a client that takes nothing"""
_AGAIN = 1.0
"""seconds after which it is tried again, whatever the event loop knows of the client"""
_SILENT = 300.0
"""seconds that a thread waits for a client that sends nothing"""


class Body(StreamingResponse):
    """A response whose length the headers name."""

    def __init__(
        self,
        pieces: Iterator[bytes],
        status: int,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(pieces, status, headers, media_type="application/octet-stream")
        self._pieces = pieces

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a request."""
        write = scope.get("extensions", {}).get(WRITE)
        if write is None:
            await super().__call__(scope, receive, send)
            return
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        await write(self._pieces)
        await send({"type": "http.response.body"})


async def written(
    client: socket.socket,
    pieces: Iterator[bytes],
    gone: Callable[[], bool],
) -> bool:
    """Write to a client what an iterator yields, in a thread; return whether all was."""
    client.settimeout(_STUCK)
    writing, loop = _Writing(client, pieces), asyncio.get_running_loop()
    try:
        while await anyio.to_thread.run_sync(writing.go_on):
            if gone():
                return False
            if writing.stuck:
                room = asyncio.Event()
                loop.add_writer(client, room.set)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_AGAIN):
                        await room.wait()
                loop.remove_writer(client)
    except GatewayError as error:
        log.warning("a download is broken off", reason=error.reason, cause=error.message)
        return False
    finally:
        writing.end()
    return writing.whole


class _Writing:
    def __init__(self, client: socket.socket, pieces: Any) -> None:
        self._client = client
        self._pieces = pieces
        self._rest = memoryview(b"")
        self.stuck = False
        """whether the client takes nothing at the moment"""
        self.whole = False

    def go_on(self) -> bool:
        """Write for a moment; False: it is over."""
        until, self.stuck = time.monotonic() + _TURN, False
        while time.monotonic() < until:
            try:
                while self._rest:
                    self._rest = self._rest[self._client.send(self._rest) :]
            except TimeoutError:
                self.stuck = True
                return True
            except OSError:  # the client is gone
                return False
            piece = next(self._pieces, None)
            if piece is None:
                self.whole = True
                return False
            self._rest = memoryview(piece)
        return True

    def end(self) -> None:
        """Close what is read from."""
        self._pieces.close()


class Rest(io.RawIOBase):
    """What is left of a request's body, for any thread to read."""

    def __init__(
        self,
        client: socket.socket,
        begun: bytes,
        left: int,
    ) -> None:
        """``begun`` was received already, ``left`` bytes were not."""
        self._client = client
        self._begun = begun
        self._left = left
        client.settimeout(_SILENT)

    def readinto(self, buffer: Any, /) -> int:
        """Wait for more, 0: it is at its end. Raises `OSError` where the client is gone or silent."""
        if data := self._begun[: len(buffer)]:
            self._begun = self._begun[len(data) :]
            buffer[: len(data)] = data
            return len(data)
        count = self._client.recv_into(buffer, min(len(buffer), self._left)) if self._left else 0
        if self._left and not count:
            raise ConnectionError("the client is gone")
        self._left -= count
        return count

    def put_back(self, data: bytes) -> None:
        """Have some bytes come first."""
        self._begun = data + self._begun

    def stop(self) -> None:
        """End the wait of the thread that reads."""
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Give the socket back."""
        self._client.close()
        super().close()
