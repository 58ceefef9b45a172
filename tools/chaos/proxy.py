"""A proxy between two nodes on loopback that does to requests what networks do.

It reads whole HTTP messages, so that a fault hits at a chosen place: before the request arrives,
after it was answered, in the middle of the answer.
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

_LARGEST = 1 << 26
_SLOW = 10 * 1024


@dataclass
class Weather:
    """What happens to requests now: a fault, and to which share of them."""

    fault: str = ""
    share: float = 1.0
    random: Random = field(default_factory=lambda: Random(0))

    def strikes(self) -> bool:
        return bool(self.fault) and self.random.random() < self.share


class Proxy:
    """Listens on a port of its own and passes requests on to another. Runs in a thread of its own.

    With several it takes them in turn, as a load balancer does, and leaves out one that takes no
    connection.
    """

    def __init__(self, host: str, *ports: int) -> None:
        self._host = host
        self._ports = ports
        self._turn = 0
        self.weather = Weather()
        self.seen = 0
        """requests that came"""
        self.struck = 0
        """requests that a fault met"""
        self._loop = asyncio.new_event_loop()
        self._passed = asyncio.Event()
        self._server: Any = None
        self._tasks: set[asyncio.Task[None] | None] = set()
        self._transports: WeakSet[asyncio.WriteTransport] = WeakSet()
        """not the writers: one that still has to send outlives its writer, and the loop keeps it
        until then
        """
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Proxy":
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accepted, "127.0.0.1", 0), self._loop
        )
        self._server = started.result(60)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    def turn(
        self,
        fault: str,
        share: float = 1.0,
        seed: int = 0,
    ) -> None:
        """Begin a fault, or with an empty name end it."""
        self.weather = Weather(fault, share, Random(seed))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _end(self) -> None:
        self._server.close()
        while tasks := asyncio.all_tasks() - {
            asyncio.current_task()
        }:  # one that was just accepted begins another
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for transport in self._transports:
            transport.abort()
        await asyncio.sleep(0)  # the loop closes them, and what has no writer yet

    def _accepted(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Coroutine[Any, Any, None]:
        self._transports.add(
            writer.transport
        )  # a task that is cancelled before it begins closes nothing
        return self._kept(reader, writer)

    async def _kept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve; the loop itself does not keep a task whose connections have ended from the garbage
        collector.
        """
        self._tasks.add(task := asyncio.current_task())
        try:
            await self._serve(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError, asyncio.IncompleteReadError, asyncio.CancelledError, ValueError
        ):
            while (request := await _message(reader)) is not None:
                self.seen += 1
                fault = self.weather.fault if self.weather.strikes() else ""
                self.struck += bool(fault)
                doing: Callable[[bytes, asyncio.StreamWriter], Awaitable[bool]]
                doing = getattr(self, "_" + (fault or "well").replace("-", "_"))
                if not await doing(request, writer):
                    break
        with contextlib.suppress(OSError, asyncio.CancelledError):
            writer.close()

    async def _ask(self, request: bytes) -> bytes:
        reader, writer = await self._connected()
        self._transports.add(writer.transport)
        try:
            writer.write(request)
            await writer.drain()
            answer = await _message(reader, has_body=not request.startswith(b"HEAD "))
            if answer is None:
                raise ConnectionResetError
            return answer
        finally:
            writer.close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self._turn += 1
        for i, _ in enumerate(self._ports, 1):
            port = self._ports[(self._turn + i) % len(self._ports)]
            try:
                return await asyncio.open_connection(self._host, port, limit=_LARGEST)
            except OSError:
                if i == len(self._ports):
                    raise
        raise AssertionError("a proxy for nobody")

    async def _well(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(await self._ask(request))
        await writer.drain()
        self._passed.set()
        return True

    async def _delay(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(self.weather.random.uniform(0.1, 2.0))
        return await self._well(request, writer)

    async def _cut(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Reset the connection before the request arrives, or after it was answered."""
        if self.weather.random.random() < 0.5:
            await self._ask(request)
        writer.transport.abort()
        return False

    async def _half_close(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Bring half of the answer and say that no more comes."""
        answer = await self._ask(request)
        writer.write(answer[: len(answer) // 2])
        await writer.drain()
        writer.write_eof()
        await asyncio.sleep(0.2)
        return False

    async def _duplicate(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Deliver the request twice at the same time; return the first response."""
        both = [asyncio.create_task(self._ask(request)) for _ in range(2)]
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        writer.write(done.pop().result())
        await writer.drain()
        await asyncio.gather(*both, return_exceptions=True)
        return True

    async def _reorder(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Let a later request overtake this one, if one comes within two seconds."""
        self._passed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._passed.wait(), 2.0)
        return await self._well(request, writer)

    async def _slow(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Pass 10 KiB a second in each direction."""
        await asyncio.sleep(len(request) / _SLOW)
        answer = await self._ask(request)
        await asyncio.sleep(len(answer) / _SLOW)
        writer.write(answer)
        await writer.drain()
        return True

    async def _forged(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Have S3 see the signature of another key."""
        return await self._well(request.replace(b"Signature=", b"Signature=0"), writer)

    async def _blackhole(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Take everything and answer nothing until the weather changes; then the connection is
        dead.
        """
        weather = self.weather
        while self.weather is weather:
            await asyncio.sleep(0.05)
        writer.transport.abort()
        return False


async def _message(reader: asyncio.StreamReader, *, has_body: bool = True) -> bytes | None:
    """Read one request or answer whole; None at the end of the connection.

    ``has_body``: False for the answer to HEAD, whose headers give the length of a body that does
    not come.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    if not has_body:
        return head
    length, chunked = 0, False
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
        chunked = chunked or (name.lower() == b"transfer-encoding" and b"chunked" in value.lower())
    if not chunked:
        return head + await reader.readexactly(length)
    body = b""
    while True:
        size = await reader.readline()
        chunk = await reader.readexactly(int(size.split(b";")[0], 16) + 2)
        body += size + chunk
        if int(size.split(b";")[0], 16) == 0:
            return head + body
