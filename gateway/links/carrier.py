"""The WebSocket that carries a link: binary messages over the bytes of one connection.

The WebSocket passes proxies and firewalls on port 443. It is spoken with the protocol objects of
the library ``websockets`` over asyncio's streams, which both ends of a link have.
"""

import asyncio
import time
from collections import deque

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidURI
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from gateway.domain.links.frames import LINK_PATH, MAX_FRAME, LinkLost

MAX_MESSAGE = MAX_FRAME  # bytes of one message, also of those before the first frame
_READ_SIZE = 256 * 1024  # bytes
# Bytes that wait to be sent: more than a frame of each stream has. An end with more of them answers
# pings of one that reads nothing.
_MAX_UNSENT = 64 * 1024 * 1024
# The same before the other end has proven its identity: two short messages, and answers to pings
_MAX_UNSENT_UNPROVEN = 64 * 1024
_MAX_PARTS = 1024  # of one message that a proxy has split, empty ones included
_WEBSOCKET_SCHEMES = {"http": "ws", "https": "wss"}


class Carrier:
    """One WebSocket. Belongs to one event loop; one task reads, several may write."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        protocol: ClientProtocol | ServerProtocol,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = protocol
        self._messages: deque[bytes] = deque()
        self._parts: list[bytes] = []  # of a message that a proxy has split
        self._max_unsent = _MAX_UNSENT_UNPROVEN
        self.last_received = time.monotonic()  # when the last bytes arrived

    @classmethod
    async def open(
        cls,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        url: str,
    ) -> "Carrier":
        """Open a WebSocket at a partner's listener; ``url`` is the route's. Raises `LinkLost`."""
        scheme, _, rest = url.partition("://")
        try:
            uri = parse_uri(f"{_WEBSOCKET_SCHEMES[scheme]}://{rest}{LINK_PATH}")
        except (KeyError, InvalidURI) as error:
            raise LinkLost(f"the address cannot be dialled: {error}") from error
        protocol = ClientProtocol(uri, max_size=MAX_MESSAGE)
        carrier = cls(reader, writer, protocol)
        protocol.send_request(protocol.connect())
        await carrier._flush()
        while protocol.state is State.CONNECTING:
            await carrier._read()
        return carrier

    @classmethod
    async def accept(
        cls,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        head: bytes,
    ) -> "Carrier":
        """Accept a WebSocket; ``head`` has the request's head, perhaps with bytes after it.

        Raises `LinkLost` for any other request, after the answer to it.
        """
        protocol = ServerProtocol(max_size=MAX_MESSAGE)
        carrier = cls(reader, writer, protocol)
        protocol.receive_data(head)
        for event in protocol.events_received():
            if isinstance(event, Request):
                protocol.send_response(protocol.accept(event))
            elif isinstance(event, Frame):
                carrier._collect(event)
        await carrier._flush()
        if protocol.state is not State.OPEN:
            raise LinkLost(f"no WebSocket: {protocol.handshake_exc}")
        return carrier

    def allow_backlog(self) -> None:
        """Let more bytes wait to be sent, as the other end has proven its identity."""
        self._max_unsent = _MAX_UNSENT

    def post(self, message: bytes) -> None:
        """Send a message without waiting, as a short one may be. Raises `LinkLost`."""
        if self._protocol.state is not State.OPEN:
            raise LinkLost("the link is closed")
        self._protocol.send_binary(message)
        self._write()

    async def send(self, message: bytes) -> None:
        """Send a message, and wait while the connection takes no more. Raises `LinkLost`."""
        self.post(message)
        await self._flush()

    def ping(self) -> None:
        """Ask the other end for a sign of life, without waiting for room on the connection."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_ping(b"")
            self._write()

    async def receive(self) -> bytes:
        """Return the next message. Raises `LinkLost` at the end of the connection."""
        while not self._messages:
            await self._read()
        return self._messages.popleft()

    def close(self) -> None:
        """Close the connection immediately."""
        self._writer.transport.abort()

    async def _read(self) -> None:
        """Read bytes, collect the messages in them and answer pings. Raises `LinkLost`."""
        try:
            data = await self._reader.read(_READ_SIZE)
        except OSError as error:
            raise LinkLost(f"the connection broke: {error}") from error
        if not data:
            raise LinkLost("the other end closed the connection")
        self.last_received = time.monotonic()
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._collect(event)
        self._write()  # the answers to pings; two ends that both waited for room would wait forever
        self._check_alive()

    def _check_alive(self) -> None:
        """Raise `LinkLost` for a WebSocket that was closed or whose other end breaks its rules."""
        if self._writer.transport.get_write_buffer_size() > self._max_unsent:
            raise LinkLost("the other end reads nothing")
        if self._protocol.state is State.OPEN:
            return
        error = self._protocol.handshake_exc
        if error is not None:
            raise LinkLost(f"no WebSocket: {error}")
        if self._protocol.state is not State.CONNECTING:
            raise LinkLost("the other end closed the link")

    def _collect(self, frame: Frame) -> None:
        """Add a frame of the WebSocket to its message; complete messages are queued.

        Raises `LinkLost` for a message in too many frames: empty ones could go on for ever.
        """
        if frame.opcode not in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
            return
        self._parts.append(bytes(frame.data))
        if len(self._parts) > _MAX_PARTS:
            raise LinkLost("the other end splits a message into too many frames")
        if frame.fin:
            self._messages.append(b"".join(self._parts))
            self._parts = []

    async def _flush(self) -> None:
        """Write the protocol's output. Raises `LinkLost`."""
        self._write()
        try:
            await self._writer.drain()
        except OSError as error:
            raise LinkLost(f"the connection broke: {error}") from error

    def _write(self) -> None:
        """Give the protocol's output to the connection."""
        for data in self._protocol.data_to_send():
            if data:
                self._writer.write(data)
