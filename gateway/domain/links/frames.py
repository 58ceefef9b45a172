"""The frames of a link: how many streams of bytes share one connection.

A frame is one binary message of the WebSocket: the kind in one byte, the stream's number in four
bytes (big-endian), and the content.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

LINK_PATH = "/v1/interconn/link"  # where the listener for peers takes links
MAX_DATA = 64 * 1024  # bytes of a stream in one frame; so a long message does not delay others
_HEAD = struct.Struct(">BI")
_CREDIT = struct.Struct(">I")
MAX_FRAME = _HEAD.size + MAX_DATA  # bytes


class LinkFault(Exception):
    """The other end of a link breaks the protocol; the link has to be closed."""


class LinkLost(Exception):
    """The connection of a link is gone; the text says why."""


class Kind(IntEnum):
    """The kinds of frames."""

    OPEN = 1  # begins a stream
    DATA = 2  # the next bytes of a stream
    CREDIT = 3  # the number of further bytes of a stream that the sender of the frame takes
    END = 4  # no further bytes of a stream follow in this direction
    RESET = 5  # a stream is broken off in both directions


@dataclass(frozen=True)
class Frame:
    """One frame: ``data`` belongs to DATA, ``credit`` (bytes) to CREDIT."""

    kind: Kind
    stream: int
    data: bytes = b""
    credit: int = 0


def require(is_met: bool, fault: str) -> None:
    """Raise `LinkFault` with a text if a rule of the protocol is not met."""
    if not is_met:
        raise LinkFault(fault)


def encode(frame: Frame) -> bytes:
    """Return the message with a frame."""
    head = _HEAD.pack(frame.kind, frame.stream)
    if frame.kind is Kind.CREDIT:
        return head + _CREDIT.pack(frame.credit)
    return head + frame.data


def decode(message: bytes) -> Frame:
    """Return the frame in a message. Raises `LinkFault` for anything else."""
    try:
        number, stream = _HEAD.unpack_from(message)
        kind = Kind(number)
    except (struct.error, ValueError) as error:
        raise LinkFault("a message is not a valid frame of a link") from error
    content = message[_HEAD.size :]
    if kind is Kind.CREDIT:
        return Frame(kind, stream, credit=_read_credit(content))
    if kind is Kind.DATA:
        _check_size(content)
        return Frame(kind, stream, content)
    require(not content, "a frame other than DATA has content")
    return Frame(kind, stream)


def _read_credit(content: bytes) -> int:
    """Return the bytes that a frame CREDIT grants. Raises `LinkFault`."""
    require(len(content) == _CREDIT.size, "a frame CREDIT has no number")
    (credit,) = _CREDIT.unpack(content)
    return int(credit)


def _check_size(content: bytes) -> None:
    """Raise `LinkFault` for a frame DATA without content, or with too much."""
    require(content != b"", "a frame DATA is empty")
    require(len(content) <= MAX_DATA, "a frame has too many bytes")
