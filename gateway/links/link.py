"""One link under way. Each of its streams ends at a socket of this process."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from gateway.domain.links.frames import Frame, Kind, LinkLost, decode, encode
from gateway.domain.links.multiplex import (
    Broken,
    Credited,
    Ended,
    LinkEvent,
    Multiplexer,
    Opened,
    Received,
    TooManyStreams,
)
from gateway.domain.spec import NodeId

if TYPE_CHECKING:  # an idle node without links needs no WebSockets, which take 2 MB
    from gateway.links.carrier import Carrier

log = logging.getLogger(__name__)

PING_SECONDS = 2.0  # between two pings; proxies cut idle connections after 60 s
SILENCE_SECONDS = 6.0  # without a sign of life after which a link counts as lost


@dataclass(frozen=True)
class LinkOrigin:
    """Where a link comes from."""

    node: NodeId  # whose identity was proven when the link was opened
    address: str  # of the other end of the connection
    dials_out: bool  # whether this node has dialled
    since: datetime
    url: str  # of the route by which this node has dialled; "" if it was dialled
    certificates: tuple[str, ...] = ()  # the client's certificate in PEM form, if it showed one
    # Name of this node's gateway whose links of the node are used; "" for a link that ends here
    gateway: str = ""


# Serves a stream that the other end has opened, as a connection to the listener for peers.
Serve = Callable[[socket.socket, LinkOrigin], None]


class _Stream:
    """This end of one stream: a socket, and the bytes that wait for it."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        self.sock = sock
        self.arrived: asyncio.Queue[bytes] = asyncio.Queue()  # b"" is the end
        self.has_room = asyncio.Event()  # set while the other end takes further bytes
        self.has_room.set()
        self.carrying: asyncio.Task[None] | None = None


class Link:
    """A link, whose `run` lasts as long as its connection. Belongs to one event loop."""

    def __init__(
        self,
        carrier: "Carrier",
        origin: LinkOrigin,
        serve: Serve,
    ) -> None:
        self.origin = origin
        self._carrier = carrier
        self._serve = serve
        self._multiplexer = Multiplexer(has_opened_link=origin.dials_out)
        self._streams: dict[int, _Stream] = {}

    @property
    def last_received(self) -> float:
        """The time of the last sign of life of the other end, by the monotonic clock."""
        return self._carrier.last_received

    @property
    def streams(self) -> int:
        """The number of streams under way."""
        return len(self._streams)

    async def run(self) -> None:
        """Carry streams until the connection ends. Raises `LinkLost`, `LinkFault`.

        The other end has proven its identity.
        """
        self._carrier.allow_backlog()
        pinging = asyncio.create_task(self._keep_alive())
        try:
            while True:
                message = await self._carrier.receive()
                frame = decode(message)
                for event in self._multiplexer.receive(frame):
                    self._handle(event)
                if frame.kind is Kind.OPEN:
                    # During a flood, other tasks go on, and streams that were broken off close
                    # their sockets.
                    await asyncio.sleep(0)
        finally:
            pinging.cancel()
            self.close()

    def close(self) -> None:
        """Break off the link and all its streams; their sockets are closed a moment later."""
        self._carrier.close()
        for stream in list(self._streams.values()):
            _cancel(stream)

    def adopt(self, sock: socket.socket) -> None:
        """Open a stream for a socket, which is closed if the link takes no stream."""
        try:
            frame = self._multiplexer.open()
            self._carrier.post(encode(frame))
        except (TooManyStreams, LinkLost) as error:
            self._log_refusal(error)
            sock.close()
            return
        self._begin(frame.stream, sock)

    # -------------------------------------------------------- events

    def _handle(self, event: LinkEvent) -> None:
        """Apply an event of the other end."""
        if isinstance(event, Opened):
            self._accept(event.stream)
            return
        stream = self._streams.get(event.stream)
        if stream is None:
            return
        match event:
            case Received(_, data):
                stream.arrived.put_nowait(data)
            case Ended():
                stream.arrived.put_nowait(b"")
            case Credited():
                stream.has_room.set()
            case Broken():
                _cancel(stream)

    def _accept(self, number: int) -> None:
        """Serve a stream of the other end as a connection to the listener for peers."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:  # no descriptor is free
            self._log_refusal(error)
            self._break_off(number)
            return
        self._begin(number, ours)
        self._serve(theirs, self.origin)

    def _begin(self, number: int, sock: socket.socket) -> None:
        """Carry a stream in a task of its own."""
        sock.setblocking(False)
        stream = _Stream(number, sock)
        self._streams[number] = stream
        stream.carrying = asyncio.create_task(self._carry(stream))
        stream.carrying.add_done_callback(partial(self._forget, stream))

    def _forget(self, stream: _Stream, _: object) -> None:
        """Close the socket of an ended stream, and break the stream off."""
        del self._streams[stream.number]
        stream.sock.close()
        self._break_off(stream.number)

    def _break_off(self, number: int) -> None:
        """Tell the other end that a stream is broken off, unless the stream has ended."""
        with suppress(LinkLost):
            for frame in self._multiplexer.reset(number):
                message = encode(frame)
                self._carrier.post(message)

    def _log_refusal(self, error: Exception) -> None:
        """Log why a stream does not begin."""
        fields = {
            "node": self.origin.node,
            "cause": str(error),
        }
        log.warning("a link takes no request", extra=fields)

    # -------------------------------------------------------- copying

    async def _carry(self, stream: _Stream) -> None:
        """Copy a stream's bytes in both directions until both have ended."""
        try:
            async with asyncio.TaskGroup() as copies:
                copies.create_task(self._copy_out(stream))
                copies.create_task(self._copy_in(stream))
        except* LinkLost:
            log.debug("a stream ended with its link", extra={"node": self.origin.node})
        except* OSError:
            log.debug("the end of a stream is closed", extra={"node": self.origin.node})

    async def _copy_out(self, stream: _Stream) -> None:
        """Send the bytes from the socket, as the flow control allows.

        Raises `LinkLost`, OSError.
        """
        loop = asyncio.get_running_loop()
        while True:
            room = await self._room(stream)
            data = await loop.sock_recv(stream.sock, room)
            is_open = self._multiplexer.is_open(stream.number)  # it may end while data arrives
            if not data or not is_open:
                break
            frame = self._multiplexer.send(stream.number, data)
            await self._send(frame)
        await self._send(*self._multiplexer.end(stream.number))

    async def _room(self, stream: _Stream) -> int:
        """Wait until the other end takes bytes of a stream; return how many."""
        while True:
            room = self._multiplexer.room(stream.number)
            if room:
                return room
            stream.has_room.clear()
            await stream.has_room.wait()

    async def _copy_in(self, stream: _Stream) -> None:
        """Write received bytes to the socket, and grant further ones.

        Raises `LinkLost`, OSError.
        """
        loop = asyncio.get_running_loop()
        while True:
            data = await stream.arrived.get()
            if not data:
                break
            await loop.sock_sendall(stream.sock, data)
            grants = self._multiplexer.take(stream.number, len(data))
            await self._send(*grants)
        stream.sock.shutdown(socket.SHUT_WR)

    async def _send(self, *frames: Frame) -> None:
        """Send frames. Raises `LinkLost`."""
        for frame in frames:
            message = encode(frame)
            await self._carrier.send(message)

    def _is_silent(self) -> bool:
        """Return whether the other end has given no sign of life for too long."""
        silence = time.monotonic() - self.last_received
        return silence > SILENCE_SECONDS

    async def _keep_alive(self) -> None:
        """Ping the other end; break off the link if it stays silent."""
        while not self._is_silent():
            self._carrier.ping()
            await asyncio.sleep(PING_SECONDS)
        self._carrier.close()


def _cancel(stream: _Stream) -> None:
    """Stop carrying a stream; its socket is closed."""
    if stream.carrying is not None:
        stream.carrying.cancel()
