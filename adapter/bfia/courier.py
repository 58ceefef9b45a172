"""Brings a container's push to another node's transport, and stays with it until that node has said yes or no."""

import re
import time
from dataclasses import dataclass

import anyio
import httpx

from adapter.bfia.codec import Answer, decode_answer
from adapter.bfia.ptp import INVOKE
from gateway.errors import GatewayError, Invalid, PeerUnreachable

BAD_ADDRESS = "E0000000619"
BUFFER_FULL = "E0000000700"
TOO_LARGE = "E0000000413"
UNKNOWN = "E0000000520"

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_LARGEST_ANSWER = 1 << 20
_CONNECT_SECONDS = 5.0
_CODE = re.compile(r"E\d{10}|0")


@dataclass(frozen=True)
class PeerRoute:
    """How a node is reached. ``deadline`` is for one try, in seconds; ``profile`` names its dialect."""

    url: str
    deadline: float = 10.0
    profile: str = "spec"


class _NoAnswer(GatewayError):
    """One try ended without an answer; the message says how."""


class Courier:
    """One kept set of connections to all peers. Belongs to one event loop; close it there."""

    def __init__(self) -> None:
        self._client: httpx.AsyncClient | None = None

    async def invoke(
        self, route: PeerRoute, body: bytes, headers: list[tuple[bytes, bytes]], retry_for: float
    ) -> Answer:
        """Sends a push until the peer answers, for at most ``retry_for`` seconds plus the last try's deadline.

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

    async def _try(self, route: PeerRoute, body: bytes, headers: list[tuple[bytes, bytes]]) -> Answer:
        timeout = httpx.Timeout(route.deadline, connect=min(_CONNECT_SECONDS, route.deadline))
        try:
            async with self._opened().stream(
                "POST", route.url + INVOKE, content=body, headers=headers, timeout=timeout
            ) as response:
                said = await _read_bounded(response)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            return Answer(BAD_ADDRESS, f"the route's address {route.url!r} cannot be used: {error}")
        except httpx.HTTPError as error:
            raise _NoAnswer(f"{type(error).__name__}: {error}") from error
        if response.status_code >= 500:
            raise _NoAnswer(f"it answered HTTP {response.status_code}")
        return _understood(response.status_code, said)

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(
                limits=httpx.Limits(max_connections=256, max_keepalive_connections=64, keepalive_expiry=4.0),
                headers={"accept": "application/json", "accept-encoding": "identity"},
                trust_env=False,
            )
        return self._client

    async def close(self) -> None:
        """Closes every connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


async def _read_bounded(response: httpx.Response) -> bytes:
    said = bytearray()
    async for chunk in response.aiter_bytes():
        said += chunk
        if len(said) > _LARGEST_ANSWER:
            break
    return bytes(said)


def _understood(status: int, said: bytes) -> Answer:
    if status == 413:
        return Answer(TOO_LARGE, "the peer takes no body of this size")
    try:
        answer = decode_answer(said)
    except Invalid:
        return Answer(UNKNOWN, f"the peer answered HTTP {status} with something that is no transport answer")
    if not _CODE.fullmatch(answer.code):
        return Answer(UNKNOWN, f"the peer answered HTTP {status}, code {answer.code[:40]}: {answer.message[:500]}")
    return answer
