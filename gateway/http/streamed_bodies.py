"""Large bodies, which threads write to the client's socket or read from the socket.

The event loop would double the cost of each piece. A client that reads slowly occupies no thread:
the loop waits until its socket is writable again. Over TLS, the framework sends and receives.
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

WRITE = "bfia.write"  # ASGI extension; writes the rest of a response, see `write_pieces`
READ = "bfia.read"  # ASGI extension; gives the rest of a request's body to its caller, see `Rest`
_TURN = 0.5  # seconds; how long a thread writes before it lets others write
_SEND_TIMEOUT = 0.05  # seconds; a client that takes nothing for so long counts as stuck
_RETRY = 1.0  # seconds; how long the loop waits for a stuck client before the next try
_RECEIVE_TIMEOUT = 300.0  # seconds that a thread waits for a client's next bytes


class Body(StreamingResponse):
    """A streamed response; ``headers`` must contain its content-length.

    Where the server offers `WRITE`, threads write the body.
    """

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
        """Send the response."""
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


async def write_pieces(
    client: socket.socket,
    pieces: Iterator[bytes],
    is_lost: Callable[[], bool],
) -> bool:
    """Write pieces to a client in threads; return whether all were written.

    ``is_lost`` returns whether the connection has ended.
    """
    client.settimeout(_SEND_TIMEOUT)
    writer = _Writer(client, pieces)
    try:
        while await anyio.to_thread.run_sync(writer.write_on):
            if is_lost():
                return False
            if writer.is_stuck:
                await _wait_until_writable(client)
    except GatewayError as error:
        log.warning(
            "a download is broken off",
            reason=error.reason,
            cause=error.message,
        )
        return False
    finally:
        writer.close()
    return writer.is_complete


async def _wait_until_writable(client: socket.socket) -> None:
    """Wait until a client reads again, or for `_RETRY` seconds."""
    loop = asyncio.get_running_loop()
    writable = asyncio.Event()
    loop.add_writer(client, writable.set)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_RETRY):
            await writable.wait()
    loop.remove_writer(client)


class _Writer:
    """Writes pieces to a client, in turns that each take a thread for a short time.

    ``pieces`` is an iterator with a method ``close``, such as a generator.
    """

    def __init__(self, client: socket.socket, pieces: Any) -> None:
        self._client = client
        self._pieces = pieces
        self._unsent = memoryview(b"")
        self.is_stuck = False
        self.is_complete = False

    def write_on(self) -> bool:
        """Write for one turn; return False at the end, or if the client is gone."""
        self.is_stuck = False
        end_of_turn = time.monotonic() + _TURN
        while time.monotonic() < end_of_turn:
            try:
                while self._unsent:
                    count = self._client.send(self._unsent)
                    self._unsent = self._unsent[count:]
            except TimeoutError:
                self.is_stuck = True
                return True
            except OSError:  # the client is gone
                return False
            piece = next(self._pieces, None)
            if piece is None:
                self.is_complete = True
                return False
            self._unsent = memoryview(piece)
        return True

    def close(self) -> None:
        """Close the source of the pieces."""
        self._pieces.close()


class Rest(io.RawIOBase):
    """The rest of a request's body, readable in any thread.

    It is the bytes ``received`` already, then ``missing_bytes`` more from the socket. ``client`` is
    a duplicate of the connection's socket, for this object to close.
    """

    def __init__(
        self,
        client: socket.socket,
        received: bytes,
        missing_bytes: int,
    ) -> None:
        self._client = client
        self._received = received
        self._missing_bytes = missing_bytes
        client.settimeout(_RECEIVE_TIMEOUT)

    def readinto(self, buffer: Any, /) -> int:
        """Read into a buffer; return 0 at the end.

        Raises `OSError` if the client is gone or silent.
        """
        if self._received:
            data = self._received[: len(buffer)]
            self._received = self._received[len(data) :]
            buffer[: len(data)] = data
            return len(data)
        if not self._missing_bytes:
            return 0
        count = self._client.recv_into(
            buffer,
            min(len(buffer), self._missing_bytes),
        )
        if not count:
            raise ConnectionError("the client is gone")
        self._missing_bytes -= count
        return count

    def put_back(self, data: bytes) -> None:
        """Put bytes back to the front."""
        self._received = data + self._received

    def stop(self) -> None:
        """End the wait of a reading thread."""
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close the duplicate of the client's socket."""
        self._client.close()
        super().close()
