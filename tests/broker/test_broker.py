"""The broker of messages: order, room, limits of the memory and the disk, ends of sessions."""

import asyncio

import pytest

from gateway.broker import BufferFull, SessionReleased
from gateway.broker import broker as broker_module
from gateway.broker.messages import Usage
from gateway.errors import TooLarge
from tests.broker.brokers import EMPTY, blocked_task, pop, pop_times

pytestmark = pytest.mark.anyio


async def test_a_pop_ends_empty_when_the_node_stops(brokers):
    broker = brokers.start()
    waiting_pop = await blocked_task(broker.pop("s", "t", reader="r", timeout=600.0))

    broker.stop_pops()

    assert await waiting_pop is None
    assert await broker.pop("s", "t", reader="r", timeout=600.0) is None


async def test_a_pop_ends_empty_when_its_time_is_over(brokers):
    broker = brokers.start(pop_seconds=0.01)
    assert await broker.pop("s", "t", reader="r", timeout=1e9) is None
    assert broker.usage() == EMPTY


async def test_a_push_waits_for_room_and_gets_it(brokers):
    broker = brokers.start(session_bytes=10)
    await broker.push("s", "t", "n", b"0123456789")
    second = await blocked_task(broker.push("s", "t", "n", b"next", wait=100))
    third = await blocked_task(broker.push("s", "t", "n", b"last", wait=100))

    assert await pop(broker) == b"0123456789"

    await asyncio.gather(second, third)
    assert await pop_times(broker, 2) == [b"next", b"last"]


@pytest.mark.parametrize(
    ("limit", "sessions"),
    [
        ({"session_bytes": 5}, ["s"]),
        ({"total_bytes": 5}, ["s", "other"]),
        ({"session_messages": 1}, ["s"]),
    ],
    ids=["session_bytes", "total_bytes", "session_messages"],
)
async def test_a_push_without_room_is_refused_and_leaves_nothing(brokers, limit, sessions):
    broker = brokers.start(**limit, inline_bytes=2)
    await broker.push("s", "t", "n", b"012")

    for session in sessions:
        with pytest.raises(BufferFull):
            await broker.push(
                session,
                "t",
                "n",
                b"345",
                wait=0.01,
                sequence="1",
            )

    assert broker.usage() == Usage(
        sessions=1,
        messages=1,
        bytes=3,
    )
    assert brokers.count_files(".payload") == 1
    assert await pop(broker) == b"012"
    await broker.push(
        "s",
        "t",
        "n",
        b"345",
        wait=0,
        sequence="1",
    )
    assert await pop(broker) == b"345"


@pytest.mark.parametrize(
    "limit",
    [
        {"session_bytes": 10},
        {"session_messages": 4},
    ],
    ids=list,
)
async def test_one_run_fills_half_of_a_session_at_most(brokers, limit):
    broker = brokers.start(**limit)
    await broker.push(
        "s",
        "t",
        "n",
        b"012",
        run="greedy",
    )
    await broker.push(
        "s",
        "u",
        "n",
        b"34",
        run="greedy",
    )

    broker = brokers.start(**limit)
    with pytest.raises(BufferFull, match="half"):
        await broker.push(
            "s",
            "v",
            "n",
            b"5",
            run="greedy",
            wait=0.05,
        )
    await broker.push(
        "s",
        "t",
        "n",
        b"01",
        run="other",
    )
    await broker.push("s", "t", "peer", b"01")
    waiting_push = await blocked_task(broker.push("s", "v", "n", b"5", run="greedy", wait=100))

    assert await pop(broker) == b"012"
    await waiting_push
    assert await pop(broker, "v") == b"5"


async def test_messages_that_never_fit_are_refused_immediately(brokers):
    broker = brokers.start(message_bytes=4)
    with pytest.raises(TooLarge, match=r"limits\.message_bytes.*send it in parts"):
        await broker.push("s", "t", "n", b"12345")
    assert broker.usage() == EMPTY


@pytest.mark.parametrize("size", [3, 3000])
async def test_a_repeated_push_is_stored_once_even_during_the_first(brokers, size):
    payload = b"x" * size
    broker = brokers.start(inline_bytes=100)
    pushes = [broker.push("s", "t", "n", payload, sequence="7") for _ in range(5)]
    await asyncio.gather(*pushes)

    broker = brokers.start()
    await broker.push(
        "s",
        "t",
        "n",
        payload,
        sequence="7",
    )

    assert await pop_times(broker, 2) == [payload, None]
    assert brokers.count_files(".payload") == 0


# ------------------------------------------------------------ limits of the memory and the disk


async def test_only_so_many_pushes_are_remembered(brokers):
    broker = brokers.start(repeats=2)
    for sequence in "123":
        await broker.push(
            "s",
            "t",
            "n",
            sequence.encode(),
            sequence=sequence,
        )
    await broker.push(
        "s",
        "t",
        "n",
        b"3",
        sequence="3",
    )
    await broker.push(
        "s",
        "t",
        "n",
        b"1 again",
        sequence="1",
    )

    assert await pop_times(broker, 5) == [b"1", b"2", b"3", b"1 again", None]


async def test_a_reader_that_never_returns_to_a_topic_does_not_fill_the_disk(brokers):
    broker = brokers.start(
        retained_messages=3,
        retained_bytes=1000,
        inline_bytes=10,
    )
    for number in range(10):
        await broker.push("s", f"topic {number}", "n", b"x" * 100)
        assert await pop(broker, f"topic {number}", pop_id=str(number)) == b"x" * 100
    assert brokers.count_files(".payload") == 3
    assert await pop(broker, "topic 9", pop_id="9") == b"x" * 100

    await broker.push("s", "large", "n", b"x" * 5000)
    assert await pop(broker, "large", pop_id="l") == b"x" * 5000
    assert brokers.count_files(".payload") == 1
    assert await pop(broker, "large", pop_id="l") == b"x" * 5000


async def test_a_long_journal_is_rewritten_once_half_of_it_is_read(brokers):
    payloads = [b"%02d" % number * 50 for number in range(40)]
    broker = brokers.start(compact_bytes=2000)
    for payload in payloads:
        await broker.push("s", "t", "n", payload)
    journal = brokers.journal()
    full_size = journal.stat().st_size
    first_inode = journal.stat().st_ino

    # Open, the first journal keeps its inode: no later journal can get the same one.
    with journal.open("rb"):
        journal.with_suffix(".new").mkdir()  # a folder in its way makes the rewrite fail
        for number, payload in enumerate(payloads[:25]):
            assert await pop(broker, pop_id=str(number)) == payload
        assert journal.stat().st_ino == first_inode
        assert journal.stat().st_size > full_size

        journal.with_suffix(".new").rmdir()
        for number in range(200):
            await broker.push("s", "u", "n", b"+" * 100)
            assert await pop(broker, "u", pop_id=str(number)) == b"+" * 100
        assert journal.stat().st_ino != first_inode
        assert journal.stat().st_size < full_size

    broker = brokers.start()
    assert await pop(broker, "u", pop_id="199") == b"+" * 100
    assert await pop(broker, pop_id="24") == payloads[24]
    assert await pop_times(broker, 16) == [*payloads[25:], None]


async def test_only_so_many_sessions_are_open(brokers):
    broker = brokers.start(sessions=1)
    await broker.push("s", "t", "n", b"one")
    with pytest.raises(BufferFull, match="1 sessions are open"):
        await broker.push("other", "t", "n", b"one")


async def test_only_so_many_refusals_are_remembered(brokers, monkeypatch):
    monkeypatch.setattr(broker_module, "MAX_REFUSALS", 2)
    broker = brokers.start()
    for session in "abc":
        broker.remember_refusal(session, f"why {session}")
    assert [broker.last_refusal(session) for session in "abc"] == ["", "why b", "why c"]


# ------------------------------------------------------------ the end of a session


async def test_ending_a_session_frees_everything_and_wakes_everyone(brokers):
    broker = brokers.start(
        session_bytes=10,
        inline_bytes=5,
    )
    await broker.push("s", "t", "n", b"0123456789")
    await broker.push("other", "t", "n", b"stays")
    waiting_pop = await blocked_task(pop(broker, "u", timeout=100))
    waiting_push = await blocked_task(broker.push("s", "t", "n", b"next", wait=100))
    undelivered = await broker.pop(
        "s",
        "t",
        reader="slow",
        timeout=0,
    )

    await broker.end_session("s")

    late_push = broker.push("s", "t", "n", b"late")
    for refused in (waiting_pop, waiting_push, late_push, pop(broker)):
        with pytest.raises(SessionReleased):
            await refused
    await broker.release(
        "s",
        "t",
        reader="r",
    )
    broker.confirm_delivery(undelivered)
    broker.put_back(undelivered)
    assert broker.usage() == Usage(
        sessions=1,
        messages=1,
        bytes=5,
    )
    assert len(brokers.session_folders()) == 1


async def test_the_end_of_a_session_is_forgotten_after_half_an_hour(brokers):
    broker = brokers.start()
    await broker.push("s", "t", "n", b"")
    await broker.end_session("s")
    assert broker.has_ended("s")

    brokers.now += 1801

    assert not broker.has_ended("s")
    await broker.push("s", "t", "n", b"new")
    assert await pop(brokers.start()) == b"new"


async def test_a_session_that_ended_twice_is_remembered_from_its_second_end(brokers):
    broker = brokers.start()
    for session, seconds in (("s", 0), ("old", 900), ("s", 0), ("new", 901)):
        await broker.end_session(session)
        brokers.now += seconds

    await broker.end_session("newest")

    assert broker.has_ended("s")
    assert not broker.has_ended("old")
    assert broker.has_ended("new")


async def test_an_end_cut_short_is_finished_at_the_next_start(brokers):
    await brokers.start().push("s", "t", "n", b"large")
    (folder,) = brokers.session_folders()
    folder.rename(folder.with_suffix(".gone"))

    broker = brokers.start()

    assert brokers.session_folders() == []
    assert broker.usage() == EMPTY


HOSTILE_NAMES = [
    "../../etc/passwd",
    "/",
    "",
    ".",
    "a" * 5000,
    "nul\0",
    "lone \ud800",
    "会话",
    "x.gone",
    "lock",
]


async def test_hostile_session_ids_neither_meet_nor_leave_the_folder(brokers, tmp_path):
    broker = brokers.start(inline_bytes=3)
    for number, name in enumerate(HOSTILE_NAMES):
        payload = str(number).encode()
        await broker.push(
            name,
            name,
            name,
            payload,
            run=name,
            sequence=name,
        )

    broker = brokers.start(inline_bytes=3)
    for number, name in enumerate(HOSTILE_NAMES):
        assert await pop(broker, name, session=name) == str(number).encode()
        await broker.end_session(name)

    assert list(tmp_path.iterdir()) == [brokers.root]
    assert [path.name for path in brokers.root.iterdir()] == ["lock"]
    assert all(broker.has_ended(name) for name in HOSTILE_NAMES)
