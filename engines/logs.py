"""Reads and writes a run's two log files."""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from engines.base import EngineError, NoSpace

STREAMS = ("stdout", "stderr")

CUT = b" bytes are left out here: the log was longer than it may be]\n"
"""the end of the line that stands for what is missing"""

_CHUNK = 1024 * 1024
_LINE = 16 * 1024
"""bytes in which the end of a line is looked for"""


def read_tail(path: Path, tail: int | None) -> bytes:
    """Return the last ``tail`` bytes of the file, all of it for None, nothing if there is no such file."""
    try:
        with path.open("rb") as file:
            if tail is not None:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - tail))
            return file.read() if tail is None else file.read(tail)
    except FileNotFoundError:
        return b""


def read_ends(path: Path, tail: int | None, most: int) -> bytes:
    """Return what `read_tail` does; of a file of more than twice ``most`` bytes no more than so many of each end.

    Its middle may have been given back to the disk: it would be read as zeros, of any number.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size <= 2 * most:
                return read_tail(path, tail)
            if tail is not None:
                return read_tail(path, min(tail, most))
            file.seek(0)
            head = file.read(most)
            file.seek(size - most)
            return head + b"\n[%d" % (size - 2 * most) + CUT + file.read(most)
    except FileNotFoundError:
        return b""


def last(chunks: Iterable[bytes], tail: int | None) -> bytes:
    """Return the last ``tail`` bytes of the chunks, holding not much more than those in memory."""
    kept = bytearray()
    for chunk in chunks:
        kept += chunk
        if tail is not None and len(kept) > tail + _CHUNK:
            del kept[: len(kept) - tail]
    return bytes(kept if tail is None else kept[max(0, len(kept) - tail) :])


def save(directory: Path, stream: str, chunks: Iterable[bytes], most: int | None = None) -> None:
    """Write ``<stream>.log`` into the directory, whole or not at all. Raises OSError.

    Of more than ``most`` bytes the beginning and the end are kept, and a line between them tells what is missing.
    """
    with _replacing(directory, stream) as file:
        if most is None:
            file.writelines(chunks)
        else:
            _write_ends(file, chunks, most)


def save_file(directory: Path, stream: str, path: Path, most: int) -> None:
    """Save what is in the file now, nothing if there is no such file, as `save` does. Raises OSError.

    What is between the ends that are kept is not read.
    """
    with _replacing(directory, stream) as file, suppress(FileNotFoundError), path.open("rb") as long:
        size = os.fstat(long.fileno()).st_size
        if size > most:
            _copy_ends(long, file, size, most)
        else:
            shutil.copyfileobj(long, file, _CHUNK)


@contextmanager
def _replacing(directory: Path, stream: str) -> Iterator[BinaryIO]:
    """Give a file that becomes ``<stream>.log`` of the directory once all is written to it."""
    directory.mkdir(parents=True, exist_ok=True)
    new = directory / f".{stream}.log.{os.urandom(6).hex()}"
    try:
        with new.open("wb") as file:
            yield file
        new.replace(directory / f"{stream}.log")
    finally:
        new.unlink(missing_ok=True)


def shorten(path: Path, most: int) -> None:
    """Keep both ends of a file that is longer than ``most`` bytes. Raises OSError."""
    descriptor = os.open(
        path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    )  # what a container left may be anything
    with open(descriptor, "rb") as long:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size <= most:
            return
        new = path.with_name(f".short.{os.urandom(6).hex()}")
        try:
            with new.open("wb") as file:
                _copy_ends(long, file, found.st_size, most)
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)


def _write_ends(file: BinaryIO, chunks: Iterable[bytes], most: int) -> None:
    """Write the chunks; what is too much goes round in the second half, and is put in order at the end."""
    head = most // 2
    ring = most - head
    written = 0
    for chunk in chunks:
        while chunk:
            if written < head:
                room = head - written
            else:
                at = (written - head) % ring
                file.seek(head + at)
                room = ring - at
            piece, chunk = chunk[:room], chunk[room:]
            file.write(piece)
            written += len(piece)
    if written <= most:
        return
    _put_in_order(file, head, ring, written, (written - head) % ring)


def _copy_ends(long: BinaryIO, file: BinaryIO, size: int, most: int) -> None:
    """Write both ends of a file; what is between them is not read: it may be a hole of any size."""
    head = most // 2
    ring = most - head
    for start, count in ((0, head), (size - ring, ring)):
        long.seek(start)
        while count and (piece := long.read(min(_CHUNK, count))):
            file.write(piece)
            count -= len(piece)
    _put_in_order(file, head, ring, size, 0)


def _put_in_order(file: BinaryIO, head: int, ring: int, written: int, oldest: int) -> None:
    """Cut at the ends of lines where there are some near; ``oldest`` is where in the ring the end begins."""
    file.flush()
    with open(file.name, "rb") as old, tempfile.TemporaryFile(dir=os.path.dirname(file.name)) as tail:
        for start, end in ((head + oldest, head + ring), (head, head + oldest)):
            old.seek(start)
            left = end - start
            while left and (piece := old.read(min(_CHUNK, left))):
                tail.write(piece)
                left -= len(piece)
        old.seek(max(0, head - _LINE))
        before = old.read(head - max(0, head - _LINE))
        kept = head - (len(before) - 1 - before.rfind(b"\n") if b"\n" in before else 0)
        tail.seek(0)
        after = tail.read(_LINE)
        skipped = after.find(b"\n") + 1
        missing = written - kept - (ring - skipped)
        file.seek(kept)
        file.truncate()
        start_of_line = b"" if b"\n" in before else b"\n"
        file.write(start_of_line + b"[%d" % missing + CUT)
        tail.seek(skipped)
        shutil.copyfileobj(tail, file, _CHUNK)


@contextmanager
def translated(otherwise: type[EngineError] = EngineError) -> Iterator[None]:
    """Raise what the file system refuses as `NoSpace` or ``otherwise``."""
    try:
        yield
    except OSError as error:
        kind = NoSpace if error.errno in (errno.ENOSPC, errno.EDQUOT) else otherwise
        raise kind(str(error)) from error
