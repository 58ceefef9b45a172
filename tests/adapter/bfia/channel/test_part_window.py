"""How many parts of a message are sent together, and how many more wait for their replies."""

import asyncio

import pytest

from adapter.bfia.channel.codec import SUCCESS, TransportReply
from adapter.bfia.channel.part_window import PartWindow

pytestmark = pytest.mark.anyio

PART_BYTES = 10
WIDTH = 2


class Receiver:
    """Replies to each part when the test says so."""

    def __init__(self, *, is_read=True):
        """``is_read``: whether parts leave for the receiver although none has a reply."""
        self.is_read = is_read
        self.replies = {}

    async def send(self, _, offset, on_sent):
        if self.is_read:
            on_sent()
        self.replies[offset] = asyncio.get_running_loop().create_future()
        return await self.replies[offset]

    async def reply(self, offset):
        self.replies[offset].set_result(TransportReply(code=SUCCESS))
        await settle()

    def offsets(self):
        return sorted(self.replies)


async def settle():
    """Let every task do what it can without a further reply."""
    for _ in range(10):
        await asyncio.sleep(0)


async def sending(receiver, parts):
    """Put parts into a window in a task, and return it once nothing more can be sent."""
    window = PartWindow(receiver.send, WIDTH, PART_BYTES)

    async def put_all():
        for number in range(parts):
            await window.put([b"x"], number * PART_BYTES)
        return await window.wait()

    task = asyncio.create_task(put_all())
    await settle()
    return task


async def test_as_many_parts_are_sent_while_others_wait_for_their_replies():
    receiver = Receiver()
    task = await sending(receiver, 6)
    assert receiver.offsets() == [0, 10, 20, 30]

    await receiver.reply(0)
    assert receiver.offsets() == [0, 10, 20, 30, 40]

    for offset in (10, 20, 30, 40, 50):
        await receiver.reply(offset)
    assert await task is None


async def test_no_more_parts_than_the_width_are_being_sent():
    receiver = Receiver(is_read=False)
    task = await sending(receiver, 3)
    assert receiver.offsets() == [0, 10]

    for offset in (0, 10, 20):
        await receiver.reply(offset)
    assert await task is None


async def test_a_part_overtakes_few_others():
    receiver = Receiver()
    task = await sending(receiver, 8)
    for offset in (10, 20, 30):
        await receiver.reply(offset)
    assert receiver.offsets() == [0, 10, 20, 30]

    await receiver.reply(0)
    for offset in (40, 50, 60, 70):
        await receiver.reply(offset)
    assert await task is None
