"""Bodies and payloads in the pieces in which they came, and their Base64: nothing long is copied as a whole."""

import binascii
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

from isal.isal_zlib import crc32

_SLICE = 1 << 18
_PLAIN = bytes.maketrans(b"-_", b"+/")
_SPACE = b" \t\n\r\v\f"


class Pieces:
    """Bytes that came in pieces; given in slices of a quarter of a MiB at most."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._ends = list(accumulate(map(len, pieces)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def between(
        self,
        begin: int,
        end: int,
        *,
        last: bool = False,
    ) -> Iterator[bytes]:
        """Give what lies there; for the ``last`` time, each piece is forgotten once all of it is given."""
        at = bisect_right(self._ends, begin)
        while begin < end and at < len(self._pieces):
            start = self._ends[at] - len(self._pieces[at])
            stop = min(end, self._ends[at], begin + _SLICE)
            yield self._pieces[at][begin - start : stop - start]
            if stop == self._ends[at]:
                if last:
                    self._pieces[at] = b""
                at += 1
            begin = stop

    def read(self, begin: int, end: int) -> bytes:
        """Return what lies there, as far as there is anything."""
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
        """Raises ValueError for what is not Base64."""
        self._body = body
        self._range = begin, len(body) if end is None else end
        self._base64 = base64
        self.size, self.checksum = measured(self)

    def __iter__(self) -> Iterator[bytes]:
        return self._read(last=False)

    def last(self) -> Iterator[bytes]:
        """Give it for the last time, and forget what has been given."""
        return self._read(last=True)

    def _read(self, last: bool) -> Iterator[bytes]:
        slices = self._body.between(*self._range, last=last)
        return decoded(slices) if self._base64 else slices

    def parts(self, size: int) -> Iterator[list[bytes]]:
        """Give it in parts of one size, but for the last; each in pieces."""
        filling = Filling(size)
        for piece in self:
            yield from filling.add(piece)
        if filling.part:
            yield filling.part


class Filling:
    """Collects pieces to parts of one size."""

    def __init__(self, size: int) -> None:
        self.part: list[bytes] = []
        """the one that is not full"""
        self._size = self._free = size

    def add(self, piece: bytes) -> Iterator[list[bytes]]:
        """Give the parts that become full."""
        while len(piece) >= self._free:
            self.part.append(piece[: self._free])
            piece = piece[self._free :]
            yield self.part
            self.part, self._free = [], self._size
        if piece:
            self.part.append(piece)
            self._free -= len(piece)


def measured(pieces: Iterable[bytes]) -> tuple[int, int]:
    """Return length and CRC-32 of what came in pieces."""
    length = checksum = 0
    for piece in pieces:
        length += len(piece)
        checksum = crc32(piece, checksum)
    return length, checksum


def encoded(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Write standard Base64."""
    rest = b""
    for piece in pieces:
        whole = rest + piece
        keep = len(whole) // 3 * 3
        rest = whole[keep:]
        yield binascii.b2a_base64(whole[:keep], newline=False)
    yield binascii.b2a_base64(rest, newline=False)


def decoded(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Read standard or URL-safe Base64, padded or not, white space ignored. Raises ValueError."""
    rest, padded = b"", False
    for piece in pieces:
        text = rest + piece
        keep = len(text) & ~3
        try:
            found = binascii.a2b_base64(text[:keep], strict_mode=True)
        except binascii.Error:
            text = text.translate(_PLAIN, _SPACE)
            keep = len(text) & ~3
            found = binascii.a2b_base64(text[:keep], strict_mode=True)
        if padded and text.strip(_SPACE):
            raise ValueError("padding before the end")
        padded = padded or len(found) < keep // 4 * 3
        rest = text[keep:]
        yield found
    rest = rest.translate(_PLAIN, _SPACE).rstrip(b"=")
    if padded and rest:
        raise ValueError("padding before the end")
    yield binascii.a2b_base64(rest + b"=" * (-len(rest) % 4), strict_mode=True)


def encode_base64(content: bytes) -> bytes:
    """Return bytes as standard Base64."""
    return b"".join(encoded(Pieces([content]).between(0, len(content))))


def decode_base64(text: str) -> bytes:
    """Read Base64 as `decoded` does. Raises ValueError."""
    raw = text.encode("ascii")
    return b"".join(decoded(Pieces([raw]).between(0, len(raw))))
