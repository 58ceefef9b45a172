import asyncio
import resource
import threading

import pytest

from gateway.broker import Broker, BrokerLimits, BufferFull, PartsMissing, SessionReleased
from gateway.broker import broker as broker_module
from gateway.broker.journal import Spool, folder_name
from gateway.errors import Busy, TooLarge

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Opened:
    """Brokers on one folder, one after the other as after restarts; all are closed at the end."""

    def __init__(self, root):
        self.root = root
        self.now = 1000.0
        self.broker = None

    def __call__(self, **limits):
        if self.broker is not None:
            self.broker.close()
        self.broker = Broker(self.root, BrokerLimits(**limits), clock=lambda: self.now)
        self.broker.recover()
        return self.broker


@pytest.fixture
def opened(tmp_path):
    opened = Opened(tmp_path / "spool")
    yield opened
    if opened.broker is not None:
        opened.broker.close()


async def read(
    broker,
    topic="t",
    *,
    session="s",
    reader="r",
    timeout=0.0,
    **more,
):
    """Pops and says that the answer was sent; returns the payload."""
    message = await broker.pop(
        session,
        topic,
        reader=reader,
        timeout=timeout,
        **more,
    )
    if message is None:
        return None
    payload = message.payload
    broker.confirm_delivery(message)
    return payload


async def waiting(task):
    """Lets a task run until it waits for something that is not its turn on the loop."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_a_pop_ends_empty_when_the_node_stops(opened):
    broker = opened()
    pop = await waiting(asyncio.create_task(broker.pop("s", "t", reader="r", timeout=600.0)))
    broker.stop_pops()
    assert await pop is None
    assert await broker.pop("s", "t", reader="r", timeout=600.0) is None


async def test_a_pop_ends_empty_when_its_time_is_over(opened):
    broker = opened(pop_seconds=0.01)
    assert await broker.pop("s", "t", reader="r", timeout=1e9) is None
    assert broker.usage() == (0, 0, 0)


async def test_a_push_waits_for_room_and_gets_it(opened):
    broker = opened(session_bytes=10)
    await broker.push("s", "t", "n", b"0123456789")
    push = await waiting(asyncio.ensure_future(broker.push("s", "t", "n", b"next", wait=100)))
    later = await waiting(asyncio.ensure_future(broker.push("s", "t", "n", b"last", wait=100)))
    assert await read(broker) == b"0123456789"
    await asyncio.gather(push, later)
    assert [await read(broker), await read(broker)] == [b"next", b"last"]


@pytest.mark.parametrize(
    "limit", [{"session_bytes": 5}, {"total_bytes": 5}, {"session_messages": 1}]
)
async def test_a_push_without_room_is_refused_and_leaves_nothing(opened, limit):
    broker = opened(**limit, inline_bytes=2)
    await broker.push("s", "t", "n", b"012")
    for session in {
        "s",
        "s" if "session_bytes" in limit or "session_messages" in limit else "other",
    }:
        with pytest.raises(BufferFull):
            await broker.push(session, "t", "n", b"345", wait=0.01, sequence="1")
    assert broker.usage() == (1, 1, 3)
    assert len(list(opened.root.glob("*/*.payload"))) == 1
    assert await read(broker) == b"012"
    await broker.push("s", "t", "n", b"345", wait=0, sequence="1")
    assert await read(broker) == b"345"


@pytest.mark.parametrize("limit", [{"session_bytes": 10}, {"session_messages": 4}])
async def test_one_run_fills_half_of_a_session_at_most(opened, limit):
    broker = opened(**limit)
    await broker.push("s", "t", "n", b"012", run="greedy")
    await broker.push("s", "u", "n", b"34", run="greedy")
    broker.close()
    broker = opened(**limit)
    with pytest.raises(BufferFull, match="half"):
        await broker.push("s", "v", "n", b"5", run="greedy", wait=0.05)
    await broker.push("s", "t", "n", b"01", run="other")
    await broker.push("s", "t", "peer", b"01")
    push = await waiting(
        asyncio.ensure_future(broker.push("s", "v", "n", b"5", run="greedy", wait=100))
    )
    assert await read(broker) == b"012"
    await push
    assert await read(broker, "v") == b"5"


async def test_messages_that_never_fit_are_refused_at_once(opened):
    broker = opened(message_bytes=4)
    with pytest.raises(TooLarge, match=r"limits\.message_bytes.*send it in parts"):
        await broker.push("s", "t", "n", b"12345")
    assert broker.usage() == (0, 0, 0)


@pytest.mark.parametrize("size", [3, 3000])
async def test_a_repeated_push_is_stored_once_even_while_the_first_is_under_way(opened, size):
    broker = opened(inline_bytes=100)
    again = [broker.push("s", "t", "n", b"x" * size, sequence="7") for _ in range(5)]
    await asyncio.gather(*again)
    await opened().push("s", "t", "n", b"x" * size, sequence="7")
    assert await read(opened.broker) == b"x" * size
    assert await read(opened.broker) is None
    assert list(opened.root.glob("*/*.payload")) == []


def begun(
    broker,
    name,
    *,
    offset=0,
    data=b"part",
    size=16,
    **more,
):
    """Brings a part of a message of 16 bytes."""
    return broker.part(
        "s",
        "t",
        "n",
        [data],
        offset=offset,
        size=size,
        sequence=name,
        **more,
    )


def parts(opened):
    return len(list(opened.root.glob("*/*.part")))


class LoopClock:
    """The event loop's clock, which moves only when a test moves it."""

    def __init__(self):
        self.start = self.now = asyncio.get_running_loop().time()

    async def move_to(self, seconds):
        """Set the clock to so many seconds after its start, and let the timers that are due run."""
        self.now = self.start + seconds
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.fixture
async def loop_clock(monkeypatch):
    clock = LoopClock()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock.now)
    return clock


async def test_messages_that_are_begun_without_end_keep_no_capacity(opened, loop_clock):
    """Attack: a peer begins ever more messages and brings only the first part of each."""
    broker = opened(session_bytes=64)
    for name in "abcd":
        await begun(broker, name)
    for number in range(1000):
        with pytest.raises(BufferFull):
            await begun(broker, f"more {number}", wait=0.0)
    assert parts(opened) == 4
    assert broker.usage() == (1, 4, 64)
    last = await waiting(asyncio.create_task(begun(broker, "last", wait=3600.0)))
    await begun(broker, "a", offset=4)
    await loop_clock.move_to(119.0)
    await begun(broker, "b")  # no progress
    assert not last.done()
    await loop_clock.move_to(121.0)
    await last
    assert parts(opened) == 1
    assert broker.usage() == (1, 1, 16)
    with pytest.raises(PartsMissing):
        await begun(broker, "a", offset=8)


async def test_what_a_crash_left_of_messages_goes_unless_they_go_on(opened, loop_clock):
    broker = opened()
    for name in "ab":
        await begun(broker, name)
    broker = opened()
    await begun(broker, "a", offset=4, data=b"x" * 11)
    assert parts(opened) == 2
    await loop_clock.move_to(119.0)
    await begun(broker, "a", offset=15, data=b"y")
    await loop_clock.move_to(121.0)
    assert parts(opened) == 0
    assert await read(broker) == b"part" + b"x" * 11 + b"y"
    with pytest.raises(PartsMissing):
        await begun(broker, "b", offset=4)


@pytest.mark.parametrize(
    "left", [b"0123456789abcdef", b""], ids=["as it became whole", "as it began"]
)
async def test_a_message_whose_file_lost_its_count_is_delivered_again(opened, left):
    await begun(opened(), "a")
    broker = opened()
    (file,) = opened.root.glob("*/*.part")
    file.write_bytes(left)
    with pytest.raises(PartsMissing):
        await begun(broker, "a", offset=12, data=b"cdef")
    await begun(broker, "a", data=b"0123456789abcdef")
    assert await read(broker) == b"0123456789abcdef"


async def test_a_part_arrives_while_another_waits_and_the_session_ends(opened):
    broker = opened(session_bytes=16)
    await broker.push("s", "t", "n", b"x" * 16)
    first = await waiting(asyncio.create_task(begun(broker, "a")))
    with pytest.raises(BufferFull, match="another part"):
        await begun(broker, "a")
    await broker.end_session("s")
    with pytest.raises(SessionReleased):
        await first
    assert broker.usage() == (0, 0, 0)
    assert list(opened.root.glob("*/*")) == []


async def test_a_message_that_came_whole_meanwhile_is_not_stored_again(opened):
    broker = opened()
    await begun(broker, "a")
    last = asyncio.create_task(begun(broker, "a", offset=4, data=b"x" * 12))
    await asyncio.sleep(0)  # it has found that the message is new, and is being written
    await broker.push("s", "t", "n", b"part" + b"x" * 12, sequence="a")
    await last
    assert parts(opened) == 0
    assert broker.usage() == (1, 1, 16)
    assert await read(broker) == b"part" + b"x" * 12


async def test_only_so_many_pushes_are_remembered(opened):
    broker = opened(repeats=2)
    for sequence in "123":
        await broker.push("s", "t", "n", sequence.encode(), sequence=sequence)
    await broker.push("s", "t", "n", b"3", sequence="3")
    await broker.push("s", "t", "n", b"1 again", sequence="1")
    assert [await read(broker) for _ in range(5)] == [b"1", b"2", b"3", b"1 again", None]


async def test_a_reader_that_never_returns_to_a_topic_does_not_fill_the_disk(opened):
    broker = opened(
        kept_messages=3,
        kept_bytes=1000,
        inline_bytes=10,
    )
    for number in range(10):
        await broker.push("s", f"topic {number}", "n", b"x" * 100)
        assert await read(broker, f"topic {number}", pop_id=str(number)) == b"x" * 100
    assert len(list(opened.root.glob("*/*.payload"))) == 3
    assert await read(broker, "topic 9", pop_id="9") == b"x" * 100
    await broker.push("s", "large", "n", b"x" * 5000)
    assert await read(broker, "large", pop_id="l") == b"x" * 5000
    assert len(list(opened.root.glob("*/*.payload"))) == 1
    assert await read(broker, "large", pop_id="l") == b"x" * 5000


async def test_a_long_journal_is_rewritten_once_half_of_it_is_read(opened):
    broker = opened(compact_bytes=2000)
    for number in range(40):
        await broker.push("s", "t", "n", b"%02d" % number * 50)
    (journal,) = opened.root.glob("*/journal")
    opened_first = journal.open("rb")  # so that no later file has its number
    first, full = journal.stat().st_ino, journal.stat().st_size
    journal.with_suffix(".new").mkdir()  # the disk does not let it be rewritten
    assert [await read(broker, pop_id=str(number)) for number in range(25)] == [
        b"%02d" % n * 50 for n in range(25)
    ]
    assert journal.stat().st_ino == first
    assert journal.stat().st_size > full
    journal.with_suffix(".new").rmdir()
    for number in range(200):
        await broker.push("s", "u", "n", b"+" * 100)
        assert await read(broker, "u", pop_id=str(number)) == b"+" * 100
    assert journal.stat().st_ino != first
    assert journal.stat().st_size < full
    opened_first.close()
    broker = opened()
    assert await read(broker, "u", pop_id="199") == b"+" * 100
    assert await read(broker, pop_id="24") == b"24" * 50
    assert [await read(broker) for _ in range(16)] == [
        *(b"%02d" % n * 50 for n in range(25, 40)),
        None,
    ]


async def test_ending_a_session_frees_everything_and_wakes_everyone(opened):
    broker = opened(session_bytes=10, inline_bytes=5)
    await broker.push("s", "t", "n", b"0123456789")
    await broker.push("other", "t", "n", b"stays")
    pop = await waiting(asyncio.ensure_future(read(broker, "u", timeout=100)))
    push = await waiting(asyncio.ensure_future(broker.push("s", "t", "n", b"next", wait=100)))
    under_way = await broker.pop("s", "t", reader="slow", timeout=0)
    await broker.end_session("s")
    for refused in (pop, push, broker.push("s", "t", "n", b"late"), read(broker)):
        with pytest.raises(SessionReleased):
            await refused
    await broker.release("s", "t", reader="r")
    broker.confirm_delivery(under_way)
    broker.put_back(under_way)
    assert broker.usage() == (1, 1, 5)
    assert len([path for path in opened.root.iterdir() if path.is_dir()]) == 1


async def test_an_ended_session_stays_ended_until_that_is_long_ago(opened):
    broker = opened()
    await broker.push("s", "t", "n", b"")
    await broker.end_session("s")
    assert broker.has_ended("s")
    opened.now += 1801
    assert not broker.has_ended("s")
    await broker.push("s", "t", "n", b"new")
    assert await read(opened()) == b"new"


async def test_an_end_cut_short_is_finished_at_the_next_start(opened):
    await opened().push("s", "t", "n", b"large")
    (folder,) = [path for path in opened.root.iterdir() if path.is_dir()]
    folder.rename(folder.with_suffix(".gone"))
    broker = opened()
    assert [path for path in opened.root.iterdir() if path.is_dir()] == []
    assert broker.usage() == (0, 0, 0)


HOSTILE = [
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


async def test_hostile_session_ids_neither_meet_nor_leave_the_folder(opened, tmp_path):
    broker = opened(inline_bytes=3)
    for number, session in enumerate(HOSTILE):
        await broker.push(
            session, session, session, str(number).encode(), run=session, sequence=session
        )
    broker = opened(inline_bytes=3)
    for number, session in enumerate(HOSTILE):
        assert await read(broker, session, session=session) == str(number).encode()
        await broker.end_session(session)
    assert list(tmp_path.iterdir()) == [opened.root]
    assert [path.name for path in opened.root.iterdir()] == ["lock"]
    assert all(broker.has_ended(session) for session in HOSTILE)


async def test_a_journal_cut_at_any_byte_gives_its_whole_records(opened):
    broker = opened(inline_bytes=30)
    ends = [0]
    for number in range(4):
        await broker.push("s", "t", "n", b"%d" % number * (number * 20))
        (journal,) = opened.root.glob("*/journal")
        ends.append(journal.stat().st_size)
    whole = journal.read_bytes()
    payloads = {path: path.read_bytes() for path in opened.root.glob("*/*.payload")}
    for cut in range(0, len(whole), 7):
        broker.close()
        journal.parent.mkdir(exist_ok=True)
        journal.write_bytes(whole[:cut])
        for path, payload in payloads.items():
            path.write_bytes(payload)
        broker = opened(inline_bytes=30)
        complete = sum(end <= cut for end in ends[1:])
        assert broker.usage().messages == complete
        await broker.push("s", "t", "n", b"after")
        broker = opened(inline_bytes=30)
        got = [await read(broker) for _ in range(complete + 2)]
        assert got == [b"%d" % n * (n * 20) for n in range(complete)] + [b"after", None]


async def test_one_folder_serves_one_process(opened):
    opened()
    with pytest.raises(Busy):
        Broker(opened.root).recover()


@pytest.fixture
def small_files():
    """Makes every file of this process end at 4 KiB, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("inline", [10, 10_000])
async def test_a_full_disk_refuses_the_push_and_damages_nothing(
    opened,
    small_files,
    inline,
):
    broker = opened(inline_bytes=inline, cache_bytes=0)
    await broker.push("s", "t", "n", b"before")
    with pytest.raises(BufferFull):
        await broker.push("s", "t", "n", b"x" * 5000, sequence="1")
    assert broker.usage() == (1, 1, 6)
    await broker.push("s", "t", "n", b"after")
    broker = opened(inline_bytes=inline)
    assert [await read(broker) for _ in range(3)] == [b"before", b"after", None]


# ------------------------------------------------------------ what fails in between


async def test_a_full_disk_does_not_stop_reading(
    opened,
    monkeypatch,
    caplog,
):
    broker = opened()
    await broker.push("s", "t", "n", b"one")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Spool, "append", full)
    assert await read(broker, pop_id="p") == b"one"
    assert "journal not written" in caplog.text


@pytest.mark.parametrize("size", [5, 5000])
async def test_a_file_that_lost_its_end_gives_no_shorter_message(opened, size):
    broker = opened(inline_bytes=100, cache_bytes=0)
    await broker.push("s", "t", "n", b"x" * size)
    [file] = opened.root.glob("*/*.payload" if size > 100 else "*/journal")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(OSError, match="ends before byte"):
        await read(broker)


async def test_what_a_crash_left_in_a_folder_is_no_message(opened):
    broker = opened()
    await broker.push("s", "t", "n", b"one")
    await broker.push("s", "t", "n", b"two")
    broker.close()
    [journal] = opened.root.glob("*/journal")
    journal.with_suffix(".new").write_bytes(b"a rewrite that was cut short")
    journal.write_bytes(journal.read_bytes().replace(b'"n":1', b'"n":7'))  # by a disk that forgets
    broker = opened()
    assert [await read(broker), await read(broker)] == [b"one", None]
    assert not journal.with_suffix(".new").exists()
    broker.close()
    journal.unlink()
    assert opened().usage() == (0, 0, 0)


async def test_only_so_many_sessions_are_open_and_refusals_remembered(opened, monkeypatch):
    monkeypatch.setattr(broker_module, "MAX_REFUSALS", 2)
    broker = opened(sessions=1)
    await broker.push("s", "t", "n", b"one")
    with pytest.raises(BufferFull, match="1 sessions are open"):
        await broker.push("other", "t", "n", b"one")
    for session in "abc":
        broker.remember_refusal(session, f"why {session}")
    assert [broker.last_refusal(session) for session in "abc"] == ["", "why b", "why c"]


@pytest.fixture
def held(monkeypatch):
    """Makes a method of the spool wait until the test lets it, and then do its work, or fail."""

    def hold(name, error=None):
        begun, go_on, real = threading.Event(), threading.Event(), getattr(Spool, name)

        def work(*given):
            begun.set()
            assert go_on.wait(60)
            if error is not None:
                raise error
            return real(*given)

        monkeypatch.setattr(Spool, name, work)
        return begun, go_on

    return hold


async def until_set(event):
    assert await asyncio.to_thread(event.wait, 60)


@pytest.mark.parametrize("error", [None, OSError(2, "No such file or directory")])
@pytest.mark.parametrize("by", ["push", "part"])
async def test_a_session_that_ends_while_its_message_is_written_has_ended(
    opened,
    held,
    by,
    error,
):
    broker = opened(inline_bytes=2)
    await broker.push("s", "t", "n", b"0")
    begun_, go_on = held("write_payload" if by == "push" else "write_part", error)
    coming = broker.push("s", "t", "n", b"one") if by == "push" else begun(broker, "a")
    task = asyncio.ensure_future(coming)
    await until_set(begun_)
    await broker.end_session("s")
    opened.root.joinpath(folder_name("s")).mkdir(exist_ok=True)
    go_on.set()
    with pytest.raises(SessionReleased):
        await task
    assert broker.usage() == (0, 0, 0)


async def test_a_message_is_not_dropped_while_a_part_of_it_is_written(opened, held, loop_clock):
    broker = opened()
    await begun(broker, "a")
    started, go_on = held("write_part")
    task = asyncio.ensure_future(begun(broker, "a", offset=4, data=b"x" * 12))
    await until_set(started)
    await loop_clock.move_to(121.0)
    go_on.set()
    await task
    assert await read(broker) == b"part" + b"x" * 12


async def test_a_message_whose_last_step_fails_is_refused_and_gone(opened, held):
    broker = opened()
    _, go_on = held("complete", OSError(28, "No space left on device"))
    go_on.set()
    with pytest.raises(BufferFull, match="cannot be stored: No space"):
        await begun(broker, "a", data=b"x" * 16)
    assert broker.usage().bytes == 0
    assert parts(opened) == 0


async def test_a_session_whose_folder_cannot_be_moved_ends_all_the_same(
    opened,
    monkeypatch,
    caplog,
):
    broker = opened()
    await broker.push("s", "t", "n", b"one")
    await begun(broker, "a")  # the timer that would drop it ends, too

    def stuck(_):
        raise OSError("Device or resource busy")

    monkeypatch.setattr(Spool, "retire", stuck)
    await broker.end_session("s")
    assert broker.usage() == (0, 0, 0)
    assert "folder not removed" in caplog.text
