"""The channel's floor: two bare applications that pass a message on, and store nothing.

``python -m tools.bench.relay PORT INNER WAY FOLDER``: the first sends a push on to the port INNER
of the second, which hands it to who waits in pop. Between the two it goes as the nodes' messages
do: by HTTP while it arrives, by gRPC as one message, or by mutual TLS with the files in FOLDER.
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
NO_LIMIT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

_PIECES = 8


class _Topic:
    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue(_PIECES)
        self.size: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()


class Relay:
    """The application; ``onward`` is the port of the second, 0 for itself."""

    def __init__(
        self,
        onward: int,
        way: str,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._onward, self._way = onward, way
        self._client = httpx.AsyncClient(
            trust_env=False,
            timeout=600,
            verify=tls or False,
        )
        self._url = f"{'https' if tls else 'http'}://127.0.0.1:{onward}/push"
        self._topics: defaultdict[str, _Topic] = defaultdict(_Topic)
        self._call: Any = None

    async def __call__(
        self,
        scope: Any,
        receive: Any,
        send: Any,
    ) -> None:
        headers = dict(scope["headers"])
        name = headers[b"x-ptp-topic"].decode()
        if scope["path"].endswith("pop"):
            await self._pop(name, send)
            return
        if not self._onward:
            await self.take(name, headers[b"content-length"], _body(receive))
        elif self._way == "gRPC":
            if self._call is None:
                self._call = grpc.aio.insecure_channel(
                    f"127.0.0.1:{self._onward}", NO_LIMIT
                ).unary_unary(METHOD)
            await self._call(
                b"".join([piece async for piece in _body(receive)]), metadata=[("topic", name)]
            )
        else:
            sent = {"x-ptp-topic": name, "content-length": headers[b"content-length"].decode()}
            answer = await self._client.post(self._url, content=_body(receive), headers=sent)
            assert answer.status_code == 200
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", b"0")],
            }
        )
        await send({"type": "http.response.body"})

    async def take(
        self,
        name: str,
        size: bytes,
        pieces: AsyncIterator[bytes],
    ) -> None:
        """Hand a message to who waits for it."""
        topic = self._topics[name]
        topic.size.set_result(size)
        async for piece in pieces:
            await topic.pieces.put(piece)

    async def _pop(self, name: str, send: Any) -> None:
        topic = self._topics[name]
        size = await topic.size
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", size)],
            }
        )
        left = int(size)
        while left:
            piece = await topic.pieces.get()
            left -= len(piece)
            await send(
                {
                    "type": "http.response.body",
                    "body": piece,
                    "more_body": left > 0,
                }
            )
        del self._topics[name]

    async def serve_grpc(self, port: int) -> None:
        """Take messages by gRPC, too."""

        async def push(message: bytes, context: Any) -> bytes:
            topic = dict(context.invocation_metadata())["topic"]
            await self.take(topic, str(len(message)).encode(), _only(message))
            return b""

        server = grpc.aio.server(options=NO_LIMIT)
        handlers = {"push": grpc.unary_unary_rpc_method_handler(push)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bare", handlers)])
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await server.wait_for_termination()


async def _only(message: bytes) -> AsyncIterator[bytes]:
    yield message


async def _body(receive: Any) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        more = message.get("more_body", False)
        if message.get("body"):
            yield message["body"]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("inner", type=int, help="between the two")
    parser.add_argument("way")
    parser.add_argument("folder")
    parser.add_argument("--first", action="store_true")
    given = parser.parse_args()
    files = [f"{given.folder}/{name}" for name in ("bare.pem", "bare.key", "ca.pem")]
    tls = None
    if given.way == "mutual TLS":
        tls = ssl.create_default_context(cafile=files[2])
        tls.load_cert_chain(*files[:2])
    app = Relay(given.inner if given.first else 0, given.way, tls)
    common = {
        "host": "127.0.0.1",
        "log_config": None,
        "access_log": False,
        "lifespan": "off",
        "loop": "uvloop",
    }
    serving = [uvicorn.Server(uvicorn.Config(app, port=given.port, **common)).serve()]
    if not given.first and given.way == "gRPC":
        serving.append(app.serve_grpc(given.inner))
    elif not given.first:
        own = (
            {
                "ssl_certfile": files[0],
                "ssl_keyfile": files[1],
                "ssl_ca_certs": files[2],
            }
            if tls
            else {}
        )
        own |= {"ssl_cert_reqs": ssl.CERT_REQUIRED} if tls else {}
        serving.append(
            uvicorn.Server(
                uvicorn.Config(
                    app,
                    port=given.inner,
                    **common,
                    **own,
                )
            ).serve()
        )
    await asyncio.gather(*serving)


if __name__ == "__main__":
    uvloop.run(main())
