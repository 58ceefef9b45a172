"""Reads requests' bodies: how much of them is in memory together, and how slowly one may come."""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TypeVar

import anyio
from anyio import Semaphore
from starlette.requests import Request

from adapter.bfia.channel.codec import GRPC
from adapter.bfia.channel.pieces import Filling
from gateway.domain.problems import Problem
from gateway.errors import Invalid, TooLarge

X = TypeVar("X")

_SMALL = 1 << 14
LARGE = 1 << 20
PART = 1 << 21
"""bytes of a part of a long message"""
AT_ONCE = {
    "large": 16,
    "to one node": 8,  # one that is away must not keep all the places while it is tried
    "handed on": 4,  # by another gateway of this node
    # Whole messages of who shows no certificate: whatever they say of their sender, anybody can say it.
    "of anybody": 2,
    "handed on by anybody": 2,
    "relayed": 128,  # these two are of requests, large or not, which one node must not take all
    "relayed of one node": 32,
}
"""Large bodies in memory. Who hands one on keeps its place: two gateways that do must not wait for each other."""


class Bodies:
    """The bodies of one transport's requests."""

    def __init__(
        self,
        max_body: int,
        stall_for: float = 10.0,
        least_rate: float = 32 * 1024,
    ) -> None:
        """``max_body`` in bytes, ``stall_for`` in seconds, ``least_rate`` in bytes per second."""
        self._max_body = max_body
        self._stall_for = stall_for
        self._least_rate = least_rate
        self._large: dict[tuple[str, object], Semaphore] = {}
        self._too_large = (
            f"a body may have at most {max_body} bytes (limits.message_bytes): send it in parts"
        )

    def places(self, kind: str, of: object = None) -> Semaphore:
        """Return the places for large bodies of a kind."""
        if (kind, of) not in self._large:
            self._large[kind, of] = Semaphore(AT_ONCE[kind])
        return self._large[kind, of]

    @asynccontextmanager
    async def pieces(self, request: Request, *places: Semaphore) -> AsyncIterator[list[bytes]]:
        """Read the body, and hold one of each of the few places while a large one is in memory.

        Only what has come counts, whatever its announced size. Raises TooLarge.
        """
        length = announced(request)
        if length is not None and length > self._max_body:
            raise TooLarge(self._too_large)
        if length is not None and length <= _SMALL:
            yield [await self._soon(request.body()) if length else b""]
            return
        places = places or (self.places("large"),)
        chunks: list[bytes] = []
        size, since = 0, anyio.current_time()
        timed = request.scope["http_version"] != GRPC  # which comes as a whole, and is timed before
        async with AsyncExitStack() as held, aclosing(request.stream()) as stream:
            while (
                chunk := await (self._soon(anext(stream, None)) if timed else anext(stream, None))
            ) is not None:
                if size <= LARGE < size + len(chunk):
                    asked = anyio.current_time()
                    for place in places:
                        await held.enter_async_context(place)
                    since += anyio.current_time() - asked
                size += len(chunk)
                if size > self._max_body:
                    raise TooLarge(self._too_large)
                chunks.append(chunk)
                if (
                    timed
                    and size > LARGE
                    and any(place.statistics().tasks_waiting for place in places)
                ):
                    self._refuse_slow(size, anyio.current_time() - since)
            yield chunks

    def _refuse_slow(self, size: int, seconds: float) -> None:
        """Raise Invalid for a body so slow that others should not wait for its place."""
        if seconds > self._stall_for + size / self._least_rate:
            least = f"{self._least_rate / 1024:g} KiB/s"
            raise Invalid([Problem("body", f"upload too slow (minimum {least})")])

    async def _soon(self, more: Awaitable[X]) -> X:
        """Wait for more of a body, but not for long: stalled senders would keep all places of large bodies."""
        try:
            async with asyncio.timeout(self._stall_for):
                return await more
        except TimeoutError:
            rule = f"must arrive without pauses of more than {self._stall_for:g} s"
            raise Invalid([Problem("body", rule)]) from None

    async def parts(self, request: Request) -> AsyncGenerator[list[bytes]]:
        """Give the body in parts of one size, but for the last; each in the pieces in which it came."""
        filling = Filling(PART)
        async with aclosing(self.paced(request, self.places("large"))) as chunks:
            async for chunk in chunks:
                for part in filling.add(chunk):
                    yield part
        if filling.part:
            yield filling.part

    async def paced(self, request: Request, *places: Semaphore) -> AsyncGenerator[bytes]:
        """Give the body as it comes. Raises Invalid if it stands still, or is slow while others wait."""
        came, since = 0, anyio.current_time()
        timed = request.scope["http_version"] != GRPC
        async with aclosing(request.stream()) as stream:
            while (
                chunk := await (self._soon(anext(stream, None)) if timed else anext(stream, None))
            ) is not None:
                came += len(chunk)
                if timed and any(place.statistics().tasks_waiting for place in places):
                    self._refuse_slow(came, anyio.current_time() - since)
                asked = anyio.current_time()
                yield chunk
                since += anyio.current_time() - asked


async def ahead(items: AsyncGenerator[X]) -> AsyncGenerator[X]:
    """Give what comes; from the second one on, the next one comes while the caller is busy with this one."""
    item, coming = await anext(items, None), None
    try:
        while item is not None:
            yield item
            item = await (coming or anext(items, None))
            coming = asyncio.ensure_future(anext(items, None))
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await items.aclose()


def announced(request: Request) -> int | None:
    """Return the length that a request says its body has; None where it says none."""
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        return None
    return int(length) if len(length) <= 18 else sys.maxsize
