"""The channel over gRPC: each call is passed on to the listener's application as the same request over HTTP.

What that application checks therefore holds for gRPC, too: metadata become headers, and a call has the address and
the certificate of the connection by which it came.
"""

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from starlette.types import ASGIApp, Message

from adapter.bfia.channel import bodies, calls
from adapter.bfia.channel.codec import CHANNEL, GRPC, PASS_THROUGH, decode_answer, encode_answer
from adapter.bfia.channel.courier import BUFFER_FULL
from adapter.bfia.channel.forms import Form
from gateway.domain.problems import Problem
from gateway.errors import Invalid

if TYPE_CHECKING:
    import grpc.aio

SERVICE = "org.ppc.ptp.PrivateTransferTransport"
METHODS = {SERVICE: ("push", "pop", "peek", "release"), calls.SERVICE: ("invoke", "part")}
"""service -> its methods that take one message and return one; those that a listener lacks are not found there"""
_STREAM = "transport"
_MOST_OF_GRPC = (1 << 31) - 1
"""bytes of one message; a larger limit, which it would not understand, refused them all"""
_IDLE_SECONDS = 75
_KEEPALIVE_SECONDS = 60
"""after which a connection with calls is tried: a stream's client may be gone"""
_GRACE_SECONDS = 1.0
_STALL_SECONDS = 10.0
_LEAST_RATE = 32 * 1024
"""bytes per second of a connection on which a message is to come: gRPC shows none before it is whole"""
_OF_ONE, _OF_ALL = 8, 16
"""messages that are coming, or are large, of one run or node and of all: the size is known once it is in memory"""
_OF_ANYBODY = 4, 8
"""messages of which only the end tells whose they are, of one address and of all"""
_CALLS = 128
"""at the same time by one connection"""
_STREAMS = 16
"""of one node"""


class Grpc:
    """A gRPC server inside, begun by the first connection. Belongs to one event loop."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        """``app`` is what the listener answers; ``most_bytes`` the largest message."""
        self._app = app
        self._most_bytes = min(most_bytes, _MOST_OF_GRPC)
        self._lock = asyncio.Lock()
        self._server: grpc.aio.Server | None = None
        self._folder: Path | None = None
        self._numbers = count()
        self._connections: dict[str, tuple[Mapping[str, Any], _Counting]] = {}
        """name of a connection to the server -> who has connected to the listener, and what came from there"""
        self._places: WeakValueDictionary[tuple[str, ...], asyncio.Semaphore] = (
            WeakValueDictionary()
        )

    @asynccontextmanager
    async def connected(
        self, scope: Mapping[str, Any]
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Connect to it; ``scope`` is what the requests of the connection have in theirs. Raises `GrpcMissing`."""
        async with self._lock:
            folder = self._folder or await self._start()
        name = folder / str(next(self._numbers))
        try:
            reader, writer = await _opened(f"{folder}/grpc", str(name))
            self._connections[f"unix:{name}"] = scope, writer
            try:
                yield reader, writer
            finally:
                writer.close()
                del self._connections[f"unix:{name}"]
        finally:
            name.unlink(missing_ok=True)

    async def _start(self) -> Path:
        grpc = calls.library()
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self._most_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_connection_idle_ms", _IDLE_SECONDS * 1000),
                ("grpc.max_concurrent_streams", _CALLS),
                ("grpc.keepalive_time_ms", _KEEPALIVE_SECONDS * 1000),
            ]
        )
        for service, names in METHODS.items():
            # what a client sends in one message is read like a stream: not before its sender is known
            methods = {
                name: grpc.stream_unary_rpc_method_handler(self._single(name)) for name in names
            }
            if service == calls.SERVICE:
                methods[_STREAM] = grpc.stream_stream_rpc_method_handler(self._stream)
            self._server.add_generic_rpc_handlers(
                [grpc.method_handlers_generic_handler(service, methods)]
            )
        self._folder = Path(tempfile.mkdtemp(prefix="bfia-grpc-"))
        self._server.add_insecure_port(f"unix:{self._folder}/grpc")
        await self._server.start()
        return self._folder

    async def close(self) -> None:
        """End all calls."""
        if self._server is not None:
            await self._server.stop(_GRACE_SECONDS)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _single(self, method: str) -> Any:
        async def call(messages: AsyncIterator[bytes], context: Any) -> bytes:
            async with aclosing(aiter(messages)) as closed:  # type: ignore[type-var]  # else it keeps the message
                return await self._answer(method, closed, context)

        return call

    async def _stream(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Take each message of a stream as an invoke, one after the other, where the sender may begin a stream."""
        begun = await self._answer(_STREAM, messages, context)
        if not decode_answer(begun, Form.PROTOBUF.value).succeeded:
            yield begun
            return
        sender = _first(_headers(context), b"x-ptp-source-node-id")
        places = self._places_of(_STREAMS, "streams", sender)
        if places.locked():
            yield encode_answer(
                BUFFER_FULL, f"a node has at most {_STREAMS} streams here", form=Form.PROTOBUF
            )
            return
        async with places:
            async for message in messages:
                yield await self._answer("invoke", _only(message), context)

    async def _answer(
        self,
        method: str,
        messages: AsyncIterator[bytes],
        context: Any,
    ) -> bytes:
        grpc = calls.library()
        connection = self._connections.get(context.peer())
        if connection is None:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, "the connection did not come by the listener"
            )
            raise AssertionError
        status, answer = await self._ask(method, messages, _headers(context), *connection)
        if status == 404:
            await context.abort(
                grpc.StatusCode.UNIMPLEMENTED, f"{method} is not served at this address"
            )
        if status not in (200, 413):
            text = answer[:500].decode("utf-8", "replace")
            later = status == 429 or status >= 500
            refused = grpc.StatusCode.UNAVAILABLE if later else grpc.StatusCode.PERMISSION_DENIED
            await context.abort(refused, f"HTTP {status}: {text}")
        return answer

    async def _ask(
        self,
        method: str,
        messages: AsyncIterator[bytes],
        headers: list[tuple[bytes, bytes]],
        connection: Mapping[str, Any],
        came: "_Counting",
    ) -> tuple[int, bytes]:
        """Return status and body of the response to the same request over HTTP."""
        path = CHANNEL + method
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": GRPC,
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [*headers, (b"content-type", Form.PROTOBUF.value.encode())],
            "server": None,
            "state": {},
            **connection,
        }
        places = self._places_for(method, headers, connection)
        held = AsyncExitStack()
        status, pieces, waiting = 500, list[bytes](), True

        async def receive() -> Message:
            nonlocal waiting
            if not waiting:
                await asyncio.Event().wait()  # a call that is cancelled ends the application itself
            waiting = False
            async with AsyncExitStack() as taken:
                for place in places:
                    await taken.enter_async_context(place)
                message = await _whole(messages, came)
                if len(message) > bodies.LARGE:
                    held.push_async_exit(taken.pop_all())
            return {
                "type": "http.request",
                "body": message,
                "more_body": False,
            }

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            pieces.append(message.get("body", b""))

        async with held:
            await self._app(scope, receive, send)
        return status, b"".join(pieces)

    def _places_for(
        self,
        method: str,
        headers: list[tuple[bytes, bytes]],
        connection: Mapping[str, Any],
    ) -> list[asyncio.Semaphore]:
        """Return in what a message takes a place: of its sender and of all. A pop waits for no other run."""
        address = (connection.get("client") or ("",))[0]
        if method == "invoke" and _first(headers, b"x-ptp-version") != PASS_THROUGH:
            of_one, of_all = _OF_ANYBODY
            return [self._places_of(of_one, address), self._places_of(of_all)]
        if method in METHODS[SERVICE]:
            own = self._places_of(_OF_ONE, method, _first(headers, b"x-ptp-token"), address)
            return [own, self._places_of(_OF_ALL, SERVICE)] if method == "push" else [own]
        own = self._places_of(_OF_ONE, "", _first(headers, b"x-ptp-source-node-id"), address)
        return [own, self._places_of(_OF_ALL, calls.SERVICE)]

    def _places_of(self, many: int, *whose: str) -> asyncio.Semaphore:
        """Return the places of one sender."""
        return self._places.setdefault(whose, asyncio.Semaphore(many))


class _Counting(asyncio.StreamWriter):
    """Counts the bytes of a connection."""

    size = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write."""
        self.size += len(data)
        super().write(data)


async def _whole(messages: AsyncIterator[bytes], came: _Counting) -> bytes:
    """Return the one message of a call. Raises Invalid where hardly anything comes on its connection."""
    message = asyncio.ensure_future(anext(messages, b""))
    try:
        while not message.done():
            before = came.size
            done, _ = await asyncio.wait([message], timeout=_STALL_SECONDS)
            if not done and came.size - before < _STALL_SECONDS * _LEAST_RATE:
                raise Invalid(
                    [Problem("body", f"upload too slow (minimum {_LEAST_RATE // 1024} KiB/s)")]
                )
        return message.result()
    finally:
        if message.cancel():
            await asyncio.wait([message])


async def _opened(to: str, by: str) -> tuple[asyncio.StreamReader, _Counting]:
    """Return a connection to a socket file from another, which names it."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    inside = socket.socket(socket.AF_UNIX)
    inside.setblocking(False)
    inside.bind(by)
    await loop.sock_connect(inside, to)
    transport, _ = await loop.create_unix_connection(lambda: protocol, sock=inside)
    return reader, _Counting(transport, protocol, reader, loop)


def _headers(context: Any) -> list[tuple[bytes, bytes]]:
    """Return the metadata of a call as the headers of a request."""
    return [
        (name.encode(), value.encode("latin-1", "replace"))
        for name, value in context.invocation_metadata() or ()
        if name.startswith(("x-", "x_")) and isinstance(value, str)
    ]


def _first(headers: list[tuple[bytes, bytes]], *names: bytes) -> str:
    found = (value for name, value in headers if name.replace(b"_", b"-") in names)
    return next(found, b"").decode("latin-1").strip()


async def _only(message: bytes) -> AsyncIterator[bytes]:
    yield message
