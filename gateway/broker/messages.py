"""The broker's public types: messages, figures, limits and refusals."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gateway.errors import Busy, Conflict

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Limits of one node's broker. Sizes are in bytes, times in seconds."""

    # Limits of undelivered messages. Those in bytes apply to the payloads.
    message_bytes: int = 256 * MIB  # of one message
    session_bytes: int = 1 * GIB  # of all messages of a session
    session_messages: int = 100_000  # number of messages of a session
    total_bytes: int = 16 * GIB  # of all messages of all sessions
    # The number of open sessions.
    sessions: int = 4096
    # The size of the memory for cached small payloads.
    cache_bytes: int = 64 * MIB
    # The largest payload that is stored in its session's journal and may be cached. A larger one
    # has a file of its own, is written and read in a thread and is never cached.
    inline_bytes: int = 256 * KIB
    # A journal longer than ``compact_bytes`` is rewritten once half of it is obsolete. If its
    # needed records exceed ``rewrite_bytes``, it is rewritten only once 15/16 of it are obsolete.
    compact_bytes: int = 16 * MIB
    rewrite_bytes: int = 4 * MIB
    # For each reader, the number and the size of the delivered messages that are retained for
    # repeats of their pops. These messages do not count against the capacity.
    retained_messages: int = 16
    retained_bytes: int = 64 * MIB
    # How many pushes per session are remembered by their sequence, to recognise a repeated push.
    repeats: int = 65_536
    # The longest wait of a pop.
    pop_seconds: float = 300.0
    # The time for which requests for an ended session are refused.
    remember_ended: float = 1800.0


@dataclass(frozen=True, slots=True)
class Message:
    """A message for a reader.

    ``session`` and ``number`` identify the message for `Broker.confirm_delivery` and
    `Broker.put_back`.
    """

    content: bytes | Path  # the payload, or the file of a large payload
    size: int  # bytes
    source: str
    topic: str
    session: str
    number: int

    @property
    def payload(self) -> bytes:
        """The entire payload. Blocks while a large one is read."""
        return b"".join(self.pieces(max(self.size, 1)))

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield the payload in pieces of ``size`` bytes.

        Blocks while a large one is read; raises `OSError`.
        """
        if isinstance(self.content, bytes):
            for offset in range(0, self.size, size):
                yield self.content[offset : offset + size]
            return
        with self.content.open("rb", buffering=0) as file:
            for offset in range(0, self.size, size):
                expected = min(size, self.size - offset)
                piece = file.read(expected)
                if len(piece) != expected:
                    raise OSError(f"{self.content} ends before byte {self.size}")
                yield piece


class Usage(NamedTuple):
    """The present content of a broker."""

    sessions: int
    messages: int  # undelivered ones
    bytes: int  # of their payloads


class TopicBacklog(NamedTuple):
    """The unread messages of a topic and its waiting readers."""

    topic: str
    messages: int
    bytes: int  # of these messages
    # Age of the oldest message in seconds. The age of a message from before the node's start is
    # counted from that start. 0 without messages.
    oldest: float
    bytes_per_second: int  # received over the last ten seconds, whether read by now or not
    readers: tuple[str, ...]  # the waiting runs; "" for an unknown one


class Traffic(NamedTuple):
    """The messages that a session received since the start of this process."""

    messages: int
    bytes: int
    bytes_per_second: int  # over the last ten seconds


class BufferFull(Busy):
    """There is no capacity for the message now, and nothing of it was stored. Retry later."""

    reason = "BUFFER_FULL"


class SessionReleased(Conflict):
    """The session's job has ended: its messages are deleted and no more are accepted."""

    reason = "SESSION_RELEASED"


class PartsMissing(Conflict):
    """A part of a message arrived before its predecessors."""

    reason = "PARTS_MISSING"
