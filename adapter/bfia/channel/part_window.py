"""Sends the parts of one long message, several at the same time."""

import asyncio
from collections.abc import Awaitable, Callable

from adapter.bfia.channel.codec import TransportReply
from adapter.bfia.channel.responses import PARTS_MISSING

# Parts that a part may overtake, for each of those under way together: a slow connection must not
# stop the others immediately. A receiver stores at most `MOST_AHEAD` (`gateway.broker.journal`).
_LEAD = 2

Part = list[bytes]  # in pieces
Send = Callable[[Part, int], Awaitable[TransportReply]]


class PartWindow:
    """The parts of a message that are under way.

    A receiver of an earlier version takes parts only in their order, and refuses one that has
    overtaken another: it then gets this and all further parts one after the other.
    """

    def __init__(self, send: Send, width: int, part_bytes: int) -> None:
        """``send`` sends a part at an offset; ``width``: how many may be under way together."""
        self._send = send
        self._width = width
        self._part_bytes = part_bytes
        self._under_way: dict[int, asyncio.Task[TransportReply]] = {}  # by offset
        self._refusal: TransportReply | None = None  # of the first part that was refused

    async def put(self, part: Part, offset: int) -> TransportReply | None:
        """Begin to send a part as soon as it may be; return the refusal of an earlier part.

        Raises the errors of ``send`` for an earlier part.
        """
        while self._refusal is None and self._is_full(offset):
            await self._wait()
        if self._refusal is None:
            sending = self._send_in_order(part, offset)
            self._under_way[offset] = asyncio.create_task(sending)
        return self._refusal

    async def wait(self) -> TransportReply | None:
        """Wait until no part is under way; return the refusal of one.

        Raises the errors of ``send``.
        """
        while self._refusal is None and self._under_way:
            await self._wait()
        return self._refusal

    async def close(self) -> None:
        """Give up the parts that are still under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_full(self, offset: int) -> bool:
        """True if a part at an offset has to wait for another one."""
        if not self._under_way:
            return False
        lead = offset - min(self._under_way)
        is_far_ahead = lead >= _LEAD * self._width * self._part_bytes
        return len(self._under_way) >= self._width or is_far_ahead

    async def _wait(self) -> None:
        """Wait until a part under way has its reply, and take the replies that are there."""
        done, _ = await asyncio.wait(
            self._under_way.values(),
            return_when=asyncio.FIRST_COMPLETED,
        )
        for offset, task in list(self._under_way.items()):
            if task not in done:
                continue
            del self._under_way[offset]
            reply = task.result()
            if not reply.succeeded and self._refusal is None:
                self._refusal = reply

    async def _send_in_order(self, part: Part, offset: int) -> TransportReply:
        """Send a part; again, once the earlier ones are there, if the receiver wants them first."""
        reply = await self._send(part, offset)
        earlier = [task for other, task in self._under_way.items() if other < offset]
        if reply.code == PARTS_MISSING and earlier:
            self._width = 1
            await asyncio.wait(earlier)
            reply = await self._send(part, offset)
        part.clear()  # otherwise it would stay in memory while the next ones are sent
        return reply
