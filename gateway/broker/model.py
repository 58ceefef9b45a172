"""The values of the channel: a message, the limits, and the two refusals it adds to the family of errors."""

from dataclasses import dataclass
from typing import NamedTuple

from gateway.errors import Busy, Conflict

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """What one node's broker may hold. Bytes count payloads that are not yet delivered; times are in seconds.

    ``inline_bytes`` divides small from large: a small payload lies in its session's journal and may be cached
    in memory, a large one has a file of its own, is written and read in a thread and is never cached.
    A journal longer than ``compact_bytes`` is rewritten once half of it is of no use, ``rewrite_bytes`` at a time.
    ``kept_messages`` and ``kept_bytes`` bound, per reader, the answers kept for a repeated pop; they do not
    count against the room for new messages. ``repeats`` bounds the pushes of a session that are remembered
    in order to recognise a repeat.
    """

    message_bytes: int = 256 * MIB
    session_bytes: int = 1 * GIB
    session_messages: int = 100_000
    total_bytes: int = 16 * GIB
    sessions: int = 4096
    cache_bytes: int = 64 * MIB
    inline_bytes: int = 256 * KIB
    compact_bytes: int = 16 * MIB
    rewrite_bytes: int = 1 * MIB
    kept_messages: int = 16
    kept_bytes: int = 64 * MIB
    repeats: int = 65_536
    pop_seconds: float = 300.0
    tombstone_seconds: float = 1800.0


@dataclass(frozen=True, slots=True)
class Message:
    """One message in the hands of a reader. ``run`` and ``sequence`` are known only where the sender told them.

    ``session`` and ``number`` name it for ``Broker.delivered`` and ``Broker.returned``.
    """

    payload: bytes
    source: str
    topic: str
    run: str | None
    sequence: str | None
    session: str
    number: int


class Usage(NamedTuple):
    """What the broker holds just now: sessions, messages not yet delivered, and the bytes of their payloads."""

    sessions: int
    messages: int
    bytes: int


class BufferFull(Busy):
    """There is no room for the message now; nothing of it was kept. Pushing again later is right."""

    reason = "BUFFER_FULL"


class SessionReleased(Conflict):
    """The session's job has ended: its messages are gone and no more are taken."""

    reason = "SESSION_RELEASED"
