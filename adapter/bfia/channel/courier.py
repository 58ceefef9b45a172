"""Brings a container's push to another node's transport, and stays with it until that node has said yes or no."""

import re
import ssl
import time

import anyio
import httpx

from adapter.bfia.channel.codec import INVOKE, Answer, decode_answer
from adapter.bfia.peer import Clients, asked_name
from gateway.errors import GatewayError, Invalid, PeerUnreachable
from route_table.model import Identity, Route

BAD_ADDRESS = "E0000000619"
BUFFER_FULL = "E0000000700"
TOO_LARGE = "E0000000413"
UNKNOWN = "E0000000520"

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_LARGEST_ANSWER = 1 << 20
_CONNECT_SECONDS = 5.0
_CODE = re.compile(r"E\d{10}|0")


class _NoAnswer(GatewayError):
    """One try ended without an answer; the message says how."""


class Courier:
    """Kept connections to all peers, by TLS identity. Belongs to one event loop; close it there."""

    def __init__(self) -> None:
        self._clients: Clients[Identity, httpx.AsyncClient] = Clients(_client)

    async def invoke(
        self, route: Route, body: bytes, headers: list[tuple[bytes, bytes]], retry_for: float
    ) -> Answer:
        """Send a push until the peer answers, for at most ``retry_for`` seconds plus the last try's deadline.

        Connection failures, HTTP 5xx and a full buffer are tried again after 50 ms, doubling to 2 s. Raises
        PeerUnreachable if there was no answer; any answer of the peer, a refusal too, is returned.
        """
        end = time.monotonic() + retry_for
        pause = _FIRST_PAUSE
        while True:
            try:
                answer = await self._try(route, body, headers)
                if answer.code != BUFFER_FULL or time.monotonic() + pause > end:
                    return answer
            except _NoAnswer as error:
                if time.monotonic() + pause > end:
                    raise PeerUnreachable(error.message) from error
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _try(self, route: Route, body: bytes, headers: list[tuple[bytes, bytes]]) -> Answer:
        timeout = httpx.Timeout(route.deadline, connect=min(_CONNECT_SECONDS, route.deadline))
        by = f"next hop {route.via}: " if route.via else ""
        try:
            async with self.to(route.identity).stream(
                "POST",
                route.url + INVOKE,
                content=body,
                headers=headers,
                timeout=timeout,
                extensions=asked_name(route.identity),
            ) as response:
                content = await _read_bounded(response)
                kind = response.headers.get("content-type", "")
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            return Answer(code=BAD_ADDRESS, message=f"the route's address {route.url!r} cannot be used: {error}")
        except httpx.HTTPError as error:
            raise _NoAnswer(f"{by}{type(error).__name__}: {error}") from error
        except PeerUnreachable as error:
            raise _NoAnswer(by + error.message) from error
        if response.status_code == 429 or response.status_code >= 500:
            raise _NoAnswer(f"{by}it answered HTTP {response.status_code}{_reason(content, kind)}")
        return _understood(response.status_code, content, kind)

    def to(self, identity: Identity) -> httpx.AsyncClient:
        """Return the client for peers with an identity. Raises PeerUnreachable where its files cannot be used."""
        return self._clients.get(identity, identity)

    async def close(self) -> None:
        """Close every connection."""
        for client in self._clients.clear():
            await client.aclose()


def _client(_: Identity, verify: ssl.SSLContext) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        limits=httpx.Limits(max_connections=256, max_keepalive_connections=64, keepalive_expiry=4.0),
        headers={"accept-encoding": "identity"},
        trust_env=False,
        verify=verify,
    )


async def _read_bounded(response: httpx.Response) -> bytes:
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > _LARGEST_ANSWER:
            break
    return bytes(content)


def _reason(content: bytes, kind: str) -> str:
    """Return the message of an answer that came with an error of the server, if it has one."""
    try:
        answer = decode_answer(content, kind)
    except Invalid:
        return ""
    return f": {answer.message[:500]}" if answer.message else ""


def _understood(status: int, content: bytes, kind: str) -> Answer:
    if status == 413:
        return Answer(code=TOO_LARGE, message="the peer takes no body of this size")
    try:
        answer = decode_answer(content, kind)
    except Invalid:
        return Answer(code=UNKNOWN, message=f"the peer answered HTTP {status} without a transport response")
    if not _CODE.fullmatch(answer.code):
        return Answer(
            code=UNKNOWN,
            message=f"the peer answered HTTP {status}, code {answer.code[:40]}: {answer.message[:500]}",
        )
    return answer
