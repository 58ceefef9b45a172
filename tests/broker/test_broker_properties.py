"""No message is lost, doubled or reordered, whatever readers, writers and crashes do.

A broker and a model of it do the same random steps, and must agree after each.
"""

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.broker import Broker, BrokerLimits, Message, PartsMissing

SESSION = "session_job-../../x"

INLINE_BYTES = 8  # a longer payload has a file of its own

LIMITS = BrokerLimits(
    inline_bytes=INLINE_BYTES,
    cache_bytes=10,
    compact_bytes=400,
    retained_messages=1000,
)

TOPICS = st.sampled_from(["a", "a", "../\0\n"])  # "a" twice: most messages share one topic

# Source node and run; None for a message without a run.
SENDERS = st.sampled_from(
    [
        ("here", "guest-run"),
        ("here", "host-run"),
        ("here", None),
        ("there", None),
    ]
)

# Name and run of a reader.
READERS = st.sampled_from(
    [
        ("guest", "guest-run"),
        ("host", "host-run"),
        ("other", None),
    ]
)

SOURCES = st.sampled_from([None, ["here"], ["there"], ["here", "there"], []])
PAYLOADS = st.binary(max_size=20)


@dataclass
class ModelMessage:
    """A message as the model sees it."""

    number: int  # the order in which messages were pushed
    topic: str
    source: str
    run: str | None
    payload: bytes


@dataclass
class Delivery:
    """A message that the model has given to a reader."""

    message: ModelMessage
    reader: str
    pop_id: str | None
    open: list[Message] = field(default_factory=list)  # popped, neither confirmed nor put back
    is_confirmed: bool = False

    @property
    def is_done(self) -> bool:
        return self.is_confirmed and not self.open


@dataclass
class Upload:
    """A message that arrives in parts."""

    topic: str
    source: str
    run: str | None
    payload: bytes
    received: int = 0  # bytes
    is_counted: bool = False  # received a part since the last crash, and is not complete

    @property
    def is_complete(self) -> bool:
        return self.received == len(self.payload)

    @property
    def is_new(self) -> bool:
        return self.received == 0 and not self.is_counted


class BrokerAgainstModel(RuleBasedStateMachine):
    """Random steps for a broker and its model."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp())
        self.broker = Broker(self.root / "spool", LIMITS)
        self.unread: list[ModelMessage] = []
        self.deliveries: list[Delivery] = []
        self.sequences: dict[tuple[str, str, str], bytes] = {}
        self.uploads: dict[str, Upload] = {}
        self.pushed = 0  # number of messages

    @initialize()
    def start(self):
        self.broker.recover()

    def teardown(self):
        self.broker.close()
        self.loop.close()
        shutil.rmtree(self.root)

    def run(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    # ---------------------------------------------------------- sending

    @rule(
        topic=TOPICS,
        sender=SENDERS,
        payload=PAYLOADS,
        is_numbered=st.booleans(),
    )
    def push(self, topic, sender, payload, is_numbered):
        source, run = sender
        self.add_unread(topic, source, run, payload)
        sequence = None
        if is_numbered:
            sequence = str(self.pushed)
            self.sequences[topic, source, sequence] = payload

        self.run(self.broker.push(SESSION, topic, source, payload, run=run, sequence=sequence))

    def add_unread(self, topic, source, run, payload):
        self.pushed += 1
        self.unread.append(ModelMessage(self.pushed, topic, source, run, payload))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def repeat_a_push(self, data):
        topic, source, sequence = data.draw(st.sampled_from(sorted(self.sequences)))
        payload = self.sequences[topic, source, sequence]
        self.run(self.broker.push(SESSION, topic, source, payload, sequence=sequence))

    @rule(
        topic=TOPICS,
        sender=SENDERS,
        payload=st.binary(
            min_size=9,
            max_size=20,
        ),
    )
    def begin_an_upload(self, topic, sender, payload):
        source, run = sender
        self.uploads[f"parts {len(self.uploads)}"] = Upload(
            topic,
            source,
            run,
            payload,
        )

    def send_part(self, sequence, part, offset):
        upload = self.uploads[sequence]
        self.run(
            self.broker.part(
                SESSION,
                upload.topic,
                upload.source,
                [part],
                offset=offset,
                size=len(upload.payload),
                run=upload.run,
                sequence=sequence,
            )
        )

    @precondition(lambda self: self.uploads)
    @rule(
        data=st.data(),
        size=st.integers(1, 12),
    )
    def send_the_next_part(self, data, size):
        """Send a part that begins at or before the end of the previous one.

        Before it, if the response to an earlier part was lost.
        """
        sequence = data.draw(st.sampled_from(sorted(self.uploads)))
        upload = self.uploads[sequence]
        last_offset = min(
            upload.received,
            len(upload.payload) - 1,
        )
        offset = data.draw(st.integers(0, last_offset))
        part = upload.payload[offset : offset + size]
        was_complete = upload.is_complete

        self.send_part(sequence, part, offset)

        if was_complete:
            return
        upload.received = max(
            upload.received,
            offset + len(part),
        )
        upload.is_counted = not upload.is_complete
        if upload.is_complete:
            self.add_unread(
                upload.topic,
                upload.source,
                upload.run,
                upload.payload,
            )

    def new_uploads(self):
        return [sequence for sequence, upload in self.uploads.items() if upload.is_new]

    @precondition(lambda self: self.new_uploads())
    @rule(data=st.data())
    def send_a_part_too_early(self, data):
        sequence = data.draw(st.sampled_from(self.new_uploads()))
        with pytest.raises(PartsMissing):
            self.send_part(
                sequence,
                b"x",
                offset=1,
            )

    # ---------------------------------------------------------- reading

    @rule(
        topic=TOPICS,
        reader=READERS,
        sources=SOURCES,
        pop_id=st.sampled_from([None, "p", "q"]),
    )
    def pop(self, topic, reader, sources, pop_id):
        name, run = reader
        popping = self.broker.pop(
            SESSION,
            topic,
            sources=sources,
            reader=name,
            run=run,
            pop_id=pop_id,
            timeout=0.0,
        )
        message = self.run(popping)

        delivery = self.deliver(
            topic,
            name,
            run,
            sources,
            pop_id,
        )
        if delivery is None:
            assert message is None
            return
        assert message is not None
        assert message.payload == delivery.message.payload
        assert message.source == delivery.message.source
        assert message.topic == delivery.message.topic
        delivery.open.append(message)

    def deliver(
        self,
        topic,
        reader,
        run,
        sources,
        pop_id,
    ):
        """Return the delivery that a pop must make: a repeated or a new one; None without."""
        earlier = []
        for delivery in self.deliveries:
            if delivery.reader == reader and delivery.message.topic == topic:
                earlier.append(delivery)
        if pop_id is not None:
            for delivery in earlier:
                if delivery.pop_id == pop_id:
                    return delivery
        # A pop with another id confirms that the reader has received its earlier messages.
        for delivery in earlier:
            if delivery.is_done:
                self.deliveries.remove(delivery)
        for message in self.unread:
            if is_readable(message, topic, run, sources):
                self.unread.remove(message)
                self.deliveries.append(Delivery(message, reader, pop_id))
                return self.deliveries[-1]
        return None

    def open_deliveries(self):
        """Return the indices of the deliveries that are open."""
        return [index for index, delivery in enumerate(self.deliveries) if delivery.open]

    @precondition(lambda self: self.open_deliveries())
    @rule(data=st.data())
    def confirm_a_delivery(self, data):
        delivery = self.deliveries[data.draw(st.sampled_from(self.open_deliveries()))]
        self.broker.confirm_delivery(delivery.open.pop())
        delivery.is_confirmed = True
        if delivery.pop_id is None:
            self.deliveries.remove(delivery)

    @precondition(lambda self: self.open_deliveries())
    @rule(data=st.data())
    def put_a_message_back(self, data):
        delivery = self.deliveries[data.draw(st.sampled_from(self.open_deliveries()))]
        self.broker.put_back(delivery.open.pop())
        if not delivery.is_confirmed and not delivery.open:
            self.undo_delivery(delivery)

    def undo_delivery(self, delivery):
        self.deliveries.remove(delivery)
        self.unread.append(delivery.message)
        self.unread.sort(key=attrgetter("number"))

    @rule(topic=TOPICS, reader=READERS)
    def release_a_topic(self, topic, reader):
        name, run = reader
        self.run(self.broker.release(SESSION, topic, reader=name, run=run))

        self.forget_done(name, {topic})
        remaining = []
        for message in self.unread:
            is_from_reader = run is not None and message.run == run
            if message.topic != topic or is_from_reader:
                remaining.append(message)
        self.unread = remaining

    @rule(reader=READERS)
    def release_all(self, reader):
        name, run = reader
        self.run(self.broker.release(SESSION, reader=name, run=run))

        self.forget_done(name, self.topics_in_delivery())
        remaining = []
        for message in self.unread:
            if run is not None and message.run == run:
                remaining.append(message)
        self.unread = remaining

    @rule(reader=READERS)
    def forget_retained(self, reader):
        name, _ = reader
        self.run(self.broker.forget_retained(SESSION, reader=name))

        self.forget_done(name, self.topics_in_delivery())

    def topics_in_delivery(self):
        return {delivery.message.topic for delivery in self.deliveries}

    def forget_done(self, reader, topics):
        for delivery in list(self.deliveries):
            is_in_topics = delivery.message.topic in topics
            if delivery.reader == reader and is_in_topics and delivery.is_done:
                self.deliveries.remove(delivery)

    # ---------------------------------------------------------- crashes

    @rule(torn=st.one_of(st.just(b""), st.binary(min_size=1, max_size=16)))
    def crash_and_recover(self, torn):
        """Kill the broker: everything given to write() stays, and perhaps a part of a record."""
        self.broker.close()
        for journal in self.root.glob("spool/*/journal"):
            with journal.open("ab") as file:
                file.write(torn)
        self.broker = Broker(self.root / "spool", LIMITS)
        self.broker.recover()

        for upload in self.uploads.values():
            upload.is_counted = False
        for delivery in list(self.deliveries):
            delivery.open.clear()
            delivery.is_confirmed = True
            if delivery.pop_id is None:
                self.undo_delivery(delivery)

    # ---------------------------------------------------------- comparison

    @invariant()
    def usage_counts_everything_undelivered(self):
        pending = list(self.unread)
        for delivery in self.deliveries:
            if not delivery.is_confirmed:
                pending.append(delivery.message)
        for upload in self.uploads.values():
            if upload.is_counted:
                pending.append(upload)
        usage = self.broker.usage()
        assert usage.messages == len(pending)
        assert usage.bytes == sum(len(message.payload) for message in pending)

    @invariant()
    def every_large_payload_on_disk_is_needed(self):
        messages = [*self.unread, *(delivery.message for delivery in self.deliveries)]
        large = [message for message in messages if len(message.payload) > INLINE_BYTES]
        assert len(list(self.root.glob("spool/*/*.payload"))) == len(large)


def is_readable(message, topic, run, sources):
    """Return whether a reader of a topic may get a message: it is not of the reader's own run.

    ``sources``: the nodes whose messages the reader accepts; None: all.
    """
    is_from_reader = run is not None and message.run == run
    is_accepted = sources is None or message.source in sources
    return message.topic == topic and is_accepted and not is_from_reader


BrokerAgainstModel.TestCase.settings = settings(
    max_examples=50,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
)
TestBrokerAgainstModel = BrokerAgainstModel.TestCase
