"""Reads and writes a run's two logs."""

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

CUT = b" bytes are left out here: the log was longer than it may be]\n"
"""the end of the line that replaces what is missing"""

_CHUNK = 1024 * 1024
_LINE = 16 * 1024
"""bytes searched for the end of a line"""


def read_tail(path: Path, tail: int | None) -> bytes:
    """Return the last ``tail`` bytes of the file, all of it for None, nothing if there is no such file."""
    try:
        with path.open("rb") as file:
            if tail is not None:
                file.seek(max(0, os.fstat(file.fileno()).st_size - tail))
            return file.read(tail)
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


def save(
    directory: Path,
    stream: str,
    chunks: Iterable[bytes],
    most: int | None = None,
) -> None:
    """Write ``<stream>.log`` into the directory, whole or not at all. Raises OSError.

    Of more than ``most`` bytes the beginning and the end are kept, with a line between them that counts the rest.
    """
    with _replacing(directory / f"{stream}.log") as file:
        file.writelines(chunks)
    if most is not None:
        shorten(directory / f"{stream}.log", most)


def save_file(
    directory: Path,
    stream: str,
    path: Path,
    most: int,
) -> None:
    """Save what is in the file now, nothing if there is no such file, as `save` does. Raises OSError."""
    with (
        _replacing(directory / f"{stream}.log") as file,
        suppress(FileNotFoundError),
        path.open("rb") as source,
    ):
        _copy_ends(source, file, most)


def shorten(path: Path, most: int) -> None:
    """Keep both ends of a file that is longer than ``most`` bytes. Raises OSError."""
    # a container may have left anything there: no link, and no pipe that blocks
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as source:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_size > most:
            with _replacing(path) as file:
                _copy_ends(source, file, most)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces the one at the path once everything is written to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    try:
        with new.open("wb") as file:
            yield file
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _copy_ends(
    source: BinaryIO,
    target: BinaryIO,
    most: int,
) -> None:
    """Copy a file; of more than ``most`` bytes both ends only, cut between lines unless these are long."""
    size = os.fstat(source.fileno()).st_size
    if size <= most:
        _copy(source, target, size)
        return
    head = most // 2
    tail = size - (most - head)
    before = os.pread(source.fileno(), min(head, _LINE), max(0, head - _LINE))
    after = os.pread(source.fileno(), min(size - tail, _LINE), tail)
    if b"\n" in before:
        head -= len(before) - 1 - before.rfind(b"\n")
    tail += after.find(b"\n") + 1
    _copy(source, target, head)
    target.write((b"" if b"\n" in before else b"\n") + b"[%d" % (tail - head) + CUT)
    source.seek(tail)
    _copy(source, target, size - tail)


def _copy(
    source: BinaryIO,
    target: BinaryIO,
    count: int,
) -> None:
    while count and (piece := source.read(min(_CHUNK, count))):
        target.write(piece)
        count -= len(piece)


SHORTAGES: Mapping[int | None, type[EngineError]] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), NoSpace),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE, errno.EAGAIN), EngineDown),
}
"""what this host has no more of: disk; descriptors and processes, which others give back"""


@contextmanager
def translated(otherwise: type[EngineError] = EngineError) -> Iterator[None]:
    """Raise what this host lacks as `SHORTAGES` say, and what it refuses as ``otherwise``."""
    try:
        yield
    except OSError as error:
        raise SHORTAGES.get(error.errno, otherwise)(str(error)) from error


class StreamingEngine(Engine):
    """An engine that can give each log as a stream, from its beginning."""

    _saved_log_size: int | None = None
    """bytes of a stream that `save_logs` keeps; None: all"""

    def logs(self, name: str, tail: int | None = None) -> Logs:
        """Return the end of each."""
        return Logs(*(last(chunks, tail) for chunks in self._streams(name)))

    def save_logs(self, name: str, directory: Path) -> None:
        """Write both into the directory."""
        with translated():
            for stream, chunks in zip(STREAMS, self._streams(name), strict=False):
                save(directory, stream, chunks, self._saved_log_size)

    @abstractmethod
    def _streams(self, name: str) -> Sequence[Iterable[bytes]]:
        """Return what a run of ours wrote to stdout and to stderr; nothing if its logs are not here."""
