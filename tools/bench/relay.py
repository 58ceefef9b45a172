"""The channel's floor: two bare ASGI applications that pass a message on while it arrives, and store nothing.

``python -m tools.bench.relay PORT [NEXT]``: with NEXT a push goes on to that port, without it to who waits in pop.
"""

import asyncio
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import httpx
import uvicorn

_PIECES = 8


class _Topic:
    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue(_PIECES)
        self.size: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()


def relay(onward: str) -> Any:
    """Return the application; ``onward`` is the base URL of the next one, or empty."""
    client = httpx.AsyncClient(trust_env=False, timeout=600)
    topics: defaultdict[str, _Topic] = defaultdict(_Topic)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])
        name = headers[b"x-ptp-topic"].decode()
        if scope["path"].endswith("pop"):
            topic = topics[name]
            size = await topic.size
            start = [(b"content-length", size)]
            await send({"type": "http.response.start", "status": 200, "headers": start})
            left = int(size)
            while left:
                piece = await topic.pieces.get()
                left -= len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": left > 0})
            del topics[name]
            return
        if onward:
            sent = {"x-ptp-topic": name, "content-length": headers[b"content-length"].decode()}
            answer = await client.post(onward, content=_body(receive), headers=sent)
            assert answer.status_code == 200
        else:
            topic = topics[name]
            topic.size.set_result(headers[b"content-length"])
            async for piece in _body(receive):
                await topic.pieces.put(piece)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    return app


async def _body(receive: Any) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        more = message.get("more_body", False)
        if message.get("body"):
            yield message["body"]


def main() -> None:
    port, onward = int(sys.argv[1]), sys.argv[2:]
    url = f"http://127.0.0.1:{onward[0]}/push" if onward else ""
    uvicorn.run(
        relay(url), host="127.0.0.1", port=port, log_config=None, access_log=False, lifespan="off", loop="uvloop"
    )


if __name__ == "__main__":
    main()
