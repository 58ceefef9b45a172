"""Reads and writes a run's two log files."""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engines.base import EngineError, NoSpace

STREAMS = ("stdout", "stderr")

_CHUNK = 1024 * 1024


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


def last(chunks: Iterable[bytes], tail: int | None) -> bytes:
    """Return the last ``tail`` bytes of the chunks, holding not much more than those in memory."""
    kept = bytearray()
    for chunk in chunks:
        kept += chunk
        if tail is not None and len(kept) > tail + _CHUNK:
            del kept[: len(kept) - tail]
    return bytes(kept if tail is None else kept[max(0, len(kept) - tail) :])


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yield what is in the file now, nothing if there is no such file."""
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except FileNotFoundError:
        return


def save(directory: Path, stream: str, chunks: Iterable[bytes]) -> None:
    """Write ``<stream>.log`` into the directory, whole or not at all. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    new = directory / f".{stream}.log.{os.urandom(6).hex()}"
    try:
        with new.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
        new.replace(directory / f"{stream}.log")
    finally:
        new.unlink(missing_ok=True)


@contextmanager
def translated(otherwise: type[EngineError] = EngineError) -> Iterator[None]:
    """Raise what the file system refuses as `NoSpace` or ``otherwise``."""
    try:
        yield
    except OSError as error:
        kind = NoSpace if error.errno in (errno.ENOSPC, errno.EDQUOT) else otherwise
        raise kind(str(error)) from error
