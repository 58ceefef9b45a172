"""A line on loopback that counts round trips instead of taking time for them.

A connection costs one round trip to open, and one for each turn: bytes of the client that follow
bytes of the server, or are the first ones. So a TLS handshake counts, too, and the speed of a
machine changes nothing.

`CountedLine.gather` shows whether requests are sent together: responses wait for all of them.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

_BLOCK = 1 << 16  # bytes
_TIMEOUT = 60  # seconds for the start and the end

OPENED = "opened"
TURN = "turn"


class CountedLine:
    """Passes connections on to an address, and notes their round trips. Use as a context."""

    def __init__(
        self,
        url: str,
        round_trips: list[str] | None = None,
    ) -> None:
        """``url``: the listener's at the other end.

        ``round_trips``: the list of another line, for the order of both lines' round trips.
        """
        if round_trips is None:
            round_trips = []
        self.round_trips = round_trips  # `OPENED` and `TURN`, in their order
        self._awaited = 0  # turns before responses pass
        self._passing = asyncio.Event()
        self._passing.set()
        address = urlsplit(url)
        self._scheme = address.scheme
        self._target = (address.hostname, address.port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> "CountedLine":
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(_TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_TIMEOUT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_TIMEOUT)
        self._loop.close()

    @property
    def url(self) -> str:
        """The address of this end."""
        port = self._server.sockets[0].getsockname()[1]
        return f"{self._scheme}://127.0.0.1:{port}"

    def gather(self, requests: int) -> None:
        """Clear the notes, and hold the responses back until ``requests`` requests have begun."""
        self.round_trips.clear()
        self._awaited = requests
        self._loop.call_soon_threadsafe(self._passing.clear)

    async def _end(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Pass one connection on until both ends have closed it."""
        self.round_trips.append(OPENED)
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, far_writer}
        connection = _Connection(self._count_turn, self._passing)
        await asyncio.gather(
            _copy(reader, far_writer, connection.let_client_speak),
            _copy(far_reader, writer, connection.let_server_speak),
        )
        self._writers -= {writer, far_writer}

    def _count_turn(self) -> None:
        self.round_trips.append(TURN)
        if self.round_trips.count(TURN) >= self._awaited:
            self._passing.set()


class _Connection:
    """Counts the turns of one connection."""

    def __init__(
        self,
        count: Callable[[], None],
        passing: asyncio.Event,
    ) -> None:
        """``passing`` is set while bytes of the server may pass."""
        self._count = count
        self._passing = passing
        self._is_client_speaking = False

    async def let_client_speak(self) -> None:
        """Count a turn with the first bytes of the client."""
        if not self._is_client_speaking:
            self._count()
        self._is_client_speaking = True

    async def let_server_speak(self) -> None:
        """Wait until the server's bytes may pass; the next ones of the client count."""
        await self._passing.wait()
        self._is_client_speaking = False


async def _copy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    let_speak: Callable[[], Awaitable[None]],
) -> None:
    """Copy bytes until the end of a direction, which ends the other one, too."""
    try:
        while data := await reader.read(_BLOCK):
            await let_speak()
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()
