"""The channel over gRPC: each call becomes a request over HTTP to the listener's application.

So the application's checks hold for gRPC, too: a call's metadata become headers, and its request
has the address and the certificate of the connection.
"""

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from starlette.types import ASGIApp, Message

from adapter.bfia.channel import bodies, grpc_client
from adapter.bfia.channel.codec import CHANNEL, GRPC, PASS_THROUGH, decode_answer, encode_answer
from adapter.bfia.channel.courier import BUFFER_FULL
from adapter.bfia.channel.message_forms import Form
from gateway.domain.problems import Problem
from gateway.errors import Invalid

if TYPE_CHECKING:
    import grpc.aio

# The gRPC service for containers; `grpc_client.SERVICE` is the one between nodes.
SERVICE = "org.ppc.ptp.PrivateTransferTransport"
# Service -> its methods with one message each way. A listener's application may lack some of them:
# it responds with HTTP 404 to their calls.
METHODS = {
    SERVICE: ("push", "pop", "peek", "release"),
    grpc_client.SERVICE: ("invoke", "part"),
}

_STREAM = "transport"  # the method with a stream of messages, which is only between nodes
_MOST_OF_GRPC = (1 << 31) - 1  # bytes of a message; with a larger limit gRPC refuses all messages
# Bytes of a message's headers: the longest topic has 48 KiB in a sealed message.
_MOST_METADATA = 64 * 1024
_IDLE_SECONDS = 75  # until a connection without calls is closed
# Seconds until a quiet connection with calls is probed: the client of a stream may be gone.
_KEEPALIVE_SECONDS = 60
_GRACE_SECONDS = 1.0  # time for calls in progress when the server ends
STALL_SECONDS = 10.0  # interval in which the rate of an arriving message is measured
# The least bytes per second of a connection on which a message arrives. The connection is measured
# because gRPC shows no message before it is complete.
_LEAST_RATE = 32 * 1024

# The most messages in memory. Each message counts while it arrives, as its size is not known
# before; a large message counts until its response.
_OF_ONE_SENDER = 8  # messages of one run or node
_OF_ALL_SENDERS = 16  # messages of all runs, or of all nodes
# The limits for encapsulated messages, which may name their sender only in the body:
_OF_ONE_ADDRESS = 4  # messages from one address
_OF_ALL_ADDRESSES = 8  # messages from all addresses

_MOST_CALLS = 128  # calls at the same time over one connection
MAX_STREAMS = 16  # the most streams of one node at the same time


class CountingWriter(asyncio.StreamWriter):
    """A writer that counts the written bytes in ``size``."""

    size = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write bytes and count them."""
        self.size += len(data)
        super().write(data)


@dataclass(frozen=True, slots=True)
class _Connection:
    """A client's connection to the listener."""

    scope: Mapping[str, Any]  # part of the ASGI scope of each of its requests
    writer: CountingWriter  # passes the client's bytes to the gRPC server

    @property
    def address(self) -> str:
        """The client's address; empty if it is unknown."""
        client = self.scope.get("client")
        if not client:
            return ""
        return str(client[0])


class GrpcServer:
    """A gRPC server on a socket file, started by the first connection.

    Belongs to one event loop.
    """

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        """``app`` is the listener's application; ``most_bytes``: size of the largest message."""
        self._app = app
        self._most_bytes = min(most_bytes, _MOST_OF_GRPC)
        self._lock = asyncio.Lock()
        self._server: grpc.aio.Server | None = None
        self._folder: Path | None = None
        self._numbers = count()
        self._connections: dict[str, _Connection] = {}  # by the name that the gRPC server sees
        # Owner -> its slots, which are dropped when no call uses them
        self._slots: WeakValueDictionary[tuple[str, ...], asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def connected(
        self, scope: Mapping[str, Any]
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Connect to the server; yield a reader of its bytes and a writer to it.

        The caller, a listener, copies the bytes of a client's connection both ways. ``scope``
        becomes part of the ASGI scope of all requests of the connection. Raises `GrpcMissing`.
        """
        async with self._lock:
            folder = self._folder
            if folder is None:
                folder = await self._start()
        # The file of this end's socket. The gRPC server sees its name as the peer of each call, by
        # which `_answer` finds the scope.
        file = folder / str(next(self._numbers))
        name = f"unix:{file}"
        try:
            reader, writer = await _connect(f"{folder}/grpc", str(file))
            self._connections[name] = _Connection(scope, writer)
            try:
                yield reader, writer
            finally:
                writer.close()
                del self._connections[name]
        finally:
            file.unlink(missing_ok=True)

    async def _start(self) -> Path:
        """Start the gRPC server on a socket; return the folder of the socket."""
        grpc = grpc_client.library()
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self._most_bytes),
                ("grpc.max_send_message_length", -1),  # no limit
                ("grpc.max_connection_idle_ms", _IDLE_SECONDS * 1000),
                ("grpc.max_concurrent_streams", _MOST_CALLS),
                ("grpc.keepalive_time_ms", _KEEPALIVE_SECONDS * 1000),
                ("grpc.max_metadata_size", _MOST_METADATA),
                ("grpc.absolute_max_metadata_size", _MOST_METADATA),
            ]
        )
        for service, names in METHODS.items():
            # A single message is declared as a stream: otherwise gRPC would read the message before
            # `_answer` knows the sender and has waited for slots.
            methods = {
                name: grpc.stream_unary_rpc_method_handler(self._single_handler(name))
                for name in names
            }
            if service == grpc_client.SERVICE:
                methods[_STREAM] = grpc.stream_stream_rpc_method_handler(self._stream)
            handler = grpc.method_handlers_generic_handler(service, methods)
            self._server.add_generic_rpc_handlers([handler])
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

    def _single_handler(self, method: str) -> Any:
        """Return the handler of a method with one message and one response."""

        async def handle(messages: AsyncIterator[bytes], context: Any) -> bytes:
            iterator = aiter(messages)
            # An iterator that is not closed would keep the message in memory.
            async with aclosing(iterator):  # type: ignore[type-var]
                return await self._answer(method, iterator, context)

        return handle

    async def _stream(
        self,
        messages: AsyncIterator[bytes],
        context: Any,
    ) -> AsyncIterator[bytes]:
        """Handle a stream, which its headers begin: each of its messages is an invoke.

        Yield a response to each message. If the sender may not begin a stream, the refusal is the
        only response.
        """
        # `PeerHandlers.transport` reads only the headers: all messages remain for the loop below.
        permission = await self._answer(_STREAM, messages, context)
        if not decode_answer(permission, Form.PROTOBUF.value).succeeded:
            yield permission
            return
        sender = _header(_headers_of(context), b"x-ptp-source-node-id")
        slots = self._slots_of(MAX_STREAMS, "streams", sender)
        if slots.locked():  # refused rather than delayed, as a stream may last long
            text = f"a node has at most {MAX_STREAMS} streams here"
            yield encode_answer(BUFFER_FULL, text, form=Form.PROTOBUF)
            return
        async with slots:
            async for message in messages:
                yield await self._answer("invoke", _only(message), context)

    async def _answer(
        self,
        method: str,
        messages: AsyncIterator[bytes],
        context: Any,
    ) -> bytes:
        """Return the response to a call.

        The response is the body of the application's response over HTTP with status 200, or 413 for
        a message that is too large. Any other status aborts the call, by an exception.
        """
        codes = grpc_client.library().StatusCode
        connection = self._connections.get(context.peer())
        if connection is None:
            text = "the connection did not come by the listener"
            await context.abort(codes.PERMISSION_DENIED, text)
            raise AssertionError  # `abort` has raised
        headers = _headers_of(context)
        slots = self._slots_for(method, headers, connection.address)
        request = _HttpRequest(method, messages, headers, connection, slots)
        status, body = await request.send_to(self._app)
        if status in (200, 413):
            return body
        if status == 404:
            text = f"{method} is not served at this address"
            await context.abort(codes.UNIMPLEMENTED, text)  # raises
        code = codes.PERMISSION_DENIED
        if status == 429 or status >= 500:
            code = codes.UNAVAILABLE
        text = body[:500].decode("utf-8", "replace")
        await context.abort(code, f"HTTP {status}: {text}")
        raise AssertionError  # `abort` has raised

    def _slots_for(
        self,
        method: str,
        headers: list[tuple[bytes, bytes]],
        address: str,
    ) -> list[asyncio.Semaphore]:
        """Return the semaphores from which a message takes a slot each, in this order.

        The first is the semaphore of the message's sender, the second that of all senders. A pop,
        peek or release takes only a slot of its run, so that no other run delays it.
        """
        is_encapsulated = _header(headers, b"x-ptp-version") != PASS_THROUGH
        if method == "invoke" and is_encapsulated:
            return [
                self._slots_of(_OF_ONE_ADDRESS, address),
                self._slots_of(_OF_ALL_ADDRESSES),
            ]
        if method not in METHODS[SERVICE]:
            node = _header(headers, b"x-ptp-source-node-id")
            # "": all methods between nodes share the slots of a sender.
            of_sender = self._slots_of(_OF_ONE_SENDER, "", node, address)
            return [of_sender, self._slots_of(_OF_ALL_SENDERS, grpc_client.SERVICE)]
        token = _header(headers, b"x-ptp-token")
        # Each method of a run has slots of its own, so that waiting pops do not delay a push.
        of_run = self._slots_of(_OF_ONE_SENDER, method, token, address)
        if method == "push":
            return [of_run, self._slots_of(_OF_ALL_SENDERS, SERVICE)]
        return [of_run]

    def _slots_of(self, number: int, *owner: str) -> asyncio.Semaphore:
        """Return the slots of an owner; new ones, ``number`` of them, if no call uses any."""
        return self._slots.setdefault(owner, asyncio.Semaphore(number))


class _HttpRequest:
    """The request over HTTP that a call becomes; it passes through the application in memory."""

    def __init__(
        self,
        method: str,
        messages: AsyncIterator[bytes],
        headers: list[tuple[bytes, bytes]],
        connection: _Connection,
        slots: list[asyncio.Semaphore],
    ) -> None:
        """``slots``: one slot of each semaphore is held while the message arrives."""
        self._method = method
        self._messages = messages
        self._headers = headers
        self._connection = connection
        self._slots = slots
        self._held_slots = AsyncExitStack()
        self._is_received = False
        self._status = 500
        self._pieces: list[bytes] = []

    async def send_to(self, app: ASGIApp) -> tuple[int, bytes]:
        """Return status and body of the application's response."""
        async with self._held_slots:
            await app(self._scope(), self._receive, self._send)
        return self._status, b"".join(self._pieces)

    def _scope(self) -> dict[str, Any]:
        """Return the scope of the request for the application."""
        path = CHANNEL + self._method
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": GRPC,
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [*self._headers, (b"content-type", Form.PROTOBUF.value.encode())],
            "server": None,
            "state": {},
            **self._connection.scope,
        }

    async def _receive(self) -> Message:
        """Return the message as the body of the request.

        A large message keeps its slots until the response.
        """
        if self._is_received:
            # The application calls again to wait for a disconnect, which is never reported: if the
            # caller hangs up, gRPC cancels the call, and with it the application.
            await asyncio.Event().wait()  # forever
        self._is_received = True
        async with AsyncExitStack() as slots:
            for slot in self._slots:
                await slots.enter_async_context(slot)
            body = await _read_message(self._messages, self._connection.writer)
            if len(body) > bodies.LARGE:
                self._held_slots.push_async_exit(slots.pop_all())  # freed after the response
        return {
            "type": "http.request",
            "body": body,
            "more_body": False,
        }

    async def _send(self, message: Message) -> None:
        """Collect the application's response."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
        self._pieces.append(message.get("body", b""))


async def _read_message(messages: AsyncIterator[bytes], writer: CountingWriter) -> bytes:
    """Return the one message of a call.

    ``writer`` counts all bytes of the call's connection. Raises Invalid if they arrive more slowly
    than `_LEAST_RATE` during `STALL_SECONDS`, and if the call ends without a message.
    """
    message = asyncio.ensure_future(anext(messages, None))
    try:
        while not message.done():
            size_before = writer.size
            done, _ = await asyncio.wait(
                [message],
                timeout=STALL_SECONDS,
            )
            is_slow = writer.size - size_before < STALL_SECONDS * _LEAST_RATE
            if not done and is_slow:
                rule = f"upload too slow (minimum {_LEAST_RATE // 1024} KiB/s)"
                raise Invalid([Problem("body", rule)])
        body = message.result()
        if body is None:
            raise Invalid([Problem("body", "a message is required; the call ended without one")])
        return body
    finally:
        if message.cancel():  # False if the message has arrived
            await asyncio.wait([message])


async def _connect(
    server_file: str,
    file: str,
) -> tuple[asyncio.StreamReader, CountingWriter]:
    """Connect to ``server_file`` from a socket with the name ``file``.

    That name is the address of the connection for the gRPC server.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    client = socket.socket(socket.AF_UNIX)
    client.setblocking(False)
    client.bind(file)
    await loop.sock_connect(client, server_file)
    # asyncio takes a factory; the protocol exists already, as the writer needs it, too.
    transport, _ = await loop.create_unix_connection(lambda: protocol, sock=client)
    return reader, CountingWriter(transport, protocol, reader, loop)


def _headers_of(context: Any) -> list[tuple[bytes, bytes]]:
    """Return the metadata of a call as headers: texts whose name begins with ``x-`` or ``x_``."""
    headers = []
    for name, value in context.invocation_metadata() or ():
        is_text = isinstance(value, str)  # binary metadata are bytes
        if is_text and name.startswith(("x-", "x_")):
            headers.append((name.encode(), value.encode("latin-1", "replace")))
    return headers


def _header(
    headers: list[tuple[bytes, bytes]],
    name: bytes,
) -> str:
    """Return the first value of a header, with hyphens or underscores; "" if it is absent.

    ``name`` is the spelling with hyphens.
    """
    for header_name, value in headers:
        if header_name.replace(b"_", b"-") == name:
            return value.decode("latin-1").strip()
    return ""


async def _only(message: bytes) -> AsyncIterator[bytes]:
    """Yield a single message, as `GrpcServer._answer` takes the messages of a call."""
    yield message
