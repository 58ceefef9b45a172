"""The frames and streams of a link: nothing is lost or mixed up, and no end can flood the other."""

from collections import defaultdict, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.links.frames import MAX_DATA, Frame, Kind, LinkFault, decode, encode
from gateway.domain.links.multiplex import (
    FIRST_WINDOW,
    MAX_STREAMS,
    MAX_WINDOW,
    MAX_WINDOWS,
    Broken,
    Credited,
    Ended,
    Multiplexer,
    Opened,
    Received,
    TooManyStreams,
)


class End:
    """One end of a link whose frames travel in a queue."""

    def __init__(self, *, has_opened_link):
        self.streams = Multiplexer(has_opened_link=has_opened_link)
        self.outbox = deque()
        self.received = defaultdict(bytearray)
        self.untaken = defaultdict(int)
        self.ended = set()
        self.opened = []

    def open(self):
        frame = self.streams.open()
        self.outbox.append(frame)
        return frame.stream

    def send(self, number, size):
        """Send as much of ``size`` bytes as there is room for; return those bytes."""
        data = bytes([number % 251]) * min(size, self.streams.room(number))
        if data:
            self.outbox.append(self.streams.send(number, data))
        return data

    def take(self, number):
        size = self.untaken.pop(number, 0)
        self.outbox += self.streams.take(number, size)

    def receive(self, frame):
        for event in self.streams.receive(decode(encode(frame))):
            match event:
                case Opened(number):
                    self.opened.append(number)
                case Received(number, data):
                    self.received[number] += data
                    self.untaken[number] += len(data)
                case Ended(number):
                    self.ended.add(number)


def deliver(sender, receiver):
    while sender.outbox:
        receiver.receive(sender.outbox.popleft())


def two_ends():
    return End(has_opened_link=True), End(has_opened_link=False)


actions = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "open",
                "send",
                "take",
                "deliver",
            ]
        ),
        st.integers(0, 1),
        st.integers(0, 4),
        st.integers(1, 3 * FIRST_WINDOW),
    ),
    max_size=60,
)


@given(actions)
def test_every_stream_arrives_whole_and_in_order(steps):
    ends = two_ends()
    sent = [defaultdict(bytes), defaultdict(bytes)]
    for action, side, which, size in steps:
        end, other = ends[side], ends[1 - side]
        numbers = [*sent[side], *end.opened]
        number = numbers[which % len(numbers)] if numbers else None
        match action:
            case "open":
                sent[side][end.open()] = b""
            case "send" if number is not None:
                sent[side][number] += end.send(number, size)
            case "take" if number is not None:
                end.take(number)
            case "deliver":
                deliver(end, other)
    deliver(*ends)
    deliver(*reversed(ends))
    for side in (0, 1):
        arrived = {number: data for number, data in ends[1 - side].received.items() if data}
        assert arrived == {number: data for number, data in sent[side].items() if data}


@given(actions)
def test_a_receiver_never_holds_more_than_its_windows(steps):
    sender, receiver = two_ends()
    number = sender.open()
    for action, _, _, size in steps:
        if action == "take":
            receiver.take(number)
            deliver(receiver, sender)
        else:
            sender.send(number, size)
            deliver(sender, receiver)
        assert receiver.untaken[number] <= MAX_WINDOW


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_any_bytes_are_frames_or_a_fault(messages):
    streams = Multiplexer(has_opened_link=False)
    for message in messages:
        try:
            streams.receive(decode(message))
        except LinkFault:
            return


def test_a_stream_that_nobody_reads_stops_at_its_window():
    sender, receiver = two_ends()
    number = sender.open()
    while sender.send(number, MAX_DATA):
        deliver(sender, receiver)
    assert receiver.untaken[number] == FIRST_WINDOW


def test_the_window_of_a_stream_that_is_read_quickly_grows_to_its_limit():
    sender, receiver = two_ends()
    number = sender.open()
    for _ in range(200):
        sender.send(number, MAX_DATA)
        deliver(sender, receiver)
        receiver.take(number)
        deliver(receiver, sender)
    while sender.send(number, MAX_DATA):
        deliver(sender, receiver)
    assert MAX_WINDOW // 2 <= receiver.untaken[number] <= MAX_WINDOW


def test_all_windows_of_a_link_together_stay_below_their_limit():
    sender, receiver = two_ends()
    numbers = [sender.open() for _ in range(MAX_STREAMS)]
    for number in numbers[:64]:
        for _ in range(160):
            sender.send(number, MAX_DATA)
            deliver(sender, receiver)
            receiver.take(number)
            deliver(receiver, sender)
    held = 0
    for number in numbers:
        while sender.send(number, MAX_DATA):
            deliver(sender, receiver)
        held += receiver.untaken[number]
    assert held <= MAX_WINDOWS


def test_windows_of_ended_streams_do_not_count():
    sender, receiver = two_ends()
    for _ in range(MAX_WINDOWS // MAX_WINDOW + 1):
        number = sender.open()
        for _ in range(200):
            sender.send(number, MAX_DATA)
            deliver(sender, receiver)
            receiver.take(number)
            deliver(receiver, sender)
        held = 0
        while data := sender.send(number, MAX_DATA):
            held += len(data)
        assert held > MAX_WINDOW // 2
        receiver.outbox += receiver.streams.reset(number)
        deliver(sender, receiver)
        deliver(receiver, sender)


def test_ended_streams_leave_their_places():
    sender, receiver = two_ends()
    for _ in range(2 * MAX_STREAMS):
        number = sender.open()
        sender.outbox += sender.streams.end(number)
        deliver(sender, receiver)
        receiver.outbox += receiver.streams.end(number)
        deliver(receiver, sender)
    assert len(receiver.opened) == 2 * MAX_STREAMS


def test_a_stream_ends_in_each_direction_by_itself():
    sender, receiver = two_ends()
    number = sender.open()
    sender.send(number, 3)
    sender.outbox += sender.streams.end(number)
    deliver(sender, receiver)
    assert receiver.ended == {number}
    assert receiver.send(number, 5) == bytes([number]) * 5
    receiver.outbox += receiver.streams.end(number)
    deliver(receiver, sender)
    assert (len(sender.streams), len(receiver.streams)) == (0, 0)


def test_what_is_under_way_when_a_stream_is_reset_is_ignored():
    sender, receiver = two_ends()
    number = sender.open()
    deliver(sender, receiver)
    receiver.send(number, 7)
    sender.outbox += sender.streams.reset(number)
    deliver(receiver, sender)
    assert sender.received[number] == b""
    assert receiver.streams.receive(sender.outbox.popleft()) == [Broken(number)]


def test_a_link_takes_no_more_streams_than_its_limit():
    end = Multiplexer(has_opened_link=True)
    for _ in range(MAX_STREAMS):
        end.open()
    with pytest.raises(TooManyStreams):
        end.open()


def opened(count=1):
    streams = Multiplexer(has_opened_link=False)
    for index in range(count):
        streams.receive(Frame(Kind.OPEN, 2 * index + 1))
    return streams


# Name -> the number of open streams, and the frames of which the last one breaks the protocol.
FAULTS = {
    "a stream with an even number": (0, [Frame(Kind.OPEN, 2)]),
    "a stream that is opened twice": (1, [Frame(Kind.OPEN, 1)]),
    "a number that is left out": (1, [Frame(Kind.OPEN, 5)]),
    "one stream too many": (MAX_STREAMS, [Frame(Kind.OPEN, 2 * MAX_STREAMS + 1)]),
    "bytes of a stream that was never opened": (
        1,
        [Frame(Kind.DATA, 3, b"x")],
    ),
    "bytes of a stream of this end that was never opened": (
        1,
        [
            Frame(
                Kind.DATA,
                2,
                b"x",
            )
        ],
    ),
    "bytes of stream 0": (
        1,
        [
            Frame(
                Kind.DATA,
                0,
                b"x",
            )
        ],
    ),
    "more bytes than were granted": (
        1,
        [
            Frame(
                Kind.DATA,
                1,
                bytes(MAX_DATA),
            )
        ]
        * (FIRST_WINDOW // MAX_DATA + 1),
    ),
    "a grant that no window has": (
        1,
        [
            Frame(
                Kind.CREDIT,
                1,
                credit=MAX_WINDOW,
            )
        ],
    ),
    "bytes after the end": (
        1,
        [
            Frame(Kind.END, 1),
            Frame(
                Kind.DATA,
                1,
                b"x",
            ),
        ],
    ),
    "a second end": (1, [Frame(Kind.END, 1), Frame(Kind.END, 1)]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_end_that_breaks_the_protocol_is_noticed(fault):
    count, frames = FAULTS[fault]
    streams = opened(count)
    for frame in frames[:-1]:
        streams.receive(frame)
    with pytest.raises(LinkFault):
        streams.receive(frames[-1])


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x02\x00",
        b"\x09\x00\x00\x00\x01",
        encode(Frame(Kind.OPEN, 1)) + b"x",
        encode(Frame(Kind.DATA, 1)),
        encode(
            Frame(
                Kind.DATA,
                1,
                bytes(MAX_DATA + 1),
            )
        ),
        b"\x03\x00\x00\x00\x01\x00",
    ],
    ids=[
        "empty",
        "short",
        "kind",
        "content",
        "no data",
        "long",
        "credit",
    ],
)
def test_a_message_that_is_no_frame_is_a_fault(message):
    with pytest.raises(LinkFault):
        decode(message)


def test_a_grant_lets_a_waiting_sender_go_on():
    sender, receiver = two_ends()
    number = sender.open()
    while sender.send(number, MAX_DATA):
        deliver(sender, receiver)
    receiver.take(number)
    events = [sender.streams.receive(frame) for frame in receiver.outbox]
    assert events == [[Credited(number)]]
    assert sender.streams.room(number) == MAX_DATA
