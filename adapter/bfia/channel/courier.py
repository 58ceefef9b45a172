"""Brings a container's push to another node's transport, and stays with it until that node has said yes or no."""

import re
import ssl
import time
from functools import lru_cache

import anyio
import httpx

from adapter.bfia.channel.calls import Calls, by_grpc
from adapter.bfia.channel.codec import INVOKE, Answer, decode_answer
from adapter.bfia.channel.wire import BadAddress, Wires
from adapter.bfia.connections import Clients
from adapter.page import first_words
from gateway.errors import GatewayError, Invalid, PeerUnreachable
from route_table.model import Identity, Route

BAD_ADDRESS = "E0000000619"
BUFFER_FULL = "E0000000700"
TOO_LARGE = "E0000000413"
UNKNOWN = "E0000000520"

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_SHORT = 512
_CODE = re.compile(r"E\d{10}|0")


class _NoAnswer(GatewayError):
    """One try ended without an answer; the message says how."""


class Courier:
    """Kept connections to all peers, by TLS identity. Belongs to one event loop; close it there."""

    def __init__(self) -> None:
        self._wires: Clients[Identity, Wires] = Clients(lambda _, verify: Wires(verify))
        self._calls: Clients[tuple[str, Identity], Calls] = Clients(
            lambda key, verify: Calls(*key, verify)
        )
        self._clients: Clients[Identity, httpx.AsyncClient] = Clients(_client)

    async def invoke(
        self,
        route: Route,
        body: list[bytes],
        headers: list[tuple[bytes, bytes]],
        retry_for: float,
        path: str = INVOKE,
        may_be_unknown: bool = False,
    ) -> Answer:
        """Send a push until the peer answers, for at most ``retry_for`` seconds plus the last try's deadline.

        Connection failures, HTTP 5xx and a full buffer are tried again after 50 ms, doubling to 2 s. Raises
        PeerUnreachable if there was no answer; any answer of the peer, a refusal too, is returned, HTTP 5xx where
        the peer may not know the path.
        """
        end = time.monotonic() + retry_for
        pause = _FIRST_PAUSE
        while True:
            try:
                answer = await self._try(path, route, body, headers, may_be_unknown)
                if answer.code != BUFFER_FULL or time.monotonic() + pause > end:
                    return answer
            except _NoAnswer as error:
                if time.monotonic() + pause > end:
                    raise PeerUnreachable(error.message) from error
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _try(
        self,
        path: str,
        route: Route,
        body: list[bytes],
        headers: list[tuple[bytes, bytes]],
        may_be_unknown: bool,
    ) -> Answer:
        by = f"next hop {route.via}: " if route.via else ""
        try:
            if by_grpc(route.url):
                calls = self._calls.get((route.url, route.identity), route.identity)
                body[:] = [b"".join(body)]  # gRPC takes no pieces, and they would stay beside it
                status, kind, content = await calls.post(path, body[0], headers, route.deadline)
            else:
                wires, url = self._wires.get(route.identity, route.identity), route.url + path
                status, kind, content = await wires.post(
                    url, body, headers, route.deadline, route.server_name
                )
        except BadAddress as error:
            return Answer(
                code=BAD_ADDRESS,
                message=f"the route's address {route.url!r} cannot be used: {error}",
            )
        except OSError as error:
            raise _NoAnswer(f"{by}{type(error).__name__}: {error}") from error
        except PeerUnreachable as error:
            raise _NoAnswer(by + error.message) from error
        if status == 429 or (status >= 500 and not may_be_unknown):
            raise _NoAnswer(f"{by}it answered HTTP {status}{_reason(content, kind)}")
        return (_read if len(content) < _SHORT else _read.__wrapped__)(status, content, kind)

    def to(self, identity: Identity) -> httpx.AsyncClient:
        """Return the client of the relay. Raises PeerUnreachable where the identity's files cannot be used."""
        return self._clients.get(identity, identity)

    async def close(self) -> None:
        """Close every connection."""
        for wires in self._wires.clear():
            wires.close()
        for calls in self._calls.clear():
            await calls.close()
        for client in self._clients.clear():
            await client.aclose()


def _client(_: Identity, verify: ssl.SSLContext) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        limits=httpx.Limits(
            max_connections=256,
            max_keepalive_connections=64,
            keepalive_expiry=4.0,
        ),
        headers={"accept-encoding": "identity"},
        trust_env=False,
        verify=verify,
    )


def _reason(content: bytes, kind: str) -> str:
    """Return the message of an answer that came with an error of the server, if it has one."""
    try:
        answer = decode_answer(content, kind)
    except Invalid:
        return ""
    return f": {answer.message[:500]}" if answer.message else ""


@lru_cache(64)  # nearly all are the same success
def _read(
    status: int,
    content: bytes,
    kind: str,
) -> Answer:
    if status == 413:
        return Answer(code=TOO_LARGE, message="the peer takes no body of this size")
    try:
        answer = decode_answer(content, kind)
    except Invalid:
        text = f"the peer answered HTTP {status} without a transport response"
        words = first_words(content)
        if words:
            text += f"; it says: {words}"
        return Answer(code=UNKNOWN, message=text)
    if not _CODE.fullmatch(answer.code):
        return Answer(
            code=UNKNOWN,
            message=f"the peer answered HTTP {status}, code {answer.code[:40]}: {answer.message[:500]}",
        )
    return answer
