"""One session's messages and their states, in memory and on disk alike.

Nothing here waits. Every change of state is one call that appends its record and changes memory without
giving up the event loop in between, so there is nothing to lock. A message moves

    unread ──take──▶ being sent ──delivered──▶ gone, or kept for a repeat of its pop
       ▲                  │                                        │
       └────returned──────┘                next call on the topic ─┴──▶ gone
"""

import asyncio
import hashlib
import logging
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gateway.broker.journal import Entry, Kind, Record, Spool
from gateway.broker.mailbox import Mailbox, Stored
from gateway.errors import Busy, Conflict

_DIGEST = 16
RECENT_SECONDS = 10

log = logging.getLogger(__name__)


KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """What one node's broker may hold. Bytes count payloads that are not yet delivered; times are in seconds.

    ``inline_bytes`` divides small from large: a small payload lies in its session's journal and may be cached
    in memory, a large one has a file of its own, is written and read in a thread and is never cached.
    A journal longer than ``compact_bytes`` is rewritten once half of it is of no use or, where more than
    ``rewrite_bytes`` of it are still needed, fifteen sixteenths.
    ``kept_messages`` and ``kept_bytes`` bound, per reader, the responses kept for a repeated pop; they do not
    count against the capacity for new messages. ``repeats`` bounds the pushes of a session that are remembered
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
    rewrite_bytes: int = 4 * MIB
    kept_messages: int = 16
    kept_bytes: int = 64 * MIB
    repeats: int = 65_536
    pop_seconds: float = 300.0
    remember_ended: float = 1800.0


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a reader gets it; ``session`` and ``number`` name it for `Broker.delivered` and `returned`.

    ``content`` is the payload or, of a large one, its file.
    """

    content: bytes | Path
    size: int
    source: str
    topic: str
    session: str
    number: int

    @property
    def payload(self) -> bytes:
        """The whole payload; blocks for a large one."""
        return b"".join(self.pieces(max(self.size, 1)))

    def pieces(self, size: int) -> Iterator[bytes]:
        """Gives the payload in pieces of ``size`` bytes; blocks for a large one."""
        if isinstance(self.content, bytes):
            yield from (self.content[at : at + size] for at in range(0, self.size, size))
            return
        with self.content.open("rb", buffering=0) as file:
            for at in range(0, self.size, size):
                wanted = min(size, self.size - at)
                piece = file.read(wanted)
                if len(piece) != wanted:
                    raise OSError(f"{self.content} ends before byte {self.size}")
                yield piece


class Usage(NamedTuple):
    """What the broker holds just now: sessions, messages not yet delivered, and the bytes of their payloads."""

    sessions: int
    messages: int
    bytes: int


class Waiting(NamedTuple):
    """What waits on a topic: unread messages, and the runs that wait for one ("" where it is not known which)."""

    topic: str
    messages: int
    bytes: int
    oldest: float
    """seconds that the oldest one has waited, since the start at most; 0 without messages"""
    bytes_per_second: int
    """received over the last ten seconds, whether they have been read or not"""
    readers: tuple[str, ...]


class Received(NamedTuple):
    """What a session has received since the start of this process."""

    messages: int
    bytes: int
    bytes_per_second: int
    """over the last ten seconds"""


class BufferFull(Busy):
    """There is no capacity for the message now; nothing of it was stored. Retry later."""

    reason = "BUFFER_FULL"


class SessionReleased(Conflict):
    """The session's job has ended: its messages are deleted and no more are accepted."""

    reason = "SESSION_RELEASED"


class PartsMissing(Conflict):
    """A part of a message came, but not what is before it."""

    reason = "PARTS_MISSING"


@dataclass(slots=True)
class Flight:
    """A message that was given to a reader. ``sending`` counts the responses under way that carry it."""

    stored: Stored
    reader: str
    pop_id: str | None
    sending: int = 0
    sent: bool = False


@dataclass(slots=True)
class Upload:
    """A message that comes in parts. ``drop`` ends it where no more comes."""

    stored: Stored
    there: int | None = None
    """bytes that have come; None: no capacity is reserved for it yet"""
    busy: bool = False
    """whether a part is being written, or waits for capacity"""
    drop: asyncio.TimerHandle | None = None


class Pool:
    """What all sessions share: bytes of payload on disk, and the cache for small payloads."""

    def __init__(self, limits: BrokerLimits) -> None:
        self.bytes = 0
        self._cache_free = limits.cache_bytes

    def keep(self, stored: Stored, payload: bytes) -> None:
        """Caches the payload if there is capacity."""
        if len(payload) <= self._cache_free:
            self._cache_free -= len(payload)
            stored.payload = payload

    def drop(self, stored: Stored) -> None:
        """Drops a payload from the cache."""
        if stored.payload is not None:
            self._cache_free += len(stored.payload)
            stored.payload = None


class Session:
    """The mailboxes of one session, what is on its way to readers, and the spool that remembers both."""

    def __init__(
        self,
        name: str,
        spool: Spool,
        limits: BrokerLimits,
        pool: Pool,
    ) -> None:
        self.name = name
        self.spool = spool
        self.messages = 0
        self.bytes = 0
        self.messages_of: Counter[str | None] = Counter()
        self.bytes_of: Counter[str | None] = Counter()
        """what each run of this node has pushed, as far as it is undelivered"""
        self._received_messages = self._received_bytes = 0
        """since the start of this process"""
        self._recent: deque[tuple[int, Counter[str]]] = deque(maxlen=RECENT_SECONDS)
        """a second, and the bytes that came in it by topic"""
        self.uploads: dict[str, Upload] = {}
        self.left: set[str] = set()
        """uploads of an earlier process"""
        self.on_disk = False
        self.ended = False
        self._limits = limits
        self._pool = pool
        self._next = 0
        self._needed = 0
        """bytes of the records of all messages that are still needed"""
        self._mailboxes: dict[str, Mailbox] = {}
        self._flights: dict[int, Flight] = {}
        self._repeats: dict[tuple[str, str, str], Flight] = {}
        self._kept: dict[str, dict[int, Flight]] = {}
        self._seen: dict[bytes, None] = {}

    def pending(self) -> dict[str, list[Stored]]:
        """Return the unread messages by topic; may be called from another thread."""
        return {topic: mailbox.all() for topic, mailbox in list(self._mailboxes.items())}

    def received(self) -> Received:
        """Return what has come; may be called from another thread."""
        return Received(
            self._received_messages, self._received_bytes, self.recent().total() // RECENT_SECONDS
        )

    def recent(self) -> Counter[str]:
        """Return the bytes that came lately, by topic; may be called from another thread."""
        since, recent = int(time.monotonic()) - RECENT_SECONDS, Counter[str]()
        for second, sizes in list(self._recent):
            if second > since:
                recent.update(sizes.copy())
        return recent

    def load(self, records: list[Record]) -> None:
        """Rebuilds the state from the journal; payload files of which it has no record are removed."""
        self.on_disk = True
        pending: dict[int, Stored] = {}
        end = 0
        for record in records:
            self._replay(record, pending, record.offset + record.size - end)
            end = record.offset + record.size
        files, self.left = self.spool.payloads()
        for number in files - pending.keys() - self._flights.keys():
            self.spool.remove_payload(number)
            self._next = max(self._next, number + 1)
        for number in sorted(pending):
            self._mailbox(pending[number].topic).put(pending[number])
            self.reserve(pending[number])
        self._needed = sum(stored.record for stored in self._live())

    def _replay(
        self,
        record: Record,
        pending: dict[int, Stored],
        length: int,
    ) -> None:
        head = record.head
        match record.kind:
            case Kind.OPEN:
                self._next = int(head["next"])
            case Kind.PUSH:
                stored = Stored(
                    number=head["n"],
                    topic=head["t"],
                    source=head["s"],
                    run=head["r"],
                    sequence=head["q"],
                    size=head["z"],
                    offset=None if head["f"] else record.offset,
                    record=length,
                )
                pending[stored.number] = stored
                self._next = max(self._next, stored.number + 1)
                self._remember(stored)
            case Kind.TAKEN:
                taken = pending.pop(head["n"], None)
                if taken is not None:
                    self._keep(self._fly(Flight(taken, head["reader"], head["pop"], sent=True)))
            case Kind.BACK:
                back = self._flights.get(head["n"])
                if back is not None:
                    self._forget(back)
                    pending[back.stored.number] = back.stored
            case Kind.READ:
                for number in head["n"]:
                    pending.pop(number, None)
                    self._forget(self._flights.get(number))
            case Kind.SEEN:
                body = self.spool.read(record.offset, record.size)
                self._seen.update(
                    (body[i : i + _DIGEST], None) for i in range(0, len(body), _DIGEST)
                )

    def reserve(self, stored: Stored, sign: int = 1) -> None:
        """Counts one message against the session's capacity, and against its run's share of it."""
        self.messages += sign
        self.bytes += sign * stored.size
        self.messages_of[stored.run] += sign
        self.bytes_of[stored.run] += sign * stored.size
        self._pool.bytes += sign * stored.size

    def unreserve(self, stored: Stored) -> None:
        """Takes one message off the count."""
        if not self.ended:
            self.reserve(stored, -1)

    def begin(self) -> None:
        """Begins the spool if there is none."""
        if not self.on_disk:
            self.spool.create(self.name)
            self.on_disk = True

    def new_number(self) -> int:
        """Returns the number of the next message and begins the spool if this is the first one."""
        self.begin()
        self._next += 1
        return self._next - 1

    def seen(self, stored: Stored) -> bool:
        """Tell whether a message with the sequence of this one has come from its source on its topic before."""
        return (
            stored.sequence is not None
            and digest(stored.topic, stored.source, stored.sequence) in self._seen
        )

    def add(self, stored: Stored, payload: bytes) -> None:
        """Stores one message that is counted already; OSError if the disk refuses, and then nothing changed."""
        inline, before = stored.offset is not None, self.spool.size
        try:
            offset = self.spool.append(Kind.PUSH, _push_head(stored), payload if inline else b"")
        except OSError:
            self.spool.remove_payload(stored.number)
            raise
        stored.record = self.spool.size - before
        self._needed += stored.record
        if inline:
            stored.offset = offset
            self._pool.keep(stored, payload)
        self._remember(stored)
        self._mailbox(stored.topic).put(stored)
        self._received_messages += 1
        self._received_bytes += stored.size
        second = int(time.monotonic())
        if not self._recent or self._recent[-1][0] != second:
            self._recent.append((second, Counter()))
        self._recent[-1][1][stored.topic] += stored.size

    def take(
        self,
        topic: str,
        *,
        sources: Collection[str] | None,
        reader: str,
        run: str | None,
        pop_id: str | None,
    ) -> Stored | None:
        """Hands out the next message; the same one again for the same reader, topic and pop id.

        Any other call of a reader on a topic shows that it has what was sent to it there before.
        """
        if (
            pop_id is not None
            and (flight := self._repeats.get((reader, topic, pop_id))) is not None
        ):
            self._kept.get(reader, {}).pop(flight.stored.number, None)
            flight.sending += 1
            return flight.stored
        self._drop([f for f in self._kept.get(reader, {}).values() if f.stored.topic == topic])
        mailbox = self._mailboxes.get(topic)
        stored = mailbox.take(sources, run) if mailbox is not None else None
        if stored is None:
            return None
        self._tidy(topic)
        self._fly(Flight(stored, reader, pop_id, sending=1))
        if pop_id is not None:
            self._note(
                Kind.TAKEN,
                {
                    "n": stored.number,
                    "reader": reader,
                    "pop": pop_id,
                },
            )
        return stored

    def delivered(self, number: int) -> bool:
        """Records that a response with this message was sent. True when that freed capacity."""
        flight = self._flights[number]
        flight.sending -= 1
        first, flight.sent = not flight.sent, True
        if first:
            self.unreserve(flight.stored)
        if flight.pop_id is None:
            self._drop([flight])
        elif flight.sending == 0:
            self._keep(flight)
            self._trim(flight.reader)
        return first

    def returned(self, number: int) -> bool:
        """Records that a response was not sent. True when the message is unread again."""
        flight = self._flights[number]
        flight.sending -= 1
        if flight.sending:
            return False
        if flight.sent:
            self._keep(flight)
            return False
        if flight.pop_id is not None:
            self._note(Kind.BACK, {"n": number})
        self._forget(flight)
        self._mailbox(flight.stored.topic).put_back(flight.stored)
        return True

    def release(
        self,
        topic: str | None,
        *,
        reader: str,
        run: str | None,
    ) -> bool:
        """Drops what was sent to this reader (on that topic) and, with a topic, what it could still read there."""
        kept = self._kept.get(reader, {}).values()
        self._drop([f for f in kept if topic is None or f.stored.topic == topic])
        mailbox = self._mailboxes.get(topic) if topic is not None else None
        if topic is None or mailbox is None:
            return False
        dropped = mailbox.clear(run)
        self._tidy(topic)
        for stored in dropped:
            self.unreserve(stored)
        self._discard(dropped)
        return bool(dropped)

    def content(self, stored: Stored) -> bytes | Path:
        """Returns a message's payload from memory or the journal, or the file of a large one."""
        if stored.payload is not None:
            return stored.payload
        if stored.offset is not None:
            return self.spool.read(stored.offset, stored.size)
        return self.spool.payload_path(stored.number)

    def end(self) -> None:
        """Forgets everything in memory; the caller removes the folder."""
        self._pool.bytes -= self.bytes
        self.messages = self.bytes = 0
        self.ended = True
        for stored in self._live():
            self._pool.drop(stored)
        for upload in self.uploads.values():
            if upload.drop is not None:
                upload.drop.cancel()
        self.uploads.clear()
        self._mailboxes.clear()
        self._flights.clear()
        self._repeats.clear()
        self._kept.clear()

    def _live(self) -> Iterator[Stored]:
        for mailbox in self._mailboxes.values():
            yield from mailbox.all()
        yield from (flight.stored for flight in self._flights.values())

    def _mailbox(self, topic: str) -> Mailbox:
        return self._mailboxes.setdefault(topic, Mailbox())

    def _tidy(self, topic: str) -> None:
        if not self._mailboxes.get(topic, True):
            del self._mailboxes[topic]

    def _remember(self, stored: Stored) -> None:
        if stored.sequence is not None:
            self._seen[digest(stored.topic, stored.source, stored.sequence)] = None
        while len(self._seen) > self._limits.repeats:
            del self._seen[next(iter(self._seen))]

    def _fly(self, flight: Flight) -> Flight:
        self._flights[flight.stored.number] = flight
        if flight.pop_id is not None:
            self._repeats[flight.reader, flight.stored.topic, flight.pop_id] = flight
        return flight

    def _keep(self, flight: Flight) -> None:
        self._kept.setdefault(flight.reader, {})[flight.stored.number] = flight

    def _trim(self, reader: str) -> None:
        """Drops the oldest of a reader's kept responses beyond the bounds, never its newest one."""
        kept = list(self._kept[reader].values())
        size = sum(flight.stored.size for flight in kept)
        surplus = []
        while len(kept) > 1 and (
            len(kept) > self._limits.kept_messages or size > self._limits.kept_bytes
        ):
            surplus.append(kept.pop(0))
            size -= surplus[-1].stored.size
        self._drop(surplus)

    def _drop(self, flights: list[Flight]) -> None:
        for flight in flights:
            self._forget(flight)
        self._discard([flight.stored for flight in flights])

    def _forget(self, flight: Flight | None) -> None:
        if flight is None:
            return
        self._flights.pop(flight.stored.number, None)
        if flight.pop_id is not None:
            self._repeats.pop((flight.reader, flight.stored.topic, flight.pop_id), None)
        kept = self._kept.get(flight.reader, {})
        kept.pop(flight.stored.number, None)
        if not kept:
            self._kept.pop(flight.reader, None)

    def _discard(self, read: list[Stored]) -> None:
        if not read:
            return
        self._note(Kind.READ, {"n": [stored.number for stored in read]})
        for stored in read:
            self._needed -= stored.record
            self._pool.drop(stored)
            if stored.offset is None:
                self.spool.remove_payload(stored.number)
        self._compact()

    def _note(self, kind: Kind, head: dict[str, Any]) -> None:
        """Records a message's new state. A full disk must not stop reading, which empties it."""
        try:
            self.spool.append(kind, head)
        except OSError as error:
            log.warning(
                "journal not written",
                extra={
                    "session": self.name,
                    "kind": kind.name,
                    "error": str(error),
                },
            )

    def _compact(self) -> None:
        """Rewrite a long journal of which at least half is of no use; a big rest rarely, as all wait for it."""
        size, needed = self.spool.size, self._needed + _DIGEST * len(self._seen)
        least = (2 if needed <= self._limits.rewrite_bytes else 16) * needed
        if size <= self._limits.compact_bytes or size < least:
            return
        live = sorted(self._live(), key=lambda stored: stored.number)
        try:
            bodies = self.spool.rewrite(self._entries(live))
        except OSError as error:
            log.warning("journal not rewritten", extra={"session": self.name, "error": str(error)})
            return
        for stored, body in zip(live, bodies[2:], strict=False):
            stored.offset = None if stored.offset is None else body

    def _entries(self, live: list[Stored]) -> Iterator[Entry]:
        yield Kind.OPEN, {"session": self.name, "next": self._next}, b""
        yield Kind.SEEN, {}, b"".join(self._seen)
        for stored in live:
            body = b"" if stored.offset is None else self.content(stored)
            assert isinstance(body, bytes)
            yield Kind.PUSH, _push_head(stored), body
        for flight in self._flights.values():
            if flight.pop_id is not None:
                head = {
                    "n": flight.stored.number,
                    "reader": flight.reader,
                    "pop": flight.pop_id,
                }
                yield Kind.TAKEN, head, b""


def _push_head(stored: Stored) -> dict[str, Any]:
    return {
        "n": stored.number,
        "t": stored.topic,
        "s": stored.source,
        "r": stored.run,
        "q": stored.sequence,
        "z": stored.size,
        "f": stored.offset is None,
    }


def digest(*parts: str) -> bytes:
    """Returns a digest of texts, each as a whole."""
    found = hashlib.blake2b(digest_size=_DIGEST)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        found.update(len(raw).to_bytes(4, "big") + raw)
    return found.digest()
