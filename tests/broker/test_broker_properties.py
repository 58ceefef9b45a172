"""No message is lost, doubled or moved within its channel, whatever readers, writers and crashes do."""

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.broker import Broker, BrokerLimits, Message, PartsMissing

SESSION = "session_job-../../x"
LIMITS = BrokerLimits(
    inline_bytes=8,
    cache_bytes=10,
    compact_bytes=400,
    kept_messages=1000,
)
TOPICS = st.sampled_from(["a", "a", "../\0\n"])
SENDERS = st.sampled_from(
    [("here", "guest-run"), ("here", "host-run"), ("here", None), ("there", None)]
)
READERS = st.sampled_from([("guest", "guest-run"), ("host", "host-run"), ("other", None)])
PAYLOADS = st.binary(max_size=20)


@dataclass
class Told:
    """A message as the model sees it."""

    place: int
    topic: str
    source: str
    run: str | None
    payload: bytes


@dataclass
class Handed:
    """A message that the model has handed to a reader."""

    told: Told
    reader: str
    pop_id: str | None
    open: list[Message] = field(default_factory=list)
    sent: bool = False


@dataclass
class Coming:
    """A message that comes in parts: how much of it is there, and whether it counts since the last crash."""

    topic: str
    source: str
    run: str | None
    payload: bytes
    there: int = 0
    counted: bool = False


class BrokerAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp())
        self.broker = Broker(self.root / "spool", LIMITS)
        self.unread: list[Told] = []
        self.handed: list[Handed] = []
        self.sequences: dict[tuple[str, str, str], bytes] = {}
        self.coming: dict[str, Coming] = {}
        self.count = 0

    @initialize()
    def start(self) -> None:
        self.broker.recover()

    def teardown(self) -> None:
        self.broker.close()
        self.loop.close()
        shutil.rmtree(self.root)

    def run(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    @rule(
        topic=TOPICS,
        sender=SENDERS,
        payload=PAYLOADS,
        numbered=st.booleans(),
    )
    def push(
        self,
        topic,
        sender,
        payload,
        numbered,
    ):
        source, run = sender
        self.count += 1
        sequence = str(self.count) if numbered else None
        self.run(self.broker.push(SESSION, topic, source, payload, run=run, sequence=sequence))
        self.unread.append(Told(self.count, topic, source, run, payload))
        if sequence:
            self.sequences[topic, source, sequence] = payload

    @rule(
        topic=TOPICS,
        sender=SENDERS,
        payload=st.binary(min_size=9, max_size=20),
    )
    def begin_a_push_in_parts(
        self,
        topic,
        sender,
        payload,
    ):
        self.coming[f"parts {len(self.coming)}"] = Coming(topic, *sender, payload)

    @precondition(lambda self: self.coming)
    @rule(data=st.data(), size=st.integers(1, 12))
    def bring_a_part(self, data, size):
        """It begins where the one before it ended, or within what is there: its answer was lost."""
        sequence = data.draw(st.sampled_from(sorted(self.coming)))
        coming = self.coming[sequence]
        offset = data.draw(st.integers(0, min(coming.there, len(coming.payload) - 1)))
        done = coming.there == len(coming.payload)
        part = coming.payload[offset : offset + size]
        self.run(
            self.broker.part(
                SESSION,
                coming.topic,
                coming.source,
                [part],
                offset=offset,
                size=len(coming.payload),
                run=coming.run,
                sequence=sequence,
            )
        )
        if done:
            return
        coming.there, coming.counted = max(coming.there, offset + len(part)), True
        if coming.there == len(coming.payload):
            coming.counted = False
            self.count += 1
            self.unread.append(
                Told(self.count, coming.topic, coming.source, coming.run, coming.payload)
            )

    @precondition(lambda self: any(not c.there and not c.counted for c in self.coming.values()))
    @rule(data=st.data())
    def bring_a_part_too_early(self, data):
        new = [s for s, c in self.coming.items() if not c.there and not c.counted]
        sequence = data.draw(st.sampled_from(new))
        coming = self.coming[sequence]
        more = {
            "offset": 1,
            "size": len(coming.payload),
            "run": coming.run,
            "sequence": sequence,
        }
        with pytest.raises(PartsMissing):
            self.run(self.broker.part(SESSION, coming.topic, coming.source, [b"x"], **more))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def repeat_a_push(self, data):
        topic, source, sequence = data.draw(st.sampled_from(sorted(self.sequences)))
        payload = self.sequences[topic, source, sequence]
        self.run(self.broker.push(SESSION, topic, source, payload, sequence=sequence))

    @rule(
        topic=TOPICS,
        reader=READERS,
        sources=st.sampled_from([None, ["here"], ["there"], ["here", "there"], []]),
        pop_id=st.sampled_from([None, "p", "q"]),
    )
    def take(
        self,
        topic,
        reader,
        sources,
        pop_id,
    ):
        name, run = reader
        asked = {
            "sources": sources,
            "reader": name,
            "run": run,
            "pop_id": pop_id,
            "timeout": 0.0,
        }
        message = self.run(self.broker.pop(SESSION, topic, **asked))
        expected = self.expect(topic, name, run, sources, pop_id)
        if expected is None:
            assert message is None
        else:
            assert message is not None
            told = expected.told
            assert message.payload == told.payload
            assert message.source == told.source
            assert message.topic == told.topic
            expected.open.append(message)

    def expect(
        self,
        topic,
        reader,
        run,
        sources,
        pop_id,
    ):
        mine = [h for h in self.handed if h.reader == reader and h.told.topic == topic]
        again = [h for h in mine if pop_id is not None and h.pop_id == pop_id]
        if again:
            return again[0]
        for old in mine:
            if old.sent and not old.open:
                self.handed.remove(old)
        for told in self.unread:
            own = run is not None and told.run == run
            if told.topic == topic and (sources is None or told.source in sources) and not own:
                self.unread.remove(told)
                self.handed.append(Handed(told, reader, pop_id))
                return self.handed[-1]
        return None

    def pick(self, data):
        return data.draw(
            st.sampled_from(range(len(self.handed))).filter(lambda i: self.handed[i].open)
        )

    @precondition(lambda self: any(h.open for h in self.handed))
    @rule(data=st.data())
    def answer_sent(self, data):
        handed = self.handed[self.pick(data)]
        self.broker.confirm_delivery(handed.open.pop())
        handed.sent = True
        if handed.pop_id is None:
            self.handed.remove(handed)

    @precondition(lambda self: any(h.open for h in self.handed))
    @rule(data=st.data())
    def answer_not_sent(self, data):
        handed = self.handed[self.pick(data)]
        self.broker.put_back(handed.open.pop())
        if not handed.sent and not handed.open:
            self.handed.remove(handed)
            self.unread.append(handed.told)
            self.unread.sort(key=lambda told: told.place)

    @rule(topic=TOPICS, reader=READERS)
    def release_a_topic(self, topic, reader):
        name, run = reader
        self.run(self.broker.release(SESSION, topic, reader=name, run=run))
        self.forget_sent(name, topic)
        self.unread = [
            t for t in self.unread if t.topic != topic or (run is not None and t.run == run)
        ]

    @rule(reader=READERS)
    def release_all(self, reader):
        self.run(self.broker.release(SESSION, reader=reader[0], run=reader[1]))
        self.forget_sent(reader[0], None)

    def forget_sent(self, reader, topic):
        def gone(h: Handed) -> bool:
            return h.reader == reader and h.sent and not h.open and topic in (None, h.told.topic)

        self.handed = [h for h in self.handed if not gone(h)]

    @rule(torn=st.one_of(st.just(b""), st.binary(min_size=1, max_size=16)))
    def crash_and_recover(self, torn):
        """A kill -9 leaves what write() was given; a record cut short may follow."""
        self.broker.close()
        for journal in self.root.glob("spool/*/journal"):
            with journal.open("ab") as file:
                file.write(torn)
        self.broker = Broker(self.root / "spool", LIMITS)
        self.broker.recover()
        for coming in self.coming.values():
            coming.counted = False
        for handed in list(self.handed):
            handed.open.clear()
            if handed.pop_id is None:
                self.handed.remove(handed)
                self.unread.append(handed.told)
            handed.sent = True
        self.unread.sort(key=lambda told: told.place)

    @invariant()
    def usage_is_what_is_not_delivered(self):
        waiting = [h.told for h in self.handed if not h.sent] + self.unread
        waiting += [coming for coming in self.coming.values() if coming.counted]
        usage = self.broker.usage()
        assert usage.messages == len(waiting)
        assert usage.bytes == sum(len(t.payload) for t in waiting)

    @invariant()
    def every_large_payload_on_disk_is_needed(self):
        needed = [t for t in self.unread + [h.told for h in self.handed] if len(t.payload) > 8]
        assert len(list(self.root.glob("spool/*/*.payload"))) == len(needed)


BrokerAgainstModel.TestCase.settings = settings(
    max_examples=50,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
)
TestBrokerAgainstModel = BrokerAgainstModel.TestCase
