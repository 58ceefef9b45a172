"""The floor of the channel: two bare applications that pass a message on, and store nothing.

``python -m tools.bench.relay PORT INNER LINK FOLDER`` serves one of them. The first one forwards a
push to the port INNER of the second one, which passes it to a reader that waits in pop. The link
between the two is like the one between nodes: HTTP while the message arrives, gRPC with the
complete message, or mutual TLS with the files in FOLDER.
"""

import argparse
import asyncio
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import httpx
import uvicorn
import uvloop

METHOD = "/bare/push"
NO_LIMIT = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]
_QUEUED_PIECES = 8  # of a message between its sender and its reader
_FILES = ("bare.pem", "bare.key", "ca.pem")  # certificate, key and authority of the second one


class _Topic:
    """A message on its way from a push to a pop."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue(_QUEUED_PIECES)
        self.size: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()


class Relay:
    """The ASGI application of both."""

    def __init__(
        self,
        forward_port: int,
        link: str,
        tls: ssl.SSLContext | None,
    ) -> None:
        """``forward_port``: the port of the second one; 0 for the second one itself."""
        self._forward_port = forward_port
        self._link = link
        self._client = httpx.AsyncClient(
            trust_env=False,
            timeout=600,
            verify=tls or False,
        )
        scheme = "https" if tls else "http"
        self._url = f"{scheme}://127.0.0.1:{forward_port}/push"
        self._topics: defaultdict[str, _Topic] = defaultdict(_Topic)
        self._call: Any = None  # of gRPC, once it is needed

    async def __call__(
        self,
        scope: Any,
        receive: Any,
        send: Any,
    ) -> None:
        """Serve a push or a pop."""
        headers = dict(scope["headers"])
        topic = headers[b"x-ptp-topic"].decode()
        if scope["path"].endswith("pop"):
            await self._pop(topic, send)
            return
        size = headers[b"content-length"]
        if not self._forward_port:
            await self._accept(topic, size, _body(receive))
        elif self._link == "gRPC":
            await self._forward_by_grpc(topic, _body(receive))
        else:
            await self._forward_by_http(topic, size, _body(receive))
        await _send_head(send, b"0")
        await send({"type": "http.response.body"})

    async def _accept(
        self,
        name: str,
        size: bytes,
        pieces: AsyncIterator[bytes],
    ) -> None:
        """Pass a message to the reader of its topic."""
        topic = self._topics[name]
        topic.size.set_result(size)
        async for piece in pieces:
            await topic.pieces.put(piece)

    async def _forward_by_grpc(
        self,
        topic: str,
        pieces: AsyncIterator[bytes],
    ) -> None:
        if self._call is None:
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{self._forward_port}", NO_LIMIT)
            self._call = channel.unary_unary(METHOD)
        message = b"".join([piece async for piece in pieces])
        await self._call(message, metadata=[("topic", topic)])

    async def _forward_by_http(
        self,
        topic: str,
        size: bytes,
        pieces: AsyncIterator[bytes],
    ) -> None:
        headers = {
            "x-ptp-topic": topic,
            "content-length": size.decode(),
        }
        response = await self._client.post(
            self._url,
            content=pieces,
            headers=headers,
        )
        assert response.status_code == 200

    async def _pop(self, name: str, send: Any) -> None:
        """Wait for the message of a topic, and send it as it arrives."""
        topic = self._topics[name]
        size = await topic.size
        await _send_head(send, size)
        missing = int(size)
        while missing:
            piece = await topic.pieces.get()
            missing -= len(piece)
            await send(
                {
                    "type": "http.response.body",
                    "body": piece,
                    "more_body": missing > 0,
                }
            )
        del self._topics[name]

    async def serve_grpc(self, port: int) -> None:
        """Accept messages by gRPC, too."""

        async def push(message: bytes, context: Any) -> bytes:
            topic = dict(context.invocation_metadata())["topic"]
            await self._accept(
                topic,
                str(len(message)).encode(),
                _single_piece(message),
            )
            return b""

        server = grpc.aio.server(options=NO_LIMIT)
        handlers = {"push": grpc.unary_unary_rpc_method_handler(push)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bare", handlers)])
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await server.wait_for_termination()


async def _send_head(send: Any, content_length: bytes) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", content_length)],
        }
    )


async def _single_piece(message: bytes) -> AsyncIterator[bytes]:
    yield message


async def _body(receive: Any) -> AsyncIterator[bytes]:
    """Yield the pieces of a request's body."""
    is_complete = False
    while not is_complete:
        message = await receive()
        is_complete = not message.get("more_body", False)
        if message.get("body"):
            yield message["body"]


async def main() -> None:
    """Serve one of the two applications."""
    options = parse_options()
    certificate, key, authority = (f"{options.folder}/{name}" for name in _FILES)
    tls = None
    if options.link == "mutual TLS":
        tls = ssl.create_default_context(cafile=authority)
        tls.load_cert_chain(certificate, key)
    app = Relay(options.inner if options.first else 0, options.link, tls)
    servers = [_serve(app, options.port)]
    if options.first:
        await asyncio.gather(*servers)
        return
    if options.link == "gRPC":
        servers.append(app.serve_grpc(options.inner))
    elif tls is not None:
        servers.append(
            _serve(
                app,
                options.inner,
                ssl_certfile=certificate,
                ssl_keyfile=key,
                ssl_ca_certs=authority,
                ssl_cert_reqs=ssl.CERT_REQUIRED,
            )
        )
    else:
        servers.append(_serve(app, options.inner))
    await asyncio.gather(*servers)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "port",
        type=int,
        help="for pushes and pops",
    )
    parser.add_argument(
        "inner",
        type=int,
        help="for messages between the two",
    )
    parser.add_argument("link", help="HTTP, gRPC or mutual TLS")
    parser.add_argument("folder")
    parser.add_argument("--first", action="store_true")
    return parser.parse_args()


def _serve(app: Relay, port: int, **tls: Any) -> Any:
    """Return the coroutine that serves the application on a port."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=port,
        log_config=None,
        access_log=False,
        lifespan="off",
        loop="uvloop",
        **tls,
    )
    return uvicorn.Server(config).serve()


if __name__ == "__main__":
    uvloop.run(main())
