"""The channel's container service over gRPC: each call is passed on as the same request in protobuf over HTTP.

A container's metadata become the headers. Its address cannot be seen, so that it has to send its token.
"""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from starlette.types import ASGIApp, Message

from adapter.bfia.channel.forms import Form
from gateway.errors import GatewayError

if TYPE_CHECKING:
    import grpc.aio

SERVICE = "org.ppc.ptp.PrivateTransferTransport"
METHODS = ("push", "pop", "peek", "release")
_PATH = "/v1/interconn/chan/"
_IDLE_SECONDS = 75
_GRACE_SECONDS = 1.0
_AT_ONCE = 16
"""messages of one run in memory"""


class GrpcMissing(GatewayError):
    """The package grpcio is not installed."""

    reason = "GRPC_MISSING"
    code = 501


class Grpc:
    """A gRPC server on a socket file of its own, begun by the first connection. Belongs to one event loop."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        """``app`` is the containers' listener; ``most_bytes`` the largest message."""
        self._app = app
        self._most_bytes = most_bytes
        self._lock = asyncio.Lock()
        self._server: grpc.aio.Server | None = None
        self._folder: Path | None = None
        self._places: WeakValueDictionary[bytes, asyncio.Semaphore] = WeakValueDictionary()

    async def socket(self) -> str:
        """Return the path of the server's socket. Raises `GrpcMissing`."""
        async with self._lock:
            if self._folder is None:
                await self._start()
        return f"{self._folder}/grpc"

    async def _start(self) -> None:
        try:
            import grpc
            import grpc.aio
        except ImportError:
            raise GrpcMissing("a container speaks gRPC: install bfia-gateway[grpc]") from None
        # what a client sends in one message is read like a stream: not before its sender is known
        methods = {name: grpc.stream_unary_rpc_method_handler(self._handler(name)) for name in METHODS}
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self._most_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_connection_idle_ms", _IDLE_SECONDS * 1000),
            ]
        )
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
        self._folder = Path(tempfile.mkdtemp(prefix="bfia-grpc-"))
        self._server.add_insecure_port(f"unix:{self._folder}/grpc")
        await self._server.start()

    async def close(self) -> None:
        """End all calls."""
        if self._server is not None:
            await self._server.stop(_GRACE_SECONDS)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _handler(self, method: str) -> Any:
        async def call(messages: AsyncIterator[bytes], context: Any) -> bytes:
            import grpc

            status, answer = await self._ask(method, messages, context.invocation_metadata() or ())
            if status not in (200, 413):
                text = answer[:500].decode("utf-8", "replace")
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"HTTP {status}: {text}")
            return answer

        return call

    async def _ask(self, method: str, messages: AsyncIterator[bytes], metadata: Any) -> tuple[int, bytes]:
        """Return status and body of the response to the same request over HTTP."""
        headers = [
            (name.encode(), value.encode("latin-1", "replace"))
            for name, value in metadata
            if name.startswith(("x-", "x_")) and isinstance(value, str)
        ]
        token = next((value for name, value in headers if name.replace(b"_", b"-") == b"x-ptp-token"), b"")
        places = self._places.setdefault(token, asyncio.Semaphore(_AT_ONCE))
        headers.append((b"content-type", Form.PROTOBUF.value.encode()))
        path = _PATH + method
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "2",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": headers,
            "client": None,
            "server": None,
            "state": {},
        }
        held = AsyncExitStack()
        status, pieces, waiting = 500, list[bytes](), True

        async def receive() -> Message:
            nonlocal waiting
            if not waiting:
                await asyncio.Event().wait()  # a call that is cancelled ends the application itself
            await held.enter_async_context(places)
            waiting = False
            return {"type": "http.request", "body": await anext(messages, b""), "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            pieces.append(message.get("body", b""))

        async with held:
            await self._app(scope, receive, send)
        return status, b"".join(pieces)
