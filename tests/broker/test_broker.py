"""The broker on its own: capacity, messages in parts, restarts, full disks and hostile names."""

import asyncio
import resource
import threading

import pytest

from gateway.broker import Broker, BrokerLimits, BufferFull, PartsMissing, SessionReleased
from gateway.broker import broker as broker_module
from gateway.broker.journal import Spool, folder_name
from gateway.broker.messages import Usage
from gateway.errors import Busy, TooLarge
from tests.builders import raising

pytestmark = pytest.mark.anyio

EMPTY = Usage(
    sessions=0,
    messages=0,
    bytes=0,
)

# Seconds; a message in parts without progress for this time is dropped.
PARTS_TIMEOUT = 120.0


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Brokers:
    """Brokers on one folder, one after the other as after restarts."""

    def __init__(self, root):
        self.root = root
        self.now = 1000.0
        self.current = None

    def start(self, **limits):
        """Close the current broker, if any, and start another one on the same folder."""
        self.close()
        self.current = Broker(self.root, BrokerLimits(**limits), clock=lambda: self.now)
        self.current.recover()
        return self.current

    def close(self):
        if self.current is not None:
            self.current.close()

    def count_files(self, suffix):
        """Return the number of files of all sessions with a suffix."""
        return len(list(self.root.glob(f"*/*{suffix}")))

    def session_folders(self):
        return [path for path in self.root.iterdir() if path.is_dir()]

    def journal(self):
        """Return the journal of the only session."""
        (journal,) = self.root.glob("*/journal")
        return journal


@pytest.fixture
def brokers(tmp_path):
    brokers = Brokers(tmp_path / "spool")
    yield brokers
    brokers.close()


async def pop(
    broker,
    topic="t",
    *,
    session="s",
    reader="r",
    timeout=0.0,
    **kwargs,
):
    """Pop a message, confirm its delivery and return its payload; None if there is none."""
    message = await broker.pop(
        session,
        topic,
        reader=reader,
        timeout=timeout,
        **kwargs,
    )
    if message is None:
        return None
    payload = message.payload
    broker.confirm_delivery(message)
    return payload


async def pop_times(broker, count, **kwargs):
    """Pop so many times and return the payloads; None for each pop without a message."""
    return [await pop(broker, **kwargs) for _ in range(count)]


async def blocked_task(awaitable):
    """Start a task and let it run until it waits for something else than its turn on the loop."""
    task = asyncio.ensure_future(awaitable)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    return task


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


# ------------------------------------------------------------ messages in parts


def send_part(
    broker,
    name,
    *,
    offset=0,
    data=b"part",
    size=16,
    **kwargs,
):
    """Send a part of a message of 16 bytes."""
    return broker.part(
        "s",
        "t",
        "n",
        [data],
        offset=offset,
        size=size,
        sequence=name,
        **kwargs,
    )


class LoopClock:
    """The event loop's clock, which moves only when a test moves it."""

    def __init__(self):
        self.start = asyncio.get_running_loop().time()
        self.now = self.start

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
        kept_messages=3,
        kept_bytes=1000,
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


# ------------------------------------------------------------ damaged files and full disks


async def test_a_journal_cut_at_any_byte_gives_its_complete_records(brokers):
    payloads = [b"%d" % number * (number * 20) for number in range(4)]
    broker = brokers.start(inline_bytes=30)
    ends = []
    for payload in payloads:
        await broker.push("s", "t", "n", payload)
        ends.append(brokers.journal().stat().st_size)
    journal = brokers.journal()
    content = journal.read_bytes()
    files = {path: path.read_bytes() for path in brokers.root.glob("*/*.payload")}

    for size in range(0, len(content), 7):
        broker.close()
        journal.parent.mkdir(exist_ok=True)
        journal.write_bytes(content[:size])
        for path, file_content in files.items():
            path.write_bytes(file_content)

        broker = brokers.start(inline_bytes=30)
        complete = sum(end <= size for end in ends)
        assert broker.usage().messages == complete

        await broker.push("s", "t", "n", b"after")
        broker = brokers.start(inline_bytes=30)
        expected = [*payloads[:complete], b"after", None]
        assert await pop_times(broker, complete + 2) == expected


async def test_one_folder_serves_one_process(brokers):
    brokers.start()
    with pytest.raises(Busy):
        Broker(brokers.root).recover()


@pytest.fixture
def small_files():
    """Limit every file of this process to 4 KiB, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("inline", [10, 10_000])
async def test_a_full_disk_refuses_the_push_and_damages_nothing(brokers, small_files, inline):
    broker = brokers.start(
        inline_bytes=inline,
        cache_bytes=0,
    )
    await broker.push("s", "t", "n", b"before")

    with pytest.raises(BufferFull):
        await broker.push("s", "t", "n", b"x" * 5000, sequence="1")

    assert broker.usage() == Usage(
        sessions=1,
        messages=1,
        bytes=6,
    )
    await broker.push("s", "t", "n", b"after")
    broker = brokers.start(inline_bytes=inline)
    assert await pop_times(broker, 3) == [b"before", b"after", None]


async def test_a_full_disk_does_not_stop_reading(brokers, monkeypatch, caplog):
    broker = brokers.start()
    await broker.push("s", "t", "n", b"one")
    monkeypatch.setattr(
        Spool,
        "append",
        raising(OSError(28, "No space left on device")),
    )

    assert await pop(broker, pop_id="p") == b"one"
    assert "journal not written" in caplog.text


@pytest.mark.parametrize(
    ("size", "file"),
    [
        (5, "journal"),
        (5000, "*.payload"),
    ],
    ids=["journal", "payload"],
)
async def test_a_file_that_lost_its_end_gives_no_shorter_message(brokers, size, file):
    broker = brokers.start(
        inline_bytes=100,
        cache_bytes=0,
    )
    await broker.push("s", "t", "n", b"x" * size)
    (path,) = brokers.root.glob(f"*/{file}")
    path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(OSError, match="ends before byte"):
        await pop(broker)


async def test_damaged_records_and_unfinished_rewrites_are_no_messages(brokers):
    broker = brokers.start()
    await broker.push("s", "t", "n", b"one")
    await broker.push("s", "t", "n", b"two")
    broker.close()
    journal = brokers.journal()
    rewrite = journal.with_suffix(".new")
    rewrite.write_bytes(b"a rewrite that was cut short")
    journal.write_bytes(journal.read_bytes().replace(b'"n":1', b'"n":7'))  # a record is missing

    broker = brokers.start()

    assert await pop_times(broker, 2) == [b"one", None]
    assert not rewrite.exists()
    broker.close()
    journal.unlink()
    assert brokers.start().usage() == EMPTY


# ------------------------------------------------------------ failures in the middle of a step


class PausedStep:
    """A method of the spool that waits until the test lets it go on."""

    def __init__(self, monkeypatch, name, error=None):
        """``error`` is raised in place of the method's own work, unless it is None."""
        self.is_reached = threading.Event()
        self.may_go_on = threading.Event()
        method = getattr(Spool, name)

        def pause(*args):
            self.is_reached.set()
            assert self.may_go_on.wait(60)
            if error is not None:
                raise error
            return method(*args)

        monkeypatch.setattr(Spool, name, pause)

    async def reach(self):
        """Wait until the method was called."""
        assert await asyncio.to_thread(self.is_reached.wait, 60)


@pytest.mark.parametrize(
    "error", [None, OSError(2, "No such file or directory")], ids=["written", "not written"]
)
@pytest.mark.parametrize("operation", ["push", "part"])
async def test_a_message_being_written_when_its_session_ends_is_refused(
    brokers, monkeypatch, operation, error
):
    broker = brokers.start(inline_bytes=2)
    await broker.push("s", "t", "n", b"0")
    if operation == "push":
        step = PausedStep(monkeypatch, "write_payload", error)
        sending = broker.push("s", "t", "n", b"one")
    else:
        step = PausedStep(monkeypatch, "write_part", error)
        sending = send_part(broker, "a")
    task = asyncio.ensure_future(sending)
    await step.reach()

    await broker.end_session("s")

    brokers.root.joinpath(folder_name("s")).mkdir(exist_ok=True)
    step.may_go_on.set()
    with pytest.raises(SessionReleased):
        await task
    assert broker.usage() == EMPTY


async def test_a_message_is_not_dropped_while_a_part_of_it_is_written(
    brokers, monkeypatch, loop_clock
):
    broker = brokers.start()
    await send_part(broker, "a")
    step = PausedStep(monkeypatch, "write_part")
    task = asyncio.ensure_future(send_part(broker, "a", offset=4, data=b"x" * 12))
    await step.reach()

    await loop_clock.move_to(PARTS_TIMEOUT + 1)

    step.may_go_on.set()
    await task
    assert await pop(broker) == b"part" + b"x" * 12


async def test_a_message_whose_last_step_fails_is_refused_and_gone(brokers, monkeypatch):
    broker = brokers.start()
    monkeypatch.setattr(
        Spool,
        "complete",
        raising(OSError(28, "No space left on device")),
    )

    with pytest.raises(BufferFull, match="cannot be stored: No space"):
        await send_part(broker, "a", data=b"x" * 16)

    assert broker.usage().bytes == 0
    assert brokers.count_files(".part") == 0


async def test_a_session_whose_folder_cannot_be_moved_ends_all_the_same(
    brokers, monkeypatch, caplog
):
    broker = brokers.start()
    await broker.push("s", "t", "n", b"one")
    await send_part(broker, "a")  # its timer must end with the session
    monkeypatch.setattr(
        Spool,
        "retire",
        raising(OSError("Device or resource busy")),
    )

    await broker.end_session("s")

    assert broker.usage() == EMPTY
    assert "folder not removed" in caplog.text
