"""Brokers that restart on one folder, and pops and parts with defaults."""

import asyncio

from gateway.broker import Broker, BrokerLimits
from gateway.broker.messages import Usage

EMPTY = Usage(
    sessions=0,
    messages=0,
    bytes=0,
)
# Seconds; a message in parts without progress for this time is dropped.
PARTS_TIMEOUT = 120.0


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
    """Pop ``count`` times and return the payloads; None for each pop without a message."""
    return [await pop(broker, **kwargs) for _ in range(count)]


async def blocked_task(awaitable):
    """Start a task and let it run until it waits for something else than its turn on the loop."""
    task = asyncio.ensure_future(awaitable)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    return task


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
        """Set the clock to ``seconds`` after its start, and let the timers that are due run."""
        self.now = self.start + seconds
        for _ in range(3):
            await asyncio.sleep(0)
