"""Reads and writes the two logs of a run."""

import errno
import os
import stat
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from engines.base import Engine, EngineDown, EngineError, Logs, NoSpace

STREAMS = ("stdout", "stderr")

# End of the line that replaces the omitted middle of a log.
CUT = b" bytes are left out here: the log was longer than it may be]\n"

# Resources that this host ran out of: disk; descriptors and processes, which other programs release again.
SHORTAGES: Mapping[int | None, type[EngineError]] = {
    errno.ENOSPC: NoSpace,
    errno.EDQUOT: NoSpace,
    errno.EMFILE: EngineDown,
    errno.ENFILE: EngineDown,
    errno.EAGAIN: EngineDown,
}

CHUNK = 1024 * 1024  # bytes
_LINE = 16 * 1024  # bytes searched for the end of a line
_NEWLINE = b"\n"


@contextmanager
def translated(otherwise: type[EngineError] = EngineError) -> Iterator[None]:
    """Raise a shortage of this host as `SHORTAGES` maps it, any other OSError as ``otherwise``."""
    try:
        yield
    except OSError as error:
        error_type = SHORTAGES.get(error.errno, otherwise)
        raise error_type(str(error)) from error


class StreamingEngine(Engine):
    """An engine that can stream each log from its beginning."""

    _saved_log_size: int | None = None  # bytes of a stream that `save_logs` keeps; None: all

    def logs(self, name: str, tail: int | None = None) -> Logs:
        """Return the end of both logs."""
        return Logs(*(last(chunks, tail) for chunks in self._streams(name)))

    def save_logs(self, name: str, directory: Path) -> None:
        """Write both logs into the directory."""
        with translated():
            for stream, chunks in zip(STREAMS, self._streams(name), strict=False):
                save(directory, stream, chunks, self._saved_log_size)

    @abstractmethod
    def _streams(self, name: str) -> Sequence[Iterable[bytes]]:
        """Return the stdout and stderr of one of our runs; nothing if it has no logs."""


def read_tail(path: Path, tail: int | None) -> bytes:
    """Return the last ``tail`` bytes of a file, all of it for None, nothing if it does not exist."""
    try:
        with path.open("rb") as file:
            if tail is not None:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - tail))
            return file.read(tail)
    except FileNotFoundError:
        return b""


def last(chunks: Iterable[bytes], tail: int | None) -> bytes:
    """Return the last ``tail`` bytes of the chunks, holding little more than these in memory."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        if tail is not None and len(buffer) > tail + CHUNK:
            del buffer[: len(buffer) - tail]
    if tail is not None:
        del buffer[: max(0, len(buffer) - tail)]
    return bytes(buffer)


def save(
    directory: Path,
    stream: str,
    chunks: Iterable[bytes],
    max_bytes: int | None = None,
) -> None:
    """Write ``<stream>.log`` into the directory, completely or not at all. Raises OSError.

    Of more than ``max_bytes`` bytes, the beginning and the end are kept, with a line between them that counts the rest.
    """
    path = directory / f"{stream}.log"
    with _replacing(path) as file:
        file.writelines(chunks)
    if max_bytes is not None:
        shorten(path, max_bytes)


def save_file(directory: Path, stream: str, path: Path, max_bytes: int) -> None:
    """Save the current content of a file as `save` does; nothing if it does not exist. Raises OSError."""
    with (
        _replacing(directory / f"{stream}.log") as file,
        suppress(FileNotFoundError),
        path.open("rb") as source,
    ):
        _copy_ends(source, file, max_bytes)


def shorten(path: Path, max_bytes: int) -> None:
    """Keep only the ends of a file that is longer than ``max_bytes`` bytes. Raises OSError."""
    # A container may have created anything at the path: follow no link, wait for no pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as source:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size > max_bytes:
            with _replacing(path) as file:
                _copy_ends(source, file, max_bytes)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces the one at the path when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _copy_ends(source: BinaryIO, target: BinaryIO, max_bytes: int) -> None:
    """Copy a file; of more than ``max_bytes`` bytes only both ends, cut between lines unless these are long."""
    descriptor = source.fileno()
    size = os.fstat(descriptor).st_size
    if size <= max_bytes:
        _copy(source, target, size)
        return
    head_end = max_bytes // 2
    tail_start = size - (max_bytes - head_end)
    end_of_head = os.pread(descriptor, min(head_end, _LINE), max(0, head_end - _LINE))
    start_of_tail = os.pread(descriptor, min(size - tail_start, _LINE), tail_start)
    separator = b"[%d"
    if _NEWLINE in end_of_head:
        head_end -= len(end_of_head) - 1 - end_of_head.rfind(_NEWLINE)
    else:
        separator = _NEWLINE + separator
    tail_start += start_of_tail.find(_NEWLINE) + 1
    _copy(source, target, head_end)
    target.write(separator % (tail_start - head_end) + CUT)
    source.seek(tail_start)
    _copy(source, target, size - tail_start)


def _copy(source: BinaryIO, target: BinaryIO, count: int) -> None:
    while count:
        chunk = source.read(min(CHUNK, count))
        if not chunk:
            return
        target.write(chunk)
        count -= len(chunk)
