"""Messages that arrive in parts at the broker."""

import asyncio

import anyio.to_thread
import pytest

from gateway.broker import BufferFull, PartsMissing, SessionReleased
from gateway.broker.journal import MOST_AHEAD
from gateway.broker.messages import Usage
from tests.broker.brokers import EMPTY, PARTS_TIMEOUT, LoopClock, blocked_task, pop, send_part

pytestmark = pytest.mark.anyio


@pytest.fixture
async def loop_clock(monkeypatch):
    clock = LoopClock()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock.now)
    return clock


async def test_unfinished_messages_without_progress_lose_their_capacity(brokers, loop_clock):
    """Attack: a peer begins ever more messages and sends only the first part of each."""
    broker = brokers.start(session_bytes=64)
    for name in "abcd":
        await send_part(broker, name)
    for number in range(1000):
        with pytest.raises(BufferFull):
            await send_part(
                broker,
                f"more {number}",
                wait=0.0,
            )
    assert brokers.count_files(".part") == 4
    assert broker.usage() == Usage(
        sessions=1,
        messages=4,
        bytes=64,
    )

    waiting_part = await blocked_task(send_part(broker, "last", wait=3600.0))
    await send_part(
        broker,
        "a",
        offset=4,
    )
    await loop_clock.move_to(PARTS_TIMEOUT - 1)
    await send_part(broker, "b")  # a repeated part is no progress
    assert not waiting_part.done()

    await loop_clock.move_to(PARTS_TIMEOUT + 1)
    await waiting_part
    assert brokers.count_files(".part") == 1
    assert broker.usage() == Usage(
        sessions=1,
        messages=1,
        bytes=16,
    )
    with pytest.raises(PartsMissing):
        await send_part(
            broker,
            "a",
            offset=8,
        )


async def test_parts_from_before_a_crash_are_dropped_unless_continued(brokers, loop_clock):
    broker = brokers.start()
    for name in "ab":
        await send_part(broker, name)

    broker = brokers.start()
    await send_part(broker, "a", offset=4, data=b"x" * 11)
    assert brokers.count_files(".part") == 2
    await loop_clock.move_to(PARTS_TIMEOUT - 1)
    await send_part(
        broker,
        "a",
        offset=15,
        data=b"y",
    )
    await loop_clock.move_to(PARTS_TIMEOUT + 1)

    assert brokers.count_files(".part") == 0
    assert await pop(broker) == b"part" + b"x" * 11 + b"y"
    with pytest.raises(PartsMissing):
        await send_part(
            broker,
            "b",
            offset=4,
        )


@pytest.mark.parametrize(
    "content",
    [b"0123456789abcdef", b""],
    ids=["complete", "empty"],
)
async def test_a_message_whose_file_lost_its_count_is_delivered_again(brokers, content):
    await send_part(brokers.start(), "a")
    broker = brokers.start()
    (file,) = brokers.root.glob("*/*.part")
    file.write_bytes(content)

    with pytest.raises(PartsMissing):
        await send_part(
            broker,
            "a",
            offset=12,
            data=b"cdef",
        )
    await send_part(
        broker,
        "a",
        data=b"0123456789abcdef",
    )

    assert await pop(broker) == b"0123456789abcdef"


async def test_a_part_arrives_while_another_waits_and_the_session_ends(brokers):
    broker = brokers.start(session_bytes=16)
    await broker.push("s", "t", "n", b"x" * 16)
    waiting_part = await blocked_task(send_part(broker, "a"))
    with pytest.raises(BufferFull, match="another part"):
        await send_part(broker, "a")

    await broker.end_session("s")

    with pytest.raises(SessionReleased):
        await waiting_part
    assert broker.usage() == EMPTY
    assert brokers.count_files("") == 0


async def test_a_message_pushed_while_its_parts_arrive_is_stored_once(brokers):
    broker = brokers.start()
    await send_part(broker, "a")
    last_part = asyncio.create_task(send_part(broker, "a", offset=4, data=b"x" * 12))
    await asyncio.sleep(0)  # the last part counts as new by now and is being written

    await broker.push("s", "t", "n", b"part" + b"x" * 12, sequence="a")
    await last_part

    assert brokers.count_files(".part") == 0
    assert broker.usage() == Usage(
        sessions=1,
        messages=1,
        bytes=16,
    )
    assert await pop(broker) == b"part" + b"x" * 12


def send_the_end(broker):
    """Send the last part of a message of four."""
    return send_part(
        broker,
        "a",
        offset=12,
        data=b"end.",
    )


def send_of_hundred(broker, offset):
    """Send four of the hundred bytes of a message."""
    return send_part(
        broker,
        "a",
        offset=offset,
        size=100,
    )


async def test_parts_overtake_each_other(brokers):
    broker = brokers.start()
    for offset in (0, 8, 4):
        await send_part(broker, "a", offset=offset)
    assert brokers.count_files(".part") == 1
    await send_the_end(broker)

    assert await pop(broker) == b"partpartpartend."


async def test_parts_behind_a_gap_survive_a_crash(brokers):
    broker = brokers.start()
    for offset in (0, 8):
        await send_part(broker, "a", offset=offset)

    broker = brokers.start()
    await send_part(broker, "a", offset=4)
    await send_the_end(broker)

    assert await pop(broker) == b"partpartpartend."


async def test_the_last_part_is_refused_while_another_is_missing(brokers):
    broker = brokers.start()
    await send_part(broker, "a")
    with pytest.raises(PartsMissing, match="only 4 bytes"):
        await send_the_end(broker)


async def test_the_last_part_waits_until_the_others_are_written(brokers):
    broker = brokers.start()
    await send_part(broker, "a", data=b"x" * 12)
    repeated = asyncio.create_task(send_part(broker, "a", data=b"x" * 12))
    await asyncio.sleep(0)  # a thread writes the repeated part now
    with pytest.raises(BufferFull, match="another part"):
        await send_the_end(broker)
    await repeated
    await send_the_end(broker)

    assert await pop(broker) == b"x" * 12 + b"end."


async def test_no_part_is_written_beside_the_last_one(brokers, monkeypatch):
    """Attack: a part is repeated while the last one makes the message complete."""
    monkeypatch.setattr(anyio.to_thread.current_default_thread_limiter(), "total_tokens", 1)
    broker = brokers.start()
    await send_part(broker, "a", data=b"x" * 12)
    ending = asyncio.create_task(send_the_end(broker))
    await asyncio.sleep(0)  # the only thread writes the last part now
    with pytest.raises(BufferFull, match="another part"):
        await send_part(broker, "a", data=b"x" * 12)
    await ending
    await send_part(broker, "a", data=b"x" * 12)

    assert brokers.count_files(".part") == 0
    assert await pop(broker) == b"x" * 12 + b"end."


async def test_only_some_parts_may_overtake_a_missing_one(brokers):
    too_early = 8 + 4 * MOST_AHEAD
    broker = brokers.start()
    await send_of_hundred(broker, 0)
    for number in range(MOST_AHEAD):
        await send_of_hundred(broker, 8 + 4 * number)
    with pytest.raises(BufferFull, match="behind a missing one"):
        await send_of_hundred(broker, too_early)
    await send_of_hundred(broker, 4)
    await send_of_hundred(broker, too_early)
