"""Sends the parts of one long message, several at the same time."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from adapter.bfia.channel.codec import TransportReply
from adapter.bfia.channel.responses import PARTS_MISSING

# Parts that a part may overtake, for each of those under way together: a slow connection must not
# stop the others immediately. A receiver stores at most `MOST_AHEAD` (`gateway.broker.journal`).
_LEAD = 2

Part = list[bytes]  # in pieces
# Sends a part at an offset, and calls the function once the part was sent, before the reply.
Send = Callable[[Part, int, Callable[[], None]], Awaitable[TransportReply]]


class PartWindow:
    """The parts of a message that are under way.

    While parts wait for their replies, as many others are being sent: otherwise a long line would
    be empty for a round trip after each part.

    A receiver of an earlier version takes parts only in their order, and refuses one that has
    overtaken another: it then gets this and all further parts one after the other.
    """

    def __init__(self, send: Send, width: int, part_bytes: int) -> None:
        """``send`` sends a part; ``width``: how many may be sent together."""
        self._send = send
        self._width = width
        self._most_under_way = _LEAD * width
        self._part_bytes = part_bytes
        self._under_way: dict[int, asyncio.Task[TransportReply]] = {}  # by offset
        # Those of them that are being sent, each with the future of the end of that
        self._being_sent: dict[int, asyncio.Future[None]] = {}
        self._refusal: TransportReply | None = None  # of the first part that was refused

    async def put(self, part: Part, offset: int) -> TransportReply | None:
        """Begin to send a part as soon as it may be; return the refusal of an earlier part.

        Raises the errors of ``send`` for an earlier part.
        """
        while self._refusal is None and self._is_full(offset):
            await self._wait()
        if self._refusal is None:
            sent = asyncio.get_running_loop().create_future()
            self._being_sent[offset] = sent
            sending = self._send_in_order(part, offset, partial(_complete, sent))
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
        is_far_ahead = lead >= self._most_under_way * self._part_bytes
        are_many = len(self._under_way) >= self._most_under_way
        return len(self._being_sent) >= self._width or are_many or is_far_ahead

    async def _wait(self) -> None:
        """Wait until a part was sent or has its reply, and take the replies that are there."""
        changes: list[asyncio.Future[Any]] = [*self._under_way.values()]
        changes += self._being_sent.values()
        await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
        for offset, task in list(self._under_way.items()):
            if task.done() or self._being_sent.get(offset, task).done():
                self._being_sent.pop(offset, None)
            if not task.done():
                continue
            del self._under_way[offset]
            reply = task.result()
            if not reply.succeeded and self._refusal is None:
                self._refusal = reply

    async def _send_in_order(
        self,
        part: Part,
        offset: int,
        on_sent: Callable[[], None],
    ) -> TransportReply:
        """Send a part; again, once the earlier ones are there, if the receiver wants them first."""
        reply = await self._send(part, offset, on_sent)
        earlier = [task for other, task in self._under_way.items() if other < offset]
        if reply.code == PARTS_MISSING and earlier:
            self._width = 1
            self._most_under_way = 1
            await asyncio.wait(earlier)
            reply = await self._send(part, offset, on_sent)
        part.clear()  # otherwise it would stay in memory while the next ones are sent
        return reply


def _complete(sent: asyncio.Future[None]) -> None:
    """Mark a part as sent; a repetition changes nothing."""
    if not sent.done():
        sent.set_result(None)
