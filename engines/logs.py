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

# The line that replaces the omitted middle of a log, without its start: ``[`` and a number
CUT = b" bytes are left out here: the log was longer than it may be]\n"

# Errors by the system's error number. A full disk stays full. Descriptors and processes become
# available again when other programs release them, so their shortage is `EngineDown`.
SHORTAGES: Mapping[int | None, type[EngineError]] = {
    errno.ENOSPC: NoSpace,
    errno.EDQUOT: NoSpace,
    errno.EMFILE: EngineDown,
    errno.ENFILE: EngineDown,
    errno.EAGAIN: EngineDown,
}

CHUNK = 1024 * 1024  # bytes
_LINE = 16 * 1024  # bytes searched for a line break
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
        return Logs(*(tail_of(chunks, tail) for chunks in self._streams(name)))

    def save_logs(self, name: str, directory: Path) -> None:
        """Write both logs into the directory."""
        with translated():
            # Not strict: a run without logs has no streams.
            for stream, chunks in zip(STREAMS, self._streams(name), strict=False):
                save(directory, stream, chunks, self._saved_log_size)

    @abstractmethod
    def _streams(self, name: str) -> Sequence[Iterable[bytes]]:
        """Return the stdout and stderr of one of this node's runs.

        The sequence is empty for a run without logs.
        """


def read_tail(path: Path, tail: int | None) -> bytes:
    """Return the end of a file; nothing if the file does not exist.

    ``tail``: how many bytes; None: the whole file.
    """
    try:
        with path.open("rb") as file:
            if tail is not None:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - tail))
            return file.read(tail)
    except FileNotFoundError:
        return b""


def tail_of(chunks: Iterable[bytes], tail: int | None) -> bytes:
    """Return the last ``tail`` bytes of the chunks; None: all bytes.

    At most ``tail`` + `CHUNK` bytes and one more chunk are held in memory.
    """
    if tail is None:
        return b"".join(chunks)
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        if len(buffer) > tail + CHUNK:
            del buffer[: len(buffer) - tail]
    del buffer[: max(0, len(buffer) - tail)]
    return bytes(buffer)


def save(
    directory: Path,
    stream: str,
    chunks: Iterable[bytes],
    max_bytes: int | None = None,
) -> None:
    """Write ``<stream>.log`` into the directory, completely or not at all. Raises OSError.

    If there are more than ``max_bytes`` bytes, the beginning and the end are kept, and a line
    between them counts the omitted bytes.
    """
    path = directory / f"{stream}.log"
    with _replacing(path) as file:
        file.writelines(chunks)
    if max_bytes is not None:
        shorten(path, max_bytes)


def save_file(
    directory: Path,
    stream: str,
    path: Path,
    max_bytes: int,
) -> None:
    """Save the current content of a file as `save` does; if there is no file, save an empty log.

    Raises OSError.
    """
    with (
        _replacing(directory / f"{stream}.log") as file,
        suppress(FileNotFoundError),
        path.open("rb") as source,
    ):
        _copy_ends(source, file, max_bytes)


def shorten(path: Path, max_bytes: int) -> None:
    """Keep only the ends of a file that is longer than ``max_bytes`` bytes. Raises OSError.

    Files that are not regular are left alone.
    """
    # A container may have created anything at the path: follow no link, wait for no pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as source:
        status = os.fstat(descriptor)
        is_too_long = status.st_size > max_bytes
        if stat.S_ISREG(status.st_mode) and is_too_long:
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
    """Copy a file; if it has more than ``max_bytes`` bytes, only its beginning and its end.

    The omitted middle starts and ends at a line break, unless the lines there are very long.
    """
    size = os.fstat(source.fileno()).st_size
    if size <= max_bytes:
        _copy(source, target, size)
        return
    head_size = max_bytes // 2
    tail_size = max_bytes - head_size
    head_end, cut_start = _end_of_head(source, head_size)
    tail_start = _start_of_tail(source, size - tail_size, size)
    _copy(source, target, head_end)
    target.write(cut_start % (tail_start - head_end) + CUT)
    source.seek(tail_start)
    _copy(source, target, size - tail_start)


def _end_of_head(source: BinaryIO, head_end: int) -> tuple[int, bytes]:
    """Return where the retained beginning of a file ends, at ``head_end`` or shortly before.

    The second value is the start of the line that replaces the omitted bytes, with a placeholder
    for their number; it begins with a line break if the beginning does not end in one.
    """
    cut_start = b"[%d"
    size = min(head_end, _LINE)
    end_of_head = os.pread(
        source.fileno(),
        size,
        max(0, head_end - _LINE),
    )
    last_newline = end_of_head.rfind(_NEWLINE)
    if last_newline < 0:
        return head_end, _NEWLINE + cut_start
    after_newline = len(end_of_head) - 1 - last_newline
    return head_end - after_newline, cut_start


def _start_of_tail(source: BinaryIO, tail_start: int, size: int) -> int:
    """Return where the retained end of a file starts: at the next line after ``tail_start``.

    Without a line break soon after ``tail_start``, the retained end starts at ``tail_start``.
    ``size``: the file's, in bytes.
    """
    start_of_tail = os.pread(
        source.fileno(),
        min(size - tail_start, _LINE),
        tail_start,
    )
    # Without a line break, `find` returns -1, so the sum is ``tail_start``.
    return tail_start + start_of_tail.find(_NEWLINE) + 1


def _copy(source: BinaryIO, target: BinaryIO, count: int) -> None:
    """Copy ``count`` bytes, or fewer if the source ends before."""
    while count:
        chunk = source.read(min(CHUNK, count))
        if not chunk:
            return
        target.write(chunk)
        count -= len(chunk)
