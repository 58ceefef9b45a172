"""The ledger of a task's log: the order of the lines of all its runs and streams.

The streams of several runs grow at the same time, and their lines have no times. The ledger records
the order in which the lines were first read, so that each line has its number for good. It is a
text file that is only appended to. After a header, each of its lines is a segment of a stream:

    <run's name> <stream> <first byte> <byte after the last> <debug> <info> <error>

The last three fields are the numbers of lines of each level. A segment that begins at the same byte
of the same stream as the segment in the line above replaces that one: it has grown.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from gateway.data.log_levels import LEVELS, Level, level_of
from gateway.data.log_lines import read_lines

LARGEST_SEGMENT = 256 * 1024  # bytes; a longer line has a segment of its own
# First line of a ledger. An older ledger lacks it, and is written again, since it counted lines
# that ended at line feeds alone.
_HEADER = b"lines end at carriage returns, too\n"
_FIELDS = 7  # of a line after the header


@dataclass(frozen=True)
class Segment:
    """Complete lines of one stream of one run."""

    run: str  # its name
    stream: str
    start: int  # offset of the first byte in the stream
    end: int  # offset after the last byte
    counts: tuple[int, ...] = (0, 0, 0)  # lines of each level, in the order of `LEVELS`

    def count(self, level: Level) -> int:
        """Return the number of lines that are of a level or worse."""
        return sum(self.counts[LEVELS.index(level) :])


def begin_ledger(file: BinaryIO) -> None:
    """Write the header of a new ledger; change nothing if the header is there already.

    A ledger in an older form is emptied, and begun as a new one. Raises `OSError`.
    """
    file.seek(0)
    if file.readline() != _HEADER:
        file.truncate(0)
        file.write(_HEADER)
        file.flush()


def read_ledger(file: BinaryIO) -> list[Segment]:
    """Return the segments of a ledger. Raises `OSError`.

    A last line that a crash left incomplete is cut off.
    """
    segments: list[Segment] = []
    file.seek(0)
    intact = 0  # bytes of the complete lines read so far
    for line in file:
        if line != _HEADER:
            segment = _parse(line)
            if segment is None:
                file.truncate(intact)
                break
            _append(segments, segment)
        intact += len(line)
    return segments


def _append(segments: list[Segment], segment: Segment) -> None:
    """Append a segment to a list.

    If it begins at the same byte as the last one, it replaces that one, as in the file.
    """
    if segments:
        last = segments[-1]
        start = (last.run, last.stream, last.start)
        if start == (segment.run, segment.stream, segment.start):
            segments[-1] = segment
            return
    segments.append(segment)


def _parse(line: bytes) -> Segment | None:
    """Return the segment in a line of the ledger.

    None for an incomplete line, which a crash leaves.
    """
    words = line.decode(errors="replace").split()
    if not line.endswith(b"\n") or len(words) != _FIELDS:
        return None
    run, stream, *numbers = words
    if not all(map(str.isdecimal, numbers)):
        return None
    start, end, *counts = map(int, numbers)
    return Segment(run, stream, start, end, tuple(counts))


def extend_ledger(
    file: BinaryIO,
    segments: list[Segment],
    additions: Iterable[Segment],
) -> None:
    """Append segments to the ledger's file, and to the list of the segments in it.

    A segment that continues the last one in the list is joined to it, up to `LARGEST_SEGMENT`.
    Raises `OSError`.
    """
    file.seek(0, os.SEEK_END)
    for new in additions:
        segment = new
        if segments:
            segment = _joined(segments[-1], new)
        _append(segments, segment)
        numbers = [segment.start, segment.end, *segment.counts]
        words = [segment.run, segment.stream, *map(str, numbers)]
        file.write(f"{' '.join(words)}\n".encode())
    file.flush()


def _joined(last: Segment, new: Segment) -> Segment:
    """Return the last segment grown by a new one.

    The new segment itself is returned if the two are not adjacent, or are too large together.
    """
    follows = (last.run, last.stream, last.end) == (new.run, new.stream, new.start)
    if not follows or new.end - last.start > LARGEST_SEGMENT:
        return new
    counts = tuple(map(sum, zip(last.counts, new.counts, strict=True)))
    return replace(last, end=new.end, counts=counts)


def new_segments(
    paths: Sequence[Path],
    run: str,
    stream: str,
    start: int,
    *,
    complete: bool,
) -> Iterator[Segment]:
    """Yield the lines of a stream from an offset on, in segments.

    - ``paths``: files of the stream; the first one that exists is read
    - ``complete``: the stream will not grow, so its last line counts even without a line end
    """
    counts = [0, 0, 0]
    end = start
    for line in read_lines(paths, start, None):
        if not line.ended and not complete:
            break
        level = level_of(line.head, stream)
        counts[LEVELS.index(level)] += 1
        end = line.end
        if end - start >= LARGEST_SEGMENT:
            yield Segment(run, stream, start, end, tuple(counts))
            counts = [0, 0, 0]
            start = end
    if end > start:
        yield Segment(run, stream, start, end, tuple(counts))
