"""Bodies and payloads in the pieces in which they arrived, and their Base64.

Long ones are read slice by slice, without a copy of the whole.
"""

import binascii
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

from isal.isal_zlib import crc32

_SLICE = 1 << 18  # bytes that are read or decoded together
_STANDARD = bytes.maketrans(b"-_", b"+/")  # URL-safe Base64 to standard Base64
_SPACE = b" \t\n\r\v\f"  # ignored in Base64


def total_length(pieces: Iterable[bytes]) -> int:
    """Return the number of bytes in some pieces."""
    return sum(map(len, pieces))


class Pieces:
    """Bytes in pieces, which are read in slices of at most a quarter of a MiB."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._ends = list(accumulate(map(len, pieces)))

    def __len__(self) -> int:
        if not self._ends:
            return 0
        return self._ends[-1]

    def between(
        self,
        begin: int,
        end: int,
        *,
        consume: bool = False,
    ) -> Iterator[bytes]:
        """Yield the slices of a range; ``consume`` frees each piece once its end was yielded."""
        index = bisect_right(self._ends, begin)  # of the piece that contains `begin`
        while begin < end and index < len(self._pieces):
            piece = self._pieces[index]
            piece_end = self._ends[index]
            piece_begin = piece_end - len(piece)
            stop = min(end, piece_end, begin + _SLICE)
            yield piece[begin - piece_begin : stop - piece_begin]
            if stop == piece_end:
                if consume:
                    self._pieces[index] = b""
                index += 1
            begin = stop

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes of a range, as far as they exist."""
        return b"".join(self.between(begin, end))


class Payload:
    """The bytes of a message within its body, in Base64 or as they are."""

    def __init__(
        self,
        body: Pieces,
        begin: int = 0,
        end: int | None = None,
        *,
        base64: bool = False,
    ) -> None:
        """``begin`` and ``end`` are the payload's range in the body; ``end`` None: the body's end.

        ``base64``: whether the range is Base64. Raises ValueError if that Base64 is invalid.
        """
        self._body = body
        self._begin = begin
        if end is None:
            end = len(body)
        self._end = end
        self._base64 = base64
        self.size, self.checksum = measure(self)

    def __iter__(self) -> Iterator[bytes]:
        return self._read(consume=False)

    def consume(self) -> Iterator[bytes]:
        """Yield the bytes, and free the body's pieces on the way: this is possible only once."""
        return self._read(consume=True)

    def parts(self, size: int) -> Iterator[list[bytes]]:
        """Yield parts of ``size`` bytes, each in pieces; the last part may be shorter."""
        buffer = PartBuffer(size)
        for piece in self:
            yield from buffer.add(piece)
        if buffer.part:
            yield buffer.part

    def _read(self, *, consume: bool) -> Iterator[bytes]:
        """Return the bytes, decoded if they are in Base64."""
        slices = self._body.between(
            self._begin,
            self._end,
            consume=consume,
        )
        if self._base64:
            return decode_pieces(slices)
        return slices


class PartBuffer:
    """Joins pieces to parts of ``size`` bytes. ``part`` has the pieces of the incomplete part."""

    def __init__(self, size: int) -> None:
        self.part: list[bytes] = []
        self._size = size
        self._free = size

    def add(self, piece: bytes) -> Iterator[list[bytes]]:
        """Add a piece, and yield the parts that become full."""
        while len(piece) >= self._free:
            self.part.append(piece[: self._free])
            piece = piece[self._free :]
            yield self.part
            self.part = []
            self._free = self._size
        if piece:
            self.part.append(piece)
            self._free -= len(piece)


def measure(pieces: Iterable[bytes]) -> tuple[int, int]:
    """Return the length and the CRC-32 of some pieces."""
    length = 0
    checksum = 0
    for piece in pieces:
        length += len(piece)
        checksum = crc32(piece, checksum)
    return length, checksum


def encode_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield pieces in standard Base64."""
    rest = b""
    for piece in pieces:
        data = rest + piece
        complete = len(data) // 3 * 3  # Base64 encodes 3 bytes together
        rest = data[complete:]
        yield binascii.b2a_base64(data[:complete], newline=False)
    yield binascii.b2a_base64(rest, newline=False)


def decode_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Decode standard or URL-safe Base64, padded or not; white space is ignored.

    Raises ValueError, also for data after the padding.
    """
    rest = b""
    is_padded = False
    for piece in pieces:
        text = rest + piece.translate(_STANDARD, _SPACE)
        if not text:
            continue
        if is_padded:
            raise ValueError("padding before the end")
        complete = len(text) & ~3  # a multiple of 4, the characters of 3 bytes
        rest = text[complete:]
        is_padded = text.endswith(b"=", 0, complete)  # whether `text[:complete]` ends with "="
        yield binascii.a2b_base64(text[:complete], strict_mode=True)
    rest = rest.rstrip(b"=")
    if is_padded and rest:
        raise ValueError("padding before the end")
    padding = b"=" * (-len(rest) % 4)
    yield binascii.a2b_base64(rest + padding, strict_mode=True)


def encode_base64(content: bytes) -> bytes:
    """Return bytes as standard Base64."""
    slices = Pieces([content]).between(0, len(content))
    return b"".join(encode_pieces(slices))


def decode_base64(text: str) -> bytes:
    """Decode Base64 as `decode_pieces` does. Raises ValueError."""
    raw = text.encode("ascii")
    slices = Pieces([raw]).between(0, len(raw))
    return b"".join(decode_pieces(slices))
