"""The streams of one link, and their flow control: frames in, events out.

Each end may open streams; the numbers of the end that has opened the link are odd, those of the
other end are even. A sender may have at most as many bytes of a stream under way as the receiver
has granted. The grant of a stream whose bytes are taken quickly grows, so that a long line is used
well, while a stream that nobody reads holds little memory.
"""

from collections import Counter
from dataclasses import dataclass

from gateway.domain.links.frames import MAX_DATA, Frame, Kind, require

FIRST_WINDOW = 128 * 1024  # bytes that a stream may have under way at its beginning
MAX_WINDOW = 4 * 1024 * 1024  # bytes; fills 100 Mbit/s over a round trip of 300 ms
MAX_WINDOWS = 64 * 1024 * 1024  # bytes of all windows of a link together, beyond which none grows
# Streams that one end may open: more than all connections of a node to one partner.
MAX_STREAMS = 384
_MAX_NUMBER = 2**32 - 1  # the largest number of a stream; a link ends before it


class TooManyStreams(Exception):
    """A link takes no further stream now."""


# ------------------------------------------------------------ events


@dataclass(frozen=True)
class Opened:
    """The other end has opened a stream."""

    stream: int


@dataclass(frozen=True)
class Received:
    """Bytes of a stream have arrived."""

    stream: int
    data: bytes


@dataclass(frozen=True)
class Credited:
    """The other end takes further bytes of a stream."""

    stream: int


@dataclass(frozen=True)
class Ended:
    """The other end sends no further bytes of a stream."""

    stream: int


@dataclass(frozen=True)
class Broken:
    """The other end has broken off a stream."""

    stream: int


LinkEvent = Opened | Received | Credited | Ended | Broken


# ------------------------------------------------------------ streams


@dataclass
class _Stream:
    """The state of one stream."""

    window: int = FIRST_WINDOW  # bytes that the other end may have under way
    room: int = FIRST_WINDOW  # bytes that this end may still send
    granted: int = FIRST_WINDOW  # bytes that the other end may still send
    taken: int = 0  # bytes that were taken here since the last grant
    has_sent_end: bool = False
    has_received_end: bool = False


class Multiplexer:
    """The streams of one link. Its methods return the frames that the caller has to send."""

    def __init__(self, *, has_opened_link: bool) -> None:
        """``has_opened_link``: whether this end has opened the link."""
        self._streams: dict[int, _Stream] = {}
        self._next = 1 if has_opened_link else 2
        self._expected = 2 if has_opened_link else 1  # the number of the other end's next stream
        # Of all open streams; counted, as a link with many of them is busy
        self._windows = 0
        self._opened_by = Counter[bool]()  # by whether this end has opened them

    def __len__(self) -> int:
        """Return the number of open streams."""
        return len(self._streams)

    def open(self) -> Frame:
        """Begin a stream. Raises `TooManyStreams`."""
        if self._opened_by[True] >= MAX_STREAMS or self._next > _MAX_NUMBER:
            raise TooManyStreams("a link carries no further stream")
        number = self._next
        self._next += 2
        self._begin(number)
        return Frame(Kind.OPEN, number)

    def room(self, number: int) -> int:
        """Return how many bytes of a stream may be sent now, at most one frame; 0 for none."""
        stream = self._streams.get(number)
        if stream is None or stream.has_sent_end:
            return 0
        return min(stream.room, MAX_DATA)

    def is_open(self, number: int) -> bool:
        """Return whether a stream still exists."""
        return number in self._streams

    def send(self, number: int, data: bytes) -> Frame:
        """Return the frame with the next bytes of a stream, for which there is `room`."""
        stream = self._streams[number]
        if stream.has_sent_end or len(data) > self.room(number):
            raise ValueError("there is no room for the bytes")
        stream.room -= len(data)
        return Frame(Kind.DATA, number, data)

    def end(self, number: int) -> list[Frame]:
        """End this end's direction of a stream; [] if it has ended already."""
        stream = self._streams.get(number)
        if stream is None or stream.has_sent_end:
            return []
        stream.has_sent_end = True
        self._forget_if_ended(number)
        return [Frame(Kind.END, number)]

    def reset(self, number: int) -> list[Frame]:
        """Break off a stream; [] if it has ended already."""
        if number not in self._streams:
            return []
        self._forget(number)
        return [Frame(Kind.RESET, number)]

    def take(self, number: int, size: int) -> list[Frame]:
        """Note that received bytes of a stream were taken; return the further grant, [] for none.

        A grant follows when half of the window was taken, and the window doubles within its limits.
        """
        stream = self._streams.get(number)
        if stream is None or stream.has_received_end:
            return []
        stream.taken += size
        if 2 * stream.taken < stream.window:
            return []
        growth = self._growth(stream)
        credit = stream.taken + growth
        stream.taken = 0
        stream.window += growth
        self._windows += growth
        stream.granted += credit
        return [Frame(Kind.CREDIT, number, credit=credit)]

    def _growth(self, stream: _Stream) -> int:
        """Return the bytes by which a window grows; 0 at its limit or at that of the link."""
        growth = min(stream.window, MAX_WINDOW - stream.window)
        if self._windows + growth > MAX_WINDOWS:
            return 0
        return growth

    # -------------------------------------------------------- from the other end

    def receive(self, frame: Frame) -> list[LinkEvent]:
        """Return the events of a received frame; [] for one of a stream that has just ended.

        Raises `LinkFault` if the other end breaks the protocol.
        """
        if frame.kind is Kind.OPEN:
            return self._receive_open(frame.stream)
        stream = self._streams.get(frame.stream)
        if stream is None:
            self._check_was_open(frame.stream)
            return []
        match frame.kind:
            case Kind.DATA:
                return self._receive_data(stream, frame)
            case Kind.CREDIT:
                return self._receive_credit(stream, frame)
            case Kind.END:
                return self._receive_end(stream, frame.stream)
        self._forget(frame.stream)
        return [Broken(frame.stream)]

    def _receive_open(self, number: int) -> list[LinkEvent]:
        """Begin a stream of the other end. Raises `LinkFault` for a wrong number."""
        is_next = number == self._expected
        require(is_next, "a stream with another number than the next one is opened")
        has_place = self._opened_by[False] < MAX_STREAMS
        require(has_place, "there are too many streams")
        self._expected += 2
        self._begin(number)
        return [Opened(number)]

    def _receive_data(self, stream: _Stream, frame: Frame) -> list[LinkEvent]:
        """Count received bytes. Raises `LinkFault` for more than was granted."""
        require(not stream.has_received_end, "a stream goes on after its end")
        is_granted = len(frame.data) <= stream.granted
        require(is_granted, "a stream has more bytes than were granted")
        stream.granted -= len(frame.data)
        return [Received(frame.stream, frame.data)]

    def _receive_credit(self, stream: _Stream, frame: Frame) -> list[LinkEvent]:
        """Add a grant. Raises `LinkFault` for one that no window has."""
        stream.room += frame.credit
        require(stream.room <= MAX_WINDOW, "a stream is granted more than its window")
        return [Credited(frame.stream)]

    def _receive_end(self, stream: _Stream, number: int) -> list[LinkEvent]:
        """End the other end's direction. Raises `LinkFault` for a second end."""
        require(not stream.has_received_end, "a stream ends twice")
        stream.has_received_end = True
        self._forget_if_ended(number)
        return [Ended(number)]

    def _is_of_this_end(self, number: int) -> bool:
        """Return whether a number is one of the streams that this end opens."""
        return number % 2 == self._next % 2

    def _begin(self, number: int) -> None:
        """Add a stream."""
        stream = _Stream()
        self._streams[number] = stream
        self._windows += stream.window
        self._opened_by[self._is_of_this_end(number)] += 1

    def _forget(self, number: int) -> None:
        """Remove a stream."""
        stream = self._streams.pop(number)
        self._windows -= stream.window
        self._opened_by[self._is_of_this_end(number)] -= 1

    def _check_was_open(self, number: int) -> None:
        """Raise `LinkFault` for a stream that neither end has opened."""
        first_unused = self._next if self._is_of_this_end(number) else self._expected
        was_open = 0 < number < first_unused
        require(was_open, "a frame is of a stream that was never opened")

    def _forget_if_ended(self, number: int) -> None:
        """Forget a stream that has ended in both directions."""
        stream = self._streams[number]
        if stream.has_sent_end and stream.has_received_end:
            self._forget(number)
