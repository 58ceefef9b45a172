"""Reads the lines of a run's log from a file, in bounded memory.

A line ends with a line feed. It also ends before a carriage return that text follows (a redrawn
progress bar); the carriage return is then the beginning of the next line.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gateway.data.log_levels import LONGEST_LINE

# Bytes of a line that are kept: more than are shown, so that a secret that the cut would divide is
# masked completely.
HEAD = LONGEST_LINE + 1024
_CHUNK = 1024 * 1024  # bytes read at a time
# Text with the carriage returns before it and the line end after it, or such characters alone.
_FRAGMENT = re.compile(rb"\r*[^\r\n]+(?:\r*\n)?|\r*\n|\r+")


@dataclass(frozen=True)
class RawLine:
    """A line in a file: its position, and its first `HEAD` bytes after leading carriage returns."""

    head: bytes
    start: int  # offset of its first byte
    end: int  # offset after its line end
    ended: bool  # False: the line end has not been written yet


def read_lines(
    paths: Sequence[Path],
    start: int,
    end: int | None,
) -> Iterator[RawLine]:
    """Yield the lines between two offsets of the first file that exists.

    ``end`` of None is the end of the file. Without any file there are no lines.
    """
    path = next(filter(Path.exists, paths), None)
    if path is None:
        return
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if end is None or end > size:
            end = size
        file.seek(start)
        yield from _join(_fragments(file, end - start), start)


def _join(
    fragments: Iterable[bytes],
    start: int,
) -> Iterator[RawLine]:
    """Yield the lines that fragments form.

    The first line begins at the offset ``start``. A fragment that begins with a carriage return and
    has text begins a redrawn line, and so ends the line before.
    """
    line = _LineBuffer(start)
    for fragment in fragments:
        has_text = fragment.strip(b"\r\n") != b""
        is_redrawn = has_text and fragment.startswith(b"\r")
        if line.head and is_redrawn:
            yield line.flush(ended=True)
        line.add(fragment)
        if fragment.endswith(b"\n"):
            yield line.flush(ended=True)
    if line.size:
        yield line.flush(ended=False)


class _LineBuffer:
    """The line that is being read; of a long one, only the first `HEAD` bytes are kept."""

    def __init__(self, start: int) -> None:
        """Begin a line at an offset."""
        self.head = b""
        self.size = 0  # all its bytes so far
        self._start = start

    def add(self, fragment: bytes) -> None:
        """Append a fragment of the line.

        Its leading carriage returns count as bytes, but are not shown.
        """
        self.size += len(fragment)
        self.head += fragment.lstrip(b"\r")[: HEAD - len(self.head)]

    def flush(self, *, ended: bool) -> RawLine:
        """Return the line, and begin the next one.

        ``ended``: the line has its line end.
        """
        end = self._start + self.size
        line = RawLine(self.head, self._start, end, ended)
        self.head = b""
        self.size = 0
        self._start = end
        return line


def _fragments(file: BinaryIO, length: int) -> Iterator[bytes]:
    """Yield the next ``length`` bytes of a file in fragments, see `_FRAGMENT`.

    The file is read in pieces, which end with a line feed or are `_CHUNK` bytes long. If a piece
    ends with a carriage return, the next byte is added to it, since that may be the line feed.
    """
    while length > 0:
        piece = file.readline(min(_CHUNK, length))
        if not piece:
            return
        length -= len(piece)
        while piece.endswith(b"\r") and length > 0:  # a line feed may follow
            following = file.read(1)
            if not following:
                break
            length -= 1
            piece += following
        yield from _FRAGMENT.findall(piece)
