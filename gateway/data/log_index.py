"""Keeps the order in which the lines of a task's runs were found, so that a line never changes its number.

The streams of several runs grow side by side, without times; however they are joined later, lines would move.
Hence what has grown is recorded, as segments of the streams, with every request: the order in which it was
found is the order for good. The ledger is a text file with one segment per line, only ever appended to:

    <run's name> <stream> <first byte> <byte after the last> <debug lines> <info lines> <error lines>

A segment that begins where the one above it begins replaces it, grown.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from gateway.data.log_levels import LEVELS, LONGEST_LINE, Level, level_of

LARGEST_SEGMENT = 256 * 1024
"""bytes after which a new segment begins; a longer line has one of its own"""

HEAD = LONGEST_LINE + 1024
"""bytes of a line that are read: some beyond those shown, so that what is masked is whole"""

_CHUNK = 1024 * 1024


@dataclass(frozen=True)
class Segment:
    """Whole lines of one stream of one run."""

    run: str
    stream: str
    start: int
    """bytes of the stream before it"""
    end: int
    """bytes of the stream with it"""
    counts: tuple[int, ...] = (0, 0, 0)
    """lines of exactly each level, as in `LEVELS`"""

    def number(self, level: Level) -> int:
        """Return how many lines are of that level or worse."""
        return sum(self.counts[LEVELS.index(level) :])


def read_ledger(file: BinaryIO) -> list[Segment]:
    """Return the segments; what a crash left of a last line is cut off. Raises OSError."""
    segments: list[Segment] = []
    good = file.seek(0)
    for line in file:
        segment = _parsed(line)
        if segment is None:
            file.truncate(good)
            break
        good += len(line)
        last = segments[-1] if segments else None
        if last and (last.run, last.stream, last.start) == (segment.run, segment.stream, segment.start):
            segments[-1] = segment
        else:
            segments.append(segment)
    return segments


def extend(file: BinaryIO, segments: list[Segment], more: Iterable[Segment]) -> None:
    """Record what was found, and add it to the segments. Raises OSError."""
    file.seek(0, os.SEEK_END)
    for segment in more:
        last = segments[-1] if segments else None
        if last is not None and _goes_on(last, segment):
            counts = tuple(map(sum, zip(last.counts, segment.counts, strict=True)))
            segment = replace(last, end=segment.end, counts=counts)
            segments[-1] = segment
        else:
            segments.append(segment)
        debug, info, error = segment.counts
        text = f"{segment.run} {segment.stream} {segment.start} {segment.end} {debug} {info} {error}\n"
        file.write(text.encode())
    file.flush()


def ends(segments: list[Segment]) -> dict[tuple[str, str], int]:
    """Return up to which byte each stream of each run is in the ledger."""
    return {(s.run, s.stream): s.end for s in segments}


def found(paths: Sequence[Path], run: str, stream: str, start: int, *, complete: bool) -> Iterator[Segment]:
    """Yield the lines from a byte on, in segments; one without its end only where the stream is complete."""
    counts, end = [0, 0, 0], start
    for line in lines(paths, start, None):
        if not line.ended and not complete:
            break
        counts[LEVELS.index(level_of(line.head, stream))] += 1
        end = line.end
        if end - start >= LARGEST_SEGMENT:
            yield Segment(run, stream, start, end, tuple(counts))
            counts, start = [0, 0, 0], end
    if end > start:
        yield Segment(run, stream, start, end, tuple(counts))


@dataclass(frozen=True)
class RawLine:
    """A line in a file: where it is, and its first `HEAD` bytes."""

    head: bytes
    start: int
    """bytes of the file before it"""
    end: int
    """bytes of the file with it, its line break too"""
    ended: bool
    """whether its line break is there"""


def lines(paths: Sequence[Path], start: int, end: int | None) -> Iterator[RawLine]:
    """Yield the lines between two bytes of the first of the files that is there, in memory one at a time."""
    path = next(filter(Path.exists, paths), None)
    if path is None:
        return
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        end = size if end is None else min(end, size)
        file.seek(start)
        while start < end:
            head = piece = file.readline(min(HEAD, end - start))
            at = start + len(piece)
            while piece and not piece.endswith(b"\n") and at < end:
                piece = file.readline(min(_CHUNK, end - at))
                at += len(piece)
            if not head:
                return
            yield RawLine(head, start, at, piece.endswith(b"\n"))
            start = at


def _parsed(line: bytes) -> Segment | None:
    words = line.decode(errors="replace").split()
    if not line.endswith(b"\n") or len(words) != 7 or not all(w.isdecimal() for w in words[2:]):
        return None
    start, end, debug, info, error = map(int, words[2:])
    return Segment(words[0], words[1], start, end, (debug, info, error))


def _goes_on(old: Segment, new: Segment) -> bool:
    """Whether the new segment follows the old one directly, and both fit into one."""
    follows = (old.run, old.stream, old.end) == (new.run, new.stream, new.start)
    return follows and new.end - old.start <= LARGEST_SEGMENT
