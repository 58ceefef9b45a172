"""Reads requests' bodies: limits how many large ones are in memory, and refuses slow ones."""

import asyncio
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from typing import TypeVar

import anyio
from anyio import Semaphore
from starlette.requests import Request

from adapter.bfia.channel.codec import CHANNEL, GRPC, read_ends, read_session
from adapter.bfia.channel.pieces import PartBuffer
from gateway.domain.problems import Problem
from gateway.errors import Invalid, TooLarge
from gateway.runtime.pacing import PartnerPacing, Turns

T = TypeVar("T")

_SMALL = 1 << 14  # bytes; a body that announces no more is read with one call
LARGE = 1 << 20  # bytes above which a body needs a slot
PART = 1 << 21  # bytes of a part of a long message
UNPACED = 1 << 18  # bytes; a body that announces no more does not wait for turns
_DIGITS = 18  # the most digits of an announced length; a longer number counts as infinite

# Kind of slots -> the number of its slots: the most large bodies of that kind in memory.
# A gateway that hands a message on to another gateway of the same node keeps its slot until the
# other gateway has the message. So messages that were handed on have slots of their own: with
# common slots, two gateways could wait for each other.
SLOT_COUNTS = {
    "large": 16,  # bodies of containers, and of nodes with a client certificate
    "to one node": 8,  # an unreachable node must not keep all slots while it is retried
    "handed on": 4,  # to this gateway by another one of this node
    # Messages, except parts, of senders without a client certificate, whatever node they name
    "of anybody": 2,
    "handed on by anybody": 2,  # the same, handed on to this gateway by another one
    "relayed": 128,  # requests that this node relays, large or not
    "relayed of one node": 32,  # the same of one node, which must not take all slots
}


def turns_of(pacing: PartnerPacing, request: Request) -> Turns | None:
    """Return the turns in which the body of a request from a partner is read.

    None without a limit, and for a control request. A short body, whose sender could run out of
    time, does not wait for its turns, and neither does one by gRPC, which arrives as a whole. These
    bytes count when they arrive, so that others wait longer.
    """
    if not request.scope["path"].startswith(CHANNEL):
        return None
    source, _ = read_ends(request.headers.raw) or ("", "")
    size = announced(request)
    is_short = size is not None and size <= UNPACED
    if is_short or request.scope["http_version"] == GRPC:
        return pacing.tally(source)
    return pacing.of(source, read_session(request.headers.raw), source)


def _unlimited(request: Request) -> Turns | None:
    """Return None: bodies are read as they arrive."""
    return None


class Bodies:
    """Reads the bodies of requests. Each instance has slots of its own."""

    def __init__(
        self,
        max_body: int,
        stall_for: float = 10.0,
        least_rate: float = 32 * 1024,
        turns_of: Callable[[Request], Turns | None] = _unlimited,
    ) -> None:
        """``max_body`` in bytes, ``stall_for`` in seconds, ``least_rate`` in bytes per second.

        ``turns_of`` returns the turns in which a body is read.
        """
        self._turns_of = turns_of
        self._max_body = max_body
        self._stall_for = stall_for
        self._least_rate = least_rate
        self._slots: dict[tuple[str, object], Semaphore] = {}

    def slots(self, kind: str, owner: object = None) -> Semaphore:
        """Return the slots for large bodies of a kind, which is a key of `SLOT_COUNTS`.

        ``owner``: whose bodies share these slots, such as a node; None: all share them.
        """
        key = (kind, owner)
        if key not in self._slots:
            self._slots[key] = Semaphore(SLOT_COUNTS[kind])
        return self._slots[key]

    @asynccontextmanager
    async def pieces(
        self,
        request: Request,
        *slots: Semaphore,
    ) -> AsyncIterator[list[bytes]]:
        """Read a whole body; yield the pieces in which it arrived.

        While a large body is in memory, one slot of each semaphore in ``slots`` is held; without
        ``slots``, one of the kind "large". A body is large by its real size, not by the announced
        one. Raises TooLarge, and Invalid for a body that arrives too slowly.
        """
        length = announced(request)
        if length is not None:
            self._refuse_too_large(length)
        turns = self._turns_of(request)
        if length == 0:
            yield [b""]
            return
        if length is not None and length <= _SMALL:
            body = await _within_stall_limit(request.body(), self._stall_for)
            if turns is not None:
                await turns.take(len(body))
            yield [body]
            return
        async with AsyncExitStack() as held_slots:
            yield await self._read(request, slots or (self.slots("large"),), held_slots, turns)

    async def _read(
        self,
        request: Request,
        slots: Sequence[Semaphore],
        held_slots: AsyncExitStack,
        turns: Turns | None,
    ) -> list[bytes]:
        """Read a body that may be large; take the slots into ``held_slots`` once it is large."""
        chunks: list[bytes] = []
        size = 0
        pace = _Pace(self._stall_for, self._least_rate, request, slots, turns)
        async with aclosing(request.stream()) as stream:
            while True:
                chunk = await pace.next_chunk(stream)
                if chunk is None:
                    return chunks
                # True for one chunk only, so that the slots are taken once.
                if size <= LARGE < size + len(chunk):
                    with pace.paused():
                        for slot in slots:
                            await held_slots.enter_async_context(slot)
                size += len(chunk)
                self._refuse_too_large(size)
                await pace.wait_for_turn(len(chunk))
                chunks.append(chunk)
                if size > LARGE:
                    pace.refuse_slow(size)

    async def parts(self, request: Request) -> AsyncGenerator[list[bytes]]:
        """Yield a body in parts of `PART` bytes, each in pieces; the last part may be shorter.

        The caller holds a slot of the kind "large". Raises Invalid for a body that arrives too
        slowly.
        """
        buffer = PartBuffer(PART)
        async with aclosing(self.stream(request, self.slots("large"))) as chunks:
            async for chunk in chunks:
                for part in buffer.add(chunk):
                    yield part
        if buffer.part:
            yield buffer.part

    async def stream(
        self,
        request: Request,
        *slots: Semaphore,
    ) -> AsyncGenerator[bytes]:
        """Yield a body as it arrives.

        No slot is taken, and the size is not limited. Raises Invalid if the body stalls, or if it
        is slow while other requests wait for one of ``slots``, which the caller holds.
        """
        size = 0
        turns = self._turns_of(request)
        pace = _Pace(self._stall_for, self._least_rate, request, slots, turns)
        async with aclosing(request.stream()) as chunks:
            while True:
                chunk = await pace.next_chunk(chunks)
                if chunk is None:
                    return
                size += len(chunk)
                pace.refuse_slow(size)
                await pace.wait_for_turn(len(chunk))
                with pace.paused():
                    yield chunk

    def _refuse_too_large(self, size: int) -> None:
        """Raise TooLarge for more bytes than a body may have."""
        if size > self._max_body:
            raise TooLarge(
                f"a body may have at most {self._max_body} bytes (limits.message_bytes): send it "
                "in parts"
            )


class _Pace:
    """Checks how fast a body arrives; `paused` leaves out the time in which its reader is busy.

    A message by gRPC is not checked: it arrives as a whole, and `grpc_server` has checked it.
    """

    def __init__(
        self,
        stall_for: float,
        least_rate: float,
        request: Request,
        slots: Sequence[Semaphore],
        turns: Turns | None,
    ) -> None:
        """``turns`` None: the body does not wait for turns."""
        self._turns = turns
        self._stall_for = stall_for
        self._least_rate = least_rate
        self._slots = slots
        self._is_checked = request.scope["http_version"] != GRPC
        self._began = anyio.current_time()

    async def next_chunk(self, stream: AsyncGenerator[bytes]) -> bytes | None:
        """Return the next chunk, None at the end. Raises Invalid if the body stalls."""
        chunk = anext(stream, None)
        if self._is_checked:
            return await _within_stall_limit(chunk, self._stall_for)
        return await chunk

    async def wait_for_turn(self, size: int) -> None:
        """Wait until further bytes of the body may be read; its sender is not to blame for it."""
        if self._turns is not None:
            with self.paused():
                await self._turns.take(size)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time that the ``with`` block takes."""
        paused_at = anyio.current_time()
        yield
        self._began += anyio.current_time() - paused_at

    def refuse_slow(self, size: int) -> None:
        """Raise Invalid if the body is too slow while other requests wait for the slots.

        ``size``: the bytes that have arrived so far.
        """
        if not self._is_checked:
            return
        if not any(slot.statistics().tasks_waiting for slot in self._slots):
            return
        seconds = anyio.current_time() - self._began
        if seconds > self._stall_for + size / self._least_rate:
            minimum = f"{self._least_rate / 1024:g} KiB/s"
            raise Invalid([Problem("body", f"upload too slow (minimum {minimum})")])


async def _within_stall_limit(data: Awaitable[T], stall_for: float) -> T:
    """Wait for more of a body.

    Raises Invalid after ``stall_for`` seconds: stalled senders would keep all slots.
    """
    try:
        async with asyncio.timeout(stall_for):
            return await data
    except TimeoutError:
        rule = f"must arrive without pauses of more than {stall_for:g} s"
        raise Invalid([Problem("body", rule)]) from None


async def prefetch(items: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """Yield items, and close ``items`` at the end.

    While the caller uses the first item, nothing is fetched. While the caller uses a later item,
    the item after it is fetched.
    """
    fetching: asyncio.Future[T | None] | None = None
    item = await anext(items, None)
    try:
        while item is not None:
            yield item
            if fetching is None:
                item = await anext(items, None)
            else:
                item = await fetching
            fetching = asyncio.ensure_future(anext(items, None))
    finally:
        if fetching is not None:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)
        await items.aclose()


def announced(request: Request) -> int | None:
    """Return the length in bytes that Content-Length announces; None without a valid one."""
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        return None
    if len(length) > _DIGITS:
        return sys.maxsize
    return int(length)
