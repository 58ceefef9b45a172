"""The broker with damaged files, full disks and failures in the middle of a step."""

import asyncio
import resource
import threading

import pytest

from gateway.broker import Broker, BufferFull, SessionReleased
from gateway.broker.journal import Spool, folder_name
from gateway.broker.messages import Usage
from gateway.errors import Busy
from tests.broker.brokers import EMPTY, PARTS_TIMEOUT, LoopClock, pop, pop_times, send_part
from tests.builders import raising

pytestmark = pytest.mark.anyio


@pytest.fixture
async def loop_clock(monkeypatch):
    clock = LoopClock()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock.now)
    return clock


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


async def test_a_message_read_on_a_full_disk_blocks_no_reader_after_a_restart(
    brokers, monkeypatch, caplog
):
    broker = brokers.start(inline_bytes=3)
    await broker.push("s", "t", "n", b"first")
    await broker.push("s", "t", "n", b"second")
    with monkeypatch.context() as full_disk:
        full_disk.setattr(
            Spool,
            "append",
            raising(OSError(28, "No space left on device")),
        )
        assert await pop(broker) == b"first"

    broker = brokers.start(inline_bytes=3)

    assert "message without its payload dropped" in caplog.text
    assert await pop_times(broker, 2) == [b"second", None]


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
