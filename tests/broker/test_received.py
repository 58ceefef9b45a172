"""A message with a number of its sender is stored once, however old its number is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.broker import BufferFull, PartsMissing
from gateway.broker.received import Number, ReceivedNumbers
from tests.broker.brokers import pop

pytestmark = pytest.mark.anyio


async def push(
    broker,
    number,
    series="key",
    **options,
):
    """Push a message that has no id besides its number."""
    await broker.push(
        "s",
        "t",
        "beta",
        b"x",
        sender_number=Number(series, number),
        **options,
    )


def received_of(numbers):
    """Return the record of some received numbers of one series."""
    received = ReceivedNumbers()
    for number in numbers:
        received.add(Number("key", number))
    return received


def numbers_in(received, limit):
    """Return the numbers below a limit that count as received."""
    numbers = set()
    for number in range(limit):
        if Number("key", number) in received:
            numbers.add(number)
    return numbers


async def test_a_repeated_number_is_not_stored(brokers):
    broker = brokers.start(repeats=2)
    for number in range(10):
        await push(broker, number)
    for number in range(10):
        await push(broker, number)

    assert broker.usage().messages == 10


async def test_the_same_number_of_another_key_is_another_message(brokers):
    broker = brokers.start()
    await push(broker, 1)
    await push(broker, 1, series="other")

    assert broker.usage().messages == 2


@pytest.mark.parametrize("compact_bytes", [1, 1 << 20], ids=["rewritten", "as written"])
async def test_numbers_of_read_messages_survive_a_restart(brokers, compact_bytes):
    broker = brokers.start(compact_bytes=compact_bytes, repeats=2)
    for number in range(5):
        await push(broker, number)
        assert await pop(broker) == b"x"
    broker = brokers.start()

    for number in range(5):
        await push(broker, number)

    assert broker.usage().messages == 0
    await push(broker, 5)
    assert broker.usage().messages == 1


async def test_a_message_without_capacity_can_be_sent_again(brokers):
    broker = brokers.start(message_bytes=1, session_bytes=1)
    await push(broker, 1)
    with pytest.raises(BufferFull):
        await push(broker, 2, wait=0.0)
    assert await pop(broker) == b"x"

    await push(broker, 2)

    assert await pop(broker) == b"x"


# ------------------------------------------------------------ messages in parts


async def send_part(broker, number, content, offset):
    """Send one of two parts of a message of four bytes."""
    await broker.part(
        "s",
        "t",
        "beta",
        [content],
        offset=offset,
        size=4,
        sequence="the same for all attempts",
        sender_number=number,
    )


async def begin(broker, number, content):
    """Send the first part of a message."""
    await send_part(
        broker,
        number,
        content,
        offset=0,
    )


async def finish(broker, number, content):
    """Send the last part of a message."""
    await send_part(
        broker,
        number,
        content,
        offset=2,
    )


FIRST = Number("key", 1)
SECOND = Number("key", 2)
IN_THE_NEXT_HOUR = Number("another key", 0)


@pytest.mark.parametrize("second", [SECOND, IN_THE_NEXT_HOUR])
@pytest.mark.parametrize(
    "restarts",
    [False, True],
    ids=["one process", "restarted"],
)
async def test_parts_of_two_attempts_are_never_joined(brokers, second, restarts):
    broker = brokers.start()
    await begin(broker, FIRST, b"aa")
    if restarts:
        broker = brokers.start()

    with pytest.raises(PartsMissing):
        await finish(broker, second, b"BB")

    await begin(broker, second, b"AA")
    await finish(broker, second, b"BB")
    assert await pop(broker) == b"AABB"


async def test_a_new_attempt_takes_the_capacity_of_the_earlier_one(brokers):
    broker = brokers.start(message_bytes=4, session_bytes=4)
    await begin(broker, FIRST, b"aa")

    await begin(broker, SECOND, b"AA")

    assert broker.usage().bytes == 4


async def test_a_part_of_an_old_attempt_does_not_end_the_present_one(brokers):
    broker = brokers.start()
    await begin(broker, FIRST, b"aa")
    await begin(broker, SECOND, b"AA")

    await begin(broker, FIRST, b"aa")  # somebody repeats it

    await finish(broker, SECOND, b"BB")
    assert await pop(broker) == b"AABB"


@given(st.lists(st.integers(0, 300)))
def test_exactly_the_numbers_that_were_added_are_known(numbers):
    recorded = numbers_in(received_of(numbers), 301)

    assert set(numbers) <= recorded
    if len(numbers) <= 100:  # with more, the lowest gaps may count as received
        assert recorded == set(numbers)


@given(st.sets(st.integers(0, 10_000), max_size=80))
def test_stored_numbers_are_known_after_they_were_loaded(numbers):
    restored = ReceivedNumbers()
    restored.load(received_of(numbers).dump())

    assert numbers_in(restored, 10_002) == numbers


def test_the_ranges_of_a_key_are_bounded():
    received = received_of(range(0, 2_000, 2))

    assert len(received.dump()["key"]) <= 100
    assert Number("key", 1_997) not in received


def test_the_keys_are_bounded():
    received = ReceivedNumbers()
    for number in range(1_000):
        received.add(Number(f"key {number}", 1))

    assert len(received.dump()) <= 256
    assert Number("key 999", 1) in received
