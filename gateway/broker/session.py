"""The messages of one session and their states, in memory and on disk alike.

Nothing here waits. Each change of state is one call, which appends a record and changes memory
without giving up the event loop in between, so that no lock is needed. The states of a message:

    unread ──take──▶ in delivery ──confirm_delivery──▶ deleted, or retained for a repeat of its pop
       ▲                  │                                              │
       └────put_back──────┘                      next call on the topic ─┴──▶ deleted
"""

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.broker.deliveries import Deliveries, Delivery
from gateway.broker.journal import Entry, Kind, Record, Spool
from gateway.broker.mailbox import Mailbox, StoredMessage
from gateway.broker.messages import BrokerLimits, BufferFull, SessionReleased
from gateway.broker.received import Number, ReceivedNumbers
from gateway.broker.traffic import TrafficMeter

DIGEST_SIZE = 16  # bytes; digests are stored, so it must not change

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Upload:
    """A message that arrives in parts."""

    stored: StoredMessage
    # Bytes without a gap; None before capacity is reserved
    received: int | None = None
    # Parts behind a gap: the offset after each of them, by its own offset
    ahead: dict[int, int] = field(default_factory=dict)
    # Offsets of the parts that are being written, or wait for capacity
    writing: set[int] = field(default_factory=set)
    last: int | None = None  # offset of the last part; None until that may be written
    expiry: asyncio.TimerHandle | None = None  # drops the upload unless another part arrives

    @property
    def busy(self) -> bool:
        """True while a part is written or waits for capacity."""
        return bool(self.writing)

    def add(self, offset: int, end: int) -> bool:
        """Count a part that was written; return True if more bytes are without a gap now."""
        before = self.received or 0
        self.ahead[offset] = end
        received = before
        for start in sorted(self.ahead):
            if start > received:
                break
            received = max(received, self.ahead.pop(start))
        self.received = received
        return received > before


class Pool:
    """What all sessions share: the count of bytes that use capacity, and the cache of payloads."""

    def __init__(self, limits: BrokerLimits) -> None:
        self.bytes = 0  # payload bytes of all messages that use capacity: see `Session.messages`
        self._cache_free = limits.cache_bytes

    def cache(self, stored: StoredMessage, payload: bytes) -> None:
        """Cache a message's payload if the cache has room for it."""
        if len(payload) <= self._cache_free:
            self._cache_free -= len(payload)
            stored.payload = payload

    def uncache(self, stored: StoredMessage) -> None:
        """Drop a message's payload from the cache, if it is there."""
        if stored.payload is not None:
            self._cache_free += len(stored.payload)
            stored.payload = None


class Session:
    """The mailboxes of one session, its deliveries, and the spool that stores both."""

    def __init__(
        self,
        name: str,
        spool: Spool,
        limits: BrokerLimits,
        pool: Pool,
    ) -> None:
        self.name = name
        self.spool = spool
        # Messages that use capacity, and their bytes: in total, and by the run of this node that
        # pushed them (None: another node). These messages are undelivered or still being written.
        self.messages = 0
        self.bytes = 0
        self.messages_of: Counter[str | None] = Counter()
        self.bytes_of: Counter[str | None] = Counter()
        self.meter = TrafficMeter()
        self.uploads: dict[str, Upload] = {}  # by the name of the upload's file
        self.old_uploads: set[str] = set()  # names of the uploads' files of an earlier process
        self.on_disk = False  # True once the spool exists
        self.ended = False
        self._limits = limits
        self._pool = pool
        self._next_number = 0
        self._needed_bytes = 0  # bytes of the journal's records of messages that are still needed
        self._mailboxes: dict[str, Mailbox] = {}
        self._deliveries = Deliveries(limits)
        # An ordered set: the digests of pushes, the oldest first
        self._push_digests: dict[bytes, None] = {}
        self._received = ReceivedNumbers()

    def pending(self) -> dict[str, list[StoredMessage]]:
        """Return the unread messages by topic. May be called from another thread."""
        return {topic: mailbox.all() for topic, mailbox in list(self._mailboxes.items())}

    # -------------------------------------------------------- capacity

    def reserve(self, stored: StoredMessage) -> None:
        """Count a message against the session's capacity and its run's share of it."""
        self._count(stored, 1)

    def unreserve(self, stored: StoredMessage) -> None:
        """Give the capacity of a message back."""
        if not self.ended:  # `end` has given back the capacity of all messages
            self._count(stored, -1)

    def _count(self, stored: StoredMessage, sign: int) -> None:
        """Add a message to all counts (``sign`` 1), or subtract it (-1)."""
        size = sign * stored.size
        self.messages += sign
        self.bytes += size
        self.messages_of[stored.run] += sign
        self.bytes_of[stored.run] += size
        self._pool.bytes += size

    # -------------------------------------------------------- new messages

    def create_spool(self) -> None:
        """Create the session's folder and journal unless they exist."""
        if not self.on_disk:
            self.spool.create(self.name)
            self.on_disk = True

    def new_number(self) -> int:
        """Return the number of the next message; the first one creates the spool."""
        self.create_spool()
        number = self._next_number
        self._next_number += 1
        return number

    def is_repeat(self, stored: StoredMessage) -> bool:
        """True if the message was stored before.

        That is one with its sender's number, or with its topic, source and sequence. Of the latter,
        only the last `BrokerLimits.repeats` messages are remembered.
        """
        if stored.sender_number is not None and stored.sender_number in self._received:
            return True
        if stored.sequence is None:
            return False
        return digest(stored.topic, stored.source, stored.sequence) in self._push_digests

    def add(self, stored: StoredMessage, payload: bytes) -> None:
        """Store a message whose capacity is reserved. On `OSError` nothing is stored.

        ``payload`` goes into the journal. It is empty if the caller has written the payload to a
        file of its own, which is deleted after an `OSError`.
        """
        size_before = self.spool.size
        try:
            offset = self.spool.append(
                Kind.PUSH,
                _push_head(stored),
                payload,
            )
        except OSError:
            self.spool.remove_payload(stored.number)
            raise
        stored.record_size = self.spool.size - size_before
        self._needed_bytes += stored.record_size
        # The caller has set a preliminary offset if the payload belongs in the journal.
        if stored.offset is not None:
            stored.offset = offset
            self._pool.cache(stored, payload)
        self._remember(stored)
        self._mailbox(stored.topic).put(stored)
        self.meter.count(stored.topic, stored.size)

    def _remember(self, stored: StoredMessage) -> None:
        """Remember the message's sequence and its sender's number to recognise repeats."""
        if stored.sender_number is not None:
            self._received.add(stored.sender_number)
        if stored.sequence is not None:
            self._push_digests[digest(stored.topic, stored.source, stored.sequence)] = None
        while len(self._push_digests) > self._limits.repeats:
            oldest = next(iter(self._push_digests))
            del self._push_digests[oldest]

    # -------------------------------------------------------- delivery

    def take(
        self,
        topic: str,
        *,
        sources: Collection[str] | None,
        reader: str,
        run: str | None,
        pop_id: str | None,
    ) -> StoredMessage | None:
        """Return the next message of a topic; None if there is none.

        For the arguments see `Broker.pop`. A repeat of reader, topic and pop id gets the same
        message again. Any other call of a reader on a topic proves that the reader has received its
        earlier messages there, which are therefore deleted.
        """
        if pop_id is not None:
            repeated = self._deliveries.begin_repeat(reader, topic, pop_id)
            if repeated is not None:
                return repeated.stored
        self._drop(self._deliveries.retained(reader, topic))
        stored = self._take_oldest(topic, sources, run)
        if stored is None:
            return None
        delivery = Delivery(
            stored,
            reader,
            pop_id,
            responses=1,
        )
        self._deliveries.add(delivery)
        if pop_id is not None:
            self._record(Kind.TAKEN, _taken_head(delivery))
        return stored

    def _take_oldest(
        self,
        topic: str,
        sources: Collection[str] | None,
        run: str | None,
    ) -> StoredMessage | None:
        """Remove and return the oldest unread message that a run may read; None without any."""
        mailbox = self._mailboxes.get(topic)
        if mailbox is None:
            return None
        stored = mailbox.take(sources, run)
        self._remove_empty_mailbox(topic)
        return stored

    def content(self, stored: StoredMessage) -> bytes | Path:
        """Return a message's payload from memory or the journal, or the file of a large one."""
        if stored.payload is not None:
            return stored.payload
        if stored.offset is not None:
            return self.spool.read(stored.offset, stored.size)
        return self.spool.payload_path(stored.number)

    def confirm_delivery(self, number: int) -> bool:
        """Record that a response with the message ``number`` was sent.

        Return True if that freed capacity, as only the first response with a message does.
        """
        delivery = self._deliveries[number]
        delivery.responses -= 1
        is_first = not delivery.sent
        delivery.sent = True
        if is_first:
            self.unreserve(delivery.stored)
        if delivery.pop_id is None:
            self._drop([delivery])
        elif delivery.responses == 0:
            self._deliveries.retain(delivery)
            self._drop(self._deliveries.surplus(delivery.reader))
        return is_first

    def put_back(self, number: int) -> bool:
        """Record that a response was not sent. Return True if the message is unread again.

        The message stays in delivery while another response carries it. If an earlier response was
        sent, the message is retained for a repeat of its pop.
        """
        delivery = self._deliveries[number]
        delivery.responses -= 1
        if delivery.responses:
            return False
        if delivery.sent:
            self._deliveries.retain(delivery)
            return False
        if delivery.pop_id is not None:
            self._record(Kind.BACK, {"n": number})
        self._deliveries.remove(delivery)
        self._mailbox(delivery.stored.topic).put_back(delivery.stored)
        return True

    # -------------------------------------------------------- deletion

    def release(
        self,
        topic: str | None,
        *,
        reader: str,
        run: str | None,
    ) -> bool:
        """Drop a reader's retained messages, and the unread ones that it may read.

        ``topic``: only of this topic; None: of all topics. Return True if that freed capacity,
        which retained messages do not use.
        """
        self.forget_retained(reader, topic)
        topics = list(self._mailboxes)
        if topic is not None:
            topics = [topic]
        dropped: list[StoredMessage] = []
        for name in topics:
            mailbox = self._mailboxes.get(name)
            if mailbox is not None:
                dropped += mailbox.clear(run)
                self._remove_empty_mailbox(name)
        for stored in dropped:
            self.unreserve(stored)
        self._discard(dropped)
        return bool(dropped)

    def forget_retained(self, reader: str, topic: str | None = None) -> None:
        """Drop a reader's retained messages.

        ``topic``: only messages of this topic; None: of all topics.
        """
        self._drop(self._deliveries.retained(reader, topic))

    def end(self) -> None:
        """Forget everything in memory; the caller removes the folder."""
        self._pool.bytes -= self.bytes
        self.messages = 0
        self.bytes = 0
        self.ended = True
        for stored in self._needed_messages():
            self._pool.uncache(stored)
        for upload in self.uploads.values():
            if upload.expiry is not None:
                upload.expiry.cancel()
        self.uploads.clear()
        self._mailboxes.clear()
        self._deliveries.clear()

    def _drop(self, deliveries: list[Delivery]) -> None:
        """Delete the messages of deliveries that are no longer needed."""
        for delivery in deliveries:
            self._deliveries.remove(delivery)
        self._discard([delivery.stored for delivery in deliveries])

    def _discard(self, messages: list[StoredMessage]) -> None:
        """Delete messages that the caller has removed from their mailboxes or deliveries."""
        if not messages:
            return
        self._record(Kind.READ, {"n": [stored.number for stored in messages]})
        for stored in messages:
            self._needed_bytes -= stored.record_size
            self._pool.uncache(stored)
            if stored.offset is None:
                self.spool.remove_payload(stored.number)
        self._compact()

    def _mailbox(self, topic: str) -> Mailbox:
        """Return the mailbox of a topic; a new one for its first message."""
        return self._mailboxes.setdefault(topic, Mailbox())

    def _remove_empty_mailbox(self, topic: str) -> None:
        """Forget a topic's mailbox if it has no messages."""
        if not self._mailboxes[topic]:
            del self._mailboxes[topic]

    # -------------------------------------------------------- the journal

    def load(self, records: list[Record]) -> None:
        """Restore the state from the journal.

        Payload files without a record are removed, and so are unread messages without their file.
        """
        self.on_disk = True
        pending: dict[int, StoredMessage] = {}  # the unread messages by number
        start = 0
        for record in records:
            # Offset and size are those of the record's body. The record's head comes before the
            # body, so the record begins where the previous one ends.
            end = record.offset + record.size
            self._replay(record, pending, end - start)
            start = end
        files, self.old_uploads = self.spool.payloads()
        for number in files - pending.keys() - self._deliveries.numbers():
            self.spool.remove_payload(number)
            # A push that was interrupted before its record has used this number up: no number is
            # used twice.
            self._next_number = max(self._next_number, number + 1)
        # Messages in delivery use no capacity: they count as sent.
        for number, stored in sorted(pending.items()):
            has_payload = stored.offset is not None or number in files
            if has_payload:
                self._mailbox(stored.topic).put(stored)
                self.reserve(stored)
            else:  # delivered and deleted while the disk was too full to record the deletion
                log.warning(
                    "message without its payload dropped",
                    extra={
                        "session": self.name,
                        "topic": stored.topic,
                    },
                )
        self._needed_bytes = sum(stored.record_size for stored in self._needed_messages())

    def _replay(
        self,
        record: Record,
        pending: dict[int, StoredMessage],
        length: int,
    ) -> None:
        """Apply a record of ``length`` bytes.

        ``pending``: the unread messages by number, changed in place, as are the deliveries.
        """
        head = record.head
        match record.kind:
            case Kind.OPEN:
                self._next_number = int(head["next"])
            case Kind.PUSH:
                self._replay_push(record, pending, length)
            case Kind.TAKEN:
                self._replay_taken(head, pending)
            case Kind.BACK:
                delivery = self._deliveries.get(head["n"])
                if delivery is not None:
                    self._deliveries.remove(delivery)
                    pending[delivery.stored.number] = delivery.stored
            case Kind.READ:
                self._replay_read(head["n"], pending)
            case Kind.SEEN:
                self._replay_seen(record)

    def _replay_push(
        self,
        record: Record,
        pending: dict[int, StoredMessage],
        length: int,
    ) -> None:
        """Add a message to the unread ones; see `_push_head`."""
        head = record.head
        has_file = head["f"]
        stored = StoredMessage(
            number=head["n"],
            topic=head["t"],
            source=head["s"],
            run=head["r"],
            sequence=head["q"],
            size=head["z"],
            sender_number=_read_number(head.get("k")),
            offset=None if has_file else record.offset,
            record_size=length,
        )
        pending[stored.number] = stored
        self._next_number = max(self._next_number, stored.number + 1)
        self._remember(stored)

    def _replay_taken(
        self,
        head: dict[str, Any],
        pending: dict[int, StoredMessage],
    ) -> None:
        """Move a message into delivery.

        The message counts as sent: the reader may have received it, and otherwise repeats its pop.
        """
        stored = pending.pop(head["n"], None)
        if stored is not None:
            delivery = Delivery(
                stored,
                head["reader"],
                head["pop"],
                sent=True,
            )
            self._deliveries.add(delivery)
            self._deliveries.retain(delivery)

    def _replay_read(
        self,
        numbers: Iterable[int],
        pending: dict[int, StoredMessage],
    ) -> None:
        """Forget messages that are no longer needed."""
        for number in numbers:
            pending.pop(number, None)
            delivery = self._deliveries.get(number)
            if delivery is not None:
                self._deliveries.remove(delivery)

    def _replay_seen(self, record: Record) -> None:
        """Restore what identifies the pushes from before the journal was last rewritten."""
        self._received.load(record.head.get("received", {}))
        digests = self.spool.read(record.offset, record.size)
        for start in range(0, len(digests), DIGEST_SIZE):
            self._push_digests[digests[start : start + DIGEST_SIZE]] = None

    def _record(
        self,
        kind: Kind,
        head: dict[str, Any],
    ) -> None:
        """Append a message's new state to the journal.

        An error is only logged: a full disk must not stop readers, as reading frees disk space.
        """
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
        """Rewrite a long journal that is largely obsolete."""
        if not self._is_compaction_due():
            return
        messages = sorted(
            self._needed_messages(),
            key=_number,
        )
        try:
            offsets = self.spool.rewrite(self._entries(messages))
        except OSError as error:
            log.warning(
                "journal not rewritten",
                extra={
                    "session": self.name,
                    "error": str(error),
                },
            )
            return
        push_offsets = offsets[2:]  # after the records OPEN and SEEN
        # Not strict: the offsets of the records TAKEN follow.
        for stored, offset in zip(messages, push_offsets, strict=False):
            if stored.offset is not None:
                stored.offset = offset

    def _is_compaction_due(self) -> bool:
        """True if enough of a long journal is obsolete.

        A journal with many needed bytes is rewritten rarely, as rewriting blocks the event loop.
        """
        if self.spool.size <= self._limits.compact_bytes:
            return False
        needed = self._needed_bytes + DIGEST_SIZE * len(self._push_digests)
        is_quick = needed <= self._limits.rewrite_bytes
        factor = 16  # at least fifteen sixteenths of the journal must be obsolete
        if is_quick:
            factor = 2  # at least half of the journal must be obsolete
        return self.spool.size >= factor * needed

    def _entries(
        self,
        messages: list[StoredMessage],
    ) -> Iterator[Entry]:
        """Yield the records of a rewritten journal."""
        yield Kind.OPEN, {"session": self.name, "next": self._next_number}, b""
        yield Kind.SEEN, {"received": self._received.dump()}, b"".join(self._push_digests)
        for stored in messages:
            body: bytes | Path = b""
            if stored.offset is not None:
                body = self.content(stored)
            assert isinstance(body, bytes)  # a payload with an offset is in the journal, not a file
            yield Kind.PUSH, _push_head(stored), body
        for delivery in self._deliveries:
            if delivery.pop_id is not None:
                yield Kind.TAKEN, _taken_head(delivery), b""

    def _needed_messages(self) -> Iterator[StoredMessage]:
        """Yield the unread messages, those in delivery, and those retained for a repeated pop."""
        for mailbox in self._mailboxes.values():
            yield from mailbox.all()
        for delivery in self._deliveries:
            yield delivery.stored


def _push_head(stored: StoredMessage) -> dict[str, Any]:
    """Return the head of a record PUSH."""
    head = {
        "n": stored.number,
        "t": stored.topic,
        "s": stored.source,
        "r": stored.run,
        "q": stored.sequence,
        "z": stored.size,
        "f": stored.offset is None,  # the payload has a file
    }
    number = stored.sender_number
    if number is not None:
        head["k"] = [number.series, number.value]
    return head


def _read_number(value: list[Any] | None) -> Number | None:
    """Return the sender's number in the head of a record PUSH; None if it has none."""
    if value is None:
        return None
    series, number = value
    return Number(series, number)


def _taken_head(delivery: Delivery) -> dict[str, Any]:
    """Return the head of a record TAKEN."""
    return {
        "n": delivery.stored.number,
        "reader": delivery.reader,
        "pop": delivery.pop_id,
    }


def _number(stored: StoredMessage) -> int:
    """Return the key by which messages are sorted in their order of arrival."""
    return stored.number


@contextlib.contextmanager
def refuse_on_disk_error(session: Session) -> Iterator[None]:
    """Turn an `OSError` of a session's spool into `BufferFull`.

    If the session has ended, the missing folder is the cause, and `SessionReleased` is raised.
    """
    try:
        yield
    except OSError as error:
        if session.ended:
            raise SessionReleased(f"session {session.name} has ended") from error
        raise BufferFull(f"the message cannot be stored: {error.strerror}") from error


def digest(*parts: str) -> bytes:
    """Return a digest of texts that depends on the boundaries between them."""
    blake = hashlib.blake2b(digest_size=DIGEST_SIZE)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        blake.update(len(raw).to_bytes(4, "big") + raw)
    return blake.digest()
