"""Remembers in which order the lines of a task's runs were found, so that a line never changes its number.

The streams of several runs grow side by side, without times; however they are joined later, lines would move.
Hence what has grown is written down, as segments of the streams, whenever somebody asks: the order in which it was
found is the order for good. The ledger is a text file with one segment per line, only ever appended to:

    <run's name> <stream> <first byte> <byte after the last> <debug lines> <info lines> <error lines>

A segment that begins where the one above it begins replaces it, grown.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

# Says how serious a line of a vendor's log is. Nothing prescribes how a line tells; this is how it is read here.
#
# 1. A line that is a JSON object tells by its field ``level``, ``severity`` or ``levelname``.
# 2. Else a level word at its beginning tells, in any case, also in brackets, after a time, or coloured.
#    So does glog's letter with the date (``E1121 10:00:00 …``).
# 3. Else a line of stdout is info, and one of stderr error: that is where tracebacks and the last words of a
#    crash end up.
#
# Warnings count as info: the protocol knows no level of that name, and a job with warnings is no failed one.

LONGEST_LINE = 64 * 1024
"""bytes of a line that are looked at, and shown"""


class Level(StrEnum):
    """What may be asked for: ``debug`` gives every line, ``info`` what is info or worse, ``error`` only errors."""

    DEBUG = "debug"
    INFO = "info"
    ERROR = "error"


LEVELS = tuple(Level)
"""from all lines to the fewest"""

_WORDS = {
    Level.DEBUG: "trace debug verbose",
    Level.INFO: "info information notice warn warning",
    Level.ERROR: "err error severe crit critical fatal alert emerg emergency panic traceback",
}
_LEVEL_OF = {word: level for level, words in _WORDS.items() for word in words.split()}
_FIELDS = ("level", "severity", "levelname")
_COLOUR = rb"\x1b\[[0-9;]*m"
_LEADING = re.compile(
    rb"(?:[\s0-9\[\](){}<>|:.,/+*-]|(?<=[0-9])[TZ](?=[0-9\s\])]|$)|(?<=[0-9])UTC|" + _COLOUR + rb")*+"
    rb"([A-Za-z]+)(?![A-Za-z0-9_])"
)
_GLOG = re.compile(rb"([IWEF])[0-9]{4,8} [0-9]{2}:")
_GLOG_LEVEL = {b"I": Level.INFO, b"W": Level.INFO, b"E": Level.ERROR, b"F": Level.ERROR}
_HEAD = 200
"""bytes within which a leading word has to begin"""


def level_of(line: bytes, stream: str) -> Level:
    """Return the level of a line, whose first `LONGEST_LINE` bytes are enough."""
    otherwise = Level.ERROR if stream == "stderr" else Level.INFO
    if line.lstrip()[:1] == b"{":
        return _level_of_object(line) or otherwise
    if glog := _GLOG.match(line):
        return _GLOG_LEVEL[glog[1]]
    word = _LEADING.match(line[:_HEAD])
    return _LEVEL_OF.get(word[1].decode().lower(), otherwise) if word else otherwise


def _level_of_object(line: bytes) -> Level | None:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    words = (said.get(field) for field in _FIELDS)
    return next((_LEVEL_OF[w.lower()] for w in words if isinstance(w, str) and w.lower() in _LEVEL_OF), None)


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
    counts: tuple[int, int, int] = (0, 0, 0)
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
        if segments and _grown(segments[-1], segment):
            segments[-1] = segment
        else:
            segments.append(segment)
    return segments


def extend(file: BinaryIO, segments: list[Segment], more: Iterable[Segment]) -> None:
    """Write down what was found, and add it to the segments. Raises OSError."""
    file.seek(0, os.SEEK_END)
    for segment in more:
        last = segments[-1] if segments else None
        if last is not None and _goes_on(last, segment):
            segment = _joined(last, segment)
            segments[-1] = segment
        else:
            segments.append(segment)
        file.write(_written(segment).encode())
    file.flush()


def ends(segments: list[Segment]) -> dict[tuple[str, str], int]:
    """Return up to which byte each stream of each run is in the ledger."""
    return {(s.run, s.stream): s.end for s in segments}


def found(paths: Sequence[Path], run: str, stream: str, start: int, *, complete: bool) -> Iterator[Segment]:
    """Yield the lines from a byte of a stream on, in segments.

    A last line without its end is left for later, unless the stream is complete.
    """
    counts, end = [0, 0, 0], start
    for line in lines(paths, start, None):
        if not line.ended and not complete:
            break
        counts[LEVELS.index(level_of(line.head, stream))] += 1
        end = line.end
        if end - start >= LARGEST_SEGMENT:
            yield Segment(run, stream, start, end, (counts[0], counts[1], counts[2]))
            counts, start = [0, 0, 0], end
    if end > start:
        yield Segment(run, stream, start, end, (counts[0], counts[1], counts[2]))


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
    file = _opened(paths)
    if file is None:
        return
    with file:
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


def _opened(paths: Sequence[Path]) -> BinaryIO | None:
    for path in paths:
        try:
            return path.open("rb")
        except FileNotFoundError:
            continue
    return None


def _parsed(line: bytes) -> Segment | None:
    words = line.decode(errors="replace").split()
    if not line.endswith(b"\n") or len(words) != 7 or not all(w.isdecimal() for w in words[2:]):
        return None
    start, end, debug, info, error = map(int, words[2:])
    return Segment(words[0], words[1], start, end, (debug, info, error))


def _written(s: Segment) -> str:
    return f"{s.run} {s.stream} {s.start} {s.end} {s.counts[0]} {s.counts[1]} {s.counts[2]}\n"


def _grown(old: Segment, new: Segment) -> bool:
    return (old.run, old.stream, old.start) == (new.run, new.stream, new.start)


def _goes_on(old: Segment, new: Segment) -> bool:
    """Whether the new segment follows the old one directly, and both fit into one."""
    follows = (old.run, old.stream, old.end) == (new.run, new.stream, new.start)
    return follows and new.end - old.start <= LARGEST_SEGMENT


def _joined(old: Segment, new: Segment) -> Segment:
    a, b = old.counts, new.counts
    return replace(old, end=new.end, counts=(a[0] + b[0], a[1] + b[1], a[2] + b[2]))
