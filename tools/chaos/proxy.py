"""A proxy between two nodes on loopback, with the faults of networks.

It reads complete HTTP messages, so that a fault strikes at a certain place: before the request
arrives, after the response was sent, or in the middle of the response.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any
from weakref import WeakSet

FAULTS = ("delay", "cut", "half-close", "duplicate", "reorder", "blackhole")

_LARGEST_HEAD = 1 << 26  # bytes that a reader buffers
_SLOW_RATE = 10 * 1024  # bytes per second
_TIMEOUT = 60  # seconds for the start and the end
_REORDER_SECONDS = 2.0  # for which a request waits for a later one

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
Treatment = Callable[[bytes, Writer], Awaitable[bool]]


@dataclass
class Weather:
    """The present fault of the network, and the share of requests that it strikes."""

    fault: str = ""
    share: float = 1.0
    random: Random = field(default_factory=lambda: Random(0))

    def strikes(self) -> bool:
        """Decide at random whether the fault strikes the next request."""
        return bool(self.fault) and self.random.random() < self.share


class Proxy:
    """Listens on a port, and forwards requests to another port. Runs in a thread of its own.

    With several ports it uses each in turn, as a load balancer does, and skips one that accepts no
    connection.
    """

    def __init__(self, host: str, *ports: int) -> None:
        self._host = host
        self._ports = ports
        self._connections = 0  # so far, which determines the next port
        self.weather = Weather()
        self.seen = 0  # requests so far
        self.struck = 0  # requests with a fault
        self._loop = asyncio.new_event_loop()
        self._forwarded = asyncio.Event()  # set when a request has had its response
        self._server: Any = None
        # The loop itself does not protect a task from the garbage collector once its connections
        # have ended.
        self._tasks: set[asyncio.Task[None] | None] = set()
        # Transports and not writers: a transport with unsent data outlives its writer.
        self._transports: WeakSet[asyncio.WriteTransport] = WeakSet()
        self._thread = threading.Thread(
            target=self._run,
            daemon=True,
        )

    def __enter__(self) -> "Proxy":
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accept, "127.0.0.1", 0), self._loop
        )
        self._server = started.result(_TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_TIMEOUT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_TIMEOUT)
        self._loop.close()

    @property
    def port(self) -> int:
        """Return the port on which it listens."""
        return int(self._server.sockets[0].getsockname()[1])

    def turn(
        self,
        fault: str,
        share: float = 1.0,
        seed: int = 0,
    ) -> None:
        """Begin a fault of a share of the requests; an empty name ends the present fault."""
        self.weather = Weather(fault, share, Random(seed))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _end(self) -> None:
        self._server.close()
        tasks = self._other_tasks()
        while tasks:  # a connection that was just accepted starts another one
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            tasks = self._other_tasks()
        for transport in self._transports:
            transport.abort()
        # The loop now closes them, and also sockets without a writer.
        await asyncio.sleep(0)

    def _other_tasks(self) -> set[asyncio.Task[Any]]:
        return asyncio.all_tasks(self._loop) - {asyncio.current_task()}  # type: ignore[arg-type]

    def _accept(
        self,
        reader: Reader,
        writer: Writer,
    ) -> Coroutine[Any, Any, None]:
        # Here and not in the task, which closes nothing if it is cancelled before it begins.
        self._transports.add(writer.transport)
        return self._serve_in_task(reader, writer)

    async def _serve_in_task(self, reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        """Serve the requests of a connection until it ends, or a fault ends it."""
        with contextlib.suppress(
            OSError, asyncio.IncompleteReadError, asyncio.CancelledError, ValueError
        ):
            is_open = True
            while is_open:
                request = await _read_message(reader)
                if request is None:
                    break
                is_open = await self._treatment()(request, writer)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            writer.close()

    def _treatment(self) -> Treatment:
        """Count a request, and return the function that treats it: with the fault or without."""
        self.seen += 1
        if not self.weather.strikes():
            return self._forward
        self.struck += 1
        return self._treatments()[self.weather.fault]

    def _treatments(self) -> dict[str, Treatment]:
        """Return the treatment of requests by each fault."""
        return {
            "delay": self._delay,
            "cut": self._cut,
            "half-close": self._half_close,
            "duplicate": self._duplicate,
            "reorder": self._reorder,
            "blackhole": self._blackhole,
            "slow": self._slow,
            "forged": self._forge,
        }

    async def _response_to(self, request: bytes) -> bytes:
        """Send a request to the node, and return its response."""
        reader, writer = await self._connect()
        self._transports.add(writer.transport)
        try:
            writer.write(request)
            await writer.drain()
            response = await _read_message(reader, has_body=not request.startswith(b"HEAD "))
            if response is None:
                raise ConnectionResetError
            return response
        finally:
            writer.close()

    async def _connect(self) -> tuple[Reader, Writer]:
        """Connect to the next port that accepts the connection. Raises `OSError` if none does."""
        self._connections += 1
        failure = OSError("no port")
        for offset in range(len(self._ports)):
            port = self._ports[(self._connections + offset) % len(self._ports)]
            try:
                return await asyncio.open_connection(
                    self._host,
                    port,
                    limit=_LARGEST_HEAD,
                )
            except OSError as error:
                failure = error
        raise failure

    # Each treatment returns whether the connection can be used further.

    async def _forward(self, request: bytes, writer: Writer) -> bool:
        """Forward without a fault."""
        writer.write(await self._response_to(request))
        await writer.drain()
        self._forwarded.set()
        return True

    async def _delay(self, request: bytes, writer: Writer) -> bool:
        """Forward after a random delay."""
        await asyncio.sleep(self.weather.random.uniform(0.1, 2.0))
        return await self._forward(request, writer)

    async def _cut(self, request: bytes, writer: Writer) -> bool:
        """Reset the connection before the request arrives, or after the node has responded."""
        if self.weather.random.random() < 0.5:
            await self._response_to(request)
        writer.transport.abort()
        return False

    async def _half_close(self, request: bytes, writer: Writer) -> bool:
        """Send half of the response, and then the end of the stream."""
        response = await self._response_to(request)
        writer.write(response[: len(response) // 2])
        await writer.drain()
        writer.write_eof()
        await asyncio.sleep(0.2)
        return False

    async def _duplicate(self, request: bytes, writer: Writer) -> bool:
        """Deliver the request twice at the same time; return the first response."""
        both = [asyncio.create_task(self._response_to(request)) for _ in range(2)]
        done, _ = await asyncio.wait(
            both,
            return_when=asyncio.FIRST_COMPLETED,
        )
        writer.write(done.pop().result())
        await writer.drain()
        await asyncio.gather(*both, return_exceptions=True)
        return True

    async def _reorder(self, request: bytes, writer: Writer) -> bool:
        """Let a later request overtake this one, if one comes within two seconds."""
        self._forwarded.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._forwarded.wait(), _REORDER_SECONDS)
        return await self._forward(request, writer)

    async def _slow(self, request: bytes, writer: Writer) -> bool:
        """Pass 10 KiB a second in each direction."""
        await asyncio.sleep(len(request) / _SLOW_RATE)
        response = await self._response_to(request)
        await asyncio.sleep(len(response) / _SLOW_RATE)
        writer.write(response)
        await writer.drain()
        return True

    async def _forge(self, request: bytes, writer: Writer) -> bool:
        """Forward with a signature that is wrong for S3."""
        return await self._forward(request.replace(b"Signature=", b"Signature=0"), writer)

    async def _blackhole(self, request: bytes, writer: Writer) -> bool:
        """Send no response until the fault ends; then reset the connection."""
        weather = self.weather
        while self.weather is weather:
            await asyncio.sleep(0.05)
        writer.transport.abort()
        return False


async def _read_message(
    reader: Reader,
    *,
    has_body: bool = True,
) -> bytes | None:
    """Read a complete request or response; None at the end of the connection.

    ``has_body``: False for the response to HEAD, whose headers give the length of a body that does
    not follow.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    if not has_body:
        return head
    length = _body_length(head)
    if length is None:
        return head + await _read_chunks(reader)
    return head + await reader.readexactly(length)


def _body_length(head: bytes) -> int | None:
    """Return the bytes of a message's body; None for a body in chunks."""
    length = 0
    for line in head.lower().split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name == b"transfer-encoding" and b"chunked" in value:
            return None
        if name == b"content-length":
            length = int(value)
    return length


async def _read_chunks(reader: Reader) -> bytes:
    """Read a body in chunks, with the lines of their sizes."""
    body = b""
    while True:
        size_line = await reader.readline()
        size = int(size_line.split(b";")[0], 16)
        chunk = await reader.readexactly(size + len(b"\r\n"))
        body += size_line + chunk
        if size == 0:
            return body
